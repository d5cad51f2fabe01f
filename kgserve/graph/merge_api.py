"""Two entities that are one: how a store says so, what is asked for when one is merged into the other, and the answers.

A node that was merged stays as a row that is true at no moment, with one relation, `MERGED_INTO`, to the one that it
was merged into: its survivor.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from kgserve.graph.answers import Node
from kgserve.storage.model.fields import MAX_ID_BYTES

MAX_MOVED_EDGES = 250_000
"""Edges that one merge moves at most: it is one commit, and held in memory until it is written."""
MAX_REPORTED_FIELDS = 100


_Author = Annotated[str, Meta(max_length=MAX_ID_BYTES, description="Who does it; never interpreted")] | None
_Version = Annotated[int, Meta(ge=1, lt=1 << 53)]


class MergeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Into which node, and what that one takes over."""

    into: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="The node that stays")]
    attributes: Annotated[
        Literal["fill", "overwrite", "keep"],
        Meta(description="Taken over: those that it lacks, all of them, or none"),
    ] = "fill"
    content: Annotated[
        Literal["fill", "overwrite", "append", "keep"],
        Meta(description="Taken over, with the summary: if it has none, in any case, behind its own, or never"),
    ] = "fill"
    based_on_version: (
        Annotated[_Version, Meta(description="Only if the node that is merged is still at this version")] | None
    ) = None
    into_version: (
        Annotated[_Version, Meta(description="Only if the node that stays is still at this version")] | None
    ) = None
    created_by: _Author = None


class MergeNode(MergeRequest, kw_only=True):
    """The node that is merged, and into which."""

    node_id: str = field(name="id")


class UnmergeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Who takes a merge back."""

    created_by: _Author = None


class UnmergeNode(UnmergeRequest, kw_only=True):
    """The node that was merged."""

    node_id: str = field(name="id")


class MergeAnswer(msgspec.Struct, kw_only=True):
    """The node that stays, and what it took over. ``changed`` is false when the two were merged already."""

    ok: Literal[True] = True
    id: str
    into: Annotated[str, Meta(description="The node that stays; where the one named had been merged, its own")]
    changed: bool
    node: Node
    edges_moved: int
    edges_dropped: Annotated[int, Meta(description="The node that stays had the same edge, which counts")]
    loops_dropped: Annotated[int, Meta(description="Edges between the two")]
    taken_over: Annotated[list[str], Meta(description=f"`content`, `attributes.NAME` …; at most {MAX_REPORTED_FIELDS}")]
    not_taken: Annotated[
        list[str], Meta(description=f"Where the two differ and its own stayed; at most {MAX_REPORTED_FIELDS}")
    ]
    sequence: int


class NotRestored(msgspec.Struct, kw_only=True):
    """An edge that could not be put back, and why."""

    source: str = field(name="from")
    target: str = field(name="to")
    relation_type: str
    reason: str


class UnmergeAnswer(msgspec.Struct, kw_only=True):
    """The node as it is again. ``changed`` is false, and ``out_of`` null, when it was not merged."""

    ok: Literal[True] = True
    id: str
    out_of: str | None
    changed: bool
    node: Node
    edges_restored: int
    edges_removed: Annotated[int, Meta(description="Edges that the other one had by the merge, and has no more")]
    edges_kept: Annotated[
        int, Meta(description="Edges that both have now: the other one's own, or written since the merge")
    ]
    not_restored: Annotated[
        list[NotRestored], Meta(description=f"Edges whose other end is gone; at most {MAX_REPORTED_FIELDS}")
    ]
    not_restored_count: int
    given_back: Annotated[list[str], Meta(description="What the other one had taken over and has no more")]
    kept: Annotated[list[str], Meta(description="What it had taken over and keeps, for it was written since")]
    sequence: int
