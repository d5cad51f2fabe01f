"""Reading statements that the engine runs, and their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

from kgserve.cypher import completion
from kgserve.cypher.guard import GuardedCypherStatement
from kgserve.errors import TimedOut, TooLarge
from kgserve.graph.answers import CypherAnswer, CypherVocabulary
from kgserve.graph.request_bodies import CypherRequest
from kgserve.graph.store_handle import CallerStoreHandles, StoreHandle
from kgserve.platform.codecs import decode_json
from kgserve.projections.cypher_engine.engine.engine_handle import EngineProcessSession, EngineResultCursor
from kgserve.projections.cypher_engine.engine.process import EngineProcessDied
from kgserve.projections.cypher_engine.engine.protocol import ResultChunk
from kgserve.storage.model.node_edge_fields import EDGE, NODE, NodeEdgeColumnSet, get_row_field_names

DEFAULT_RESULT_ROWS = 1000
MAX_RESULT_BYTES = 64 << 20

_Answer = TypeVar("_Answer")
_EXTRA_PROPERTIES = frozenset(get_row_field_names(NODE.extras + EDGE.extras))
_MEMORY_PROPERTIES = frozenset(get_row_field_names(NODE.memory + EDGE.memory))
"""Properties whose columns a store's engine file may not have yet."""


class ResultCursor(Protocol):
    """Open result of a statement. ``total`` is at least the number of rows read, and larger if others follow.

    ``seconds`` is the time until the first rows arrived.
    """

    columns: list[str]
    types: list[str]
    total: int
    seconds: float

    def lines(self) -> Iterator[bytes]:
        """Yield the rows as JSON arrays. Raises errors from `kgserve.errors`."""
        ...

    def parts(self) -> Iterator[ResultChunk]:
        """Yield the text of the rows in pieces. Raises errors from `kgserve.errors`."""
        ...


class StatementCancellation:
    """Cancellation of a statement from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: EngineProcessSession | None = None
        self.wanted = False

    def interrupt(self) -> None:
        """Cancel the statement. The engine ignores this while it plans, so repeat it until the statement has ended."""
        with self._lock:
            self.wanted = True
            if self._session is not None:
                self._session.interrupt()

    @contextmanager
    def over(self, session: EngineProcessSession) -> Generator[None]:
        """Allow cancellation of the statement of a session within a block. Raises TimedOut if already cancelled."""
        with self._lock:
            self.check()
            self._session = session
        try:
            yield
        finally:
            with self._lock:
                self._session = None

    def check(self) -> None:
        """Raise TimedOut if the statement was cancelled."""
        if self.wanted:
            raise TimedOut("the statement was interrupted")


@contextmanager
def open_engine_read_statement_result(
    graph: StoreHandle,
    statement: GuardedCypherStatement,
    seconds: float,
    most: int | None,
    control: StatementCancellation,
) -> Generator[EngineResultCursor]:
    """Yield the open result of a reading statement, with at most ``most`` rows.

    Columns of optional fields are created when the statement names them.
    """
    with (
        graph.lease() as store,
        store.engine.reading(seconds, width=find_statement_column_set(statement)) as session,
        control.over(session),
        session.reading(statement, most) as cursor,
    ):
        yield cursor


class StartedEngineRead:
    """Reading statement that the engine's process has been sent, and whose result was not read yet.

    Creating it never blocks. `use` must be called, and blocks unless `try_open` returned True before.
    """

    def __init__(
        self,
        graph: StoreHandle,
        statement: GuardedCypherStatement,
        seconds: float,
        most: int | None,
        control: StatementCancellation,
    ) -> None:
        """Send the statement to the engine of a store, given its non-blocking handle.

        Raises WouldBlock if the store is not open, or its engine is not open, current and free.
        """
        with ExitStack() as stack:
            store = stack.enter_context(graph.lease())
            self._session = stack.enter_context(
                store.engine.reading(seconds, width=find_statement_column_set(statement), block=False)
            )
            stack.enter_context(control.over(self._session))
            self._session.send(statement, most)
            self._stack = stack.pop_all()
        self._cursor: EngineResultCursor | None = None

    @property
    def descriptor(self) -> int:
        """File descriptor that is readable once the process has replied or ended."""
        return self._session.channel.connection.fileno()

    def try_open(self) -> bool:
        """Open the result if it has arrived and is small; return whether its rows can be read without waiting.

        Raises errors in the caller's terms, after which `use` must not be called.
        """
        if not self._session.channel.has_small_reply():
            return False
        return not self._open().has_more

    def use(self, use: Callable[[EngineResultCursor], _Answer]) -> _Answer:
        """Return what ``use`` makes of the result, and release the engine. Raises errors in the caller's terms."""
        cursor = self._cursor or self._open()
        with self._stack:
            return use(cursor)

    def _open(self) -> EngineResultCursor:
        with self._stack as stack:
            self._cursor = stack.enter_context(self._session.receiving())
            self._stack = stack.pop_all()
        return self._cursor


def find_statement_column_set(statement: GuardedCypherStatement) -> NodeEdgeColumnSet:
    """Return the columns that a statement uses.

    Names of memory columns count only as properties, because they are common.
    """
    if statement.names_links:
        return NodeEdgeColumnSet.LINKS
    if statement.properties & _MEMORY_PROPERTIES:
        return NodeEdgeColumnSet.MEMORY
    return NodeEdgeColumnSet.EXTRAS if statement.words & _EXTRA_PROPERTIES else NodeEdgeColumnSet.PLAIN


def retry_after_engine_process_crash(work: Callable[[], _Answer]) -> _Answer:
    """Return the result of ``work``; retry once if another statement may have crashed the engine process."""
    try:
        return work()
    except EngineProcessDied as error:
        if error.alone:
            raise
        return work()


def cap_statement_time_limit(graph: StoreHandle, request: CypherRequest) -> float:
    """Return the time limit of a statement: the requested one, at most the server's."""
    longest = graph.graphs.settings.query_timeout
    return longest if request.timeout_ms is None else min(request.timeout_ms / 1000, longest)


def collect_cypher_rows_up_to_size_limit(cursor: ResultCursor) -> CypherAnswer:
    """Return all rows, or as many as fit into an answer."""
    rows: list[list[Any]] = []
    total = 0
    for line in cursor.lines():
        total += len(line)
        if total >= MAX_RESULT_BYTES and not rows:
            raise first_row_too_large_error()
        if total >= MAX_RESULT_BYTES:
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


def first_row_too_large_error() -> TooLarge:
    """Return the error for an answer whose first row exceeds the limit."""
    return TooLarge(f"the first row of the answer exceeds {MAX_RESULT_BYTES >> 20} MiB; return less per row")


def list_cypher_vocabulary(_graphs: CallerStoreHandles) -> CypherVocabulary:
    """Return keywords, functions, procedures, and labels with their properties, for completion in editors.

    They are the same for every store; its types and relation types are in its `stats`.
    """
    return CypherVocabulary(
        keywords=[*completion.COMPLETION_KEYWORDS],
        functions=[*completion.COMPLETION_FUNCTIONS],
        procedures=[*completion.COMPLETION_PROCEDURES],
        labels=completion.PROPERTIES_BY_LABEL,
    )
