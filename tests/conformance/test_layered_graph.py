"""The layered knowledge graph's specification: memories as nodes, layers, parents, relationships, recall."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conformance.agent import Agent
from tests.conformance.requirement import requirement
from tests.server.http.serving import accepted, refusal

Json = dict[str, Any]
SKILLS: tuple[Json, ...] = (
    {"id": "programming", "content": "Programming", "layer": 0},
    {"id": "functional", "content": "Functional programming", "layer": 1, "parent_id": "programming"},
    {"id": "haskell", "content": "Experienced with Haskell", "layer": 2, "parent_id": "functional"},
    {"id": "erlang", "content": "Has used Erlang", "layer": 2, "parent_id": "functional"},
    {"id": "talk", "content": "Gave a talk on monads", "layer": 3, "parent_id": "haskell"},
)


def retain(http: httpx.Client, content: str, **fields: Any) -> Json:
    return accepted(http.post("/api/v1/retain", json={"content": content, **fields}))


def listed(http: httpx.Client, path: str, **query: Any) -> list[Json]:
    answer = http.get(f"/api/v1/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def memory(http: httpx.Client, name: str) -> Json:
    return accepted(http.get(f"/api/v1/memories/{name}"))


@pytest.fixture
def skills(http: httpx.Client) -> int:
    """Store a hierarchy of four layers. Return its sequence."""
    return accepted(http.post("/api/memories/batch", json={"memories": SKILLS}))["sequence"]


@requirement("LG-1.1", "A memory has id, entity_id, content, layer, parent_id, valid_from and valid_to")
@requirement("LG-1.2", "Layers are 0 domain, 1 concept, 2 fact and 3 episode")
@pytest.mark.usefixtures("skills")
def test_memory_versions_have_the_specified_fields(http: httpx.Client) -> None:
    for given in SKILLS:
        [version] = listed(http, f"entities/{given['id']}/history")
        names = {"id", "entity_id", "content", "layer", "parent_id", "valid_from", "valid_to"}
        assert names <= version.keys()
        assert version["entity_id"] == given["id"]
        assert (version["content"], version["layer"]) == (given["content"], given["layer"])
        assert version["parent_id"] == given.get("parent_id")
    refusal(http.post("/api/memories", json={"content": "Something", "layer": 4}), 400)


@requirement("LG-2.1", "retain that updates a memory adds a version with the same entity_id")
@requirement("LG-2.2", "The old version gets valid_to, the new one is current")
@requirement("LG-2.3", "GET /api/v1/entities/{entity_id}/history returns all versions")
def test_retain_adds_a_version(http: httpx.Client) -> None:
    retain(http, "Alice lives in Berlin.", entity_id="alice-location", valid_from="2022-01-01T00:00:00Z")
    retain(http, "Alice lives in London.", entity_id="alice-location", valid_from="2025-01-01T00:00:00Z")
    old, new = listed(http, "entities/alice-location/history")
    assert (old["content"], old["valid_to"][:10]) == ("Alice lives in Berlin.", "2025-01-01")
    assert (new["content"], new["valid_to"]) == ("Alice lives in London.", None)
    assert old["entity_id"] == new["entity_id"] == "alice-location"
    assert old["id"] != new["id"]
    assert memory(http, "alice-location")["content"] == "Alice lives in London."


@requirement("LG-2.4", "A version keeps the layer that the memory had, whichever operation wrote it")
def test_versions_keep_their_layer(http: httpx.Client) -> None:
    retain(http, "Bob lives in Rome.", entity_id="bob-home", layer=2)
    assert [each["layer"] for each in listed(http, "entities/bob-home/history")] == [2]
    accepted(http.put("/api/memories/bob-home", json={"content": "Bob lives in Milan."}))
    assert {each["layer"] for each in listed(http, "entities/bob-home/history")} == {2}
    retain(http, "Bob lives in Turin.", entity_id="bob-home", valid_from="2026-01-01T00:00:00Z")
    assert {each["layer"] for each in listed(http, "entities/bob-home/history")} == {2}


@requirement("LG-2.5", "A version is addressed by its own id")
def test_versions_are_addressable(http: httpx.Client) -> None:
    retain(http, "Alice lives in Berlin.", entity_id="dwelling", valid_from="2022-01-01T00:00:00Z")
    retain(http, "Alice lives in London.", entity_id="dwelling", valid_from="2025-01-01T00:00:00Z")
    for version in listed(http, "entities/dwelling/history"):
        assert memory(http, version["id"])["content"] == version["content"]


@requirement("LG-3.1", "Memories are connected by typed relationships with source_id, target_id, type and strength")
@requirement("LG-3.2", "Strength is a number from 0.0 to 1.0")
@requirement("LG-3.3", "Relationship types are not prescribed")
@pytest.mark.usefixtures("skills")
def test_relationships_between_memories(http: httpx.Client) -> None:
    for kind, strength in (("supports", 0.7), ("contradicts", 0.0), ("inspired-by", 1.0)):
        relation: Json = {"source": "talk", "target": "erlang", "relation_type": kind, "strength": strength}
        made = accepted(http.post("/api/relations", json=relation), 201)
        assert (made["source"], made["target"], made["strength"]) == ("talk", "erlang", strength)
    refusal(http.post("/api/relations", json=relation | {"strength": 1.1}), 400)
    shown = memory(http, "talk")["relationships"]
    assert {(each["type"], each["strength"]) for each in shown} == {
        ("supports", 0.7),
        ("contradicts", 0.0),
        ("inspired-by", 1.0),
    }
    assert accepted(http.get("/api/analytics/overview"))["total_entities"] == 0


@requirement(
    "LG-3.4",
    "The language model infers relationship types during retain",
    "No model is needed: the caller names them. With a model set, relations are extracted.",
)
def test_retain_takes_relations(http: httpx.Client) -> None:
    relation = {"source": "Alice", "target": "Acme", "relation_type": "works_at"}
    retain(http, "Alice works at Acme.", relations=[relation])
    [stored] = accepted(http.get("/api/relations"))["relations"]
    assert (stored["source_name"], stored["relation_type"], stored["target_name"]) == ("Alice", "works_at", "Acme")


@requirement("LG-4.1", "parent_id makes a tree of the layers")
@requirement("LG-4.2", "A memory without a parent is an orphan, a candidate for reflect")
def test_hierarchy_and_orphans(http: httpx.Client, skills: int) -> None:
    retain(http, "Knows some Prolog.", entity_id="prolog")
    page = accepted(http.get("/api/memories", params={"orphans": "true"}))["memories"]
    assert [each["id"] for each in page] == ["prolog"]
    reflected = accepted(http.post("/api/v1/reflect", json={"dry_run": True}))
    assert reflected["looked_at"] == 1
    assert skills
    refusal(http.put("/api/memories/programming", json={"parent_id": "talk"}), 409)


@requirement("LG-5.1", "All memories below one are found by a single look-up")
@requirement("LG-5.2", "All memories above one are found by a single look-up")
@pytest.mark.usefixtures("skills")
def test_closure_of_the_hierarchy(http: httpx.Client) -> None:
    below = listed(http, "memories/programming/descendants")
    assert {(each["id"], each["depth"]) for each in below} == {
        ("functional", 1),
        ("erlang", 2),
        ("haskell", 2),
        ("talk", 3),
    }
    assert [each["id"] for each in listed(http, "memories/talk/ancestors")] == ["haskell", "functional", "programming"]
    assert [each["id"] for each in listed(http, "memories/functional/children")] == ["erlang", "haskell"]
    under = accepted(http.get("/api/memories", params={"under": "programming"}))["memories"]
    assert len(under) == len(SKILLS) - 1


@requirement("LG-6.1", "Recall finds entry points by meaning")
@requirement("LG-6.2", "Recall adds the parent, siblings and children of a hit")
@requirement("LG-6.3", "Recall adds memories explicitly linked to a hit")
@requirement("LG-6.4", "A hit that was added says how it is related")
def test_recall_follows_the_graph(http: httpx.Client, skills: int) -> None:
    assert skills
    accepted(http.post("/api/memories", json={"id": "compiler", "content": "Wrote a parser for JSON", "layer": 2}), 201)
    relation: Json = {"source": "haskell", "target": "compiler", "relation_type": "supports", "strength": 1.0}
    sequence = accepted(http.post("/api/relations", json=relation), 201)["sequence"]
    asked: Json = {"query": "Haskell experience", "expand": True, "limit": 10, "at_least": sequence}
    hits = {each["id"]: each for each in accepted(http.post("/api/memories/search", json=asked))["hits"]}
    assert next(iter(hits)) == "haskell"
    related = {
        name: hits[name]["relation"] for name in ("functional", "erlang", "talk", "compiler") if "via" in hits[name]
    }
    expected = {"functional": "parent", "erlang": "sibling", "talk": "child", "compiler": "supports"}
    assert related.items() <= expected.items()
    assert {"functional", "erlang", "talk", "compiler"} <= hits.keys()


@requirement("LG-7.1", "Namespaces are isolated: graph, relationships and hierarchy")
def test_namespaces_are_isolated(http: httpx.Client, agent: Agent, store: str) -> None:
    agent("retain", content="The key is under the mat", index=store)
    other = {"Kgserve-Store": f"{store}-other"}
    accepted(http.post("/api/memories", json={"content": "Nothing of interest"}, headers=other), 201)
    answer = http.get("/api/v1/recall", params={"query": "where is the key"}, headers=other)
    assert "The key is under the mat" not in answer.text
