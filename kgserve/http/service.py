"""What every handler works with: the stores, the threads that may block for them, and what a request says.

That is names and ids in the path as it was sent, the query and the body as Structs; every fault with a sentence and,
where known, its place.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import Future
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar, cast
from urllib.parse import parse_qsl, unquote

import msgspec
from litestar import Request, Response

from kgserve.decoding import convert, decode_json, place_of
from kgserve.engine.turns import asker
from kgserve.errors import FieldError, InvalidInput, TooLarge, Unsupported
from kgserve.forwarding import Forwarder
from kgserve.http.connection import in_task
from kgserve.http.problem import ClientLeft
from kgserve.http.sse import MEDIA_TYPE as EVENT_STREAM
from kgserve.http.sse import Streams
from kgserve.model.cluster import AT_LEAST_HEADER, READ_HEADER
from kgserve.model.requests import check_store_name
from kgserve.model.versioned_names import FIELD_NAMES, VERSIONED
from kgserve.operations.operation import (
    SEQUENCE_HEADER,
    STORE_HEADER,
    STORE_PARAMETER,
    Operation,
)
from kgserve.ops.graph import CopyReads, Graphs
from kgserve.settings import MEBIBYTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from litestar.types import HTTPScope

    from kgserve.access.authentication import RequestContext
    from kgserve.access.caller import Caller
    from kgserve.http.connection import Header
    from kgserve.ops.shares import Kind, Places, Threads

P = ParamSpec("P")
T = TypeVar("T")

JSON = "application/json"
COPIES = "copies"
"""Of a request's state: with what copies of stores it bears."""
READ, AT_LEAST = READ_HEADER.lower().encode(), AT_LEAST_HEADER.lower().encode()
_COPY_HEADERS = frozenset({READ, AT_LEAST})
_SEQUENCE = SEQUENCE_HEADER.lower().encode()


