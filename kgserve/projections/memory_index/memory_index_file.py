"""File of the memory index: updates and queries.

Like every projection, it records the sequence that it has applied, is brought up to date before it is read, and is
rebuilt whenever it is invalid. So its commits need not be durable.
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

from kgserve.platform.sqlite_files import (
    open_sqlite_database,
    select_rows_by_in_list,
    store_sqlite_checksum,
    vacuum_database,
)
from kgserve.projections.memory_index import confidence_decay, hierarchy, query_planner
from kgserve.projections.memory_index import memory_index_sql as sql
from kgserve.projections.memory_index.built_in_relation_types import STRUCTURAL_RELATIONS
from kgserve.projections.memory_index.confidence_decay import (
    MIN_DECAY_KEY,
    ConfidenceAtTime,
    MemoryHalfLives,
    compute_decay_key_of_min_confidence,
)
from kgserve.projections.memory_index.entries import (
    TALLY_ENTITY_TYPE,
    TALLY_TOTAL,
    MemoryAggregateChanges,
    MemoryIndexRow,
    MemoryMetadata,
    build_memory_index_row,
    compute_decay_epoch_confidence_sum,
    get_decay_epoch_length_in_sort_keys,
    split_decay_key_into_epoch_and_term,
)
from kgserve.projections.memory_index.hierarchy import MemoryHierarchyWriter
from kgserve.projections.memory_index.memory_index_reader import MemoryIndexReader
from kgserve.projections.memory_index.query_planner import MemoryIdPage, MemoryListOrder, MemoryPageStart, MemorySortKey
from kgserve.storage.model.change_set import MemoryAccessRecord, NetChange
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION, normalize_entity_name, parse_entity_aliases
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION, is_node_never_valid
from kgserve.storage.model.node_and_memory_filters import MatchCount, MemoryFilter
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow

NON_ENTITY_RELATION_TYPES = (IS_ABOUT_RELATION, MERGED_INTO_RELATION)
"""Relations that do not join two entities: from a memory to its subject, and from a merged node to its successor."""
_REKEY_BATCH_ROWS = 5_000

_Role = Literal["", "entity", "memory"]
"""Role of a node at the end of a relation; empty for one that has ended or has no role."""

EdgesOf = Callable[[str], Iterable[EdgeRow]]
"""Function that returns the edges of a node, in both directions."""


class _Entity(NamedTuple):
    """Node with a name. It is ``live`` unless it is a memory or withdrawn."""

    id: str
    type: str
    name: str
    fold: str
    live: bool


class MemoryIndexUpdate:
    """Changes to the memory index within one transaction.

    It updates memories, names, relations and the aggregates. A node that becomes a memory or gets a name without being
    new has edges that are not in the batch; these are read from the rows. The rows may be some commits ahead: the
    commits in between follow, and adding an edge twice changes nothing.
    """

    def __init__(self, transaction: sqlite3.Connection, half_lives: MemoryHalfLives, edges_of: EdgesOf) -> None:
        self._run = transaction.execute
        self._run_many = transaction.executemany
        self._half_lives = half_lives
        self._edges_of = edges_of
        self._aggregates = MemoryAggregateChanges()
        self._hierarchy = MemoryHierarchyWriter(transaction)
        self._roles: dict[str, _Role] = {}

    def follow(self, net: NetChange) -> None:
        """Apply the net change of several commits."""
        self._run_many(sql.DELETE_ACCESS, [(node_id,) for node_id in net.reset_accesses])
        self._run_many(sql.UPSERT_ACCESS, [(a.id, a.count, a.last, a.confidence) for a in net.accessed.values()])
        self._drop_edges(net.edges_deleted)
        for node_id in net.nodes_deleted:
            self._drop(node_id)
        adopted = self._update_nodes([*net.nodes_updated.values()])
        self._add([*net.nodes_created.values()])
        self._apply_accesses(net.accessed.keys() - net.nodes_updated.keys() - net.nodes_created.keys())
        self.put_edges([*net.edges_created.values(), *net.edges_updated.values()])
        for node_id in adopted:
            self.put_edges([*self._edges_of(node_id)])
        self._hierarchy.apply_pending_moves()
        self._write_aggregates()

    def add_missing_rows(self, rows: Iterable[NodeRow]) -> None:
        """Add rows of nodes that the index does not contain."""
        self._add(list(rows))
        self._write_aggregates()

    def _add(self, rows: Sequence[NodeRow]) -> None:
        self._add_memories([row for row in rows if row.is_memory])
        self._fill_entities([(row, entity) for row in rows if (entity := _entity_of(row)) is not None])
        self._forget_roles(rows)

    def _add_memories(self, rows: Sequence[NodeRow]) -> None:
        if not rows:
            return
        [number] = self._run(sql.SELECT_LAST_NUMBER).fetchone()
        memories = list(enumerate(rows, number + 1))
        used = self._accesses([row.id for row in rows])
        entries = [
            (number, build_memory_index_row(row, used.get(row.id), self._half_lives)) for number, row in memories
        ]
        self._run_many(sql.INSERT_MEMORY, [(number, *entry) for number, entry in entries])
        tags = {number: _tags(row) for number, row in memories}
        self._run_many(sql.INSERT_MEMORY_TAG, [(tag, number) for number, some in tags.items() for tag in some])
        for number, entry in entries:
            self._aggregates.add_memory(entry, tags[number], 1)

    def _fill_entities(self, found: Sequence[tuple[NodeRow, _Entity]]) -> None:
        self._run_many(sql.UPSERT_ENTITY, [entity for _, entity in found])
        self._run_many(sql.INSERT_ENTITY_NAME, [name for row, entity in found for name in _names(row, entity)])
        for _, entity in found:
            self._count(entity, 1)

    def finish_rebuild(self) -> None:
        """Finish a rebuild, after all nodes and edges have been added."""
        self._hierarchy.rebuild()

    def recompute_decay_keys(self) -> None:
        """Recompute the decay keys of all memories."""
        number = 0
        while rows := self._run(sql.SELECT_ENTRIES_AFTER, (number, _REKEY_BATCH_ROWS)).fetchall():
            number = rows[-1][0]
            before = [MemoryIndexRow(*row[1:]) for row in rows]
            after = [each.with_access(self._access(each.id), self._half_lives) for each in before]
            self._run_many(sql.UPDATE_DECAY_KEY, [(each.half, each.key, each.id) for each in after])
            for old, new in zip(before, after, strict=True):
                self._aggregates.add_memory(old, (), -1)
                self._aggregates.add_memory(new, (), 1)
            self._write_aggregates()

    def put_edges(self, edges: Sequence[EdgeRow]) -> None:
        """Add or change edges."""
        self._run_many(
            sql.UPSERT_ABOUT, [_about_values(edge) for edge in edges if edge.relation_type == IS_ABOUT_RELATION]
        )
        self._hierarchy.put(edges)
        related = [edge for edge in edges if edge.relation_type not in NON_ENTITY_RELATION_TYPES]
        self._load_roles({end for edge in related for end in edge.key[:2]})
        self._run_many(
            sql.UPSERT_RELATION, [_relation_values(edge) for edge in related if self._is_entity_relation(edge)]
        )

    def _is_entity_relation(self, edge: EdgeRow) -> bool:
        """Return whether a relation joins live nodes, and is not a structural relation of memories."""
        ends = {self._roles[edge.source], self._roles[edge.target]}
        return "" not in ends and ("memory" not in ends or edge.relation_type not in STRUCTURAL_RELATIONS)

    def _drop_edges(self, keys: Iterable[EdgeKey]) -> None:
        keys = list(keys)
        self._run_many(
            sql.DELETE_ABOUT, [(target, source) for source, target, kind in keys if kind == IS_ABOUT_RELATION]
        )
        self._hierarchy.drop(keys)
        self._run_many(sql.DELETE_RELATION_ROW, keys)

    def _drop(self, node_id: str) -> None:
        self._drop_memory(self._entry(node_id))
        self._drop_entity(self._entity(node_id))

    def _update_nodes(self, rows: Sequence[NodeRow]) -> list[str]:
        """Update rows of existing nodes. Return the ids of nodes whose existing edges must be added."""
        ids = [row.id for row in rows]
        entries = {
            found[1]: (found[0], MemoryIndexRow(*found[1:]))
            for found in select_rows_by_in_list(self._run, sql.SELECT_ENTRIES_BY_ID, ids)
        }
        new = [row for row in rows if row.is_memory and row.id not in entries]
        self._add_memories(new)
        activated = self._update_memories([(row, *entries[row.id]) for row in rows if row.id in entries])
        entities = {
            found[0]: _Entity._make((*found[:4], bool(found[4])))
            for found in select_rows_by_in_list(self._run, sql.SELECT_ENTITIES, ids)
        }
        activated += [row.id for row in rows if self._put_entity(row, entities.get(row.id))]
        self._forget_roles(rows)
        return [*(row.id for row in new), *activated]

    def _update_memories(self, found: Sequence[tuple[NodeRow, int, MemoryIndexRow]]) -> list[str]:
        """Update rows of memories. Return the ids of those that are in force again."""
        for row, _, before in found:
            if not row.is_memory:
                self._drop_memory(before)
        found = [each for each in found if each[0].is_memory]
        used = self._accesses([row.id for row, _, _ in found])
        old_tags: dict[int, set[str]] = {}
        for number, tag in select_rows_by_in_list(
            self._run, sql.SELECT_TAGS_OF_MEMORIES, [number for _, number, _ in found]
        ):
            old_tags.setdefault(number, set()).add(tag)
        puts: list[MemoryIndexRow] = []
        activated: list[str] = []
        for row, number, before in found:
            entry = build_memory_index_row(row, used.get(row.id), self._half_lives)
            if entry != before:
                puts.append(entry)
            if before.active != entry.active:
                self._hierarchy.record_activation_change(row.id)
                if entry.active:
                    activated.append(row.id)
                else:
                    self._drop_relations(row.id)
            self._update_aggregates(number, (before, entry), (old_tags.get(number, set()), _tags(row)))
        self._run_many(sql.UPSERT_MEMORY, puts)
        return activated

    def _update_aggregates(
        self, number: int, entries: tuple[MemoryIndexRow, MemoryIndexRow], tags: tuple[set[str], set[str]]
    ) -> None:
        """Replace a memory's contribution to the aggregates."""
        old_tags, new_tags = tags
        if old_tags != new_tags:
            self._run_many(sql.DELETE_MEMORY_TAG, [(tag, number) for tag in old_tags - new_tags])
            self._run_many(sql.INSERT_MEMORY_TAG, [(tag, number) for tag in new_tags - old_tags])
        self._aggregates.add_memory(entries[0], old_tags, -1)
        self._aggregates.add_memory(entries[1], new_tags, 1)

    def _drop_memory(self, entry: MemoryIndexRow | None) -> None:
        if entry is None:
            return
        number = self._number(entry.id)
        tags = self._tags(number)
        self._aggregates.add_memory(entry, tags, -1)
        self._run_many(sql.DELETE_MEMORY_TAG, [(tag, number) for tag in tags])
        self._run(sql.DELETE_ABOUT_OF_MEMORY, (number,))
        self._hierarchy.forget(number)
        self._drop_relations(entry.id)
        self._roles.pop(entry.id, None)
        self._run(sql.DELETE_MEMORY_ROW, (number,))

    def _apply_accesses(self, ids: Iterable[str]) -> None:
        """Apply accesses to memories whose rows have not changed."""
        for before in filter(None, map(self._entry, ids)):
            after = before.with_access(self._access(before.id), self._half_lives)
            self._run(sql.UPSERT_MEMORY, after)
            self._aggregates.add_memory(before, (), -1)
            self._aggregates.add_memory(after, (), 1)

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
        return self._has_become_live(before, entity)

    def _has_become_live(self, before: _Entity | None, entity: _Entity) -> bool:
        self._roles.pop(entity.id, None)
        was_live = before is not None and before.live
        if was_live and not entity.live:
            self._drop_relations(entity.id)
        return entity.live and not was_live

    def _drop_entity(self, entity: _Entity | None) -> None:
        if entity is None:
            return
        self._count(entity, -1)
        self._roles.pop(entity.id, None)
        self._run(sql.DELETE_ENTITY_ROW, (entity.id,))
        self._run(sql.DELETE_ENTITY_NAMES, (entity.id,))
        if entity.live:
            self._drop_relations(entity.id)

    def _drop_relations(self, node_id: str) -> None:
        self._run(sql.DELETE_RELATIONS_FROM, (node_id,))
        self._run(sql.DELETE_RELATIONS_TO, (node_id,))

    def _count(self, entity: _Entity | None, by: int) -> None:
        if entity is not None and entity.live:
            self._aggregates.counts[TALLY_ENTITY_TYPE, entity.type] += by

    def _write_aggregates(self) -> None:
        """Write the pending aggregates."""
        books, self._aggregates = self._aggregates, MemoryAggregateChanges()
        counts = [(kind, name, count) for (kind, name), count in books.counts.items() if count]
        self._run_many(sql.UPSERT_MEMORY_TALLY, counts)
        self._run_many(sql.DELETE_EMPTY_MEMORY_TALLY, [(kind, name) for kind, name, count in counts if count < 0])
        self._run_many(sql.UPSERT_FADING, [(*part, books.sums[part], count) for part, count in books.terms.items()])
        self._run_many(sql.DELETE_EMPTY_FADING, list(books.terms))

    # Lookups

    def _entry(self, node_id: str) -> MemoryIndexRow | None:
        found = self._run(sql.SELECT_ENTRY, (node_id,)).fetchone()
        return found and MemoryIndexRow(*found)

    def _number(self, node_id: str) -> int:
        return self._run(sql.SELECT_NUMBER, (node_id,)).fetchone()[0]

    def _tags(self, number: int) -> set[str]:
        return {tag for (tag,) in self._run(sql.SELECT_MEMORY_TAGS, (number,))}

    def _access(self, node_id: str) -> MemoryAccessRecord | None:
        found = self._run(sql.SELECT_ACCESS, (node_id,)).fetchone()
        return found and MemoryAccessRecord(*found)

    def _accesses(self, ids: list[str]) -> dict[str, MemoryAccessRecord]:
        found = select_rows_by_in_list(self._run, sql.SELECT_ACCESSES, ids)
        return {row[0]: MemoryAccessRecord(*row) for row in found}

    def _entity(self, node_id: str) -> _Entity | None:
        found = self._run(sql.SELECT_ENTITY, (node_id,)).fetchone()
        return found and _Entity(node_id, found[0], found[1], found[2], bool(found[3]))

    def _load_roles(self, ids: set[str]) -> None:
        """Look up the roles of some nodes."""
        unknown = [*(ids - self._roles.keys())]
        self._roles |= dict.fromkeys(unknown, "")
        self._roles |= {
            node_id: "memory" for (node_id,) in select_rows_by_in_list(self._run, sql.SELECT_ACTIVE_MEMORY_IDS, unknown)
        }
        self._roles |= {
            node_id: "entity" for (node_id,) in select_rows_by_in_list(self._run, sql.SELECT_LIVE_ENTITY_IDS, unknown)
        }

    def _forget_roles(self, rows: Iterable[NodeRow]) -> None:
        for row in rows:
            self._roles.pop(row.id, None)


