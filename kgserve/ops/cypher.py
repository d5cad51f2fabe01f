"""Asking a store in Cypher, and changing it by a statement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from kgserve.cypher.guard import Statement, examine
from kgserve.cypher.reach import reach
from kgserve.decoding import decode_json
from kgserve.engine.engine import Cursor, Session
from kgserve.engine.process import Lost
from kgserve.engine.protocol import Difference
from kgserve.errors import TimedOut
from kgserve.model.answers import CypherAnswer, CypherChanges
from kgserve.model.batch import WriteBatch
from kgserve.model.columns import EDGE_EXTRAS, NODE_EXTRAS
from kgserve.model.plan import Report
from kgserve.model.requests import CypherRequest
from kgserve.ops.cypher_changes import batch_of
from kgserve.ops.submit import carry_out
from kgserve.store.aside import Trial
from kgserve.store.pool import StorePool
from kgserve.store.store import Store

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


def run(pool: StorePool, store: str, request: CypherRequest, control: Interruption | None = None) -> CypherAnswer:
    """The rows of a statement, and in mode write what it changed. Blocks.

    Raises InvalidInput with the place in the text, Forbidden for what may not be done in this mode, TimedOut, NotFound,
    StorageFull when the statement needs more memory than there is. A failing statement has changed nothing.
    """
    return change(pool, store, request, control).result()


def change(
    pool: StorePool, store: str, request: CypherRequest, control: Interruption | None = None
) -> Future[CypherAnswer]:
    """The same for who does not want to wait for the writer: the future raises what `run` raises once it is queued."""
    started = time.perf_counter()
    control = control or Interruption()
    statement = examine(request.query, request.params, writable=request.mode == "write")
    most = DEFAULT_ROWS if request.max_rows is None else request.max_rows
    seconds = seconds_of(pool, request)
    if statement.updates:
        return _queued(pool, store, lambda leased: _tried(leased, statement, most, seconds, control), started)

    def answered() -> CypherAnswer:
        with reading(pool, store, statement, seconds, most, control) as cursor:
            return _answer(cursor)

    answer = once_more(answered)
    done: Future[CypherAnswer] = Future()
    done.set_result(_timed(answer, started))
    return done


@contextmanager
def reading(
    pool: StorePool, store: str, statement: Statement, seconds: float, most: int | None, control: Interruption
) -> Generator[Cursor]:
    """The open result of a statement that reads, so many rows at most. Columns for extras are made when named."""
    with (
        pool.lease(store) as leased,
        leased.engine.reading(seconds, whole=bool(statement.words & EXTRAS)) as session,
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


def seconds_of(pool: StorePool, request: CypherRequest) -> float:
    """The time limit of a statement: the one asked for, but no more than the server's."""
    longest = pool.settings.query_timeout
    return longest if request.timeout_ms is None else min(request.timeout_ms / 1000, longest)


def _queued(
    pool: StorePool, store: str, attempt: Callable[[Store], tuple[WriteBatch, CypherAnswer]], started: float
) -> Future[CypherAnswer]:
    """Queue an attempt, and write what it changed."""
    answers: list[CypherAnswer] = []

    def begin(leased: Store) -> Future[Report]:
        def prepare() -> WriteBatch:
            batch, answer = attempt(leased)
            answers.append(answer)
            return batch

        return leased.submit_prepared(prepare)

    def answer(report: Report) -> CypherAnswer:
        return msgspec.structs.replace(_timed(answers[0], started), changes=_changes(report))

    return carry_out(pool, store, begin, answer, create=True)


def _timed(answer: CypherAnswer, started: float) -> CypherAnswer:
    return msgspec.structs.replace(answer, took_ms=round((time.perf_counter() - started) * 1000, 3))


def _tried(
    store: Store, statement: Statement, most: int, seconds: float, control: Interruption
) -> tuple[WriteBatch, CypherAnswer]:
    """What the statement answers and changes on a copy of the store."""
    within = reach(statement)

    def attempt(trial: Trial) -> tuple[Difference, CypherAnswer]:
        control.check()
        trial.session.seconds = seconds
        with control.over(trial.session), trial.session.reading(statement, most, writes=True) as cursor:
            answer = _answer(cursor)
        return trial.difference(within), answer

    difference, answer = store.copy.run(attempt, within)
    return batch_of(difference), answer


def _answer(cursor: Cursor) -> CypherAnswer:
    rows: list[list[Any]] = []
    total = 0
    for part in cursor.parts():
        # No line of JSON holds a line break.
        rows += decode_json(b"[" + part.lines.replace(b"\n", b",") + b"]", list[list[Any]])
        total += len(part.lines)
        if total >= MAX_ANSWER_BYTES:
            break
    return CypherAnswer(
        columns=cursor.columns,
        types=cursor.types,
        rows=rows,
        row_count=len(rows),
        truncated=cursor.total > len(rows),
        took_ms=0.0,
    )


def _changes(report: Report) -> CypherChanges:
    return CypherChanges(
        nodes_created=report.nodes_created,
        nodes_updated=report.nodes_updated,
        nodes_deleted=report.nodes_deleted,
        edges_created=report.edges_created,
        edges_updated=report.edges_updated,
        edges_deleted=report.edges_deleted,
        sequence=report.sequence,
    )