class Service:
    """The operations' surroundings for one application."""

    def __init__(self, graphs: Graphs, threads: Threads, forwarder: Forwarder) -> None:
        self.graphs = graphs
        self.settings = graphs.settings
        self.streams = Streams(graphs.settings.max_event_streams, graphs.settings.max_event_streams_per_key)
        self.forwarder = forwarder
        self._threads = threads

    @property
    def places(self) -> tuple[Places, ...]:
        """What callers may have so much of."""
        return (*self._threads.places, self.streams.places)

    def seen_by(self, caller: Caller) -> Service:
        """The same surroundings, with the caller's stores alone, and what the caller may do there."""
        if caller is self.graphs.caller:
            return self
        seen = copy(self)
        seen.graphs = self.graphs.seen_by(caller)
        return seen

    def reading(self, scope: HTTPScope) -> Service:
        """The same for a request that may be about copies of stores, or not: see `bear_with_copies`."""
        copies: CopyReads | None = scope["state"].get(COPIES)
        if copies is None:
            return self
        seen = copy(self)
        seen.graphs = self.graphs.reading(copies)
        return seen

    async def in_threads(self, threads: Kind, work: Callable[[], Any]) -> Any:
        """What ``work`` answers in the end, as JSON if it is a Future, run in one of those threads.

        A caller's leaving ends no write.
        """
        found = await self._in(threads, work)
        return await self.settled(found) if isinstance(found, Future) else found

    async def begun_in_threads(self, threads: Kind, work: Callable[[], Any]) -> Any:
        """The same without making JSON of it."""
        found = await self._in(threads, work)
        return await asyncio.shield(asyncio.wrap_future(found)) if isinstance(found, Future) else found

    async def _in(self, threads: Kind, work: Callable[[], Any]) -> Any:
        working = self._run(work, threads)
        return await (asyncio.shield(working) if threads == "writes" else working)

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, run in one of the threads for reads and short work."""
        return await self._run(partial(work, *args, **kwargs), "reads")

    async def statement(self, caller: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, a statement of a caller's, run in one of the threads for those."""
        await in_task()
        return await self._threads.statements.run(partial(work, *args, **kwargs), caller)

    async def writing_statement(self, caller: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `statement`, of one that writes and may have to wait for others: not in a thread that readers need."""
        await in_task()
        return await self._threads.writing_statements.run(partial(work, *args, **kwargs), caller)

    async def transfer(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, run in one of the threads for imports and exports."""
        return await self._run(partial(work, *args, **kwargs), "transfers")

    @staticmethod
    async def settled(future: Future[Any]) -> bytes:
        """The Struct that a store's writer leaves in ``future``, as JSON; bytes are taken for JSON already.

        The Future is shielded: a caller that is cut off must not cancel a write that the store has taken.
        """
        found = await asyncio.shield(asyncio.wrap_future(future))
        return found if isinstance(found, bytes) else msgspec.json.encode(found)

    def transferring(self) -> AbstractContextManager[None]:
        """One more import or export of who asks, until the end of the block. Raises Limited."""
        return self._threads.transfers.one(asker.get())

    async def _run(self, work: Callable[[], T], threads: Kind) -> T:
        await in_task()
        return await self._threads.kinds[threads].run(work)


def service_of(request: Request[Any, Any, Any]) -> Service:
    """The service of the application that got this request, with the caller's stores alone."""
    return cast("Service", request.app.state["service"]).seen_by(caller_of(request)).reading(request.scope)


def caller_of(request: Request[Any, Any, Any]) -> Caller:
    """Who asks; the edge has found out before routing."""
    return cast("RequestContext", request.scope["state"]["request_context"]).caller


def answer(body: bytes, status: int = 200) -> Response[bytes]:
    """A JSON answer whose body is encoded already."""
    return Response(body, status_code=status, media_type=JSON)


Into = TypeVar("Into", bound=msgspec.Struct)


def path_text(request: Request[Any, Any, Any], name: str) -> str:
    """The path parameter ``name``, percent-decoded once. Routing saw it still encoded, so it may hold slashes."""
    return decoded(request.path_params[name], name)


def decoded(segment: str, name: str) -> str:
    """A segment of a path, percent-decoded once."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        fault = FieldError(name, "percent-encoded bytes that are not UTF-8")
        raise InvalidInput(f"the {name} in the path is not UTF-8", (fault,)) from None


def bear_with_copies(scope: HTTPScope, operation: Operation) -> None:
    """Note whether a request may be answered from a copy of its store. Raises InvalidInput for what says neither."""
    sent = {name: value for name, value in scope["headers"] if name in _COPY_HEADERS}
    if READ not in sent or operation.role != "read" or operation.answer.media == EVENT_STREAM:
        return
    if sent[READ] != b"copy":
        _refuse_header(READ_HEADER, "is `copy`, or left out")
    at_least = sent.get(AT_LEAST, b"0")
    if not at_least.isdigit():
        _refuse_header(AT_LEAST_HEADER, "is the `sequence` of a commit")
    scope["state"][COPIES] = CopyReads(int(at_least))


def read_from(scope: HTTPScope, headers: Headers = ()) -> tuple[Header, ...]:
    """What says of which commit an answer is that may be from a copy, unless its headers do."""
    copies: CopyReads | None = scope["state"].get(COPIES)
    if copies is None or copies.sequence is None or any(name == _SEQUENCE for name, _ in headers):
        return ()
    return ((_SEQUENCE, str(copies.sequence).encode()),)


def _refuse_header(name: str, message: str) -> NoReturn:
    raise InvalidInput(f"{name} {message}", (FieldError(name, message),))


class AskedStore(NamedTuple):
    """The store that a request is about; whether it was ``named``, or is the default."""

    name: str
    named: bool


def asked_store(scope: HTTPScope, default: str) -> AskedStore:
    """The store of a request whose path names none: that of the query, else that of the header, else the default.

    Raises InvalidInput for a header that no store can be called, also where the query counts.
    """
    header = STORE_HEADER.lower().encode()
    sent = next((value.decode("latin-1") for name, value in scope["headers"] if name == header), None)
    if sent is not None:
        _check_header(sent)
    if b"store" in scope["query_string"]:
        given = [value for name, value in _pairs(scope["query_string"]) if name == STORE_PARAMETER]
        _once([STORE_PARAMETER] * len(given))
        if given:
            return AskedStore(given[0], named=True)
    return AskedStore(default, named=False) if sent is None else AskedStore(sent, named=True)


def _check_header(name: str) -> None:
    try:
        check_store_name(name)
    except InvalidInput as error:
        raise InvalidInput(f"{STORE_HEADER}: {error}", (FieldError(STORE_HEADER, str(error)),)) from None


def asks_versioned_names(query: bytes) -> bool:
    """Whether an answer shall have the fields' names of versioned writes. Raises InvalidInput for any others."""
    given = [value for name, value in _pairs(query) if name == FIELD_NAMES] if NAMES_ASKED in query else []
    _once([FIELD_NAMES] * len(given))
    if given and given != [VERSIONED]:
        message = f"is {VERSIONED}, or left out"
        raise InvalidInput(f"query: {FIELD_NAMES}: {message}", (FieldError(FIELD_NAMES, message),))
    return bool(given)


NONE: frozenset[str] = frozenset()
OF_DEFAULT = frozenset({STORE_PARAMETER})
"""What `asked_store` reads."""
NAMES = frozenset({FIELD_NAMES})
"""What `asks_versioned_names` reads."""
NAMES_ASKED = FIELD_NAMES.encode()
"""Stands in each query in which it may find any."""


def query(
    request: Request[Any, Any, Any],
    into: type[Into],
    lists: frozenset[str] = NONE,
    repeated: frozenset[str] = NONE,
    passed: frozenset[str] = NONE,
) -> Into:
    """As `query_of`."""
    return query_of(request.scope["query_string"], into, lists, repeated, passed)


def query_of(
    text: bytes,
    into: type[Into],
    lists: frozenset[str] = NONE,
    repeated: frozenset[str] = NONE,
    passed: frozenset[str] = NONE,
) -> Into:
    """The query as ``into``; a parameter that is unknown, repeated or out of bounds is refused by name.

    Those in ``lists`` may be repeated: their values are joined with commas. Those in ``repeated`` are lists, of one
    value each time. Those in ``passed`` are for somebody else.
    """
    pairs = [(name, value) for name, value in _pairs(text) if name not in passed]
    _once(name for name, _ in pairs if name not in lists | repeated)
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    given = {name: found if name in repeated else ",".join(found) for name, found in values.items()}
    try:
        return convert(given, into, strict=False)
    except msgspec.ValidationError as error:
        fault = place_of(error, into)
        raise InvalidInput(f"query: {fault.path}: {fault.message}", (fault,)) from None


def _pairs(text: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput("the query is not percent-encoded UTF-8") from None
    except ValueError:
        raise InvalidInput("the query has too many fields") from None


def _once(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(f"query: {name} is given twice", (FieldError(name, "given twice"),))
        seen.add(name)


if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from litestar.types import Receive

    Headers = Iterable[tuple[bytes, bytes]]

AnyRequest = Request[Any, Any, Any]

INLINE_BYTES = 64 << 10  # decoding this much takes about 0.1 ms, less than the way to a thread and back
FORM = "application/x-www-form-urlencoded"
NDJSON = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})

_JSON = re.compile(r"application/json|[a-z0-9.+!#$&^_-]+/[a-z0-9.+!#$&^_-]+\+json")


async def read_json(request: AnyRequest, into: type[Into]) -> Into:
    """The body as ``into``. Raises Unsupported, TooLarge, InvalidInput, or ClientLeft when it never arrived."""
    return await json_of(request.scope["headers"], request.receive, service_of(request), into)


async def json_of(
    headers: Headers, receive: Receive, service: Service, into: type[Into], *, optional: bool = False
) -> Into:
    """As `read_json`; ``optional``: without a body all is left out, whatever its headers say of it."""
    if not optional:
        _check_headers(headers, _is_json)
    body = await _body(headers, receive, service)
    if optional and not body:
        return into()
    if optional:
        _check_headers(headers, _is_json)
    return await _decoded(service, body, into)


def chunks_of(request: AnyRequest, media: frozenset[str]) -> AsyncIterator[bytes]:
    """The body, of one of these media types, piece by piece, of any length.

    Raises Unsupported at once, ClientLeft when it breaks off.
    """
    _check_headers(request.scope["headers"], media.__contains__)
    return _chunks(request.receive)


def decode(body: bytes, into: type[Into]) -> Into:
    """JSON text as ``into``; of a key that an object holds twice the last one counts."""
    if not body.strip():
        raise InvalidInput("the body is empty; a JSON object is expected")
    try:
        return decode_json(body, into)
    except msgspec.ValidationError as error:
        fault = place_of(error, into)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8: {error.reason}") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise InvalidInput("the body is nested too deeply") from None


def _check_headers(headers: Headers, fits: Callable[[str], bool]) -> None:
    encoding = _header(headers, b"content-encoding").strip().lower()
    if encoding not in {"", "identity"}:
        raise Unsupported(f"content-encoding {encoding[:40]} is not taken; send the body as it is")
    media = _header(headers, b"content-type").partition(";")[0].strip().lower()
    if media and not fits(media) and not (media == FORM and not _from_browser(headers)):
        raise Unsupported(f"content-type {media[:80]} is not taken here")


def _is_json(media: str) -> bool:
    return _JSON.fullmatch(media) is not None


def _from_browser(headers: Headers) -> bool:
    """Whether a page may have sent it: a form needs no preflight, and browsers mark what pages send."""
    return any(name in {b"origin", b"sec-fetch-site"} for name, _ in headers)


def _header(headers: Headers, wanted: bytes) -> str:
    """The value of the first header of this name; nothing when there is none."""
    return next((value.decode("latin-1") for name, value in headers if name == wanted), "")


async def _body(headers: Headers, receive: Receive, service: Service) -> bytes:
    limit = service.settings.max_body_mb * MEBIBYTE
    announced = _header(headers, b"content-length")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in _chunks(receive):
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _decoded(service: Service, body: bytes, into: type[Into]) -> Into:
    return decode(body, into) if len(body) <= INLINE_BYTES else await service.call(decode, body, into)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"the body is over {limit // MEBIBYTE} MiB; send smaller batches, use import, or raise --max-body-mb"
    )


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        if part := message.get("body", b""):
            yield part
        more = message.get("more_body", False)
