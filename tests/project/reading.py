"""Reading the project's own files."""

from __future__ import annotations

import json
import os
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]


def project_files() -> list[Path]:
    """Every file that belongs to the project: tracked, or new and not ignored; without a repository, not ignored."""
    if not (TOP / ".git").exists():
        return files_not_ignored()
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=TOP, capture_output=True, check=True)
    paths = (TOP / line.decode() for line in listing.stdout.splitlines())
    return [path for path in paths if path.is_file()]


def files_not_ignored() -> list[Path]:
    """The same as far as .gitignore tells, for a folder that is no repository."""
    patterns = [".git"] + [line.strip("/") for line in (TOP / ".gitignore").read_text().splitlines()]
    found: list[Path] = []
    for folder, folders, names in os.walk(TOP):
        folders[:] = [name for name in folders if not _matches(name, patterns)]
        found += [Path(folder, name) for name in names if not _matches(name, patterns)]
    # Patterns of whole paths, of which there is one.
    return [path for path in found if not path.is_relative_to(TOP / "bench" / "data")]


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def whole_values(text: str) -> list[Any]:
    """The JSON values that stand in a text one after another."""
    decoder, values, text = json.JSONDecoder(), [], text.strip()
    while text:
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:].lstrip()
    return values


def assert_within(shown: Any, given: Any) -> None:
    """Everything shown is in what was given; objects may hold more."""
    if isinstance(shown, dict):
        for key, value in shown.items():
            assert_within(value, given[key])
    elif isinstance(shown, list):
        assert len(shown) == len(given)
        for one, other in zip(shown, given, strict=True):
            assert_within(one, other)
    else:
        assert shown == given
