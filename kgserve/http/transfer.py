"""POST …/import and GET …/export: whole stores as NDJSON, streamed in constant memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
from litestar import Request, Response, get, post
from litestar.response.base import ASGIResponse

from kgserve.http import examples
from kgserve.http.body import ndjson_chunks
from kgserve.http.operation import NDJSON, READ, WRITE, Body, Operation, described
from kgserve.http.parameters import given, path_text, query
from kgserve.http.service import Service, answer, service_of
from kgserve.model.answers import ImportAnswer
from kgserve.model.requests import AS_OF, KEPT_AT
from kgserve.ops import transfer as ops
from kgserve.ops.past_export import PastStream, export_as_of

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send


class ExportQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of an export."""

    as_of: Annotated[str, msgspec.Meta(max_length=64, description=AS_OF)] | msgspec.UnsetType = msgspec.UNSET
    valid_at: Annotated[str, msgspec.Meta(max_length=64, description=KEPT_AT)] | msgspec.UnsetType = msgspec.UNSET


_IMPORT = Operation(
    id="importStore",
    tag="transfer",
    summary="Import nodes and edges as NDJSON, of any length",
    request=Body(None, examples.NDJSON_LINES, NDJSON),
    answer=Body(ImportAnswer, examples.IMPORTED),
    errors=WRITE,
)
_EXPORT = Operation(
    id="exportStore",
    tag="transfer",
    summary="Export a store as NDJSON, from one snapshot",
    query=ExportQuery,
    answer=Body(None, examples.NDJSON_LINES, NDJSON),
    errors=(*READ, "conflict", "gone"),
    headers=(("Kgserve-Sequence", "The commit number of the snapshot"),),
)


@post("/api/memory/{store:str}/import", status_code=200, opt=described(_IMPORT))
async def import_store(request: Request[Any, Any, Any]) -> Response[bytes]:
    """One JSON object per line, `"kind": "node"` or `"kind": "edge"`, nodes before the edges that need them.

    Lines are committed in batches while the body still arrives; a line that is wrong is left out and listed by its
    number. When the connection breaks off, batches committed by then stay: sending the same file again completes them.
    """
    chunks = ndjson_chunks(request)
    service = service_of(request)
    importer = await service.transfer(ops.Importer, service.pool, path_text(request, "store"))
    try:
        async for chunk in chunks:
            if importer.feed(chunk):
                await service.transfer(importer.flush)
        done = await service.transfer(importer.finish)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await service.transfer(importer.abort)
        raise
    return answer(msgspec.json.encode(done))


@get("/api/memory/{store:str}/export", media_type=NDJSON, opt=described(_EXPORT))
async def export_store(request: Request[Any, Any, Any]) -> ASGIResponse:
    """The lines that import takes: importing them elsewhere gives an equal store.

    Writes made meanwhile are not in it. An export that breaks off ends without the closing chunk, so that no client
    takes it for whole.
    """
    service = service_of(request)
    store = path_text(request, "store")
    wanted = query(request, ExportQuery)
    past, valid_at = service.past(wanted.as_of), given(wanted.valid_at)
    if past is None:
        return ExportAnswer(service, store, await service.transfer(ops.export, service.pool, store, valid_at))
    return ExportAnswer(service, store, await service.transfer(export_as_of, service.pool, store, past, valid_at))


class ExportAnswer(ASGIResponse):
    """Streams an open export, and closes it whatever happens, the client's leaving included."""

    _should_set_content_length = False

    def __init__(self, service: Service, store: str, stream: ops.ExportStream | PastStream) -> None:
        headers = {
            "content-disposition": f'attachment; filename="{store}.ndjson"',
            "kgserve-sequence": str(stream.sequence),
        }
        super().__init__(media_type=NDJSON, headers=headers)
        self._service = service
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._service.transfer(self._stream.__exit__, None, None, None)

    async def send_body(self, send: Send, receive: Receive) -> None:
        """Sends block after block; the server's ``send`` waits while the client is slow."""
        leaving = anyio.CancelScope()

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            leaving.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            with leaving:
                await self._send_blocks(send)
            group.cancel_scope.cancel()

    async def _send_blocks(self, send: Send) -> None:
        blocks = iter(self._stream)
        while block := await self._service.transfer(next, blocks, b""):
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
