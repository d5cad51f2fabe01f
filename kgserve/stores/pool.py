"""Pool of the open stores of a data folder, which opens them on demand and closes idle ones above a limit."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
from typing_extensions import override

from kgserve.errors import (
    Conflict,
    KgserveError,
    NoStore,
    OwnerUnreachable,
    ServedElsewhere,
    StoreOpenQueueFull,
    Unavailable,
)
from kgserve.platform.closable import ClosableContext
from kgserve.platform.durable_files import DESCRIPTORS_USED_UP_MESSAGE, fsync_folder, translate_storage_errors
from kgserve.platform.file_descriptors import (
    DESCRIPTORS_PER_STORE,
    count_free_descriptors,
    count_needed_descriptors,
    get_descriptor_limit,
)
from kgserve.platform.file_permissions import create_private_folder
from kgserve.platform.metrics.app_metrics_and_request_context import Telemetry
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.platform.settings import Settings
from kgserve.projections.cypher_engine.engine.files import format_cypher_engine_name_and_version
from kgserve.projections.cypher_engine.projection import EngineProcessLimiter
from kgserve.projections.inbound_cross_store_links import InboundCrossStoreLinkIndex
from kgserve.storage.changefeed import ChangeFeedRegistry
from kgserve.storage.data_folder_store_index import ClosedStoreIndexEntry
from kgserve.storage.disk_space import maintain_disk_reserve
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.model.store_settings import default_store_settings
from kgserve.storage.store_folder_layout import StoreLayout, validate_data_folder_path
from kgserve.stores.cluster_models import DrainAnswer, StoreLogRepairAnswer, StoreMoveAnswer
from kgserve.stores.local_placement import StorePlacement
from kgserve.stores.open_store import OpenStore, StoreDependencies
from kgserve.stores.scoped_stores import ReplicaReadPermission, StoreCreateIfMissingRequest, StoreRegistry
from kgserve.stores.scratch_database import ScratchEngineFileLruCache

log = structlog.get_logger()

# Limits on requests that wait for one store to open.
_MAX_WAITING_FOR_OPEN = 6
_OPEN_TIMEOUT_SECONDS = 60.0
_RELEASE_TIMEOUT_SECONDS = 10.0
POOL_TICK_SECONDS = 1.0


PlacementFactory = Callable[[Path, Settings], StorePlacement]


MOVE_TIMEOUT_SECONDS = 30.0
"""Time that a move, or all moves of a drain together, wait until the new nodes have opened their stores."""


class StoreNotOpen(WouldBlock):
    """The store is not open; retry where blocking is allowed."""


class StorePoolObserver(Protocol):
    """Observer that is notified when stores of a pool open and close."""

    @property
    def of_copies(self) -> bool:
        """True if it observes read replicas of other servers' stores as well."""
        ...

    def on_store_opened(self, store: OpenStore) -> None:
        """Handle a store that has just opened."""

    def on_store_closing(self, store: OpenStore) -> None:
        """Handle a store that is about to close. Blocks until the store is no longer used."""

    def halt(self) -> None:
        """Stop starting new work, because all stores are about to close."""


