"""Properties of nodes and relationships in openCypher: columns of rows, and the caller's attributes.

A column is a property of the same name; all other properties are attributes. If a column is not set, an attribute of
its name shows, and stays an attribute when it is set. The ``name`` of a node is an attribute unless the node has the
column. Columns that kgserve manages can be read but not set.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from kgserve.cypher.interpreter.graph_change_overlay import GENERATED_ID_PREFIX
from kgserve.cypher.interpreter.graph_view_interface import NO_LABEL, RelationshipKey
from kgserve.cypher.interpreter.stored_temporal_values import (
    decode_property_from_json,
    encode_property_as_json,
    may_json_contain_temporal_values,
)
from kgserve.cypher.interpreter.temporal_functions import FUNCTIONS, is_temporal_value
from kgserve.errors import InvalidInput
from kgserve.platform.codecs import json_decoder
from kgserve.platform.json_values import is_same_json_value
from kgserve.platform.timestamps import complete_time_to_rfc3339, format_rfc3339_timestamp, parse_rfc3339_timestamp
from kgserve.projections.cypher_engine.engine.protocol import ChangedRow
from kgserve.storage.model.node_edge_fields import (
    AUTHOR_FIELD,
    DOUBLE_TYPE,
    EDGE,
    INT64_TYPE,
    NODE,
    STRING_LIST_TYPE,
    STRING_TYPE,
    TIMESTAMP_TYPE,
    EdgeExtras,
    NodeExtras,
    RowField,
    RowFieldGroups,
    get_row_field_names,
)
from kgserve.storage.model.node_edge_rows import (
    EDGE_EXTRA_NAMES,
    NODE_EXTRA_NAMES,
    EdgeRow,
    NodeRow,
    edge_column_values,
    node_column_values,
    split_edge_times_from_attributes,
)

Attributes = dict[str, Any]

_decode_attributes = json_decoder(Attributes).decode
_encode = msgspec.json.Encoder(order="sorted").encode
_NODE_FIELDS = (*NodeRow.__struct_fields__[:-1], *NODE_EXTRA_NAMES)
_EDGE_FIELDS = (*EdgeRow.__struct_fields__[:-1], *EDGE_EXTRA_NAMES)
_NODE_EXTRAS = {field.name: field for field in NODE.extras}
_EDGE_EXTRAS = {field.name: field for field in EDGE.extras}
_NODE_MEMORY = {field.name: field for field in NODE.memory}
_EDGE_MEMORY = {field.name: field for field in EDGE.memory}
_MANAGED_NODE_PROPERTIES = frozenset(
    {"version", "sequence", "created_at", "updated_at", "attributes", "conflicts", "created_by"}
    | {field.name for field in NODE.memory if field.is_kept}
)
_MANAGED_EDGE_PROPERTIES = frozenset({"version", "sequence", "created_at", "updated_at", "attributes", "created_by"})
NODE_PROPERTY_NAMES = frozenset(get_row_field_names(NODE.whole))
"""Names of the columns of nodes."""
EDGE_PROPERTY_NAMES = frozenset(get_row_field_names(EDGE.whole))
"""Names of the columns of edges."""
NODE_MEMORY_PROPERTIES = frozenset(field.name for field in NODE.memory if not field.is_kept)
"""Names that are columns of memories and named nodes, and attributes of other nodes."""
DEFAULT_WEIGHT = 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decode_node_attributes(row: NodeRow) -> Attributes:
    """Return the attributes of a node."""
    return _decode(row.attributes)


def decode_edge_attributes(row: EdgeRow) -> Attributes:
    """Return the caller's attributes of an edge."""
    return _decode(split_edge_times_from_attributes(row.attributes).own)


def _decode(text: str) -> Attributes:
    if text == "{}":
        return {}
    found = _decode_attributes(text)
    if may_json_contain_temporal_values(text):
        return {name: decode_property_from_json(value) for name, value in found.items()}
    return found


def read_node_property(row: NodeRow, attributes: Attributes, name: str) -> Any:
    """Return a property of a node; None if it has none."""
    if name not in NODE_PROPERTY_NAMES:
        return attributes.get(name)
    match name:
        case "type":
            return None if row.type == NO_LABEL else row.type
        case "id" | "content" | "attributes" | "version" | "sequence":
            return getattr(row, name)
        case "created_at" | "updated_at":
            return to_cypher_datetime(getattr(row, name))
        case _:
            return _read_extra(row.extras, attributes, name)


