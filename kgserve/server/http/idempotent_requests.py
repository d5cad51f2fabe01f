"""Requests with the header Idempotency-Key: a repeated one gets the answer of the first, byte for byte.

The key belongs to one caller and one store, and ends with the store, except that of a drop. Only answers that report
success are kept, because nothing else changed anything. The whole body is read before the request runs, so that it can
be compared.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote

import msgspec

from kgserve.errors import IdempotencyKeyReused, InvalidInput, TooLarge
from kgserve.platform.idempotency import IdempotencyKey
from kgserve.platform.settings import MEBIBYTE
from kgserve.server.http.connection import ensure_running_in_task
from kgserve.server.http.error_responses import Header, ServerHttpResponse, request_target
from kgserve.server.http.idempotent_answer_files import (
    AnswerFile,
    IdempotentAnswerFiles,
    IdempotentAnswerRecord,
    is_possible_store_name,
)
from kgserve.server.http.request_decoding import iterate_request_body_chunks, select_request_store
from kgserve.server.idempotent_calls import KEY_REUSED_MESSAGE

if TYPE_CHECKING:
    from litestar.types import HTTPScope, Message
    from litestar.types.asgi_types import ReceiveMessage

    from kgserve.platform.access.authentication import RequestContext
    from kgserve.platform.settings import Settings
    from kgserve.server.idempotent_calls import IdempotentCallCache

IDEMPOTENCY_KEY_HEADER = "Idempotency-Key"
IDEMPOTENCY_KEY_BYTES = IDEMPOTENCY_KEY_HEADER.lower().encode()
REPLAYED_HEADER: Header = (b"idempotent-replayed", b"true")
"""Header of a repeated answer."""

_KEY = re.compile(rb"[!-~]{1,255}")
_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_STORE_IN_PATH = re.compile(r"/api/memory/([^/]+)")
_MIN_REDIRECT = 300


class HttpRequestExchange(Protocol):
    """Receives one request, and sends its response."""

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Headers of the request."""
        ...

    async def receive(self) -> ReceiveMessage:
        """Receive an ASGI message."""
        ...

    async def send(self, message: Message) -> None:
        """Send an ASGI message."""
        ...

    def send_plain_json(self, body: bytes) -> bool:
        """Send the answer 200 with a JSON body; False if it has to be sent by `send_complete`."""
        ...

    async def send_complete(self, answer: ServerHttpResponse) -> None:
        """Send a complete response."""
        ...


class RecordedHttpExchange:
    """Cycle of a request whose body was read; it records the response. The client never seems to disconnect."""

    def __init__(self, headers: dict[bytes, bytes], body: bytes) -> None:
        self.headers = headers
        self._body: bytes | None = body
        self._status = 0
        self._sent: list[Header] = []
        self._parts: list[bytes] = []

    async def receive(self) -> ReceiveMessage:
        """Return the body; further calls never return."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body or b"", None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Record an ASGI message."""
        if message["type"] == "http.response.start":
            self._status, self._sent = int(message["status"]), [*message["headers"]]
        elif message["type"] == "http.response.body":
            self._parts.append(message.get("body", b""))

    def send_plain_json(self, body: bytes) -> bool:  # noqa: ARG002
        """Return False: `send_complete` records the answer."""
        return False

    async def send_complete(self, answer: ServerHttpResponse) -> None:
        """Record a complete response."""
        self._status, self._sent, self._parts = answer.status, answer.headers, [answer.body]

    @property
    def response(self) -> ServerHttpResponse:
        """The recorded response."""
        body = b"".join(self._parts)
        sized = [header for header in self._sent if header[0] != b"content-length"]
        return ServerHttpResponse(self._status, [*sized, (b"content-length", b"%d" % len(body))], body)


class SavedIdempotentResponse(NamedTuple):
    """Response of a request, and the template of its path."""

    response: ServerHttpResponse
    path_template: str


Route = Callable[["HTTPScope", HttpRequestExchange], Awaitable[None]]


def has_idempotency_key(scope: HTTPScope, headers: dict[bytes, bytes]) -> bool:
    """Return whether a request has an idempotency key and is of a method, outside /mcp, that honours it."""
    return IDEMPOTENCY_KEY_BYTES in headers and scope["method"] in _METHODS and scope["path"] != "/mcp"


