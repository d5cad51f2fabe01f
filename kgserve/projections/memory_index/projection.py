"""Memory index of a store, brought up to date when it is read, and once a second afterwards.

Queries of the writing thread combine the file with the later commits, which are held in memory. So a write never waits
for the file to catch up.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice, takewhile
from typing import NamedTuple

import structlog
from typing_extensions import override

from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.platform.text.text_equality import fingerprint_wording, hash_normalized_text
from kgserve.projections.base import ProjectionEraseRequest
from kgserve.projections.memory_index.confidence_decay import MemoryHalfLives
from kgserve.projections.memory_index.memory_index_file import MemoryIndexSqliteFile
from kgserve.projections.memory_index.memory_index_reader import (
    MAX_ENTITIES_PER_NAME,
    MAX_EQUAL_MEMORIES,
    MemoryIndexReader,
)
from kgserve.projections.on_demand_projection import Found, OnDemandProjection
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.replay import read_node_accesses_as_of
from kgserve.storage.model.change_set import ChangeSet, MemoryAccessRecord, NetChange
from kgserve.storage.model.entity_names import list_entity_names_and_aliases, normalize_entity_name
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.rows.current_rows import CurrentRowsProjection
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import StoreLayout

MAX_PENDING_ROWS = 10_000
MAX_PENDING_TEXT_BYTES = 16 << 20
"""Limits of the rows, and bytes of text, that wait for the file; beyond them the file is brought up to date first."""

_Key = bytes | str


class _RecentCommit(NamedTuple):
    """Commit with its size, and the keys of its nodes."""

    change: ChangeSet
    rows: int
    bytes: int
    keys: list[tuple[_Key, str]]


class RecentCommits:
    """Recent consecutive commits up to the last one. One thread adds; any thread may read.

    All commits after ``since`` are included.
    """

    def __init__(self, since: int) -> None:
        self.since = since
        self._lock = threading.Lock()
        self._commits: deque[_RecentCommit] = deque()
        self._rows = self._bytes = 0
        # Each with its last commit.
        self._by_key: dict[_Key, dict[str, int]] = {}
        self._accesses: dict[str, tuple[MemoryAccessRecord | None, int]] = {}

    def add(self, change: ChangeSet) -> None:
        """Add the next commit; one that exceeds the limits discards all."""
        rows = change.size + len(change.accessed)
        size = sum(len(node.content) for node in (*change.nodes_created, *change.nodes_updated))
        if self._rows + rows > MAX_PENDING_ROWS or self._bytes + size > MAX_PENDING_TEXT_BYTES:
            self.clear(change.sequence)
            return
        commit = _RecentCommit(change, rows, size, [*_keys(change)])
        with self._lock:
            self._commits.append(commit)
            self._count(commit, 1)
            for key, node_id in commit.keys:
                self._by_key.setdefault(key, {})[node_id] = change.sequence
            # New nodes cannot have been read either.
            for node_id in _ids_with_reset_accesses(change):
                self._accesses[node_id] = (None, change.sequence)
            for access in change.accessed:
                self._accesses[access.id] = (access, change.sequence)

    def clear(self, since: int) -> None:
        """Discard everything, and continue with the commit after ``since``."""
        with self._lock:
            self._commits.clear()
            self._by_key.clear()
            self._accesses.clear()
            self._rows = self._bytes = 0
            self.since = since

    def forget(self, sequence: int) -> None:
        """Discard the commits up to a sequence."""
        with self._lock:
            while self._commits and self._commits[0].change.sequence <= sequence:
                self._drop(self._commits.popleft())
            self.since = max(self.since, sequence)

    def find_ids(self, keys: Iterable[_Key]) -> tuple[list[str], int]:
        """Return the nodes that recent commits gave one of these keys, oldest first, and ``since``."""
        with self._lock:
            return [*dict.fromkeys(node_id for key in keys for node_id in self._by_key.get(key, ()))], self.since

    def called(self, folds: Iterable[str]) -> tuple[set[str], int]:
        """Return those of some folded names that recent commits gave to nodes, and ``since``."""
        with self._lock:
            return {fold for fold in folds if fold in self._by_key}, self.since

    def accesses(self, ids: Collection[str]) -> tuple[dict[str, MemoryAccessRecord | None], int]:
        """Return the recent accesses of some nodes, None where they were reset, and ``since``."""
        with self._lock:
            return {each: self._accesses[each][0] for each in ids if each in self._accesses}, self.since

    def after(self, sequence: int, last: int) -> list[ChangeSet]:
        """Return the commits after one up to ``last``, as far as held here; none if a commit in between is missing."""
        with self._lock:
            if not self._commits or not self._commits[0].change.sequence <= sequence + 1:
                return []
            place = sequence + 1 - self._commits[0].change.sequence
            found = (commit.change for commit in islice(self._commits, place, None))
            return [*takewhile(lambda change: change.sequence <= last, found)]

    # Caller holds the lock

    def _drop(self, commit: _RecentCommit) -> None:
        self._count(commit, -1)
        sequence = commit.change.sequence
        for key, node_id in commit.keys:
            of_key = self._by_key.get(key, {})
            if of_key.get(node_id) == sequence:
                del of_key[node_id]
            if not of_key:
                self._by_key.pop(key, None)
        for node_id in (*_ids_with_reset_accesses(commit.change), *(access.id for access in commit.change.accessed)):
            if self._accesses.get(node_id, (None, -1))[1] == sequence:
                del self._accesses[node_id]

    def _count(self, commit: _RecentCommit, by: int) -> None:
        self._rows += by * commit.rows
        self._bytes += by * commit.bytes


def get_text_hash_and_name_keys(node: NodeRow) -> set[_Key]:
    """Return the lookup keys of a node: hash and fingerprint of a memory's text, and its folded names."""
    keys: set[_Key] = {normalize_entity_name(name) for name in list_entity_names_and_aliases(node)}
    return keys | {hash_normalized_text(node.content), fingerprint_wording(node.content)} if node.is_memory else keys


