"""Stores as a reader process sees them: the server's base, mapped, and the changes since, read from the journal."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from kgserve.errors import KgserveError
from kgserve.platform.metrics.app_metrics_and_request_context import Telemetry
from kgserve.platform.settings import Settings
from kgserve.server.readers.shared_commit_page import SharedCommitPage, VisibleStoreCommit
from kgserve.storage.journal.journal_reader import JournalReader
from kgserve.storage.model.change_set import StoreState, unpack_change_set_rows
from kgserve.storage.model.store_settings import default_store_settings
from kgserve.storage.rows.base_segment import MappedRowBaseSegment
from kgserve.storage.rows.current_rows import BASE_SUFFIX, STAGED_MARK, list_base_segment_files
from kgserve.storage.rows.row_delta import InMemoryRowsDelta
from kgserve.storage.rows.row_json_encoder import RowsDamaged, RowsFormatMismatch
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import StoreLayout
from kgserve.stores.pool import StoreNotOpen
from kgserve.stores.scoped_stores import ReplicaReadPermission

MAX_ROWS_PER_CATCH_UP = 5_000
"""Changed rows that a reader process applies before one answer; about 20 ms."""


class ReaderProcessStore:
    """Current rows of an open store up to a visible commit. Not thread-safe."""

    def __init__(self, layout: StoreLayout, visible: VisibleStoreCommit) -> None:
        """Map the newest base that has nothing after the visible commit. Raises OSError, RowsDamaged, StoreNotOpen."""
        self.name = layout.name
        self.visible = visible
        self._folder = layout.rows
        self._journal = JournalReader(layout.journal)
        self._needs_base = False
        self._use_base(_find_base(self._folder, visible.sequence))

    @property
    def state(self) -> StoreState:
        """State as of the last applied commit."""
        return self._state

    def catch_up(self, visible: VisibleStoreCommit) -> None:
        """Apply the journal up to a commit. Raises StoreNotOpen if it is too far away, and errors of the files."""
        if visible.bases != self.visible.bases:
            newest = _find_base(self._folder, visible.sequence)
            if _key(newest) != _key(self._base.path):
                self._use_base(newest)
            self.visible, self._needs_base = visible, False
        if self._needs_base:
            raise StoreNotOpen
        if self._state.sequence < visible.sequence:
            self._apply_next(visible.sequence)

    def _apply_next(self, sequence: int) -> None:
        changes = self._journal.page(self._state.sequence, sequence, MAX_ROWS_PER_CATCH_UP)
        if sum(change.size for change in changes) > 2 * MAX_ROWS_PER_CATCH_UP:
            # A single large commit; the server will soon have a base that contains it.
            self._needs_base = True
            raise StoreNotOpen
        for change in changes:
            self._delta.apply(unpack_change_set_rows(change), change.sequence)
        self._state = changes[-1].state
        self._rows = RowsSnapshot(self._base, self._delta, self._state)
        if self._state.sequence < sequence:
            raise StoreNotOpen

    @contextmanager
    def reading(self) -> Generator[RowsSnapshot]:
        """Yield the rows of the last applied commit."""
        yield self._rows

    def query_catalog(self, *_: Any, **__: Any) -> NoReturn:
        """Raise StoreNotOpen: only the server has a catalog."""
        raise StoreNotOpen

    def _use_base(self, path: Path) -> None:
        self._base = MappedRowBaseSegment(path)
        self._delta = InMemoryRowsDelta(self._base)
        self._state = self._base.state
        self._rows = RowsSnapshot(self._base, self._delta, self._state)


def _find_base(folder: Path, sequence: int) -> Path:
    """Return the newest base that has nothing after a commit. Raises StoreNotOpen."""
    # The server may use a staged base, which cannot be opened. From another one, edges would come in another order.
    if any(folder.glob(f"*{STAGED_MARK}{BASE_SUFFIX}")):
        raise StoreNotOpen
    for path in list_base_segment_files(folder):
        if int(path.name.partition("-")[0]) <= sequence:
            return path
    raise StoreNotOpen


def _key(path: Path) -> str:
    """Return what identifies a base, whether it was synced or not."""
    return path.name.partition(".")[0]


class ReaderProcessStores:
    """The open stores of the server, as a reader process sees them: the part of a `StoreRegistry` that reads need.

    Belongs to the event loop.
    """

    # What `CallerScopedStores` copies; no operation of a reader process uses it.
    placement = inbound = feeds = None

    def __init__(self, settings: Settings, page: SharedCommitPage, observation: Telemetry) -> None:
        self.settings = settings
        self.usual = default_store_settings(settings)
        self.data_dir = settings.data_dir.resolve()
        self.observation = observation
        self.used: set[str] = set()
        """Names of the stores that were read since they were last reported."""
        self._page = page
        self._open: dict[str, ReaderProcessStore] = {}

    def acquire_open(self, name: str, *, replica: ReplicaReadPermission | None = None) -> ReaderProcessStore:
        """Return a store with its last visible commit. Raises StoreNotOpen if only the server can read it."""
        visible = self._page.find(name)
        if visible is None or replica is not None:
            raise StoreNotOpen
        try:
            store = self._open.get(name)
            if store is None or store.visible.incarnation != visible.incarnation:
                store = ReaderProcessStore(StoreLayout(self.data_dir, name), visible)
            store.catch_up(visible)
        except StoreNotOpen:
            raise
        except (KgserveError, RowsDamaged, RowsFormatMismatch, OSError) as error:
            self._open.pop(name, None)
            raise StoreNotOpen from error
        now = self._page.find(name)
        if now is None or now.incarnation != visible.incarnation:
            # Dropped meanwhile, perhaps created again: the files may be of either.
            self._open.pop(name, None)
            raise StoreNotOpen
        self._open[name] = store
        self.used.add(name)
        return store

    def acquire(self, *_: Any, **__: Any) -> NoReturn:
        """Raise StoreNotOpen: only the server opens stores."""
        raise StoreNotOpen

    lease = acquire

    def release(self, store: ReaderProcessStore) -> None:
        """Do nothing: a store is open until the server closes it."""

    def release_replaced_bases(self) -> None:
        """Release the stores that were closed, and those whose base was replaced; requests open them again."""
        for name, store in [*self._open.items()]:
            visible = self._page.find(name)
            if visible is None or visible[:2] != store.visible[:2]:
                del self._open[name]
