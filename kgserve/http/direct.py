"""Operations that are answered on the event loop, without the router.

The router, its request and its response take longer than a short operation itself. An operation that is declared
`direct` is found by the edge and called with what it needs; what it answers is JSON already. It stays among the routes,
which describe it, and through which it would be answered the same.

It is a function from a `Call` to bytes. One that may block, or may take more than a millisecond, answers with something
to wait for instead: `Service.reading` and `Service.writing` run work in their threads, `Service.settled` waits for a
store's writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import msgspec
from litestar import Request, Response

from kgserve.http.body import json_of
from kgserve.http.connection import in_task
from kgserve.http.operation import KEY, Operation
from kgserve.http.parameters import decoded, query_of
from kgserve.http.service import Answer, answer, service_of

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler
    from litestar.types import HTTPScope, Receive

    from kgserve.access.authentication import RequestContext
    from kgserve.http.service import Service

B = TypeVar("B")
Q = TypeVar("Q", bound=msgspec.Struct)

WORK = "direct"
"""The key of a handler's ``opt`` for the function that does its work."""
_PARAMETER = None
_HERE = "/"


class Call(Generic[B]):
    """One request to an operation, from a caller that may make it. ``body`` is decoded; None where none is taken.

    ``service`` shows the caller's stores alone.
    """

    __slots__ = ("_given", "_query", "body", "service")

    def __init__(self, service: Service, given: Mapping[str, str], query: bytes, body: B) -> None:
        self.service = service
        self.body = body
        self._given = given
        self._query = query

    def text(self, name: str) -> str:
        """The path parameter ``name``, decoded. Raises InvalidInput."""
        return decoded(self._given[name], name)

    def query(self, into: type[Q]) -> Q:
        """The query as ``into``. Raises InvalidInput."""
        return query_of(self._query, into)


class DirectOperation(NamedTuple):
    """An operation, where it is, and the function that answers it."""

    template: str
    operation: Operation
    work: Callable[[Call[Any]], Answer]

    async def answered(self, scope: HTTPScope, receive: Receive, service: Service) -> bytes:
        """The JSON of the answer, for a caller that may have it. Raises as the work and as `read_json`."""
        taken = self.operation.request
        body = taken and await json_of(scope["headers"], receive, service, cast("type[msgspec.Struct]", taken.struct))
        found = self.work(Call(service, scope["path_params"], scope["query_string"], body))
        if isinstance(found, bytes):
            return found
        await in_task()
        return await found


def direct(route: HTTPRouteHandler) -> Callable[[Callable[[Call[Any]], Answer]], HTTPRouteHandler]:
    """Make a function from a `Call` the handler of ``route``, whose ``opt`` holds its Operation."""

    def registered(work: Callable[[Call[Any]], Answer]) -> HTTPRouteHandler:
        found = DirectOperation("", route.opt[KEY], work)

        async def routed(request: Request[Any, Any, Any]) -> Response[bytes]:
            return answer(await found.answered(request.scope, request.receive, service_of(request)))

        routed.__name__, routed.__doc__ = work.__name__, work.__doc__
        route.opt[WORK] = work
        return route(routed)

    return registered


class Shortcuts(NamedTuple):
    """The direct operations of an application, and what they work with."""

    directory: Directory
    service: Service

    def find(self, scope: HTTPScope) -> DirectOperation | None:
        """The operation that a request is for; the scope is told where it is. None for what the router must see."""
        found = self.directory.find(scope["method"], scope["path"])
        if found is None:
            return None
        operation, scope["path_params"] = found
        scope["path_template"] = operation.template
        return operation

    async def answered(self, found: DirectOperation, scope: HTTPScope, receive: Receive) -> bytes:
        """The JSON of the answer, if the caller may have it."""
        context = cast("RequestContext", scope["state"]["request_context"])
        context.authorize(scope["path_params"].get("store"), found.operation.id, found.operation.role)
        caller = context.caller
        return await found.answered(scope, receive, self.service if caller.sees_all else self.service.seen_by(caller))


class Directory:
    """Finds direct operations. Knows all routes, because a path that names one of them may look like another's."""

    def __init__(self, handlers: Iterable[HTTPRouteHandler]) -> None:
        self._tree: dict[str | None, Any] = {}
        for handler in handlers:
            self.add(handler)

    def add(self, handler: HTTPRouteHandler) -> None:
        """Take a handler in, direct or not."""
        for path in handler.paths:
            self._add(path.replace(":str", ""), handler)

    def _add(self, template: str, handler: HTTPRouteHandler) -> None:
        node = self._tree
        for segment in template.split("/"):
            node = node.setdefault(_PARAMETER if segment.startswith("{") else segment, {})
        methods = node.setdefault(_HERE, {})
        if work := handler.opt.get(WORK):
            names = tuple(segment[1:-1] for segment in template.split("/") if segment.startswith("{"))
            operation = DirectOperation(template, handler.opt[KEY], work)
            methods |= dict.fromkeys(map(str, handler.http_methods), (operation, names))

    def find(self, method: str, path: str) -> tuple[DirectOperation, dict[str, str]] | None:
        """The operation at a path as it was sent, and its path parameters; None for what the router must see."""
        node, given = self._tree, list[str]()
        for segment in path.split("/"):
            deeper = node.get(segment)
            if deeper is None:
                deeper = node.get(_PARAMETER)
                if deeper is None:
                    return None
                given.append(segment)
            node = deeper
        found = node.get(_HERE, {}).get(method)
        return found and (found[0], dict(zip(found[1], given, strict=True)))
