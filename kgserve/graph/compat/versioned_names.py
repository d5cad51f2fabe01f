"""The names that versioned writes give to fields (``lineage_id``, ``kind``, ``metadata``), for answers of reads.

The contract also computes two flags for each node, ``is_current`` and ``is_stale``. Other answers leave them out where
they are usual, so they are added here.

An answer is renamed where it is JSON, by the places where nodes and edges stand in answers. What describes it is made
of its Struct, with the same names; a test says that the two agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from kgserve.graph.answers import Edge, EdgeKeyAnswer, ListedNode, Node, NodeHistory, SchemaDescription
from kgserve.platform.codecs import decode_json

FIELD_NAMES = "field_names"
"""The parameter that asks for them."""
VERSIONED = "versioned"
"""Its value."""
FieldNames = Annotated[
    Literal["versioned"], Meta(description="Fields as versioned writes name them: lineage_id, kind, metadata")
]
VERSIONED_JSON = "application/vnd.kgserve.versioned+json"
"""The media type of an answer that has them."""

_NODE = {"id": "lineage_id", "type": "kind", "attributes": "metadata", "stale": "is_stale"}
_EDGE = {"from": "from_lineage", "to": "to_lineage", "relation_type": "kind", "attributes": "metadata"}
_HISTORY = {"id": "lineage_id"}
_SCHEMA = {"store": "graph_id"}
_PLACES = {
    **dict.fromkeys(("node", "nodes", "nodes_created", "nodes_updated"), _NODE),
    **dict.fromkeys(("edge", "edges", "outgoing", "incoming"), _EDGE),
    **dict.fromkeys(("edges_created", "edges_updated", "edges_deleted"), _EDGE),
}
_OF: dict[type[msgspec.Struct], Mapping[str, str]] = {
    **dict.fromkeys((Node, ListedNode), _NODE),
    **dict.fromkeys((Edge, EdgeKeyAnswer), _EDGE),
    NodeHistory: _HISTORY,
    SchemaDescription: _SCHEMA,
}
_STATES = frozenset({"node", "nodes"})
"""Places of nodes that name a version which is not the present one as such; rows of a change do not."""
_HOLDERS = frozenset({"hits", "states", "changes"})
_DIFF = "diff"
_NAMING = frozenset({"cleared", "taken_over", "not_taken"})
"""Lists of a node's fields."""


def with_versioned_names(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer, or an item of one, as JSON has it, with the fields of its nodes and edges under these names."""
    own = _HISTORY if "states" in answer else _SCHEMA if "node_count" in answer else {}
    return {own.get(name, name): _renamed(name, value) for name, value in answer.items()}


def renamed(answer: bytes) -> bytes:
    """The same of JSON."""
    return msgspec.json.encode(with_versioned_names(decode_json(answer)))


def _renamed(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(name, each) for each in value]
    if name in _NAMING:
        return _NODE.get(value, value)
    if not isinstance(value, dict):
        return value
    if name in _HOLDERS:
        return with_versioned_names(value)
    if name == _DIFF:
        first, dot, rest = value["path"].partition(".")
        return value | {"path": _NODE.get(first, first) + dot + rest}
    fields: dict[str, Any] = value
    names = _PLACES.get(name, {})
    found = {names.get(field, field): each for field, each in fields.items()}
    return found if fields.get("missing") else found | _flags(found, name)


def _flags(node: Mapping[str, Any], name: str) -> dict[str, bool]:
    """The flags that a node at a place leaves out, being current and not stale; none for what is no node."""
    if _PLACES.get(name) is not _NODE:
        return {}
    flags = {"is_current": True, "is_stale": False} if name in _STATES else {"is_stale": False}
    return {flag: usual for flag, usual in flags.items() if flag not in node}


@cache
def versioned_answer(struct: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """What describes such an answer: a Struct of another name, or the same where it holds neither nodes nor edges."""
    names = next((each for kind, each in _OF.items() if issubclass(struct, kind)), {})
    fields = msgspec.structs.fields(struct)
    kinds = [_described(each.type) for each in fields]
    if not names and kinds == [each.type for each in fields]:
        return struct
    made = [
        (each.name, kind, again(each, names.get(each.encode_name, "")))
        for each, kind in zip(fields, kinds, strict=True)
    ]
    return msgspec.defstruct(f"Versioned{struct.__name__}", made, namespace={"__doc__": struct.__doc__}, kw_only=True)


def again(each: msgspec.structs.FieldInfo, name: str = "") -> Any:
    """What a field of another Struct is given to be like this one, but for its ``name`` on the wire."""
    said: dict[str, Any] = {"default": each.default, "default_factory": each.default_factory}
    return msgspec.field(**said, name=name or each.encode_name)


def _described(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return versioned_answer(kind)
    match get_origin(kind), get_args(kind):
        case origin, (first, *said) if origin is Annotated:
            return Annotated[(_described(first), *said)]
        case origin, (item,) if origin is list:
            return list[_described(item)]
        case origin, parts if origin in (Union, UnionType):
            return Union[tuple(map(_described, parts))]  # noqa: UP007 - made of parts
        case _:
            return kind
