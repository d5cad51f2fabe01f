"""Execution of Cypher statements: by the engine, or by the interpreter of openCypher.

The engine runs statements that the guard accepts and that use only columns. The interpreter runs all others, such as
statements with labels, relationship types and attributes of their own, and lookups of one node by its id.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Literal, TypeVar

import msgspec

from kgserve.cypher.guard import GuardedCypherStatement, validate_cypher_statement_for_engine
from kgserve.cypher.markdown_code_fences import blank_code_fences
from kgserve.errors import DiskFull, Forbidden, InvalidInput
from kgserve.graph.answers import CypherAnswer
from kgserve.graph.cypher.engine_read_statements import (
    DEFAULT_RESULT_ROWS,
    ResultCursor,
    StartedEngineRead,
    StatementCancellation,
    cap_statement_time_limit,
    collect_cypher_rows_up_to_size_limit,
    open_engine_read_statement_result,
    retry_after_engine_process_crash,
)
from kgserve.graph.cypher.engine_write_statements import EngineRefusedStatement, EngineWriteStatement
from kgserve.graph.cypher.interpreted_statements import (
    MAX_CACHED_QUERIES,
    InterpretedStatement,
    InterpretedWrite,
    open_interpreted_result,
    open_point_lookup_result,
    parse_and_check_interpreted_statement,
)
from kgserve.graph.cypher.iso_temporal_answers import convert_temporals_to_texts, wrap_cursor_with_temporal_texts
from kgserve.graph.cypher.point_lookup import PathCountNeedsEngine
from kgserve.graph.request_bodies import CypherRequest
from kgserve.graph.store_handle import StoreHandle
from kgserve.platform.json_values import is_same_json_value
from kgserve.platform.nonblocking_reads import WouldBlock

MAX_LOOKUP_CHARS = 500
"""Characters of a lookup that the event loop may parse, which takes about a millisecond."""
MAX_LOOKUP_PARAMETERS = 8
MAX_LOOKUP_PARAMETER_CHARS = 4_000

_Answer = TypeVar("_Answer")

_ENGINE_WORDS = re.compile(r"\b(Entity|RELATES_TO|Elsewhere|LINKS_TO)\b")


class StatementRouter:
    """Choice between the engine and the interpreter for one request."""

    def __init__(self, request: CypherRequest) -> None:
        self.request = request
        self._text = blank_code_fences(request.query)
        self._parameters = request.params
        self._writable = request.mode == "write"
        self.guarded: GuardedCypherStatement | None = None
        """The statement for the engine, once a statement is chosen; None if the engine does not accept it."""
        self.columns: Sequence[str] = ()
        """Names of the columns as typed, once a statement is chosen; empty if unknown."""

    @cached_property
    def statement(self) -> GuardedCypherStatement | InterpretedStatement:
        """The statement for the engine or for the interpreter.

        Raises InvalidInput if neither accepts it, and Forbidden for what the mode does not permit.
        """
        try:
            guarded = validate_cypher_statement_for_engine(self._text, self._parameters, writable=self._writable)
        except InvalidInput as refusal:
            return self.interpret(refusal)
        except Forbidden as refusal:
            return self._interpret_call(refusal)
        if guarded.names_links:
            return guarded.without_column_assumptions()
        try:
            statement = self._interpreted()
        except InvalidInput:
            self.guarded = guarded.without_column_assumptions()
            return self.guarded
        self.guarded, self.columns = guarded, statement.info.columns
        if statement.needs_interpreter or statement.lookup is not None or not self._has_exact_parameters(guarded):
            return statement
        return guarded

    def _has_exact_parameters(self, guarded: GuardedCypherStatement) -> bool:
        """Return whether the engine gets the values as sent, although its lists hold one type of number and of map."""
        return all(is_same_json_value(value, self._parameters[name]) for name, value in guarded.parameters.items())

    def interpret(self, refusal: InvalidInput) -> InterpretedStatement:
        """Return the statement for the interpreter.

        If it does not accept it either, raise its error, or ``refusal`` for a statement that is meant for the engine.
        """
        try:
            return self._interpreted()
        except InvalidInput as error:
            raise (refusal if _ENGINE_WORDS.search(self._text) else error) from None

    def interpret_instead(self, failure: InvalidInput | DiskFull) -> InterpretedStatement:
        """Return the statement for the interpreter; raise the ``failure`` of the engine if it does not accept it."""
        try:
            return self._interpreted()
        except InvalidInput:
            raise failure from None

    def _interpret_call(self, refusal: Forbidden) -> InterpretedStatement:
        """Return a statement that calls a procedure of the interpreter, or that has a plan of it.

        Raise ``refusal`` for any other.
        """
        with suppress(InvalidInput):
            statement = self._interpreted()
            if statement.info.procedures or (statement.plan and statement.needs_interpreter):
                return statement
        raise refusal

    def name_columns(self, columns: list[str]) -> list[str]:
        """Return the columns of an engine's answer, named as typed."""
        return [*self.columns] if len(self.columns) == len(columns) else columns

    def named(self, use: Callable[[ResultCursor], _Answer]) -> Callable[[ResultCursor], _Answer]:
        """Return ``use`` for cursors whose columns are named as typed."""

        def use_named(cursor: ResultCursor) -> _Answer:
            cursor.columns = self.name_columns(cursor.columns)
            return use(wrap_cursor_with_temporal_texts(cursor))

        return use_named

    def _interpreted(self) -> InterpretedStatement:
        statement = parse_and_check_interpreted_statement(self._text, self._parameters)
        if statement.info.is_updating and statement.plan != "EXPLAIN" and not self._writable:
            raise Forbidden('the statement writes data, but this request may only read; send "mode": "write"')
        return statement


