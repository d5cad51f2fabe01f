"""The stores of one data folder: opened when first asked for, closed when others need the place."""

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

from kgserve.errors import Conflict, KgserveError, NoStore, Opening, OwnerUnreachable, ServedElsewhere, Unavailable
from kgserve.platform.closing import Closing
from kgserve.platform.durable_files import storing, sync_folder
from kgserve.platform.metrics.observation import Telemetry
from kgserve.platform.permissions import private_folder
from kgserve.platform.settings import Settings
from kgserve.projections.cypher_engine.engine.files import edition
from kgserve.projections.cypher_engine.projection import EnginePlaces
from kgserve.projections.inbound_links import InboundLinks
from kgserve.storage.changefeed import ChangeFeeds
from kgserve.storage.layout import Layout, usable_folder
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.model.store_settings import usual
from kgserve.stores.access import CreateIfMissing, Stores
from kgserve.stores.cluster_api import DrainAnswer, MoveAnswer, RepairAnswer
from kgserve.stores.placement import Placement
from kgserve.stores.scratch_database import WarmCopies
from kgserve.stores.store import OpenStore, StoreDependencies

log = structlog.get_logger()

# Requests that may wait for one store to open, and for how long.
_MAX_WAITING_FOR_OPEN = 6
_OPEN_TIMEOUT_SECONDS = 60.0
_RELEASE_TIMEOUT_SECONDS = 10.0
POOL_TICK_SECONDS = 1.0


Placed = Callable[[Path, Settings], Placement]


MOVE_TIMEOUT_SECONDS = 30.0
"""How long a move, or a drain for all stores together, waits until the new nodes have opened what they got."""


class NotOpen(Exception):
    """The store is not open: ask where blocking is allowed."""


class StoreObserver(Protocol):
    """Somebody who follows the stores of a pool while they are open."""

    @property
    def of_copies(self) -> bool:
        """Whether it follows copies of stores that other servers serve as well."""
        ...

    def opened(self, store: OpenStore) -> None:
        """A store is open now."""

    def closing(self, store: OpenStore) -> None:
        """A store is about to close; blocks until whatever follows it has let go."""

    def halt(self) -> None:
        """All stores are about to close: begin nothing new."""


