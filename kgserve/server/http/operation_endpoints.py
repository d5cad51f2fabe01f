"""HTTP endpoints of the operations in the operation table.

An endpoint is called through `RouteTable`, which skips Litestar's router, request and response, or through a Litestar
route. Both give the same response. Why: docs/adr/0030-http-fast-path.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import quote

import msgspec
import msgspec.inspect
from litestar import Request, Response

from kgserve.api.operation import STORE_PARAMETER, ApiOperation, ApiUseCase
from kgserve.errors import NoStore
from kgserve.graph.compat.versioned_nodes_field_names import VERSIONED_JSON_MEDIA_TYPE, rename_json_to_versioned_fields
from kgserve.platform.codecs import unwrap_optional_type
from kgserve.platform.media_types import JSON_MEDIA_TYPE
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.projections.cypher_engine.engine.fair_pool import current_caller
from kgserve.server.http.error_responses import VERSIONED_NAMES_STATE_KEY
from kgserve.server.http.request_decoding import (
    FIELD_NAMES_PARAMETER_BYTES,
    NO_PARAMETERS,
    RENAMING_PARAMETERS,
    STORE_SELECTION_PARAMETERS,
    RequestHandlerDependencies,
    decode_json_body,
    decode_path_segment,
    decode_query_parameters,
    get_request_dependencies,
    get_request_store,
    is_missing_default_store,
    select_request_store,
    wants_versioned_field_names,
)

if TYPE_CHECKING:
    from litestar.response.base import ASGIResponse
    from litestar.types import HTTPScope, Receive

    from kgserve.platform.access.authentication import RequestContext

MAX_INLINE_WRITE_ROWS = 50
"""Rows of the largest write that is validated on the event loop."""
MAX_INLINE_READ_ROWS = 200
"""Rows of the largest read that runs on the event loop, where it takes about half a millisecond."""
MAX_UNQUEUED_READ_ROWS = 10
"""Rows of the largest read that never waits for a turn of the event loop."""
ENDPOINT_OPT_KEY = "endpoint"
"""Key of a handler's ``opt`` for the `DirectEndpoint` that gives its answers."""
_STATUS_CREATED = 201


def build_response_from_encoded_json(body: bytes, status: int = 200) -> Response[bytes]:
    """Return a JSON response for a body that is already encoded."""
    return Response(body, status_code=status, media_type=JSON_MEDIA_TYPE)


class NoQueryParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Query that allows no parameters except those that other code reads: the store and ``field_names``."""


class DirectAsgiEndpoint(Protocol):
    """Endpoint that `RouteTable` calls without Litestar."""

    operation: ApiOperation
    path: str

    async def answer(
        self, scope: HTTPScope, receive: Receive, service: RequestHandlerDependencies
    ) -> bytes | ASGIResponse:
        """Return the answer as JSON, or another response."""
        ...


class OperationEndpoint:
    """Endpoint of one operation: decodes the request, runs the operation and encodes the answer."""

    def __init__(self, case: ApiUseCase) -> None:
        self.case = case
        self.operation, self.path = case.operation, case.path
        self._request, self._sent, self._in_path = case.request, case.sent, case.path_fields
        query = None if case.in_body else self._sent
        self._query = query
        self._repeated = NO_PARAMETERS if query is None else _list_parameters(query)
        self._passed = STORE_SELECTION_PARAMETERS if case.operation.of_default else NO_PARAMETERS
        # Probes of health checkers may add a query to bypass caches.
        self._refuses_query = query is None and case.path.startswith("/api/")
        self._needs_query = query is not None and any(field.required for field in msgspec.structs.fields(query))

    async def answer(self, scope: HTTPScope, receive: Receive, service: RequestHandlerDependencies) -> bytes:
        """Return the answer as JSON. Raises the errors of the operation and of `decode_json_body`."""
        target, request = await self._read(scope, receive, service)
        try:
            if self.case.threads != "writes":
                return await self._run(target, request, service)
            async with service.admission.write_slot():
                return await self._run(target, request, service)
        except NoStore as error:
            if self.case.nothing is None or not is_missing_default_store(error, target):
                raise
            return msgspec.json.encode(self.case.nothing)

    async def respond(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        """Answer a request that came through Litestar's router."""
        scope, service = request.scope, get_request_dependencies(request)
        if self.case.status is not None:
            return await self._respond_with_status(scope, request.receive, service)
        versioned = self.case.takes_names and wants_versioned_field_names(scope["query_string"])
        if versioned:
            scope["state"][VERSIONED_NAMES_STATE_KEY] = True
        found = await self.answer(scope, request.receive, service)
        return (
            Response(rename_json_to_versioned_fields(found), media_type=VERSIONED_JSON_MEDIA_TYPE)
            if versioned
            else build_response_from_encoded_json(found)
        )

    async def _respond_with_status(
        self, scope: HTTPScope, receive: Receive, service: RequestHandlerDependencies
    ) -> Response[bytes]:
        case = self.case
        target, asked = await self._read(scope, receive, service)
        async with self._write_slot(service):
            made = await service.admission.run(case.threads, self._ask, target, asked)
            if isinstance(made, Future):
                made = await service.callbacks.result(cast("Future[Any]", made))
        response = build_response_from_encoded_json(
            msgspec.json.encode(made), case.status(made) if case.status else 200
        )
        if case.location and response.status_code == _STATUS_CREATED:
            named = select_request_store(scope, "")
            where = f"?{STORE_PARAMETER}={quote(named.name)}" if named.named else ""
            response.headers["location"] = case.location(made) + where
        return response

    def _write_slot(self, service: RequestHandlerDependencies) -> Any:
        """Return the context in which a write runs; a caller with many concurrent writes waits to enter it."""
        return service.admission.write_slot() if self.case.threads == "writes" else nullcontext()

    async def _run(self, target: Any, request: Any, service: RequestHandlerDependencies) -> bytes:
        found = await self._run_inline(target, request, service)
        if found is None:
            found = await service.admission.run(self.case.threads, self._ask_encoded, target, request)
        if isinstance(found, Future):
            found = await service.callbacks.result(found)
        return found if isinstance(found, bytes) else msgspec.json.encode(found)

    async def _run_inline(
        self, target: Any, request: Any, service: RequestHandlerDependencies
    ) -> bytes | Future[Any] | None:
        """Return JSON, or the future of a queued write; None if the operation is not short or would block."""
        case = self.case
        rows = case.short(request) if callable(case.short) else case.short
        is_write = case.threads == "writes"
        if rows is None or rows > (MAX_INLINE_WRITE_ROWS if is_write else MAX_INLINE_READ_ROWS):
            return None
        if case.of_store:
            target = target.nonblocking_handle()
        waits = not is_write and rows > MAX_UNQUEUED_READ_ROWS
        if waits and service.admission.read_turns.is_waiting(current_caller.get()):
            return None  # a try that would block costs the event loop up to a millisecond
        try:
            if not waits:
                return self._ask_encoded(target, request)
            async with service.admission.loop_reads.one():
                return self._ask_encoded(target, request)
        except WouldBlock:
            return None

    def _ask(self, target: Any, request: Any) -> Any:
        return self.case.run(target) if request is None else self.case.run(target, request)

    def _ask_encoded(self, target: Any, request: Any) -> bytes | Future[Any]:
        found = self._ask(target, request)
        return found if isinstance(found, bytes | Future) else msgspec.json.encode(found)

    async def _read(
        self, scope: HTTPScope, receive: Receive, service: RequestHandlerDependencies
    ) -> tuple[Any, msgspec.Struct | None]:
        """Return the store of a request, or all stores, and the decoded request."""
        case = self.case
        body = None
        if case.in_body:
            sent = cast("type[msgspec.Struct]", self._sent)
            body = await decode_json_body(scope["headers"], receive, service, sent, optional=case.optional)
        target = get_request_store(scope, service) if case.of_store else service.graphs
        request = self._decode(scope["path_params"], scope["query_string"], body)
        if case.administers is not None and case.administers(request):
            cast("RequestContext", scope["state"]["request_context"]).require_admin()
        return target, request

    def _decode(self, given: Mapping[str, str], query: bytes, body: msgspec.Struct | None) -> msgspec.Struct | None:
        """Return the request built from path parameters, query and body; None for an operation without a request."""
        has_names = self.case.takes_names and FIELD_NAMES_PARAMETER_BYTES in query
        passed = self._passed | RENAMING_PARAMETERS if has_names else self._passed
        if query and self._refuses_query:
            decode_query_parameters(query, NoQueryParameters, passed=passed)
        elif self._query is not None:
            is_given = query or self._needs_query
            body = (
                decode_query_parameters(query, self._query, repeated=self._repeated, passed=passed)
                if is_given
                else self._query()
            )
        if self._request is None or not self._in_path:
            return body
        named = {field: decode_path_segment(given[wire], wire) for wire, field in self._in_path.items()}
        return self._request(**named, **(msgspec.structs.asdict(body) if body is not None else {}))


def _list_parameters(query: type[msgspec.Struct]) -> frozenset[str]:
    """Return the names of the parameters that may be repeated."""
    fields = cast("msgspec.inspect.StructType", msgspec.inspect.type_info(query)).fields
    return frozenset(
        field.encode_name for field in fields if isinstance(unwrap_optional_type(field.type), msgspec.inspect.ListType)
    )
