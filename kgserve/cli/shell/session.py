"""State of a shell session, and its connection to the server.

The only module of the shell that uses the client library.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kgserve.admin.store_admin_models import StoreStats, StoreSummary
from kgserve.cli.options import iterate_server_stores
from kgserve.cli.shell.formats import Mode, select_row_writer_by_extension
from kgserve.cli.shell.shell_output import ShellOutput
from kgserve.client import Client, Interrupted, Unreachable
from kgserve.client.json_lines_stream import write_atomically
from kgserve.errors import Forbidden, InvalidInput, KgserveError
from kgserve.graph.answers import CypherAnswer, CypherChanges, StoreCypherVocabulary
from kgserve.graph.request_bodies import MAX_CYPHER_ROWS
from kgserve.platform import server_discovery

Answer = TypeVar("Answer")
_WRITE_MODE_ADVICE = 'send "mode": "write"'
_SHELL_ADVICE = "type `:write on`, or start the shell with --write"
"""The same advice for a statement that writes, in the words of the shell."""

MAX_TERMINAL_ROWS = 1000
"""Maximum number of rows shown on a terminal; programs and files get all rows that the server returns."""


class NoServerAvailable(KgserveError):
    """No server answers and none could be started."""

    code = "unreachable"


class ServerConnection:
    """Connection to the server at ``url``, else to the data folder's, which is started on demand.

    If the server stops, the connection finds or starts it again.
    """

    def __init__(
        self, url: str | None, data_dir: Path, starting: Callable[[str], None], key: str | None = None
    ) -> None:
        """Connect and wait until the server answers. Raises NoServerAvailable.

        ``starting`` is called with a message when a server is started.
        """
        self._named = url
        self._key = key
        self._data_dir = data_dir
        self._starting = starting
        self._client: Client | None = None
        self.url = url or ""
        self._asked(lambda _: None)

    @property
    def connected(self) -> bool:
        """True if the last request was answered."""
        return self._client is not None

    def cypher(self, store: str, query: str, params: Mapping[str, Any], *, write: bool, max_rows: int) -> CypherAnswer:
        """Send one statement.

        A KeyboardInterrupt closes the connection, which makes the server cancel the statement.
        """
        mode = "write" if write else "read"
        given = dict(params)
        try:
            return self._answer(lambda client: client.store(store).cypher(query, given, mode=mode, max_rows=max_rows))
        except Forbidden as error:
            raise Forbidden(error.message.replace(_WRITE_MODE_ADVICE, _SHELL_ADVICE)) from None

    def stats(self, store: str) -> StoreStats:
        """Return statistics of a store."""
        return self._answer(lambda client: client.store(store).stats())

    def words(self, store: str) -> StoreCypherVocabulary:
        """Return the words for statements of a store."""
        return self._answer(lambda client: client.store(store).cypher_vocabulary())

    def stores(self) -> list[StoreSummary]:
        """Return the stores of the server."""
        return self._answer(lambda client: [*iterate_server_stores(client)])

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _answer(self, ask: Callable[[Client], Answer]) -> Answer:
        known = self._client is not None
        try:
            return self._asked(ask)
        except NoServerAvailable:
            if not known or self._named is not None:
                raise
        return self._asked(ask)  # not executed: the known server has stopped, another one can be found or started

    def _asked(self, ask: Callable[[Client], Answer]) -> Answer:
        try:
            self._client = self._client or self._connect()
            return ask(self._client)
        except Interrupted:
            self.close()
            raise
        except Unreachable as error:
            self.close()
            raise NoServerAvailable(error.message) from error
        except KeyboardInterrupt:
            self.close()  # the connection is in the middle of an answer
            raise

    def _connect(self) -> Client:
        if self._named is None:
            self.url = self._ensured()
        # No timeout, because the user can press Ctrl-C; two retries, so that a stopped server is noticed soon.
        client = Client(self._named, data=self._data_dir, key=self._key, timeout=None, retries=2)
        if self._named is not None:
            client.health()
        return client

    def _ensured(self) -> str:
        """Return the address of the data folder's server; start the server if none runs."""
        if server_discovery.find_running_server_of_data_folder(self._data_dir) is None:
            self._starting(f"starting a server for {self._data_dir}")
        try:
            return server_discovery.ensure_server_running(self._data_dir).url
        except server_discovery.ServerLaunchFailed as error:
            raise NoServerAvailable(str(error)) from error


