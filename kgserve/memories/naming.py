"""Pages of what has a name, and of the relations between."""
# ruff: noqa: S608 - texts made of constants, values as parameters

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Any, NamedTuple

from kgserve.model.listing import MAX_PASSED
from kgserve.model.names import folded
from kgserve.model.rows import EdgeKey

_LOOKED_AT, _BESIDE, _COMPARED = 200, 20, 64

EntityPlace = tuple[str, str]
"""The folded name and the id of the entity that a page begins behind."""


class EntityPage(NamedTuple):
    """The ids of a page of entities, and where the next one begins: None when there is none."""

    ids: list[str]
    next: EntityPlace | None


def entities(
    reader: sqlite3.Connection, types: Sequence[str], start: str, after: EntityPlace, limit: int
) -> EntityPage:
    """Entities in the order of their folded names, those of some types or all, whose folded names start so."""
    values = {"fold": after[0], "id": after[1], "start": start, "limit": limit + 1}
    behind = "standing = 1 AND fold >= :start AND (fold, id) > (:fold, :id) ORDER BY fold, id LIMIT :limit"
    if types:
        query = f"SELECT fold, id FROM entity INDEXED BY entity_type WHERE type = :type AND {behind}"
        found = heapq.merge(*[reader.execute(query, {**values, "type": each}) for each in dict.fromkeys(types)])
    else:
        found = iter(reader.execute(f"SELECT fold, id FROM entity INDEXED BY entity_fold WHERE {behind}", values))
    page: list[EntityPlace] = []
    for place in found:
        if not place[0].startswith(start):
            break
        if len(page) == limit:
            return EntityPage([node_id for _, node_id in page], page[-1])
        page.append(place)
    return EntityPage([node_id for _, node_id in page], None)


def like(reader: sqlite3.Connection, name: str) -> list[str]:
    """Up to three names of entities that may be meant by one that there is not, the nearest first.

    It looks at some that begin alike, and at those beside it in their order.
    """
    fold = folded(name)[:_COMPARED]
    around = "SELECT fold, name FROM entity INDEXED BY entity_fold WHERE standing = 1 AND fold"
    found = chain(
        reader.execute(f"{around} >= ? ORDER BY fold LIMIT ?", (fold[:2], _LOOKED_AT)),
        reader.execute(f"{around} >= ? ORDER BY fold LIMIT ?", (fold, _BESIDE)),
        reader.execute(f"{around} < ? ORDER BY fold DESC LIMIT ?", (fold, _BESIDE)),
    )
    names = {other[:_COMPARED]: shown for other, shown in found}
    return [names[each] for each in get_close_matches(fold, names, 3)]


class RelationFilter(NamedTuple):
    """Relations between entities, true at ``now``; what is empty does not matter."""

    now: int
    source: str = ""
    target: str = ""
    types: tuple[str, ...] = ()
    least: float = 0.0


class RelationPage(NamedTuple):
    """The relations of a page, and the one that the next begins behind: None when there is none.

    A page that has looked at 20,000 relations ends there: it may be short, or empty, with a next one.
    """

    keys: list[EdgeKey]
    next: EdgeKey | None


_Step = tuple[str, str, str, bool]


def relations(reader: sqlite3.Connection, wanted: RelationFilter, after: EdgeKey | None, limit: int) -> RelationPage:
    """Relations in the order of an index that fits the filter."""
    keys: list[EdgeKey] = []
    last = after
    for number, (source, target, type_, fits) in enumerate(chain.from_iterable(_along(reader, wanted, after))):
        if number == MAX_PASSED or (fits and len(keys) == limit):
            return RelationPage(keys, last)
        last = (source, target, type_)
        if fits:
            keys.append(last)
    return RelationPage(keys, None)


def _along(reader: sqlite3.Connection, wanted: RelationFilter, after: EdgeKey | None) -> Iterator[Iterable[_Step]]:
    """Queries whose answers, one after the other, are in order."""
    fits, values = _conditions(wanted)
    what = f"SELECT source, target, type, {fits} FROM relation"
    values |= dict(zip(("s", "t", "r"), after or ("", "", ""), strict=True)) | {"limit": MAX_PASSED + 1}
    if wanted.source:
        order = "source = :source AND (type, target) > (:r, :t) ORDER BY type, target"
        yield reader.execute(f"{what} WHERE {order} LIMIT :limit", values)
    elif wanted.target:
        order = "target = :target AND (source, type) > (:s, :r) ORDER BY source, type"
        yield reader.execute(f"{what} INDEXED BY relation_target WHERE {order} LIMIT :limit", values)
    elif wanted.types:
        order = "type = :type AND (source, target) > (:s, :t) ORDER BY source, target"
        for each in sorted(each for each in set(wanted.types) if each >= values["r"]):
            own = {"type": each} | ({} if each == values["r"] else {"s": "", "t": ""})
            yield reader.execute(f"{what} INDEXED BY relation_type WHERE {order} LIMIT :limit", values | own)
    else:
        order = "(source, type, target) > (:s, :r, :t) ORDER BY source, type, target"
        yield reader.execute(f"{what} WHERE {order} LIMIT :limit", values)


def _conditions(wanted: RelationFilter) -> tuple[str, dict[str, Any]]:
    """Whether a relation is wanted, and the values of that."""
    fits = ["weight >= :least", "(start IS NULL OR start <= :now)", "(stop IS NULL OR stop > :now)"]
    types = {f"type{at}": each for at, each in enumerate(wanted.types)}
    if wanted.target:
        fits.append("target = :target")
    if types:
        fits.append(f"type IN ({', '.join(f':{name}' for name in types)})")
    return " AND ".join(fits), types | wanted._asdict()
