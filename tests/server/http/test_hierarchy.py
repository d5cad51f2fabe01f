"""The hierarchy of memories over REST: writes, refusals and reads, now and as of a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest

from tests.server.http.serving import accepted, refusal

TREE = {
    "d": (0, ""),
    "c1": (1, "d"),
    "c2": (1, "d"),
    "f1": (2, "c1"),
    "f2": (2, "c1"),
    "f3": (2, "c2"),
    "e1": (3, "f1"),
}


@pytest.fixture
def of(http: httpx.Client, store: str) -> Iterator[httpx.Client]:
    """Client whose header names the test's store."""
    with httpx.Client(base_url=http.base_url, headers={"Kgserve-Store": store}, timeout=30) as client:
        yield client


@pytest.fixture
def tree(of: httpx.Client) -> httpx.Client:
    """Client of a store with a small hierarchy."""
    sent = [
        {"id": key, "content": f"{key} is what {key} says", "layer": layer, "parent_id": parent, "dedup": "off"}
        for key, (layer, parent) in TREE.items()
    ]
    accepted(of.post("/api/memories/batch", json={"memories": sent}))
    return of


def near(of: httpx.Client, memory: str, what: str, **query: Any) -> list[dict[str, Any]]:
    answer = of.get(f"/api/v1/memories/{memory}/{what}", params=query)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=list[dict[str, Any]])


def ids(of: httpx.Client, memory: str, what: str, **query: Any) -> list[str]:
    return [each["id"] for each in near(of, memory, what, **query)]


def listed(of: httpx.Client, **query: Any) -> set[str]:
    return {each["id"] for each in accepted(of.get("/api/memories", params={"limit": 100, **query}))["memories"]}


def recalled(of: httpx.Client, **asked: Any) -> set[str]:
    at = accepted(of.get("/api/analytics/overview"))["sequence"]
    body = {"query": "what it says", "limit": 100, "at_least": at, "min_similarity": -1, "touch": False, **asked}
    return {each["id"] for each in accepted(of.post("/api/memories/search", json=body))["hits"]}


def inject(of: httpx.Client, store: str, *edges: tuple[str, str]) -> int:
    sent = [{"from": child, "to": parent, "relation_type": "child_of"} for child, parent in edges]
    return accepted(of.post(f"/api/memory/{store}/inject", json={"edges": sent}))["sequence"]


def test_read_ancestors_and_descendants(tree: httpx.Client) -> None:
    assert ids(tree, "d", "children") == ["c1", "c2"]
    assert {each["id"]: each["depth"] for each in near(tree, "d", "descendants")} == {
        "c1": 1, "c2": 1, "e1": 3, "f1": 2, "f2": 2, "f3": 2,
    }  # fmt: skip
    assert ids(tree, "d", "descendants", layer=2) == ["f1", "f2", "f3"]
    assert ids(tree, "e1", "descendants") == []
    assert [(each["id"], each["depth"]) for each in near(tree, "e1", "ancestors")] == [("f1", 1), ("c1", 2), ("d", 3)]
    assert ids(tree, "e1", "ancestors", layer=1) == ["c1"]
    first = tree.get("/api/v1/memories/d/descendants?limit=4")
    link = first.headers["link"]
    assert link.endswith("; rel=next")
    rest = tree.get(link[1 : link.index(">")])
    assert [each["id"] for each in (*first.json(), *rest.json())] == ["c1", "c2", "e1", "f1", "f2", "f3"]
    assert "link" not in rest.headers
    whole = accepted(tree.get("/api/v1/memories/f1"))
    assert (whole["parent_id"], whole["parent"]["id"], whole["children"], whole["versions"]) == ("c1", "c1", 1, [])
    assert accepted(tree.get("/api/v1/memories/d"))["parent"] is None
    assert "parent_id" not in accepted(tree.get("/api/memories/d"))
    for what in ("children", "descendants", "ancestors"):
        refusal(tree.get(f"/api/v1/memories/nobody/{what}"), 404)
        refusal(tree.get(f"/api/v1/memories/d/{what}?layer=7"), 400)


