"""The stores of one data folder: opened when first asked for, closed when others need the place."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol, Self

import structlog

from kgserve.engine.files import edition
from kgserve.errors import Conflict, InvalidInput, KgserveError, NoStore, Opening, Unavailable
from kgserve.journal.files import storing, sync_folder
from kgserve.metrics.observation import Observation
from kgserve.model.requests import check_store_name
from kgserve.model.stores import StoreSettings, usual
from kgserve.permissions import private_folder
from kgserve.settings import Settings
from kgserve.store.copy_on_write import WarmCopies
from kgserve.store.engine_view import EnginePlaces
from kgserve.store.feeds import Feeds
from kgserve.store.inbound_view import InboundView
from kgserve.store.layout import SUFFIX, Layout, usable_folder
from kgserve.store.store import Store, create_store

log = structlog.get_logger()

_TRASH_PREFIX = ".dropped-"
# Requests that may wait for one store to open, and for how long.
_MAX_WAITING = 6
_GATE_SECONDS = 60.0
_PAUSE_SECONDS = 1.0


class NotOpen(Exception):
    """The store is not open: ask where blocking is allowed."""


class Companion(Protocol):
    """Somebody who follows the stores of a pool while they are open."""

    def opened(self, store: Store) -> None:
        """A store is open now."""

    def closing(self, store: Store) -> None:
        """A store is about to close; blocks until whatever follows it has let go."""

    def halt(self) -> None:
        """All stores are about to close: begin nothing new."""


class _Entry:
    """A store's place in the pool; ``gate`` is held while it opens or closes."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.store: Store | None = None
        self.leases = 0


class CreateIfMissing:
    """That a store is to be made, with the ``chosen`` settings, if there is none; ``made`` says whether it was."""

    def __init__(self, chosen: StoreSettings | None = None) -> None:
        self.chosen = chosen
        self.made = False


