"""Edge cases of memories over HTTP, one per test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.listener import EventListener
from tests.embedding.embedding_service import running as embedding_service
from tests.server.http.serving import RunningServer, accepted, refusal, serving

Json = dict[str, Any]
NDJSON = {"content-type": "application/x-ndjson"}
MOVED = {"sequence", "version", "updated_at", "access_count", "access_confidence", "last_accessed_at"}


@pytest.fixture
def of(http: httpx.Client, store: str) -> Iterator[httpx.Client]:
    """Client of the test's own store."""
    with naming(http, store) as client:
        yield client


def naming(http: httpx.Client, store: str) -> httpx.Client:
    return httpx.Client(base_url=http.base_url, headers={"Kgserve-Store": store}, timeout=30)


def stored(of: httpx.Client, content: str, days: float = 0, **more: Any) -> Json:
    if days:
        more["created_at"] = ago(days)
    answer = of.post("/api/memories", json={"content": content, **more})
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()


def ago(days: float) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


def memory(of: httpx.Client, memory_id: str) -> Json:
    return accepted(of.get(f"/api/memories/{memory_id}", params={"touch": "false"}))


def listed(of: httpx.Client, **query: Any) -> dict[str, Json]:
    page = accepted(of.get("/api/memories", params={"limit": 1000, **query}))
    return {each["id"]: each for each in page["memories"]}


def still(memory: Json) -> Json:
    return {
        name: memory[name] for name in memory.keys() - {"sequence", "version", "updated_at", "effective_confidence"}
    }


def consolidated(of: httpx.Client, **wanted: Any) -> Json:
    return accepted(of.post("/api/memories/consolidate", json=wanted))


def undo(of: httpx.Client, report: Json, **how: Any) -> httpx.Response:
    return of.post(f"/api/memories/consolidations/{report['run']}/undo", json=how)


def exported(of: httpx.Client, store: str) -> list[str]:
    lines = [json.loads(line) for line in of.get(f"/api/memory/{store}/export").text.splitlines()]
    rows = [line for line in lines if line.get("kind") in {"node", "edge"}]
    return sorted(json.dumps({name: row[name] for name in row.keys() - MOVED}, sort_keys=True) for row in rows)


def test_only_access_changes_last_accessed(of: httpx.Client, store: str) -> None:
    ids = [stored(of, f"tea at {each}", days=9, entity_names=["Ann"])["id"] for each in ("dawn", "noon", "night")]
    seen = accepted(of.get(f"/api/memory/{store}/stats"))["sequence"]
    api = f"/api/memory/{store}"
    for path in (
        "/api/memories",
        "/api/memories?sort=accessed&entity=Ann",
        "/api/entities/Ann",
        "/api/entities/Ann/memories",
        "/api/entities/Ann/graph?touch=false",
        *(f"/api/analytics/{each}" for each in ("overview", "growth", "types", "tags", "confidence")),
        f"/api/memories/search?q=tea&touch=false&at_least={seen}",
        f"/api/memories/search?q=tea&as_of={seen}",
        *(f"{api}{each}" for each in ("/export", "/stats", "/nodes", f"/nodes/{ids[0]}", "/changes?since=0")),
        f"/api/v1/entities/{ids[0]}/history",
    ):
        assert of.get(path).status_code == 200, path
    for path, body in (
        (f"{api}/cypher", {"query": "MATCH (e:Entity) RETURN e.id, e.content"}),
        (f"{api}/search", {"query": "tea", "at_least": seen}),
        (f"{api}/context", {"query": "tea"}),
        ("/api/memories/prune", {"dry_run": True}),
        ("/api/memories/consolidate", {"dry_run": True}),
        ("/api/memories/delete", {"memory_ids": ids, "dry_run": True}),
    ):
        assert of.post(path, json=body).status_code == 200, path
    assert [each["access_count"] for each in listed(of).values()] == [0, 0, 0]
    [hit] = accepted(of.post("/api/memories/search", json={"query": "tea", "limit": 1, "offset": 1}))["hits"]
    assert {key: each["access_count"] for key, each in listed(of).items()} == dict.fromkeys(ids, 0) | {hit["id"]: 1}
    assert listed(of)[hit["id"]]["version"] == 1
    used = accepted(of.get(f"/api/memories/{ids[0]}"))
    assert used["access_count"] == (2 if ids[0] == hit["id"] else 1)


