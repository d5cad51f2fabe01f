"""What the tools take, as Structs, and the JSON Schemas that are made of those.

A field that may be left out is unset and not null, although null is taken: clients look for one plain type per field
in a schema, and some send text for what has two. Such a field is left out when it is empty, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.errors import InvalidInput
from kgserve.graph import requests
from kgserve.graph.compat import versioned_api
from kgserve.graph.compat.versioned_names import FieldNames, again
from kgserve.graph.queries import MAX_EDGES_OFFSET, MAX_OFFSET, MAX_PAGE, MAX_STATES
from kgserve.storage.model import walk
from kgserve.storage.model.attributes import Wanted
from kgserve.storage.model.fields import MAX_ID_BYTES, MAX_TAGS
from kgserve.storage.model.kinds import MAX_TAGS_LISTED

Schema = Mapping[str, Any]

UNLISTED = "unlisted"
"""Marks what is taken and not shown: other names of a field, and what hardly anybody needs."""

_REFERENCE = "#/$defs/"
_KEPT = ("type", "description", "enum", "default", "required")
_LARGEST_LIMIT = 100_000
"""A maximum above it is no word to a model."""
_ANY_VALUE = {"description": "Any"}
"""What an object with names of the caller's own may hold. Some models send an empty object where a schema does not say.

As a schema and not as `true`: the converter of google-genai fails at `true`.
"""
_ITEMS: dict[str, str] = {
    **dict.fromkeys(("id", "type", "content", "attributes", "metadata", "tags", "relation_type", "weight"), ""),
    "summary": "Short form of the content",
    "freshness_at": "Stale from then on, RFC 3339",
    "created_by": "Who writes this",
    "to_graph": "Store that `to` is in, if another",
    "valid_from": "True from then on, RFC 3339",
    "valid_to": "True until then, RFC 3339",
}
"""Words for fields of items, whose Structs are the REST interface's and say more there."""


@cache
def input_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """What a tool takes, in few and plain words: one type for each field, every Struct where it stands.

    These every family of models understands: converters to the schemas of models drop or refuse references,
    alternatives, exclusive bounds and closed objects. All limits hold nevertheless: arguments are read into
    the Structs. Defaults that are empty, nothing or false are left out, unless the Struct has ``every_default``.
    """
    root, definitions = _parts(struct)
    made = _plain(root, definitions)
    if getattr(struct, "every_default", False):
        for name, field in made.get("properties", {}).items():
            field.update({key: value for key, value in root["properties"][name].items() if key == "default"})
    # The root's own description would say what the tool's says.
    return {key: value for key, value in made.items() if key != "description"}


