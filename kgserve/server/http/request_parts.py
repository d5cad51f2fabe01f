"""What a request says: names in its path, its query, its headers and its body as Structs.

Every fault is an error with a sentence and, where known, its place.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast
from urllib.parse import parse_qsl, unquote

import msgspec
from litestar import Request

from kgserve.api.operation import SEQUENCE_HEADER, STORE_HEADER, STORE_PARAMETER, Operation
from kgserve.errors import FieldError, InvalidInput, NoStore, TooLarge, Unsupported
from kgserve.graph.compat.versioned_names import FIELD_NAMES_PARAMETER, VERSIONED_FIELD_NAMES
from kgserve.graph.handle import Graphs
from kgserve.platform.access.authentication import Hidden
from kgserve.platform.codecs import convert, decode_json, lone_surrogate, place_of
from kgserve.platform.media_types import EVENT_STREAM_MEDIA_TYPE
from kgserve.platform.settings import MEBIBYTE
from kgserve.server.http.fair_callbacks import FairCallbackQueue
from kgserve.server.http.problem import ClientLeft
from kgserve.server.http.sse import Streams
from kgserve.server.proxy import NodeProxy
from kgserve.storage.model.store_names import check_store_name
from kgserve.stores.access import ReplicaRead
from kgserve.stores.cluster_api import MIN_SEQUENCE_HEADER, READ_FROM_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from litestar.types import HTTPScope, Receive

    from kgserve.graph.handle import Graph
    from kgserve.platform.access.authentication import Caller, RequestContext
    from kgserve.server.admission import Admission
    from kgserve.server.http.problem import Header

    Headers = Iterable[tuple[bytes, bytes]]

Into = TypeVar("Into", bound=msgspec.Struct)
SERVICE = "service"
"""The key of a request's state for its `Service`."""
REPLICA_READ = "replica_read"
"""The key of a request's state for the replicas that may answer it."""
READ, AT_LEAST = READ_FROM_HEADER.lower().encode(), MIN_SEQUENCE_HEADER.lower().encode()
_COPY_HEADERS = frozenset({READ, AT_LEAST})
_SEQUENCE = SEQUENCE_HEADER.lower().encode()
NO_NAMES: frozenset[str] = frozenset()
OF_DEFAULT = frozenset({STORE_PARAMETER})
"""What `asked_store` reads."""
RENAMING_PARAMETERS = frozenset({FIELD_NAMES_PARAMETER})
"""What `asks_versioned_names` reads."""
NAMES_ASKED = FIELD_NAMES_PARAMETER.encode()
"""Stands in each query in which it may find any."""
MAX_INLINE_JSON_BYTES = 64 << 10  # decoding this much takes about 0.1 ms, less than the way to a thread and back
FORM = "application/x-www-form-urlencoded"
NDJSON_TYPES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})
_JSON = re.compile(r"application/json|[a-z0-9.+!#$&^_-]+/[a-z0-9.+!#$&^_-]+\+json")
_SEPARATOR = re.compile(r"(?<!\\),")


class Service(NamedTuple):
    """What handlers work with: the stores that the caller may see, threads, streams, and other nodes."""

    graphs: Graphs
    admission: Admission
    callbacks: FairCallbackQueue
    streams: Streams
    proxy: NodeProxy


def service_of(request: Request[Any, Any, Any]) -> Service:
    """Return the service as the caller of this request may use it."""
    return cast("Service", request.scope["state"][SERVICE])


def caller_of(request: Request[Any, Any, Any]) -> Caller:
    """Who asks; the edge has found out before routing."""
    return cast("RequestContext", request.scope["state"]["request_context"]).caller


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


def parse_replica_headers(scope: HTTPScope, operation: Operation) -> ReplicaRead | None:
    """Return how a replica of the store may answer; None when it may not. Raises InvalidInput."""
    if operation.role != "read" or operation.answer.media == EVENT_STREAM_MEDIA_TYPE:
        return None
    sent = {name: value for name, value in scope["headers"] if name in _COPY_HEADERS}
    if sent[READ] != b"copy":
        _refuse_header(READ_FROM_HEADER, "is `copy`, or left out")
    at_least = sent.get(AT_LEAST, b"0")
    if not at_least.isdigit():
        _refuse_header(MIN_SEQUENCE_HEADER, "is the `sequence` of a commit")
    return ReplicaRead(int(at_least))


def read_from(scope: HTTPScope, headers: Headers = ()) -> tuple[Header, ...]:
    """What says of which commit an answer is that may be from a copy, unless its headers do."""
    copies: ReplicaRead | None = scope["state"].get(REPLICA_READ)
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


def graph_of(scope: HTTPScope, service: Service) -> Graph:
    """The store that a request is about: that of its path, or what it says otherwise."""
    given = scope["path_params"].get("store")
    if given is not None:
        return service.graphs.graph(decoded(given, "store"))
    asked = asked_store(scope, service.graphs.settings.default_store)
    return service.graphs.graph(asked.name, is_default=not asked.named)


def store_of(scope: HTTPScope, service: Service) -> str:
    """The name of that store."""
    return graph_of(scope, service).name


def is_yet_to_be_made(error: NoStore, graph: Graph) -> bool:
    """Whether the store that is not there is the default one, which nobody has named."""
    return graph.is_default and error.store == graph.name and not isinstance(error, Hidden)


def asks_versioned_names(query: bytes) -> bool:
    """Whether an answer shall have the fields' names of versioned writes. Raises InvalidInput for any others."""
    given = [value for name, value in _pairs(query) if name == FIELD_NAMES_PARAMETER] if NAMES_ASKED in query else []
    _once([FIELD_NAMES_PARAMETER] * len(given))
    if given and given != [VERSIONED_FIELD_NAMES]:
        message = f"is {VERSIONED_FIELD_NAMES}, or left out"
        raise InvalidInput(f"query: {FIELD_NAMES_PARAMETER}: {message}", (FieldError(FIELD_NAMES_PARAMETER, message),))
    return bool(given)


def query_of(
    text: bytes,
    into: type[Into],
    lists: frozenset[str] = NO_NAMES,
    repeated: frozenset[str] = NO_NAMES,
    passed: frozenset[str] = NO_NAMES,
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


def chunks_of(request: Request[Any, Any, Any], media: frozenset[str]) -> AsyncIterator[bytes]:
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
    limit = service.graphs.settings.max_body_mb * MEBIBYTE
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
    return (
        decode(body, into)
        if len(body) <= MAX_INLINE_JSON_BYTES
        else await service.admission.run("reads", decode, body, into)
    )


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
