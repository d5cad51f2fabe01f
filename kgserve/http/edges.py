"""DELETE /api/memory/{store}/edges."""

from __future__ import annotations

from litestar import delete

from kgserve.http import examples
from kgserve.http.direct import Call, direct
from kgserve.http.operation import WRITE, Body, Operation, described
from kgserve.http.service import Answer
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


@direct(delete("/api/memory/{store:str}/edges", status_code=200, opt=described(_DELETE_EDGE)))
def delete_edge(call: Call[EdgeKeyRequest]) -> Answer:
    """Deletes the edge of this source, target and relation type; other edges between the two nodes stay.

    Deleting an edge that does not exist is not an error.
    """
    store, key = call.text("store"), call.body
    return call.service.write_soon(1, lambda pool: ops.delete_edge(pool, store, key))
