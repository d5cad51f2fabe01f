"""Endpoint of Cypher statements."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import msgspec
from litestar import Request, post
from litestar.response.base import ASGIResponse
from typing_extensions import override

from kgserve.api import examples
from kgserve.api.operation import READ_ERRORS, ApiBodyExample, ApiOperation, build_litestar_opt
from kgserve.errors import InvalidInput
from kgserve.graph.answers import CypherAnswer
from kgserve.graph.cypher.engine_read_statements import StatementCancellation
from kgserve.graph.cypher.result_streams import (
    MAX_RESULT_MEMORY_BYTES,
    CypherResultTextStream,
    ResultTextFormat,
    StartedEngineReadStatement,
    stream_statement_result,
    try_answer_known_point_lookup,
)
from kgserve.graph.cypher.statement_execution import get_remembered_statement_route, run_cypher_request
from kgserve.graph.request_bodies import CypherRequest
from kgserve.platform.media_types import CSV_MEDIA_TYPE, JSON_MEDIA_TYPE, NDJSON_MEDIA_TYPE
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.projections.cypher_engine.engine.process import EngineProcessDied
from kgserve.server.http.connection import ensure_running_in_task
from kgserve.server.http.error_responses import ClientDisconnected
from kgserve.server.http.import_export_endpoints import ChunkStreamResponse
from kgserve.server.http.operation_endpoints import ENDPOINT_OPT_KEY
from kgserve.server.http.request_decoding import (
    RequestHandlerDependencies,
    decode_json_body,
    get_request_dependencies,
    get_request_store,
    wait_for_disconnect,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from litestar.types import HTTPScope, Receive, Scope, Send

    from kgserve.graph.store_handle import StoreHandle
    from kgserve.platform.access.authentication import RequestContext

WorkResult = TypeVar("WorkResult")

CYPHER_INTERRUPT_SECONDS = 0.05
_encode = msgspec.json.Encoder().encode
_FORMATS: dict[str, ResultTextFormat] = {NDJSON_MEDIA_TYPE: "ndjson", CSV_MEDIA_TYPE: "csv"}
_ANY_FORM = {JSON_MEDIA_TYPE, "application/*", "*/*"}

_CYPHER = ApiOperation(
    id="cypher",
    role="read",
    tag="cypher",
    summary="Run one Cypher statement",
    note="Syntax and limits: [Cypher](cypher.md).",
    request=ApiBodyExample(CypherRequest, examples.CYPHER_REQUEST_EXAMPLE),
    answer=ApiBodyExample(CypherAnswer, examples.CYPHER_ANSWER_EXAMPLE),
    others=(
        ApiBodyExample(None, examples.CYPHER_NDJSON_EXAMPLE, NDJSON_MEDIA_TYPE),
        ApiBodyExample(None, examples.CYPHER_CSV_EXAMPLE, CSV_MEDIA_TYPE),
    ),
    errors=(*READ_ERRORS, "conflict", "too_large", "unsupported", "storage_full"),
)


class CypherEndpoint:
    """Runs one statement. A lookup whose text is known is answered on the event loop, all others in threads."""

    operation = _CYPHER
    path = "/api/memory/{store}/cypher"

    async def answer(
        self, scope: HTTPScope, receive: Receive, service: RequestHandlerDependencies
    ) -> bytes | ASGIResponse:
        """Return the answer as JSON, or the response that streams it.

        Raises the errors of the operation and of `decode_json_body`.
        """
        asked = await decode_json_body(scope["headers"], receive, service, CypherRequest)
        if asked.mode == "write":
            cast("RequestContext", scope["state"]["request_context"]).caller.require("write")
        graph, media = get_request_store(scope, service), _media(_accept(scope))
        known = None
        if media is None and (route := get_remembered_statement_route(asked)) is not None:
            known = (
                try_answer_known_point_lookup(graph, asked)
                if route == "lookup"
                else await _try_answer_by_engine(graph, asked, receive, service)
            )
        return await self._run(graph, asked, media, receive, service) if known is None else known

    async def _run(
        self,
        graph: StoreHandle,
        asked: CypherRequest,
        media: str | None,
        receive: Receive,
        service: RequestHandlerDependencies,
    ) -> bytes | ASGIResponse:
        control = StatementCancellation()
        await ensure_running_in_task()
        if asked.mode == "write" and media is None:
            written = service.admission.run("writing_statements", run_cypher_request, graph, asked, control)
            return _encode(await _while_present(receive, control, written))
        form = "json" if media is None else _FORMATS[media]
        reading = service.admission.run("statements", stream_statement_result, graph, asked, form, control)
        rows = await _while_present(receive, control, reading)
        return _answer_with_rows(service, rows, media)


def _answer_with_rows(
    service: RequestHandlerDependencies, rows: CypherResultTextStream, media: str | None
) -> bytes | ASGIResponse:
    if media is None and rows.size <= MAX_RESULT_MEMORY_BYTES:
        with closing(rows):
            return b"".join(rows)
    return CypherRowStreamResponse(service, rows, media or JSON_MEDIA_TYPE, {})


async def _try_answer_by_engine(
    graph: StoreHandle, asked: CypherRequest, receive: Receive, service: RequestHandlerDependencies
) -> bytes | ASGIResponse | None:
    """Return the engine's answer, which is awaited on the event loop; None if a thread must run the statement.

    A statement that takes longer than `CYPHER_INTERRUPT_SECONDS`, or returns many rows, is finished in a thread.
    """
    control = StatementCancellation()
    with service.admission.statement_slot():
        try:
            started = StartedEngineReadStatement(graph, asked, control)
            try:
                await _wait_until_readable(started.descriptor, CYPHER_INTERRUPT_SECONDS)
            except asyncio.CancelledError:
                with anyio.CancelScope(shield=True):
                    await _stop(control, asyncio.ensure_future(service.admission.finish_statement(started.finish)))
                raise
            if (answer := started.try_finish()) is not None:
                return answer
            finishing = service.admission.finish_statement(started.finish)
            return _answer_with_rows(service, await _while_present(receive, control, finishing), None)
        except (WouldBlock, InvalidInput):  # refused by the engine: the interpreter may accept it
            return None
        except EngineProcessDied as error:
            if error.alone:
                raise
            return None


async def _wait_until_readable(descriptor: int, seconds: float) -> None:
    """Wait until a file becomes readable, or for some seconds."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, _settle, ready)
    timeout = loop.call_later(seconds, _settle, ready)
    try:
        await ready
    finally:
        timeout.cancel()
        loop.remove_reader(descriptor)
        os.set_blocking(descriptor, True)  # uvloop makes it non-blocking


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


