"""What no answer may show: where the program and its data are, what it is made of, and how it failed."""

from __future__ import annotations

import re
from pathlib import Path

import kgserve

_PROGRAM = Path(kgserve.__file__).parent
_FAILURES = (
    r"Traceback|most recent call|File \\*\"|, line \d+, in |\b[A-Z]\w*(?:Error|Exception)\b|\b\w+ exception: |"
    r"object has no |object at 0x|<class |<function |NoneType|errors\.pydantic\.dev|validation errors? for "
)
_PARTS = (
    r"(?i:kuzu|litestar|uvicorn|starlette|pydantic|msgspec|hnswlib|tantivyerror|sqlite3?\.|httptools|asyncio)|"
    r"site-packages|SELECT .+ FROM |INSERT INTO |\.py\b"
)
_INTERNALS = re.compile(f"{_FAILURES}|{_PARTS}|{re.escape(str(_PROGRAM))}|_memory/")


def assert_no_internals(text: str, *folders: Path) -> None:
    """The text of an answer, with its headers or without; ``folders`` are data folders that it may not name."""
    found = _INTERNALS.search(text)
    assert found is None, f"{found and found[0]!r} in {text[:1000]}"
    for folder in folders:
        assert str(folder) not in text, text[:1000]
