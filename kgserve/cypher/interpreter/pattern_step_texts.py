"""Descriptions of the steps by which a pattern is matched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kgserve.cypher.interpreter.graph_view import GraphView
from kgserve.cypher.interpreter.pattern_model import NodeLookup, NodeSlot, PatternModel, RelationshipSlot
from kgserve.errors import InvalidInput

_INDEXED_TYPES = frozenset({str, int, float, bool})


def describe_pattern_start(
    graph: GraphView, slot: NodeSlot, lookups: Sequence[NodeLookup], *, is_given: bool, relationship: str
) -> str:
    """Return how the first node of a part of a pattern is found."""
    node = name_node(slot)
    if is_given:
        return f"start at {node}: bound before"
    if any(lookup.name == "id" for lookup in lookups):
        return f"start at {node}: by id"
    if relationship:
        return f"start at {node}: end of {relationship}"
    return f"start at {node}: {_describe_search(graph, slot, lookups)}"


def _describe_search(graph: GraphView, slot: NodeSlot, lookups: Sequence[NodeLookup]) -> str:
    scan = _describe_scan(slot)
    for lookup in lookups:
        if lookup.name == "type":
            return "by label"
        if lookup.name and _has_index(graph, slot, lookup):
            return f"index of attribute {lookup.name}"
    if lookups:
        return f"{scan}, or a temporary index of {lookups[0].name or 'an expression'}"
    return scan


def _has_index(graph: GraphView, slot: NodeSlot, lookup: NodeLookup) -> bool:
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


def _describe_scan(slot: NodeSlot) -> str:
    if slot.labels is None:
        return "scan of all nodes"
    return f"nodes with label {' or '.join(sorted(slot.labels))}" if slot.labels else "no node has two labels"


def describe_expansion(model: PatternModel, slot: RelationshipSlot, *, is_reverse: bool, is_closed: bool) -> str:
    """Return how a relationship is followed from a node that is bound."""
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
    return f"{verb} {name_node(nodes[source])}{before}[{name}{label}{length}]{after}{name_node(nodes[target])}"


def name_node(slot: NodeSlot) -> str:
    """Return a node as patterns write it, with the labels that it may have."""
    labels = "" if not slot.labels else ":" + "|".join(sorted(slot.labels))
    return f"({slot.name if slot.is_named else ''}{labels})"
