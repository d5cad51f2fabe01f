"""Validation that a schema cannot express: lengths in bytes, depth, number ranges, times; and canonical attributes.

Every fault that can be found without reading the store is found here, before a write is queued.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from kgserve.errors import FieldError, InvalidInput, TooLarge
from kgserve.graph.request_bodies import (
    MAX_ATTRIBUTES_DEPTH,
    ConflictingVersionNdjsonLine,
    EdgeInput,
    EdgeNdjsonLine,
    NodeInput,
    NodeNdjsonLine,
)
from kgserve.platform.codecs import decode_json
from kgserve.platform.timestamps import complete_time_to_rfc3339, parse_rfc3339_timestamp
from kgserve.storage.model import node_edge_fields
from kgserve.storage.model.attribute_filters import (
    AttributeCondition,
    AttributeConditionsInput,
    AttributeScalar,
    build_attribute_filter_conditions,
)
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_edge_fields import (
    AUTHOR_FIELD,
    EDGE,
    MAX_ATTRIBUTES_BYTES,
    MAX_CONTENT_BYTES,
    MAX_ID_BYTES,
    NODE,
    EdgeExtrasUpsert,
    NodeExtrasUpsert,
    RowField,
    TimestampPut,
    get_row_field_names,
)
from kgserve.storage.model.node_edge_rows import EMPTY_ATTRIBUTES_JSON
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert

_INT64_VALUES = range(-(1 << 63), 1 << 63)
# Any text of this length fits an id: a character takes at most four bytes.
_MAX_SAFE_ID_CHARS = MAX_ID_BYTES // 4
_CONTENT_TOO_LONG = f"is longer than {MAX_CONTENT_BYTES} bytes"
encode_canonical = msgspec.json.Encoder(order="deterministic").encode

_WRITABLE_NODE_FIELDS, _WRITABLE_EDGE_FIELDS = (
    tuple(field for field in row.optional if not field.is_own and not field.is_kept) for row in (NODE, EDGE)
)
_LINE_FIELDS = tuple(field for field in NODE.optional if not field.is_own)
_AUTHOR_FIELD = next(field for field in _WRITABLE_NODE_FIELDS if field.name == AUTHOR_FIELD)

_FIELD_NAME_PATTERN = re.compile(r"[^.\[]+")

FaultCallback = Callable[[str, str], None]
"""Callback that takes the path of a field and what is wrong with it."""


class ValidationErrorCollector:
    """Collector for the faults of one row or request."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.errors: list[FieldError] = []

    def __call__(self, path: str, message: str) -> None:
        """Add a fault."""
        self.errors.append(FieldError(self._prefix + path, message))

    def below(self, place: str) -> FaultCallback:
        """Return a collector that prefixes paths with a place such as `nodes[3].`."""
        return self if not place else lambda path, message: self(place + path, message)

    def raise_any(self) -> None:
        """Raise InvalidInput with the collected faults, or TooLarge if all of them are about the size of contents."""
        if not self.errors:
            return
        message = f"{self.errors[0].path}: {self.errors[0].message}"
        if all(error.message == _CONTENT_TOO_LONG for error in self.errors):
            raise TooLarge(message)
        raise InvalidInput(message, tuple(self.errors[:100]))


_T = TypeVar("_T")


def get_value_of_aliased_field(
    fault: FaultCallback, name: str, one: _T | None, other_name: str, other: _T | None
) -> _T | None:
    """Return the value of a field that has two names. Adds a fault if both are set and differ."""
    if one is not None and other is not None and one != other:
        fault(name, f"and {other_name} are names of the same field and must not differ")
    return other if one is None else one


def rename_fields_in_error_paths(fault: FaultCallback, names: Mapping[str, str]) -> FaultCallback:
    """Return a collector that replaces field names in paths with the names that callers use."""

    def renamed(path: str, message: str) -> None:
        field = _FIELD_NAME_PATTERN.match(path)
        fault(path if field is None else names.get(field[0], field[0]) + path[field.end() :], message)

    return renamed


