"""Requests and answers for drawing graphs, in columns that refer to nodes by position; and the commit timeline."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.graph.request_bodies import VALID_AT_HELP, AsOfValue
from kgserve.storage.model.breadth_first_traversal import TraversalDirection
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES
from kgserve.storage.model.projection_statuses import HistoryGap

MAX_DRAWN_IDS = 10_000
MAX_DRAWN_STARTS = 1_000
MAX_DRAWN_NODES = 5_000
MAX_OVERVIEW_NODES = 100
MAX_TIMELINE_BUCKETS = 1_000
MAX_LISTED_LIFETIMES = 100
"""States listed per row, the newest first."""

NodeColumn = Literal["label", "degree", "valid", "version", "tags", "layer", "confidence", "parent"]
DEFAULT_NODE_COLUMNS: frozenset[NodeColumn] = frozenset({"label", "degree", "valid"})

_Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
_Label = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]

StateLifetime = tuple[int, int | None]
"""The commit in which a state began, and the one in which it ended; None: it is current."""
EncodedLifetime = list[int | None]
"""A `StateLifetime` in an answer; a list, because not every client supports tuple schemas."""


class GraphDrawingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The nodes to draw: one of `ids`, `around` and `overview`."""

    ids: (
        Annotated[list[_Id], Meta(max_length=MAX_DRAWN_IDS, description="These nodes, and all edges among them")] | None
    ) = None
    around: (
        Annotated[list[_Id], Meta(max_length=MAX_DRAWN_STARTS, description="These nodes, and their surroundings")]
        | None
    ) = None
    overview: (
        Annotated[
            int,
            Meta(description="Number of most connected nodes to start from; below 1 is 1, above 100 is 100"),
        ]
        | None
    ) = None
    depth: Annotated[int, Meta(description="Hops around them; negative is 0, above 10 is 10")] = 1
    direction: Annotated[TraversalDirection, Meta(description="Direction of the edges to follow")] = "both"
    per_node: Annotated[
        int, Meta(description="Maximum number of neighbours per node, the strongest edges first; at most 5,000")
    ] = 50
    max_nodes: Annotated[
        int, Meta(description="Maximum number of nodes, except with `ids`; below 1 is 1, above 5,000 is 5,000")
    ] = 300
    types: Annotated[list[_Label], Meta(max_length=100, description="Add only nodes of these types")] | None = None
    relation_types: Annotated[list[_Label], Meta(max_length=100, description="Only edges of these types")] | None = None
    fields: (
        Annotated[
            list[NodeColumn],
            Meta(max_length=16, description="Columns in addition to id and type; left out: label, degree, valid"),
        ]
        | None
    ) = None
    lives: Annotated[
        bool, Meta(description="Return the commits between which each state held, and deleted nodes and edges")
    ] = False
    as_of: AsOfValue | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


class DrawnNodeColumns(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Nodes in columns of the same length: the requested ones first, then level by level.

    ``type`` is a position in `types`. ``label`` is the summary, else the name, else the attribute name, title or label,
    else the first words of the content, else the id. ``degree`` counts edges of all types, in and out; null: too many
    to count as of that moment. ``confidence`` is the current confidence of a memory, ``parent`` the id of its parent. A
    column is absent if it was not requested or would be empty. Otherwise, ``valid_from``, ``valid_to``, ``layer``,
    ``confidence`` and ``parent`` are null for nodes that have none.

    ``lives`` are pairs of commits, newest first: a state of the node held from the first until the second; null: it is
    current. ``lives_cut`` are the positions of nodes with more than the 100 states listed.
    """

    id: list[str]
    type: list[int]
    label: list[str] | UnsetType = UNSET
    degree: list[int | None] | UnsetType = UNSET
    valid_from: list[str | None] | UnsetType = UNSET
    valid_to: list[str | None] | UnsetType = UNSET
    version: list[int] | UnsetType = UNSET
    tags: list[list[str]] | UnsetType = UNSET
    layer: list[int | None] | UnsetType = UNSET
    confidence: list[float | None] | UnsetType = UNSET
    parent: list[str | None] | UnsetType = UNSET
    lives: list[list[EncodedLifetime]] | UnsetType = UNSET
    lives_cut: list[int] | UnsetType = UNSET


class DrawnEdgeColumns(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Edges in columns: ``from`` and ``to`` are positions of nodes, ``type`` one in `relation_types`.

    ``lives`` are the same as for nodes. At most 100,000 edges are returned.
    """

    source: list[int] = field(name="from")
    target: list[int] = field(name="to")
    type: list[int]
    weight: list[float]
    valid_from: list[str | None] | UnsetType = UNSET
    valid_to: list[str | None] | UnsetType = UNSET
    lives: list[list[EncodedLifetime]] | UnsetType = UNSET
    lives_cut: list[int] | UnsetType = UNSET


class DrawnCrossStoreEdgeColumns(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Edges into other stores in columns: ``to`` is the id of a node in the store ``to_graph``, which need not exist.

    The other columns are the same as for edges. At most 10,000 are returned. They are not followed: query the other
    store for its nodes.
    """

    source: list[int] = field(name="from")
    to_graph: list[str]
    target: list[str] = field(name="to")
    type: list[int]
    weight: list[float]
    valid_from: list[str | None] | UnsetType = UNSET
    valid_to: list[str | None] | UnsetType = UNSET
    lives: list[list[EncodedLifetime]] | UnsetType = UNSET
    lives_cut: list[int] | UnsetType = UNSET


class GraphDrawingAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A part of a graph as of commit ``sequence``, in columns. ``truncated``: a limit was reached.

    ``left_out`` are pairs: the position of a node whose neighbours were read, and the number of them that are not among
    the nodes (a lower bound if `truncated`). ``missing`` are ids without a node. ``redirected`` maps requested ids of
    merged nodes to the survivors drawn instead.
    """

    sequence: int
    truncated: bool
    types: list[str]
    relation_types: list[str]
    nodes: DrawnNodeColumns
    edges: DrawnEdgeColumns
    left_out: list[list[int]]
    missing: list[str]
    links: DrawnCrossStoreEdgeColumns | UnsetType = UNSET
    redirected: dict[str, str] | UnsetType = UNSET


class CommitTimelineQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of the commit timeline: the number of its spans."""

    buckets: Annotated[int, Meta(description="Number of time spans; below 1 is 1, above 1,000 is 1,000")] = 120


class CommitTimeline(msgspec.Struct, kw_only=True):
    """Commits over time, in spans of the same length; spans without commits are left out.

    Each of ``buckets`` holds its first and its last commit, its bounds as times, and its number of commits. Commits
    before ``oldest`` are no longer in the history.
    """

    sequence: int
    oldest: int
    buckets: list[list[int | str]]
    gaps: Annotated[list[HistoryGap] | UnsetType, Meta(description="Gaps left by damage to the history file")] = UNSET
