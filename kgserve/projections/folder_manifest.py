"""Folders of projection files that are trusted only while they match a manifest with their checksums."""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import write_file_atomically
from kgserve.platform.sqlite_files import remove_path

INDEX_MANIFEST_FILE = "manifest.json"


class FolderManifest(msgspec.Struct, frozen=True):
    """Manifest of a folder: kind and format, last applied commit, model, and checksums of the files."""

    kind: str
    sequence: int
    model: str
    files: dict[str, str]


class FileChecksumCache:
    """Cache of file checksums; a file with unchanged inode, size and modification time is not read again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int, int], str] = {}

    def of(self, folder: Path) -> dict[str, str]:
        """Return the names of the files in a folder, each with the checksum of its content."""
        found = {_identity(path): path for path in _content_files(folder)}
        self._known = {identity: self._known.get(identity) or _checksum(path) for identity, path in found.items()}
        return {identity[0]: checksum for identity, checksum in self._known.items()}


def write_index_folder_manifest(
    folder: Path, kind: str, sequence: int, model: str = "", checksums: FileChecksumCache | None = None
) -> None:
    """Write the manifest of an index's folder. ``checksums`` caches those of files listed earlier."""
    files = (checksums or FileChecksumCache()).of(folder)
    write_file_atomically(
        folder / INDEX_MANIFEST_FILE, msgspec.json.encode(FolderManifest(kind, sequence, model, files))
    )


def remove_folder_manifest(folder: Path) -> None:
    """Remove the manifest, because the files are about to change."""
    remove_path(folder / INDEX_MANIFEST_FILE)


def verify_index_folder_manifest(folder: Path, model: str, *kinds: str) -> FolderManifest | None:
    """Return the manifest of a folder whose files match it, for a model and one of some kinds; None otherwise."""
    try:
        if not all(path.is_file() and not path.is_symlink() for path in folder.iterdir()):
            return None
        manifest = decode_json((folder / INDEX_MANIFEST_FILE).read_bytes(), FolderManifest)
        found = FileChecksumCache().of(folder)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return manifest if manifest.kind in kinds and (manifest.model, manifest.files) == (model, found) else None


def _content_files(folder: Path) -> list[Path]:
    # Names that start with a dot or end in .lock belong to the libraries and carry no content.
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
