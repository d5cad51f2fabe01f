"""What a backup says of itself: a manifest for each store, and a list of the stores.

Both are replaced in one step, and hold a checksum of their own text. A file that a manifest does not name is no part of
the backup; a name in it counts only with the size and the SHA-256 checksum that stand beside it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TypeVar

import msgspec

from kgserve.decoding import decode_json
from kgserve.errors import BackupDamaged
from kgserve.journal.files import write_whole
from kgserve.model.change import StoreState
from kgserve.model.times import is_within
from kgserve.store.layout import StoreFile

FORMAT = 1
MANIFEST = "manifest.json"
STORES = "stores.json"

_FILE = re.compile(r"run-[0-9]{6,}/(?:snapshot\.[0-9]+/[a-z]+\.(?:parquet|json)|history\.sqlite|[0-9]+\.[0-9]+\.log)")


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file by its path below the store's folder: size in bytes and SHA-256 checksum in hexadecimal."""

    path: str
    bytes: int
    sha256: str


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whole frames of a journal segment: where they stand in it, and the sequences in them.

    ``time`` is that of the last commit, in microseconds.
    """

    file: FileEntry
    segment: int
    offset: int
    first: int
    last: int
    time: int

    @property
    def end(self) -> int:
        """Where in the segment the next piece begins."""
        return self.offset + self.file.bytes


class SnapshotCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot of all rows."""

    sequence: int
    files: list[FileEntry]


class HistoryCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The states that were over: the last commit that the copy has seen, and the first as of which it answers."""

    sequence: int
    oldest: int
    file: FileEntry


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of one backup: the store's state and settings then, and how far back its history went.

    ``time`` is that of the last commit, ``taken`` that of the backup; both in microseconds.
    """

    sequence: int
    time: int
    taken: int
    digest: str
    nodes: int
    edges: int
    settings: StoreFile
    history_oldest: int

    @property
    def state(self) -> StoreState:
        """The store's state."""
        return StoreState(self.sequence, self.time, int(self.digest, 16), self.nodes, self.edges)


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one backup brought: a folder of pieces."""

    number: int
    pieces: list[Piece]


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where restoring can begin, and all that was added since.

    Every sequence from ``first`` to that of the last mark can be restored, every time from ``since`` to when that was
    taken. ``rows_from`` is the sequence that the journal is played on to: 0, or that of the snapshot.
    """

    created_at: int
    rows_from: int
    first: int
    since: int
    history_from: int
    keeps_history: bool
    snapshot: SnapshotCopy | None
    history: HistoryCopy | None
    runs: list[Run]
    marks: list[Mark]

    @property
    def last(self) -> Mark:
        """The newest mark."""
        return self.marks[-1]

    @property
    def pieces(self) -> list[Piece]:
        """Of all runs, in order."""
        return [piece for run in self.runs for piece in run.pieces]

    @property
    def files(self) -> list[FileEntry]:
        """All that it needs."""
        history = [self.history.file] if self.history else []
        return [*(self.snapshot.files if self.snapshot else ()), *history, *(piece.file for piece in self.pieces)]

    @property
    def needed(self) -> int:
        """The first sequence that is needed from the journal."""
        return 1 + min(self.rows_from, self.history.sequence if self.history else self.rows_from)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The backup of one store: its bases, oldest first."""

    format: int
    store: str
    bases: list[Base] = []

    @property
    def runs(self) -> range:
        """The numbers of the runs; a folder of another number was left by a backup that did not end."""
        if not self.bases:
            return range(1, 1)
        return range(self.bases[0].runs[0].number, self.bases[-1].runs[-1].number + 1)

    @property
    def bytes(self) -> int:
        """Size of all files that it names."""
        return sum(file.bytes for base in self.bases for file in base.files)


class StoreNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which stores a folder holds."""

    format: int
    stores: list[str] = []


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text and the checksum of it."""

    sha256: str
    content: msgspec.Raw


Content = TypeVar("Content", Manifest, StoreNames)


def write(path: Path, content: Manifest | StoreNames) -> None:
    """Replace a manifest in one step; it is durable afterwards."""
    text = msgspec.json.encode(content)
    write_whole(path, msgspec.json.encode(_Sealed(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))))


def read(path: Path, kind: type[Content]) -> Content:
    """A manifest. Raises BackupDamaged when it is not as it was written, FileNotFoundError when it is not there."""
    data = path.read_bytes()
    try:
        sealed = decode_json(data, _Sealed)
        text = bytes(sealed.content)
        if msgspec.json.encode(sealed) != data or hashlib.sha256(text).hexdigest() != sealed.sha256:
            raise BackupDamaged(f"{path}: its text does not fit its checksum")
        found = decode_json(text, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BackupDamaged(f"{path}: it cannot be read: {error}") from error
    if found.format != FORMAT:
        raise BackupDamaged(f"{path}: format {found.format} is not known to this version of kgserve")
    return found


def require_names(path: Path, manifest: Manifest, store: str) -> None:
    """Raises BackupDamaged for the manifest of another store, and for names and times that no backup writes."""
    if manifest.store != store:
        raise BackupDamaged(f"{path}: it belongs to store {manifest.store!r}, not to {store!r}")
    for base in manifest.bases:
        if not base.runs or not base.marks or any(not _FILE.fullmatch(file.path) for file in base.files):
            raise BackupDamaged(f"{path}: it names files that no backup has")
        if not all(map(is_within, (base.since, *(mark.taken for mark in base.marks)))):
            raise BackupDamaged(f"{path}: it names times outside the years 1 to 9999")
