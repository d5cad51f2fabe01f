"""POST /api/memory/{store}/traverse."""

from __future__ import annotations

from litestar import post

from kgserve.http import examples
from kgserve.http.direct import Call, direct
from kgserve.http.operation import READ, Body, Operation, described
from kgserve.http.service import Answer
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


@direct(post("/api/memory/{store:str}/traverse", status_code=200, opt=described(_TRAVERSE)))
def traverse(call: Call[TraverseRequest]) -> Answer:
    """Answers with each node in reach once, at its shortest distance, nearest first.

    With them come all edges between the nodes returned. A start that does not exist gives empty arrays.
    """
    service = call.service
    store, wanted = call.text("store"), call.body
    if wanted.as_of is not None:
        return service.reading(ops.traverse_json, service.pool, store, wanted, service.historian)
    return service.read_soon(lambda pool, most: ops.traverse_json(pool, store, wanted, None, most))