def test_unmerge_of_a_consolidated_memory_names_the_run(of: httpx.Client, store: str) -> None:
    for each in ("a", "b"):
        stored(of, "The roof is red", dedup="off", id=each, tags=[each], entity_names=[f"Ann {each}"])
    before, report = exported(of, store), consolidated(of)
    [absorbed] = report["clusters"][0]["absorbed"]
    nodes = f"/api/memory/{store}/nodes"
    refused = refusal(of.post(f"{nodes}/{absorbed}/unmerge"), 409)["detail"]
    assert f"POST /api/memories/consolidations/{report['run']}/undo" in refused
    assert accepted(undo(of, report))["restored"] == [absorbed]
    assert exported(of, store) == before
    assert accepted(of.post(f"{nodes}/{absorbed}/unmerge"))["changed"] is False
    assert stored(of, "The roofs are red", id="c")["outcome"] == "merged"
    assert "store its text again with dedup=off" in refusal(of.post(f"{nodes}/c/unmerge"), 409)["detail"]


def test_only_active_memories_absorb_duplicates(http: httpx.Client, of: httpx.Client, store: str) -> None:
    faded = stored(of, "The shed is green", days=400)["id"]
    assert accepted(of.post("/api/memories/prune", json={}))["ids"] == [faded]
    over = stored(of, "The gate is open", valid_from=ago(9), valid_to=ago(1))["id"]
    first, second = (stored(of, "The roof is red", dedup="off", id=each)["id"] for each in ("a", "b"))
    assert consolidated(of)["clusters"][0]["absorbed"] == [second]
    for content in ("The shed is green", "The gate is open", "the shed is GREEN!", "The gate is open."):
        made = stored(of, content)
        assert made["id"] not in {faded, over}, content
    assert stored(of, "The roof is red")["id"] == first
    with naming(http, f"{store}-other") as other:
        assert stored(other, "The roof is red")["outcome"] == "created"
    gone = accepted(of.post("/api/memories/prune", json={}))
    assert gone["count"] == 0
    assert refusal(of.post("/api/memories", json={"id": faded, "content": "The shed is green"}), 409)["detail"]


def test_entities_of_the_same_name_stay_separate(of: httpx.Client) -> None:
    person, project = ([{"name": "Alice", "entity_type": kind}] for kind in ("person", "project"))
    ids = {
        each: [stored(of, "Alice is late", dedup="off", entities=about)["id"] for _ in range(2)]
        for each, about in (("person", person), ("project", project))
    }
    nobody = stored(of, "Alice is late", dedup="off")["id"]
    report = consolidated(of)
    groups = [{each["primary"], *each["absorbed"]} for each in report["clusters"]]
    assert {*ids["project"]} in groups
    assert {*ids["person"], nobody} in groups
    for kind, about in (("person", person), ("project", project)):
        assert stored(of, "Alice is late", entities=about)["id"] in ids[kind]
    both = [{"content": "Alice is early", "entities": about} for about in (person, project, person)]
    together = accepted(of.post("/api/memories/batch", json={"memories": both}))
    assert [each["outcome"] for each in together["results"]] == ["created", "created", "duplicate"]
    assert together["results"][2]["id"] == together["results"][0]["id"]


