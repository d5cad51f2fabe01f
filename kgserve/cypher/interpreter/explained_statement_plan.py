"""Plans of statements: their clauses in the order in which they run, and where patterns start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kgserve.cypher.interpreter.expression_compiler import EvaluationEnvironment, ExpressionCompiler
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    CallProcedureClauseNode,
    CallSubqueryClauseNode,
    CreateClauseNode,
    DeleteClauseNode,
    ForeachClauseNode,
    MatchClauseNode,
    MergeClauseNode,
    PathPatternElement,
    ProjectionClauseNode,
    QueryStage,
    QueryUnion,
    SetOrRemoveClauseNode,
    UnwindClauseNode,
)
from kgserve.cypher.interpreter.pattern_matcher import GraphPatternCompiler
from kgserve.cypher.interpreter.procedures import find_procedure
from kgserve.cypher.interpreter.statement_profile import StatementProfile
from kgserve.errors import InvalidInput

PLAN_COLUMNS = ("operator", "details", "variables")
PROFILE_COLUMNS = (*PLAN_COLUMNS, "rows", "time_ms")
_OPERATORS: dict[type[QueryStage], str] = {
    MatchClauseNode: "Match",
    UnwindClauseNode: "Unwind",
    ProjectionClauseNode: "Projection",
    CreateClauseNode: "Create",
    SetOrRemoveClauseNode: "Update",
    MergeClauseNode: "Merge",
    DeleteClauseNode: "Delete",
    ForeachClauseNode: "Foreach",
    CallProcedureClauseNode: "ProcedureCall",
    CallSubqueryClauseNode: "Apply",
}


class StatementPlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """Step of the plan of a statement: a clause. ``inner`` has the steps of its subquery or UNION.

    ``rows`` and ``seconds`` are None unless the statement was run.
    """

    operator: str
    details: str = ""
    variables: tuple[str, ...] = ()
    inner: tuple[tuple[StatementPlanStep, ...], ...] = ()
    rows: int | None = None
    seconds: float | None = None


def tabulate_plan_steps(steps: Iterable[StatementPlanStep], depth: int = 0) -> Iterator[list[Any]]:
    """Yield a row of `PROFILE_COLUMNS` for each step; those of subqueries are indented."""
    for step in steps:
        time = None if step.seconds is None else round(step.seconds * 1000, 3)
        yield ["  " * depth + step.operator, step.details, list(step.variables), step.rows, time]
        for inner in step.inner:
            yield from tabulate_plan_steps(inner, depth + 1)


class StatementPlanDescriber:
    """Describes the plans of statements on a graph. A profile adds rows and times."""

    def __init__(self, environment: EvaluationEnvironment, profile: StatementProfile | None = None) -> None:
        self._matcher = GraphPatternCompiler(environment, ExpressionCompiler(environment))
        self._profile = profile

    def describe(self, query: QueryUnion) -> tuple[StatementPlanStep, ...]:
        """Return the steps of a statement. Raises InvalidInput."""
        return self._describe_union(query, frozenset())

    def _describe_union(self, query: QueryUnion, names: frozenset[str]) -> tuple[StatementPlanStep, ...]:
        plans = tuple(self._describe_stages(stages, names) for stages in query.queries)
        if len(plans) == 1:
            return plans[0]
        return (StatementPlanStep(operator="UnionAll" if query.is_all else "Union", inner=plans),)

    def _describe_stages(self, stages: tuple[QueryStage, ...], names: frozenset[str]) -> tuple[StatementPlanStep, ...]:
        steps: list[StatementPlanStep] = []
        for stage in stages:
            new = find_variables_bound_by_clause(stage)
            steps.append(
                StatementPlanStep(
                    operator=_name_operator(stage),
                    details=self._describe_details(stage, names),
                    variables=new,
                    inner=self._describe_inner(stage, names),
                    rows=None if self._profile is None else self._profile.rows.get(id(stage), 0),
                    seconds=None if self._profile is None else self._profile.seconds.get(id(stage), 0.0),
                )
            )
            replaces = isinstance(stage, ProjectionClauseNode) and not stage.is_all
            names = frozenset(new) if replaces else names | frozenset(new)
        return tuple(steps)

    def _describe_details(self, stage: QueryStage, names: frozenset[str]) -> str:
        match stage:
            case MatchClauseNode():
                return "; ".join(self._matcher.describe_pattern(stage.paths, stage.where, names))
            case MergeClauseNode():
                return "; ".join(self._matcher.describe_pattern((stage.path,), None, names))
            case CallProcedureClauseNode():
                return self._name_procedure(stage)
            case _:
                return ""

    def _name_procedure(self, stage: CallProcedureClauseNode) -> str:
        try:
            procedure = find_procedure(stage.name)
            procedure.check_count(len(stage.arguments or ()))
        except InvalidInput as error:
            raise self._matcher.compiler.locate(error, stage) from None
        return procedure.name

    def _describe_inner(self, stage: QueryStage, names: frozenset[str]) -> tuple[tuple[StatementPlanStep, ...], ...]:
        match stage:
            case CallSubqueryClauseNode():
                known = names if stage.imports in (None, ("*",)) else frozenset(stage.imports or ())
                return (self._describe_union(stage.query, known),)
            case ForeachClauseNode():
                return (self._describe_stages(stage.stages, names | {stage.name}),)
            case _:
                return ()


def _name_operator(stage: QueryStage) -> str:
    match stage:
        case MatchClauseNode(is_optional=True):
            return "OptionalMatch"
        case ProjectionClauseNode(keyword="RETURN"):
            return "ProduceResults"
        case DeleteClauseNode(is_detaching=True):
            return "DetachDelete"
        case _:
            return _OPERATORS[type(stage)]


def find_variables_bound_by_clause(stage: QueryStage) -> tuple[str, ...]:  # noqa: PLR0911 - one for each kind of clause
    """Find the variables that a clause introduces."""
    match stage:
        case MatchClauseNode(paths=paths) | CreateClauseNode(paths=paths):
            return _name_elements(paths)
        case MergeClauseNode(path=path):
            return _name_elements((path,))
        case ProjectionClauseNode(columns=columns):
            return tuple(column.name for column in columns)
        case UnwindClauseNode(name=name):
            return (name,)
        case CallProcedureClauseNode(yields=yields):
            return tuple(alias for _, alias in yields or ())
        case CallSubqueryClauseNode(query=query):
            last = query.queries[0][-1]
            return find_variables_bound_by_clause(last) if isinstance(last, ProjectionClauseNode) else ()
        case _:
            return ()


def _name_elements(paths: tuple[PathPatternElement, ...]) -> tuple[str, ...]:
    elements = [(path.name, *(each.name for each in (*path.nodes, *path.relationships))) for path in paths]
    return tuple(dict.fromkeys(name for names in elements for name in names if name))
