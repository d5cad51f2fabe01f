"""Procedures that statements can call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from typing_extensions import override

from kgserve.cypher.interpreter.graph_edits import GraphEdits
from kgserve.cypher.interpreter.graph_view import (
    NO_LABEL,
    ExecutionLimits,
    GraphView,
    NodeReference,
    RelationshipKey,
    RelationshipReference,
    Row,
)
from kgserve.errors import InvalidInput
from kgserve.platform.version import __version__


class ProcedureSignature(msgspec.Struct, frozen=True):
    """Procedure without arguments: its name, its output columns, and the function that yields its rows."""

    name: str
    outputs: tuple[str, ...]
    run: Callable[[GraphView, ExecutionLimits], Iterator[Row]]


def find_procedure(name: str) -> ProcedureSignature:
    """Return a procedure by name; upper and lower case do not matter. Raises InvalidInput with the list of names."""
    found = PROCEDURES.get(name.lower())
    if found is None:
        known = ", ".join(sorted(each.name for each in PROCEDURES.values()))
        raise InvalidInput(f"there is no procedure {name}; available are {known}")
    return found


class EmptyGraph(GraphView):
    """Graph without nodes."""

    @override
    def node_ids(self) -> Iterator[str]:
        yield from ()

    @override
    def node_ids_by_label(self, label: str) -> Iterator[str]:
        yield from ()

    @override
    def node_ids_by_property(self, label: str | None, name: str, value: Any) -> tuple[str, ...]:
        return ()

    @override
    def has_node(self, node_id: str) -> bool:
        return False

    @override
    def node_label(self, node_id: str) -> str | None:
        return None

    @override
    def node_property(self, node_id: str, name: str) -> Any:
        return None

    @override
    def node_properties(self, node_id: str) -> dict[str, Any]:
        return {}

    @override
    def node_columns(self, node_id: str) -> dict[str, Any]:
        return {}

    @override
    def relationships(
        self, node_id: str, *, is_outgoing: bool, types: tuple[str, ...] = ()
    ) -> tuple[RelationshipKey, ...]:
        return ()

    @override
    def has_relationship(self, key: RelationshipKey) -> bool:
        return False

    @override
    def relationship_property(self, key: RelationshipKey, name: str) -> Any:
        return None

    @override
    def relationship_properties(self, key: RelationshipKey) -> dict[str, Any]:
        return {}

    @override
    def relationship_columns(self, key: RelationshipKey) -> dict[str, Any]:
        return {}

    @override
    def node_count(self, label: str | None = None) -> int:
        return 0

    @override
    def labels(self) -> list[str]:
        return []

    @override
    def relationship_types(self) -> list[str]:
        return []

    @override
    def property_keys(self) -> list[str]:
        return []


def _list_labels(graph: GraphView, limits: ExecutionLimits) -> Iterator[Row]:  # noqa: ARG001
    for name in graph.labels():
        yield {"label": name}


def _list_relationship_types(graph: GraphView, limits: ExecutionLimits) -> Iterator[Row]:  # noqa: ARG001
    for name in graph.relationship_types():
        yield {"relationshipType": name}


def _list_property_keys(graph: GraphView, limits: ExecutionLimits) -> Iterator[Row]:  # noqa: ARG001
    for name in graph.property_keys():
        yield {"propertyKey": name}


def _list_components(graph: GraphView, limits: ExecutionLimits) -> Iterator[Row]:  # noqa: ARG001
    yield {"name": "kgserve", "versions": [__version__], "edition": "community"}


def _describe_schema(graph: GraphView, limits: ExecutionLimits) -> Iterator[Row]:
    """Yield one row: a node for each label, and a relationship for each type between two labels."""
    schema = GraphEdits(EmptyGraph())
    ids: dict[str, str] = {}
    keys: dict[RelationshipKey, None] = {}
    for label in graph.labels():
        ids[label] = schema.create_node(label, {"name": label, "indexes": [], "constraints": []})
    for node_id in graph.node_ids():
        limits.step()
        source = ids.get(graph.node_label(node_id) or NO_LABEL)
        if source is None:
            continue
        for _, other, type_ in graph.relationships(node_id, is_outgoing=True):
            limits.step()
            target = ids.get(graph.node_label(other) or NO_LABEL)
            if target is not None:
                keys[source, target, type_] = None
    for source, target, type_ in keys:
        schema.create_relationship(source, target, type_, {"name": type_})
    yield {
        "nodes": [NodeReference(schema, node_id) for node_id in ids.values()],
        "relationships": [RelationshipReference(schema, key) for key in keys],
    }


PROCEDURES: dict[str, ProcedureSignature] = {
    each.name.lower(): each
    for each in (
        ProcedureSignature("db.labels", ("label",), _list_labels),
        ProcedureSignature("db.relationshipTypes", ("relationshipType",), _list_relationship_types),
        ProcedureSignature("db.propertyKeys", ("propertyKey",), _list_property_keys),
        ProcedureSignature("db.schema.visualization", ("nodes", "relationships"), _describe_schema),
        ProcedureSignature("dbms.components", ("name", "versions", "edition"), _list_components),
    )
}