def read_edge_property(row: EdgeRow, attributes: Attributes, name: str) -> Any:
    """Return a property of a relationship; None if it has none."""
    match name:
        case "weight" | "relation_type" | "version" | "sequence" | "attributes":
            return getattr(row, name)
        case "created_at" | "updated_at":
            return _parse_datetime(getattr(split_edge_times_from_attributes(row.attributes), name))
        case _ if name in _EDGE_EXTRAS or name in _EDGE_MEMORY:
            return _read_extra(row.extras, attributes, name)
        case _:
            return attributes.get(name)


def read_implicit_node_property(row: NodeRow | None, name: str) -> Any:
    """Return a property that a node has without being given one; ``row`` is None for a new node."""
    if name == "content":
        return ""
    return None if row is None or name not in _MANAGED_NODE_PROPERTIES else read_node_property(row, {}, name)


def read_implicit_edge_property(row: EdgeRow | None, key: RelationshipKey, name: str) -> Any:
    """Return a property that a relationship has without being given one; ``row`` is None for a new one."""
    if name in {"weight", "relation_type"}:
        return DEFAULT_WEIGHT if name == "weight" else key[2]
    return None if row is None or name not in _MANAGED_EDGE_PROPERTIES else read_edge_property(row, {}, name)


def get_node_property_map(row: NodeRow, attributes: Attributes) -> dict[str, Any]:
    """Return the properties of a node that a caller has set and that are not null, without a generated id."""
    found = {} if row.id.startswith(GENERATED_ID_PREFIX) else {"id": row.id}
    found |= {name: value for name, value in attributes.items() if value is not None}
    if row.content:
        found["content"] = row.content
    return found | _list_extras(row.extras, (*NODE.extras, *NODE.memory), _MANAGED_NODE_PROPERTIES)


def get_edge_property_map(row: EdgeRow, attributes: Attributes) -> dict[str, Any]:
    """Return the properties of a relationship that a caller has set and that are not null."""
    found = {name: value for name, value in attributes.items() if value is not None}
    if row.weight != DEFAULT_WEIGHT:
        found["weight"] = row.weight
    return found | _list_extras(row.extras, (*EDGE.extras, *EDGE.memory), _MANAGED_EDGE_PROPERTIES)


def to_cypher_datetime(microseconds: int) -> Any:
    """Convert a stored time in microseconds to an openCypher datetime."""
    return _parse_datetime(format_rfc3339_timestamp(microseconds))


def _parse_datetime(text: str) -> Any:
    return FUNCTIONS["datetime"](text, now=_EPOCH)


def _read_extra(extras: NodeExtras | EdgeExtras | None, attributes: Attributes, name: str) -> Any:
    value = None if extras is None else getattr(extras, name)
    if name == AUTHOR_FIELD:  # as the engine shows it: empty, not null, if only the author is unknown
        return value
    if value is None or value in ("", ()):
        return attributes.get(name)
    return _from_column(name, value)


def _from_column(name: str, value: Any) -> Any:
    field = _NODE_EXTRAS.get(name) or _NODE_MEMORY.get(name)
    if field is not None and field.type is TIMESTAMP_TYPE:
        return to_cypher_datetime(value)
    return list(value) if isinstance(value, tuple) else value


def _list_extras(
    extras: NodeExtras | EdgeExtras | None, fields: tuple[RowField, ...], managed: frozenset[str]
) -> dict[str, Any]:
    if extras is None:
        return {}
    values = ((field.name, getattr(extras, field.name)) for field in fields if field.name not in managed)
    return {name: _from_column(name, value) for name, value in values if value is not None and value not in ("", ())}


# Changes


def build_node_properties_change(
    before: NodeRow | None, node_id: str, label: str, properties: dict[str, Any]
) -> ChangedRow:
    """Return the change that gives a node a label and exactly these properties. Raises InvalidInput."""
    name = f"node {node_id!r}"
    own = {} if before is None else decode_node_attributes(before)
    optional = _settable_columns(NODE, before, own, _MANAGED_NODE_PROPERTIES)
    if before is None or before.extras is None or not before.extras.name:
        optional.pop("name", None)
    columns, attributes = _split_properties(properties, {"id", "content", *optional}, _MANAGED_NODE_PROPERTIES, name)
    old = (
        None
        if before is None
        else dict(zip(_NODE_FIELDS, node_column_values(msgspec.structs.astuple(before)), strict=True))
    )
    now = dict.fromkeys(_NODE_FIELDS) if old is None else dict(old)
    unchanged = before is not None and is_same_json_value(own, attributes)
    now |= {"id": node_id, "type": label, "content": _require_text(columns.pop("content", ""), "content", name)}
    now["attributes"] = before.attributes if unchanged and before else _encode_attributes(attributes)
    columns.pop("id", None)
    for field in optional.values():
        now[field.name] = _to_column(field, columns.get(field.name), now[field.name], name)
    return ChangedRow(now, old)


