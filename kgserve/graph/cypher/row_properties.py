"""Properties of nodes and relationships in openCypher: columns of rows, and the caller's attributes.

A column is a property of the same name; all other properties are attributes. An attribute whose name is an optional
column shows while that column is empty, and stays an attribute when it is set. An attribute whose name is any other
column is no property, and no statement changes it. The ``name`` of a node is an attribute unless the node has the
column. Columns that kgserve manages can be read but not set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from kgserve.cypher.interpreter.graph_view_interface import (
    GENERATED_ID_PREFIX,
    NO_LABEL,
    RelationshipDifference,
    RelationshipKey,
    StatementNodeDifference,
)
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
    EngineAndArrowFieldType,
    NodeExtras,
    RowFieldGroups,
    get_row_field_names,
)
from kgserve.storage.model.node_edge_rows import (
    EDGE_EXTRA_NAMES,
    NODE_EXTRA_NAMES,
    EdgeRow,
    NodeRow,
    edge_column_values,
    encode_edge_attributes,
    node_column_values,
    split_edge_times_from_attributes,
)

Attributes = dict[str, Any]

_decode_attributes = json_decoder(Attributes).decode
_encode = msgspec.json.Encoder(order="sorted").encode
_NODE_FIELDS = (*NodeRow.__struct_fields__[:-1], *NODE_EXTRA_NAMES)
_EDGE_FIELDS = (*EdgeRow.__struct_fields__[:-1], *EDGE_EXTRA_NAMES)
NODE_PROPERTY_NAMES = frozenset(get_row_field_names(NODE.whole))
"""Names of the columns of nodes."""
EDGE_PROPERTY_NAMES = frozenset(get_row_field_names(EDGE.whole))
"""Names of the columns of edges."""
NODE_MEMORY_PROPERTIES = frozenset(field.name for field in NODE.memory if not field.is_kept)
"""Names that are columns of memories and named nodes, and attributes of other nodes."""
DEFAULT_WEIGHT = 1.0
_EMPTY_PLAIN_COLUMNS = {"content": "", "weight": DEFAULT_WEIGHT}
"""Values of the settable columns of every row that count as no property."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _PropertyColumns(NamedTuple):
    """Columns of nodes or edges by what they mean for properties.

    ``hiding`` columns hide attributes of their names always, ``optional`` ones while they are set.
    """

    hiding: frozenset[str]
    managed: frozenset[str]
    optional: frozenset[str]
    types: dict[str, EngineAndArrowFieldType]

    @classmethod
    def of_fields(cls, fields: RowFieldGroups, hiding: Iterable[str], managed: Iterable[str]) -> _PropertyColumns:
        """Return the columns of rows; ``managed`` names are those besides fields that only exports contain."""
        kept = {field.name for field in fields.memory if field.is_kept}
        optional = frozenset(get_row_field_names(fields.optional)) - {AUTHOR_FIELD}
        types = {field.name: field.type for field in fields.whole}
        return cls(frozenset({*hiding, AUTHOR_FIELD}), frozenset({*managed, *kept, AUTHOR_FIELD}), optional, types)

    def is_attribute(self, name: str, extras: NodeExtras | EdgeExtras | None, attributes: Attributes) -> bool:
        """Return whether a property of a name is an attribute of a row, or would be one."""
        if name in self.optional:
            return not _has_column(extras, name) and (name in attributes or name == "name")
        return name not in self.hiding


_MANAGED_PROPERTIES = ("version", "sequence", "created_at", "updated_at", "attributes")
_NODE = _PropertyColumns.of_fields(NODE, get_row_field_names(NODE.plain), (*_MANAGED_PROPERTIES, "conflicts"))
_EDGE = _PropertyColumns.of_fields(
    EDGE, ("weight", "relation_type", *_MANAGED_PROPERTIES), ("relation_type", *_MANAGED_PROPERTIES)
)


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
            return to_cypher_datetime(
                parse_rfc3339_timestamp(getattr(split_edge_times_from_attributes(row.attributes), name))
            )
        case _ if name in _EDGE.optional or name == AUTHOR_FIELD:
            return _read_extra(row.extras, attributes, name)
        case _:
            return attributes.get(name)


def read_implicit_node_property(row: NodeRow | None, name: str) -> Any:
    """Return a property that a node has without being given one; ``row`` is None for a new node."""
    if name == "content":
        return ""
    if name == AUTHOR_FIELD:  # the author of the state that the statement replaces
        return None if row is None or row.extras is None else ""
    return None if row is None or name not in _NODE.managed else read_node_property(row, {}, name)


