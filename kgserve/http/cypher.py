"""POST /api/memory/{store}/cypher."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec
from litestar import Request, post
from litestar.response.base import ASGIResponse

from kgserve.http.problem import ClientLeft
from kgserve.http.service import JSON, Service, caller_of, path_text, read_json, service_of
from kgserve.model.answers import CypherAnswer
from kgserve.model.requests import CypherRequest
from kgserve.operations import examples
from kgserve.operations.operation import CSV, NDJSON, READ, Body, Operation, described
from kgserve.ops.cypher import run
from kgserve.ops.cypher_read import IN_MEMORY_BYTES, Format, Interruption, RowStream, stream

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from litestar.types import Receive, Scope, Send

Done = TypeVar("Done")

INTERRUPT_SECONDS = 0.05
_encode = msgspec.json.Encoder().encode
_FORMATS: dict[str, Format] = {NDJSON: "ndjson", CSV: "csv"}
_ANY = {JSON, "application/*", "*/*"}

_CYPHER = Operation(
    id="cypher",
    role="read",
    tag="cypher",
    summary="Run one Cypher statement",
    request=Body(CypherRequest, examples.CYPHER),
    answer=Body(CypherAnswer, examples.CYPHER_ROWS),
    others=(Body(None, examples.CYPHER_LINES, NDJSON), Body(None, examples.CYPHER_CSV, CSV)),
    errors=(*READ, "conflict", "too_large", "unsupported", "storage_full"),
)


@post("/api/memory/{store:str}/cypher", status_code=200, opt=described(_CYPHER))
async def cypher(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Reads, or with `"mode": "write"` changes the graph: what the statement changes is one atomic write.

    With `Accept: application/x-ndjson` or `text/csv` the rows of a statement that reads are streamed. Files, settings,
    transactions and data definition are not to be had. A statement ends when its client leaves.
    """
    asked = await read_json(request, CypherRequest)
    if asked.mode == "write":
        caller_of(request).require("write")
    service, control, asker = service_of(request), Interruption(), request.scope["state"]["request_context"].asker
    graph, media = service.graphs.graph(path_text(request, "store")), _media(request.headers.get("accept", ""))
    if asked.mode == "write" and media is None:
        written = service.writing_statement(asker, run, graph, asked, control)
        return _json(_encode(await _while_present(request, control, written)))
    form = "json" if media is None else _FORMATS[media]
    reading = service.statement(asker, stream, graph, asked, form, control)
    rows = await _while_present(request, control, reading)
    if media is None and rows.size <= IN_MEMORY_BYTES:
        with closing(rows):
            return _json(b"".join(rows))
    return RowsAnswer(service, rows, media or JSON)


def _json(body: bytes) -> ASGIResponse:
    return ASGIResponse(body=body, media_type=JSON)


def _media(accept: str) -> str | None:
    """The first of the media types that can be had; None stands for JSON."""
    wanted = (part.partition(";")[0].strip().lower() for part in accept.split(","))
    known = next((media for media in wanted if media in _FORMATS or media in _ANY), JSON)
    return known if known in _FORMATS else None


async def _while_present(request: Request[Any, Any, Any], control: Interruption, work: Awaitable[Done]) -> Done:
    """The result of work in a thread. When the client leaves the statement is stopped, and ClientLeft raised."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        await _stop(control, working)
        raise ClientLeft
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await _stop(control, working)
        raise
    finally:
        leaving.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(control: Interruption, working: asyncio.Future[Any]) -> None:
    while not working.done():
        control.interrupt()
        await asyncio.wait({working}, timeout=INTERRUPT_SECONDS)
    if not working.cancelled() and working.exception() is None and isinstance(working.result(), RowStream):
        working.result().close()


class RowsAnswer(ASGIResponse):
    """Sends the text of a stream, and closes it whatever happens."""

    _should_set_content_length = False

    def __init__(self, service: Service, rows: RowStream, media: str) -> None:
        super().__init__(media_type=media)
        self._service = service
        self._rows = rows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._rows.close()

    async def send_body(self, send: Send, receive: Receive) -> None:
        """Sends block after block; the server's ``send`` waits while the client is slow."""
        sending = asyncio.ensure_future(self._send_blocks(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            leaving.cancel()

    async def _send_blocks(self, send: Send) -> None:
        blocks = iter(self._rows)
        while block := await self._service.transfer(next, blocks, b""):
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
