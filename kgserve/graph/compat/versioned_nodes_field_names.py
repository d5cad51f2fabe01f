"""Field names of the versioned API (``lineage_id``, ``kind``, ``metadata``) in answers of other reads.

The versioned API also has the flags ``is_current`` and ``is_stale`` for each node. Other answers leave them out where
they have their usual values, so they are added here.

Answers are renamed in their JSON form, by the fields in which nodes and edges occur. Their schema is derived from the
Struct with the same names; a test checks that both agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from kgserve.graph.answers import Edge, EdgeKeyAnswer, ListedNode, Node, NodeHistory, StoreTypesAndTags
from kgserve.platform.codecs import decode_json

FIELD_NAMES_PARAMETER = "field_names"
"""The query parameter that requests these names."""
VERSIONED_FIELD_NAMES = "versioned"
"""The value of that parameter."""
FieldNames = Annotated[
    Literal["versioned"], Meta(description="Use the field names of versioned writes: lineage_id, kind, metadata")
]
VERSIONED_JSON_MEDIA_TYPE = "application/vnd.kgserve.versioned+json"
"""The media type of an answer with these names."""

_NODE_FIELD_RENAMES = {"id": "lineage_id", "type": "kind", "attributes": "metadata", "stale": "is_stale"}
_EDGE_FIELD_RENAMES = {"from": "from_lineage", "to": "to_lineage", "relation_type": "kind", "attributes": "metadata"}
_HISTORY_FIELD_RENAMES = {"id": "lineage_id"}
_SCHEMA_FIELD_RENAMES = {"store": "graph_id"}
_RENAMES_BY_FIELD = {
    **dict.fromkeys(("node", "nodes", "nodes_created", "nodes_updated"), _NODE_FIELD_RENAMES),
    **dict.fromkeys(("edge", "edges", "outgoing", "incoming"), _EDGE_FIELD_RENAMES),
    **dict.fromkeys(("edges_created", "edges_updated", "edges_deleted"), _EDGE_FIELD_RENAMES),
}
_RENAMES_BY_STRUCT: dict[type[msgspec.Struct], Mapping[str, str]] = {
    **dict.fromkeys((Node, ListedNode), _NODE_FIELD_RENAMES),
    **dict.fromkeys((Edge, EdgeKeyAnswer), _EDGE_FIELD_RENAMES),
    NodeHistory: _HISTORY_FIELD_RENAMES,
    StoreTypesAndTags: _SCHEMA_FIELD_RENAMES,
}
_VERSION_FIELDS = frozenset({"node", "nodes"})
"""Fields whose nodes may be former versions; rows of a change are not."""
_WRAPPER_FIELDS = frozenset({"hits", "states", "changes"})
_DIFF_FIELD = "diff"
_FIELD_NAME_LISTS = frozenset({"cleared", "taken_over", "not_taken"})
"""Lists of field names of a node."""


def rename_to_versioned_fields(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer, or an item of one, with its nodes and edges renamed."""
    own = _HISTORY_FIELD_RENAMES if "states" in answer else _SCHEMA_FIELD_RENAMES if "node_count" in answer else {}
    return {own.get(name, name): _renamed(name, value) for name, value in answer.items()}


def rename_json_to_versioned_fields(answer: bytes) -> bytes:
    """Return a JSON answer with its nodes and edges renamed."""
    return msgspec.json.encode(rename_to_versioned_fields(decode_json(answer)))


def _renamed(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(name, each) for each in value]
    if name in _FIELD_NAME_LISTS:
        return _NODE_FIELD_RENAMES.get(value, value)
    if not isinstance(value, dict):
        return value
    if name in _WRAPPER_FIELDS:
        return rename_to_versioned_fields(value)
    if name == _DIFF_FIELD:
        first, dot, rest = value["path"].partition(".")
        return value | {"path": _NODE_FIELD_RENAMES.get(first, first) + dot + rest}
    fields: dict[str, Any] = value
    names = _RENAMES_BY_FIELD.get(name, {})
    found = {names.get(field, field): each for field, each in fields.items()}
    return found if fields.get("missing") else found | _flags(found, name)


def _flags(node: Mapping[str, Any], name: str) -> dict[str, bool]:
    """Return the flags that a node leaves out, being current and not stale; empty for other values."""
    if _RENAMES_BY_FIELD.get(name) is not _NODE_FIELD_RENAMES:
        return {}
    flags = {"is_current": True, "is_stale": False} if name in _VERSION_FIELDS else {"is_stale": False}
    return {flag: usual for flag, usual in flags.items() if flag not in node}


@cache
def derive_versioned_api_answer_struct(struct: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the Struct that describes a renamed answer; the same one if it contains neither nodes nor edges."""
    names = next((each for kind, each in _RENAMES_BY_STRUCT.items() if issubclass(struct, kind)), {})
    fields = msgspec.structs.fields(struct)
    kinds = [_described(each.type) for each in fields]
    if not names and kinds == [each.type for each in fields]:
        return struct
    made = [
        (each.name, kind, copy_struct_field_definition(each, names.get(each.encode_name, "")))
        for each, kind in zip(fields, kinds, strict=True)
    ]
    return msgspec.defstruct(f"Versioned{struct.__name__}", made, namespace={"__doc__": struct.__doc__}, kw_only=True)


def copy_struct_field_definition(each: msgspec.structs.FieldInfo, name: str = "") -> Any:
    """Return a field definition like that of another Struct, with another ``name`` on the wire."""
    defaults: dict[str, Any] = {"default": each.default, "default_factory": each.default_factory}
    return msgspec.field(**defaults, name=name or each.encode_name)


def _described(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return derive_versioned_api_answer_struct(kind)
    match get_origin(kind), get_args(kind):
        case origin, (first, *metadata) if origin is Annotated:
            return Annotated[(_described(first), *metadata)]
        case origin, (item,) if origin is list:
            return list[_described(item)]
        case origin, parts if origin in (Union, UnionType):
            return Union[tuple(map(_described, parts))]  # noqa: UP007 - built dynamically
        case _:
            return kind
