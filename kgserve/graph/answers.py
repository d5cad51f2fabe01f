"""What callers get, as Structs. Arrays are never null. Times are RFC 3339 in UTC with microseconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.storage.model.fields import EdgeExtrasShown, NodeExtrasShown, Shown
from kgserve.storage.model.kinds import KindFreq, TagFreq, TagPrefixFreq


class Node(NodeExtrasShown):
    """A node. ``version`` counts its states; ``sequence`` is the commit that wrote this one.

    What comes after ``updated_at`` is absent where it was not set. ``stale``: ``freshness_at`` is past. ``conflicts``:
    versions that were written beside this one and that nothing has superseded. ``superseded_by``: the version after a
    former one. ``is_current``: of a state that is not the node's present one, whether it is one of its heads.
    """

    id: str
    type: str
    content: str
    attributes: dict[str, Any]
    version: int
    sequence: int
    created_at: str
    updated_at: str


class ReachedNode(Node, kw_only=True):
    """A node of a traversal with its distance from the start, in hops.

    ``store`` is there where edges into other stores were followed. What such an edge leads to may be ``missing``: then
    nothing else is known of it.
    """

    type: str = ""
    content: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    sequence: int = 0
    created_at: str = ""
    updated_at: str = ""
    depth: int
    store: str | UnsetType = UNSET
    missing: bool | UnsetType = UNSET


class Edge(EdgeExtrasShown):
    """An edge. Its attributes hold ``created_at`` and ``updated_at``; ``id`` names it in a URL.

    What comes after ``sequence`` is absent where it was not set; ``to_graph`` is there if ``to`` is in another store,
    and ``store``, that of ``from``, in walks that follow such edges.
    """

    id: str
    source: str = field(name="from")
    target: str = field(name="to")
    relation_type: str
    weight: float
    attributes: dict[str, Any]
    version: int
    sequence: int
    to_graph: str | UnsetType = UNSET
    store: str | UnsetType = UNSET


RedirectedFrom = (
    Annotated[str, Meta(description="The id that was asked for; it was merged into the node answered")] | UnsetType
)


Redirected = (
    Annotated[
        dict[str, str],
        Meta(description="Ends of edges that had been merged, each with the node that took its place"),
    ]
    | UnsetType
)
"""Of more than `MAX_REDIRECTED` only some are told."""


class Skipped(msgspec.Struct, kw_only=True):
    """An edge that was left out, by its place in the request."""

    index: int
    source: str = field(name="from")
    target: str = field(name="to")
    relation_type: str
    reason: str


class MergedRow(msgspec.Struct, kw_only=True):
    """A node or edge of a batch that an earlier place of the batch names, too: both were written as one.

    Where both say something, the later one counts.
    """

    path: str
    earlier_path: str


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
    edges_skipped: Annotated[list[Skipped], Meta(description="At most the first 100")]
    edges_skipped_count: int
    sequence: Annotated[int, Meta(description="The store's commit number once this write is in it")]
    redirected: Redirected = UNSET
    merged: (
        Annotated[
            list[MergedRow],
            Meta(description="Absent where the batch names no node and no edge twice; at most the first 100"),
        ]
        | UnsetType
    ) = UNSET
    merged_count: Annotated[int, Meta(description="Absent, too, where there is none")] | UnsetType = UNSET


class DeleteNodeAnswer(msgspec.Struct, kw_only=True):
    """What deleting one node did."""

    ok: Literal[True] = True
    deleted_id: str
    existed: bool
    edges_deleted: int
    sequence: int
    memories_about: (
        Annotated[
            int, Meta(description="Memories that were about the node; they stay, and `recall` by its name finds them")
        ]
        | UnsetType
    ) = UNSET
    memory_ids: (
        Annotated[list[str], Meta(description="The first 100 of these; `forget` withdraws them by `ids`")] | UnsetType
    ) = UNSET


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
    truncated: Annotated[bool, Meta(description="More nodes or edges were in reach than are returned")]
    sequence: Annotated[int, Meta(description="A commit that the walk has seen, at least")]
    redirected_from: RedirectedFrom = UNSET


class NodeAnswer(msgspec.Struct, kw_only=True):
    """One node with its edges, at most 1,000 in each direction."""

    node: Node
    outgoing: list[Edge]
    incoming: list[Edge]
    edges_truncated: bool
    redirected_from: RedirectedFrom = UNSET


class NodePage(msgspec.Struct, kw_only=True):
    """One page of nodes in the order of their ids; ``next_cursor`` is absent on the last one."""

    nodes: list[Node]
    next_cursor: str | None


class NodesAnswer(msgspec.Struct, kw_only=True):
    """Some nodes in the order in which they were asked for, each once."""

    nodes: list[Node]
    missing: Annotated[list[str], Meta(description="Ids of which there is no node, or none then")]


class CountAnswer(msgspec.Struct, kw_only=True):
    """How many nodes fit."""

    count: int
    exact: Annotated[bool, Meta(description="False: at least so many; a count looks at about 500,000 nodes")]
    sequence: Annotated[int, Meta(description="The commit as of which they were counted")]


class DeleteNodesAnswer(msgspec.Struct, kw_only=True):
    """What a deletion by filter did, or with ``dry_run`` would do: all of it in one commit."""

    ok: Literal[True] = True
    dry_run: bool
    count: Annotated[int, Meta(description="Nodes deleted, or to be deleted")]
    ids: list[str]
    edges_deleted: int
    missing: Annotated[list[str], Meta(description="Ids that were sent and did not fit, or are not there")]
    more: Annotated[bool, Meta(description="More nodes fit than are deleted at once; send it again")]
    sequence: int
    memories_about: (
        Annotated[int, Meta(description="Memories that were about the nodes and stay; absent where there is none")]
        | UnsetType
    ) = UNSET
    memory_ids: (
        Annotated[list[str], Meta(description="The first 100 of these; `forget` withdraws them by `ids`")] | UnsetType
    ) = UNSET


class LineError(msgspec.Struct, kw_only=True):
    """A line of an import that was left out; ``line`` counts from 1."""

    line: int
    message: str


class MergedLine(LineError, kw_only=True):
    """A line whose node or edge an earlier line of the same import had named: both were written as one."""

    earlier_line: int


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
    edges_skipped: Annotated[list[LineError], Meta(description="At most the first 100")]
    edges_skipped_count: int
    errors: Annotated[list[LineError], Meta(description="At most the first 100")]
    error_count: int
    sequence: int
    redirected: Redirected = UNSET
    merged: Annotated[
        list[MergedLine], Meta(description="Lines of which an earlier one was about the same; at most the first 100")
    ] = []
    merged_count: int = 0


def nothing_imported(sequence: int = 0) -> ImportAnswer:
    """Return what an import has done before its first line."""
    return ImportAnswer(
        ok=True,
        lines=0,
        nodes_sent=0,
        edges_sent=0,
        nodes_created=0,
        nodes_updated=0,
        nodes_unchanged=0,
        edges_created=0,
        edges_updated=0,
        edges_unchanged=0,
        edges_skipped=[],
        edges_skipped_count=0,
        errors=[],
        error_count=0,
        sequence=sequence,
    )


class SearchHit(Shown, kw_only=True, omit_defaults=True):
    """A node that was found. Scores are absent where that part did not find it; ``hops`` is of graph mode."""

    node: Node
    score: float
    keyword_score: Annotated[float | None, Meta(description="BM25")] = None
    semantic_score: Annotated[float | None, Meta(description="Cosine similarity, -1 to 1")] = None
    hops: Annotated[int | None, Meta(description="Distance from the start or from the best hits")] = None
    why: Annotated[str | None, Meta(description="How the score came about, when asked to explain")] = None


class SearchAnswer(msgspec.Struct, kw_only=True):
    """Hits, best first. ``degraded``: without an embedding model, meaning is judged by words and letters alone."""

    hits: list[SearchHit]
    degraded: bool
    index_sequence: Annotated[int, Meta(description="The commit that the indexes have seen")]
    took_ms: float


class BatchHit(msgspec.Struct, kw_only=True):
    """A node that at least one variant found; ``queries_matched`` are the places of those variants, from 0."""

    node: Node
    score: Annotated[float, Meta(description="Sum of 1 / (60 + rank) over the variants that found it")]
    queries_matched: list[int]


class BatchSearchAnswer(msgspec.Struct, kw_only=True):
    """The hits of all variants, joined. ``unique_hits`` counts the nodes found before the limit."""

    hits: list[BatchHit]
    query_count: int
    unique_hits: int
    per_query_hits: list[int]
    degraded: bool
    index_sequence: int
    took_ms: float


class ContextAnswer(msgspec.Struct, kw_only=True):
    """The text to give to a language model, and the ids of the nodes that are in it."""

    text: str
    tokens: Annotated[int, Meta(description="Of the text, counted so as to err high; never over the budget")]
    ids: list[str]
    stores: (
        Annotated[list[str], Meta(description="With `also` or `follow_symlinks`, the store of each id")] | UnsetType
    ) = UNSET
    truncated: Annotated[bool, Meta(description="There was more than the budget allowed")]
    degraded: bool
    index_sequence: int


class ReindexAnswer(msgspec.Struct, kw_only=True):
    """Both indexes are being made anew; `stats` shows how far they are."""

    ok: Literal[True] = True
    name: str
    sequence: int


class CypherChanges(msgspec.Struct, kw_only=True):
    """What a statement in write mode changed, and the commit that holds it."""

    nodes_created: int
    nodes_updated: int
    nodes_deleted: int
    edges_created: int
    edges_updated: int
    edges_deleted: int
    sequence: int


class CypherAnswer(msgspec.Struct, kw_only=True):
    """The rows of a statement. ``types`` are the engine's names of the columns' types.

    A node in a row is ``{"_label", "id", …its properties}``, a relation ``{"_label", "_from", "_to", …}``, a path
    ``{"nodes": […], "relations": […]}``; times and other values without a JSON form are text.
    """

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    row_count: Annotated[int, Meta(description="Rows in this answer")]
    truncated: Annotated[bool, Meta(description="There were more rows than max_rows")]
    took_ms: float
    changes: CypherChanges | None = None


class FieldChange(msgspec.Struct, kw_only=True):
    """What a state changed: ``path`` is ``type``, ``content`` or ``attributes.NAME``; null: it was not there."""

    path: str
    before: Any
    after: Any


class AlsoBy(msgspec.Struct, kw_only=True):
    """Somebody who has put what a version says already, by which commit first, and when."""

    created_by: str
    sequence: int
    recorded_at: str


class NodeState(msgspec.Struct, kw_only=True):
    """A node as it was from one commit to another, which is null while it still is so.

    ``deleted``: it ended because the node was deleted. ``diff`` is against the state before, empty for a first one.
    ``also_by`` are those who have put the same, other than its author; absent where there are none.
    """

    node: Node
    from_sequence: int
    to_sequence: int | None
    recorded_from: str
    recorded_to: str | None
    deleted: bool
    diff: list[FieldChange]
    also_by: list[AlsoBy] | UnsetType = UNSET


class NodeHistory(msgspec.Struct, kw_only=True):
    """The states of a node, newest first; ``next_before`` asks for the next page and is null on the last one."""

    id: str
    states: list[NodeState]
    next_before: int | None


class EdgeKeyAnswer(msgspec.Struct):
    """Names one edge."""

    source: str = field(name="from")
    target: str = field(name="to")
    relation_type: str


class ChangeEntry(msgspec.Struct, kw_only=True):
    """One write: the rows as it left them. Of one with over 1,000 rows only the number: ``truncated``."""

    sequence: int
    time: str
    rows: int
    nodes_created: list[Node]
    nodes_updated: list[Node]
    nodes_deleted: list[str]
    edges_created: list[Edge]
    edges_updated: list[Edge]
    edges_deleted: list[EdgeKeyAnswer]
    truncated: bool


class ChangesPage(msgspec.Struct, kw_only=True):
    """Writes, oldest first; ``next_since`` asks for the next page and is null on the last one."""

    changes: list[ChangeEntry]
    next_since: int | None
    sequence: Annotated[int, Meta(description="The store's commit number now")]


class RestoreAnswer(msgspec.Struct, kw_only=True):
    """A new store with what another one was as of ``from_sequence``."""

    ok: Literal[True] = True
    name: str
    nodes: int
    edges: int
    from_sequence: int
    sequence: int


class EntityVersion(msgspec.Struct, kw_only=True):
    """One state of an entity. ``id`` is ``ENTITY_ID@SEQUENCE``: no other state of the store has it.

    ``parent_id`` is the memory that it stood below, else the attribute of that name, as ``layer`` is, or null; of a
    memory ``layer`` is its own. It was true from ``valid_from`` (null: nobody knows since when) to before ``valid_to``:
    as the writer said, or else from when it was recorded until it was superseded; null: it still is.
    """

    id: str
    entity_id: str
    content: str
    layer: Any
    parent_id: Any
    valid_from: str | None
    valid_to: str | None
    version: int
    type: str
    attributes: dict[str, Any]
    sequence: int


MAX_EXAMPLE_CHARS = 120


class SchemaDescription(msgspec.Struct, kw_only=True):
    """The types and tags that are in use, the most frequent first."""

    store: str
    node_count: int
    kinds: Annotated[list[KindFreq], Meta(description="At most 100")]
    tag_prefixes: Annotated[list[TagPrefixFreq], Meta(description="At most 100")]
    tags: Annotated[list[TagFreq], Meta(description="At most 100")]


class TagList(msgspec.Struct, kw_only=True):
    """Tags, the most frequent first, and of equally frequent ones in the order of their names."""

    tags: list[TagFreq]


class ListedNode(NodeExtrasShown):
    """A node of a list. ``content`` and ``attributes`` are absent in a compact one, and so is what is not said here."""

    id: str
    type: str
    version: int
    sequence: int
    created_at: str
    updated_at: str
    content: str | UnsetType = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET


class ListedPage(msgspec.Struct, kw_only=True):
    """One page of nodes in the order of their ids; ``next_cursor`` is null on the last one.

    A page that looked at 20,000 nodes ends there, even when it is not full.
    """

    nodes: list[ListedNode]
    next_cursor: str | None


class Health(msgspec.Struct, kw_only=True):
    """The process answers."""

    status: Literal["ok"] = "ok"
    version: str


class Ready(msgspec.Struct, kw_only=True):
    """Stores can be opened and written. ``future_stamps`` counts open stores with commits stamped in the future."""

    ready: Literal[True] = True
    open_stores: int
    free_bytes: int
    future_stamps: int = 0


class Whoami(msgspec.Struct, kw_only=True):
    """Who asks: the name of its key, what that may do, for which stores, and until when; null: it does not end.

    ``stores`` are names, and beginnings of names that end with `*`. ``open``: no key is asked for. ``backups``: whoever
    asks may have the server make backups.
    """

    name: str
    role: Literal["read", "write", "admin"]
    stores: list[str]
    expires: str | None
    open: bool
    backups: bool


class BrowserKeyRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a page is to be allowed."""

    role: Annotated[Literal["read", "write"], Meta(description="What it may do")] = "read"


class BrowserKey(msgspec.Struct, kw_only=True):
    """A key for a page in a browser: its text, shown this once, what it may do, and until when."""

    key: str
    role: Literal["read", "write"]
    stores: list[str]
    expires: str


class CypherWords(msgspec.Struct, kw_only=True):
    """The words that a statement may be made of. ``labels`` have their properties, with the engine's types of these."""

    keywords: list[str]
    functions: list[str]
    procedures: list[str]
    labels: dict[str, dict[str, str]]


class Problem(msgspec.Struct, kw_only=True):
    """An error, RFC 9457. ``instance`` is the request's id; ``errors`` names every place of an invalid input.

    ``oldest``, with `gone`, is the first sequence that can still be read; ``node``, with `conflict_manual`, is what was
    written.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[dict[str, str]] | UnsetType = UNSET
    oldest: int | UnsetType = UNSET
    node: Node | UnsetType = UNSET
