"""Ten everyday tasks of an agent: how many calls each takes, and how many tokens its answers cost, as text and as JSON.

`python -m bench.agent_tasks`. The calls go over the official Python client to a server of its own, with a store made by
seed: requirements, decisions, components, people, tasks and incidents of a web shop. Tokens are cl100k's.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from mcp import Client
from mcp.types import TextContent

from bench.mcp_tokens import tokens
from bench.measure import Report
from bench.server import Server

STORE = "web-shop"
SEED = 20_260_704
MOST_TOKENS = 8_000

_AREAS = ("checkout", "login", "search", "catalog", "billing", "shipping", "reports", "mail")
_TYPES = ("requirement", "decision", "component", "task", "incident")
_PEOPLE = ("alice", "bob", "carol", "dan", "erin", "frank")
_WHY = (
    "because the old one lost orders whenever two shops shared a till",
    "since customers abroad waited more than four seconds for the first page",
    "so that the auditors can follow each invoice back to its order",
    "after the outage in March, when a certificate ran out unnoticed",
    "as the team can look after one database, and not after three",
)
_RELATIONS = (
    ("requirement", "IMPLEMENTED_BY", "component"),
    ("decision", "AFFECTS", "component"),
    ("task", "CHANGES", "component"),
    ("incident", "CAUSED_BY", "component"),
    ("component", "DEPENDS_ON", "component"),
)

Call = tuple[str, dict[str, Any]]


def graph(seed: int = SEED) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Nodes and edges of the store, by seed."""
    made = random.Random(seed)
    nodes: list[dict[str, Any]] = [{"id": name, "type": "person", "content": name.title()} for name in _PEOPLE]
    for area in _AREAS:
        nodes += [_node(made, type_, area, number) for type_ in _TYPES for number in (1, 2, 3)]
    by_type = {type_: [node["id"] for node in nodes if node["type"] == type_] for type_ in _TYPES}
    edges = [
        {"from": source, "to": target, "relation_type": relation}
        for start, relation, end in _RELATIONS
        for source in by_type[start]
        for target in made.sample(by_type[end], 2)
        if source != target
    ]
    owned = ({"from": node["id"], "to": made.choice(_PEOPLE), "relation_type": "OWNED_BY"} for node in nodes[6:])
    return nodes, [*edges, *owned]


def _node(made: random.Random, type_: str, area: str, number: int) -> dict[str, Any]:
    return {
        "id": f"{type_}-{area}-{number}",
        "type": type_,
        "content": f"The {area} {type_} number {number}: we settled on plan {made.randint(2, 9)} {made.choice(_WHY)}. "
        f"It concerns {made.choice(_AREAS)} as well, and will be looked at again in week {made.randint(1, 52)}.",
        "tags": [f"area:{area}", f"status:{made.choice(('open', 'done'))}"],
        "attributes": {"priority": made.randint(1, 3)},
    }


NEW_NODES = [
    {"id": f"note-{n}", "type": "decision", "content": f"We keep sessions for {n} days.", "tags": ["area:login"]}
    for n in (1, 2, 3)
]
NEW_EDGES = [{"from": f"note-{n}", "to": "component-login-1", "relation_type": "AFFECTS"} for n in (1, 2, 3)]

TASKS: tuple[tuple[str, tuple[Call, ...]], ...] = (
    ("What is in this store?", (("describe_store", {}),)),
    ("What do we know of the login?", (("get_context", {"query": "What did we decide about the login?"}),)),
    (
        "Find a decision and read it",
        (
            ("search_knowledge", {"query": "decision about billing for the auditors"}),
            ("get_entity", {"id": "decision-billing-1"}),
        ),
    ),
    (
        "What does a requirement lean on?",
        (("traverse_knowledge_graph", {"start_id": "requirement-catalog-1", "depth": 3}),),
    ),
    ("Which tasks are open?", (("list_entities", {"types": ["task"], "tags": ["status:open"]}),)),
    (
        "Record what was decided",
        (
            ("inject_knowledge_graph", {"nodes": NEW_NODES, "edges": NEW_EDGES}),
            ("search_knowledge", {"query": "how many days are sessions kept"}),
        ),
    ),
    (
        "Correct an entity that others write, too",
        (
            ("get_entity", {"id": "note-1"}),
            ("put_node", {"lineage_id": "note-1", "kind": "decision", "content": "We keep sessions for one day."}),
        ),
    ),
    (
        "What changed, and why?",
        (("entity_history", {"id": "note-1"}),),
    ),
    (
        "How many incidents has each component had?",
        (
            (
                "query_cypher",
                {
                    "query": "MATCH (i:Entity {type: 'incident'})-[:RELATES_TO {relation_type: 'CAUSED_BY'}]->"
                    "(c:Entity) RETURN c.id AS component, count(*) AS incidents ORDER BY incidents DESC LIMIT 20"
                },
            ),
        ),
    ),
    (
        "Say what is no longer true",
        (("retire_entity", {"id": "note-2"}), ("delete_graph_entity", {"id": "note-3"})),
    ),
)


def main() -> int:
    """Run them; 1 when text or JSON costs more than is meant."""
    report = Report("ten everyday tasks over MCP")
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder, "data")) as server:
        costs = asyncio.run(_run(f"http://127.0.0.1:{server.port}/mcp?store={STORE}"))
    for (task, calls), (text, values) in zip(TASKS, costs, strict=True):
        report.fact(task, f"{len(calls)} calls, {text:,} tokens of text, {values:,} of JSON")
    for name, cost in zip(("text", "JSON"), map(sum, zip(*costs, strict=True)), strict=True):
        report.check(f"all ten, {name}", f"{cost:,} tokens of at most {MOST_TOKENS:,}", cost <= MOST_TOKENS)
    report.show()
    return int(report.wrong)


async def _run(url: str) -> list[tuple[int, int]]:
    async with Client(url) as client:
        nodes, edges = graph()
        await client.call_tool("inject_knowledge_graph", {"nodes": nodes, "edges": edges})
        answers = [[await _answer(client, *call) for call in calls] for _, calls in TASKS]
    counted = iter(tokens([part for task in answers for answer in task for part in answer]))
    return [_sums([(next(counted), next(counted)) for _ in task]) for task in answers]


async def _answer(client: Client, tool: str, arguments: dict[str, Any]) -> tuple[str, str]:
    result = await client.call_tool(tool, arguments)
    text = "".join(each.text for each in result.content if isinstance(each, TextContent))
    if result.is_error:
        raise SystemExit(f"{tool}: {text}")
    return text, msgspec.json.encode(result.structured_content).decode()


def _sums(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(text for text, _ in pairs), sum(values for _, values in pairs)


if __name__ == "__main__":
    sys.exit(main())
