"""Request bodies as Structs. Unknown fields are an error that names them; ``null`` means "left out".

Lengths of text are limited in UTF-8 bytes; `kgserve.graph.request_validation` checks what a schema cannot express.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from kgserve.storage.model.attribute_filters import AttributeConditionsInput
from kgserve.storage.model.breadth_first_traversal import TraversalDirection
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES, EdgeExtrasInput, NodeExtrasInput

MAX_ATTRIBUTES_DEPTH = 64
MAX_TRAVERSED_NODES = 10_000
MAX_CYPHER_ROWS = 100_000

MAX_SEQUENCE = 10**18 - 1
AsOfText = Annotated[
    str,
    Meta(max_length=64, description="The moment to read as of: a sequence, or an RFC 3339 time; left out: now"),
]
"""A past moment where values are text: in queries, and as tool arguments."""
AsOfValue = Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] | AsOfText
"""A past moment in a body, where a sequence may also be a number."""
VALID_AT_HELP = "Only rows valid at this RFC 3339 time, `now`, or `any`; left out: now, or the moment of as_of"
CURRENT_VALID_AT_HELP = "Only rows valid at this RFC 3339 time, `now`, or `any`; left out: now"
NODES_VALID_AT_HELP = "Only rows valid at this RFC 3339 time, or `now`; left out: everything; `any`: also merged nodes"


_Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES, description="Stable key, 1 to 512 bytes of UTF-8")]
_Label = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES, description="1 to 512 bytes of UTF-8")]
_Content = Annotated[str | None, Meta(description="Text, at most 1 MiB; left out: kept; empty: cleared")]
_Attributes = Annotated[
    dict[str, Any] | None,
    Meta(description="Any JSON object, at most 256 KiB and 64 levels; left out: kept; given: replaces"),
]
_Weight = Annotated[float | None, Meta(description="Strength; left out: kept, or 1.0 on a new edge")]
TargetStore = Annotated[
    str,
    Meta(max_length=64, description="The store that `to` is in, which need not exist; left out: this store"),
]


class NodeInput(NodeExtrasInput, forbid_unknown_fields=True):
    """A node to create or update. ``type`` may be left out for a node that exists."""

    id: _Id
    type: _Label | None = None
    content: _Content = None
    attributes: _Attributes = None


class EdgeInput(EdgeExtrasInput, forbid_unknown_fields=True):
    """An edge to create or update; one edge per source, target and relation type."""

    source: _Id = field(name="from")
    target: _Id = field(name="to")
    relation_type: _Label
    to_graph: TargetStore | None = None
    weight: _Weight = None
    attributes: _Attributes = None


class InjectRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Nodes and edges to write in one atomic batch: nodes first. If a key is sent twice, the last one wins."""

    nodes: list[NodeInput] | None = None
    edges: list[EdgeInput] | None = None
    touch: Annotated[bool, Meta(description="Set updated_at of every edge sent, changed or not")] = True


class EdgeKeyRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The key that identifies an edge: source, target, relation type, and the target's store if it is another."""

    source: _Id = field(name="from")
    target: _Id = field(name="to")
    relation_type: _Label
    to_graph: TargetStore | None = None


class TraverseRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A breadth-first traversal from one node."""

    start_id: _Id
    depth: Annotated[int, Meta(description="Hops; negative is 0, above 10 is 10")] = 1
    max_depth: Annotated[int | None, Meta(description="The same as `depth`")] = None
    direction: Annotated[TraversalDirection | Literal[""], Meta(description="Empty: outgoing")] = "outgoing"
    relation_types: (
        Annotated[list[_Label], Meta(description="Follow only these; left out: all", max_length=100)] | None
    ) = None
    edge_kinds: (
        Annotated[list[_Label], Meta(description="The same as `relation_types`; empty: all", max_length=100)] | None
    ) = None
    min_weight: Annotated[float | None, Meta(description="Follow only edges at least this strong")] = None
    max_nodes: Annotated[
        int, Meta(ge=1, le=MAX_TRAVERSED_NODES, description="Maximum number of nodes, nearest first")
    ] = MAX_TRAVERSED_NODES
    follow_symlinks: Annotated[
        bool, Meta(description="Also follow edges into other stores, at most 16; as_of must then be a time")
    ] = False
    as_of: AsOfValue | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


SearchMode = Literal["hybrid", "keyword", "semantic", "graph"]
FusionMethod = Literal["weighted", "rrf"]

LATE_HELP = (
    "Late interaction in hybrid mode: compare tokens, not only whole texts; null: for turns of conversations, "
    "true: for all nodes that have token vectors"
)
PREFIX_HELP = "Also match words that begin with the last word of the query"
MAX_QUERY_CHARS = 10_000
_Query = Annotated[str, Meta(min_length=1, max_length=MAX_QUERY_CHARS, description="The query, in plain words")]
_Kinds = Annotated[list[_Label], Meta(max_length=100, description="The same as `types`; empty: all")]


class SearchRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A search query with its mode, filters and options."""

    query: _Query
    mode: SearchMode = "hybrid"
    limit: Annotated[int, Meta(description="Maximum number of hits; below 1 is 1, above 100 is 100")] = 20
    offset: Annotated[int, Meta(ge=0, le=10_000, description="Hits to skip")] = 0
    types: Annotated[list[_Label], Meta(max_length=100, description="Only nodes of these types")] | None = None
    kinds: _Kinds | None = None
    id_prefix: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="Only ids with this prefix")] = ""
    min_similarity: Annotated[float | None, Meta(description="Skip semantic hits below this cosine similarity")] = None
    alpha: Annotated[
        float, Meta(ge=0, le=1, description="Weight of keyword scores against semantic scores, with weighted fusion")
    ] = 0.4
    fusion: Annotated[FusionMethod, Meta(description="How keyword and semantic scores are combined")] = "weighted"
    start_id: _Id | None = None
    depth: Annotated[int, Meta(description="Hops in graph mode; below 1 is 1, above 10 is 10")] = 2
    at_least: (
        Annotated[int, Meta(ge=0, description="Wait up to 10 s for the indexes to contain this sequence")] | None
    ) = None
    explain: Annotated[bool, Meta(description="Explain the score of each hit")] = False
    neighbours: Annotated[bool, Meta(description="Let hits raise the scores of related nodes, in hybrid mode")] = True
    late: Annotated[bool | None, Meta(description=LATE_HELP)] = None
    syntax: Annotated[bool, Meta(description="The query is in tantivy's query language")] = False
    prefix: Annotated[bool, Meta(description=PREFIX_HELP)] = False
    tags: Annotated[list[_Label], Meta(max_length=100, description="Only nodes with all of these tags")] | None = None
    attributes: AttributeConditionsInput | None = None
    fresh_only: Annotated[bool, Meta(description="Only nodes whose freshness_at is not in the past")] = False
    as_of: AsOfValue | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


class SearchQueryVariant(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One of several phrasings of a search."""

    query: _Query
    mode: SearchMode = "hybrid"
    limit: Annotated[int, Meta(description="Below 1 is 20, above 50 is 50")] = 20
    types: Annotated[list[_Label], Meta(max_length=100)] | None = None
    kinds: _Kinds | None = None
    id_prefix: Annotated[str, Meta(max_length=MAX_ID_BYTES)] = ""
    min_similarity: float | None = None
    tags: Annotated[list[_Label], Meta(max_length=100, description="Only nodes with all of these tags")] | None = None
    attributes: AttributeConditionsInput | None = None
    fresh_only: Annotated[bool, Meta(description="Only nodes whose freshness_at is not in the past")] = False
    prefix: Annotated[bool, Meta(description=PREFIX_HELP)] = False


class MultiQuerySearchRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Variants of a question, whose results are combined by reciprocal rank fusion."""

    queries: Annotated[list[SearchQueryVariant], Meta(min_length=1, max_length=8)]
    limit: Annotated[int, Meta(description="Maximum number of hits; below 1 is 20, above 100 is 100")] = 20
    at_least: Annotated[int, Meta(ge=0)] | None = None
    as_of: AsOfValue | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


MAX_ALSO_STORES = 15
AdditionalStores = (
    Annotated[
        list[Annotated[str, Meta(max_length=64)]],
        Meta(max_length=MAX_ALSO_STORES, description="Other stores to search as well; each hit then names its store"),
    ]
    | None
)


class LlmContextRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A question, and the token budget of the text that answers it."""

    query: _Query
    budget: Annotated[int, Meta(ge=1, le=1_000_000, description="Maximum number of tokens, estimated high")] = 2000
    format: Annotated[Literal["markdown", "json"], Meta(description="Shape of the text")] = "markdown"
    limit: Annotated[int, Meta(description="Maximum number of nodes; below 1 is 1, above 100 is 100")] = 50
    types: Annotated[list[_Label], Meta(max_length=100)] | None = None
    attributes: AttributeConditionsInput | None = None
    prefix: Annotated[bool, Meta(description=PREFIX_HELP)] = False
    also: AdditionalStores = None
    follow_symlinks: Annotated[bool, Meta(description="Include nodes of other stores linked to the best nodes")] = False
    at_least: Annotated[int, Meta(ge=0)] | None = None
    as_of: AsOfValue | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


MAX_NODE_IDS = 1_000
MAX_DELETED_NODES = 1_000

_Ids = Annotated[list[_Id], Meta(min_length=1, max_length=MAX_NODE_IDS)]
_Types = Annotated[list[_Label], Meta(max_length=100, description="Only nodes of these types")]
_Tags = Annotated[list[_Label], Meta(max_length=100, description="Only nodes with all of these tags")]


class CountNodesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Filters of the nodes to count."""

    types: _Types | None = None
    tags: _Tags | None = None
    attributes: AttributeConditionsInput | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=CURRENT_VALID_AT_HELP)] | None = None


class GetNodesByIdRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The ids of the nodes to return, now, as of a past moment, or at a valid time."""

    ids: Annotated[_Ids, Meta(description="At most 1,000")]
    as_of: AsOfValue | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=NODES_VALID_AT_HELP)] | None = None


class DeleteNodesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Filters of the nodes to delete; all must match, and at least one must not be empty."""

    ids: Annotated[_Ids, Meta(description="Only these, at most 1,000")] | None = None
    types: _Types | None = None
    tags: _Tags | None = None
    attributes: AttributeConditionsInput | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=CURRENT_VALID_AT_HELP)] | None = None
    dry_run: Annotated[bool, Meta(description="Report what would be deleted, without deleting it")] = False
    limit: Annotated[int, Meta(ge=1, le=MAX_DELETED_NODES, description="Maximum number of nodes deleted")] = (
        MAX_DELETED_NODES
    )


class CypherRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One Cypher statement with its parameters."""

    query: Annotated[str, Meta(min_length=1, description="One statement, at most 64 KiB")]
    params: Annotated[dict[str, Any], Meta(description="Values for $names")] = {}
    mode: Annotated[Literal["read", "write"], Meta(description="Set to `write` to allow writes")] = "read"
    timeout_ms: (
        Annotated[int, Meta(ge=1, description="Time limit; at most, and by default, the server's limit for queries")]
        | None
    ) = None
    max_rows: (
        Annotated[
            int,
            Meta(ge=0, le=MAX_CYPHER_ROWS, description="Maximum number of rows; left out: 1,000, or all when streamed"),
        ]
        | None
    ) = None


class RevertNodeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The version of a node to go back to."""

    version: Annotated[int, Meta(ge=1, lt=1 << 53)]


class PointInTimeRestoreRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A past moment, and the new store to create from it."""

    as_of: AsOfValue
    into: Annotated[str, Meta(description="Name of the new store")]


class NodeNdjsonLine(NodeInput, tag="node", tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    """A node as a line of the exchange format. The last fields restore an export; leave them out otherwise."""

    version: Annotated[int, Meta(ge=1, lt=1 << 53)] | None = None
    created_at: str | None = None
    updated_at: str | None = None
    ended: Literal["", "superseded", "merged", "forgotten", "pruned"] | None = None
    former_from: str | None = None
    former_to: str | None = None
    belongs_to: str | None = None
    access_count: Annotated[int, Meta(ge=1, lt=1 << 53)] | None = None
    last_accessed_at: str | None = None
    access_confidence: Annotated[float, Meta(ge=0, le=1)] | None = None
    conflicts: Annotated[list[Annotated[int, Meta(ge=1, lt=1 << 53)]], Meta(max_length=99)] | None = None


class ConflictingVersionNdjsonLine(
    NodeNdjsonLine, tag="head", tag_field="kind", forbid_unknown_fields=True, kw_only=True
):
    """Line of the exchange format with a conflicting version of a node, before the line of the node itself."""


class EdgeNdjsonLine(EdgeInput, tag="edge", tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    """An edge as a line of the exchange format; created_at and updated_at are in its attributes."""

    version: Annotated[int, Meta(ge=1, lt=1 << 53)] | None = None