def test_hierarchy_filters(tree: httpx.Client) -> None:
    accepted(tree.post("/api/memories", json={"id": "lone", "content": "lone stands below nothing"}), 201)
    assert listed(tree, under="c1") == {"f1", "f2", "e1"}
    assert listed(tree, under="c1", layer=2, sort="confidence") == {"f1", "f2"}
    assert listed(tree, under="e1") == set()
    assert listed(tree, orphans=True) == {"lone"}
    refusal(tree.get("/api/memories?under=nobody"), 404)
    for mode in ("keyword", "semantic", "hybrid"):
        assert recalled(tree, mode=mode) >= {"d", "f3", "e1"}
        assert recalled(tree, mode=mode, under="c1") == {"f1", "f2", "e1"}
        assert recalled(tree, mode=mode, under="e1") == set()
    assert recalled(tree, under="c1", layer=2) == {"f1", "f2"}
    refusal(tree.post("/api/memories/search", json={"query": "x", "under": "nobody"}), 404)
    accepted(tree.post("/api/memories", json={"id": "f4", "content": "f4 is about Zoë", "entity_names": ["Zoë"]}), 201)
    accepted(tree.put("/api/memories/f4", json={"parent_id": "c2"}))
    accepted(tree.put("/api/memories/f1", json={"entity_names": ["Zoë"]}))
    for mode in ("hybrid", "graph"):
        assert recalled(tree, mode=mode, entity="Zoë") == {"f1", "f4"}
        assert recalled(tree, mode=mode, entity="Zoë", under="c2") == {"f4"}
        assert recalled(tree, mode=mode, entity="Zoë", under="f3") == set()


def test_invalid_hierarchies_are_refused_without_effect(tree: httpx.Client) -> None:
    accepted(tree.post("/api/entities", json={"name": "Alice", "entity_type": "person"}), 201)
    before = accepted(tree.get("/api/analytics/overview"))["sequence"]
    for memory, change, status in (
        ("c1", {"parent_id": "c1"}, 409),
        ("d", {"parent_id": "e1"}, 409),
        ("c1", {"parent_id": "f1"}, 409),
        ("c1", {"parent_id": "f3"}, 409),
        ("f1", {"parent_id": "Alice"}, 409),
        ("f1", {"parent_id": "nobody"}, 404),
        ("f1", {"layer": 0}, 409),
        ("f1", {"layer": 3, "parent_id": "e1"}, 409),
        ("c1", {"layer": 3}, 409),
        ("e1", {"layer": 1, "parent_id": "f3"}, 409),
    ):
        refusal(tree.put(f"/api/memories/{memory}", json=change), status)
    for fields, status in (({"layer": 1, "parent_id": "f1"}, 409), ({"parent_id": "nobody"}, 404)):
        refusal(tree.post("/api/memories", json={"content": "something new", **fields}), status)
    assert accepted(tree.get("/api/analytics/overview"))["sequence"] == before
    # Equal, skipped and missing layers are allowed.
    for memory, parent in (("c2", "c1"), ("e1", "d"), ("f2", "f1")):
        assert accepted(tree.put(f"/api/memories/{memory}", json={"parent_id": parent}))["parent_id"] == parent
    assert ids(tree, "d", "children") == ["c1", "e1"]


def test_move_and_delete_in_the_hierarchy_with_history(tree: httpx.Client) -> None:
    at = accepted(tree.get("/api/analytics/overview"))["sequence"]
    assert accepted(tree.put("/api/memories/c1", json={"parent_id": ""})).get("parent_id") is None
    assert ids(tree, "d", "descendants") == ["c2", "f3"]
    accepted(tree.put("/api/memories/c1", json={"parent_id": "c2"}))
    assert ids(tree, "c2", "descendants") == ["c1", "e1", "f1", "f2", "f3"]
    accepted(tree.delete("/api/memories/c2"))
    assert ids(tree, "d", "descendants") == []
    assert listed(tree, orphans=True) >= {"f3"}
    # As of that time, whatever happened later.
    assert ids(tree, "d", "descendants", as_of=at) == ["c1", "c2", "e1", "f1", "f2", "f3"]
    assert ids(tree, "d", "descendants", as_of=at, limit=2, cursor="c2") == ["e1", "f1"]
    assert ids(tree, "d", "children", as_of=at) == ["c1", "c2"]
    assert ids(tree, "e1", "ancestors", as_of=at) == ["f1", "c1", "d"]
    assert ids(tree, "f3", "ancestors", as_of=at + 2) == ["c2", "d"]
    assert recalled(tree, under="c1", as_of=at) == {"f1", "f2", "e1"}
    refusal(tree.get(f"/api/v1/memories/d/children?as_of={at - 1}"), 404)


