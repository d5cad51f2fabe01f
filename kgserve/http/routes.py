"""Every handler of the REST interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from kgserve.http import cypher, events, explorer, memories, metrics, openapi, transfer
from kgserve.http.service import answer, json_of, routes, service_of
from kgserve.model.answers import BrowserKey, BrowserKeyRequest
from kgserve.model.times import format_time
from kgserve.operations import examples
from kgserve.operations.operation import ALWAYS, Body, Operation, described
from kgserve.operations.table import USE_CASES

if TYPE_CHECKING:
    from kgserve.access.authentication import RequestContext

_BROWSER_KEY = Operation(
    id="browserKey",
    role="admin",
    tag="service",
    summary="Make a key for a page in a browser",
    request=Body(BrowserKeyRequest, {"role": "read"}, optional=True),
    answer=Body(BrowserKey, examples.BROWSER_KEY),
    errors=(*ALWAYS, "too_large", "unsupported"),
)


@post("/api/browser-key", status_code=200, opt=described(_BROWSER_KEY))
async def browser_key(request: Request[Any, Any, Any]) -> Response[bytes]:
    """It is for the stores of the key that asks, and ends after 12 hours, with that key, or with the server.

    It is kept in memory alone. `kgserve open` hands it over behind the `#` of an address, which no server sees.
    """
    scope = request.scope
    asked = await json_of(scope["headers"], request.receive, service_of(request), BrowserKeyRequest, optional=True)
    caller, text = cast("RequestContext", scope["state"]["request_context"]).browser_key(asked.role)
    made = BrowserKey(key=text, role=asked.role, stores=[*caller.stores], expires=format_time(caller.expires_at or 0))
    return answer(msgspec.json.encode(made))


HANDLERS: tuple[HTTPRouteHandler, ...] = (
    *routes(USE_CASES),
    memories.entity_history,
    memories.search_memories,
    memories.recall_memories,
    memories.recall_memories_by,
    memories.children,
    memories.descendants,
    memories.ancestors,
    cypher.cypher,
    transfer.import_store,
    transfer.export_store,
    events.store_events,
    events.events,
    metrics.metrics,
    browser_key,
    openapi.openapi,
    openapi.openapi_30,
    openapi.docs,
    openapi.docs_style,
    openapi.docs_script,
    explorer.page,
    explorer.part,
)


def _options(path: str) -> HTTPRouteHandler:
    """OPTIONS of one path. Litestar's own names the methods of the first handler of a path only."""
    methods = {method for handler in HANDLERS if path in handler.paths for method in handler.http_methods}
    heads = {"HEAD"} if "GET" in methods else set[str]()
    allow = ", ".join(sorted(methods | heads | {"OPTIONS"}))

    async def options() -> Response[None]:
        return Response(None, headers={"allow": allow})

    return HTTPRouteHandler(path, http_method="OPTIONS", status_code=204)(options)


# Those for OPTIONS come first: Litestar adds its own to a path that has none when another handler arrives.
ROUTES = (*(_options(path) for path in sorted({path for handler in HANDLERS for path in handler.paths})), *HANDLERS)
