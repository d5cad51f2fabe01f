"""Validation of store names."""

from __future__ import annotations

import re

from kgserve.errors import InvalidInput

MAX_STORE_NAME_CHARS = 64
STORE_NAME_REGEX = r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*(?![\s\S])"
"""Pattern of a store's name, of at most 64 characters.

Its end rejects a trailing newline, in Python and in JSON Schema alike.
"""
_STORE_NAME_PATTERN = re.compile(STORE_NAME_REGEX)
# Files of these names cannot exist on Windows, where a data folder may be copied to.
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}


def check_store_name(name: str) -> str:
    """Return the name if it is valid. Raises InvalidInput otherwise."""
    if len(name) > MAX_STORE_NAME_CHARS or not _STORE_NAME_PATTERN.match(name):
        raise InvalidInput(
            "a store's name is 1 to 64 letters, digits, - or _ (ASCII), starting with a letter or digit, "
            "with single dots inside"
        )
    if name.partition(".")[0].lower() in _RESERVED:
        raise InvalidInput(f"{name!r} is a reserved file name on some systems; choose another name")
    return name
