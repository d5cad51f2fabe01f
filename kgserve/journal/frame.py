"""Frames: what one group of writes appends to a journal segment, in one piece.

A frame is a header (magic, payload length, first sequence, number of change sets, time of the last in microseconds,
checksum) and a payload (a MessagePack array of `ChangeSet`). The checksum, XXH3 of 64 bits, covers header and payload.
A packed frame has another magic, and its payload compressed: so it is on the disk, and so it is counted and summed.
A frame follows another only after that one reached the disk, so a bad frame with a good one behind it is damage, and a
bad one with nothing good behind it is a write that a crash cut short.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import msgspec
import xxhash

from kgserve.decoding import msgpack_decoder
from kgserve.model.change import ChangeSet

MAGIC, PACKED = b"KGF1", b"KGF2"
_EITHER = b"KGF"
MANY = 250
"""Rows from which on packing a frame is looked at: few large ones would wait for it longer than for their planning."""
_SAMPLE = 1 << 15
_WORTH = 2.5
"""A frame is packed if its beginning becomes so many times shorter: rows that are much alike, as imports write them.
What is less alike takes three times as long to compress, and more of it is left."""
_LEVEL = 1
_HEADER = struct.Struct("<4sIQIq")
_CHECKSUM = struct.Struct("<Q")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size

_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(list[ChangeSet]).decode


class FrameError(Exception):
    """The bytes at an offset are no whole frame; ``reason`` says how."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} at offset {offset}")
        self.offset = offset
        self.reason = reason


class OutOfOrder(FrameError):
    """A whole frame, and not the one that was ``due``: no crash leaves that."""

    def __init__(self, offset: int, first: int, due: int) -> None:
        super().__init__(offset, f"sequence {first} where {due} was due")


class Frame(msgspec.Struct, frozen=True):
    """One frame as read: where it starts and ends in its file, and what it holds, as it is there.

    Looking through a journal wants no more than that it is whole; so who wants what is in it unpacks it.
    """

    offset: int
    end: int
    first: int
    count: int
    stored: bytes
    packed: bool

    @property
    def payload(self) -> bytes:
        """Its change sets as MessagePack; found anew each time."""
        return zlib.decompress(self.stored) if self.packed else self.stored

    @property
    def last(self) -> int:
        """Sequence of its last change set."""
        return self.first + self.count - 1

    def changes(self) -> list[ChangeSet]:
        """The change sets, in order."""
        return _decode(self.payload)


def encode_frame(changes: list[ChangeSet]) -> bytes:
    """The bytes of one frame. The change sets must be consecutive."""
    return _framed(MAGIC, _encode(changes), changes)


class Encoded(NamedTuple):
    """The bytes of a frame, and how many packing has spared; 0 for one that is not packed."""

    data: bytes
    spared: int


def encode_packed(changes: list[ChangeSet]) -> Encoded:
    """As `encode_frame`, packed where that is worth its time."""
    payload = _encode(changes)
    if sum(change.size for change in changes) < MANY or not _is_worth_packing(payload):
        return Encoded(_framed(MAGIC, payload, changes), 0)
    packed = zlib.compress(payload, _LEVEL)
    return Encoded(_framed(PACKED, packed, changes), len(payload) - len(packed))


def frame_bytes(frame: Frame) -> bytes:
    """The bytes of a frame that was read, as of one that is not packed."""
    return _framed(MAGIC, frame.payload, frame.changes())


def _is_worth_packing(payload: bytes) -> bool:
    sample = payload[:_SAMPLE]
    return _WORTH * len(zlib.compress(sample, _LEVEL)) < len(sample)


def _framed(magic: bytes, payload: bytes, changes: list[ChangeSet]) -> bytes:
    header = _HEADER.pack(magic, len(payload), changes[0].sequence, len(changes), changes[-1].time)
    return header + _CHECKSUM.pack(_checksum(header, payload)) + payload


def read_frame(file: BinaryIO, offset: int, end: int) -> Frame:
    """The frame at ``offset`` of a file whose bytes count up to ``end``. Raises FrameError."""
    if end - offset < HEADER_BYTES:
        raise FrameError(offset, "a cut-off header")
    file.seek(offset)
    header = file.read(_HEADER.size)
    checksum: int = _CHECKSUM.unpack(file.read(_CHECKSUM.size))[0]
    magic, length, first, count, _time = _HEADER.unpack(header)
    if magic not in (MAGIC, PACKED):
        raise FrameError(offset, "no frame")
    if end - offset - HEADER_BYTES < length:
        raise FrameError(offset, "a frame longer than the file")
    payload = file.read(length)
    if _checksum(header, payload) != checksum:
        raise FrameError(offset, "a frame whose checksum does not fit")
    return Frame(offset, offset + HEADER_BYTES + length, first, count, payload, magic == PACKED)


def read_frames(file: BinaryIO, offset: int, end: int, due: int | None) -> Iterator[Frame]:
    """The frames from ``offset`` on, of which the first begins with the sequence that is ``due``, if that is known.

    Raises FrameError at the first that is not whole, OutOfOrder at one that does not follow on.
    """
    while offset < end:
        frame = read_frame(file, offset, end)
        if due is not None and frame.first != due:
            raise OutOfOrder(offset, frame.first, due)
        yield frame
        due, offset = frame.last + 1, frame.end


def skip_frames(file: BinaryIO, offset: int, end: int, sequence: int) -> int:
    """Offset of the first frame from ``offset`` on that goes up to ``sequence`` at least; or ``end``.

    Only headers before it are looked at. Raises FrameError.
    """
    with mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as data:
        while end - offset >= HEADER_BYTES:
            magic, length, first, count, _time = _HEADER.unpack_from(data, offset)
            if magic not in (MAGIC, PACKED):
                raise FrameError(offset, "no frame")
            if first + count > sequence:
                return offset
            offset += HEADER_BYTES + length
    return end


def find_frame(file: BinaryIO, offset: int, end: int) -> int | None:
    """Offset of the first whole frame that starts after ``offset``, if there is one."""
    while (offset := _find_magic(file, offset + 1, end)) >= 0:
        try:
            read_frame(file, offset, end)
        except FrameError:
            continue
        return offset
    return None


def _find_magic(file: BinaryIO, offset: int, end: int, block: int = 1 << 20) -> int:
    while offset < end:
        file.seek(offset)
        found = file.read(min(block, end - offset)).find(_EITHER)
        if found >= 0:
            return offset + found
        offset += block - len(_EITHER) + 1
    return -1


def _checksum(header: bytes, payload: bytes) -> int:
    hasher = xxhash.xxh3_64(header)
    hasher.update(payload)
    return hasher.intdigest()
