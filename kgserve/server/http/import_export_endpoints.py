"""Streaming endpoints: import and export of stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import anyio
import msgspec
from litestar import Request, Response, get, post
from litestar.response.base import ASGIResponse
from typing_extensions import override

from kgserve.api import examples
from kgserve.api.operation import READ_ERRORS, WRITE_ERRORS, ApiBodyExample, ApiOperation, build_litestar_opt
from kgserve.errors import UnsupportedMediaType
from kgserve.graph.answers import ImportAnswer
from kgserve.graph.request_bodies import NODES_VALID_AT_HELP, AsOfText
from kgserve.graph.transfer.import_export import (
    ARCHIVE_FORMAT,
    ConvertedExport,
    ExportStream,
    ForeignFormatImport,
    StreamingImport,
    open_store_export_stream,
)
from kgserve.platform.gil_yield import fair_pause_seconds
from kgserve.platform.media_types import (
    NDJSON_MEDIA_TYPE,
    XML_MEDIA_TYPE,
    ZIP_MEDIA_TYPE,
)
from kgserve.projections.cypher_engine.engine.fair_pool import current_caller
from kgserve.server.http.operation_endpoints import build_response_from_encoded_json
from kgserve.server.http.request_decoding import (
    NDJSON_TYPES,
    RequestHandlerDependencies,
    decode_path_parameter,
    decode_query_parameters,
    get_request_dependencies,
    iterate_body_chunks_of_media_type,
    wait_for_disconnect,
)

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

    from kgserve.server.http.gateway import HttpGatewayMiddleware

OpenExport = ExportStream | ConvertedExport
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
"""Formats that `StreamingImport` reads line by line; it detects which one it is."""
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


class ImportQueryParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of an import."""

    format: (
        Annotated[ImportFormat, msgspec.Meta(description="Format of the body; default: from its media type")] | None
    ) = None


class ExportQueryParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of an export."""

    as_of: AsOfText | None = None
    valid_at: Annotated[str, msgspec.Meta(max_length=64, description=NODES_VALID_AT_HELP)] | None = None
    format: (
        Annotated[ExportFormat, msgspec.Meta(description="Format of the export; default: from Accept, else JSON lines")]
        | None
    ) = None


_IMPORT = ApiOperation(
    id="importStore",
    role="write",
    tag="transfer",
    summary="Import nodes and edges, as NDJSON of any length or in another format",
    note="`application/x-ndjson`, or another [format](formats.md).",
    query=ImportQueryParameters,
    request=ApiBodyExample(None, examples.NDJSON_LINES_EXAMPLE, NDJSON_MEDIA_TYPE),
    answer=ApiBodyExample(ImportAnswer, examples.IMPORT_ANSWER_EXAMPLE),
    errors=WRITE_ERRORS,
)
_EXPORT = ApiOperation(
    id="exportStore",
    role="read",
    tag="transfer",
    summary="Export a store from one snapshot, as NDJSON or in another format",
    note=("`format` is `graphml`, `csv`, `parquet` or `memory-server`; default: JSON lines."),
    query=ExportQueryParameters,
    answer=ApiBodyExample(None, examples.NDJSON_LINES_EXAMPLE, NDJSON_MEDIA_TYPE),
    others=(ApiBodyExample(None, _GRAPHML, XML_MEDIA_TYPE), ApiBodyExample(None, _ARCHIVE, ZIP_MEDIA_TYPE)),
    errors=(*READ_ERRORS, "conflict", "gone", "storage_full"),
    headers=(("Kgserve-Sequence", "The commit number of the snapshot"),),
)


@post("/api/memory/{store:str}/import", status_code=200, opt=build_litestar_opt(_IMPORT))
async def import_nodes_and_edges_into_store(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Import one JSON object per line, `"kind": "node"` or `"kind": "edge"`, nodes before the edges that need them.

    The server commits lines in batches while the body arrives. It skips invalid lines and lists their numbers. If the
    connection breaks, committed batches stay: send the same file again to complete the import.

    Lines of the official MCP memory server are accepted as well. Other formats, by media type or `format`: GraphML
    (`application/xml`), and a zip archive of `nodes.csv` and `edges.csv` or of `nodes.parquet` and `edges.parquet`
    (`application/zip`). These are read once they have arrived completely; errors name the row or line of the file.
    """
    wanted = decode_query_parameters(request.scope["query_string"], ImportQueryParameters)
    kind = _sent_format(request, wanted.format)
    with get_request_dependencies(request).admission.transfer_slot():
        return await (_import_lines(request, kind) if kind in _LINES else _import_converted(request, kind))


async def _import_lines(request: Request[Any, Any, Any], kind: str) -> Response[bytes]:
    chunks = iterate_body_chunks_of_media_type(request, _SENT_MEDIA_TYPES[kind])
    service, others = get_request_dependencies(request), _others(request)
    importer = await service.admission.run(
        "transfers", StreamingImport, service.graphs.graph(decode_path_parameter(request, "store")), others=others
    )
    async with _abandoned_on_failure(service, importer):
        async for chunk in chunks:
            if importer.feed(chunk):
                begun = time.perf_counter()
                await service.admission.run("transfers", importer.flush)
                await asyncio.sleep(fair_pause_seconds(time.perf_counter() - begun, others()))
        done = await service.admission.run("transfers", importer.finish)
    return build_response_from_encoded_json(msgspec.json.encode(done))


