"""The contract of a versioned store: nodes as lineages of versions, written with regard to the version that was seen.

Its ``lineage_id`` is our id, ``kind`` our type, ``metadata`` our attributes; a node may be sent under either name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.errors import KgserveError
from kgserve.graph.answers import Edge, Node, RedirectedFrom
from kgserve.graph.requests import ToGraph
from kgserve.storage.model.fields import MAX_ID_BYTES, MAX_ORDINAL, MAX_TAGS

MAX_SUBGRAPH_NODES = 50
MAX_SUBGRAPH_EDGES = 100

_Name = Annotated[str, Meta(max_length=MAX_ID_BYTES)]
_Tags = Annotated[list[_Name], Meta(max_length=MAX_TAGS)]
_Moment = Annotated[str, Meta(max_length=64, description="RFC 3339; left out or empty: none")]
_Version = Annotated[
    int,
    Meta(ge=0, lt=1 << 53, description="The version that the writer had seen; left out: whatever there is"),
]
_Graph = Annotated[str, Meta(description="The store's name once more; it may be left out")] | None
_Ordinal = Annotated[int, Meta(ge=-MAX_ORDINAL, le=MAX_ORDINAL)]


class NodeFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A version of a node, whole: what is left out is empty. Without an id a new node is made."""

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


class PutNodeRequest(NodeFields, kw_only=True):
    """A version of a node, whole: what is left out is empty. Without an id a new node is made."""

    graph_id: _Graph = None
    id: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="The same as lineage_id")] | None = None
    type: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="The same as kind")] | None = None
    attributes: Annotated[dict[str, Any], Meta(description="The same as metadata")] | None = None


class NodeSpec(NodeFields, kw_only=True):
    """A node of a subgraph; ``ref`` is how edges of the same call name it."""

    ref: _Name | None = None


class EdgeSpec(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An edge of a subgraph. Each end is a ``ref`` of this call or the id of a node that exists."""

    from_ref: _Name | None = None
    from_lineage: _Name | None = None
    to_ref: _Name | None = None
    to_lineage: _Name | None = None
    to_graph: ToGraph | None = None
    kind: _Name | None = None
    metadata: dict[str, Any] | None = None
    ordinal: Annotated[_Ordinal | None, Meta(description="Left out: kept; null: none")] | UnsetType = UNSET
    weight: float | None = None
    created_by: _Name | None = None
    valid_from: _Moment | None = None
    valid_to: _Moment | None = None


class UnreadItem(msgspec.Struct, frozen=True):
    """An item of a subgraph that could not be read, why, and what edges of the call know it by."""

    error: KgserveError
    ref: str | None = None


def _items(kind: type[msgspec.Struct], most: int) -> Meta:
    """Says of a list what its items are to be, though each is read by itself."""
    reference = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return Meta(description=f"At most {most}", extra_json_schema={"items": reference})


class PutSubgraphRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Nodes, then edges, each written by itself: what is wrong with one is said of that one.

    So items are read one by one: they come as they were sent, as Structs, or as what could not be read.
    """

    graph_id: _Graph = None
    nodes: Annotated[list[NodeSpec | Any], _items(NodeSpec, MAX_SUBGRAPH_NODES)] | None = None
    edges: Annotated[list[EdgeSpec | Any], _items(EdgeSpec, MAX_SUBGRAPH_EDGES)] | None = None


_Replaced = Annotated[
    int, Meta(description="The version that this put replaced, where it is not the one that it was based on")
]
_Cleared = Annotated[list[str], Meta(description="Fields that were left out, and so are empty now")]


class PutNodeAnswer(msgspec.Struct, kw_only=True):
    """The node as it is now. A put that changes nothing makes no version.

    What comes after ``sequence`` is absent where there is nothing to tell.
    """

    ok: Literal[True] = True
    node: Node
    created: bool
    sequence: int
    replaced_version: _Replaced | UnsetType = UNSET
    cleared: _Cleared | UnsetType = UNSET


class NodeResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of one node. Of one that was kept as a conflict there are id, version and error."""

    created: bool
    ref: str | None = None
    lineage_id: str | None = None
    version: int | None = None
    error: str | None = None
    replaced_version: _Replaced | UnsetType = UNSET
    cleared: _Cleared | UnsetType = UNSET


class EdgeResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of one edge: its id, or why there is none. What comes after ``error`` is absent for a new edge."""

    edge_id: str | None = None
    error: str | None = None
    created: (
        Annotated[
            Literal[False], Meta(description="The edge was there already, or an earlier item of the call has made it")
        ]
        | UnsetType
    ) = UNSET
    replaced_version: Annotated[int, Meta(description="The version of the edge that this put replaced")] | UnsetType = (
        UNSET
    )
    replaced: (
        Annotated[dict[str, Any], Meta(description="The fields that this put changed, with the values they had")]
        | UnsetType
    ) = UNSET


class PutSubgraphAnswer(msgspec.Struct, kw_only=True):
    """One result for each node and each edge, in the order sent."""

    nodes: list[NodeResult]
    edges: list[EdgeResult]
    sequence: Annotated[int, Meta(description="The store's commit number once all that was written is in it")]


class RetireRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Until when a node was true; left out: now, or earlier if it had ended already."""

    valid_to: _Moment | None = None
    created_by: _Name | None = None


class RetireEdgeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An edge, and until when it was true; left out: now, or earlier if it had ended already."""

    source: str = field(name="from")
    target: str = field(name="to")
    relation_type: str
    to_graph: ToGraph | None = None
    valid_to: _Moment | None = None
    created_by: _Name | None = None


class RetireAnswer(msgspec.Struct, kw_only=True):
    """It is there as before, and true until ``valid_to``; ``changed`` is false when it had ended by then."""

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
