"""Data folders that this process has open, each once however often it is asked for.

In a notebook a cell that opens a folder is run again: the second `Handle` then shares what the first has opened. A
folder closes with its last handle, and at the latest when the interpreter exits. Handles that were forgotten do not
count, and close nothing: closing blocks, which a garbage collection must not.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from kgserve.errors import Conflict, InvalidInput
from kgserve.ops.graph import Graphs
from kgserve.ops.opening import open_all
from kgserve.reach import find, holder
from kgserve.settings import Settings
from kgserve.store.lock import DataFolderLock

if TYPE_CHECKING:
    from kgserve.syncing.plugs import Syncer

    Plugged = Mapping[str, Syncer] | None

CLOSE_SECONDS = 15.0
"""So long calls of other threads are waited for when a folder closes: no read takes longer."""


class _Folder:
    """An open data folder, and the calls that are at work on it."""

    def __init__(self, settings: Settings, syncers: Plugged) -> None:
        self.settings = settings
        self.syncers = syncers
        self.handles: WeakSet[Handle] = WeakSet()
        self.closed = False
        self._changed = threading.Condition()
        self._calls = 0
        with ExitStack() as undo:
            _take(settings.data_dir, undo)
            self._graphs = open_all(settings, undo, syncers).graphs(confined=False)
            self._stack = undo.pop_all()

    @contextmanager
    def use(self) -> Generator[Graphs]:
        with self._changed:
            if self.closed:
                raise _closed(self.settings.data_dir)
            self._calls += 1
        try:
            yield self._graphs
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.wait_for(lambda: self._calls == 0, CLOSE_SECONDS)
        self._stack.close()


class Handle:
    """One use of an open data folder; for any number of threads, but not for a process forked from this one."""

    def __init__(self, settings: Settings, syncers: Plugged = None) -> None:
        """Open the folder, or share it. Raises Conflict when another process has it, or this one in another way."""
        self.path = settings.data_dir
        self._process = os.getpid()
        self._closed = False
        self._folder = _folders.join(self, settings, syncers)

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""
        return self._closed or self._folder.closed

    @contextmanager
    def use(self) -> Generator[Graphs]:
        """What is open, for a call that ends with the block. Raises Conflict when it is closed."""
        if self._process != os.getpid():
            raise Conflict(
                f"{self.path} was opened by process {self._process}, from which this one was forked; "
                "serve the folder with `kgserve serve` to use it from several processes, with kgserve.client"
            )
        if self._closed:
            raise _closed(self.path)
        with self._folder.use() as graphs:
            yield graphs

    def close(self) -> None:
        """Use it no more; the last one closes the folder, which blocks until everything is saved."""
        if self._process == os.getpid() and not self._closed:
            self._closed = True
            _folders.leave(self, self._folder)


class _Folders:
    """The open folders of this process, by path."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Path, _Folder] = {}
        self._of_others: list[dict[Path, _Folder]] = []

    def join(self, handle: Handle, settings: Settings, syncers: Plugged) -> _Folder:
        with self._lock:
            folder = self._open.get(settings.data_dir)
            if folder is None:
                folder = self._open[settings.data_dir] = _Folder(settings, syncers)
            elif (folder.settings, folder.syncers) != (settings, syncers):
                raise Conflict(f"{settings.data_dir} is open in this process with other options; close it first")
            folder.handles.add(handle)
            return folder

    def leave(self, handle: Handle, folder: _Folder) -> None:
        with self._lock:
            folder.handles.discard(handle)
            if not folder.handles and not folder.closed:
                del self._open[folder.settings.data_dir]
                folder.close()

    def close_all(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def forget(self) -> None:
        """In a process that was just forked: what is open belongs to the other one, and must not be let go here."""
        self._of_others.append(self._open)
        self._lock, self._open = threading.Lock(), {}


def _take(data_dir: Path, stack: ExitStack) -> None:
    try:
        stack.enter_context(DataFolderLock(data_dir))
    except Conflict:
        raise Conflict(_held(data_dir)) from None
    except OSError as error:
        raise InvalidInput(f"{data_dir} cannot be a data folder: {error.strerror or error}") from error


def _held(data_dir: Path) -> str:
    server = find(data_dir)
    if server is not None:
        return (
            f"{data_dir} is served by process {server.pid} at {server.url}; "
            f"use kgserve.client.Client(data={str(data_dir)!r}) instead, or stop that server"
        )
    return (
        f"{data_dir} is in use by process {holder(data_dir) or 'unknown'}; close it there, or serve the folder "
        f"with `kgserve serve` and use kgserve.client.Client(data={str(data_dir)!r}) in both"
    )


def _closed(data_dir: Path) -> Conflict:
    return Conflict(f"{data_dir} was closed; open it again with kgserve.open({str(data_dir)!r})")


_folders = _Folders()
atexit.register(_folders.close_all)
os.register_at_fork(after_in_child=_folders.forget)
