"""Nodes and edges as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kgserve.mcp import budget
from kgserve.mcp.tool import quoted
from kgserve.model.answers import Edge, ListedNode, Node

TEASER = 80
_TAGS = 200
_HEADS = 20


def facts(node: Node | ListedNode) -> str:
    """What a node has beyond id, type and content, as `` name=value …``; empty when it has nothing."""
    return "".join(f" {fact}" for fact in _facts(node))


def node_line(node: Node | ListedNode, mark: str = "-") -> str:
    """A node in one line, its content shortened."""
    content = f" content={quoted(budget.shortened(node.content, TEASER, '...'))}" if node.content else ""
    return f"  {mark} id={quoted(node.id)} type={quoted(node.type)}{content}{facts(node)}"


def edge_line(edge: Edge) -> str:
    """An edge in one line."""
    ordinal = [f"ordinal={edge.ordinal}"] if isinstance(edge.ordinal, int) else []
    rest = ", ".join([f"weight={edge.weight:.2f}", *ordinal, *_validity(edge)])
    return f"  {quoted(edge.source)} -[{edge.relation_type}]-> {quoted(edge.target)} ({rest})"


def moment(text: str) -> str:
    """A time without a fraction that is none."""
    return text.replace(".000000Z", "Z")


def moment_asked(as_of: str | msgspec.UnsetType, valid_at: str | msgspec.UnsetType) -> str:
    """The moment that a call asks for, to be put behind what was asked; empty for the present."""
    return (f" as of {as_of}" if as_of else "") + _true_at(valid_at)


def _true_at(valid_at: str | msgspec.UnsetType) -> str:
    if not valid_at:
        return ""
    return ", true or not" if valid_at == "any" else f", true at {valid_at}"


def _facts(node: Node | ListedNode) -> Iterator[str]:
    if node.summary:
        yield f"summary={quoted(budget.shortened(node.summary, TEASER, '...'))}"
    if node.tags:
        yield f"tags={budget.shortened(', '.join(map(quoted, node.tags)), _TAGS)}"
    yield from _validity(node)
    if node.stale:
        yield "stale"
    if node.conflicts:
        heads = ",".join(map(str, node.conflicts[:_HEADS])) + (",…" if len(node.conflicts) > _HEADS else "")
        yield f"version={node.version} conflicts_with_versions={heads}"
    if node.superseded_by:
        yield f"superseded_by={node.superseded_by}"


def _validity(thing: Node | ListedNode | Edge) -> Iterator[str]:
    if thing.valid_from:
        yield f"valid_from={moment(thing.valid_from)}"
    if thing.valid_to:
        yield f"valid_to={moment(thing.valid_to)}"
