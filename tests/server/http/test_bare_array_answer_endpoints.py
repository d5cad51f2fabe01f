"""Memories over REST: store selection, methods, permissions and invalid input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kgserve.memory.memory_models import RESERVED_IDS
from tests.platform.access.keys import client, given
from tests.server.http.serving import RunningServer, accepted, refusal

EMPTY: dict[str, Any] = {
    "/api/memories": {"memories": []},
    "/api/memories/consolidations": {"runs": []},
    "/api/entities": {"entities": []},
    "/api/relations": {"relations": []},
    "/api/analytics/overview": {"total_memories": 0, "average_confidence": None},
    "/api/analytics/growth": {"periods": []},
    "/api/analytics/types": {"types": []},
    "/api/analytics/tags": {"tags": []},
    "/api/analytics/confidence": {"total": 0},
}


@pytest.fixture
def of(http: httpx.Client, store: str) -> Iterator[httpx.Client]:
    """Client whose header names the test's store."""
    with httpx.Client(base_url=http.base_url, headers={"Kgserve-Store": store}) as client:
        yield client


def stored(http: httpx.Client, content: str, **more: Any) -> dict[str, Any]:
    return accepted(http.post("/api/memories", json={"content": content, **more}), 201)


@pytest.fixture
def nothing_stored(http: httpx.Client) -> None:
    """Other tests of this server may have written to the default store."""
    dropped = http.delete("/api/memory/default", params={"confirm": "default"})
    assert dropped.status_code in {200, 404}


@pytest.mark.usefixtures("nothing_stored")
@pytest.mark.parametrize("path", EMPTY)
def test_a_default_store_where_nothing_was_stored_is_empty(http: httpx.Client, path: str) -> None:
    answer = accepted(http.get(path))
    assert {name: answer[name] for name in EMPTY[path]} == EMPTY[path]
    refusal(http.get(path, params={"store": "not-there"}), 404)
    refusal(http.get(path, headers={"Kgserve-Store": "not-there"}), 404)


@pytest.mark.usefixtures("nothing_stored")
def test_recall_from_a_missing_store(http: httpx.Client) -> None:
    assert http.get("/api/memories/search?q=x").json() == []
    assert accepted(http.post("/api/memories/search", json={"query": "x"}))["hits"] == []
    refusal(http.get("/api/memories/search?q=x&store=not-there"), 404)
    refusal(http.post("/api/memories/search?store=not-there", json={"query": "x"}), 404)


@pytest.mark.parametrize("memory", ["a/b", "ü?#%2F", "..", "a b"])
def test_ids_are_percent_encoded(of: httpx.Client, memory: str) -> None:
    answer = of.post("/api/memories", json={"content": f"About {memory}", "id": memory})
    assert accepted(answer, 201)["id"] == memory
    there = answer.headers["location"].replace("..", "%2E%2E")
    assert accepted(of.get(there))["content"] == f"About {memory}"
    assert accepted(of.patch(there, json={"tags": ["x"]}))["tags"] == ["x"]
    assert accepted(of.delete(there))["existed"]
    refusal(of.get(there), 404)


@pytest.mark.parametrize("memory", sorted(RESERVED_IDS))
def test_path_segments_are_not_ids(of: httpx.Client, memory: str) -> None:
    assert "id" in refusal(of.post("/api/memories", json={"content": "x", "id": memory}), 400)["errors"][0]["path"]


