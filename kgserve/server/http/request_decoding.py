"""Decoding of requests: path, query, headers and body as Structs.

Every decoding error has a message and, where known, the name of the field.
"""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast
from urllib.parse import parse_qsl, unquote

import msgspec
from litestar import Request

from kgserve.api.operation import SEQUENCE_HEADER, STORE_HEADER, STORE_PARAMETER, ApiOperation
from kgserve.errors import FieldError, InvalidInput, NoStore, TooLarge, UnsupportedMediaType
from kgserve.graph.compat.versioned_nodes_field_names import FIELD_NAMES_PARAMETER, VERSIONED_FIELD_NAMES
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.graph.url_parameters import split_comma_separated_values
from kgserve.platform.access.authentication import HiddenStore
from kgserve.platform.codecs import (
    convert_plain_value_to_type,
    decode_json,
    find_lone_surrogate,
    locate_validation_error,
)
from kgserve.platform.duplicate_json_keys import find_duplicate_json_key
from kgserve.platform.large_json_objects import LARGE_JSON_BYTES, decode_large_json_object
from kgserve.platform.media_types import EVENT_STREAM_MEDIA_TYPE
from kgserve.platform.settings import MEBIBYTE
from kgserve.projections.cypher_engine.engine.fair_pool import current_caller
from kgserve.server.cluster_http_client import ClusterNodeHttpClient
from kgserve.server.http.error_responses import ClientDisconnected
from kgserve.server.http.fair_callbacks import FairCallbackQueue
from kgserve.server.http.sse import EventStreamRegistry
from kgserve.storage.model.store_names import check_store_name
from kgserve.stores.cluster_models import (
    MAX_STALENESS_HEADER,
    MIN_SEQUENCE_HEADER,
    READ_SOURCE_HEADER,
    REPLICA_AGE_HEADER,
)
from kgserve.stores.scoped_stores import ReplicaReadPermission

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from litestar.types import HTTPScope, Receive

    from kgserve.graph.store_handle import StoreHandle
    from kgserve.platform.access.authentication import AuthenticatedCaller, RequestContext
    from kgserve.server.admission import AdmissionControl
    from kgserve.server.http.error_responses import Header

    Headers = Iterable[tuple[bytes, bytes]]

Into = TypeVar("Into", bound=msgspec.Struct)
SERVICES_STATE_KEY = "service"
"""Key of a request's state for its `RequestServices`."""
REPLICA_READ_STATE_KEY = "replica_read"
"""Key of a request's state for its `ReplicaRead`; set if a replica may serve it."""
READ_FROM_HEADER_BYTES = READ_SOURCE_HEADER.lower().encode()
_MIN_SEQUENCE, _MAX_STALENESS = MIN_SEQUENCE_HEADER.lower().encode(), MAX_STALENESS_HEADER.lower().encode()
_COPY_HEADERS = frozenset({READ_FROM_HEADER_BYTES, _MIN_SEQUENCE, _MAX_STALENESS})
_REPLICA_AGE = REPLICA_AGE_HEADER.lower().encode()
_SECONDS = re.compile(rb"\d{1,9}(\.\d{1,6})?")
_SEQUENCE = SEQUENCE_HEADER.lower().encode()
NO_PARAMETERS: frozenset[str] = frozenset()
STORE_SELECTION_PARAMETERS = frozenset({STORE_PARAMETER})
"""Query parameters that `select_store` reads."""
RENAMING_PARAMETERS = frozenset({FIELD_NAMES_PARAMETER})
"""Query parameters that `asks_versioned_names` reads."""
FIELD_NAMES_PARAMETER_BYTES = FIELD_NAMES_PARAMETER.encode()
"""Substring of every query that contains such a parameter."""
MAX_INLINE_JSON_BYTES = 64 << 10  # decoding this much (0.1 ms) is faster than a switch to a thread and back
_LARGE_BODY_DIGITS = 7
"""Digits of a Content-Length from which on bodies of one caller are read in turn: 1 MB or more."""
FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
NDJSON_TYPES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})
_JSON = re.compile(r"application/json|[a-z0-9.+!#$&^_-]+/[a-z0-9.+!#$&^_-]+\+json")


