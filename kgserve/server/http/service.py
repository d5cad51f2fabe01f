"""What every handler works with: stores, threads that may block for them, who else asks, and what a request says.

That is names and ids in the path as it was sent, the query and the body as Structs; every fault with a sentence and,
where known, its place. At the end the use cases of the table of operations, each of which reads its request, runs its
function and answers with its JSON; without the router where it can be.

The router, its request and its response take longer than a short operation itself. So the edge finds a use case here
and has it answered, as bytes. It stays among the routes, which describe it, and through which it is answered the same.
"""

from __future__ import annotations

import asyncio
import re
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar, cast
from urllib.parse import parse_qsl, quote, unquote

import msgspec
import msgspec.inspect
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler

from kgserve.api.operation import (
    ALIAS_OPT_KEY,
    SEQUENCE_HEADER,
    STORE_HEADER,
    STORE_PARAMETER,
    Operation,
    UseCase,
    described,
)
from kgserve.errors import FieldError, InvalidInput, NoStore, TooLarge, Unsupported
from kgserve.graph.compat.versioned_names import (
    FIELD_NAMES_PARAMETER,
    VERSIONED_FIELD_NAMES,
    VERSIONED_JSON_MEDIA_TYPE,
    renamed,
)
from kgserve.graph.handle import Graphs
from kgserve.platform.access.authentication import Hidden
from kgserve.platform.codecs import convert, decode_json, kind_of, lone_surrogate, place_of
from kgserve.platform.settings import MEBIBYTE
from kgserve.projections.cypher_engine.engine.turns import asker
from kgserve.server.admission import LATELY_SECONDS
from kgserve.server.http.connection import Rounds, in_task
from kgserve.server.http.problem import RENAMED, ClientLeft
from kgserve.server.http.sse import MEDIA_TYPE as EVENT_STREAM
from kgserve.server.http.sse import Streams
from kgserve.server.proxy import NodeProxy
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.rows.walk import TooLong
from kgserve.stores.access import CopyReads
from kgserve.stores.cluster_api import MIN_SEQUENCE_HEADER, READ_FROM_HEADER
from kgserve.stores.pool import NotOpen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from litestar.types import HTTPScope, Receive

    from kgserve.api.operation import ExecutorName, Method
    from kgserve.graph.handle import Graph
    from kgserve.platform.access.authentication import Caller, RequestContext
    from kgserve.server.admission import ActiveCallers, Admission, Quota
    from kgserve.server.http.connection import Header

    Headers = Iterable[tuple[bytes, bytes]]

P = ParamSpec("P")
T = TypeVar("T")

JSON = "application/json"
COPIES = "copies"
"""Of a request's state: with what copies of stores it bears."""
READ, AT_LEAST = READ_FROM_HEADER.lower().encode(), MIN_SEQUENCE_HEADER.lower().encode()
_COPY_HEADERS = frozenset({READ, AT_LEAST})
_SEQUENCE = SEQUENCE_HEADER.lower().encode()


