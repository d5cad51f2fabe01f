"""List parameters: repeated, comma-separated, and with commas within items."""

from __future__ import annotations

import httpx
import pytest

from kgserve.client import Client
from tests.server.http.serving import accepted, refusal


@pytest.fixture
def filled(http: httpx.Client, api: str) -> str:
    nodes = [
        {"id": "1", "type": "a", "tags": ["x", "y"]},
        {"id": "2", "type": "b", "tags": ["x"]},
        {"id": "3", "type": "a,b", "tags": ["x,y"]},
        {"id": "4", "type": "c"},
    ]
    edges = [{"from": "1", "to": "2", "relation_type": kind} for kind in ("A", "B", "A,B", "C")]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))
    return api


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("type=a,b", "12"),
        ("type=a&type=b", "12"),
        ("type=a%2Cb", "12"),
        (r"type=a%5C,b", "3"),
        (r"type=a\\,b,c", "34"),
        ("kind=,a,,", "1"),
        ("type=", "1234"),
        ("tag=x,y", "1"),
        (r"tag=x%5C%2Cy", "3"),
    ],
)
def test_nodes_by_types_and_tags(http: httpx.Client, filled: str, query: str, ids: str) -> None:
    found = accepted(http.get(f"{filled}/nodes?{query}".replace("\\\\", "\\")))
    assert "".join(node["id"] for node in found["nodes"]) == ids


@pytest.mark.parametrize(
    "path", ["{}/nodes?type=,", "{}/nodes?type=a&tag=,,", "/api/events?store=,", "{}/events?types=,"]
)
def test_lists_of_only_commas_are_refused(http: httpx.Client, filled: str, path: str) -> None:
    answer = refusal(http.get(path.format(filled)), 400)
    assert "only commas; name at least one item" in answer["detail"]


def test_edges_by_relation_types(http: httpx.Client, filled: str) -> None:
    found = http.get(f"{filled}/nodes/1/outgoing", params={"kind": "A,B"}).json()
    assert {edge["relation_type"] for edge in found["edges"]} == {"A", "B"}


def test_client_escapes_commas_in_items(http: httpx.Client, filled: str) -> None:
    with Client(str(http.base_url)) as client:
        store = client.store(filled.rpartition("/")[2])
        assert [node.id for node in store.nodes(type=["a,b"])] == ["3"]
        assert [node.id for node in store.nodes(type=["a", "b"])] == ["1", "2"]


def test_memories_by_types_and_tags(http: httpx.Client, api: str) -> None:
    store = api.rpartition("/")[2]
    for kind, tag in (("decision", "a"), ("pattern", "b"), ("fact", "a")):
        body = {"content": f"The {kind} about tea", "memory_type": kind, "tags": [tag, "tea"]}
        accepted(http.post(f"/api/memories?store={store}", json=body), 201)
    query = {"store": store, "q": "tea", "types": "decision,pattern", "tags": "tea,a", "mode": "keyword"}
    found = http.get("/api/memories/search", params=query).json()
    assert [hit["memory_type"] for hit in found] == ["decision"]
