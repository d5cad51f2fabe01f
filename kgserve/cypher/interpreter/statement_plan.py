"""Plans of statements: their clauses in the order in which they run, and where patterns start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kgserve.cypher.interpreter.expression_compiler import EvaluationEnvironment, ExpressionCompiler
from kgserve.cypher.interpreter.pattern_matcher import PatternMatcher
from kgserve.cypher.interpreter.procedures import find_procedure
from kgserve.cypher.interpreter.query_tree import (
    CreateStage,
    DeleteStage,
    ForeachStage,
    MatchStage,
    MergeStage,
    PathElement,
    ProcedureStage,
    ProjectionStage,
    QueryStage,
    QueryUnion,
    SubqueryStage,
    UnwindStage,
    UpdateStage,
)
from kgserve.cypher.interpreter.statement_profile import StatementProfile
from kgserve.errors import InvalidInput

PLAN_COLUMNS = ("operator", "details", "variables")
PROFILE_COLUMNS = (*PLAN_COLUMNS, "rows", "time_ms")
_OPERATORS: dict[type[QueryStage], str] = {
    MatchStage: "Match",
    UnwindStage: "Unwind",
    ProjectionStage: "Projection",
    CreateStage: "Create",
    UpdateStage: "Update",
    MergeStage: "Merge",
    DeleteStage: "Delete",
    ForeachStage: "Foreach",
    ProcedureStage: "ProcedureCall",
    SubqueryStage: "Apply",
}


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """Clause of a plan. ``inner`` has the steps of its subquery; a UNION has those of each query.

    ``rows`` and ``seconds`` are None unless the statement was run.
    """

    operator: str
    details: str = ""
    variables: tuple[str, ...] = ()
    inner: tuple[tuple[PlanStep, ...], ...] = ()
    rows: int | None = None
    seconds: float | None = None


def tabulate_plan(steps: Iterable[PlanStep], depth: int = 0) -> Iterator[list[Any]]:
    """Yield a row of `PROFILE_COLUMNS` for each step; those of subqueries are indented."""
    for step in steps:
        time = None if step.seconds is None else round(step.seconds * 1000, 3)
        yield ["  " * depth + step.operator, step.details, list(step.variables), step.rows, time]
        for inner in step.inner:
            yield from tabulate_plan(inner, depth + 1)


class PlanDescriber:
    """Describes the plans of statements on a graph. A profile adds rows and times."""

    def __init__(self, environment: EvaluationEnvironment, profile: StatementProfile | None = None) -> None:
        self._matcher = PatternMatcher(environment, ExpressionCompiler(environment))
        self._profile = profile

    def describe(self, query: QueryUnion) -> tuple[PlanStep, ...]:
        """Return the steps of a statement. Raises InvalidInput."""
        return self._describe_union(query, frozenset())

    def _describe_union(self, query: QueryUnion, names: frozenset[str]) -> tuple[PlanStep, ...]:
        plans = tuple(self._describe_stages(stages, names) for stages in query.queries)
        if len(plans) == 1:
            return plans[0]
        return (PlanStep(operator="UnionAll" if query.is_all else "Union", inner=plans),)

    def _describe_stages(self, stages: tuple[QueryStage, ...], names: frozenset[str]) -> tuple[PlanStep, ...]:
        steps: list[PlanStep] = []
        for stage in stages:
            new = find_identifiers(stage)
            steps.append(
                PlanStep(
                    operator=_name_operator(stage),
                    details=self._describe_details(stage, names),
                    variables=new,
                    inner=self._describe_inner(stage, names),
                    rows=None if self._profile is None else self._profile.rows.get(id(stage), 0),
                    seconds=None if self._profile is None else self._profile.seconds.get(id(stage), 0.0),
                )
            )
            replaces = isinstance(stage, ProjectionStage) and not stage.is_all
            names = frozenset(new) if replaces else names | frozenset(new)
        return tuple(steps)

    def _describe_details(self, stage: QueryStage, names: frozenset[str]) -> str:
        match stage:
            case MatchStage():
                return "; ".join(self._matcher.describe_pattern(stage.paths, stage.where, names))
            case MergeStage():
                return "; ".join(self._matcher.describe_pattern((stage.path,), None, names))
            case ProcedureStage():
                return self._name_procedure(stage)
            case _:
                return ""

    def _name_procedure(self, stage: ProcedureStage) -> str:
        try:
            procedure = find_procedure(stage.name)
            procedure.check_count(len(stage.arguments or ()))
        except InvalidInput as error:
            raise self._matcher.compiler.locate(error, stage) from None
        return procedure.name

    def _describe_inner(self, stage: QueryStage, names: frozenset[str]) -> tuple[tuple[PlanStep, ...], ...]:
        match stage:
            case SubqueryStage():
                known = names if stage.imports in (None, ("*",)) else frozenset(stage.imports or ())
                return (self._describe_union(stage.query, known),)
            case ForeachStage():
                return (self._describe_stages(stage.stages, names | {stage.name}),)
            case _:
                return ()


def _name_operator(stage: QueryStage) -> str:
    match stage:
        case MatchStage(is_optional=True):
            return "OptionalMatch"
        case ProjectionStage(keyword="RETURN"):
            return "ProduceResults"
        case DeleteStage(is_detaching=True):
            return "DetachDelete"
        case _:
            return _OPERATORS[type(stage)]


def find_identifiers(stage: QueryStage) -> tuple[str, ...]:  # noqa: PLR0911 - one for each kind of clause
    """Return the variables that a clause introduces."""
    match stage:
        case MatchStage(paths=paths) | CreateStage(paths=paths):
            return _name_elements(paths)
        case MergeStage(path=path):
            return _name_elements((path,))
        case ProjectionStage(columns=columns):
            return tuple(column.name for column in columns)
        case UnwindStage(name=name):
            return (name,)
        case ProcedureStage(yields=yields):
            return tuple(alias for _, alias in yields or ())
        case SubqueryStage(query=query):
            last = query.queries[0][-1]
            return find_identifiers(last) if isinstance(last, ProjectionStage) else ()
        case _:
            return ()


def _name_elements(paths: tuple[PathElement, ...]) -> tuple[str, ...]:
    elements = [(path.name, *(each.name for each in (*path.nodes, *path.relationships))) for path in paths]
    return tuple(dict.fromkeys(name for names in elements for name in names if name))
