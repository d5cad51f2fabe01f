"""What a shell has been told so far, the server that it talks to, and how it asks.

The one place of the shell that knows the client, and how a server is had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kgserve.admin.api import StoreStats, StoreSummary
from kgserve.cli.shell.formats import Mode, by_suffix
from kgserve.cli.shell.screen import Screen
from kgserve.client import Client, Interrupted, Unreachable
from kgserve.client.lines import complete
from kgserve.errors import InvalidInput, KgserveError
from kgserve.graph.answers import CypherAnswer, CypherChanges
from kgserve.graph.requests import MAX_CYPHER_ROWS
from kgserve.platform import server_discovery

Answer = TypeVar("Answer")

MAX_TERMINAL_ROWS = 1000
"""Rows that a person is shown; programs and files get as many as the server gives."""


class NoServer(KgserveError):
    """No server answers, and none could be started."""

    code = "unreachable"


class ServerConnection:
    """The way to one server: the one at ``url``, else that of the data folder, which is started when none runs.

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
        if self._named is None:
            self.url = self._ensured()
        # As patient as a person: Ctrl-C is the time limit, and a server that is gone is said to be soon.
        client = Client(self._named, data=self._data_dir, key=self._key, timeout=None, retries=2)
        if self._named is not None:
            client.health()
        return client

    def _ensured(self) -> str:
        """The address of the data folder's server, which is started when none runs."""
        if server_discovery.find(self._data_dir) is None:
            self._starting(f"starting a server for {self._data_dir}")
        try:
            return server_discovery.ensure(self._data_dir).url
        except server_discovery.LaunchFailed as error:
            raise NoServer(str(error)) from error


class ShellSession:
    """Store, mode, parameters and settings of one shell, the server that it asks and the screen that it writes to."""

    def __init__(self, server: ServerConnection, screen: Screen, store: str | None, mode: Mode, *, write: bool) -> None:
        self.server = server
        self.screen = screen
        self.store = store
        self.mode: Mode = mode
        self.write = write
        self.timing = False
        self.parameters: dict[str, Any] = {}
        self.writes = 0
        self.depth = 0

    def chosen_store(self) -> str:
        """The store in use. Raises InvalidInput when there is none."""
        if self.store is None:
            raise InvalidInput("no store is chosen; `:stores` lists them, `:use NAME` chooses one")
        return self.store

    def statement(self, text: str) -> None:
        """Send one statement and show its answer."""
        limit = MAX_TERMINAL_ROWS if self.screen.terminal else MAX_CYPHER_ROWS
        answer, seconds = self._ask(text, limit)
        self.screen.show(answer, self.mode)
        self.screen.note(summary(answer))
        if answer.truncated:
            self.screen.warn(f"only the first {answer.row_count:,} rows are shown: there are more{self._way_to_more()}")
        if self.timing:
            self._tell_time(answer, seconds)

    def export(self, text: str, file: Path) -> None:
        """Send one statement and write its rows to a file, in the format that the end of its name says."""
        writer = by_suffix(file)
        answer, seconds = self._ask(text, MAX_CYPHER_ROWS)
        with complete(file) as out:
            out.writelines(text.encode() for text in writer(answer))
        self.screen.note(f"{counted(answer.row_count, 'row')} in {file}")
        if answer.truncated:
            self.screen.warn(f"{file} holds only the first {answer.row_count:,} rows: there are more")
        if self.timing:
            self._tell_time(answer, seconds)

    def _ask(self, text: str, limit: int) -> tuple[CypherAnswer, float]:
        store, begun = self.chosen_store(), time.perf_counter()
        answer = self.server.cypher(store, text, self.parameters, write=self.write, max_rows=limit)
        self.writes += self.write
        return answer, time.perf_counter() - begun

    def _way_to_more(self) -> str:
        return "; `:export FILE QUERY;` writes up to 100,000" if self.screen.terminal else ""

    def _tell_time(self, answer: CypherAnswer, seconds: float) -> None:
        message = f"{seconds * 1000:,.1f} ms, of it {answer.took_ms:,.1f} ms in the server"
        (self.screen.note if self.screen.terminal else self.screen.warn)(message)


def summary(answer: CypherAnswer) -> str:
    """How many rows there were, and what a statement in write mode changed."""
    parts = [counted(answer.row_count, "row")] if answer.columns else []
    if answer.changes:
        parts.append(changed(answer.changes))
    return " · ".join(parts) or "done"


def changed(changes: CypherChanges) -> str:
    """What a statement changed, in words."""
    counts = (
        ("created", counted(changes.nodes_created, "node"), changes.nodes_created),
        ("created", counted(changes.edges_created, "relation"), changes.edges_created),
        ("updated", counted(changes.nodes_updated, "node"), changes.nodes_updated),
        ("updated", counted(changes.edges_updated, "relation"), changes.edges_updated),
        ("deleted", counted(changes.nodes_deleted, "node"), changes.nodes_deleted),
        ("deleted", counted(changes.edges_deleted, "relation"), changes.edges_deleted),
    )
    said = [f"{what} {how_many}" for what, how_many, number in counts if number]
    return f"{', '.join(said) or 'nothing changed'}; sequence {changes.sequence:,}"


def counted(number: int, noun: str) -> str:
    """A number and what it counts."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"
