"""Decision whether a statement uses names that the engine does not know, and thus needs the interpreter."""

from __future__ import annotations

from kgserve.cypher.column_assumptions import LABEL_PROPERTY
from kgserve.cypher.guard import LINK_RELATION_TYPE, LINK_TARGET_LABEL
from kgserve.cypher.interpreter.kuzu_table_names import NODE_TABLE, RELATIONSHIP_TABLE
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    CreateClauseNode,
    FunctionInvocation,
    LabelPredicate,
    LiteralValue,
    MapExpression,
    MergeClauseNode,
    NodePatternElement,
    PathPatternElement,
    PropertyAccessNode,
    PropertyRemoval,
    QueryExpression,
    QuerySyntaxNode,
    QueryUnion,
    RelationshipPatternElement,
    SetPropertiesFromMap,
    SetSingleProperty,
    iterate_syntax_tree,
)
from kgserve.graph.cypher.row_properties import EDGE_PROPERTY_NAMES, NODE_MEMORY_PROPERTIES, NODE_PROPERTY_NAMES

_COLUMNS = (NODE_PROPERTY_NAMES | EDGE_PROPERTY_NAMES) - NODE_MEMORY_PROPERTIES
"""Properties that are columns of every row; those of memories and names may be attributes of other nodes."""
_FUNCTIONS = frozenset({"labels", "keys", "properties", "type", "id", "elementid"})
"""Functions that the engine lacks, or that describe its tables to it."""


def has_names_unknown_to_engine(query: QueryUnion) -> bool:
    """Return whether a statement uses labels, types, properties or functions that the engine does not know."""
    nodes = [*iterate_syntax_tree(query)]
    return any(map(_is_own, nodes)) or _creates_without_label(nodes)


def has_cross_store_link_patterns(query: QueryUnion) -> bool:
    """Return whether a statement reads links into other stores, which only the engine knows."""
    return any(
        (isinstance(node, NodePatternElement) and LINK_TARGET_LABEL in node.labels)
        or (isinstance(node, RelationshipPatternElement) and LINK_RELATION_TYPE in node.types)
        for node in iterate_syntax_tree(query)
    )


def _is_own(node: QuerySyntaxNode) -> bool:  # noqa: PLR0911 - one for each kind of node
    match node:
        case NodePatternElement() | LabelPredicate():
            return any(label != NODE_TABLE for label in node.labels) or _has_own_keys(node)
        case RelationshipPatternElement():
            return any(type_ != RELATIONSHIP_TABLE for type_ in node.types) or _has_own_keys(node)
        case PropertyAccessNode():
            return node.name not in _COLUMNS
        case SetSingleProperty() | PropertyRemoval():
            return not (isinstance(node.name, LiteralValue) and node.name.value in _COLUMNS)
        case SetPropertiesFromMap():
            return True
        case FunctionInvocation():
            return node.name in _FUNCTIONS
        case CreateClauseNode():
            return any(map(_creates_without_table, node.paths))
        case MergeClauseNode():
            return _creates_without_table(node.path)
        case _:
            return False


def _creates_without_label(nodes: list[QuerySyntaxNode]) -> bool:
    """Return whether a statement creates a node of the table without a type, as which the engine stores the label."""
    if any(isinstance(node, SetSingleProperty) and _is_named(node.name, LABEL_PROPERTY) for node in nodes):
        return False
    paths = [path for node in nodes if isinstance(node, CreateClauseNode) for path in node.paths]
    paths += [node.path for node in nodes if isinstance(node, MergeClauseNode)]
    made = (node for path in paths for node in path.nodes if NODE_TABLE in node.labels)
    maps = (node.properties.entries if isinstance(node.properties, MapExpression) else () for node in made)
    return any(LABEL_PROPERTY not in dict(entries) for entries in maps)


def _is_named(name: QueryExpression, wanted: str) -> bool:
    return isinstance(name, LiteralValue) and name.value == wanted


def _has_own_keys(node: NodePatternElement | LabelPredicate | RelationshipPatternElement) -> bool:
    properties = None if isinstance(node, LabelPredicate) else node.properties
    return isinstance(properties, MapExpression) and any(key not in _COLUMNS for key, _ in properties.entries)


def _creates_without_table(path: PathPatternElement) -> bool:
    """Return whether a path to create has a relationship without type, or a node without label that is new."""
    anonymous = any(not node.labels and (not node.name or node.properties is not None) for node in path.nodes)
    return anonymous or any(not each.types for each in path.relationships)
