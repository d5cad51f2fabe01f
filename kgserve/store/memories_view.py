"""The memory view: brought up to date when somebody asks, and while nobody does."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import TypeVar

import structlog

from kgserve.errors import Unavailable
from kgserve.journal.journal import Journal
from kgserve.journal.tail import Tail, next_change
from kgserve.memories import memories as files
from kgserve.memories.memories import Memories
from kgserve.model.change import Access
from kgserve.model.fields import Width
from kgserve.model.half_lives import HalfLives
from kgserve.model.rows import EdgeRow
from kgserve.rows.snapshot import Rows
from kgserve.rows.view import RowsView
from kgserve.store.layout import Layout
from kgserve.store.rebuild import all_accesses

log = structlog.get_logger()

_Found = TypeVar("_Found")


class MemoriesDamaged(sqlite3.DatabaseError):
    """The view names a row that it should not."""


class MemoriesView:
    """The memories of a store as a follower of its journal; the file is opened when it is first asked.

    A store in which nothing is a memory or has a name has no such file.
    """

    def __init__(self, layout: Layout, journal: Journal, rows: RowsView, half_lives: Callable[[], HalfLives]) -> None:
        self._layout = layout
        self._journal = journal
        self._rows = rows
        self._half_lives = half_lives
        self._lock = threading.RLock()
        self._tail = Tail(layout.journal)
        self._memories: Memories | None = None
        self._none: Memories | None = None

    def ask(self, question: Callable[[Memories, Rows], _Found]) -> _Found:
        """What ``question`` finds among the memories as of the last commit, and in the rows as of that commit.

        The file is made anew if it turns out to be damaged. Raises Unavailable.
        """
        try:
            return self._ask(question)
        except sqlite3.Error:
            log.exception("memories_damaged", store=self._layout.name)
        try:
            with self._lock:
                self._renew()
                return self._ask(question)
        except sqlite3.Error as error:
            raise Unavailable("what is known of memories is being rebuilt", retry_after=2) from error

    def accesses(self, ids: Collection[str]) -> dict[str, Access]:
        """What has been journaled of reading some nodes. Raises Unavailable."""
        return self.ask(lambda memories, _: memories.accesses(ids))

    def tend(self) -> None:
        """Follow, if anybody has ever asked. Raises sqlite3.Error."""
        if self._memories is not None:
            with self._lock, self._rows.reading() as rows:
                self._follow(rows)

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            for each in (self._memories, self._none):
                if each is not None:
                    each.close()
            self._memories = self._none = None

    def _ask(self, question: Callable[[Memories, Rows], _Found]) -> _Found:
        with self._lock, self._rows.reading() as rows:
            return question(self._follow(rows), rows)

    def _follow(self, rows: Rows) -> Memories:
        """The view, once it has seen the commit of some rows, and none after it."""
        if rows.width is not Width.MEMORY:
            return self._empty()
        memories = self._opened()
        seen = memories.sequence
        if seen > rows.at or not self._journal.oldest - 1 <= seen:
            return self._renew()
        while seen < rows.at:
            net = next_change(self._tail, seen, rows.at)
            if net.state is None:
                return self._renew()
            seen = net.state.sequence
            memories.apply(net, seen, lambda node_id: _edges_of(rows, node_id))
        memories.halve(self._half_lives())
        return memories

    def _opened(self) -> Memories:
        if self._memories is None:
            self._memories = Memories(self._layout.memories, self._half_lives())
        return self._memories

    def _empty(self) -> Memories:
        if self._none is None:
            self._none = Memories(None, self._half_lives())
        return self._none

    def _renew(self) -> Memories:
        """Make the file anew from rows and accesses."""
        self.close()
        files.remove(self._layout.memories)
        memories = self._memories = Memories(self._layout.memories, self._half_lives())
        with self._rows.reading() as rows:
            accesses = all_accesses(self._layout, self._journal, rows.at)
            nodes = chain.from_iterable(map(rows.rows_of_nodes, rows.wide_nodes()))
            found = (rows.around(numbers, outgoing=True) for numbers in rows.wide_nodes())
            edges = chain.from_iterable(map(rows.rows_of, found))
            memories.rebuild(nodes, edges, accesses, rows.at)
        return memories


def _edges_of(rows: Rows, node_id: str) -> Iterator[EdgeRow]:
    return chain(rows.outgoing(node_id), rows.incoming(node_id))
