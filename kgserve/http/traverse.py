"""POST /api/memory/{store}/traverse."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post

from kgserve.http import examples
from kgserve.http.body import read_json
from kgserve.http.operation import READ, Body, Operation, described
from kgserve.http.parameters import path_text
from kgserve.http.service import service_of
from kgserve.model.answers import TraverseAnswer
from kgserve.model.requests import TraverseRequest
from kgserve.ops import traverse as ops

_TRAVERSE = Operation(
    id="traverse",
    role="read",
    tag="graph",
    summary="Walk edges from one node, breadth first",
    request=Body(TraverseRequest, examples.TRAVERSE),
    answer=Body(TraverseAnswer, examples.TRAVERSED),
    errors=(*READ, "conflict", "gone", "too_large", "unsupported"),
)


@post("/api/memory/{store:str}/traverse", status_code=200, opt=described(_TRAVERSE))
async def traverse(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answers with each node in reach once, at its shortest distance, nearest first.

    With them come all edges between the nodes returned. A start that does not exist gives empty arrays.
    """
    store = path_text(request, "store")
    walk = await read_json(request, TraverseRequest)
    service = service_of(request)
    return await service.read(ops.traverse_json, service.pool, store, walk, service.historian)
