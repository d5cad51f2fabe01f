"""COPY statements: the engine's way of reading and writing files of rows."""

from __future__ import annotations

from pathlib import Path
from typing import LiteralString, cast

from kgserve.errors import InvalidInput


def copy(statement: str, file: Path, direction: str = "TO", options: str = "") -> LiteralString:
    """COPY takes no parameter for its file, so the path becomes part of the text. Raises InvalidInput."""
    path = str(file)
    if not path.isprintable() or "'" in path or "\\" in path:
        raise InvalidInput(
            f"{path}: the engine cannot read or write a path with quotes, backslashes or control characters"
        )
    return cast("LiteralString", f"{statement} {direction} '{path}'{options}")
