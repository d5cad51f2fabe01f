"""What the tools take, as Structs that their schemas are made from; and JSON values into Structs, strictly.

A field that may be left out is unset and not null, although null is taken: clients look for one plain type per field
in a schema, and some send text for what has two.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from kgserve.decoding import convert
from kgserve.errors import FieldError, InvalidInput
from kgserve.model.fields import MAX_ID_BYTES
from kgserve.model.requests import (
    MAX_CYPHER_ROWS,
    MAX_DEPTH,
    MAX_TRAVERSED_NODES,
    AsOfText,
    Direction,
    EdgeInput,
    NodeInput,
    SearchVariant,
    place_of,
)

T = TypeVar("T", bound=msgspec.Struct)

MAX_CONTEXT_TOKENS = 25_000

_Index = Annotated[
    str | msgspec.UnsetType,
    msgspec.Meta(description="Name of the store; may be left out when there is a default store"),
]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_BYTES, description="Id of a node")]
Types = Annotated[list[str], msgspec.Meta(max_length=100, description="Only nodes of these types")]
Tags = Annotated[list[str], msgspec.Meta(max_length=100, description="Only nodes with all of these tags")]
RelationTypes = Annotated[list[str], msgspec.Meta(max_length=100, description="Only relations of these types")]
_Query = Annotated[str, msgspec.Meta(min_length=1, max_length=10_000, description="What to look for, in plain words")]
_AtLeast = Annotated[
    int, msgspec.Meta(ge=0, description="Find what was written up to this sequence; waits up to 10 s for the indexes")
]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
AsOf = Annotated[AsOfText, msgspec.Meta(description="As the store was at this sequence or RFC 3339 time, not as it is")]
ValidAt = Annotated[
    str,
    msgspec.Meta(max_length=64, description="What was true in the world at this RFC 3339 time, now or any"),
]


class Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Arguments of a tool that works on one store."""

    index: _Index = msgspec.UNSET


class Inject(Arguments, kw_only=True):
    """Nodes and edges to create or update, in one atomic batch."""

    nodes: list[NodeInput] = []
    edges: Annotated[list[EdgeInput], msgspec.Meta(description="Both ends must exist or be in nodes")] = []


class DeleteEntity(Arguments, kw_only=True):
    """The node to delete."""

    id: Id


class DeleteRelation(Arguments, kw_only=True):
    """The edge to delete."""

    source: Id = msgspec.field(name="from")
    target: Id = msgspec.field(name="to")
    relation_type: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_BYTES)]


class Traverse(Arguments, kw_only=True):
    """Where to start, how far to go, and along which edges."""

    start_id: Id
    depth: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEPTH, description="Hops")] = 2
    relation_types: RelationTypes | msgspec.UnsetType = msgspec.UNSET
    direction: Annotated[Direction, msgspec.Meta(description="Which way to follow relations")] = "outgoing"
    max_nodes: Annotated[int, msgspec.Meta(ge=1, le=MAX_TRAVERSED_NODES, description="Most nodes, nearest first")] = (
        MAX_TRAVERSED_NODES
    )
    as_of: AsOf | msgspec.UnsetType = msgspec.UNSET
    valid_at: ValidAt | msgspec.UnsetType = msgspec.UNSET


class Search(Arguments, kw_only=True):
    """What to look for, how, and among what."""

    query: _Query
    mode: Annotated[
        Literal["hybrid", "keyword", "semantic", "graph"],
        msgspec.Meta(description="Words and meaning and relations; words; meaning; what is related to the best hits"),
    ] = "hybrid"
    limit: Annotated[int, msgspec.Meta(ge=1, le=100, description="Most hits")] = 10
    offset: Annotated[_Offset, msgspec.Meta(description="Hits to pass over")] = 0
    types: Types | msgspec.UnsetType = msgspec.UNSET
    id_prefix: Annotated[str, msgspec.Meta(max_length=MAX_ID_BYTES, description="Only ids that start so")] = ""
    start_id: Annotated[Id, msgspec.Meta(description="Start of mode graph")] | msgspec.UnsetType = msgspec.UNSET
    depth: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEPTH, description="Hops in mode graph")] = 2
    tags: Tags | msgspec.UnsetType = msgspec.UNSET
    at_least: _AtLeast | msgspec.UnsetType = msgspec.UNSET
    as_of: AsOf | msgspec.UnsetType = msgspec.UNSET
    valid_at: ValidAt | msgspec.UnsetType = msgspec.UNSET


