"""Plans of statements as drivers show them: a tree of operators, the last clause at the root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from kgserve.cypher.interpreter.semantic_checks import QueryInfo
from kgserve.cypher.interpreter.statement_plan import PlanStep
from kgserve.server.bolt.backend import BoltResult, ExecutionPlan, ExplainedStatement, StatementSummary, StatementType

_NANOSECONDS = 1_000_000_000


class ExplainedResult(BoltResult):
    """Result of EXPLAIN: no rows, and a plan."""

    def __init__(self, explained: ExplainedStatement) -> None:
        self.columns = explained.columns
        self._summary = StatementSummary(type=explained.type, plan=explained.plan)

    @override
    def rows(self) -> Iterator[Sequence[Any]]:
        return iter(())

    @override
    def summary(self) -> StatementSummary:
        return self._summary

    @override
    def close(self) -> None:
        return


def find_statement_type(info: QueryInfo) -> StatementType:
    """Return whether a statement reads, writes, or does both."""
    if not info.is_updating:
        return "r"
    return "rw" if info.columns else "w"


def build_execution_plan(steps: Sequence[PlanStep]) -> ExecutionPlan:
    """Return the plan of a statement as a tree."""
    plan: ExecutionPlan | None = None
    for step in steps:
        below = () if plan is None else (plan,)
        arguments: dict[str, Any] = {"Details": step.details} if step.details else {}
        if step.seconds is not None:
            arguments["Time"] = round(step.seconds * _NANOSECONDS)
        plan = ExecutionPlan(
            operator=step.operator,
            identifiers=step.variables,
            arguments=arguments,
            children=(*below, *map(build_execution_plan, step.inner)),
            rows=step.rows or 0,
        )
    return plan or ExecutionPlan(operator="EmptyResult")
