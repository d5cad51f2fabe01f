"""GET /api/memory/{store}/schema and /tags: the types and tags in use."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get

from kgserve.http import examples
from kgserve.http.operation import READ, Body, Operation, described
from kgserve.http.parameters import path_text, query
from kgserve.http.service import service_of
from kgserve.model.answers import MAX_TAGS_LISTED, SchemaDescription, TagList
from kgserve.model.fields import MAX_ID_BYTES
from kgserve.ops import schema as ops


class TagsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a list of tags."""

    prefix: Annotated[str, msgspec.Meta(max_length=MAX_ID_BYTES, description="Only tags that start so")] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_TAGS_LISTED, description="Most tags")] = MAX_TAGS_LISTED


_SCHEMA = Operation(
    id="describeSchema",
    role="read",
    tag="nodes",
    summary="The types and tags that a store uses",
    answer=Body(SchemaDescription, examples.SCHEMA),
    errors=READ,
)
_TAGS = Operation(
    id="listTags",
    role="read",
    tag="nodes",
    summary="The most frequent tags",
    query=TagsQuery,
    answer=Body(TagList, examples.TAGS),
    errors=READ,
)


@get("/api/memory/{store:str}/schema", opt=described(_SCHEMA))
async def describe_schema(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Types with examples, prefixes of tags with values, and tags: 100 of each, the most frequent first.

    All counts are kept with every write, so that this takes the same however large the store is.
    """
    service = service_of(request)
    return await service.read(ops.describe_schema, service.pool, path_text(request, "store"))


@get("/api/memory/{store:str}/tags", opt=described(_TAGS))
async def list_tags(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Tags that start with `prefix`, with the number of nodes that have each: the most frequent first, then by name."""
    wanted = query(request, TagsQuery)
    service = service_of(request)
    return await service.read(ops.list_tags, service.pool, path_text(request, "store"), wanted.prefix, wanted.limit)
