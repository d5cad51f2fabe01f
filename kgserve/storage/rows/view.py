"""The present rows of a store as a view of its journal: a base and what has come since, read by commit.

A reader gets a snapshot and lets go of it; what it may still ask for is kept so long. Once the changes have grown, a
new base is folded in the background and takes over with the changes that came meanwhile; readers stay on the old one.
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
from kgserve.platform.durable_files import storage_error, sync_file, sync_folder
from kgserve.platform.sqlite_files import remove_path
from kgserve.storage.model.change import ChangeSet, NetChange, StoreState
from kgserve.storage.model.rows import EdgeRow, NodeRow
from kgserve.storage.rows.base import BaseSegment
from kgserve.storage.rows.delta import Delta, Version
from kgserve.storage.rows.encoding import RowsDamaged, RowsOfAnotherFormat
from kgserve.storage.rows.fold import TEXTS_SUFFIX, Changes, EdgeMerge, NodeMerge, build, fold, followed_by, write_empty
from kgserve.storage.rows.format import read_directory
from kgserve.storage.rows.snapshot import Rows

BASE_SUFFIX = ".rows"
UNSYNCED_MARK = ".unsynced"
"""Part of the name of a base that a power loss might tear: it is looked through before it is used again."""
STAGED_MARK = ".foreseen"
"""Part of the name of a base that was made ahead of commits which it lacks: it is never used again."""


def newest_base(folder: Path) -> int:
    """The commit that the newest whole base in a folder was made at; 0 when there is none. Nothing is changed."""
    for path in newest_first(folder):
        with suppress(RowsDamaged, OSError):
            return read_directory(path).sequence
    return 0


def newest_first(folder: Path) -> list[Path]:
    """The bases that a store may be opened from."""
    whole = (path for path in folder.glob(f"*{BASE_SUFFIX}") if STAGED_MARK not in path.suffixes)
    found = [path for path in whole if path.stem.partition("-")[0].isdecimal()]
    return sorted(found, key=lambda path: tuple(map(int, path.name.partition(".")[0].split("-"))), reverse=True)


def _remove_files(base: BaseSegment, *others: BaseSegment) -> None:
    """Remove the files of a base that the others do not need."""
    remove_path(base.path)
    if base.texts not in {"", *(other.texts for other in others)}:
        remove_path(base.path.with_name(base.texts))


class StagedBase:
    """Rows of a commit of which some are to go, and the base without them, made before the commit that it is for.

    What others write meanwhile must not meet those rows; so it comes to the same before and after, and is put beside
    the new base in the order in which it came.
    """

    def __init__(self, view: RowsView, rows: Rows, pending: deque[ChangeSet]) -> None:
        self.rows = rows
        self.base: BaseSegment | None = None
        self._view = view
        self._pending = pending
        self._delta: Delta | None = None

    @property
    def is_current(self) -> bool:
        """Whether these rows, and what came since, are still what the view has."""
        return self._view.rows().base is self.rows.base

    def begin_again(self) -> None:
        """Go by the rows of now. For who applies commits, while nothing is left out yet."""
        self._pending.clear()
        self.rows = self._view.rows()

    def leave_out(self, nodes: set[int], edges: set[int]) -> None:
        """Make the base without these. Raises StorageFull, Unavailable and RowsDamaged."""
        self.base = self._view.without(self.rows, nodes, edges)
        self._delta = Delta(self.base)

    def catch_up(self) -> list[ChangeSet]:
        """What others have written since this was last asked; it must not meet what is to go."""
        taken = [self._pending.popleft() for _ in range(len(self._pending))]
        if self._delta is not None:
            for change in taken:
                self._delta.apply(change, change.sequence)
        return taken

    def show(self, change: ChangeSet) -> None:
        """Show the commit that takes the rows away, once nothing is left to catch up with. For who applies commits."""
        assert self.base is not None  # noqa: S101
        assert self._delta is not None  # noqa: S101
        self._delta.sequence = change.sequence
        self._view.show_foreseen(self.base, self._delta, change.state)


log = structlog.get_logger()

OVERFULL_FACTOR = 6
IDLE_MERGE_SHARE = 0.1
IMMEDIATE_MERGE_SHARE = 0.25
ChangesAfter = Callable[[int], Iterable[ChangeSet]]
"""The change sets after a sequence, from the journal."""


class FoldLimits(msgspec.Struct, frozen=True):
    """When changes are folded into a new base: once there are more than ``rows``, or a ``share`` of the base's.

    Or once their texts take so many ``bytes``.
    """

    rows: int = 50_000
    share: float = 0.1
    bytes: int = 64 << 20


class _Epoch(msgspec.Struct, frozen=True, eq=False):
    """A base and its changes, and how many read which commit of it."""

    base: BaseSegment
    delta: Delta
    readers: Counter[int]


class RowsView:
    """The present rows. One thread applies commits; any thread reads."""

    def __init__(self, folder: Path, store: str = "") -> None:
        """Open the newest base in a folder that is whole; `catch_up` is to follow. Raises OSError."""
        self.store = store
        self.folder = folder
        self.limits = FoldLimits()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._epoch = self._open()
        self._state = self._epoch.base.state
        self._folding: deque[ChangeSet] | None = None
        self._applying: Sequence[ChangeSet] = ()
        self._behind: BaseSegment | None = None
        self.folds = 0
        self.on_damage: Callable[[RowsDamaged], Exception] = lambda error: error
        """Has damaged rows rebuilt; the error that answers say meanwhile."""

    @property
    def state(self) -> StoreState:
        """The last commit that readers see."""
        return self._state

    @property
    def base_sequence(self) -> int:
        """The commit that the base was made at: the journal is needed from there on."""
        return self._epoch.base.state.sequence

    @property
    def dated(self) -> bool:
        """Whether any row says when it is true."""
        return self._epoch.delta.dated

    @property
    def bytes(self) -> int:
        """Size of the base's file."""
        return self._epoch.base.size

    @property
    def changed(self) -> int:
        """Versions of rows that are kept beside the base."""
        return self._epoch.delta.versions

    def rows(self) -> Rows:
        """The newest rows, for the thread that applies commits, or for who reads at once and keeps nothing."""
        epoch, state = self._epoch, self._state
        return Rows(epoch.base, epoch.delta, state)

    @contextmanager
    def foreseeing(self) -> Generator[StagedBase]:
        """A base to be made before the commit that it is for. For one thread at a time, which alone may `fold`."""
        with self._lock:
            epoch, state = self._registered()
            self._folding = pending = deque(self._applying)
        foreseen = StagedBase(self, Rows(epoch.base, epoch.delta, state), pending)
        try:
            yield foreseen
        finally:
            self._let_go(epoch, state)
            with self._lock:
                self._folding = None
                if foreseen.base is not None and self._epoch.base is not foreseen.base:
                    _remove_files(foreseen.base, self._epoch.base)

    @contextmanager
    def reading(self) -> Generator[Rows]:
        """The rows of the last commit, for as long as the block runs."""
        with self._lock:
            epoch, state = self._registered()
        try:
            yield Rows(epoch.base, epoch.delta, state)
        finally:
            self._let_go(epoch, state)

    @contextmanager
    def serving(self) -> Generator[Rows]:
        """As `reading`, for answers: rows that turn out to be damaged are rebuilt. Raises Unavailable meanwhile."""
        try:
            with self.reading() as rows:
                yield rows
        except RowsDamaged as error:
            raise self.on_damage(error) from error

    def apply(self, changes: Sequence[ChangeSet]) -> None:
        """Take in commits, and show them to readers all at once."""
        if self._taken_as_base(changes):
            return
        with self._lock:
            # A base that is begun, or takes over, from here on has these changes, too.
            self._applying = changes
            epoch = self._epoch
            floor = min(epoch.readers, default=self._state.sequence)
            if self._folding is not None:
                self._folding.extend(changes)
        for change in changes:
            epoch.delta.apply(change, floor)
        with self._lock:
            self._state, self._applying = changes[-1].state, ()

    def _taken_as_base(self, changes: Sequence[ChangeSet]) -> bool:
        """Make a base of many rows at once, where that is less work than to keep them beside the old one first."""
        epoch = self._epoch
        base = epoch.base
        least = IMMEDIATE_MERGE_SHARE * max(self.limits.rows, self.limits.share * (base.nodes + base.edges))
        if sum(change.size for change in changes) < least:
            return False
        with self._lock:
            if self._folding is not None:
                return False
            self._folding = deque()
        try:
            before = changes_of(Rows(base, epoch.delta, self._state))
            # Nobody waits for the disk twice: the journal has it all.
            made = self._made(base, followed_by(base, before, NetChange(changes)), changes[-1].state, durable=False)
            with self._lock:
                self._epoch, self._state = _new_epoch(made), made.state
            self._remove(base, made)
        except (RowsDamaged, OSError, KgserveError):
            log.exception("rows_not_folded", store=self.store)
            return False
        finally:
            self._folding = None
        return True

    def sync(self) -> None:
        """Make the base durable if it is not. Blocks. Raises OSError."""
        base = self._epoch.base
        if UNSYNCED_MARK not in base.path.suffixes:
            return
        with suppress(FileNotFoundError):  # another base has taken over meanwhile
            if base.texts:
                sync_file(self.folder / base.texts)
            sync_file(base.path)
        with self._lock:
            if self._epoch.base is base:
                base.path = base.path.rename(base.path.with_suffix("").with_suffix(BASE_SUFFIX))
        sync_folder(self.folder)

    def catch_up(self, changes_after: ChangesAfter) -> None:
        """Take in what the journal has beyond; nobody reads yet. Raises RowsDamaged, StorageFull and Unavailable."""
        self._epoch, self._state = self._replayed(self._epoch, self._state, changes_after)

    def wants_fold(self, *, idle: bool = False) -> bool:
        """Whether the changes have outgrown their limits, a tenth of them while nobody writes."""
        is_due = STAGED_MARK in self._epoch.base.path.suffixes or self._is_full(
            self._epoch.delta, IDLE_MERGE_SHARE if idle else 1
        )
        return self._folding is None and is_due

    @property
    def is_overfull(self) -> bool:
        """Whether the changes are far beyond their limits: who writes had better wait for a new base."""
        return self._is_full(self._epoch.delta, OVERFULL_FACTOR)

    def fold(self, *, copying: bool = False) -> None:
        """Make a new base of the rows as they are, and put it in service. For one thread at a time.

        ``copying``: though nothing has changed, and with nothing in its files that the rows are not. Raises StorageFull
        or Unavailable with the old one in service, RowsDamaged when that is not whole.
        """
        if not (copying or self._epoch.delta.sequence > self.base_sequence):
            return
        with self._lock:
            if self._folding is not None:
                return
            # At one moment: what comes after these rows, and that alone, is put into the new base's changes.
            epoch, state = self._registered()
            self._folding = deque(self._applying)
        try:
            self._put_in_service(self._folded(Rows(epoch.base, epoch.delta, state), copying=copying))
        finally:
            self._let_go(epoch, state)
            with self._lock:
                self._folding = None

    def renew(
        self,
        nodes: Iterable[NodeRow],
        edges: Iterable[EdgeRow],
        state: StoreState,
        changes_after: ChangesAfter,
        *,
        linked: bool = False,
    ) -> None:
        """Make everything anew, from rows as of a commit and the journal after it; nobody writes meanwhile.

        Raises what `fold` does.
        """
        building = self.folder / "building"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        path = self._path(state.sequence)
        try:
            base = build(building, nodes, edges, state, linked=linked)
            if base.texts:
                (building / base.texts).rename(self.folder / base.texts)
            base.path.rename(path)
            sync_folder(self.folder)
        except OSError as error:
            raise storage_error(error, "making the present rows anew") from error
        finally:
            shutil.rmtree(building, ignore_errors=True)
        epoch, state = self._replayed(_new_epoch(BaseSegment(path)), base.state, changes_after)
        with self._lock:
            old, self._epoch, self._state = self._epoch, epoch, state
        self._remove(old.base, epoch.base)

    def forget(self) -> None:
        """Give back what only makes writing faster, while nobody writes."""
        self._epoch.base.forget()

    def close(self) -> None:
        """Let go of the base; it is closed once its last reader has left. Raises OSError."""
        self.sync()
        del self._epoch

    def _replayed(self, epoch: _Epoch, state: StoreState, changes_after: ChangesAfter) -> tuple[_Epoch, StoreState]:
        """An epoch that nobody reads yet with what the journal has beyond it, folded as often as need be."""
        for change in changes_after(state.sequence):
            epoch.delta.apply(change, change.sequence)
            state = change.state
            if self._is_full(epoch.delta):
                folded = self._folded(Rows(epoch.base, epoch.delta, state))
                _remove_files(epoch.base, folded)
                epoch = _new_epoch(folded)
        return epoch, state

    def _folded(self, rows: Rows, *, copying: bool = False) -> BaseSegment:
        return self._made(rows.base, changes_of(rows), rows.state, copying=copying)

    def _made(
        self,
        base: BaseSegment,
        changes: Changes,
        state: StoreState,
        *,
        durable: bool = True,
        copying: bool = False,
        mark: str = UNSYNCED_MARK,
    ) -> BaseSegment:
        """The base that follows another one. Raises StorageFull, Unavailable and RowsDamaged."""
        started = time.perf_counter()
        path = self._path(state.sequence)
        path = path if durable else path.with_suffix(mark + BASE_SUFFIX)
        try:
            fold(base, changes, state, path, durable=durable, copying=copying)
        except OSError as error:
            raise storage_error(error, "folding rows") from error
        self.folds += 1
        seconds = round(time.perf_counter() - started, 3)
        log.info("rows_folded", store=self.store, sequence=state.sequence, seconds=seconds)
        return BaseSegment(path)

    def without(self, rows: Rows, nodes: set[int], edges: set[int]) -> BaseSegment:
        """A base of these rows without some, which is not to be used again once it is closed. Raises as `fold` does."""
        before, base = changes_of(rows), rows.base
        gone = Changes(
            [put for put in before.nodes if rows.delta.number(put.row.id) not in nodes],
            [put for put in before.edges if rows.delta.edge_number(put.row.key) not in edges],
            [*{*before.nodes_gone, *(number for number in nodes if number < base.nodes)}],
            [*{*before.edges_gone, *(number for number in edges if number < base.edges)}],
            before.linked,
        )
        return self._made(base, gone, base.state, durable=False, mark=STAGED_MARK)

    def show_foreseen(self, base: BaseSegment, delta: Delta, state: StoreState) -> None:
        """Put a base that was made ahead in service, with the changes that it lacked. For who applies commits."""
        with self._lock:
            former, behind = self._epoch.base, self._behind
            self._epoch, self._state = _Epoch(base, delta, Counter()), state
            # The last file that was not made ahead stays: it is what the store would be opened from.
            self._behind = behind or former
        if behind is not None:
            _remove_files(former, base, behind)

    def _path(self, sequence: int) -> Path:
        return self.folder / f"{sequence}-{time.time_ns()}{BASE_SUFFIX}"

    def _registered(self) -> tuple[_Epoch, StoreState]:
        """The base in service and the last commit, which is kept for a reader from here on; for who has the lock."""
        self._epoch.readers[self._state.sequence] += 1
        return self._epoch, self._state

    def _let_go(self, epoch: _Epoch, state: StoreState) -> None:
        with self._lock:
            epoch.readers[state.sequence] -= 1
            if not epoch.readers[state.sequence]:
                del epoch.readers[state.sequence]

    def _put_in_service(self, base: BaseSegment) -> None:
        """Put a base in service, with the changes that have come since it was begun."""
        epoch = _new_epoch(base)
        while True:
            with self._lock:
                pending = self._folding or deque[ChangeSet]()
                if not pending:
                    old, self._epoch = self._epoch, epoch
                    break
                taken = [pending.popleft() for _ in range(len(pending))]
            for change in taken:
                # Readers of any of them may come once it is in service.
                epoch.delta.apply(change, base.state.sequence)
        self._remove(old.base, base)

    def _remove(self, base: BaseSegment, following: BaseSegment) -> None:
        behind, self._behind = self._behind, None
        for former in (base, behind):
            if former is not None:
                _remove_files(former, following)

    def _is_full(self, delta: Delta, times: float = 1) -> bool:
        limits, base = self.limits, delta.base
        rows = max(limits.rows, limits.share * (base.nodes + base.edges))
        return delta.versions > times * rows or delta.bytes > times * max(limits.bytes, limits.share * base.size)

    def _open(self) -> _Epoch:
        for path in newest_first(self.folder):
            try:
                base = BaseSegment(path)
                if UNSYNCED_MARK in path.suffixes:
                    base.check()
            except RowsOfAnotherFormat:
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
        write_empty(path)
        return _new_epoch(BaseSegment(path))


def changes_of(rows: Rows) -> Changes:
    """What makes these rows out of their base."""
    base, delta = rows.base, rows.delta
    nodes, nodes_gone = _parted(delta.nodes, rows.at, base.nodes)
    edges, edges_gone = _parted(delta.edges, rows.at, base.edges)
    return Changes(
        [NodeMerge(cast("NodeRow", version.row), number, version.data) for number, version in nodes],
        [EdgeMerge(cast("EdgeRow", version.row), number, version.data) for number, version in edges],
        nodes_gone,
        edges_gone,
        rows.linked,
    )


def _parted(changed: dict[int, Version], at: int, count: int) -> tuple[list[tuple[int, Version]], list[int]]:
    """Rows that are there as of a commit, with their numbers in a base of so many or -1, and the numbers of others."""
    there: list[tuple[int, Version]] = []
    gone: list[int] = []
    for number, newest in changed.copy().items():
        version = newest.at(at)
        if version is not None and version.row is not None:
            there.append((number if number < count else -1, version))
        elif version is not None and number < count:
            gone.append(number)
    return there, gone


def _new_epoch(base: BaseSegment) -> _Epoch:
    return _Epoch(base, Delta(base), Counter())
