"""The memories of a store, brought up to date when they are read, and once a second after that.

What a write has to know is answered from what the file has seen and, in memory, from the commits after that: a write
waits for no following. So what the last commits have made of memories and names is in memory, too.
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

from kgserve.platform.text.similarity import fingerprint, text_hash
from kgserve.projections.base import Erasure
from kgserve.projections.memory_index.decay import HalfLives
from kgserve.projections.memory_index.lookups import MAX_ALIKE_MEMORIES, MAX_ENTITIES_PER_NAME, Lookups
from kgserve.projections.memory_index.memories import Memories
from kgserve.projections.on_demand import Found, OnDemandProjection
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.replay import all_accesses
from kgserve.storage.layout import Layout
from kgserve.storage.model.change import Access, ChangeSet, NetChange
from kgserve.storage.model.fields import ColumnSet
from kgserve.storage.model.names import folded, names_of
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.view import RowsView

MAX_WAITING_ROWS = 10_000
MAX_WAITING_BYTES = 16 << 20
"""So many rows, and bytes of text, wait for the file at most; else it has to be brought up to date first."""

_Key = bytes | str


class _Noted(NamedTuple):
    """A commit, its size, and what it is found by."""

    change: ChangeSet
    rows: int
    bytes: int
    keys: list[tuple[_Key, str]]


class RecentCommits:
    """Consecutive commits up to the last one. Any thread may ask; one adds.

    ``since`` is the commit after which all are here.
    """

    def __init__(self, since: int) -> None:
        self.since = since
        self._lock = threading.Lock()
        self._noted: deque[_Noted] = deque()
        self._rows = self._bytes = 0
        # With the last commit that has said so.
        self._by_key: dict[_Key, dict[str, int]] = {}
        self._accesses: dict[str, tuple[Access | None, int]] = {}

    def add(self, change: ChangeSet) -> None:
        """Take in the next commit; one that is too large makes all be forgotten."""
        rows = change.size + len(change.accessed)
        size = sum(len(node.content) for node in (*change.nodes_created, *change.nodes_updated))
        if self._rows + rows > MAX_WAITING_ROWS or self._bytes + size > MAX_WAITING_BYTES:
            self.clear(change.sequence)
            return
        noted = _Noted(change, rows, size, [*_keys(change)])
        with self._lock:
            self._noted.append(noted)
            self._count(noted, 1)
            for key, node_id in noted.keys:
                self._by_key.setdefault(key, {})[node_id] = change.sequence
            # Nobody can have read what is new either.
            for node_id in _unread(change):
                self._accesses[node_id] = (None, change.sequence)
            for access in change.accessed:
                self._accesses[access.id] = (access, change.sequence)

    def clear(self, since: int) -> None:
        """Forget everything, and go on with the commit after this one."""
        with self._lock:
            self._noted.clear()
            self._by_key.clear()
            self._accesses.clear()
            self._rows = self._bytes = 0
            self.since = since

    def forget(self, sequence: int) -> None:
        """Forget the commits up to one."""
        with self._lock:
            while self._noted and self._noted[0].change.sequence <= sequence:
                self._drop(self._noted.popleft())
            self.since = max(self.since, sequence)

    def having(self, keys: Iterable[_Key]) -> tuple[list[str], int]:
        """The nodes that have come to say or to be called so, the last first seen last, and ``since``."""
        with self._lock:
            return [*dict.fromkeys(node_id for key in keys for node_id in self._by_key.get(key, ()))], self.since

    def called(self, folds: Iterable[str]) -> tuple[set[str], int]:
        """Those of some folded names that nodes have come to have, and ``since``."""
        with self._lock:
            return {fold for fold in folds if fold in self._by_key}, self.since

    def accesses(self, ids: Collection[str]) -> tuple[dict[str, Access | None], int]:
        """What has come of reading some nodes, None where that is over, and ``since``."""
        with self._lock:
            return {each: self._accesses[each][0] for each in ids if each in self._accesses}, self.since

    def after(self, sequence: int, last: int) -> list[ChangeSet]:
        """The commits after one up to the ``last``, as far as they are here; none if they begin later."""
        with self._lock:
            if not self._noted or not self._noted[0].change.sequence <= sequence + 1:
                return []
            place = sequence + 1 - self._noted[0].change.sequence
            found = (noted.change for noted in islice(self._noted, place, None))
            return [*takewhile(lambda change: change.sequence <= last, found)]

    # With the lock held

    def _drop(self, noted: _Noted) -> None:
        self._count(noted, -1)
        sequence = noted.change.sequence
        for key, node_id in noted.keys:
            of_key = self._by_key.get(key, {})
            if of_key.get(node_id) == sequence:
                del of_key[node_id]
            if not of_key:
                self._by_key.pop(key, None)
        for node_id in (*_unread(noted.change), *(access.id for access in noted.change.accessed)):
            if self._accesses.get(node_id, (None, -1))[1] == sequence:
                del self._accesses[node_id]

    def _count(self, noted: _Noted, by: int) -> None:
        self._rows += by * noted.rows
        self._bytes += by * noted.bytes


def keys_of(node: NodeRow) -> set[_Key]:
    """What a node is found by: the hash and the print of a memory's text, and its folded names."""
    keys: set[_Key] = {folded(name) for name in names_of(node)}
    return keys | {text_hash(node.content), fingerprint(node.content)} if node.is_memory else keys


