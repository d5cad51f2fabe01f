"""Advice of a language model on existing memories: answers, names and reasons, also with faulty models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.embedding.prepared import model_settings
from tests.memory.extraction.chat_service import KEY, Behaviour, Service, echoes, hangs, raw, says, words
from tests.memory.extraction.memory_client import Json, memories, retain
from tests.server.http.serving import RunningServer, accepted, refusal, serving
from tests.server.mcp.talking import Stateless

QUESTION = {"query": "Which database does the web shop use?", "answer": True}


@pytest.fixture(scope="module")
def there(model: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    options = {**model.options, "embedding_provider": "local", "llm_timeout": 1.0}
    data = tmp_path_factory.mktemp("advised") / "data"
    with serving(data, **options, models_dir=model_settings().models_dir) as found:
        yield found


def reflect(http: httpx.Client, **asked: Any) -> Json:
    return accepted(http.post("/api/v1/reflect", json=asked))


def exported(http: httpx.Client) -> str:
    return http.get("/api/memory/default/export").text


def test_answer_cites_memory_ids(service: Service, http: httpx.Client) -> None:
    ids = [
        retain(http, text)["operations"][0]["memory_id"]
        for text in ("The web shop uses Postgres 17.", "The moon is full.")
    ]
    service.usually = words(json.dumps({"answer": "Postgres 17.", "used": ["m1", "m1", "m77", "rm -rf"]}))
    before = exported(http)
    found = reflect(http, **QUESTION)
    assert (found["answer"], found["used"], found["linked"], found["proposals"]) == ("Postgres 17.", [ids[0]], [], [])
    material = json.loads(service.asked[0]["messages"][1]["content"])
    assert material["question"] == QUESTION["query"]
    assert material["memories"]["m1"]["text"] == "The web shop uses Postgres 17."
    rows = [line for line in exported(http).splitlines() if '"kind":"edge"' in line]
    assert rows == [line for line in before.splitlines() if '"kind":"edge"' in line]


def test_model_is_not_asked_without_matching_memories(service: Service, http: httpx.Client) -> None:
    accepted(http.put("/api/memory/default"), 201)
    found = reflect(http, **QUESTION)
    assert (found["answer"], found["used"], service.asked) == ("", [], [])
    refusal(http.post("/api/v1/reflect", json={"answer": True}), 400)
    refusal(http.post("/api/v1/reflect", json={**QUESTION, "dry_run": True}), 400)


BAD: dict[str, Behaviour] = {
    "garbage": raw(b"garbage"),
    "nothing": words("{}"),
    "empty": words('{"answer": ""}'),
    "a number": words('{"answer": 5}'),
    "500": echoes(500),
    "hangs": hangs,
}


@pytest.mark.parametrize("behaviour", BAD)
def test_unusable_model_answer_is_reported(service: Service, http: httpx.Client, behaviour: str) -> None:
    retain(http, "The web shop uses Postgres 17.")
    service.usually = BAD[behaviour]
    reply = refusal(http.post("/api/v1/reflect", json=QUESTION), 503)
    assert "language model" in reply["detail"]
    assert KEY not in reply["detail"]


def test_answer_without_model_names_the_settings(http: httpx.Client, tmp_path: Path) -> None:
    with serving(tmp_path / "without") as there, httpx.Client(base_url=there.url) as plain:
        retain(plain, "The web shop uses Postgres 17.")
        reply = refusal(plain.post("/api/v1/reflect", json=QUESTION), 400)
        assert "KGSERVE_LLM_URL" in reply["detail"]


def garden(http: httpx.Client) -> None:
    accepted(http.put("/api/memory/default"), 201)
    for text in ("Roses need pruning in spring.", "Prune the roses each spring.", "In spring roses are to be pruned."):
        retain(http, text, dedup="off", extract=False)
    for port in (5432, 5433):
        retain(http, f"The database listens on port {port}.", entities=[{"name": "Database"}], extract=False)
    accepted(http.patch("/api/memory/default", json={"memory": {"extract": True}}))


def test_proposals_include_names_and_reasons(service: Service, http: httpx.Client) -> None:
    garden(http)
    service.usually = words("no")
    plain = {each["number"]: each for each in reflect(http, dry_run=True)["proposals"]}
    kinds = {each["kind"]: number for number, each in plain.items()}
    assert kinds.keys() >= {"concept", "contradiction"}
    advice = [
        {"number": kinds["concept"], "name": "Pruning roses", "verdict": None, "reason": None},
        {"number": kinds["contradiction"], "name": None, "verdict": "supersedes", "reason": "The port was changed."},
        {"number": 99, "name": "Nothing"},
        {"number": "one"},
    ]
    service.usually = says(advice=advice, forget=["everything"])
    worded = {each["number"]: each for each in reflect(http, dry_run=True)["proposals"]}
    assert worded[kinds["concept"]]["name"] == "Pruning roses"
    assert worded[kinds["contradiction"]]["reason"] == "supersedes: The port was changed."
    assert {number: each["ids"] for number, each in worded.items()} == {
        number: each["ids"] for number, each in plain.items()
    }
    run = reflect(http)
    done = reflect(http, accept=[kinds["concept"]], run=run["run"])
    assert done["linked_count"] >= 2
    assert "Pruning roses" in memories(http)


def test_no_texts_are_sent_unless_store_enables_extraction(service: Service, http: httpx.Client) -> None:
    garden(http)
    accepted(http.patch("/api/memory/default", json={"memory": {"extract": False}}))
    found = reflect(http, dry_run=True)
    assert found["proposals"]
    assert "reason" not in found["proposals"][0]
    assert service.asked == []


def test_mcp_reflect_answers_questions(service: Service, http: httpx.Client) -> None:
    memory = retain(http, "The web shop uses Postgres 17.")["operations"][0]["memory_id"]
    service.usually = words(json.dumps({"answer": "Postgres 17.", "used": ["m1"]}))
    asked = {"name": "reflect", "arguments": {"index": "default", **QUESTION}}
    reply = accepted(http.send(Stateless(http).request("tools/call", asked)))["result"]
    assert reply["content"][0]["text"].splitlines()[:2] == ["Postgres 17.", f"based on [{memory[:8]}]"]
    assert (reply["structuredContent"]["answer"], reply["structuredContent"]["used"]) == ("Postgres 17.", [memory])
