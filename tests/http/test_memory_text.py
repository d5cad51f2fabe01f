"""The behaviour that an entity memory layer is described by, test for test and in its words, over HTTP.

Time passes by `created_at`, which callers may set. Two are as the description allows: what is similar and was not said
in the same words is merged where the call asks for similarity, and what has faded is gone where the store's settings
say that it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from bench.listener import Listener
from tests.embedding.prepared import model_settings
from tests.http.serving import Served, accepted, refusal, serving
from tests.mcp.talking import Stateless

Json = dict[str, Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With the prepared model: what is meant is judged by it."""
    data = tmp_path_factory.mktemp("text") / "data"
    with serving(data, embedding_provider="local", models_dir=model_settings().models_dir) as running:
        yield running


@pytest.fixture
def http(served: Served, store: str) -> Iterator[httpx.Client]:
    """Each test has a store of its own."""
    with httpx.Client(base_url=served.url, headers={"Kgserve-Store": store}, timeout=60) as client:
        yield client


def stored(http: httpx.Client, content: str, days: float = 0, **more: Any) -> Json:
    if days:
        more["created_at"] = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    answer = http.post("/api/memories", json={"content": content, **more})
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()


def read(http: httpx.Client, memory: Json, **query: Any) -> Json:
    return accepted(http.get(f"/api/memories/{memory['id']}", params=query))


def found(http: httpx.Client, query: str, at_least: int | None = None, **more: Any) -> list[str]:
    """The contents that are found, best first, once the indexes have seen everything."""
    if at_least is None:
        at_least = accepted(http.get(f"/api/memory/{http.headers['Kgserve-Store']}"))["sequence"]
    answer = http.get("/api/memories/search", params={"q": query, "at_least": at_least, "touch": "false", **more})
    assert answer.status_code == 200, answer.text
    return [each["content"] for each in answer.json()]


def entity(http: httpx.Client, name: str) -> Json:
    return accepted(http.get(f"/api/entities/{name}"))


def related(http: httpx.Client, *pairs: str) -> None:
    for pair in pairs:
        relation = {"source": pair[0], "target": pair[1], "relation_type": "uses"}
        accepted(http.post("/api/relations", json=relation), 201)


# Memories


def test_store_basic_memory(http: httpx.Client, store: str) -> None:
    answer = http.post("/api/memories", json={"content": "User prefers TypeScript", "memory_type": "preference"})
    made = accepted(answer, 201)
    assert answer.headers["location"] == f"/api/memories/{made['id']}?store={store}"
    assert (made["confidence"], made["memory_type"]) == (1.0, "preference")
    assert found(http, "favourite programming language", mode="semantic", min_similarity=0.1) == [made["content"]]


def test_store_memory_with_entity_association(http: httpx.Client) -> None:
    made = stored(http, "Alice manages the frontend team", entity_names=["Alice", "Frontend Team"])
    assert {each["name"] for each in made["entities"]} == {"Alice", "Frontend Team"}
    page = accepted(http.get("/api/entities/Frontend%20Team/memories"))
    assert [each["id"] for each in page["memories"]] == [made["id"]]


def test_exact_duplicate_detection(http: httpx.Client) -> None:
    first, second = (stored(http, "User prefers dark mode") for _ in range(2))
    assert (second["id"], second["outcome"]) == (first["id"], "duplicate")
    assert len(accepted(http.get("/api/memories"))["memories"]) == 1


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


def test_update_memory(http: httpx.Client) -> None:
    made = stored(http, "The office is in Bern")
    changed = accepted(http.put(f"/api/memories/{made['id']}", json={"content": "Our cat sleeps all day"}))
    assert (changed["content"], changed["version"]) == ("Our cat sleeps all day", 2)
    states = http.get(f"/api/v1/entities/{made['id']}/history").json()
    assert [each["content"] for each in states] == [made["content"], changed["content"]]
    assert found(http, "a pet that is tired", mode="semantic", min_similarity=0.3) == [changed["content"]]


def test_delete_memory_cascades(http: httpx.Client) -> None:
    made = stored(http, "Alice likes tea", entity_names=["Alice"])
    assert accepted(http.delete(f"/api/memories/{made['id']}"))["existed"]
    refusal(http.get(f"/api/memories/{made['id']}"), 404)
    assert entity(http, "Alice")["memories"] == 0


# Search


def test_keyword_search(http: httpx.Client) -> None:
    stored(http, "A course on machine learning")
    stored(http, "Notes on web development")
    assert found(http, "machine learning", mode="keyword") == ["A course on machine learning"]


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