class Service:
    """The operations' surroundings for one application."""

    def __init__(self, graphs: Graphs, threads: Admission, forwarder: NodeProxy) -> None:
        self.graphs = graphs
        self.settings = graphs.settings
        self.rounds = Rounds(threads.callers.has_others)
        most, most_of_one = graphs.settings.max_event_streams, graphs.settings.max_event_streams_per_key
        self.streams = Streams(most, most_of_one, self.rounds)
        self.forwarder = forwarder
        self._threads = threads

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """What each caller may have only some of at once."""
        return (*self._threads.quotas, self.streams.quota)

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

    async def in_threads(self, threads: ExecutorName, work: Callable[[], Any]) -> Any:
        """What ``work`` answers in the end, as JSON if it is a Future, run in one of those threads.

        A caller's leaving ends no write.
        """
        found = await self._in(threads, work)
        return await self.settled(found) if isinstance(found, Future) else found

    async def begun_in_threads(self, threads: ExecutorName, work: Callable[[], Any]) -> Any:
        """The same without making JSON of it."""
        found = await self._in(threads, work)
        return await self.rounds.result(found) if isinstance(found, Future) else found

    async def _in(self, threads: ExecutorName, work: Callable[[], Any]) -> Any:
        working = self._run(work, threads)
        return await (asyncio.shield(working) if threads == "writes" else working)

    @property
    def callers(self) -> ActiveCallers:
        """Who has asked lately."""
        return self._threads.callers

    def in_turn(self, threads: ExecutorName) -> AbstractAsyncContextManager[None]:
        """A block that is entered at once, but for a write of who has many under way: see `Turns`. Raises Limited."""
        return self._threads.turns.one(asker.get()) if threads == "writes" else nullcontext()

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, run in one of the threads for reads and short work."""
        return await self._run(partial(work, *args, **kwargs), "reads")

    async def statement(self, threads: ExecutorName, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, a statement. One that writes may wait for others: in no thread that readers need."""
        return await self._run(partial(work, *args, **kwargs), threads)

    async def transfer(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, run in one of the threads for imports and exports."""
        return await self._run(partial(work, *args, **kwargs), "transfers")

    async def settled(self, future: Future[Any]) -> bytes:
        """The Struct that a store's writer leaves in ``future``, as JSON; bytes are taken for JSON already.

        A caller that is cut off does not cancel a write that the store has taken.
        """
        found = await self.rounds.result(future)
        return found if isinstance(found, bytes) else msgspec.json.encode(found)

    def transferring(self) -> AbstractContextManager[None]:
        """One more import or export of who asks, until the end of the block. Raises Limited."""
        return self._threads.transfers.one(asker.get())

    async def _run(self, work: Callable[[], T], threads: ExecutorName) -> T:
        await in_task()
        return await self._threads.kinds[threads].run(work)


class Use:
    """Counts the requests that are use."""

    def __init__(self, callers: ActiveCallers) -> None:
        self._running = 0
        self._callers = callers
        self.begun = self._ended = time.monotonic()

    def begin(self) -> None:
        """A request is being worked on; ``begun`` is when the last one was, on the monotonic clock."""
        self._running += 1
        self.begun = time.monotonic()

    def others(self, own: str, since: float) -> int:
        """How many other callers have asked lately, while a long request of one goes on that began at ``since``.

        At least 1 when any request has begun after it: it may be the same caller's.
        """
        now = time.monotonic()
        if self.begun <= since or now - self.begun > LATELY_SECONDS:
            return 0
        return max(1, self._callers.others(own))

    def end(self) -> None:
        """It is no longer."""
        self._running -= 1
        self._ended = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last one ended; 0 while there is one."""
        return 0.0 if self._running else time.monotonic() - self._ended


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
        _refuse_header(READ_FROM_HEADER, "is `copy`, or left out")
    at_least = sent.get(AT_LEAST, b"0")
    if not at_least.isdigit():
        _refuse_header(MIN_SEQUENCE_HEADER, "is the `sequence` of a commit")
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
        raise InvalidInput.at(STORE_HEADER, str(error)) from None


def asks_versioned_names(query: bytes) -> bool:
    """Whether an answer shall have the fields' names of versioned writes. Raises InvalidInput for any others."""
    given = [value for name, value in _pairs(query) if name == FIELD_NAMES_PARAMETER] if NAMES_ASKED in query else []
    _once([FIELD_NAMES_PARAMETER] * len(given))
    if given and given != [VERSIONED_FIELD_NAMES]:
        message = f"is {VERSIONED_FIELD_NAMES}, or left out"
        raise InvalidInput(f"query: {FIELD_NAMES_PARAMETER}: {message}", (FieldError(FIELD_NAMES_PARAMETER, message),))
    return bool(given)


NONE: frozenset[str] = frozenset()
OF_DEFAULT = frozenset({STORE_PARAMETER})
"""What `asked_store` reads."""
NAMES = frozenset({FIELD_NAMES_PARAMETER})
"""What `asks_versioned_names` reads."""
NAMES_ASKED = FIELD_NAMES_PARAMETER.encode()
"""Stands in each query in which it may find any."""


def query_of(
    text: bytes,
    into: type[Into],
    lists: frozenset[str] = NONE,
    repeated: frozenset[str] = NONE,
    passed: frozenset[str] = NONE,
) -> Into:
    """The query as ``into``; a parameter that is unknown, repeated or out of bounds is refused by name.

    Those in ``lists`` may be repeated: their values are joined with commas. Those in ``repeated`` are lists: they may
    be repeated, and a value may hold several, as `comma_separated` reads them. Those in ``passed`` are for another.
    """
    names = aliases_of(into)
    pairs = [(names.get(name, name), value) for name, value in _pairs(text) if name not in passed]
    _once(name for name, _ in pairs if name not in lists | repeated)
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    given = {name: comma_separated(found) if name in repeated else ",".join(found) for name, found in values.items()}
    try:
        return convert(given, into, strict=False)
    except msgspec.ValidationError as error:
        fault = place_of(error, into)
        raise InvalidInput(f"query: {fault.path}: {fault.message}", (fault,)) from None


_SEPARATOR = re.compile(r"(?<!\\),")


def comma_separated(values: Iterable[str]) -> list[str]:
    r"""Return the items of lists whose items are separated by commas; ``\,`` is a comma within an item.

    Items without text are left out: a parameter without a value says nothing.
    """
    items = (item for value in values for item in _SEPARATOR.split(value))
    return [item.replace(r"\,", ",") for item in items if item]


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


AnyRequest = Request[Any, Any, Any]

INLINE_BYTES = 64 << 10  # decoding this much takes about 0.1 ms, less than the way to a thread and back
FORM = "application/x-www-form-urlencoded"
NDJSON = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})