def _parts(struct: type[msgspec.Struct]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of ``struct`` itself, and those of others that it refers to, by name."""
    [root], made = msgspec.json.schema_components([struct], ref_template=f"{_REFERENCE}{{name}}")
    definitions = _typed(made)
    return definitions.pop(_name(root)), definitions


def _name(part: Schema) -> str:
    return part["$ref"].removeprefix(_REFERENCE)


def _plain(part: Schema, definitions: Schema) -> dict[str, Any]:
    """The part without anything that some family of models does not take."""
    found = _one(part, definitions)
    made = {key: found[key] for key in _KEPT if found.get(key)}
    if found.get("maximum", _LARGEST_LIMIT) < _LARGEST_LIMIT:
        made["maximum"] = found["maximum"]
    if "items" in found:
        made["items"] = _item(_plain(found["items"], definitions))
    if "properties" in found:
        shown = {name: field for name, field in found["properties"].items() if UNLISTED not in field}
        made["properties"] = {name: _plain(field, definitions) for name, field in shown.items()}
    elif made.get("type") == "object":
        made["additionalProperties"] = dict(_ANY_VALUE)
    return made


def _one(part: Schema, definitions: Schema) -> Schema:
    """The part itself in the place of a reference; of alternatives the one that is a text, or else the first."""
    if "$ref" in part:
        return {**definitions[_name(part)], **part}
    if "anyOf" not in part:
        return part
    choices = [_one(choice, definitions) for choice in part["anyOf"] if choice.get("type") != "null"]
    return {**min(choices, key=lambda choice: choice.get("type") != "string"), **part}


def _item(part: dict[str, Any]) -> dict[str, Any]:
    """An item of a list, whose fields are described in the words for those; it has none itself if it is plain."""
    if "properties" not in part:
        return {key: value for key, value in part.items() if key != "description"}
    for name in part["properties"].keys() & _ITEMS.keys():
        field = part["properties"][name]
        field.pop("description", None)
        if words := _ITEMS[name]:
            field["description"] = words
    return part


def _typed(part: Any) -> Any:
    """The part with a type beside every enumeration of texts, which clients that build forms look for."""
    if isinstance(part, list):
        return [_typed(item) for item in part]
    if not isinstance(part, dict):
        return part
    found = {key: _typed(value) for key, value in part.items()}
    values = found.get("enum")
    if isinstance(values, list) and "type" not in found and all(isinstance(value, str) for value in values):
        found["type"] = "string"
    return found


S = TypeVar("S", bound=msgspec.Struct)

MAX_CONTEXT_TOKENS = 25_000


UNLISTED_FIELD = Meta(extra_json_schema={UNLISTED: True})

_Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
_Label = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
_Name = Annotated[str, Meta(max_length=MAX_ID_BYTES)]
_Version = Annotated[int, Meta(ge=1, lt=1 << 53)]
_Query = Annotated[str, Meta(min_length=1, max_length=10_000)]
_Offset = Annotated[int, Meta(ge=0, le=10_000)]
_RelationTypes = Annotated[list[str], Meta(max_length=100, description="Only these")] | UnsetType
_Types = Annotated[list[str], Meta(max_length=100, description="Any of these")] | UnsetType
_Tags = Annotated[list[str], Meta(max_length=100, description="All of these")] | UnsetType
_Wanted = Annotated[Wanted, Meta(description='Such as {"status": "open"}')] | UnsetType
_Also = Annotated[list[_Label], Meta(max_length=requests.MAX_ALSO, description="Other stores to ask, too")] | UnsetType
_AtLeast = Annotated[Annotated[int, Meta(ge=0)] | UnsetType, UNLISTED_FIELD]
_AsOf = Annotated[requests.AsOfText, Meta(description="As known then: RFC 3339 time or sequence")] | UnsetType
_ValidAt = (
    Annotated[str, Meta(max_length=64, description="True then in the world: RFC 3339 time, now, any")] | UnsetType
)
_Author = Annotated[_Name, Meta(description="Who writes this")] | UnsetType
_Moment = Annotated[str, Meta(max_length=64, description="RFC 3339")] | UnsetType
_ToGraph = Annotated[str, Meta(max_length=64, description="Store that `to` is in, if another")] | UnsetType
_End = Annotated[str, Meta(max_length=64, description="True until then, RFC 3339; left out: now")] | UnsetType

_COMMON: dict[str, Any] = {
    "attributes": _Wanted,
    "types": _Types,
    "also": _Also,
    "at_least": _AtLeast,
    "as_of": _AsOf,
    "valid_at": _ValidAt,
}
"""The fields of requests that tools describe in words of their own, the same in each."""


def with_fields_of(request: type[msgspec.Struct], *but: str) -> Callable[[type[S]], type[S]]:
    """Adds to a class of arguments the fields of ``request`` that it has not, ``but`` some, behind its own."""

    def extended(own: type[S]) -> type[S]:
        left = [each for each in msgspec.structs.fields(request) if each.name not in {*own.__struct_fields__, *but}]
        fields = [
            (each.name, _COMMON[each.name], UNSET) if each.name in _COMMON else (each.name, each.type, again(each))
            for each in left
        ]
        return _made(own.__name__, own, own.__doc__ or "", fields) if fields else own

    return extended


def _made(name: str, base: type[S], doc: str, fields: Sequence[tuple[str, Any, Any]]) -> type[S]:
    made = msgspec.defstruct(name, fields, bases=(base,), namespace={"__doc__": doc}, kw_only=True)
    return cast("type[S]", made)


def as_request(request: type[S], given: msgspec.Struct) -> S:
    """The request that arguments make, out of fields that have the same names on the wire."""
    values = ((field, getattr(given, name), optional) for field, name, optional in _shared(request, type(given)))
    return request(**{field: value for field, value, optional in values if value or not optional})


@cache
def _shared(request: type[msgspec.Struct], arguments: type[msgspec.Struct]) -> list[tuple[str, str, bool]]:
    """The fields that both have, by their names in each, and whether the arguments may leave each out."""
    names = dict(zip(request.__struct_encode_fields__, request.__struct_fields__, strict=True))
    fields = [each for each in msgspec.structs.fields(arguments) if each.encode_name in names]
    return [(names[each.encode_name], each.name, each.default is UNSET) for each in fields]


class Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Arguments of a tool that works on one store."""

    index: Annotated[str, Meta(description="Store name")] | UnsetType = UNSET


class Naming(Arguments, kw_only=True):
    """Arguments of a tool that answers with nodes or edges, whose fields have names for those who ask."""

    field_names: Annotated[FieldNames | UnsetType, UNLISTED_FIELD] = UNSET


class Detailed(Naming, kw_only=True):
    """Arguments of a tool that reads, whose answer may be told whole."""

    detail: Annotated[bool, Meta(description="Times, versions, too")] = False


_When = Annotated[str, Meta(max_length=64)] | None


class InjectNode(requests.NodeInput):
    """An entity."""

    id: _Id
    type: _Label | None = None
    content: str | None = None
    attributes: dict[str, Any] | None = None
    summary: str | None = None
    tags: list[str] | None = None
    freshness_at: Annotated[str | None, UNLISTED_FIELD] = None
    created_by: Annotated[str | None, UNLISTED_FIELD] = None
    valid_from: _When = None
    valid_to: _When = None


class InjectEdge(requests.EdgeInput):
    """A relation."""

    source: _Id = field(name="from")
    target: _Id = field(name="to")
    relation_type: Annotated[_Label, Meta(description="Such as DEPENDS_ON")]
    weight: Annotated[float | None, Meta(description="1 unless given")] = None
    attributes: dict[str, Any] | None = None
    ordinal: Annotated[int | None, UNLISTED_FIELD] = None
    created_by: Annotated[str | None, UNLISTED_FIELD] = None
    valid_from: _When = None
    valid_to: _When = None


@with_fields_of(requests.InjectRequest, "touch")
class Inject(Arguments, kw_only=True):
    """Nodes and edges to create or update, in one atomic batch."""

    nodes: list[InjectNode] = []
    edges: list[InjectEdge] = []


class DeleteNodeArguments(Arguments, kw_only=True):
    """The node to delete, or which nodes."""

    id: _Id | UnsetType = UNSET
    ids: Annotated[list[_Id], Meta(max_length=MAX_PAGE, description="Or these")] | UnsetType = UNSET
    types: _Types = UNSET
    tags: _Tags = UNSET
    attributes: _Wanted = UNSET
    dry_run: Annotated[bool, Meta(description="Only say what would go")] = False


class DeleteRelation(Arguments, kw_only=True):
    """The edge to delete."""

    source: _Id = field(name="from")
    target: _Id = field(name="to")
    relation_type: _Label
    to_graph: _ToGraph = UNSET


@with_fields_of(requests.TraverseRequest, "min_weight", "max_depth", "edge_kinds")
class Traverse(Detailed, kw_only=True):
    """Where to start, how far to go, and along which edges."""

    start_id: _Id
    depth: Annotated[int, Meta(ge=1, le=walk.MAX_DEPTH, description="Hops")] = 1
    relation_types: _RelationTypes = UNSET
    direction: Annotated[walk.Direction, Meta(description="Of relations")] = "outgoing"
    max_nodes: Annotated[int, Meta(ge=1, le=requests.MAX_TRAVERSED_NODES, description="Most nodes, nearest first")] = (
        requests.MAX_TRAVERSED_NODES
    )
    follow_symlinks: Annotated[bool, Meta(description="Into other stores, too")] = False
    as_of: _AsOf = UNSET
    valid_at: _ValidAt = UNSET


@with_fields_of(requests.SearchRequest, "min_similarity", "alpha", "fusion", "explain", "neighbours", "syntax", "kinds")
class Search(Detailed, kw_only=True):
    """What to look for, how, and among what."""

    query: _Query | UnsetType = UNSET
    queries: (
        Annotated[
            list[_Query], Meta(min_length=1, max_length=8, description="Or up to 8 wordings, joined into one ranking")
        ]
        | UnsetType
    ) = UNSET
    mode: Annotated[
        Literal["hybrid", "keyword", "semantic", "graph"],
        Meta(description="hybrid: words, meaning, relations; graph: what is near the best hits"),
    ] = "hybrid"
    limit: Annotated[int, Meta(ge=1, le=100, description="Most hits")] = 8
    offset: Annotated[_Offset, Meta(description="Hits to pass over")] = 0
    types: _Types = UNSET
    id_prefix: Annotated[str, Meta(max_length=MAX_ID_BYTES), UNLISTED_FIELD] = ""
    start_id: Annotated[_Id, Meta(description="Start of mode graph")] | UnsetType = UNSET
    depth: Annotated[int, Meta(ge=1, le=walk.MAX_DEPTH, description="Hops in mode graph")] = 2
    tags: _Tags = UNSET
    fresh_only: Annotated[bool, Meta(description="Nothing stale")] = False


@with_fields_of(requests.BatchSearchRequest)
class SearchBatch(Detailed, kw_only=True):
    """Several ways to ask the same."""

    queries: Annotated[list[requests.SearchVariant], Meta(min_length=1, max_length=8)]


@with_fields_of(requests.ContextRequest, "format", "limit")
class ContextArguments(Detailed, kw_only=True):
    """A question, and how much text may answer it."""

    query: _Query
    budget: Annotated[int, Meta(ge=1, le=MAX_CONTEXT_TOKENS, description="Most tokens of the text")] = 1200
    follow_symlinks: Annotated[bool, Meta(description="What other stores link, too")] = False


class GetEntity(Detailed, kw_only=True):
    """The node to read."""

    id: _Id
    content_offset: Annotated[int, Meta(ge=0, description="Characters of its content to pass over")] = 0
    relations_offset: Annotated[int, Meta(ge=0, le=MAX_EDGES_OFFSET, description="Relations to pass over")] = 0
    direction: Annotated[walk.Direction, Meta(description="Which relations to show")] = "both"
    version: Annotated[_Version, Meta(description="This version of it, without relations")] | UnsetType = UNSET
    follow_symlinks: Annotated[bool, Meta(description="Incoming relations of other stores, too")] = False
    as_of: _AsOf = UNSET
    valid_at: _ValidAt = UNSET


class ListEntities(Detailed, kw_only=True):
    """Which entities to list, and from where; or to count; or some by their ids."""

    types: _Types = UNSET
    tags: _Tags = UNSET
    attributes: _Wanted = UNSET
    ids: Annotated[list[_Id], Meta(max_length=MAX_PAGE, description="Just these, in this order")] | UnsetType = UNSET
    count: Annotated[bool, Meta(description="Just how many")] = False
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="Most entities")] = 50
    offset: Annotated[int, Meta(ge=0, le=MAX_OFFSET, description="Entities to pass over")] = 0
    cursor: Annotated[str, Meta(description="The next_cursor of the page before, for the next one")] | UnsetType = UNSET
    compact: Annotated[bool, Meta(description="Without contents and attributes")] = True
    as_of: _AsOf = UNSET
    valid_at: _ValidAt = UNSET


