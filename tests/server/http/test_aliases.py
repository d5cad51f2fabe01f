"""Filter aliases of the entity-memory interface, and dates instead of times, over REST."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.http.serving import accepted, refusal

TEA, PLAN = "Ann drinks green tea", "Bob plans to sell tea"


@pytest.fixture
def remembered(http: httpx.Client, store: str) -> dict[str, Any]:
    """Parameters for a store with two memories, which wait for its indexes."""
    at = {"store": store}
    for content, kind, name, day in ((TEA, "fact", "Ann", "2025-01-10"), (PLAN, "decision", "Bob", "2025-02-10")):
        memory = {"content": content, "memory_type": kind, "entity_names": [name], "created_at": f"{day}T12:00:00Z"}
        accepted(http.post("/api/memories", params=at, json=memory), 201)
    return at


FILTERS: list[dict[str, Any]] = [
    {"memory_types": ["fact"]},
    {"entity_id": "Ann"},
    {"entity_name": "Ann"},
    {"before_date": "2025-02-01"},
    {"before_date": "2025-02-01T08:00:00"},
    {"memory_types": ["fact"], "types": ["fact"], "entity_name": "Ann", "after_date": "2025-01-10"},
]


@pytest.mark.parametrize("given", FILTERS)
def test_filter_aliases_are_accepted(http: httpx.Client, remembered: dict[str, Any], given: dict[str, Any]) -> None:
    seen = {"at_least": 2, "mode": "keyword", "min_confidence": 0}
    body = accepted(http.post("/api/memories/search", params=remembered, json={"query": "tea", **seen, **given}))
    assert [hit["content"] for hit in body["hits"]] == [TEA]
    query = remembered | {name: value for name, value in given.items() if name != "types"}
    found = http.get("/api/memories/search", params=query | seen | {"q": "tea"}).json()
    assert [hit["content"] for hit in found] == [TEA]
    listed = accepted(http.get("/api/memories", params=query))["memories"]
    assert [each["content"] for each in listed] == [TEA]


def test_conflicting_filter_aliases_are_refused(http: httpx.Client, remembered: dict[str, Any]) -> None:
    twice = {"query": "tea", "entity": "Bob", "entity_name": "Ann"}
    document = refusal(http.post("/api/memories/search", params=remembered, json=twice), 400)
    assert document["errors"][0]["path"] == "entity_name"
    refusal(http.get("/api/memories/search", params=remembered | {"q": "tea", "entity": "Bob", "entity_id": "A"}), 400)
    wrong = refusal(http.post("/api/memories/search", params=remembered, json={"query": "tea", "entity_id": 1}), 400)
    assert wrong["errors"][0]["path"] == "entity"


@pytest.mark.parametrize("day", ["2025-13-01", "yesterday", "2025-02-30", "10.01.2025", ""])
def test_invalid_dates_are_refused(http: httpx.Client, remembered: dict[str, Any], day: str) -> None:
    body = {"query": "tea", "after_date": day}
    document = refusal(http.post("/api/memories/search", params=remembered, json=body), 400)
    assert document["errors"][0]["path"] == "after_date"
    refusal(http.get("/api/memories", params=remembered | {"after_date": day}), 400)


def test_delete_memories_before_a_date(http: httpx.Client, remembered: dict[str, Any]) -> None:
    for day, count in (("2025-01-10", 0), ("2025-01-11", 1)):
        done = accepted(http.post("/api/memories/delete", params=remembered, json={"before_date": day}))
        assert done["count"] == count
