"""Entities over time, in the shape that readers of layered memories expect."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Request, Response, get

from kgserve.http.direct import store_of
from kgserve.http.parameters import OF_DEFAULT, path_text, query
from kgserve.http.service import answer, service_of
from kgserve.model.answers import EntityVersion
from kgserve.model.queries import EntityHistoryQuery, EntityHistoryRequest
from kgserve.operations import examples
from kgserve.operations.operation import READ, Body, Operation, described
from kgserve.ops import history as ops

_HISTORY = Operation(
    id="entityHistory",
    role="read",
    tag="history",
    summary="The versions of an entity, oldest first, as a bare array",
    query=EntityHistoryQuery,
    answer=Body(EntityVersion, examples.ENTITY_HISTORY, many=True),
    errors=(*READ, "conflict"),
    of_default=True,
    headers=(("Link", "The next page, as `<…>; rel=next`, if there may be one"),),
)


@get("/api/v1/entities/{id:str}/history", opt=described(_HISTORY))
async def entity_history(request: Request[Any, Any, Any]) -> Response[bytes]:
    """One entry per version: when it was true, as its writer said or else as it was recorded; null: it still is.

    Those of a memory that was superseded are in the order in which they were true, the present one last; a correction
    makes none. Of any other node each state that was recorded is a version.

    The entity's id is percent-encoded as one segment. A page ends at `limit`, or at 16 MiB of text; another one begins
    after the `sequence` of its last version, as the header `Link` says.
    """
    wanted, service = query(request, EntityHistoryQuery, passed=OF_DEFAULT), service_of(request)
    asked = EntityHistoryRequest(entity_id=path_text(request, "id"), **msgspec.structs.asdict(wanted))
    store = store_of(request.scope, service)
    found = await service.call(ops.entity_history, service.graphs.graph(store), asked)
    response = answer(await service.call(msgspec.json.encode, found.versions))
    if found.next_after is not None:
        there = f"/api/v1/entities/{quote(asked.entity_id, safe='')}/history?store={quote(store)}&limit={wanted.limit}"
        response.headers["link"] = f"<{there}&after_sequence={found.next_after}>; rel=next"
    return response
