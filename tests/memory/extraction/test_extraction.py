"""Fact extraction by a language model over HTTP, also with faulty models."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kgserve.memory.extraction import background_llm_extractor
from kgserve.stores import pool
from tests.memory.disk_search import traces
from tests.memory.extraction.chat_service import (
    KEY,
    Behaviour,
    Service,
    breaks_off,
    completion,
    drips,
    echoes,
    hangs,
    leaves,
    pours,
    raw,
    refuses,
    says,
    status,
    words,
)
from tests.memory.extraction.memory_client import awaited, extraction, found_at_once, marks, memories, retain, settled
from tests.project.reading import TOP
from tests.server.http.serving import PATIENCE, RunningServer, accepted, serving

TEXT = "We moved the web shop from Postgres 16 to 17, said Alice."
FACT = "The web shop uses Postgres 17."


@pytest.fixture(autouse=True, scope="module")
def hurried() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background_llm_extractor, "MIN_EXTRACTION_RETRY_SECONDS", 0.02)
        patch.setattr(background_llm_extractor, "MAX_EXTRACTION_RETRY_SECONDS", 0.1)
        patch.setattr(pool, "POOL_TICK_SECONDS", 0.05)
        yield


@contextmanager
def extracting_server(service: Service, data: Path, **options: Any) -> Generator[RunningServer]:
    """Return a server that extracts from every text."""
    words = {"llm_timeout": PATIENCE, "memory_extract": True, **service.options, **options}
    with serving(data, **words) as found:
        yield found


@pytest.fixture(scope="module")
def there(model: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with extracting_server(model, tmp_path_factory.mktemp("extracted") / "data") as found:
        yield found


@pytest.fixture
def alone(service: Service, tmp_path: Path) -> Iterator[httpx.Client]:
    """Yield a client of a fresh server without learned request forms or counts."""
    with (
        extracting_server(service, tmp_path / "data") as there,
        httpx.Client(base_url=there.url, timeout=PATIENCE) as client,
    ):
        yield client


WELL = says(
    facts=[
        {"content": FACT, "memory_type": "decision", "entities": ["Web shop", "Postgres"], "confidence": 0.9},
        {"content": "Alice spoke of the move.", "layer": 3, "entities": ["Alice"]},
    ],
    entities=[{"name": "Alice", "entity_type": "person"}, {"name": "Web shop", "entity_type": "project"}],
    relations=[{"source": "Web shop", "target": "Postgres", "relation_type": "depends_on"}],
)


def test_text_yields_facts_entities_and_relations(service: Service, http: httpx.Client) -> None:
    service.usually = WELL
    done = retain(http, TEXT, tags=["user:alice"], source="chat-7", created_at="2026-01-02T03:04:05Z")
    assert (done["extracting"], [each["type"] for each in done["operations"]]) == (True, ["create"])
    found = settled(http)
    assert (found["extracted"], found["items"], found["dropped"], found["failures"]) == (1, 5, 0, 0)
    assert found["tokens_today"] >= 100
    there = memories(http)
    assert there.keys() == {TEXT, FACT, "Alice spoke of the move."}
    fact = there[FACT]
    assert (fact["memory_type"], fact["layer"], fact["tags"], fact["source"]) == (
        "decision",
        2,
        ["user:alice"],
        "chat-7",
    )
    assert fact["created_at"] == there[TEXT]["created_at"]
    assert sorted(each["name"] for each in fact["entities"]) == ["Postgres", "Web shop"]
    entities = {each["name"]: each["entity_type"] for each in accepted(http.get("/api/entities"))["entities"]}
    assert entities == {"Alice": "person", "Web shop": "project", "Postgres": "unknown"}
    assert [each["relation_type"] for each in accepted(http.get("/api/relations"))["relations"]] == ["depends_on"]
    source = there[TEXT]["id"]
    assert sorted((mark["from"], mark["to"]) for mark in marks(http)) == sorted(
        [(there[FACT]["id"], source), (there["Alice spoke of the move."]["id"], source)]
    )
    # Extracted facts are not sent to the model again.
    assert service.texts == [TEXT]
    assert service.asked[0]["response_format"]["type"] == "json_schema"


LATE: dict[str, Behaviour] = {"hangs": hangs, "drips": drips}
"""Behaviours that end with the model's timeout."""
BAD: dict[str, Behaviour] = {
    "garbage": raw(b"\x00\xff no JSON"),
    "words": words("I'd rather not."),
    "truncated": words('{"facts": [{"content": "The web sh'),
    "another object": words('{"colour": "red"}'),
    "no list": words('{"facts": "many"}'),
    "an array": words("[1, 2, 3]"),
    "deep": words('{"facts": ' + "[" * 50_000 + "]" * 50_000 + "}"),
    "no choices": raw(b'{"choices": []}'),
    "null": raw(b'{"choices": [{"message": {"content": null}}]}'),
    "500": status(500),
    "429": status(429, Retry_After="0.05"),
    "401": echoes(401),
    "moved": status(307, Location="http://127.0.0.1:1/"),
    "leaves": leaves,
    "breaks off": breaks_off,
    "pours": pours,
}


