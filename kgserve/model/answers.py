"""What callers get, as Structs. Arrays are never null. Times are RFC 3339 in UTC with microseconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec


class Node(msgspec.Struct, kw_only=True):
    """A node. ``version`` counts its states; ``sequence`` is the commit that wrote this one."""

    id: str
    type: str
    content: str
    attributes: dict[str, Any]
    version: int
    sequence: int
    created_at: str
    updated_at: str


class ReachedNode(Node, kw_only=True):
    """A node of a traversal with its distance from the start, in hops."""

    depth: int


class Edge(msgspec.Struct, kw_only=True):
    """An edge. Its attributes hold ``created_at`` and ``updated_at``."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float
    attributes: dict[str, Any]
    version: int
    sequence: int


class Skipped(msgspec.Struct, kw_only=True):
    """An edge that was left out, by its place in the request."""

    index: int
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    reason: str


class InjectAnswer(msgspec.Struct, kw_only=True):
    """What one inject did. Counts are of distinct keys, except ``nodes_sent`` and ``edges_sent``."""

    ok: Literal[True] = True
    nodes_sent: int
    edges_sent: int
    nodes_created: int
    nodes_updated: int
    nodes_unchanged: int
    edges_created: int
    edges_updated: int
    edges_unchanged: int
    edges_skipped: Annotated[list[Skipped], msgspec.Meta(description="At most the first 100")]
    edges_skipped_count: int
    sequence: Annotated[int, msgspec.Meta(description="The store's commit number once this write is in it")]


class DeleteNodeAnswer(msgspec.Struct, kw_only=True):
    """What deleting one node did."""

    ok: Literal[True] = True
    deleted_id: str
    existed: bool
    edges_deleted: int
    sequence: int


class DeleteEdgeAnswer(msgspec.Struct, kw_only=True):
    """What deleting one edge did."""

    ok: Literal[True] = True
    existed: bool
    sequence: int


class TraverseAnswer(msgspec.Struct, kw_only=True):
    """The nodes reached, nearest first, and all edges between them. ``count`` is the number of nodes."""

    nodes: list[ReachedNode]
    edges: list[Edge]
    count: int
    truncated: Annotated[bool, msgspec.Meta(description="More nodes or edges were in reach than are returned")]
    sequence: int


class NodeAnswer(msgspec.Struct, kw_only=True):
    """One node with its edges, at most 1,000 in each direction."""

    node: Node
    outgoing: list[Edge]
    incoming: list[Edge]
    edges_truncated: bool


class NodePage(msgspec.Struct, kw_only=True):
    """One page of nodes in the order of their ids; ``next_cursor`` is absent on the last one."""

    nodes: list[Node]
    next_cursor: str | None


class StoreSummary(msgspec.Struct, kw_only=True):
    """A store as the list shows it. Sizes are in bytes, on disk."""

    name: str
    state: Literal["open", "closed", "damaged"]
    nodes: int
    edges: int
    sequence: int
    journal_bytes: int
    engine_bytes: int
    created_at: str


class StoreList(msgspec.Struct, kw_only=True):
    """All stores by name."""

    stores: list[StoreSummary]
    count: int


class StoreAnswer(msgspec.Struct, kw_only=True):
    """A store after it was created or found."""

    ok: Literal[True] = True
    name: str
    created: bool
    sequence: int


class DropAnswer(msgspec.Struct, kw_only=True):
    """A store that is gone."""

    ok: Literal[True] = True
    dropped: str


class StoreStats(msgspec.Struct, kw_only=True):
    """What one store holds and how it is doing. Sizes are in bytes."""

    name: str
    nodes: int
    edges: int
    sequence: int
    types: Annotated[dict[str, int], msgspec.Meta(description="Nodes by type, the 100 most frequent")]
    relation_types: Annotated[dict[str, int], msgspec.Meta(description="Edges by relation type, the 100 most frequent")]
    journal_bytes: int
    journal_segments: int
    snapshot_sequence: int | None
    engine_bytes: int
    engine_log_bytes: int
    engine_rebuilds: Annotated[int, msgspec.Meta(description="Since the store was opened")]
    compactions: Annotated[int, msgspec.Meta(description="Since the store was opened")]
    queued_writes: int
    last_check: str | None
    last_check_ok: bool | None
    digest: Annotated[str, msgspec.Meta(description="Order-independent digest of all rows, 32 hex digits")]
    created_at: str


class LineError(msgspec.Struct, kw_only=True):
    """A line of an import that was left out; ``line`` counts from 1."""

    line: int
    message: str


class ImportAnswer(msgspec.Struct, kw_only=True):
    """What an import did. ``ok`` is false when any line was left out for being wrong; skipped edges do not count."""

    ok: bool
    lines: int
    nodes_sent: int
    edges_sent: int
    nodes_created: int
    nodes_updated: int
    nodes_unchanged: int
    edges_created: int
    edges_updated: int
    edges_unchanged: int
    edges_skipped: Annotated[list[LineError], msgspec.Meta(description="At most the first 100")]
    edges_skipped_count: int
    errors: Annotated[list[LineError], msgspec.Meta(description="At most the first 100")]
    error_count: int
    sequence: int


class Health(msgspec.Struct, kw_only=True):
    """The process answers."""

    status: Literal["ok"] = "ok"
    version: str


class Ready(msgspec.Struct, kw_only=True):
    """Stores can be opened and written."""

    ready: Literal[True] = True
    open_stores: int
    free_bytes: int


class Problem(msgspec.Struct, kw_only=True):
    """An error, RFC 9457. ``instance`` is the request's id; ``errors`` names every place of an invalid input."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[dict[str, str]] | msgspec.UnsetType = msgspec.UNSET
