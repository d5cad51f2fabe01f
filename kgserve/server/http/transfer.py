"""What is streamed: whole stores (POST …/import, GET …/export) and the rows of statements (POST …/cypher)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import anyio
import msgspec
from litestar import Request, Response, get, post
from litestar.response.base import ASGIResponse
from typing_extensions import override

from kgserve.api import examples
from kgserve.api.operation import READ_ERRORS, WRITE_ERRORS, Body, Operation, described
from kgserve.errors import Unsupported
from kgserve.graph.answers import CypherAnswer, ImportAnswer
from kgserve.graph.cypher.read import MAX_IN_MEMORY_BYTES, Format, Interruption, RowStream, stream
from kgserve.graph.cypher.write_transaction import run
from kgserve.graph.requests import NODES_VALID_AT_HELP, AsOfText, CypherRequest
from kgserve.graph.transfer.transfer import (
    ARCHIVE_FORMAT,
    ConvertedExport,
    ConvertedImport,
    ExportStream,
    Importer,
    export,
)
from kgserve.platform.gil import rest_seconds
from kgserve.platform.media_types import (
    CSV_MEDIA_TYPE,
    JSON_MEDIA_TYPE,
    NDJSON_MEDIA_TYPE,
    XML_MEDIA_TYPE,
    ZIP_MEDIA_TYPE,
)
from kgserve.projections.cypher_engine.engine.turns import asker
from kgserve.server.http.endpoints import json_answer
from kgserve.server.http.problem import ClientLeft
from kgserve.server.http.request_parts import (
    NDJSON_TYPES,
    Service,
    caller_of,
    chunks_of,
    client_left,
    json_of,
    path_text,
    query_of,
    service_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from litestar.types import Receive, Scope, Send

    from kgserve.server.http.gateway import Gateway

Sent = ExportStream | ConvertedExport
ExportFormat = Literal["ndjson", "graphml", "csv", "parquet", "memory-server"]
ImportFormat = Literal["ndjson", "graphml", "csv", "parquet", "memory-server"]

_GRAPHML_TYPES = frozenset({XML_MEDIA_TYPE, "text/xml", "application/graphml+xml"})
_EXPORT_MEDIA_TYPES: dict[str, str] = {
    "ndjson": NDJSON_MEDIA_TYPE,
    "graphml": XML_MEDIA_TYPE,
    "csv": ZIP_MEDIA_TYPE,
    "parquet": ZIP_MEDIA_TYPE,
    "memory-server": NDJSON_MEDIA_TYPE,
}
_FILE_SUFFIXES = {
    "ndjson": "ndjson",
    "graphml": "graphml",
    "csv": "csv.zip",
    "parquet": "parquet.zip",
    "memory-server": "jsonl",
}
_ANY = "application/octet-stream"
_LINES = {"ndjson", "memory-server"}
"""Formats that an importer takes line by line, telling them apart."""
_SENT_MEDIA_TYPES: dict[str, frozenset[str]] = {
    "ndjson": NDJSON_TYPES,
    "graphml": _GRAPHML_TYPES | {_ANY},
    "csv": frozenset({ZIP_MEDIA_TYPE, _ANY}),
    "parquet": frozenset({ZIP_MEDIA_TYPE, _ANY}),
    "memory-server": NDJSON_TYPES | {_ANY},
}
_SENT_TYPES = _GRAPHML_TYPES | NDJSON_TYPES | {ZIP_MEDIA_TYPE}


_GRAPHML = (
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="node.type" for="node" attr.name="type" '
    'attr.type="string"/><graph edgedefault="directed"><node id="feat-jwt"><data key="node.type">code_symbol</data>'
    "</node></graph></graphml>\n"
)
_ARCHIVE = "nodes.csv and edges.csv, or nodes.parquet and edges.parquet, in a zip archive"


class ImportQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of an import."""

    format: (
        Annotated[ImportFormat, msgspec.Meta(description="What the body is; left out: as its media type says")] | None
    ) = None


class ExportQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of an export."""

    as_of: AsOfText | None = None
    valid_at: Annotated[str, msgspec.Meta(max_length=64, description=NODES_VALID_AT_HELP)] | None = None
    format: (
        Annotated[ExportFormat, msgspec.Meta(description="What to give; left out: as Accept says, else lines of JSON")]
        | None
    ) = None


_IMPORT = Operation(
    id="importStore",
    role="write",
    tag="transfer",
    summary="Import nodes and edges, as NDJSON of any length or in another format",
    note="`application/x-ndjson`, or another [format](formats.md).",
    query=ImportQuery,
    request=Body(None, examples.NDJSON_LINES_EXAMPLE, NDJSON_MEDIA_TYPE),
    answer=Body(ImportAnswer, examples.IMPORT_ANSWER_EXAMPLE),
    errors=WRITE_ERRORS,
)
_EXPORT = Operation(
    id="exportStore",
    role="read",
    tag="transfer",
    summary="Export a store from one snapshot, as NDJSON or in another format",
    note=(
        "`format` is `graphml`, `csv` or `parquet`; left out, JSON lines. "
        "`as_of`: as it was then. `valid_at`: what was true then."
    ),
    query=ExportQuery,
    answer=Body(None, examples.NDJSON_LINES_EXAMPLE, NDJSON_MEDIA_TYPE),
    others=(Body(None, _GRAPHML, XML_MEDIA_TYPE), Body(None, _ARCHIVE, ZIP_MEDIA_TYPE)),
    errors=(*READ_ERRORS, "conflict", "gone", "storage_full"),
    headers=(("Kgserve-Sequence", "The commit number of the snapshot"),),
)


@post("/api/memory/{store:str}/import", status_code=200, opt=described(_IMPORT))
async def import_store(request: Request[Any, Any, Any]) -> Response[bytes]:
    """One JSON object per line, `"kind": "node"` or `"kind": "edge"`, nodes before the edges that need them.

    Lines are committed in batches while the body still arrives; a line that is wrong is left out and listed by its
    number. When the connection breaks off, batches committed by then stay: sending the same file again completes them.

    Lines of the official MCP memory server are taken as they are. Other formats, by media type or `format`: GraphML
    (`application/xml`), and a zip archive of `nodes.csv` and `edges.csv` or of `nodes.parquet` and `edges.parquet`
    (`application/zip`). They are read when they have arrived as a whole; faults name the row or line of the file.
    """
    wanted = query_of(request.scope["query_string"], ImportQuery)
    kind = _sent_format(request, wanted.format)
    with service_of(request).admission.transfer_slot():
        return await (_import_lines(request, kind) if kind in _LINES else _import_converted(request, kind))


async def _import_lines(request: Request[Any, Any, Any], kind: str) -> Response[bytes]:
    chunks = chunks_of(request, _SENT_MEDIA_TYPES[kind])
    service, others = service_of(request), _others(request)
    importer = await service.admission.run(
        "transfers", Importer, service.graphs.graph(path_text(request, "store")), others=others
    )
    async with _abandoned_on_failure(service, importer):
        async for chunk in chunks:
            if importer.feed(chunk):
                begun = time.perf_counter()
                await service.admission.run("transfers", importer.flush)
                await asyncio.sleep(rest_seconds(time.perf_counter() - begun, others()))
        done = await service.admission.run("transfers", importer.finish)
    return json_answer(msgspec.json.encode(done))


async def _import_converted(request: Request[Any, Any, Any], kind: str) -> Response[bytes]:
    chunks = chunks_of(request, _SENT_TYPES | {_ANY})
    service, others = service_of(request), _others(request)
    graph = service.graphs.graph(path_text(request, "store"))
    importer = await service.admission.run("transfers", ConvertedImport, graph, kind, others)
    async with _abandoned_on_failure(service, importer):
        async for chunk in chunks:
            await service.admission.run("transfers", importer.write, chunk)
        done = await service.admission.run("transfers", importer.finish)
    return json_answer(msgspec.json.encode(done))


def _others(request: Request[Any, Any, Any]) -> Callable[[], int]:
    """How many others ask beside this request."""
    use = cast("Gateway", request.app.state["edge"]).use
    return partial(use.others, asker.get(), use.begun)


@asynccontextmanager
async def _abandoned_on_failure(service: Service, importer: Importer | ConvertedImport) -> AsyncGenerator[None]:
    """Ends an import whose body breaks off, or whose client leaves; the store is given back in any case."""
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True):
            await service.admission.run("transfers", importer.abort)
        raise


def _sent_format(request: Request[Any, Any, Any], wanted: str | None) -> str:
    """The format of a body: CSV and Parquet are one, because the archive tells them apart. Raises Unsupported."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if wanted is None:
        wanted = "graphml" if media in _GRAPHML_TYPES else "csv" if media == ZIP_MEDIA_TYPE else "ndjson"
    elif wanted != "ndjson" and media and media not in _SENT_MEDIA_TYPES[wanted]:
        raise Unsupported(f"content-type {media[:80]} is not taken for format={wanted}")
    return ARCHIVE_FORMAT if wanted in {"csv", "parquet"} else wanted


