"""What the bridge knows of single tools; `make docs` writes it from the tools of the server. Standard library only."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TypedDict

TOOL_HINTS_FILE = Path(__file__).with_name("tool_hints.json")


def is_long(tool: str | None) -> bool:
    """Whether a tool may work for long where there is much to do."""
    return tool in _read()["long"]


def retry_hint(tool: str | None) -> str | None:
    """Return how to find out whether a call was carried out; None for a tool that may just be called again."""
    return _read()["retry"].get(tool or "")


class _Hints(TypedDict):
    long: list[str]
    retry: dict[str, str]


@cache
def _read() -> _Hints:
    return json.loads(TOOL_HINTS_FILE.read_text(encoding="utf-8"))