def _ids_with_reset_accesses(change: ChangeSet) -> Iterator[str]:
    yield from change.nodes_deleted
    yield from (node.id for node in change.nodes_created)


def _keys(change: ChangeSet) -> Iterator[tuple[_Key, str]]:
    for node in (*change.nodes_created, *change.nodes_updated):
        yield from ((key, node.id) for key in get_text_hash_and_name_keys(node))


log = structlog.get_logger()

FILE_COMMIT_INTERVAL_SECONDS = 1.0
FILE_COMMIT_MAX_CHANGES = 2_000
"""Limits of the time, and of the store's commits, after which changes to the file are committed."""


class MemoryIndexDamaged(sqlite3.DatabaseError):
    """Raised when the index refers to a row that must not exist."""


class MemoryIndexProjection(OnDemandProjection[MemoryIndexSqliteFile]):
    """Memory index of a store, in a file that the first query opens.

    A store without memories and named nodes has no such file.
    """

    name = "memories"
    damage_event = "memories_damaged"
    rebuilding_message = "the memory index is being rebuilt; try again shortly"

    def __init__(
        self,
        layout: StoreLayout,
        journal: Journal,
        rows: CurrentRowsProjection,
        half_lives: Callable[[], MemoryHalfLives],
    ) -> None:
        super().__init__(layout.memories, layout, journal, rows)
        self._half_lives = half_lives
        self._empty_index: MemoryIndexSqliteFile | None = None
        self.is_in_demand = False
        self._recent = RecentCommits(rows.state.sequence)
        # Last commit on disk, guarded by `_reading` only, for reads through `_reader`.
        self._committed, self._committed_at = -1, 0.0
        self._reading = threading.Lock()
        self._reader: MemoryIndexReader | None = None

    @override
    def ask(self, question: Callable[[MemoryIndexSqliteFile, RowsSnapshot], Found]) -> Found:
        # Set before rows are read: commits that are not reported from now on are included in them.
        self.is_in_demand = True
        return super().ask(question)

    def accesses(self, ids: Collection[str], *, block: bool = True) -> dict[str, MemoryAccessRecord]:
        """Return the journaled accesses of some nodes. Raises Unavailable, and WouldBlock without ``block``."""
        recent, since = self._recent.accesses(ids)
        rest = [node_id for node_id in ids if node_id not in recent]
        known = self._look_up(lambda file: file.accesses(rest), since, block=block) if rest else {}
        return known | {node_id: access for node_id, access in recent.items() if access is not None}

    def memories_with_equal_text(self, hash_: bytes, print_: bytes, now: int) -> list[str]:
        """Return candidates for memories with equal text; the caller must check the rows. Raises Unavailable."""
        recent, since = self._recent.find_ids((hash_, print_))
        known = self._look_up(lambda file: file.ids_with_equal_text(hash_, print_, now), since)
        if recent and len(known) >= MAX_EQUAL_MEMORIES:
            # Some of them may have changed, and have displaced others within the limit.
            known = self.ask(lambda memories, _: memories.ids_with_equal_text(hash_, print_, now))
        return [*known, *recent]

    def candidates_with_equal_texts(
        self, keys: Collection[tuple[bytes, bytes]], now: int
    ) -> dict[tuple[bytes, bytes], list[str]]:
        """Return candidates for many texts, by hash and fingerprint; one query covers the common case of no match."""
        recent: dict[tuple[bytes, bytes], list[str]] = {}
        since = -1
        for key in keys:
            recent[key], since = self._recent.find_ids(key)
        said = self._look_up(lambda file: file.said(keys), since) if keys else set[bytes]()
        return {
            key: found if said.isdisjoint(key) else self.memories_with_equal_text(key[0], key[1], now)
            for key, found in recent.items()
        }

    def candidates_named(self, name: str) -> list[str]:
        """Return candidates for nodes with a name; the caller must check the rows. Raises Unavailable."""
        recent, since = self._recent.find_ids((normalize_entity_name(name),))
        known = self._look_up(lambda file: [each.id for each in file.nodes_named(name)], since)
        if recent and len(known) >= MAX_ENTITIES_PER_NAME:
            known = self.ask(lambda memories, _: [each.id for each in memories.nodes_named(name)])
        return [*known, *recent]

    def known_names(self, folds: Collection[str]) -> dict[str, list[str]]:
        """Return candidates for nodes, by those of some folded names that any node has. Raises Unavailable."""
        recent, since = self._recent.called(folds)
        known = self._look_up(lambda file: file.known_names(folds), since)
        return {fold: self.candidates_named(fold) for fold in known | recent}

    def record_commits(self, changes: Iterable[ChangeSet]) -> None:
        """Record new commits, after the first query. For the writing thread."""
        for change in changes:
            self._recent.add(change)

    def tend(self) -> None:
        """Apply pending commits, if the index was ever read and the interval has passed. Raises Unavailable."""
        if self.sequence >= 0 and time.monotonic() - self._committed_at >= FILE_COMMIT_INTERVAL_SECONDS:
            self.ask(lambda memories, _: self._commit(memories))

    @override
    def erase(self, erasure: ProjectionEraseRequest) -> None:
        with self._lock:
            if self._rows.rows().width is NodeEdgeColumnSet.MEMORY:
                super().erase(erasure)
            else:
                self._discard()

    def _look_up(self, question: Callable[[MemoryIndexReader], Found], since: int, *, block: bool = True) -> Found:
        """Return the result of a query on the file, which contains the commit ``since`` and maybe later ones.

        Without ``block``, raises WouldBlock if the file is in use or must be brought up to date.
        """
        if not self._reading.acquire(blocking=block):
            raise WouldBlock
        try:
            if self._reader is not None and self._committed >= since:
                try:
                    return question(self._reader)
                except sqlite3.Error:
                    log.exception("memories_damaged", store=self._layout.name)
        finally:
            self._reading.release()
        if not block:
            raise WouldBlock
        return self.ask(lambda memories, _: question(memories))

    # Caller holds the lock

    @override
    def _caught_up(self, rows: RowsSnapshot) -> MemoryIndexSqliteFile:
        if rows.width is not NodeEdgeColumnSet.MEMORY:
            return self._empty()
        memories = super()._caught_up(rows)
        memories.set_half_lives(self._half_lives())
        if self._committed < self._recent.since:
            self._commit(memories)
        return memories

    @override
    def _catch_up(self, last: int) -> None:
        if self._file is not None:
            # A failed change has rolled back everything since the last commit to disk.
            if (seen := self._file.sequence) < 0:
                raise MemoryIndexDamaged("the position in the file is missing")
            self._move(seen)
        super()._catch_up(last)

    @override
    def _open(self) -> int:
        self._file = MemoryIndexSqliteFile(self._path, self._half_lives())
        return self._file.sequence

    @override
    def _read(self, after: int, last: int) -> tuple[Iterable[ChangeSet], int]:
        recent = self._recent.after(after, last)
        return (recent, recent[-1].sequence) if recent else super()._read(after, last)

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        with self._rows.reading() as rows:
            self._opened.apply(
                NetChange(changes), sequence, lambda node_id: chain(rows.outgoing(node_id), rows.incoming(node_id))
            )
        if sequence - self._committed > FILE_COMMIT_MAX_CHANGES:
            self._commit(self._opened)

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        accesses = read_node_accesses_as_of(self._layout, self._journal, rows.at)
        nodes = chain.from_iterable(map(rows.rows_of_nodes, rows.memory_and_named_nodes()))
        found = (rows.edges_around(numbers, outgoing=True) for numbers in rows.memory_and_named_nodes())
        edges = chain.from_iterable(map(rows.rows_of, found))
        self._opened.rebuild(nodes, edges, accesses, rows.at)
        self._commit(self._opened)
        return rows.at

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        self._commit(self._opened)
        with self._reading:
            self._opened.rewrite_without_deleted_rows()

    @override
    def _release(self) -> None:
        with self._reading:
            super()._release()
            for each in (self._reader, self._empty_index):
                if each is not None:
                    each.close()
            self._empty_index = self._reader = None
            self._committed = -1

    def _commit(self, memories: MemoryIndexSqliteFile) -> None:
        """Commit the changes to disk, and make them visible to other connections."""
        if memories.path is None:
            return
        self._committed_at = time.monotonic()
        committed = memories.commit()
        with self._reading:
            if self._reader is None:
                self._reader = MemoryIndexReader.beside(memories.path)
            self._committed = committed
        self._recent.forget(committed)

    def _empty(self) -> MemoryIndexSqliteFile:
        if self._empty_index is None:
            self._empty_index = MemoryIndexSqliteFile(None, self._half_lives())
        return self._empty_index
