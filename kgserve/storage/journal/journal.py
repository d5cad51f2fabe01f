"""Journal of one store: consecutive frames in segment files, from which everything else is derived.

A frame is one group of writes, appended in one piece. It has a header (magic, payload length, first sequence, number of
change sets, time of the last in microseconds, checksum) and a payload (a MessagePack array of `ChangeSet`). The
checksum, XXH3 of 64 bits, covers header and payload. A packed frame has another magic and a compressed payload; length
and checksum are those of the compressed bytes.

A frame is written only after the previous one is on disk. A bad frame with a good one behind it is therefore damage,
and a bad one at the end is a write that a crash cut short.

The end of the module finds damage in segments and keeps what comes before it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import xxhash

from kgserve.errors import Internal, JournalDamaged, Unavailable
from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.durable_files import (
    fsync_file,
    fsync_folder,
    shorten_journal_path,
    sync_descriptor,
    translate_os_error,
    translate_storage_errors,
    write_all_bytes,
)
from kgserve.storage.journal import snapshot
from kgserve.storage.model.change_set import ChangeSet

FRAME_MAGIC, PACKED_FRAME_MAGIC = b"KGF1", b"KGF2"
_MAGIC_PREFIX = b"KGF"
MIN_COMPRESSED_FRAME_ROWS = 250
"""Rows from which on a frame may be packed. Compressing fewer, larger rows takes longer than planning them."""
_PACKING_SAMPLE_BYTES = 1 << 15
_MIN_PACKING_RATIO = 2.5
"""Compression ratio of a frame's beginning from which on the frame is packed, as imports of similar rows reach it."""
_COMPRESSION_LEVEL = 1
_FRAME_HEADER_STRUCT = struct.Struct("<4sIQIq")
_FRAME_CHECKSUM_STRUCT = struct.Struct("<Q")
FRAME_HEADER_BYTES = _FRAME_HEADER_STRUCT.size + _FRAME_CHECKSUM_STRUCT.size

_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(list[ChangeSet]).decode