class ShellSession:
    """A shell's store, mode, parameters and settings, with its server and screen."""

    def __init__(
        self, server: ServerConnection, screen: ShellOutput, store: str | None, mode: Mode, *, write: bool
    ) -> None:
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
        """Return the selected store. Raises InvalidInput when none is selected."""
        if self.store is None:
            raise InvalidInput("no store is selected; `:stores` lists them, `:use NAME` selects one")
        return self.store

    def statement(self, text: str) -> None:
        """Send one statement and show its answer."""
        limit = MAX_TERMINAL_ROWS if self.screen.terminal else MAX_CYPHER_ROWS
        answer, seconds = self._ask(text, limit)
        self.screen.show(answer, self.mode)
        self.screen.note(summarize_cypher_answer(answer))
        if answer.truncated:
            self.screen.warn(f"only the first {answer.row_count:,} rows are shown{self._export_hint()}")
        if self.timing:
            self._show_duration(answer, seconds)

    def export(self, text: str, file: Path) -> None:
        """Send one statement and write its rows to a file, in the format of the file name's extension."""
        writer = select_row_writer_by_extension(file)
        answer, seconds = self._ask(text, MAX_CYPHER_ROWS)
        with write_atomically(file) as out:
            out.writelines(text.encode() for text in writer(answer))
        self.screen.note(f"{format_count_with_noun(answer.row_count, 'row')} in {file}")
        if answer.truncated:
            self.screen.warn(f"{file} contains only the first {answer.row_count:,} rows of the result")
        if self.timing:
            self._show_duration(answer, seconds)

    def _ask(self, text: str, limit: int) -> tuple[CypherAnswer, float]:
        store, begun = self.chosen_store(), time.perf_counter()
        answer = self.server.cypher(store, text, self.parameters, write=self.write, max_rows=limit)
        self.writes += self.write
        return answer, time.perf_counter() - begun

    def _export_hint(self) -> str:
        return "; `:export FILE QUERY;` writes up to 100,000" if self.screen.terminal else ""

    def _show_duration(self, answer: CypherAnswer, seconds: float) -> None:
        message = f"{seconds * 1000:,.1f} ms, {answer.took_ms:,.1f} ms of it in the server"
        (self.screen.note if self.screen.terminal else self.screen.warn)(message)


def summarize_cypher_answer(answer: CypherAnswer) -> str:
    """Return the number of rows, and the changes of a statement in write mode."""
    parts = [format_count_with_noun(answer.row_count, "row")] if answer.columns else []
    if answer.changes:
        parts.append(describe_cypher_changes(answer.changes))
    return " · ".join(parts) or "done"


def describe_cypher_changes(changes: CypherChanges) -> str:
    """Return the changes of a statement as text."""
    counts = (
        ("created", format_count_with_noun(changes.nodes_created, "node"), changes.nodes_created),
        ("created", format_count_with_noun(changes.edges_created, "relation"), changes.edges_created),
        ("updated", format_count_with_noun(changes.nodes_updated, "node"), changes.nodes_updated),
        ("updated", format_count_with_noun(changes.edges_updated, "relation"), changes.edges_updated),
        ("deleted", format_count_with_noun(changes.nodes_deleted, "node"), changes.nodes_deleted),
        ("deleted", format_count_with_noun(changes.edges_deleted, "relation"), changes.edges_deleted),
    )
    changes_text = [f"{verb} {count}" for verb, count, number in counts if number]
    return f"{', '.join(changes_text) or 'nothing changed'}; sequence {changes.sequence:,}"


def format_count_with_noun(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where needed."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"
