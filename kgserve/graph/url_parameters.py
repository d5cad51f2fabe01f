"""Path and query parameters as Structs; bodies are in `kgserve.graph.request_bodies`.

For a request with both, the base Struct holds the query or the body, and the derived one adds the path. Names in Python
are those of the client's parameters; ``name`` gives the name on the wire.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, field

from kgserve.errors import FieldError, InvalidInput
from kgserve.graph.compat.versioned_nodes_api import RetireVersionedNodeRequest
from kgserve.graph.request_bodies import NODES_VALID_AT_HELP, VALID_AT_HELP, AsOfText, RevertNodeBody
from kgserve.storage.model.attribute_filters import AttributeConditionsText
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES
from kgserve.storage.model.type_and_tag_frequency_models import MAX_LISTED_TAGS

MAX_PAGE_ROWS = 1_000
MAX_NODES_OFFSET = 10_000
MAX_EDGES_OFFSET = 1_000_000
MAX_PAGE_STATES = 200
MAX_PAGE_CHANGES = 200
MAX_PAGE_VERSIONS = 1_000

_Label = Annotated[str, Meta(max_length=MAX_ID_BYTES)]
_Sequence = Annotated[int, Meta(ge=0, lt=1 << 53)]
_UNESCAPED_COMMA = re.compile(r"(?<!\\),")
_ValidAt = Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)]
_KeptAt = Annotated[str, Meta(max_length=64, description=NODES_VALID_AT_HELP)]


def split_comma_separated_values(parameter: str, values: Iterable[str]) -> list[str]:
    r"""Return the items of a list parameter; ``\,`` is a comma within an item.

    Empty items are omitted; an empty value counts as not given. Raises InvalidInput for a value of only commas.
    """
    given = [value for value in values if value]
    items = [item.replace(r"\,", ",") for value in given for item in _UNESCAPED_COMMA.split(value) if item]
    if given and not items:
        message = "only commas; name at least one item, or leave the parameter out"
        raise InvalidInput(f"query: {parameter}: {message}", (FieldError(parameter, message),))
    return items


class NodeIdRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Request that names one node by its id."""

    node_id: str = field(name="id")


class EdgeIdRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Request that names one edge by its id."""

    edge_id: str = field(name="id")


class NodeListParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of a node list; ``field_aliases`` are the filter names of the versioned API."""

    field_aliases: ClassVar[Mapping[str, str]] = {"kinds": "kind", "types": "type", "tags": "tag"}

    type: Annotated[
        list[_Label],
        Meta(
            max_length=100, description="Only nodes of this type; several, repeated or separated by commas: any of them"
        ),
    ] = []
    kind: Annotated[list[_Label], Meta(max_length=100, description="The same as `type`")] = []
    tag: Annotated[
        list[_Label],
        Meta(
            max_length=100,
            description="Only nodes with this tag; several, repeated or separated by commas: all of them",
        ),
    ] = []
    attributes: AttributeConditionsText | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_ROWS, description="Maximum number of nodes per page")] = 100
    cursor: Annotated[str, Meta(description="`next_cursor` of the previous page")] | None = None
    offset: Annotated[int, Meta(ge=0, le=MAX_NODES_OFFSET, description="Nodes to skip, on the first page only")] = 0
    compact: Annotated[bool, Meta(description="Return nodes without content, attributes and authors")] = False
    as_of: AsOfText | None = None
    valid_at: _ValidAt | None = None


class NodeReadParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of one node; ``version`` cannot be combined with the others."""

    as_of: AsOfText | None = None
    valid_at: _KeptAt | None = None
    version: (
        Annotated[int, Meta(ge=1, lt=1 << 53, description="Return this version of the node, without edges")] | None
    ) = None
    follow_symlinks: Annotated[
        bool, Meta(description="Include edges from other stores in `incoming`; not with as_of or version")
    ] = False


class GetNodeRequest(NodeReadParameters, kw_only=True):
    """A read of one node."""

    node_id: str = field(name="id")


class NodeEdgesParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of a node's edges."""

    kinds: Annotated[
        list[_Label],
        Meta(
            max_length=100, description="Only this relation type; several, repeated or separated by commas: any of them"
        ),
    ] = field(name="kind", default_factory=list)
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_ROWS, description="Maximum number of edges per page")] = 100
    offset: Annotated[int, Meta(ge=0, le=MAX_EDGES_OFFSET, description="Edges to skip")] = 0
    as_of: AsOfText | None = None
    valid_at: _KeptAt | None = None


class NodeEdgesRequest(NodeEdgesParameters, kw_only=True):
    """A read of the edges of one node."""

    node_id: str = field(name="id")


class IncomingEdgesParameters(NodeEdgesParameters, kw_only=True):
    """Query parameters of the edges that end at a node."""

    follow_symlinks: Annotated[
        bool, Meta(description="Include edges from other stores, each with its `store`; not with as_of")
    ] = False


class IncomingEdgesRequest(IncomingEdgesParameters, kw_only=True):
    """A read of the edges that end at one node."""

    node_id: str = field(name="id")


class TagListParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of a list of tags."""

    prefix: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="Only tags with this prefix")] = ""
    limit: Annotated[int, Meta(description="Maximum number of tags; below 1 or above 100 is 100")] = MAX_LISTED_TAGS


class NodeHistoryParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of a node's history."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_STATES, description="Maximum number of states per page")] = 50
    before: Annotated[int, Meta(ge=1, lt=1 << 53, description="`next_before` of the previous page")] | None = None


class NodeHistoryRequest(NodeHistoryParameters, kw_only=True):
    """A read of the history of one node."""

    node_id: str = field(name="id")


class StoreChangesParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of a store's changes."""

    since: Annotated[_Sequence, Meta(description="Only writes after this sequence")] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_CHANGES, description="Maximum number of writes per page")] = 50


class EntityHistoryParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of an entity's history."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_VERSIONS, description="Maximum number of versions per page")] = (
        MAX_PAGE_VERSIONS
    )
    after_sequence: Annotated[_Sequence, Meta(description="`sequence` of the last version of the previous page")] = 0


class EntityHistoryRequest(EntityHistoryParameters, kw_only=True):
    """A read of the versions of one entity."""

    entity_id: str = field(name="id")


class DropStoreParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of dropping a store."""

    confirm: Annotated[str, Meta(description="The store's name, repeated as confirmation")] | None = None


class RetireNodeRequest(RetireVersionedNodeRequest, kw_only=True):
    """Request to retire a node: its id, and the time at which its validity ends."""

    node_id: str = field(name="id")


class RevertNodeRequest(RevertNodeBody, kw_only=True):
    """A node, and the version to restore."""

    node_id: str = field(name="id")
