"""Relationships between memories over REST, versions by id, and relations between recalled memories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.http.serving import accepted, refusal

Json = dict[str, Any]
MEMORIES: tuple[Json, ...] = (
    {"id": "functional", "content": "Functional programming", "layer": 1},
    {"id": "haskell", "content": "Experienced with Haskell", "layer": 2, "parent_id": "functional"},
    {"id": "erlang", "content": "Has used Erlang", "layer": 2, "parent_id": "functional"},
    {"id": "talk", "content": "Gave a talk on monads", "layer": 3, "parent_id": "haskell"},
    {"id": "compiler", "content": "Wrote a parser for JSON", "layer": 2},
)


@pytest.fixture
def of(http: httpx.Client, store: str) -> Iterator[httpx.Client]:
    """Client of a store with some memories."""
    with httpx.Client(base_url=http.base_url, headers={"Kgserve-Store": store}, timeout=30) as client:
        accepted(client.post("/api/memories/batch", json={"memories": MEMORIES}))
        yield client


def relate(of: httpx.Client, source: str, kind: str, target: str, **fields: Any) -> Json:
    body = {"source": source, "target": target, "relation_type": kind, **fields}
    return accepted(of.post("/api/relations", json=body), 201)


def relationships(of: httpx.Client, memory: str) -> set[tuple[str, str, str, float]]:
    shown = accepted(of.get(f"/api/v1/memories/{memory}"))["relationships"]
    return {(each["source_id"], each["type"], each["target_id"], each["strength"]) for each in shown}


def listed(of: httpx.Client, **query: Any) -> set[tuple[str, str, str]]:
    found = accepted(of.get("/api/relations", params=query))["relations"]
    return {(each["source"], each["relation_type"], each["target"]) for each in found}


def counts(of: httpx.Client) -> tuple[int, int]:
    stats = accepted(of.get("/api/analytics/overview"))
    return stats["total_entities"], stats["total_relations"]


def test_relations_by_ids_of_memories_join_the_memories(of: httpx.Client) -> None:
    made = relate(of, "talk", "inspired-by", "erlang", strength=0.7)
    relate(of, "talk", "contradicts", "erlang", strength=0.0)
    assert made["strength"] == 0.7
    refused = {"source": "talk", "target": "erlang", "relation_type": "supports", "strength": 1.1}
    refusal(of.post("/api/relations", json=refused), 400)
    both = {("talk", "inspired-by", "erlang", 0.7), ("talk", "contradicts", "erlang", 0.0)}
    assert relationships(of, "talk") == relationships(of, "erlang") == both
    assert listed(of, source="talk") == listed(of) == {each[:3] for each in both}
    assert counts(of) == (0, 2)
    accepted(of.delete(f"/api/relations/{made['id']}"))
    named = {"relations": [{"source": "talk", "target": "erlang", "relation_type": "contradicts"}]}
    assert accepted(of.post("/api/relations/delete", json=named))["deleted"] == 1
    assert relationships(of, "talk") == set()
    assert (listed(of), counts(of)) == (set(), (0, 0))


def test_entity_name_takes_precedence_over_memory_id(of: httpx.Client) -> None:
    accepted(of.post("/api/entities", json={"name": "Erlang", "entity_type": "language"}), 201)
    made = relate(of, "haskell", "compares_to", "erlang")
    assert (made["source"], made["target_name"]) == ("haskell", "Erlang")
    assert relationships(of, "erlang") == set()
    assert counts(of) == (1, 1)


def test_an_ambiguous_name_means_the_entity_with_that_id(of: httpx.Client) -> None:
    kinds = [{"name": "Bob", "entity_type": kind} for kind in ("person", "company")]
    made = accepted(of.post("/api/entities/batch", json={"entities": kinds}))["entities"]
    assert [each["id"] for each in made] == ["Bob", "Bob (company)"]
    assert relate(of, "Bob", "works_at", "Bob (company)")["source"] == "Bob"
    body = {"source": "bob", "target": "talk", "relation_type": "gave"}
    assert "use an id" in refusal(of.post("/api/relations", json=body), 409)["detail"]


def test_retain_relates_memories(of: httpx.Client) -> None:
    relations = [{"source": "new", "target": "talk", "relation_type": "supports", "strength": 0.5}]
    sent = {"content": "The slides are online.", "entity_id": "new", "relations": relations}
    accepted(of.post("/api/v1/retain", json=sent))
    assert relationships(of, "new") == {("new", "supports", "talk", 0.5)}
    assert counts(of) == (0, 1)


def test_relations_of_the_store_itself_and_withdrawn_memories_are_refused(of: httpx.Client) -> None:
    for kind in ("child_of", "next", "version_of", "is_about"):
        body = {"source": "erlang", "target": "haskell", "relation_type": kind}
        refusal(of.post("/api/relations", json=body), 400)
    sequence = accepted(of.put("/api/memories/erlang", json={"content": "Has used Erlang twice"}))["sequence"]
    body = {"source": "haskell", "target": f"erlang@{sequence}", "relation_type": "supports"}
    refusal(of.post("/api/relations", json=body), 409)
    accepted(of.post("/api/v1/forget", json={"ids": ["erlang"]}))
    refusal(of.post("/api/relations", json=body | {"target": "erlang"}), 409)
    assert counts(of) == (0, 0)


def test_relationships_are_withdrawn_and_restored_with_memories(of: httpx.Client) -> None:
    relate(of, "talk", "supports", "compiler")
    accepted(of.post("/api/v1/forget", json={"ids": ["compiler"]}))
    assert (relationships(of, "talk"), listed(of), counts(of)) == (set(), set(), (0, 0))
    accepted(of.post("/api/v1/forget", json={"ids": ["compiler"], "undo": True}))
    assert listed(of) == {("talk", "supports", "compiler")}
    assert counts(of) == (0, 1)
    accepted(of.delete("/api/memories/compiler"))
    assert (relationships(of, "talk"), listed(of), counts(of)) == (set(), set(), (0, 0))


def test_versions_are_found_by_their_ids(of: httpx.Client) -> None:
    for since, city in (("2022", "Berlin"), ("2025", "London")):
        fact = {"content": f"Alice lives in {city}.", "entity_id": "home", "valid_from": f"{since}-01-01T00:00:00Z"}
        accepted(of.post("/api/v1/retain", json=fact))
    accepted(of.put("/api/memories/erlang", json={"content": "Has used Erlang for years"}))
    for memory, count in (("home", 2), ("erlang", 2)):
        versions = of.get(f"/api/v1/entities/{memory}/history").json()
        assert len(versions) == count
        for version in versions:
            found = accepted(of.get(f"/api/v1/memories/{version['id']}"))
            assert (found["id"], found["content"]) == (version["id"], version["content"])
            assert found["belongs_to"] == memory
    refusal(of.get("/api/v1/memories/erlang@999"), 404)
    refusal(of.get("/api/v1/memories/nothing@1"), 404)


def test_recall_hits_include_relations(of: httpx.Client) -> None:
    sequence = relate(of, "haskell", "supports", "compiler", strength=1.0)["sequence"]
    asked = {"query": "Haskell experience", "expand": True, "limit": 10, "at_least": sequence}
    hits = accepted(of.post("/api/memories/search", json=asked))["hits"]
    assert hits[0]["id"] == "haskell"
    related = {each["id"]: each["relation"] for each in hits if each.get("via") == "haskell"}
    expected = {"functional": "parent", "erlang": "sibling", "talk": "child", "compiler": "supports"}
    assert related.items() <= expected.items()
    assert related.keys() >= {"talk", "compiler"}
    assert all(("relation" in each) == ("via" in each) for each in hits)