class JournalFrameError(Exception):
    """Bytes at an offset are not a whole frame; ``reason`` describes the fault."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} at offset {offset}")
        self.offset = offset
        self.reason = reason


class JournalFrameOutOfOrder(JournalFrameError):
    """Whole frame whose sequence is not ``due``; a crash never causes this."""

    def __init__(self, offset: int, first: int, due: int) -> None:
        super().__init__(offset, f"sequence {first} where {due} was due")


class JournalFrame(msgspec.Struct, frozen=True):
    """One frame as read: its place in the file, and its payload as stored.

    Checks of a journal need no payload, so callers that do decode it call `changes`.
    """

    offset: int
    end: int
    first: int
    count: int
    stored: bytes
    packed: bool

    @property
    def payload(self) -> bytes:
        """Change sets as MessagePack; decompressed on each access."""
        return zlib.decompress(self.stored) if self.packed else self.stored

    @property
    def last(self) -> int:
        """Sequence of its last change set."""
        return self.first + self.count - 1

    def changes(self) -> list[ChangeSet]:
        """Return the change sets in order."""
        return _decode(self.payload)


def encode_journal_frame(changes: list[ChangeSet]) -> bytes:
    """Return the bytes of one frame. The change sets must be consecutive."""
    return _build_frame(FRAME_MAGIC, _encode(changes), changes)


class EncodedJournalFrame(NamedTuple):
    """Bytes of a frame, and the bytes saved by packing; 0 if it is not packed."""

    data: bytes
    spared: int


def encode_and_compress_journal_frame(changes: list[ChangeSet]) -> EncodedJournalFrame:
    """Return a frame that is compressed if it has enough rows and compresses well."""
    payload = _encode(changes)
    if sum(change.size for change in changes) < MIN_COMPRESSED_FRAME_ROWS or not _is_worth_packing(payload):
        return EncodedJournalFrame(_build_frame(FRAME_MAGIC, payload, changes), 0)
    packed = zlib.compress(payload, _COMPRESSION_LEVEL)
    return EncodedJournalFrame(_build_frame(PACKED_FRAME_MAGIC, packed, changes), len(payload) - len(packed))


def encode_uncompressed_journal_frame(frame: JournalFrame) -> bytes:
    """Return the unpacked encoding of a frame that was read."""
    return _build_frame(FRAME_MAGIC, frame.payload, frame.changes())


def _is_worth_packing(payload: bytes) -> bool:
    sample = payload[:_PACKING_SAMPLE_BYTES]
    return _MIN_PACKING_RATIO * len(zlib.compress(sample, _COMPRESSION_LEVEL)) < len(sample)


def _build_frame(magic: bytes, payload: bytes, changes: list[ChangeSet]) -> bytes:
    header = _FRAME_HEADER_STRUCT.pack(magic, len(payload), changes[0].sequence, len(changes), changes[-1].time)
    return header + _FRAME_CHECKSUM_STRUCT.pack(_checksum(header, payload)) + payload


def read_journal_frame(file: BinaryIO, offset: int, end: int) -> JournalFrame:
    """Return the frame at ``offset`` of a file of ``end`` bytes. Raises JournalFrameError."""
    if end - offset < FRAME_HEADER_BYTES:
        raise JournalFrameError(offset, "a cut-off header")
    file.seek(offset)
    header = file.read(_FRAME_HEADER_STRUCT.size)
    checksum: int = _FRAME_CHECKSUM_STRUCT.unpack(file.read(_FRAME_CHECKSUM_STRUCT.size))[0]
    magic, length, first, count, _time = _FRAME_HEADER_STRUCT.unpack(header)
    if magic not in (FRAME_MAGIC, PACKED_FRAME_MAGIC):
        raise JournalFrameError(offset, "no frame")
    if end - offset - FRAME_HEADER_BYTES < length:
        raise JournalFrameError(offset, "a frame longer than the file")
    payload = file.read(length)
    if _checksum(header, payload) != checksum:
        raise JournalFrameError(offset, "a frame whose checksum does not fit")
    return JournalFrame(
        offset, offset + FRAME_HEADER_BYTES + length, first, count, payload, magic == PACKED_FRAME_MAGIC
    )


def read_journal_frames(file: BinaryIO, offset: int, end: int, due: int | None) -> Iterator[JournalFrame]:
    """Yield the frames from ``offset`` on; the first must begin with sequence ``due`` unless that is None.

    Raises JournalFrameError at the first frame that is not whole, JournalFrameOutOfOrder at one that is not
    consecutive.
    """
    while offset < end:
        frame = read_journal_frame(file, offset, end)
        if due is not None and frame.first != due:
            raise JournalFrameOutOfOrder(offset, frame.first, due)
        yield frame
        due, offset = frame.last + 1, frame.end


def find_frame_offset_by_sequence(file: BinaryIO, offset: int, end: int, sequence: int) -> int:
    """Return the offset of the first frame that reaches at least ``sequence``, or ``end``.

    Reads only headers of the frames before it. Raises JournalFrameError.
    """
    with mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as data:
        while end - offset >= FRAME_HEADER_BYTES:
            magic, length, first, count, _time = _FRAME_HEADER_STRUCT.unpack_from(data, offset)
            if magic not in (FRAME_MAGIC, PACKED_FRAME_MAGIC):
                raise JournalFrameError(offset, "no frame")
            if first + count > sequence:
                return offset
            offset += FRAME_HEADER_BYTES + length
    return end


def find_next_whole_journal_frame(file: BinaryIO, offset: int, end: int) -> int | None:
    """Return the offset of the first whole frame that starts after ``offset``, or None."""
    while (offset := _find_magic(file, offset + 1, end)) >= 0:
        try:
            read_journal_frame(file, offset, end)
        except JournalFrameError:
            continue
        return offset
    return None


def _find_magic(file: BinaryIO, offset: int, end: int, block: int = 1 << 20) -> int:
    while offset < end:
        file.seek(offset)
        found = file.read(min(block, end - offset)).find(_MAGIC_PREFIX)
        if found >= 0:
            return offset + found
        offset += block - len(_MAGIC_PREFIX) + 1
    return -1


def _checksum(header: bytes, payload: bytes) -> int:
    hasher = xxhash.xxh3_64(header)
    hasher.update(payload)
    return hasher.intdigest()


SEGMENT_SUFFIX = ".log"
DAMAGED_SUFFIX = ".damaged"


class JournalSegment(msgspec.Struct, frozen=True):
    """File of the journal: the first sequence that it holds, and its size in bytes."""

    first: int
    path: Path
    size: int


class JournalEnd(msgspec.Struct, frozen=True):
    """End of a journal at close: first sequence of the last segment, that file's size, last sequence."""

    segment: int
    size: int
    sequence: int


