"""What a projection needs of the store that it follows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from kgserve.platform.settings import Settings
from kgserve.projections.links.links import LinkReader
from kgserve.storage.changefeed import Feed
from kgserve.storage.commit_clock import CommitClock
from kgserve.storage.journal.journal import Journal
from kgserve.storage.layout import Layout, StoreFile
from kgserve.storage.model.change import StoreState
from kgserve.storage.rows.snapshot import Rows


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
    feed: Feed
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
