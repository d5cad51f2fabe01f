"""What a shell has been told so far, and how it asks with it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kgserve.client.files import complete
from kgserve.errors import InvalidInput
from kgserve.model.answers import CypherAnswer, CypherChanges
from kgserve.model.requests import MAX_CYPHER_ROWS
from kgserve.shell.formats import Mode, by_suffix
from kgserve.shell.screen import Screen
from kgserve.shell.server import Server

ROWS_ON_A_TERMINAL = 1000
"""Rows that a person is shown; programs and files get as many as the server gives."""


class Session:
    """Store, mode, parameters and settings of one shell, the server that it asks and the screen that it writes to."""

    def __init__(self, server: Server, screen: Screen, store: str | None, mode: Mode, *, write: bool) -> None:
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
        limit = ROWS_ON_A_TERMINAL if self.screen.terminal else MAX_CYPHER_ROWS
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
