"""Completion of arguments: of the prompts, and of what the templates of resources leave open."""

from __future__ import annotations

from collections.abc import Callable

from mcp import MCPError, types

from kgserve.access.caller import Hidden
from kgserve.errors import InvalidInput, NotFound
from kgserve.mcp.calls import Context, Threads, default_store, visit_of
from kgserve.mcp.failures import as_protocol_errors
from kgserve.mcp.prompts import prompt_named
from kgserve.mcp.uris import ENTITY_TEMPLATE, MEMORY_TEMPLATE, STORE_TEMPLATE
from kgserve.ops.completing import MOST, ids_like, stores_like, tags_like, types_like
from kgserve.ops.graph import Graph, Graphs

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
        graphs = self._graphs.seen_by(visit.caller)
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
