"""Taking in what a group of writes changed: each memory, name and relation that it names, and what they count for.

What becomes a memory, or gets a name, without being new has edges that nobody writes now: those are read from the
rows. These may be some commits ahead; whatever came between follows, and taking an edge in twice changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kgserve.memories import statements as sql
from kgserve.memories.closure import Hierarchy
from kgserve.memories.entries import ENTITIES, Books, Entry, entry_of
from kgserve.model.change import Access, NetChange
from kgserve.model.decay import HalfLives
from kgserve.model.merging import MERGED_INTO, is_withdrawn
from kgserve.model.names import IS_ABOUT, aliases_in, folded
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.sqlite_files import of_some

NO_RELATIONS = (IS_ABOUT, MERGED_INTO)
"""What joins no two entities: that a memory is about one, and that one has come to another."""
_AT_ONCE = 5_000

EdgesOf = Callable[[str], Iterable[EdgeRow]]
"""The edges of a node, in both directions."""


class _Entity(NamedTuple):
    """A node that has a name. It ``stands`` unless it is withdrawn, or a memory."""

    id: str
    type: str
    name: str
    fold: str
    standing: bool


class Follower:
    """Takes changes in, within one transaction."""

    def __init__(self, transaction: sqlite3.Connection, half_lives: HalfLives, edges_of: EdgesOf) -> None:
        self._run = transaction.execute
        self._run_many = transaction.executemany
        self._half_lives = half_lives
        self._edges_of = edges_of
        self._books = Books()
        self._hierarchy = Hierarchy(transaction)
        self._stands: dict[str, bool] = {}

    def follow(self, net: NetChange) -> None:
        """Take in what several commits come to."""
        self._run_many(sql.UNACCESS, [(node_id,) for node_id in net.unaccessed])
        self._run_many(sql.ACCESS_AGAIN, [(a.id, a.count, a.last, a.confidence) for a in net.accessed.values()])
        self._drop_edges(net.edges_deleted)
        for node_id in net.nodes_deleted:
            self._drop(node_id)
        adopted = self._change([*net.nodes_updated.values()])
        self._add([*net.nodes_created.values()])
        self._touch(net.accessed.keys() - net.nodes_updated.keys() - net.nodes_created.keys())
        self.put_edges([*net.edges_created.values(), *net.edges_updated.values()])
        for node_id in adopted:
            self.put_edges([*self._edges_of(node_id)])
        self._hierarchy.settle()
        self._close()

    def fill(self, rows: Iterable[NodeRow]) -> None:
        """Take in rows of nodes of which nothing is there."""
        self._add(list(rows))
        self._close()

    def _add(self, rows: Sequence[NodeRow]) -> None:
        self._add_memories([row for row in rows if row.is_memory])
        self._fill_entities([(row, entity) for row in rows if (entity := _entity_of(row)) is not None])

    def _add_memories(self, rows: Sequence[NodeRow]) -> None:
        if not rows:
            return
        [number] = self._run(sql.LAST_NUMBER).fetchone()
        memories = list(enumerate(rows, number + 1))
        used = self._accesses([row.id for row in rows])
        entries = [(number, entry_of(row, used.get(row.id), self._half_lives)) for number, row in memories]
        self._run_many(sql.ADD, [(number, *entry) for number, entry in entries])
        tags = {number: _tags(row) for number, row in memories}
        self._run_many(sql.TAG, [(tag, number) for number, some in tags.items() for tag in some])
        for number, entry in entries:
            self._books.book(entry, tags[number], 1)

    def _fill_entities(self, found: Sequence[tuple[NodeRow, _Entity]]) -> None:
        self._run_many(sql.ENTITY, [entity for _, entity in found])
        self._run_many(sql.NAME, [name for row, entity in found for name in _names(row, entity)])
        for _, entity in found:
            self._count(entity, 1)

    def filled(self) -> None:
        """Take in that these were all nodes and edges."""
        self._hierarchy.rebuild()

    def rekey(self) -> None:
        """Make all keys anew."""
        number = 0
        while rows := self._run(sql.ENTRIES, (number, _AT_ONCE)).fetchall():
            number = rows[-1][0]
            before = [Entry(*row[1:]) for row in rows]
            after = [each.after(self._access(each.id), self._half_lives) for each in before]
            self._run_many(sql.REKEY, [(each.half, each.key, each.id) for each in after])
            for old, new in zip(before, after, strict=True):
                self._books.book(old, (), -1)
                self._books.book(new, (), 1)
            self._close()

    def put_edges(self, edges: Sequence[EdgeRow]) -> None:
        """Take in edges, new or changed."""
        self._run_many(sql.ABOUT, [_about(edge) for edge in edges if edge.relation_type == IS_ABOUT])
        self._hierarchy.put(edges)
        related = [edge for edge in edges if edge.relation_type not in NO_RELATIONS]
        self._know({end for edge in related for end in edge.key[:2]})
        related = [edge for edge in related if self._stands[edge.source] and self._stands[edge.target]]
        self._run_many(sql.RELATION, map(_relation, related))

    def _drop_edges(self, keys: Iterable[EdgeKey]) -> None:
        keys = list(keys)
        self._run_many(sql.NOT_ABOUT, [(target, source) for source, target, kind in keys if kind == IS_ABOUT])
        self._hierarchy.drop(keys)
        self._run_many(sql.NO_RELATION, keys)

    def _drop(self, node_id: str) -> None:
        self._drop_memory(self._entry(node_id))
        self._drop_entity(self._entity(node_id))

    def _change(self, rows: Sequence[NodeRow]) -> list[str]:
        """Take in rows of nodes that were there; the ids of what is something now whose edges may have been there."""
        ids = [row.id for row in rows]
        entries = {found[1]: (found[0], Entry(*found[1:])) for found in of_some(self._run, sql.ENTRIES_OF, ids)}
        new = [row for row in rows if row.is_memory and row.id not in entries]
        self._add_memories(new)
        self._put_memories([(row, *entries[row.id]) for row in rows if row.id in entries])
        entities = {
            found[0]: _Entity._make((*found[:4], bool(found[4]))) for found in of_some(self._run, sql.ENTITY_ROWS, ids)
        }
        return [*(row.id for row in new), *(row.id for row in rows if self._put_entity(row, entities.get(row.id)))]

    def _put_memories(self, found: Sequence[tuple[NodeRow, int, Entry]]) -> None:
        """Take in rows of what was a memory."""
        for row, _, before in found:
            if not row.is_memory:
                self._drop_memory(before)
        found = [each for each in found if each[0].is_memory]
        used = self._accesses([row.id for row, _, _ in found])
        had: dict[int, set[str]] = {}
        for number, tag in of_some(self._run, sql.TAGS_OF_SOME, [number for _, number, _ in found]):
            had.setdefault(number, set()).add(tag)
        puts: list[Entry] = []
        for row, number, before in found:
            entry = entry_of(row, used.get(row.id), self._half_lives)
            if entry != before:
                puts.append(entry)
            if before.active != entry.active:
                self._hierarchy.changed(row.id)
            self._book(number, (before, entry), (had.get(number, set()), _tags(row)))
        self._run_many(sql.PUT, puts)

    def _book(self, number: int, entries: tuple[Entry, Entry], tags: tuple[set[str], set[str]]) -> None:
        """Count a memory as it is in place of how it was."""
        had, has = tags
        if had != has:
            self._run_many(sql.UNTAG, [(tag, number) for tag in had - has])
            self._run_many(sql.TAG, [(tag, number) for tag in has - had])
        self._books.book(entries[0], had, -1)
        self._books.book(entries[1], has, 1)

    def _drop_memory(self, entry: Entry | None) -> None:
        if entry is None:
            return
        number = self._number(entry.id)
        tags = self._tags(number)
        self._books.book(entry, tags, -1)
        self._run_many(sql.UNTAG, [(tag, number) for tag in tags])
        self._run(sql.ABOUT_NOTHING, (number,))
        self._hierarchy.forget(number)
        self._run(sql.DROP, (number,))

    def _touch(self, ids: Iterable[str]) -> None:
        """Take in accesses of memories whose rows have not changed."""
        for before in filter(None, map(self._entry, ids)):
            after = before.after(self._access(before.id), self._half_lives)
            self._run(sql.PUT, after)
            self._books.book(before, (), -1)
            self._books.book(after, (), 1)

    def _put_entity(self, row: NodeRow, before: _Entity | None) -> bool:
        entity = _entity_of(row)
        if entity is None:
            self._drop_entity(before)
            return False
        if entity != before:
            self._run(sql.ENTITY, entity)
        self._run(sql.UNNAME, (row.id,))
        self._run_many(sql.NAME, _names(row, entity))
        self._count(before, -1)
        self._count(entity, 1)
        return self._has_risen(before, entity)

    def _has_risen(self, before: _Entity | None, entity: _Entity) -> bool:
        self._stands[entity.id] = entity.standing
        stood = before is not None and before.standing
        if stood and not entity.standing:
            self._drop_relations(entity.id)
        return entity.standing and not stood

    def _drop_entity(self, entity: _Entity | None) -> None:
        if entity is None:
            return
        self._count(entity, -1)
        self._stands[entity.id] = False
        self._run(sql.NO_ENTITY, (entity.id,))
        self._run(sql.UNNAME, (entity.id,))
        self._drop_relations(entity.id)

    def _drop_relations(self, node_id: str) -> None:
        self._run(sql.NO_RELATIONS_FROM, (node_id,))
        self._run(sql.NO_RELATIONS_TO, (node_id,))

    def _count(self, entity: _Entity | None, by: int) -> None:
        if entity is not None and entity.standing:
            self._books.counts[ENTITIES, entity.type] += by

    def _close(self) -> None:
        """Write down what has been counted."""
        books, self._books = self._books, Books()
        counts = [(kind, name, count) for (kind, name), count in books.counts.items() if count]
        self._run_many(sql.TALLY, counts)
        self._run_many(sql.TALLY_END, [(kind, name) for kind, name, count in counts if count < 0])
        self._run_many(sql.FADE, [(*part, books.sums[part], count) for part, count in books.terms.items()])
        self._run_many(sql.FADED, list(books.terms))

    # What is there

    def _entry(self, node_id: str) -> Entry | None:
        found = self._run(sql.ENTRY, (node_id,)).fetchone()
        return found and Entry(*found)

    def _number(self, node_id: str) -> int:
        return self._run(sql.NUMBER, (node_id,)).fetchone()[0]

    def _tags(self, number: int) -> set[str]:
        return {tag for (tag,) in self._run(sql.TAGS_OF, (number,))}

    def _access(self, node_id: str) -> Access | None:
        found = self._run(sql.ACCESS_OF, (node_id,)).fetchone()
        return found and Access(*found)

    def _accesses(self, ids: list[str]) -> dict[str, Access]:
        found = of_some(self._run, sql.ACCESSES_OF, ids)
        return {row[0]: Access(*row) for row in found}

    def _entity(self, node_id: str) -> _Entity | None:
        found = self._run(sql.ENTITY_OF, (node_id,)).fetchone()
        return found and _Entity(node_id, found[0], found[1], found[2], bool(found[3]))

    def _know(self, ids: set[str]) -> None:
        """Find out which of some nodes are entities that stand."""
        unknown = ids - self._stands.keys()
        standing = {node_id for (node_id,) in of_some(self._run, sql.STANDING, [*unknown])}
        self._stands |= {node_id: node_id in standing for node_id in unknown}


def _tags(row: NodeRow) -> set[str]:
    return set(row.extras.tags) if row.extras is not None else set()


def _standing(row: NodeRow) -> bool:
    return not (row.is_memory or (row.extras is not None and row.extras.ended) or is_withdrawn(row.extras))


def _entity_of(row: NodeRow) -> _Entity | None:
    name = row.extras.name if row.extras is not None else ""
    return _Entity(row.id, row.type, name, folded(name), _standing(row)) if name else None


def _names(row: NodeRow, entity: _Entity) -> list[tuple[str, str, str, int]]:
    names = {(entity.fold, row.id, entity.name, 0)}
    return sorted(names | {(folded(alias), row.id, alias, 1) for alias in aliases_in(row.attributes)})


def _about(edge: EdgeRow) -> tuple[object, ...]:
    return (edge.target, edge.weight, *_bounds(edge), edge.source)


def _relation(edge: EdgeRow) -> tuple[object, ...]:
    return (edge.source, edge.target, edge.relation_type, edge.weight, *_bounds(edge))


def _bounds(edge: EdgeRow) -> tuple[int | None, int | None]:
    return (edge.extras.valid_from, edge.extras.valid_to) if edge.extras is not None else (None, None)