def test_hybrid_search_combines_results(http: httpx.Client) -> None:
    for each in VARIED:
        stored(http, each)
    assert set(found(http, "PostgreSQL database", limit=2)) == set(VARIED[:2])
    assert found(http, "PostgreSQL", mode="keyword") == [VARIED[0]]


def test_filter_by_memory_type(http: httpx.Client) -> None:
    for kind in ("observation", "decision", "pattern"):
        stored(http, f"The {kind} about the database", memory_type=kind)
    assert found(http, "database", types="decision") == ["The decision about the database"]


def test_filter_by_tags(http: httpx.Client) -> None:
    for tags in (["typescript"], ["frontend"], ["typescript", "frontend", "x"]):
        stored(http, f"Code with {' and '.join(tags)}", tags=tags)
    assert found(http, "code", tags=["typescript", "frontend"]) == ["Code with typescript and frontend and x"]


def test_filter_by_confidence(http: httpx.Client) -> None:
    stored(http, "An old sentence about tea", days=40)
    stored(http, "A new sentence about tea", days=20)
    assert found(http, "tea", min_confidence=0.5) == ["A new sentence about tea"]


def test_pagination(http: httpx.Client) -> None:
    batch = [{"content": f"Fact {number} about the harbour", "confidence": 0.9} for number in range(50)]
    accepted(http.post("/api/memories/batch", json={"memories": batch}))
    everything = found(http, "harbour", limit=50)
    assert len(everything) == 50
    assert found(http, "harbour", limit=10, offset=20) == everything[20:30]


# Confidence


def test_initial_confidence(http: httpx.Client) -> None:
    assert stored(http, "Something")["confidence"] == 1.0


@pytest.mark.parametrize(("days", "left"), [(30, 0.5), (60, 0.25)])
def test_confidence_decay_over_time(http: httpx.Client, days: int, left: float) -> None:
    made = stored(http, "Something", days=days)
    assert read(http, made, touch="false")["effective_confidence"] == pytest.approx(left, abs=0.002)


def test_access_reinforcement(http: httpx.Client) -> None:
    made = stored(http, "Something", days=15, confidence=0.6)
    read(http, made)
    after = read(http, made, touch="false")
    assert after["confidence"] == pytest.approx(0.7)
    assert after["effective_confidence"] == pytest.approx(0.7, abs=0.001)
    assert after["access_count"] == 1
    assert after["last_accessed_at"] > made["created_at"]


def test_reinforcement_that_adds_to_the_remainder(http: httpx.Client, store: str) -> None:
    settings = {"memory": {"reinforcement": "add", "reinforcement_amount": 0.2}}
    accepted(http.put(f"/api/memory/{store}", json=settings), 201)
    made = stored(http, "Something", days=15)
    read(http, made)
    assert read(http, made, touch="false")["confidence"] == pytest.approx(0.907, abs=0.002)


def test_an_access_counts_for_what_is_met_again(http: httpx.Client) -> None:
    made = stored(http, "Something", days=60, confidence=0.8)
    again = stored(http, "something.", confidence=0.3)
    assert (again["id"], again["outcome"]) == (made["id"], "duplicate")
    assert again["confidence"] == pytest.approx(0.9)


def test_confidence_cap(http: httpx.Client) -> None:
    made = stored(http, "Something", confidence=0.95)
    assert read(http, made)["confidence"] == 1.0


def test_prune_low_confidence_memories(http: httpx.Client, store: str) -> None:
    accepted(http.put(f"/api/memory/{store}", json={"memory": {"prune": "delete"}}), 201)
    kept, gone = (stored(http, f"{days} days old", days=days) for days in (129, 131))
    assert accepted(http.post("/api/memories/prune"))["ids"] == [gone["id"]]
    refusal(http.get(f"/api/memories/{gone['id']}"), 404)
    assert [each["id"] for each in accepted(http.get("/api/memories"))["memories"]] == [kept["id"]]


# Entities and their graph


def test_create_entity(http: httpx.Client) -> None:
    alice = {"name": "Alice", "entity_type": "person", "description": "Software engineer"}
    made = accepted(http.post("/api/entities", json=alice), 201)
    assert {name: made[name] for name in alice} == alice
    asked = {"query": "who programs computers?", "mode": "semantic", "at_least": made["sequence"]}
    hits = accepted(http.post(f"/api/memory/{http.headers['Kgserve-Store']}/search", json=asked))["hits"]
    assert [each["node"]["id"] for each in hits] == [made["id"]]


