"""The journal of one store: consecutive frames in segment files, the truth that everything else is derived from.

Below it, what looks for damage in segments, and keeps what comes before it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from kgserve.errors import Internal, JournalDamaged, Unavailable
from kgserve.journal import snapshot
from kgserve.journal.files import named, storage_error, storing, sync_file, sync_folder, write_all
from kgserve.journal.frame import (
    Frame,
    FrameError,
    OutOfOrder,
    encode_frame,
    encode_packed,
    find_frame,
    read_frames,
)
from kgserve.model.change import ChangeSet

SUFFIX = ".log"
DAMAGED_SUFFIX = ".damaged"


class Segment(msgspec.Struct, frozen=True):
    """One file of the journal: the first sequence that it holds, and its size in bytes."""

    first: int
    path: Path
    size: int


class JournalEnd(msgspec.Struct, frozen=True):
    """Where a journal ended when it was closed: first sequence of its last segment, that file's size, last sequence."""

    segment: int
    size: int
    sequence: int


class Seen(msgspec.Struct, frozen=True):
    """Somebody who was told of commits once they were durable, and the last sequence that they know of."""

    name: str
    sequence: int


def segment_path(folder: Path, first: int) -> Path:
    """Name of the segment that starts with a sequence."""
    return folder / f"{first:020d}{SUFFIX}"


def list_segments(folder: Path) -> list[Segment]:
    """The segments of a folder, oldest first."""
    found = (path for path in folder.iterdir() if path.suffix == SUFFIX and path.stem.isdecimal())
    return sorted((Segment(int(path.stem), path, path.stat().st_size) for path in found), key=lambda s: s.first)


def read_segment(segment: Segment, expected: int | None) -> Iterator[Frame]:
    """The frames of one segment. Raises FrameError at the first that is not whole or does not follow on."""
    with segment.path.open("rb") as file:
        yield from read_frames(file, 0, segment.size, expected)


def whole_part(segment: Segment, expected: int | None) -> tuple[Frame | None, FrameError | None]:
    """The last frame of a segment before its first fault, and the fault, if there are any."""
    last: Frame | None = None
    try:
        for frame in read_segment(segment, expected):
            last = frame
    except FrameError as error:
        return last, error
    return last, None


def _whole_sequences(segment: Segment) -> tuple[int, int, FrameError | None]:
    """The last sequence before the first fault, the offset where that ends, and the fault."""
    frame, fault = whole_part(segment, segment.first)
    return (segment.first - 1, 0, fault) if frame is None else (frame.last, frame.end, fault)


