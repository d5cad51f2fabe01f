"""Answer types of the graph API, as Structs. Arrays are never null. Times are RFC 3339 in UTC."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.storage.model.node_edge_fields import EdgeExtrasAnswer, NodeExtrasAnswer, SparseReprStruct
from kgserve.storage.model.type_and_tag_frequency_models import NodeTypeFrequency, TagFrequency, TagPrefixFrequency


class Node(NodeExtrasAnswer):
    """A node. ``version`` counts its states; ``sequence`` is the commit that wrote this one.

    Fields after ``updated_at`` are absent where they are not set. ``stale``: ``freshness_at`` is in the past.
    ``conflicts``: conflicting versions that no later version has superseded. ``superseded_by``: the version that
    followed a former one. ``is_current``: for a state other than the current one, whether it is one of the node's
    heads.
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

    ``store`` is present if edges into other stores were followed. The target of such an edge may be ``missing``: then
    no other field is known.
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


class Edge(EdgeExtrasAnswer):
    """An edge. Its attributes hold ``created_at`` and ``updated_at``; ``id`` identifies it in a URL.

    Fields after ``sequence`` are absent where they are not set. ``to_graph`` is present if ``to`` is in another store,
    and ``store``, the store of ``from``, in traversals that follow such edges. If the target was merged, ``to`` is then
    its survivor, and ``redirected_from`` the target.
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
    redirected_from: Annotated[str, Meta(description="The target in the link; it was merged into `to`")] | UnsetType = (
        UNSET
    )


RedirectedFrom = Annotated[str, Meta(description="The requested id; it was merged into the node returned")] | UnsetType


Redirected = (
    Annotated[
        dict[str, str],
        Meta(description="Merged nodes named as ends of edges, each with its survivor"),
    ]
    | UnsetType
)
"""At most `MAX_REPORTED_REDIRECTS` ends are listed."""


class SkippedEdge(msgspec.Struct, kw_only=True):
    """An edge that was skipped, with its position in the request."""

    index: int
    source: str = field(name="from")
    target: str = field(name="to")
    relation_type: str
    reason: str


class DuplicateBatchItemNotice(msgspec.Struct, kw_only=True):
    """A node or edge that occurs earlier in the same batch, too: both were written as one.

    Where both set a field, the later one wins.
    """

    path: str
    earlier_path: str


class InjectAnswer(msgspec.Struct, kw_only=True):
    """Answer to an inject, a batch write of nodes and edges. Counts are of distinct keys, except ``*_sent``."""

    ok: Literal[True] = True
    nodes_sent: int
    edges_sent: int
    nodes_created: int
    nodes_updated: int
    nodes_unchanged: int
    edges_created: int
    edges_updated: int
    edges_unchanged: int
    edges_skipped: Annotated[list[SkippedEdge], Meta(description="At most the first 100")]
    edges_skipped_count: int
    sequence: Annotated[int, Meta(description="The commit that holds this write")]
    redirected: Redirected = UNSET
    merged: (
        Annotated[
            list[DuplicateBatchItemNotice],
            Meta(description="Absent if the batch repeats no node or edge; at most the first 100"),
        ]
        | UnsetType
    ) = UNSET
    merged_count: Annotated[int, Meta(description="Number of repeated rows; absent if 0")] | UnsetType = UNSET


class DeleteNodeAnswer(msgspec.Struct, kw_only=True):
    """Result of deleting one node."""

    ok: Literal[True] = True
    deleted_id: str
    existed: bool
    edges_deleted: int
    sequence: int
    memories_about: (
        Annotated[int, Meta(description="Memories about the node; they are kept, and `recall` by its name finds them")]
        | UnsetType
    ) = UNSET
    memory_ids: (
        Annotated[list[str], Meta(description="The first 100 of these; `forget` withdraws them by `ids`")] | UnsetType
    ) = UNSET


class DeleteEdgeAnswer(msgspec.Struct, kw_only=True):
    """Result of deleting one edge."""

    ok: Literal[True] = True
    existed: bool
    sequence: int


class TraverseAnswer(msgspec.Struct, kw_only=True):
    """The nodes reached, nearest first, and all edges between them. ``count`` is the number of nodes."""

    nodes: list[ReachedNode]
    edges: list[Edge]
    count: int
    truncated: Annotated[bool, Meta(description="More nodes or edges are in reach than are returned")]
    sequence: Annotated[int, Meta(description="The walk includes at least this commit")]
    redirected_from: RedirectedFrom = UNSET


class NodeWithEdgesAnswer(msgspec.Struct, kw_only=True):
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


class NodesByIdAnswer(msgspec.Struct, kw_only=True):
    """Nodes requested by id, in the order requested, without duplicates."""

    nodes: list[Node]
    missing: Annotated[list[str], Meta(description="Ids without a node, now or at the requested moment")]
    redirected: (
        Annotated[dict[str, str], Meta(description="Requested ids of merged nodes, each with its survivor")] | UnsetType
    ) = UNSET


class CountNodesAnswer(msgspec.Struct, kw_only=True):
    """The number of matching nodes."""

    count: int
    exact: Annotated[bool, Meta(description="False: `count` is a lower bound; a count scans about 500,000 nodes")]
    sequence: Annotated[int, Meta(description="The commit at which they were counted")]


class DeleteNodesAnswer(msgspec.Struct, kw_only=True):
    """Result of a deletion by filter, or of its dry run. A deletion is one commit."""

    ok: Literal[True] = True
    dry_run: bool
    count: Annotated[int, Meta(description="Nodes deleted, or to be deleted")]
    ids: list[str]
    edges_deleted: int
    missing: Annotated[list[str], Meta(description="Requested ids that did not match, or do not exist")]
    more: Annotated[bool, Meta(description="More nodes match than one request deletes; send it again")]
    sequence: int
    memories_about: (
        Annotated[int, Meta(description="Memories about the nodes, which are kept; absent if 0")] | UnsetType
    ) = UNSET
    memory_ids: (
        Annotated[list[str], Meta(description="The first 100 of these; `forget` withdraws them by `ids`")] | UnsetType
    ) = UNSET


class ImportLineError(msgspec.Struct, kw_only=True):
    """A line of an import that was skipped; ``line`` counts from 1."""

    line: int
    message: str


class DuplicateImportLine(ImportLineError, kw_only=True):
    """A line whose node or edge occurs on an earlier line of the same import: both were written as one."""

    earlier_line: int


class ImportAnswer(msgspec.Struct, kw_only=True):
    """Result of an import. ``ok`` is false if any line was skipped as invalid; skipped edges do not count."""

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
    edges_skipped: Annotated[list[ImportLineError], Meta(description="At most the first 100")]
    edges_skipped_count: int
    errors: Annotated[list[ImportLineError], Meta(description="At most the first 100")]
    error_count: int
    sequence: int
    redirected: Redirected = UNSET
    merged: Annotated[
        list[DuplicateImportLine], Meta(description="Lines that repeat an earlier node or edge; at most the first 100")
    ] = []
    merged_count: int = 0
    settings_kept: Annotated[
        bool | UnsetType,
        Meta(description="True if the store existed before and kept settings that differ from those of the import"),
    ] = UNSET


def empty_import_answer(sequence: int = 0) -> ImportAnswer:
    """Return the answer of an import before its first line."""
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


class SearchHit(SparseReprStruct, kw_only=True, omit_defaults=True):
    """A node that was found. Scores are absent where that part did not match; ``hops`` is used by graph mode."""

    node: Node
    score: float
    keyword_score: Annotated[float | None, Meta(description="BM25")] = None
    semantic_score: Annotated[float | None, Meta(description="Cosine similarity, -1 to 1")] = None
    hops: Annotated[int | None, Meta(description="Distance from the start or from the best hits")] = None
    why: Annotated[str | None, Meta(description="How the score was computed, with `explain`")] = None


Notice = (
    Annotated[str, Meta(description="How to read this answer: no word was found, or an index is being built")] | None
)


class SearchAnswer(msgspec.Struct, kw_only=True):
    """Hits, best first. ``degraded``: without an embedding model, semantic scores use words and letters alone."""

    hits: list[SearchHit]
    degraded: bool
    notice: Notice = None
    index_sequence: Annotated[int, Meta(description="The last commit that the indexes contain")]
    took_ms: float


class BatchSearchHit(msgspec.Struct, kw_only=True):
    """Hit of a batch search: a node, and in ``queries_matched`` the positions of the variants that found it."""

    node: Node
    score: Annotated[float, Meta(description="Sum of 1 / (60 + rank) over the variants that found it")]
    queries_matched: list[int]


class BatchSearchAnswer(msgspec.Struct, kw_only=True):
    """The combined hits of all variants. ``unique_hits`` counts the nodes found before the limit."""

    hits: list[BatchSearchHit]
    query_count: int
    unique_hits: int
    per_query_hits: list[int]
    degraded: bool
    notice: Notice = None
    index_sequence: int
    took_ms: float


class LlmContextAnswer(msgspec.Struct, kw_only=True):
    """Text to pass to a language model, and the ids of the nodes in it."""

    text: str
    tokens: Annotated[int, Meta(description="Tokens of the text, estimated high; never over the budget")]
    ids: list[str]
    stores: (
        Annotated[list[str], Meta(description="With `also` or `follow_symlinks`, the store of each id")] | UnsetType
    ) = UNSET
    truncated: Annotated[bool, Meta(description="More was found than fits the budget")]
    degraded: bool
    notice: Notice = None
    index_sequence: int


class ReindexAnswer(msgspec.Struct, kw_only=True):
    """Answer to a reindex request: both indexes are being rebuilt; `stats` reports the progress."""

    ok: Literal[True] = True
    name: str
    sequence: int


class CypherChanges(msgspec.Struct, kw_only=True):
    """The changes made by a statement in write mode, and the commit that holds them."""

    nodes_created: int
    nodes_updated: int
    nodes_deleted: int
    edges_created: int
    edges_updated: int
    edges_deleted: int
    sequence: int


class CypherAnswer(msgspec.Struct, kw_only=True):
    """The rows of a statement. ``types`` are the engine's names for the column types.

    A node in a row is ``{"_label", "id", …its properties}``, a relation ``{"_label", "_from", "_to", …}``, a path
    ``{"nodes": […], "relations": […]}``; times and other values without a JSON form are text.
    """

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    row_count: Annotated[int, Meta(description="Rows in this answer")]
    truncated: Annotated[bool, Meta(description="The statement has more rows than max_rows")]
    took_ms: float
    changes: CypherChanges | None = None


class FieldChange(msgspec.Struct, kw_only=True):
    """A field changed by a state: ``path`` is ``type``, ``content`` or ``attributes.NAME``; null means absent."""

    path: str
    before: Any
    after: Any


class RepeatedValueAuthor(msgspec.Struct, kw_only=True):
    """Another author of the values of a version, with the first commit that repeated them, and its time."""

    created_by: str
    sequence: int
    recorded_at: str


class NodeHistoryState(msgspec.Struct, kw_only=True):
    """A node between two commits; the second one is null for the current state.

    ``deleted``: the state ended because the node was deleted. ``diff`` is relative to the previous state, and empty for
    the first one. ``also_by`` lists other authors of the same values; absent if there are no others.
    """

    node: Node
    from_sequence: int
    to_sequence: int | None
    recorded_from: str
    recorded_to: str | None
    deleted: bool
    diff: list[FieldChange]
    also_by: list[RepeatedValueAuthor] | UnsetType = UNSET


class NodeHistory(msgspec.Struct, kw_only=True):
    """The states of a node, newest first; ``next_before`` requests the next page and is null on the last one."""

    id: str
    states: list[NodeHistoryState]
    next_before: int | None


class EdgeKeyAnswer(msgspec.Struct):
    """The key of an edge."""

    source: str = field(name="from")
    target: str = field(name="to")
    relation_type: str


class CommitChangeEntry(msgspec.Struct, kw_only=True):
    """One write, with the rows as it left them. A write of over 1,000 rows is ``truncated``: only their number."""

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
    """Writes, oldest first; ``next_since`` requests the next page and is null on the last one."""

    changes: list[CommitChangeEntry]
    next_since: int | None
    sequence: Annotated[int, Meta(description="The store's current sequence")]


class PointInTimeRestoreAnswer(msgspec.Struct, kw_only=True):
    """Answer to a restore: a new store with the contents of another one as of ``from_sequence``."""

    ok: Literal[True] = True
    name: str
    nodes: int
    edges: int
    from_sequence: int
    sequence: int


class EntityVersion(msgspec.Struct, kw_only=True):
    """One state of an entity. ``id`` is ``ENTITY_ID@SEQUENCE``, unique in the store.

    ``parent_id`` is the parent memory, else the attribute of that name, or null. ``layer`` is the layer of a memory,
    else the attribute of that name. The state was true from ``valid_from`` (null: unknown) to before ``valid_to``
    (null: it still is): the validity that the writer set, or else from when it was recorded until it was superseded.
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


