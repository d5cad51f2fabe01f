"""Lock that many readers share, and that a writer has alone."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager


class ReadersWriterLock:
    """Lock for many readers at a time, or one writer; neither can keep the other waiting forever.

    Threads enter in the order of arrival: a writer waits only for readers that came before it, and a writer that
    releases and requests the lock again lets waiting readers pass first. If it releases the lock between steps of long
    work, readers wait for one step. It is not reentrant.
    """

    def __init__(self) -> None:
        self._entrance = threading.Lock()
        self._count_lock = threading.Lock()
        self._readers = 0
        # Held by the writer, or by the readers together: the first acquires it, the last releases it.
        self._held = threading.Lock()

    @contextmanager
    def read(self) -> Generator[None]:
        """Hold the lock together with other readers."""
        with self._entrance, self._count_lock:
            if not self._readers:
                self._held.acquire()
            self._readers += 1
        try:
            yield
        finally:
            with self._count_lock:
                self._readers -= 1
                if not self._readers:
                    self._held.release()

    @contextmanager
    def write(self) -> Generator[None]:
        """Hold the lock alone."""
        with self._entrance:
            self._held.acquire()
        try:
            yield
        finally:
            self._held.release()
