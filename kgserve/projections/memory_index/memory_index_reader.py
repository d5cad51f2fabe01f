"""Queries for single memories, names and relations, also on a connection concurrent with the writer."""
# ruff: noqa: S608 - built from constants only

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kgserve.platform.sqlite_files import select_rows_by_in_list
from kgserve.projections.memory_index import memory_index_sql as sql
from kgserve.projections.memory_index.entries import MemoryMetadata
from kgserve.projections.memory_index.hierarchy import MemoryHierarchyQueries
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.entity_names import normalize_entity_name
from kgserve.storage.model.node_and_memory_filters import MAX_SCANNED_NODES
from kgserve.storage.model.node_edge_rows import EdgeKey

MAX_EQUAL_MEMORIES = 100
MAX_ENTITIES_PER_NAME = 1_000

NameMatchKind = Literal["exact", "folded", "alias"]


class NodeNameMatch(NamedTuple):
    """Node with a requested name, and how the name matched."""

    id: str
    type: str
    name: str
    match: NameMatchKind
    stands: bool
    """False for memories and withdrawn nodes."""


_MAX_PREFIX_NAMES, _MAX_NEIGHBOUR_NAMES, _MAX_COMPARED_CHARS = 200, 20, 64

EntityPageStart = tuple[str, str]
"""Folded name and id of the entity after which a page begins."""


class EntityIdPage(NamedTuple):
    """Ids of a page of entities, and the place of the next page; None on the last one."""

    ids: list[str]
    next: EntityPageStart | None


class RelationsBetweenEntitiesFilter(NamedTuple):
    """Filter of relations between entities valid at ``now``; empty fields do not restrict."""

    now: int
    source: str = ""
    target: str = ""
    types: tuple[str, ...] = ()
    least: float = 0.0


class RelationIdPage(NamedTuple):
    """Keys of a page of relations, and the key after which the next page begins; None on the last one.

    A page ends after examining 20,000 relations, so it may be short or empty although it has a next one.
    """

    keys: list[EdgeKey]
    next: EdgeKey | None


_RelationRow = tuple[str, str, str, bool]


