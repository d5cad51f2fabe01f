"""Following a journal from its files alone, without the store being open, from any sequence on.

A tail remembers which frame it read last, so that the next page begins there: in a full segment of 64 MiB, in
frames of 400 bytes, finding the place took 0.1 s once, and 0.2 ms each time after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from os import SEEK_END
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from kgserve.errors import Gone, JournalDamaged
from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.durable_files import named
from kgserve.storage.journal.journal import (
    Frame,
    FrameError,
    Segment,
    list_segments,
    read_frames,
    segment_path,
    skip_frames,
)
from kgserve.storage.model.change import Access, ChangeSet, LinksState, NetChange
from kgserve.storage.model.rows import LinkKey, LinkRow

TAIL_BATCH_ROWS = 50_000
"""Rows that are taken in at once, about."""
TAIL_BATCH_BYTES = 16 << 20
"""And of these, about: so much of the journal, which takes two to three times as much in memory."""
_split = msgpack_decoder(list[msgspec.Raw]).decode
_decode = msgpack_decoder(ChangeSet).decode


def oldest_sequence(folder: Path) -> int:
    """The first sequence that the files still hold. Raises FileNotFoundError when there are none."""
    segments = list_segments(folder)
    if not segments:
        raise FileNotFoundError(folder)
    return segments[0].first


class Tail:
    """Reads the change sets of a journal's folder in order. Not for several threads at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segment = 0  # first sequence of the segment that holds the frame at `_offset`
        self._offset = 0
        self._first = 0  # first sequence of that frame
        self._taken = 0  # bytes of all change sets so far

    def read(self, first: int, last: int) -> Iterator[ChangeSet]:
        """The change sets from ``first`` to ``last``, which must be durable, decoded one by one.

        Raises Gone when the files begin later, FileNotFoundError when they are no more, JournalDamaged.
        """
        while first <= last:
            segment, wanted = self._find(first), first
            try:
                for change in self._read_segment(segment, first, last):
                    yield change
                    first = change.sequence + 1
            except FrameError as error:
                raise _damaged(segment, str(error)) from error
            if first == wanted:
                raise _damaged(segment, f"sequence {wanted} is missing")

    def page(self, after: int, last: int, rows: int = TAIL_BATCH_ROWS) -> list[ChangeSet]:
        """The change sets after one up to the ``last``, as many as come to so many rows or accesses; [] for none.

        They come to about 16 MiB at most. Raises what `read` does.
        """
        found: list[ChangeSet] = []
        size, begun = 0, self._taken
        for change in self.read(after + 1, last):
            found.append(change)
            size += change.size + len(change.accessed)
            if size >= rows or self._taken - begun >= TAIL_BATCH_BYTES:
                break
        return found

    def _find(self, first: int) -> Segment:
        """The segment that holds a sequence; the place in it is kept when it lies before."""
        segments = list_segments(self._folder)
        if not segments:
            raise FileNotFoundError(self._folder)
        if first < segments[0].first:
            raise Gone(f"the journal begins at sequence {segments[0].first}", segments[0].first)
        segment = next(each for each in reversed(segments) if each.first <= first)
        if segment.first != self._segment or first < self._first:
            self._segment, self._offset, self._first = segment.first, 0, segment.first
        return segment

    def _read_segment(self, segment: Segment, first: int, last: int) -> Iterator[ChangeSet]:
        with segment_path(self._folder, segment.first).open("rb") as file:
            size = file.seek(0, SEEK_END)
            offset = skip_frames(file, self._offset, size, first) if size else 0
            for frame in read_frames(file, offset, size, None):
                self._offset, self._first = frame.offset, frame.first
                for raw in _split(frame.payload)[max(0, first - frame.first) : last + 1 - frame.first]:
                    self._taken += memoryview(raw).nbytes
                    yield _decode(raw)
                first = frame.last + 1
                if first > last:
                    return


def _damaged(segment: Segment, what: str) -> JournalDamaged:
    return JournalDamaged(f"{named(segment.path)}: {what}; run `kgserve doctor` on the stopped server's folder")


def next_change(tail: Tail, after: int, last: int) -> NetChange:
    """What the commits after one come to, up to the ``last`` or about 50,000 rows. Raises what `Tail.read` does."""
    net = NetChange()
    for change in tail.page(after, last):
        net.add(change)
    return net


Changed = dict[str, Access | None]
"""Final values of accesses by id; None for those that went with their node."""


class _ChangeSetPart(Protocol):
    """What is decoded of a change set."""

    @property
    def sequence(self) -> int: ...


Part = TypeVar("Part", bound=_ChangeSetPart)


class _Accesses(msgspec.Struct, frozen=True):
    sequence: int
    nodes_deleted: list[str] = []
    accessed: list[Access] = []


class NodeDeletions(msgspec.Struct, frozen=True):
    """What a commit says of deleted nodes."""

    sequence: int
    nodes_deleted: list[str] = []
    last_versions: list[int] = []


class LinkChange(msgspec.Struct, frozen=True):
    """What a commit says of links."""

    sequence: int
    links_created: list[LinkRow] = []
    links_updated: list[LinkRow] = []
    links_touched: list[LinkRow] = []
    links_deleted: list[LinkKey] = []
    links: LinksState | None = None

    def links_put(self) -> list[LinkRow]:
        """The links that it writes."""
        return [*self.links_created, *self.links_updated, *self.links_touched]


_accesses = msgpack_decoder(list[_Accesses]).decode
_ended = msgpack_decoder(list[NodeDeletions]).decode
_links = msgpack_decoder(list[LinkChange]).decode


def changed_accesses(frames: Iterable[Frame], after: int, last: int) -> Changed:
    """What the commits after one, up to the ``last``, come to."""
    changed: Changed = {}
    for part in _parts(frames, after, last, _accesses, b"accessed", b"nodes_deleted"):
        changed.update(dict.fromkeys(part.nodes_deleted))
        changed.update((access.id, access) for access in part.accessed)
    return changed


def last_versions(frames: Iterable[Frame], after: int, last: int) -> dict[str, int]:
    """The nodes that the commits after one, up to the ``last``, delete; see `last_versions_of`."""
    return last_versions_of(deletions(frames, after, last))


def last_versions_of(changes: Iterable[NodeDeletions | ChangeSet]) -> dict[str, int]:
    """The nodes that commits delete, with their versions; 0: need not be known.

    Commits of before there were such numbers say none.
    """
    found: dict[str, int] = {}
    for change in changes:
        found.update(zip(change.nodes_deleted, change.last_versions, strict=False))
    return found


def deletions(frames: Iterable[Frame], after: int, last: int) -> Iterator[NodeDeletions]:
    """The commits after one, up to the ``last``, that delete nodes."""
    return _parts(frames, after, last, _ended, b"last_versions")


def link_changes(frames: Iterable[Frame], after: int, last: int) -> Iterator[LinkChange]:
    """The commits after one, up to the ``last``, that change links."""
    return (part for part in _parts(frames, after, last, _links, b"links_") if part.links)


def _parts(
    frames: Iterable[Frame], after: int, last: int, decode: Callable[[bytes], list[Part]], *names: bytes
) -> Iterator[Part]:
    """What the change sets after one, up to the ``last``, say in any of some fields."""
    for frame in frames:
        if frame.first > last:
            break
        # Most frames have none of them, and none is decoded in vain.
        if any(name in frame.payload for name in names):
            yield from (part for part in decode(frame.payload) if after < part.sequence <= last)
