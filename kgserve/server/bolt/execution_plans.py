"""Plans of statements as drivers show them: a tree of operators, the last clause at the root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from kgserve.cypher.interpreter.explained_statement_plan import StatementPlanStep
from kgserve.cypher.interpreter.semantic_checks import CheckedQuerySummary
from kgserve.server.bolt.backend_interface import (
    BoltResult,
    ExecutionPlanOperator,
    StatementExplanation,
    StatementSummary,
    StatementType,
)

_NANOSECONDS = 1_000_000_000


class ExplainResult(BoltResult):
    """Result of EXPLAIN: no rows, and a plan."""

    def __init__(self, explained: StatementExplanation) -> None:
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


def classify_statement_access(info: CheckedQuerySummary) -> StatementType:
    """Return whether a statement reads, writes, or does both."""
    if not info.is_updating:
        return "r"
    return "rw" if info.columns else "w"


def build_bolt_plan_tree(steps: Sequence[StatementPlanStep]) -> ExecutionPlanOperator:
    """Return the execution plan of a statement as the tree of operators that Bolt drivers show."""
    plan: ExecutionPlanOperator | None = None
    for step in steps:
        below = () if plan is None else (plan,)
        arguments: dict[str, Any] = {"Details": step.details} if step.details else {}
        if step.seconds is not None:
            arguments["Time"] = round(step.seconds * _NANOSECONDS)
        plan = ExecutionPlanOperator(
            operator=step.operator,
            identifiers=step.variables,
            arguments=arguments,
            children=(*below, *map(build_bolt_plan_tree, step.inner)),
            rows=step.rows or 0,
        )
    return plan or ExecutionPlanOperator(operator="EmptyResult")