def test_put_and_patch_keep_omitted_fields(of: httpx.Client) -> None:
    made = stored(of, "Tea at four", tags=["a"], metadata={"n": 1}, source="talk")
    for method, sent in (("PUT", {"tags": ["b"]}), ("PATCH", {"metadata": {"n": 2}})):
        changed = accepted(of.request(method, f"/api/memories/{made['id']}", json=sent))
    assert (changed["content"], changed["tags"], changed["metadata"], changed["source"]) == (
        *("Tea at four", ["b"]),
        *({"n": 2}, "talk"),
    )
    stale = {"tags": [], "based_on_version": 1}
    refusal(of.put(f"/api/memories/{made['id']}", json=stale), 409)


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"content": ""}, "content"),
        ({"confidence": 1.5}, "confidence"),
        ({"importance": -0.1}, "importance"),
        ({"layer": 4}, "layer"),
        ({"memory_type": ""}, "memory_type"),
        ({"entities": [{"name": "Ann", "relevance": 2}]}, "entities[0].relevance"),
        ({"created_at": "2025-01-01T00:00:00"}, "created_at"),
        ({"created_at": "2999-01-01T00:00:00Z"}, "created_at"),
        ({"expires_in": "soon"}, "expires_in"),
        ({"expires_in": "999999w"}, "expires_in"),
        ({"expires_in": "7d", "valid_to": "2999-01-01T00:00:00Z"}, "expires_in"),
        ({"dedup": "some"}, "dedup"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_invalid_fields_are_refused_by_name(of: httpx.Client, store: str, wrong: dict[str, Any], place: str) -> None:
    errors = refusal(of.post("/api/memories", json={"content": "x", **wrong}), 400)["errors"]
    assert place in [each["path"] for each in errors]
    assert "regex" not in str(errors)
    batch = {"memories": [{"content": "y"}, {"content": "x", **wrong}]}
    errors = refusal(of.post("/api/memories/batch", json=batch), 400)["errors"]
    assert f"memories[1].{place}" in [each["path"] for each in errors]
    refusal(of.get(f"/api/memory/{store}"), 404)


@pytest.mark.parametrize("sent", [{}, {"memory_ids": []}, {"memory_types": []}, {"dry_run": True}])
def test_delete_without_filters_is_refused(of: httpx.Client, sent: dict[str, Any]) -> None:
    made = stored(of, "Tea at four")
    assert "at least one filter" in refusal(of.post("/api/memories/delete", json=sent), 400)["detail"]
    assert accepted(of.get(f"/api/memories/{made['id']}"))["content"] == "Tea at four"


def test_a_key_that_only_reads_changes_nothing(keyed: RunningServer, admin: httpx.Client) -> None:
    named = {"Kgserve-Store": "reading"}
    body = {"content": "Tea at four", "entity_names": ["Ann"]}
    made = accepted(admin.post("/api/memories", json=body, headers=named), 201)
    with client(keyed.url, given(keyed.data, "read")) as reader:
        reader.headers.update(named)
        asked = {"query": "tea", "at_least": made["sequence"]}
        assert accepted(reader.post("/api/memories/search", json=asked))["hits"][0]["access_count"] == 0
        assert accepted(reader.get(f"/api/memories/{made['id']}"))["access_count"] == 0
        accepted(reader.get("/api/entities/Ann/graph"))
        for method, path in (
            *(
                ("POST", "/api/memories"),
                ("PATCH", f"/api/memories/{made['id']}"),
                ("PUT", f"/api/memories/{made['id']}"),
            ),
            *(("POST", "/api/memories/prune"), ("POST", "/api/memories/consolidate"), ("POST", "/api/memories/delete")),
            *(("PATCH", "/api/entities/Ann"), ("DELETE", "/api/entities/Ann")),
        ):
            refusal(reader.request(method, path, json={}), 403)
    [after] = accepted(admin.get("/api/memories", headers=named))["memories"]
    assert (after["access_count"], after["version"]) == (0, 1)


def test_lists_take_each_filter_from_the_query(http: httpx.Client) -> None:
    for kind, tags in (("fact", ["x", "y"]), ("error", ["x"]), ("decision", [])):
        body = {"content": f"a {kind} of the query", "memory_type": kind, "tags": tags}
        assert http.post("/api/memories?store=queried", json=body).status_code == 201
    for query, kinds in (
        ({"types": ["fact", "error"]}, {"fact", "error"}),
        ({"tags": ["x", "y"]}, {"fact"}),
        ({"tags": "x", "types": "error"}, {"error"}),
        ({"min_confidence": "0.9", "sort": "updated"}, {"fact", "error", "decision"}),
        ({"after_date": "2999-01-01T00:00:00Z"}, set[str]()),
    ):
        answer = http.get("/api/memories", params={"store": "queried", **query})
        assert answer.status_code == 200, answer.text
        assert {memory["memory_type"] for memory in answer.json()["memories"]} == kinds
        found = http.get("/api/memories/search", params={"store": "queried", "q": "query", "mode": "keyword", **query})
        assert found.status_code == (400 if "sort" in query else 200), found.text


def test_missing_entity_error_suggests_similar_names(of: httpx.Client) -> None:
    for name in ("Ada Lovelace", "Adam Smith", "Charles Babbage"):
        accepted(of.post("/api/entities", json={"name": name, "entity_type": "person"}), 201)
    for path in ("/api/entities/Ada Lovelance", "/api/memories/search?q=x&entity=ada%20lovelance"):
        assert refusal(of.get(path), 404)["detail"].endswith("; similar names: 'Ada Lovelace'")
    assert "similar names: 'Charles Babbage'" in refusal(of.get("/api/entities/charls babbage/graph"), 404)["detail"]
    assert refusal(of.get("/api/entities/Zeus"), 404)["detail"].endswith("no node has this id or name")


def test_recall_with_agent_defaults(of: httpx.Client) -> None:
    for number in range(15):
        stored(of, f"Trams stop at place {number}: {'word ' * 200}", dedup="off")
    at_least = accepted(of.post("/api/memories/search", json={"query": "trams", "touch": False}))["index_sequence"]
    asked = {"at_least": max(at_least, 15), "touch": False}
    by_query = of.get("/api/v1/recall", params={"q": "trams", **asked})
    by_body = of.post("/api/v1/recall", json={"query": "trams", **asked})
    found = [each["id"] for each in by_query.json()]
    assert 0 < len(found) < 10
    assert [each["id"] for each in by_body.json()] == found
    assert "over_budget" in by_body.headers["kgserve-withheld"]
    more = {"query": "trams", "budget": 100_000, "expand": False, **asked}
    assert len(of.post("/api/v1/recall", json=more).json()) == 10
    refusal(of.post("/api/v1/recall", json={"query": "trams", "limit": 0}), 400)
    refusal(of.get("/api/v1/recall?q=x&limit=1000"), 400)