@get("/api/memory/{store:str}/export", media_type=NDJSON_MEDIA_TYPE, opt=described(_EXPORT))
async def export_store(request: Request[Any, Any, Any]) -> ASGIResponse:
    """The lines that import takes: importing them elsewhere gives an equal store.

    Writes made meanwhile are not in it. An export that breaks off ends without the closing chunk, so that no client
    takes it for whole. As GraphML, as a zip archive of CSV or Parquet, or as the file of the official MCP memory server
    (`format=memory-server`), it is written to the disk first: the answer begins when it is complete.
    """
    service = service_of(request)
    graph = service.graphs.graph(path_text(request, "store"))
    wanted = query_of(request.scope["query_string"], ExportQuery)
    kind = wanted.format or _accepted(request.headers.get("accept", ""))
    with service.admission.transfer_slot():
        stream = await service.admission.run("transfers", export, graph, wanted.valid_at, graph.past(wanted.as_of))
        if kind == "ndjson":
            return ExportAnswer(service, graph.name, stream)
        converted = await service.admission.run("transfers", ConvertedExport, graph, stream, kind)
        return ExportAnswer(service, graph.name, converted, kind)


def _accepted(accept: str) -> str:
    """The first format whose media type is accepted; an archive is one of CSV."""
    for part in accept.split(","):
        media = part.partition(";")[0].strip().lower()
        if media in _GRAPHML_TYPES:
            return "graphml"
        if media == ZIP_MEDIA_TYPE:
            return "csv"
        if media == NDJSON_MEDIA_TYPE or media.endswith("/*"):
            return "ndjson"
    return "ndjson"


class _InBlocks(ASGIResponse):
    """Sends a stream block after block, until it ends or the client leaves."""

    _should_set_content_length = False
    _service: Service
    _stream: Iterable[bytes]

    @override
    async def send_body(self, send: Send, receive: Receive) -> None:
        """Sends block after block; the server's ``send`` waits while the client is slow."""
        leaving = anyio.CancelScope()

        async def watch() -> None:
            await client_left(receive)
            leaving.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            with leaving:
                await self._send_blocks(send)
            group.cancel_scope.cancel()

    async def _send_blocks(self, send: Send) -> None:
        blocks = iter(self._stream)
        while block := await self._service.admission.run("transfers", next, blocks, b""):
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class ExportAnswer(_InBlocks):
    """Streams an open export, and closes it whatever happens, the client's leaving included."""

    def __init__(self, service: Service, store: str, stream: Sent, kind: str = "ndjson") -> None:
        headers = {
            "content-disposition": f'attachment; filename="{store}.{_FILE_SUFFIXES[kind]}"',
            "kgserve-sequence": str(stream.sequence),
        }
        super().__init__(media_type=_EXPORT_MEDIA_TYPES[kind], headers=headers)
        self._service = service
        self._stream = self._export = stream

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        try:
            with self._service.admission.transfer_slot():
                await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._service.admission.run("transfers", self._export.__exit__, None, None, None)


