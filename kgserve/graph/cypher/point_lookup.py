"""Statements that read columns of one node by its id, which need no engine.

The rows of the store answer them as the engine would, in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kgserve.cypher.interpreter.query_tree import (
    ComparisonChain,
    LiteralValue,
    MapExpression,
    MatchStage,
    NodeElement,
    ParameterReference,
    ProjectedColumn,
    ProjectionStage,
    PropertyLookup,
    QueryExpression,
    QueryUnion,
    VariableReference,
)
from kgserve.cypher.interpreter.table_names import NODE_TABLE
from kgserve.storage.model.fields import NODE, TIMESTAMP_TYPE

_SAME_COLUMNS = {
    field.name: field.type.engine
    for field in (*NODE.plain, *NODE.extras)
    if field.type is not TIMESTAMP_TYPE and field.name not in {"type", "conflicts"}
}
"""Columns that the engine and the interpreter show alike, with the engine's names of their types."""


class PointLookup(NamedTuple):
    """The id that is asked for, and the types of the columns."""

    node_id: LiteralValue | ParameterReference
    types: tuple[str, ...]

    def accepts(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether the id is a string; the engine converts or refuses others."""
        node_id = self.node_id
        value = node_id.value if isinstance(node_id, LiteralValue) else parameters.get(node_id.name)
        return isinstance(value, str)


def find_point_lookup(query: QueryUnion) -> PointLookup | None:
    """Return the lookup that a statement, as typed, consists of; None if it does anything else."""
    if len(query.queries) != 1 or len(query.queries[0]) != 2:  # noqa: PLR2004 - MATCH and RETURN
        return None
    match, projection = query.queries[0]
    if not isinstance(match, MatchStage) or not isinstance(projection, ProjectionStage):
        return None
    node = _find_single_node(match)
    node_id = None if node is None else _find_id(node, match.where)
    types = None if node is None else _find_types(projection, node.name)
    return None if node_id is None or types is None else PointLookup(node_id, types)


def _find_single_node(match: MatchStage) -> NodeElement | None:
    if match.is_optional or len(match.paths) != 1:
        return None
    path = match.paths[0]
    node = path.nodes[0]
    is_plain = node.name and node.labels in {(), (NODE_TABLE,)} and node.where is None
    return node if is_plain and not path.relationships and not path.name else None


def _find_id(node: NodeElement, where: QueryExpression | None) -> LiteralValue | ParameterReference | None:
    """Return the value of ``{id: value}`` or ``WHERE n.id = value``, if there is no other condition."""
    value: QueryExpression | None = None
    if where is None:
        entries = node.properties.entries if isinstance(node.properties, MapExpression) else ()
        value = entries[0][1] if len(entries) == 1 and entries[0][0] == "id" else None
    elif node.properties is None and isinstance(where, ComparisonChain) and len(where.rest) == 1:
        operator, other = where.rest[0]
        value = other if operator == "=" and _find_column(where.first, node.name) == "id" else None
    return value if isinstance(value, LiteralValue | ParameterReference) else None


def _find_types(projection: ProjectionStage, variable: str) -> tuple[str, ...] | None:
    is_plain = not (projection.is_all or projection.is_distinct or projection.order or projection.where)
    if not is_plain or projection.skip is not None or projection.limit is not None:
        return None
    types = [_find_type(column, variable) for column in projection.columns]
    return None if None in types else tuple(type_ for type_ in types if type_)


def _find_type(column: ProjectedColumn, variable: str) -> str | None:
    name = _find_column(column.value, variable)
    return None if name is None else _SAME_COLUMNS.get(name)


def _find_column(tree: QueryExpression, variable: str) -> str | None:
    """Return the property in ``variable.property``."""
    if isinstance(tree, PropertyLookup) and tree.subject == VariableReference(
        position=tree.subject.position, name=variable
    ):
        return tree.name
    return None