def test_create_relation(http: httpx.Client) -> None:
    for name in ("Alice", "Bob"):
        accepted(http.post("/api/entities", json={"name": name, "entity_type": "person"}), 201)
    relation = {"source": "Alice", "target": "bob", "relation_type": "collaborates_with", "strength": 0.8}
    assert accepted(http.post("/api/relations", json=relation), 201)["strength"] == 0.8
    [there] = entity(http, "Alice")["relations"]
    assert (there["source_name"], there["target_name"]) == ("Alice", "Bob")


def test_duplicate_relation_prevention(http: httpx.Client) -> None:
    related(http, "AB")
    again = {"source": "A", "target": "B", "relation_type": "uses", "confidence": 0.7}
    stated = accepted(http.post("/api/relations", json=again))
    assert (stated["strength"], stated["confidence"]) == (0.5, 0.7)
    assert len(entity(http, "A")["relations"]) == 1


@pytest.mark.parametrize(("depth", "names"), [(1, "ABC"), (2, "ABCD")])
def test_get_entity_graph(http: httpx.Client, depth: int, names: str) -> None:
    related(http, "AB", "AC", "BD")
    graph = accepted(http.get("/api/entities/A/graph", params={"depth": depth}))
    assert sorted(each["name"] for each in graph["nodes"]) == [*names]
    assert len(graph["edges"]) == len(names) - 1


def test_entity_deletion_cascade(http: httpx.Client) -> None:
    related(http, "AB")
    made = stored(http, "A uses B every day", entity_names=["A"])
    done = accepted(http.delete("/api/entities/A"))
    assert (done["count"], done["relations_deleted"], done["memories_deleted"]) == (1, 1, 0)
    refusal(http.get("/api/entities/A"), 404)
    assert entity(http, "B")["relations"] == []
    assert read(http, made)["entities"] == []


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
    """What is remembered, but for what passes while it is asked."""
    page = accepted(http.get("/api/memories"))["memories"]
    return [{name: value for name, value in each.items() if name != "effective_confidence"} for each in page]


@pytest.fixture
def hooks(http: httpx.Client) -> list[Json]:
    made = [stored(http, each, dedup="exact") for each in HOOKS]
    found(http, "React")
    return made


def test_cluster_detection(http: httpx.Client, hooks: list[Json]) -> None:
    report = consolidated(http)
    assert (report["clusters_found"], report["memories_deleted"]) == (1, len(hooks) - 1)
    [left] = accepted(http.get("/api/memories"))["memories"]
    assert left["id"] == report["clusters"][0]["primary"]


def test_dry_run(http: httpx.Client, hooks: list[Json]) -> None:
    before = listed(http)
    report = consolidated(http, dry_run=True)
    assert report["clusters_found"] == 1
    assert len(report["clusters"][0]["absorbed"]) == len(hooks) - 1
    assert listed(http) == before


def test_version_trail(http: httpx.Client, hooks: list[Json]) -> None:
    [cluster] = consolidated(http)["clusters"]
    contents = {each["id"]: each["content"] for each in hooks}
    for absorbed in cluster["absorbed"]:
        assert http.get(f"/api/v1/entities/{absorbed}/history").json()[0]["content"] == contents[absorbed]
    trail = accepted(http.get("/api/memories", params={"ended": "merged"}))["memories"]
    belonging = {each["id"]: each["belongs_to"] for each in trail}
    assert belonging.items() >= dict.fromkeys(cluster["absorbed"], cluster["primary"]).items()


def test_entity_reassignment(http: httpx.Client) -> None:
    for name, content in zip("XY", HOOKS, strict=False):
        stored(http, content, entity_names=[name], dedup="exact")
    found(http, "React")
    [cluster] = consolidated(http)["clusters"]
    assert {each["name"] for each in read(http, {"id": cluster["primary"]})["entities"]} == {"X", "Y"}


# REST


def test_post_memories(http: httpx.Client) -> None:
    assert accepted(http.post("/api/memories", json={"content": "Something"}), 201)["content"] == "Something"


def test_get_memories_search(http: httpx.Client) -> None:
    stored(http, "A test of the brakes")
    found(http, "test")
    answer = http.get("/api/memories/search?q=test")
    assert answer.status_code == 200
    assert [each["content"] for each in answer.json()] == ["A test of the brakes"]


def test_sse_event_on_memory_creation(served: Served, http: httpx.Client, store: str) -> None:
    accepted(http.put(f"/api/memory/{store}"), 201)
    with Listener(served.port, f"/api/events?store={store}").greet() as listener:
        made = stored(http, "Something")
        event = next(each for each in listener.events() if each.kind == "memory_created")
    assert (event.data["id"], event.data["content"]) == (made["id"], "Something")


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