@pytest.mark.parametrize("behaviour", BAD)
def test_text_is_extracted_once_despite_model_failures(service: Service, http: httpx.Client, behaviour: str) -> None:
    assert_extracted_once(service, http, BAD[behaviour])


@pytest.mark.parametrize("behaviour", LATE)
def test_model_timeout_is_retried(service: Service, tmp_path: Path, behaviour: str) -> None:
    with (
        extracting_server(service, tmp_path / "data", llm_timeout=1.5) as there,
        httpx.Client(base_url=there.url) as http,
    ):
        assert_extracted_once(service, http, LATE[behaviour])


def assert_extracted_once(service: Service, http: httpx.Client, behaviour: Behaviour) -> None:
    service.script.extend([behaviour] * 2)
    service.usually = WELL
    done = retain(http, TEXT)
    assert [each["type"] for each in done["operations"]] == ["create"]
    assert found_at_once(http, TEXT, done["sequence"])
    told = awaited(lambda: (found := extraction(http))["failures"] and found)
    assert KEY not in json.dumps(told)
    found = settled(http)
    assert (found["failures"], found["extracted"], found["set_aside_count"], found["error"]) == (2, 1, 0, None)
    assert memories(http).keys() == {TEXT, FACT, "Alice spoke of the move."}
    assert len(marks(http)) == 2
    assert service.texts == [TEXT] * 3


def test_invalid_items_are_dropped_and_valid_ones_written(service: Service, http: httpx.Client) -> None:
    bad: list[Any] = [
        7,
        None,
        "text",
        [],
        {},
        {"content": 5},
        {"content": ""},
        {"content": "   "},
        {"content": "x" * 3_000},
        {"content": "A", "confidence": 7},
        {"content": "B", "layer": 9},
        {"content": "C", "layer": "two"},
        {"content": "D", "entities": "Alice"},
        {"content": "E", "valid_from": "yesterday"},
        {"content": "F", "valid_from": "2026-01-02T00:00:00Z", "valid_to": "2025-01-02T00:00:00Z"},
        {"content": "G", "supersedes": "m1"},
        {"content": "H", "parent": "c7"},
        {"content": "I", "memory_type": "x" * 101},
    ]
    service.usually = says(
        facts=[*bad, {"content": FACT, "delete": True, "supersedes": "", "parent": ""}],
        entities=[{"name": "Alice"}, {"name": "", "entity_type": "person"}, {"name": "Bob", "entity_type": "person"}],
        relations=[
            {"source": "Alice", "target": "Bob", "relation_type": kind}
            for kind in ("knows", "is_about", "child_of", "extracted_from", "version_of", "MERGED_INTO", "")
        ],
        deletes=["everything"],
        forget={"query": "*"},
    )
    before = retain(http, "Bread is baked.", extract=False)["operations"][0]["memory_id"]
    retain(http, TEXT)
    found = settled(http)
    assert found["items"] == 3, memories(http).keys()
    assert found["dropped"] == len(bad) + 2 + 6 + 2
    assert memories(http).keys() == {"Bread is baked.", TEXT, FACT}
    assert accepted(http.get(f"/api/memories/{before}"))["version"] == 1
    assert [each["relation_type"] for each in accepted(http.get("/api/relations"))["relations"]] == ["knows"]


def test_number_of_facts_is_limited(service: Service, http: httpx.Client) -> None:
    few = [{"content": f"The number {at} is {at * 7}."} for at in range(5_000)]
    service.usually = says(facts=few)
    retain(http, TEXT)
    found = settled(http)
    assert (found["extracted"], found["items"], found["dropped"]) == (1, 30, 4_970)
    assert len(memories(http)) == 31
    service.usually = says(facts=few * 3)
    retain(http, "Another text.")
    told = awaited(lambda: (found := extraction(http))["set_aside"] and found)
    assert "longer than" in told["set_aside"][0]["error"]
    assert len(memories(http)) == 32


def test_other_languages_are_preserved(service: Service, http: httpx.Client) -> None:
    text, fact = "昨日、京都で会議がありました。", "京都で会議があった。"
    service.usually = says(facts=[{"content": fact, "entities": ["京都"]}])
    retain(http, text)
    settled(http)
    assert service.texts == [text]
    assert memories(http).keys() == {text, fact}