class ProjectionWatermark(msgspec.Struct, frozen=True):
    """Watermark of a projection: the last sequence of the durable commits that it has seen."""

    name: str
    sequence: int


def journal_segment_path(folder: Path, first: int) -> Path:
    """Return the path of the segment that starts with a sequence."""
    return folder / f"{first:020d}{SEGMENT_SUFFIX}"


def list_journal_segments(folder: Path) -> list[JournalSegment]:
    """Return the segments of a folder, oldest first. Raises JournalDamaged if one is not a regular file."""
    found = [path for path in folder.iterdir() if path.suffix == SEGMENT_SUFFIX and path.stem.isdecimal()]
    for path in found:
        if path.is_symlink() or path.is_dir():
            raise JournalDamaged(
                f"{shorten_journal_path(path)}: not a regular file; restore the file, for example from a backup"
            )
    return sorted((JournalSegment(int(path.stem), path, path.stat().st_size) for path in found), key=lambda s: s.first)


def read_journal_segment_frames(segment: JournalSegment, expected: int | None) -> Iterator[JournalFrame]:
    """Yield the frames of one segment. Raises JournalFrameError at the first that is not whole or not consecutive."""
    with segment.path.open("rb") as file:
        yield from read_journal_frames(file, 0, segment.size, expected)


def find_last_whole_journal_frame(
    segment: JournalSegment, expected: int | None
) -> tuple[JournalFrame | None, JournalFrameError | None]:
    """Return the last frame of a segment before its first fault, and the fault; each None if it does not exist."""
    last: JournalFrame | None = None
    try:
        for frame in read_journal_segment_frames(segment, expected):
            last = frame
    except JournalFrameError as error:
        return last, error
    return last, None


def _whole_sequences(segment: JournalSegment) -> tuple[int, int, JournalFrameError | None]:
    """Return the last sequence before the first fault, the offset where it ends, and the fault."""
    frame, fault = find_last_whole_journal_frame(segment, segment.first)
    return (segment.first - 1, 0, fault) if frame is None else (frame.last, frame.end, fault)