def _unread(change: ChangeSet) -> Iterator[str]:
    yield from change.nodes_deleted
    yield from (node.id for node in change.nodes_created)


def _keys(change: ChangeSet) -> Iterator[tuple[_Key, str]]:
    for node in (*change.nodes_created, *change.nodes_updated):
        yield from ((key, node.id) for key in keys_of(node))


log = structlog.get_logger()

FILE_COMMIT_INTERVAL_SECONDS = 1.0
FILE_COMMIT_MAX_CHANGES = 2_000
"""So long, and so many commits of the store, the file takes in before it keeps them."""


class MemoriesDamaged(sqlite3.DatabaseError):
    """The view names a row that it should not."""


class MemoryProjection(OnDemandProjection[Memories]):
    """The memories of a store, in a file that is opened for the first question.

    A store in which nothing is a memory or has a name has no such file.
    """

    name = "memories"
    damage_event = "memories_damaged"
    rebuilding_message = "what is known of memories is being rebuilt"

    def __init__(self, layout: Layout, journal: Journal, rows: RowsView, half_lives: Callable[[], HalfLives]) -> None:
        super().__init__(layout.memories, layout, journal, rows)
        self._half_lives = half_lives
        self._none: Memories | None = None
        self.is_asked = False
        self._newest = RecentCommits(rows.state.sequence)
        # What was committed to the file; read by `_beside`, which needs no more than its own lock.
        self._committed, self._committed_at = -1, 0.0
        self._reading = threading.Lock()
        self._beside: Lookups | None = None

    @override
    def ask(self, question: Callable[[Memories, Rows], Found]) -> Found:
        # Before rows are looked at: commits that it is not told of from now on are among them.
        self.is_asked = True
        return super().ask(question)

    def accesses(self, ids: Collection[str]) -> dict[str, Access]:
        """What has been journaled of reading some nodes. Raises Unavailable."""
        newest, since = self._newest.accesses(ids)
        rest = [node_id for node_id in ids if node_id not in newest]
        known = self._look_up(lambda file: file.accesses(rest), since) if rest else {}
        return known | {node_id: access for node_id, access in newest.items() if access is not None}

    def alike(self, hash_: bytes, print_: bytes, now: int) -> list[str]:
        """The memories that may say the same; who asks looks at the rows. Raises Unavailable."""
        newest, since = self._newest.having((hash_, print_))
        known = self._look_up(lambda file: file.saying(hash_, print_, now), since)
        if newest and len(known) >= MAX_ALIKE_MEMORIES:
            # Some of them may no longer be what they were, and have kept others out.
            known = self.ask(lambda memories, _: memories.saying(hash_, print_, now))
        return [*known, *newest]

    def alike_all(self, keys: Collection[tuple[bytes, bytes]], now: int) -> dict[tuple[bytes, bytes], list[str]]:
        """The same of many, by hash and print: most often nobody says any of them, which one question tells."""
        newest: dict[tuple[bytes, bytes], list[str]] = {}
        since = -1
        for key in keys:
            newest[key], since = self._newest.having(key)
        said = self._look_up(lambda file: file.said(keys), since) if keys else set[bytes]()
        return {
            key: found if said.isdisjoint(key) else self.alike(key[0], key[1], now) for key, found in newest.items()
        }

    def named(self, name: str) -> list[str]:
        """The nodes that may be called so; who asks looks at the rows. Raises Unavailable."""
        newest, since = self._newest.having((folded(name),))
        known = self._look_up(lambda file: [each.id for each in file.named(name)], since)
        if newest and len(known) >= MAX_ENTITIES_PER_NAME:
            known = self.ask(lambda memories, _: [each.id for each in memories.named(name)])
        return [*known, *newest]

    def known_names(self, folds: Collection[str]) -> dict[str, list[str]]:
        """The nodes that may be called so, by those of some folded names that any has. Raises Unavailable."""
        newest, since = self._newest.called(folds)
        known = self._look_up(lambda file: file.known_names(folds), since)
        return {fold: self.named(fold) for fold in known | newest}

    def committed(self, changes: Iterable[ChangeSet]) -> None:
        """These commits have been made, after it was first asked. For the writing thread."""
        for change in changes:
            self._newest.add(change)

    def tend(self) -> None:
        """Follow, if the file was ever asked and that is due. Raises Unavailable."""
        if self.sequence >= 0 and time.monotonic() - self._committed_at >= FILE_COMMIT_INTERVAL_SECONDS:
            self.ask(lambda memories, _: self._commit(memories))

    @override
    def erase(self, erasure: Erasure) -> None:
        with self._lock:
            if self._rows.rows().width is ColumnSet.MEMORY:
                super().erase(erasure)
            else:
                self._discard()

    def _look_up(self, question: Callable[[Lookups], Found], since: int) -> Found:
        """What a question finds in the file, which has seen the commit ``since``, and maybe later ones."""
        with self._reading:
            if self._beside is not None and self._committed >= since:
                try:
                    return question(self._beside)
                except sqlite3.Error:
                    log.exception("memories_damaged", store=self._layout.name)
        return self.ask(lambda memories, _: question(memories))

    # With the lock held

    @override
    def _caught_up(self, rows: Rows) -> Memories:
        if rows.width is not ColumnSet.MEMORY:
            return self._empty()
        memories = super()._caught_up(rows)
        memories.halve(self._half_lives())
        if self._committed < self._newest.since:
            self._commit(memories)
        return memories

    @override
    def _catch_up(self, last: int) -> None:
        if self._file is not None:
            # What failed took back all that the file had taken in since it was last committed.
            if (seen := self._file.sequence) < 0:
                raise MemoriesDamaged("the file does not say what it has seen")
            self._move(seen)
        super()._catch_up(last)

    @override
    def _open(self) -> int:
        self._file = Memories(self._path, self._half_lives())
        return self._file.sequence

    @override
    def _read(self, after: int, last: int) -> tuple[Iterable[ChangeSet], int]:
        newest = self._newest.after(after, last)
        return (newest, newest[-1].sequence) if newest else super()._read(after, last)

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        with self._rows.reading() as rows:
            self._opened.apply(
                NetChange(changes), sequence, lambda node_id: chain(rows.outgoing(node_id), rows.incoming(node_id))
            )
        if sequence - self._committed > FILE_COMMIT_MAX_CHANGES:
            self._commit(self._opened)

    @override
    def _apply_all(self, rows: Rows) -> int:
        accesses = all_accesses(self._layout, self._journal, rows.at)
        nodes = chain.from_iterable(map(rows.rows_of_nodes, rows.wide_nodes()))
        found = (rows.around(numbers, outgoing=True) for numbers in rows.wide_nodes())
        edges = chain.from_iterable(map(rows.rows_of, found))
        self._opened.rebuild(nodes, edges, accesses, rows.at)
        self._commit(self._opened)
        return rows.at

    @override
    def _erase(self, erasure: Erasure) -> None:
        self._commit(self._opened)
        with self._reading:
            self._opened.write_anew()

    @override
    def _release(self) -> None:
        with self._reading:
            super()._release()
            for each in (self._beside, self._none):
                if each is not None:
                    each.close()
            self._none = self._beside = None
            self._committed = -1

    def _commit(self, memories: Memories) -> None:
        """Have the file keep what it has taken in, and others see it there."""
        if memories.path is None:
            return
        self._committed_at = time.monotonic()
        committed = memories.commit()
        with self._reading:
            if self._beside is None:
                self._beside = Lookups.beside(memories.path)
            self._committed = committed
        self._newest.forget(committed)

    def _empty(self) -> Memories:
        if self._none is None:
            self._none = Memories(None, self._half_lives())
        return self._none
