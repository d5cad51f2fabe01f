"""The official clients list the tools of an entity memory as documented, and call them, listed or not."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from kgserve.server.mcp.toolsets import SHARED_TOOL_NAMES
from tests.cli.running import SERVER_TIMEOUT_SECONDS, ServerProcessHandle
from tests.mcp_clients.conftest import ServerAccess, way_to
from tests.mcp_clients.conversation import Outcome, Step, at, check, check_result, entity_steps
from tests.mcp_clients.official_clients import VERSIONS, Era, in_python, in_typescript
from tests.mcp_clients.packages import INSTALL_SECONDS
from tests.platform.access.keys import bearer, given
from tests.server.http.serving import RunningServer, accepted
from tests.server.mcp.test_entity_memory import ARGUMENTS, NO_DEFAULT, SET

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS + SERVER_TIMEOUT_SECONDS)

CLIENTS = [("python", "legacy"), ("python", "auto"), ("sdk", "legacy"), ("client", "legacy"), ("client", "auto")]


def talk(packages: Path, way: ServerAccess, plan: list[Step], client: str, era: Era) -> Outcome:
    return in_python(way, plan, era) if client == "python" else in_typescript(packages, way, plan, client, era)


@pytest.mark.parametrize("client", CLIENTS, ids="-".join)
def test_the_ten_tools_are_listed_as_documented_and_callable(
    packages: Path, server: ServerProcessHandle, store: str, client: tuple[str, Era]
) -> None:
    plan = entity_steps(store)
    # Each client uses one of the two kinds of access.
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
def test_unlisted_tools_are_callable(
    packages: Path, server: ServerProcessHandle, store: str, client: tuple[str, Era]
) -> None:
    plan = entity_steps(store)
    [shared, *_] = [step for step in plan if step.tool in SHARED_TOOL_NAMES]
    [own, *_] = [step for step in plan if step.tool == "store_memory"]
    outcome = talk(packages, ServerAccess(f"{server.url}/mcp", None), [own, shared], *client)
    check_result(own, outcome.results[0])
    assert not {*outcome.names} & ARGUMENTS.keys()
    assert "search_knowledge" in outcome.names
    # The memory server has a tool of that name, too: the set that the connection asks for decides.
    assert "with ?tools=entity-memory it is the entity memory's" in outcome.results[1]["content"][0]["text"]


@pytest.mark.parametrize("client", [("python", "legacy"), ("client", "auto")], ids="-".join)
def test_a_read_only_caller_recalls_and_changes_nothing(
    packages: Path, keyed: RunningServer, admin: httpx.Client, store: str, client: tuple[str, Era]
) -> None:
    named = {"Kgserve-Store": store}
    body = {"content": "Ann drinks tea", "memory_type": "preference", "tags": ["a"], "entity_names": ["Ann"]}
    stored = accepted(admin.post("/api/memories", json=body, headers=named), 201)
    indexed = {"query": "tea", "touch": False, "at_least": stored["sequence"]}
    accepted(admin.post("/api/memories/search", json=indexed, headers=named))
    before = admin.get(f"/api/memory/{store}/export").content
    headers = bearer(given(keyed.data, "read", name="-".join((*client, store)))) | named
    way = ServerAccess(f"{keyed.url}/mcp?tools={SET}", None, headers)
    reads = {"recall_memories", "get_entity_graph", "get_memory_stats"}
    plan = entity_steps(store)
    outcome = talk(packages, way, plan, *client)
    assert {*outcome.names} == ARGUMENTS.keys()
    for step, result in zip(plan, outcome.results, strict=True):
        assert bool(result.get("isError")) is (step.tool not in reads), (step.tool, result)
    found = next(result for step, result in zip(plan, outcome.results, strict=True) if step.tool == "recall_memories")
    assert at(found, "memories", 0, "content") == "Ann drinks tea"
    assert admin.get(f"/api/memory/{store}/export").content == before