def _tags(row: NodeRow) -> set[str]:
    return set(row.extras.tags) if row.extras is not None else set()


def _is_live_entity(row: NodeRow) -> bool:
    return not (row.is_memory or (row.extras is not None and row.extras.ended) or is_node_never_valid(row.extras))


def _entity_of(row: NodeRow) -> _Entity | None:
    name = row.extras.name if row.extras is not None else ""
    return _Entity(row.id, row.type, name, normalize_entity_name(name), _is_live_entity(row)) if name else None


def _names(row: NodeRow, entity: _Entity) -> list[tuple[str, str, str, int]]:
    names = {(entity.fold, row.id, entity.name, 0)}
    return sorted(
        names | {(normalize_entity_name(alias), row.id, alias, 1) for alias in parse_entity_aliases(row.attributes)}
    )


def _about_values(edge: EdgeRow) -> tuple[object, ...]:
    return (edge.target, edge.weight, *_bounds(edge), edge.source)


def _relation_values(edge: EdgeRow) -> tuple[object, ...]:
    return (edge.source, edge.target, edge.relation_type, edge.weight, *_bounds(edge))


def _bounds(edge: EdgeRow) -> tuple[int | None, int | None]:
    return (edge.extras.valid_from, edge.extras.valid_to) if edge.extras is not None else (None, None)


