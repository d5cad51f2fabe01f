"""Running one statement. What one that writes would change is found beside other writes, then written like anything.

Its changes are found from the rows of one commit. When others have written since, it is looked at again before they
are written: whether what came since could matter, or else the statement itself, at last with nobody writing meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from functools import cached_property, partial

import msgspec

from kgserve.cypher.guard import Statement, examine
from kgserve.cypher.writes import Ending, Footprint, ending, meets_any, reach
from kgserve.engine.protocol import Difference
from kgserve.errors import Gone, InvalidInput
from kgserve.journal.tail import Tail
from kgserve.model.answers import CypherAnswer, CypherChanges
from kgserve.model.batch import WriteBatch
from kgserve.model.change import ChangeSet
from kgserve.model.plan import Report
from kgserve.model.requests import CypherRequest
from kgserve.ops.cypher_changes import batch_of
from kgserve.ops.cypher_ending import Moved, NotUnderstood, carried_out
from kgserve.ops.cypher_read import DEFAULT_ROWS, EXTRAS, Interruption, answer_of, once_more, reading, seconds_of
from kgserve.ops.graph import Graph
from kgserve.rows.snapshot import Rows
from kgserve.store.copy_on_write import Trial
from kgserve.store.removal import Removal, is_large
from kgserve.store.store import Store
from kgserve.store.writer import Planned

TRIES = 3
"""So often a statement is tried beside other writes, before they wait for it."""
INTERRUPT_SECONDS = 0.05
AT_ONCE_SECONDS = 0.2
"""What took less is done again when its turn has come, if others have written what it may have met."""
ASKED_AGAIN_SECONDS = 0.5
MOST_SINCE = 20_000
"""Commits of others that are looked through."""


class _Overtaken(Exception):
    """Others have written what may matter."""


class _Found(msgspec.Struct, frozen=True):
    """What a statement changes and answers, as of a commit, and how long it took to find out.

    There is no ``batch`` for very many rows that go.
    """

    batch: WriteBatch | None
    difference: Difference
    answer: CypherAnswer
    sequence: int
    seconds: float

    def goes_with(self, other: _Found) -> bool:
        """Whether the same rows go."""
        return set(self.difference.nodes_gone) == set(other.difference.nodes_gone) and set(
            self.difference.edges_gone
        ) == set(other.difference.edges_gone)


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

    @cached_property
    def _footprint(self) -> Footprint:
        """What it may meet, which is asked only when others have written meanwhile."""
        return Footprint(self._statement)

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
            with suppress(_Overtaken), self._store.reading() as rows, ExitStack() as lasting:
                found = self._find(rows)
                removal = None if found.batch is not None else self._removal(found, rows, lasting)
                return self._commit(partial(self._still, found, removal, rows))
        return self._alone()

    def _alone(self) -> CypherAnswer:
        """Find out and write with nobody writing meanwhile."""
        # Reading, so that rows which turn out to be damaged are made anew.
        with self._store.reading(), self._store.folding.foreseeing(self._control.check) as foreseen:

            def found_now() -> tuple[_Found, WriteBatch | Planned]:
                foreseen.begin_again()
                found = self._find(foreseen.rows)
                if found.batch is not None:
                    return found, found.batch
                return found, Removal(foreseen, found.difference.nodes_gone, found.difference.edges_gone)

            return self._commit(found_now)

    def _commit(self, ready: Callable[[], tuple[_Found, WriteBatch | Planned]]) -> CypherAnswer:
        """Write what is ``ready`` in the writer's turn."""
        answers: list[CypherAnswer] = []

        def prepared() -> WriteBatch | Planned:
            self._control.check()
            found, what = ready()
            answers.append(found.answer)
            return what

        writing = self._store.submit_prepared(prepared)
        try:
            report = writing.result()
        except KeyboardInterrupt:
            # It would go on in the writer's thread; the engine does not hear of it while it plans.
            while not wait([writing], INTERRUPT_SECONDS).done:
                self._control.interrupt()
            raise
        return msgspec.structs.replace(answers[0], changes=_changes(report))

    def _still(self, found: _Found, removal: Removal | None, rows: Rows) -> tuple[_Found, WriteBatch | Planned]:
        """What was found before, or is now, if it took no time; for the writing thread."""
        if found.batch is not None:
            since = self._since(found.sequence)
            if not since or not (overlaps(found.batch, since) or self._meets(since, rows)):
                return found, found.batch
            now = self._quickly_found() if found.seconds < AT_ONCE_SECONDS else None
            if now is None or now.batch is None:
                raise _Overtaken
            return now, now.batch
        assert removal is not None  # noqa: S101
        since = removal.unmet()
        if since is None or (self._meets(since, rows) and not self._is_as_before(found)):
            raise _Overtaken
        return found, removal

    def _quickly_found(self) -> _Found:
        with self._store.reading() as rows:
            return self._find(rows)

    def _removal(self, found: _Found, rows: Rows, lasting: ExitStack) -> Removal:
        """Work out beside other writes what goes. Raises _Overtaken."""
        foreseen = lasting.enter_context(self._store.folding.foreseeing(self._control.check))
        gone = found.difference
        since = self._since(found.sequence, foreseen.rows.at)
        if since and (self._meets(since, rows) or self._ties(since, gone)) and not self._is_as_before(found):
            raise _Overtaken
        removal = Removal(foreseen, gone.nodes_gone, gone.edges_gone)
        # Most of what came meanwhile is looked at before its turn has come.
        since = removal.unmet()
        if since is None or (self._meets(since, rows) and not self._is_as_before(found)):
            raise _Overtaken
        return removal

    def _since(self, sequence: int, last: int | None = None) -> list[ChangeSet]:
        """What others have written after a commit."""
        last = self._store.state.sequence if last is None else last
        if last == sequence:
            return []
        if last - sequence > MOST_SINCE:
            raise _Overtaken
        try:
            return [*Tail(self._store.layout.journal).read(sequence + 1, last)]
        except Gone:
            # The journal no longer has what came while this one took its time.
            raise _Overtaken from None

    def _meets(self, since: list[ChangeSet], rows: Rows) -> bool:
        """Whether the statement could have met what others have written after these rows."""
        new = [row for change in since for row in change.nodes_created]
        changed = [row for change in since for row in (*change.nodes_updated, *change.nodes_deleted)]
        edges = [key for change in since for key in change.edge_keys()]
        return meets_any(self._footprint, rows.node, new, changed, edges)

    def _ties(self, since: list[ChangeSet], gone: Difference) -> bool:
        """Whether others have given an edge to a node that may only go without one."""
        if self._ending is not None and self._ending.detach:
            return False
        nodes = set(gone.nodes_gone)
        return any(key[0] in nodes or key[1] in nodes for change in since for key in change.edge_keys())

    def _is_as_before(self, found: _Found) -> bool:
        """Whether the same rows would go now, where asking takes no time."""
        if self._ending is None or found.seconds > ASKED_AGAIN_SECONDS:
            return False
        return self._quickly_found().goes_with(found)

    def _find(self, rows: Rows) -> _Found:
        """What it changes and answers; these rows are not newer than what it meets."""
        started = time.perf_counter()
        while True:
            self._control.check()
            with suppress(Moved):
                found, answer = self._tried() if self._ending is None else self._asked(self._ending)
                only_goes = not (found.nodes or found.edges or found.doubled)
                large = only_goes and is_large(rows, found.nodes_gone, found.edges_gone)
                batch = None if large else batch_of(found)
                return _Found(batch, found, answer, rows.at, time.perf_counter() - started)

    def _asked(self, end: Ending) -> tuple[Difference, CypherAnswer]:
        """By asking the question that comes before its end."""
        question, whole = end.question, bool(self._statement.words & EXTRAS)

        def asked() -> tuple[Difference, CypherAnswer]:
            with (
                self._store.reading() as rows,
                self._store.engine.reading(self._seconds, whole=whole) as session,
                self._control.over(session),
                session.reading(question) as cursor,
            ):
                return carried_out(end, cursor, rows, self._most)

        return once_more(asked)

    def _tried(self) -> tuple[Difference, CypherAnswer]:
        """By running it on a copy of the store."""
        within = reach(self._statement)

        def attempt(trial: Trial) -> tuple[Difference, CypherAnswer]:
            self._control.check()
            session = trial.session
            session.seconds = self._seconds
            with self._control.over(session), session.reading(self._statement, self._most, writes=True) as cursor:
                answer = answer_of(cursor)
            return trial.difference(within), answer

        return self._store.copy.run(attempt, within)