def execute_read_statement(
    graph: StoreHandle,
    request: CypherRequest,
    most: int | None,
    control: StatementCancellation,
    use: Callable[[ResultCursor], _Answer],
) -> _Answer:
    """Return what ``use`` makes of the result of a reading statement; it may be called again after a failure.

    Raises what `run_cypher_request` raises.
    """
    return _read(graph, StatementRouter(request), most, control, use)


def _read(
    graph: StoreHandle,
    router: StatementRouter,
    most: int | None,
    control: StatementCancellation,
    use: Callable[[ResultCursor], _Answer],
) -> _Answer:
    statement, seconds = router.statement, cap_statement_time_limit(graph, router.request)
    if isinstance(statement, InterpretedStatement) and statement.lookup is not None:
        with suppress(*([PathCountNeedsEngine] if graph.most_edges is None else [])):
            return _look_up(graph, router, statement, most, use)
        statement = router.guarded or statement
    if isinstance(statement, GuardedCypherStatement):
        try:
            answer = _read_from_engine(graph, statement, seconds, most, control, router.named(use))
            _note_route(router.request.query, "engine")
            return answer
        except (InvalidInput, DiskFull) as failure:
            statement = router.interpret_instead(failure)
    with open_interpreted_result(graph, statement, seconds, most, control) as cursor:
        return use(cursor)


def _look_up(
    graph: StoreHandle,
    router: StatementRouter,
    statement: InterpretedStatement,
    most: int | None,
    use: Callable[[ResultCursor], _Answer],
) -> _Answer:
    assert statement.lookup is not None  # noqa: S101
    with open_point_lookup_result(
        graph, statement.lookup, statement.info.columns, statement.parameters, most
    ) as cursor:
        answer = use(cursor)
    _note_route(router.request.query, "lookup")
    return answer


StatementRoute = Literal["lookup", "engine"]
"""Way in which a text was answered last: from the rows, or by the engine."""
_known_routes: dict[str, StatementRoute] = {}


def _note_route(text: str, route: StatementRoute) -> None:
    if len(text) <= MAX_LOOKUP_CHARS:
        _known_routes[text] = route
    while len(_known_routes) > MAX_CACHED_QUERIES:
        _known_routes.pop(next(iter(_known_routes)), None)


def get_remembered_statement_route(request: CypherRequest) -> StatementRoute | None:
    """Return how a thread has answered the text of a reading request before; None with many or large parameters."""
    values = request.params.values()
    if request.mode != "read" or len(values) > MAX_LOOKUP_PARAMETERS:
        return None
    has_small_values = all(
        len(value) <= MAX_LOOKUP_PARAMETER_CHARS if isinstance(value, str) else isinstance(value, int | float | None)
        for value in values
    )
    return _known_routes.get(request.query) if has_small_values else None


def start_engine_read_statement(
    graph: StoreHandle, router: StatementRouter, most: int | None, control: StatementCancellation
) -> StartedEngineRead:
    """Send the statement of a known text to the engine, given the non-blocking handle of a store.

    Raises WouldBlock if the statement is not for the engine, or if the engine cannot begin at once.
    """
    statement = router.statement
    if not isinstance(statement, GuardedCypherStatement):
        raise WouldBlock
    return StartedEngineRead(graph, statement, cap_statement_time_limit(graph, router.request), most, control)


def _read_from_engine(
    graph: StoreHandle,
    statement: GuardedCypherStatement,
    seconds: float,
    most: int | None,
    control: StatementCancellation,
    use: Callable[[ResultCursor], _Answer],
) -> _Answer:
    def read() -> _Answer:
        with open_engine_read_statement_result(graph, statement, seconds, most, control) as cursor:
            return use(cursor)

    return retry_after_engine_process_crash(read)


def run_cypher_request(
    graph: StoreHandle, request: CypherRequest, control: StatementCancellation | None = None
) -> CypherAnswer:
    """Return the rows of a statement and, in write mode, what it changed. Blocks.

    In write mode, the store is created if it does not exist. A failing statement changes nothing.

    Raises InvalidInput with the position in the text, Forbidden for what the mode does not permit, TimedOut, NotFound,
    and StorageFull when the statement needs more memory than is available.
    """
    started = time.perf_counter()
    control = control or StatementCancellation()
    most = DEFAULT_RESULT_ROWS if request.max_rows is None else request.max_rows
    router = StatementRouter(request)
    answer = _write(graph, router, most, control) if request.mode == "write" else None
    if answer is None:
        answer = _read(graph, router, most, control, collect_cypher_rows_up_to_size_limit)
    return msgspec.structs.replace(answer, took_ms=round((time.perf_counter() - started) * 1000, 3))


def _write(
    graph: StoreHandle, router: StatementRouter, most: int, control: StatementCancellation
) -> CypherAnswer | None:
    """Run a statement if it writes; return None if it only reads."""
    statement, seconds = router.statement, cap_statement_time_limit(graph, router.request)
    if isinstance(statement, GuardedCypherStatement):
        updates = statement.updates
    else:
        updates = statement.info.is_updating and statement.plan != "EXPLAIN"
    if not updates:
        return None
    with graph.lease(create=True) as store:
        if isinstance(statement, GuardedCypherStatement):
            try:
                answer = EngineWriteStatement(store, statement, most, seconds, control).run()
                rows = [convert_temporals_to_texts(row) for row in answer.rows]
                return msgspec.structs.replace(answer, columns=router.name_columns(answer.columns), rows=rows)
            except EngineRefusedStatement as refused:
                statement = router.interpret_instead(refused.refusal)
        return InterpretedWrite(store, statement, most, seconds, control).run()
