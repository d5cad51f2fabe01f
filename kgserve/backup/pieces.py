"""Pieces of journal segments: written once, never added to."""

from __future__ import annotations

from pathlib import Path

from kgserve.backup.copying import copy_range
from kgserve.backup.manifest import Piece
from kgserve.backup.source import Chunk
from kgserve.journal.files import sync_folder


def copy_chunks(found: list[Chunk], folder: Path) -> list[Piece]:
    """Copy chunks into the folder of a run, which is made if there is anything to copy."""
    if not found:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [_copy(chunk, folder) for chunk in found]
    sync_folder(folder)
    return pieces


def _copy(chunk: Chunk, folder: Path) -> Piece:
    extent = chunk.extent
    name = f"{extent.segment:020d}.{extent.offset}.log"
    entry = copy_range(chunk.file, extent.offset, extent.bytes, folder / name, f"{folder.name}/{name}")
    return Piece(entry, extent.segment, extent.offset, extent.first, extent.state.sequence, extent.state.time)
