"""Use cases over HTTP: read the request, run the function, answer with its JSON; without the router where it can be.

The router, its request and its response take longer than a short operation itself. So the edge finds a use case here
and has it answered, as bytes. It stays among the routes, which describe it, and through which it is answered the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote

import msgspec
import msgspec.inspect
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler

from kgserve.access.caller import Hidden
from kgserve.decoding import kind_of
from kgserve.errors import NoStore
from kgserve.http.connection import in_task
from kgserve.http.problem import RENAMED
from kgserve.http.service import (
    NAMES,
    NAMES_ASKED,
    NONE,
    OF_DEFAULT,
    answer,
    asked_store,
    asks_versioned_names,
    bear_with_copies,
    decoded,
    json_of,
    query_of,
    service_of,
)
from kgserve.model.versioned_names import VERSIONED_JSON, renamed
from kgserve.operations.operation import ALIAS, STORE_PARAMETER, Operation, UseCase, described
from kgserve.rows.walk import TooLong
from kgserve.store.pool import NotOpen

if TYPE_CHECKING:
    from litestar.types import HTTPScope, Receive

    from kgserve.access.authentication import RequestContext
    from kgserve.http.service import Service
    from kgserve.operations.operation import Method
    from kgserve.ops.graph import Graph

SHORT_WRITE = 50
"""Rows that a write may have to be checked where it arrives."""
CASE = "use_case"
"""The key of a handler's ``opt`` for the use case that it is."""
_CREATED = 201
_PARAMETER = None
_HERE = "/"


