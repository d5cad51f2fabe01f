"""The base of all projections, and what they need of the store that they follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from kgserve.errors import Gone
from kgserve.platform.settings import Settings
from kgserve.projections.links.links import LinkReader
from kgserve.storage.changefeed import ChangeFeed
from kgserve.storage.commit_clock import CommitClock
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.tail import TAIL_BATCH_ROWS, Tail
from kgserve.storage.layout import Layout, StoreFile
from kgserve.storage.model.change import StoreState
from kgserve.storage.rows.snapshot import Rows


class RowsSource(Protocol):
    """Gives the present rows of a store."""

    def reading(self) -> AbstractContextManager[Rows]:
        """Read the rows of the last commit."""
        ...


class FollowedStore(Protocol):
    """An open store, as those see it that follow its journal.

    The lists of functions are hooks: a projection appends to them what is called, in the writing thread, after a commit
    (``after_commit``), or in other threads after the history has taken commits in, after the settings have changed,
    after nodes have been purged, and about once a second. A hook wakes a thread and does no work itself.
    ``needed_from`` is what keeps the journal: each function returns the first sequence that is still to be read.
    """

    name: str
    layout: Layout
    settings: Settings
    description: StoreFile
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
        """The last commit that readers see."""
        ...

    @property
    def writing(self) -> bool:
        """Whether a write is in progress or queued."""
        ...

    def reading(self) -> AbstractContextManager[Rows]:
        """Read the rows of the last commit."""
        ...

    def reading_links(self) -> AbstractContextManager[tuple[Rows, LinkReader | None]]:
        """Read the rows of the last commit, and the links into other stores as of it."""
        ...

    def reach(self, sequence: int) -> None:
        """Have a copy see a commit. Raises ServedElsewhere where it has not come here, and Unavailable."""
        ...

    def require_own(self) -> None:
        """Raise ServedElsewhere for a copy of a store that another node owns."""
        ...


class FollowedPool(Protocol):
    """The stores of a data folder, as those see them that follow several."""

    def here(self) -> list[str]:
        """Return the names of the stores whose files are here."""
        ...

    def layout(self, name: str) -> Layout:
        """Return where the files of a store are."""
        ...

    def lease(self, name: str) -> AbstractContextManager[FollowedStore]:
        """Keep a store open. Raises NoStore."""
        ...


class Erasure(NamedTuple):
    """Nodes of which a projection is to hold nothing from up to a commit; ``former``: only nothing that is over."""

    ids: tuple[str, ...]
    former: tuple[str, ...]
    through: int


class Projection(ABC):
    """Files derived from a store's journal, as of a commit. One thread at a time advances it.

    A subclass says how to open its files, apply change sets, take in all rows, erase nodes and close. It derives from
    one of the two drivers: `on_demand.OnDemandProjection` is brought up to date when it is read,
    `follower.BackgroundProjection` by a thread. Applying change sets twice must have the effect of applying them once:
    after a crash those since the last save come again.
    """

    name: str
    """Unique within a store; log events and metrics use it."""
    rows_at_once = TAIL_BATCH_ROWS
    """Rows of a page of the journal, about."""

    def __init__(self, layout: Layout, journal: Journal, source: RowsSource) -> None:
        """Open nothing yet."""
        self._layout = layout
        self._journal = journal
        self._source = source
        self._tail = Tail(layout.journal)
        self._sequence = -1
        self.rebuild_wanted = False

    @property
    def sequence(self) -> int:
        """The last commit that it has seen; -1 while it is closed."""
        return self._sequence

    @abstractmethod
    def close(self) -> None:
        """Save and release the files; no step is in progress."""

    # What a projection says

    @abstractmethod
    def _open(self) -> int:
        """Open the files. Return the last commit that they have seen, or -1 to be rebuilt."""

    @abstractmethod
    def _apply(self, changes: Iterable[Any], sequence: int) -> None:
        """Take in the consecutive change sets that `_read` found, the last of which is ``sequence``."""

    @abstractmethod
    def _apply_all(self, rows: Rows) -> int:
        """Forget everything, and take in the rows of a commit. Return the last commit that it has seen by that."""

    def _read(self, after: int, last: int) -> tuple[Iterable[Any], int]:
        """Read a page of the journal, and return it with its last sequence. ``after`` is before ``last``.

        Raises Gone, FileNotFoundError and JournalDamaged.
        """
        changes = self._tail.page(after, last, self.rows_at_once)
        return changes, changes[-1].sequence

    # Following, for the drivers

    def _step(self, last: int) -> bool:
        """Open, rebuild, or take in a page of the journal up to a commit. Return whether there is more to do."""
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
        """Stand at a commit, all that is after which is yet to be taken in."""
        self._move(sequence)

    def _is_out_of_reach(self, last: int) -> bool:
        """Return whether the journal cannot take it from where it stands to a commit."""
        seen = self.sequence
        return seen > last or (seen < last and seen < self._journal.oldest - 1)

    def _advance(self, last: int) -> None:
        """Take in a page of what it has yet to see, if there is any, and move on."""
        if (seen := self.sequence) >= last:
            return
        try:
            changes, sequence = self._read(seen, last)
        except Gone:
            # The journal was cut just now.
            self.rebuild_wanted = True
            return
        self._apply(changes, sequence)
        self._move(sequence)

    def _rebuild(self) -> None:
        """Begin again with all rows."""
        # Reset first: one that is wanted meanwhile is another one.
        self.rebuild_wanted = False
        try:
            with self._source.reading() as rows:
                sequence = self._apply_all(rows)
        except BaseException:
            self.rebuild_wanted = True
            raise
        self._move(sequence)

    def _move(self, sequence: int) -> None:
        """Stand at a commit; all up to it was taken in."""
        self._sequence = sequence
