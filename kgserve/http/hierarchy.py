"""What stands above and below a memory, as bare arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from litestar import Request, Response, get

from kgserve.http.direct import store_of
from kgserve.http.parameters import OF_DEFAULT, path_text, query
from kgserve.http.service import answer, service_of
from kgserve.model.hierarchy import (
    AncestorsRequest,
    BelowQuery,
    BelowRequest,
    HierarchyQuery,
    PlacedMemory,
    PlacedPage,
)
from kgserve.operations import memory_examples as examples
from kgserve.operations.operation import READ, Body, Operation, described
from kgserve.ops import hierarchy as ops
from kgserve.ops.graph import Graph

_PATH = "/api/v1/memories/{id:str}"
_ERRORS = (*READ, "conflict", "gone", "too_large")
_LINK = (("Link", "The next page, as `<…>; rel=next`, if there may be one"),)


def _operation(name: str, summary: str, asked: type[msgspec.Struct], *, paged: bool) -> Operation:
    return Operation(
        id=name,
        role="read",
        tag="memories",
        summary=summary,
        query=asked,
        answer=Body(PlacedMemory, examples.PLACED, many=True),
        errors=_ERRORS,
        of_default=True,
        headers=_LINK if paged else (),
    )


_CHILDREN = _operation("childrenOfMemory", "What stands directly below a memory", BelowQuery, paged=True)
_DESCENDANTS = _operation("descendantsOfMemory", "What stands below a memory, at any depth", BelowQuery, paged=True)
_ANCESTORS = _operation("ancestorsOfMemory", "What a memory stands below, nearest first", HierarchyQuery, paged=False)


@get(f"{_PATH}/children", opt=described(_CHILDREN))
async def children(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The memories directly below one that are true now, or then with `as_of`, in the order of their ids."""
    return await _page(request, "children", ops.children)


@get(f"{_PATH}/descendants", opt=described(_DESCENDANTS))
async def descendants(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The memories below one that are true now, or then with `as_of`, in the order of their ids, each with its depth.

    A page ends at `limit`, or once it has looked at 20,000 memories: it may be short, or empty, with a `Link` to the
    next one. With `as_of` there may be 10,000 of them at most.
    """
    return await _page(request, "descendants", ops.descendants)


@get(f"{_PATH}/ancestors", opt=described(_ANCESTORS))
async def ancestors(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The memories above one that are true now, or then with `as_of`: its parent, the parent of that, up to 100."""
    wanted, service = query(request, HierarchyQuery, passed=OF_DEFAULT), service_of(request)
    asked = AncestorsRequest(memory_id=path_text(request, "id"), **msgspec.structs.asdict(wanted))
    graph = service.graphs.graph(store_of(request.scope, service))
    return answer(msgspec.json.encode(await service.call(ops.ancestors, graph, asked)))


async def _page(
    request: Request[Any, Any, Any], name: str, ask: Callable[[Graph, BelowRequest], PlacedPage]
) -> Response[bytes]:
    wanted, service = query(request, BelowQuery, passed=OF_DEFAULT), service_of(request)
    asked = BelowRequest(memory_id=path_text(request, "id"), **msgspec.structs.asdict(wanted))
    store = store_of(request.scope, service)
    found = await service.call(ask, service.graphs.graph(store), asked)
    response = answer(msgspec.json.encode(found.memories))
    if found.next is not None:
        again = {"store": store} | msgspec.structs.asdict(wanted) | {"cursor": found.next}
        parameters = urlencode({key: value for key, value in again.items() if value is not None})
        there = f"/api/v1/memories/{quote(asked.memory_id, safe='')}/{name}?{parameters}"
        response.headers["link"] = f"<{there}>; rel=next"
    return response