class DirectOperation(NamedTuple):
    """A use case, where it is, and how its request is read from path parameters, query and body."""

    template: str
    case: UseCase
    read: Callable[[Mapping[str, str], bytes, Any], msgspec.Struct | None]

    @property
    def operation(self) -> Operation:
        """What is said of it."""
        return self.case.operation

    async def answered(self, scope: HTTPScope, receive: Receive, service: Service) -> bytes:
        """The JSON of the answer, for a caller that may have it. Raises as the use case and as `read_json`."""
        target, request = await self._request(scope, receive, service)
        try:
            return await self._found(target, request, service)
        except NoStore as error:
            if self.case.nothing is None or not is_yet_to_be_made(error, target):
                raise
            return msgspec.json.encode(self.case.nothing)

    async def _found(self, target: Any, request: Any, service: Service) -> bytes:
        found = self._at_once(target, request)
        if isinstance(found, bytes):
            return found
        await in_task()
        if found is not None:
            return await service.settled(found)
        case = self.case
        return await service.in_threads(case.threads, lambda: _json_of(case.ask(target, request)))

    def _at_once(self, target: Any, request: Any) -> bytes | Future[Any] | None:
        """JSON, or a write that was queued; None for what is not short, or has to wait."""
        case = self.case
        rows = case.short(request) if callable(case.short) else case.short
        if rows is None or rows > SHORT_WRITE:
            return None
        with suppress(NotOpen, TooLong):
            return case.run(target.at_once(), request) if case.of_store else case.run(target)
        return None

    async def routed(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        """The same, asked for through the router."""
        service, scope = service_of(request), request.scope
        if self.case.status is None:
            versioned = self.case.takes_names and asks_versioned_names(scope["query_string"])
            if versioned:
                scope["state"][RENAMED] = True
            found = await self.answered(scope, request.receive, service)
            return Response(renamed(found), media_type=VERSIONED_JSON) if versioned else answer(found)
        target, asked = await self._request(scope, request.receive, service)
        made = await service.begun_in_threads(self.case.threads, partial(self.case.ask, target, asked))
        response = answer(msgspec.json.encode(made), self.case.status(made))
        if self.case.location and response.status_code == _CREATED:
            named = asked_store(scope, "")
            where = f"?{STORE_PARAMETER}={quote(named.name)}" if named.named else ""
            response.headers["location"] = self.case.location(made) + where
        return response

    async def _request(self, scope: HTTPScope, receive: Receive, service: Service) -> tuple[Any, msgspec.Struct | None]:
        """The graph that it is about, or all of them, and the request."""
        case, given = self.case, scope["path_params"]
        body = None
        if case.in_body:
            body = await json_of(
                scope["headers"], receive, service, cast("type[msgspec.Struct]", case.sent), optional=case.optional
            )
        graphs = service.graphs
        target = graph_of(scope, service) if case.of_store else graphs
        request = self.read(given, scope["query_string"], body)
        if case.administers is not None and case.administers(request):
            cast("RequestContext", scope["state"]["request_context"]).administer()
        return target, request


def graph_of(scope: HTTPScope, service: Service) -> Graph:
    """The store that a request is about: that of its path, or what it says otherwise."""
    given = scope["path_params"].get("store")
    if given is not None:
        return service.graphs.graph(decoded(given, "store"))
    asked = asked_store(scope, service.settings.default_store)
    return service.graphs.graph(asked.name, is_default=not asked.named)


def store_of(scope: HTTPScope, service: Service) -> str:
    """The name of that store."""
    return graph_of(scope, service).name


def is_yet_to_be_made(error: NoStore, graph: Graph) -> bool:
    """Whether the store that is not there is the default one, which nobody has named."""
    return graph.is_default and error.store == graph.name and not isinstance(error, Hidden)


def routes(cases: Iterable[UseCase]) -> list[HTTPRouteHandler]:
    """Handlers for use cases."""
    return [_route(case, method) for case in cases for method in (case.method, *case.also)]


def _route(case: UseCase, method: Method) -> HTTPRouteHandler:
    path = case.path.replace("}", ":str}")
    opt = described(case.operation) | {CASE: case, ALIAS: method != case.method}
    route = HTTPRouteHandler(path, http_method=method, status_code=case.operation.statuses[0], opt=opt)
    found = DirectOperation("", case, _reader(case))

    async def routed(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await found.routed(request)

    routed.__name__, routed.__doc__ = case.name, case.description
    return route(routed)


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A query without anything but what is read elsewhere: the store, and names of fields."""


def _reader(case: UseCase) -> Callable[[Mapping[str, str], bytes, Any], msgspec.Struct | None]:
    request, sent, in_path = case.request, case.sent, case.in_path
    repeated = NONE if sent is None or case.in_body else _lists(sent)
    passed = OF_DEFAULT if case.operation.of_default else NONE
    # Some who probe add a query so that nothing in between answers.
    is_strict = case.path.startswith("/api/")

    def read(given: Mapping[str, str], query: bytes, body: Any) -> msgspec.Struct | None:
        others = passed | NAMES if case.takes_names and NAMES_ASKED in query else passed
        if query and is_strict and (sent is None or case.in_body):
            query_of(query, NoQuery, passed=others)
        if request is None:
            return None
        named = {field: decoded(given[wire], wire) for wire, field in in_path.items()}
        if sent is not None and not case.in_body:
            body = query_of(query, sent, repeated=repeated, passed=others)
        if not named:
            return body
        return request(**named, **(msgspec.structs.asdict(body) if body is not None else {}))

    return read


def _lists(query: type[msgspec.Struct]) -> frozenset[str]:
    """The parameters that may be given more than once."""
    fields = cast("msgspec.inspect.StructType", msgspec.inspect.type_info(query)).fields
    return frozenset(field.encode_name for field in fields if isinstance(kind_of(field.type), msgspec.inspect.ListType))


def _json_of(found: Any) -> Any:
    return found if isinstance(found, bytes | Future) else msgspec.json.encode(found)


def authorized_store(scope: HTTPScope, operation: Operation, service: Service) -> str | None:
    """The store that a request is about, if it is about one, percent-encoded as in a path."""
    if operation.of_default:
        return quote(asked_store(scope, service.settings.default_store).name, safe="")
    return scope["path_params"].get("store")


class Shortcuts(NamedTuple):
    """The direct operations of an application, and what they work with."""

    directory: Directory
    service: Service

    def find(self, scope: HTTPScope) -> DirectOperation | None:
        """The operation that a request is for; the scope is told where it is. None for what the router must see."""
        found = self.directory.find(scope["method"], scope["path"])
        if found is None or NAMES_ASKED in scope["query_string"]:
            return None
        operation, scope["path_params"] = found
        scope["path_template"] = operation.template
        return operation

    async def answered(self, found: DirectOperation, scope: HTTPScope, receive: Receive) -> bytes:
        """The JSON of the answer, if the caller may have it."""
        context = cast("RequestContext", scope["state"]["request_context"])
        store = authorized_store(scope, found.operation, self.service)
        context.authorize(store, found.operation.id, found.operation.role)
        asker, service = context.caller, self.service
        if asker is not service.graphs.caller:
            service = service.seen_by(asker)
        bear_with_copies(scope, found.operation)
        return await found.answered(scope, receive, service.reading(scope))


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
        case: UseCase | None = handler.opt.get(CASE)
        if case is not None and case.status is None:
            names = tuple(segment[1:-1] for segment in template.split("/") if segment.startswith("{"))
            found = DirectOperation(template, case, _reader(case))
            methods.update(dict.fromkeys((case.method, *case.also), (found, names)))

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
