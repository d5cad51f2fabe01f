"""Which server the bridge talks to, and what happens when it is gone."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from kgserve.launch import LaunchFailed, Server, answers, ensure, find

RETURN_PATIENCE = 10.0
"""Seconds that a server given by its address may be away once it has been there: the bridge cannot start that one."""

_DELAY = 0.1


class Servers:
    """The server of the data folder, started when there is none; or the one at ``url``, which is only waited for."""

    def __init__(self, data_dir: Path, url: str | None = None, key: str | None = None) -> None:
        """``key`` is sent instead of the token that the data folder names."""
        self._data_dir = data_dir
        self._key = key
        self._url = url.rstrip("/") if url else None
        self._lock = threading.Lock()
        self._known: Server | None = None
        self._doubtful = False
        self._reached = False

    def current(self) -> Server:
        """A server to send a request to. Raises LaunchFailed."""
        with self._lock:
            if self._known is None:
                self._known = self._awaited(self._url) if self._url else self._ensured()
                self._doubtful = False
            return self._known

    def present(self) -> Server | None:
        """The server if it is there. Listening alone is no reason to start one: somebody may have stopped it."""
        with self._lock:
            if self._known is None:
                found = self._named(self._url) if self._url else find(self._data_dir)
                self._known = self._keyed(found) if found is not None and answers(found) else None
                self._doubtful = self._known is None
            return self._known

    def lost(self, server: Server) -> None:
        """Its connection broke, or it knows us no longer: look again before the next request."""
        with self._lock:
            if self._known == server:
                self._known, self._doubtful = None, True

    def _ensured(self) -> Server:
        found = None if self._doubtful else find(self._data_dir)
        return self._keyed(found or ensure(self._data_dir))

    def _awaited(self, url: str) -> Server:
        server = self._named(url)
        deadline = time.monotonic() + (RETURN_PATIENCE if self._reached else 0)
        while not answers(server):
            if time.monotonic() > deadline:
                raise LaunchFailed(f"no server answers at {url}; start it, or leave --url out to have one started")
            time.sleep(_DELAY)
            server = self._named(url)
        self._reached = True
        return server

    def _named(self, url: str) -> Server:
        """The server at an address, with its token when it is the one of the data folder."""
        found = find(self._data_dir)
        return self._keyed(found if found is not None and found.url == url else Server(url))

    def _keyed(self, server: Server) -> Server:
        return server._replace(token=self._key) if self._key else server
