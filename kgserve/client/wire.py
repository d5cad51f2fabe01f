"""What goes over the wire, without sending it: requests, how their answers are read, and how long they may take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import httpx
import msgspec

from kgserve.client.failures import decoded
from kgserve.client.lines import Decoder, Upload, json_body

T = TypeVar("T")
U = TypeVar("U")

JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"

_STORE = "{store}"
_PART = re.compile(r"\{(\w+)\}")
Wait = float | None | msgspec.UnsetType
Query = Mapping[str, str | int | Sequence[str] | None]


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
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

    def ask(self, store: str | None, asked: Any = None, **more: Any) -> Call[T]:
        """The call for a request: a Struct or a mapping, whose fields go where the route wants them."""
        fields = _fields(asked)
        parts = {name: fields.pop(name) for name in _PART.findall(self.path) if name in fields}
        query, body = ({}, asked and fields) if self.in_body else (fields, None)
        if store is not None:
            (parts if _STORE in self.path else query)["store"] = store
        return self.call(parts, query, body, store=store, asked=asked, **more)

    def call(self, parts: Mapping[str, str], query: Query | None = None, body: Any = None, **more: Any) -> Call[T]:
        """A request. ``parts`` fill the path; what is None is left out of the query; Structs and dicts become JSON.

        A parameter with several values is repeated.
        """
        path = self.path.format_map({name: _segment(part) for name, part in parts.items()})
        pairs = {name: value for name, value in (query or {}).items() if value is not None}
        headers = {"Accept": JSON} | more.pop("headers", {})
        if isinstance(body, Upload):
            headers["Content-Type"] = NDJSON
        elif body is not None:
            headers["Content-Type"], body = JSON, json_body(body)
        asked = urlencode(pairs, doseq=True, quote_via=quote)
        target = f"{path}?{asked}" if asked else path
        return Call(route=self, path=target, headers=headers, body=body, **more)


class Streamed(msgspec.Struct, Generic[U], frozen=True):
    """A request whose answer is read in parts while it comes."""

    call: Call[Any]
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


TIMEOUT = 60.0
"""Seconds that an answer may take, unless told otherwise."""
CONNECT_TIMEOUT = 2.0
"""Seconds that a server may take to accept a connection."""
# The server closes connections that were idle for 5 s; one taken up at that very moment would break.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=2.0)


def limit(call: Call[Any], usual: float | None) -> httpx.Timeout:
    """The time limits of a call; ``usual`` is the client's own, in seconds."""
    wait = usual if isinstance(call.wait, msgspec.UnsetType) else call.wait
    return httpx.Timeout(wait, connect=CONNECT_TIMEOUT, pool=None)


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
