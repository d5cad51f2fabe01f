"""What goes over the wire, without sending it: requests, how their answers are read, and which server is meant."""

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

from kgserve.client.failures import decoded
from kgserve.client.lines import Decoder, Upload, json_body
from kgserve.errors import InvalidInput
from kgserve.platform.hosts import is_loopback
from kgserve.platform.media_types import JSON_MEDIA_TYPE, NDJSON_MEDIA_TYPE
from kgserve.platform.server_discovery import DiscoveredServer, at, configured, find, trust
from kgserve.platform.settings import load
from kgserve.stores.cluster_api import MIN_SEQUENCE_HEADER, READ_FROM_HEADER

T = TypeVar("T")
U = TypeVar("U")


_STORE_PLACEHOLDER = "{store}"
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")
Wait = float | None | msgspec.UnsetType
Query = Mapping[str, str | int | Sequence[str] | None]


class ClientRequest(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One request, ready to be sent. ``wait`` is how many seconds the server may be silent; None is for ever.

    ``idempotent``: done twice it comes to the same as once. ``store`` and ``asked`` are what it was made of: the store
    that it is about, and the request, for whoever carries it out where it is.
    """

    route: Route[T]
    store: str | None = None
    asked: Any = None
    path: str
    headers: dict[str, str]
    body: bytes | Upload | None = None
    wait: Wait = msgspec.UNSET
    idempotent: bool = True

    @property
    def spent(self) -> bool:
        """Whether something of its body has been taken: an import that was begun is never sent again."""
        return isinstance(self.body, Upload) and self.body.begun

    def decode(self, body: bytes) -> T:
        """The answer. Raises Unintelligible."""
        return decoded(body, self.route.answer)


class Route(msgspec.Struct, Generic[T], frozen=True):
    """A method of a path, and what it answers with; a stream's parts are read by its decoder.

    What only ``reads`` a store may be answered from a copy of it.
    """

    name: str
    method: str
    path: str
    answer: type[T]
    in_body: bool = False
    reads: bool = False

    def ask(self, store: str | None, asked: Any = None, **more: Any) -> ClientRequest[T]:
        """The call for a request: a Struct or a mapping, whose fields go where the route wants them."""
        fields = _fields(asked)
        parts = {name: fields.pop(name) for name in _PATH_PARAMETER.findall(self.path) if name in fields}
        query, body = ({}, asked and fields) if self.in_body else (fields, None)
        if store is not None:
            (parts if _STORE_PLACEHOLDER in self.path else query)["store"] = store
        return self.call(parts, query, body, store=store, asked=asked, **more)

    def call(
        self, parts: Mapping[str, str], query: Query | None = None, body: Any = None, **more: Any
    ) -> ClientRequest[T]:
        """A request. ``parts`` fill the path; what is None is left out of the query; Structs and dicts become JSON.

        A parameter with several values is repeated.
        """
        path = self.path.format_map({name: _segment(part) for name, part in parts.items()})
        pairs = {name: value for name, value in (query or {}).items() if value is not None}
        headers = {"Accept": JSON_MEDIA_TYPE} | more.pop("headers", {})
        if isinstance(body, Upload):
            headers["Content-Type"] = NDJSON_MEDIA_TYPE
        elif body is not None:
            headers["Content-Type"], body = JSON_MEDIA_TYPE, json_body(body)
        asked = urlencode({name: _query_value(value) for name, value in pairs.items()}, doseq=True, quote_via=quote)
        target = f"{path}?{asked}" if asked else path
        return ClientRequest(route=self, path=target, headers=headers, body=body, **more)


def _query_value(value: Any) -> Any:
    r"""Return a list with the commas within its items as ``\,``: others separate items."""
    if isinstance(value, list | tuple):
        return [each.replace(",", r"\,") if isinstance(each, str) else each for each in value]
    return value


class Streamed(msgspec.Struct, Generic[U], frozen=True):
    """A request whose answer is read in parts while it comes."""

    call: ClientRequest[Any]
    decoder: Callable[[], Decoder[U]]


def _segment(text: str) -> str:
    """One segment of a path. Segments of dots would be taken for steps in it."""
    return text.replace(".", "%2E") if text in {".", ".."} else quote(text, safe="")


def _fields(asked: Any) -> dict[str, Any]:
    """A request by the names that it has on the wire."""
    if isinstance(asked, msgspec.Struct):
        names = zip(asked.__struct_encode_fields__, asked.__struct_fields__, strict=True)
        return {wire: getattr(asked, field) for wire, field in names}
    return dict(asked or {})


DEFAULT_REQUEST_TIMEOUT_SECONDS = 60.0
"""Seconds that an answer may take, unless told otherwise."""
SERVER_CONNECT_TIMEOUT_SECONDS = 2.0
"""Seconds that a server may take to accept a connection."""
# The server closes connections that were idle for 5 s; one taken up at that very moment would break.
CONNECTION_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=2.0)


def limit(call: ClientRequest[Any], usual: float | None) -> httpx.Timeout:
    """The time limits of a call; ``usual`` is the client's own, in seconds."""
    wait = usual if isinstance(call.wait, msgspec.UnsetType) else call.wait
    return httpx.Timeout(wait, connect=SERVER_CONNECT_TIMEOUT_SECONDS, pool=None)


def method(build: Callable[..., Any], give: Callable[[Any, Any], Any], returns: str = "{}", *, of_store: bool) -> Any:
    """A method that gives what a connection makes of what ``build`` describes; a store's methods know its name already.

    It is shown with name, description and parameters of ``build``. In ``returns``, ``{}`` stands for what the request
    that ``build`` makes is answered with.
    """

    def waiting(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return give(self.connection, build(*((self.name,) if of_store else ()), *args, **kwargs))

    async def awaited(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await waiting(self, *args, **kwargs)

    made = awaited if inspect.iscoroutinefunction(give) else waiting
    _show(made, build, returns, of_store=of_store)
    return made


def _show(made: Any, build: Callable[..., Any], returns: str, *, of_store: bool) -> None:
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
"""So often one call is sent on: a store has one owner, and may move while it is asked for."""


class Target:
    """A server: named by its URL, or the one that serves a data folder, wherever it listens at the time.

    Several URLs, separated by commas, are nodes of one cluster, of which any may be asked. Where the stores are that
    the others serve is remembered. With ``copies`` whoever is asked may answer reads from a copy, which has what this
    client wrote and saw before.
    """

    def __init__(
        self, url: str | None, data: str | os.PathLike[str] | None, key: str | None, *, copies: bool = False
    ) -> None:
        """Raises InvalidInput for a URL that is none, and for settings in the environment that are wrong."""
        self._settings = load({"data_dir": data, "key": key})
        self._urls = [] if url is None else [_checked(each) for each in url.split(",")]
        self._places: dict[str, DiscoveredServer] = {}
        self._copies = copies
        self._seen: dict[str, int] = {}
        self.address = self._find()
        self.authorities = self._authorities()

    @property
    def addresses(self) -> int:
        """How many nodes may be asked."""
        return max(len(self._urls), 1)

    @property
    def nearby(self) -> bool:
        """Whether it is on this machine: proxies of the environment would be asked for 127.0.0.1."""
        return all(is_loopback(httpx.URL(url).host) for url in self._urls)

    @property
    def headers(self) -> dict[str, str]:
        """What each request says beside its own: that of a server on this machine no answer need be made smaller."""
        return {"Accept-Encoding": "identity"} if self.nearby else {}

    def look_again(self) -> None:
        """A server that was started anew may have another port and certificate, and has another token.

        Of several the next one is asked.
        """
        self._places.clear()
        if self._urls:
            self._urls.append(self._urls.pop(0))
            if len(self._urls) > 1:
                self.address = self._find()
            return
        before, self.address = self.address, self._find()
        if self.address.certificate not in {None, before.certificate} and isinstance(self.authorities, ssl.SSLContext):
            self.authorities.load_verify_locations(cadata=self.address.certificate)

    def serving(self, call: ClientRequest[Any]) -> DiscoveredServer:
        """Where a call is to be sent."""
        return self.address if self._reads_copy(call) else self._places.get(_about(call), self.address)

    def reading(self, call: ClientRequest[Any]) -> dict[str, str]:
        """What a call that may be answered from a copy says of that."""
        if not self._reads_copy(call):
            return {}
        seen = self._seen.get(_about(call))
        return {READ_FROM_HEADER: "copy"} | ({} if seen is None else {MIN_SEQUENCE_HEADER: str(seen)})

    def saw(self, call: ClientRequest[Any], answer: Any) -> None:
        """Note of which commit an answer is: later ones from copies are not to be older."""
        sequence = getattr(answer, "sequence", None)
        if call.route.name == "drop":
            self._seen.pop(_about(call), None)
        elif self._copies and call.store and isinstance(sequence, int):
            self._seen[call.store] = max(sequence, self._seen.get(call.store, 0))

    def forget(self, call: ClientRequest[Any]) -> None:
        """Where a call was sent nobody answers, or who cannot: ask again where its store is."""
        self._places.pop(_about(call), None)

    def sent_on(self, call: ClientRequest[Any], response: httpx.Response) -> DiscoveredServer | None:
        """The other node that serves the store, says an answer, where the call is to be sent again if it can be."""
        location, asked = response.headers.get("location", ""), response.request.url.raw_path.decode("ascii")
        if response.status_code != HTTPStatus.TEMPORARY_REDIRECT or not location.endswith(asked):
            return None
        found = at(location.removesuffix(asked), self._settings.data_dir).with_key(self._settings.key)
        if not self._reads_copy(call):
            self._places[_about(call)] = found
        return found if not call.spent or (isinstance(call.body, Upload) and call.body.is_repeatable) else None

    def _reads_copy(self, call: ClientRequest[Any]) -> bool:
        return self._copies and call.route.reads

    def _find(self) -> DiscoveredServer:
        settings = self._settings
        if self._urls:
            found = at(self._urls[0], settings.data_dir)
        else:
            listening = configured(settings.host, settings.port, tls=settings.tls_cert is not None)
            found = find(settings.data_dir) or listening
        return found.with_key(settings.key)

    def _authorities(self) -> ssl.SSLContext | bool:
        """Whom to believe about certificates: the server of the data folder about its own, others as usual.

        Loading the usual ones takes 40 ms, which plain HTTP has no use for.
        """
        if self.address.url.startswith("https:") and self._urls and self.address.certificate is None:
            return True
        return trust(self.address.certificate or "")


def _about(call: ClientRequest[Any]) -> str:
    """What a call is about: a store, or what its path names."""
    return call.store or call.path


def _checked(url: str) -> str:
    text = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parsed = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{url!r} is no address of a server: {error}") from error
    odd = any(letter.isspace() for letter in text)
    if odd or parsed.scheme not in {"http", "https"} or not parsed.host or parsed.query or parsed.fragment:
        raise InvalidInput(f"{url!r} is no address of a server; one looks like http://127.0.0.1:8080")
    return text
