"""Kùzu table names in statements: ``Entity`` stands for any node, ``RELATES_TO`` for any relationship."""

from __future__ import annotations

import msgspec

from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    CreateClauseNode,
    LabelPredicate,
    LiteralValue,
    MapExpression,
    MergeClauseNode,
    NodePatternElement,
    NullPredicate,
    PathPatternElement,
    QuerySyntaxNode,
    QueryUnion,
    RelationshipPatternElement,
)
from kgserve.cypher.interpreter.syntax_tree_rewrite import rewrite_syntax_tree
from kgserve.errors import InvalidInput

NODE_TABLE = "Entity"
RELATIONSHIP_TABLE = "RELATES_TO"
TYPE_PROPERTY = "relation_type"


def rewrite_kuzu_table_names_in_query(query: QueryUnion) -> QueryUnion:
    """Replace the names of Kùzu tables in a query by patterns of any node or relationship.

    A new relationship gets the type that its property ``relation_type`` says. Raises InvalidInput if this is no string
    literal.
    """
    return rewrite_syntax_tree(rewrite_syntax_tree(query, _name_new_types), _without_table)


def _name_new_types(part: QuerySyntaxNode) -> QuerySyntaxNode:
    match part:
        case CreateClauseNode():
            return msgspec.structs.replace(part, paths=tuple(map(_name_types, part.paths)))
        case MergeClauseNode():
            return msgspec.structs.replace(part, path=_name_types(part.path))
        case _:
            return part


def _without_table(part: QuerySyntaxNode) -> QuerySyntaxNode:
    match part:
        case NodePatternElement() if NODE_TABLE in part.labels:
            others = tuple(label for label in part.labels if label != NODE_TABLE)
            return msgspec.structs.replace(part, labels=() if part.is_any else others)
        case RelationshipPatternElement() if RELATIONSHIP_TABLE in part.types:
            return msgspec.structs.replace(part, types=())
        case LabelPredicate() if NODE_TABLE in part.labels:
            others = tuple(label for label in part.labels if label != NODE_TABLE)
            if part.is_any or not others:
                return NullPredicate(position=part.position, operand=part.subject, is_negated=True)
            return msgspec.structs.replace(part, labels=others)
        case _:
            return part


def _name_types(path: PathPatternElement) -> PathPatternElement:
    return msgspec.structs.replace(path, relationships=tuple(map(_name_type, path.relationships)))


def _name_type(relationship: RelationshipPatternElement) -> RelationshipPatternElement:
    if RELATIONSHIP_TABLE not in relationship.types:
        return relationship
    properties = relationship.properties
    entries = properties.entries if isinstance(properties, MapExpression) else ()
    type_ = dict(entries).get(TYPE_PROPERTY)
    if not isinstance(type_, LiteralValue) or not isinstance(type_.value, str) or not type_.value:
        raise InvalidInput.at(
            "query", f"a new relationship needs a type: write -[:NAME]-> instead of -[:{RELATIONSHIP_TABLE}]->"
        )
    rest = tuple(entry for entry in entries if entry[0] != TYPE_PROPERTY)
    kept = MapExpression(position=relationship.position, entries=rest) if rest else None
    return msgspec.structs.replace(relationship, types=(type_.value,), properties=kept)
