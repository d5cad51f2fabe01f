"""Plans of statements for EXPLAIN: their clauses as operators, the last one at the root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from kgserve.cypher.interpreter.parser import parse_query
from kgserve.cypher.interpreter.query_tree import (
    CreateStage,
    DeleteStage,
    ForeachStage,
    MatchStage,
    MergeStage,
    ProcedureStage,
    ProjectionStage,
    QueryStage,
    QueryUnion,
    SubqueryStage,
    UnwindStage,
    UpdateStage,
)
from kgserve.cypher.interpreter.semantic_checks import check_query
from kgserve.server.bolt.backend import BoltResult, ExecutionPlan, StatementSummary

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


class ExplainedStatement(BoltResult):
    """Result of EXPLAIN: no rows, and a plan."""

    def __init__(self, statement: str) -> None:
        """Parse and check a statement. Raises InvalidInput."""
        query = parse_query(statement)
        info = check_query(query, statement)
        self.columns = info.columns
        kind = ("rw" if info.columns else "w") if info.is_updating else "r"
        self._summary = StatementSummary(type=kind, plan=describe_plan(query))

    @override
    def rows(self) -> Iterator[Sequence[Any]]:
        return iter(())

    @override
    def summary(self) -> StatementSummary:
        return self._summary

    @override
    def close(self) -> None:
        return


def describe_plan(query: QueryUnion) -> ExecutionPlan:
    """Return the plan of a statement."""
    plans = tuple(_describe_stages(stages) for stages in query.queries)
    if len(plans) == 1:
        return plans[0]
    return ExecutionPlan(operator="UnionAll" if query.is_all else "Union", children=plans)


def _describe_stages(stages: Sequence[QueryStage]) -> ExecutionPlan:
    plan: ExecutionPlan | None = None
    for stage in stages:
        below = () if plan is None else (plan,)
        plan = ExecutionPlan(
            operator=_name_operator(stage), identifiers=_find_identifiers(stage), children=(*below, *_find_inner(stage))
        )
    return plan or ExecutionPlan(operator="EmptyResult")


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


def _find_identifiers(stage: QueryStage) -> tuple[str, ...]:
    """Return the variables that a clause introduces."""
    match stage:
        case MatchStage(paths=paths) | CreateStage(paths=paths):
            elements = [(path.name, *(each.name for each in (*path.nodes, *path.relationships))) for path in paths]
            return tuple(dict.fromkeys(name for names in elements for name in names if name))
        case ProjectionStage(columns=columns):
            return tuple(column.name for column in columns)
        case UnwindStage(name=name):
            return (name,)
        case _:
            return ()


def _find_inner(stage: QueryStage) -> tuple[ExecutionPlan, ...]:
    match stage:
        case SubqueryStage(query=query):
            return (describe_plan(query),)
        case ForeachStage(stages=stages):
            return (_describe_stages(stages),)
        case _:
            return ()
