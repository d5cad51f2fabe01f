"""Evaluation of single expressions, for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from kgserve.cypher.interpreter.expression_compiler import EvaluationEnvironment, ExpressionCompiler
from kgserve.cypher.interpreter.graph_view_interface import ExecutionLimits
from kgserve.cypher.interpreter.opencypher_parser import parse_cypher_query
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    LiteralValue,
    ProjectionClauseNode,
    QueryExpression,
    QuerySyntaxNode,
    VariableReference,
)
from tests.cypher.interpreter.memory_graph import MemoryGraph

NOW = datetime(2024, 2, 29, 12, 30, 15, 250_000, tzinfo=UTC)


def parse_expression(text: str) -> QueryExpression:
    return cast("ProjectionClauseNode", parse_cypher_query(f"RETURN {text}").queries[0][-1]).columns[0].value


def new_compiler(text: str = "", graph: MemoryGraph | None = None, **parameters: Any) -> ExpressionCompiler:
    return ExpressionCompiler(
        EvaluationEnvironment(
            graph=graph or MemoryGraph(),
            parameters=parameters,
            limits=ExecutionLimits(lambda: None),
            now=NOW,
            text=text and f"RETURN {text}",
        )
    )


def evaluate(text: str, parameters: dict[str, Any] | None = None, /, **row: Any) -> Any:
    """Return the value of an expression, whose variables are the keywords."""
    return new_compiler(text, **(parameters or {})).compile(parse_expression(text))(row)


def is_same(value: Any, expected: Any) -> bool:
    """Return whether values have the same type and are equal, or both NaN."""
    return type(value) is type(expected) and (value == expected or repr(value) == repr(expected) == "nan")


def replace_literals(tree: QueryExpression) -> tuple[QueryExpression, dict[str, Any]]:
    """Return an expression with a variable instead of each literal, and the values of these variables."""
    literals: dict[str, Any] = {}

    def replace(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(replace, cast("tuple[Any, ...]", value)))
        if isinstance(value, LiteralValue):
            name = f"literal {len(literals)}"
            literals[name] = value.value
            return VariableReference(position=value.position, name=name)
        if isinstance(value, QuerySyntaxNode):
            fields = {name: replace(getattr(value, name)) for name in value.__struct_fields__}
            return type(value)(**fields)
        return value

    return replace(tree), literals
