"""The file that says of which model a store's vectors are, with a checksum before the name."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import xxhash

from kgserve.journal.files import write_whole

_WITH_CHECKSUM = re.compile(r"([0-9a-f]{16}) (.+)")
_BARE = re.compile(r"(?![0-9a-f]{16}|[0-9a-f]+$)[\w./:@+-]{1,256}")
"""What older files hold: the name alone. What begins as a checksum does is a damaged file."""


def read_model(path: Path) -> str | None:
    """The model's name; None when the file is not there or damaged."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8").strip()
        if found := _WITH_CHECKSUM.fullmatch(text):
            return found[2] if found[1] == _checksum(found[2]) else None
        return text if _BARE.fullmatch(text) else None
    return None


def write_model(path: Path, name: str) -> None:
    """Replace the file in one step."""
    write_whole(path, f"{_checksum(name)} {name}\n".encode())


def _checksum(name: str) -> str:
    return xxhash.xxh3_64_hexdigest(name.encode())
