"""Asking a store in Cypher, and changing it by a statement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import msgspec

from kgserve.cypher.guard import Statement, examine
from kgserve.cypher.reach import reach
from kgserve.engine import statement as statements
from kgserve.engine.session import Session
from kgserve.engine.statement import Cursor
from kgserve.errors import TimedOut
from kgserve.model.answers import CypherAnswer, CypherChanges
from kgserve.model.batch import WriteBatch
from kgserve.model.columns import EDGE_EXTRAS, NODE_EXTRAS
from kgserve.model.plan import Report
from kgserve.model.requests import CypherRequest
from kgserve.ops.cypher_changes import batch_of
from kgserve.ops.submit import carry_out
from kgserve.store.aside import Difference, Trial
from kgserve.store.pool import StorePool
from kgserve.store.store import Store

DEFAULT_ROWS = 1000
MAX_ANSWER_BYTES = 64 << 20
ROWS_AT_ONCE = 500
FEW_ROWS = 20
PART_BYTES = 1 << 20

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
    with reading(pool, store, statement, seconds, control) as cursor:
        answer = _answer(cursor, most)
    done: Future[CypherAnswer] = Future()
    done.set_result(_timed(answer, started))
    return done


@contextmanager
def reading(
    pool: StorePool, store: str, statement: Statement, seconds: float, control: Interruption
) -> Generator[Cursor]:
    """The open result of a statement that reads. The first that names extras has their columns made."""
    with (
        pool.lease(store) as leased,
        leased.engine.reading(seconds, whole=bool(statement.words & EXTRAS)) as session,
        control.over(session),
        statements.reading(session, statement) as cursor,
    ):
        yield cursor


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
        trial.session.limit(seconds)
        with control.over(trial.session), statements.writing(trial.session, statement) as cursor:
            answer = _answer(cursor, most)
        trial.session.limit(0)
        return trial.difference(within), answer

    difference, answer = store.copy.run(attempt, within)
    return batch_of(difference), answer


def in_parts(cursor: Cursor, most: int) -> Generator[tuple[list[list[Any]], int]]:
    """At most so many rows, in parts of about 1 MiB or 500 rows, with the bytes of each as JSON."""
    left, at_once = most, FEW_ROWS
    while rows := cursor.take(min(at_once, left)):
        size = len(msgspec.json.encode(rows))
        left -= len(rows)
        yield rows, size
        at_once = max(1, min(ROWS_AT_ONCE, len(rows) * PART_BYTES // size))


def _answer(cursor: Cursor, most: int) -> CypherAnswer:
    rows: list[list[Any]] = []
    total = 0
    for some, size in in_parts(cursor, most):
        rows += some
        total += size
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