class Journal:
    """Append-only log with one writer; any thread may read what is durable."""

    def __init__(self, folder: Path, segments: list[JournalSegment], last: int, segment_bytes: int) -> None:
        """Prefer `Journal.open` or `Journal.create`."""
        self.folder = folder
        self.last = last
        self._segment_bytes = segment_bytes
        self._segments = segments
        self._lock = threading.Lock()
        self._broken: str | None = None
        # Called before a frame is packed, because older programs cannot read it. While None, no frame is packed.
        self.before_packing: Callable[[], None] | None = None
        self._packed: list[tuple[int, int]] = []
        self._descriptor = os.open(segments[-1].path, os.O_WRONLY | os.O_APPEND)

    @classmethod
    def create(cls, folder: Path, segment_bytes: int, first: int = 1) -> Journal:
        """Create an empty journal whose first sequence is ``first``."""
        folder.mkdir(parents=True, exist_ok=True)
        segment = _new_segment(folder, first)
        return cls(folder, [segment], first - 1, segment_bytes)

    @classmethod
    def open(
        cls,
        folder: Path,
        segment_bytes: int,
        after: int,
        trusted: JournalEnd | None = None,
        seen: Iterable[ProjectionWatermark] = (),
    ) -> Journal:
        """Open a journal of which the frames after sequence ``after`` are needed.

        Verifies these frames and cuts a tail that a crash left torn, unless ``trusted`` (from a clean close) matches
        the files. ``seen`` is read only when verifying.

        Raises JournalDamaged when a durable frame is damaged or missing, or when a witness has seen later commits.
        """
        segments = list_journal_segments(folder) if folder.is_dir() else []
        if not segments:
            raise JournalDamaged(f"{shorten_journal_path(folder)}: no segment is left; run `kgserve doctor --salvage`")
        newest = segments[-1]
        if trusted is not None and (newest.first, newest.size) == (trusted.segment, trusted.size):
            return cls(folder, segments, trusted.sequence, segment_bytes)
        closed = ProjectionWatermark("the clean-close marker", trusted.sequence if trusted is not None else 0)
        last = _verify(segments, after, max([closed, *seen], key=lambda each: each.sequence))
        # A killed process leaves unsynced writes in the page cache; projections are about to rely on them.
        fsync_file(newest.path)
        fsync_folder(folder)
        if last < after:
            # The journal lost commits that a snapshot has: continue after the snapshot, in a new segment.
            _new_segment(folder, after + 1)
            last = after
        return cls(folder, list_journal_segments(folder), last, segment_bytes)

    @property
    def end(self) -> JournalEnd:
        """Current end of the journal."""
        with self._lock:
            newest = self._segments[-1]
            return JournalEnd(newest.first, newest.size, self.last)

    @property
    def segments(self) -> list[JournalSegment]:
        """Segments, oldest first, with their durable sizes."""
        with self._lock:
            return list(self._segments)

    @property
    def bytes(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.size for segment in self.segments)

    def compression_savings_after(self, sequence: int) -> int:
        """Return about how many bytes packing has saved after a sequence, since the journal was opened."""
        with self._lock:
            return sum(spared for last, spared in self._packed if last > sequence)

    def append(self, changes: list[ChangeSet]) -> None:
        """Append consecutive change sets durably, all or none. Raises StorageFull or Unavailable."""
        first, last = changes[0].sequence, changes[-1].sequence
        if self.before_packing is None:
            self.append_frame(encode_journal_frame(changes), first, last)
            return
        data, spared = encode_and_compress_journal_frame(changes)
        if spared:
            self.before_packing()
        self.append_frame(data, first, last)
        if spared:
            with self._lock:
                self._packed.append((last, spared))

    def append_frame(self, data: bytes, first: int, last: int, *, durable: bool = True) -> None:
        """Append an encoded frame of sequences ``first`` to ``last``. Unless ``durable``, `sync` must follow."""
        if self._broken is not None:
            raise Unavailable(f"The journal is read-only after a failed write: {self._broken}", retry_after=30)
        if first != self.last + 1:
            raise Internal(f"sequence {first} cannot follow {self.last} in {self.folder}")
        if self._segments[-1].size >= self._segment_bytes:
            self._rotate()
        newest = self._segments[-1]
        try:
            write_all_bytes(self._descriptor, data)
            if durable:
                sync_descriptor(self._descriptor, data_only=True)
        except OSError as error:
            self._truncate_failed_write(newest)
            raise translate_os_error(error, "appending to the journal") from error
        with self._lock:
            self._segments[-1] = JournalSegment(newest.first, newest.path, newest.size + len(data))
            self.last = last

    def sync(self) -> None:
        """Make frames durable that were appended with ``durable=False``. Raises StorageFull or Unavailable."""
        with translate_storage_errors("writing the journal"):
            for segment in self.segments:
                fsync_file(segment.path)
            fsync_folder(self.folder)

    def read(self, after: int) -> Iterator[ChangeSet]:
        """Yield the durable change sets after a sequence, in order and without gaps. Raises JournalDamaged."""
        for frame in self.frames(after):
            yield from (change for change in frame.changes() if change.sequence > after)

    def frames(self, after: int) -> Iterator[JournalFrame]:
        """Yield the durable frames that hold the change sets after a sequence. Raises JournalDamaged."""
        segments = self.segments
        due = after + 1
        for index, segment in enumerate(segments):
            if index + 1 < len(segments) and segments[index + 1].first <= after + 1:
                continue
            if segment.first > due:
                raise _missing_commits_error(self.folder, due - 1)
            try:
                for frame in read_journal_segment_frames(segment, segment.first):
                    due = frame.last + 1
                    if frame.last > after:
                        yield frame
            except JournalFrameError as error:
                raise _damaged_segment_error(segment, error) from error

    @property
    def oldest(self) -> int:
        """First sequence that can still be read."""
        return self.segments[0].first

    def begin_segment(self) -> None:
        """Start a new segment for the next commit. Writer only. Raises StorageFull or Unavailable."""
        if self._segments[-1].size:
            self._rotate()

    def remove_segments_before(self, sequence: int, keep_bytes: int) -> None:
        """Remove the oldest segments not needed after ``sequence``, but retain ``keep_bytes`` of them."""
        with self._lock:
            self._packed = [each for each in self._packed if each[0] > sequence]
            spare = [
                s for s, after in zip(self._segments, self._segments[1:], strict=False) if after.first <= sequence + 1
            ]
            excess = sum(segment.size for segment in spare) - keep_bytes
            removed: list[JournalSegment] = []
            for segment in spare:
                if excess <= 0:
                    break
                self._segments.remove(segment)
                removed.append(segment)
                excess -= segment.size
        for segment in removed:
            segment.path.unlink(missing_ok=True)
            # In order, so that a segment that reappears after a power loss is followed by the later ones.
            fsync_folder(self.folder)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _rotate(self) -> None:
        with translate_storage_errors("starting a journal segment"):
            segment = _new_segment(self.folder, self.last + 1)
            descriptor = os.open(segment.path, os.O_WRONLY | os.O_APPEND)
        os.close(self._descriptor)
        self._descriptor = descriptor
        with self._lock:
            self._segments.append(segment)

    def _truncate_failed_write(self, segment: JournalSegment) -> None:
        try:
            os.ftruncate(self._descriptor, segment.size)
            sync_descriptor(self._descriptor, data_only=True)
        except OSError as error:
            # The content on disk is now unknown until the store opens again and reads the file.
            self._broken = f"{segment.path.name} could not be truncated after a failed write ({error.strerror})"