class StoreTypesAndTags(msgspec.Struct, kw_only=True):
    """The types and tags in use, most frequent first."""

    store: str
    node_count: int
    kinds: Annotated[list[NodeTypeFrequency], Meta(description="At most 100")]
    tag_prefixes: Annotated[list[TagPrefixFrequency], Meta(description="At most 100")]
    tags: Annotated[list[TagFrequency], Meta(description="At most 100")]


class TagList(msgspec.Struct, kw_only=True):
    """Tags, most frequent first; equally frequent ones in alphabetical order."""

    tags: list[TagFrequency]


class ListedNode(NodeExtrasAnswer):
    """A node of a list.

    In a compact list, ``content`` and ``attributes`` are absent, as are all fields not listed here.
    """

    id: str
    type: str
    version: int
    sequence: int
    created_at: str
    updated_at: str
    content: str | UnsetType = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET


class ListedNodePage(msgspec.Struct, kw_only=True):
    """One page of nodes in the order of their ids; ``next_cursor`` is null on the last one.

    A page ends after 20,000 nodes were scanned, even if it is not full.
    """

    nodes: list[ListedNode]
    next_cursor: str | None


class HealthStatus(msgspec.Struct, kw_only=True):
    """Answer to a liveness probe: the process is alive."""

    status: Literal["ok"] = "ok"
    version: str


