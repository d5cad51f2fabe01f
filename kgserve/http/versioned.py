"""The contract of a versioned store: nodes put by version, subgraphs, edges by id and by node, retirement."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post

from kgserve.http import examples
from kgserve.http.body import read_json, read_json_if_any
from kgserve.http.direct import Call, direct
from kgserve.http.operation import READ, WRITE, Body, Operation, described
from kgserve.http.parameters import given, path_text, query
from kgserve.http.service import Answer, service_of
from kgserve.model.answers import DeleteEdgeAnswer
from kgserve.model.fields import MAX_ID_BYTES
from kgserve.model.requests import KEPT_AT, AsOfText
from kgserve.model.versioned import (
    EdgeAnswer,
    EdgeList,
    PutNodeAnswer,
    PutNodeRequest,
    PutSubgraphAnswer,
    PutSubgraphRequest,
    RetireAnswer,
    RetireEdgeRequest,
    RetireRequest,
)
from kgserve.ops import delete as delete_ops
from kgserve.ops import edges, retire
from kgserve.ops.put_node import put_node
from kgserve.ops.put_subgraph import put_subgraph

_Kind = Annotated[str, msgspec.Meta(max_length=MAX_ID_BYTES)]


class EdgesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a node's edges."""

    kind: Annotated[
        list[_Kind], msgspec.Meta(max_length=100, description="Only this relation type; repeated: any of these")
    ] = []
    limit: Annotated[int, msgspec.Meta(ge=1, le=edges.MAX_PAGE, description="Most edges on the page")] = 100
    offset: Annotated[int, msgspec.Meta(ge=0, le=edges.MAX_OFFSET, description="Edges to pass over")] = 0
    as_of: AsOfText | msgspec.UnsetType = msgspec.UNSET
    valid_at: Annotated[str, msgspec.Meta(max_length=64, description=KEPT_AT)] | msgspec.UnsetType = msgspec.UNSET


_PUT_NODE = Operation(
    id="putNode",
    role="write",
    tag="versions",
    summary="Write a version of a node, based on the one that was seen",
    request=Body(PutNodeRequest, examples.PUT_NODE),
    answer=Body(PutNodeAnswer, examples.NODE_PUT),
    errors=(*WRITE, "conflict_manual"),
)
_PUT_SUBGRAPH = Operation(
    id="putSubgraph",
    role="write",
    tag="versions",
    summary="Write nodes and edges, each by itself",
    request=Body(PutSubgraphRequest, examples.PUT_SUBGRAPH),
    answer=Body(PutSubgraphAnswer, examples.SUBGRAPH_PUT),
    errors=WRITE,
)
_RETIRE_NODE = Operation(
    id="retireNode",
    role="write",
    tag="versions",
    summary="Say until when a node was true",
    request=Body(RetireRequest, examples.RETIRE, optional=True),
    answer=Body(RetireAnswer, examples.RETIRED),
    errors=(*WRITE, "not_found"),
)
_RETIRE_EDGE = Operation(
    id="retireEdge",
    role="write",
    tag="versions",
    summary="Say until when an edge was true",
    request=Body(RetireEdgeRequest, examples.RETIRE_EDGE),
    answer=Body(RetireAnswer, examples.RETIRED),
    errors=(*WRITE, "not_found"),
)
_OUTGOING = Operation(
    id="outgoing",
    role="read",
    tag="nodes",
    summary="The edges that start at a node, in order",
    query=EdgesQuery,
    answer=Body(EdgeList, examples.EDGES),
    errors=(*READ, "conflict", "gone"),
)
_INCOMING = Operation(
    id="incoming",
    role="read",
    tag="nodes",
    summary="The edges that end at a node, in order",
    query=EdgesQuery,
    answer=Body(EdgeList, examples.EDGES),
    errors=(*READ, "conflict", "gone"),
)
_GET_EDGE = Operation(
    id="getEdge",
    role="read",
    tag="graph",
    summary="One edge by its id",
    answer=Body(EdgeAnswer, examples.ONE_EDGE),
    errors=READ,
)
_DELETE_EDGE = Operation(
    id="deleteEdgeById",
    role="write",
    tag="graph",
    summary="Delete one edge by its id",
    answer=Body(DeleteEdgeAnswer, examples.EDGE_DELETED),
    errors=(*WRITE, "not_found"),
)