class ListRelations(Detailed, kw_only=True):
    """The relations of one entity, in one direction."""

    id: _Id
    direction: Annotated[
        Literal["outgoing", "incoming"], Meta(description="Those that start, or that end, at the entity")
    ] = "outgoing"
    relation_types: _RelationTypes = UNSET
    follow_symlinks: Annotated[bool, Meta(description="Incoming ones of other stores, too")] = False
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="Most relations")] = 50
    offset: Annotated[int, Meta(ge=0, le=MAX_EDGES_OFFSET, description="Relations to pass over")] = 0
    as_of: _AsOf = UNSET
    valid_at: _ValidAt = UNSET


_Based = Annotated[int, Meta(ge=0, lt=1 << 53, description="The version that you read; left out: overwrite any")] | None


@with_fields_of(versioned_api.PutNodeRequest, "graph_id", "lineage_id", "kind", "metadata")
class PutNode(Naming, kw_only=True):
    """A version of a node, whole: what is left out is empty."""

    id: Annotated[_Name, Meta(description="Left out: a new node with a new id")] | UnsetType = UNSET
    type: _Label | UnsetType = UNSET
    content: str = ""
    summary: Annotated[str, Meta(description="Short form of the content")] | UnsetType = UNSET
    tags: Annotated[list[_Name], Meta(max_length=MAX_TAGS)] | UnsetType = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET
    freshness_at: Annotated[str, Meta(max_length=64, description="RFC 3339; stale from then on")] | UnsetType = UNSET
    created_by: _Author = UNSET
    valid_from: _Moment = UNSET
    valid_to: _Moment = UNSET
    # Not unset: 0 is not as good as left out here.
    based_on_version: _Based = None
    lineage_id: Annotated[_Name | UnsetType, UNLISTED_FIELD] = UNSET
    kind: Annotated[_Name | UnsetType, UNLISTED_FIELD] = UNSET
    metadata: Annotated[dict[str, Any] | UnsetType, UNLISTED_FIELD] = UNSET