class IdempotentRequests:
    """Carries out requests with an idempotency key once, and answers their repetitions."""

    def __init__(
        self, repeats: IdempotentCallCache, settings: Settings, count_store_drops: Callable[[str], int]
    ) -> None:
        self._repeats = repeats
        self._count_store_drops = count_store_drops
        self._drops = dict[str, int]()
        self._files = IdempotentAnswerFiles(settings.data_dir.resolve())
        repeats.on_forget_all = self._files.forget_all
        self._loading = asyncio.Lock()
        self._default_store = settings.default_store
        self._max_body = settings.max_body_mb * MEBIBYTE

    async def answer(self, scope: HTTPScope, cycle: HttpRequestExchange, route: Route) -> None:
        """Answer a request. Raises IdempotencyKeyReused, InvalidInput, TooLarge, and the errors of the request."""
        given = cycle.headers[IDEMPOTENCY_KEY_BYTES]
        if not _KEY.fullmatch(given):
            raise InvalidInput.at(IDEMPOTENCY_KEY_HEADER, "must be 1 to 255 visible ASCII characters")
        await ensure_running_in_task()
        body = await self._read(cycle)
        context: RequestContext = scope["state"]["request_context"]
        store = self._store(scope)
        # A key whose rights have changed gets none of its earlier answers.
        rights = blake2b(msgspec.json.encode(context.caller), digest_size=8).hexdigest()
        asked = b"%b %b\n" % (scope["method"].encode(), request_target(scope).encode())
        fingerprint = blake2b(asked + body, digest_size=16).digest()
        name = f"rest {store} {rights} {given.decode('ascii')}"
        made = IdempotencyKey(f"{context.accounting_name} {name} {fingerprint.hex()}")
        is_first = False
        drops = self._forget_dropped(store)
        # A drop is not repeated for a store that was created since.
        is_drop = scope["method"] == "DELETE" and _STORE_IN_PATH.fullmatch(scope["path"]) is not None
        file = None if is_drop else store
        digest = blake2b(f"{context.accounting_name} {name}".encode(), digest_size=16).digest()

        async def carry_out() -> SavedIdempotentResponse:
            nonlocal is_first
            if saved := await self._find_saved(file, digest, fingerprint):
                return saved
            is_first = True
            recorded = RecordedHttpExchange(cycle.headers, body)
            await route(scope, recorded)
            done = SavedIdempotentResponse(recorded.response, scope.get("path_template", ""))
            if is_drop or self._count_store_drops(store) == drops:
                self._save(file, digest, fingerprint, done)
            return done

        answered = partial(self._repeats.run_once, context.accounting_name, made, carry_out, fingerprint, _weigh)
        response, template = await answered(name=name if is_drop else f"{name} {drops}")
        scope["path_template"] = template
        headers = response.headers if is_first else [*response.headers, REPLAYED_HEADER]
        await cycle.send_complete(response._replace(headers=headers))

    def _forget_dropped(self, store: str) -> int:
        """Forget the saved answers of a store that was dropped. Return how often it was."""
        drops = self._count_store_drops(store)
        if drops != self._drops.get(store, 0):
            self._drops[store] = drops
            self._files.forget(store)
        return drops

    async def _find_saved(self, file: AnswerFile, digest: bytes, fingerprint: bytes) -> SavedIdempotentResponse | None:
        """Return the answer that an earlier process gave, or None. Raises IdempotencyKeyReused."""
        if not _is_possible_file(file):
            return None
        if not self._files.is_loaded(file):
            async with self._loading:
                if not self._files.is_loaded(file):
                    self._files.remember(file, await asyncio.to_thread(self._files.load, file))
        if (found := self._files.find(file, digest)) is None:
            return None
        if found.fingerprint != fingerprint:
            raise IdempotencyKeyReused(KEY_REUSED_MESSAGE)
        return SavedIdempotentResponse(
            ServerHttpResponse(found.status, [*found.headers], found.body), found.path_template
        )

    def _save(self, file: AnswerFile, digest: bytes, fingerprint: bytes, done: SavedIdempotentResponse) -> None:
        response = done.response
        if response.status < _MIN_REDIRECT and _is_possible_file(file):
            record = IdempotentAnswerRecord(
                digest, fingerprint, time.time(), response.status, response.headers, response.body, done.path_template
            )
            self._files.append(file, record)

    def _store(self, scope: HTTPScope) -> str:
        named = _STORE_IN_PATH.match(scope["path"])
        return unquote(named[1]) if named else select_request_store(scope, self._default_store).name

    async def _read(self, cycle: HttpRequestExchange) -> bytes:
        body = bytearray()
        async for part in iterate_request_body_chunks(cycle.receive):
            body += part
            if len(body) > self._max_body:
                raise TooLarge(
                    f"the body exceeds {self._max_body // MEBIBYTE} MiB, the limit with {IDEMPOTENCY_KEY_HEADER}; send "
                    "smaller batches, raise --max-body-mb, or leave the header out: imports can be repeated without it"
                )
        return bytes(body)


def _is_possible_file(file: AnswerFile) -> bool:
    return file is None or is_possible_store_name(file)


def _weigh(answered: SavedIdempotentResponse) -> int | None:
    """Return the size of an answer to remember; None for errors and redirects, which changed nothing."""
    return len(answered.response.body) if answered.response.status < _MIN_REDIRECT else None
