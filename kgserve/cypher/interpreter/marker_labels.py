"""Marker labels: labels such as ``__Entity__``, which tools add to the one that says what a node is.

A marker is stored as an attribute of its name that is true. Patterns, SET and REMOVE are rewritten to this attribute.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    ElementUpdate,
    LabelAssignment,
    LabelRemoval,
    LiteralValue,
    MapExpression,
    MergeClauseNode,
    NodePatternElement,
    PropertyRemoval,
    QuerySyntaxNode,
    QueryUnion,
    SetOrRemoveClauseNode,
    SetSingleProperty,
    VariableReference,
)
from kgserve.cypher.interpreter.syntax_tree_rewrite import rewrite_syntax_tree
from kgserve.errors import InvalidInput

_FENCE = "__"
_MIN_MARKER_CHARS = 5


def is_marker_label(name: str) -> bool:
    """Return whether a label is a marker: it begins and ends with two underscores."""
    return name.startswith(_FENCE) and name.endswith(_FENCE) and len(name) >= _MIN_MARKER_CHARS


def find_marker_labels_in_attributes(properties: dict[str, Any]) -> list[str]:
    """Return the marker labels of a node, sorted: the attributes that are true and named like a marker label."""
    return sorted(name for name, value in properties.items() if value is True and is_marker_label(name))


def remove_marker_label_properties(properties: dict[str, Any]) -> dict[str, Any]:
    """Remove the properties that represent marker labels."""
    markers = [name for name, value in properties.items() if value is True and is_marker_label(name)]
    return {name: value for name, value in properties.items() if name not in markers} if markers else properties


def replace_marker_labels_by_properties(query: QueryUnion) -> QueryUnion:
    """Replace the marker labels in a query by properties. Raises InvalidInput where a marker is not allowed."""
    return rewrite_syntax_tree(query, _replace_markers)


def _replace_markers(part: QuerySyntaxNode) -> QuerySyntaxNode:
    match part:
        case NodePatternElement() if any(map(is_marker_label, part.labels)):
            return _replace_in_pattern(part)
        case SetOrRemoveClauseNode():
            return msgspec.structs.replace(part, updates=_replace_in_updates(part.updates))
        case MergeClauseNode():
            created, matched = _replace_in_updates(part.on_create), _replace_in_updates(part.on_match)
            return msgspec.structs.replace(part, on_create=created, on_match=matched)
        case _:
            return part


def _replace_in_pattern(node: NodePatternElement) -> NodePatternElement:
    markers = [label for label in node.labels if is_marker_label(label)]
    others = tuple(label for label in node.labels if not is_marker_label(label))
    if node.is_any and len(node.labels) > 1:
        raise InvalidInput.at("query", f"{markers[0]} cannot be one of several labels; use WHERE n:A OR n:{markers[0]}")
    properties = node.properties
    if properties is not None and not isinstance(properties, MapExpression):
        raise InvalidInput.at("query", f"{markers[0]} needs the properties one by one: {{name: $map.name}}")
    value = LiteralValue(position=node.position, value=True)
    entries = (*(() if properties is None else properties.entries), *((name, value) for name in markers))
    replaced = MapExpression(position=node.position, entries=entries)
    return msgspec.structs.replace(node, labels=others, is_any=False, properties=replaced)


def _replace_in_updates(updates: tuple[ElementUpdate, ...]) -> tuple[ElementUpdate, ...]:
    if not any(isinstance(each, LabelAssignment | LabelRemoval) for each in updates):
        return updates
    return tuple(new for each in updates for new in _replace_update(each))


def _replace_update(update: ElementUpdate) -> Iterable[ElementUpdate]:
    if not isinstance(update, LabelAssignment | LabelRemoval):
        yield update
        return
    others = tuple(label for label in update.labels if not is_marker_label(label))
    if others:
        yield msgspec.structs.replace(update, labels=others) if len(others) < len(update.labels) else update
    subject = VariableReference(position=update.position, name=update.name)
    for label in filter(is_marker_label, update.labels):
        name = LiteralValue(position=update.position, value=label)
        if isinstance(update, LabelRemoval):
            yield PropertyRemoval(position=update.position, subject=subject, name=name)
        else:
            value = LiteralValue(position=update.position, value=True)
            yield SetSingleProperty(position=update.position, subject=subject, name=name, value=value)
