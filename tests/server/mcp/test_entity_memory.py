"""The entity-memory tools over a server: arguments, defaults, replies and permissions."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from mcp import Client

from kgserve.server.mcp.entity_memory_tools import ENTITY_MEMORY_TOOLS
from kgserve.server.mcp.tool_structured_content import MAX_REPLY_CHARS
from kgserve.server.mcp.toolsets import (
    SHARED_TOOL_NAMES,
    TOOLS,
    resolve_called_tool,
    select_mcp_tools_by_toolset_or_name,
)
from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import BOTH, Mode, Stateless, talk, text_of

SET = "entity-memory"
NO_DEFAULT = object()
ARGUMENTS: dict[str, dict[str, Any]] = {
    "store_memory": {
        "content": NO_DEFAULT,
        "memory_type": "observation",
        "tags": [],
        "confidence": 1.0,
        "source": None,
        "context": None,
        "metadata": {},
        "entity_names": [],
    },
    "recall_memories": {
        "query": NO_DEFAULT,
        "search_mode": "hybrid",
        "memory_types": None,
        "tags": None,
        "min_confidence": 0.1,
        "limit": 20,
        "entity_name": None,
    },
    "create_entities": {"entities": NO_DEFAULT},
    "create_relations": {"relations": NO_DEFAULT},
    "delete_memories": dict.fromkeys(("memory_ids", "before_date", "min_confidence_below", "memory_types")),
    "delete_entities": {"entity_names": NO_DEFAULT, "cascade_memories": False},
    "delete_relations": {"relations": NO_DEFAULT},
    "get_entity_graph": {"entity_name": NO_DEFAULT, "depth": 1, "min_strength": 0.0, "include_memories": True},
    "consolidate_memories": {"similarity_threshold": 0.85, "guard": True, "dry_run": False},
    "get_memory_stats": {},
}
READ_ONLY = {"recall_memories", "get_entity_graph", "get_memory_stats"}
DESTRUCTIVE = {"delete_memories", "delete_entities", "delete_relations", "consolidate_memories"}


class Agent:
    """Client that selects the toolset."""

    def __init__(self, http: httpx.Client, store: str) -> None:
        self._asks = Stateless(http)
        self._store = store

    def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = self._result(tool, arguments)
        assert not result["isError"], result
        assert len(result["content"][0]["text"]) <= MAX_REPLY_CHARS
        return result["structuredContent"]

    def refused(self, tool: str, **arguments: Any) -> str:
        result = self._result(tool, arguments)
        assert result["isError"], result
        return result["content"][0]["text"]

    def _result(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._asks.call(tool, arguments, kgserve_tools=SET, kgserve_store=self._store)


@pytest.fixture
def agent(bare: httpx.Client, store: str) -> Agent:
    return Agent(bare, store)


def test_tools_are_listed_with_arguments_and_defaults(server: ServerProcessHandle, mode: Mode) -> None:
    async def listed(client: Client) -> Any:
        return {tool.name: tool for tool in (await client.list_tools()).tools}

    tools = talk(server.url, mode, listed, tools=SET)
    assert set(tools) == set(ARGUMENTS)
    for name, tool in tools.items():
        schema = tool.input_schema
        given = {
            each: NO_DEFAULT if each in schema.get("required", ()) else said.get("default")
            for each, said in schema.get("properties", {}).items()
        }
        assert given == ARGUMENTS[name], name
        hints = tool.annotations
        assert hints.read_only_hint is (name in READ_ONLY), name
        assert hints.destructive_hint is (None if name in READ_ONLY else name in DESTRUCTIVE), name


def test_tool_names_shared_by_two_toolsets(bare: httpx.Client) -> None:
    assert {"create_entities", "create_relations", "delete_entities", "delete_relations"} == SHARED_TOOL_NAMES
    ours = {tool.name: tool for tool in ENTITY_MEMORY_TOOLS}
    for asked in (SET, "all", f"graph,{SET}"):
        assert resolve_called_tool("create_entities", asked) is ours["create_entities"]
    for asked in ("", "default", "memory", "graph", "memory-server"):
        assert resolve_called_tool("create_entities", asked) is TOOLS["create_entities"]
        assert resolve_called_tool("create_entities", asked) not in ours.values()
    assert [tool for tool in select_mcp_tools_by_toolset_or_name(SET) if tool.name in SHARED_TOOL_NAMES] == [
        ours[name] for name in ours if name in SHARED_TOOL_NAMES
    ]
    refused = bare.post(f"/mcp?tools={SET},memory-server", json={}, headers={"accept": BOTH})
    assert refused.status_code == 400
    assert "both have create_entities" in refused.json()["detail"]


def test_stored_memories_are_recalled_and_duplicates_reported(agent: Agent) -> None:
    made = agent("store_memory", content="Alice drinks tea in the morning", entity_names=["Alice"], tags=["habit"])
    assert (made["outcome"], made["memory_type"], made["confidence"], made["entities"]) == (
        *("created", "observation", 1.0),
        ["Alice"],
    )
    again = agent("store_memory", content="Alice drinks tea in the morning")
    assert (again["id"], again["outcome"]) == (made["id"], "duplicate")
    [found] = agent("recall_memories", query="tea", entity_name="alice")["memories"]
    assert (found["id"], found["content"], found["entities"]) == (made["id"], made["content"], ["Alice"])
    assert found["score"] > 0
    assert agent("recall_memories", query="tea", tags=["other"])["memories"] == []


def test_entities_and_relations_by_name(agent: Agent) -> None:
    made = agent("create_entities", entities=[{"name": "Alice", "entity_type": "person", "description": "Engineer"}])
    assert made["entities"] == [
        {"id": "Alice", "name": "Alice", "entity_type": "person", "description": "Engineer", "outcome": "created"}
    ]
    relation = {"source": "Alice", "target": "Web shop", "relation_type": "works_on"}
    related = agent("create_relations", relations=[relation])
    assert (related["relations"][0]["strength"], related["entities_created"]) == (0.5, ["Web shop"])
    assert "with create_entities" in related["hint"]
    agent("store_memory", content="The shop opens at nine", entity_names=["web shop"])
    graph = agent("get_entity_graph", entity_name="Alice")
    assert [each["name"] for each in graph["nodes"]] == ["Alice", "Web shop"]
    assert [each["content"] for each in graph["nodes"][1]["memories"]] == ["The shop opens at nine"]
    assert graph["edges"][0]["relation_type"] == "works_on"
    assert agent("delete_relations", relations=[relation, relation | {"target": "Bob"}])["deleted"] == 1
    gone = agent("delete_entities", entity_names=["Web shop", "Nobody"], cascade_memories=True)
    assert (gone["deleted"], gone["memories_deleted"], gone["missing"]) == (1, 1, ["Nobody"])
    assert "Nobody" in agent.refused("get_entity_graph", entity_name="Nobody")


def test_deletion_requires_a_filter(agent: Agent) -> None:
    kept = agent("store_memory", content="Something to keep")
    for given in ({}, {"memory_ids": []}):
        assert "at least one filter" in agent.refused("delete_memories", **given)
    old = agent("store_memory", content="Something to delete", memory_type="error")
    assert agent("delete_memories", memory_types=["error"])["ids"] == [old["id"]]
    assert [each["id"] for each in agent("recall_memories", query="something")["memories"]] == [kept["id"]]


def test_consolidation_dry_run_and_run(agent: Agent) -> None:
    for tag in ("a", "b"):
        agent("store_memory", content="The shop opens at nine", memory_type=f"kind {tag}")
    report = agent("consolidate_memories", dry_run=True)
    assert (report["dry_run"], report["memories_deleted"]) == (True, 0)
    done = agent("consolidate_memories", guard=False)
    assert (done["clusters_found"], done["near_checked"]) == (0, False)
    assert "only words were compared" in done["hint"]


def test_answers_keep_to_their_size(agent: Agent) -> None:
    for number in range(40):
        agent("store_memory", content=f"Report {number}: {'word ' * 400}", metadata={"n": number})
    found = agent("recall_memories", query="report word", limit=100)
    assert 0 < len(found["memories"]) < 40
    assert "lower limit" in found["more"]


def test_missing_default_store_is_empty(agent: Agent) -> None:
    found = agent("recall_memories", query="anything")
    assert found["memories"] == []
    assert "store_memory creates the store" in found["hint"]
    assert agent("get_entity_graph", entity_name="Alice")["nodes"] == []


def test_unlisted_tools_can_be_called(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    async def conversation(client: Client) -> Any:
        await client.call_tool("store_memory", {"index": store, "content": "Tea is served at four"})
        return await client.call_tool("recall_memories", {"index": store, "query": "tea"})

    assert "Tea is served at four" in text_of(talk(server.url, mode, conversation, tools="graph"))
