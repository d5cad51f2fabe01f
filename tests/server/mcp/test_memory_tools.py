"""The toolset `memory`: a short tool list, one line per memory, and calls with the ids in the replies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from kgserve.memory.organize_memories import build_empty_organize_memories_answer
from kgserve.memory.reflect_models import ParentConceptCandidate, ReflectionProposal
from kgserve.server.mcp.memory_tools import ReflectArguments
from kgserve.server.mcp.tool_replies import build_tool_reply
from kgserve.server.mcp.tool_structured_content import MAX_REPLY_CHARS
from kgserve.server.mcp.toolsets import TOOLSET_MEMORY
from tests.server.mcp.talking import Stateless

READS = (True, None)
HINTS = {
    "retain": (False, False),
    "recall": READS,
    "reflect": (False, True),
    "forget": (False, True),
    "get_memory": READS,
}
MOST_LISTED = 4_300


class Agent:
    """Client that selects the toolset."""

    def __init__(self, http: httpx.Client, store: str) -> None:
        self._asks, self._wishes = Stateless(http), {"kgserve_tools": TOOLSET_MEMORY, "kgserve_store": store}
        self.text = ""

    def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = self._asks.call(tool, arguments, **self._wishes)
        self.text = result["content"][0]["text"]
        assert not result["isError"], self.text
        assert len(self.text) <= MAX_REPLY_CHARS
        return result["structuredContent"]

    def refused(self, tool: str, **arguments: Any) -> str:
        result = self._asks.call(tool, arguments, **self._wishes)
        assert result["isError"], result
        return result["content"][0]["text"]

    def listed(self) -> list[dict[str, Any]]:
        return self._asks.post("tools/list", {}, **self._wishes).json()["result"]["tools"]


@pytest.fixture
def agent(bare: httpx.Client, store: str) -> Agent:
    return Agent(bare, store)


def test_the_list_is_short_and_says_when_to_call(agent: Agent) -> None:
    tools = agent.listed()
    hints = {each["name"]: each["annotations"] for each in tools}
    assert {name: (each["readOnlyHint"], each.get("destructiveHint")) for name, each in hints.items()} == HINTS
    assert not any("outputSchema" in each for each in tools)
    assert len(msgspec.json.encode(tools)) <= MOST_LISTED
    assert all(each["description"].startswith(("When ", "Before ")) for each in tools)
    schemas = {each["name"]: each["inputSchema"] for each in tools}
    assert [*schemas["retain"]["properties"]] == ["content", "supersedes", "memory_type", "entities", "valid_from"]
    assert [*schemas["recall"]["properties"]] == ["query", "limit", "entity", "types", "valid_at"]
    assert schemas["recall"]["properties"]["limit"]["default"] == 10
    assert {name: schema.get("required", []) for name, schema in schemas.items()} == {
        "retain": ["content"],
        "recall": ["query"],
        "get_memory": ["id"],
        "reflect": [],
        "forget": [],
    }


def test_a_decision_is_retained_recalled_superseded_and_forgotten(agent: Agent) -> None:
    empty = agent("recall", query="which database?")
    assert empty["memories"] == []
    assert "retain creates the store" in empty["hint"]
    created = (datetime.now(UTC) - timedelta(days=3, hours=1)).isoformat()
    made = agent(
        "retain",
        content="The web shop ships with Postgres 16.",
        memory_type="decision",
        entities=[{"name": "Alice", "entity_type": "person"}],
        relations=[{"source": "Alice", "target": "Web shop", "relation_type": "works_on"}],
        created_at=created,
        valid_from="2020-01-01",
    )
    memory = made["operations"][0]["memory_id"]
    assert made["operations"][0]["type"] == "create"
    assert "midnight in UTC" in made["notes"][0]
    found = agent("recall", query="which Postgres do we use?")
    assert [each["id"] for each in found["memories"]] == [memory]
    line = agent.text.splitlines()[0]
    assert line.startswith(f"[{memory[:8]}] (decision, conf 0.")
    assert line.endswith("3 d ago) The web shop ships with Postgres 16. — about Alice")
    assert agent("recall", query="Postgres", after="2199-01-01T00:00:00Z")["memories"] == []
    for name in ("after", "before"):
        refused = agent.refused("recall", query="Postgres", **{name: "last week"})
        assert name in refused
        assert f"{name}_date" not in refused

    changed = agent("retain", content="The web shop ships with Postgres 17.", supersedes=memory)
    assert [each["type"] for each in changed["operations"]][:1] == ["update"]
    [now] = [each for each in agent("recall", query="which Postgres do we use?")["memories"] if not each.get("ended")]
    assert "17" in now["content"]
    whole = agent("get_memory", id=now["id"])
    assert "16" in whole["versions"][0]["content"]
    assert "The web shop ships with Postgres 16." in agent.text

    offered = agent("forget", query="Postgres")
    assert now["id"] in [each["id"] for each in offered["matches"]]
    assert agent("forget", ids=[now["id"]], dry_run=True)["memories_removed"] == 2
    gone = agent("forget", ids=[now["id"]], reason="asked to")
    assert gone["memories_removed"] == 2
    assert "undo=true" in gone["hint"]
    assert agent("recall", query="Postgres")["memories"] == []
    assert agent("forget", ids=[now["id"]], undo=True)["memories_restored"] == 2
    assert agent("recall", query="Postgres")["memories"][0]["id"] == now["id"]
    assert agent("forget", ids=["nobody"])["memories_removed"] == 0
    erased = agent("forget", ids=[now["id"]], erase=True)
    assert (erased["memories_removed"], [each["kind"] for each in erased["remains"]]) == (2, ["unknown"])
    assert "erased" in agent.text
    assert agent("recall", query="Postgres")["memories"] == []
    assert "exactly one of entity_id, ids, query and entity" in agent.refused("forget")


def test_conversation_is_retained_by_message(agent: Agent) -> None:
    turns = [{"role": "user", "content": "We open at nine."}, {"role": "assistant", "content": "Noted: nine."}]
    first = agent("retain", content=turns, source="talk")
    assert [each["type"] for each in first["operations"]].count("create") == 2
    again = agent("retain", content=turns, source="talk")
    assert "create" not in [each["type"] for each in again["operations"]]
    assert "content" in agent.refused("retain", content=[])
    later = agent("retain", messages=[*turns, {"role": "user", "content": "And on Sundays?"}], source="talk")
    assert [each["content"] for each in later["operations"] if each["type"] == "create"] == ["And on Sundays?"]
    assert "as content, or a conversation as messages" in agent.refused("retain", messages=turns, content="both")
    assert "as content, or a conversation as messages" in agent.refused("retain", source="neither")


def test_answers_keep_to_budget_and_size(agent: Agent) -> None:
    agent("retain", content=[{"content": f"Report {n}: {'word ' * 400}"} for n in range(40)], source="reports")
    few = agent("recall", query="report word")
    assert 0 < len(few["memories"]) < 10
    assert few["withheld"]["over_budget"] > 0
    many = agent("recall", query="report word", limit=100, budget=25_000)
    assert len(many["memories"]) > len(few["memories"])
    told = agent("get_memory", id=many["memories"][0]["id"])
    assert len(told["content"]) > 1_000


def test_reflection_numbers_its_proposals(agent: Agent) -> None:
    agent("retain", content="Postgres listens on port 5432.", expires_in="7d")
    assert "no vectors" in agent("reflect", dry_run=True)["hint"]
    assert "no run yet" in agent.refused("reflect", accept=[99])
    proposals = [
        ReflectionProposal(number=1, kind="contradiction", ids=["b", "a"], differs="numbers"),
        ReflectionProposal(number=2, kind="concept", ids=["c", "d", "e"], name="trams", state="refused"),
        ReflectionProposal(number=3, kind="link", ids=["f"], candidates=[ParentConceptCandidate(id="g", score=0.5)]),
    ]
    found = replace(
        build_empty_organize_memories_answer("run", dry_run=False),
        proposals=proposals,
        proposals_count=3,
        near_checked=True,
    )
    reply = build_tool_reply(found, ReflectArguments(), "")
    assert reply.text.splitlines()[1:] == [
        "1. [b], [a] contradict each other in numbers",
        "2. a new concept 'trams' above [c], [d], [e] (refused)",
        "3. [f] belongs below [g] (0.50)",
    ]
    assert "accept=[numbers]" in reply.hint
    assert [each["number"] for each in reply.values["proposals"]] == [1, 2, 3]


@pytest.mark.parametrize("retained_first", [True, False])
def test_a_text_is_one_memory_whether_stored_or_retained(
    agent: Agent, bare: httpx.Client, store: str, *, retained_first: bool
) -> None:
    text = "The deploy runs on Tuesdays."

    def retain() -> str:
        return agent("retain", content=text)["operations"][0]["memory_id"]

    def store_memory() -> str:
        return bare.post("/api/memories", params={"store": store}, json={"content": text}).json()["id"]

    first, second = (retain(), store_memory()) if retained_first else (store_memory(), retain())
    assert first == second
    listed = bare.get("/api/memories", params={"store": store}).json()["memories"]
    assert [(each["id"], each["layer"]) for each in listed] == [(first, 2)]


def test_recall_without_hits_has_a_hint_and_counts_no_access(agent: Agent) -> None:
    memory = agent("retain", content="The cafeteria closes at 3 pm.")["operations"][0]["memory_id"]
    for _ in range(3):
        found = agent("recall", query="quantum chromodynamics")
        assert found["memories"] == []
        assert "no memory is relevant" in found["hint"]
    assert agent("forget", query="quantum chromodynamics")["matches"] == []
    assert [each["id"] for each in agent("recall", query="cafeteria", touch=False)["memories"]] == [memory]
    far = agent("recall", query="quantum chromodynamics", min_similarity=-1, touch=False)
    assert [each["id"] for each in far["memories"]] == [memory]


def test_deleting_an_entity_names_its_memories_and_how_to_forget_them(
    agent: Agent, bare: httpx.Client, store: str
) -> None:
    made = agent("retain", content="Bob's phone number is 555.", entities=[{"name": "Bob", "entity_type": "person"}])
    memory = made["operations"][0]["memory_id"]
    assert memory in agent.refused("forget", entity_id="Bob")
    deleted = bare.delete("/api/entities/Bob", params={"store": store, "dry_run": True}).json()
    assert (deleted["memories_kept"], deleted["memory_ids"]) == (1, [memory])
    result = Stateless(bare).call("delete_graph_entity", {"id": "Bob"}, kgserve_store=store, kgserve_tools="all")
    assert "1 memory mentions it" in result["content"][0]["text"]
    assert result["structuredContent"]["memory_ids"] == [memory]
    named = agent("forget", entity_id="Bob")
    assert [each["id"] for each in named["matches"]] == [memory]
    recalled = agent("recall", query="telephone", entity="Bob", touch=False)
    assert ([each["id"] for each in recalled["memories"]], recalled["deleted_entity"]["id"]) == ([memory], "Bob")
    assert [each["id"] for each in agent("recall", query="Bob", touch=False)["memories"]] == [memory]
    assert agent("forget", ids=[memory])["memories_removed"] == 1
