"""Compaction: a snapshot of the store, an engine file built from it aside, and the swap.

The engine never writes its log into its file while in service, so the log grows until a new file takes over. That is
begun when the log has outgrown 64 MiB (a setting) or half of the file, whichever is more: once no write has come for a
second, or at once when it is three times as much. At five times as much writes wait for it, for what is in the log
stays in the page cache. The memory that the engine keeps for updated rows counts likewise: it is not in the page cache,
nobody bounds it, and only another file frees it.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from kgserve.engine import database, dumping
from kgserve.engine.database import Engine
from kgserve.errors import EngineFailed, KgserveError
from kgserve.journal import snapshot
from kgserve.journal.files import sync_file
from kgserve.model.change import NetChange, StoreState
from kgserve.settings import MEBIBYTE, Settings
from kgserve.store.engine_view import EngineView
from kgserve.store.rebuild import SNAPSHOTS_KEPT, fresh_folder
from kgserve.store.room import require_room

log = structlog.get_logger()

AT_ONCE = 3
HOLD_BACK = 5
_HOLD_BACK_SECONDS = 30.0
_RETRY_SECONDS = 60.0
_GROUP_ROWS = 50_000
# Memory that the engine may keep for updates: compacting a small store is cheap, so it may keep less.
_LEAST_KEPT = 16 * MEBIBYTE
_MOST_KEPT = 128 * MEBIBYTE
# A swap keeps writes waiting while it applies what is left; more than this many commits are caught up with before.
_SWAP_COMMITS = 50


class Compactor:
    """Decides when a store is compacted, and does it in the background."""

    def __init__(
        self,
        view: EngineView,
        settings: Settings,
        background: Callable[[Callable[[], None]], None],
        needed_from: Sequence[Callable[[], int]] = (),
    ) -> None:
        """The journal is kept from the first sequence on that any of ``needed_from`` names."""
        self._needed_from = needed_from
        self._view = view
        self._settings = settings
        self._background = background
        self._finished = threading.Event()
        self._finished.set()
        self._not_before = 0.0
        self.done = 0

    def wanted(self) -> bool:
        """Whether to compact once the store is idle; begins at once when it cannot wait that long."""
        pressure = self._pressure()
        if pressure < 1 or not self._finished.is_set() or time.monotonic() < self._not_before:
            return False
        if pressure < AT_ONCE:
            return True
        self.start()
        return False

    def start_if_wanted(self) -> None:
        """Begin when the log has outgrown its threshold."""
        if self.wanted():
            self.start()

    def hold_back(self) -> None:
        """Block while the log is far too long and a compaction is under way."""
        pressure = self._pressure()
        if pressure >= HOLD_BACK and not self._finished.is_set():
            log.warning("writes_held_back", store=self._view.layout.name, pressure=round(pressure, 1))
            self._finished.wait(_HOLD_BACK_SECONDS)

    def start(self) -> None:
        """Begin in the background."""
        self._finished.clear()
        self._background(self.run)

    def wait(self) -> None:
        """Block until none is under way."""
        self._finished.wait()

    def run(self) -> None:
        """Compact now, in this thread; a failure is logged and nothing has changed."""
        self._finished.clear()
        started = time.perf_counter()
        name = self._view.layout.name
        log.info("compaction_started", store=name)
        try:
            state = self._compact()
        except (KgserveError, OSError) as error:
            self._not_before = time.monotonic() + _RETRY_SECONDS
            log.exception("compaction_failed", store=name, error=str(error))
        else:
            self.done += 1
            seconds = round(time.perf_counter() - started, 3)
            log.info("compaction_done", store=name, snapshot=state.sequence, seconds=seconds)
        finally:
            self._finished.set()

    def _pressure(self) -> float:
        """How far the engine's log, or the memory that it keeps, has outgrown its threshold; 1 is there."""
        file_bytes, log_bytes = self._view.bytes()
        log_room = max(self._settings.compact_wal_mb * MEBIBYTE, file_bytes // 2)
        kept_room = min(max(2 * file_bytes, _LEAST_KEPT), _MOST_KEPT)
        return max(log_bytes / log_room, self._view.kept_bytes / kept_room)

    def _compact(self) -> StoreState:
        whole = self._view.whole
        require_room(self._view.layout.root, sum(self._view.bytes()))
        taken = self._take_snapshot()
        try:
            state = self._rebuild(taken, whole=whole)
        except EngineFailed:
            if whole or not self._view.whole:
                raise
            # The first row with extras came meanwhile, and found a file without columns for them.
            state = self._rebuild(taken, whole=True)
        self._drop_old()
        return state

    def _rebuild(self, taken: Path, *, whole: bool) -> StoreState:
        """Put a file made of a snapshot in service, once it has caught up."""
        view = self._view
        path = view.next_path()
        try:
            database.build(path, taken, snapshot.verify(taken).state, view.options, whole=whole)
            sync_file(path)
            engine = Engine(path, view.options)
            try:
                state = self._verify(engine)
                self._catch_up_and_swap(engine, state)
            except BaseException:
                engine.retire()
                raise
        except BaseException:
            database.remove(path)
            raise
        return state

    def _take_snapshot(self) -> Path:
        """Install a snapshot of the engine's rows; if they are not the journal's, heal instead."""
        view = self._view
        rows = fresh_folder(view.layout.scratch / "compaction")
        try:
            with view.reading(timeout=0) as session:
                state = dumping.dump(session, rows)
            if snapshot.measure(rows) == (state.digest, state.nodes, state.edges):
                snapshot.seal(rows, state)
                with view.commits:
                    return snapshot.place(rows, view.layout.journal, state)
        finally:
            shutil.rmtree(rows, ignore_errors=True)
        with view.commits:
            view.heal("its rows do not come to the digest")
        raise EngineFailed("the engine's rows did not come to the digest; it was built anew from the journal")

    def _verify(self, engine: Engine) -> StoreState:
        rows = fresh_folder(self._view.layout.scratch / "verify")
        try:
            with engine.reader(timeout=0) as session:
                state = dumping.dump(session, rows)
            if snapshot.measure(rows) != (state.digest, state.nodes, state.edges):
                raise EngineFailed("the new engine file does not hold the rows of its snapshot")
        finally:
            shutil.rmtree(rows, ignore_errors=True)
        return state

    def _catch_up_and_swap(self, engine: Engine, state: StoreState) -> None:
        view = self._view
        while view.journal.last - state.sequence > _SWAP_COMMITS:
            state = self._catch_up(engine, state)
        with view.commits:
            log.info("compaction_swapping", store=view.layout.name)
            if view.whole and not engine.whole:
                raise EngineFailed("the file in service has got columns that the new one was built without")
            state = self._catch_up(engine, state)
            if state != view.state:
                raise EngineFailed("the new engine file and the one in service came to different states")
            view.replace(engine)

    def _catch_up(self, engine: Engine, state: StoreState) -> StoreState:
        net = NetChange()
        for change in self._view.journal.read(state.sequence):
            net.add(change)
            state = change.state
            if len(net) >= _GROUP_ROWS:
                engine.apply(net, state)
                net = NetChange()
        if net.state is not None:
            engine.apply(net, state)
        return state

    def _drop_old(self) -> None:
        view = self._view
        with view.commits:
            self._drop_old_files(view)

    def _drop_old_files(self, view: EngineView) -> None:
        oldest = snapshot.remove_but_newest(view.layout.journal, SNAPSHOTS_KEPT)
        oldest = min([oldest, *(needed() - 1 for needed in self._needed_from)])
        view.journal.drop_before(oldest, self._settings.journal_retention_mb * MEBIBYTE)