def validate_node_input(index: int, node: NodeInput, fault: FaultCallback) -> NodeUpsert:
    """Validate a node to create or update, and return the put that writes it."""
    validate_identifier_length(node.id, "id", fault)
    if node.type is not None:
        validate_identifier_length(node.type, "type", fault)
    if node.content is not None and _is_longer(node.content, MAX_CONTENT_BYTES):
        fault("content", _CONTENT_TOO_LONG)
    attributes = None if node.attributes is None else encode_canonical_attributes_json(node.attributes, fault)
    if not isinstance(node, NodeNdjsonLine):
        sent = _checked_extras(_node_values(node), _WRITABLE_NODE_FIELDS, fault)
        extras = NodeExtrasUpsert(**sent) if sent else None
        return NodeUpsert(index, node.id, node.type, node.content, attributes, extras=extras)
    sent = _checked_extras(_line_values(node), _LINE_FIELDS, fault)
    extras = NodeExtrasUpsert(**sent) if sent else None
    created, updated = (
        _time(text, field, fault) for text, field in ((node.created_at, "created_at"), (node.updated_at, "updated_at"))
    )
    put = NodeUpsert(index, node.id, node.type, node.content, attributes, node.version, created, updated, extras)
    return (
        put
        if node.conflicts is None and not isinstance(node, ConflictingVersionNdjsonLine)
        else _with_conflicts(put, node, fault)
    )


def _with_conflicts(put: NodeUpsert, node: NodeNdjsonLine, fault: FaultCallback) -> NodeUpsert:
    if node.version is None:
        fault("version", "is required for a version that is in conflict with others")
    return msgspec.structs.replace(
        put, heads=tuple(node.conflicts or ()), is_head=isinstance(node, ConflictingVersionNdjsonLine)
    )


def validate_access_statistics(node: NodeNdjsonLine, fault: FaultCallback) -> MemoryAccessRecord | None:
    """Validate the access statistics on a line and return them; None if it has none."""
    count, last, confidence = node.access_count, node.last_accessed_at, node.access_confidence
    if count is None and last is None and confidence is None:
        return None
    at = _time(last, "last_accessed_at", fault)
    if count is None or last is None or confidence is None:
        fault("access_count", "requires last_accessed_at and access_confidence; set all three or none")
        return None
    return MemoryAccessRecord(node.id, count, at or 0, confidence)


def validate_edge_input(index: int, edge: EdgeInput, fault: FaultCallback) -> EdgeUpsert:
    """Validate an edge to create or update, and return the put that writes it."""
    validate_identifier_length(edge.source, "from", fault)
    validate_identifier_length(edge.target, "to", fault)
    validate_identifier_length(edge.relation_type, "relation_type", fault)
    own = created = updated = None
    if edge.attributes is not None:
        created, updated = (_pop_timestamp(edge.attributes, field, fault) for field in ("created_at", "updated_at"))
        own = encode_canonical_attributes_json(edge.attributes, fault)
    version = edge.version if isinstance(edge, EdgeNdjsonLine) else None
    weight = None if edge.weight is None else edge.weight + 0.0
    key = (edge.source, edge.target, edge.relation_type)
    sent = _checked_extras(_edge_values(edge), _WRITABLE_EDGE_FIELDS, fault)
    extras = EdgeExtrasUpsert(**sent) if sent else None
    return EdgeUpsert(index, key, weight, own, created, updated, version, extras)


_line_values = attrgetter(*get_row_field_names(_LINE_FIELDS))
_node_values, _edge_values = (
    attrgetter(*get_row_field_names(_WRITABLE_NODE_FIELDS)),
    attrgetter(*get_row_field_names(_WRITABLE_EDGE_FIELDS)),
)


def _checked_extras(sent: tuple[Any, ...], known: tuple[RowField, ...], fault: FaultCallback) -> dict[str, Any]:
    """Return the validated optional fields that were sent, by name."""
    if sent.count(None) == len(sent):
        return {}
    values = zip(known, sent, strict=True)
    return {field.name: _checked_extra(field, value, fault) for field, value in values if value is not None}


def _checked_extra(field: RowField, value: Any, fault: FaultCallback) -> Any:
    match field.type:
        case node_edge_fields.STRING_TYPE:
            return _check_text(value, field, fault)
        case node_edge_fields.STRING_LIST_TYPE:
            return _check_tags(value, field.name, fault)
        case node_edge_fields.TIMESTAMP_TYPE:
            return parse_timestamp_update(value, field.name, fault)
        case _:
            return value


def _check_text(text: str, field: RowField, fault: FaultCallback) -> str:
    if _is_longer(text, field.max_bytes):
        fault(field.name, f"is longer than {field.max_bytes} bytes of UTF-8")
    return text


def _check_tags(tags: list[str], path: str, fault: FaultCallback) -> tuple[str, ...]:
    """Return the tags in order, without duplicates."""
    for index, tag in enumerate(tags):
        validate_identifier_length(tag, f"{path}[{index}]", fault)
    return tuple(dict.fromkeys(tags))


def parse_timestamp_update(text: str | None, path: str, fault: FaultCallback) -> TimestampPut:
    """Parse a time to write: UNSET when it was left out, None when it is to be cleared."""
    if text is None:
        return msgspec.UNSET
    return _time(text, path, fault) if text else None


