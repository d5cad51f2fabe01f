"""What a replicated log holds: records, each of which names the one before it.

On the wire a record is a checksum (XXH3 of 64 bits) and a MessagePack array: format, position of the record before,
kind, epoch, first and last sequence, data. What is too large for one message goes as `part` records, and the last piece
under the record's own kind; parts whose last piece never came are left out by who reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec
import xxhash

from kgserve.errors import ReplicatedLogCorrupt
from kgserve.platform.codecs import msgpack_decoder

RECORD_FORMAT = 1
MAX_RECORD_BYTES = 1_000_000
"""Bytes of data that one message may carry: servers take 1 MiB, unless told otherwise."""

Position: TypeAlias = int
"""Where a record is in its store's log. They rise, and need not be consecutive; 0 is before the first."""

Kind: TypeAlias = Literal["take", "frame", "part"]


class Record(msgspec.Struct, frozen=True):
    """An entry of a store's log: a `frame` of its journal, a `part` of one, or that an owner of ``epoch`` `take`s over.

    ``first`` and ``last`` are the sequences of a frame's change sets; ``data`` is the frame as the journal has it.
    """

    kind: Kind
    epoch: int
    first: int = 0
    last: int = 0
    data: bytes = b""


class Logged(msgspec.Struct, frozen=True):
    """A record, where it is, and the position of the record before it."""

    position: Position
    before: Position
    record: Record


class _RecordMessage(msgspec.Struct, frozen=True, array_like=True):
    format: int
    before: Position
    kind: Kind
    epoch: int
    first: int
    last: int
    data: bytes


_RECORD_CHECKSUM_STRUCT = struct.Struct("<Q")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(_RecordMessage).decode


def encode_record(before: Position, record: Record) -> bytes:
    """The bytes of a record that follows the one at ``before``."""
    data = _encode(
        _RecordMessage(RECORD_FORMAT, before, record.kind, record.epoch, record.first, record.last, record.data)
    )
    return _RECORD_CHECKSUM_STRUCT.pack(xxhash.xxh3_64_intdigest(data)) + data


def decode_record(position: Position, data: bytes) -> Logged:
    """The record that is at a position. Raises ValueError when its bytes are not those that were written."""
    body = data[_RECORD_CHECKSUM_STRUCT.size :]
    if len(data) < _RECORD_CHECKSUM_STRUCT.size or _RECORD_CHECKSUM_STRUCT.unpack_from(data)[
        0
    ] != xxhash.xxh3_64_intdigest(body):
        raise ValueError("its checksum does not fit")
    message = _decode(body)
    if message.format != RECORD_FORMAT:
        raise ValueError(f"it has format {message.format}, which this version of kgserve does not know")
    record = Record(message.kind, message.epoch, message.first, message.last, message.data)
    return Logged(position, message.before, record)


def check_follows(store: str, after: Position, found: Logged) -> Logged:
    """A record that was read after another one, which it must name. Raises LogTorn."""
    if found.before != after:
        raise ReplicatedLogCorrupt(
            f"the log of store {store!r} has a hole: after position {after} comes {found.position}, "
            f"which was written after {found.before}"
        )
    return found


def parted(record: Record, most: int = MAX_RECORD_BYTES) -> Iterator[Record]:
    """A record as pieces of at most ``most`` bytes, to be appended one after the other; itself if it is small."""
    data = record.data
    final = max(0, (len(data) - 1) // most * most)
    for start in range(0, final, most):
        yield msgspec.structs.replace(record, kind="part", data=data[start : start + most])
    yield msgspec.structs.replace(record, data=data[final:])


def joined(found: Iterable[Logged]) -> Iterator[Logged]:
    """Records as they were before they were `parted`, where their last piece is. What was broken off is left out."""
    parts: list[Record] = []
    for logged in found:
        record = logged.record
        if parts and (parts[0].epoch, parts[0].first, parts[0].last) != (record.epoch, record.first, record.last):
            parts.clear()
        if record.kind == "part":
            parts.append(record)
            continue
        if not parts:
            yield logged
            continue
        data = b"".join([*(part.data for part in parts), record.data])
        parts.clear()
        yield msgspec.structs.replace(logged, record=msgspec.structs.replace(record, data=data))
