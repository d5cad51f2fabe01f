"""Helpers for a memory over HTTP whose server uses a language model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.server.http.serving import PATIENCE, accepted

Json = dict[str, Any]


def retain(http: httpx.Client, content: Any, **more: Any) -> Json:
    return accepted(http.post("/api/v1/retain", json={"content": content, **more}))


def extraction(http: httpx.Client, store: str = "default") -> Json:
    return accepted(http.get(f"/api/memory/{store}/stats"))["extraction"]


def awaited(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def settled(http: httpx.Client, store: str = "default") -> Json:
    """Return the extraction status once the queue is empty."""

    def look() -> Json | None:
        found = extraction(http, store)
        sequence = accepted(http.get(f"/api/memory/{store}/stats"))["sequence"]
        return found if found["waiting"] == 0 and found["sequence"] == sequence else None

    return awaited(look)


def memories(http: httpx.Client, **query: Any) -> dict[str, Json]:
    page = accepted(http.get("/api/memories", params={"limit": 1000, **query}))
    return {each["content"]: each for each in page["memories"]}


def marks(http: httpx.Client, store: str = "default") -> list[Json]:
    lines = http.get(f"/api/memory/{store}/export").text.splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row.get("relation_type") == "extracted_from"]


def found_at_once(http: httpx.Client, text: str, sequence: int) -> bool:
    hits = http.get("/api/v1/recall", params={"q": text, "at_least": sequence, "touch": "false"}).json()
    return text in [hit["content"] for hit in hits]