Done = TypeVar("Done")

CYPHER_INTERRUPT_SECONDS = 0.05
_encode = msgspec.json.Encoder().encode
_FORMATS: dict[str, Format] = {NDJSON_MEDIA_TYPE: "ndjson", CSV_MEDIA_TYPE: "csv"}
_ANY_FORM = {JSON_MEDIA_TYPE, "application/*", "*/*"}

_CYPHER = Operation(
    id="cypher",
    role="read",
    tag="cypher",
    summary="Run one Cypher statement",
    note="See [Cypher](cypher.md).",
    request=Body(CypherRequest, examples.CYPHER_REQUEST_EXAMPLE),
    answer=Body(CypherAnswer, examples.CYPHER_ANSWER_EXAMPLE),
    others=(
        Body(None, examples.CYPHER_NDJSON_EXAMPLE, NDJSON_MEDIA_TYPE),
        Body(None, examples.CYPHER_CSV_EXAMPLE, CSV_MEDIA_TYPE),
    ),
    errors=(*READ_ERRORS, "conflict", "too_large", "unsupported", "storage_full"),
)


@post("/api/memory/{store:str}/cypher", status_code=200, opt=described(_CYPHER))
async def cypher(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Reads, or with `"mode": "write"` changes the graph: what the statement changes is one atomic write.

    With `Accept: application/x-ndjson` or `text/csv` the rows of a statement that reads are streamed. Files, settings,
    transactions and data definition are not to be had. A statement ends when its client leaves.
    """
    service, control = service_of(request), Interruption()
    asked = await json_of(request.scope["headers"], request.receive, service, CypherRequest)
    if asked.mode == "write":
        caller_of(request).require("write")
    graph, media = service.graphs.graph(path_text(request, "store")), _media(request.headers.get("accept", ""))
    if asked.mode == "write" and media is None:
        written = service.admission.run("writing_statements", run, graph, asked, control)
        return _json(_encode(await _while_present(request, control, written)))
    form = "json" if media is None else _FORMATS[media]
    reading = service.admission.run("statements", stream, graph, asked, form, control)
    rows = await _while_present(request, control, reading)
    if media is None and rows.size <= MAX_IN_MEMORY_BYTES:
        with closing(rows):
            return _json(b"".join(rows))
    return RowsAnswer(service, rows, media or JSON_MEDIA_TYPE)


def _json(body: bytes) -> ASGIResponse:
    return ASGIResponse(body=body, media_type=JSON_MEDIA_TYPE)


def _media(accept: str) -> str | None:
    """The first of the media types that can be had; None stands for JSON."""
    wanted = (part.partition(";")[0].strip().lower() for part in accept.split(","))
    known = next((media for media in wanted if media in _FORMATS or media in _ANY_FORM), JSON_MEDIA_TYPE)
    return known if known in _FORMATS else None


async def _while_present(request: Request[Any, Any, Any], control: Interruption, work: Awaitable[Done]) -> Done:
    """The result of work in a thread. When the client leaves the statement is stopped, and ClientLeft raised."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(client_left(request.receive))
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


async def _stop(control: Interruption, working: asyncio.Future[Any]) -> None:
    while not working.done():
        control.interrupt()
        await asyncio.wait({working}, timeout=CYPHER_INTERRUPT_SECONDS)
    if not working.cancelled() and working.exception() is None and isinstance(working.result(), RowStream):
        working.result().close()


class RowsAnswer(_InBlocks):
    """Sends the text of a stream, and closes it whatever happens."""

    def __init__(self, service: Service, rows: RowStream, media: str) -> None:
        super().__init__(media_type=media)
        self._service = service
        self._stream = self._rows = rows

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._rows.close()
