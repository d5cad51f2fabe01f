"""Asking a store in Cypher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from kgserve.cypher.guard import Statement
from kgserve.decoding import decode_json
from kgserve.engine.engine import Cursor, Session
from kgserve.engine.process import Lost
from kgserve.errors import TimedOut, TooLarge
from kgserve.model.answers import CypherAnswer
from kgserve.model.requests import CypherRequest
from kgserve.model.rows import EDGE_EXTRAS, NODE_EXTRAS
from kgserve.ops.graph import Graph

DEFAULT_ROWS = 1000
MAX_ANSWER_BYTES = 64 << 20

_Answer = TypeVar("_Answer")
EXTRAS = frozenset((*NODE_EXTRAS, *EDGE_EXTRAS))
"""Properties whose columns a store's engine file may not have yet."""


class Interruption:
    """Stops a statement from another thread, whatever it is at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self.wanted = False

    def interrupt(self) -> None:
        """Stop it. The engine does not hear it while it plans, so call this again until the statement has ended."""
        with self._lock:
            self.wanted = True
            if self._session is not None:
                self._session.interrupt()

    @contextmanager
    def over(self, session: Session) -> Generator[None]:
        """While inside, the session's statement can be stopped. Raises TimedOut when it was asked for before."""
        with self._lock:
            self.check()
            self._session = session
        try:
            yield
        finally:
            with self._lock:
                self._session = None

    def check(self) -> None:
        """Raise TimedOut when it was asked for."""
        if self.wanted:
            raise TimedOut("the statement was interrupted")


@contextmanager
def reading(
    graph: Graph, statement: Statement, seconds: float, most: int | None, control: Interruption
) -> Generator[Cursor]:
    """The open result of a statement that reads, so many rows at most. Columns for extras are made when named."""
    with (
        graph.lease() as store,
        store.engine.reading(seconds, whole=bool(statement.words & EXTRAS)) as session,
        control.over(session),
        session.reading(statement, most) as cursor,
    ):
        yield cursor


def once_more(work: Callable[[], _Answer]) -> _Answer:
    """What ``work`` answers; it reads again if somebody else's statement may have cost the engine its process."""
    try:
        return work()
    except Lost as error:
        if error.alone:
            raise
        return work()


def seconds_of(graph: Graph, request: CypherRequest) -> float:
    """The time limit of a statement: the one asked for, but no more than the server's."""
    longest = graph.graphs.settings.query_timeout
    return longest if request.timeout_ms is None else min(request.timeout_ms / 1000, longest)


def answer_of(cursor: Cursor) -> CypherAnswer:
    """All rows, or as many as an answer may hold."""
    rows: list[list[Any]] = []
    total = 0
    for line in cursor.lines():
        total += len(line)
        if total >= MAX_ANSWER_BYTES and not rows:
            raise too_large()
        if total >= MAX_ANSWER_BYTES:
            break
        rows.append(decode_json(line, list[Any]))
    return CypherAnswer(
        columns=cursor.columns,
        types=cursor.types,
        rows=rows,
        row_count=len(rows),
        truncated=cursor.total > len(rows),
        took_ms=0.0,
    )


def too_large() -> TooLarge:
    """What is said of an answer whose very first row is too much."""
    return TooLarge(f"the first row of the answer takes more than {MAX_ANSWER_BYTES >> 20} MiB; ask for less of it")
