"""Every answer to a write contains its commit sequence, in the API description and in responses."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.http.serving import accepted

WITHOUT = {
    "drainNode": "moves stores, commits to none",
    "finishUpgrade": "changes the format of logs, commits to no store",
    "moveStore": "changes the node that serves a store, commits nothing",
    "dropStore": "leaves no store to have a sequence",
    "backup": "copies several stores, each of which has its own",
    "restoreBackup": "makes several stores, each of which has its own",
    "browserKey": "makes a key of the explorer",
}
"""Write and admin operations whose answers have no sequence, with the reason."""
READS_OF_ADMINISTRATORS = {"audit", "cluster"}


def _schema(document: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    name = reference.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else reference


def test_every_write_documents_its_sequence(http: httpx.Client) -> None:
    document = accepted(http.get("/openapi.json"))
    operations = [each for path in document["paths"].values() for each in path.values() if isinstance(each, dict)]
    writes = {each["operationId"]: each for each in operations if each.get("x-role") in ("write", "admin")}
    without = {
        name
        for name, each in writes.items()
        for status, answer in each["responses"].items()
        if status in ("200", "201")
        and "sequence" not in _schema(document, answer["content"]["application/json"]["schema"]).get("required", ())
    }
    assert without - READS_OF_ADMINISTRATORS == WITHOUT.keys()
    assert len(writes) > 40


def test_multi_store_answers_have_a_sequence_per_store(http: httpx.Client) -> None:
    schemas = accepted(http.get("/openapi.json"))["components"]["schemas"]
    for name in ("StoreBackupAnswer", "RestoredStore", "CypherChanges"):
        assert "sequence" in schemas[name]["required"], name


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_changes_of_memories_and_entities_answer_with_the_sequence(http: httpx.Client, store: str, method: str) -> None:
    at = {"store": store}
    made = accepted(http.post("/api/memories", params=at, json={"content": "drinks tea", "entity_names": ["Ann"]}), 201)
    memory = accepted(http.request(method, f"/api/memories/{made['id']}", params=at, json={"content": "drinks mate"}))
    entity = accepted(http.request(method, "/api/entities/Ann", params=at, json={"description": "a friend"}))
    again = accepted(http.request(method, "/api/entities/Ann", params=at, json={"description": "a friend"}))
    assert [each["sequence"] for each in (made, memory, entity, again)] == [1, 2, 3, 3]
    assert accepted(http.get(f"/api/memory/{store}/stats"))["sequence"] == 3
