"""What callers ask for in a path and its query, as Structs; what they send in a body is in `kgserve.graph.requests`.

Of a request that has both, the base is what the query or the body holds, and the Struct derived from it adds the path.
Names in Python are those of the client's parameters; on the wire they are what ``name`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, field

from kgserve.graph.compat.versioned_api import RetireRequest
from kgserve.graph.requests import NODES_VALID_AT_HELP, VALID_AT_HELP, AsOfText, RevertRequest
from kgserve.storage.model.attributes import ATTRIBUTES_DESCRIPTION, MAX_ATTRIBUTES_TEXT
from kgserve.storage.model.fields import MAX_ID_BYTES
from kgserve.storage.model.kinds import MAX_LISTED_TAGS

MAX_PAGE_ROWS = 1_000
MAX_NODES_OFFSET = 10_000
MAX_EDGES_OFFSET = 1_000_000
MAX_PAGE_STATES = 200
MAX_PAGE_CHANGES = 200
MAX_PAGE_VERSIONS = 1_000

_Label = Annotated[str, Meta(max_length=MAX_ID_BYTES)]
_Sequence = Annotated[int, Meta(ge=0, lt=1 << 53)]
_ValidAt = Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)]
_KeptAt = Annotated[str, Meta(max_length=64, description=NODES_VALID_AT_HELP)]


class NodeId(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names one node."""

    node_id: str = field(name="id")


class EdgeId(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names one edge by its id."""

    edge_id: str = field(name="id")


class NodesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a node list; ``aliases`` are the names that the versioned contract gives to filters."""

    field_aliases: ClassVar[Mapping[str, str]] = {"kinds": "kind", "types": "type", "tags": "tag"}

    type: Annotated[
        list[_Label],
        Meta(max_length=100, description="Only nodes of this type; repeated or separated by commas: of any of these"),
    ] = []
    kind: Annotated[list[_Label], Meta(max_length=100, description="The same as `type`")] = []
    tag: Annotated[
        list[_Label],
        Meta(
            max_length=100, description="Only nodes with this tag; repeated or separated by commas: with all of these"
        ),
    ] = []
    attributes: (
        Annotated[str, Meta(max_length=MAX_ATTRIBUTES_TEXT, description=f"{ATTRIBUTES_DESCRIPTION}. A JSON object")]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_ROWS, description="Most nodes on the page")] = 100
    cursor: Annotated[str, Meta(description="`next_cursor` of the page before")] | None = None
    offset: Annotated[
        int, Meta(ge=0, le=MAX_NODES_OFFSET, description="Nodes to pass over; with the first page only")
    ] = 0
    compact: Annotated[bool, Meta(description="Nodes without content, attributes and who wrote what")] = False
    as_of: AsOfText | None = None
    valid_at: _ValidAt | None = None


class NodeQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of one node; ``version`` goes with none of the others."""

    as_of: AsOfText | None = None
    valid_at: _KeptAt | None = None
    version: Annotated[int, Meta(ge=1, lt=1 << 53, description="This state of the node, without edges")] | None = None
    follow_symlinks: Annotated[
        bool, Meta(description="Among `incoming` those of other stores, too; goes without as_of and version")
    ] = False


class NodeRequest(NodeQuery, kw_only=True):
    """One node."""

    node_id: str = field(name="id")


class EdgesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a node's edges."""

    kinds: Annotated[
        list[_Label],
        Meta(max_length=100, description="Only this relation type; repeated or separated by commas: any of these"),
    ] = field(name="kind", default_factory=list)
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_ROWS, description="Most edges on the page")] = 100
    offset: Annotated[int, Meta(ge=0, le=MAX_EDGES_OFFSET, description="Edges to pass over")] = 0
    as_of: AsOfText | None = None
    valid_at: _KeptAt | None = None


class EdgesRequest(EdgesQuery, kw_only=True):
    """Edges of one node."""

    node_id: str = field(name="id")


class IncomingQuery(EdgesQuery, kw_only=True):
    """The query of the edges that end at a node."""

    follow_symlinks: Annotated[
        bool, Meta(description="Those of other stores, too, each with its `store`; goes without as_of")
    ] = False


class IncomingRequest(IncomingQuery, kw_only=True):
    """Edges that end at one node."""

    node_id: str = field(name="id")


class TagsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a list of tags."""

    prefix: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="Only tags that start so")] = ""
    limit: Annotated[int, Meta(description="Most tags; below 1 or above 100 is 100")] = MAX_LISTED_TAGS


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a node's history."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_STATES, description="Most states on the page")] = 50
    before: Annotated[int, Meta(ge=1, lt=1 << 53, description="`next_before` of the page before")] | None = None


class HistoryRequest(HistoryQuery, kw_only=True):
    """The history of one node."""

    node_id: str = field(name="id")


class ChangesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a store's changes."""

    since: Annotated[_Sequence, Meta(description="Only writes after this sequence")] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_CHANGES, description="Most writes on the page")] = 50


class EntityHistoryQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of an entity's history."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_VERSIONS, description="Most versions on the page")] = MAX_PAGE_VERSIONS
    after_sequence: Annotated[_Sequence, Meta(description="`sequence` of the last version of the page before")] = 0


class EntityHistoryRequest(EntityHistoryQuery, kw_only=True):
    """The versions of one entity."""

    entity_id: str = field(name="id")


class DropQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a drop."""

    confirm: Annotated[str, Meta(description="The store's name once more")] | None = None


class RetireNode(RetireRequest, kw_only=True):
    """A node, and until when it was true."""

    node_id: str = field(name="id")


class RevertNode(RevertRequest, kw_only=True):
    """A node, and the version to go back to."""

    node_id: str = field(name="id")