class _PoolEntry:
    """A store's entry in the pool; ``gate`` is held while it opens or closes."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.store: OpenStore | None = None
        self.leases = 0
        self.waiting = 0
        """Number of leases whose callers still wait for the store to open."""


class StorePool(ClosableContext, StoreRegistry):
    """Pool that opens stores and leases them to callers. More than ``max_open_stores`` are open only while in use."""

    def __init__(self, settings: Settings, placed: PlacementFactory = StorePlacement) -> None:
        """Open the data folder. ``placed`` builds the placement of its stores. Raises InvalidInput and Conflict."""
        format_cypher_engine_name_and_version(settings.engine)  # raises InvalidInput for one that is not installed
        self.settings = settings
        self.usual = default_store_settings(settings)
        self.observation = Telemetry(settings)
        self.data_dir = validate_data_folder_path(settings.data_dir.resolve())
        create_private_folder(self.data_dir)
        with suppress(PermissionError):
            fsync_folder(self.data_dir.parent)
        self.placement = placed(self.data_dir, settings)
        self._entries: OrderedDict[str, _PoolEntry] = OrderedDict()
        self._lock = threading.Lock()
        self.companions: list[StorePoolObserver] = []
        self.after_erasing: list[Callable[[], object]] = []
        """Called in any thread after nodes were erased from a store."""
        self._feeds = ChangeFeedRegistry(self.placement.layout)
        self._inbound = InboundCrossStoreLinkIndex(self)
        self.engine_places = EngineProcessLimiter(settings.engine_processes)
        self._is_short_of_descriptors = get_descriptor_limit() < count_needed_descriptors(settings)
        self._closed = threading.Event()
        # One thread for all stores, so that compactions and checks never crowd out requests.
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="background")
        self._dependencies = StoreDependencies(
            settings, self._background.submit, self.observation, ScratchEngineFileLruCache(), self.placement
        )
        self._tender = MaintenanceTicker(
            self._all_open, self.peek_open, self._maintain_resources, self.placement.index.tend
        )
        self._checker = threading.Thread(target=self._check_periodically, name="checker", daemon=True)
        self._checker.start()
        self.placement.clear_trash()
        self.placement.outdated.append(self._was_outdated)
        self.placement.begin(self)

    @property
    @override
    def feeds(self) -> ChangeFeedRegistry:
        return self._feeds

    @property
    @override
    def inbound(self) -> InboundCrossStoreLinkIndex:
        return self._inbound

    @override
    def acquire(
        self,
        name: str,
        *,
        create: StoreCreateIfMissingRequest | bool = False,
        replica: ReplicaReadPermission | None = None,
    ) -> OpenStore:
        check_store_name(name)
        self._make_room(2 * DESCRIPTORS_PER_STORE)
        entry = self._enter(name)
        try:
            store = entry.store
            if store is None or not self._may_serve(store, replica):
                store = self._open_at_gate(name, entry, create=create, replica=replica)
            elif create and not (isinstance(create, StoreCreateIfMissingRequest) and create.provisional):
                store.confirm_creation()
            if replica is not None:
                store.wait_for_replica(replica.at_least, self._max_staleness(replica))
        except BaseException:
            self._leave(name)
            raise
        self._close_surplus(self.settings.max_open_stores)
        return store

    @override
    def acquire_open(self, name: str, *, replica: ReplicaReadPermission | None = None) -> OpenStore:
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or entry.store is None or not self._may_serve(entry.store, replica):
                raise StoreNotOpen
            if replica is not None and entry.store.is_replica_behind(replica.at_least, self._max_staleness(replica)):
                raise StoreNotOpen
            entry.leases += 1
            self._entries.move_to_end(name)
            return entry.store

    @override
    def release(self, store: OpenStore) -> None:
        self._leave(store.name)

    @override
    def release_or_discard(self, store: OpenStore) -> bool:
        name = store.name
        with self._leased_entry(name) as entry:
            self._leave(name)
            with entry.gate:
                if store.state.sequence or entry.store is not store or self._detach(entry) is None:
                    return False
                has_commits = store.state.sequence > 0
                self._close_store(store)
                if has_commits:
                    return False
                self.placement.drop(name)
                self.feeds.announce_dropped_store(name)
                log.info("store_discarded", store=name)
                return True

    @override
    @contextmanager
    def peek_open(self, name: str) -> Generator[OpenStore | None]:
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                entry.leases += 1
        try:
            yield entry and entry.store
        finally:
            if entry is not None:
                self._leave(name)

    @override
    @contextmanager
    def reserve_if_closed(self, name: str) -> Generator[bool]:
        with self._leased_entry(name) as entry, self._waiting(entry):
            is_ours = entry.gate.acquire(blocking=False)
            try:
                yield is_ours and entry.store is None
            finally:
                if is_ours:
                    entry.gate.release()

    @override
    def drop(self, name: str) -> None:
        self.require(name)
        with self._leased_entry(name) as entry, entry.gate:
            self.placement.place(name, None)
            store = self._detach_when_unused(name, entry)
            if store is not None:
                self._close_store(store)
            self.placement.drop(name)
            self.feeds.announce_dropped_store(name)
            log.info("store_dropped", store=name)

    @override
    def move(self, name: str, node: str) -> StoreMoveAnswer:
        moved = self._hand_over(name, node)
        moved.reason = self._await_opened(moved, time.monotonic() + MOVE_TIMEOUT_SECONDS)
        moved.opened = not moved.reason
        return moved

    @override
    def drain(self, *, undo: bool) -> DrainAnswer:
        names, moved, failed = self.placement.drain(undo=undo), list[StoreMoveAnswer](), dict[str, str]()
        for name in names:
            try:
                moved.append(self._hand_over(name, self.placement.choose_successor(name)))
            except ServedElsewhere:
                continue
            except KgserveError as error:
                failed[name] = error.message
        until = time.monotonic() + MOVE_TIMEOUT_SECONDS
        unopened = {each.store: reason for each in moved if (reason := self._await_opened(each, until))}
        node = self.placement.status().node
        return DrainAnswer(node=node, draining=not undo, moved=len(moved), failed=failed, unopened=unopened)

    def _hand_over(self, name: str, node: str) -> StoreMoveAnswer:
        self.require(name)
        with self._leased_entry(name) as entry, self._waiting(entry), entry.gate:
            self.placement.place(name, None)
            store = self._detach_when_unused(name, entry, waiting=True)
            if store is not None:
                self._close_store(store)
            moved = self.placement.hand_over(name, node)
            self.feeds.announce_moved_store(name)
            log.info("store_moved", store=name, node=node)
            return moved

    def _await_opened(self, moved: StoreMoveAnswer, until: float) -> str:
        """Wait until the new node has opened a moved store.

        Does not hold the gate, so that callers are redirected meanwhile.
        """
        if self.placement.is_here(moved.store):
            with self.lease(moved.store):
                return ""
        reason = self.placement.await_opened(moved.store, moved.node, until)
        if reason:
            log.warning("move_not_opened", store=moved.store, node=moved.node, reason=reason)
        return reason

    @override
    def repair(self, name: str) -> StoreLogRepairAnswer:
        self.require(name)
        with self._leased_entry(name) as entry, self._waiting(entry), entry.gate:
            if entry.store is not None and entry.store.commits.confirm():
                raise Conflict(
                    f"the log of store {name!r} is intact, and this node serves the store; no repair is needed"
                )
            self._close_unless_owned(name, entry)
            found = self.placement.repair(name)
            store = entry.store = self._open(name, create=False)
            agreed = store.check()
        if not agreed.ok:
            raise Unavailable(
                f"store {name!r} was repaired, but its rows do not match its digest; see the server's log"
            )
        status = self.placement.status()
        return StoreLogRepairAnswer(store=name, node=status.node, sequence=store.state.sequence, found=found)

    @override
    def staging(self, name: str) -> Path:
        return self.placement.staging(check_store_name(name))

    @override
    def adopt(self, name: str, folder: Path) -> None:
        check_store_name(name)
        with self._leased_entry(name) as entry, entry.gate:
            self.placement.adopt(name, folder)
        log.info("store_adopted", store=name)
        self.feeds.announce_created_store(name)
        # Opening the store publishes it to the other nodes of a cluster.
        self.require_files(name)

    @override
    def names(self) -> list[str]:
        return self.placement.names()

    @override
    def local_store_names(self) -> list[str]:
        return self.placement.local_store_names()

    @override
    def find_closed(self, name: str) -> ClosedStoreIndexEntry | None:
        return self.placement.index.find(name)

    @override
    def require(self, name: str) -> None:
        check_store_name(name)
        if not self.placement.exists(name):
            raise NoStore(name)

    @override
    def require_files(self, name: str) -> StoreLayout:
        self.require(name)
        if not self.placement.is_here(name):
            with self.lease(name):
                pass
        return self.placement.layout(name)

    @override
    def open_stores(self) -> dict[str, OpenStore]:
        return {name: store for name, store in self._all_open().items() if not store.commits.is_copy}

    def _all_open(self) -> dict[str, OpenStore]:
        with self._lock:
            # Read each `store` only once: it may be opened or closed meanwhile.
            found = ((name, entry.store) for name, entry in self._entries.items())
            return {name: store for name, store in found if store is not None}

    @override
    def layout(self, name: str) -> StoreLayout:
        return self.placement.layout(check_store_name(name))

    @override
    def close(self) -> None:
        """Finish the queued writes of every store and close all stores. Blocks."""
        if self._closed.is_set():
            return
        with self._lock:
            self._closed.set()
            entries = list(self._entries.values())
        self.placement.close()
        for entry in entries:
            if (store := entry.store) is not None:
                store.cancel_compaction()
        self._tender.stop()
        for entry in entries:
            with entry.gate:
                if entry.store is not None:
                    self._close_store(entry.store)
                    entry.store = None
        self.inbound.close()
        self.feeds.close()
        self.placement.index.save()
        self._background.shutdown(wait=True)
        self._checker.join()
        self.observation.close()

    def _open_at_gate(
        self,
        name: str,
        entry: _PoolEntry,
        *,
        create: StoreCreateIfMissingRequest | bool,
        replica: ReplicaReadPermission | None,
    ) -> OpenStore:
        """Open a store, or wait until another caller has. The number of waiting callers is limited."""
        with self._waiting(entry):
            if entry.waiting > _MAX_WAITING_FOR_OPEN:
                raise StoreOpenQueueFull(f"store {name!r} is being opened; try again shortly", retry_after=2)
            if not entry.gate.acquire(timeout=_OPEN_TIMEOUT_SECONDS):
                raise Unavailable(f"store {name!r} is still being opened; try again later", retry_after=10)
            try:
                if entry.store is None or not self._may_serve(entry.store, replica):
                    self._close_unless_owned(name, entry)
                if entry.store is None:
                    entry.store = self._open(name, create=create, or_copy=replica is not None)
                return entry.store
            finally:
                entry.gate.release()

    def _max_staleness(self, replica: ReplicaReadPermission) -> float:
        return self.settings.max_staleness if replica.max_staleness is None else replica.max_staleness

    def _may_serve(self, store: OpenStore, replica: ReplicaReadPermission | None) -> bool:
        """Return whether an open store may serve this caller. A replica serves only callers that pass ``replica``."""
        if not self.placement.is_shared:
            return True
        return store.commits.is_current and (replica is not None or not store.commits.is_copy)

    def _retire_lost(self) -> None:
        """Close open stores that this node no longer serves."""
        for name, store in self._all_open().items():
            with suppress(Unavailable):
                if not store.commits.is_current:
                    self._background.submit(self._retire, name)

    def _retire(self, name: str) -> None:
        with self._leased_entry(name) as entry:
            try:
                with self._waiting(entry), entry.gate:
                    self._close_unless_owned(name, entry)
            except KgserveError as error:
                log.warning("store_not_let_go", store=name, reason=str(error))

    def _was_outdated(self, name: str) -> None:
        # A closed pool schedules nothing; the next start removes obsolete replicas.
        with suppress(RuntimeError):
            self._background.submit(self._forget_outdated, name)

    def _forget_outdated(self, name: str) -> None:
        """Remove the replica of a store that another server has dropped or purged data from."""
        with self._leased_entry(name) as entry:
            try:
                with self._waiting(entry), entry.gate:
                    self._close_unless_owned(name, entry)
                    if entry.store is None and self.placement.forget_outdated(name):
                        self.feeds.announce_dropped_store(name)
            except (KgserveError, OSError) as error:
                log.warning("copy_not_removed", store=name, reason=str(error))

    @contextmanager
    def _waiting(self, entry: _PoolEntry) -> Generator[None]:
        """Count a lease as waiting for the store to open."""
        with self._lock:
            entry.waiting += 1
        try:
            yield
        finally:
            with self._lock:
                entry.waiting -= 1

    def _close_unless_owned(self, name: str, entry: _PoolEntry) -> None:
        """Close an open store that this node no longer serves. The gate must be held."""
        if (store := entry.store) is None or store.commits.confirm():
            return
        log.warning("store_lost", store=name, sequence=store.state.sequence)
        self.feeds.announce_moved_store(name)
        store.cancel_compaction()
        if (store := self._detach_when_unused(name, entry, waiting=True)) is not None:
            self._close_store(store)

    @contextmanager
    def _leased_entry(self, name: str) -> Generator[_PoolEntry]:
        """Yield a store's pool entry, leased within the block."""
        entry = self._enter(name)
        try:
            yield entry
        finally:
            self._leave(name)

    def _enter(self, name: str) -> _PoolEntry:
        with self._lock:
            if self._closed.is_set():
                raise Unavailable("the server is stopping")
            entry = self._entries.setdefault(name, _PoolEntry())
            entry.leases += 1
            self._entries.move_to_end(name)
            return entry

    def _leave(self, name: str) -> None:
        with self._lock:
            entry = self._entries[name]
            entry.leases -= 1
            if entry.leases == 0 and entry.store is None:
                del self._entries[name]

    def _open(self, name: str, *, create: StoreCreateIfMissingRequest | bool, or_copy: bool = False) -> OpenStore:
        layout = self.placement.layout(name)
        if layout.root.is_symlink():
            log.error("symlink_refused", store=name, path=str(layout.root))
            raise NoStore(name)
        if self._is_short_of_descriptors and count_free_descriptors() < DESCRIPTORS_PER_STORE:
            raise Unavailable(f"{DESCRIPTORS_USED_UP_MESSAGE} (while opening store {name!r})", retry_after=5)
        started = time.perf_counter()
        self.placement.index.forget(name)
        with translate_storage_errors(f"opening store {name!r}"):
            store = self._open_or_create(layout, create=create, or_copy=or_copy)
        milliseconds = round((time.perf_counter() - started) * 1000, 1)
        is_copy = store.commits.is_copy
        log.info(
            "copy_opened" if is_copy else "store_opened", store=name, sequence=store.state.sequence, ms=milliseconds
        )
        store.engine.places = self.engine_places
        store.after_change.append(partial(self.feeds.announce_changed_settings, name))
        store.after_commit.append(partial(self._tender.committed, store))
        store.links.after_change.append(partial(self.inbound.record_changed_links, name))
        store.links.after_erasing.append(self.inbound.erase)
        store.after_erasing.append(self._announce_erasure)
        for companion in self.companions:
            if companion.of_copies or not is_copy:
                companion.on_store_opened(store)
        return store

    def _open_or_create(
        self, layout: StoreLayout, *, create: StoreCreateIfMissingRequest | bool, or_copy: bool
    ) -> OpenStore:
        request, made = (
            create if isinstance(create, StoreCreateIfMissingRequest) else StoreCreateIfMissingRequest(),
            False,
        )
        is_provisional = bool(create) and request.provisional and not self.placement.exists(layout.name)
        if is_provisional:
            self.placement.mark_provisional(layout.name)
        try:
            made = self.placement.place(layout.name, (request.chosen or self.usual) if create else None)
        except (ServedElsewhere, OwnerUnreachable):
            if not or_copy:
                raise
            self.placement.place_replica(layout.name)
        store = OpenStore(layout, self.feeds.of(layout.name), self._dependencies)
        store.is_provisional = is_provisional
        request.made = request.made or made
        if self.placement.is_shared and not store.commits.is_copy:
            self.feeds.announce_serving(layout.name, store.state.sequence)
        elif made:
            self.feeds.announce_created_store(layout.name)
        return store

    def _make_room(self, wanted: int) -> None:
        """Close idle stores until ``wanted`` file descriptors are free, or no store is idle."""
        while self._is_short_of_descriptors and count_free_descriptors() < wanted:
            if not self._close_surplus(0, 1):
                return

    def _maintain_resources(self) -> None:
        """Maintain the disk reserve. Close stores no longer served by this node, and idle ones if descriptors lack."""
        maintain_disk_reserve(self.data_dir)
        self._retire_lost()
        self._make_room(2 * DESCRIPTORS_PER_STORE)

    def _close_surplus(self, most: int, count: int | None = None) -> int:
        """Close idle stores, at most ``count``, while more than ``most`` are open. Return how many were closed."""
        closed = 0
        while closed != count and (idle := self._pick_surplus(most)) is not None:
            closed += 1
            name, entry = idle
            try:
                with entry.gate:
                    store = self._detach(entry)
                    if store is not None:
                        self._close_store(store)
            finally:
                self._leave(name)
        return closed

    def _pick_surplus(self, most: int) -> tuple[str, _PoolEntry] | None:
        with self._lock:
            if sum(entry.store is not None for entry in self._entries.values()) <= most:
                return None
            for name, entry in self._entries.items():
                if entry.leases == 0 and entry.store is not None:
                    entry.leases += 1
                    return name, entry
            return None

    def _detach(self, entry: _PoolEntry, *, waiting: bool = False) -> OpenStore | None:
        """Detach and return the store of an entry if no other caller has leased it, else None.

        With ``waiting``, leases that only wait for the store are ignored; they may open it again.
        """
        with self._lock:
            if entry.leases > (entry.waiting if waiting else 1):
                return None
            store, entry.store = entry.store, None
            return store

    def _announce_erasure(self) -> None:
        for each in self.after_erasing:
            each()

    def _detach_when_unused(self, name: str, entry: _PoolEntry, *, waiting: bool = False) -> OpenStore | None:
        deadline = time.monotonic() + _RELEASE_TIMEOUT_SECONDS
        while (store := self._detach(entry, waiting=waiting)) is None and entry.store is not None:
            if time.monotonic() > deadline:
                in_use = f"store {name!r} is in use; try again when its requests are done"
                raise Unavailable(in_use, retry_after=5) if waiting else Conflict(in_use)
            time.sleep(0.01)
        return store

    def _close_store(self, store: OpenStore) -> None:
        observers = (partial(each.on_store_closing, store) for each in reversed(self.companions))
        for close in (store.accesses.flush_and_wait, *observers, store.close):
            try:
                close()
            except (KgserveError, OSError, sqlite3.Error) as error:
                # The rest is closed all the same. What was not saved is rebuilt from the journal by the next open.
                log.exception("store_close_failed", store=store.name, error=str(error))
        self.placement.index.note_closed(store.name)

    def _check_periodically(self) -> None:
        interval = self.settings.check_interval
        while not self._closed.wait(interval or None):
            for name in list(self.open_stores()):
                self._background.submit(self._check, name)

    def _check(self, name: str) -> None:
        if self._closed.is_set() or name not in self.open_stores():
            return
        try:
            with self.lease(name) as store:
                store.check()
        except (KgserveError, OSError) as error:
            self.observation.checks.add("not_done")
            log.exception("check_not_done", store=name, error=str(error))


