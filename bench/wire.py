"""Prebuilt requests over one persistent socket, which keeps the client's cost out of measurements."""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from bench.server import IDLE_SECONDS, ServerFailed

BLOCK = 1 << 20


class Answer(NamedTuple):
    """An answer, and the milliseconds from the first byte sent to the last one received."""

    milliseconds: float
    status: int
    body: bytes

    def json(self) -> Any:
        """Decode the body."""
        return msgspec.json.decode(self.body)


def request(method: str, path: str, value: object = None) -> bytes:
    """Encode a request, with `value` as JSON in its body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    body = b"" if value is None else msgspec.json.encode(value)
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class RawConnection:
    """One connection to a server on 127.0.0.1. A context manager; not thread-safe."""

    def __init__(self, port: int, timeout: float = 600.0) -> None:
        self._address, self._timeout = ("127.0.0.1", port), timeout
        self._socket = self._connect()
        self._used = time.monotonic()

    def ask(self, ready: bytes) -> Answer:
        """Send a request and read the whole answer. Raises ServerFailed on any status but 2xx."""
        answer = self.send(ready)
        if not 200 <= answer.status < 300:
            raise ServerFailed(f"{ready[:80]!r}: {answer.status} {answer.body[:500]!r}")
        return answer

    def send(self, ready: bytes) -> Answer:
        """Send a request and read the whole answer, whatever its status."""
        if time.monotonic() - self._used > IDLE_SECONDS:
            self._socket.close()
            self._socket = self._connect()
        start = time.perf_counter()
        self._socket.sendall(ready)
        head, parts = self._read_head()
        fields = head.lower()
        chunked = b"transfer-encoding: chunked" in fields
        rest = b"".join(self._read_chunks(parts) if chunked else self._read_length(fields, parts))
        took = (time.perf_counter() - start) * 1000
        self._used = time.monotonic()
        return Answer(took, int(head[9:12]), join_chunks(rest) if chunked else rest)

    def _read_head(self) -> tuple[bytes, list[bytes]]:
        read = self._receive()
        while (end := read.find(b"\r\n\r\n")) < 0:
            read += self._receive()
        return read[:end], [read[end + 4 :]]

    def _read_length(self, fields: bytes, parts: list[bytes]) -> list[bytes]:
        at = fields.find(b"content-length:")
        missing = (int(fields[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0) - len(parts[0])
        while missing > 0:
            parts.append(self._receive())
            missing -= len(parts[-1])
        return parts

    def _read_chunks(self, parts: list[bytes]) -> list[bytes]:
        # JSON contains no such line ends, so nothing within it looks like the last chunk.
        tail = parts[0][-5:]
        while tail != b"0\r\n\r\n":
            parts.append(self._receive())
            tail = (tail + parts[-1][-5:])[-5:]
        return parts

    def _receive(self) -> bytes:
        block = self._socket.recv(BLOCK)
        if not block:
            raise ServerFailed("the server closed the connection within an answer")
        return block

    def _connect(self) -> socket.socket:
        made = socket.create_connection(self._address, self._timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()


def join_chunks(chunks: bytes) -> bytes:
    """Return a body assembled from its chunks."""
    parts: list[bytes] = []
    at = 0
    while size := int(chunks[at : (end := chunks.index(b"\r\n", at))], 16):
        parts.append(chunks[end + 2 : end + 2 + size])
        at = end + size + 4
    return b"".join(parts)