def test_largest_memories_are_stored_deduplicated_and_merged(of: httpx.Client) -> None:
    large = "word " * ((1 << 20) // 5)
    assert stored(of, large, id="large")["outcome"] == "created"
    assert stored(of, large)["id"] == "large"
    stored(of, large, dedup="off")
    assert consolidated(of)["memories_deleted"] == 1
    assert memory(of, "large")["content"] == large
    refusal(of.post("/api/memories", json={"content": large + "and more"}), 413)
    refusal(of.patch("/api/memories/large", json={"content": large + "and more"}), 413)
    for number in range(3):
        stored(of, "Tagged", tags=[f"{number}-{each}" for each in range(60)], dedup="off")
    report = consolidated(of)
    assert (report["clusters"], len(report["left"])) == ([], 1)
    assert "100 tags" in report["left"][0]["reason"]


def test_chained_merges_are_undone_in_order(of: httpx.Client, store: str) -> None:
    for each, confidence in (("a", 0.8), ("b", 0.5)):
        stored(of, "The roof is red", id=each, dedup="off", confidence=confidence, entity_names=[f"of {each}"])
    before = exported(of, store)
    first = consolidated(of)
    stored(of, "The roof is red", id="c", dedup="off", confidence=1)
    stored(of, "The roof is red", id="d", dedup="off", confidence=0.3)
    second = consolidated(of)
    assert (second["clusters"][0]["primary"], second["clusters"][0]["absorbed"]) == ("c", ["a", "d"])
    assert {memory(of, each)["id"] for each in "abcd"} == {"c"}
    assert {each["name"] for each in memory(of, "b")["entities"]} == {"of a", "of b"}
    assert "'a'" in refusal(undo(of, first), 409)["detail"]
    accepted(undo(of, second))
    assert {memory(of, each)["id"] for each in "ab"} == {"a"}
    undone = accepted(undo(of, first, force=True))
    assert undone["restored"] == ["b"]
    for each in "cd":
        accepted(of.delete(f"/api/memories/{each}"))
    assert exported(of, store) == before
    accepted(of.post("/api/entities/of a/merge", json={"into": "of b"}))
    refusal(of.post("/api/entities/of b/merge", json={"into": "of b"}), 400)
    circle = of.post("/api/entities/of b/merge", json={"into": "of a"})
    assert circle.status_code in {200, 400, 409}
    assert accepted(of.get("/api/entities/of a"))["id"] == accepted(of.get("/api/entities/of b"))["id"]


@pytest.mark.parametrize("chosen", [{"history": "none"}, {"conflict_policy": "manual"}, {"kind_whitelist": ["fact"]}])
def test_memories_work_with_any_store_settings(of: httpx.Client, store: str, chosen: Json) -> None:
    accepted(of.put(f"/api/memory/{store}", json=chosen), 201)
    for each in ("a", "b"):
        stored(of, "The roof is red", id=each, memory_type="fact", dedup="off")
    old = stored(of, "The shed is green", days=400, memory_type="fact")["id"]
    if "kind_whitelist" in chosen:
        body = {"content": "x", "memory_type": "fact", "entity_names": ["Ann"]}
        assert "unknown" in refusal(of.post("/api/memories", json=body), 400)["detail"]
    before = exported(of, store)
    assert stored(of, "The roof is red", memory_type="fact")["outcome"] == "duplicate"
    report = consolidated(of)
    assert report["memories_deleted"] == 1
    accepted(undo(of, report))
    assert exported(of, store) == before
    assert accepted(of.post("/api/memories/prune", json={}))["ids"] == [old]
    assert accepted(of.patch("/api/memories/a", json={"tags": ["x"]}))["version"] > 1
    assert "conflicts" not in exported(of, store)[0]


def test_invalid_memory_dates_are_refused(of: httpx.Client) -> None:
    stored(of, "Tea at four")
    for bare in ("2025-01", "yesterday", "1e9"):
        for name in ("before_date", "after_date"):
            for path, query in (("/api/memories", {}), ("/api/memories/search", {"q": "tea"})):
                found = refusal(of.get(path, params={name: bare, **query}), 400)
                assert found["errors"][0]["path"] == name, (path, bare)
            found = refusal(of.post("/api/memories/search", json={"query": "tea", name: bare}), 400)
        found = refusal(of.post("/api/memories/delete", json={"before_date": bare}), 400)
        assert found["errors"][0]["path"] in {"before_date", ""}
    assert len(listed(of)) == 1


def test_a_name_that_is_the_id_of_another_node(of: httpx.Client, store: str) -> None:
    nodes = [{"id": "Bob", "type": "note", "content": "a note"}, {"id": "m", "type": "fact", "confidence": 1}]
    accepted(of.post(f"/api/memory/{store}/inject", json={"nodes": nodes}))
    made = accepted(of.post("/api/entities", json={"name": "Bob", "entity_type": "person"}), 201)
    about = stored(of, "Bob is in", entities=[{"name": "Bob", "entity_type": "person"}])
    assert [each["id"] for each in about["entities"]] == [made["id"]]
    named = accepted(of.post("/api/entities", json={"name": "m", "entity_type": "person"}), 201)
    assert named["id"] != "m"
    [node] = [each for each in accepted(of.get(f"/api/memory/{store}/nodes"))["nodes"] if each["id"] == "Bob"]
    assert (node["type"], node["content"]) == ("note", "a note")
    renamed = accepted(of.patch(f"/api/entities/{made['id']}", json={"name": "Robert"}))
    assert (renamed["id"], renamed["name"]) == (made["id"], "Robert")
    assert stored(of, "Robert is out", entity_names=["robert"])["entities"][0]["id"] == made["id"]


def test_name_of_a_deleted_entity_is_reusable(of: httpx.Client) -> None:
    for name in ("Bob", "Robert"):
        accepted(of.post("/api/entities", json={"name": name, "entity_type": "person"}), 201)
    accepted(of.post("/api/entities/Bob/merge", json={"into": "Robert"}))
    accepted(of.delete("/api/entities/Robert"))
    about = stored(of, "Bob is back", entity_names=["Bob"])["entities"]
    shown = {each["id"] for each in accepted(of.get("/api/entities"))["entities"]}
    assert {each["id"] for each in about} == shown
    assert [each["name"] for each in about] == ["Bob"]
    assert accepted(of.get("/api/entities/Bob/memories"))["memories"][0]["content"] == "Bob is back"


def test_entity_type_is_updated_during_relation_writes(http: httpx.Client, store: str) -> None:
    failed: list[str] = []

    def write(number: int) -> None:
        with naming(http, store) as own:
            for at in range(10):
                relation = {"source": f"P{at}", "target": f"Q{number}", "relation_type": "knows"}
                entity = {"name": f"p{at}", "entity_type": "person"}
                path, body = ("/api/entities", entity) if number % 2 else ("/api/relations", relation)
                answer = own.post(path, json=body)
                if answer.status_code not in {200, 201}:
                    failed.append(answer.text)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with naming(http, store) as own:
        found = accepted(own.get("/api/entities?limit=100"))["entities"]
        assert sorted((each["name"].lower(), each["entity_type"]) for each in found) == sorted(
            [*((f"p{at}", "person") for at in range(10)), *((f"q{number}", "unknown") for number in (0, 2, 4))]
        )
        assert len(accepted(own.get("/api/relations?limit=100"))["relations"]) == 30


def test_deduplication_without_vectors_reports_it(tmp_path: Path) -> None:
    with embedding_service() as service:
        service.failures.extend([(503, {})] * 1_000)
        given = {"embedding_provider": "openai", "embedding_url": service.url, "embedding_model": "some-model"}
        with serving(tmp_path / "data", **given, embedding_key="k") as there, httpx.Client(base_url=there.url) as http:
            for dedup, outcome in (("off", "created"), ("similarity", "duplicate"), ("guarded", "duplicate")):
                made = stored(http, "The roof is red", dedup=dedup)
                assert (made["outcome"], made["near_checked"]) == (outcome, False)
            stored(http, "The roof is red", dedup="off")
            assert not consolidated(http, dry_run=True)["near_checked"]
            assert len(http.get("/api/memories/search?q=roof&mode=keyword&at_least=2").json()) == 2


def test_bulk_event_includes_memories(served: RunningServer, of: httpx.Client, store: str) -> None:
    accepted(of.put(f"/api/memory/{store}"), 201)
    batch = [{"content": f"Number {at} is {at * 7}", "entity_names": ["Ann"]} for at in range(1_000)]
    with EventListener(served.port, f"/api/events?store={store}").greet() as listener:
        accepted(of.post("/api/memories/batch", json={"memories": batch}))
        made = stored(of, "One more")
        told = listener.events()
        bulk = next(told)
        assert (bulk.kind, bulk.data["memories_created"], bulk.data["entities_created"]) == ("bulk_changed", 1_000, 1)
        while (event := next(told)).kind != "memory_created":
            assert event.kind in {"node_created", "edge_created", "sync_complete"}
        assert event.data["id"] == made["id"]


def test_export_includes_access_counts_and_merged_memories(http: httpx.Client, of: httpx.Client, store: str) -> None:
    for each, confidence in (("a", 1), ("b", 0.5)):
        stored(of, "The roof is red", id=each, dedup="off", confidence=confidence, source="s", context="c", layer=2)
    stored(of, "The shed is green", days=400, id="old", importance=0.9, entity_names=["Ann"])
    report = consolidated(of)
    accepted(of.post("/api/memories/prune", json={}))
    accepted(of.get("/api/memories/a"))
    before = listed(of, ended="any")
    with naming(http, f"{store}-copy") as copy:
        text = of.get(f"/api/memory/{store}/export").content
        accepted(copy.post(f"/api/memory/{store}-copy/import", content=text, headers=NDJSON))
        after = listed(copy, ended="any")
        assert {key: still(each) for key, each in after.items()} == {key: still(each) for key, each in before.items()}
        assert before["a"]["access_count"] == 1
        assert after["old"]["ended"] == "pruned"
        assert memory(copy, "b")["id"] == "a"
        overview = [accepted(each.get("/api/analytics/overview")) for each in (of, copy)]
        for each in overview:
            each.pop("sequence", None)
        assert overview[0]["total_memories"] == overview[1]["total_memories"] == 1
        accepted(undo(copy, report))
        assert {*listed(copy)} == {"a", "b"}


def test_half_life_change_applies_immediately(of: httpx.Client, store: str) -> None:
    for days in (1, 10, 100):
        stored(of, f"About {days}", days=days, id=f"m{days}", memory_type="fact" if days == 10 else "error")
    stored(of, "Nothing", id="none", confidence=0)
    seen = {"q": "about nothing", "mode": "keyword", "touch": "false", "min_confidence": 0, "at_least": 4}

    def all_of(least: float) -> tuple[set[str], float, int]:
        stats = accepted(of.get("/api/analytics/overview"))
        return {*listed(of, min_confidence=least)}, stats["average_confidence"], stats["low_confidence_count"]

    assert {each["id"] for each in of.get("/api/memories/search", params=seen).json()} == {"m1", "m10", "m100", "none"}
    ids, average, low = all_of(0.5)
    assert (ids, low) == ({"m1", "m10"}, 2)
    assert average == pytest.approx(sum(0.5 ** (days / 30) for days in (1, 10, 100)) / 4, abs=0.001)
    for memory_settings, due in (
        ({"half_life_days": 1000}, {"m1", "m10", "m100"}),
        ({"half_life_days": None}, {"m1", "m10", "m100"}),
        ({"half_life_days": 1.5}, {"m1"}),
        ({"half_life_by_type": {"fact": None}}, {"m1", "m10"}),
    ):
        accepted(of.patch(f"/api/memory/{store}", json={"memory": memory_settings}))
        ids, average, _ = all_of(0.5)
        assert ids == due, memory_settings
        shown = listed(of)
        assert average == pytest.approx(sum(each["effective_confidence"] for each in shown.values()) / 4, abs=0.001)
        order = [each["effective_confidence"] for each in listed(of, sort="confidence").values()]
        assert order == sorted(order, reverse=True)
        doomed = of.post("/api/memories/delete", json={"min_confidence_below": 0.5, "dry_run": True}).json()["ids"]
        assert {*doomed} == {*shown} - due
        pruned = accepted(of.post("/api/memories/prune", json={"dry_run": True}))["count"]
        # Memories written today stay until tomorrow.
        assert pruned == sum(each["effective_confidence"] < 0.05 for key, each in shown.items() if key != "none")


def test_memories_of_a_deleted_entity_are_recalled_by_its_id_and_its_name(of: httpx.Client, store: str) -> None:
    accepted(of.post(f"/api/memory/{store}/inject", json={"nodes": [{"id": "p-1", "type": "person", "name": "Bob"}]}))
    kept = stored(of, "The phone number is 555 0100", entity_names=["Bob"])["id"]
    gone = stored(of, "The old number was 555 0199", entity_names=["Bob"])["id"]
    before = accepted(of.delete(f"/api/memories/{gone}"))["sequence"]
    assert accepted(of.delete(f"/api/memory/{store}/nodes/p-1"))["memory_ids"] == [kept]
    for asked in ({"entity": "p-1"}, {"entity": "bob"}, {"entity": "Bob", "mode": "graph"}):
        found = accepted(of.post("/api/memories/search", json={"query": "number", "touch": False, **asked}))
        assert [each["id"] for each in found["hits"]] == [kept], asked
        assert found["deleted_entity"]["id"] == "p-1"
        assert (found["deleted_entity"]["name"], found["deleted_entity"]["sequence"]) == ("Bob", before + 1)
    agents = of.post("/api/v1/recall", json={"query": "number", "entity": "BOB", "touch": False})
    assert [each["id"] for each in agents.json()] == [kept]
    assert json.loads(agents.headers["kgserve-deleted-entity"])["id"] == "p-1"
    page = accepted(of.get("/api/memories", params={"entity": "Bob"}))
    assert ([each["id"] for each in page["memories"]], page["deleted_entity"]["id"]) == ([kept], "p-1")
    then = accepted(of.post("/api/memories/search", json={"query": "number", "entity": "Bob", "as_of": before}))
    assert [each["id"] for each in then["hits"]] == [kept]
    assert "deleted_entity" not in then
    matches = accepted(of.post("/api/v1/forget", json={"entity_id": "Bob"}))["matches"]
    assert [each["id"] for each in matches] == [kept]
    assert (
        "no entity 'Rob'"
        in refusal(of.post("/api/memories/search", json={"query": "number", "entity": "Rob"}), 404)["detail"]
    )
    stored(of, "She has a dog", entity_names=["Bob"])
    again = accepted(of.post("/api/memories/search", json={"query": "dog", "entity": "Bob", "touch": False}))
    assert "deleted_entity" not in again


def test_delete_by_filter_lists_remaining_memories(of: httpx.Client, store: str) -> None:
    left = {stored(of, f"Number {each} is hers", entity_names=[f"E{each}"])["id"] for each in range(3)}
    both = stored(of, "Number 7 is theirs", entity_names=["E0", "E1"])["id"]
    asked = {"ids": ["E0", "E1", "E2", both]}
    for dry_run in (True, False):
        found = accepted(of.post(f"/api/memory/{store}/delete", json={**asked, "dry_run": dry_run}))
        assert (found["count"], found["memories_about"], set(found["memory_ids"])) == (4, 3, left)
    again = accepted(of.post(f"/api/memory/{store}/delete", json=asked))
    assert "memories_about" not in again
