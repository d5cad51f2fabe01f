"""The official clients list the tools of an entity memory as they are described, and call them, listed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.access.keys import bearer, given
from tests.cli.running import PATIENCE, Running
from tests.http.serving import Served, accepted
from tests.mcp.test_entity_memory import ARGUMENTS, NO_DEFAULT, SET
from tests.mcp_clients.conftest import Way, way_to
from tests.mcp_clients.conversation import Outcome, Step, at, check, check_results
from tests.mcp_clients.packages import INSTALL_SECONDS
from tests.mcp_clients.talking import VERSIONS, Era, in_python, in_typescript

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS + PATIENCE)

CLIENTS = [("python", "legacy"), ("python", "auto"), ("sdk", "legacy"), ("client", "legacy"), ("client", "auto")]
WORKS = {"source": "Ann", "target": "Acme", "relation_type": "works_at"}


def conversation(store: str) -> list[Step]:
    """Every tool once."""
    there: dict[str, Any] = {"index": store}
    entity = {"name": "Ann", "entity_type": "person", "description": "An engineer", "metadata": {"since": 2019}}
    memory = {"content": "Ann drinks tea", "memory_type": "preference", "tags": ["a"], "confidence": 0.9}
    memory |= {"source": "talk", "context": "at lunch", "metadata": {"n": 1}, "entity_names": ["Ann"]}
    asked = {"query": "tea", "search_mode": "keyword", "memory_types": ["preference"], "tags": ["a"], "limit": 5}
    return [
        Step("create_entities", there | {"entities": [entity]}, {("entities", 0, "outcome"): "created"}),
        Step("create_relations", there | {"relations": [WORKS]}, {("relations", 0, "strength"): 0.5}),
        Step("store_memory", there | memory, {("outcome",): "created", ("confidence",): 0.9, ("entities",): ["Ann"]}),
        Step(
            "recall_memories",
            there | asked | {"min_confidence": 0.1, "entity_name": "ann"},
            {("memories", 0, "content"): "Ann drinks tea"},
        ),
        Step(
            "get_entity_graph",
            there | {"entity_name": "Ann", "depth": 1, "min_strength": 0.5, "include_memories": True},
            {("nodes", 1, "name"): "Acme", ("nodes", 0, "memories", 0, "content"): "Ann drinks tea"},
        ),
        Step("get_memory_stats", there, {("total_memories",): 1, ("total_entities",): 2, ("total_relations",): 1}),
        Step(
            "consolidate_memories",
            there | {"similarity_threshold": 0.85, "dry_run": True},
            {("dry_run",): True, ("clusters_found",): 0},
        ),
        Step("delete_relations", there | {"relations": [WORKS]}, {("deleted",): 1}),
        Step("delete_memories", there | {"memory_types": ["preference"]}, {("deleted",): 1}),
        Step("delete_entities", there | {"entity_names": ["Ann"], "cascade_memories": False}, {("deleted",): 1}),
    ]


def talk(packages: Path, way: Way, plan: list[Step], client: str, era: Era) -> Outcome:
    return in_python(way, plan, era) if client == "python" else in_typescript(packages, way, plan, client, era)


@pytest.mark.parametrize("client", CLIENTS, ids="-".join)
def test_the_ten_are_listed_as_described_and_called(
    packages: Path, server: Running, store: str, client: tuple[str, Era]
) -> None:
    plan = conversation(store)
    # Each client takes one of the two ways.
    way = way_to(server, SET, bridge=client in {("python", "auto"), ("client", "legacy")})
    outcome = talk(packages, way, plan, *client)
    check(outcome, plan, VERSIONS[client[1]])
    for tool in outcome.tools:
        schema = tool["inputSchema"]
        required = schema.get("required", ())
        found = {
            name: NO_DEFAULT if name in required else field.get("default")
            for name, field in schema.get("properties", {}).items()
        }
        assert found == ARGUMENTS[tool["name"]]


@pytest.mark.parametrize("client", [("python", "legacy"), ("sdk", "legacy"), ("client", "auto")], ids="-".join)
def test_what_is_not_listed_is_called(packages: Path, server: Running, store: str, client: tuple[str, Era]) -> None:
    plan = conversation(store)
    outcome = talk(packages, Way(f"{server.url}/mcp", None), plan, *client)
    check_results(outcome, plan, VERSIONS[client[1]])
    assert not {*outcome.names} & ARGUMENTS.keys()
    assert "search_knowledge" in outcome.names


@pytest.mark.parametrize("client", [("python", "legacy"), ("client", "auto")], ids="-".join)
def test_who_only_reads_recalls_and_changes_nothing(
    packages: Path, keyed: Served, admin: httpx.Client, store: str, client: tuple[str, Era]
) -> None:
    named = {"Kgserve-Store": store}
    body = {"content": "Ann drinks tea", "memory_type": "preference", "tags": ["a"], "entity_names": ["Ann"]}
    stored = accepted(admin.post("/api/memories", json=body, headers=named), 201)
    indexed = {"query": "tea", "touch": False, "at_least": stored["sequence"]}
    accepted(admin.post("/api/memories/search", json=indexed, headers=named))
    before = admin.get(f"/api/memory/{store}/export").content
    headers = bearer(given(keyed.data, "read", name="-".join((*client, store)))) | named
    way = Way(f"{keyed.url}/mcp?tools={SET}", None, headers)
    reads = {"recall_memories", "get_entity_graph", "get_memory_stats"}
    plan = conversation(store)
    outcome = talk(packages, way, plan, *client)
    assert {*outcome.names} == ARGUMENTS.keys()
    for step, result in zip(plan, outcome.results, strict=True):
        assert bool(result.get("isError")) is (step.tool not in reads), (step.tool, result)
    found = next(result for step, result in zip(plan, outcome.results, strict=True) if step.tool == "recall_memories")
    assert at(found, "memories", 0, "content") == "Ann drinks tea"
    assert admin.get(f"/api/memory/{store}/export").content == before
