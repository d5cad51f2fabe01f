from __future__ import annotations

from typing import Any

import httpx
import pytest

from kgserve import __version__
from kgserve.cypher.completion import (
    COMPLETION_FUNCTIONS,
    COMPLETION_KEYWORDS,
    COMPLETION_PROCEDURES,
    PROPERTIES_BY_LABEL,
)
from tests.server.http.serving import accepted, refusal

TRIANGLE: dict[str, Any] = {
    "nodes": [{"id": name, "type": kind} for name, kind in (("a", "x"), ("b", "y"), ("c", "x"))],
    "edges": [
        {"from": "a", "to": "b", "relation_type": "R", "weight": 0.5},
        {"from": "b", "to": "c", "relation_type": "S"},
        {"from": "c", "to": "a", "relation_type": "R"},
    ],
}


@pytest.fixture
def filled(http: httpx.Client, api: str) -> str:
    accepted(http.post(f"{api}/inject", json=TRIANGLE))
    return api


def test_create_answers_201_once(http: httpx.Client, api: str, store: str) -> None:
    assert accepted(http.put(api), 201) == {"ok": True, "name": store, "created": True, "sequence": 0}
    assert accepted(http.put(api))["created"] is False


def test_list_names_every_store(http: httpx.Client, filled: str, store: str) -> None:
    answer = accepted(http.get("/api/memory"))
    assert answer["count"] == len(answer["stores"])
    [mine] = [one for one in answer["stores"] if one["name"] == store]
    assert (mine["nodes"], mine["edges"]) == (3, 3)


def test_drop_requires_confirmation(http: httpx.Client, filled: str, store: str) -> None:
    refusal(http.delete(filled), 400)
    refusal(http.delete(filled, params={"confirm": "other"}), 400)
    assert accepted(http.get(f"{filled}/stats"))["nodes"] == 3
    assert accepted(http.delete(filled, params={"confirm": store})) == {"ok": True, "dropped": store, "inbound": 0}
    refusal(http.get(f"{filled}/stats"), 404)


def test_stats(http: httpx.Client, filled: str, store: str) -> None:
    stats = accepted(http.get(f"{filled}/stats"))
    assert stats["name"] == store
    assert stats["types"] == {"x": 2, "y": 1}
    assert stats["relation_types"] == {"R": 2, "S": 1}


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/stats"), ("GET", "/nodes"), ("GET", "/nodes/a"), ("GET", "/export"), ("POST", "/traverse")],
)
def test_reading_an_unknown_store_is_404(http: httpx.Client, api: str, method: str, path: str) -> None:
    body = {"start_id": "a"} if method == "POST" else None
    refusal(http.request(method, api + path, json=body), 404)


def test_get_node_comes_with_its_edges(http: httpx.Client, filled: str) -> None:
    answer = accepted(http.get(f"{filled}/nodes/a"))
    assert (answer["node"]["id"], answer["node"]["type"]) == ("a", "x")
    assert [edge["to"] for edge in answer["outgoing"]] == ["b"]
    assert [edge["from"] for edge in answer["incoming"]] == ["c"]
    refusal(http.get(f"{filled}/nodes/nobody"), 404)


def test_list_nodes_page_by_page(http: httpx.Client, filled: str) -> None:
    first = accepted(http.get(f"{filled}/nodes", params={"limit": 2}))
    assert [node["id"] for node in first["nodes"]] == ["a", "b"]
    second = accepted(http.get(f"{filled}/nodes", params={"limit": 2, "cursor": first["next_cursor"]}))
    assert [node["id"] for node in second["nodes"]] == ["c"]
    assert second.get("next_cursor") is None


