"""Check that answers do not reveal paths, libraries, or stack traces."""

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
    """Assert that an answer's text reveals no internals; ``folders`` are data folders that it must not name."""
    found = _INTERNALS.search(text)
    assert found is None, f"{found and found[0]!r} in {text[:1000]}"
    for folder in folders:
        assert str(folder) not in text, text[:1000]
