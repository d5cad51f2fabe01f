"""Nodes under /api/memory/{store}/nodes: list, get, delete."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get

from kgserve.errors import InvalidInput
from kgserve.http import examples
from kgserve.http.operation import READ, WRITE, Body, Operation, described
from kgserve.http.parameters import path_text, query
from kgserve.http.service import service_of
from kgserve.model.answers import DeleteNodeAnswer, NodeAnswer, NodePage
from kgserve.model.requests import AS_OF
from kgserve.ops import delete as delete_ops
from kgserve.ops import history as history_ops
from kgserve.ops import nodes as ops


class NodesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a node list."""

    type: Annotated[str, msgspec.Meta(description="Only nodes of this type")] | msgspec.UnsetType = msgspec.UNSET
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000, description="Most nodes on the page")] = 100
    cursor: Annotated[str, msgspec.Meta(description="`next_cursor` of the page before")] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    as_of: Annotated[str, msgspec.Meta(max_length=64, description=AS_OF)] | msgspec.UnsetType = msgspec.UNSET


class NodeQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of one node; ``version`` and ``as_of`` exclude each other."""

    as_of: Annotated[str, msgspec.Meta(max_length=64, description=AS_OF)] | msgspec.UnsetType = msgspec.UNSET
    version: (
        Annotated[int, msgspec.Meta(ge=1, lt=1 << 53, description="This state of the node, without edges")]
        | msgspec.UnsetType
    ) = msgspec.UNSET


_LIST = Operation(
    id="listNodes",
    tag="nodes",
    summary="List nodes, page by page",
    query=NodesQuery,
    answer=Body(NodePage, examples.PAGE),
    errors=(*READ, "gone"),
)
_GET = Operation(
    id="getNode",
    tag="nodes",
    summary="One node with its edges",
    query=NodeQuery,
    answer=Body(NodeAnswer, examples.NODE),
    errors=(*READ, "gone"),
)
_DELETE = Operation(
    id="deleteNode",
    tag="graph",
    summary="Delete one node and its edges",
    answer=Body(DeleteNodeAnswer, examples.NODE_DELETED),
    errors=(*WRITE, "not_found"),
)


@get("/api/memory/{store:str}/nodes", opt=described(_LIST))
async def list_nodes(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Pages follow the order of ids. Writes made while paging neither repeat a node nor hide one that stays."""
    wanted = query(request, NodesQuery)
    service = service_of(request)
    return await service.read(
        ops.list_nodes,
        service.pool,
        path_text(request, "store"),
        wanted.type or None,
        wanted.limit,
        wanted.cursor or None,
        service.past(wanted.as_of),
    )


@get("/api/memory/{store:str}/nodes/{id:str}", opt=described(_GET))
async def get_node(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The node, and at most 1,000 of its edges in each direction: now, or as it was."""
    wanted = query(request, NodeQuery)
    service = service_of(request)
    store, node_id = path_text(request, "store"), path_text(request, "id")
    past = service.past(wanted.as_of)
    if isinstance(wanted.version, msgspec.UnsetType):
        return await service.read(ops.get_node, service.pool, store, node_id, past)
    if past is not None:
        raise InvalidInput("version and as_of: only one of them can be asked for")
    return await service.read(history_ops.node_version, service.pool, service.historian, store, node_id, wanted.version)


@delete("/api/memory/{store:str}/nodes/{id:str}", status_code=200, opt=described(_DELETE))
async def delete_node(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Deletes the node and every edge that touches it. Deleting a node that does not exist is not an error."""
    service = service_of(request)
    return await service.write(
        delete_ops.delete_node, service.pool, path_text(request, "store"), path_text(request, "id")
    )
