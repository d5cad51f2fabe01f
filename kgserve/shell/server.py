"""The server that a shell talks to: the one place of the shell that knows the client, and how a server is had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kgserve import launch
from kgserve.client import Client, Interrupted, Unreachable
from kgserve.errors import KgserveError
from kgserve.model.answers import CypherAnswer
from kgserve.model.stores import StoreStats, StoreSummary

Answer = TypeVar("Answer")


class NoServer(KgserveError):
    """No server answers, and none could be started."""

    code = "unreachable"


class Server:
    """One server: the one at ``url``, else that of the data folder, which is started when none runs.

    A shell outlives its server: one that is gone is looked for, or started, again.
    """

    def __init__(
        self, url: str | None, data_dir: Path, starting: Callable[[str], None], key: str | None = None
    ) -> None:
        """Find it and wait until it answers; ``starting`` is told when one is started. Raises NoServer."""
        self._named = url
        self._key = key
        self._data_dir = data_dir
        self._starting = starting
        self._client: Client | None = None
        self.url = url or ""
        self._asked(lambda _: None)

    @property
    def connected(self) -> bool:
        """Whether it answered when it was last asked."""
        return self._client is not None

    def cypher(self, store: str, query: str, params: Mapping[str, Any], *, write: bool, max_rows: int) -> CypherAnswer:
        """Send one statement. A KeyboardInterrupt meanwhile closes the connection, so that the server stops it too."""
        mode = "write" if write else "read"
        given = dict(params)
        return self._answer(lambda client: client.store(store).cypher(query, given, mode=mode, max_rows=max_rows))

    def stats(self, store: str) -> StoreStats:
        """What a store holds."""
        return self._answer(lambda client: client.store(store).stats())

    def stores(self) -> list[StoreSummary]:
        """The stores that there are."""
        return self._answer(lambda client: client.stores()).stores

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _answer(self, ask: Callable[[Client], Answer]) -> Answer:
        known = self._client is not None
        try:
            return self._asked(ask)
        except NoServer:
            if not known or self._named is not None:
                raise
        return self._asked(ask)  # nothing was done yet: the server that was known is gone, another one may be had

    def _asked(self, ask: Callable[[Client], Answer]) -> Answer:
        try:
            self._client = self._client or self._connect()
            return ask(self._client)
        except Interrupted:
            self.close()
            raise
        except Unreachable as error:
            self.close()
            raise NoServer(error.message) from error
        except KeyboardInterrupt:
            self.close()  # its connection is in the middle of an answer
            raise

    def _connect(self) -> Client:
        if self._named is not None:
            client = self._made(self._named, self._key)
            client.health()
            return client
        if launch.find(self._data_dir) is None:
            self._starting(f"starting a server for {self._data_dir}")
        try:
            found = launch.ensure(self._data_dir)
        except launch.LaunchFailed as error:
            raise NoServer(str(error)) from error
        self.url = found.url
        return self._made(found.url, self._key or found.token)

    def _made(self, url: str, key: str | None) -> Client:
        """A client as patient as a person: Ctrl-C is the time limit, and a server that is gone is said to be soon."""
        return Client(url, data=self._data_dir, key=key, timeout=None, retries=2)
