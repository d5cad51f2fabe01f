"""Decision whether a statement returns values that it has written, which the engine shows as typed, not as stored."""

from __future__ import annotations

from typing import Any

from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    CreateClauseNode,
    FunctionInvocation,
    LiteralValue,
    MapExpression,
    MergeClauseNode,
    ProjectionClauseNode,
    PropertyAccessNode,
    PropertyRemoval,
    QuerySyntaxNode,
    QueryUnion,
    SetSingleProperty,
    VariableReference,
    iterate_syntax_tree,
)

_ENGINE_ASSIGNMENTS = frozenset({"attributes", "created_by"})
"""Columns that only the engine can set."""


def does_return_written_values(query: QueryUnion) -> bool:
    """Return whether a statement sets columns and returns columns or elements.

    The engine shows null for what a row stores as an empty text or the default weight, and tags with their duplicates.
    Statements that set a column that only the engine can set are not meant.
    """
    nodes = [*iterate_syntax_tree(query)]
    writes = [node for node in nodes if isinstance(node, CreateClauseNode | MergeClauseNode | SetSingleProperty)]
    if not writes or any(map(_assigns_for_engine_only, nodes)):
        return False
    return any(_returns_columns(stages[-1]) for stages in query.queries)


def _assigns_for_engine_only(node: QuerySyntaxNode) -> bool:
    if isinstance(node, SetSingleProperty | PropertyRemoval):
        return isinstance(node.name, LiteralValue) and node.name.value in _ENGINE_ASSIGNMENTS
    return isinstance(node, MapExpression) and any(name in _ENGINE_ASSIGNMENTS for name, _ in node.entries)


def _returns_columns(stage: Any) -> bool:
    if not isinstance(stage, ProjectionClauseNode):
        return False
    values = [column.value for column in stage.columns if not _is_count(column.value)]
    parts = [part for value in values for part in iterate_syntax_tree(value)]
    return stage.is_all or any(isinstance(part, PropertyAccessNode | VariableReference) for part in parts)


def _is_count(value: QuerySyntaxNode) -> bool:
    return isinstance(value, FunctionInvocation) and value.name == "count"
