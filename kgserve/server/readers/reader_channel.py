"""Messages between the server and its reader processes, and the requests that reader processes may answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from socket import MSG_DONTWAIT, recv_fds, send_fds, socket
from typing import NamedTuple

import msgspec

from kgserve.api.operation_table import USE_CASES
from kgserve.platform.codecs import msgpack_decoder
from kgserve.server.http.gateway import RouteTable

MAX_HANDED_BYTES = 64 << 10
"""Bytes of the largest request that is handed over, and of the input in one message."""
MAX_MESSAGE_BYTES = 192 << 10
_CASES = [
    case for case in USE_CASES if case.operation.id in {"getNode", "getNodes", "outgoing", "incoming", "traverse"}
]
READER_ROUTES = RouteTable(_CASES)
"""Routes of the operations that reader processes answer."""
_TARGETS = "|".join(re.sub(r"{\w+}", r"[!-.0->@-~]+", f"{case.method} {case.path}") for case in _CASES)
_REQUEST_LINE_PATTERN = re.compile(rf"(?:{_TARGETS})(\?[!-~]*)? HTTP/1\.1\r\n".encode())
_FRAMING_PATTERN = re.compile(
    rb"\r\n(content-length|transfer-encoding|expect|upgrade|idempotency-key):[ \t]*([^\r]*)", re.IGNORECASE
)
_LENGTH_PATTERN = re.compile(rb"[0-9]{1,6}")


class HandedOverConnection(msgspec.Struct, tag=True):
    """To a reader process, with the connection's descriptor: a connection whose next request is ``data``."""

    number: int
    data: bytes


class ReturnedInputPart(msgspec.Struct, tag=True):
    """To the server, before `ReturnedConnection`: input that does not fit into that message, in order."""

    number: int
    data: bytes


class ReturnedConnection(msgspec.Struct, tag=True):
    """To the server, with the connection's descriptor: a connection whose next request only the server can answer.

    ``data`` is the rest of its input, empty if no request has arrived.
    """

    number: int
    data: bytes


class ReturnAllConnections(msgspec.Struct, tag=True):
    """To a reader process: return all connections between two requests, and end."""


class GrantedRateLease(msgspec.Struct, tag=True):
    """To a reader process: tokens of a bucket of the rate limits, perhaps none."""

    bucket: str
    tokens: int


class RateLeaseRequest(msgspec.Struct, tag=True):
    """To the server: a reader process needs tokens of a bucket of the rate limits."""

    bucket: str


class ReaderProcessStarted(msgspec.Struct, tag=True):
    """To the server, first: the reader process runs, under the id ``process``."""

    process: int


class ClosedClientConnection(msgspec.Struct, tag=True):
    """To the server: a connection that was closed."""

    number: int


class ReaderRouteCounts(msgspec.Struct):
    """Requests of a route and method that a reader process has answered since its last report."""

    route: str
    method: str
    statuses: dict[int, int]
    received: int
    sent: int
    seconds: float
    buckets: Sequence[int]


class ReaderProcessReport(msgspec.Struct, tag=True):
    """To the server, about once a second: what a reader process has done since its last report."""

    routes: list[ReaderRouteCounts]
    refused: dict[str, float]
    slow: int
    stores: set[str]


ReaderChannelMessage = (
    ReaderProcessStarted
    | ReturnedInputPart
    | ReturnedConnection
    | ClosedClientConnection
    | RateLeaseRequest
    | ReaderProcessReport
)
ServerChannelMessage = HandedOverConnection | GrantedRateLease | ReturnAllConnections
encode_reader_message = msgspec.msgpack.Encoder().encode
decode_server_message: Callable[[bytes], ServerChannelMessage] = msgpack_decoder(ServerChannelMessage).decode
decode_reader_message: Callable[[bytes], ReaderChannelMessage] = msgpack_decoder(ReaderChannelMessage).decode


class ReceivedReaderMessage(NamedTuple):
    """A message, empty at the end of the channel, and the descriptor that came with it."""

    content: bytes
    descriptor: int | None


def send_reader_message(
    channel: socket, message: msgspec.Struct, descriptor: int | None = None, flags: int = 0
) -> None:
    """Send a message and a descriptor. Raises OSError."""
    send_fds(channel, [encode_reader_message(message)], [] if descriptor is None else [descriptor], flags)


def receive_reader_message(channel: socket) -> ReceivedReaderMessage | None:
    """Return the next message; None if none has arrived."""
    try:
        content, descriptors, _, _ = recv_fds(channel, MAX_MESSAGE_BYTES, 1, MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return ReceivedReaderMessage(b"", None)
    return ReceivedReaderMessage(content, descriptors[0] if descriptors else None)


def count_missing_request_bytes(data: bytes) -> int | None:
    """Return how many bytes complete a well-framed request for the current graph to one of `READER_ROUTES`, else None.

    The head must be complete. Many clients send the body separately.
    """
    line, end = _REQUEST_LINE_PATTERN.match(data), data.find(b"\r\n\r\n")
    if line is None or end < 0 or b"as_of" in (line[1] or b""):
        return None
    length, framing = 0, _FRAMING_PATTERN.search(data, 0, end)
    if framing is not None:
        name, value = framing.groups()
        is_framed_twice = _FRAMING_PATTERN.search(data, framing.end(), end) is not None
        if is_framed_twice or name.lower() != b"content-length" or not _LENGTH_PATTERN.fullmatch(value):
            return None
        length = int(value)
    missing = end + 4 + length - len(data)
    return missing if 0 <= missing <= MAX_HANDED_BYTES - len(data) else None
