"""Bolt within WebSocket (RFC 6455), as graph browsers speak it: the bytes of the protocol in binary frames.

Only pages of allowed origins may connect, because any page that a user opens can reach servers on their machine.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from asyncio import StreamReader, StreamWriter
from collections.abc import Collection
from hashlib import sha1
from typing import NoReturn

from typing_extensions import override

from kgserve.server.bolt.chunks import ConnectionByteReader, ConnectionByteWriter
from kgserve.server.bolt.packstream import ProtocolViolation

MAX_HEAD_BYTES = 8192
MAX_CONTROL_BYTES = 125
PIECE_BYTES = 16 * 1024
"""Bytes of a frame that are decoded at a time; a multiple of the mask's size."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES = 16
_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x2, 0x8, 0x9, 0xA


class WebSocketFrameWriter(ConnectionByteWriter):
    """Writer that puts bytes into binary frames."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._has_ended = False

    @override
    def write(self, data: bytes) -> None:
        self.write_frame(_BINARY, data)

    def write_frame(self, opcode: int, data: bytes) -> None:
        """Send one frame."""
        size = len(data)
        if size <= MAX_CONTROL_BYTES:
            head = bytes((0x80 | opcode, size))
        elif size < 1 << 16:
            head = bytes((0x80 | opcode, 126)) + size.to_bytes(2)
        else:
            head = bytes((0x80 | opcode, 127)) + size.to_bytes(8)
        self._writer.write(head + data)

    @override
    async def drain(self) -> None:
        await self._writer.drain()

    @override
    def close(self) -> None:
        self.end()
        self._writer.close()

    def end(self) -> None:
        """Send the frame that ends the WebSocket, once."""
        if not self._has_ended and not self._writer.is_closing():
            self._has_ended = True
            self.write_frame(_CLOSE, (1000).to_bytes(2))

    @override
    async def wait_closed(self) -> None:
        await self._writer.wait_closed()


class WebSocketFrameReader(ConnectionByteReader):
    """Reader of the content of binary frames, which answers pings."""

    def __init__(self, reader: StreamReader, writer: WebSocketFrameWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._content = bytearray()
        self._frame_bytes_left = 0
        self._mask = b""

    @override
    async def readexactly(self, n: int) -> bytes:
        while len(self._content) < n:
            if not self._frame_bytes_left and not await self._begin_frame():
                raise asyncio.IncompleteReadError(bytes(self._content), n)
            size = min(self._frame_bytes_left, PIECE_BYTES)
            self._content += _unmask(await self._reader.readexactly(size), self._mask)
            self._frame_bytes_left -= size
        data = bytes(self._content[:n])
        del self._content[:n]
        return data

    async def _begin_frame(self) -> bool:
        """Read the head of a frame, and the rest if it controls the WebSocket; return False for its end."""
        first, second = await self._reader.readexactly(2)
        opcode, size = first & 0x0F, second & 0x7F
        is_control = opcode >= _CLOSE
        if first & 0x70 or not second & 0x80 or (is_control and (size > MAX_CONTROL_BYTES or not first & 0x80)):
            raise ProtocolViolation("a frame of the WebSocket is malformed")
        if opcode not in (_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG):
            raise ProtocolViolation("Bolt needs binary frames")
        if size > MAX_CONTROL_BYTES:
            size = int.from_bytes(await self._reader.readexactly(2 if size == MAX_CONTROL_BYTES + 1 else 8))
        self._mask = await self._reader.readexactly(4)
        if not is_control:
            self._frame_bytes_left = size
            return True
        data = _unmask(await self._reader.readexactly(size), self._mask)
        if opcode == _PING:
            self._writer.write_frame(_PONG, data)
            await self._writer.drain()
        return opcode != _CLOSE


def _unmask(data: bytes, mask: bytes) -> bytes:
    """Return masked bytes in the clear; a mask covers multiples of four bytes."""
    size = len(data)
    repeated = mask * (size // 4 + 1)
    return (int.from_bytes(data) ^ int.from_bytes(repeated[:size])).to_bytes(size)


async def accept_websocket(
    reader: StreamReader, writer: StreamWriter, origins: Collection[str]
) -> tuple[WebSocketFrameReader, WebSocketFrameWriter] | None:
    """Answer a request whose ``GET`` was read. Returns None if it asks for no WebSocket.

    Raises ProtocolViolation for a WebSocket that is not accepted, after the answer.
    """
    headers = _parse_headers(await _read_head(reader))
    if headers.get("upgrade", "").lower() != "websocket":
        return None
    origin = headers.get("origin")
    if origin is None or origin not in origins:
        _refuse(writer, "403 Forbidden", f"Pages of the origin {origin} may not connect.")
    key = headers.get("sec-websocket-key", "")
    if headers.get("sec-websocket-version") != "13" or not _is_key(key):
        _refuse(writer, "426 Upgrade Required", "This is not WebSocket version 13.", "sec-websocket-version: 13\r\n")
    accepted = base64.b64encode(sha1(key.encode() + _GUID).digest()).decode()  # noqa: S324
    answer = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    writer.write(f"{answer}sec-websocket-accept: {accepted}\r\n\r\n".encode())
    await writer.drain()
    frames = WebSocketFrameWriter(writer)
    return WebSocketFrameReader(reader, frames), frames


async def _read_head(reader: StreamReader) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            line = bytes(MAX_HEAD_BYTES)
        head += line
        if len(head) >= MAX_HEAD_BYTES:
            raise ProtocolViolation("the head of an HTTP request is too long")
    return head


def _parse_headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        return False


def _refuse(writer: StreamWriter, status: str, message: str, headers: str = "") -> NoReturn:
    body = f"{message}\n".encode("latin-1", "replace")
    head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\nconnection: close\r\n{headers}"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    raise ProtocolViolation(message)