def run(graph: Graph, request: CypherRequest, control: Interruption | None = None) -> CypherAnswer:
    """The rows of a statement, and in mode write what it changed; the store is then made if it is not there. Blocks.

    Raises InvalidInput with the place in the text, Forbidden for what may not be done in this mode, TimedOut, NotFound,
    StorageFull when the statement needs more memory than there is. A failing statement has changed nothing.
    """
    started = time.perf_counter()
    control = control or Interruption()
    statement = examine(request.query, request.params, writable=request.mode == "write")
    most = DEFAULT_ROWS if request.max_rows is None else request.max_rows
    seconds = seconds_of(graph, request)
    if statement.updates:
        with graph.lease(create=True) as store:
            answer = _Writing(store, statement, most, seconds, control).run()
    else:

        def answered() -> CypherAnswer:
            with reading(graph, statement, seconds, most, control) as cursor:
                return answer_of(cursor)

        answer = once_more(answered)
    return msgspec.structs.replace(answer, took_ms=round((time.perf_counter() - started) * 1000, 3))


def overlaps(batch: WriteBatch, since: Iterable[ChangeSet]) -> bool:
    """Whether others have written any of the rows that a batch writes, or taken away what it relies on."""
    gone = set(batch.delete_nodes)
    nodes = gone.union(put.id for put in batch.nodes)
    edges = {*batch.delete_edges, *(put.key for put in batch.edges)}
    ends = {end for key in edges for end in key[:2]}
    return any(each.meets(nodes, edges, gone) or not ends.isdisjoint(each.nodes_deleted) for each in since)


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