def test_forgotten_parent_leaves_orphans_until_restored(tree: httpx.Client, store: str) -> None:
    forget = "/api/v1/forget"
    accepted(tree.post(forget, json={"ids": ["c1"]}))
    assert ids(tree, "d", "descendants") == ["c2", "f3"]
    assert listed(tree, orphans=True) == {"f1", "f2"}
    assert ids(tree, "e1", "ancestors") == ["f1"]
    refusal(tree.put("/api/memories/f3", json={"parent_id": "c1"}), 409)
    refusal(tree.get("/api/memories?under=c1"), 404)
    accepted(tree.post(forget, json={"ids": ["c1"], "undo": True}))
    assert ids(tree, "d", "descendants") == ["c1", "c2", "e1", "f1", "f2", "f3"]
    assert ids(tree, "e1", "ancestors") == ["f1", "c1", "d"]
    # One that was moved meanwhile stays there.
    accepted(tree.post(forget, json={"ids": ["c1"]}))
    accepted(tree.put("/api/memories/f1", json={"parent_id": "c2"}))
    accepted(tree.post(forget, json={"ids": ["c1"], "undo": True}))
    assert (ids(tree, "c1", "descendants"), ids(tree, "c2", "descendants")) == (["f2"], ["e1", "f1", "f3"])
    # Deleted and restored it is the same except for its relations.
    version = accepted(tree.get("/api/memories/c2"))["version"]
    accepted(tree.delete("/api/memories/c2"))
    assert listed(tree, orphans=True) == {"f1", "f3"}
    accepted(tree.post(f"/api/memory/{store}/nodes/c2/revert", json={"version": version}))
    assert (ids(tree, "c2", "descendants"), listed(tree, orphans=True)) == ([], {"f1", "f3"})


def test_a_parent_that_moves_while_children_are_written(tree: httpx.Client) -> None:
    def move(at: int) -> None:
        accepted(tree.put("/api/memories/c1", json={"parent_id": ("c2", "d")[at % 2]}))

    def write(at: int) -> None:
        new = {"content": f"number {at}", "id": f"n{at:02}", "parent_id": "c1", "dedup": "off"}
        accepted(tree.post("/api/memories", json=new), 201)

    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(do, at) for at in range(20) for do in (move, write)]
    for each in waiting:
        each.result()
    below = sorted(["e1", "f1", "f2", *(f"n{at:02}" for at in range(20))])
    assert ids(tree, "c1", "descendants", limit=100) == below
    assert ids(tree, "d", "descendants", limit=100) == sorted(["c1", "c2", "f3", *below])
    stats = accepted(tree.get("/api/analytics/overview"))
    assert (stats["second_parents"], stats["cycles"]) == (0, 0)


def test_circles_and_second_parents_are_tolerated(tree: httpx.Client, store: str) -> None:
    inject(tree, store, ("d", "d"))
    inject(tree, store, ("d", "e1"))
    inject(tree, store, ("f2", "c2"))
    stats = accepted(tree.get("/api/analytics/overview"))
    assert (stats["second_parents"], stats["cycles"]) == (2, 1)
    # The newest relation closes the circle and does not count.
    assert ids(tree, "d", "descendants") == ["c1", "c2", "e1", "f1", "f2", "f3"]
    assert ids(tree, "e1", "ancestors") == ["f1", "c1", "d"]
    assert ids(tree, "c2", "children") == ["f2", "f3"]
    assert accepted(tree.get("/api/memories/f2?touch=false"))["parent_id"] == "c2"
    refusal(tree.put("/api/memories/c1", json={"parent_id": "e1"}), 409)
    sequence = accepted(tree.get("/api/analytics/overview"))["sequence"]
    assert set(ids(tree, "d", "descendants", as_of=sequence)) == set(TREE) - {"d"}
    accepted(tree.put("/api/memories/f1", json={"parent_id": ""}))
    assert ids(tree, "e1", "descendants") == ["c1", "c2", "d", "f2", "f3"]
    accepted(tree.put("/api/memories/d", json={"parent_id": ""}))
    accepted(tree.put("/api/memories/f2", json={"parent_id": "c1"}))
    stats = accepted(tree.get("/api/analytics/overview"))
    assert (stats["second_parents"], stats["cycles"]) == (0, 0)


def test_duplicate_memory_gets_a_parent_only_once(tree: httpx.Client) -> None:
    again = {"content": "F3 is what f3 says", "layer": 2}
    assert accepted(tree.post("/api/memories", json={**again, "parent_id": "c1"}))["parent_id"] == "c2"
    accepted(tree.put("/api/memories/f3", json={"parent_id": ""}))
    assert accepted(tree.post("/api/memories", json={**again, "parent_id": "c1"}))["parent_id"] == "c1"
    sent = [{"id": "x", **again}, {"content": "it is below what x came to", "parent_id": "x"}]
    results = accepted(tree.post("/api/memories/batch", json={"memories": sent}))["results"]
    assert [each["outcome"] for each in results] == ["duplicate", "created"]
    assert ids(tree, "f3", "children") == [results[1]["id"]]


