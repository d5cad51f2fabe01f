"""Forgetting a person on a server with a real embedding model: no answer of REST, MCP and CLI has the name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.cli.running import kgserve
from tests.embedding.prepared import model_settings
from tests.memory.disk_search import traces
from tests.server.http.serving import RunningServer, accepted, serving
from tests.server.mcp.talking import call, lines, refusal, text_of

NAME = "Quixley"
FACTS = {
    "tea": ("Quixley prefers green tea.", ["Quixley"]),
    "pair": ("Alice and Quixley chose Postgres 17.", ["Alice", "Quixley"]),
    "sushi": ("Likes sushi.", ["Quixley"]),
    "fair": ("They met at a fair.", ["Quixley", "Alice"]),
    "database": ("We use Postgres 17.", []),
}
READS = (
    "/api/memories?limit=100&store={store}",
    "/api/memories?limit=100&valid_at=any&store={store}",
    "/api/memories/search?q=green+tea&min_similarity=-1&store={store}",
    "/api/v1/recall?q=who+likes+sushi&store={store}",
    "/api/entities?store={store}",
    "/api/relations?store={store}",
    "/api/memory/{store}/nodes?valid_at=any",
    "/api/memory/{store}/export",
    "/api/entities/Alice/graph?store={store}",
    "/api/analytics/overview?store={store}",
)
TOOLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("recall", {"query": "what does everybody like?", "min_similarity": -1}),
    ("get_context", {"query": "green tea"}),
    ("search_knowledge", {"query": "green tea and sushi"}),
    ("list_entities", {}),
    ("query_cypher", {"query": "MATCH (n:Entity) RETURN n.id, n.name, n.content"}),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("forgetting") / "data"
    options: dict[str, Any] = {"embedding_provider": "local", "models_dir": model_settings().models_dir}
    with serving(data, **options) as running, lines(running.url):
        yield running


@pytest.fixture
def rest(served: RunningServer, store: str) -> Iterator[httpx.Client]:
    """Connection to a store with memories about a person."""
    with httpx.Client(base_url=served.url, timeout=60) as http:
        sequence = 0
        for memory, (content, about) in FACTS.items():
            entities = [{"name": name, "entity_type": "person"} for name in about]
            body = {"content": content, "entities": entities, "entity_id": memory}
            sequence = accepted(http.post(f"/api/v1/retain?store={store}", json=body))["sequence"]
        recall = {"store": store, "q": "tea", "at_least": sequence}
        assert http.get("/api/v1/recall", params=recall).status_code == 200
        yield http


def current_answers(http: httpx.Client, url: str, store: str) -> str:
    """Return what reads of the present answer over REST and MCP, as one text."""
    found: list[str] = []
    for path in READS:
        response = http.get(path.format(store=store))
        assert response.status_code == 200, response.text
        found.append(response.text)
    found.append(http.post(f"/api/memory/{store}/search", json={"query": "green tea"}).text)
    statement = {"query": "MATCH (a)-[r]->(b) RETURN a.id, r, b.id"}
    found.append(http.post(f"/api/memory/{store}/cypher", json=statement).text)
    for tool, arguments in TOOLS:
        done = call(url, "auto", tool, index=store, **arguments)
        found.append(f"{text_of(done)} {done.structured_content}")
    return "\n".join(found).lower()


def test_person_is_forgotten_over_rest(served: RunningServer, rest: httpx.Client, store: str) -> None:
    assert NAME.lower() in current_answers(rest, served.url, store)
    dry = accepted(rest.post(f"/api/v1/forget?store={store}", json={"entity": NAME, "dry_run": True}))
    assert {each["id"]: each["also_about"] for each in dry["preview"]} == {"tea": [], "pair": ["Alice"], "sushi": []}
    assert [(each["id"], each["kind"]) for each in dry["kept"]] == [("fair", "memory")]
    done = accepted(rest.post(f"/api/v1/forget?store={store}", json={"entity": NAME}))
    assert (done["ids"], done["entities_removed"], done["memories_shared"]) == (dry["ids"], [NAME], 1)
    assert NAME.lower() not in current_answers(rest, served.url, store)
    for path in (f"/api/entities/{NAME}?store={store}", f"/api/memories?entity={NAME}&store={store}"):
        assert rest.get(path).status_code == 404
    past = rest.get(f"/api/memory/{store}/nodes/{NAME}", params={"as_of": done["sequence"] - 2})
    assert past.json()["node"]["name"] == NAME


def test_person_is_erased_over_rest(served: RunningServer, rest: httpx.Client, store: str) -> None:
    root = served.settings.data_dir / f"{store}_memory"
    current_answers(rest, served.url, store)
    assert traces(root, [NAME])
    refused = rest.post(f"/api/v1/forget?store={store}", json={"entity": NAME, "erase": True})
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "confirm")
    done = accepted(rest.post(f"/api/v1/forget?store={store}", json={"entity": NAME, "erase": True, "confirm": NAME}))
    assert (done["memories_removed"], [each["kind"] for each in done["remains"]]) == (3, ["unknown"])
    assert NAME.lower() not in current_answers(rest, served.url, store)
    assert traces(root, [NAME]) == {}
    assert NAME not in (served.settings.data_dir / "audit.log").read_text()


def test_person_is_forgotten_over_mcp(served: RunningServer, rest: httpx.Client, store: str) -> None:
    deleted = call(served.url, "auto", "delete_graph_entity", index=store, id=NAME)
    assert "4 memories mention it and stay" in text_of(deleted)
    assert "forget with entity" in text_of(deleted)
    preview = text_of(call(served.url, "auto", "forget", index=store, entity=NAME, dry_run=True))
    assert "'Quixley' would be forgotten: 3 memories." in preview
    done = call(served.url, "auto", "forget", index=store, entity=NAME)
    assert "'Quixley' forgotten: 3 memories." in text_of(done)
    assert "undo=true with the same entity restores it" in text_of(done)
    assert NAME.lower() not in current_answers(rest, served.url, store)
    restored = text_of(call(served.url, "auto", "forget", index=store, entity=NAME, undo=True))
    assert "'Quixley' restored: 3 memories." in restored
    call(served.url, "auto", "forget", index=store, entity=NAME)
    again = text_of(call(served.url, "auto", "forget", index=store, entity=NAME))
    assert "Nothing is about 'Quixley' or names it." in again
    assert "must repeat the entity" in refusal(served.url, "auto", "forget", index=store, entity=NAME, erase=True)


@pytest.mark.usefixtures("rest")
def test_person_is_forgotten_at_terminal(served: RunningServer, store: str) -> None:
    forget = ("forget", store, "--entity", NAME, "--server", served.url)
    unconfirmed = kgserve(*forget)
    assert (unconfirmed.code, "--yes" in unconfirmed.err) == (2, True)
    dry = kgserve(*forget, "--dry-run").out
    assert "[pair] Alice and Quixley chose Postgres 17. (also about Alice)" in dry
    assert "3 memories, entity [Quixley] would be forgotten" in dry
    assert "kept memory [fair] They met at a fair. (also about 'Alice'; no longer about it)" in dry
    assert "3 memories, entity [Quixley] forgotten" in kgserve(*forget, "--yes").out
    assert "3 memories restored" in kgserve(*forget, "--undo").out
    assert "3 memories, entity [Quixley] erased" in kgserve(*forget, "--yes", "--erase").out
    assert traces(served.settings.data_dir / f"{store}_memory", [NAME]) == {}
    assert kgserve("forget", store, "--server", served.url).code == 2