async def _import_converted(request: Request[Any, Any, Any], kind: str) -> Response[bytes]:
    chunks = iterate_body_chunks_of_media_type(request, _SENT_TYPES | {_ANY})
    service, others = get_request_dependencies(request), _others(request)
    graph = service.graphs.graph(decode_path_parameter(request, "store"))
    importer = await service.admission.run("transfers", ForeignFormatImport, graph, kind, others)
    async with _abandoned_on_failure(service, importer):
        async for chunk in chunks:
            await service.admission.run("transfers", importer.write, chunk)
        done = await service.admission.run("transfers", importer.finish)
    return build_response_from_encoded_json(msgspec.json.encode(done))


def _others(request: Request[Any, Any, Any]) -> Callable[[], int]:
    """Return a function that counts the other callers that are active during this request."""
    use = cast("HttpGatewayMiddleware", request.app.state["edge"]).use
    return partial(use.count_other_callers, current_caller.get(), use.begun)


@asynccontextmanager
async def _abandoned_on_failure(
    service: RequestHandlerDependencies, importer: StreamingImport | ForeignFormatImport
) -> AsyncGenerator[None]:
    """Abort the import if its body breaks off or its client disconnects; this releases the store."""
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True):
            await service.admission.run("transfers", importer.abort)
        raise


def _sent_format(request: Request[Any, Any, Any], wanted: str | None) -> str:
    """Return the format of a body; CSV and Parquet are one format, an archive. Raises UnsupportedMediaType."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if wanted is None:
        wanted = "graphml" if media in _GRAPHML_TYPES else "csv" if media == ZIP_MEDIA_TYPE else "ndjson"
    elif wanted != "ndjson" and media and media not in _SENT_MEDIA_TYPES[wanted]:
        raise UnsupportedMediaType(f"content-type {media[:80]} is not supported for format={wanted}")
    return ARCHIVE_FORMAT if wanted in {"csv", "parquet"} else wanted


@get("/api/memory/{store:str}/export", media_type=NDJSON_MEDIA_TYPE, opt=build_litestar_opt(_EXPORT))
async def export_store(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Export a store as lines that import accepts; importing them elsewhere gives an equal store.

    The export excludes later writes. If it fails, the response ends without the closing chunk, so that clients detect
    it. GraphML, zip archives of CSV or Parquet, and the file of the official MCP memory server
    (`format=memory-server`) are written to disk first: the response begins when they are complete.
    """
    service = get_request_dependencies(request)
    graph = service.graphs.graph(decode_path_parameter(request, "store"))
    wanted = decode_query_parameters(request.scope["query_string"], ExportQueryParameters)
    kind = wanted.format or _accepted(request.headers.get("accept", ""))
    with service.admission.transfer_slot():
        stream = await service.admission.run(
            "transfers", open_store_export_stream, graph, wanted.valid_at, graph.resolve_as_of(wanted.as_of)
        )
        if kind == "ndjson":
            return ExportResponse(service, graph.name, stream)
        converted = await service.admission.run("transfers", ConvertedExport, graph, stream, kind)
        return ExportResponse(service, graph.name, converted, kind)


def _accepted(accept: str) -> str:
    """Return the first format that the Accept header names; application/zip means CSV."""
    for part in accept.split(","):
        media = part.partition(";")[0].strip().lower()
        if media in _GRAPHML_TYPES:
            return "graphml"
        if media == ZIP_MEDIA_TYPE:
            return "csv"
        if media == NDJSON_MEDIA_TYPE or media.endswith("/*"):
            return "ndjson"
    return "ndjson"


class ChunkStreamResponse(ASGIResponse):
    """Response that sends the blocks of a stream until it ends or the client disconnects."""

    _should_set_content_length = False

    def __init__(
        self, service: RequestHandlerDependencies, stream: Iterable[bytes], media: str, headers: dict[str, str]
    ) -> None:
        super().__init__(media_type=media, headers=headers)
        self._service = service
        self._stream = stream

    @override
    async def send_body(self, send: Send, receive: Receive) -> None:
        # ``send`` waits while the client is slow.
        leaving = anyio.CancelScope()

        async def watch() -> None:
            await wait_for_disconnect(receive)
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


class ExportResponse(ChunkStreamResponse):
    """Streams an export, and closes it in any case."""

    def __init__(
        self, service: RequestHandlerDependencies, store: str, stream: OpenExport, kind: str = "ndjson"
    ) -> None:
        headers = {
            "content-disposition": f'attachment; filename="{store}.{_FILE_SUFFIXES[kind]}"',
            "kgserve-sequence": str(stream.sequence),
        }
        super().__init__(service, stream, _EXPORT_MEDIA_TYPES[kind], headers)
        self._export = stream

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._service.admission.transfer_slot():
                await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._service.admission.run("transfers", self._export.__exit__, None, None, None)
