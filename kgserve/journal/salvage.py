"""Looking for damage in journal segments, and keeping what comes before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kgserve.errors import JournalDamaged
from kgserve.journal import snapshot
from kgserve.journal.files import sync_file, sync_folder
from kgserve.journal.frame import FrameError
from kgserve.journal.journal import Segment, list_segments, read_segment, segment_path

DAMAGED_SUFFIX = ".damaged"


def segment_fault(segment: Segment) -> str:
    """What a segment holds, in words. Raises JournalDamaged naming the offset of its first fault."""
    last = segment.first - 1
    try:
        for frame in read_segment(segment, segment.first):
            last = frame.last
    except FrameError as error:
        raise JournalDamaged(f"{error.reason} at offset {error.offset}; whole up to sequence {last}") from error
    return f"sequences {segment.first} to {last}" if last >= segment.first else "empty"


def salvage(folder: Path) -> Iterator[str]:
    """Cut a journal at its first damage and set aside what follows, saying so; nothing when it is whole.

    Damage before the newest whole snapshot costs nothing: the journal then goes on from the snapshot.
    """
    base = _newest_whole(folder)
    segments = list_segments(folder)
    last = base
    for index, segment in enumerate(segments):
        if index + 1 < len(segments) and segments[index + 1].first <= base + 1:
            if not _is_whole(segment):
                yield _set_aside(segment)
            continue
        if segment.first > last + 1:
            yield from (_set_aside(later) for later in segments[index:])
            break
        whole, end = _whole_part(segment)
        last = max(last, whole)
        if end < segment.size:
            yield _cut(segment, end, whole)
            yield from (_set_aside(later) for later in segments[index + 1 :])
            break
    if not list_segments(folder):
        segment_path(folder, last + 1).touch()
        yield f"a new segment was started after sequence {last}"
    sync_folder(folder)


def _newest_whole(folder: Path) -> int:
    for path in snapshot.list_snapshots(folder):
        try:
            return snapshot.verify(path).sequence
        except JournalDamaged:
            continue
    return 0


def _whole_part(segment: Segment) -> tuple[int, int]:
    """The last sequence before the first fault, and the offset where it ends."""
    last, end = segment.first - 1, 0
    try:
        for frame in read_segment(segment, segment.first):
            last, end = frame.last, frame.end
    except FrameError:
        pass
    return last, end


def _is_whole(segment: Segment) -> bool:
    return _whole_part(segment)[1] == segment.size


def _cut(segment: Segment, end: int, last: int) -> str:
    kept = segment.path.read_bytes()
    segment.path.with_name(segment.path.name + DAMAGED_SUFFIX).write_bytes(kept)
    with segment.path.open("r+b") as file:
        file.truncate(end)
    sync_file(segment.path)
    lost = segment.size - end
    where = f"{segment.path.name} was cut after sequence {last} at offset {end}"
    return f"{where}; {lost} bytes are lost, a copy of the file is beside it"


def _set_aside(segment: Segment) -> str:
    segment.path.rename(segment.path.with_name(segment.path.name + DAMAGED_SUFFIX))
    return f"{segment.path.name} was set aside: it does not follow on"