class ReadinessStatus(msgspec.Struct, kw_only=True):
    """The server accepts requests. ``future_stamps`` counts open stores with commits stamped in the future."""

    ready: Literal[True] = True
    open_stores: int
    free_bytes: int
    future_stamps: int = 0


class CallerInfo(msgspec.Struct, kw_only=True):
    """The caller: the name of its key, its role, the stores it may access and the key's expiry (null: never).

    ``stores`` are names, or prefixes of names that end with `*`. ``open``: the server requires no key. ``backups``: the
    caller may make the server create backups.
    """

    name: str
    role: Literal["read", "write", "admin"]
    stores: list[str]
    expires: str | None
    open: bool
    backups: bool


class BrowserApiKeyRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Request for an API key for a page in a browser, with the permissions of the key."""

    role: Annotated[Literal["read", "write"], Meta(description="Role of the key")] = "read"


class BrowserApiKey(msgspec.Struct, kw_only=True):
    """A key for a page in a browser: its text, shown only once, its role, its stores and its expiry."""

    key: str
    role: Literal["read", "write"]
    stores: list[str]
    expires: str


class CypherVocabulary(msgspec.Struct, kw_only=True):
    """The vocabulary of Cypher statements. ``labels`` map to their properties with the engine's types."""

    keywords: list[str]
    functions: list[str]
    procedures: list[str]
    labels: dict[str, dict[str, str]]


class StoreCypherVocabulary(msgspec.Struct, kw_only=True):
    """The vocabulary of Cypher statements about one store."""

    keywords: list[str]
    functions: list[str]
    procedures: list[str]
    labels: Annotated[dict[str, list[str]], Meta(description="Attributes by label, most frequent first")]
    relation_types: Annotated[dict[str, list[str]], Meta(description="Attributes by type, most frequent first")]
    node_properties: Annotated[list[str], Meta(description="Properties that any node can have")]
    relation_properties: Annotated[list[str], Meta(description="Properties that any relationship can have")]


class ProblemDetails(msgspec.Struct, kw_only=True):
    """An error, RFC 9457. ``instance`` is the request id; ``errors`` lists every faulty field of an invalid input.

    ``oldest``, with `gone`, is the first sequence that can still be read; ``node``, with `conflict_manual`, is the node
    as written.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[dict[str, str]] | UnsetType = UNSET
    oldest: int | UnsetType = UNSET
    node: Node | UnsetType = UNSET


MAX_REPORTED_ITEMS = 100
"""Ids listed in an answer that reports only the number of further ones."""