class SubgraphNode(versioned_api.NodeSpec, kw_only=True):
    """A node of a subgraph, whole: what is left out is empty. Without an id a new one is made."""

    ref: Annotated[_Name, Meta(description="How relations of this call name it")] | None = None
    id: _Name | None = None
    type: _Name | None = None
    attributes: dict[str, Any] | None = None
    lineage_id: Annotated[_Name | None, UNLISTED_FIELD] = None
    kind: Annotated[_Name | None, UNLISTED_FIELD] = None
    metadata: Annotated[dict[str, Any] | None, UNLISTED_FIELD] = None


class SubgraphEdge(versioned_api.EdgeSpec, kw_only=True):
    """A relation of a subgraph."""

    source: Annotated[_Name, Meta(description="A ref of this call, or an id that exists")] | None = field(
        name="from", default=None
    )
    target: Annotated[_Name, Meta(description="Likewise")] | None = field(name="to", default=None)
    relation_type: _Name | None = None
    attributes: dict[str, Any] | None = None
    from_ref: Annotated[_Name | None, UNLISTED_FIELD] = None
    from_lineage: Annotated[_Name | None, UNLISTED_FIELD] = None
    to_ref: Annotated[_Name | None, UNLISTED_FIELD] = None
    to_lineage: Annotated[_Name | None, UNLISTED_FIELD] = None
    kind: Annotated[_Name | None, UNLISTED_FIELD] = None
    metadata: Annotated[dict[str, Any] | None, UNLISTED_FIELD] = None