def parse_filter_time(text: str | None, path: str, fault: FaultCallback) -> int | None:
    """Parse a time to filter by, in microseconds; None when it was left out. An empty text is a fault.

    A date means midnight, and a time without a zone is in UTC.
    """
    return None if text is None else _time(complete_time_to_rfc3339(text) or text, path, fault)


def check_author(name: str | None, fault: FaultCallback) -> str:
    """Validate an author; "" if none is given."""
    return _check_text(name or "", _AUTHOR_FIELD, fault)


def validate_identifier_length(text: str, path: str, fault: FaultCallback) -> None:
    """Validate the length of an id, a type or a relation type: 1 to 512 bytes."""
    if 0 < len(text) <= _MAX_SAFE_ID_CHARS:
        return
    if not text:
        fault(path, "is empty")
    elif _is_longer(text, MAX_ID_BYTES):
        fault(path, f"is longer than {MAX_ID_BYTES} bytes of UTF-8")


def require_valid_id_or_type_length(text: str, path: str = "id") -> str:
    """Return an id or type unchanged if its length is valid. Raises InvalidInput."""
    faults = ValidationErrorCollector()
    validate_identifier_length(text, path, faults)
    faults.raise_any()
    return text


def _is_longer(text: str, limit: int) -> bool:
    # A character takes at most four bytes, so only texts near the limit are encoded.
    return len(text) > limit or (len(text) * 4 > limit and len(text.encode()) > limit)


def encode_canonical_attributes_json(attributes: dict[str, Any], fault: FaultCallback) -> str:
    """Return attributes as compact JSON with sorted keys."""
    if not attributes:
        return EMPTY_ATTRIBUTES_JSON
    fine = all(_check_value(value, f"attributes.{key}", 1, fault) for key, value in attributes.items())
    if not fine:
        return EMPTY_ATTRIBUTES_JSON
    encoded = encode_canonical(attributes)
    if len(encoded) > MAX_ATTRIBUTES_BYTES:
        fault("attributes", f"is longer than {MAX_ATTRIBUTES_BYTES} bytes of JSON")
    return encoded.decode()


def convert_attribute_filter_to_conditions(
    wanted: Mapping[str, AttributeScalar] | None, path: str = "attributes"
) -> tuple[AttributeCondition, ...]:
    """Return the conditions of an attribute filter. Raises InvalidInput for a number out of range."""
    faults = ValidationErrorCollector()
    for key, value in (wanted or {}).items():
        _check_value(value, f"{path}.{key}", 1, faults)
    faults.raise_any()
    return build_attribute_filter_conditions(wanted)


def parse_attribute_filter_json(text: str | None, path: str) -> tuple[AttributeCondition, ...]:
    """Return the conditions of an attribute filter in JSON. Raises InvalidInput."""
    try:
        return convert_attribute_filter_to_conditions(
            None if text is None else decode_json(text, AttributeConditionsInput), path
        )
    except (msgspec.DecodeError, RecursionError) as error:
        message = f'must be a JSON object of strings, numbers, booleans and null, such as {{"status": "open"}}: {error}'
        raise InvalidInput.at(path, message) from None


def _check_value(value: object, path: str, depth: int, fault: FaultCallback) -> bool:
    if isinstance(value, int):
        return value in _INT64_VALUES or _fail(fault, path, "is outside the range of 64-bit integers")
    if not isinstance(value, dict | list):
        return True
    if depth >= MAX_ATTRIBUTES_DEPTH:
        return _fail(fault, path, f"is nested more than {MAX_ATTRIBUTES_DEPTH} levels deep")
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return all(_check_value(item, f"{path}.{key}", depth + 1, fault) for key, item in items)


def _fail(fault: FaultCallback, path: str, message: str) -> bool:
    fault(path, message)
    return False


def _pop_timestamp(attributes: dict[str, Any], field: str, fault: FaultCallback) -> str | None:
    """Remove a timestamp of an edge from its attributes, and return its text."""
    value = attributes.pop(field, None)
    if value is not None and not isinstance(value, str):
        fault(f"attributes.{field}", "is not an RFC 3339 time")
        return None
    _time(value, f"attributes.{field}", fault)
    return value


def _time(text: str | None, path: str, fault: FaultCallback) -> int | None:
    if text is None:
        return None
    try:
        return parse_rfc3339_timestamp(text)
    except (ValueError, OverflowError):
        fault(path, "is not an RFC 3339 time such as 2025-07-15T12:00:00Z")
        return None
