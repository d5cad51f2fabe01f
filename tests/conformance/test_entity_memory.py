"""Specification of the entity memory: memories with a confidence, entities, relations, search, consolidation.

Section 10 of the specification lists behavioural tests; they are quoted here. Time passes by `created_at`, which
callers may set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from bench.listener import EventListener
from kgserve.platform.settings import Settings
from tests.conformance.agent import Agent
from tests.conformance.requirement import requirement
from tests.server.http.serving import RunningServer, accepted, refusal
from tests.server.mcp.talking import Stateless

Json = dict[str, Any]


def stored(http: httpx.Client, content: str, days: float = 0, **more: Any) -> Json:
    if days:
        more["created_at"] = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    answer = http.post("/api/memories", json={"content": content, **more})
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()


def read(http: httpx.Client, memory: Json, **query: Any) -> Json:
    return accepted(http.get(f"/api/memories/{memory['id']}", params=query))


def found(http: httpx.Client, query: str, at_least: int | None = None, **more: Any) -> list[str]:
    """Return the contents that are found, best first, once the indexes have caught up."""
    if at_least is None:
        at_least = accepted(http.get(f"/api/memory/{http.headers['Kgserve-Store']}"))["sequence"]
    answer = http.get("/api/memories/search", params={"q": query, "at_least": at_least, "touch": "false", **more})
    assert answer.status_code == 200, answer.text
    return [each["content"] for each in answer.json()]


def entity(http: httpx.Client, name: str) -> Json:
    return accepted(http.get(f"/api/entities/{name}"))


def related(http: httpx.Client, *pairs: Sequence[str]) -> None:
    for pair in pairs:
        relation = {"source": pair[0], "target": pair[1], "relation_type": "uses"}
        accepted(http.post("/api/relations", json=relation), 201)


# Memories


@requirement("EM-10.1.1", "Store basic memory: id, confidence 1.0 and an embedding")
def test_store_basic_memory(http: httpx.Client, store: str) -> None:
    answer = http.post("/api/memories", json={"content": "User prefers TypeScript", "memory_type": "preference"})
    made = accepted(answer, 201)
    assert answer.headers["location"] == f"/api/memories/{made['id']}?store={store}"
    assert (made["confidence"], made["memory_type"]) == (1.0, "preference")
    assert found(http, "favourite programming language", mode="semantic", min_similarity=0.1) == [made["content"]]


@requirement("EM-10.1.2", "Store memory with entity association: entities and associations are created")
def test_store_memory_with_entity_association(http: httpx.Client) -> None:
    made = stored(http, "Alice manages the frontend team", entity_names=["Alice", "Frontend Team"])
    assert {each["name"] for each in made["entities"]} == {"Alice", "Frontend Team"}
    page = accepted(http.get("/api/entities/Frontend%20Team/memories"))
    assert [each["id"] for each in page["memories"]] == [made["id"]]


@requirement("EM-10.1.3", "Exact duplicate: the second call returns the existing memory")
def test_exact_duplicate_detection(http: httpx.Client) -> None:
    first, second = (stored(http, "User prefers dark mode") for _ in range(2))
    assert (second["id"], second["outcome"]) == (first["id"], "duplicate")
    assert len(accepted(http.get("/api/memories"))["memories"]) == 1


@requirement(
    "EM-10.1.4",
    "Near duplicate (cosine above 0.95): merged, tags combined, confidence raised",
    "By default (`dedup: guarded`) only restatements with the same numbers, names and negations are merged; other "
    "near memories are listed in `similar`. `dedup: similarity` merges as specified.",
)
def test_near_duplicate_detection(http: httpx.Client) -> None:
    first = stored(http, "User prefers dark mode", tags=["ui"], confidence=0.6)
    found(http, "dark mode")
    apart = stored(http, "The user likes dark mode")
    assert apart["outcome"] == "created"
    assert apart["similar"][0]["id"] == first["id"]
    assert apart["similar"][0]["similarity"] == pytest.approx(0.93, abs=0.01)
    accepted(http.delete(f"/api/memories/{apart['id']}"))
    policy: Json = {"dedup": "similarity", "dedup_threshold": 0.93}
    merged = stored(http, "The user likes dark mode", tags=["look"], confidence=0.6, **policy)
    assert (merged["id"], merged["outcome"], set(merged["tags"])) == (first["id"], "merged", {"ui", "look"})
    assert merged["confidence"] == pytest.approx(0.7, abs=0.001)


@requirement("EM-10.1.5", "Update memory: content, version record and embedding change")
def test_update_memory(http: httpx.Client) -> None:
    made = stored(http, "The office is in Bern")
    changed = accepted(http.put(f"/api/memories/{made['id']}", json={"content": "Our cat sleeps all day"}))
    assert (changed["content"], changed["version"]) == ("Our cat sleeps all day", 2)
    states = http.get(f"/api/v1/entities/{made['id']}/history").json()
    assert [each["content"] for each in states] == [made["content"], changed["content"]]
    assert found(http, "a pet that is tired", mode="semantic", min_similarity=0.3) == [changed["content"]]


@requirement("EM-10.1.6", "Delete memory: its associations go, entities stay")
def test_delete_memory_cascades(http: httpx.Client) -> None:
    made = stored(http, "Alice likes tea", entity_names=["Alice"])
    assert accepted(http.delete(f"/api/memories/{made['id']}"))["existed"]
    refusal(http.get(f"/api/memories/{made['id']}"), 404)
    assert entity(http, "Alice")["memories"] == 0


# Search


@requirement("EM-10.2.1", "Keyword search returns matching memories only")
def test_keyword_search(http: httpx.Client) -> None:
    stored(http, "A course on machine learning")
    stored(http, "Notes on web development")
    assert found(http, "machine learning", mode="keyword") == ["A course on machine learning"]


@requirement("EM-10.2.2", "Semantic search finds a memory by its meaning")
def test_semantic_search(http: httpx.Client) -> None:
    stored(http, "canine behavior training tips")
    stored(http, "the interest rate of the central bank")
    assert found(http, "how to train dogs", mode="semantic") == ["canine behavior training tips"]


VARIED = (
    "The web shop ships with PostgreSQL 16",
    "Our database holds the orders of customers",
    "Alice plays the violin on Sundays",
    "The build takes nine minutes",
    "Deploys happen on Tuesdays",
    "The logo is green",
    "Bob repairs old bicycles",
    "Invoices are sent as PDF",
    "Tests run in four processes",
    "The office has a coffee machine",
)


@requirement("EM-10.2.3", "Hybrid search reflects keyword and semantic relevance")
def test_hybrid_search_combines_results(http: httpx.Client) -> None:
    for each in VARIED:
        stored(http, each)
    assert set(found(http, "PostgreSQL database", limit=2)) == set(VARIED[:2])
    assert found(http, "PostgreSQL", mode="keyword") == [VARIED[0]]


@requirement("EM-10.2.4", "Filter by memory type")
def test_filter_by_memory_type(http: httpx.Client) -> None:
    for kind in ("observation", "decision", "pattern"):
        stored(http, f"The {kind} about the database", memory_type=kind)
    assert found(http, "database", types="decision") == ["The decision about the database"]


@requirement("EM-10.2.5", "Filter by tags: all of them")
def test_filter_by_tags(http: httpx.Client) -> None:
    for tags in (["typescript"], ["frontend"], ["typescript", "frontend", "x"]):
        stored(http, f"Code with {' and '.join(tags)}", tags=tags)
    assert found(http, "code", tags=["typescript", "frontend"]) == ["Code with typescript and frontend and x"]


@requirement("EM-10.2.6", "Filter by effective confidence")
def test_filter_by_confidence(http: httpx.Client) -> None:
    stored(http, "An old sentence about tea", days=40)
    stored(http, "A new sentence about tea", days=20)
    assert found(http, "tea", min_confidence=0.5) == ["A new sentence about tea"]


@requirement("EM-10.2.7", "Pagination by limit and offset")
def test_pagination(http: httpx.Client) -> None:
    batch = [{"content": f"Fact {number} about the harbour", "confidence": 0.9} for number in range(50)]
    accepted(http.post("/api/memories/batch", json={"memories": batch}))
    everything = found(http, "harbour", limit=50)
    assert len(everything) == 50
    assert found(http, "harbour", limit=10, offset=20) == everything[20:30]


# Confidence


@requirement("EM-10.3.1", "Initial confidence is 1.0")
def test_initial_confidence(http: httpx.Client) -> None:
    assert stored(http, "Something")["confidence"] == 1.0


@requirement("EM-10.3.2", "Confidence decays to about 0.5 after 30 days and 0.25 after 60")
@pytest.mark.parametrize(("days", "left"), [(30, 0.5), (60, 0.25)])
def test_confidence_decay_over_time(http: httpx.Client, days: int, left: float) -> None:
    made = stored(http, "Something", days=days)
    assert read(http, made, touch="false")["effective_confidence"] == pytest.approx(left, abs=0.002)


@requirement("EM-10.3.3", "Access updates last_accessed_at and raises the confidence by 0.1")
def test_access_reinforcement(http: httpx.Client) -> None:
    made = stored(http, "Something", days=15, confidence=0.6)
    read(http, made)
    after = read(http, made, touch="false")
    assert after["confidence"] == pytest.approx(0.7)
    assert after["effective_confidence"] == pytest.approx(0.7, abs=0.001)
    assert after["access_count"] == 1
    assert after["last_accessed_at"] > made["created_at"]


def test_reinforcement_can_add_to_the_decayed_confidence(http: httpx.Client, store: str) -> None:
    settings = {"memory": {"reinforcement": "add", "reinforcement_amount": 0.2}}
    accepted(http.put(f"/api/memory/{store}", json=settings), 201)
    made = stored(http, "Something", days=15)
    read(http, made)
    assert read(http, made, touch="false")["confidence"] == pytest.approx(0.907, abs=0.002)


def test_a_restatement_counts_as_an_access(http: httpx.Client) -> None:
    made = stored(http, "Something", days=60, confidence=0.8)
    again = stored(http, "something.", confidence=0.3)
    assert (again["id"], again["outcome"]) == (made["id"], "duplicate")
    assert again["confidence"] == pytest.approx(0.9)


@requirement("EM-10.3.4", "Confidence is at most 1.0")
def test_confidence_cap(http: httpx.Client) -> None:
    made = stored(http, "Something", confidence=0.95)
    assert read(http, made)["confidence"] == 1.0


@requirement(
    "EM-10.3.5",
    "Pruning deletes memories below 0.05",
    "By default pruned memories are archived (`prune: archive`); `prune: delete` deletes them.",
)
def test_prune_low_confidence_memories(http: httpx.Client, store: str) -> None:
    accepted(http.put(f"/api/memory/{store}", json={"memory": {"prune": "delete"}}), 201)
    kept, gone = (stored(http, f"{days} days old", days=days) for days in (129, 131))
    assert accepted(http.post("/api/memories/prune"))["ids"] == [gone["id"]]
    refusal(http.get(f"/api/memories/{gone['id']}"), 404)
    assert [each["id"] for each in accepted(http.get("/api/memories"))["memories"]] == [kept["id"]]


# Entities and their graph


@requirement("EM-10.4.1", "Create entity, with an embedding")
def test_create_entity(http: httpx.Client) -> None:
    alice = {"name": "Alice", "entity_type": "person", "description": "Software engineer"}
    made = accepted(http.post("/api/entities", json=alice), 201)
    assert {name: made[name] for name in alice} == alice
    asked = {"query": "who programs computers?", "mode": "semantic", "at_least": made["sequence"]}
    hits = accepted(http.post(f"/api/memory/{http.headers['Kgserve-Store']}/search", json=asked))["hits"]
    assert [each["node"]["id"] for each in hits] == [made["id"]]


@requirement("EM-10.4.2", "Create relation by entity names")
def test_create_relation(http: httpx.Client) -> None:
    for name in ("Alice", "Bob"):
        accepted(http.post("/api/entities", json={"name": name, "entity_type": "person"}), 201)
    relation = {"source": "Alice", "target": "bob", "relation_type": "collaborates_with", "strength": 0.8}
    assert accepted(http.post("/api/relations", json=relation), 201)["strength"] == 0.8
    [there] = entity(http, "Alice")["relations"]
    assert (there["source_name"], there["target_name"]) == ("Alice", "Bob")


@requirement("EM-10.4.3", "The same relation twice is an upsert")
def test_duplicate_relation_prevention(http: httpx.Client) -> None:
    related(http, "AB")
    again = {"source": "A", "target": "B", "relation_type": "uses", "confidence": 0.7}
    stated = accepted(http.post("/api/relations", json=again))
    assert (stated["strength"], stated["confidence"]) == (0.5, 0.7)
    assert len(entity(http, "A")["relations"]) == 1


@requirement("EM-10.4.4", "Entity graph by depth")
@pytest.mark.parametrize(("depth", "names"), [(1, "ABC"), (2, "ABCD")])
def test_get_entity_graph(http: httpx.Client, depth: int, names: str) -> None:
    related(http, "AB", "AC", "BD")
    graph = accepted(http.get("/api/entities/A/graph", params={"depth": depth}))
    assert sorted(each["name"] for each in graph["nodes"]) == [*names]
    assert len(graph["edges"]) == len(names) - 1


@requirement("EM-10.4.5", "Deleting an entity deletes its relations and keeps its memories")
def test_entity_deletion_cascade(http: httpx.Client) -> None:
    related(http, "AB")
    made = stored(http, "A uses B every day", entity_names=["A"])
    done = accepted(http.delete("/api/entities/A"))
    assert (done["count"], done["relations_deleted"], done["memories_deleted"]) == (1, 1, 0)
    refusal(http.get("/api/entities/A"), 404)
    assert entity(http, "B")["relations"] == []
    assert read(http, made)["entities"] == []


@requirement("EM-10.4.6", "store_memory creates entities of type unknown")
def test_auto_create_entities_from_store_memory(http: httpx.Client) -> None:
    stored(http, "NewPerson has joined", entity_names=["NewPerson"])
    assert entity(http, "NewPerson")["entity_type"] == "unknown"


# Consolidation

HOOKS = (
    "React hooks let function components have state",
    "With React hooks function components can have state",
    "React hooks allow function components to have state",
    "React hooks let you have state in function components",
    "React hooks give state to function components",
)


def consolidated(http: httpx.Client, **more: Any) -> Json:
    return accepted(http.post("/api/memories/consolidate", json={"similarity_threshold": 0.85, **more}))


def listed(http: httpx.Client) -> list[Json]:
    """Return the memories, except those that expire during the request."""
    page = accepted(http.get("/api/memories"))["memories"]
    return [{name: value for name, value in each.items() if name != "effective_confidence"} for each in page]


@pytest.fixture
def hooks(http: httpx.Client) -> list[Json]:
    made = [stored(http, each, dedup="exact") for each in HOOKS]
    found(http, "React")
    return made


@requirement(
    "EM-10.5.1",
    "Consolidation merges a cluster into its primary",
    "By default memories that differ in numbers, names or negations are kept apart; `guard: false` merges by "
    "similarity alone.",
)
def test_cluster_detection(http: httpx.Client, hooks: list[Json]) -> None:
    report = consolidated(http)
    assert (report["clusters_found"], report["memories_deleted"]) == (1, len(hooks) - 1)
    [left] = accepted(http.get("/api/memories"))["memories"]
    assert left["id"] == report["clusters"][0]["primary"]


@requirement("EM-10.5.2", "A dry run reports and changes nothing")
def test_dry_run(http: httpx.Client, hooks: list[Json]) -> None:
    before = listed(http)
    report = consolidated(http, dry_run=True)
    assert report["clusters_found"] == 1
    assert len(report["clusters"][0]["absorbed"]) == len(hooks) - 1
    assert listed(http) == before


@requirement("EM-10.5.3", "Absorbed memories leave a version record")
def test_version_trail(http: httpx.Client, hooks: list[Json]) -> None:
    [cluster] = consolidated(http)["clusters"]
    contents = {each["id"]: each["content"] for each in hooks}
    for absorbed in cluster["absorbed"]:
        assert http.get(f"/api/v1/entities/{absorbed}/history").json()[0]["content"] == contents[absorbed]
    trail = accepted(http.get("/api/memories", params={"ended": "merged"}))["memories"]
    belonging = {each["id"]: each["belongs_to"] for each in trail}
    assert belonging.items() >= dict.fromkeys(cluster["absorbed"], cluster["primary"]).items()


@requirement("EM-10.5.4", "The primary is associated with all entities")
def test_entity_reassignment(http: httpx.Client) -> None:
    for name, content in zip("XY", HOOKS, strict=False):
        stored(http, content, entity_names=[name], dedup="exact")
    found(http, "React")
    [cluster] = consolidated(http)["clusters"]
    assert {each["name"] for each in read(http, {"id": cluster["primary"]})["entities"]} == {"X", "Y"}


# REST


@requirement("EM-10.6.1", "POST /api/memories answers 201 with the memory")
def test_post_memories(http: httpx.Client) -> None:
    assert accepted(http.post("/api/memories", json={"content": "Something"}), 201)["content"] == "Something"


@requirement("EM-10.6.2", "GET /api/memories/search?q= answers 200 with an array")
def test_get_memories_search(http: httpx.Client) -> None:
    stored(http, "A test of the brakes")
    found(http, "test")
    answer = http.get("/api/memories/search?q=test")
    assert answer.status_code == 200
    assert [each["content"] for each in answer.json()] == ["A test of the brakes"]


@requirement("EM-10.6.3", "/api/events sends memory_created")
def test_sse_event_on_memory_creation(served: RunningServer, http: httpx.Client, store: str) -> None:
    accepted(http.put(f"/api/memory/{store}"), 201)
    with EventListener(served.port, f"/api/events?store={store}").greet() as listener:
        made = stored(http, "Something")
        event = next(each for each in listener.events() if each.kind == "memory_created")
    assert (event.data["id"], event.data["content"]) == (made["id"], "Something")


@requirement("EM-10.6.4", "GET /api/analytics/overview answers with counts and averages")
def test_get_analytics_overview(http: httpx.Client) -> None:
    stored(http, "Something", confidence=0.5, entity_names=["A"])
    stored(http, "Another thing", memory_type="decision")
    stats = accepted(http.get("/api/analytics/overview"))
    assert (stats["total_memories"], stats["total_entities"], stats["total_relations"]) == (2, 1, 0)
    assert stats["memories_by_type"] == {"observation": 1, "decision": 1}
    assert stats["average_confidence"] == pytest.approx(0.75, abs=0.001)
    assert stats["oldest_memory"] <= stats["newest_memory"]
    assert stats["low_confidence_count"] == 0


def test_the_history_of_an_entity_names_its_layer(http: httpx.Client) -> None:
    made = stored(http, "Alice lives in Berlin", layer=2)
    accepted(http.put(f"/api/memories/{made['id']}", json={"tags": ["home"]}))
    accepted(http.put(f"/api/memories/{made['id']}", json={"layer": 1}))
    states = http.get(f"/api/v1/entities/{made['id']}/history").json()
    assert [each["layer"] for each in states] == [2, 2, 1]


def test_the_guard_of_consolidation_is_a_parameter_and_a_setting(http: httpx.Client, store: str) -> None:
    for content in ("The server has 8 cores", "The server has 16 cores"):
        stored(http, content)
    found(http, "server")
    [pair] = consolidated(http, dry_run=True)["kept_apart"]
    assert pair["differs"] == "numbers"
    assert consolidated(http, dry_run=True, guard=False)["clusters_found"] == 1
    accepted(http.patch(f"/api/memory/{store}", json={"memory": {"consolidation_guard": False}}))
    assert consolidated(http, dry_run=True)["clusters_found"] == 1
    assert consolidated(http, dry_run=True, guard=True)["kept_apart_count"] == 1
    called = Stateless(http).call(
        "consolidate_memories", {"guard": True, "dry_run": True}, kgserve_tools="entity-memory"
    )
    answer = called["structuredContent"]
    assert (answer["clusters_found"], len(answer["kept_apart"])) == (0, 1)


# 2. Database schema


@requirement("EM-2.1.1", "A memory has the fields and defaults of the memories table")
@requirement("EM-2.1.2", "Memories have a numeric id and a UUID external_id", "A memory has one id, a UUID as text.")
def test_memory_defaults(http: httpx.Client) -> None:
    made = stored(http, "Something")
    expected: Json = {
        "content": "Something",
        "memory_type": "observation",
        "tags": [],
        "confidence": 1.0,
        "importance": 0.5,
        "source": None,
        "context": None,
        "metadata": {},
        "access_count": 0,
        "last_accessed_at": None,
    }
    assert {name: made[name] for name in expected} == expected
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made["id"])
    assert made["created_at"] == made["updated_at"]


@requirement("EM-2.1.3", "All fields of a memory are stored as given")
@requirement("EM-2.1.4", "metadata is arbitrary JSON")
def test_memory_fields_are_stored(http: httpx.Client) -> None:
    given: Json = {
        "memory_type": "procedure",
        "tags": ["deploy", "ops"],
        "confidence": 0.9,
        "importance": 0.7,
        "source": "chat-1",
        "context": "while deploying",
        "metadata": {"steps": ["build", "push"], "count": 2, "deep": {"flag": True, "none": None}},
    }
    made = stored(http, "Deploy sequence: build, test, push", **given)
    after = read(http, made, touch="false")
    assert {name: after[name] for name in given} == given


@requirement("EM-2.1.5", "The eight memory types are known; others may be added")
def test_memory_types_are_extensible(http: httpx.Client) -> None:
    kinds = ["observation", "decision", "learning", "error", "pattern", "preference", "fact", "procedure", "hypothesis"]
    for kind in kinds:
        assert stored(http, f"A sentence of the kind {kind}", memory_type=kind)["memory_type"] == kind


@requirement("EM-2.1.6", "Confidence and importance are numbers from 0 to 1")
@pytest.mark.parametrize("field", ["confidence", "importance"])
@pytest.mark.parametrize("value", [-0.01, 1.01, "high"])
def test_scores_out_of_range_are_rejected(http: httpx.Client, field: str, value: object) -> None:
    document = refusal(http.post("/api/memories", json={"content": "Something", field: value}), 400)
    assert document["errors"][0]["path"] == field


@requirement("EM-2.1.7", "content is required")
@pytest.mark.parametrize("body", [{}, {"content": None}, {"content": ""}])
def test_content_is_required(http: httpx.Client, body: Json) -> None:
    assert refusal(http.post("/api/memories", json=body), 400)["errors"][0]["path"] == "content"


@requirement("EM-2.2.1", "An entity has a name, a type, a description and metadata")
@requirement("EM-2.2.2", "Entities are unique by name and type")
def test_entities_are_unique_by_name_and_type(http: httpx.Client) -> None:
    given = {"name": "Mercury", "entity_type": "technology", "description": "A queue", "metadata": {"v": 2}}
    first = accepted(http.post("/api/entities", json=given), 201)
    assert {name: first[name] for name in given} == given
    again = accepted(http.post("/api/entities", json={"name": "Mercury", "entity_type": "technology"}))
    assert (again["id"], again["description"]) == (first["id"], "A queue")
    other = accepted(http.post("/api/entities", json={"name": "Mercury", "entity_type": "location"}), 201)
    assert other["id"] != first["id"]
    assert len(accepted(http.get("/api/entities", params={"name": "mercury"}))["entities"]) == 2


@requirement("EM-2.3.1", "A relation is directed and has strength 0.5 and confidence 1.0 unless given")
@requirement("EM-2.3.2", "A relation has a context and metadata")
@requirement("EM-2.3.3", "Strength and confidence are numbers from 0 to 1")
def test_relation_fields(http: httpx.Client) -> None:
    relation: Json = {"source": "A", "target": "B", "relation_type": "manages"}
    made = accepted(http.post("/api/relations", json={**relation, "context": "c", "metadata": {"m": 1}}), 201)
    assert (made["strength"], made["confidence"], made["context"], made["metadata"]) == (0.5, 1.0, "c", {"m": 1})
    assert (made["source_name"], made["target_name"]) == ("A", "B")
    for field in ("strength", "confidence"):
        assert refusal(http.post("/api/relations", json={**relation, field: 1.5}), 400)["errors"][0]["path"] == field


@requirement("EM-2.4.1", "Entities and memories are associated many to many, with relevance 1.0")
def test_association_is_many_to_many(http: httpx.Client) -> None:
    one = stored(http, "Alice and Bob share a desk", entity_names=["Alice", "Bob"])
    two = stored(http, "Alice has a dog", entity_names=["Alice"])
    assert [each["relevance"] for each in one["entities"]] == [1.0, 1.0]
    about = accepted(http.get("/api/entities/Alice/memories"))["memories"]
    assert {each["id"] for each in about} == {one["id"], two["id"]}


@requirement("EM-2.5.1", "Versions keep content, confidence, metadata and a version number")
def test_versions_keep_previous_states(http: httpx.Client) -> None:
    made = stored(http, "The limit is 10", confidence=0.8, metadata={"unit": "MB"})
    accepted(http.put(f"/api/memories/{made['id']}", json={"content": "The limit is 20", "metadata": {"unit": "GB"}}))
    first, second = http.get(f"/api/v1/entities/{made['id']}/history").json()
    assert (first["content"], first["attributes"], first["version"]) == ("The limit is 10", {"unit": "MB"}, 1)
    assert (second["content"], second["attributes"], second["version"]) == ("The limit is 20", {"unit": "GB"}, 2)


@requirement("EM-2.6.1", "Full-text search covers content")
@requirement("EM-2.6.2", "Full-text search covers tags")
@requirement("EM-2.6.3", "Full-text search covers the context")
@requirement("EM-2.6.4", "Full-text search follows updates and deletions")
def test_full_text_search_covers_the_indexed_fields(http: httpx.Client) -> None:
    made = stored(http, "The invoice is late", tags=["accounting"], context="quarterly review")
    for word in ("invoice", "accounting", "quarterly"):
        assert found(http, word, mode="keyword") == ["The invoice is late"], word
    accepted(http.put(f"/api/memories/{made['id']}", json={"content": "The receipt is late"}))
    assert found(http, "invoice", mode="keyword") == []
    assert found(http, "receipt", mode="keyword") == ["The receipt is late"]
    accepted(http.delete(f"/api/memories/{made['id']}"))
    assert found(http, "receipt", mode="keyword") == []


# 3. Embedding


@requirement("EM-3.2.1", "The local provider with all-MiniLM-L6-v2 and 384 dimensions is the default")
@requirement(
    "EM-3.2.2",
    "OpenAI's text-embedding-3-small is supported with an API key",
    "Any service with OpenAI's embeddings API, by `KGSERVE_EMBEDDING_URL`.",
)
def test_embedding_defaults(http: httpx.Client, api: str) -> None:
    stored(http, "Something")
    found(http, "something")
    [vector] = [each for each in accepted(http.get(f"{api}/stats"))["indexes"] if each["name"] == "vector"]
    assert "all-MiniLM-L6-v2" in vector["model"]
    settings = Settings()
    assert (settings.embedding_provider, settings.embedding_model) == (
        "local",
        "sentence-transformers/all-MiniLM-L6-v2",
    )
    assert settings.embedding_url is None or settings.embedding_url == ""


@requirement("EM-3.4.1", "Similarity is the cosine, 1 for equal texts")
def test_semantic_similarity_is_the_cosine(http: httpx.Client) -> None:
    made = stored(http, "The harbour is closed in winter")
    answer = http.get(
        "/api/memories/search", params={"q": made["content"], "mode": "semantic", "at_least": made["sequence"]}
    )
    [hit] = answer.json()
    assert hit["semantic_score"] == pytest.approx(1.0, abs=1e-3)


# 4. Confidence


@requirement("EM-4.1.1", "Effective confidence is confidence × 0.5^(days since last access / half-life)")
@requirement("EM-4.4.1", "Decay is computed at read time and rewrites nothing")
@requirement("EM-11.4.1", "Decay starts at last_accessed_at, or created_at for a memory never accessed")
def test_decay_formula(http: httpx.Client) -> None:
    made = stored(http, "Something", days=45, confidence=0.8)
    after = read(http, made, touch="false")
    assert after["effective_confidence"] == pytest.approx(0.8 * math.pow(0.5, 45 / 30), abs=1e-4)
    assert (after["confidence"], after["version"], after["updated_at"]) == (0.8, 1, made["updated_at"])
    read(http, made)
    fresh = read(http, made, touch="false")
    assert fresh["effective_confidence"] == pytest.approx(fresh["confidence"], abs=1e-4)


@requirement("EM-4.1.2", "The half-life is 30 days and configurable")
def test_half_life_is_configurable(http: httpx.Client, api: str) -> None:
    accepted(http.put(api, json={"memory": {"half_life_days": 10}}), 201)
    made = stored(http, "Something", days=20)
    assert read(http, made, touch="false")["effective_confidence"] == pytest.approx(0.25, abs=0.002)


@requirement("EM-4.3.1", "An access restores the stored confidence, adds 0.1 up to 1.0 and restarts the decay")
@requirement("EM-4.3.2", "Searching counts as an access")
@requirement("EM-4.3.3", "An access increments access_count and sets last_accessed_at")
def test_access_restores_and_reinforces(http: httpx.Client) -> None:
    made = stored(http, "The ferry leaves at nine", days=60, confidence=0.7)
    http.get("/api/memories/search", params={"q": "ferry", "at_least": made["sequence"]})
    after = read(http, made, touch="false")
    assert after["confidence"] == pytest.approx(0.8, abs=1e-6)
    assert after["access_count"] == 1
    assert datetime.now(UTC) - datetime.fromisoformat(after["last_accessed_at"]) < timedelta(minutes=5)


@requirement("EM-4.5.1", "Pruning runs daily and removes memories below 0.05")
def test_prune_defaults(http: httpx.Client, api: str) -> None:
    stored(http, "Something")
    memory = accepted(http.get(api))["memory"]
    assert (memory["prune_threshold"], memory["prune_hours"]) == (0.05, 24)
    gone = stored(http, "Something else", days=200)
    assert accepted(http.post("/api/memories/prune", json={"dry_run": True}))["ids"] == [gone["id"]]


# 5. Search


@requirement("EM-5.1.1", "Search modes are keyword, semantic, hybrid (the default) and graph")
def test_search_modes(http: httpx.Client) -> None:
    made = stored(http, "The tower has a clock", entity_names=["Tower"])
    for mode in ("keyword", "semantic", "hybrid", "graph"):
        answer = http.get(
            "/api/memories/search", params={"q": "Tower clock", "mode": mode, "at_least": made["sequence"]}
        )
        assert [each["id"] for each in answer.json()] == [made["id"]], mode
    refusal(http.get("/api/memories/search", params={"q": "x", "mode": "fuzzy"}), 400)


@requirement("EM-5.3.1", "By default semantic search leaves out what is below a similarity of 0.5")
@requirement("EM-5.3.2", "Search answers with 20 memories by default")
@requirement("EM-5.6.7", "limit is at most 100")
def test_search_defaults(http: httpx.Client, api: str) -> None:
    batch = [{"content": f"Ship number {number} is in the harbour"} for number in range(25)]
    accepted(http.post("/api/memories/batch", json={"memories": batch}))
    stored(http, "Bread needs flour")
    assert len(found(http, "ships in the harbour")) == 20
    assert "Bread needs flour" not in found(http, "ships in the harbour", mode="semantic", limit=100)
    memory = accepted(http.get(api))["memory"]
    assert (memory["min_similarity"], memory["alpha"], memory["default_limit"]) == (0.5, 0.4, 20)
    refusal(http.get("/api/memories/search", params={"q": "x", "limit": 101}), 400)


def hits(http: httpx.Client, query: str, **options: Any) -> list[Json]:
    at_least = accepted(http.get(f"/api/memory/{http.headers['Kgserve-Store']}"))["sequence"]
    asked = {"query": query, "at_least": at_least, "touch": False, **options}
    return accepted(http.post("/api/memories/search", json=asked))["hits"]


@requirement("EM-5.4.1", "The hybrid score is α × keyword + (1 - α) × semantic, with α = 0.4")
@requirement("EM-11.1.1", "A memory found by one method alone is scaled by that method's weight")
@requirement("EM-11.1.2", "The score is multiplied by the effective confidence at the end")
@requirement(
    "EM-11.1.3",
    "Keyword scores are normalized to [0, 1] by min-max within the result set",
    "BM25 scores are divided by the best one, or by 4 if that is more: the weakest match keeps a score, and a rare "
    "word in a small store does not count fully.",
)
def test_hybrid_score(http: httpx.Client) -> None:
    for days, content in enumerate(VARIED):
        stored(http, content, days=days * 3)
    answer = hits(http, "PostgreSQL orders database", limit=10)
    best = max(4.0, *(hit.get("keyword_score", 0.0) for hit in answer))
    for hit in answer:
        words, meaning = hit.get("keyword_score") or 0.0, max(hit.get("semantic_score") or 0.0, 0.0)
        combined = 0.4 * words / best + 0.6 * meaning
        assert hit["score"] == pytest.approx(combined * hit["effective_confidence"], rel=1e-3), hit


@requirement("EM-5.5.1", "Graph search collects memories of directly connected entities")
@requirement(
    "EM-5.5.2", "Graph search expands to N hops on request", "It reaches two hops unless `depth` says otherwise."
)
@requirement("EM-5.5.3", "Graph search ranks by relation strength × confidence")
def test_graph_search(http: httpx.Client) -> None:
    for target, strength in (("Weak", 0.2), ("Strong", 0.9)):
        relation = {"source": "Hub", "target": target, "relation_type": "uses", "strength": strength}
        accepted(http.post("/api/relations", json=relation), 201)
    related(http, ("Strong", "Far"))
    for name in ("Weak", "Strong", "Far"):
        stored(http, f"A sentence about {name}", entity_names=[name])
    near = found(http, "Hub", mode="graph", depth=1)
    assert near == ["A sentence about Strong", "A sentence about Weak"]
    assert "A sentence about Far" in found(http, "Hub", mode="graph")


@requirement("EM-5.6.1", "Search filters by memory_types")
@requirement("EM-5.6.2", "Search filters by tags, all of them")
@requirement("EM-5.6.3", "Search filters by min_confidence")
@requirement("EM-5.6.4", "Search filters by after_date and before_date")
@requirement("EM-5.6.5", "Search filters by entity_id and entity_name")
@requirement("EM-5.6.6", "Search filters by source")
def test_search_filters_with_the_specifications_names(http: httpx.Client) -> None:
    facts: Json = {"memory_type": "decision", "tags": ["a", "b"], "entity_names": ["Alice"], "source": "chat"}
    stored(http, "Tea is served at four", **facts)
    stored(http, "Tea is served at five", days=20, tags=["a"])
    both = {"Tea is served at four", "Tea is served at five"}
    assert set(found(http, "tea")) == both
    day = (datetime.now(UTC) - timedelta(days=10)).date().isoformat()
    queries: list[Json] = [
        {"memory_types": "decision"},
        {"tags": ["a", "b"]},
        {"min_confidence": 0.9},
        {"after_date": day},
        {"entity_id": "Alice"},
        {"entity_name": "alice"},
        {"source": "chat"},
    ]
    for query in queries:
        assert found(http, "tea", **query) == ["Tea is served at four"], query
    assert found(http, "tea", before_date=day) == ["Tea is served at five"]


# 6. Consolidation


@requirement("EM-6.1.1", "A memory whose content has the same hash is not created")
@requirement(
    "EM-6.1.2",
    "Merging keeps the older memory, the higher confidence, both tag sets and shallowly merged metadata",
    "The confidence also rises by 0.1, because a restatement counts as an access (section 10.1 asks for it).",
)
def test_merging_a_duplicate(http: httpx.Client) -> None:
    old: Json = {"tags": ["a"], "metadata": {"x": 1, "y": {"deep": 1}}, "confidence": 0.5}
    first = stored(http, "The door is green", **old)
    second = stored(http, "The door is green", tags=["b"], metadata={"y": 2, "z": 3}, confidence=0.7)
    assert (second["id"], second["outcome"]) == (first["id"], "duplicate")
    assert set(second["tags"]) == {"a", "b"}
    assert second["metadata"] == {"x": 1, "y": 2, "z": 3}
    assert second["confidence"] >= 0.7


@requirement("EM-6.1.3", "The same text is one memory, whichever interface stores it and in whatever order")
def test_the_same_text_by_store_and_by_retain(http: httpx.Client, agent: Agent) -> None:
    stored(http, "The gate is red")
    accepted(http.post("/api/v1/retain", json={"content": "The gate is red"}))
    agent("retain", content="The gate is blue")
    stored(http, "The gate is blue")
    assert len(accepted(http.get("/api/memories"))["memories"]) == 2


@requirement("EM-6.2.1", "The memory with the highest confidence of a cluster is the primary")
def test_consolidation_keeps_the_memory_with_the_highest_confidence(http: httpx.Client) -> None:
    made = [stored(http, each, dedup="exact", confidence=0.5 + n / 10) for n, each in enumerate(HOOKS[:3])]
    found(http, "React")
    [cluster] = consolidated(http)["clusters"]
    assert cluster["primary"] == made[2]["id"]


@requirement("EM-6.3.1", "Consolidation runs on request, after 50 new memories and daily")
def test_consolidation_defaults(http: httpx.Client, api: str) -> None:
    stored(http, "Something")
    memory = accepted(http.get(api))["memory"]
    assert (memory["consolidation_interval"], memory["consolidation_hours"]) == (50, 24)
    assert memory["consolidation_threshold"] == 0.85


# 7. MCP

TOOLS: dict[str, tuple[str, dict[str, object]]] = {
    "store_memory": (
        "content",
        {"memory_type": "observation", "tags": [], "confidence": 1.0, "metadata": {}, "entity_names": []},
    ),
    "recall_memories": ("query", {"search_mode": "hybrid", "min_confidence": 0.1, "limit": 20}),
    "create_entities": ("entities", {}),
    "create_relations": ("relations", {}),
    "delete_memories": ("", {}),
    "delete_entities": ("entity_names", {"cascade_memories": False}),
    "delete_relations": ("relations", {}),
    "get_entity_graph": ("entity_name", {"depth": 1, "min_strength": 0.0, "include_memories": True}),
    "consolidate_memories": ("", {"similarity_threshold": 0.85, "dry_run": False}),
    "get_memory_stats": ("", {}),
}


@requirement("EM-7.2.0", "MCP offers the ten tools with their parameters and defaults")
def test_mcp_tools_have_the_specified_parameters(agent: Agent) -> None:
    tools = agent.tools("entity-memory")
    assert tools.keys() == TOOLS.keys()
    for name, (required, defaults) in TOOLS.items():
        schema = tools[name]["inputSchema"]
        assert schema.get("required", []) == [required] * bool(required), name
        properties = schema.get("properties", {})
        assert {key: properties[key].get("default") for key in defaults} == defaults, name
    optional = {"memory_ids", "before_date", "min_confidence_below", "memory_types"}
    assert tools["delete_memories"]["inputSchema"]["properties"].keys() == optional
    assert {"source", "context"} <= tools["store_memory"]["inputSchema"]["properties"].keys()
    assert {"memory_types", "tags", "entity_name"} <= tools["recall_memories"]["inputSchema"]["properties"].keys()


@requirement("EM-7.2.1", "store_memory creates, deduplicates and associates, and returns the memory with its id")
@requirement("EM-7.2.2", "recall_memories returns memories with scores, sorted by relevance")
def test_mcp_store_and_recall(agent: Agent) -> None:
    made = agent("store_memory", content="Chose React over Vue", memory_type="decision", entity_names=["Frontend"])
    assert made["outcome"] == "created"
    assert agent("store_memory", content="Chose React over Vue")["id"] == made["id"]
    agent("store_memory", content="The frontend is built with Vite", entity_names=["Frontend"])
    memories = agent("recall_memories", query="React or Vue", entity_name="Frontend")["memories"]
    assert memories[0]["id"] == made["id"]
    scores = [each["score"] for each in memories]
    assert scores == sorted(scores, reverse=True)
    assert agent("recall_memories", query="React", memory_types=["fact"])["memories"] == []


@requirement("EM-7.2.3", "create_entities creates and deduplicates by name and type")
@requirement("EM-7.2.4", "create_relations looks up entities by name and creates missing ones with type unknown")
@requirement("EM-7.2.7", "delete_relations deletes by source, target and type")
@requirement("EM-7.2.8", "get_entity_graph returns nodes, edges and memories around an entity")
def test_mcp_entities_and_relations(agent: Agent) -> None:
    alice = {"name": "Alice", "entity_type": "person", "description": "Engineer"}
    created = agent("create_entities", entities=[alice, {"name": "Acme", "entity_type": "organization"}])["entities"]
    assert [each["outcome"] for each in created] == ["created", "created"]
    assert agent("create_entities", entities=[alice])["entities"][0]["outcome"] != "created"
    works = {"source": "Alice", "target": "Acme", "relation_type": "works_at", "strength": 0.9}
    knows = {"source": "Alice", "target": "Zoe", "relation_type": "knows", "strength": 0.1}
    agent("create_relations", relations=[works, knows])
    agent("store_memory", content="Alice likes tea", entity_names=["Alice"])
    graph = agent("get_entity_graph", entity_name="Alice")
    assert {each["name"]: each["entity_type"] for each in graph["nodes"]} == {
        "Alice": "person",
        "Acme": "organization",
        "Zoe": "unknown",
    }
    strong = agent("get_entity_graph", entity_name="Alice", min_strength=0.5, include_memories=False)
    assert {each["name"] for each in strong["nodes"]} == {"Alice", "Acme"}
    assert not any(each.get("memories") for each in strong["nodes"])
    agent("delete_relations", relations=[{name: works[name] for name in ("source", "target", "relation_type")}])
    assert {each["name"] for each in agent("get_entity_graph", entity_name="Alice")["nodes"]} == {"Alice", "Zoe"}


@requirement("EM-7.2.5", "delete_memories takes ids or filters, at least one")
@requirement("EM-7.2.6", "delete_entities keeps memories unless cascade_memories is set")
@requirement("EM-7.2.10", "get_memory_stats returns the eight figures")
def test_mcp_deletions_and_statistics(agent: Agent) -> None:
    one = agent("store_memory", content="Alice has a boat", entity_names=["Alice"], memory_type="fact")
    agent("store_memory", content="Bob has a car", entity_names=["Bob"], confidence=0.2)
    agent("store_memory", content="Carla has a bike", memory_type="pattern")
    stats = agent("get_memory_stats")
    assert (stats["total_memories"], stats["total_entities"], stats["total_relations"]) == (3, 2, 0)
    assert stats["memories_by_type"] == {"fact": 1, "observation": 1, "pattern": 1}
    names = {"average_confidence", "oldest_memory", "newest_memory", "low_confidence_count"}
    assert names <= stats.keys()
    assert "memory_ids" in agent.refusal("delete_memories")
    agent("delete_entities", entity_names=["Alice"])
    assert agent("get_memory_stats")["total_memories"] == 3
    agent("delete_entities", entity_names=["Bob"], cascade_memories=True)
    assert agent("get_memory_stats")["total_memories"] == 2
    agent("delete_memories", memory_types=["pattern"])
    agent("delete_memories", memory_ids=[one["id"]])
    assert agent("get_memory_stats")["total_memories"] == 0


@requirement("EM-7.2.9", "consolidate_memories reports clusters, merged and deleted memories; dry_run changes nothing")
def test_mcp_consolidation(http: httpx.Client, agent: Agent, hooks: list[Json]) -> None:
    planned = agent("consolidate_memories", dry_run=True)
    assert planned["clusters_found"] == 1
    assert len(listed(http)) == len(hooks)
    done = agent("consolidate_memories", similarity_threshold=0.85)
    assert (done["clusters_found"], done["memories_deleted"]) == (1, len(hooks) - 1)


# 8. REST

ENDPOINTS = (
    "POST /api/memories",
    "GET /api/memories",
    "GET /api/memories/{id}",
    "PUT /api/memories/{id}",
    "DELETE /api/memories/{id}",
    "GET /api/memories/search",
    "POST /api/memories/consolidate",
    "POST /api/entities",
    "GET /api/entities",
    "GET /api/entities/{id}",
    "PUT /api/entities/{id}",
    "DELETE /api/entities/{id}",
    "GET /api/entities/{id}/graph",
    "GET /api/entities/{id}/memories",
    "POST /api/relations",
    "GET /api/relations",
    "DELETE /api/relations/{id}",
    "GET /api/analytics/overview",
    "GET /api/analytics/growth",
    "GET /api/analytics/types",
    "GET /api/analytics/tags",
    "GET /api/analytics/confidence",
    "GET /api/events",
)


@requirement("EM-8.0.1", "The 23 endpoints exist")
def test_endpoints_exist(http: httpx.Client) -> None:
    paths = accepted(http.get("/openapi.json"))["paths"]
    for endpoint in ENDPOINTS:
        method, path = endpoint.split()
        assert method.lower() in paths[path], endpoint


@requirement("EM-8.1.1", "Memories are listed with filters")
@requirement("EM-8.1.2", "PUT updates a memory and answers with it")
def test_list_and_update_memories(http: httpx.Client) -> None:
    made = stored(http, "The roof leaks", memory_type="error", tags=["house"])
    stored(http, "The roof is new", memory_type="fact")
    for query in ({"types": "error"}, {"tags": "house"}):
        assert [each["id"] for each in accepted(http.get("/api/memories", params=query))["memories"]] == [made["id"]]
    change: Json = {"tags": ["house", "urgent"], "importance": 0.9, "metadata": {"room": 3}}
    changed = accepted(http.put(f"/api/memories/{made['id']}", json=change))
    assert {name: changed[name] for name in change} == change
    assert changed["content"] == "The roof leaks"
    refusal(http.put("/api/memories/none", json=change), 404)


@requirement("EM-8.2.1", "Entities are listed, updated and shown with their relations")
def test_entities_over_rest(http: httpx.Client) -> None:
    related(http, "AB")
    assert {each["name"] for each in accepted(http.get("/api/entities"))["entities"]} == {"A", "B"}
    changed = accepted(http.put("/api/entities/A", json={"entity_type": "project", "description": "First"}))
    assert (changed["entity_type"], changed["description"]) == ("project", "First")
    assert len(entity(http, "A")["relations"]) == 1


@requirement("EM-8.3.1", "Relations are listed and deleted by id")
def test_relations_over_rest(http: httpx.Client) -> None:
    related(http, "AB", "AC")
    relations = accepted(http.get("/api/relations"))["relations"]
    assert [(each["source"], each["target"]) for each in relations] == [("A", "B"), ("A", "C")]
    accepted(http.delete(f"/api/relations/{relations[0]['id']}"))
    assert len(accepted(http.get("/api/relations"))["relations"]) == 1


@requirement("EM-8.4.1", "Analytics show growth by day, week and month")
@requirement("EM-8.4.2", "Analytics show the distribution by type, the frequency of tags and a confidence histogram")
def test_analytics(http: httpx.Client) -> None:
    stored(http, "One", tags=["a", "b"], memory_type="fact")
    stored(http, "Two", tags=["a"], memory_type="fact", confidence=0.35)
    for unit in ("day", "week", "month"):
        periods = accepted(http.get("/api/analytics/growth", params={"by": unit}))["periods"]
        assert [each["created"] for each in periods] == [2]
    assert accepted(http.get("/api/analytics/types"))["types"] == [{"memory_type": "fact", "count": 2, "share": 1.0}]
    assert accepted(http.get("/api/analytics/tags"))["tags"] == [{"tag": "a", "count": 2}, {"tag": "b", "count": 1}]
    buckets = accepted(http.get("/api/analytics/confidence"))["buckets"]
    assert [each["count"] for each in buckets] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 1]


@requirement("EM-8.5.1", "/api/events sends memory_created, memory_updated, memory_deleted and entity_created")
@requirement("EM-8.5.2", "/api/events sends consolidation_complete with counts")
def test_events(served: RunningServer, http: httpx.Client, store: str, hooks: list[Json]) -> None:
    path = f"/api/events?store={store}&since=0"
    with EventListener(served.port, path).greet() as listener:
        made = stored(http, "Alice plays chess", entity_names=["Alice"])
        accepted(http.put(f"/api/memories/{made['id']}", json={"content": "Alice plays go"}))
        accepted(http.delete(f"/api/memories/{made['id']}"))
        report = consolidated(http)
        seen: dict[str, Json] = {}
        for event in listener.events():
            seen[event.kind] = (
                seen.get(event.kind, {}) | event.data if event.data.get("id") == made["id"] else event.data
            )
            if event.kind == "consolidation_complete":
                break
    assert {"memory_created", "memory_updated", "memory_deleted", "entity_created"} <= seen.keys()
    assert (seen["entity_created"]["name"], seen["entity_created"]["type"]) == ("Alice", "unknown")
    complete = seen["consolidation_complete"]
    assert (complete["merged"], complete["deleted"]) == (report["memories_merged"], report["memories_deleted"])


# 9. Configuration

VARIABLES = {
    "CONFIDENCE_HALF_LIFE_DAYS": ("memory_half_life_days", 30),
    "CONFIDENCE_PRUNE_THRESHOLD": ("memory_prune_threshold", 0.05),
    "CONSOLIDATION_THRESHOLD": ("memory_consolidation_threshold", 0.85),
    "CONSOLIDATION_INTERVAL": ("memory_consolidation_interval", 50),
    "SEARCH_DEFAULT_LIMIT": ("memory_default_limit", 20),
    "SEARCH_MIN_SIMILARITY": ("memory_min_similarity", 0.5),
    "HYBRID_KEYWORD_WEIGHT": ("memory_alpha", 0.4),
}


@requirement(
    "EM-9.1.1",
    "Settings are read from environment variables of the specification's names",
    "The variables begin with `KGSERVE_`; [Settings](../../docs/settings.md) has a table of both names.",
)
@requirement(
    "EM-9.1.2",
    "DATABASE_URL and DATABASE_BACKEND choose PostgreSQL or SQLite",
    "Stores are folders below `--data-dir`; there is no other backend.",
)
@requirement(
    "EM-9.1.3",
    "The server listens on 0.0.0.0:3333 by default",
    "It listens on 127.0.0.1:8080; other addresses need keys.",
)
def test_setting_defaults() -> None:
    defaults = {field.name: field.default for field in msgspec.structs.fields(Settings)}
    assert {name: defaults[setting] for name, (setting, _) in VARIABLES.items()} == {
        name: value for name, (_, value) in VARIABLES.items()
    }
    assert (defaults["host"], defaults["port"]) == ("127.0.0.1", 8080)


# 11. Algorithms


@requirement("EM-11.2.1", "The subgraph follows outgoing and incoming relations of at least the minimum strength")
def test_subgraph_follows_both_directions(http: httpx.Client) -> None:
    for source, target, strength in (("A", "B", 0.9), ("C", "A", 0.9), ("A", "D", 0.1)):
        relation = {"source": source, "target": target, "relation_type": "uses", "strength": strength}
        accepted(http.post("/api/relations", json=relation), 201)
    graph = accepted(http.get("/api/entities/A/graph", params={"min_strength": 0.5}))
    assert {each["name"] for each in graph["nodes"]} == {"A", "B", "C"}
