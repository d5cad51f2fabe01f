"""Handshake: agree on a version of Bolt before the first message.

The client sends a fixed mark and four proposals of four bytes: zero, range, minor and major. A proposal covers the
minor versions from ``minor - range`` to ``minor``. The proposal ``MANIFEST`` asks for the list of the server's
versions instead, from which the client chooses.
"""

from __future__ import annotations

from typing import TypeAlias

from kgserve.server.bolt.chunks import ConnectionByteReader, ConnectionByteWriter
from kgserve.server.bolt.packstream import ProtocolViolation

ProtocolVersion: TypeAlias = tuple[int, int]
"""Major and minor version of Bolt."""

MAGIC = b"\x60\x60\xb0\x17"
MANIFEST = b"\x00\x00\x01\xff"
NO_VERSION = bytes(4)
SUPPORTED_RANGES: tuple[tuple[int, int, int], ...] = ((5, 8, 8), (4, 4, 0))
"""Major version, highest minor version, and the number of minor versions below it that are supported as well."""

_PROPOSALS = 4
_MAX_CAPABILITY_BYTES = 10
HTTP_GET = b"GET "
_HTTP_METHODS = (HTTP_GET, b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"PATC", b"PRI ", b"CONN")
_HTTP_BODY = b"This port speaks Bolt. Connect with a Neo4j driver and a bolt:// address.\n"
_HTTP_RESPONSE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: "
    + str(len(_HTTP_BODY)).encode()
    + b"\r\n\r\n"
    + _HTTP_BODY
)


async def negotiate_bolt_version(
    magic: bytes, reader: ConnectionByteReader, writer: ConnectionByteWriter
) -> ProtocolVersion:
    """Agree on a version with the client, whose first four bytes are ``magic``.

    Raises ProtocolViolation if the client speaks another protocol or has no version that is supported; HTTP clients
    and clients with other versions have received an answer then.
    """
    if magic != MAGIC:
        if magic in _HTTP_METHODS:
            writer.write(_HTTP_RESPONSE)
        raise ProtocolViolation("the client does not speak Bolt")
    proposals = [await reader.readexactly(4) for _ in range(_PROPOSALS)]
    for proposal in proposals:
        if proposal == MANIFEST:
            return await _offer_manifest(reader, writer)
        version = choose_bolt_version(proposal)
        if version is not None:
            writer.write(bytes((0, 0, version[1], version[0])))
            return version
    writer.write(NO_VERSION)
    raise ProtocolViolation("the client and the server have no version of Bolt in common")


def choose_bolt_version(proposal: bytes) -> ProtocolVersion | None:
    """Return the highest version that a proposal covers and the server supports, or None."""
    _, span, minor, major = proposal
    for known, highest, below in SUPPORTED_RANGES:
        chosen = min(minor, highest)
        if known == major and chosen >= max(minor - span, highest - below):
            return major, chosen
    return None


async def _offer_manifest(reader: ConnectionByteReader, writer: ConnectionByteWriter) -> ProtocolVersion:
    offers = b"".join(bytes((0, below, highest, major)) for major, highest, below in SUPPORTED_RANGES)
    writer.write(MANIFEST + _encode_varint(len(SUPPORTED_RANGES)) + offers + _encode_varint(0))
    await writer.drain()
    choice = await reader.readexactly(4)
    for _ in range(_MAX_CAPABILITY_BYTES):
        if (await reader.readexactly(1))[0] < 0x80:  # noqa: PLR2004
            break
    else:
        raise ProtocolViolation("the capabilities of the handshake are too long")
    if choice[:2] != b"\x00\x00" or choose_bolt_version(choice) is None:
        raise ProtocolViolation("the client chose a version of Bolt that was not offered")
    return choice[3], choice[2]


def _encode_varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:  # noqa: PLR2004
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