_JSON = re.compile(r"application/json|[a-z0-9.+!#$&^_-]+/[a-z0-9.+!#$&^_-]+\+json")


async def json_of(
    headers: Headers, receive: Receive, service: Service, into: type[Into], *, optional: bool = False
) -> Into:
    """The body as ``into``; ``optional``: without a body all is left out, whatever its headers say of it.

    Raises Unsupported, TooLarge, InvalidInput, or ClientLeft when it never arrived.
    """
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
    body = body.removeprefix(BOM_UTF8)
    if not body.strip():
        raise InvalidInput("the body is empty; a JSON object is expected")
    try:
        return _decode_either(body, into)
    except msgspec.ValidationError as error:
        fault = place_of(error, into)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8: {error.reason}") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the body {lone_surrogate(body) or f'is not JSON: {error}'}") from None
    except RecursionError:
        raise InvalidInput("the body is nested too deeply") from None


def _decode_either(body: bytes, into: type[Into]) -> Into:
    """Decode a body by the names of the fields or, where that fails, by their aliases."""
    try:
        return decode_json(body, into)
    except msgspec.ValidationError:
        if renamed := _under_own_names(body, into):
            return renamed
        raise


def aliases_of(into: type[msgspec.Struct]) -> Mapping[str, str]:
    """Other names of a request's fields, that callers may use as well."""
    return getattr(into, "field_aliases", {})


def _under_own_names(body: bytes, into: type[Into]) -> Into | None:
    """The request of a body that uses other names of fields; None where it uses none.

    Raises InvalidInput for a value that does not fit, and for two names of one field with different values.
    """
    names = aliases_of(into)
    if not names:
        return None
    given = decode_json(body)
    if not isinstance(given, dict) or names.keys().isdisjoint(cast("dict[str, Any]", given)):
        return None
    values: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", given).items():
        own = names.get(name, name)
        if values.setdefault(own, value) != value:
            raise InvalidInput.at(name, f"is another name of {own}, which says something else; send one of them")
    try:
        return convert(values, into)
    except msgspec.ValidationError as error:
        fault = place_of(error, into)
        raise InvalidInput(f"{fault.path}: {fault.message}", (fault,)) from None


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


async def client_left(receive: Receive) -> None:
    """Wait until the client has left, reading its body into nothing."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        if part := message.get("body", b""):
            yield part
        more = message.get("more_body", False)


SHORT_WRITE = 50
"""Rows that a write may have to be checked where it arrives."""
DIRECT = "direct_operation"
"""The key of a handler's ``opt`` for the direct operation that it is."""
_CREATED = 201
_PARAMETER = None
_HERE = "/"


class DirectOperation(NamedTuple):
    """A use case, and how its request is read from path parameters, query and body."""

    case: UseCase
    read: Callable[[Mapping[str, str], bytes, Any], msgspec.Struct | None]

    @property
    def operation(self) -> Operation:
        """What is said of it."""
        return self.case.operation

    async def answered(self, scope: HTTPScope, receive: Receive, service: Service) -> bytes:
        """The JSON of the answer, for a caller that may have it. Raises as the use case and as `json_of`."""
        target, request = await self._request(scope, receive, service)
        try:
            async with service.in_turn(self.case.threads):
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
            return Response(renamed(found), media_type=VERSIONED_JSON_MEDIA_TYPE) if versioned else answer(found)
        target, asked = await self._request(scope, request.receive, service)
        async with service.in_turn(self.case.threads):
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
    direct = (DirectOperation(case, _reader(case)) for case in cases)
    return [_route(found, method) for found in direct for method in (found.case.method, *found.case.also)]


def _route(found: DirectOperation, method: Method) -> HTTPRouteHandler:
    case = found.case
    path = case.path.replace("}", ":str}")
    opt = described(case.operation) | {DIRECT: found, ALIAS_OPT_KEY: method != case.method}
    route = HTTPRouteHandler(path, http_method=method, status_code=case.operation.statuses[0], opt=opt)

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
    is_optional = sent is not None and not any(field.required for field in msgspec.structs.fields(sent))
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
            body = query_of(query, sent, repeated=repeated, passed=others) if query or not is_optional else sent()
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

    directory: RouteTable
    service: Service

    def find(self, scope: HTTPScope) -> DirectOperation | None:
        """The operation that a request is for; the scope is told where it is. None for what the router must see."""
        found = self.directory.find(scope["method"], scope["path"])
        if found is None or NAMES_ASKED in scope["query_string"]:
            return None
        operation, scope["path_params"] = found
        scope["path_template"] = operation.case.path
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


class RouteTable:
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
        found: DirectOperation | None = handler.opt.get(DIRECT)
        if found is not None and found.case.status is None:
            names = tuple(segment[1:-1] for segment in template.split("/") if segment.startswith("{"))
            methods.update(dict.fromkeys((found.case.method, *found.case.also), (found, names)))

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