_DEFAULT_SLICE_ROWS = 5_000
_CACHED_STATEMENTS = 512
_NO_EPOCH_LIMIT = (1 << 63) - 1

_Row = TypeVar("_Row", NodeRow, EdgeRow)


class DecayOrderPosition(NamedTuple):
    """Position in the order of decay, within one half-life."""

    half: int = -1
    key: int = MIN_DECAY_KEY - 1
    id: str = ""

    @classmethod
    def of(cls, memory: MemoryMetadata) -> DecayOrderPosition:
        """Return the position of a memory."""
        worth = ConfidenceAtTime(memory.confidence, memory.since)
        return cls(memory.half, confidence_decay.compute_decay_sort_key(worth, memory.half or None), memory.id)


class MemoryIndexSqliteFile(MemoryIndexReader):
    """SQLite file of the memory index of one store. For one thread at a time.

    A file that cannot be read or has another format is replaced by an empty one.
    """

    def __init__(self, path: Path | None, half_lives: MemoryHalfLives) -> None:
        """Open or create the file; without a path the index is empty and has no file."""
        self.path = path
        self.half_lives = half_lives
        script = (
            sql.MEMORY_INDEX_PRAGMAS
            + sql.MEMORY_INDEX_SCHEMA
            + "".join(f"{each};" for each in sql.CREATE_MEMORY_INDEXES)
        )
        super().__init__(
            open_sqlite_database(path, script, sql.MEMORY_INDEX_FORMAT, cached_statements=_CACHED_STATEMENTS)
        )

    @property
    def sequence(self) -> int:
        """Last applied commit; -1 if the index is empty or a change failed."""
        try:
            return self._run(sql.SELECT_MEMORY_SEQUENCE).fetchone()[0]
        except sqlite3.DatabaseError:
            return -1

    @override
    def close(self) -> None:
        with suppress(sqlite3.Error):
            self.commit()
        super().close()
        if self.path is not None:
            store_sqlite_checksum(self.path)

    # Updates

    def apply(self, net: NetChange, sequence: int, edges_of: EdgesOf) -> None:
        """Apply the changes of a group of writes; ``edges_of`` reads rows as of this commit or a later one.

        This connection sees them at once, others after `commit`. A failure rolls back everything since the last
        `commit`.
        """
        try:
            MemoryIndexUpdate(self._connection, self.half_lives, edges_of).follow(net)
            self._run(sql.UPDATE_MEMORY_SEQUENCE, (sequence,))
        except BaseException:
            self._connection.rollback()
            raise

    def commit(self) -> int:
        """Make the changes visible to other connections. Return the last sequence in the file."""
        self._connection.commit()
        return self.sequence

    def rewrite_without_deleted_rows(self) -> None:
        """Rewrite the file without deleted content; all changes must be committed."""
        vacuum_database(self._connection)

    def rebuild(
        self,
        nodes: Iterable[NodeRow],
        edges: Iterable[EdgeRow],
        accesses: Iterable[Iterable[MemoryAccessRecord]],
        sequence: int,
    ) -> None:
        """Replace the content with the memories and named nodes of ``nodes``, the given edges, and all accesses."""
        self.commit()
        with self._connection as transaction:
            transaction.execute("BEGIN")
            for statement in (*sql.DROP_MEMORY_INDEXES, *sql.DELETE_ALL_ROWS):
                transaction.execute(statement)
            for some in accesses:
                transaction.executemany(sql.INSERT_ACCESS, [(a.id, a.count, a.last, a.confidence) for a in some])
            follower = MemoryIndexUpdate(transaction, self.half_lives, lambda _: ())
            for rows in iterate_row_batches(nodes):
                follower.add_missing_rows(rows)
            for rows in iterate_row_batches(edges):
                follower.put_edges(rows)
            for statement in sql.CREATE_MEMORY_INDEXES:
                transaction.execute(statement)
            follower.finish_rebuild()
            transaction.execute(sql.UPDATE_HALF_LIVES, (_text(self.half_lives),))
            transaction.execute(sql.UPDATE_MEMORY_SEQUENCE, (sequence,))

    def set_half_lives(self, half_lives: MemoryHalfLives) -> None:
        """Set the half-lives; if they differ from the stored ones, recompute all decay keys."""
        self.half_lives = half_lives
        wanted = _text(half_lives)
        [known] = self._run(sql.SELECT_HALF_LIVES).fetchone()
        if wanted != known:
            with self._connection as transaction:
                MemoryIndexUpdate(transaction, half_lives, lambda _: ()).recompute_decay_keys()
                transaction.execute(sql.UPDATE_HALF_LIVES, (wanted,))

    # Single memories

    def live(self, ids: Iterable[str]) -> dict[str, MemoryMetadata]:
        """Return confidence and placement of the memories among some nodes, by id."""
        return {
            row[0]: MemoryMetadata(*row) for row in select_rows_by_in_list(self._run, sql.SELECT_LIVE_BY_ID, [*ids])
        }

    def versions(self, memory_id: str, limit: int) -> list[MemoryMetadata]:
        """Return former versions of a memory, and memories that it absorbed, by start of validity."""
        return [MemoryMetadata(*row) for row in self._run(sql.SELECT_LIVE_VERSIONS, (memory_id, limit))]

    # Subjects of memories

    def entities_of(self, memory_id: str, now: int, limit: int) -> list[tuple[str, float]]:
        """Return the nodes that a memory is about with their relevance, highest first."""
        return self._run(sql.SELECT_ENTITIES_OF_MEMORY, {"id": memory_id, "now": now, "limit": limit}).fetchall()

    # Sets

    def ids(self, wanted: MemoryFilter, limit: int) -> list[str]:
        """Return up to ``limit`` ids of matching memories, unordered."""
        return query_planner.select_memory_ids(
            self._connection, self._with_superseded(wanted), self._half_life_values(), limit
        )

    def pinned(self, now: int, limit: int) -> list[str]:
        """Return the newest memories in force with importance 1."""
        return [memory_id for (memory_id,) in self._run(sql.SELECT_PINNED, {"now": now, "limit": limit})]

    def list_memory_page(
        self,
        wanted: MemoryFilter,
        sort: MemorySortKey,
        place: MemoryPageStart,
        limit: int,
        also: Callable[[str], bool] | None = None,
    ) -> MemoryIdPage:
        """Return a page of the ids of matching memories, greatest value first. At most 20,000 are examined."""
        order = MemoryListOrder(wanted.now, sort, place)
        return query_planner.select_sorted_memory_id_page(
            self._connection, self._with_superseded(wanted), self._half_life_values(), order, limit, also
        )

    def count(self, wanted: MemoryFilter, most: int) -> MatchCount:
        """Return the number of matching memories, at most ``most``."""
        found = query_planner.count_matching_memories(
            self._connection, self._with_superseded(wanted), self._half_life_values(), most
        )
        return MatchCount(found, exact=found < most)

    def _with_superseded(self, wanted: MemoryFilter) -> MemoryFilter:
        """Return the filter extended to superseded memories that are still valid, if any exist."""
        if (
            wanted.ended
            or wanted.valid_at is not msgspec.UNSET
            or not self._run(sql.SELECT_SUPERSEDED_AFTER, (wanted.now,)).fetchone()
        ):
            return wanted
        return msgspec.structs.replace(wanted, valid_at=wanted.now)

    def list_faded(self, below: float, now: int, after: DecayOrderPosition, limit: int) -> list[MemoryMetadata]:
        """Return memories whose confidence at a moment is below a value: by half-life, the lowest confidence first.

        Memories set later than ``now`` are excluded, unless their confidence is 0.
        """
        found: list[MemoryMetadata] = []
        for half in self._half_life_values():
            if half >= after.half and len(found) < limit:
                place = after if half == after.half else DecayOrderPosition(half)
                bound = compute_decay_key_of_min_confidence(below, now, half or None)
                values = {"half": half, "bound": bound, "key": place.key, "id": place.id, "limit": limit - len(found)}
                found += [MemoryMetadata(*row) for row in self._run(sql.SELECT_LIVE_BELOW_KEY, values)]
        return found

    # Counts

    def total(self) -> int:
        """Return the number of memories that have not ended."""
        return query_planner.read_memory_tally(self._connection, TALLY_TOTAL, "")

    def tallies(self, kind: str, limit: int) -> list[tuple[str, int]]:
        """Return the counts of one kind, highest first."""
        return self._run(sql.SELECT_TALLIES_BY_COUNT, (kind, limit)).fetchall()

    def sum_of(self, kind: str) -> int:
        """Return the sum of the counts of a kind."""
        return self._run(sql.SELECT_TALLY_SUM, (kind,)).fetchone()[0]

    def count_ignored_parents(self) -> tuple[int, int]:
        """Return the number of parent relations that do not count.

        These are relations older than another one of the child, and relations that close a cycle.
        """
        return query_planner.read_memory_tally(
            self._connection, hierarchy.TALLY_SECOND_PARENT, ""
        ), query_planner.read_memory_tally(self._connection, hierarchy.TALLY_CYCLE, "")

    def by_name(self, kind: str) -> list[tuple[str, int]]:
        """Return the counts of one kind, by name."""
        return self._run(sql.SELECT_TALLIES_BY_NAME, (kind,)).fetchall()

    def creation_time_range(self) -> tuple[int, int] | None:
        """Return the creation times of the first and the last memory; None if no memory exists."""
        first = self._run(sql.SELECT_FIRST_CREATED).fetchone()
        last = self._run(sql.SELECT_LAST_CREATED).fetchone()
        return (first[0], last[0]) if first and last else None

    def decayed_confidence_of(self, now: int) -> float:
        """Return the sum of the confidences of all memories at a moment."""
        found = sum(self._confidence_sum(half, now) for half in self._half_life_values())
        for half, key, confidence in self._future_memories(now):
            epoch, term = split_decay_key_into_epoch_and_term(half, key, confidence)
            found += confidence - (
                compute_decay_epoch_confidence_sum(epoch, term, half, now) if epoch <= _epoch(half, now) else 0.0
            )
        return max(found, 0.0)

    def histogram(self, now: int, buckets: int) -> list[int]:
        """Return the number of memories in each of ``buckets`` equal confidence ranges from 0 to 1.

        A confidence of 1 belongs to the last range.
        """
        bounds = [number / buckets for number in range(1, buckets)]
        below = [0, *(self.below(bound, now) for bound in bounds), self.total()]
        return [after - before for before, after in pairwise(below)]

    def below(self, minimum: float, now: int) -> int:
        """Return the number of memories with a confidence below a value at a moment."""
        bounds = {
            half: compute_decay_key_of_min_confidence(minimum, now, half or None) for half in self._half_life_values()
        }
        found = sum(self._below(half, bound) for half, bound in bounds.items())
        # Memories set later than now have not decayed yet, although their keys suggest a higher confidence.
        return found + sum(
            key >= bounds[half] and confidence < minimum for half, key, confidence in self._future_memories(now)
        )

    def _below(self, half: int, bound: int) -> int:
        """Return the number of keys of a half-life below a bound; complete epochs are counted already."""
        epoch, rest = divmod(bound, get_decay_epoch_length_in_sort_keys(half))
        [found] = self._run(sql.COUNT_FADING_BEFORE_EPOCH, (half, epoch)).fetchone()
        return found + self._run(sql.COUNT_KEYS_BETWEEN, (half, bound - rest, bound)).fetchone()[0]

    def _confidence_sum(self, half: int, now: int) -> float:
        last = _epoch(half, now)
        # Memories set a hundred half-lives ago contribute nothing measurable.
        parts = self._run(sql.SELECT_FADING_SUMS, (half, last - 100 if half else 0, last))
        return sum(compute_decay_epoch_confidence_sum(epoch, part, half, now) for epoch, part in parts)

    def _future_memories(self, now: int) -> Iterator[tuple[int, int, float]]:
        """Return half-life, key and confidence of the memories set later than now."""
        return self._run(sql.SELECT_FUTURE_MEMORIES, (now,))

    def _half_life_values(self) -> list[int]:
        return self.half_lives.all_half_lives


def _epoch(half: int, now: int) -> int:
    return now // half if half else _NO_EPOCH_LIMIT


def _text(half_lives: MemoryHalfLives) -> str:
    return msgspec.json.encode([half_lives.days, dict(sorted(half_lives.by_type.items()))]).decode()


def iterate_row_batches(rows: Iterable[_Row], size: int = _DEFAULT_SLICE_ROWS) -> Iterator[list[_Row]]:
    """Yield rows in lists of a fixed size; the last may be shorter."""
    source = iter(rows)
    while some := list(islice(source, size)):
        yield some
