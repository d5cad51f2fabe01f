"""Keys for tests, put into the data folder as the command line puts them there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from kgserve.platform.access.audit import AUDIT_FILE
from kgserve.platform.access.authentication import Role, add_key, mint

DAY = 86_400_000_000


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def given(data: Path, role: Role, stores: Sequence[str] = ("*",), name: str = "", expires_at: int | None = None) -> str:
    """The text of a new key that the folder's server takes from now on."""
    key, text = mint(name or f"{role}-{now()}", role, stores, now(), expires_at)
    data.mkdir(parents=True, exist_ok=True)
    add_key(data, key)
    return text


def bearer(text: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"authorization": f"Bearer {text}"}


def client(url: str, text: str | None = None) -> httpx.Client:
    """A connection that sends a key with everything, or none."""
    return httpx.Client(base_url=url, headers=bearer(text) if text else {}, timeout=30)


def audited(data: Path) -> list[dict[str, Any]]:
    """The lines of the audit log."""
    path = data / AUDIT_FILE
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
