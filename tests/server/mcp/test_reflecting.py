"""Reflection over the official client with the prepared model: dry run, run, decisions and undo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mcp import Client

from tests.embedding.prepared import model_settings
from tests.server.http.serving import RunningServer, accepted, serving
from tests.server.mcp.talking import Mode, talk, text_of

TRAMS = [
    *("Trams stop at the harbour.", "The tram to the harbour runs every ten minutes."),
    *("The last tram leaves the harbour at midnight.", "Trams to the harbour are free on Sundays."),
]
BREAD = ["Bread is baked at four in the morning.", "The bakery sells rye bread.", "Bread dough rests for two hours."]
POSTGRES = ["The web shop stores orders in Postgres.", "Backups of the web shop's database run at night."]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("reflecting") / "data"
    with serving(data, embedding_provider="local", models_dir=model_settings().models_dir) as running:
        yield running


def exported(http: httpx.Client, store: str) -> set[str]:
    """Export memories and their parents, without counts and versions."""
    page = accepted(http.get("/api/memories", params={"store": store, "limit": 1_000}))
    return {f"{each['id']} {each['content']} {each.get('parent_id')}" for each in page["memories"]}


def below_concept(http: httpx.Client, store: str, content: str) -> set[str]:
    page = accepted(http.get("/api/memories", params={"store": store, "types": "concept"}))
    [concept] = [each for each in page["memories"] if each["content"] == content]
    below = http.get(f"/api/v1/memories/{concept['id']}/children", params={"store": store})
    assert below.status_code == 200, below.text
    return {each["id"] for each in below.json()}


def test_reflect_dry_run_run_decisions_and_undo(served: RunningServer, mode: Mode, store: str) -> None:
    facts = [{"content": each, "layer": 2, "memory_type": "fact"} for each in (*TRAMS, *BREAD, *POSTGRES)]
    concept = {"id": "bread", "content": "Bread and baking", "layer": 1, "memory_type": "concept"}
    with httpx.Client(base_url=served.url, timeout=60) as http:
        done = accepted(http.post("/api/memories/batch", params={"store": store}, json={"memories": [concept, *facts]}))
        recall = {"store": store, "q": "x", "at_least": done["sequence"], "touch": "false"}
        assert http.get("/api/v1/recall", params=recall).status_code == 200
        before = exported(http, store)

        async def look(client: Client) -> None:
            async def reflect(**given: Any) -> tuple[dict[str, Any], str]:
                result = await client.call_tool("reflect", {"index": store, **given})
                assert not result.is_error, text_of(result)
                assert result.structured_content is not None
                return result.structured_content, text_of(result)

            names = {tool.name for tool in (await client.list_tools()).tools}
            assert names == {"retain", "recall", "reflect", "forget", "get_memory"}
            wanted = {"cluster_threshold": 0.4, "threshold": 0.4}
            dry, _ = await reflect(dry_run=True, **wanted)
            assert exported(http, store) == before
            assert dry["dry_run"] is True
            assert dry["linked_count"] > 0
            made, text = await reflect(**wanted)
            assert made["linked"] == dry["linked"]
            assert [each["number"] for each in made["proposals"]] == [each["number"] for each in dry["proposals"]]
            new = next(each for each in made["proposals"] if each["kind"] == "concept")
            assert f"{new['number']}. a new concept" in text
            assert "accept=[numbers]" in text
            await reflect(accept=[new["number"]], names={str(new["number"]): "Getting around by tram"})
            below = below_concept(http, store, "Getting around by tram")
            assert below == set(new["ids"])
            wrong = await client.call_tool("reflect", {"index": store, "accept": [new["number"]]})
            assert wrong.is_error
            assert "accepted already" in text_of(wrong)
            undone, _ = await reflect(undo=True)
            assert undone["undone"] > 0
            assert exported(http, store) == before

        talk(served.url, mode, look, tools="memory")
