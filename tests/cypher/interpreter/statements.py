"""Runs statements on graphs in memory, and shows their results as plain values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kgserve.cypher.interpreter.execution import execute_cypher_statement
from kgserve.cypher.interpreter.graph_change_overlay import GraphChangeOverlay
from kgserve.cypher.interpreter.graph_view_interface import (
    NO_LABEL,
    ExecutionLimits,
    NodeReference,
    PathValue,
    RelationshipReference,
    StatementGraphView,
)
from kgserve.cypher.interpreter.marker_labels import replace_marker_labels_by_properties
from kgserve.cypher.interpreter.opencypher_parser import parse_cypher_query
from kgserve.cypher.interpreter.semantic_checks import check_query_semantics
from tests.cypher.interpreter.memory_graph import GENERATED_ID_PREFIX, MemoryGraph

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def run_statement(graph: MemoryGraph, text: str, /, **parameters: Any) -> list[list[Any]]:
    """Run a statement, apply its changes, and return its rows as `show_value` shows them."""
    query = replace_marker_labels_by_properties(parse_cypher_query(text))
    info = check_query_semantics(query, text)
    edits = GraphChangeOverlay(graph)
    result = execute_cypher_statement(
        query, info, edits if info.is_updating else graph, parameters, new_limits(), NOW, text
    )
    rows = [[show_value(value) for value in row] for row in result.rows]
    apply_changes(graph, edits)
    return rows


def evaluate_on(graph: StatementGraphView, text: str, /, **parameters: Any) -> list[list[Any]]:
    """Run a statement on any graph view, leave its changes there, and return its rows as they are."""
    query = parse_cypher_query(text)
    return list(
        execute_cypher_statement(
            query, check_query_semantics(query, text), graph, parameters, new_limits(), NOW, text
        ).rows
    )


def new_limits() -> ExecutionLimits:
    return ExecutionLimits(lambda: None)


def apply_changes(graph: MemoryGraph, edits: GraphChangeOverlay) -> None:
    """Write the changes of a statement to its graph."""
    changes = edits.changes()
    for edge in changes.deleted_relationships:
        graph.remove_relationship(edge.key)
    for node in changes.deleted_nodes:
        graph.remove_node(node.id)
    for node in (*changes.created_nodes, *changes.updated_nodes):
        assert node.label is not None
        graph.add_node(node.id, node.label, **node.properties)
    for edge in (*changes.created_relationships, *changes.updated_relationships):
        assert edge.properties is not None
        graph.add_relationship(edge.key[0], edge.key[2], edge.key[1], **edge.properties)


def show_value(value: Any) -> Any:
    """Return a value with nodes as ``(id:label {…})``, relationships as ``[:type {…}]`` and paths as text.

    Generated ids are not shown.
    """
    match value:
        case NodeReference():
            label = value.graph.node_label(value.id)
            shown = {name: each for name, each in value.graph.node_properties(value.id).items() if name != "id"}
            name = "" if value.id.startswith(GENERATED_ID_PREFIX) else value.id
            return f"({name}{'' if label == NO_LABEL else f':{label}'}{_show_properties(shown)})"
        case RelationshipReference():
            return f"[:{value.type}{_show_properties(value.graph.relationship_properties(value.key))}]"
        case PathValue():
            text = show_value(value.nodes[0])
            for previous, edge, node in zip(value.nodes, value.relationships, value.nodes[1:], strict=False):
                is_forward = edge.key[0] == previous.id
                text += ("-{}->{}" if is_forward else "<-{}-{}").format(show_value(edge), show_value(node))
            return text
        case list():
            return [show_value(each) for each in value]
        case dict():
            return {name: show_value(each) for name, each in value.items()}
        case _:
            return value


def _show_properties(properties: dict[str, Any]) -> str:
    return " " + str(dict(sorted(properties.items()))) if properties else ""