class MemoryIndexReader(MemoryHierarchyQueries):
    """Queries on the memory index, as of its last commit to disk. For one thread at a time."""

    @classmethod
    def beside(cls, path: Path) -> MemoryIndexReader:
        """Open an existing file read-only. Raises sqlite3.Error."""
        uri = f"{path.absolute().as_uri()}?mode=ro"
        return cls(sqlite3.connect(uri, uri=True, check_same_thread=False, cached_statements=16))

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def accesses(self, ids: Iterable[str]) -> dict[str, MemoryAccessRecord]:
        """Return the journaled accesses of some nodes."""
        return {
            row[0]: MemoryAccessRecord(*row) for row in select_rows_by_in_list(self._run, sql.SELECT_ACCESSES, [*ids])
        }

    def memories_with_equal_text(
        self, hash_: bytes, print_: bytes, now: int, limit: int = MAX_EQUAL_MEMORIES
    ) -> list[MemoryMetadata]:
        """Return the memories in force with equal text, oldest first: those with equal hash, then equal fingerprint."""
        found: dict[str, MemoryMetadata] = {}
        for query, value in ((sql.SELECT_LIVE_BY_HASH, hash_), (sql.SELECT_LIVE_BY_FINGERPRINT, print_)):
            for row in self._run(query, {"value": value, "now": now, "limit": limit}):
                found.setdefault(row[0], MemoryMetadata(*row))
        return [*found.values()][:limit]

    def ids_with_equal_text(self, hash_: bytes, print_: bytes, now: int) -> list[str]:
        """Return the ids of the memories in force with equal text, in one statement.

        A single statement matters for the writing thread, which may lose the interpreter's lock at each one.
        """
        values = {"hash": hash_, "print": print_, "now": now, "limit": MAX_EQUAL_MEMORIES}
        return list(dict.fromkeys(node_id for (node_id,) in self._run(sql.SELECT_IDS_BY_HASH_OR_FINGERPRINT, values)))

    def said(self, keys: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
        """Return those of some hashes and fingerprints that a memory in force has."""
        hashes, prints = zip(*keys, strict=True)
        found = (
            *select_rows_by_in_list(self._run, sql.SELECT_KNOWN_HASHES, hashes),
            *select_rows_by_in_list(self._run, sql.SELECT_KNOWN_FINGERPRINTS, prints),
        )
        return {digest for (digest,) in found}

    def known_names(self, folds: Iterable[str]) -> set[str]:
        """Return those of some folded names that any node has."""
        return {fold for (fold,) in select_rows_by_in_list(self._run, sql.SELECT_KNOWN_NAMES, [*folds])}

    def nodes_named(self, name: str) -> list[NodeNameMatch]:
        """Return the nodes with a name: exact matches first, then matches after folding, then aliases."""
        rows = self._run(sql.SELECT_ENTITIES_NAMED, (normalize_entity_name(name), MAX_ENTITIES_PER_NAME)).fetchall()
        found = [NodeNameMatch(row[0], row[1], row[2], _match(name, row[3], row[4]), bool(row[5])) for row in rows]
        found.sort(key=lambda each: _MATCHES.index(each.match))
        return list({each.id: each for each in reversed(found)}.values())[::-1]

    # Pages of entities and relations

    def entities(self, types: Sequence[str], start: str, after: EntityPageStart, limit: int) -> EntityIdPage:
        """Return entities by folded name, of some types or all, whose names begin with ``start`` in any case."""
        start = normalize_entity_name(start)
        values = {"fold": after[0], "id": after[1], "start": start, "limit": limit + 1}
        behind = "standing = 1 AND fold >= :start AND (fold, id) > (:fold, :id) ORDER BY fold, id LIMIT :limit"
        if types:
            query = f"SELECT fold, id FROM entity INDEXED BY entity_type WHERE type = :type AND {behind}"
            found = heapq.merge(*[self._run(query, {**values, "type": each}) for each in dict.fromkeys(types)])
        else:
            found = iter(self._run(f"SELECT fold, id FROM entity INDEXED BY entity_fold WHERE {behind}", values))
        page: list[EntityPageStart] = []
        for place in found:
            if not place[0].startswith(start):
                break
            if len(page) == limit:
                return EntityIdPage([node_id for _, node_id in page], page[-1])
            page.append(place)
        return EntityIdPage([node_id for _, node_id in page], None)

    def similar_names(self, name: str) -> list[str]:
        """Return up to three names of entities similar to an unknown name, nearest first.

        Candidates are names with the same beginning, and the neighbours in sort order.
        """
        fold = normalize_entity_name(name)[:_MAX_COMPARED_CHARS]
        select_names = "SELECT fold, name FROM entity INDEXED BY entity_fold WHERE standing = 1 AND fold"
        found = chain(
            self._run(f"{select_names} >= ? ORDER BY fold LIMIT ?", (fold[:2], _MAX_PREFIX_NAMES)),
            self._run(f"{select_names} >= ? ORDER BY fold LIMIT ?", (fold, _MAX_NEIGHBOUR_NAMES)),
            self._run(f"{select_names} < ? ORDER BY fold DESC LIMIT ?", (fold, _MAX_NEIGHBOUR_NAMES)),
        )
        names = {other[:_MAX_COMPARED_CHARS]: shown for other, shown in found}
        return [names[each] for each in get_close_matches(fold, names, 3)]

    def relations(self, wanted: RelationsBetweenEntitiesFilter, after: EdgeKey | None, limit: int) -> RelationIdPage:
        """Return relations between entities, in the order of an index that suits the filter.

        At most 20,000 relations are examined.
        """
        keys: list[EdgeKey] = []
        last = after
        steps = chain.from_iterable(_ordered_queries(self._connection, wanted, after))
        for number, (source, target, type_, fits) in enumerate(steps):
            if number == MAX_SCANNED_NODES or (fits and len(keys) == limit):
                return RelationIdPage(keys, last)
            last = (source, target, type_)
            if fits:
                keys.append(last)
        return RelationIdPage(keys, None)


_MATCHES: tuple[NameMatchKind, ...] = ("exact", "folded", "alias")


def _match(wanted: str, alias: int, name: str) -> NameMatchKind:
    return "alias" if alias else "exact" if name == wanted else "folded"


def _ordered_queries(
    reader: sqlite3.Connection, wanted: RelationsBetweenEntitiesFilter, after: EdgeKey | None
) -> Iterator[Iterable[_RelationRow]]:
    """Yield queries whose concatenated results are in order."""
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


def _conditions(wanted: RelationsBetweenEntitiesFilter) -> tuple[str, dict[str, Any]]:
    """Return the condition for a requested relation, and its values."""
    fits = ["weight >= :least", "(start IS NULL OR start <= :now)", "(stop IS NULL OR stop > :now)"]
    types = {f"type{at}": each for at, each in enumerate(wanted.types)}
    if wanted.target:
        fits.append("target = :target")
    if types:
        fits.append(f"type IN ({', '.join(f':{name}' for name in types)})")
    return " AND ".join(fits), types | wanted._asdict()
