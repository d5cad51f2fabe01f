"""Read the change sets of a journal from its files, from any sequence on, without opening the store.

A tail remembers the frame that it read last, so that the next page starts there without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from os import SEEK_END
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from kgserve.errors import Gone, JournalDamaged
from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.durable_files import shorten_journal_path
from kgserve.storage.journal.journal import (
    JournalFrame,
    JournalFrameError,
    JournalSegment,
    find_frame_offset_by_sequence,
    journal_segment_path,
    list_journal_segments,
    read_journal_frames,
)
from kgserve.storage.model.change_set import ChangeSet, CrossStoreLinksCountAndDigest, MemoryAccessRecord, NetChange
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, CrossStoreLinkRow

MAX_TAIL_BATCH_ROWS = 50_000
"""Approximate number of rows in one page."""
MAX_TAIL_BATCH_BYTES = 16 << 20
"""Approximate bytes of journal in one page; they take two to three times as much in memory."""
_split = msgpack_decoder(list[msgspec.Raw]).decode
_decode = msgpack_decoder(ChangeSet).decode


def find_oldest_journal_sequence(folder: Path) -> int:
    """Return the oldest sequence in a journal's files. Raises FileNotFoundError if no segment exists."""
    segments = list_journal_segments(folder)
    if not segments:
        raise FileNotFoundError(folder)
    return segments[0].first


class JournalReader:
    """Reader of the change sets in a journal's folder, in order. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segment = 0  # first sequence of the segment that holds the frame at `_offset`
        self._offset = 0
        self._first = 0  # first sequence of that frame
        self._bytes_read = 0  # bytes of all change sets so far

    def read(self, first: int, last: int) -> Iterator[ChangeSet]:
        """Yield the change sets from ``first`` to ``last``, which must be durable, decoding one at a time.

        Raises Gone when the files begin later, FileNotFoundError when they were deleted, JournalDamaged.
        """
        while first <= last:
            segment, wanted = self._find_segment(first), first
            try:
                for change in self._read_segment(segment, first, last):
                    yield change
                    first = change.sequence + 1
            except JournalFrameError as error:
                raise _damaged_segment_error(segment, str(error)) from error
            if first == wanted:
                raise _damaged_segment_error(segment, f"sequence {wanted} is missing")

    def page(self, after: int, last: int, rows: int = MAX_TAIL_BATCH_ROWS) -> list[ChangeSet]:
        """Return the change sets after ``after`` up to ``last``, limited to about ``rows`` rows and 16 MiB.

        Accesses count as rows. Raises the errors of `read`.
        """
        found: list[ChangeSet] = []
        size, begun = 0, self._bytes_read
        for change in self.read(after + 1, last):
            found.append(change)
            size += change.size + len(change.accessed)
            if size >= rows or self._bytes_read - begun >= MAX_TAIL_BATCH_BYTES:
                break
        return found

    def _find_segment(self, first: int) -> JournalSegment:
        """Return the segment that holds a sequence; keep the current place if it is earlier in that segment."""
        segments = list_journal_segments(self._folder)
        if not segments:
            raise FileNotFoundError(self._folder)
        if first < segments[0].first:
            raise Gone(f"the journal begins at sequence {segments[0].first}", segments[0].first)
        segment = next(each for each in reversed(segments) if each.first <= first)
        if segment.first != self._segment or first < self._first:
            self._segment, self._offset, self._first = segment.first, 0, segment.first
        return segment

    def _read_segment(self, segment: JournalSegment, first: int, last: int) -> Iterator[ChangeSet]:
        with journal_segment_path(self._folder, segment.first).open("rb") as file:
            size = file.seek(0, SEEK_END)
            offset = find_frame_offset_by_sequence(file, self._offset, size, first) if size else 0
            for frame in read_journal_frames(file, offset, size, None):
                self._offset, self._first = frame.offset, frame.first
                for raw in _split(frame.payload)[max(0, first - frame.first) : last + 1 - frame.first]:
                    self._bytes_read += memoryview(raw).nbytes
                    yield _decode(raw)
                first = frame.last + 1
                if first > last:
                    return


def _damaged_segment_error(segment: JournalSegment, what: str) -> JournalDamaged:
    return JournalDamaged(
        f"{shorten_journal_path(segment.path)}: {what}; run `kgserve doctor` on the stopped server's folder"
    )


def read_net_change(tail: JournalReader, after: int, last: int) -> NetChange:
    """Return the net change of a journal's commits after one, up to ``last`` or about 50,000 rows.

    Raises the errors of `JournalReader.read`.
    """
    net = NetChange()
    for change in tail.page(after, last):
        net.add(change)
    return net


AccessChanges = dict[str, MemoryAccessRecord | None]
"""Final accesses by node id; None for nodes that were deleted."""


class _ChangeSetPart(Protocol):
    """Subset of a change set's fields that is decoded."""

    @property
    def sequence(self) -> int: ...


