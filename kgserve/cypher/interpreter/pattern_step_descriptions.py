"""Descriptions of the steps by which a pattern is matched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kgserve.cypher.interpreter.graph_view_interface import StatementGraphView
from kgserve.cypher.interpreter.pattern_model import (
    GraphPatternModel,
    NodePropertyEquality,
    PatternNodeSlot,
    PatternRelationshipSlot,
)
from kgserve.errors import InvalidInput

_INDEXED_TYPES = frozenset({str, int, float, bool})


def describe_pattern_start(
    graph: StatementGraphView,
    slot: PatternNodeSlot,
    lookups: Sequence[NodePropertyEquality],
    *,
    is_given: bool,
    relationship: str,
) -> str:
    """Describe how the first node of a part of a pattern is found."""
    node = format_node_pattern(slot)
    if is_given:
        return f"start at {node}: bound before"
    if any(lookup.name == "id" for lookup in lookups):
        return f"start at {node}: by id"
    if relationship:
        return f"start at {node}: end of {relationship}"
    return f"start at {node}: {_describe_search(graph, slot, lookups)}"


def _describe_search(graph: StatementGraphView, slot: PatternNodeSlot, lookups: Sequence[NodePropertyEquality]) -> str:
    scan = _describe_scan(slot)
    for lookup in lookups:
        if lookup.name == "type":
            return "by label"
        if lookup.name and _has_index(graph, slot, lookup):
            return f"index of attribute {lookup.name}"
    if lookups:
        return f"{scan}, or a temporary index of {lookups[0].name or 'an expression'}"
    return scan


def _has_index(graph: StatementGraphView, slot: PatternNodeSlot, lookup: NodePropertyEquality) -> bool:
    """Return whether an index has a value; what depends on other rows is taken for a value that it has."""
    try:
        value = lookup.value({})
    except (KeyError, InvalidInput):
        value = ""
    values = value if lookup.is_list and isinstance(value, list) else [value]
    if not all(type(each) in _INDEXED_TYPES for each in values):
        return False
    labels: Iterable[str | None] = (None,) if slot.labels is None else slot.labels
    found = (graph.node_ids_by_property(label, lookup.name, each) for label in labels for each in values)
    return all(each is not None for each in found)


def _describe_scan(slot: PatternNodeSlot) -> str:
    if slot.labels is None:
        return "scan of all nodes"
    return f"nodes with label {' or '.join(sorted(slot.labels))}" if slot.labels else "no node has two labels"


def describe_relationship_expansion(
    model: GraphPatternModel, slot: PatternRelationshipSlot, *, is_reverse: bool, is_closed: bool
) -> str:
    """Describe how a relationship is followed from a node that is bound."""
    source, target = (slot.right, slot.left) if is_reverse else (slot.left, slot.right)
    types = "|".join(slot.types)
    name = "" if slot.name.startswith(" ") else slot.name
    length = ""
    if slot.is_variable:
        least, most = slot.bounds
        length = f"*{least}..{'' if most is None else most}"
    arrows = {">": ("-", "->"), "<": ("<-", "-"), "": ("-", "-")}
    direction = slot.element.direction
    if is_reverse:
        direction = {">": "<", "<": ">", "": ""}[direction]
    before, after = arrows[direction]
    label = f":{types}" if types else ""
    verb = "search" if slot.shortest else "check" if is_closed else "expand"
    nodes = model.nodes
    start, end = format_node_pattern(nodes[source]), format_node_pattern(nodes[target])
    return f"{verb} {start}{before}[{name}{label}{length}]{after}{end}"


def format_node_pattern(slot: PatternNodeSlot) -> str:
    """Format a node in the syntax of patterns, with the labels that it may have."""
    labels = "" if not slot.labels else ":" + "|".join(sorted(slot.labels))
    return f"({slot.name if slot.is_named else ''}{labels})"
