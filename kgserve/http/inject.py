"""POST /api/memory/{store}/inject."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post

from kgserve.http import examples
from kgserve.http.body import read_json
from kgserve.http.operation import WRITE, Body, Operation, described
from kgserve.http.parameters import path_text
from kgserve.http.service import service_of
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


@post("/api/memory/{store:str}/inject", status_code=200, opt=described(_INJECT))
async def inject(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Creates the store if it does not exist.

    Sending the same batch again changes nothing. A field that is left out keeps its stored value; an explicit empty
    one clears it. An edge with a missing endpoint is skipped and listed. Once answered, the whole batch is on disk. Of
    a key that a JSON object holds twice, and of a node or edge that a batch holds twice, the last one counts.
    """
    store = path_text(request, "store")
    batch = await read_json(request, InjectRequest)
    service = service_of(request)
    return await service.write(ops.inject, service.pool, store, batch)
