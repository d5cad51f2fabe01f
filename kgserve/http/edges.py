"""DELETE /api/memory/{store}/edges."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, delete

from kgserve.http import examples
from kgserve.http.body import read_json
from kgserve.http.operation import WRITE, Body, Operation, described
from kgserve.http.parameters import path_text
from kgserve.http.service import service_of
from kgserve.model.answers import DeleteEdgeAnswer
from kgserve.model.requests import EdgeKeyRequest
from kgserve.ops import delete as ops

_DELETE_EDGE = Operation(
    id="deleteEdge",
    role="write",
    tag="graph",
    summary="Delete one edge",
    request=Body(EdgeKeyRequest, examples.EDGE_KEY),
    answer=Body(DeleteEdgeAnswer, examples.EDGE_DELETED),
    errors=(*WRITE, "not_found"),
)


@delete("/api/memory/{store:str}/edges", status_code=200, opt=described(_DELETE_EDGE))
async def delete_edge(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Deletes the edge of this source, target and relation type; other edges between the two nodes stay.

    Deleting an edge that does not exist is not an error.
    """
    store = path_text(request, "store")
    edge = await read_json(request, EdgeKeyRequest)
    service = service_of(request)
    return await service.write(ops.delete_edge, service.pool, store, edge)
