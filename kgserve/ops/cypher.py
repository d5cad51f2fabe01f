"""Running one statement. What one that writes would change is found beside other writes, then written like anything.

Its changes are found from the rows of one commit. When others have written since, it is looked at again before they
are written: whether what came since could matter, or else the statement itself, at last with nobody writing meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from functools import partial

import msgspec

from kgserve.cypher.ending import Ending, ending
from kgserve.cypher.guard import Statement, examine
from kgserve.cypher.reach import reach
from kgserve.engine.protocol import Difference
from kgserve.errors import InvalidInput
from kgserve.model.answers import CypherAnswer, CypherChanges
from kgserve.model.batch import WriteBatch
from kgserve.model.plan import Report
from kgserve.model.requests import CypherRequest
from kgserve.ops.cypher_changes import batch_of
from kgserve.ops.cypher_ending import Moved, NotUnderstood, difference
from kgserve.ops.cypher_read import DEFAULT_ROWS, EXTRAS, Interruption, answer_of, once_more, reading, seconds_of
from kgserve.store.aside import Trial
from kgserve.store.pool import StorePool
from kgserve.store.store import Store

TRIES = 3
"""So often a statement is tried beside other writes, before they wait for it."""
INTERRUPT_SECONDS = 0.05
AT_ONCE_SECONDS = 0.2
"""What took less is done again when its turn has come, if others have written meanwhile."""


class _Overtaken(Exception):
    """Others have written what may matter."""


class _Found(msgspec.Struct, frozen=True):
    """What a statement changes and answers, as of a commit, and how long it took to find out."""

    batch: WriteBatch
    answer: CypherAnswer
    sequence: int
    seconds: float


class _Writing:
    """One statement that writes, of a store that is leased meanwhile."""

    def __init__(self, store: Store, statement: Statement, most: int, seconds: float, control: Interruption) -> None:
        """At most so many rows are answered, and so many seconds taken."""
        self._store = store
        self._statement = statement
        self._most = most
        self._seconds = seconds
        self._control = control
        self._ending = ending(statement)

    def run(self) -> CypherAnswer:
        """Carry it out, and wait for it. Blocks."""
        if self._ending is not None:
            # On a copy the engine says in its own words what is wrong.
            with suppress(NotUnderstood, InvalidInput):
                return self._carried_out()
            self._ending = None
        with self._store.copy.turn(self._control.check):
            return self._carried_out()

    def _carried_out(self) -> CypherAnswer:
        for _ in range(TRIES):
            found = self._find()
            with suppress(_Overtaken):
                return self._commit(partial(self._still, found))
        return self._commit(self._find)

    def _commit(self, prepare: Callable[[], _Found]) -> CypherAnswer:
        """Write what is found in the writer's turn."""
        answers: list[CypherAnswer] = []

        def prepared() -> WriteBatch:
            found = prepare()
            answers.append(found.answer)
            return found.batch

        writing = self._store.submit_prepared(prepared)
        try:
            report = writing.result()
        except KeyboardInterrupt:
            # It would go on in the writer's thread; the engine does not hear of it while it plans.
            while not wait([writing], INTERRUPT_SECONDS).done:
                self._control.interrupt()
            raise
        return msgspec.structs.replace(answers[0], changes=_changes(report))

    def _still(self, found: _Found) -> _Found:
        """What was found before, if it still holds; for the writing thread."""
        self._control.check()
        if self._store.state.sequence == found.sequence:
            return found
        if found.seconds < AT_ONCE_SECONDS:
            return self._find()
        raise _Overtaken

    def _find(self) -> _Found:
        """What it changes and answers, of the rows of now."""
        started = time.perf_counter()
        while True:
            self._control.check()
            with suppress(Moved):
                found, answer, sequence = self._tried() if self._ending is None else self._asked(self._ending)
                return _Found(batch_of(found), answer, sequence, time.perf_counter() - started)

    def _asked(self, end: Ending) -> tuple[Difference, CypherAnswer, int]:
        """By asking the question that comes before its end."""
        question, whole = end.question, bool(self._statement.words & EXTRAS)

        def asked() -> tuple[Difference, int]:
            with (
                self._store.reading() as rows,
                self._store.engine.reading(self._seconds, whole=whole) as session,
                self._control.over(session),
                session.reading(question) as cursor,
            ):
                return difference(end, cursor, rows), rows.at

        found, sequence = once_more(asked)
        return found, NO_ROWS, sequence

    def _tried(self) -> tuple[Difference, CypherAnswer, int]:
        """By running it on a copy of the store."""
        within = reach(self._statement)

        def attempt(trial: Trial) -> tuple[Difference, CypherAnswer, int]:
            self._control.check()
            session = trial.session
            session.seconds = self._seconds
            with self._control.over(session), session.reading(self._statement, self._most, writes=True) as cursor:
                answer = answer_of(cursor)
            return trial.difference(within), answer, trial.sequence

        return self._store.copy.run(attempt, within)


NO_ROWS = CypherAnswer(columns=[], types=[], rows=[], row_count=0, truncated=False, took_ms=0.0)


def run(pool: StorePool, store: str, request: CypherRequest, control: Interruption | None = None) -> CypherAnswer:
    """The rows of a statement, and in mode write what it changed; the store is then made if it is not there. Blocks.

    Raises InvalidInput with the place in the text, Forbidden for what may not be done in this mode, TimedOut, NotFound,
    StorageFull when the statement needs more memory than there is. A failing statement has changed nothing.
    """
    started = time.perf_counter()
    control = control or Interruption()
    statement = examine(request.query, request.params, writable=request.mode == "write")
    most = DEFAULT_ROWS if request.max_rows is None else request.max_rows
    seconds = seconds_of(pool, request)
    if statement.updates:
        with pool.lease(store, create=True) as leased:
            answer = _Writing(leased, statement, most, seconds, control).run()
    else:

        def answered() -> CypherAnswer:
            with reading(pool, store, statement, seconds, most, control) as cursor:
                return answer_of(cursor)

        answer = once_more(answered)
    return msgspec.structs.replace(answer, took_ms=round((time.perf_counter() - started) * 1000, 3))


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
