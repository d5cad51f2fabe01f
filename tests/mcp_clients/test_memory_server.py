"""The official MCP memory server and kgserve's tools give the same answers, and its file imports to the same graph."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent

from tests.cli.running import SERVER_TIMEOUT_SECONDS, ServerProcessHandle, environment, kgserve
from tests.fuzzing import is_thorough
from tests.mcp_clients.packages import INSTALL_SECONDS, TYPESCRIPT, node

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS + SERVER_TIMEOUT_SECONDS)

PROGRAM = "node_modules/@modelcontextprotocol/server-memory/dist/index.js"
NAMES = ("Ann", "John Smith", "Zürich 🏔", "a/b?c", "nobody")
TYPES = ("person", "place")
FACTS = ("", "likes tea", "\ttabbed", "two\nlines", "\\", 'says "no"', "likes tea\r")
RELATED = ("knows", "lives in")
Step = tuple[str, dict[str, Any]]

ENTITIES = [
    {"name": "John Smith", "entityType": "person", "observations": ["Speaks fluent Spanish", "Graduated in 2019"]},
    {"name": "Acme", "entityType": "organization", "observations": []},
]
WORKS_AT = {"from": "John Smith", "to": "Acme", "relationType": "works_at"}
KNOWS = {"from": "John Smith", "to": "Nobody", "relationType": "knows"}
TOLD: list[Step] = [
    ("read_graph", {}),
    ("delete_entities", {"entityNames": ["John Smith"]}),
    ("add_observations", {"observations": [{"entityName": "John Smith", "contents": ["too early"]}]}),
    ("create_entities", {"entities": ENTITIES}),
    ("create_entities", {"entities": [{**ENTITIES[0], "observations": ["other"]}]}),
    ("create_relations", {"relations": [WORKS_AT, KNOWS]}),
    ("create_relations", {"relations": [WORKS_AT]}),
    ("read_graph", {}),
    ("search_nodes", {"query": "Spanish"}),
    ("search_nodes", {"query": "Acme"}),
    ("search_nodes", {"query": "organization"}),
    ("search_nodes", {"query": ""}),
    ("open_nodes", {"names": ["Acme", "Nobody", "John Smith"]}),
    ("add_observations", {"observations": [{"entityName": "Nobody", "contents": ["is not there"]}]}),
    (
        "add_observations",
        {
            "observations": [
                {"entityName": "Acme", "contents": ["makes anvils", "makes anvils", "is old"]},
                {"entityName": "Acme", "contents": ["is old", "is large"]},
            ]
        },
    ),
    ("create_entities", {"entities": [{"name": "Nobody", "entityType": "person", "observations": []}]}),
    ("read_graph", {}),
    ("delete_observations", {"deletions": [{"entityName": "Acme", "observations": ["is old", "never said"]}]}),
    ("delete_observations", {"deletions": [{"entityName": "not there", "observations": ["is old"]}]}),
    ("delete_relations", {"relations": [KNOWS, {**KNOWS, "to": "not there"}]}),
    ("delete_entities", {"entityNames": ["Acme", "not there"]}),
    ("read_graph", {}),
]


def made_up(seed: int, count: int) -> list[Step]:
    """Return random calls about the same few names; no call repeats a name, because the official server keeps both."""
    chance = random.Random(seed)

    def some(choices: tuple[str, ...]) -> list[str]:
        return chance.sample(choices, chance.randint(0, 3))

    def entities() -> dict[str, Any]:
        made = ({"name": n, "entityType": chance.choice(TYPES), "observations": some(FACTS)} for n in some(NAMES))
        return {"entities": list(made)}

    def relations() -> dict[str, Any]:
        ends = zip(some(NAMES), some(NAMES), strict=False)
        return {"relations": [{"from": a, "to": b, "relationType": chance.choice(RELATED)} for a, b in ends]}

    def facts(field: str, contents: str) -> dict[str, Any]:
        return {field: [{"entityName": name, contents: some(FACTS)} for name in some(NAMES)]}

    kinds = {
        "create_entities": entities,
        "create_relations": relations,
        "add_observations": lambda: facts("observations", "contents"),
        "delete_entities": lambda: {"entityNames": some(NAMES)},
        "delete_observations": lambda: facts("deletions", "observations"),
        "delete_relations": relations,
        "open_nodes": lambda: {"names": some(NAMES)},
        "read_graph": dict,
    }
    weights = (6, 6, 6, 1, 2, 1, 3, 2)
    return [(tool, kinds[tool]()) for tool in chance.choices(list(kinds), weights, k=count)] + [("read_graph", {})]


@pytest.mark.parametrize("plan", [TOLD, *(made_up(seed, 120) for seed in range(20 if is_thorough() else 1))])
def test_both_servers_agree(
    plan: list[Step], packages: Path, server: ServerProcessHandle, store: str, tmp_path: Path
) -> None:
    theirs, ours = asyncio.run(_both(plan, packages, server, store, tmp_path / "memory.jsonl"))
    for (tool, arguments), one, other in zip(plan, theirs, ours, strict=True):
        assert _meant(other) == _meant(one), (tool, arguments)


def test_its_file_imports_alike(packages: Path, server: ServerProcessHandle, store: str, tmp_path: Path) -> None:
    file = tmp_path / "memory.jsonl"
    asyncio.run(_both(made_up(7, 60), packages, server, store, file))
    place = ("--server", server.url)
    done = kgserve("import", f"{store}-moved", file, *place)
    assert done.code == 0, done
    again = kgserve("import", f"{store}-moved", file, *place)
    assert " 0 created, 0 updated, " in again.out.splitlines()[0]
    assert " 0 created, 0 updated, " in again.out.splitlines()[1]
    exported = [kgserve("export", name, "--format", "memory-server", *place).out for name in (store, f"{store}-moved")]
    assert [sorted(each.splitlines()) for each in exported] == [sorted(file.read_text().split("\n"))] * 2
    nodes = [httpx.get(f"{server.url}/api/memory/{name}/nodes").json()["nodes"] for name in (store, f"{store}-moved")]
    told = [[(node["id"], node["type"], node["content"]) for node in each] for each in nodes]
    assert told[0] == told[1]


async def _both(
    plan: list[Step], packages: Path, server: ServerProcessHandle, store: str, file: Path
) -> list[list[CallToolResult]]:
    """Return the answers of both servers: theirs, then ours."""
    official = StdioServerParameters(
        command=node(packages, TYPESCRIPT),
        args=[str(packages / PROGRAM)],
        env=environment({"MEMORY_FILE_PATH": str(file)}),
    )
    answers: list[list[CallToolResult]] = []
    for target in (official, f"{server.url}/mcp?store={store}"):
        async with Client(target) as client:
            answers.append([await client.call_tool(tool, arguments) for tool, arguments in plan])
    return answers


def _meant(result: CallToolResult) -> Any:
    """Return an answer without the order of a graph's content: theirs is that of creation, ours alphabetical."""
    [content] = result.content
    assert isinstance(content, TextContent)
    if result.is_error:
        assert result.structured_content is None
        return content.text.partition(";")[0]
    if not content.text.startswith(("{", "[")):
        return content.text, result.structured_content
    told = msgspec.json.decode(content.text)
    values = result.structured_content or {}
    if not isinstance(told, dict):
        assert [told] == list(values.values())
        return values
    assert told == values
    return {field: sorted(msgspec.json.encode(each, order="sorted") for each in parts) for field, parts in told.items()}
