"""Procedures of APOC and Neo4j that write, with labels, types and property names given as values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kgserve.cypher.interpreter.graph_view_interface import NodeReference, RelationshipReference, Row
from kgserve.cypher.interpreter.procedure_definition import (
    ProcedureCallContext,
    ProcedureDefinition,
    ProcedureParameter,
)
from kgserve.cypher.interpreter.scalar_function_definition import LIST, MAP, NODE, RELATIONSHIP, STRING
from kgserve.errors import InvalidInput

_Properties = dict[str, Any]
_LABELS = ProcedureParameter("labels", LIST)
_PROPERTIES = ProcedureParameter("props", MAP, is_optional=True)
_MATCHED = ProcedureParameter("identProps", MAP)
_ON_CREATE = ProcedureParameter("onCreateProps", MAP, is_optional=True)
_ON_MATCH = ProcedureParameter("onMatchProps", MAP, is_optional=True)
_TYPE = ProcedureParameter("relType", STRING)


def _quote(name: str) -> str:
    if not name:
        raise InvalidInput("a label, type or property name must not be empty")
    return "`" + name.replace("`", "``") + "`"


def _format_labels(labels: list[Any]) -> str:
    if not all(isinstance(each, str) for each in labels):
        raise InvalidInput("labels must be a list of strings")
    return "".join(f":{_quote(each)}" for each in dict.fromkeys(labels))


def _format_keys(variable: str, properties: _Properties) -> str:
    return "{" + ", ".join(f"{_quote(name)}: {variable}[{_literal(name)}]" for name in properties) + "}"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _merge_node(
    context: ProcedureCallContext,
    labels: list[Any],
    matched: _Properties,
    on_create: _Properties | None = None,
    on_match: _Properties | None = None,
) -> Iterator[Row]:
    if not matched:
        raise InvalidInput("apoc.merge.node() needs at least one property to match")
    text = (
        f"MERGE (node{_format_labels(labels)} {_format_keys('matched', matched)}) "
        "ON CREATE SET node += created ON MATCH SET node += changed"
    )
    row = {"matched": matched, "created": on_create or {}, "changed": on_match or {}}
    for found in context.run_statement(text, row):
        yield {"node": found["node"]}


def _merge_relationship(
    context: ProcedureCallContext,
    source: NodeReference,
    type_: str,
    matched: _Properties | None,
    on_create: _Properties | None,
    target: NodeReference,
    on_match: _Properties | None = None,
) -> Iterator[Row]:
    text = (
        f"MERGE (source)-[rel:{_quote(type_)} {_format_keys('matched', matched or {})}]->(target) "
        "ON CREATE SET rel += created ON MATCH SET rel += changed"
    )
    row = {
        "source": source,
        "target": target,
        "matched": matched or {},
        "created": on_create or {},
        "changed": on_match or {},
    }
    for found in context.run_statement(text, row):
        yield {"rel": found["rel"]}


def _create_node(
    context: ProcedureCallContext, labels: list[Any], properties: _Properties | None = None
) -> Iterator[Row]:
    given = properties or {}
    text = f"CREATE (node{_format_labels(labels)} {_format_keys('given', given)})"
    for found in context.run_statement(text, {"given": given}):
        yield {"node": found["node"]}


def _create_relationship(
    context: ProcedureCallContext,
    source: NodeReference,
    type_: str,
    properties: _Properties | None,
    target: NodeReference,
) -> Iterator[Row]:
    given = properties or {}
    text = f"CREATE (source)-[rel:{_quote(type_)} {_format_keys('given', given)}]->(target)"
    for found in context.run_statement(text, {"source": source, "target": target, "given": given}):
        yield {"rel": found["rel"]}


def _change_labels(
    context: ProcedureCallContext, keyword: str, nodes: NodeReference | list[Any], labels: list[Any]
) -> Iterator[Row]:
    for node in nodes if isinstance(nodes, list) else [nodes]:
        if labels:
            for _ in context.run_statement(f"{keyword} node{_format_labels(labels)}", {"node": node}):
                pass
        yield {"node": node}


def _add_labels(context: ProcedureCallContext, nodes: NodeReference | list[Any], labels: list[Any]) -> Iterator[Row]:
    return _change_labels(context, "SET", nodes, labels)


def _remove_labels(context: ProcedureCallContext, nodes: NodeReference | list[Any], labels: list[Any]) -> Iterator[Row]:
    return _change_labels(context, "REMOVE", nodes, labels)


def _set_vector(
    context: ProcedureCallContext, element: NodeReference | RelationshipReference, key: str, vector: list[Any]
) -> Iterator[Row]:
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in vector):
        raise InvalidInput("a vector must be a list of numbers")
    floats = [float(each) for each in vector]
    for _ in context.run_statement("SET element[key] = vector", {"element": element, "key": key, "vector": floats}):
        pass
    yield {}


_NODES = ProcedureParameter("nodes", NODE | LIST)
_VECTOR = (ProcedureParameter("key", STRING), ProcedureParameter("vector", LIST))

UPDATE_PROCEDURES = tuple(
    ProcedureDefinition(name, outputs, run, parameters, is_updating=True)
    for name, outputs, run, parameters in (
        ("apoc.merge.node", ("node",), _merge_node, (_LABELS, _MATCHED, _ON_CREATE, _ON_MATCH)),
        (
            "apoc.merge.relationship",
            ("rel",),
            _merge_relationship,
            (
                ProcedureParameter("startNode", NODE),
                _TYPE,
                ProcedureParameter("identProps", MAP),
                ProcedureParameter("onCreateProps", MAP),
                ProcedureParameter("endNode", NODE),
                _ON_MATCH,
            ),
        ),
        ("apoc.create.node", ("node",), _create_node, (_LABELS, _PROPERTIES)),
        (
            "apoc.create.relationship",
            ("rel",),
            _create_relationship,
            (
                ProcedureParameter("from", NODE),
                _TYPE,
                ProcedureParameter("props", MAP),
                ProcedureParameter("to", NODE),
            ),
        ),
        ("apoc.create.addLabels", ("node",), _add_labels, (_NODES, _LABELS)),
        ("apoc.create.removeLabels", ("node",), _remove_labels, (_NODES, _LABELS)),
        ("db.create.setNodeVectorProperty", (), _set_vector, (ProcedureParameter("node", NODE), *_VECTOR)),
        (
            "db.create.setRelationshipVectorProperty",
            (),
            _set_vector,
            (ProcedureParameter("relationship", RELATIONSHIP), *_VECTOR),
        ),
    )
)
