"""Client that sends any bytes, for tests of the protocol."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from kgserve.server.bolt.chunks import frame_bolt_message
from kgserve.server.bolt.handshake import MAGIC
from kgserve.server.bolt.packstream import PackStreamDecoder, PackStreamEncoder, PackStreamStructure
from tests.server.bolt.scripted_backend import PASSWORD

HELLO, GOODBYE, RESET, RUN, BEGIN, COMMIT, ROLLBACK = 0x01, 0x02, 0x0F, 0x10, 0x11, 0x12, 0x13
DISCARD, PULL, TELEMETRY, ROUTE, LOGON, LOGOFF = 0x2F, 0x3F, 0x54, 0x66, 0x6A, 0x6B
SUCCESS, RECORD, IGNORED, FAILURE = 0x70, 0x71, 0x7E, 0x7F
CREDENTIALS = {"scheme": "basic", "principal": "ada", "credentials": PASSWORD}

_ENCODER = PackStreamEncoder({})


def encode(tag: int, *fields: Any) -> bytes:
    """Return a framed message."""
    return frame_bolt_message(_ENCODER.encode(PackStreamStructure(tag, fields)))


class RawClient:
    """Connection to a server, after the handshake if ``version`` is given."""

    def __init__(self, port: int, version: tuple[int, int] | None = (5, 8)) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        if version is not None:
            self.send_bytes(MAGIC + bytes((0, 0, version[1], version[0])) + bytes(12))
            assert self.receive_bytes(4) == bytes((0, 0, version[1], version[0]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def log_on(self) -> Self:
        """Send HELLO and LOGON."""
        self.send(HELLO, {"user_agent": "test/1"})
        self.send(LOGON, CREDENTIALS)
        assert [self.receive()[0] for _ in range(2)] == [SUCCESS, SUCCESS]
        return self

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_bytes(self, count: int) -> bytes:
        """Return exactly ``count`` bytes; fewer at the end of the stream."""
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                break
            data += part
        return data

    def send(self, tag: int, *fields: Any) -> None:
        self.send_bytes(encode(tag, *fields))

    def receive(self) -> tuple[int, Any]:
        """Return the tag and the field of the next message; (0, None) at the end of the stream."""
        message = b""
        while True:
            header = self.receive_bytes(2)
            if len(header) < 2:
                return 0, None
            size = int.from_bytes(header)
            if size:
                message += self.receive_bytes(size)
            elif message:
                break
        structure = PackStreamDecoder(message).read_message()
        return structure.tag, structure.fields[0] if structure.fields else None

    def ask(self, tag: int, *fields: Any) -> tuple[int, Any]:
        """Send a message and return the answer."""
        self.send(tag, *fields)
        return self.receive()

    def run(self, statement: str, parameters: dict[str, Any] | None = None, **extra: Any) -> tuple[int, Any]:
        return self.ask(RUN, statement, parameters or {}, extra)

    def pull(self, count: int = -1, query: int = -1) -> tuple[list[Sequence[Any]], int, Any]:
        """Return the rows, and the tag and field of the end."""
        self.send(PULL, {"n": count, "qid": query})
        rows: list[Sequence[Any]] = []
        while True:
            tag, field = self.receive()
            if tag != RECORD:
                return rows, tag, field
            rows.append(field)
