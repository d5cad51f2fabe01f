"""Compilation of expressions to Python closures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kgserve.cypher.interpreter.graph_view import CompiledExpression, ExecutionLimits, GraphView, Row
from kgserve.cypher.interpreter.query_tree import PathElement, QueryExpression, QueryUnion


def _refuse_pattern(path: PathElement, where: QueryExpression | None) -> Callable[[Row], Iterator[Row]]:
    raise NotImplementedError


def _refuse_subquery(query: QueryUnion) -> Callable[[Row], Iterator[Row]]:
    raise NotImplementedError


@dataclass(slots=True, kw_only=True)
class EvaluationEnvironment:
    """Surroundings of the expressions of one execution.

    ``text`` is the statement, by which errors name their place. ``match_pattern`` compiles a pattern with its WHERE to
    a function that yields the rows that extend a row; ``run_subquery`` compiles a query to a function that yields its
    rows for an outer row.
    """

    graph: GraphView
    parameters: dict[str, Any]
    limits: ExecutionLimits
    now: datetime
    text: str = ""
    match_pattern: Callable[[PathElement, QueryExpression | None], Callable[[Row], Iterator[Row]]] = _refuse_pattern
    run_subquery: Callable[[QueryUnion], Callable[[Row], Iterator[Row]]] = _refuse_subquery


class ExpressionCompiler:
    """Compiles expressions of a statement to functions from a row to a value."""

    def __init__(self, environment: EvaluationEnvironment) -> None:
        self.environment = environment

    def compile(self, tree: QueryExpression) -> CompiledExpression:
        """Compile an expression. Raises InvalidInput for unknown functions, missing parameters and wrong constants."""
        raise NotImplementedError

    def compile_condition(self, tree: QueryExpression) -> CompiledExpression:
        """Compile an expression of WHERE: its results are true, false and null. Raises InvalidInput."""
        raise NotImplementedError