class PutSubgraph(Arguments, kw_only=True):
    """Nodes, then edges, each written by itself."""

    nodes: Annotated[list[SubgraphNode], Meta(description=f"At most {versioned_api.MAX_SUBGRAPH_NODES}")] = []
    edges: Annotated[list[SubgraphEdge], Meta(description=f"At most {versioned_api.MAX_SUBGRAPH_EDGES}")] = []
    apart: ClassVar[Mapping[str, type[msgspec.Struct]]] = {"nodes": SubgraphNode, "edges": SubgraphEdge}


def subgraph(given: PutSubgraph) -> versioned_api.PutSubgraphRequest:
    """The request that the arguments make, in the contract's own names."""
    nodes: list[SubgraphNode | versioned_api.UnreadItem] = [*given.nodes]
    edges: list[SubgraphEdge | versioned_api.UnreadItem] = [*given.edges]
    refs = {node.ref for node in nodes if node.ref}
    return versioned_api.PutSubgraphRequest(
        nodes=[node if isinstance(node, versioned_api.UnreadItem) else _node_spec(node) for node in nodes],
        edges=[edge if isinstance(edge, versioned_api.UnreadItem) else _edge_spec(edge, refs) for edge in edges],
    )


def _node_spec(node: SubgraphNode) -> versioned_api.NodeSpec:
    return _spec(versioned_api.NodeSpec, node, {"lineage_id": node.id, **_named(node.type, node)})


def _edge_spec(edge: SubgraphEdge, refs: AbstractSet[str | None]) -> versioned_api.EdgeSpec:
    return _spec(versioned_api.EdgeSpec, edge, _ends(edge, refs) | _named(edge.relation_type, edge))


def _named(kind: str | None, given: SubgraphNode | SubgraphEdge) -> dict[str, Any]:
    return {"kind": kind, "metadata": given.attributes}