def build_relationship_properties_change(
    before: EdgeRow | None, key: RelationshipKey, properties: dict[str, Any]
) -> ChangedRow:
    """Return the change that gives a relationship exactly these properties. Raises InvalidInput."""
    source, target, relation_type = key
    name = f"the relationship from {source!r} to {target!r}"
    own = {} if before is None else decode_edge_attributes(before)
    optional = _settable_columns(EDGE, before, own, _MANAGED_EDGE_PROPERTIES)
    columns, attributes = _split_properties(properties, {"weight", *optional}, _MANAGED_EDGE_PROPERTIES, name)
    old = (
        None
        if before is None
        else dict(zip(_EDGE_FIELDS, edge_column_values(msgspec.structs.astuple(before)), strict=True))
    )
    now = dict.fromkeys(_EDGE_FIELDS) if old is None else dict(old)
    unchanged = before is not None and is_same_json_value(own, attributes)
    now |= {"source": source, "target": target, "relation_type": relation_type}
    now["weight"] = _require_number(columns.get("weight", DEFAULT_WEIGHT), "weight", name)
    now["attributes"] = before.attributes if unchanged and before else _encode_attributes(attributes)
    for field in optional.values():
        now[field.name] = _to_column(field, columns.get(field.name), now[field.name], name)
    return ChangedRow(now, old)


def _settable_columns(
    fields: RowFieldGroups, before: NodeRow | EdgeRow | None, attributes: Attributes, managed: frozenset[str]
) -> dict[str, RowField]:
    """Return the optional columns that properties of their names set, by name."""
    extras = None if before is None else before.extras
    settable = (field for field in fields.optional if field.name not in managed)
    return {
        field.name: field
        for field in settable
        if field.name not in attributes or (extras is not None and getattr(extras, field.name) not in (None, "", ()))
    }


def _split_properties(
    properties: dict[str, Any], columns: set[str], managed: frozenset[str], element: str
) -> tuple[dict[str, Any], Attributes]:
    found: dict[str, Any] = {}
    attributes: Attributes = {}
    for name, value in properties.items():
        if name in managed:
            raise InvalidInput.at("query", f"{element}: {name} is managed by kgserve and cannot be set")
        if name in columns:
            found[name] = value
        elif value is not None:
            attributes[name] = value
    return found, attributes


def _encode_attributes(attributes: Attributes) -> str:
    return _encode(encode_property_as_json(attributes)).decode()


def _to_column(field: RowField, value: Any, before: Any, element: str) -> Any:
    """Return the value of a column; the previous one if it is equal."""
    if value is None:
        return None
    if before is not None and is_same_json_value(_from_column(field.name, before), value):
        return before
    return _COLUMN_CONVERSIONS[field.type](value, field.name, element)


def _require_text(value: Any, name: str, element: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise InvalidInput.at("query", f"{element}: {name} must be a string")


def _require_number(value: Any, name: str, element: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise InvalidInput.at("query", f"{element}: {name} must be a finite number")


def _require_integer(value: Any, name: str, element: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidInput.at("query", f"{element}: {name} must be an integer")


def _require_texts(value: Any, name: str, element: str) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return _encode(value).decode()
    raise InvalidInput.at("query", f"{element}: {name} must be a list of strings")


def _require_time(value: Any, name: str, element: str) -> int:
    text = str(value) if is_temporal_value(value) or isinstance(value, str) else ""
    completed = complete_time_to_rfc3339(text)
    try:
        return parse_rfc3339_timestamp(text if completed is None else completed)
    except ValueError:
        raise InvalidInput.at("query", f"{element}: {name} must be a datetime, or its text") from None


_COLUMN_CONVERSIONS: dict[Any, Callable[[Any, str, str], Any]] = {
    STRING_TYPE: _require_text,
    STRING_LIST_TYPE: _require_texts,
    TIMESTAMP_TYPE: _require_time,
    DOUBLE_TYPE: _require_number,
    INT64_TYPE: _require_integer,
}