def _is_damage(segment: JournalSegment, error: JournalFrameError) -> bool:
    """Return True unless the fault is a frame that a crash cut short at the end."""
    with segment.path.open("rb") as file:
        return (
            isinstance(error, JournalFrameOutOfOrder)
            or find_next_whole_journal_frame(file, error.offset, segment.size) is not None
        )


def _new_segment(folder: Path, first: int) -> JournalSegment:
    path = journal_segment_path(folder, first)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    with contextlib.suppress(FileNotFoundError):
        fsync_folder(folder)
    return JournalSegment(first, path, path.stat().st_size)


def _verify(segments: list[JournalSegment], after: int, newest_witness: ProjectionWatermark) -> int:
    """Check all frames after a sequence and cut a torn tail; return the last whole sequence.

    Raises JournalDamaged if that is before the one that ``newest_witness`` has seen.
    """
    last = segments[-1].first - 1
    for index, segment in enumerate(segments):
        newest = index + 1 == len(segments)
        if not newest and segments[index + 1].first <= after + 1:
            continue
        last, end, fault = _whole_sequences(segment)
        if fault is not None:
            if not newest or _is_damage(segment, fault):
                raise _damaged_segment_error(segment, fault) from fault
            if max(last, after) < newest_witness.sequence:
                raise _journal_behind_error(segment.path, max(last, after), newest_witness, f" ({fault})") from fault
            _truncate(segment.path, end)
        if not newest and segments[index + 1].first != last + 1 > after:
            raise _missing_commits_error(segment.path.parent, last)
    if max(last, after) < newest_witness.sequence:
        raise _journal_behind_error(segments[-1].path.parent, max(last, after), newest_witness)
    return last


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
        sync_descriptor(file.fileno())