class RequestHandlerDependencies(NamedTuple):
    """Dependencies of request handlers: stores that the caller may access, threads, event streams and other nodes."""

    graphs: CallerStoreHandles
    admission: AdmissionControl
    callbacks: FairCallbackQueue
    streams: EventStreamRegistry
    proxy: ClusterNodeHttpClient


def get_request_dependencies(request: Request[Any, Any, Any]) -> RequestHandlerDependencies:
    """Return the dependencies of a request's handler, restricted to the stores of its caller."""
    return cast("RequestHandlerDependencies", request.scope["state"][SERVICES_STATE_KEY])


def get_authenticated_caller(request: Request[Any, Any, Any]) -> AuthenticatedCaller:
    """Return the caller that the gateway authenticated."""
    return cast("RequestContext", request.scope["state"]["request_context"]).caller


def decode_path_parameter(request: Request[Any, Any, Any], name: str) -> str:
    """Return the path parameter ``name``, percent-decoded once, after routing; it may contain slashes."""
    return decode_path_segment(request.path_params[name], name)


def decode_path_segment(segment: str, name: str) -> str:
    """Return a path segment, percent-decoded once. Raises InvalidInput."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        fault = FieldError(name, "percent-encoded bytes are not UTF-8")
        raise InvalidInput(f"the {name} in the path is not UTF-8", (fault,)) from None


def parse_replica_read_headers(scope: HTTPScope, operation: ApiOperation) -> ReplicaReadPermission | None:
    """Return the conditions under which a replica may answer; None if none may. Raises InvalidInput."""
    if operation.role != "read" or operation.answer.media == EVENT_STREAM_MEDIA_TYPE:
        return None
    sent = {name: value for name, value in scope["headers"] if name in _COPY_HEADERS}
    if sent[READ_FROM_HEADER_BYTES] != b"copy":
        _refuse_header(READ_SOURCE_HEADER, "must be `copy`, or omitted")
    at_least = sent.get(_MIN_SEQUENCE, b"0")
    if not at_least.isdigit():
        _refuse_header(MIN_SEQUENCE_HEADER, "must be the `sequence` of a commit")
    staleness = sent.get(_MAX_STALENESS)
    if staleness is not None and _SECONDS.fullmatch(staleness) is None:
        _refuse_header(MAX_STALENESS_HEADER, "must be a number of seconds, such as 2 or 0.5")
    return ReplicaReadPermission(int(at_least), None if staleness is None else float(staleness))


def build_replica_headers(scope: HTTPScope, headers: Headers = ()) -> tuple[Header, ...]:
    """Return the headers with the commit that a replica answered from and its age, except those in ``headers``."""
    copies: ReplicaReadPermission | None = scope["state"].get(REPLICA_READ_STATE_KEY)
    if copies is None or copies.sequence is None:
        return ()
    given = {name for name, _ in headers}
    # Rounded up, since the age is a bound.
    age = math.ceil(copies.age * 1000) / 1000
    own = ((_SEQUENCE, str(copies.sequence).encode()), (_REPLICA_AGE, f"{age:.3f}".encode()))
    return tuple(each for each in own if each[0] not in given)


def _refuse_header(name: str, message: str) -> NoReturn:
    raise InvalidInput(f"{name} {message}", (FieldError(name, message),))


class RequestStoreSelection(NamedTuple):
    """Store that a request selects; ``named`` unless it is the default store."""

    name: str
    named: bool


def select_request_store(scope: HTTPScope, default: str) -> RequestStoreSelection:
    """Return the store of a request whose path names none: from the query, else the header, else the default.

    Raises InvalidInput for a header that is not a valid store name, even if the query names the store.
    """
    header = STORE_HEADER.lower().encode()
    sent = next((value.decode("latin-1") for name, value in scope["headers"] if name == header), None)
    if sent is not None:
        _check_header(sent)
    if b"store" in scope["query_string"]:
        given = [value for name, value in _pairs(scope["query_string"]) if name == STORE_PARAMETER]
        _once([STORE_PARAMETER] * len(given))
        if given:
            return RequestStoreSelection(given[0], named=True)
    return RequestStoreSelection(default, named=False) if sent is None else RequestStoreSelection(sent, named=True)


def _check_header(name: str) -> None:
    try:
        check_store_name(name)
    except InvalidInput as error:
        raise InvalidInput.at(STORE_HEADER, str(error)) from None


def get_request_store(scope: HTTPScope, service: RequestHandlerDependencies) -> StoreHandle:
    """Return the store of a request: from its path, or else as `select_request_store` finds it."""
    given = scope["path_params"].get("store")
    if given is not None:
        return service.graphs.graph(decode_path_segment(given, "store"))
    asked = select_request_store(scope, service.graphs.settings.default_store)
    return service.graphs.graph(asked.name, is_default=not asked.named)


def get_request_store_name(scope: HTTPScope, service: RequestHandlerDependencies) -> str:
    """Return the name of the store of a request."""
    return get_request_store(scope, service).name


def is_missing_default_store(error: NoStore, graph: StoreHandle) -> bool:
    """Return whether the missing store is the default one, and the request did not name it."""
    return graph.is_default and error.store == graph.name and not isinstance(error, HiddenStore)


def wants_versioned_field_names(query: bytes) -> bool:
    """Return whether the response uses the field names of versioned writes. Raises InvalidInput for unknown values."""
    given = (
        [value for name, value in _pairs(query) if name == FIELD_NAMES_PARAMETER]
        if FIELD_NAMES_PARAMETER_BYTES in query
        else []
    )
    _once([FIELD_NAMES_PARAMETER] * len(given))
    if given and given != [VERSIONED_FIELD_NAMES]:
        message = f"must be {VERSIONED_FIELD_NAMES}, or omitted"
        raise InvalidInput(f"query: {FIELD_NAMES_PARAMETER}: {message}", (FieldError(FIELD_NAMES_PARAMETER, message),))
    return bool(given)


def decode_query_parameters(
    text: bytes,
    into: type[Into],
    lists: frozenset[str] = NO_PARAMETERS,
    repeated: frozenset[str] = NO_PARAMETERS,
    passed: frozenset[str] = NO_PARAMETERS,
) -> Into:
    """Decode the query as ``into``. Raises InvalidInput for parameters that are unknown, repeated or out of bounds.

    lists: parameters that may be repeated; their values are joined with commas.
    repeated: list parameters; they may be repeated, each value may hold several items (`split_comma_separated_values`).
    passed: parameters to ignore, because other code reads them.
    """
    names = get_request_field_aliases(into)
    pairs = [(names.get(name, name), value) for name, value in _pairs(text) if name not in passed]
    _once(name for name, _ in pairs if name not in lists | repeated)
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    given = {
        name: split_comma_separated_values(name, found) if name in repeated else ",".join(found)
        for name, found in values.items()
    }
    try:
        return convert_plain_value_to_type(given, into, strict=False)
    except msgspec.ValidationError as error:
        fault = locate_validation_error(error, into)
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
            raise InvalidInput(f"query: {name} is given more than once", (FieldError(name, "given more than once"),))
        seen.add(name)


async def decode_json_body(
    headers: Headers, receive: Receive, service: RequestHandlerDependencies, into: type[Into], *, optional: bool = False
) -> Into:
    """Decode the JSON body as ``into``; if ``optional``, an empty body yields the defaults.

    Raises UnsupportedMediaType, TooLarge, InvalidInput; ClientDisconnected if the client disconnects before the end.
    """
    if not optional:
        _check_headers(headers, _is_json)
    turns = service.admission.loop_turns
    announced = _header(headers, b"content-length")
    is_large = len(announced) >= _LARGE_BODY_DIGITS and announced.isdecimal()
    async with turns.one(current_caller.get()) if is_large else nullcontext():
        parts = await _body_parts(headers, receive, service)
        if optional and not any(parts):
            return into()
        if optional:
            _check_headers(headers, _is_json)
        if sum(map(len, parts)) <= MAX_INLINE_JSON_BYTES:
            return _decode_parts(parts, into)
        return await service.admission.run("reads", _decode_parts, parts, into)


def iterate_body_chunks_of_media_type(request: Request[Any, Any, Any], media: frozenset[str]) -> AsyncIterator[bytes]:
    """Return an iterator over the chunks of a body of one of these media types, without a limit of its length.

    Raises UnsupportedMediaType immediately. The iterator raises ClientDisconnected if the client disconnects early.
    """
    _check_headers(request.scope["headers"], media.__contains__)
    return iterate_request_body_chunks(request.receive)


def decode_json_text(body: bytes, into: type[Into]) -> Into:
    """Decode JSON text as ``into``. Raises InvalidInput, also for a key that occurs twice in an object."""
    body = body.removeprefix(BOM_UTF8)
    if not body.strip():
        raise InvalidInput("the body is empty; send a JSON object")
    if len(body) >= LARGE_JSON_BYTES and (large := decode_large_json_object(body, into)) is not None:
        return large
    try:
        decoded = _decode_either(body, into)
    except msgspec.ValidationError as error:
        fault = locate_validation_error(error, into)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8: {error.reason}") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the body {find_lone_surrogate(body) or f'is not JSON: {error}'}") from None
    except RecursionError:
        raise InvalidInput("the body is nested too deeply") from None
    if (twice := find_duplicate_json_key(body)) is not None:
        raise InvalidInput.at(twice, "occurs twice in the same object; send each key once")
    return decoded


def _decode_either(body: bytes, into: type[Into]) -> Into:
    """Decode a body by field names, or by field aliases if that fails."""
    try:
        return decode_json(body, into)
    except msgspec.ValidationError:
        if renamed := _decode_aliases(body, into):
            return renamed
        raise


def get_request_field_aliases(into: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the alternative names that a request type accepts for its fields: alias to field name."""
    return getattr(into, "field_aliases", {})


