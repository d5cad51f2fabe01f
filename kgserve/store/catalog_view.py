"""The catalog, which lists are made of: brought up to date when somebody asks, and now and then when nobody does."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import TypeVar

import structlog

from kgserve.catalog import catalog as catalogs
from kgserve.catalog.catalog import Catalog
from kgserve.errors import Unavailable
from kgserve.journal.journal import Journal
from kgserve.journal.tail import Tail, next_change
from kgserve.rows.snapshot import Rows
from kgserve.rows.view import RowsView
from kgserve.store.layout import Layout

log = structlog.get_logger()

_Found = TypeVar("_Found")

WORTH_ROWS = 5_000
"""So many rows behind, it is brought up to date though nobody asks."""


class CatalogDamaged(sqlite3.DatabaseError):
    """It names a row that it should not."""


class CatalogView:
    """The catalog of a store as a follower of its journal; it is opened when it is first asked."""

    def __init__(self, layout: Layout, journal: Journal, rows: RowsView) -> None:
        self._layout = layout
        self._journal = journal
        self._rows = rows
        self._lock = threading.RLock()
        self._tail = Tail(layout.journal)
        self._catalog: Catalog | None = None
        self._behind_rows = 0

    def ask(self, question: Callable[[Catalog, Rows], _Found]) -> _Found:
        """What ``question`` finds in the catalog, which has seen the last commit, and in the rows as of that commit.

        It is built anew if it turns out to be damaged. Raises Unavailable.
        """
        try:
            return self._ask(question)
        except sqlite3.Error:
            log.exception("catalog_damaged", store=self._layout.name)
        try:
            with self._lock:
                self._renew()
                return self._ask(question)
        except sqlite3.Error as error:
            raise Unavailable("the list of nodes is being rebuilt", retry_after=2) from error

    def committed(self, rows: int) -> None:
        """Commits with so many rows have been made. For the writing thread."""
        self._behind_rows += rows

    def tend(self) -> None:
        """Follow if that is due. Raises sqlite3.Error."""
        if self._catalog is not None and self._behind_rows > WORTH_ROWS:
            with self._lock:
                self._follow(self._rows.state.sequence)

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            if self._catalog is not None:
                self._catalog.close()
                self._catalog = None

    def _ask(self, question: Callable[[Catalog, Rows], _Found]) -> _Found:
        with self._lock, self._rows.reading() as rows:
            return question(self._follow(rows.at), rows)

    def _follow(self, sequence: int) -> Catalog:
        """The catalog, once it has seen a commit, and none after it."""
        catalog = self._catalog
        if catalog is None:
            catalog = self._catalog = Catalog(self._layout.catalog)
        seen = catalog.sequence
        if seen > sequence or not self._journal.oldest - 1 <= seen:
            return self._renew()
        while seen < sequence:
            self._behind_rows = 0
            net = next_change(self._tail, seen, sequence)
            if net.state is None:
                return self._renew()
            seen = net.state.sequence
            catalog.apply(net, seen)
        return catalog

    def _renew(self) -> Catalog:
        """Make the file anew from the rows."""
        self.close()
        catalogs.remove(self._layout.catalog)
        catalog = self._catalog = Catalog(self._layout.catalog)
        with self._rows.reading() as rows:
            catalog.rebuild(rows.all_nodes(), rows.relation_counts().items(), rows.at)
        return catalog
