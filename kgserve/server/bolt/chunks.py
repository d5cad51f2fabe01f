"""Chunks: the framing of Bolt messages on a connection."""

from __future__ import annotations

from typing import Protocol

from kgserve.server.bolt.packstream import ProtocolViolation

MAX_CHUNK_BYTES = 0xFFFF
KEEP_ALIVE = b"\x00\x00"
"""Empty chunk between messages; it keeps a connection open."""
MAX_KEEP_ALIVES = 10_000
"""Empty chunks before one message."""

_END = b"\x00\x00"
_SMALL_CHUNKS = 64
_MEAN_CHUNK_BYTES = 64


class ConnectionByteReader(Protocol):
    """Receiving half of a connection."""

    async def readexactly(self, n: int) -> bytes:
        """Return the next ``n`` bytes. Raises asyncio.IncompleteReadError at the end of the stream."""
        ...


class ConnectionByteWriter(Protocol):
    """Sending half of a connection."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    async def drain(self) -> None:
        """Wait until the peer has read enough. Raises OSError if the connection is lost."""

    def close(self) -> None:
        """Close the connection after the bytes that were written."""

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""


def frame_bolt_message(message: bytes | bytearray) -> bytes:
    """Return a message in chunks, with the end mark."""
    size = len(message)
    if size <= MAX_CHUNK_BYTES:
        return b"%c%c%b\x00\x00" % (size >> 8, size & 0xFF, message)
    chunks = (message[at : at + MAX_CHUNK_BYTES] for at in range(0, size, MAX_CHUNK_BYTES))
    return b"".join(len(chunk).to_bytes(2) + chunk for chunk in chunks) + _END


async def read_bolt_message(reader: ConnectionByteReader, max_bytes: int) -> bytes:
    """Return the next message. Raises ProtocolViolation, and asyncio.IncompleteReadError at the end of the stream."""
    for _ in range(MAX_KEEP_ALIVES):
        size = int.from_bytes(await reader.readexactly(2))
        if size:
            return await _read_chunks(reader, size, max_bytes)
    raise ProtocolViolation(f"more than {MAX_KEEP_ALIVES} empty chunks came without a message")


async def _read_chunks(reader: ConnectionByteReader, size: int, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    total = 0
    while size:
        total += size
        if total > max_bytes:
            raise ProtocolViolation(f"a message has more than {max_bytes} bytes")
        if len(chunks) > _SMALL_CHUNKS + total // _MEAN_CHUNK_BYTES:
            raise ProtocolViolation("a message is split into too many small chunks")
        chunks.append(await reader.readexactly(size))
        size = int.from_bytes(await reader.readexactly(2))
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
