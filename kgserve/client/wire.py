"""Client requests and the decoding of answers, without I/O, and the selection of the server."""

from __future__ import annotations

import inspect
import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import httpx
import msgspec

from kgserve.client.errors import decode_json_answer
from kgserve.client.json_lines_stream import ImportUpload, StreamDecoder, encode_json_body
from kgserve.errors import InvalidInput
from kgserve.platform.media_types import JSON_MEDIA_TYPE, NDJSON_MEDIA_TYPE
from kgserve.platform.network_addresses import is_loopback
from kgserve.platform.server_discovery import (
    DiscoveredServer,
    assume_server_at_address,
    create_client_tls_context,
    find_running_server_of_data_folder,
    resolve_server_at_url,
)
from kgserve.platform.settings import load_settings
from kgserve.stores.cluster_models import MAX_STALENESS_HEADER, MIN_SEQUENCE_HEADER, READ_SOURCE_HEADER

T = TypeVar("T")
U = TypeVar("U")


_STORE_PLACEHOLDER = "{store}"
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")
Wait = float | None | msgspec.UnsetType
Query = Mapping[str, str | int | Sequence[str] | None]


class ClientRequest(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One request, ready to be sent. ``wait``: seconds that the server may be silent; None for no limit.

    ``idempotent``: repeating the request has no further effect. ``store`` and ``asked``: the store and the request
    object that it was built from, for execution without a network.
    """

    route: ClientRoute[T]
    store: str | None = None
    asked: Any = None
    path: str
    headers: dict[str, str]
    body: bytes | ImportUpload | None = None
    wait: Wait = msgspec.UNSET
    idempotent: bool = True

    @property
    def spent(self) -> bool:
        """True once an import's body was partly sent, which rules out a retry."""
        return isinstance(self.body, ImportUpload) and self.body.begun

    def decode(self, body: bytes) -> T:
        """Decode the answer. Raises Unintelligible."""
        return decode_json_answer(body, self.route.answer)


class ClientRoute(msgspec.Struct, Generic[T], frozen=True):
    """Method, path and answer type of a request; the items of a stream have their own decoder.

    ``reads``: the request only reads a store, so a replica can answer it. ``in_body``: the fields are sent in the body.
    """

    name: str
    method: str
    path: str
    answer: type[T]
    in_body: bool = False
    reads: bool = False

    def ask(self, store: str | None, asked: Any = None, **more: Any) -> ClientRequest[T]:
        """Return the call for a request object: a Struct or mapping, whose fields fill the path, query or body."""
        fields = _fields(asked)
        parts = {name: fields.pop(name) for name in _PATH_PARAMETER.findall(self.path) if name in fields}
        query, body = ({}, asked and fields) if self.in_body else (fields, None)
        if store is not None:
            (parts if _STORE_PLACEHOLDER in self.path else query)["store"] = store
        return self.call(parts, query, body, store=store, asked=asked, **more)

    def call(
        self, parts: Mapping[str, str], query: Query | None = None, body: Any = None, **more: Any
    ) -> ClientRequest[T]:
        """Return a call.

        ``parts`` fill the path; None values are omitted from the query; Structs and dicts become JSON.

        A parameter with several values is repeated.
        """
        path = self.path.format_map({name: _segment(part) for name, part in parts.items()})
        pairs = {name: value for name, value in (query or {}).items() if value is not None}
        headers = {"Accept": JSON_MEDIA_TYPE} | more.pop("headers", {})
        if isinstance(body, ImportUpload):
            headers["Content-Type"] = NDJSON_MEDIA_TYPE
        elif body is not None:
            headers["Content-Type"], body = JSON_MEDIA_TYPE, encode_json_body(body)
        asked = urlencode({name: _query_value(value) for name, value in pairs.items()}, doseq=True, quote_via=quote)
        target = f"{path}?{asked}" if asked else path
        return ClientRequest(route=self, path=target, headers=headers, body=body, **more)


def _query_value(value: Any) -> Any:
    r"""Return a list with commas within items escaped as ``\,``, because commas separate items."""
    if isinstance(value, list | tuple):
        return [each.replace(",", r"\,") if isinstance(each, str) else each for each in value]
    return value


class StreamedAnswerRequest(msgspec.Struct, Generic[U], frozen=True):
    """A request whose answer is decoded incrementally."""

    call: ClientRequest[Any]
    decoder: Callable[[], StreamDecoder[U]]


def _segment(text: str) -> str:
    """Return one segment of a path. Dot segments are escaped, because clients and proxies resolve them."""
    return text.replace(".", "%2E") if text in {".", ".."} else quote(text, safe="")


def _fields(asked: Any) -> dict[str, Any]:
    """Return the fields of a request by their wire names."""
    if isinstance(asked, msgspec.Struct):
        names = zip(asked.__struct_encode_fields__, asked.__struct_fields__, strict=True)
        return {wire: getattr(asked, field) for wire, field in names}
    return dict(asked or {})


DEFAULT_REQUEST_TIMEOUT_SECONDS = 60.0
"""Default time limit of an answer in seconds."""
SERVER_CONNECT_TIMEOUT_SECONDS = 2.0
"""Timeout in seconds of connecting to a server."""
# The server closes connections that were idle for 5 s; reusing one at that moment would break it.
CONNECTION_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=2.0)


