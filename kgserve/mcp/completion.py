"""Completion of arguments: of the prompts, and of what the templates of resources leave open."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice, takewhile

from mcp import MCPError, types

from kgserve.access.authentication import Hidden
from kgserve.catalog.catalog import Catalog
from kgserve.errors import InvalidInput, NotFound
from kgserve.mcp.calls import Context, default_store, visit_of
from kgserve.mcp.failures import as_protocol_errors
from kgserve.mcp.prompts import prompt_named
from kgserve.mcp.uris import ENTITY_TEMPLATE, MEMORY_TEMPLATE, STORE_TEMPLATE
from kgserve.model.fields import MAX_ID_BYTES
from kgserve.ops.graph import Graph, Graphs, Threads

MOST = 100
"""Names that are given at once."""


def stores_like(graphs: Graphs, start: str) -> list[str]:
    """The stores whose names start so, in order; at most one more than `MOST`."""
    return [name for name in graphs.pool.names() if name.startswith(start)][: MOST + 1]


def ids_like(graph: Graph, start: str) -> list[str]:
    """The ids that start so, in order; at most one more than `MOST`. Raises NotFound for the store."""
    if not _may_begin(start):
        return []
    with graph.lease() as store, store.reading() as rows:
        behind = takewhile(lambda node_id: node_id.startswith(start), rows.ids_behind(start))
        return list(islice(chain([start] if rows.has(start) else [], behind), MOST + 1))


def types_like(graph: Graph, start: str) -> list[str]:
    """The node types that start so, the most frequent first; at most one more than `MOST`. Raises NotFound."""
    return _listed(graph, start, lambda catalog: catalog.types_like(start, MOST + 1))


def tags_like(graph: Graph, start: str) -> list[str]:
    """The tags that start so, the most frequent first; at most one more than `MOST`. Raises NotFound."""
    return _listed(graph, start, lambda catalog: [each.tag for each in catalog.tags(start, MOST + 1)])


def _listed(graph: Graph, start: str, question: Callable[[Catalog], list[str]]) -> list[str]:
    if not _may_begin(start):
        return []
    with graph.lease() as store:
        return store.listing(lambda catalog, _: question(catalog))


def _may_begin(start: str) -> bool:
    """Whether a name can start so at all."""
    try:
        return len(start.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        return False


_STORE = "store"
_IN_A_STORE: dict[str, Callable[[Graph, str], list[str]]] = {
    "id": ids_like,
    "type": types_like,
    "tag": tags_like,
    "topic": tags_like,
}
"""What fits an argument, by its name. What a work is about is what tags name."""
_OF_TEMPLATES = {STORE_TEMPLATE: (_STORE,), MEMORY_TEMPLATE: (_STORE,), ENTITY_TEMPLATE: (_STORE, "id")}


class Completions:
    """What the stores of a caller have for an argument that begins so."""

    def __init__(self, graphs: Graphs, threads: Threads) -> None:
        self._graphs = graphs
        self._threads = threads

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        """At most 100 values. None for a store that is not there, or not the caller's. Raises MCPError."""
        name, start = params.argument.name, params.argument.value
        _check_argument(params.ref, name)
        chosen = (params.context.arguments or {}) if params.context else {}
        store = chosen.get(_STORE) or default_store(context) or ""
        with as_protocol_errors(argument=name):
            found = await self._threads.read(lambda: self._like(context, name, store, start))
        more = len(found) > MOST
        total = None if more else len(found)
        return types.CompleteResult(completion=types.Completion(values=found[:MOST], total=total, has_more=more))

    def _like(self, context: Context, name: str, store: str, start: str) -> list[str]:
        visit = visit_of(context)
        graphs = self._graphs.seen_by(visit.caller).near_enough()
        if name == _STORE:
            return stores_like(graphs, start)
        try:
            return _IN_A_STORE[name](graphs.graph(store), start) if store else []
        except Hidden as error:
            visit.denied("404", act=context.method, store=error.store)
        except (NotFound, InvalidInput):
            pass  # of a store whose name is still being typed there is nothing
        return []


def _check_argument(ref: types.ResourceTemplateReference | types.PromptReference, name: str) -> None:
    """Raises MCPError for a prompt, a template or an argument that there is not."""
    if isinstance(ref, types.PromptReference):
        known = tuple(prompt_named(ref.name).arguments)
    elif (known := _OF_TEMPLATES.get(ref.uri, ())) == ():
        templates = ", ".join(_OF_TEMPLATES)
        raise MCPError(types.INVALID_PARAMS, f"there is no template {ref.uri[:200]!r}; there are {templates}")
    if name not in known:
        raise MCPError(types.INVALID_PARAMS, f"there is no argument {name[:80]!r}; there are {', '.join(known)}")