Part = TypeVar("Part", bound=_ChangeSetPart)


class _Accesses(msgspec.Struct, frozen=True):
    sequence: int
    nodes_deleted: list[str] = []
    accessed: list[MemoryAccessRecord] = []


class CommitNodeDeletions(msgspec.Struct, frozen=True):
    """Nodes deleted by one commit, with their last versions; the rest of the commit is not decoded."""

    sequence: int
    nodes_deleted: list[str] = []
    last_versions: list[int] = []


class CommitLinkChanges(msgspec.Struct, frozen=True):
    """Cross-store links changed by one commit; the rest of the commit is not decoded."""

    sequence: int
    links_created: list[CrossStoreLinkRow] = []
    links_updated: list[CrossStoreLinkRow] = []
    links_touched: list[CrossStoreLinkRow] = []
    links_deleted: list[CrossStoreLinkKey] = []
    links: CrossStoreLinksCountAndDigest | None = None

    def links_put(self) -> list[CrossStoreLinkRow]:
        """Return the links that the commit writes."""
        return [*self.links_created, *self.links_updated, *self.links_touched]


_accesses = msgpack_decoder(list[_Accesses]).decode
_ended = msgpack_decoder(list[CommitNodeDeletions]).decode
_links = msgpack_decoder(list[CommitLinkChanges]).decode


def read_last_node_accesses_from_journal(frames: Iterable[JournalFrame], after: int, last: int) -> AccessChanges:
    """Return the last access per node in the commits after ``after`` up to ``last``; None for deleted nodes."""
    changed: AccessChanges = {}
    for part in _read_parts(frames, after, last, _accesses, b"accessed", b"nodes_deleted"):
        changed.update(dict.fromkeys(part.nodes_deleted))
        changed.update((access.id, access) for access in part.accessed)
    return changed


def collect_deleted_node_last_versions(frames: Iterable[JournalFrame], after: int, last: int) -> dict[str, int]:
    """Return last versions by id of the nodes deleted by the commits after ``after`` up to ``last``."""
    return extract_versions_from_deletion_commits(read_node_deletion_commits(frames, after, last))


def extract_versions_from_deletion_commits(changes: Iterable[CommitNodeDeletions | ChangeSet]) -> dict[str, int]:
    """Return the last versions by id of the nodes that commits delete; 0 if the version is not needed.

    Commits written before last versions were recorded contribute nothing.
    """
    found: dict[str, int] = {}
    for change in changes:
        found.update(zip(change.nodes_deleted, change.last_versions, strict=False))
    return found


def read_node_deletion_commits(frames: Iterable[JournalFrame], after: int, last: int) -> Iterator[CommitNodeDeletions]:
    """Yield the commits after ``after``, up to ``last``, that delete nodes."""
    return _read_parts(frames, after, last, _ended, b"last_versions")


def read_cross_store_link_changes(frames: Iterable[JournalFrame], after: int, last: int) -> Iterator[CommitLinkChanges]:
    """Return the commits after ``after``, up to ``last``, that change cross-store links."""
    return (part for part in _read_parts(frames, after, last, _links, b"links_") if part.links)


def _read_parts(
    frames: Iterable[JournalFrame], after: int, last: int, decode: Callable[[bytes], list[Part]], *names: bytes
) -> Iterator[Part]:
    """Yield the partially decoded commits of frames that contain any of the field ``names``."""
    for frame in frames:
        if frame.first > last:
            break
        # Most frames contain none of the fields; a search in the bytes avoids decoding them.
        if any(name in frame.payload for name in names):
            yield from (part for part in decode(frame.payload) if after < part.sequence <= last)
