"""What the last commits of a store have made of memories and names, in memory.

The file of the memory view takes commits in some at a time; who has to know at once what says the same, or who is
called so, asks here as well.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import islice, takewhile
from typing import NamedTuple

from kgserve.model.change import Access, ChangeSet
from kgserve.model.likeness import fingerprint, text_hash
from kgserve.model.names import folded, names_of
from kgserve.model.rows import NodeRow

MOST_ROWS = 10_000
MOST_BYTES = 16 << 20
"""So many rows, and bytes of text, wait for the file at most; else it has to be brought up to date first."""

_Key = bytes | str


class _Noted(NamedTuple):
    """A commit, its size, and what it is found by."""

    change: ChangeSet
    rows: int
    bytes: int
    keys: list[tuple[_Key, str]]


class Newest:
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
        if self._rows + rows > MOST_ROWS or self._bytes + size > MOST_BYTES:
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
