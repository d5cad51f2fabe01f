"""What is asked of single memories, names and relations, also by a connection beside one that takes commits in."""
# ruff: noqa: S608 - texts made of constants, values as parameters

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kgserve.platform.sqlite_files import of_some
from kgserve.projections.memory_index import statements as sql
from kgserve.projections.memory_index.closure import HierarchyLookups
from kgserve.projections.memory_index.entries import LiveMemory
from kgserve.storage.model.change import Access
from kgserve.storage.model.filters import MAX_SCANNED_NODES
from kgserve.storage.model.names import folded
from kgserve.storage.model.rows import EdgeKey

MAX_ALIKE_MEMORIES = 100
MAX_ENTITIES_PER_NAME = 1_000

Match = Literal["exact", "folded", "alias"]


class NameMatch(NamedTuple):
    """A node that has a name, and how it was found. It stands unless it was withdrawn, or is a memory."""

    id: str
    type: str
    name: str
    match: Match
    stands: bool


_LOOKED_AT, _BESIDE, _COMPARED = 200, 20, 64

EntityPlace = tuple[str, str]
"""The folded name and the id of the entity that a page begins behind."""


class EntityIdPage(NamedTuple):
    """The ids of a page of entities, and where the next one begins: None when there is none."""

    ids: list[str]
    next: EntityPlace | None


class RelationFilter(NamedTuple):
    """Relations between entities, true at ``now``; what is empty does not matter."""

    now: int
    source: str = ""
    target: str = ""
    types: tuple[str, ...] = ()
    least: float = 0.0


class RelationIdPage(NamedTuple):
    """The relations of a page, and the one that the next begins behind: None when there is none.

    A page that has looked at 20,000 relations ends there: it may be short, or empty, with a next one.
    """

    keys: list[EdgeKey]
    next: EdgeKey | None


_Step = tuple[str, str, str, bool]


