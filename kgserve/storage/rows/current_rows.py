"""Current rows of a store, as a projection of its journal: a base and the changes since, read as of a commit.

A reader gets a snapshot and releases it; row versions that it may need are kept until then. When the changes have
grown, a background merge builds a new base, which takes over with the changes made in the meantime. Readers of the old
base keep using it.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import msgspec
import structlog

from kgserve.errors import KgserveError
from kgserve.platform.durable_files import fsync_file, fsync_folder, translate_os_error
from kgserve.platform.sqlite_files import remove_path
from kgserve.storage.model.change_set import ChangeSet, NetChange, StoreState, unpack_change_set_rows
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow
from kgserve.storage.rows.base_segment import MappedRowBaseSegment
from kgserve.storage.rows.base_segment_file_format import read_base_segment_footer
from kgserve.storage.rows.base_segment_merge import (
    TEXTS_SUFFIX,
    add_net_change_to_base_changes,
    build_base_segment_from_rows,
    write_empty_base_segment,
    write_merged_row_base_segment,
)
from kgserve.storage.rows.base_segment_merge_columns import (
    EdgeRowForBaseSegment,
    NodeRowForBaseSegment,
    RowChangesForBaseSegment,
    RowColumnsToMerge,
)
from kgserve.storage.rows.row_delta import InMemoryRowsDelta, RowVersion
from kgserve.storage.rows.row_json_encoder import RowsDamaged, RowsFormatMismatch
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

BASE_SUFFIX = ".rows"
UNSYNCED_MARK = ".unsynced"
"""Name part of a base that was not synced: a power loss may have torn it, so it is verified before reuse."""
STAGED_MARK = ".foreseen"
"""Name part of a base built ahead of its commit. It lacks rows, so it is never opened again."""


def read_newest_base_segment_sequence(folder: Path) -> int:
    """Return the sequence of the newest readable base segment in a folder, 0 if it has none. Read-only."""
    for path in list_base_segment_files(folder):
        with suppress(RowsDamaged, OSError):
            return read_base_segment_footer(path).sequence
    return 0


def list_base_segment_files(folder: Path) -> list[Path]:
    """Return the paths of the base segments that a store may be opened from, newest first."""
    whole = (path for path in folder.glob(f"*{BASE_SUFFIX}") if STAGED_MARK not in path.suffixes)
    found = [path for path in whole if path.stem.partition("-")[0].isdecimal()]
    return sorted(found, key=lambda path: tuple(map(int, path.name.partition(".")[0].split("-"))), reverse=True)


def _remove_files(base: MappedRowBaseSegment, *others: MappedRowBaseSegment) -> None:
    """Remove the files of a base, except a text file that other bases use."""
    remove_path(base.path)
    if base.texts not in {"", *(other.texts for other in others)}:
        remove_path(base.path.with_name(base.texts))


class BaseSegmentStagedBeforeDelete:
    """Base segment without rows to be deleted, staged before the commit that deletes them.

    Concurrent writes must not touch these rows. They can therefore be applied to the new base in the order in which
    they were made.
    """

    def __init__(self, view: CurrentRowsProjection, rows: RowsSnapshot, pending: deque[ChangeSet]) -> None:
        self.rows = rows
        self.base: MappedRowBaseSegment | None = None
        self._view = view
        self._pending = pending
        self._delta: InMemoryRowsDelta | None = None

    @property
    def is_current(self) -> bool:
        """True if the view still uses the base that these rows come from."""
        return self._view.rows().base is self.rows.base

    def restart(self) -> None:
        """Restart from the current rows. For the applying thread, before `leave_out`."""
        self._pending.clear()
        self.rows = self._view.rows()

    def leave_out(self, nodes: set[int], edges: set[int]) -> None:
        """Build the base without some rows. Raises StorageFull, Unavailable and RowsDamaged."""
        self.base = self._view.build_without(self.rows, nodes, edges)
        self._delta = InMemoryRowsDelta(self.base)

    def catch_up(self) -> list[ChangeSet]:
        """Apply and return the commits since the last call. They must not touch the rows to be deleted."""
        taken = [self._pending.popleft() for _ in range(len(self._pending))]
        if self._delta is not None:
            for change in taken:
                self._delta.apply(change, change.sequence)
        return taken

    def show(self, change: ChangeSet) -> None:
        """Publish the commit that deletes the rows, after the last `catch_up`. For the applying thread."""
        assert self.base is not None  # noqa: S101
        assert self._delta is not None  # noqa: S101
        self._delta.sequence = change.sequence
        self._view.publish_staged(self.base, self._delta, change.state)


log = structlog.get_logger()

WRITER_WAIT_FACTOR = 6
IDLE_MERGE_SHARE = 0.1
MIN_UNUSED_TEXT_BYTES = 4 << 20
UNUSED_TEXT_DIVISOR = 5
"""Fraction (1/N) of a text file that must be unused before an idle store rewrites it."""
IMMEDIATE_MERGE_SHARE = 0.25
ChangesAfter = Callable[[int], Iterable[ChangeSet]]
"""Function that returns the change sets after a sequence, from the journal."""
CommitAnnouncement = Callable[[int, bool], None]
"""Function that is called with the sequence of a visible commit, and whether another base is in service."""


class DeltaMergeLimits(msgspec.Struct, frozen=True):
    """Limits of the delta beyond which it is merged into a new base segment.

    rows, share: number of changed rows, absolute and as a fraction of the base; the larger one applies.

    bytes: bytes of changed texts; if larger, ``share`` of the base's bytes applies.
    """

    rows: int = 50_000
    share: float = 0.1
    bytes: int = 64 << 20


class _Epoch(msgspec.Struct, frozen=True, eq=False):
    """Base and delta in service, with the number of readers of each commit."""

    base: MappedRowBaseSegment
    delta: InMemoryRowsDelta
    readers: Counter[int]


class CurrentRowsProjection:
    """Projection of a journal to the store's current rows. One thread applies commits; any thread reads."""

    def __init__(self, folder: Path, store: str = "") -> None:
        """Open the newest valid base in a folder. Call `catch_up` next. Raises OSError."""
        self.store = store
        self.folder = folder
        self.limits = DeltaMergeLimits()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._merge_ended = threading.Condition(self._lock)
        self._epoch = self._open()
        self._state = self._epoch.base.state
        self._folding: deque[ChangeSet] | None = None
        self._applying: Sequence[ChangeSet] = ()
        self._reopenable_base: MappedRowBaseSegment | None = None
        self.folds = 0
        self.on_damage: Callable[[RowsDamaged], Exception] = lambda error: error
        """Callback that starts a rebuild of damaged rows and returns the error for callers."""
        self._on_published: CommitAnnouncement | None = None

    @property
    def state(self) -> StoreState:
        """State at the last commit that readers see."""
        return self._state

    @property
    def base_sequence(self) -> int:
        """Commit of the base; the journal is needed from there on."""
        return self._epoch.base.state.sequence

    @property
    def has_validity_bounds(self) -> bool:
        """True if any row has validity bounds."""
        return self._epoch.delta.has_validity_bounds

    @property
    def bytes(self) -> int:
        """Size of the base's files in bytes."""
        return self._epoch.base.size

    @property
    def delta_version_count(self) -> int:
        """Number of row versions in the delta."""
        return self._epoch.delta.versions

    def announce_commits(self, on_published: CommitAnnouncement | None) -> None:
        """Call ``on_published`` for the last commit, and for each one that becomes visible from now on; None ends it.

        The callback runs under the lock that readers take, so that no reader sees a commit before it is announced.
        """
        with self._lock:
            self._on_published = on_published
            self._announce(is_new_base=True)

    def _announce(self, *, is_new_base: bool) -> None:
        if self._on_published is not None:
            self._on_published(self._state.sequence, is_new_base)

    def _publish(self, epoch: _Epoch, state: StoreState) -> _Epoch:
        """Put a base in service as of a commit, and return the former one. The caller holds the lock."""
        former, self._epoch, self._state = self._epoch, epoch, state
        self._announce(is_new_base=True)
        return former

    def rows(self) -> RowsSnapshot:
        """Return the newest rows, for the applying thread or for short reads that keep nothing."""
        epoch, state = self._epoch, self._state
        return RowsSnapshot(epoch.base, epoch.delta, state)

    @contextmanager
    def stage_deletion(self) -> Generator[BaseSegmentStagedBeforeDelete]:
        """Yield a `BaseSegmentStagedBeforeDelete` for the next deletion, once no merge is running. Blocks.

        One thread at a time, and not the applying one.
        """
        with self._lock:
            epoch, state, pending = self._begin_concurrent_merge()
        staged = BaseSegmentStagedBeforeDelete(self, RowsSnapshot(epoch.base, epoch.delta, state), pending)
        try:
            yield staged
        finally:
            self._release_reader(epoch, state)
            self._end_merge()
            with self._lock:
                if staged.base is not None and self._epoch.base is not staged.base:
                    _remove_files(staged.base, self._epoch.base)

    @contextmanager
    def reading(self) -> Generator[RowsSnapshot]:
        """Yield the rows of the last commit, valid while the block runs."""
        with self._lock:
            epoch, state = self._register_reader()
        try:
            yield RowsSnapshot(epoch.base, epoch.delta, state)
        finally:
            self._release_reader(epoch, state)

    @contextmanager
    def reading_with_repair(self) -> Generator[RowsSnapshot]:
        """Yield the rows of the last commit, for answers. Damaged rows are rebuilt; raises Unavailable meanwhile."""
        try:
            with self.reading() as rows:
                yield rows
        except RowsDamaged as error:
            raise self.on_damage(error) from error

    def apply(self, changes: Sequence[ChangeSet]) -> None:
        """Apply commits and publish them to readers at once."""
        if self.is_bulk(sum(change.size for change in changes)) and self._merge_now(
            # The changes of the delta come first.
            lambda base, before: add_net_change_to_base_changes(base, before, NetChange(changes)),
            changes[-1].state,
        ):
            return
        with self._lock:
            # Any base started or put in service after this point receives these changes, too.
            self._applying = changes
            epoch = self._epoch
            floor = min(epoch.readers, default=self._state.sequence)
            if self._folding is not None:
                self._folding.extend(changes)
        for change in changes:
            epoch.delta.apply(change, floor)
        with self._lock:
            self._state, self._applying = changes[-1].state, ()
            self._announce(is_new_base=False)

    def apply_new(self, change: ChangeSet, base: MappedRowBaseSegment, columns: RowColumnsToMerge) -> None:
        """Apply a commit that only creates rows, given also as columns relative to ``base``."""

        def combine(current: MappedRowBaseSegment, before: RowChangesForBaseSegment) -> RowColumnsToMerge | None:
            is_complete = current is base and before.is_empty and before.linked == base.linked
            return columns if is_complete else None

        if not self._merge_now(combine, change.state):
            self.apply([unpack_change_set_rows(change)])

    def is_bulk(self, rows: int) -> bool:
        """Return True if this many changed rows are cheaper to merge into a new base than to keep in the delta."""
        base = self._epoch.base
        least = max(self.limits.rows, self.limits.share * (base.nodes + base.edges))
        return rows >= IMMEDIATE_MERGE_SHARE * least

    def merge_delta(self) -> bool:
        """Merge the delta into a new base, and return whether the base has all rows. For the applying thread."""
        return self._epoch.delta.is_empty or self._merge_now(lambda _, before: before, self._state)

    def _merge_now(
        self,
        combine: Callable[
            [MappedRowBaseSegment, RowChangesForBaseSegment], RowChangesForBaseSegment | RowColumnsToMerge | None
        ],
        state: StoreState,
    ) -> bool:
        """Merge what ``combine`` makes of the base and the changes since into a new base, for the applying thread.

        Return False with the old base in service if that is impossible, or if ``combine`` returns None.
        """
        with self._lock:
            if self._folding is not None:
                return False
            self._folding = deque()
        try:
            base = self._epoch.base
            changes = combine(base, collect_row_changes_since_base(self.rows()))
            if changes is None:
                return False
            # Not synced: the journal already has the changes.
            made = self._build_base(base, changes, state, durable=False)
            with self._lock:
                self._publish(_new_epoch(made), made.state)
            self._remove(base, made)
        except (RowsDamaged, OSError, KgserveError):
            log.exception("rows_not_folded", store=self.store)
            return False
        finally:
            self._end_merge()
        return True

    def _begin_concurrent_merge(self) -> tuple[_Epoch, StoreState, deque[ChangeSet]]:
        """Wait until no merge is running, and begin one while the applying thread continues. The caller holds the lock.

        Return the epoch and state to merge, registered as read, and a queue that receives exactly the later commits.
        """
        while self._folding is not None:
            self._merge_ended.wait()
        epoch, state = self._register_reader()
        self._folding = pending = deque(self._applying)
        return epoch, state, pending

    def _end_merge(self) -> None:
        with self._lock:
            self._folding = None
            self._merge_ended.notify_all()

    def sync(self) -> None:
        """Make the base durable. Blocks. Raises OSError."""
        base = self._epoch.base
        if UNSYNCED_MARK not in base.path.suffixes:
            return
        with suppress(FileNotFoundError):  # another base has replaced it
            if base.texts:
                fsync_file(self.folder / base.texts)
            fsync_file(base.path)
        with self._lock:
            if self._epoch.base is base:
                base.path = base.path.rename(base.path.with_suffix("").with_suffix(BASE_SUFFIX))
        fsync_folder(self.folder)

    def catch_up(self, changes_after: ChangesAfter) -> None:
        """Apply the rest of the journal, before any reader exists. Raises RowsDamaged, StorageFull and Unavailable."""
        self._epoch, self._state = self._replay(self._epoch, self._state, changes_after)

    def needs_merge(self, *, idle: bool = False) -> bool:
        """Return True if the changes exceed their limits, or a tenth of them while the store is ``idle``."""
        is_due = STAGED_MARK in self._epoch.base.path.suffixes or self._is_full(
            self._epoch.delta, IDLE_MERGE_SHARE if idle else 1
        )
        return self._folding is None and is_due

    @property
    def is_overfull(self) -> bool:
        """True if the changes far exceed their limits, so that writers should wait for a new base."""
        return self._is_full(self._epoch.delta, WRITER_WAIT_FACTOR)

    @property
    def needs_rewrite(self) -> bool:
        """True if much of the base's text file belongs to rows that were replaced or deleted."""
        base = self._epoch.base
        return base.unused_text_bytes >= max(MIN_UNUSED_TEXT_BYTES, base.texts_size // UNUSED_TEXT_DIVISOR)

    def fold(self, *, copying: bool = False) -> None:
        """Build a new base from the current rows and put it in service, once no other merge is running. Blocks.

        With ``copying``, build it even if nothing changed, with new files that contain nothing unused. One thread at a
        time, and not the applying one.

        Raises StorageFull or Unavailable with the old base in service, RowsDamaged if that base is damaged.
        """
        if not (copying or self._epoch.delta.sequence > self.base_sequence):
            return
        with self._lock:
            epoch, state, _ = self._begin_concurrent_merge()
        try:
            self._put_in_service(self._merge_rows(RowsSnapshot(epoch.base, epoch.delta, state), copying=copying))
        finally:
            self._release_reader(epoch, state)
            self._end_merge()

    def renew(
        self,
        nodes: Iterable[NodeRow],
        edges: Iterable[EdgeRow],
        state: StoreState,
        changes_after: ChangesAfter,
        *,
        linked: bool = False,
    ) -> None:
        """Rebuild everything from rows as of a commit and the journal after it, while no writes run.

        Raises StorageFull, Unavailable and RowsDamaged.
        """
        building = self.folder / "building"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        path = self._path(state.sequence)
        try:
            base = build_base_segment_from_rows(building, nodes, edges, state, linked=linked)
            if base.texts:
                (building / base.texts).rename(self.folder / base.texts)
            base.path.rename(path)
            fsync_folder(self.folder)
        except OSError as error:
            raise translate_os_error(error, "rebuilding the current rows") from error
        finally:
            shutil.rmtree(building, ignore_errors=True)
        epoch, state = self._replay(_new_epoch(MappedRowBaseSegment(path)), base.state, changes_after)
        with self._lock:
            old = self._publish(epoch, state)
        self._remove(old.base, epoch.base)

    def forget(self) -> None:
        """Release caches that only speed up writes."""
        self._epoch.base.forget()

    def close(self) -> None:
        """Release the base; its files close when the last reader has finished. Raises OSError."""
        self.sync()
        del self._epoch

    def _replay(self, epoch: _Epoch, state: StoreState, changes_after: ChangesAfter) -> tuple[_Epoch, StoreState]:
        """Apply the rest of the journal to an unpublished epoch, merging as often as needed."""
        for change in changes_after(state.sequence):
            epoch.delta.apply(change, change.sequence)
            state = change.state
            if self._is_full(epoch.delta):
                folded = self._merge_rows(RowsSnapshot(epoch.base, epoch.delta, state))
                _remove_files(epoch.base, folded)
                epoch = _new_epoch(folded)
        return epoch, state

    def _merge_rows(self, rows: RowsSnapshot, *, copying: bool = False) -> MappedRowBaseSegment:
        return self._build_base(rows.base, collect_row_changes_since_base(rows), rows.state, copying=copying)

    def _build_base(
        self,
        base: MappedRowBaseSegment,
        changes: RowChangesForBaseSegment | RowColumnsToMerge,
        state: StoreState,
        *,
        durable: bool = True,
        copying: bool = False,
        mark: str = UNSYNCED_MARK,
    ) -> MappedRowBaseSegment:
        """Build the successor of a base. Raises StorageFull, Unavailable and RowsDamaged."""
        started = time.perf_counter()
        path = self._path(state.sequence)
        path = path if durable else path.with_suffix(mark + BASE_SUFFIX)
        try:
            write_merged_row_base_segment(base, changes, state, path, durable=durable, copying=copying)
        except OSError as error:
            raise translate_os_error(error, "folding rows") from error
        self.folds += 1
        seconds = round(time.perf_counter() - started, 3)
        log.info("rows_folded", store=self.store, sequence=state.sequence, seconds=seconds)
        return MappedRowBaseSegment(path)

    def build_without(self, rows: RowsSnapshot, nodes: set[int], edges: set[int]) -> MappedRowBaseSegment:
        """Return a base without some of these rows, not to be reopened. Raises as `write_merged_row_base_segment`."""
        before, base = collect_row_changes_since_base(rows), rows.base
        gone = RowChangesForBaseSegment(
            [put for put in before.nodes if rows.delta.number(put.row.id) not in nodes],
            [put for put in before.edges if rows.delta.edge_number(put.row.key) not in edges],
            [*{*before.nodes_gone, *(number for number in nodes if number < base.nodes)}],
            [*{*before.edges_gone, *(number for number in edges if number < base.edges)}],
            before.linked,
        )
        return self._build_base(base, gone, base.state, durable=False, mark=STAGED_MARK)

    def publish_staged(self, base: MappedRowBaseSegment, delta: InMemoryRowsDelta, state: StoreState) -> None:
        """Put a staged base in service, with the changes it lacked. For the applying thread."""
        with self._lock:
            former, reopenable = self._epoch.base, self._reopenable_base
            self._publish(_Epoch(base, delta, Counter()), state)
            # Keep the last base that was not staged: the store would be opened from it.
            self._reopenable_base = reopenable or former
        if reopenable is not None:
            _remove_files(former, base, reopenable)

    def _path(self, sequence: int) -> Path:
        return self.folder / f"{sequence}-{time.time_ns()}{BASE_SUFFIX}"

    def _register_reader(self) -> tuple[_Epoch, StoreState]:
        """Register a reader of the base in service and the last commit. The caller holds the lock."""
        self._epoch.readers[self._state.sequence] += 1
        return self._epoch, self._state

    def _release_reader(self, epoch: _Epoch, state: StoreState) -> None:
        with self._lock:
            epoch.readers[state.sequence] -= 1
            if not epoch.readers[state.sequence]:
                del epoch.readers[state.sequence]

    def _put_in_service(self, base: MappedRowBaseSegment) -> None:
        """Put a base in service, with the changes made since its build began."""
        epoch = _new_epoch(base)
        while True:
            with self._lock:
                pending = self._folding or deque[ChangeSet]()
                if not pending:
                    old = self._publish(epoch, self._state)
                    break
                taken = [pending.popleft() for _ in range(len(pending))]
            for change in taken:
                # Readers may use any of these commits once the base is in service.
                epoch.delta.apply(change, base.state.sequence)
        self._remove(old.base, base)

    def _remove(self, base: MappedRowBaseSegment, following: MappedRowBaseSegment) -> None:
        reopenable, self._reopenable_base = self._reopenable_base, None
        for former in (base, reopenable):
            if former is not None:
                _remove_files(former, following)

    def _is_full(self, delta: InMemoryRowsDelta, times: float = 1) -> bool:
        limits, base = self.limits, delta.base
        rows = max(limits.rows, limits.share * (base.nodes + base.edges))
        return delta.versions > times * rows or delta.bytes > times * max(limits.bytes, limits.share * base.size)

    def _open(self) -> _Epoch:
        for path in list_base_segment_files(self.folder):
            try:
                base = MappedRowBaseSegment(path)
                if UNSYNCED_MARK in path.suffixes:
                    base.check()
            except RowsFormatMismatch:
                log.info("rows_of_another_format", path=path.name)
                remove_path(path)
                continue
            except RowsDamaged as error:
                log.error("rows_damaged", path=path.name, error=str(error))
                remove_path(path)
                continue
            for other in (*self.folder.glob(f"*{BASE_SUFFIX}*"), *self.folder.glob(f"*{TEXTS_SUFFIX}")):
                if other.name not in {path.name, base.texts}:
                    remove_path(other)
            return _new_epoch(base)
        for texts in self.folder.glob(f"*{TEXTS_SUFFIX}"):
            remove_path(texts)
        path = self._path(0)
        write_empty_base_segment(path)
        return _new_epoch(MappedRowBaseSegment(path))


def collect_row_changes_since_base(rows: RowsSnapshot) -> RowChangesForBaseSegment:
    """Return the rows changed and deleted since the base segment of a snapshot."""
    base, delta = rows.base, rows.delta
    nodes, nodes_gone = _split_changes(delta.nodes, rows.at, base.nodes)
    edges, edges_gone = _split_changes(delta.edges, rows.at, base.edges)
    return RowChangesForBaseSegment(
        [NodeRowForBaseSegment(cast("NodeRow", version.row), number, version.data) for number, version in nodes],
        [EdgeRowForBaseSegment(cast("EdgeRow", version.row), number, version.data) for number, version in edges],
        nodes_gone,
        edges_gone,
        rows.linked,
    )


def _split_changes(
    changed: dict[int, RowVersion], at: int, count: int
) -> tuple[list[tuple[int, RowVersion]], list[int]]:
    """Split changed rows at a commit into existing rows, with their base number or -1, and deleted base numbers."""
    there: list[tuple[int, RowVersion]] = []
    gone: list[int] = []
    for number, newest in changed.copy().items():
        version = newest.at(at)
        if version is not None and version.row is not None:
            there.append((number if number < count else -1, version))
        elif version is not None and number < count:
            gone.append(number)
    return there, gone


def _new_epoch(base: MappedRowBaseSegment) -> _Epoch:
    return _Epoch(base, InMemoryRowsDelta(base), Counter())
