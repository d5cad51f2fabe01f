"""What goes over the wire, without sending it: requests, and how their answers are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

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
