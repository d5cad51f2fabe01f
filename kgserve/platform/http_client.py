"""Minimal HTTP/1.1 client over one socket, for the editors' bridge.

Uses little of the standard library: http.client would import ssl and the email package, which adds 5 MB to every
editor's bridge.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

MAX_RESPONSE_HEAD_BYTES = 1 << 16
_SOCKET_READ_BYTES = 1 << 16
_STREAM_END_TIMEOUT_SECONDS = 0.2
"""Time within which an answered stream must end for its connection to be reused."""

_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

EVENT_STREAM_TYPE = "text/event-stream"


class InvalidHttpResponse(ConnectionError):
    """The connection ended before the response did, or the response is not HTTP."""


class HttpResponseHead:
    """Head of a response. The names in ``headers`` are in lower case."""

    def __init__(self, head: bytes) -> None:
        """Parse the head. Raises InvalidHttpResponse."""
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        status, _, self.reason = rest.partition(" ")
        if not version.startswith("HTTP/1.") or not status.isdecimal():
            raise InvalidHttpResponse("not an HTTP server")
        self.status = int(status)
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}

    @property
    def is_stream(self) -> bool:
        """True if the response is an event stream."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower() == EVENT_STREAM_TYPE


class OutboundHttpConnection:
    """Connection to a server, for one request at a time.

    ``on_silence`` is called before each wait. It returns the number of seconds until it is called again, and raises to
    give up. Without it, a wait ends with TimeoutError after the connection timeout.
    """

    def __init__(self, url: str, timeout: float, trust: Callable[[], ssl.SSLContext]) -> None:
        """Connect within ``timeout`` seconds. ``trust`` returns the TLS context for https. Raises OSError."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._host, self._path = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self._socket = socket.create_connection((parts.hostname or "", parts.port or (443 if secure else 80)), timeout)
        _keep_alive(self._socket)
        if secure:
            self._socket = trust().wrap_socket(self._socket, server_hostname=parts.hostname)
        self.on_silence: Callable[[], float] | None = None
        self._timeout = timeout
        self._buffer = b""
        self._answer: HttpResponseHead | None = None
        self._whole = True
        self._rest: Iterator[bytes] = iter(())

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> HttpResponseHead:
        """Send a request and return the head of its response. Raises OSError, and the errors of ``on_silence``."""
        lines = [f"{method} {self._path}{path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body or b'')}"] if body is not None else []
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self._whole = False
        # A server that rejects an oversized body responds and closes without reading it.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._send(head + body if body else head)
        self._answer = self._head()
        self._rest = self._pieces(self._answer)
        return self._answer

    def body(self) -> bytes:
        """Return the whole response body. Raises OSError."""
        return b"".join(self._rest)

    def events(self) -> Iterator[bytes]:
        """Yield the data of each event of a stream; events without data are skipped. Raises OSError."""
        data: list[bytes] = []
        for line in self._lines():
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line:
                if any(data):  # the first event of a stream has no data
                    yield b"\n".join(data)
                data = []

    def ends(self) -> bool:
        """Return whether the response ends here, so that the connection can be reused."""
        if not self._whole and self._answer is not None:
            self.on_silence = None
            self._timeout = _STREAM_END_TIMEOUT_SECONDS
            with suppress(OSError):
                for _ in self._rest:
                    return False
        return self._whole and self._answer is not None and self._answer.headers.get("connection") != "close"

    @property
    def is_idle(self) -> bool:
        """True if the connection is still open. An idle connection that becomes readable was closed by the server."""
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError as error:
            return type(error).__name__ == "SSLWantReadError"
        return False

    def abort(self) -> None:
        """Shut the connection down from any thread, which wakes a thread that is reading."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._socket.close()

    def _head(self) -> HttpResponseHead:
        answer = HttpResponseHead(self._until(b"\r\n\r\n"))
        while answer.status < 200:  # noqa: PLR2004 - informational responses
            answer = HttpResponseHead(self._until(b"\r\n\r\n"))
        return answer

    def _pieces(self, answer: HttpResponseHead) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        if answer.status in {204, 304}:
            pass
        elif answer.headers.get("transfer-encoding", "").lower() == "chunked":
            yield from self._chunks()
        elif length := answer.headers.get("content-length"):
            yield self._exactly(_number(length, 10))
        else:
            answer.headers["connection"] = "close"
            while piece := self._buffer or self._receive(end=True):
                self._buffer = b""
                yield piece
        self._whole = True

    def _chunks(self) -> Iterator[bytes]:
        while size := _number(self._until(b"\r\n").partition(b";")[0].decode("latin-1"), 16):
            yield self._exactly(size)
            self._until(b"\r\n")
        while self._until(b"\r\n"):
            pass

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        for piece in self._rest:
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line.rstrip(b"\r") for line in lines)

    def _until(self, mark: bytes) -> bytes:
        while (end := self._buffer.find(mark)) < 0:
            if len(self._buffer) > MAX_RESPONSE_HEAD_BYTES:
                raise InvalidHttpResponse("the response head is too long")
            self._buffer += self._receive()
        found, self._buffer = self._buffer[:end], self._buffer[end + len(mark) :]
        return found

    def _exactly(self, size: int) -> bytes:
        parts, missing = [self._buffer[:size]], size - len(self._buffer)
        self._buffer = self._buffer[size:]
        while missing > 0:
            piece = self._receive()
            parts.append(piece[:missing])
            missing, self._buffer = missing - len(piece), piece[missing:]
        return b"".join(parts)

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._with_timeout(lambda: self._socket.send(rest)) :]  # noqa: B023 - it is called at once

    def _receive(self, *, end: bool = False) -> bytes:
        """Return the next bytes. Raises InvalidHttpResponse at the end of the connection, unless ``end`` allows it."""
        piece = self._with_timeout(lambda: self._socket.recv(_SOCKET_READ_BYTES))
        if not piece and not end:
            raise InvalidHttpResponse("the connection was closed before the response was complete")
        return piece

    def _with_timeout(self, step: Callable[[], T]) -> T:
        while True:
            self._socket.settimeout(self.on_silence() if self.on_silence else self._timeout)
            try:
                return step()
            except TimeoutError:
                if self.on_silence is None:
                    raise


def _number(text: str, base: int) -> int:
    try:
        return int(text.strip(), base)
    except ValueError:
        raise InvalidHttpResponse("not an HTTP response") from None


def _keep_alive(connection: socket.socket) -> None:
    """Enable TCP keep-alive, which detects a dead peer where no timeout applies."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