def _decode_aliases(body: bytes, into: type[Into]) -> Into | None:
    """Return the request of a body that uses field aliases; None if it uses none.

    Raises InvalidInput for invalid values, and for an alias whose value differs from that of its field.
    """
    names = get_request_field_aliases(into)
    if not names:
        return None
    given = decode_json(body)
    if not isinstance(given, dict) or names.keys().isdisjoint(cast("dict[str, Any]", given)):
        return None
    values: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", given).items():
        own = names.get(name, name)
        if values.setdefault(own, value) != value:
            raise InvalidInput.at(name, f"is an alias of {own}, which has a different value; send one of them")
    try:
        return convert_plain_value_to_type(values, into)
    except msgspec.ValidationError as error:
        fault = locate_validation_error(error, into)
        raise InvalidInput(f"{fault.path}: {fault.message}", (fault,)) from None


def _check_headers(headers: Headers, fits: Callable[[str], bool]) -> None:
    encoding = _header(headers, b"content-encoding").strip().lower()
    if encoding not in {"", "identity"}:
        raise UnsupportedMediaType(f"content-encoding {encoding[:40]} is not supported; send the body unencoded")
    media = _header(headers, b"content-type").partition(";")[0].strip().lower()
    if media and not fits(media) and not (media == FORM_MEDIA_TYPE and not _from_browser(headers)):
        raise UnsupportedMediaType(f"content-type {media[:80]} is not supported here")


def _is_json(media: str) -> bool:
    return _JSON.fullmatch(media) is not None


def _from_browser(headers: Headers) -> bool:
    """Return whether a web page may have sent the request; forms need no preflight, but browsers add these headers."""
    return any(name in {b"origin", b"sec-fetch-site"} for name, _ in headers)


def _header(headers: Headers, wanted: bytes) -> str:
    """Return the value of the first header of this name, or an empty text."""
    return next((value.decode("latin-1") for name, value in headers if name == wanted), "")


async def _body_parts(headers: Headers, receive: Receive, service: RequestHandlerDependencies) -> list[bytes]:
    limit = service.graphs.settings.max_body_mb * MEBIBYTE
    announced = _header(headers, b"content-length")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in iterate_request_body_chunks(receive):
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return parts


def _decode_parts(parts: list[bytes], into: type[Into]) -> Into:
    return decode_json_text(b"".join(parts), into)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"the body exceeds {limit // MEBIBYTE} MiB; send smaller batches, use import, or raise --max-body-mb"
    )


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects, discarding what it sends."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def iterate_request_body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the chunks of a body. Raises ClientDisconnected when the client disconnects before the end."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        if part := message.get("body", b""):
            yield part
        more = message.get("more_body", False)
