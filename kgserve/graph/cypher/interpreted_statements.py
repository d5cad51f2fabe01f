"""Statements of openCypher that the interpreter runs over the rows of a store."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, islice
from typing import Any, NamedTuple, cast

import msgspec
from typing_extensions import override

from kgserve.cypher.guard import MAX_PARAMETER_BYTES, MAX_PARAMETER_DEPTH
from kgserve.cypher.interpreter.execution import QueryResult, execute_cypher_statement
from kgserve.cypher.interpreter.explain_profile_prefix import PlanRequest, split_explain_profile_prefix
from kgserve.cypher.interpreter.explained_statement_plan import (
    PLAN_COLUMNS,
    PROFILE_COLUMNS,
    StatementPlanDescriber,
    StatementPlanStep,
    tabulate_plan_steps,
)
from kgserve.cypher.interpreter.expression_compiler import EvaluationEnvironment
from kgserve.cypher.interpreter.graph_change_overlay import GraphChangeOverlay, GraphChanges
from kgserve.cypher.interpreter.graph_view_interface import ExecutionLimits, StatementGraphView
from kgserve.cypher.interpreter.json_results import convert_cypher_column_value_to_json, infer_result_column_type
from kgserve.cypher.interpreter.kuzu_table_names import rewrite_kuzu_table_names_in_query
from kgserve.cypher.interpreter.marker_labels import replace_marker_labels_by_properties
from kgserve.cypher.interpreter.opencypher_parser import parse_cypher_query
from kgserve.cypher.interpreter.opencypher_syntax_tree import ParameterReference, QueryUnion, iterate_syntax_tree
from kgserve.cypher.interpreter.semantic_checks import CheckedQuerySummary, check_query_semantics
from kgserve.cypher.interpreter.statement_profile import StatementProfile
from kgserve.cypher.lexer import build_cypher_syntax_error, describe_text_position
from kgserve.errors import FieldError, InvalidInput, TimedOut
from kgserve.graph.answers import CypherAnswer
from kgserve.graph.cypher.engine_read_statements import StatementCancellation, collect_cypher_rows_up_to_size_limit
from kgserve.graph.cypher.engine_support_check import has_cross_store_link_patterns, has_names_unknown_to_engine
from kgserve.graph.cypher.engine_write_gaps import has_writes_unfit_for_engine
from kgserve.graph.cypher.optimistic_write import OptimisticWrite
from kgserve.graph.cypher.point_lookup import PointLookup, find_point_lookup, has_string_lookup_id
from kgserve.graph.cypher.row_properties import build_node_properties_change, build_relationship_properties_change
from kgserve.graph.cypher.snapshot_graph_view import SnapshotGraphView, StatementReadSet, open_snapshot_graph_view
from kgserve.graph.store_handle import StoreHandle
from kgserve.projections.cypher_engine.engine.protocol import ResultChunk, StatementRowChanges
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

MAX_CACHED_QUERIES = 256
MAX_CACHED_QUERY_CHARS = 4 << 10
MAX_QUERY_BYTES = 64 << 10
_TYPED_ROWS = 1_000
"""Rows that the types of columns are inferred from."""
_ROWS_PER_CHUNK = 1_000
_INT64_LIMIT = 1 << 63

_encode = msgspec.json.Encoder().encode


class InterpretedStatement(NamedTuple):
    """Statement that the interpreter parsed and checked, and the parameters to run it with."""

    query: QueryUnion
    info: CheckedQuerySummary
    text: str
    parameters: Mapping[str, Any]
    needs_interpreter: bool
    """True if the statement uses names that the engine does not know, or writes in a way unfit for it."""
    plan: PlanRequest = ""
    """Prefix of the statement: its plan is shown instead of its rows."""
    lookup: PointLookup | None = None
    """The lookup that the statement consists of, if the rows answer it as the engine would."""


def parse_and_check_interpreted_statement(
    text: str, parameters: Mapping[str, Any], plan: PlanRequest = ""
) -> InterpretedStatement:
    """Parse and check a statement, which may begin with EXPLAIN or PROFILE unless ``plan`` has been split off.

    Raises InvalidInput with the position of the fault.
    """
    if len(text.encode(errors="surrogatepass")) > MAX_QUERY_BYTES:
        raise InvalidInput.at("query", f"the statement is larger than {MAX_QUERY_BYTES} bytes")
    if "\0" in text:
        raise build_cypher_syntax_error(text, text.index("\0"), "the statement has a NUL character")
    for name, value in parameters.items():
        require_valid_cypher_parameter_value(value, f"params.{name}")
    if len(_encode(parameters)) > MAX_PARAMETER_BYTES:
        raise InvalidInput.at("params", f"the values are larger than {MAX_PARAMETER_BYTES >> 20} MiB together")
    if not plan:
        plan, text = split_explain_profile_prefix(text)
    parse = _parse if len(text) <= MAX_CACHED_QUERY_CHARS else _parse.__wrapped__
    with attribute_errors_to_query_field():
        parsed = parse(text)
    missing = [
        FieldError(f"params.{name}", f"no value is given for ${name}, used at {describe_text_position(text, place)}")
        for name, place in parsed.parameters.items()
        if name not in parameters
    ]
    if missing and plan == "EXPLAIN":
        parameters = {**dict.fromkeys(parsed.parameters), **parameters}
    elif missing:
        raise InvalidInput(missing[0].message, tuple(missing))
    lookup = parsed.lookup if parsed.lookup and not plan and has_string_lookup_id(parsed.lookup, parameters) else None
    return InterpretedStatement(parsed.query, parsed.info, text, parameters, parsed.needs_interpreter, plan, lookup)


class _ParsedQuery(NamedTuple):
    query: QueryUnion
    info: CheckedQuerySummary
    needs_interpreter: bool
    parameters: dict[str, int]
    """Names of the parameters and where they are used first."""
    lookup: PointLookup | None


@contextmanager
def attribute_errors_to_query_field() -> Generator[None]:
    """Give errors of the interpreter the path of the statement in the request."""
    try:
        yield
    except InvalidInput as error:
        if error.errors:
            raise
        raise InvalidInput(error.message, (FieldError("query", error.message),)) from None


@lru_cache(MAX_CACHED_QUERIES)
def _parse(text: str) -> _ParsedQuery:
    typed = parse_cypher_query(text)
    if has_cross_store_link_patterns(typed):
        raise InvalidInput.at("query", "links into other stores are read as (:Entity)-[:LINKS_TO]->(:Elsewhere) only")
    query = replace_marker_labels_by_properties(rewrite_kuzu_table_names_in_query(typed))
    used = [node for node in iterate_syntax_tree(query) if isinstance(node, ParameterReference)]
    places = {node.name: node.position for node in reversed(used)}
    needs_interpreter = has_names_unknown_to_engine(typed) or has_writes_unfit_for_engine(typed)
    return _ParsedQuery(query, check_query_semantics(query, text), needs_interpreter, places, find_point_lookup(typed))


def require_valid_cypher_parameter_value(value: Any, path: str, depth: int = 0) -> None:
    """Raise InvalidInput with the path of a value that no parameter may have."""
    if depth > MAX_PARAMETER_DEPTH:
        raise InvalidInput.at(path, f"nested more than {MAX_PARAMETER_DEPTH} deep")
    if isinstance(value, dict):
        for name, part in cast("dict[str, Any]", value).items():
            _check_text(name, path)
            require_valid_cypher_parameter_value(part, f"{path}.{name}", depth + 1)
    elif isinstance(value, list):
        for index, part in enumerate(cast("list[Any]", value)):
            require_valid_cypher_parameter_value(part, f"{path}[{index}]", depth + 1)
    elif isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, int) and not -_INT64_LIMIT <= value < _INT64_LIMIT:
        raise InvalidInput.at(path, "the integer does not fit into 64 bits")


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput.at(path, "the text has half of a surrogate pair") from None


class InterpretedCursor:
    """Rows of a statement, computed as they are read; the counterpart of the engine's `EngineResultCursor`.

    ``total`` is the number of rows read, and one more if others follow.
    """

    seconds = 0.0

    def __init__(self, result: QueryResult, most: int | None, types: Sequence[str] | None = None) -> None:
        """Offer at most ``most`` rows. The types of columns are inferred from the first rows unless they are given."""
        first = [*islice(result.rows, _TYPED_ROWS)]
        self.columns = [*result.columns]
        inferred = (infer_result_column_type([row[at] for row in first]) for at in range(len(self.columns)))
        self.types = [*(inferred if types is None else types)]
        self.total = 0
        self._rows = chain(first, result.rows)
        self._most = most

    def lines(self) -> Iterator[bytes]:
        """Yield the rows as JSON arrays."""
        for row in self._rows:
            self.total += 1
            if self._most is not None and self.total > self._most:
                return
            yield _encode(
                [
                    convert_cypher_column_value_to_json(value, type_)
                    for value, type_ in zip(row, self.types, strict=True)
                ]
            )

    def parts(self) -> Iterator[ResultChunk]:
        """Yield the rows in pieces of whole lines."""
        lines = self.lines()
        while some := [*islice(lines, _ROWS_PER_CHUNK)]:
            yield ResultChunk(b"".join(line + b"\n" for line in some), len(some), more=True)


@contextmanager
def open_interpreted_result(
    graph: StoreHandle,
    statement: InterpretedStatement,
    seconds: float,
    most: int | None,
    control: StatementCancellation,
) -> Generator[InterpretedCursor]:
    """Yield the open result of a reading statement, with at most ``most`` rows."""
    limits = build_cancellation_and_timeout_limits(control, seconds)
    with graph.lease() as store, store.reading() as rows, attribute_errors_to_query_field():
        yield InterpretedCursor(
            run_interpreted_statement(statement, open_snapshot_graph_view(store, rows), limits), most
        )


@contextmanager
def open_point_lookup_result(
    graph: StoreHandle, lookup: PointLookup, columns: Sequence[str], parameters: Mapping[str, Any], most: int | None
) -> Generator[InterpretedCursor]:
    """Yield the result of a lookup, at most ``most`` rows. Raises PathCountNeedsEngine if the engine must count."""
    with graph.lease() as store, store.reading() as rows:
        found = lookup.read(rows, parameters)
    yield InterpretedCursor(QueryResult((*columns,), iter(found)), most, lookup.types)


def run_interpreted_statement(
    statement: InterpretedStatement, graph: StatementGraphView, limits: ExecutionLimits
) -> QueryResult:
    """Start a statement on a graph; after EXPLAIN or PROFILE, the rows are those of its plan.

    Raises InvalidInput, TimedOut and TooLarge, also while its rows are read.
    """
    if not statement.plan:
        return start_interpreted_statement(statement, graph, limits)
    profile = None
    if statement.plan == "PROFILE":
        profile = StatementProfile()
        for _ in start_interpreted_statement(statement, graph, limits, profile).rows:
            pass
    columns = PLAN_COLUMNS if profile is None else PROFILE_COLUMNS
    rows = tabulate_plan_steps(describe_interpreted_statement_plan(statement, graph, limits, profile))
    return QueryResult(columns, (row[: len(columns)] for row in rows))


def start_interpreted_statement(
    statement: InterpretedStatement,
    graph: StatementGraphView,
    limits: ExecutionLimits,
    profile: StatementProfile | None = None,
) -> QueryResult:
    """Start a statement without regard to its prefix; ``profile`` counts the rows of its clauses."""
    now, parameters = datetime.now(UTC), dict(statement.parameters)
    return execute_cypher_statement(
        statement.query, statement.info, graph, parameters, limits, now, statement.text, profile
    )


def describe_interpreted_statement_plan(
    statement: InterpretedStatement,
    graph: StatementGraphView,
    limits: ExecutionLimits,
    profile: StatementProfile | None = None,
) -> tuple[StatementPlanStep, ...]:
    """Return the plan of a statement on a graph, with rows and times if it has been run with a profile."""
    environment = EvaluationEnvironment(
        graph=graph, parameters=statement.parameters, limits=limits, now=datetime.now(UTC), text=statement.text
    )
    return StatementPlanDescriber(environment, profile).describe(statement.query)


def build_cancellation_and_timeout_limits(control: StatementCancellation, seconds: float) -> ExecutionLimits:
    """Return limits that end a statement when it is cancelled, and after a time."""
    until = time.perf_counter() + seconds

    def check() -> None:
        control.check()
        if time.perf_counter() > until:
            raise TimedOut(f"the statement took longer than {seconds:g} seconds")

    return ExecutionLimits(check)


class InterpretedWrite(OptimisticWrite):
    """A writing statement that the interpreter runs."""

    def __init__(
        self,
        store: OpenStore,
        statement: InterpretedStatement,
        max_rows: int,
        seconds: float,
        control: StatementCancellation,
    ) -> None:
        """Answer with at most `max_rows` rows, and take at most `seconds`."""
        super().__init__(store, max_rows, seconds, control)
        self._statement = statement
        self._reads = StatementReadSet()

    @override
    def compute(self, rows: RowsSnapshot) -> tuple[StatementRowChanges, CypherAnswer]:
        below = open_snapshot_graph_view(self._store, rows)
        edits = GraphChangeOverlay(below)
        with attribute_errors_to_query_field():
            result = self.start(edits, build_cancellation_and_timeout_limits(self._control, self._seconds))
            answer = self.collect(result, edits)
        self._reads = below.reads
        return convert_graph_changes_to_row_changes(edits.changes(), below), answer

    def start(self, edits: GraphChangeOverlay, limits: ExecutionLimits) -> QueryResult:
        """Start the statement on the changes that it is to make."""
        return run_interpreted_statement(self._statement, edits, limits)

    def collect(self, result: QueryResult, edits: GraphChangeOverlay) -> CypherAnswer:  # noqa: ARG002 - for subclasses
        """Execute the statement and return its answer, without the changes."""
        return collect_cypher_rows_up_to_size_limit(InterpretedCursor(result, self._max_rows))

    @override
    def may_have_read(self, since: list[ChangeSet], rows: RowsSnapshot) -> bool:
        return self._reads.overlaps(since)


def convert_graph_changes_to_row_changes(changes: GraphChanges, graph: SnapshotGraphView) -> StatementRowChanges:
    """Return the changed rows of a statement. Raises InvalidInput for values that no row accepts."""
    gone = {each.id for each in changes.deleted_nodes}
    replaced = [each for each in changes.updated_relationships if each.is_replaced]
    removed = [each.key for each in (*changes.deleted_relationships, *replaced)]
    edges = (*changes.created_relationships, *changes.updated_relationships)
    return StatementRowChanges(
        nodes=[
            *(build_node_properties_change(None, each) for each in changes.created_nodes),
            *(build_node_properties_change(graph.node_row(each.id), each) for each in changes.updated_nodes),
        ],
        edges=[build_relationship_properties_change(graph.changed_edge_row(each), each) for each in edges],
        nodes_gone=[*gone],
        edges_gone=[key for key in removed if not gone.intersection(key[:2])],
        doubled=[],
    )
