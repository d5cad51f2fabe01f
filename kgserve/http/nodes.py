"""Nodes under /api/memory/{store}/nodes: list, get, delete."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get

from kgserve.errors import InvalidInput
from kgserve.http import examples
from kgserve.http.direct import Call, direct
from kgserve.http.operation import READ, WRITE, Body, Operation, described
from kgserve.http.parameters import given, path_text, query
from kgserve.http.service import Answer, service_of
from kgserve.model.answers import DeleteNodeAnswer, ListedPage, NodeAnswer
from kgserve.model.fields import MAX_ID_BYTES
from kgserve.model.requests import KEPT_AT, VALID_AT, AsOfText
from kgserve.ops import delete as delete_ops
from kgserve.ops import history as history_ops
from kgserve.ops import nodes as ops

_Label = Annotated[str, msgspec.Meta(max_length=MAX_ID_BYTES)]
_LISTS = frozenset({"type", "kind", "tag"})


class NodesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a node list."""

    type: Annotated[
        list[_Label], msgspec.Meta(max_length=100, description="Only nodes of this type; repeated: of any of these")
    ] = []
    kind: Annotated[list[_Label], msgspec.Meta(max_length=100, description="The same as `type`")] = []
    tag: Annotated[
        list[_Label], msgspec.Meta(max_length=100, description="Only nodes with this tag; repeated: with all of these")
    ] = []
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000, description="Most nodes on the page")] = 100
    cursor: Annotated[str, msgspec.Meta(description="`next_cursor` of the page before")] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    offset: Annotated[
        int, msgspec.Meta(ge=0, le=ops.MAX_OFFSET, description="Nodes to pass over; with the first page only")
    ] = 0
    compact: Annotated[bool, msgspec.Meta(description="Nodes without content, attributes and who wrote what")] = False
    as_of: AsOfText | msgspec.UnsetType = msgspec.UNSET
    valid_at: Annotated[str, msgspec.Meta(max_length=64, description=VALID_AT)] | msgspec.UnsetType = msgspec.UNSET


class NodeQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of one node; ``version`` goes with none of the others."""

    as_of: AsOfText | msgspec.UnsetType = msgspec.UNSET
    valid_at: Annotated[str, msgspec.Meta(max_length=64, description=KEPT_AT)] | msgspec.UnsetType = msgspec.UNSET
    version: (
        Annotated[int, msgspec.Meta(ge=1, lt=1 << 53, description="This state of the node, without edges")]
        | msgspec.UnsetType
    ) = msgspec.UNSET


_LIST = Operation(
    id="listNodes",
    role="read",
    tag="nodes",
    summary="List nodes, page by page",
    query=NodesQuery,
    answer=Body(ListedPage, examples.PAGE),
    errors=(*READ, "conflict", "gone"),
)
_GET = Operation(
    id="getNode",
    role="read",
    tag="nodes",
    summary="One node with its edges",
    query=NodeQuery,
    answer=Body(NodeAnswer, examples.NODE),
    errors=(*READ, "conflict", "gone"),
)
_DELETE = Operation(
    id="deleteNode",
    role="write",
    tag="graph",
    summary="Delete one node and its edges",
    answer=Body(DeleteNodeAnswer, examples.NODE_DELETED),
    errors=(*WRITE, "not_found"),
)


@get("/api/memory/{store:str}/nodes", opt=described(_LIST))
async def list_nodes(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Pages follow the order of ids. Writes made while paging neither repeat a node nor hide one that stays.

    A page that has looked at 20,000 nodes ends there: it may be short, or empty, with a `next_cursor`.
    """
    wanted = query(request, NodesQuery, repeated=_LISTS)
    service = service_of(request)
    listed = ops.NodeList(
        types=tuple(filter(None, (*wanted.type, *wanted.kind))),
        tags=tuple(filter(None, wanted.tag)),
        valid_at=given(wanted.valid_at),
        limit=wanted.limit,
        cursor=wanted.cursor or None,
        offset=wanted.offset,
    )
    page = ops.page_compact if wanted.compact else ops.page_nodes
    return await service.read(page, service.pool, path_text(request, "store"), listed, service.past(wanted.as_of))


@direct(get("/api/memory/{store:str}/nodes/{id:str}", opt=described(_GET)))
def get_node(call: Call[None]) -> Answer:
    """The node, and at most 1,000 of its edges in each direction: now, or as it was."""
    wanted, service = call.query(NodeQuery), call.service
    store, node_id = call.text("store"), call.text("id")
    past = service.past(wanted.as_of)
    if isinstance(wanted.version, msgspec.UnsetType):
        moment = given(wanted.valid_at)
        if past is not None:
            return service.reading(ops.get_node_json, service.pool, store, node_id, past, moment)
        return service.read_soon(lambda pool, most: ops.get_node_json(pool, store, node_id, None, moment, most))
    if past is not None or wanted.valid_at:
        raise InvalidInput("version: goes with neither as_of nor valid_at")
    return service.reading(history_ops.node_version, service.pool, service.historian, store, node_id, wanted.version)


@direct(delete("/api/memory/{store:str}/nodes/{id:str}", status_code=200, opt=described(_DELETE)))
def delete_node(call: Call[None]) -> Answer:
    """Deletes the node and every edge that touches it. Deleting a node that does not exist is not an error."""
    store, node_id = call.text("store"), call.text("id")
    return call.service.write_soon(1, lambda pool: delete_ops.delete_node(pool, store, node_id))
