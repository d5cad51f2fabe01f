"""Graphs to be drawn: what is asked for, answered in columns that name nodes by their places, and commits over time."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.graph.requests import VALID_AT_HELP, AsOf
from kgserve.storage.model.fields import MAX_ID_BYTES
from kgserve.storage.model.statuses import HistoryGap
from kgserve.storage.model.walk import Direction

MAX_DRAWN_IDS = 10_000
MAX_DRAWN_STARTS = 1_000
MAX_DRAWN_NODES = 5_000
MAX_OVERVIEW_NODES = 100
MAX_TIMELINE_BUCKETS = 1_000
MAX_SHOWN_LIFETIMES = 100
"""Lives of one row that are told, the newest."""

DrawnField = Literal["label", "degree", "valid", "version", "tags", "layer", "confidence", "parent"]
DEFAULT_DRAWN_FIELDS: frozenset[DrawnField] = frozenset({"label", "degree", "valid"})

_Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
_Label = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]

Life = tuple[int, int | None]
"""The commit from which a state held, and that from which it did no longer; None: it still does."""
ToldLife = list[int | None]
"""The same in an answer. Schemas of tuples are none that all who read them know."""


class DrawRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which nodes to draw: one of `ids`, `around` and `overview`."""

    ids: (
        Annotated[list[_Id], Meta(max_length=MAX_DRAWN_IDS, description="These nodes, and all edges among them")] | None
    ) = None
    around: (
        Annotated[list[_Id], Meta(max_length=MAX_DRAWN_STARTS, description="These nodes, and what is around them")]
        | None
    ) = None
    overview: (
        Annotated[
            int,
            Meta(description="So many nodes with most edges, and what is around them; below 1 is 1, above 100 is 100"),
        ]
        | None
    ) = None
    depth: Annotated[int, Meta(description="Hops around them; negative is 0, above 10 is 10")] = 1
    direction: Annotated[Direction, Meta(description="Of the edges that are followed")] = "both"
    per_node: Annotated[
        int, Meta(description="Neighbours of one node that are added, the strongest edges first; at most 5,000")
    ] = 50
    max_nodes: Annotated[
        int, Meta(description="Nodes in all, if not named by `ids`; below 1 is 1, above 5,000 is 5,000")
    ] = 300
    types: Annotated[list[_Label], Meta(max_length=100, description="Add only nodes of these types")] | None = None
    relation_types: Annotated[list[_Label], Meta(max_length=100, description="Only edges of these types")] | None = None
    fields: (
        Annotated[
            list[DrawnField],
            Meta(max_length=16, description="Columns beside id and type; left out: label, degree, valid"),
        ]
        | None
    ) = None
    lives: Annotated[
        bool, Meta(description="Say from which commit until which each state held, and bring what is gone")
    ] = False
    as_of: AsOf | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


class DrawnNodes(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Nodes in columns of the same length: the first ones asked for, then level by level.

    ``type`` is a place in `types`. ``label`` is the summary, else the name, else the attribute name, title or label,
    else the first words of the content, else the id. ``degree`` counts edges of all kinds, in and out; null: too many
    to be counted as of then. ``confidence`` is what a memory's has come to, ``parent`` the id of what it stands below.
    A column that was not asked for is absent, as is one in which there would be nothing; but for that, ``valid_from``,
    ``valid_to``, ``layer``, ``confidence`` and ``parent`` are null for nodes that have none.

    ``lives`` are pairs of commits, newest first: from the first on, until the second, a state of the node held; null:
    it holds. ``lives_cut`` are the places of nodes that have had more than the 100 told.
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
    lives: list[list[ToldLife]] | UnsetType = UNSET
    lives_cut: list[int] | UnsetType = UNSET


class DrawnEdges(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Edges in columns: ``from`` and ``to`` are places of nodes, ``type`` one in `relation_types`; `lives` as theirs.

    There are 100,000 at most.
    """

    source: list[int] = field(name="from")
    target: list[int] = field(name="to")
    type: list[int]
    weight: list[float]
    valid_from: list[str | None] | UnsetType = UNSET
    valid_to: list[str | None] | UnsetType = UNSET
    lives: list[list[ToldLife]] | UnsetType = UNSET
    lives_cut: list[int] | UnsetType = UNSET


class DrawnLinks(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Edges into other stores in columns: ``to`` is the id of a node of the store ``to_graph``, there or not.

    The rest is as that of edges. There are 10,000 at most. They are not followed: ask the other store for its nodes.
    """

    source: list[int] = field(name="from")
    to_graph: list[str]
    target: list[str] = field(name="to")
    type: list[int]
    weight: list[float]
    valid_from: list[str | None] | UnsetType = UNSET
    valid_to: list[str | None] | UnsetType = UNSET
    lives: list[list[ToldLife]] | UnsetType = UNSET
    lives_cut: list[int] | UnsetType = UNSET


class Drawing(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A part of a graph as of commit ``sequence``, in columns. ``truncated``: there was more than may be told.

    ``left_out`` are pairs: the place of a node whose neighbours were looked for, and how many of these are not among
    the nodes (at least, if `truncated`). ``missing`` are ids that name no node. ``redirected`` tells, of ids of nodes
    that were merged, the survivors, which stand in their places.
    """

    sequence: int
    truncated: bool
    types: list[str]
    relation_types: list[str]
    nodes: DrawnNodes
    edges: DrawnEdges
    left_out: list[list[int]]
    missing: list[str]
    links: DrawnLinks | UnsetType = UNSET
    redirected: dict[str, str] | UnsetType = UNSET


class TimelineQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How finely to tell commits over time."""

    buckets: Annotated[int, Meta(description="Spans of time; below 1 is 1, above 1,000 is 1,000")] = 120


class Timeline(msgspec.Struct, kw_only=True):
    """Commits over time, in spans of the same length, without those in which there were none.

    Each of ``buckets`` is its first and its last commit, its bounds as times, and how many commits there were. Commits
    before ``oldest`` are known no longer.
    """

    sequence: int
    oldest: int
    buckets: list[list[int | str]]
    gaps: Annotated[
        list[HistoryGap] | UnsetType, Meta(description="What is missing since the history's file was damaged")
    ] = UNSET
