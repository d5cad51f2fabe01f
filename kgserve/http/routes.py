"""Every handler of the REST interface."""

from __future__ import annotations

from litestar import Response
from litestar.handlers import HTTPRouteHandler

from kgserve.http import cypher, docs, edges, events, health, history, inject, nodes, search, stores, transfer, traverse

_HANDLERS: tuple[HTTPRouteHandler, ...] = (
    inject.inject,
    nodes.delete_node,
    edges.delete_edge,
    traverse.traverse,
    stores.list_stores,
    stores.create_store,
    stores.drop_store,
    stores.store_stats,
    nodes.list_nodes,
    nodes.get_node,
    history.node_history,
    history.revert_node,
    history.changes,
    history.restore,
    stores.reindex,
    search.search,
    search.search_batch,
    search.context,
    cypher.cypher,
    transfer.import_store,
    transfer.export_store,
    events.store_events,
    events.events,
    health.health,
    health.ready,
    docs.openapi,
    docs.docs,
    docs.docs_style,
    docs.docs_script,
)


def _options(path: str) -> HTTPRouteHandler:
    """OPTIONS of one path. Litestar's own names the methods of the first handler of a path only."""
    methods = {method for handler in _HANDLERS if path in handler.paths for method in handler.http_methods}
    allow = ", ".join(sorted(methods | {"OPTIONS"}))

    async def options() -> Response[None]:
        return Response(None, headers={"allow": allow})

    return HTTPRouteHandler(path, http_method="OPTIONS", status_code=204)(options)


# Those for OPTIONS come first: Litestar adds its own to a path that has none when another handler arrives.
ROUTES = (*(_options(path) for path in sorted({path for handler in _HANDLERS for path in handler.paths})), *_HANDLERS)
