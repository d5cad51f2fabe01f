"""The versioned store API: nodes as lineages of versions, written with optimistic concurrency.

Its ``lineage_id`` is our id, ``kind`` our type, ``metadata`` our attributes; a node may be sent with either set of
names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.errors import KgserveError
from kgserve.graph.answers import Edge, Node, RedirectedFrom
from kgserve.graph.request_bodies import TargetStore
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES, MAX_ORDINAL, MAX_TAGS

MAX_SUBGRAPH_NODES = 50
MAX_SUBGRAPH_EDGES = 100

_Name = Annotated[str, Meta(max_length=MAX_ID_BYTES)]
_Tags = Annotated[list[_Name], Meta(max_length=MAX_TAGS)]
_Moment = Annotated[str, Meta(max_length=64, description="RFC 3339; left out or empty: no time")]
_Version = Annotated[
    int,
    Meta(ge=0, lt=1 << 53, description="The version that the writer had read; left out: any"),
]
_Graph = Annotated[str, Meta(description="The store's name; may be left out")] | None
_Ordinal = Annotated[int, Meta(ge=-MAX_ORDINAL, le=MAX_ORDINAL)]


class NodeVersionFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A whole version of a node: fields that are left out are empty. Without an id, a new node is created."""

    lineage_id: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="Left out: a new node")] | None = None
    kind: _Name | None = None
    content: str | None = None
    summary: str | None = None
    tags: _Tags | None = None
    metadata: dict[str, Any] | None = None
    freshness_at: _Moment | None = None
    created_by: _Name | None = None
    valid_from: _Moment | None = None
    valid_to: _Moment | None = None
    based_on_version: _Version | None = None


class PutNodeRequest(NodeVersionFields, kw_only=True):
    """Request to write a whole version of a node. Fields that are left out are empty."""

    graph_id: _Graph = None
    id: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="The same as lineage_id")] | None = None
    type: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="The same as kind")] | None = None
    attributes: Annotated[dict[str, Any], Meta(description="The same as metadata")] | None = None


class SubgraphNodeInput(NodeVersionFields, kw_only=True):
    """A node of a subgraph; edges of the same call refer to it by ``ref``."""

    ref: _Name | None = None


class SubgraphEdgeInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An edge of a subgraph. Each end is a ``ref`` of this call or the id of an existing node."""

    from_ref: _Name | None = None
    from_lineage: _Name | None = None
    to_ref: _Name | None = None
    to_lineage: _Name | None = None
    to_graph: TargetStore | None = None
    kind: _Name | None = None
    metadata: dict[str, Any] | None = None
    ordinal: Annotated[_Ordinal | None, Meta(description="Left out: kept; null: none")] | UnsetType = UNSET
    weight: float | None = None
    created_by: _Name | None = None
    valid_from: _Moment | None = None
    valid_to: _Moment | None = None


class UndecodableSubgraphItem(msgspec.Struct, frozen=True):
    """An item of a subgraph that could not be decoded, its error, and the ``ref`` by which edges name it."""

    error: KgserveError
    ref: str | None = None


def _items(kind: type[msgspec.Struct], most: int) -> Meta:
    """Return the schema of the items of a list whose items are decoded one by one."""
    reference = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return Meta(description=f"At most {most}", extra_json_schema={"items": reference})


class PutSubgraphRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Request to write nodes, then edges, each with its own result: a faulty item does not affect the others.

    Items are therefore decoded one by one: they are raw values, Structs, or items that could not be decoded.
    """

    graph_id: _Graph = None
    nodes: Annotated[list[SubgraphNodeInput | Any], _items(SubgraphNodeInput, MAX_SUBGRAPH_NODES)] | None = None
    edges: Annotated[list[SubgraphEdgeInput | Any], _items(SubgraphEdgeInput, MAX_SUBGRAPH_EDGES)] | None = None


_Replaced = Annotated[int, Meta(description="The replaced version, if the put was not based on it")]
_Cleared = Annotated[list[str], Meta(description="Fields that were left out and are now empty")]


class PutNodeAnswer(msgspec.Struct, kw_only=True):
    """Answer to writing a node: the current node. A put without changes creates no version.

    Fields after ``sequence`` are absent where they do not apply.
    """

    ok: Literal[True] = True
    node: Node
    created: bool
    sequence: int
    replaced_version: _Replaced | UnsetType = UNSET
    cleared: _Cleared | UnsetType = UNSET


class PutSubgraphNodeResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Result of one node. For a version kept as a conflict: id, version and error."""

    created: bool
    ref: str | None = None
    lineage_id: str | None = None
    version: int | None = None
    error: str | None = None
    replaced_version: _Replaced | UnsetType = UNSET
    cleared: _Cleared | UnsetType = UNSET


class SubgraphEdgeResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Result of one edge: its id, or an error. Fields after ``error`` are absent for a new edge."""

    edge_id: str | None = None
    error: str | None = None
    created: (
        Annotated[
            Literal[False], Meta(description="The edge existed already, or an earlier item of the call created it")
        ]
        | UnsetType
    ) = UNSET
    replaced_version: Annotated[int, Meta(description="The replaced version of the edge")] | UnsetType = UNSET
    replaced: (
        Annotated[dict[str, Any], Meta(description="The changed fields with their previous values")] | UnsetType
    ) = UNSET


class PutSubgraphAnswer(msgspec.Struct, kw_only=True):
    """Answer to writing a subgraph: one result for each node and each edge, in the order sent."""

    nodes: list[PutSubgraphNodeResult]
    edges: list[SubgraphEdgeResult]
    sequence: Annotated[int, Meta(description="The commit that holds the last write")]


class RetireVersionedNodeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Request to retire a node, that is to end its validity; by default now."""

    valid_to: _Moment | None = None
    created_by: _Name | None = None


class RetireEdgeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Request to retire an edge: the edge, and the end of its validity; by default now, or its earlier end."""

    source: str = field(name="from")
    target: str = field(name="to")
    relation_type: str
    to_graph: TargetStore | None = None
    valid_to: _Moment | None = None
    created_by: _Name | None = None


class RetireNodeOrEdgeAnswer(msgspec.Struct, kw_only=True):
    """Answer to retiring a node or edge: the row is kept, and true until ``valid_to``."""

    ok: Literal[True] = True
    valid_to: str
    changed: bool
    version: int
    sequence: int


class EdgeAnswer(msgspec.Struct, kw_only=True):
    """One edge."""

    edge: Edge


class EdgeList(msgspec.Struct, kw_only=True):
    """Edges of a node by ordinal, those without one last, then by age; ``next_offset`` is null on the last page."""

    edges: list[Edge]
    next_offset: int | None
    redirected_from: RedirectedFrom = UNSET