_ENDPOINT = CypherEndpoint()


@post(
    "/api/memory/{store:str}/cypher",
    status_code=200,
    opt=build_litestar_opt(_CYPHER) | {ENDPOINT_OPT_KEY: _ENDPOINT},
)
async def run_cypher_statement(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Run a Cypher statement that reads or, with `"mode": "write"`, changes the graph in one atomic write.

    With `Accept: application/x-ndjson` or `text/csv` the rows of a reading statement are streamed. Files, settings,
    transactions and data definition are not available. A statement is interrupted when its client disconnects.
    """
    found = await _ENDPOINT.answer(request.scope, request.receive, get_request_dependencies(request))
    return ASGIResponse(body=found, media_type=JSON_MEDIA_TYPE) if isinstance(found, bytes) else found


def _accept(scope: HTTPScope) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"), "")


def _media(accept: str) -> str | None:
    """Return the first supported media type of an Accept header; None means JSON."""
    wanted = (part.partition(";")[0].strip().lower() for part in accept.split(","))
    known = next((media for media in wanted if media in _FORMATS or media in _ANY_FORM), JSON_MEDIA_TYPE)
    return known if known in _FORMATS else None


async def _while_present(receive: Receive, control: StatementCancellation, work: Awaitable[WorkResult]) -> WorkResult:
    """Return the result of work in a thread.

    If the client disconnects, the statement is interrupted. Raises ClientDisconnected.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        await _stop(control, working)
        raise ClientDisconnected
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await _stop(control, working)
        raise
    finally:
        leaving.cancel()


async def _stop(control: StatementCancellation, working: asyncio.Future[Any]) -> None:
    while not working.done():
        control.interrupt()
        await asyncio.wait({working}, timeout=CYPHER_INTERRUPT_SECONDS)
    if not working.cancelled() and working.exception() is None and isinstance(working.result(), CypherResultTextStream):
        working.result().close()


class CypherRowStreamResponse(ChunkStreamResponse):
    """Streams the rows of a statement, and closes it in any case."""

    _stream: CypherResultTextStream

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()
