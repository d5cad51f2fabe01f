"""The catalog, which lists are made of: brought up to date when somebody asks, and now and then when nobody does."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog

from kgserve.catalog.attributes import Ended, PastPlace
from kgserve.catalog.catalog import Catalog
from kgserve.errors import Unavailable
from kgserve.history.history import State
from kgserve.history.reading import Place, read_ended
from kgserve.journal.journal import Journal
from kgserve.journal.tail import Tail, next_change
from kgserve.model.attributes import Condition
from kgserve.model.rows import NodeRow
from kgserve.rows.snapshot import Rows
from kgserve.rows.view import RowsView
from kgserve.sqlite_files import remove_files
from kgserve.store.layout import Layout

log = structlog.get_logger()

_Found = TypeVar("_Found")

STATES_AT_ONCE = 2_000
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

    def ask(self, question: Callable[[Catalog, Rows], _Found], *, by_attributes: bool = False) -> _Found:
        """What ``question`` finds in the catalog, which has seen the last commit, and in the rows as of that commit.

        ``by_attributes``: it asks for attributes, of which an index is made the first time. The catalog is built anew
        if it turns out to be damaged. Raises Unavailable.
        """
        try:
            return self._ask(question, by_attributes=by_attributes)
        except sqlite3.Error:
            log.exception("catalog_damaged", store=self._layout.name)
        try:
            with self._lock:
                self._renew()
                return self._ask(question, by_attributes=by_attributes)
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

    def erase(self) -> None:
        """Leave nothing in the file of what it no longer holds as of now. Blocks. Raises Unavailable."""
        if self._layout.catalog.exists():
            self.ask(lambda catalog, _: catalog.write_anew())

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            if self._catalog is not None:
                self._catalog.close()
                self._catalog = None

    def having_had(self, wanted: Sequence[Condition], at: int) -> list[str]:
        """The nodes whose state as of a commit is over and had some attributes, by what the history says.

        Raises Unavailable while the history cannot be read.
        """
        try:
            while self._read_history():
                pass
            return self.ask(lambda catalog, _: catalog.having_had(wanted, at))
        except sqlite3.Error as error:
            raise Unavailable("the history cannot be read now", retry_after=2) from error

    def _read_history(self) -> bool:
        """Take some of what is over from the history; whether there is more."""
        with self._lock:
            catalog = self._opened()
            place = catalog.past_place()
            found = read_ended(self._layout.history, Place(place.last, place.id), STATES_AT_ONCE)
            if found is None:
                return False
            reached = PastPlace(found.place.last, found.place.id, found.oldest)
            if reached != place:
                catalog.take_past(map(_ended, found.states), reached)
            return found.more

    def _ask(self, question: Callable[[Catalog, Rows], _Found], *, by_attributes: bool) -> _Found:
        with self._lock, self._rows.reading() as rows:
            catalog = self._follow(rows.at)
            if by_attributes and not catalog.has_attributes:
                catalog.index_attributes(rows.all_nodes())
            return question(catalog, rows)

    def _follow(self, sequence: int) -> Catalog:
        """The catalog, once it has seen a commit, and none after it."""
        catalog = self._opened()
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

    def _opened(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog(self._layout.catalog)
        return self._catalog

    def _renew(self) -> Catalog:
        """Make the file anew from the rows."""
        self.close()
        remove_files(self._layout.catalog)
        catalog = self._catalog = Catalog(self._layout.catalog)
        with self._rows.reading() as rows:
            catalog.rebuild(rows.all_nodes(), rows.relation_counts().items(), rows.at)
        return catalog


def _ended(state: State[NodeRow]) -> Ended:
    return Ended(state.row.id, state.first, state.last or 0, state.row.attributes)
