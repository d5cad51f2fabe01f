"""Requests and answers for merging two nodes that describe the same entity.

A merged node is kept as a row whose validity is empty, with one relation, `MERGED_INTO`, to the node that it was merged
into: its survivor.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from kgserve.graph.answers import Node
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES

MAX_MOVED_EDGES = 250_000
"""Edges that one merge may move. A merge is one commit, held in memory until it is written."""
MAX_REPORTED_FIELDS = 100


_Author = Annotated[str, Meta(max_length=MAX_ID_BYTES, description="Author of the change; never interpreted")] | None
_Version = Annotated[int, Meta(ge=1, lt=1 << 53)]


class MergeIntoRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The node to merge into, and what it takes over."""

    into: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="The surviving node")]
    attributes: Annotated[
        Literal["fill", "overwrite", "keep"],
        Meta(description="Attributes taken over: missing ones, all, or none"),
    ] = "fill"
    content: Annotated[
        Literal["fill", "overwrite", "append", "keep"],
        Meta(description="Content and summary taken over: if missing, always, appended, or never"),
    ] = "fill"
    based_on_version: (
        Annotated[_Version, Meta(description="Merge only if the merged node is still at this version")] | None
    ) = None
    into_version: (
        Annotated[_Version, Meta(description="Merge only if the surviving node is still at this version")] | None
    ) = None
    created_by: _Author = None


class MergeNodeIntoAnotherRequest(MergeIntoRequest, kw_only=True):
    """Request to merge one node into another."""

    node_id: str = field(name="id")


class UnmergeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a request to revert the merge of a node."""

    created_by: _Author = None


class UnmergeNodeRequest(UnmergeRequest, kw_only=True):
    """Request to revert the merge of a node."""

    node_id: str = field(name="id")


class NodeMergeAnswer(msgspec.Struct, kw_only=True):
    """Answer to a merge: the surviving node, and what it took over. ``changed`` is false if already merged."""

    ok: Literal[True] = True
    id: str
    into: Annotated[str, Meta(description="The surviving node; if the one named was merged, its survivor")]
    changed: bool
    node: Node
    edges_moved: int
    edges_dropped: Annotated[int, Meta(description="The surviving node already had the same edge, which is kept")]
    loops_dropped: Annotated[int, Meta(description="Edges between the two nodes")]
    taken_over: Annotated[list[str], Meta(description=f"`content`, `attributes.NAME` …; at most {MAX_REPORTED_FIELDS}")]
    not_taken: Annotated[
        list[str], Meta(description=f"Fields where the two differ and its own was kept; at most {MAX_REPORTED_FIELDS}")
    ]
    sequence: int


class UnrestoredEdge(msgspec.Struct, kw_only=True):
    """An edge that could not be restored, and why."""

    source: str = field(name="from")
    target: str = field(name="to")
    relation_type: str
    reason: str


class UnmergeAnswer(msgspec.Struct, kw_only=True):
    """Answer to an unmerge: the restored node. ``changed`` is false, and ``out_of`` null, if it was not merged."""

    ok: Literal[True] = True
    id: str
    out_of: str | None
    changed: bool
    node: Node
    edges_restored: int
    edges_removed: Annotated[int, Meta(description="Edges that the survivor had gained by the merge and lost again")]
    edges_kept: Annotated[
        int, Meta(description="Edges that both have now: the survivor's own, or written since the merge")
    ]
    not_restored: Annotated[
        list[UnrestoredEdge], Meta(description=f"Edges whose other end was deleted; at most {MAX_REPORTED_FIELDS}")
    ]
    not_restored_count: int
    given_back: Annotated[list[str], Meta(description="Fields that the survivor had taken over and no longer has")]
    kept: Annotated[list[str], Meta(description="Fields that it took over and keeps, because they were written since")]
    sequence: int
