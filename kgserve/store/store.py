"""One open store: plan, journal, apply, answer."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TypeVar

import msgspec
import structlog

from kgserve.catalog import catalog as catalogs
from kgserve.catalog.catalog import Catalog
from kgserve.engine import dumping, read
from kgserve.engine.database import EngineOptions
from kgserve.engine.session import Session
from kgserve.errors import Conflict, InvalidInput, KgserveError, StorageFull, Unavailable
from kgserve.journal import snapshot
from kgserve.journal.files import storage_error
from kgserve.journal.journal import Journal
from kgserve.metrics.observation import Observation, StoreCount
from kgserve.metrics.origin import Laps
from kgserve.metrics.slow import SlowLog
from kgserve.model.batch import WriteBatch
from kgserve.model.change import ChangeSet, NetChange, StoreState
from kgserve.model.plan import Report, Workspace, check, plan
from kgserve.model.rows import NodeRow
from kgserve.model.rules import Rules
from kgserve.model.store_settings import StoreSettings
from kgserve.settings import MEBIBYTE, Settings
from kgserve.store.compaction import Compactor
from kgserve.store.engine_view import EngineView
from kgserve.store.feed import Feed
from kgserve.store.gather import gather
from kgserve.store.layout import FORMAT, CloseMark, Layout, StoreFile
from kgserve.store.rebuild import fresh_folder
from kgserve.store.writer import Write, Writer, prepared

log = structlog.get_logger()

# A write is refused while the disk has less room than this plus six times its size: journal, engine log and catalog
# must all hold it, for once the journal has it there is no way back.
ROOM_BYTES = 4 * MEBIBYTE
ROOM_FACTOR = 6
LOG_BYTES = MEBIBYTE
LOG_FACTOR = 2

USUAL = StoreSettings()

_encode = msgspec.json.Encoder(order="deterministic").encode
_Listed = TypeVar("_Listed")
Background = Callable[[Callable[[], None]], None]


class CheckResult(msgspec.Struct, frozen=True):
    """A comparison of the engine's rows with the journal's digest: when, in microseconds, and whether they agreed."""

    time: int
    ok: bool


class Store:
    """An open store. Everything that changes it happens in its writer thread; reads run beside it in any thread."""

    def __init__(
        self,
        layout: Layout,
        settings: Settings,
        background: Background,
        feed: Feed | None = None,
        observation: Observation | None = None,
    ) -> None:
        """Open an existing store, repairing what a crash left. ``background`` runs work of low urgency later."""
        self.observation = observation or Observation(settings)
        self.count = StoreCount()
        self.name = layout.name
        self.feed = feed or Feed(layout)
        self.layout = layout
        self.settings = settings
        self.description = layout.described()
        self._describing = threading.Lock()
        # Called in the changing thread after settings have changed: for waking, not for work.
        self.after_change: list[Callable[[], None]] = []
        self.last_check: CheckResult | None = None
        self._catalog_sequence = -1
        # Called in the writing thread after every group, when its callers have been answered: for waking, not for work.
        self.after_commit: list[Callable[[], None]] = [self.feed.wake]
        # The first sequences that somebody still has to read from the journal.
        self.needed_from: list[Callable[[], int]] = []
        shutil.rmtree(layout.scratch, ignore_errors=True)
        with contextlib.ExitStack() as undo:
            self.journal = _open_journal(layout, settings)
            undo.callback(self.journal.close)
            self.view = EngineView(layout, self.journal, _engine_options(settings, layout.name, self.observation.slow))
            undo.callback(self.view.close)
            self._catalog = Catalog(layout.catalog)
            undo.callback(self._catalog.close)
            self._catalog_sequence = self._catalog.sequence
            if self._catalog_sequence != self.state.sequence or self.view.rebuilds:
                self._fill_catalog()
            layout.mark_open()
            undo.pop_all()
        self.feed.opened(self.state.sequence)
        self.compactor = Compactor(self.view, settings, background, self.needed_from)
        self._writer = Writer(self.name, self._commit, self.compactor.start_if_wanted, settings.write_queue, self.count)

    @classmethod
    def create(
        cls,
        layout: Layout,
        settings: Settings,
        background: Background,
        feed: Feed | None = None,
        chosen: StoreSettings = USUAL,
        observation: Observation | None = None,
    ) -> Store:
        """Make a new, empty store with the ``chosen`` settings and open it."""
        layout.root.mkdir(parents=True, exist_ok=True)
        # Before the journal, which makes it a store: there is no moment at which it has other settings.
        layout.describe(StoreFile(FORMAT, _now()).with_settings(chosen, 0))
        Journal.create(layout.journal, settings.journal_segment_mb * MEBIBYTE).close()
        return cls(layout, settings, background, feed, observation)

    @property
    def state(self) -> StoreState:
        """Where it stands: the last commit that readers see."""
        return self.view.state

    @property
    def queued(self) -> int:
        """Writes that wait."""
        return self._writer.queued

    @property
    def writing(self) -> bool:
        """Whether a write is being carried out, or waits."""
        return self._writer.busy

    def submit(self, batch: WriteBatch, wait: float = 0.0) -> Future[Report]:
        """Queue a write; the future gives its report once it is durable and applied.

        Raises Unavailable when too many writes wait for longer than ``wait`` seconds. The future raises InvalidInput,
        StorageFull or Unavailable.
        """
        return self._writer.submit(Write(batch, Future()), wait)

    def submit_prepared(self, prepare: Callable[[], WriteBatch]) -> Future[Report]:
        """Queue a write whose batch is made in the writing thread, once all writes before it are in.

        Nothing else is written meanwhile. The future raises what ``prepare`` raises, and what `submit`'s does.
        """
        return self._writer.submit(Write(WriteBatch(), Future(), prepare))

    def widen(self) -> None:
        """Give the engine's file columns for extras, unless it has them. Blocks; writes wait, reads do not."""
        if not self.view.whole:
            with self.view.commits:
                self.view.widen()

    def change_settings(self, change: Callable[[StoreSettings], StoreSettings]) -> bool:
        """Replace the settings by what ``change`` makes of them; whether they differ. Durable when it returns.

        Others who change them wait; writes go on, and those planned later meet the new ones. Raises what ``change``
        does, StorageFull and Unavailable.
        """
        with self._describing:
            before = self.description
            after = before.with_settings(change(before.settings), self.state.sequence)
            # As JSON: to Python true is 1.
            if _encode(before.settings) == _encode(after.settings):
                return False
            try:
                self.description = self.layout.describe(after)
            except OSError as error:
                raise storage_error(error, f"changing the settings of store {self.name!r}") from error
            self.feed.publish_marker("store_changed", msgspec.to_builtins(after.settings))
        for wake in self.after_change:
            wake()
        return True

    def reading(self, timeout: float | None = None) -> AbstractContextManager[Session]:
        """A reading session; ``timeout`` of each statement in seconds, by default the setting, 0 for none."""
        return self.view.reading(timeout)

    def listing(self, look: Callable[[Catalog], _Listed]) -> _Listed:
        """What ``look`` finds in the catalog, which is built anew if it turns out to be damaged. Raises Unavailable."""
        catalog = self._catalog
        with contextlib.suppress(sqlite3.Error):
            return look(catalog)
        with self.view.commits:
            if self._catalog is catalog:
                log.error("catalog_damaged", store=self.name)
                self._renew_catalog()
        try:
            return look(self._catalog)
        except sqlite3.Error as error:
            raise Unavailable("the list of nodes is being rebuilt", retry_after=2) from error

    def find_nodes(self, session: Session, ids: Collection[str]) -> dict[str, NodeRow]:
        """The nodes among ``ids`` that exist, by id: from the catalog while it is in step, or else from the engine."""
        if self._catalog_sequence == self.state.sequence:
            return self.listing(lambda catalog: catalog.rows(ids))
        return {row.id: row for row in read.find_nodes(session, ids)}

    def check(self) -> CheckResult:
        """Compare the engine's rows with the digest, and build the engine anew if they differ. Blocks."""
        rows = fresh_folder(self.layout.scratch / "check")
        try:
            with self.reading(timeout=0) as session:
                state = dumping.dump(session, rows)
            ok = snapshot.measure(rows) == (state.digest, state.nodes, state.edges)
        finally:
            shutil.rmtree(rows, ignore_errors=True)
        self.last_check = CheckResult(_now(), ok)
        self.observation.checks.add("agreed" if ok else "failed")
        if ok:
            log.info("check_agreed", store=self.name, sequence=state.sequence)
        else:
            log.error("check_failed", store=self.name, sequence=state.sequence)
            with self.view.commits:
                self.view.heal("its rows do not come to the digest")
        return self.last_check

    def close(self) -> None:
        """Finish what is queued, then close everything and leave the mark of a clean close."""
        self._writer.stop()
        self.compactor.wait()
        files = self.view.close()
        end = self.journal.end
        self.journal.close()
        self._catalog.close()
        if files is not None:
            self.layout.mark_closed(CloseMark(self.state, end, *files))
        log.info("store_closed", store=self.name, sequence=self.state.sequence, clean=files is not None)

    # In the writing thread

    def _commit(self, writes: list[Write]) -> None:
        laps = Laps()
        for write in writes:
            self.observation.waited(write.origin, laps.started - write.queued_at)
        self.compactor.hold_back()
        with self.view.commits:
            self.view.recover()
        laps.lap("held_back")
        if any(write.prepare is not None for write in writes):
            writes = [ready for write in writes if (ready := prepared(write)) is not None]
            laps.lap("prepare")
        with self.view.commits:
            if self._catalog_sequence != self.state.sequence:
                self._renew_catalog()
            writes = self._with_columns(writes)
            changes, reports = self._plan(writes)
            laps.lap("plan")
            if changes:
                self._require_room(sum(write.batch.cost for write in writes))
                self.journal.append(changes)
                laps.lap("journal")
                net = NetChange(changes)
                self.view.apply(net, changes[-1].state)
                laps.lap("engine")
                self._feed_catalog(net, changes[-1].sequence)
                laps.lap("catalog")
        self.feed.record(changes, self.state.sequence)
        if changes:
            origins = [write.origin for write in writes]
            self.observation.committed(self.name, self.count, origins, laps, sum(each.size for each in changes))
        for write, report in reports:
            write.future.set_result(report)
        if changes:
            for wake in self.after_commit:
                wake()
        if changes and self.compactor.wanted():
            self._writer.wake_when_idle()

    def _plan(self, writes: list[Write]) -> tuple[list[ChangeSet], list[tuple[Write, Report]]]:
        workspace = self._gather(writes)
        state, now, rules = self.state, _now(), self._rules()
        changes: list[ChangeSet] = []
        reports: list[tuple[Write, Report]] = []
        for write in writes:
            try:
                check(write.batch, workspace, rules)
            except (InvalidInput, Conflict) as error:
                write.future.set_exception(error)
                continue
            change, report = plan(write.batch, workspace, state, now, rules)
            if change is not None:
                changes.append(change)
                state = change.state
            reports.append((write, report))
        return changes, reports

    def _with_columns(self, writes: list[Write]) -> list[Write]:
        """Give the engine's file columns for extras if a write needs them; those that can be carried out."""
        needing = [] if self.view.whole else [write for write in writes if write.batch.has_extras]
        if not needing:
            return writes
        try:
            self.view.widen()
        except StorageFull as error:
            for write in needing:
                write.future.set_exception(error)
            return [write for write in writes if write not in needing]
        return writes

    def _rules(self) -> Rules:
        settings = self.description
        return Rules(frozenset(settings.kind_whitelist), settings.conflict_policy == "manual")

    def _gather(self, writes: list[Write]) -> Workspace:
        batches = [write.batch for write in writes]
        try:
            return gather(self.view.writer, batches, has_edges=self.state.edges > 0)
        except (KgserveError, TypeError, ValueError) as error:
            # Rows that cannot be decoded are damage, too.
            self.view.heal(f"reading before a write failed: {error}")
            return gather(self.view.writer, batches, has_edges=self.state.edges > 0)

    def _feed_catalog(self, net: NetChange, sequence: int) -> None:
        try:
            self._catalog.apply(net, sequence)
        except sqlite3.Error:
            # A view never fails a write; it is built anew.
            log.exception("catalog_failed", store=self.name)
            self._renew_catalog()
        else:
            self._catalog_sequence = sequence

    def _renew_catalog(self) -> None:
        self._catalog.close()
        catalogs.remove(self.layout.catalog)
        try:
            self._catalog = Catalog(self.layout.catalog)
            self._fill_catalog()
        except (sqlite3.Error, KgserveError):
            log.exception("catalog_not_rebuilt", store=self.name)

    def _fill_catalog(self) -> None:
        rows = fresh_folder(self.layout.scratch / "catalog")
        try:
            with self.reading(timeout=0) as session:
                state = dumping.dump_nodes(session, rows)
                relations = read.relation_type_counts(session)
            self._catalog.rebuild(snapshot.read_nodes(rows), relations, state.sequence)
        finally:
            shutil.rmtree(rows, ignore_errors=True)
        self._catalog_sequence = state.sequence

    def _require_room(self, size: int) -> None:
        free = shutil.disk_usage(self.layout.root).free
        if free < ROOM_BYTES + ROOM_FACTOR * size:
            raise StorageFull(f"only {free // MEBIBYTE} MiB are left on the disk; free some space and try again")
        # Somebody else may fill the disk in the next moment: the engine's share is set aside before the journal's.
        self.view.reserve(LOG_BYTES + LOG_FACTOR * size)


def _open_journal(layout: Layout, settings: Settings) -> Journal:
    snapshots = snapshot.list_snapshots(layout.journal)
    after = snapshot.sequence_of(snapshots[0]) if snapshots else 0
    mark = layout.close_mark()
    trusted = mark.journal if mark else None
    return Journal.open(layout.journal, settings.journal_segment_mb * MEBIBYTE, after, trusted)


def _engine_options(settings: Settings, store: str, slow: SlowLog) -> EngineOptions:
    return EngineOptions(
        cache_bytes=settings.buffer_pool_mb * MEBIBYTE,
        threads=settings.engine_threads,
        readers=settings.read_connections,
        read_timeout=settings.query_timeout,
        store=store,
        slow=slow,
    )


def _now() -> int:
    return time.time_ns() // 1000
