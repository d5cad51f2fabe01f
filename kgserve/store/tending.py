"""Keeping what follows the journals of a pool's stores in step: one thread, woken by commits and once a second."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import structlog

from kgserve.errors import KgserveError
from kgserve.store.store import Store

log = structlog.get_logger()

PAUSE_SECONDS = 1.0


class Tender:
    """Calls `Store.tend` of each open store, at once for those in which Cypher is asked."""

    def __init__(
        self, names: Callable[[], Iterable[str]], held: Callable[[str], AbstractContextManager[Store | None]]
    ) -> None:
        """``names`` are the stores that are open, ``held`` gives one of them, if it still is."""
        self._names = names
        self._held = held
        self._news = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tender", daemon=True)
        self._thread.start()

    def committed(self, store: Store) -> None:
        """A store has a new commit."""
        if store.engine.is_asked or store.copy.is_behind:
            self._news.set()

    def stop(self) -> None:
        """End the thread; blocks until it has."""
        self._stopping = True
        self._news.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._news.wait(PAUSE_SECONDS)
            self._news.clear()
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