def test_list_nodes_of_one_type(http: httpx.Client, filled: str) -> None:
    answer = accepted(http.get(f"{filled}/nodes", params={"type": "x"}))
    assert [node["id"] for node in answer["nodes"]] == ["a", "c"]
    assert accepted(http.get(f"{filled}/nodes", params={"type": "null"}))["nodes"] == []


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=many", "limit=", "limt=1", "limit=1&limit=2", "type=%ff"]
)
def test_bad_queries_are_refused_by_name(http: httpx.Client, filled: str, query: str) -> None:
    document = refusal(http.get(f"{filled}/nodes?{query}"), 400)
    assert "query" in document["detail"]


def test_a_bad_cursor_is_refused(http: httpx.Client, filled: str) -> None:
    refusal(http.get(f"{filled}/nodes", params={"cursor": "ü"}), 400)


def test_traverse_options(http: httpx.Client, filled: str) -> None:
    def reached(**walk: Any) -> list[tuple[str, int]]:
        answer = accepted(http.post(f"{filled}/traverse", json={"start_id": "a", **walk}))
        return [(node["id"], node["depth"]) for node in answer["nodes"]]

    assert reached() == [("a", 0), ("b", 1)]
    assert reached(depth=2) == [("a", 0), ("b", 1), ("c", 2)]
    assert reached(depth=0) == reached(depth=-3) == [("a", 0)]
    assert reached(depth=99) == [("a", 0), ("b", 1), ("c", 2)]
    assert reached(direction="incoming") == [("a", 0), ("c", 1)]
    assert reached(direction="both") == [("a", 0), ("b", 1), ("c", 1)]
    assert reached(depth=2, relation_types=["R"]) == [("a", 0), ("b", 1)]
    assert reached(min_weight=0.75) == [("a", 0)]
    assert reached(depth=2, max_nodes=2) == [("a", 0), ("b", 1)]
    assert reached(start_id="nobody") == []


def test_caller_is_local_without_keys(http: httpx.Client) -> None:
    told = {"name": "local", "role": "admin", "stores": ["*"], "expires": None, "open": True, "backups": False}
    assert accepted(http.get("/api/whoami")) == told


def test_completions_match_the_shell(http: httpx.Client) -> None:
    found = accepted(http.get("/api/cypher/words"))
    assert {name: found[name] for name in ("keywords", "functions", "procedures")} == {
        "keywords": [*COMPLETION_KEYWORDS],
        "functions": [*COMPLETION_FUNCTIONS],
        "procedures": [*COMPLETION_PROCEDURES],
    }
    assert found["labels"] == PROPERTIES_BY_LABEL


def test_health_and_ready(http: httpx.Client) -> None:
    assert accepted(http.get("/health")) == {"status": "ok", "version": __version__}
    assert accepted(http.get("/ready"))["ready"] is True


def test_unknown_paths_and_methods(http: httpx.Client, filled: str) -> None:
    assert "/docs" in refusal(http.get("/nowhere"), 404)["detail"]
    answer = http.post("/health")
    refusal(answer, 405)
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("path", ["/nodes/", "//nodes", "/", "/nodes//a"])
def test_empty_path_segments_are_not_found(http: httpx.Client, filled: str, store: str, path: str) -> None:
    refusal(http.delete(filled + path, params={"confirm": store}), 404)
    assert accepted(http.get(f"{filled}/stats"))["nodes"] == 3


def test_request_ids_come_back_when_well_formed(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "Abc_-1"}).headers["x-request-id"] == "Abc_-1"
    for bad in ("a b", "x" * 65, ""):
        assert len(http.get("/health", headers={"x-request-id": bad}).headers["x-request-id"]) == 16


@pytest.mark.parametrize(
    "asked",
    [
        "nodes/a/history?limit=0",
        "nodes/a/history?limit=201",
        "changes?since=-1",
        "changes?limit=0",
        "nodes?limit=0",
        "nodes?limit=1001",
        "nodes/a/outgoing?limit=1001",
    ],
)
def test_bounds_of_pages(http: httpx.Client, api: str, asked: str) -> None:
    refusal(http.get(f"{api}/{asked}"), 400)
