"""Folders of view files that are believed only while a manifest with their checksums fits them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from kgserve.journal.files import write_whole

MANIFEST = "manifest.json"


class ViewManifest(msgspec.Struct, frozen=True):
    """What a folder holds: its kind and format, the last commit it has seen, its model, and its files' checksums."""

    kind: str
    sequence: int
    model: str
    files: dict[str, str]


def seal(folder: Path, kind: str, sequence: int, model: str = "") -> None:
    """Write the manifest of the files that are in a folder now."""
    files = {path.name: _checksum(path) for path in _content(folder)}
    write_whole(folder / MANIFEST, msgspec.json.encode(ViewManifest(kind, sequence, model, files)))


def unseal(folder: Path) -> None:
    """Remove the manifest: the files are about to change."""
    (folder / MANIFEST).unlink(missing_ok=True)


def read(folder: Path, kind: str) -> ViewManifest | None:
    """The manifest of a folder whose files are exactly as they were sealed; None otherwise."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ViewManifest)
        found = {path.name: _checksum(path) for path in _content(folder)}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return manifest if manifest.kind == kind and manifest.files == found else None


def _content(folder: Path) -> list[Path]:
    # Names that start with a dot or end in .lock are the libraries' own and say nothing about the content.
    return [
        path
        for path in folder.iterdir()
        if path.is_file() and path.name != MANIFEST and not path.name.startswith(".") and path.suffix != ".lock"
    ]


def _checksum(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()
