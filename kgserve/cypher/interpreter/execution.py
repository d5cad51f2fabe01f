"""Execution of Cypher statements: clauses as stages over streams of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from kgserve.cypher.interpreter.expression_compiler import EvaluationEnvironment, ExpressionCompiler
from kgserve.cypher.interpreter.graph_view_interface import ExecutionLimits, Row, StatementGraphView, WritableGraphView
from kgserve.cypher.interpreter.marker_labels import replace_marker_labels_by_properties
from kgserve.cypher.interpreter.opencypher_parser import parse_cypher_query
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    CallProcedureClauseNode,
    CallSubqueryClauseNode,
    CreateClauseNode,
    DeleteClauseNode,
    ForeachClauseNode,
    MatchClauseNode,
    MergeClauseNode,
    ProjectionClauseNode,
    QueryStage,
    QueryUnion,
    SetOrRemoveClauseNode,
    UnwindClauseNode,
)
from kgserve.cypher.interpreter.pattern_matcher import GraphPatternCompiler
from kgserve.cypher.interpreter.pattern_model import find_pattern_variables
from kgserve.cypher.interpreter.procedure_definition import ProcedureCallContext
from kgserve.cypher.interpreter.procedures import find_procedure
from kgserve.cypher.interpreter.semantic_checks import CheckedQuerySummary, is_importing_with, is_updating_query
from kgserve.cypher.interpreter.statement_profile import StatementProfile
from kgserve.cypher.interpreter.value_comparison import describe_value_type, value_equivalence_key
from kgserve.cypher.interpreter.with_and_return_clauses import WithReturnClauseCompiler, find_counting_group_variables
from kgserve.cypher.interpreter.write_clauses import WriteClauseCompiler
from kgserve.errors import InvalidInput

StageFunction: TypeAlias = Callable[[Iterator[Row]], Iterator[Row]]
QueryFunction: TypeAlias = Callable[[Row], Iterator[Row]]

_PROCEDURE_STEPS = 100
"""Work that a call counts as, next to that of its own loops."""
MAX_PROCEDURE_QUERIES = 1_000
MAX_STREAMED_CLAUSES = 50
MAX_STREAMED_SUBQUERY_CLAUSES = 10
"""Clauses that pass rows on one by one; each takes some frames of Python's stack, in every subquery around it."""
"""Compiled queries of procedures that a statement keeps."""


class QueryResult(msgspec.Struct, frozen=True):
    """Result of a query: its columns and rows. The rows of a statement that only reads are computed lazily."""

    columns: tuple[str, ...]
    rows: Iterator[list[Any]]


def execute_cypher_statement(  # noqa: PLR0913, PLR0917 - all that an execution depends on
    query: QueryUnion,
    info: CheckedQuerySummary,
    graph: StatementGraphView,
    parameters: dict[str, Any],
    limits: ExecutionLimits,
    now: datetime,
    text: str = "",
    profile: StatementProfile | None = None,
) -> QueryResult:
    """Execute a Cypher statement; ``text`` is for positions in errors, ``profile`` counts the rows of its clauses.

    A statement that writes is complete when this returns. Raises InvalidInput, TimedOut and TooLarge, also while the
    rows are read.
    """
    environment = EvaluationEnvironment(
        graph=graph, parameters=parameters, limits=limits, now=now, text=text, profile=profile
    )
    compiler = QueryCompiler(environment)
    run = compiler.compile_query(query)
    columns = info.columns or _procedure_columns(query)
    found = run({})
    if not info.is_updating:
        rows = found if columns else iter(list[Row](_exhaust(found)))
        return QueryResult(columns, _read_columns(rows, columns, limits))
    held = list(found)
    if isinstance(graph, WritableGraphView):
        graph.check_deletions()
    return QueryResult(columns, _read_columns(iter(held if columns else []), columns, limits))


def _exhaust(rows: Iterator[Row]) -> Iterator[Row]:
    for _ in rows:
        pass
    yield from ()


def _read_columns(rows: Iterator[Row], columns: tuple[str, ...], limits: ExecutionLimits) -> Iterator[list[Any]]:
    for row in rows:
        limits.step()
        yield [row[name] for name in columns]


def _procedure_columns(query: QueryUnion) -> tuple[str, ...]:
    """Return the columns of a statement that is nothing but a call."""
    stages = query.queries[0]
    if len(query.queries) == 1 and len(stages) == 1 and isinstance(stages[0], CallProcedureClauseNode):
        stage = stages[0]
        return tuple(alias for _, alias in _read_yields(stage))
    return ()


def _read_yields(stage: CallProcedureClauseNode) -> tuple[tuple[str, str], ...]:
    """Return the columns that a call yields, and their variables. Raises InvalidInput for unknown ones."""
    procedure = find_procedure(stage.name)
    if not stage.yields:
        return tuple((name, name) for name in procedure.outputs)
    for name, _ in stage.yields:
        if name not in procedure.outputs:
            known = ", ".join(procedure.outputs)
            raise InvalidInput(f"procedure {procedure.name} has no column {name}; it yields {known}")
    return stage.yields


