"""Every handler of the REST interface."""

from __future__ import annotations

from litestar import Response
from litestar.handlers import HTTPRouteHandler

from kgserve.http import (
    backup,
    cypher,
    edges,
    entities,
    events,
    health,
    history,
    inject,
    metrics,
    nodes,
    openapi,
    schema,
    search,
    stores,
    transfer,
    traverse,
    versioned,
)

HANDLERS: tuple[HTTPRouteHandler, ...] = (
    inject.inject,
    nodes.delete_node,
    edges.delete_edge,
    traverse.traverse,
    stores.list_stores,
    stores.create_store,
    stores.store_settings,
    stores.update_store,
    stores.drop_store,
    stores.store_stats,
    nodes.list_nodes,
    nodes.get_node,
    schema.describe_schema,
    schema.list_tags,
    versioned.outgoing,
    versioned.incoming,
    versioned.put_one_node,
    versioned.put_some,
    versioned.retire_node,
    versioned.retire_edge,
    versioned.get_edge,
    versioned.delete_edge_by_id,
    history.node_history,
    history.revert_node,
    history.changes,
    history.restore,
    history.prune_history,
    entities.entity_history,
    backup.backup_store,
    backup.backup,
    backup.restore,
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
    metrics.metrics,
    openapi.openapi,
    openapi.docs,
    openapi.docs_style,
    openapi.docs_script,
)


def _options(path: str) -> HTTPRouteHandler:
    """OPTIONS of one path. Litestar's own names the methods of the first handler of a path only."""
    methods = {method for handler in HANDLERS if path in handler.paths for method in handler.http_methods}
    allow = ", ".join(sorted(methods | {"OPTIONS"}))

    async def options() -> Response[None]:
        return Response(None, headers={"allow": allow})

    return HTTPRouteHandler(path, http_method="OPTIONS", status_code=204)(options)


# Those for OPTIONS come first: Litestar adds its own to a path that has none when another handler arrives.
ROUTES = (*(_options(path) for path in sorted({path for handler in HANDLERS for path in handler.paths})), *HANDLERS)
