"""The file of the memory view: what is taken in, and what is asked of it.

A view like any other: it carries the sequence that it has seen, is brought up to date before it is asked, and is built
anew whenever it does not fit. For that reason commits do not wait for the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec
from typing_extensions import override

from kgserve.platform.sqlite_files import of_some, opened, seal, write_anew
from kgserve.projections.memory_index import closure, decay, selecting
from kgserve.projections.memory_index import statements as sql
from kgserve.projections.memory_index.closure import Hierarchy
from kgserve.projections.memory_index.decay import MIN_DECAY_KEY, Confidence, HalfLives, least_key
from kgserve.projections.memory_index.entries import (
    TALLY_ENTITY_TYPE,
    TALLY_TOTAL,
    Aggregates,
    LiveMemory,
    MemoryEntry,
    entry_of,
    epoch_and_term,
    length_of_epoch,
    worth_at,
)
from kgserve.projections.memory_index.lookups import Lookups
from kgserve.projections.memory_index.relation_types import STRUCTURAL_RELATIONS
from kgserve.projections.memory_index.selecting import MemoryIdPage, MemoryPlace, Order, Sort
from kgserve.storage.model.change import Access, NetChange
from kgserve.storage.model.filters import Counted, MemoryFilter
from kgserve.storage.model.names import IS_ABOUT, aliases_in, folded
from kgserve.storage.model.redirects import MERGED_INTO, is_withdrawn
from kgserve.storage.model.rows import EdgeKey, EdgeRow, NodeRow

INTERNAL_EDGE_TYPES = (IS_ABOUT, MERGED_INTO)
"""What joins no two entities: that a memory is about one, and that one has come to another."""
_REKEY_BATCH_ROWS = 5_000

_Standing = Literal["", "entity", "memory"]
"""What a node is at the end of a relation; empty for one that has ended or is neither."""

EdgesOf = Callable[[str], Iterable[EdgeRow]]
"""The edges of a node, in both directions."""


class _Entity(NamedTuple):
    """A node that has a name. It ``stands`` unless it is withdrawn, or a memory."""

    id: str
    type: str
    name: str
    fold: str
    standing: bool


class MemoryBatch:
    """Takes in what a group of writes changed, within one transaction.

    That is each memory, name and relation that it names, and what they count for. What becomes a memory, or gets a
    name, without being new has edges that nobody writes now: those are read from the rows. These may be some commits
    ahead; whatever came between follows, and taking an edge in twice changes nothing.
    """

    def __init__(self, transaction: sqlite3.Connection, half_lives: HalfLives, edges_of: EdgesOf) -> None:
        self._run = transaction.execute
        self._run_many = transaction.executemany
        self._half_lives = half_lives
        self._edges_of = edges_of
        self._books = Aggregates()
        self._hierarchy = Hierarchy(transaction)
        self._stands: dict[str, _Standing] = {}

    def follow(self, net: NetChange) -> None:
        """Take in what several commits come to."""
        self._run_many(sql.DELETE_ACCESS, [(node_id,) for node_id in net.unaccessed])
        self._run_many(sql.UPSERT_ACCESS, [(a.id, a.count, a.last, a.confidence) for a in net.accessed.values()])
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
        self._unknow(rows)

    def _add_memories(self, rows: Sequence[NodeRow]) -> None:
        if not rows:
            return
        [number] = self._run(sql.SELECT_LAST_NUMBER).fetchone()
        memories = list(enumerate(rows, number + 1))
        used = self._accesses([row.id for row in rows])
        entries = [(number, entry_of(row, used.get(row.id), self._half_lives)) for number, row in memories]
        self._run_many(sql.INSERT_MEMORY, [(number, *entry) for number, entry in entries])
        tags = {number: _tags(row) for number, row in memories}
        self._run_many(sql.INSERT_MEMORY_TAG, [(tag, number) for number, some in tags.items() for tag in some])
        for number, entry in entries:
            self._books.book(entry, tags[number], 1)

    def _fill_entities(self, found: Sequence[tuple[NodeRow, _Entity]]) -> None:
        self._run_many(sql.UPSERT_ENTITY, [entity for _, entity in found])
        self._run_many(sql.INSERT_ENTITY_NAME, [name for row, entity in found for name in _names(row, entity)])
        for _, entity in found:
            self._count(entity, 1)

    def filled(self) -> None:
        """Take in that these were all nodes and edges."""
        self._hierarchy.rebuild()

    def rekey(self) -> None:
        """Make all keys anew."""
        number = 0
        while rows := self._run(sql.SELECT_ENTRIES_AFTER, (number, _REKEY_BATCH_ROWS)).fetchall():
            number = rows[-1][0]
            before = [MemoryEntry(*row[1:]) for row in rows]
            after = [each.after(self._access(each.id), self._half_lives) for each in before]
            self._run_many(sql.UPDATE_DECAY_KEY, [(each.half, each.key, each.id) for each in after])
            for old, new in zip(before, after, strict=True):
                self._books.book(old, (), -1)
                self._books.book(new, (), 1)
            self._close()

    def put_edges(self, edges: Sequence[EdgeRow]) -> None:
        """Take in edges, new or changed."""
        self._run_many(sql.UPSERT_ABOUT, [_about(edge) for edge in edges if edge.relation_type == IS_ABOUT])
        self._hierarchy.put(edges)
        related = [edge for edge in edges if edge.relation_type not in INTERNAL_EDGE_TYPES]
        self._know({end for edge in related for end in edge.key[:2]})
        self._run_many(sql.UPSERT_RELATION, [_relation(edge) for edge in related if self._is_shown(edge)])

    def _is_shown(self, edge: EdgeRow) -> bool:
        """Whether a relation joins what stands, and is none by which the store itself joins memories."""
        ends = {self._stands[edge.source], self._stands[edge.target]}
        return "" not in ends and ("memory" not in ends or edge.relation_type not in STRUCTURAL_RELATIONS)

    def _drop_edges(self, keys: Iterable[EdgeKey]) -> None:
        keys = list(keys)
        self._run_many(sql.DELETE_ABOUT, [(target, source) for source, target, kind in keys if kind == IS_ABOUT])
        self._hierarchy.drop(keys)
        self._run_many(sql.DELETE_RELATION_ROW, keys)

    def _drop(self, node_id: str) -> None:
        self._drop_memory(self._entry(node_id))
        self._drop_entity(self._entity(node_id))

    def _change(self, rows: Sequence[NodeRow]) -> list[str]:
        """Take in rows of nodes that were there; the ids of what is something now whose edges may have been there."""
        ids = [row.id for row in rows]
        entries = {
            found[1]: (found[0], MemoryEntry(*found[1:])) for found in of_some(self._run, sql.SELECT_ENTRIES_BY_ID, ids)
        }
        new = [row for row in rows if row.is_memory and row.id not in entries]
        self._add_memories(new)
        risen = self._put_memories([(row, *entries[row.id]) for row in rows if row.id in entries])
        entities = {
            found[0]: _Entity._make((*found[:4], bool(found[4])))
            for found in of_some(self._run, sql.SELECT_ENTITIES, ids)
        }
        risen += [row.id for row in rows if self._put_entity(row, entities.get(row.id))]
        self._unknow(rows)
        return [*(row.id for row in new), *risen]

    def _put_memories(self, found: Sequence[tuple[NodeRow, int, MemoryEntry]]) -> list[str]:
        """Take in rows of what was a memory; the ids of those that are in force again."""
        for row, _, before in found:
            if not row.is_memory:
                self._drop_memory(before)
        found = [each for each in found if each[0].is_memory]
        used = self._accesses([row.id for row, _, _ in found])
        had: dict[int, set[str]] = {}
        for number, tag in of_some(self._run, sql.SELECT_TAGS_OF_MEMORIES, [number for _, number, _ in found]):
            had.setdefault(number, set()).add(tag)
        puts: list[MemoryEntry] = []
        risen: list[str] = []
        for row, number, before in found:
            entry = entry_of(row, used.get(row.id), self._half_lives)
            if entry != before:
                puts.append(entry)
            if before.active != entry.active:
                self._hierarchy.changed(row.id)
                if entry.active:
                    risen.append(row.id)
                else:
                    self._drop_relations(row.id)
            self._book(number, (before, entry), (had.get(number, set()), _tags(row)))
        self._run_many(sql.UPSERT_MEMORY, puts)
        return risen

    def _book(self, number: int, entries: tuple[MemoryEntry, MemoryEntry], tags: tuple[set[str], set[str]]) -> None:
        """Count a memory as it is in place of how it was."""
        had, has = tags
        if had != has:
            self._run_many(sql.DELETE_MEMORY_TAG, [(tag, number) for tag in had - has])
            self._run_many(sql.INSERT_MEMORY_TAG, [(tag, number) for tag in has - had])
        self._books.book(entries[0], had, -1)
        self._books.book(entries[1], has, 1)

    def _drop_memory(self, entry: MemoryEntry | None) -> None:
        if entry is None:
            return
        number = self._number(entry.id)
        tags = self._tags(number)
        self._books.book(entry, tags, -1)
        self._run_many(sql.DELETE_MEMORY_TAG, [(tag, number) for tag in tags])
        self._run(sql.DELETE_ABOUT_OF_MEMORY, (number,))
        self._hierarchy.forget(number)
        self._drop_relations(entry.id)
        self._stands.pop(entry.id, None)
        self._run(sql.DELETE_MEMORY_ROW, (number,))

    def _touch(self, ids: Iterable[str]) -> None:
        """Take in accesses of memories whose rows have not changed."""
        for before in filter(None, map(self._entry, ids)):
            after = before.after(self._access(before.id), self._half_lives)
            self._run(sql.UPSERT_MEMORY, after)
            self._books.book(before, (), -1)
            self._books.book(after, (), 1)

    def _put_entity(self, row: NodeRow, before: _Entity | None) -> bool:
        entity = _entity_of(row)
        if entity is None:
            self._drop_entity(before)
            return False
        if entity != before:
            self._run(sql.UPSERT_ENTITY, entity)
        self._run(sql.DELETE_ENTITY_NAMES, (row.id,))
        self._run_many(sql.INSERT_ENTITY_NAME, _names(row, entity))
        self._count(before, -1)
        self._count(entity, 1)
        return self._has_risen(before, entity)

    def _has_risen(self, before: _Entity | None, entity: _Entity) -> bool:
        self._stands.pop(entity.id, None)
        stood = before is not None and before.standing
        if stood and not entity.standing:
            self._drop_relations(entity.id)
        return entity.standing and not stood

    def _drop_entity(self, entity: _Entity | None) -> None:
        if entity is None:
            return
        self._count(entity, -1)
        self._stands.pop(entity.id, None)
        self._run(sql.DELETE_ENTITY_ROW, (entity.id,))
        self._run(sql.DELETE_ENTITY_NAMES, (entity.id,))
        if entity.standing:
            self._drop_relations(entity.id)

    def _drop_relations(self, node_id: str) -> None:
        self._run(sql.DELETE_RELATIONS_FROM, (node_id,))
        self._run(sql.DELETE_RELATIONS_TO, (node_id,))

    def _count(self, entity: _Entity | None, by: int) -> None:
        if entity is not None and entity.standing:
            self._books.counts[TALLY_ENTITY_TYPE, entity.type] += by

    def _close(self) -> None:
        """Write down what has been counted."""
        books, self._books = self._books, Aggregates()
        counts = [(kind, name, count) for (kind, name), count in books.counts.items() if count]
        self._run_many(sql.UPSERT_MEMORY_TALLY, counts)
        self._run_many(sql.DELETE_EMPTY_MEMORY_TALLY, [(kind, name) for kind, name, count in counts if count < 0])
        self._run_many(sql.UPSERT_FADING, [(*part, books.sums[part], count) for part, count in books.terms.items()])
        self._run_many(sql.DELETE_EMPTY_FADING, list(books.terms))

    # What is there

    def _entry(self, node_id: str) -> MemoryEntry | None:
        found = self._run(sql.SELECT_ENTRY, (node_id,)).fetchone()
        return found and MemoryEntry(*found)

    def _number(self, node_id: str) -> int:
        return self._run(sql.SELECT_NUMBER, (node_id,)).fetchone()[0]

    def _tags(self, number: int) -> set[str]:
        return {tag for (tag,) in self._run(sql.SELECT_MEMORY_TAGS, (number,))}

    def _access(self, node_id: str) -> Access | None:
        found = self._run(sql.SELECT_ACCESS, (node_id,)).fetchone()
        return found and Access(*found)

    def _accesses(self, ids: list[str]) -> dict[str, Access]:
        found = of_some(self._run, sql.SELECT_ACCESSES, ids)
        return {row[0]: Access(*row) for row in found}

    def _entity(self, node_id: str) -> _Entity | None:
        found = self._run(sql.SELECT_ENTITY, (node_id,)).fetchone()
        return found and _Entity(node_id, found[0], found[1], found[2], bool(found[3]))

    def _know(self, ids: set[str]) -> None:
        """Find out what stands of some nodes, and as what."""
        unknown = [*(ids - self._stands.keys())]
        self._stands |= dict.fromkeys(unknown, "")
        self._stands |= {node_id: "memory" for (node_id,) in of_some(self._run, sql.SELECT_ACTIVE_MEMORY_IDS, unknown)}
        self._stands |= {node_id: "entity" for (node_id,) in of_some(self._run, sql.SELECT_LIVE_ENTITY_IDS, unknown)}

    def _unknow(self, rows: Iterable[NodeRow]) -> None:
        for row in rows:
            self._stands.pop(row.id, None)


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


_DEFAULT_SLICE_ROWS = 5_000
_CACHED_STATEMENTS = 512
_NO_EPOCH_LIMIT = (1 << 63) - 1

_Row = TypeVar("_Row", NodeRow, EdgeRow)


class Fading(NamedTuple):
    """A place among the memories in the order of how much they have faded, within one half-life."""

    half: int = -1
    key: int = MIN_DECAY_KEY - 1
    id: str = ""

    @classmethod
    def of(cls, memory: LiveMemory) -> Fading:
        """Where a memory is."""
        worth = Confidence(memory.confidence, memory.since)
        return cls(memory.half, decay.key(worth, memory.half or None), memory.id)


class Memories(Lookups):
    """The memory view of one store. For one thread at a time.

    A file that cannot be read, or has another format, is replaced by an empty one.
    """

    def __init__(self, path: Path | None, half_lives: HalfLives) -> None:
        """Open or create the file; without a path there are no memories, and no file."""
        self.path = path
        self.half_lives = half_lives
        script = (
            sql.MEMORY_INDEX_PRAGMAS
            + sql.MEMORY_INDEX_SCHEMA
            + "".join(f"{each};" for each in sql.CREATE_MEMORY_INDEXES)
        )
        super().__init__(opened(path, script, sql.MEMORY_INDEX_FORMAT, cached_statements=_CACHED_STATEMENTS))

    @property
    def sequence(self) -> int:
        """The last commit that it has seen; -1 when it has seen nothing or failed."""
        try:
            return self._run(sql.SELECT_MEMORY_SEQUENCE).fetchone()[0]
        except sqlite3.DatabaseError:
            return -1

    @override
    def close(self) -> None:
        """Release the file, with all that was taken in; if it is damaged, what can be read of it."""
        with suppress(sqlite3.Error):
            self.commit()
        super().close()
        if self.path is not None:
            seal(self.path)

    # Following

    def apply(self, net: NetChange, sequence: int, edges_of: EdgesOf) -> None:
        """Take in what a group of writes changed; ``edges_of`` reads rows of this commit or a later one.

        It is seen here at once, and by others once that is committed: what fails takes all since the last time back.
        """
        try:
            MemoryBatch(self._connection, self.half_lives, edges_of).follow(net)
            self._run(sql.UPDATE_MEMORY_SEQUENCE, (sequence,))
        except BaseException:
            self._connection.rollback()
            raise

    def commit(self) -> int:
        """Have other connections see what was taken in; the sequence that it goes up to."""
        self._connection.commit()
        return self.sequence

    def write_anew(self) -> None:
        """Leave nothing in the file of what it holds no more; all that was taken in is committed."""
        write_anew(self._connection)

    def rebuild(
        self,
        nodes: Iterable[NodeRow],
        edges: Iterable[EdgeRow],
        accesses: Iterable[Iterable[Access]],
        sequence: int,
    ) -> None:
        """Forget everything; take the nodes that are memories or have a name, edges from them, and all accesses."""
        self.commit()
        with self._connection as transaction:
            transaction.execute("BEGIN")
            for statement in (*sql.DROP_MEMORY_INDEXES, *sql.DELETE_ALL_ROWS):
                transaction.execute(statement)
            for some in accesses:
                transaction.executemany(sql.INSERT_ACCESS, [(a.id, a.count, a.last, a.confidence) for a in some])
            follower = MemoryBatch(transaction, self.half_lives, lambda _: ())
            for rows in slices(nodes):
                follower.fill(rows)
            for rows in slices(edges):
                follower.put_edges(rows)
            for statement in sql.CREATE_MEMORY_INDEXES:
                transaction.execute(statement)
            follower.filled()
            transaction.execute(sql.UPDATE_HALF_LIVES, (_text(self.half_lives),))
            transaction.execute(sql.UPDATE_MEMORY_SEQUENCE, (sequence,))

    def halve(self, half_lives: HalfLives) -> None:
        """Have memories fade like that from now on: all keys are made anew if anything differs."""
        self.half_lives = half_lives
        wanted = _text(half_lives)
        [known] = self._run(sql.SELECT_HALF_LIVES).fetchone()
        if wanted != known:
            with self._connection as transaction:
                MemoryBatch(transaction, half_lives, lambda _: ()).rekey()
                transaction.execute(sql.UPDATE_HALF_LIVES, (wanted,))

    # Single ones

    def live(self, ids: Iterable[str]) -> dict[str, LiveMemory]:
        """What the memories among some nodes are worth."""
        return {row[0]: LiveMemory(*row) for row in of_some(self._run, sql.SELECT_LIVE_BY_ID, [*ids])}

    def versions(self, memory_id: str, limit: int) -> list[LiveMemory]:
        """Former versions of a memory, and those that it absorbed, by when they were true."""
        return [LiveMemory(*row) for row in self._run(sql.SELECT_LIVE_VERSIONS, (memory_id, limit))]

    # Names and what memories are about

    def entities_of(self, memory_id: str, now: int, limit: int) -> list[tuple[str, float]]:
        """The nodes that a memory is about, and how much: the most first."""
        return self._run(sql.SELECT_ENTITIES_OF_MEMORY, {"id": memory_id, "now": now, "limit": limit}).fetchall()

    # Sets

    def ids(self, wanted: MemoryFilter, limit: int) -> list[str]:
        """At most so many of the memories that are wanted, in no order."""
        return selecting.ids(self._connection, self._whole(wanted), self._halves(), limit)

    def pinned(self, now: int, limit: int) -> list[str]:
        """The newest memories in force of importance 1."""
        return [memory_id for (memory_id,) in self._run(sql.SELECT_PINNED, {"now": now, "limit": limit})]

    def listed(
        self,
        wanted: MemoryFilter,
        sort: Sort,
        place: MemoryPlace,
        limit: int,
        also: Callable[[str], bool] | None = None,
    ) -> MemoryIdPage:
        """A page of the ids of the memories that are wanted, the greatest value first. It looks at 20,000 at most."""
        order = Order(wanted.now, sort, place)
        return selecting.page(self._connection, self._whole(wanted), self._halves(), order, limit, also)

    def count(self, wanted: MemoryFilter, most: int) -> Counted:
        """How many memories are wanted, ``most`` or more not told apart."""
        found = selecting.how_many(self._connection, self._whole(wanted), self._halves(), most)
        return Counted(found, exact=found < most)

    def _whole(self, wanted: MemoryFilter) -> MemoryFilter:
        """The same with the former versions that are true yet, if there are any: what supersedes them comes later."""
        if (
            wanted.ended
            or wanted.valid_at is not msgspec.UNSET
            or not self._run(sql.SELECT_SUPERSEDED_AFTER, (wanted.now,)).fetchone()
        ):
            return wanted
        return msgspec.structs.replace(wanted, valid_at=wanted.now)

    def faded(self, below: float, now: int, after: Fading, limit: int) -> list[LiveMemory]:
        """Memories whose confidence at a moment has faded below a value: by half-life, the most faded first.

        What was set later than that moment has not, unless to 0.
        """
        found: list[LiveMemory] = []
        for half in self._halves():
            if half >= after.half and len(found) < limit:
                place = after if half == after.half else Fading(half)
                bound = least_key(below, now, half or None)
                values = {"half": half, "bound": bound, "key": place.key, "id": place.id, "limit": limit - len(found)}
                found += [LiveMemory(*row) for row in self._run(sql.SELECT_LIVE_BELOW_KEY, values)]
        return found

    # Counts

    def total(self) -> int:
        """Memories that have not ended."""
        return selecting.count(self._connection, TALLY_TOTAL, "")

    def tallies(self, kind: str, limit: int) -> list[tuple[str, int]]:
        """Counts of one kind, the most frequent first."""
        return self._run(sql.SELECT_TALLIES_BY_COUNT, (kind, limit)).fetchall()

    def sum_of(self, kind: str) -> int:
        """All counts of a kind together."""
        return self._run(sql.SELECT_TALLY_SUM, (kind,)).fetchone()[0]

    def irregular(self) -> tuple[int, int]:
        """Relations to parents that do not count: those beside a newer one of the child, those that close a circle."""
        return selecting.count(self._connection, closure.TALLY_SECOND_PARENT, ""), selecting.count(
            self._connection, closure.TALLY_CYCLE, ""
        )

    def by_name(self, kind: str) -> list[tuple[str, int]]:
        """Counts of one kind, by name."""
        return self._run(sql.SELECT_TALLIES_BY_NAME, (kind,)).fetchall()

    def created_between(self) -> tuple[int, int] | None:
        """When the first and the last memory were created; None when there is none."""
        first = self._run(sql.SELECT_FIRST_CREATED).fetchone()
        last = self._run(sql.SELECT_LAST_CREATED).fetchone()
        return (first[0], last[0]) if first and last else None

    def worth(self, now: int) -> float:
        """The confidences of all memories at a moment, added up."""
        found = sum(self._worth_of(half, now) for half in self._halves())
        for half, key, confidence in self._future(now):
            epoch, term = epoch_and_term(half, key, confidence)
            found += confidence - (worth_at(epoch, term, half, now) if epoch <= _epoch(half, now) else 0.0)
        return max(found, 0.0)

    def histogram(self, now: int, buckets: int) -> list[int]:
        """How many memories have a confidence within each of so many equal parts of 0 to 1; 1 is in the last."""
        bounds = [number / buckets for number in range(1, buckets)]
        below = [0, *(self.below(bound, now) for bound in bounds), self.total()]
        return [after - before for before, after in pairwise(below)]

    def below(self, minimum: float, now: int) -> int:
        """How many memories have a confidence below a value at a moment."""
        bounds = {half: least_key(minimum, now, half or None) for half in self._halves()}
        found = sum(self._below(half, bound) for half, bound in bounds.items())
        # What was set later than now has not faded yet, though its key is that of a greater confidence.
        return found + sum(key >= bounds[half] and confidence < minimum for half, key, confidence in self._future(now))

    def _below(self, half: int, bound: int) -> int:
        """How many keys of a half-life are below one: whole epochs are counted already."""
        epoch, rest = divmod(bound, length_of_epoch(half))
        [found] = self._run(sql.COUNT_FADING_BEFORE_EPOCH, (half, epoch)).fetchone()
        return found + self._run(sql.COUNT_KEYS_BETWEEN, (half, bound - rest, bound)).fetchone()[0]

    def _worth_of(self, half: int, now: int) -> float:
        last = _epoch(half, now)
        # What was last set a hundred half-lives ago comes to nothing, however much of it there is.
        parts = self._run(sql.SELECT_FADING_SUMS, (half, last - 100 if half else 0, last))
        return sum(worth_at(epoch, part, half, now) for epoch, part in parts)

    def _future(self, now: int) -> Iterator[tuple[int, int, float]]:
        """Half-life, key and confidence of what was set later than now, and has not faded yet."""
        return self._run(sql.SELECT_FUTURE_MEMORIES, (now,))

    def _halves(self) -> list[int]:
        return self.half_lives.all


def _epoch(half: int, now: int) -> int:
    return now // half if half else _NO_EPOCH_LIMIT


def _text(half_lives: HalfLives) -> str:
    return msgspec.json.encode([half_lives.days, dict(sorted(half_lives.by_type.items()))]).decode()


def slices(rows: Iterable[_Row], size: int = _DEFAULT_SLICE_ROWS) -> Iterator[list[_Row]]:
    """Rows in lists of a size; the last may be shorter."""
    source = iter(rows)
    while some := list(islice(source, size)):
        yield some