def _missing_commits_error(folder: Path, last: int) -> JournalDamaged:
    return JournalDamaged(
        f"{shorten_journal_path(folder)}: the commits after sequence {last} are missing; run `kgserve doctor --salvage`"
    )


def _journal_behind_error(path: Path, last: int, seen: ProjectionWatermark, fault: str = "") -> JournalDamaged:
    whole = f"{shorten_journal_path(path)}: it is whole up to sequence {last}{fault}"
    return JournalDamaged(
        f"{whole}, but {seen.name} has seen sequence {seen.sequence}: durable commits are missing; "
        "`kgserve doctor --salvage` restores what the history holds"
    )


def _damaged_segment_error(segment: JournalSegment, error: JournalFrameError) -> JournalDamaged:
    return JournalDamaged(
        f"{shorten_journal_path(segment.path)}: {error}; `kgserve doctor --salvage` keeps everything before it"
    )


def describe_journal_segment(segment: JournalSegment) -> str:
    """Return a segment's contents in words. Raises JournalDamaged naming the offset of its first fault."""
    last, _, fault = _whole_sequences(segment)
    if fault is not None:
        raise JournalDamaged(f"{fault}; whole up to sequence {last}") from fault
    return f"sequences {segment.first} to {last}" if last >= segment.first else "empty"


def truncate_damaged_journal(folder: Path) -> Iterator[str]:
    """Cut a journal at its first damage and set aside what follows; yield a message for each change.

    Damage before the newest whole snapshot loses nothing: the journal then continues from the snapshot.
    """
    snapshot.complete_snapshot_replacements(folder)
    newest = snapshot.find_newest_whole_snapshot(folder)
    base = newest.sequence if newest is not None else 0
    segments = list_journal_segments(folder)
    last = base
    for index, segment in enumerate(segments):
        if index + 1 < len(segments) and segments[index + 1].first <= base + 1:
            if _whole_sequences(segment)[2] is not None:
                yield _set_aside(segment)
            continue
        if segment.first > last + 1:
            yield from (_set_aside(later) for later in segments[index:])
            break
        whole, end, fault = _whole_sequences(segment)
        last = max(last, whole)
        if fault is not None:
            yield _cut_segment(segment, end, whole)
            yield from (_set_aside(later) for later in segments[index + 1 :])
            break
    if not list_journal_segments(folder):
        journal_segment_path(folder, last + 1).touch()
        yield f"a new segment was started after sequence {last}"
    fsync_folder(folder)


def _cut_segment(segment: JournalSegment, end: int, last: int) -> str:
    kept = segment.path.read_bytes()
    segment.path.with_name(segment.path.name + DAMAGED_SUFFIX).write_bytes(kept)
    _truncate(segment.path, end)
    lost = segment.size - end
    where = f"{segment.path.name} was cut after sequence {last} at offset {end}"
    return f"{where}; {lost} bytes are lost, a copy of the file is in the same folder"


def _set_aside(segment: JournalSegment) -> str:
    segment.path.rename(segment.path.with_name(segment.path.name + DAMAGED_SUFFIX))
    return f"{segment.path.name} was set aside: its sequences are not consecutive"