def test_merged_memories_have_one_parent_and_all_children(tree: httpx.Client) -> None:
    for key, parent in (("f5", "c1"), ("f6", "f5"), ("e5", "f6")):
        fields = {"id": key, "layer": 2 + (key == "e5"), "parent_id": parent, "dedup": "off"}
        content = "e5 says another thing" if key == "e5" else "the very same of f5 and f6"
        accepted(tree.post("/api/memories", json={"content": content, **fields}), 201)
    report = accepted(tree.post("/api/memories/consolidate", json={}))
    [[primary]] = [
        [each["primary"]] for each in report["clusters"] if {"f5", "f6"} == {each["primary"], *each["absorbed"]}
    ]
    assert ids(tree, primary, "ancestors") == ["c1", "d"]
    assert ids(tree, primary, "descendants") == ["e5"]
    merged, at = {"f5": "f6", "f6": "f5"}[primary], accepted(tree.get("/api/analytics/overview"))["sequence"]
    for moment in ({}, {"as_of": at}):
        assert ids(tree, merged, "ancestors", **moment) == ["c1", "d"]
        assert recalled(tree, under=merged, **moment) == {"e5"}
    accepted(tree.post(f"/api/memories/consolidations/{report['run']}/undo"))
    assert ids(tree, "e5", "ancestors") == ["f6", "f5", "c1", "d"]
    # A third memory between them prevents the merge, which would create a cycle.
    accepted(tree.post("/api/memories", json={"id": "f7", "content": "in between", "layer": 2, "parent_id": "f5"}), 201)
    accepted(tree.put("/api/memories/f6", json={"parent_id": "f7"}))
    report = accepted(tree.post("/api/memories/consolidate", json={}))
    assert any("through a third memory" in each["reason"] for each in report["left"])
    assert ids(tree, "e5", "ancestors") == ["f6", "f7", "f5", "c1", "d"]


def test_entity_history_includes_the_parent(tree: httpx.Client, store: str) -> None:
    accepted(tree.put("/api/memories/f1", json={"content": "f1 says more", "parent_id": "c2"}))
    accepted(tree.put("/api/memories/f1", json={"parent_id": "d"}))
    history = tree.get(f"/api/v1/entities/f1/history?store={store}").json()
    assert [each["parent_id"] for each in history] == ["c1", "d"]


def test_deep_hierarchy_and_long_circle(of: httpx.Client, store: str) -> None:
    nodes = [{"id": f"n{at:03}", "type": "fact", "content": f"step {at}", "confidence": 1} for at in range(130)]
    steps = [(f"n{at:03}", f"n{at - 1:03}") for at in range(1, 130)]
    edges = [{"from": child, "to": parent, "relation_type": "child_of"} for child, parent in steps]
    accepted(of.post(f"/api/memory/{store}/inject", json={"nodes": nodes, "edges": edges}))
    assert ids(of, "n129", "ancestors") == [f"n{at:03}" for at in range(128, 28, -1)]
    assert ids(of, "n000", "descendants", limit=500) == [f"n{at:03}" for at in range(1, 101)]
    sequence = accepted(of.get("/api/analytics/overview"))["sequence"]
    assert ids(of, "n129", "ancestors", as_of=sequence) == ids(of, "n129", "ancestors")
    refusal(of.post("/api/memories", json={"content": "one more", "parent_id": "n129"}), 409)
    accepted(of.post("/api/memories", json={"content": "one more", "parent_id": "n099"}), 201)
    ends = "MATCH (c:Entity {id: 'n109'}), (p:Entity {id: 'n129'})"
    query = f"{ends} CREATE (p)<-[:RELATES_TO {{relation_type: 'child_of'}}]-(c)"
    accepted(of.post(f"/api/memory/{store}/cypher", json={"query": query, "mode": "write"}))
    # It is the newest parent of n109, and closes a circle of 21.
    assert ids(of, "n110", "ancestors") == ["n109"]
    assert len(ids(of, "n109", "descendants", limit=500)) == 20
    stats = accepted(of.get("/api/analytics/overview"))
    assert (stats["second_parents"], stats["cycles"]) == (1, 1)
    lines = of.get(f"/api/memory/{store}/export", headers={"Accept": "application/x-ndjson"}).content
    accepted(
        of.post(f"/api/memory/{store}-again/import", content=lines, headers={"Content-Type": "application/x-ndjson"})
    )
    again = {"Kgserve-Store": f"{store}-again"}
    stats = accepted(of.get("/api/analytics/overview", headers=again))
    assert (stats["second_parents"], stats["cycles"]) == (1, 1)
    # All in one commit now, and the newest relation is the same.
    (above,) = of.get("/api/v1/memories/n110/ancestors", headers=again).json()
    assert above["id"] == "n109"
    assert len(of.get("/api/v1/memories/n109/descendants?limit=500", headers=again).json()) == 20
    refusal(of.get("/api/v1/memories/n109/children?as_of=soon"), 400)
    refusal(of.get("/api/v1/memories/n109/children?cursor="), 400)
    accepted(of.post("/api/memories", json={"id": "a/b ü", "content": "odd", "parent_id": "n001"}), 201)
    assert ids(of, "a%2Fb%20%C3%BC", "ancestors") == ["n001", "n000"]