@direct(post("/api/memory/{store:str}/nodes", status_code=200, opt=described(_PUT_NODE)))
def put_one_node(call: Call[PutNodeRequest]) -> Answer:
    """Without an id a new node; with one the node's next version, which holds what is sent and nothing else.

    `based_on_version` is the version that the writer had seen. When the node has moved on from there, the store's
    `conflict_policy` decides: with `lww` the new version counts; with `manual` both are kept, and the answer is 409
    with the node as written and its `conflicts`. A put based on any of the heads, or on none, settles it.
    """
    store, node = call.text("store"), call.body
    return call.service.write_soon(1, lambda pool: put_node(pool, store, node))


@post("/api/memory/{store:str}/subgraph", status_code=200, opt=described(_PUT_SUBGRAPH))
async def put_some(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Nodes in order, then edges, whose ends are a `ref` of this call or an id: one result for each, in order.

    What is wrong with one keeps only that one out, and the edges that name it. At most 50 nodes and 100 edges.
    """
    store = path_text(request, "store")
    wanted = await read_json(request, PutSubgraphRequest)
    service = service_of(request)
    return await service.write_through(put_subgraph, service.pool, store, wanted)


@post("/api/memory/{store:str}/nodes/{id:str}/retire", status_code=200, opt=described(_RETIRE_NODE))
async def retire_node(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Sets `valid_to`, now if no time is sent; nothing is deleted, and reads with `valid_at` go by it.

    One that has ended already keeps its end, unless another is sent.
    """
    store, node_id = path_text(request, "store"), path_text(request, "id")
    wanted = await read_json_if_any(request, RetireRequest) or RetireRequest()
    service = service_of(request)
    return await service.write(retire.retire_node, service.pool, store, node_id, wanted)


@post("/api/memory/{store:str}/edges/retire", status_code=200, opt=described(_RETIRE_EDGE))
async def retire_edge(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Sets `valid_to`, now if no time is sent. One that has ended already keeps its end, unless another is sent."""
    store = path_text(request, "store")
    wanted = await read_json(request, RetireEdgeRequest)
    service = service_of(request)
    return await service.write(retire.retire_edge, service.pool, store, wanted)


@get("/api/memory/{store:str}/nodes/{id:str}/outgoing", opt=described(_OUTGOING))
async def outgoing(request: Request[Any, Any, Any]) -> Response[bytes]:
    """By `ordinal`, those without one last, then by `created_at`."""
    return await _edges(request, "outgoing")


@get("/api/memory/{store:str}/nodes/{id:str}/incoming", opt=described(_INCOMING))
async def incoming(request: Request[Any, Any, Any]) -> Response[bytes]:
    """By `ordinal`, those without one last, then by `created_at`."""
    return await _edges(request, "incoming")


@get("/api/memory/{store:str}/edges/{id:str}", opt=described(_GET_EDGE))
async def get_edge(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The id is `source~relation_type~target`, each percent-encoded, and the whole once more for the path."""
    service = service_of(request)
    return await service.read(edges.get_edge, service.pool, path_text(request, "store"), path_text(request, "id"))


@direct(delete("/api/memory/{store:str}/edges/{id:str}", status_code=200, opt=described(_DELETE_EDGE)))
def delete_edge_by_id(call: Call[None]) -> Answer:
    """Deleting an edge that does not exist is not an error."""
    key = edges.key_of(call.text("id"))
    store = call.text("store")
    return call.service.write_soon(1, lambda pool: delete_ops.delete_edge(pool, store, key))


async def _edges(request: Request[Any, Any, Any], side: edges.Side) -> Response[bytes]:
    wanted = query(request, EdgesQuery, repeated=frozenset({"kind"}))
    service = service_of(request)
    listed = edges.EdgesOfNode(
        node_id=path_text(request, "id"),
        side=side,
        kinds=tuple(filter(None, wanted.kind)),
        limit=wanted.limit,
        offset=wanted.offset,
        valid_at=given(wanted.valid_at),
    )
    past = service.past(wanted.as_of)
    return await service.read(edges.list_edges_json, service.pool, path_text(request, "store"), listed, past)
