"""Base class of all projections, and the interfaces of the stores that they follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from kgserve.errors import Gone
from kgserve.platform.settings import Settings
from kgserve.projections.cross_store_links.cross_store_link_index import CrossStoreLinkReader
from kgserve.storage.changefeed import ChangeFeed
from kgserve.storage.commit_clock import CommitClock
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.journal_reader import MAX_TAIL_BATCH_ROWS, JournalReader
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import StoreDescription, StoreLayout


class CurrentRowsSource(Protocol):
    """Source of the current rows of a store."""

    def reading(self) -> AbstractContextManager[RowsSnapshot]:
        """Read the rows of the last commit."""
        ...


class StoreFollowedByProjections(Protocol):
    """Open store, as seen by the projections that follow its journal.

    The lists of functions are hooks. A writing thread calls those of ``after_commit`` after a commit. Other threads
    call the rest: after the history has applied commits, after the settings have changed, after nodes have been purged,
    and about once a second. A hook wakes a thread and does no work itself. ``needed_from`` retains the journal: each
    function returns the first sequence that still has to be read.
    """

    name: str
    layout: StoreLayout
    settings: Settings
    description: StoreDescription
    journal: Journal
    feed: ChangeFeed
    clock: CommitClock
    rows_sequence: int
    heads_mark: int
    after_commit: list[Callable[[], None]]
    after_history: list[Callable[[], None]]
    after_change: list[Callable[[], None]]
    after_erasing: list[Callable[[], None]]
    each_second: list[Callable[[], None]]
    needed_from: list[Callable[[], int]]

    @property
    def state(self) -> StoreState:
        """State as of the last commit that readers see."""
        ...

    @property
    def writing(self) -> bool:
        """True while a write is in progress or queued."""
        ...

    def reading(self) -> AbstractContextManager[RowsSnapshot]:
        """Read the rows of the last commit."""
        ...

    def reading_links(self) -> AbstractContextManager[tuple[RowsSnapshot, CrossStoreLinkReader | None]]:
        """Read the rows of the last commit, and the links into other stores as of that commit."""
        ...

    def wait_for_replica(self, sequence: int) -> None:
        """Wait until a replica has applied a commit. Raises ServedElsewhere if it does not get it, and Unavailable."""
        ...

    def require_local_owner(self) -> None:
        """Raise ServedElsewhere if this is a replica of a store that another node owns."""
        ...


class StorePoolFollowedByProjections(Protocol):
    """Stores of a data folder, as seen by projections that follow several of them."""

    def local_store_names(self) -> list[str]:
        """Return the names of the stores whose files are in this data folder."""
        ...

    def layout(self, name: str) -> StoreLayout:
        """Return the file layout of a store."""
        ...

    def lease(self, name: str) -> AbstractContextManager[StoreFollowedByProjections]:
        """Keep a store open. Raises NoStore."""
        ...


class ProjectionEraseRequest(NamedTuple):
    """Nodes to erase from a projection, up to a commit; of those in ``former`` only past states are erased."""

    ids: tuple[str, ...]
    former: tuple[str, ...]
    through: int

    @property
    def all_ids(self) -> tuple[str, ...]:
        """Ids of all nodes of which anything is erased."""
        return (*self.ids, *self.former)


class Projection(ABC):
    """Files derived from a store's journal, as of a commit. Only one thread at a time may advance it.

    A subclass opens its files, applies change sets, rebuilds from all rows, erases nodes and closes. It derives from
    one of two drivers: a reader brings an `OnDemandProjection` up to date, a thread brings a
    `follower.BackgroundProjection` up to date. Applying change sets must be idempotent: after a crash, those since the
    last save are applied again.
    """

    name: str
    """Name for log events and metrics, unique within a store."""
    rows_at_once = MAX_TAIL_BATCH_ROWS
    """Approximate number of rows in a page of the journal."""

    def __init__(self, layout: StoreLayout, journal: Journal, source: CurrentRowsSource) -> None:
        """Initialize without opening any file."""
        self._layout = layout
        self._journal = journal
        self._source = source
        self._tail = JournalReader(layout.journal)
        self._sequence = -1
        self.rebuild_wanted = False

    @property
    def sequence(self) -> int:
        """Sequence of the last applied commit; -1 while the projection is closed."""
        return self._sequence

    @abstractmethod
    def close(self) -> None:
        """Save and release the files; no step is in progress."""

    # Hooks for subclasses

    @abstractmethod
    def _open(self) -> int:
        """Open the files. Return the last commit that they contain, or -1 to be rebuilt."""

    @abstractmethod
    def _apply(self, changes: Iterable[Any], sequence: int) -> None:
        """Apply the consecutive change sets that `_read` returned, the last of which is ``sequence``."""

    @abstractmethod
    def _apply_all(self, rows: RowsSnapshot) -> int:
        """Discard everything and apply all rows. Return the last commit that the files contain afterwards."""

    def _read(self, after: int, last: int) -> tuple[Iterable[Any], int]:
        """Read a page of the journal, and return it with its last sequence. ``after`` is before ``last``.

        Raises Gone, FileNotFoundError and JournalDamaged.
        """
        changes = self._tail.page(after, last, self.rows_at_once)
        return changes, changes[-1].sequence

    # Steps, for the drivers

    def _step(self, last: int) -> bool:
        """Open, rebuild, or apply a page of the journal up to a commit. Return whether more work remains."""
        self._open_if_closed()
        if self.rebuild_wanted or self._is_out_of_reach(last):
            self._rebuild()
        else:
            self._advance(last)
        return self.sequence < last

    def _open_if_closed(self) -> None:
        if self.sequence < 0:
            self._begin_at(self._open())

    def _begin_at(self, sequence: int) -> None:
        """Start at a commit; later commits are still to be applied."""
        self._move(sequence)

    def _is_out_of_reach(self, last: int) -> bool:
        """Return whether the journal cannot bring the projection from its position to the commit ``last``."""
        seen = self.sequence
        return seen > last or (seen < last and seen < self._journal.oldest - 1)

    def _advance(self, last: int) -> None:
        """Apply the next page of the journal, if any, and move on."""
        if (seen := self.sequence) >= last:
            return
        try:
            changes, sequence = self._read(seen, last)
        except Gone:
            # The journal was truncated just now.
            self.rebuild_wanted = True
            return
        self._apply(changes, sequence)
        self._move(sequence)

    def _rebuild(self) -> None:
        """Rebuild from all rows."""
        # Reset first: a rebuild requested from now on is a new request.
        self.rebuild_wanted = False
        try:
            with self._source.reading() as rows:
                sequence = self._apply_all(rows)
        except BaseException:
            self.rebuild_wanted = True
            raise
        self._move(sequence)

    def _move(self, sequence: int) -> None:
        """Set the position to a commit; everything up to it is applied."""
        self._sequence = sequence