def test_failing_text_is_set_aside_until_requeued(service: Service, http: httpx.Client) -> None:
    service.usually = words("never")
    bad = retain(http, TEXT)["operations"][0]["memory_id"]
    found = awaited(lambda: (found := extraction(http))["set_aside"] and found)
    assert [(each["id"], each["tries"]) for each in found["set_aside"]] == [(bad, 5)]
    assert (found["waiting"], found["set_aside_count"]) == (0, 1)
    service.usually = WELL
    retain(http, "Another text.", extract=False)
    assert len(service.asked) == 5
    again = accepted(http.post("/api/v1/extract", json={}))
    assert (again["queued"], again["missing"]) == (1, [])
    assert settled(http)["extracted"] == 1
    assert FACT in memories(http)
    answer = accepted(http.post("/api/v1/extract", json={"ids": [bad, "nowhere"]}))
    assert (answer["queued"], answer["missing"]) == (1, ["nowhere"])
    settled(http)
    assert len(service.asked) == 6


def test_extract_setting_and_request_option(service: Service, http: httpx.Client) -> None:
    service.usually = WELL
    retain(http, "Not this one.", extract=False)
    accepted(http.patch("/api/memory/default", json={"memory": {"extract": False}}))
    assert retain(http, "Nor that one.")["extracting"] is False
    assert retain(http, "But this one.", extract=True)["extracting"] is True
    settled(http)
    assert service.texts == ["But this one."]
    assert memories(http)["But this one."]["metadata"] == {"extract": True}
    # Extraction of a known text: nothing is stored, but the model receives it.
    assert [each["type"] for each in retain(http, "Nor that one.", extract=True)["operations"]] == ["noop"]
    settled(http)
    assert service.texts == ["But this one.", "Nor that one."]


def test_model_receives_previous_turns_of_conversation(service: Service, http: httpx.Client) -> None:
    turns = [{"role": "Ann", "content": "Shall we use Rust?"}, {"role": "Bob", "content": "Yes, we do."}]
    retain(http, turns, source="chat")
    settled(http)
    assert [each.get("said_before", []) for each in service.materials] == [[], ["Ann: Shall we use Rust?"]]


def test_concepts_are_not_extracted_and_become_parents(service: Service, http: httpx.Client) -> None:
    accepted(http.post("/api/memories", json={"content": "Databases", "layer": 1, "id": "databases"}), 201)
    service.usually = says(facts=[{"content": FACT, "parent": "c1"}])
    retain(http, TEXT)
    settled(http)
    assert service.texts == [TEXT]
    assert service.materials[0]["known_concepts"] == {"c1": "Databases"}
    assert memories(http)[FACT]["parent_id"] == "databases"


def test_daily_token_budget(service: Service, tmp_path: Path) -> None:
    service.usually = says(tokens=6_000)
    with (
        extracting_server(service, tmp_path / "data", llm_daily_tokens=10_000) as there,
        httpx.Client(base_url=there.url) as http,
    ):
        retain(http, "One text.")
        retain(http, "Two texts.")
        found = awaited(lambda: (found := extraction(http))["error"] and found)
        assert (found["extracted"], found["waiting"], found["failures"]) == (1, 1, 0)
        assert 6_000 <= found["tokens_today"] < 10_000
        assert len(service.asked) == 1
    with (
        extracting_server(service, tmp_path / "data", llm_daily_tokens=10_000) as there,
        httpx.Client(base_url=there.url) as http,
    ):
        awaited(lambda: extraction(http)["error"])
        assert len(service.asked) == 1


@pytest.mark.parametrize("tokens", [-5, 1 << 70, "many", None, 1.5])
def test_implausible_token_usage_is_ignored(service: Service, http: httpx.Client, tokens: Any) -> None:
    service.usually = says(tokens=tokens, facts=[{"content": FACT}])
    retain(http, TEXT)
    assert 100 < settled(http)["tokens_today"] < 10_000


@pytest.mark.parametrize("refused", [["max_tokens"], ["json_schema"], ["json_schema", "json_object", "temperature"]])
def test_rejected_parameter_is_omitted_on_retry(service: Service, alone: httpx.Client, refused: list[str]) -> None:
    service.usually = refuses(*refused)
    for text in (TEXT, "Another text."):
        retain(alone, text)
        assert settled(alone)["failures"] == 0
    assert "Rain is wet." in memories(alone)
    assert len(service.asked) < 6


def test_extraction_respects_type_whitelist(service: Service, http: httpx.Client) -> None:
    kinds = ["fact", "person"]
    accepted(http.put("/api/memory/default", json={"kind_whitelist": kinds, "memory": {"extract": True}}), 201)
    service.usually = says(
        facts=[{"content": FACT, "memory_type": "rumour"}, {"content": "Tea is hot."}],
        entities=[{"name": "Alice", "entity_type": "person"}, {"name": "Shop", "entity_type": "place"}],
        relations=[{"source": "Alice", "target": "Nobody", "relation_type": "knows"}],
    )
    retain(http, TEXT)
    found = settled(http)
    assert (found["items"], found["dropped"]) == (2, 3)
    assert memories(http).keys() == {TEXT, "Tea is hot."}


