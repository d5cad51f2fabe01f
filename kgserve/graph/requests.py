"""What callers send, as Structs. Unknown fields are an error that names them; ``null`` means "left out".

Lengths of text are limited in UTF-8 bytes; `kgserve.graph.validate` checks what a schema cannot say. At the end:
names of stores, and what msgspec says of a value that does not fit.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from kgserve.storage.model.attributes import Wanted
from kgserve.storage.model.fields import MAX_ID_BYTES, EdgeExtrasInput, NodeExtrasInput
from kgserve.storage.model.walk import Direction

MAX_ATTRIBUTES_DEPTH = 64
MAX_TRAVERSED_NODES = 10_000
MAX_CYPHER_ROWS = 100_000

MAX_SEQUENCE = 10**18 - 1
AsOfText = Annotated[
    str,
    Meta(max_length=64, description="The moment to look at: a sequence, or an RFC 3339 time; left out: now"),
]
"""A moment in the past where values are text: in queries, and as arguments of tools."""
AsOf = Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)] | AsOfText
"""The same in a body, where a sequence may be the number that answers give."""
VALID_AT_HELP = (
    "Only what was true in the world at this RFC 3339 time, `now`, or `any`; left out: now, or with as_of then"
)
CURRENT_VALID_AT_HELP = "Only what was true in the world at this RFC 3339 time, `now`, or `any`; left out: now"
NODES_VALID_AT_HELP = (
    "Only what was true in the world at this RFC 3339 time, or `now`; left out: everything; `any`: merged ones, too"
)


_Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES, description="Stable key, 1 to 512 bytes of UTF-8")]
_Label = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES, description="1 to 512 bytes of UTF-8")]
_Content = Annotated[str | None, Meta(description="Text, at most 1 MiB; left out: kept; empty: cleared")]
_Attributes = Annotated[
    dict[str, Any] | None,
    Meta(description="Any JSON object, at most 256 KiB and 64 levels; left out: kept; given: replaces"),
]
_Weight = Annotated[float | None, Meta(description="Strength; left out: kept, or 1.0 on a new edge")]
ToGraph = Annotated[
    str,
    Meta(max_length=64, description="The store that `to` is in, be it there or not; left out: the edge's own"),
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
    to_graph: ToGraph | None = None
    weight: _Weight = None
    attributes: _Attributes = None


class InjectRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One atomic batch: nodes first, then edges; of the same key sent twice the last wins."""

    nodes: list[NodeInput] | None = None
    edges: list[EdgeInput] | None = None
    touch: Annotated[bool, Meta(description="Move updated_at of every edge sent, changed or not")] = True


class EdgeKeyRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names one edge."""

    source: _Id = field(name="from")
    target: _Id = field(name="to")
    relation_type: _Label
    to_graph: ToGraph | None = None


class TraverseRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A walk from one node, breadth first."""

    start_id: _Id
    depth: Annotated[int, Meta(description="Hops; negative is 0, above 10 is 10")] = 1
    max_depth: Annotated[int | None, Meta(description="The same as `depth`")] = None
    direction: Annotated[Direction | Literal[""], Meta(description="Empty: outgoing")] = "outgoing"
    relation_types: (
        Annotated[list[_Label], Meta(description="Follow only these; left out: all", max_length=100)] | None
    ) = None
    edge_kinds: (
        Annotated[list[_Label], Meta(description="The same as `relation_types`; empty: all", max_length=100)] | None
    ) = None
    min_weight: Annotated[float | None, Meta(description="Follow only edges at least this strong")] = None
    max_nodes: Annotated[int, Meta(ge=1, le=MAX_TRAVERSED_NODES, description="Most nodes returned, nearest first")] = (
        MAX_TRAVERSED_NODES
    )
    follow_symlinks: Annotated[
        bool, Meta(description="Follow edges into other stores, too: at most 16 stores, as_of a time alone")
    ] = False
    as_of: AsOf | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


SearchMode = Literal["hybrid", "keyword", "semantic", "graph"]
Fusion = Literal["weighted", "rrf"]

_Query = Annotated[str, Meta(min_length=1, max_length=10_000, description="What to look for, in plain words")]
_Kinds = Annotated[list[_Label], Meta(max_length=100, description="The same as `types`; empty: all")]


class SearchRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to look for, how, and among what."""

    query: _Query
    mode: SearchMode = "hybrid"
    limit: Annotated[int, Meta(description="Most hits; below 1 is 1, above 100 is 100")] = 20
    offset: Annotated[int, Meta(ge=0, le=10_000, description="Hits to pass over")] = 0
    types: Annotated[list[_Label], Meta(max_length=100, description="Only nodes of these types")] | None = None
    kinds: _Kinds | None = None
    id_prefix: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="Only ids that start so")] = ""
    min_similarity: Annotated[float | None, Meta(description="Semantic hits below this cosine are left out")] = None
    alpha: Annotated[float, Meta(ge=0, le=1, description="Weight of words against meaning, if weighted")] = 0.4
    fusion: Annotated[Fusion, Meta(description="How the scores of words and meaning are joined")] = "weighted"
    start_id: _Id | None = None
    depth: Annotated[int, Meta(description="Hops in graph mode; below 1 is 1, above 10 is 10")] = 2
    at_least: Annotated[int, Meta(ge=0, description="Wait for the indexes to see this sequence, up to 10 s")] | None = (
        None
    )
    explain: Annotated[bool, Meta(description="Say of each hit why it is one")] = False
    neighbours: Annotated[bool, Meta(description="Let hits lift what is related to them, in hybrid mode")] = True
    syntax: Annotated[bool, Meta(description="The query is in tantivy's query language")] = False
    tags: Annotated[list[_Label], Meta(max_length=100, description="With all of these")] | None = None
    attributes: Wanted | None = None
    fresh_only: Annotated[bool, Meta(description="Only nodes whose freshness_at is not past")] = False
    as_of: AsOf | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


class SearchVariant(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One of several ways to ask the same."""

    query: _Query
    mode: SearchMode = "hybrid"
    limit: Annotated[int, Meta(description="Below 1 is 20, above 50 is 50")] = 20
    types: Annotated[list[_Label], Meta(max_length=100)] | None = None
    kinds: _Kinds | None = None
    id_prefix: Annotated[str, Meta(max_length=MAX_ID_BYTES)] = ""
    min_similarity: float | None = None
    tags: Annotated[list[_Label], Meta(max_length=100, description="With all of these")] | None = None
    attributes: Wanted | None = None
    fresh_only: Annotated[bool, Meta(description="Only nodes whose freshness_at is not past")] = False


class BatchSearchRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Variants of a question, whose answers are joined by reciprocal ranks."""

    queries: Annotated[list[SearchVariant], Meta(min_length=1, max_length=8)]
    limit: Annotated[int, Meta(description="Hits in all; below 1 is 20, above 100 is 100")] = 20
    at_least: Annotated[int, Meta(ge=0)] | None = None
    as_of: AsOf | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


MAX_ALSO_STORES = 15
Also = (
    Annotated[
        list[Annotated[str, Meta(max_length=64)]],
        Meta(max_length=MAX_ALSO_STORES, description="Other stores to ask as well; every hit then says which it is of"),
    ]
    | None
)


class ContextRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A question, and how much text may answer it."""

    query: _Query
    budget: Annotated[int, Meta(ge=1, le=1_000_000, description="Tokens, counted so as to err high")] = 2000
    format: Annotated[Literal["markdown", "json"], Meta(description="Shape of the text")] = "markdown"
    limit: Annotated[int, Meta(description="Most nodes; below 1 is 1, above 100 is 100")] = 50
    types: Annotated[list[_Label], Meta(max_length=100)] | None = None
    attributes: Wanted | None = None
    also: Also = None
    follow_symlinks: Annotated[
        bool, Meta(description="With what edges into and out of other stores relate the best nodes to")
    ] = False
    at_least: Annotated[int, Meta(ge=0)] | None = None
    as_of: AsOf | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


MAX_NODE_IDS = 1_000
MAX_DELETED_NODES = 1_000

_Ids = Annotated[list[_Id], Meta(min_length=1, max_length=MAX_NODE_IDS)]
_Types = Annotated[list[_Label], Meta(max_length=100, description="Only nodes of these types")]
_Tags = Annotated[list[_Label], Meta(max_length=100, description="Only nodes with all of these tags")]


class CountRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which nodes to count."""

    types: _Types | None = None
    tags: _Tags | None = None
    attributes: Wanted | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=CURRENT_VALID_AT_HELP)] | None = None


class NodesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Some nodes by their ids."""

    ids: Annotated[_Ids, Meta(description="At most 1,000")]
    as_of: AsOf | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=NODES_VALID_AT_HELP)] | None = None


class DeleteNodesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which nodes to delete: those that all filters let pass, of which there must be one that is not empty."""

    ids: Annotated[_Ids, Meta(description="Only these, at most 1,000")] | None = None
    types: _Types | None = None
    tags: _Tags | None = None
    attributes: Wanted | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=CURRENT_VALID_AT_HELP)] | None = None
    dry_run: Annotated[bool, Meta(description="Say what would be deleted, and delete nothing")] = False
    limit: Annotated[int, Meta(ge=1, le=MAX_DELETED_NODES, description="Most nodes deleted at once")] = (
        MAX_DELETED_NODES
    )


class CypherRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One Cypher statement with its parameters."""

    query: Annotated[str, Meta(min_length=1, description="One statement, at most 64 KiB")]
    params: Annotated[dict[str, Any], Meta(description="Values for $names")] = {}
    mode: Annotated[Literal["read", "write"], Meta(description="What the statement may do")] = "read"
    timeout_ms: (
        Annotated[int, Meta(ge=1, description="Time limit; left out or above: the server's limit for queries")] | None
    ) = None
    max_rows: (
        Annotated[int, Meta(ge=0, le=MAX_CYPHER_ROWS, description="Most rows; left out: 1,000, or all when streamed")]
        | None
    ) = None


class RevertRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The version of a node to go back to."""

    version: Annotated[int, Meta(ge=1, lt=1 << 53)]


class RestoreRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The moment to go back to, and the new store to make of it."""

    as_of: AsOf
    into: Annotated[str, Meta(description="Name of the new store")]


class NodeLine(NodeInput, tag="node", tag_field="kind", forbid_unknown_fields=True, kw_only=True):
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


class HeadLine(NodeLine, tag="head", tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    """A version of a node that a later one stands beside, before that one's line: the heads in order, the node last."""


class EdgeLine(EdgeInput, tag="edge", tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    """An edge as a line of the exchange format; created_at and updated_at are in its attributes."""

    version: Annotated[int, Meta(ge=1, lt=1 << 53)] | None = None
