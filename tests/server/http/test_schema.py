"""Types and tags of a store, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.http.serving import accepted, refusal, serving

NODES: list[dict[str, Any]] = [
    {"id": "a", "type": "note", "content": "first\n note", "tags": ["status:open", "red"]},
    {"id": "b", "type": "note", "content": "x", "summary": "second, " + "long " * 40, "tags": ["status:done", "red"]},
    {"id": "c", "type": "note", "tags": ["status:open", "team:"]},
    {"id": "d", "type": "place", "content": "fourth"},
]


@pytest.fixture
def filled(http: httpx.Client, api: str) -> str:
    accepted(http.post(f"{api}/inject", json={"nodes": NODES}))
    return api


def test_schema_lists_types_and_tags_in_use(http: httpx.Client, filled: str, store: str) -> None:
    assert accepted(http.get(f"{filled}/schema")) == {
        "store": store,
        "node_count": 4,
        "kinds": [
            {"kind": "note", "count": 3, "examples": ["first note", ("second, " + "long " * 40)[:119].rstrip() + "…"]},
            {"kind": "place", "count": 1, "examples": ["fourth"]},
        ],
        "tag_prefixes": [
            {"prefix": "status", "count": 3, "values": ["open", "done"]},
            {"prefix": "team", "count": 1, "values": [""]},
        ],
        "tags": [
            {"tag": "red", "count": 2},
            {"tag": "status:open", "count": 2},
            {"tag": "status:done", "count": 1},
            {"tag": "team:", "count": 1},
        ],
    }


def test_counts_follow_writes(http: httpx.Client, filled: str) -> None:
    accepted(http.delete(f"{filled}/nodes/a"))
    accepted(http.post(f"{filled}/inject", json={"nodes": [{"id": "b", "type": "place", "tags": []}]}))
    found = accepted(http.get(f"{filled}/schema"))
    assert [(each["kind"], each["count"]) for each in found["kinds"]] == [("place", 2), ("note", 1)]
    assert [(each["tag"], each["count"]) for each in found["tags"]] == [("status:open", 1), ("team:", 1)]


def test_examples_leave_out_withdrawn_memories(http: httpx.Client, api: str, store: str) -> None:
    for name in ("a", "b"):
        memory = {"id": name, "content": f"text of {name}"}
        accepted(http.post("/api/memories", params={"store": store}, json=memory), 201)
    accepted(http.post("/api/v1/forget", params={"store": store}, json={"ids": ["a"]}))
    assert accepted(http.get(f"{api}/schema"))["kinds"] == [
        {"kind": "observation", "count": 2, "examples": ["text of b"]}
    ]


def test_tags_by_prefix(http: httpx.Client, filled: str) -> None:
    def tags(**params: Any) -> list[str]:
        return [each["tag"] for each in accepted(http.get(f"{filled}/tags", params=params))["tags"]]

    assert tags() == ["red", "status:open", "status:done", "team:"]
    assert tags(limit=2) == ["red", "status:open"]
    assert tags(prefix="status:") == tags(prefix="s") == ["status:open", "status:done"]
    assert tags(prefix="status:d") == ["status:done"]
    assert tags(prefix="Status") == []


@pytest.mark.parametrize("query", ["limit=x", "prefix=a&prefix=b", "other=1", "prefix=%ff"])
def test_bad_queries_of_tags(http: httpx.Client, filled: str, query: str) -> None:
    refusal(http.get(f"{filled}/tags?{query}"), 400)


def test_schema_of_an_empty_or_unknown_store(http: httpx.Client, api: str) -> None:
    for path in ("schema", "tags"):
        refusal(http.get(f"{api}/{path}"), 404)
    accepted(http.put(api), 201)
    assert accepted(http.get(f"{api}/tags")) == {"tags": []}
    found = accepted(http.get(f"{api}/schema"))
    assert (found["node_count"], found["kinds"], found["tag_prefixes"], found["tags"]) == (0, [], [], [])


def test_schema_counts_survive_a_restart(tmp_path: Path) -> None:
    found: list[Any] = []
    for _ in range(2):
        with serving(tmp_path / "data") as running, httpx.Client(base_url=running.url, timeout=30) as http:
            if not found:
                accepted(http.post("/api/memory/kept/inject", json={"nodes": NODES}))
            found.append(accepted(http.get("/api/memory/kept/schema")))
    assert found[0] == found[1]
    assert found[0]["node_count"] == 4