def read_implicit_edge_property(row: EdgeRow | None, key: RelationshipKey, name: str) -> Any:
    """Return a property that a relationship has without being given one; ``row`` is None for a new one."""
    if name in {"weight", "relation_type"}:
        return DEFAULT_WEIGHT if name == "weight" else key[2]
    if name == AUTHOR_FIELD:
        return None if row is None or row.extras is None else ""
    return None if row is None or name not in _EDGE.managed else read_edge_property(row, {}, name)


def get_node_property_map(row: NodeRow, attributes: Attributes) -> dict[str, Any]:
    """Return the properties of a node that a caller has set and that are not null, without a generated id."""
    found = {} if row.id.startswith(GENERATED_ID_PREFIX) else {"id": row.id}
    found |= _list_attributes(_NODE, row.extras, attributes)
    if row.content:
        found["content"] = row.content
    return found | _list_extras(_NODE, row.extras)


def get_edge_property_map(row: EdgeRow, attributes: Attributes) -> dict[str, Any]:
    """Return the properties of a relationship that a caller has set and that are not null."""
    found = _list_attributes(_EDGE, row.extras, attributes)
    if row.weight != DEFAULT_WEIGHT:
        found["weight"] = row.weight
    return found | _list_extras(_EDGE, row.extras)


def _list_attributes(
    columns: _PropertyColumns, extras: NodeExtras | EdgeExtras | None, attributes: Attributes
) -> dict[str, Any]:
    """Return the attributes that are properties, without nulls."""
    return {
        name: value
        for name, value in attributes.items()
        if value is not None and columns.is_attribute(name, extras, attributes)
    }


def to_cypher_datetime(microseconds: int) -> Any:
    """Convert a stored time in microseconds to an openCypher datetime."""
    return FUNCTIONS["datetime"](format_rfc3339_timestamp(microseconds), now=_EPOCH)


def _read_extra(extras: NodeExtras | EdgeExtras | None, attributes: Attributes, name: str) -> Any:
    if name == AUTHOR_FIELD:  # as the engine shows it: empty, not null, if only the author is unknown
        return None if extras is None else extras.created_by
    return _from_column(name, getattr(extras, name)) if _has_column(extras, name) else attributes.get(name)


def _has_column(extras: NodeExtras | EdgeExtras | None, name: str) -> bool:
    """Return whether an optional column is set."""
    return extras is not None and getattr(extras, name) not in (None, "", ())


def _from_column(name: str, value: Any) -> Any:
    if _NODE.types.get(name) is TIMESTAMP_TYPE:
        return to_cypher_datetime(value)
    return list(value) if isinstance(value, tuple) else value


def _list_extras(columns: _PropertyColumns, extras: NodeExtras | EdgeExtras | None) -> dict[str, Any]:
    if extras is None:
        return {}
    names = (name for name in columns.optional if name not in columns.managed and _has_column(extras, name))
    return {name: _from_column(name, getattr(extras, name)) for name in names}


# Changes


def convert_node_property_value(
    row: NodeRow | None, attributes: Attributes, node_id: str, name: str, value: Any
) -> Any:
    """Return a value as the property shows it once it is stored, None for none; ``row`` is None for a new node.

    Raises InvalidInput for a value that the property cannot have.
    """
    extras = None if row is None else row.extras
    return _convert_property_value(_NODE, extras, attributes, (name, value), f"node {node_id!r}")


def convert_edge_property_value(
    row: EdgeRow | None, attributes: Attributes, key: RelationshipKey, name: str, value: Any
) -> Any:
    """Return a value as the property shows it once it is stored; ``row`` is None for a new relationship."""
    extras = None if row is None else row.extras
    element = f"the relationship from {key[0]!r} to {key[1]!r}"
    return _convert_property_value(_EDGE, extras, attributes, (name, value), element)


def _convert_property_value(
    columns: _PropertyColumns,
    extras: NodeExtras | EdgeExtras | None,
    attributes: Attributes,
    assigned: tuple[str, Any],
    element: str,
) -> Any:
    name, value = assigned
    if columns.is_attribute(name, extras, attributes):
        return value
    if name in columns.managed:
        raise InvalidInput(f"{element}: {name} is managed by kgserve and cannot be set")
    if value is None:
        return None
    stored = _COLUMN_CONVERSIONS[columns.types[name]](value, name, element)
    if stored in ("", (), _EMPTY_PLAIN_COLUMNS.get(name)):
        return None
    return _from_column(name, stored)