def httpx_timeout(call: ClientRequest[Any], usual: float | None) -> httpx.Timeout:
    """Return the time limits of a call; ``usual`` is the client's own limit in seconds."""
    wait = usual if isinstance(call.wait, msgspec.UnsetType) else call.wait
    return httpx.Timeout(wait, connect=SERVER_CONNECT_TIMEOUT_SECONDS, pool=None)


def bind_client_method(
    build: Callable[..., Any], give: Callable[[Any, Any], Any], returns: str = "{}", *, of_store: bool
) -> Any:
    """Return a client method that builds a request with ``build`` and passes it to ``give`` with the connection.

    Methods of a store pass its name automatically. The method has the name, docstring and parameters of ``build``. In
    ``returns``, ``{}`` stands for the answer type of the request.
    """

    def waiting(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return give(self.connection, build(*((self.name,) if of_store else ()), *args, **kwargs))

    async def awaited(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await waiting(self, *args, **kwargs)

    bound = awaited if inspect.iscoroutinefunction(give) else waiting
    _copy_signature(bound, build, returns, of_store=of_store)
    return bound


def _copy_signature(made: Any, build: Callable[..., Any], returns: str, *, of_store: bool) -> None:
    signature = inspect.signature(build)
    given = list(signature.parameters.values())[1 if of_store else 0 :]
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    _, _, answer = str(signature.return_annotation).removesuffix("]").partition("[")
    made.__name__ = build.__name__
    made.__qualname__ = build.__qualname__
    made.__doc__ = build.__doc__
    made.__signature__ = inspect.Signature([this, *given], return_annotation=returns.format(answer))
    made.build = build


MAX_OWNER_REDIRECTS = 5
"""Maximum number of redirects of one call to the owner of its store, which may move meanwhile."""


class ServerTarget:
    """A server: given by its URL, or the one that currently serves a data folder.

    Several URLs, separated by commas, are nodes of one cluster; any of them can be called. The owners of stores are
    cached. With ``copies``, replicas may answer reads if they contain this client's previous writes and reads and
    are at most ``max_staleness`` seconds old.
    """

    def __init__(
        self,
        url: str | None,
        data: str | os.PathLike[str] | None,
        key: str | None,
        *,
        copies: bool = False,
        max_staleness: float | None = None,
    ) -> None:
        """Locate the server. Raises InvalidInput for an invalid URL, and for invalid settings in the environment."""
        self._settings = load_settings({"data_dir": data, "key": key})
        self._urls = [] if url is None else [_validate_url(each) for each in url.split(",")]
        self._owners: dict[str, DiscoveredServer] = {}
        self._was_redirected = False
        self._copies = copies
        self._replica_headers = {READ_SOURCE_HEADER: "copy"}
        if max_staleness is not None:
            self._replica_headers[MAX_STALENESS_HEADER] = f"{max_staleness:.6f}"
        self._seen: dict[str, int] = {}
        self.address = self._find()
        self.authorities = self._authorities()

    @property
    def nodes(self) -> int:
        """Minimum number of nodes that can serve a call: the addresses, and the owner that one of them has named."""
        return max(len(self._urls), 2 if self._was_redirected else 1)

    @property
    def is_local(self) -> bool:
        """True if all addresses are on this machine; then proxies from the environment must not be used."""
        return all(is_loopback(httpx.URL(url).host) for url in self._urls)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of each request. Answers from this machine are not compressed."""
        return {"Accept-Encoding": "identity"} if self.is_local else {}

    def relocate(self) -> None:
        """Locate the server again: after a restart, its port, certificate and token may differ.

        With several addresses, switch to the next one.
        """
        self._owners.clear()
        if self._urls:
            self._urls.append(self._urls.pop(0))
            if len(self._urls) > 1:
                self.address = self._find()
            return
        before, self.address = self.address, self._find()
        if self.address.certificate not in {None, before.certificate} and isinstance(self.authorities, ssl.SSLContext):
            self.authorities.load_verify_locations(cadata=self.address.certificate)

    def server_for_call(self, call: ClientRequest[Any]) -> DiscoveredServer:
        """Return the server to send a call to."""
        return self.address if self._reads_copy(call) else self._owners.get(_subject(call), self.address)

    def reading(self, call: ClientRequest[Any]) -> dict[str, str]:
        """Return the headers of a call that a replica may answer."""
        if not self._reads_copy(call):
            return {}
        seen = self._seen.get(_subject(call))
        return self._replica_headers | ({} if seen is None else {MIN_SEQUENCE_HEADER: str(seen)})

    def record_sequence(self, call: ClientRequest[Any], answer: Any) -> None:
        """Record the sequence of an answer, so that later answers from replicas are not older."""
        sequence = getattr(answer, "sequence", None)
        if call.route.name == "drop":
            self._seen.pop(_subject(call), None)
        elif self._copies and call.store and isinstance(sequence, int):
            self._seen[call.store] = max(sequence, self._seen.get(call.store, 0))

    def forget(self, call: ClientRequest[Any]) -> None:
        """Forget the owner that a call was sent to, after it did not answer; the next call locates it again."""
        self._owners.pop(_subject(call), None)

    def follow_redirect(self, call: ClientRequest[Any], response: httpx.Response) -> DiscoveredServer | None:
        """Return the node that a redirect names, if the call can be sent again; None otherwise."""
        location, asked = response.headers.get("location", ""), response.request.url.raw_path.decode("ascii")
        if response.status_code != HTTPStatus.TEMPORARY_REDIRECT or not location.endswith(asked):
            return None
        found = resolve_server_at_url(location.removesuffix(asked), self._settings.data_dir).with_key(
            self._settings.key
        )
        if not self._reads_copy(call):
            self._owners[_subject(call)] = found
            self._was_redirected = True
        return found if not call.spent or (isinstance(call.body, ImportUpload) and call.body.is_repeatable) else None

    def _reads_copy(self, call: ClientRequest[Any]) -> bool:
        return self._copies and call.route.reads

    def _find(self) -> DiscoveredServer:
        settings = self._settings
        if self._urls:
            found = resolve_server_at_url(self._urls[0], settings.data_dir)
        else:
            listening = assume_server_at_address(settings.host, settings.port, tls=settings.tls_cert is not None)
            found = find_running_server_of_data_folder(settings.data_dir) or listening
        return found.with_key(settings.key)

    def _authorities(self) -> ssl.SSLContext | bool:
        """Return the trusted certificates: the data folder's server's own, else the system's.

        Loading the system's takes 40 ms, so it is skipped for plain HTTP.
        """
        if self.address.url.startswith("https:") and self._urls and self.address.certificate is None:
            return True
        return create_client_tls_context(self.address.certificate or "")


def _subject(call: ClientRequest[Any]) -> str:
    """Return the store of a call, else its path."""
    return call.store or call.path


def _validate_url(url: str) -> str:
    text = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parsed = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{url!r} is not a server address: {error}") from error
    has_space = any(letter.isspace() for letter in text)
    if has_space or parsed.scheme not in {"http", "https"} or not parsed.host or parsed.query or parsed.fragment:
        raise InvalidInput(f"{url!r} is not a server address. Example: http://127.0.0.1:8080")
    return text
