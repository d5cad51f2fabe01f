"""Stores and their nodes as resources.

``kgserve://stores`` is the list, ``kgserve://NAME`` a store, ``kgserve://NAME/ID`` a node, with name and id
percent-encoded. A store that is called ``stores`` is ``kgserve://%73tores``: what is compared is the URI as sent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import structlog
from mcp import MCPError, types
from mcp.server.context import ServerRequestContext

from kgserve.access.caller import Hidden
from kgserve.errors import Internal, InvalidInput, KgserveError, NotFound
from kgserve.mcp import budget
from kgserve.mcp.calls import internal_error, visit_of
from kgserve.mcp.store_tools import describe
from kgserve.mcp.work import Work
from kgserve.model.answers import NodeAnswer
from kgserve.model.queries import NodeRequest
from kgserve.ops import nodes, stores
from kgserve.ops.graph import as_struct

log = structlog.get_logger()

Context = ServerRequestContext[Any, Any]

SCHEME = "kgserve://"
STORES = f"{SCHEME}stores"
JSON = "application/json"
PAGE = 100
EDGE_BYTES = 500_000
RESOURCE_NOT_FOUND = -32002

_TEMPLATES = types.ListResourceTemplatesResult(
    resource_templates=[
        types.ResourceTemplate(
            name="store",
            title="A store",
            uri_template="kgserve://{store}",
            description="What a store holds: types with counts and examples, relation types with counts",
            mime_type=JSON,
        ),
        types.ResourceTemplate(
            name="entity",
            title="An entity",
            uri_template="kgserve://{store}/{id}",
            description="One entity with its relations; the id is percent-encoded",
            mime_type=JSON,
        ),
    ]
)


class Resources:
    """The resources over some stores."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        """The list of stores, then each store, by name. The cursor is the last name of the page before."""
        after = unquote(params.cursor) if params and params.cursor else ""
        work = self._work.seen_by(visit_of(context).caller)
        names = await work.read(work.graphs.pool.names)
        later = [name for name in names if name > after]
        page = [_store(name) for name in later[:PAGE]]
        cursor = quote(later[PAGE - 1]) if len(later) > PAGE else None
        return types.ListResourcesResult(resources=page if after else [_LIST, *page], next_cursor=cursor)

    async def templates(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
        """What can be read beyond the list."""
        return _TEMPLATES

    async def read(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """One resource as JSON. Raises MCPError."""
        visit = visit_of(context)
        try:
            text = await self._work.read(_encoded, _reader(self._work.seen_by(visit.caller), params.uri))
        except (NotFound, InvalidInput) as error:
            if isinstance(error, Hidden):
                visit.denied("404", act="resources/read", store=error.store)
            code = types.INVALID_PARAMS if context.protocol_version >= "2026" else RESOURCE_NOT_FOUND
            raise MCPError(code, str(error), {"uri": params.uri}) from None
        except Internal:
            log.exception("internal_error", uri=params.uri)
            raise MCPError(types.INTERNAL_ERROR, internal_error()) from None
        except KgserveError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        except Exception:
            log.exception("internal_error", uri=params.uri)
            raise MCPError(types.INTERNAL_ERROR, internal_error()) from None
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, mime_type=JSON, text=text)]
        )


def _reader(work: Work, uri: str) -> Callable[[], Any]:
    if uri == STORES:
        return partial(stores.list_stores, work.graphs)
    if not uri.startswith(SCHEME):
        raise NotFound(f"{uri[:200]!r} is not a resource of this server; its URIs start with {SCHEME}")
    name, slash, node = uri.removeprefix(SCHEME).partition("/")
    if not slash:
        return partial(describe, work, unquote(name))
    return partial(_node, work, unquote(name), unquote(node))


def _node(work: Work, store: str, node: str) -> Any:
    found = as_struct(nodes.get_node(work.graphs.graph(store), NodeRequest(node_id=node)), NodeAnswer)
    outgoing, incoming = (budget.first_fitting(edges, EDGE_BYTES) for edges in (found.outgoing, found.incoming))
    cut = len(outgoing) < len(found.outgoing) or len(incoming) < len(found.incoming)
    return msgspec.structs.replace(
        found, outgoing=outgoing, incoming=incoming, edges_truncated=found.edges_truncated or cut
    )


_LIST = types.Resource(
    name="stores", title="All stores", uri=STORES, description="Names, counts and sizes of all stores", mime_type=JSON
)


def uri_of(store: str) -> str:
    """The URI of a store."""
    return f"{SCHEME}%73tores" if store == "stores" else f"{SCHEME}{quote(store, safe='')}"


def _store(name: str) -> types.Resource:
    description = f"What the store {name} holds"
    return types.Resource(name=name, uri=uri_of(name), description=description, mime_type=JSON)


def _encoded(work: Callable[[], Any]) -> str:
    return msgspec.json.encode(work()).decode()