class _Entry:
    """A store's place in the pool; ``gate`` is held while it opens or closes."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.store: OpenStore | None = None
        self.leases = 0
        self.waiting = 0
        """Of the leases those that have no store yet."""


class StorePool(Closing, Stores):
    """Hands out open stores. At most ``max_open_stores`` are open unless more are in use at the same moment."""

    def __init__(self, settings: Settings, placed: Placed = Placement) -> None:
        """Where the stores are is for what ``placed`` makes to say. Raises InvalidInput and Conflict."""
        edition(settings.engine)  # raises InvalidInput for one that is not installed
        self.settings = settings
        self.usual = usual(settings)
        self.observation = Telemetry(settings)
        self.data_dir = usable_folder(settings.data_dir.resolve())
        private_folder(self.data_dir)
        with suppress(PermissionError):
            sync_folder(self.data_dir.parent)
        self.placement = placed(self.data_dir, settings)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self.companions: list[StoreObserver] = []
        self._feeds = ChangeFeeds(self.placement.layout)
        self._inbound = InboundLinks(self)
        self.engine_places = EnginePlaces(settings.engine_processes)
        self._closed = threading.Event()
        # One thread for all stores: compactions and checks take turns, so that they never crowd out requests.
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="background")
        self._around = StoreDependencies(
            settings, self._background.submit, self.observation, WarmCopies(), self.placement
        )
        self._tender = MaintenanceTicker(self._all_open, self.held_open, self._retire_lost)
        self._checker = threading.Thread(target=self._check_now_and_then, name="checker", daemon=True)
        self._checker.start()
        self.placement.clear_trash()
        self.placement.outdated.append(self._was_outdated)
        self.placement.begin(self)

    @property
    @override
    def feeds(self) -> ChangeFeeds:
        return self._feeds

    @property
    @override
    def inbound(self) -> InboundLinks:
        return self._inbound

    @override
    def acquire(self, name: str, *, create: CreateIfMissing | bool = False, at_least: int | None = None) -> OpenStore:
        check_store_name(name)
        entry = self._enter(name)
        try:
            store = entry.store
            if store is None or not self._may_be_asked(store, at_least):
                store = self._open_at_gate(name, entry, create=create, at_least=at_least)
            store.reach(at_least or 0)
        except BaseException:
            self._leave(name)
            raise
        self._close_surplus()
        return store

    @override
    def acquire_open(self, name: str, *, at_least: int | None = None) -> OpenStore:
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or entry.store is None or not self._may_be_asked(entry.store, at_least):
                raise NotOpen
            if entry.store.commits.is_copy and entry.store.state.sequence < (at_least or 0):
                raise NotOpen
            entry.leases += 1
            self._entries.move_to_end(name)
            return entry.store

    @override
    def release(self, store: OpenStore) -> None:
        self._leave(store.name)

    @override
    def release_or_discard(self, store: OpenStore) -> bool:
        name = store.name
        with self._entered(name) as entry:
            self._leave(name)
            with entry.gate:
                if store.state.sequence or entry.store is not store or self._take_out(entry) is None:
                    return False
                has_commits = store.state.sequence > 0
                self._close_store(store)
                if has_commits:
                    return False
                self.placement.drop(name)
                self.feeds.dropped(name)
                log.info("store_discarded", store=name)
                return True

    @override
    @contextmanager
    def held_open(self, name: str) -> Generator[OpenStore | None]:
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
    def unopened(self, name: str) -> Generator[bool]:
        with self._entered(name) as entry, self._waiting(entry):
            is_ours = entry.gate.acquire(blocking=False)
            try:
                yield is_ours and entry.store is None
            finally:
                if is_ours:
                    entry.gate.release()

    @override
    def drop(self, name: str) -> None:
        self.require(name)
        with self._entered(name) as entry, entry.gate:
            self.placement.place(name, None)
            store = self._take_out_when_unused(name, entry)
            if store is not None:
                self._close_store(store)
            self.placement.drop(name)
            self.feeds.dropped(name)
            log.info("store_dropped", store=name)

    @override
    def move(self, name: str, node: str) -> MoveAnswer:
        moved = self._hand_over(name, node)
        moved.reason = self._await_opened(moved, time.monotonic() + MOVE_TIMEOUT_SECONDS)
        moved.opened = not moved.reason
        return moved

    @override
    def drain(self, *, undo: bool) -> DrainAnswer:
        names, moved, failed = self.placement.drain(undo=undo), list[MoveAnswer](), dict[str, str]()
        for name in names:
            try:
                moved.append(self._hand_over(name, self.placement.successor(name)))
            except ServedElsewhere:
                continue
            except KgserveError as error:
                failed[name] = error.message
        until = time.monotonic() + MOVE_TIMEOUT_SECONDS
        unopened = {each.store: reason for each in moved if (reason := self._await_opened(each, until))}
        node = self.placement.status().node
        return DrainAnswer(node=node, draining=not undo, moved=len(moved), failed=failed, unopened=unopened)

    def _hand_over(self, name: str, node: str) -> MoveAnswer:
        self.require(name)
        with self._entered(name) as entry, self._waiting(entry), entry.gate:
            self.placement.place(name, None)
            store = self._take_out_when_unused(name, entry, waiting=True)
            if store is not None:
                self._close_store(store)
            moved = self.placement.hand_over(name, node)
            self.feeds.moved(name)
            log.info("store_moved", store=name, node=node)
            return moved

    def _await_opened(self, moved: MoveAnswer, until: float) -> str:
        """Wait until a store is open where it was moved to: not at the gate, so that callers are sent there."""
        if self.placement.is_here(moved.store):
            with self.lease(moved.store):
                return ""
        reason = self.placement.await_opened(moved.store, moved.node, until)
        if reason:
            log.warning("move_not_opened", store=moved.store, node=moved.node, reason=reason)
        return reason

    @override
    def repair(self, name: str) -> RepairAnswer:
        self.require(name)
        with self._entered(name) as entry, self._waiting(entry), entry.gate:
            if entry.store is not None and entry.store.commits.confirm():
                raise Conflict(f"nothing is wrong with the log of store {name!r}: this node serves it")
            self._let_go_unless_ours(name, entry)
            found = self.placement.repair(name)
            store = entry.store = self._open(name, create=False)
            agreed = store.check()
        if not agreed.ok:
            raise Unavailable(f"store {name!r} was repaired, but its rows did not come to its digest; see the log")
        status = self.placement.status()
        return RepairAnswer(store=name, node=status.node, sequence=store.state.sequence, found=found)

    @override
    def staging(self, name: str) -> Path:
        return self.placement.staging(check_store_name(name))

    @override
    def adopt(self, name: str, folder: Path) -> None:
        check_store_name(name)
        with self._entered(name) as entry, entry.gate:
            self.placement.adopt(name, folder)
        log.info("store_adopted", store=name)
        self.feeds.created(name)
        # In a cluster it is a store of all nodes once it was opened.
        self.require_files(name)

    @override
    def names(self) -> list[str]:
        return self.placement.names()

    @override
    def here(self) -> list[str]:
        return self.placement.here()

    @override
    def require(self, name: str) -> None:
        check_store_name(name)
        if not self.placement.exists(name):
            raise NoStore(name)

    @override
    def require_files(self, name: str) -> Layout:
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
            # Each is looked at once: it may be opened or closed meanwhile.
            found = ((name, entry.store) for name, entry in self._entries.items())
            return {name: store for name, store in found if store is not None}

    @override
    def layout(self, name: str) -> Layout:
        return self.placement.layout(check_store_name(name))

    @override
    def close(self) -> None:
        """Finish what is queued in every store and close them all. Blocks."""
        if self._closed.is_set():
            return
        with self._lock:
            self._closed.set()
            entries = list(self._entries.values())
        self.placement.close()
        for entry in entries:
            if (store := entry.store) is not None:
                store.break_off()
        self._tender.stop()
        for entry in entries:
            with entry.gate:
                if entry.store is not None:
                    self._close_store(entry.store)
                    entry.store = None
        self.inbound.close()
        self.feeds.close()
        self._background.shutdown(wait=True)
        self._checker.join()
        self.observation.close()

    def _open_at_gate(
        self, name: str, entry: _Entry, *, create: CreateIfMissing | bool, at_least: int | None
    ) -> OpenStore:
        """Open a store, or wait for who does; a few may wait, so that a long rebuild does not take every thread."""
        with self._waiting(entry):
            if entry.waiting > _MAX_WAITING_FOR_OPEN:
                raise Opening(f"store {name!r} is being opened; try again shortly", retry_after=2)
            if not entry.gate.acquire(timeout=_OPEN_TIMEOUT_SECONDS):
                raise Unavailable(f"store {name!r} is still being opened; try again later", retry_after=10)
            try:
                if entry.store is None or not self._may_be_asked(entry.store, at_least):
                    self._let_go_unless_ours(name, entry)
                if entry.store is None:
                    entry.store = self._open(name, create=create, or_copy=at_least is not None)
                return entry.store
            finally:
                entry.gate.release()

    def _may_be_asked(self, store: OpenStore, at_least: int | None) -> bool:
        """Whether an open store may be asked as what it is; a copy for reading alone, by who bears one."""
        if not self.placement.is_shared:
            return True
        return store.commits.is_current and (at_least is not None or not store.commits.is_copy)

    def _retire_lost(self) -> None:
        """Have stores closed that are open and not to be served any more."""
        for name, store in self._all_open().items():
            with suppress(Unavailable):
                if not store.commits.is_current:
                    self._background.submit(self._retire, name)

    def _retire(self, name: str) -> None:
        with self._entered(name) as entry:
            try:
                with self._waiting(entry), entry.gate:
                    self._let_go_unless_ours(name, entry)
            except KgserveError as error:
                log.warning("store_not_let_go", store=name, reason=str(error))

    def _was_outdated(self, name: str) -> None:
        # A pool that is closed schedules nothing; what is of no use any more is seen at the next start.
        with suppress(RuntimeError):
            self._background.submit(self._forget_outdated, name)

    def _forget_outdated(self, name: str) -> None:
        """Remove what is left here of a store that another server has dropped, or from which it erased something."""
        with self._entered(name) as entry:
            try:
                with self._waiting(entry), entry.gate:
                    self._let_go_unless_ours(name, entry)
                    if entry.store is None and self.placement.forget_outdated(name):
                        self.feeds.dropped(name)
            except (KgserveError, OSError) as error:
                log.warning("copy_not_removed", store=name, reason=str(error))

    @contextmanager
    def _waiting(self, entry: _Entry) -> Generator[None]:
        """Count a lease among those that have no store yet."""
        with self._lock:
            entry.waiting += 1
        try:
            yield
        finally:
            with self._lock:
                entry.waiting -= 1

    def _let_go_unless_ours(self, name: str, entry: _Entry) -> None:
        """Close a store that is open and is not to be served as it is, at the gate."""
        if (store := entry.store) is None or store.commits.confirm():
            return
        log.warning("store_lost", store=name, sequence=store.state.sequence)
        self.feeds.moved(name)
        store.break_off()
        if (store := self._take_out_when_unused(name, entry, waiting=True)) is not None:
            self._close_store(store)

    @contextmanager
    def _entered(self, name: str) -> Generator[_Entry]:
        """A store's place in the pool, which is leased within the block."""
        entry = self._enter(name)
        try:
            yield entry
        finally:
            self._leave(name)

    def _enter(self, name: str) -> _Entry:
        with self._lock:
            if self._closed.is_set():
                raise Unavailable("the server is stopping")
            entry = self._entries.setdefault(name, _Entry())
            entry.leases += 1
            self._entries.move_to_end(name)
            return entry

    def _leave(self, name: str) -> None:
        with self._lock:
            entry = self._entries[name]
            entry.leases -= 1
            if entry.leases == 0 and entry.store is None:
                del self._entries[name]

    def _open(self, name: str, *, create: CreateIfMissing | bool, or_copy: bool = False) -> OpenStore:
        layout = self.placement.layout(name)
        if layout.root.is_symlink():
            log.error("symlink_refused", store=name, path=str(layout.root))
            raise NoStore(name)
        started = time.perf_counter()
        with storing(f"opening store {name!r}"):
            store = self._open_or_create(layout, create=create, or_copy=or_copy)
        milliseconds = round((time.perf_counter() - started) * 1000, 1)
        is_copy = store.commits.is_copy
        log.info(
            "copy_opened" if is_copy else "store_opened", store=name, sequence=store.state.sequence, ms=milliseconds
        )
        store.engine.places = self.engine_places
        store.after_change.append(partial(self.feeds.changed, name))
        store.after_commit.append(partial(self._tender.committed, store))
        store.links.after_change.append(partial(self.inbound.changed, name))
        store.links.after_erasing.append(self.inbound.erase)
        for companion in self.companions:
            if companion.of_copies or not is_copy:
                companion.opened(store)
        return store

    def _open_or_create(self, layout: Layout, *, create: CreateIfMissing | bool, or_copy: bool) -> OpenStore:
        wish, made = create if isinstance(create, CreateIfMissing) else CreateIfMissing(), False
        try:
            made = self.placement.place(layout.name, (wish.chosen or self.usual) if create else None)
        except (ServedElsewhere, OwnerUnreachable):
            if not or_copy:
                raise
            self.placement.place_copy(layout.name)
        store = OpenStore(layout, self.feeds.of(layout.name), self._around)
        wish.made = wish.made or made
        if self.placement.is_shared and not store.commits.is_copy:
            self.feeds.arrived(layout.name, store.state.sequence)
        elif made:
            self.feeds.created(layout.name)
        return store

    def _close_surplus(self) -> None:
        while (idle := self._pick_surplus()) is not None:
            name, entry = idle
            try:
                with entry.gate:
                    store = self._take_out(entry)
                    if store is not None:
                        self._close_store(store)
            finally:
                self._leave(name)

    def _pick_surplus(self) -> tuple[str, _Entry] | None:
        with self._lock:
            if sum(entry.store is not None for entry in self._entries.values()) <= self.settings.max_open_stores:
                return None
            for name, entry in self._entries.items():
                if entry.leases == 0 and entry.store is not None:
                    entry.leases += 1
                    return name, entry
            return None

    def _take_out(self, entry: _Entry, *, waiting: bool = False) -> OpenStore | None:
        """The store of an entry that nobody else has leased, taken out of it so that nobody can any more.

        Who is ``waiting`` for it may have it opened anew.
        """
        with self._lock:
            if entry.leases > (entry.waiting if waiting else 1):
                return None
            store, entry.store = entry.store, None
            return store

    def _take_out_when_unused(self, name: str, entry: _Entry, *, waiting: bool = False) -> OpenStore | None:
        deadline = time.monotonic() + _RELEASE_TIMEOUT_SECONDS
        while (store := self._take_out(entry, waiting=waiting)) is None and entry.store is not None:
            if time.monotonic() > deadline:
                in_use = f"store {name!r} is in use; try again when its requests are done"
                raise Unavailable(in_use, retry_after=5) if waiting else Conflict(in_use)
            time.sleep(0.01)
        return store

    def _close_store(self, store: OpenStore) -> None:
        try:
            store.accesses.settle()
            for companion in reversed(self.companions):
                companion.closing(store)
            store.close()
        except (KgserveError, OSError) as error:
            # Without the mark of a clean close it is rebuilt from its journal when it opens again.
            log.exception("store_close_failed", store=store.name, error=str(error))

    def _check_now_and_then(self) -> None:
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
    """Keeps what follows the journals of open stores in step: one thread, woken by commits and once a second.

    It calls `OpenStore.tend` of each, at once for those in which Cypher is asked.
    """

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        held: Callable[[str], AbstractContextManager[OpenStore | None]],
        first: Callable[[], None],
    ) -> None:
        """``names`` are the open stores, ``held`` gives one of them, if it still is; ``first`` is called before."""
        self._names = names
        self._held = held
        self._first = first
        self._awake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tender", daemon=True)
        self._thread.start()

    def committed(self, store: OpenStore) -> None:
        """A store has a new commit."""
        if store.engine.is_asked or store.copy.is_behind:
            self._awake.set()

    def stop(self) -> None:
        """End the thread; blocks until it has."""
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
            except Exception:
                # Whatever it is, the thread must go on.
                log.exception("not_tended")

    def _tend(self, name: str) -> None:
        try:
            with self._held(name) as store:
                if store is not None and not self._stopping:
                    store.tend()
        except (KgserveError, OSError, sqlite3.Error) as error:
            log.warning("not_tended", store=name, error=str(error))
