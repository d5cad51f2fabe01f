"""Reading what a backup holds, checked: nothing is taken from a file before its checksum was seen to fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kgserve.backup.copying import sum_of
from kgserve.backup.manifest import Base, FileEntry, Piece
from kgserve.decoding import msgpack_decoder
from kgserve.errors import BackupDamaged
from kgserve.journal.frame import Frame, FrameError, read_frame


class Commit(msgspec.Struct, frozen=True):
    """Number and time of a commit; of a change set nothing else is decoded."""

    sequence: int
    time: int


_commits = msgpack_decoder(list[Commit]).decode


def fault_of(folder: Path, file: FileEntry) -> str | None:
    """What is wrong with a file that is no piece of a journal, in words; None when nothing is."""
    path = folder / file.path
    if not path.is_file() or path.is_symlink():
        return f"{path}: it is missing"
    size = path.stat().st_size
    if size != file.bytes:
        return f"{path}: it has {size:,} bytes where there were {file.bytes:,}"
    with path.open("rb") as opened:
        if sum_of(opened, 0, size) != file.sha256:
            return f"{path}: it does not fit its checksum"
    return None


def fault_of_piece(folder: Path, piece: Piece) -> str | None:
    """The same for a piece of a journal, with the place of the first frame that is not whole."""
    fault = fault_of(folder, piece.file)
    path = folder / piece.file.path
    if fault is None or not path.is_file():
        return fault
    try:
        for _ in frames(path, piece):
            pass
    except FrameError as error:
        return f"{fault}; {error.reason} at offset {error.offset} ({_place(piece, error.offset)})"
    return fault


def frames(path: Path, piece: Piece) -> Iterator[Frame]:
    """The frames of a piece. Raises FrameError at the first that is not whole or does not follow on."""
    size = path.stat().st_size
    due, offset = piece.first, 0
    with path.open("rb") as file:
        while offset < size:
            frame = read_frame(file, offset, size)
            if frame.first != due:
                raise FrameError(offset, f"sequence {frame.first} where {due} was due")
            yield frame
            due, offset = frame.last + 1, frame.end
    if due != piece.last + 1:
        raise FrameError(offset, f"the end where sequence {due} was due")


def checked_frames(folder: Path, piece: Piece) -> Iterator[Frame]:
    """The frames of a piece whose checksum fits. Raises BackupDamaged naming file and place."""
    if (fault := fault_of_piece(folder, piece)) is not None:
        raise BackupDamaged(fault)
    path = folder / piece.file.path
    try:
        yield from frames(path, piece)
    except FrameError as error:
        raise BackupDamaged(f"{path}: {error.reason} at offset {error.offset}") from error


def commits(folder: Path, base: Base) -> Iterator[Commit]:
    """All commits that a base has in its journal, in order. Raises BackupDamaged."""
    for piece in base.pieces:
        for frame in checked_frames(folder, piece):
            yield from _commits(frame.payload)


def _place(piece: Piece, offset: int) -> str:
    return f"offset {piece.offset + offset} of journal segment {piece.segment:020d}.log"
