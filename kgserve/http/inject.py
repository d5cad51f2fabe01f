"""POST /api/memory/{store}/inject."""

from __future__ import annotations

from litestar import post

from kgserve.http import examples
from kgserve.http.direct import Call, direct
from kgserve.http.operation import WRITE, Body, Operation, described
from kgserve.http.service import Answer
from kgserve.model.answers import InjectAnswer
from kgserve.model.requests import InjectRequest
from kgserve.ops import inject as ops

_INJECT = Operation(
    id="inject",
    role="write",
    tag="graph",
    summary="Upsert nodes and edges in one atomic batch",
    request=Body(InjectRequest, examples.INJECT),
    answer=Body(InjectAnswer, examples.INJECTED),
    errors=WRITE,
)


@direct(post("/api/memory/{store:str}/inject", status_code=200, opt=described(_INJECT)))
def inject(call: Call[InjectRequest]) -> Answer:
    """Creates the store if it does not exist.

    Sending the same batch again changes nothing. A field that is left out keeps its stored value; an explicit empty
    one clears it. An edge with a missing endpoint is skipped and listed. Once answered, the whole batch is on disk. Of
    a key that a JSON object holds twice, and of a node or edge that a batch holds twice, the last one counts.
    """
    store, batch = call.text("store"), call.body
    rows = len(batch.nodes or ()) + len(batch.edges or ())
    return call.service.write_soon(rows, lambda pool: ops.inject(pool, store, batch))