def build_node_properties_change(before: NodeRow | None, change: StatementNodeDifference) -> ChangedRow:
    """Return the change of a row that a statement makes to a node; ``before`` is None for a new node.

    Raises InvalidInput.
    """
    old = (
        None
        if before is None
        else dict(zip(_NODE_FIELDS, node_column_values(msgspec.structs.astuple(before)), strict=True))
    )
    now = dict.fromkeys(_NODE_FIELDS) | {"content": "", "attributes": "{}"} if old is None else dict(old)
    now |= {"id": change.id, "type": change.label or NO_LABEL}
    own = {} if before is None else _decode_attributes(before.attributes)
    changed = _find_changed_properties(change.properties_before, change.properties)
    extras = None if before is None else before.extras
    if _apply_changes(_NODE, now, extras, own, changed):
        now["attributes"] = _encode(own).decode()
    return ChangedRow(now, old)


def build_relationship_properties_change(before: EdgeRow | None, change: RelationshipDifference) -> ChangedRow:
    """Return the change of a row that a statement makes to a relationship; ``before`` is None for a new one.

    Raises InvalidInput.
    """
    old = (
        None
        if before is None
        else dict(zip(_EDGE_FIELDS, edge_column_values(msgspec.structs.astuple(before)), strict=True))
    )
    now = dict.fromkeys(_EDGE_FIELDS) | {"weight": DEFAULT_WEIGHT, "attributes": "{}"} if old is None else dict(old)
    now |= dict(zip(("source", "target", "relation_type"), change.key, strict=True))
    own = {} if before is None else _decode_attributes(split_edge_times_from_attributes(before.attributes).own)
    changed = _find_changed_properties(
        {} if before is None else change.properties_before or {}, change.properties or {}
    )
    extras = None if before is None else before.extras
    if _apply_changes(_EDGE, now, extras, own, changed):
        now["attributes"] = _encode(own).decode()
    return ChangedRow(now, old)


def keep_edge_times(before: EdgeRow, attributes: str) -> str:
    """Return the attributes of a changed row of a relationship with its times, as rows store them."""
    if attributes == before.attributes:
        return attributes
    times = split_edge_times_from_attributes(before.attributes)
    return encode_edge_attributes(times.created_at, times.updated_at, attributes)


def _find_changed_properties(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the properties with other values than before, None for those that are gone."""
    gone = {name: None for name in before if name not in after}
    return gone | {
        name: value
        for name, value in after.items()
        if name not in before or not is_same_json_value(value, before[name])
    }


def _apply_changes(
    columns: _PropertyColumns,
    row: dict[str, Any],
    extras: NodeExtras | EdgeExtras | None,
    attributes: Attributes,
    changed: dict[str, Any],
) -> bool:
    """Apply changed properties to a row and to its attributes; return whether an attribute has changed."""
    has_changed = False
    for name, value in changed.items():
        if columns.is_attribute(name, extras, attributes):
            attributes[name] = encode_property_as_json(value)
            has_changed = True
        elif value is not None:
            stored = _COLUMN_CONVERSIONS[columns.types[name]](value, name, name)
            row[name] = _encode(stored).decode() if isinstance(stored, tuple) else stored
        else:
            row[name] = _EMPTY_PLAIN_COLUMNS.get(name)
        if value is None and name in attributes and name not in columns.hiding:
            del attributes[name]  # also an attribute that the column has hidden
            has_changed = True
    return has_changed


def _require_text(value: Any, name: str, element: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise InvalidInput(f"{element}: {name} must be a string")


def _require_number(value: Any, name: str, element: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise InvalidInput(f"{element}: {name} must be a finite number")


def _require_integer(value: Any, name: str, element: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidInput(f"{element}: {name} must be an integer")


def _require_texts(value: Any, name: str, element: str) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(dict.fromkeys(value))
    raise InvalidInput(f"{element}: {name} must be a list of strings")


def _require_time(value: Any, name: str, element: str) -> int:
    text = str(value) if is_temporal_value(value) or isinstance(value, str) else ""
    completed = complete_time_to_rfc3339(text)
    try:
        return parse_rfc3339_timestamp(text if completed is None else completed)
    except ValueError:
        raise InvalidInput(f"{element}: {name} must be a datetime, or its text") from None


_COLUMN_CONVERSIONS: dict[Any, Callable[[Any, str, str], Any]] = {
    STRING_TYPE: _require_text,
    STRING_LIST_TYPE: _require_texts,
    TIMESTAMP_TYPE: _require_time,
    DOUBLE_TYPE: _require_number,
    INT64_TYPE: _require_integer,
}
