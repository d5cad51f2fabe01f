"""Every handler of the REST interface."""

from __future__ import annotations

from litestar import Response
from litestar.handlers import HTTPRouteHandler

from kgserve.http import browser, cypher, entities, events, explorer, hierarchy, memories, metrics, openapi, transfer
from kgserve.http.direct import routes
from kgserve.operations.table import USE_CASES

HANDLERS: tuple[HTTPRouteHandler, ...] = (
    *routes(USE_CASES),
    entities.entity_history,
    memories.search_memories,
    memories.recall_memories,
    memories.recall_memories_by,
    hierarchy.children,
    hierarchy.descendants,
    hierarchy.ancestors,
    cypher.cypher,
    transfer.import_store,
    transfer.export_store,
    events.store_events,
    events.events,
    metrics.metrics,
    browser.browser_key,
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
