"""Records of a replicated log, each of which names the position of the previous one.

On the wire, a record is a 64-bit XXH3 checksum and a MessagePack array: format, previous position, kind, epoch, first
and last sequence, data. Data that exceeds one message is split into `part` records, followed by the last piece under
the record's own kind. Readers drop parts whose last piece is missing.
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
"""Maximum data bytes per message; NATS servers accept 1 MiB by default."""

LogPosition: TypeAlias = int
"""Position of a record in its store's log. Positions rise but need not be consecutive; 0 is before the first record."""

RecordKind: TypeAlias = Literal["take", "frame", "part"]


class ReplicatedLogRecord(msgspec.Struct, frozen=True):
    """A record of a store's log: a journal `frame`, a `part` of one, or a `take` that starts an ownership epoch.

    A `take` fences off earlier owners. ``first`` and ``last`` are the sequences of a frame's change sets; ``data`` is
    the frame as stored in the journal.
    """

    kind: RecordKind
    epoch: int
    first: int = 0
    last: int = 0
    data: bytes = b""


class PositionedReplicatedLogRecord(msgspec.Struct, frozen=True):
    """Log record with its position and that of the previous record."""

    position: LogPosition
    before: LogPosition
    record: ReplicatedLogRecord


class _RecordMessage(msgspec.Struct, frozen=True, array_like=True):
    format: int
    before: LogPosition
    kind: RecordKind
    epoch: int
    first: int
    last: int
    data: bytes


_RECORD_CHECKSUM_STRUCT = struct.Struct("<Q")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(_RecordMessage).decode


def encode_replicated_log_record(before: LogPosition, record: ReplicatedLogRecord) -> bytes:
    """Encode a log record that follows the one at ``before``."""
    data = _encode(
        _RecordMessage(RECORD_FORMAT, before, record.kind, record.epoch, record.first, record.last, record.data)
    )
    return _RECORD_CHECKSUM_STRUCT.pack(xxhash.xxh3_64_intdigest(data)) + data


def decode_replicated_log_record(position: LogPosition, data: bytes) -> PositionedReplicatedLogRecord:
    """Decode the log record at a position. Raises ValueError if its bytes are damaged."""
    body = data[_RECORD_CHECKSUM_STRUCT.size :]
    if len(data) < _RECORD_CHECKSUM_STRUCT.size or _RECORD_CHECKSUM_STRUCT.unpack_from(data)[
        0
    ] != xxhash.xxh3_64_intdigest(body):
        raise ValueError("checksum mismatch")
    message = _decode(body)
    if message.format != RECORD_FORMAT:
        raise ValueError(f"format {message.format} is not supported by this version of kgserve")
    record = ReplicatedLogRecord(message.kind, message.epoch, message.first, message.last, message.data)
    return PositionedReplicatedLogRecord(position, message.before, record)


def require_next_replicated_log_record(
    store: str, after: LogPosition, found: PositionedReplicatedLogRecord
) -> PositionedReplicatedLogRecord:
    """Return a log record that names ``after`` as its predecessor. Raises ReplicatedLogCorrupt if there is a gap."""
    if found.before != after:
        raise ReplicatedLogCorrupt(
            f"the log of store {store!r} has a gap: position {after} is followed by {found.position}, "
            f"which was written after {found.before}"
        )
    return found


def split_replicated_log_record(
    record: ReplicatedLogRecord, most: int = MAX_RECORD_BYTES
) -> Iterator[ReplicatedLogRecord]:
    """Split a log record into pieces of at most ``most`` bytes, to be appended in order."""
    data = record.data
    final = max(0, (len(data) - 1) // most * most)
    for start in range(0, final, most):
        yield msgspec.structs.replace(record, kind="part", data=data[start : start + most])
    yield msgspec.structs.replace(record, data=data[final:])


def join_replicated_log_records(
    found: Iterable[PositionedReplicatedLogRecord],
) -> Iterator[PositionedReplicatedLogRecord]:
    """Reassemble records that were split by `split_replicated_log_record`, at the position of their last piece.

    Incomplete ones are dropped.
    """
    parts: list[ReplicatedLogRecord] = []
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