class StorePool:
    """Hands out open stores. At most ``max_open_stores`` are open unless more are in use at the same moment."""

    def __init__(self, settings: Settings) -> None:
        edition(settings.engine)  # raises InvalidInput for one that is not installed
        self.settings = settings
        self.usual = usual(settings)
        self.observation = Observation(settings)
        self.data_dir = usable_folder(settings.data_dir.resolve())
        private_folder(self.data_dir)
        with suppress(PermissionError):
            sync_folder(self.data_dir.parent)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._creating = threading.Lock()
        self.companions: list[Companion] = []
        self.feeds = Feeds(self._layout)
        self._copies = WarmCopies()
        self.inbound = InboundView(self)
        self.engine_places = EnginePlaces(settings.engine_processes)
        self._closed = threading.Event()
        # One thread for all stores: compactions and checks take turns, so that they never crowd out requests.
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="background")
        self._tender = Tender(self.open_stores, self._held_open)
        self._checker = threading.Thread(target=self._check_now_and_then, name="checker", daemon=True)
        self._checker.start()
        self._clear_trash()

    @contextmanager
    def lease(self, name: str, *, create: CreateIfMissing | bool = False) -> Generator[Store]:
        """The open store of a name, for as long as the block runs.

        Raises InvalidInput for a name that cannot be, NotFound, and Unavailable when the pool is full or closing.
        """
        store = self.acquire(name, create=create)
        try:
            yield store
        finally:
            self.release(store)

    def acquire(self, name: str, *, create: CreateIfMissing | bool = False) -> Store:
        """Like `lease`; to be given back with `release`."""
        check_store_name(name)
        entry = self._enter(name)
        try:
            store = entry.store or self._open_at_gate(name, entry, create=create)
        except BaseException:
            self._leave(name)
            raise
        self._close_surplus()
        return store

    def acquire_open(self, name: str) -> Store:
        """Like `acquire`, at once: for threads that may not block. Raises NotOpen unless the store is open now."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or entry.store is None:
                raise NotOpen
            entry.leases += 1
            self._entries.move_to_end(name)
            return entry.store

    def release(self, store: Store) -> None:
        """Give a store back."""
        self._leave(store.name)

    def create(self, name: str, chosen: StoreSettings | None = None) -> bool:
        """Make a store with the ``chosen`` settings, or the usual ones, unless it is there; whether it was made."""
        wish = CreateIfMissing(chosen)
        with self.lease(name, create=wish):
            return wish.made

    @contextmanager
    def _held_open(self, name: str) -> Generator[Store | None]:
        """The store of a name if it is open; it counts as no use of it."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                entry.leases += 1
        try:
            yield entry and entry.store
        finally:
            if entry is not None:
                self._leave(name)

    def drop(self, name: str) -> None:
        """Close a store and remove its files. Raises NotFound, and Conflict while it is in use."""
        check_store_name(name)
        if not self._layout(name).exists:
            raise NoStore(name)
        entry = self._enter(name)
        try:
            with entry.gate:
                store = self._take_out_when_unused(name, entry)
                if store is not None:
                    self._close_store(store)
                self._remove(name)
        finally:
            self._leave(name)

    def staging(self, name: str) -> Path:
        """A path in the data folder for a store that is still being made; `adopt` makes it one.

        What is left there by a process that ended is removed when the next pool opens.
        """
        return self.data_dir / f"{_TRASH_PREFIX}{check_store_name(name)}-{time.time_ns()}"

    def adopt(self, name: str, folder: Path) -> None:
        """Make a finished folder within the data folder the store of a name. Raises Conflict when there is one."""
        check_store_name(name)
        entry = self._enter(name)
        try:
            with entry.gate, self._creating:
                root = self._layout(name).root
                if root.exists() or root.is_symlink():
                    raise Conflict(f"store {name!r} exists already")
                self._refuse_twin(name)
                folder.rename(root)
                sync_folder(self.data_dir)
        finally:
            self._leave(name)
        log.info("store_adopted", store=name)
        self.feeds.created(name)

    def names(self) -> list[str]:
        """The stores of the folder, in order."""
        found = (path.name[: -len(SUFFIX)] for path in self.data_dir.glob(f"*{SUFFIX}") if not path.is_symlink())
        return sorted(name for name in found if _is_name(name) and self._layout(name).exists)

    def open_stores(self) -> dict[str, Store]:
        """The stores that are open now."""
        with self._lock:
            # Each is looked at once: it may be opened or closed meanwhile.
            found = ((name, entry.store) for name, entry in self._entries.items())
            return {name: store for name, store in found if store is not None}

    def layout(self, name: str) -> Layout:
        """Where a store's files are."""
        return self._layout(check_store_name(name))

    def close(self) -> None:
        """Finish what is queued in every store and close them all. Blocks."""
        if self._closed.is_set():
            return
        with self._lock:
            self._closed.set()
            entries = list(self._entries.values())
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _layout(self, name: str) -> Layout:
        return Layout(self.data_dir, name)

    def _open_at_gate(self, name: str, entry: _Entry, *, create: CreateIfMissing | bool) -> Store:
        """Open a store, or wait for who does; a few may wait, so that a long rebuild does not take every thread."""
        if entry.leases > _MAX_WAITING:
            raise Opening(f"store {name!r} is being opened; try again shortly", retry_after=2)
        if not entry.gate.acquire(timeout=_GATE_SECONDS):
            raise Unavailable(f"store {name!r} is still being opened; try again later", retry_after=10)
        try:
            if entry.store is None:
                entry.store = self._open(name, create=create)
            return entry.store
        finally:
            entry.gate.release()

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

    def _open(self, name: str, *, create: CreateIfMissing | bool) -> Store:
        layout = self._layout(name)
        if layout.root.is_symlink():
            log.error("symlink_refused", store=name, path=str(layout.root))
            raise NoStore(name)
        started = time.perf_counter()
        with storing(f"opening store {name!r}"):
            store = self._open_or_create(layout, create=create)
        milliseconds = round((time.perf_counter() - started) * 1000, 1)
        log.info("store_opened", store=name, sequence=store.state.sequence, ms=milliseconds)
        store.engine.places = self.engine_places
        store.after_change.append(partial(self.feeds.changed, name))
        store.after_commit.append(partial(self._tender.committed, store))
        store.links.after_change.append(partial(self.inbound.changed, name))
        store.links.after_erasing.append(self.inbound.erase)
        for companion in self.companions:
            companion.opened(store)
        return store

    def _open_or_create(self, layout: Layout, *, create: CreateIfMissing | bool) -> Store:
        wish = create if isinstance(create, CreateIfMissing) else CreateIfMissing()
        if is_new := not layout.exists:
            if not create:
                raise NoStore(layout.name)
            with self._creating:
                self._refuse_twin(layout.name)
                private_folder(layout.root)
            create_store(layout, self.settings, wish.chosen or self.usual, time.time_ns() // 1000)
        feed = self.feeds.of(layout.name)
        store = Store(layout, self.settings, self._background.submit, feed, self.observation, self._copies)
        if is_new:
            wish.made = True
            self.feeds.created(layout.name)
        return store

    def _refuse_twin(self, name: str) -> None:
        """Names that differ in case alone would be one folder where file systems fold case."""
        for other in self.data_dir.glob(f"*{SUFFIX}"):
            if other.name.lower() == f"{name}{SUFFIX}".lower() and other.name != f"{name}{SUFFIX}":
                raise Conflict(f"there is a store {other.name[: -len(SUFFIX)]!r} whose name differs in case alone")

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

    def _take_out(self, entry: _Entry) -> Store | None:
        """The store of an entry that nobody else has leased, taken out of it so that nobody can any more."""
        with self._lock:
            if entry.leases > 1:
                return None
            store, entry.store = entry.store, None
            return store

    def _take_out_when_unused(self, name: str, entry: _Entry, seconds: float = 10.0) -> Store | None:
        deadline = time.monotonic() + seconds
        while (store := self._take_out(entry)) is None and entry.store is not None:
            if time.monotonic() > deadline:
                raise Conflict(f"store {name!r} is in use; try again when its requests are done")
            time.sleep(0.01)
        return store

    def _close_store(self, store: Store) -> None:
        try:
            store.accesses.settle()
            for companion in reversed(self.companions):
                companion.closing(store)
            store.close()
        except (KgserveError, OSError) as error:
            # Without the mark of a clean close it is rebuilt from its journal when it opens again.
            log.exception("store_close_failed", store=store.name, error=str(error))

    def _remove(self, name: str) -> None:
        root = self._layout(name).root
        trash = self.staging(name)
        root.rename(trash)
        # Before anything in it goes: it is there as a whole, or not at all.
        sync_folder(self.data_dir)
        self.feeds.dropped(name)
        shutil.rmtree(trash, ignore_errors=True)
        log.info("store_dropped", store=name)

    def _clear_trash(self) -> None:
        for path in self.data_dir.glob(f"{_TRASH_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)

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


def _is_name(name: str) -> bool:
    try:
        check_store_name(name)
    except InvalidInput:
        return False
    return True


class Tender:
    """Keeps what follows the journals of open stores in step: one thread, woken by commits and once a second.

    It calls `Store.tend` of each, at once for those in which Cypher is asked.
    """

    def __init__(
        self, names: Callable[[], Iterable[str]], held: Callable[[str], AbstractContextManager[Store | None]]
    ) -> None:
        """``names`` are the stores that are open, ``held`` gives one of them, if it still is."""
        self._names = names
        self._held = held
        self._awake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tender", daemon=True)
        self._thread.start()

    def committed(self, store: Store) -> None:
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
            self._awake.wait(_PAUSE_SECONDS)
            self._awake.clear()
            try:
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
