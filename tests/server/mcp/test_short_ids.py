"""Short ids: answers show the first characters of generated ids, and every tool accepts them."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.server.mcp.talking import Stateless

SHORT = re.compile(r"\b[0-9a-f]{8}\b(?!-)")
FULL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class TextAgent:
    """Client that reads the text of answers only, as most hosts show it to a model."""

    def __init__(self, http: httpx.Client, store: str) -> None:
        self._calls, self._headers = Stateless(http), {"kgserve_store": store, "kgserve_answers": ""}

    def __call__(self, tool: str, **arguments: Any) -> str:
        result = self._calls.call(tool, arguments, **self._headers)
        text = result["content"][0]["text"]
        assert not result["isError"], text
        assert "structuredContent" not in result
        return text

    def refused(self, tool: str, **arguments: Any) -> str:
        result = self._calls.call(tool, arguments, **self._headers)
        assert result["isError"], result
        return result["content"][0]["text"]

    def retain(self, content: str, **arguments: Any) -> str:
        """Return the short id of a new memory."""
        text = self("retain", content=content, **arguments)
        found = re.fullmatch(r"created ([0-9a-f]{8})(, about .*)?", text)
        assert found, text
        return found[1]


@pytest.fixture
def agent(bare: httpx.Client, store: str) -> TextAgent:
    return TextAgent(bare, store)


def test_retain_answers_with_one_line(agent: TextAgent) -> None:
    assert re.fullmatch(
        r"created [0-9a-f]{8}, about Ann, Postgres",
        agent("retain", content="Ann likes it.", entities=["Ann", "Postgres"]),
    )
    known = agent("retain", content="Ann likes it.")
    assert re.fullmatch(r"unchanged [0-9a-f]{8} \(is known already\)", known)


def test_a_short_id_works_wherever_an_id_does(agent: TextAgent) -> None:
    memory = agent.retain("We deploy on Tuesdays.")
    changed = agent("retain", content="We deploy on Fridays.", supersedes=memory, valid_from="2024-05-01T00:00:00Z")
    assert re.fullmatch(rf"updated {memory} \(supersedes '@\d+', which was true until 2024-05-01T00:00:00Z\)", changed)
    whole = agent("get_memory", id=memory)
    [former] = re.findall(rf"before \[({memory}@\d+)\]: We deploy on Tuesdays\.", whole)
    assert "We deploy on Tuesdays." in agent("get_memory", id=former)
    assert "We deploy on Fridays." in agent("get_entity", id=memory)
    assert "We deploy on Fridays." in agent("get_entity", id=f"[{memory}]")
    assert f'id="{memory}"' in agent("traverse_knowledge_graph", start_id=memory)
    child = agent.retain("Deployments are announced in the chat.", parent=memory)
    agent("inject_knowledge_graph", edges=[{"from": child, "to": memory, "relation_type": "EXPLAINS"}])
    assert f'"{child}" -[EXPLAINS]-> "{memory}"' in agent("get_entity", id=memory)
    assert child in agent("list_entities", ids=[child])
    assert agent("forget", ids=[child, memory]).startswith("3 memories withdrawn.")
    assert agent("forget", ids=[child, memory], undo=True).startswith("3 memories restored")


def test_answers_contain_no_full_id_of_a_memory(agent: TextAgent) -> None:
    memories = [agent.retain(f"Ann grows {plant}.", entities=["Ann"]) for plant in ("roses", "beans", "mint")]
    for tool, arguments in (
        ("recall", {"query": "Ann grows"}),
        ("recall", {"query": "Ann grows roses", "past": "show"}),
        ("forget", {"query": "Ann grows roses"}),
        ("get_context", {"query": "Ann grows"}),
        ("search_knowledge", {"query": "Ann grows"}),
        ("list_entities", {"types": ["fact"]}),
        ("describe_store", {}),
        ("reflect", {"dry_run": True}),
        ("entity_history", {"id": memories[0]}),
    ):
        text = agent(tool, **arguments)
        assert not FULL.search(text), (tool, text)
    text = agent("recall", query="Ann grows roses")
    assert {*memories} == {*SHORT.findall(text)}
    assert len(SHORT.findall(text)) == 3, "each id stands once"


def test_cypher_returns_full_ids(agent: TextAgent) -> None:
    memory = agent.retain("Ann grows figs.")
    [full] = FULL.findall(agent("query_cypher", query="MATCH (f:fact) RETURN f.id"))
    assert full.startswith(memory)
    assert full[:8] in agent("get_memory", id=full)


def test_an_ambiguous_short_id_is_refused_and_shown_longer(agent: TextAgent) -> None:
    ids = [f"0a0b0c0d-{n}000-4000-8000-00000000000{n}" for n in (1, 2)]
    agent("inject_knowledge_graph", nodes=[{"id": each, "type": "note", "content": "twin"} for each in ids])
    refused = agent.refused("get_entity", id="0a0b0c0d")
    assert "'0a0b0c0d' could be several ids" in refused
    assert all(each in refused for each in ids)
    listed = agent("list_entities", types=["note"])
    assert [f'"{each[:10]}"' for each in ids] == re.findall(r'"0a0b[^"]*"', listed)
    assert "twin" in agent("get_entity", id="0a0b0c0d-2")


def test_ids_that_callers_chose_stay_as_they_are(agent: TextAgent) -> None:
    agent("inject_knowledge_graph", nodes=[{"id": "deadbeef", "type": "commit", "content": "Fix the build"}])
    assert '"deadbeef" (commit)' in agent("get_entity", id="deadbeef")
    agent("inject_knowledge_graph", nodes=[{"id": "cafecafe", "type": "commit"}])
    assert "cafecafe" in agent("list_entities", types=["commit"])
    assert "cafecafe" in agent.refused("get_memory", id="cafecafe00") + "cafecafe"


def test_content_that_cites_an_id_is_returned_unchanged(agent: TextAgent) -> None:
    agent.retain("Ann grows pears.")
    [full] = FULL.findall(agent("query_cypher", query="MATCH (f:fact) RETURN f.id"))
    agent("inject_knowledge_graph", nodes=[{"id": "note", "type": "note", "content": f"It follows from [{full}]."}])
    assert f"It follows from [{full}]." in agent("get_entity", id="note")


def test_tool_resource_documents_unlisted_arguments(agent: TextAgent, bare: httpx.Client) -> None:
    params = {"uri": "kgserve://_tools/retain"}
    [contents] = Stateless(bare).post("resources/read", {**params, "name": params["uri"]}).json()["result"]["contents"]
    assert contents["mimeType"] == "text/markdown"
    for argument in ("content", "messages", "layer", "valid_to", "importance", "index", "metadata"):
        assert f"- `{argument}` (" in contents["text"]