class MaintenanceTicker:
    """Thread that runs the maintenance of all open stores once a second, and right after some commits."""

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        held: Callable[[str], AbstractContextManager[OpenStore | None]],
        first: Callable[[], None],
        last: Callable[[], None],
    ) -> None:
        """Start the thread.

        ``names`` lists the open stores, ``held`` yields one of them if it is still open, ``first`` runs before each
        pass, and ``last`` at most once a second after one.
        """
        self._names = names
        self._held = held
        self._first = first
        self._last = last
        self._next_last = time.monotonic() + POOL_TICK_SECONDS
        self._awake = threading.Event()
        self._stopping = False
        self._failures: dict[str, str] = {}
        """Last error by store, which is logged once."""
        self._thread = threading.Thread(target=self._run, name="tender", daemon=True)
        self._thread.start()

    def committed(self, store: OpenStore) -> None:
        """Wake the thread for a new commit, if the store has Cypher readers or a scratch copy to reset."""
        if store.engine.is_in_demand or store.copy.is_behind:
            self._awake.set()

    def stop(self) -> None:
        """End the thread. Blocks."""
        self._stopping = True
        self._awake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._awake.wait(POOL_TICK_SECONDS)
            self._awake.clear()
            try:
                self._first()
                for name in self._names():
                    self._tend(name)
                if time.monotonic() >= self._next_last:
                    self._next_last = time.monotonic() + POOL_TICK_SECONDS
                    self._last()
            except Exception:
                # The thread must survive any error.
                log.exception("not_tended")

    def _tend(self, name: str) -> None:
        try:
            with self._held(name) as store:
                if store is not None and not self._stopping:
                    store.tend()
            self._failures.pop(name, None)
        except (KgserveError, OSError, sqlite3.Error) as error:
            if self._failures.get(name) != str(error):
                self._failures[name] = str(error)
                log.warning("not_tended", store=name, error=str(error))