def test_ambiguous_entity_name_drops_items(service: Service, http: httpx.Client) -> None:
    for kind in ("person", "project"):
        accepted(http.post("/api/entities", json={"name": "Alice", "entity_type": kind}), 201)
    service.usually = WELL
    retain(http, TEXT)
    found = settled(http)
    assert (found["items"], found["dropped"]) == (4, 1)
    assert memories(http).keys() == {TEXT, FACT}


def test_changed_text_is_extracted_again_but_not_changed_tags(service: Service, http: httpx.Client) -> None:
    service.usually = WELL
    memory = retain(http, TEXT)["operations"][0]["memory_id"]
    settled(http)
    accepted(http.put(f"/api/memories/{memory}", json={"tags": ["x"]}))
    accepted(http.put(f"/api/memories/{memories(http)[FACT]['id']}", json={"tags": ["x"]}))
    settled(http)
    assert service.texts == [TEXT]
    accepted(http.put(f"/api/memories/{memory}", json={"content": "Quite another text."}))
    settled(http)
    assert service.texts == [TEXT, "Quite another text."]
    # The fact is the same, the event is a new one.
    assert len(marks(http)) == 3


def test_extraction_resumes_when_store_reopens(service: Service, tmp_path: Path) -> None:
    options = {"llm_timeout": 600.0, "max_open_stores": 1}
    with (
        extracting_server(service, tmp_path / "data", **options) as there,
        httpx.Client(base_url=there.url, timeout=PATIENCE) as http,
    ):
        service.script.append(hangs)
        service.usually = WELL
        retain(http, TEXT)
        awaited(lambda: service.asked)
        # Another store needs the slot: the question is cancelled, and the store closes.
        accepted(http.put("/api/memory/other"), 201)
        awaited(lambda: list(there.pool.open_stores()) == ["other"])
        assert settled(http)["extracted"] == 1
        service.script.append(hangs)
        retain(http, "Another text.")
        awaited(lambda: len(service.asked) == 3)
        # The server stops despite a timeout of ten minutes.


def test_metrics_are_exposed_without_the_api_key(service: Service, alone: httpx.Client) -> None:
    service.script.append(echoes(400))
    service.script.append(echoes(503))
    service.usually = WELL
    retain(alone, TEXT)
    settled(alone)
    told = alone.get("/metrics").text
    assert 'kgserve_extractions_total{outcome="ok"} 1.0' in told
    assert 'kgserve_extractions_total{outcome="failed"} ' in told
    assert 'kgserve_store_extraction_waiting{store="default"} 0.0' in told
    assert KEY not in told
    documented = (TOP / "docs/observation.md").read_text()
    families = set(re.findall(r"^# TYPE (kgserve_\w*(?:extract|llm)\w*)", told, re.MULTILINE))
    assert len(families) == 5
    assert [each for each in families if f"`{each}`" not in documented] == []


def test_without_model_extract_is_rejected(http: httpx.Client, tmp_path: Path) -> None:
    with serving(tmp_path / "without") as there, httpx.Client(base_url=there.url) as plain:
        assert "extracting" not in retain(plain, TEXT)
        assert retain(plain, TEXT, extract=True)["extracting"] is False
        assert "extraction" not in accepted(plain.get("/api/memory/default/stats"))
        assert "kgserve_extractions" not in plain.get("/metrics").text
        refused = plain.post("/api/v1/extract", json={})
        assert refused.status_code == 400
        assert "KGSERVE_LLM_URL" in refused.json()["detail"]


def test_fake_completion_format() -> None:
    assert json.loads(completion("x"))["choices"][0]["message"]["content"] == "x"


def test_erased_person_is_not_in_queue(service: Service, alone: httpx.Client, tmp_path: Path) -> None:
    service.usually = status(503, "no answer about Quixley")
    retain(alone, "Quixley likes tea.", entity_id="quixley-1", entities=[{"name": "Quixley"}])
    retain(alone, "We use Postgres 17.")
    awaited(lambda: extraction(alone)["failures"] >= 1)
    root = tmp_path / "data" / "default_memory"
    assert "extraction.sqlite" in {name.removesuffix("-wal") for name in traces(root, ["Quixley"])}
    service.usually = says()
    body = {"entity": "Quixley", "erase": True, "confirm": "Quixley"}
    assert accepted(alone.post("/api/v1/forget", json=body))["memories_removed"] == 1
    assert traces(root, ["Quixley"]) == {}
    assert settled(alone)["waiting"] == 0
