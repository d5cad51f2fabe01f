"""Decision whether a statement writes what the engine refuses, or returns what the engine shows unlike stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kgserve.cypher.interpreter.kuzu_table_names import NODE_TABLE
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    CreateClauseNode,
    DeleteClauseNode,
    FunctionInvocation,
    LiteralValue,
    MapExpression,
    MergeClauseNode,
    NodePatternElement,
    PathPatternElement,
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


def has_writes_unfit_for_engine(query: QueryUnion) -> bool:
    """Return whether a statement creates nodes without an id, deletes paths, or returns written columns or elements.

    The engine refuses the first two. It shows null for what a row stores as an empty text or the default weight, and
    tags with their duplicates. False for statements that set a column that only the engine can set.
    """
    nodes = [*iterate_syntax_tree(query)]
    if any(map(_assigns_for_engine_only, nodes)):
        return False
    if any(map(_creates_without_id, nodes)) or _deletes_paths(nodes):
        return True
    is_writing = any(isinstance(node, CreateClauseNode | MergeClauseNode | SetSingleProperty) for node in nodes)
    return is_writing and any(_returns_columns(stages[-1]) for stages in query.queries)


def _creates_without_id(node: QuerySyntaxNode) -> bool:
    paths = (node.path,) if isinstance(node, MergeClauseNode) else ()
    paths = node.paths if isinstance(node, CreateClauseNode) else paths
    return any(NODE_TABLE in each.labels and not _has_id(each) for path in paths for each in path.nodes)


def _has_id(node: NodePatternElement) -> bool:
    entries = node.properties.entries if isinstance(node.properties, MapExpression) else ()
    return any(name == "id" for name, _ in entries)


def _deletes_paths(nodes: Sequence[QuerySyntaxNode]) -> bool:
    names = {node.name for node in nodes if isinstance(node, PathPatternElement) and node.name}
    deleted = (value for node in nodes if isinstance(node, DeleteClauseNode) for value in node.values)
    return any(isinstance(value, VariableReference) and value.name in names for value in deleted)


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
