"""Statements about one node by its id, which need neither the engine nor the interpreter's matching.

The rows of the store answer them as the engine would, in a fraction of the time: the node or columns of it, or the
number of paths of one or two relationships that begin there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from kgserve.cypher.column_assumptions import LABEL_PROPERTY
from kgserve.cypher.interpreter.graph_view_interface import NO_LABEL
from kgserve.cypher.interpreter.kuzu_table_names import NODE_TABLE, RELATIONSHIP_TABLE
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    ComparisonChain,
    CountStar,
    LiteralValue,
    MapExpression,
    MatchClauseNode,
    NodePatternElement,
    ParameterReference,
    PathPatternElement,
    ProjectionClauseNode,
    PropertyAccessNode,
    QueryExpression,
    QueryUnion,
    RelationshipPatternElement,
    VariableReference,
)
from kgserve.cypher.interpreter.stored_temporal_values import format_temporal_attributes_as_iso
from kgserve.graph.cypher.row_properties import decode_node_attributes, read_node_property
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.node_edge_fields import INT64_TYPE, NODE, TIMESTAMP_TYPE
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

MAX_COUNTED_EDGES = 1_000
"""Edges of the first node up to which paths are counted here; the engine is faster beyond."""
MAX_COUNTED_HOPS = 2

_PLAIN_COLUMNS = {field.name: field.type for field in NODE.plain}
_EXTRA_COLUMNS = {
    field.name: field.type for field in NODE.extras if field.type is not TIMESTAMP_TYPE and field.name != "conflicts"
}
"""Optional columns that the engine and the interpreter show alike."""
_COLUMN_TYPES = {name: type_.engine for name, type_ in (_PLAIN_COLUMNS | _EXTRA_COLUMNS).items()}
_WHOLE_NODE = ""
"""Stands for the node itself among the names of columns."""
_WHOLE_NODE_TYPE = "NODE"


class PathCountNeedsEngine(Exception):
    """Raised when a path count must read more edges than a point lookup may, so that the engine must count."""


class NodePointLookup(NamedTuple):
    """The columns of one node, or the node itself, by its id."""

    node_id: LiteralValue | ParameterReference
    columns: tuple[str, ...]

    @property
    def types(self) -> tuple[str, ...]:
        """Types of the columns, named as the engine does."""
        return tuple(_COLUMN_TYPES.get(name, _WHOLE_NODE_TYPE) for name in self.columns)

    def read(self, rows: RowsSnapshot, parameters: Mapping[str, Any]) -> list[list[Any]]:
        """Return the rows of the answer as JSON values."""
        row = rows.node(_find_value(self.node_id, parameters))
        return [] if row is None else [[_read_property(row, name) for name in self.columns]]


class PathCountLookup(NamedTuple):
    """The number of paths that begin at one node; for each of their relationships, whether it is outgoing."""

    node_id: LiteralValue | ParameterReference
    directions: tuple[bool, ...]

    @property
    def types(self) -> tuple[str, ...]:
        """Types of the columns, named as the engine does."""
        return (INT64_TYPE.engine,)

    def read(self, rows: RowsSnapshot, parameters: Mapping[str, Any]) -> list[list[Any]]:
        """Return the rows of the answer as JSON values. Raises PathCountNeedsEngine."""
        return [[self._count(rows, rows.number(_find_value(self.node_id, parameters)))]]

    def _count(self, rows: RowsSnapshot, start: int) -> int:
        if start < 0:
            return 0
        first, *others = self.directions
        if not others:
            return _count_edges(rows, [start], outgoing=first)
        if rows.max_degree(start, outgoing=first) > MAX_COUNTED_EDGES:
            raise PathCountNeedsEngine
        found = rows.edges_of(start, outgoing=first)
        ends = [*found.ends, *(end for _, end, _ in found.changed)]
        # No path has the same relationship twice.
        repeated = ends.count(start) if others[0] == first else len(ends)
        return _count_edges(rows, ends, outgoing=others[0]) - repeated


def _count_edges(rows: RowsSnapshot, nodes: Sequence[int], *, outgoing: bool) -> int:
    """Return the number of edges of nodes, each as often as it is given. Raises PathCountNeedsEngine."""
    degrees = [rows.unchanged_degree(node, outgoing=outgoing) for node in nodes]
    changed = [node for node, degree in zip(nodes, degrees, strict=True) if degree is None]
    if sum(rows.max_degree(node, outgoing=outgoing) for node in changed) > MAX_COUNTED_EDGES:
        raise PathCountNeedsEngine
    found = (rows.edges_of(node, outgoing=outgoing) for node in changed)
    return sum(filter(None, degrees)) + sum(len(edges.numbers) + len(edges.changed) for edges in found)


PointLookup: TypeAlias = NodePointLookup | PathCountLookup


def has_string_lookup_id(lookup: PointLookup, parameters: Mapping[str, Any]) -> bool:
    """Return whether the id is a string; the engine converts or refuses others."""
    return isinstance(_find_value(lookup.node_id, parameters), str)


def _find_value(node_id: LiteralValue | ParameterReference, parameters: Mapping[str, Any]) -> Any:
    return node_id.value if isinstance(node_id, LiteralValue) else parameters.get(node_id.name)


def _read_property(row: NodeRow, name: str) -> Any:
    return None if name == LABEL_PROPERTY and row.type == NO_LABEL else _read_column(row, name)


def _read_column(row: NodeRow, name: str) -> Any:
    if name == _WHOLE_NODE:
        # The engine shows a node without its optional columns.
        return {"_label": NODE_TABLE} | {
            column: format_temporal_attributes_as_iso(row.attributes)
            if column == "attributes"
            else _read_column(row, column)
            for column in _PLAIN_COLUMNS
        }
    if name in _EXTRA_COLUMNS:
        return read_node_property(row, decode_node_attributes(row), name)
    value = getattr(row, name)
    return format_rfc3339_timestamp(value) if _PLAIN_COLUMNS[name] is TIMESTAMP_TYPE else value


def find_point_lookup(query: QueryUnion) -> PointLookup | None:
    """Return the lookup that a statement, as typed, consists of; None if it does anything else."""
    if len(query.queries) != 1 or len(query.queries[0]) != 2:  # noqa: PLR2004 - MATCH and RETURN
        return None
    match, projection = query.queries[0]
    if not isinstance(match, MatchClauseNode) or not isinstance(projection, ProjectionClauseNode):
        return None
    if match.is_optional or len(match.paths) != 1 or not _is_plain(projection):
        return None
    path, columns = match.paths[0], [column.value for column in projection.columns]
    first = path.nodes[0]
    node_id = _find_id(first, match.where)
    if node_id is None or path.name or path.shortest:
        return None
    if not path.relationships:
        names = [_find_column(column, first.name) for column in columns]
        found = tuple(name for name in names if name is not None)
        return NodePointLookup(node_id, found) if first.name and len(found) == len(names) else None
    directions = _find_directions(path)
    is_count = len(columns) == 1 and isinstance(columns[0], CountStar)
    return PathCountLookup(node_id, directions) if is_count and directions else None


def _is_plain(projection: ProjectionClauseNode) -> bool:
    is_changed = projection.is_all or projection.is_distinct or projection.order or projection.where
    return not is_changed and projection.skip is None and projection.limit is None


def _find_directions(path: PathPatternElement) -> tuple[bool, ...]:
    """Return whether each relationship is outgoing; nothing for paths with any other condition than the first id."""
    parts: Sequence[NodePatternElement | RelationshipPatternElement] = (*path.nodes, *path.relationships)
    names = [part.name for part in parts if part.name]
    is_short = len(path.relationships) <= MAX_COUNTED_HOPS and len({*names}) == len(names)
    is_free = all(_is_any_node(node) and node.properties is None for node in path.nodes[1:])
    if not is_short or not is_free or not all(map(_is_any_relationship, path.relationships)):
        return ()
    return tuple(each.direction == ">" for each in path.relationships)


def _is_any_node(node: NodePatternElement) -> bool:
    return node.labels in {(), (NODE_TABLE,)} and node.where is None


def _is_any_relationship(each: RelationshipPatternElement) -> bool:
    is_conditional = each.properties is not None or each.where is not None or each.lengths is not None
    return bool(each.direction) and each.types in {(), (RELATIONSHIP_TABLE,)} and not is_conditional


def _find_id(node: NodePatternElement, where: QueryExpression | None) -> LiteralValue | ParameterReference | None:
    """Return the value of ``{id: value}`` or ``WHERE n.id = value``, if there is no other condition."""
    value: QueryExpression | None = None
    if not _is_any_node(node):
        return None
    if where is None:
        entries = node.properties.entries if isinstance(node.properties, MapExpression) else ()
        value = entries[0][1] if len(entries) == 1 and entries[0][0] == "id" else None
    elif node.properties is None and isinstance(where, ComparisonChain) and len(where.rest) == 1:
        operator, other = where.rest[0]
        value = other if operator == "=" and _find_property(where.first, node.name) == "id" else None
    return value if isinstance(value, LiteralValue | ParameterReference) else None


def _find_column(tree: QueryExpression, variable: str) -> str | None:
    """Return the column in ``variable.column``, or `_WHOLE_NODE` for the variable itself; None for all others."""
    if _is_variable(tree, variable):
        return _WHOLE_NODE
    name = _find_property(tree, variable)
    return name if name in _COLUMN_TYPES else None


def _find_property(tree: QueryExpression, variable: str) -> str | None:
    """Return the property in ``variable.property``."""
    return tree.name if isinstance(tree, PropertyAccessNode) and _is_variable(tree.subject, variable) else None


def _is_variable(tree: QueryExpression, name: str) -> bool:
    return isinstance(tree, VariableReference) and tree.name == name