class QueryCompiler:
    """Compiles queries to functions that yield rows for an outer row."""

    def __init__(self, environment: EvaluationEnvironment) -> None:
        self.limits = environment.limits
        self.environment = environment
        self.compiler = ExpressionCompiler(environment)
        self.matcher = GraphPatternCompiler(environment, self.compiler)
        environment.match_pattern = self.matcher.compile_path
        environment.run_subquery = self.compile_query
        self._query_depth = 0
        self._procedure_queries: dict[str, QueryFunction] = {}
        self._compilers: dict[type, Callable[[Any], StageFunction]] = {
            MatchClauseNode: self._compile_match,
            UnwindClauseNode: self._compile_unwind,
            ProjectionClauseNode: self._compile_projection,
            CreateClauseNode: self._compile_create,
            MergeClauseNode: self._compile_merge,
            SetOrRemoveClauseNode: self._compile_update,
            DeleteClauseNode: self._compile_delete,
            ForeachClauseNode: self._compile_foreach,
            CallProcedureClauseNode: self._compile_procedure,
            CallSubqueryClauseNode: self._compile_subquery,
        }

    def compile_query(self, query: QueryUnion) -> QueryFunction:
        """Compile a query with its UNIONs. Raises InvalidInput."""
        return self._compile_union(query, None)

    def _compile_union(self, query: QueryUnion, call: CallSubqueryClauseNode | None) -> QueryFunction:
        """Compile a query, of CALL { … } if there is one: each part selects the variables that it imports."""
        is_eager = is_updating_query(query)
        self._query_depth += 1
        parts = [self._compile_stages(stages, is_eager=is_eager) for stages in query.queries]
        self._query_depth -= 1
        if call is not None:
            parts = [
                _select_imports(part, stages, call.imports) for part, stages in zip(parts, query.queries, strict=True)
            ]
        if len(parts) == 1:
            return parts[0]

        def run(row: Row) -> Iterator[Row]:
            for part in parts:
                yield from part(row)

        return run if query.is_all else self._build_distinct(run)

    def _build_distinct(self, run: QueryFunction) -> QueryFunction:
        def run_distinct(row: Row) -> Iterator[Row]:
            seen: set[Any] = set()
            for each in run(row):
                key = frozenset((name, value_equivalence_key(value)) for name, value in each.items())
                if key not in seen:
                    self.limits.hold(1)
                    seen.add(key)
                    yield each

        return run_distinct

    def _compile_stages(self, stages: tuple[QueryStage, ...], *, is_eager: bool) -> QueryFunction:
        """Compile the clauses of one query; if any of them writes, each is completed before the next one begins.

        Of very many clauses, some are completed first in any case.
        """
        following = (*stages[1:], None)
        functions = [self._compile_stage(*each, is_eager=is_eager) for each in zip(stages, following, strict=True)]
        if self.environment.profile is not None:
            measure = self.environment.profile.measure
            functions = [measure(*each) for each in zip(stages, functions, strict=True)]

        streamed = MAX_STREAMED_CLAUSES if self._query_depth == 1 else MAX_STREAMED_SUBQUERY_CLAUSES

        def run(row: Row) -> Iterator[Row]:
            rows: Iterator[Row] = iter((row,))
            count = 0
            for index, function in enumerate(functions):
                rows = function(rows)
                if is_eager or index % streamed == streamed - 1:
                    held = self.limits.hold_all(rows, count)
                    rows, count = iter(held), len(held)
            return rows

        return run

    def _compile_stage(self, stage: QueryStage, following: QueryStage | None, *, is_eager: bool) -> StageFunction:
        """Compile a clause; a MATCH whose matches the next clause only counts need not list them."""
        if not isinstance(stage, MatchClauseNode) or not isinstance(following, ProjectionClauseNode):
            return self._compilers[type(stage)](stage)
        is_counted = not (stage.is_optional or is_eager or self.environment.profile is not None)
        needed = find_counting_group_variables(following, find_pattern_variables(stage.paths)) if is_counted else None
        return self._compile_match(stage, needed)

    # Clauses that read

    def _compile_match(self, stage: MatchClauseNode, needed: frozenset[str] | None = None) -> StageFunction:
        match = self.matcher.compile_pattern(stage.paths, stage.where, needed)
        names = sorted(find_pattern_variables(stage.paths))

        def run(rows: Iterator[Row]) -> Iterator[Row]:
            for row in rows:
                yield from match(row)

        def run_optional(rows: Iterator[Row]) -> Iterator[Row]:
            for row in rows:
                is_matched = False
                for each in match(row):
                    is_matched = True
                    yield each
                if not is_matched:
                    yield {**row, **{name: None for name in names if name not in row}}

        return run_optional if stage.is_optional else run

    def _compile_unwind(self, stage: UnwindClauseNode) -> StageFunction:
        source, name = self.compiler.compile(stage.source), stage.name

        def run(rows: Iterator[Row]) -> Iterator[Row]:
            for row in rows:
                value = source(row)
                if value is None:
                    continue
                for each in value if isinstance(value, list) else (value,):
                    self.limits.step()
                    yield {**row, name: each}

        return run

    def _compile_projection(self, stage: ProjectionClauseNode) -> StageFunction:
        return WithReturnClauseCompiler(stage, self.compiler, self.limits).compile()

    def _compile_procedure(self, stage: CallProcedureClauseNode) -> StageFunction:
        try:
            procedure, yields = find_procedure(stage.name), _read_yields(stage)
            procedure.check_count(len(stage.arguments or ()))
        except InvalidInput as error:
            raise self.compiler.locate(error, stage) from None
        where = None if stage.where is None else self.compiler.compile_condition(stage.where)
        arguments = [self.compiler.compile(each) for each in stage.arguments or ()]
        context = ProcedureCallContext(self.environment.graph, self.limits, self._run_on_row)

        def call(row: Row) -> Iterator[Row]:
            values = [each(row) for each in arguments]
            self.limits.step(_PROCEDURE_STEPS)
            try:
                procedure.check_arguments(values)
                yield from procedure.run(context, *values)
            except InvalidInput as error:
                raise self.compiler.locate(error, stage) from None

        def run(rows: Iterator[Row]) -> Iterator[Row]:
            for row in rows:
                for found in call(row):
                    new = {**row, **{alias: found[name] for name, alias in yields}}
                    if where is None or where(new) is True:
                        yield new

        return run

    def _run_on_row(self, text: str, row: Row) -> Iterator[Row]:
        """Run clauses that a procedure consists of, whose variables a row has."""
        run = self._procedure_queries.get(text)
        if run is None:
            if len(self._procedure_queries) >= MAX_PROCEDURE_QUERIES:
                self._procedure_queries.clear()
            run = self.compile_query(replace_marker_labels_by_properties(parse_cypher_query(text)))
            self._procedure_queries[text] = run
        return run(row)

    def _compile_subquery(self, stage: CallSubqueryClauseNode) -> StageFunction:
        """Compile CALL { … }; a subquery without RETURN leaves the rows as they are."""
        query = self._compile_union(stage.query, stage)
        is_returning = isinstance(stage.query.queries[0][-1], ProjectionClauseNode)

        def run(rows: Iterator[Row]) -> Iterator[Row]:
            for row in rows:
                if is_returning:
                    for found in query(row):
                        yield {**row, **found}
                else:
                    for _ in query(row):
                        pass
                    yield row

        return run

    # Clauses that write

    @property
    def _updates(self) -> WriteClauseCompiler:
        return WriteClauseCompiler(self.environment, self.compiler, self.matcher)

    def _compile_create(self, stage: CreateClauseNode) -> StageFunction:
        create = self._updates.compile_create(stage)
        return lambda rows: map(create, self._count(rows))

    def _compile_merge(self, stage: MergeClauseNode) -> StageFunction:
        merge = self._updates.compile_merge(stage)
        return lambda rows: (each for row in self._count(rows) for each in merge(row))

    def _compile_update(self, stage: SetOrRemoveClauseNode) -> StageFunction:
        update = self._updates.compile_updates(stage)

        def run(rows: Iterator[Row]) -> Iterator[Row]:
            for row in self._count(rows):
                update(row)
                yield row

        return run

    def _compile_delete(self, stage: DeleteClauseNode) -> StageFunction:
        delete = self._updates.compile_delete(stage)

        def run(rows: Iterator[Row]) -> Iterator[Row]:
            held = list(rows)
            delete(held)
            return iter(held)

        return run

    def _compile_foreach(self, stage: ForeachClauseNode) -> StageFunction:
        source, name = self.compiler.compile(stage.source), stage.name
        run_inner = self._compile_stages(stage.stages, is_eager=True)

        def run(rows: Iterator[Row]) -> Iterator[Row]:
            for row in rows:
                value = source(row)
                if value is not None and not isinstance(value, list):
                    fault = InvalidInput(f"FOREACH expects a list, not {describe_value_type(value)}")
                    raise self.compiler.locate(fault, stage)
                for each in value or ():
                    self.limits.step()
                    run_inner({**row, name: each})
                yield row

        return run

    def _count(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.limits.step()
            yield row


def _select_imports(
    run: QueryFunction, stages: tuple[QueryStage, ...], imports: tuple[str, ...] | None
) -> QueryFunction:
    """Restrict the row that a subquery begins with to the variables that it imports, also by a WITH of its own."""
    if imports is None:
        return run if is_importing_with(stages[0]) else lambda _: run({})
    if "*" in imports:
        return run
    return lambda row: run({name: row[name] for name in imports})
