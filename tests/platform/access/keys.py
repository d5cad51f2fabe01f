"""Helpers that create API keys in a data folder, like the command line does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from kgserve.platform.access.audit import AUDIT_FILE
from kgserve.platform.access.authentication import Role, add_api_key, create_api_key

DAY = 86_400_000_000


def now() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1000


def given(data: Path, role: Role, stores: Sequence[str] = ("*",), name: str = "", expires_at: int | None = None) -> str:
    """Create a key in the data folder, and return its text."""
    key, text = create_api_key(name or f"{role}-{now()}", role, stores, now(), expires_at)
    data.mkdir(parents=True, exist_ok=True)
    add_api_key(data, key)
    return text


def bearer(text: str) -> dict[str, str]:
    """Return the authorization header of a key."""
    return {"authorization": f"Bearer {text}"}


def client(url: str, text: str | None = None) -> httpx.Client:
    """Return an HTTP client that sends a key, or none."""
    return httpx.Client(base_url=url, headers=bearer(text) if text else {}, timeout=30)


def audited(data: Path) -> list[dict[str, Any]]:
    """Return the lines of the audit log."""
    path = data / AUDIT_FILE
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
