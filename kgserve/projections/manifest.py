"""Folders of view files that are believed only while a manifest with their checksums fits them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import write_whole
from kgserve.platform.sqlite_files import remove_path

INDEX_MANIFEST_FILE = "manifest.json"


class ViewManifest(msgspec.Struct, frozen=True):
    """What a folder holds: its kind and format, the last commit it has seen, its model, and its files' checksums."""

    kind: str
    sequence: int
    model: str
    files: dict[str, str]


class Checksums:
    """Checksums of a folder's files. One that is the same file as before, untouched, is not read again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int, int], str] = {}

    def of(self, folder: Path) -> dict[str, str]:
        """Names of the files in the folder, each with the checksum of its content."""
        found = {_identity(path): path for path in _content(folder)}
        self._known = {identity: self._known.get(identity) or _checksum(path) for identity, path in found.items()}
        return {identity[0]: checksum for identity, checksum in self._known.items()}


def seal(folder: Path, kind: str, sequence: int, model: str = "", checksums: Checksums | None = None) -> None:
    """Write the manifest of the files that are in a folder now. ``checksums`` knows those that were there before."""
    files = (checksums or Checksums()).of(folder)
    write_whole(folder / INDEX_MANIFEST_FILE, msgspec.json.encode(ViewManifest(kind, sequence, model, files)))


def unseal(folder: Path) -> None:
    """Remove the manifest: the files are about to change."""
    remove_path(folder / INDEX_MANIFEST_FILE)


def read(folder: Path, kind: str, model: str) -> ViewManifest | None:
    """The manifest of a folder whose files are exactly as they were sealed, for a kind and model; None otherwise."""
    try:
        if not all(path.is_file() and not path.is_symlink() for path in folder.iterdir()):
            return None
        manifest = decode_json((folder / INDEX_MANIFEST_FILE).read_bytes(), ViewManifest)
        found = Checksums().of(folder)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return manifest if (manifest.kind, manifest.model, manifest.files) == (kind, model, found) else None


def _content(folder: Path) -> list[Path]:
    # Names that start with a dot or end in .lock are the libraries' own and say nothing about the content.
    return [
        path
        for path in folder.iterdir()
        if path.is_file()
        and path.name != INDEX_MANIFEST_FILE
        and not path.name.startswith(".")
        and path.suffix != ".lock"
    ]


def _identity(path: Path) -> tuple[str, int, int, int]:
    status = path.stat()
    return path.name, status.st_ino, status.st_size, status.st_mtime_ns


def _checksum(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()