def _ends(edge: SubgraphEdge, refs: AbstractSet[str | None]) -> dict[str, Any]:
    ends = (("from", edge.source), ("to", edge.target))
    return {f"{side}_ref" if end in refs else f"{side}_lineage": end for side, end in ends}


def _spec(kind: type[S], given: msgspec.Struct, ours: dict[str, Any]) -> S:
    """Fields under the contract's names, from those; where both names of one are used, the contract's counts."""
    values = {name: getattr(given, name) for name in kind.__struct_fields__}
    return kind(**{name: ours.get(name) if value is None else value for name, value in values.items()})


@with_fields_of(versioned_api.RetireRequest)
class RetireEntity(Arguments, kw_only=True):
    """The node, and until when it was true."""

    id: _Id
    valid_to: _End = UNSET
    created_by: _Author = UNSET


@with_fields_of(versioned_api.RetireEdgeRequest)
class RetireRelation(DeleteRelation, kw_only=True):
    """The edge, and until when it was true."""

    valid_to: _End = UNSET
    created_by: _Author = UNSET


class MergeEntities(Naming, kw_only=True):
    """The entity that goes, and the one that stays; or one that shall be taken out again."""

    id: Annotated[_Label, Meta(description="Of the one that goes")]
    into: Annotated[_Label, Meta(description="Id of the one that stays")] | UnsetType = UNSET
    undo: Annotated[bool, Meta(description="Take the merge of `id` back")] = False
    created_by: Annotated[_Author, UNLISTED_FIELD] = UNSET


class Retire(Arguments, kw_only=True):
    """An entity by its id, or a relation by its ends and type, and until when it was true."""

    id: Annotated[_Label, Meta(description="Of an entity")] | UnsetType = UNSET
    source: Annotated[_Label, Meta(description="Or of a relation: its start")] | UnsetType = field(
        name="from", default=UNSET
    )
    target: _Label | UnsetType = field(name="to", default=UNSET)
    relation_type: _Label | UnsetType = UNSET
    to_graph: _ToGraph = UNSET
    valid_to: _End = UNSET
    created_by: _Author = UNSET


def end_of(given: Retire) -> RetireEntity | RetireRelation:
    """What is to end: an entity or a relation. Raises InvalidInput for neither, and for both."""
    edge = (given.source, given.target, given.relation_type)
    if given.id and not any((*edge, given.to_graph)):
        return RetireEntity(id=given.id, valid_to=given.valid_to, created_by=given.created_by)
    source, target, relation_type = edge
    if given.id or not (source and target and relation_type):
        raise InvalidInput.at("id", "give either the id of an entity, or from, to and relation_type of a relation")
    return RetireRelation(
        source=source,
        target=target,
        relation_type=relation_type,
        to_graph=given.to_graph,
        valid_to=given.valid_to,
        created_by=given.created_by,
    )


class EntityHistory(Detailed, kw_only=True):
    """The entity whose states are asked for, and a page of them, or the version to go back to."""

    id: _Id
    limit: Annotated[int, Meta(ge=1, le=MAX_STATES, description="Most states")] = 20
    before: Annotated[_Version, Meta(description="The next_before of the page before")] | UnsetType = UNSET
    revert_to: Annotated[_Version, Meta(description="Write it as it was in this version")] | UnsetType = UNSET


@with_fields_of(requests.RevertRequest)
class RevertEntity(Arguments, kw_only=True):
    """The entity, and the version that it shall be like again."""

    id: _Id
    version: Annotated[_Version, Meta(description="One of those in entity_history")]


class DescribeSchema(Naming, kw_only=True):
    """The store whose types and tags are asked for."""


class ListTags(Arguments, kw_only=True):
    """Which tags to list."""

    prefix: Annotated[_Name, Meta(description="Only tags that start so")] = ""
    limit: Annotated[int, Meta(description="Most tags, at most 100")] = MAX_TAGS_LISTED


@with_fields_of(requests.CypherRequest, "mode")
class QueryCypher(Detailed, kw_only=True):
    """One Cypher statement that reads."""

    query: _Query
    params: Annotated[dict[str, Any], Meta(description="Values for $names")] = {}
    timeout_ms: Annotated[Annotated[int, Meta(ge=1)] | UnsetType, UNLISTED_FIELD] = UNSET
    max_rows: Annotated[int, Meta(ge=0, le=requests.MAX_CYPHER_ROWS)] = 100
