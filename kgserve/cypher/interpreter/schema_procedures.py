"""Procedures that describe a graph: those of Neo4j, and those of APOC that clients read a schema with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kgserve.cypher.interpreter.empty_graph import EmptyGraph
from kgserve.cypher.interpreter.graph_change_overlay import GraphChangeOverlay
from kgserve.cypher.interpreter.graph_view_interface import NodeReference, RelationshipKey, RelationshipReference, Row
from kgserve.cypher.interpreter.procedure_definition import (
    ProcedureCallContext,
    ProcedureDefinition,
    ProcedureParameter,
)
from kgserve.cypher.interpreter.scalar_function_definition import MAP
from kgserve.cypher.interpreter.schema_sample import DEFAULT_NODES_PER_LABEL, GraphSchemaSample
from kgserve.errors import InvalidInput
from kgserve.platform.version import __version__

_CONFIG = ProcedureParameter("config", MAP, is_optional=True)
_META_COLUMNS = (
    "label", "property", "count", "unique", "index", "existence", "type", "array", "sample", "left", "right", "other",
    "otherLabels", "elementType",
)  # fmt: skip
_SCHEMA_COLUMNS = ("node", "label", "properties", "type", "size", "valuesSelectivity", "keys")


def _list_labels(context: ProcedureCallContext) -> Iterator[Row]:
    for name in context.graph.labels():
        yield {"label": name}


def _list_relationship_types(context: ProcedureCallContext) -> Iterator[Row]:
    for name in context.graph.relationship_types():
        yield {"relationshipType": name}


def _list_property_keys(context: ProcedureCallContext) -> Iterator[Row]:
    for name in context.graph.property_keys():
        yield {"propertyKey": name}


def _list_components(context: ProcedureCallContext) -> Iterator[Row]:  # noqa: ARG001
    yield {"name": "kgserve", "versions": [__version__], "edition": "community"}


def _list_no_indexes(context: ProcedureCallContext) -> Iterator[Row]:  # noqa: ARG001
    yield from ()


def _read_sample(context: ProcedureCallContext, config: dict[str, Any] | None) -> GraphSchemaSample:
    count = (config or {}).get("sample")
    if count is not None and type(count) is not int:
        raise InvalidInput("`sample` of the configuration must be an integer: nodes to read of each label")
    return GraphSchemaSample(context.graph, context.limits, count if count and count > 0 else DEFAULT_NODES_PER_LABEL)


def _draw_schema(
    sample: GraphSchemaSample, context: ProcedureCallContext, *, shows_counts: bool
) -> tuple[list[NodeReference], list[RelationshipReference]]:
    """Return a node for each label, and a relationship for each type between two labels."""
    schema = GraphChangeOverlay(EmptyGraph())
    extra = {} if shows_counts else {"indexes": [], "constraints": []}
    ids: dict[str, str] = {}
    for label in sample.nodes:
        count = {"count": context.graph.node_count(label)} if shows_counts else {}
        ids[label] = schema.create_node(label, {"name": label, **extra, **count})
    keys: list[RelationshipKey] = []
    for (source, type_, target), count in sample.connections.items():
        if source in ids and target in ids:
            shown: dict[str, Any] = {"type": type_, "count": count} if shows_counts else {"name": type_}
            keys.append(schema.create_relationship(ids[source], ids[target], type_, shown))
    nodes = [NodeReference(schema, node_id) for node_id in ids.values()]
    return nodes, [RelationshipReference(schema, key) for key in keys]


def _describe_schema(context: ProcedureCallContext) -> Iterator[Row]:
    nodes, relationships = _draw_schema(_read_sample(context, None), context, shows_counts=False)
    yield {"nodes": nodes, "relationships": relationships}


def _describe_graph(context: ProcedureCallContext, config: dict[str, Any] | None = None) -> Iterator[Row]:
    nodes, relationships = _draw_schema(_read_sample(context, config), context, shows_counts=True)
    yield {"nodes": nodes, "relationships": relationships}


def _describe_data(context: ProcedureCallContext, config: dict[str, Any] | None = None) -> Iterator[Row]:
    """Yield a row for each property, and one for each label and type of relationships that start at it."""
    sample = _read_sample(context, config)
    for label, properties in sample.nodes.items():
        for name, type_ in properties.items():
            yield _meta_row("node", label, name, type_)
        targets: dict[str, list[str]] = {}
        counts: Counter[str] = Counter()
        for (source, type_, target), count in sample.connections.items():
            if source == label:
                targets.setdefault(type_, []).append(target)
                counts[type_] += count
        for type_, others in targets.items():
            yield {**_meta_row("node", label, type_, "RELATIONSHIP"), "other": others, "count": counts[type_]}
    for type_, properties in sample.relationships.items():
        for name, kind in properties.items():
            yield _meta_row("relationship", type_, name, kind)


def _meta_row(element: str, label: str, name: str, type_: str) -> Row:
    known = {"label": label, "property": name, "type": type_, "array": type_ == "LIST", "elementType": element}
    return {
        **dict.fromkeys(_META_COLUMNS),
        **known,
        "count": 0,
        "unique": False,
        "index": False,
        "existence": False,
        "other": [],
        "otherLabels": [],
    }


SCHEMA_PROCEDURES = (
    ProcedureDefinition("db.labels", ("label",), _list_labels),
    ProcedureDefinition("db.relationshipTypes", ("relationshipType",), _list_relationship_types),
    ProcedureDefinition("db.propertyKeys", ("propertyKey",), _list_property_keys),
    ProcedureDefinition("db.schema.visualization", ("nodes", "relationships"), _describe_schema),
    ProcedureDefinition("dbms.components", ("name", "versions", "edition"), _list_components),
    ProcedureDefinition("apoc.meta.data", _META_COLUMNS, _describe_data, (_CONFIG,)),
    ProcedureDefinition("apoc.meta.graph", ("nodes", "relationships"), _describe_graph, (_CONFIG,)),
    ProcedureDefinition("apoc.meta.subGraph", ("nodes", "relationships"), _describe_graph, (_CONFIG,)),
    ProcedureDefinition("apoc.schema.nodes", _SCHEMA_COLUMNS, _list_no_indexes, (_CONFIG,)),
)
