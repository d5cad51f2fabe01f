"""What callers send, as Structs. Unknown fields are an error that names them; ``null`` means "left out".

Lengths of text are limited in UTF-8 bytes; `kgserve.ops.validate` checks what a schema cannot say.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

MAX_ID_BYTES = 512
MAX_CONTENT_BYTES = 1 << 20
MAX_ATTRIBUTES_BYTES = 256 << 10
MAX_ATTRIBUTES_DEPTH = 64
MAX_DEPTH = 10
MAX_TRAVERSED_NODES = 10_000

Direction = Literal["outgoing", "incoming", "both"]

_Id = Annotated[
    str, msgspec.Meta(min_length=1, max_length=MAX_ID_BYTES, description="Stable key, 1 to 512 bytes of UTF-8")
]
_Label = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_BYTES, description="1 to 512 bytes of UTF-8")]
_Content = Annotated[str | None, msgspec.Meta(description="Text, at most 1 MiB; left out: kept; empty: cleared")]
_Attributes = Annotated[
    dict[str, Any] | None,
    msgspec.Meta(description="Any JSON object, at most 256 KiB and 64 levels; left out: kept; given: replaces"),
]
_Weight = Annotated[float | None, msgspec.Meta(description="Strength; left out: kept, or 1.0 on a new edge")]


class NodeInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A node to create or update. ``type`` may be left out for a node that exists."""

    id: _Id
    type: _Label | None = None
    content: _Content = None
    attributes: _Attributes = None


class EdgeInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An edge to create or update; one edge per source, target and relation type."""

    source: _Id = msgspec.field(name="from")
    target: _Id = msgspec.field(name="to")
    relation_type: _Label
    weight: _Weight = None
    attributes: _Attributes = None


class InjectRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One atomic batch: nodes first, then edges; of the same key sent twice the last wins."""

    nodes: list[NodeInput] | None = None
    edges: list[EdgeInput] | None = None
    touch: Annotated[bool, msgspec.Meta(description="Move updated_at of every edge sent, changed or not")] = True


class EdgeKeyRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names one edge."""

    source: _Id = msgspec.field(name="from")
    target: _Id = msgspec.field(name="to")
    relation_type: _Label


class TraverseRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A walk from one node, breadth first."""

    start_id: _Id
    depth: Annotated[int, msgspec.Meta(description="Hops; negative is 0, above 10 is 10")] = 1
    direction: Direction = "outgoing"
    relation_types: (
        Annotated[list[_Label], msgspec.Meta(description="Follow only these; left out: all", max_length=100)] | None
    ) = None
    min_weight: Annotated[float | None, msgspec.Meta(description="Follow only edges at least this strong")] = None
    max_nodes: Annotated[
        int, msgspec.Meta(ge=1, le=MAX_TRAVERSED_NODES, description="Most nodes returned, nearest first")
    ] = 1000


class NodeLine(msgspec.Struct, tag="node", tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    """A node as a line of the exchange format. The last three fields restore an export; leave them out otherwise."""

    id: _Id
    type: _Label | None = None
    content: _Content = None
    attributes: _Attributes = None
    version: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)] | None = None
    created_at: str | None = None
    updated_at: str | None = None


class EdgeLine(msgspec.Struct, tag="edge", tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    """An edge as a line of the exchange format; created_at and updated_at are in its attributes."""

    source: _Id = msgspec.field(name="from")
    target: _Id = msgspec.field(name="to")
    relation_type: _Label
    weight: _Weight = None
    attributes: _Attributes = None
    version: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)] | None = None