class Journal:
    """Appends by one writer; reads by any thread, up to what is durable."""

    def __init__(self, folder: Path, segments: list[Segment], last: int, segment_bytes: int) -> None:
        """Use `Journal.open`."""
        self.folder = folder
        self.last = last
        self._segment_bytes = segment_bytes
        self._segments = segments
        self._lock = threading.Lock()
        self._broken: str | None = None
        # Called before a frame is packed, which programs from before cannot read; while there is none, none is.
        self.before_packing: Callable[[], None] | None = None
        self._packed: list[tuple[int, int]] = []
        self._descriptor = os.open(segments[-1].path, os.O_WRONLY | os.O_APPEND)

    @classmethod
    def create(cls, folder: Path, segment_bytes: int, first: int = 1) -> Journal:
        """A new, empty journal."""
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
        seen: Iterable[Seen] = (),
    ) -> Journal:
        """Open a journal of which the frames after sequence ``after`` are needed.

        They are verified, and a tail that a crash cut short is removed, unless ``trusted`` (from a clean close) fits.
        Raises JournalDamaged when a frame that was once durable is not whole, or is gone: ``seen``, which is looked at
        only then, knows of more commits.
        """
        segments = list_segments(folder) if folder.is_dir() else []
        if not segments:
            raise JournalDamaged(f"{named(folder)}: no segment of it is left; run `kgserve doctor --salvage`")
        newest = segments[-1]
        if trusted is not None and (newest.first, newest.size) == (trusted.segment, trusted.size):
            return cls(folder, segments, trusted.sequence, segment_bytes)
        closed = Seen("the mark of its clean close", trusted.sequence if trusted is not None else 0)
        last = _verify(segments, after, max([closed, *seen], key=lambda each: each.sequence))
        # A process that was killed has left what it wrote to the system: views are about to believe it.
        sync_file(newest.path)
        sync_folder(folder)
        if last < after:
            # The journal lost what a snapshot has: it goes on behind the snapshot, in a segment of its own.
            _new_segment(folder, after + 1)
            last = after
        return cls(folder, list_segments(folder), last, segment_bytes)

    @property
    def end(self) -> JournalEnd:
        """Where it ends now."""
        with self._lock:
            newest = self._segments[-1]
            return JournalEnd(newest.first, newest.size, self.last)

    @property
    def segments(self) -> list[Segment]:
        """Its segments, oldest first, with their durable sizes."""
        with self._lock:
            return list(self._segments)

    @property
    def bytes(self) -> int:
        """Size of all segments."""
        return sum(segment.size for segment in self.segments)

    def spared_after(self, sequence: int) -> int:
        """About the bytes that packing has spared behind a sequence, since the journal was opened: it holds more."""
        with self._lock:
            return sum(spared for last, spared in self._packed if last > sequence)

    def append(self, changes: list[ChangeSet]) -> None:
        """Make consecutive change sets durable, all or none. Raises StorageFull or Unavailable with nothing kept."""
        first, last = changes[0].sequence, changes[-1].sequence
        if self.before_packing is None:
            self.append_frame(encode_frame(changes), first, last)
            return
        data, spared = encode_packed(changes)
        if spared:
            self.before_packing()
        self.append_frame(data, first, last)
        if spared:
            with self._lock:
                self._packed.append((last, spared))

    def append_frame(self, data: bytes, first: int, last: int, *, durable: bool = True) -> None:
        """Append change sets that are encoded already, of these sequences; if not ``durable``, `sync` has to follow."""
        if self._broken is not None:
            raise Unavailable(f"the journal stopped taking writes: {self._broken}", retry_after=30)
        if first != self.last + 1:
            raise Internal(f"sequence {first} cannot follow {self.last} in {self.folder}")
        if self._segments[-1].size >= self._segment_bytes:
            self._rotate()
        newest = self._segments[-1]
        try:
            write_all(self._descriptor, data)
            if durable:
                os.fdatasync(self._descriptor)
        except OSError as error:
            self._cut_back(newest)
            raise storage_error(error, "appending to the journal") from error
        with self._lock:
            self._segments[-1] = Segment(newest.first, newest.path, newest.size + len(data))
            self.last = last

    def sync(self) -> None:
        """Make durable what was appended without. Raises StorageFull or Unavailable."""
        with storing("writing the journal"):
            for segment in self.segments:
                sync_file(segment.path)
            sync_folder(self.folder)

    def read(self, after: int) -> Iterator[ChangeSet]:
        """The durable change sets after a sequence, in order, none missing. Raises JournalDamaged."""
        for frame in self.frames(after):
            yield from (change for change in frame.changes() if change.sequence > after)

    def frames(self, after: int) -> Iterator[Frame]:
        """The durable frames that hold the change sets after a sequence, as `read` does."""
        segments = self.segments
        due = after + 1
        for index, segment in enumerate(segments):
            if index + 1 < len(segments) and segments[index + 1].first <= after + 1:
                continue
            if segment.first > due:
                raise _missing(self.folder, due - 1)
            try:
                for frame in read_segment(segment, segment.first):
                    due = frame.last + 1
                    if frame.last > after:
                        yield frame
            except FrameError as error:
                raise _damaged(segment, error) from error

    @property
    def oldest(self) -> int:
        """The first sequence that can still be read."""
        return self.segments[0].first

    def begin_segment(self) -> None:
        """Have the next commit begin a segment of its own. For who appends. Raises StorageFull or Unavailable."""
        if self._segments[-1].size:
            self._rotate()

    def drop_before(self, sequence: int, keep_bytes: int) -> None:
        """Remove the oldest segments that hold nothing after ``sequence``, as long as those spare ``keep_bytes``."""
        with self._lock:
            self._packed = [each for each in self._packed if each[0] > sequence]
            spare = [
                s for s, after in zip(self._segments, self._segments[1:], strict=False) if after.first <= sequence + 1
            ]
            excess = sum(segment.size for segment in spare) - keep_bytes
            going: list[Segment] = []
            for segment in spare:
                if excess <= 0:
                    break
                self._segments.remove(segment)
                going.append(segment)
                excess -= segment.size
        for segment in going:
            segment.path.unlink(missing_ok=True)
            # One after the other: should an older one come back after a power loss, then those behind it, too.
            sync_folder(self.folder)

    def close(self) -> None:
        """Release the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _rotate(self) -> None:
        with storing("starting a journal segment"):
            segment = _new_segment(self.folder, self.last + 1)
            descriptor = os.open(segment.path, os.O_WRONLY | os.O_APPEND)
        os.close(self._descriptor)
        self._descriptor = descriptor
        with self._lock:
            self._segments.append(segment)

    def _cut_back(self, segment: Segment) -> None:
        try:
            os.ftruncate(self._descriptor, segment.size)
            os.fdatasync(self._descriptor)
        except OSError as error:
            # What the disk holds is now unknown: only a new look at the file, when the store opens again, can tell.
            self._broken = f"{segment.path.name} could not be cut back after a failed write ({error.strerror})"


def _is_damage(segment: Segment, error: FrameError) -> bool:
    """Whether that is none of what a crash leaves, a frame that was cut short at the end."""
    with segment.path.open("rb") as file:
        return isinstance(error, OutOfOrder) or find_frame(file, error.offset, segment.size) is not None


def _new_segment(folder: Path, first: int) -> Segment:
    path = segment_path(folder, first)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    with contextlib.suppress(FileNotFoundError):
        sync_folder(folder)
    return Segment(first, path, path.stat().st_size)


def _verify(segments: list[Segment], after: int, least: Seen) -> int:
    """Check all frames after a sequence and cut a torn tail; the last whole sequence, not before ``least``."""
    last = segments[-1].first - 1
    for index, segment in enumerate(segments):
        newest = index + 1 == len(segments)
        if not newest and segments[index + 1].first <= after + 1:
            continue
        last, end, fault = _whole_sequences(segment)
        if fault is not None:
            if not newest or _is_damage(segment, fault):
                raise _damaged(segment, fault) from fault
            if max(last, after) < least.sequence:
                raise _behind(segment.path, max(last, after), least, f" ({fault})") from fault
            _truncate(segment.path, end)
        if not newest and segments[index + 1].first != last + 1 > after:
            raise _missing(segment.path.parent, last)
    if max(last, after) < least.sequence:
        raise _behind(segments[-1].path.parent, max(last, after), least)
    return last


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def _missing(folder: Path, last: int) -> JournalDamaged:
    return JournalDamaged(
        f"{named(folder)}: what comes after sequence {last} is missing; run `kgserve doctor --salvage`"
    )


def _behind(path: Path, last: int, seen: Seen, fault: str = "") -> JournalDamaged:
    whole = f"{named(path)}: it is whole up to sequence {last}{fault}"
    return JournalDamaged(
        f"{whole}, but {seen.name} has seen sequence {seen.sequence}: commits that were durable are missing; "
        "`kgserve doctor --salvage` brings back what the history holds"
    )


def _damaged(segment: Segment, error: FrameError) -> JournalDamaged:
    return JournalDamaged(f"{named(segment.path)}: {error}; `kgserve doctor --salvage` keeps all that comes before it")


def segment_fault(segment: Segment) -> str:
    """What a segment holds, in words. Raises JournalDamaged naming the offset of its first fault."""
    last, _, fault = _whole_sequences(segment)
    if fault is not None:
        raise JournalDamaged(f"{fault}; whole up to sequence {last}") from fault
    return f"sequences {segment.first} to {last}" if last >= segment.first else "empty"


def salvage(folder: Path) -> Iterator[str]:
    """Cut a journal at its first damage and set aside what follows, saying so; nothing when it is whole.

    Damage before the newest whole snapshot costs nothing: the journal then goes on from the snapshot.
    """
    newest = snapshot.newest_whole(folder)
    base = newest.sequence if newest is not None else 0
    segments = list_segments(folder)
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
            yield _cut(segment, end, whole)
            yield from (_set_aside(later) for later in segments[index + 1 :])
            break
    if not list_segments(folder):
        segment_path(folder, last + 1).touch()
        yield f"a new segment was started after sequence {last}"
    sync_folder(folder)


def _cut(segment: Segment, end: int, last: int) -> str:
    kept = segment.path.read_bytes()
    segment.path.with_name(segment.path.name + DAMAGED_SUFFIX).write_bytes(kept)
    _truncate(segment.path, end)
    lost = segment.size - end
    where = f"{segment.path.name} was cut after sequence {last} at offset {end}"
    return f"{where}; {lost} bytes are lost, a copy of the file is beside it"


def _set_aside(segment: Segment) -> str:
    segment.path.rename(segment.path.with_name(segment.path.name + DAMAGED_SUFFIX))
    return f"{segment.path.name} was set aside: it does not follow on"