class Lookups(HierarchyLookups):
    """The memory view as of what was committed to its file. For one thread at a time."""

    @classmethod
    def beside(cls, path: Path) -> Lookups:
        """A connection that only reads a file that is there. Raises sqlite3.Error."""
        uri = f"{path.absolute().as_uri()}?mode=ro"
        return cls(sqlite3.connect(uri, uri=True, check_same_thread=False, cached_statements=16))

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def accesses(self, ids: Iterable[str]) -> dict[str, Access]:
        """What has been journaled of reading some nodes."""
        return {row[0]: Access(*row) for row in of_some(self._run, sql.SELECT_ACCESSES, [*ids])}

    def alike(self, hash_: bytes, print_: bytes, now: int, limit: int = MAX_ALIKE_MEMORIES) -> list[LiveMemory]:
        """The memories in force that say the same, the oldest first: those of this hash, then those of this print."""
        found: dict[str, LiveMemory] = {}
        for query, value in ((sql.SELECT_LIVE_BY_HASH, hash_), (sql.SELECT_LIVE_BY_FINGERPRINT, print_)):
            for row in self._run(query, {"value": value, "now": now, "limit": limit}):
                found.setdefault(row[0], LiveMemory(*row))
        return [*found.values()][:limit]

    def saying(self, hash_: bytes, print_: bytes, now: int) -> list[str]:
        """The ids of those, in one statement: at each the writing thread has to wait for others to let it go on."""
        values = {"hash": hash_, "print": print_, "now": now, "limit": MAX_ALIKE_MEMORIES}
        return list(dict.fromkeys(node_id for (node_id,) in self._run(sql.SELECT_IDS_BY_HASH_OR_FINGERPRINT, values)))

    def said(self, keys: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
        """Those of some hashes and prints that a memory in force has."""
        hashes, prints = zip(*keys, strict=True)
        found = (
            *of_some(self._run, sql.SELECT_KNOWN_HASHES, hashes),
            *of_some(self._run, sql.SELECT_KNOWN_FINGERPRINTS, prints),
        )
        return {digest for (digest,) in found}

    def known_names(self, folds: Iterable[str]) -> set[str]:
        """Those of some folded names that anything has."""
        return {fold for (fold,) in of_some(self._run, sql.SELECT_KNOWN_NAMES, [*folds])}

    def named(self, name: str) -> list[NameMatch]:
        """The nodes of a name: by exactly that, by one that counts as the same, then by another name of theirs."""
        rows = self._run(sql.SELECT_ENTITIES_NAMED, (folded(name), MAX_ENTITIES_PER_NAME)).fetchall()
        found = [NameMatch(row[0], row[1], row[2], _match(name, row[3], row[4]), bool(row[5])) for row in rows]
        found.sort(key=lambda each: _MATCHES.index(each.match))
        return list({each.id: each for each in reversed(found)}.values())[::-1]

    # Pages of what has a name, and of the relations between

    def entities(self, types: Sequence[str], start: str, after: EntityPlace, limit: int) -> EntityIdPage:
        """Entities by their folded names, those of some types or all, whose names start so in any case."""
        start = folded(start)
        values = {"fold": after[0], "id": after[1], "start": start, "limit": limit + 1}
        behind = "standing = 1 AND fold >= :start AND (fold, id) > (:fold, :id) ORDER BY fold, id LIMIT :limit"
        if types:
            query = f"SELECT fold, id FROM entity INDEXED BY entity_type WHERE type = :type AND {behind}"
            found = heapq.merge(*[self._run(query, {**values, "type": each}) for each in dict.fromkeys(types)])
        else:
            found = iter(self._run(f"SELECT fold, id FROM entity INDEXED BY entity_fold WHERE {behind}", values))
        page: list[EntityPlace] = []
        for place in found:
            if not place[0].startswith(start):
                break
            if len(page) == limit:
                return EntityIdPage([node_id for _, node_id in page], page[-1])
            page.append(place)
        return EntityIdPage([node_id for _, node_id in page], None)

    def names_like(self, name: str) -> list[str]:
        """Up to three names of entities that may be meant by one that there is not, the nearest first.

        It looks at some that begin alike, and at those beside it in their order.
        """
        fold = folded(name)[:_COMPARED]
        around = "SELECT fold, name FROM entity INDEXED BY entity_fold WHERE standing = 1 AND fold"
        found = chain(
            self._run(f"{around} >= ? ORDER BY fold LIMIT ?", (fold[:2], _LOOKED_AT)),
            self._run(f"{around} >= ? ORDER BY fold LIMIT ?", (fold, _BESIDE)),
            self._run(f"{around} < ? ORDER BY fold DESC LIMIT ?", (fold, _BESIDE)),
        )
        names = {other[:_COMPARED]: shown for other, shown in found}
        return [names[each] for each in get_close_matches(fold, names, 3)]

    def relations(self, wanted: RelationFilter, after: EdgeKey | None, limit: int) -> RelationIdPage:
        """Relations between entities in the order of an index that fits the filter. It looks at 20,000 at most."""
        keys: list[EdgeKey] = []
        last = after
        steps = chain.from_iterable(_along(self._connection, wanted, after))
        for number, (source, target, type_, fits) in enumerate(steps):
            if number == MAX_SCANNED_NODES or (fits and len(keys) == limit):
                return RelationIdPage(keys, last)
            last = (source, target, type_)
            if fits:
                keys.append(last)
        return RelationIdPage(keys, None)


_MATCHES: tuple[Match, ...] = ("exact", "folded", "alias")


def _match(wanted: str, alias: int, name: str) -> Match:
    return "alias" if alias else "exact" if name == wanted else "folded"


def _along(reader: sqlite3.Connection, wanted: RelationFilter, after: EdgeKey | None) -> Iterator[Iterable[_Step]]:
    """Queries whose answers, one after the other, are in order."""
    fits, values = _conditions(wanted)
    what = f"SELECT source, target, type, {fits} FROM relation"
    values |= dict(zip(("s", "t", "r"), after or ("", "", ""), strict=True)) | {"limit": MAX_SCANNED_NODES + 1}
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