class SearchBatch(Arguments, kw_only=True):
    """Several ways to ask the same."""

    queries: Annotated[list[SearchVariant], msgspec.Meta(min_length=1, max_length=8)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=100, description="Most hits in all")] = 10
    at_least: _AtLeast | msgspec.UnsetType = msgspec.UNSET
    as_of: AsOf | msgspec.UnsetType = msgspec.UNSET
    valid_at: ValidAt | msgspec.UnsetType = msgspec.UNSET


class Context(Arguments, kw_only=True):
    """A question, and how much text may answer it."""

    query: _Query
    budget: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONTEXT_TOKENS, description="Most tokens of the text")] = 2000
    types: Types | msgspec.UnsetType = msgspec.UNSET
    at_least: _AtLeast | msgspec.UnsetType = msgspec.UNSET
    as_of: AsOf | msgspec.UnsetType = msgspec.UNSET
    valid_at: ValidAt | msgspec.UnsetType = msgspec.UNSET


class GetEntity(Arguments, kw_only=True):
    """The node to read."""

    id: Id
    content_offset: Annotated[int, msgspec.Meta(ge=0, description="Characters of its content to pass over")] = 0
    version: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53, description="This version of it, without relations")] | (
        msgspec.UnsetType
    ) = msgspec.UNSET
    as_of: AsOf | msgspec.UnsetType = msgspec.UNSET
    valid_at: ValidAt | msgspec.UnsetType = msgspec.UNSET


class ListStores(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A page of the stores, by name."""

    offset: Annotated[_Offset, msgspec.Meta(description="Stores to pass over")] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 50


class DescribeStore(Arguments, kw_only=True):
    """The store to describe."""


class QueryCypher(Arguments, kw_only=True):
    """One Cypher statement that reads."""

    query: Annotated[str, msgspec.Meta(min_length=1, description="(:Entity)-[:RELATES_TO]->(:Entity); one statement")]
    params: Annotated[dict[str, Any], msgspec.Meta(description="Values for $names")] = {}
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] | msgspec.UnsetType = msgspec.UNSET
    max_rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_CYPHER_ROWS)] = 100


class DropStore(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The store to drop for good; no default counts here."""

    index: Annotated[str, msgspec.Meta(description="Name of the store")]
    confirm: Annotated[str, msgspec.Meta(description="The name of the store again")] = ""


def read_arguments(values: Mapping[str, Any] | None, into: type[T]) -> T:
    """``values`` as ``into``. Raises InvalidInput naming the place; JSON knows neither NaN nor half characters."""
    given = {name: value for name, value in (values or {}).items() if value is not None}
    if type(sequence := given.get("as_of")) is int:
        # Answers give sequences as numbers, and so models send them.
        given["as_of"] = str(sequence)
    try:
        json.dumps(given, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput("the arguments hold a surrogate without its other half") from None
    except ValueError:
        path = _not_finite(given, "") or ""
        raise InvalidInput(f"{path}: is not a finite number", (FieldError(path, "is not a finite number"),)) from None
    except RecursionError:
        raise InvalidInput("the arguments are nested too deeply") from None
    try:
        return convert(given, into)
    except msgspec.ValidationError as error:
        fault = place_of(error)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None
    except RecursionError:
        raise InvalidInput("the arguments are nested too deeply") from None


def _not_finite(value: object, path: str) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    if isinstance(value, dict):
        places = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
    elif isinstance(value, list):
        places = ((f"{path}[{number}]", item) for number, item in enumerate(value))
    else:
        return None
    return next((found for place, item in places if (found := _not_finite(item, place))), None)
