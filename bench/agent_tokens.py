"""Tokens of an agent's work: ten tasks with the tools of `/mcp`, driven by the official MCP client.

Each task must succeed at its first try. Tokens are those of cl100k: from `bpe_openai` or `tiktoken` if installed,
otherwise estimated as characters divided by 3.8, which is within 10 % for these texts.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from mcp import Client
from mcp.types import TextContent

from bench.measure import BenchmarkReport, ReportLine
from bench.server import BenchClient, serving

STORE = "work"
LISTED_SETS = ("memory", "default", "graph", "entity-memory", "memory-server", "all")
FORMER_TOKENS: Mapping[str, int] = {"requests": 547, "text": 2_468, "structured": 3_392}
"""Tokens of these tasks when each answer had structured content and full ids (decision record 36)."""
MAX_RATIO = 0.6
MAX_LISTED_TOKENS = {"memory": 1_000, "default": 2_200}
_CHARS_PER_TOKEN = 3.8
_SHOWN_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f-]*[0-9a-f])?\b")
_BACKGROUND = (
    "The web shop is deployed from the main branch every Tuesday.",
    "Alice prefers short answers with examples.",
    "The staging server has 16 GB of memory.",
    "Invoices are sent as PDF on the first day of the month.",
    "Carol designed the new checkout page.",
    "Search in the web shop tolerates two typing errors.",
    "The cafeteria closes at 3 pm.",
    "Passwords are hashed with Argon2.",
)
_GRAPH = {
    "nodes": [
        {"id": "web-shop", "type": "system", "content": "The web shop"},
        {"id": "postgres", "type": "system", "content": "Postgres database cluster"},
        {"id": "atlas", "type": "server", "content": "Server in Dublin"},
    ],
    "edges": [
        {"from": "web-shop", "to": "postgres", "relation_type": "USES"},
        {"from": "postgres", "to": "atlas", "relation_type": "RUNS_ON"},
    ],
}


class AgentStep(NamedTuple):
    """One call of a task; ``expected`` is text that the answer must contain, ``absent`` text that it must not."""

    task: str
    tool: str
    arguments: Callable[[Mapping[str, str]], dict[str, Any]]
    expected: str = ""
    absent: str = ""
    remembered: str = ""
    """Name under which the first id of the answer is kept for later steps."""


def _days_ago(days: float) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


def build_steps() -> list[AgentStep]:
    """Return the calls of the ten tasks."""
    old, new = "The web shop stores its orders in Postgres 17.", "The web shop stores its orders in Postgres 18."
    return [
        AgentStep(
            "store a decision",
            "retain",
            lambda _: {
                "content": old,
                "memory_type": "decision",
                "entities": ["Postgres"],
                "valid_from": _days_ago(30),
            },
            remembered="decision",
        ),
        AgentStep("link it", "inject_knowledge_graph", lambda _: _GRAPH),
        AgentStep(
            "link it",
            "retain",
            lambda _: {
                "content": "Bob maintains the Postgres cluster.",
                "entities": ["Bob"],
            },
            remembered="bob",
        ),
        AgentStep(
            "find by paraphrase", "recall", lambda _: {"query": "Which database keeps the orders?"}, "Postgres 17"
        ),
        AgentStep(
            "update",
            "retain",
            lambda ids: {"content": new, "supersedes": ids["decision"], "valid_from": _days_ago(1)},
            remembered="update",
        ),
        AgentStep("update", "recall", lambda _: {"query": "Which database keeps the orders?"}, "Postgres 18"),
        AgentStep(
            "ask what it was last week",
            "recall",
            lambda _: {"query": "Which database keeps the orders?", "valid_at": _days_ago(7)},
            "Postgres 17",
        ),
        AgentStep("ask what it was last week", "get_memory", lambda ids: {"id": ids["decision"]}, "Postgres 17"),
        AgentStep("delete", "forget", lambda _: {"query": "When does the cafeteria close?"}, "cafeteria", "", "lunch"),
        AgentStep("delete", "forget", lambda ids: {"ids": [ids["lunch"]]}, "1 memory"),
        AgentStep(
            "walk two hops", "search_knowledge", lambda _: {"query": "web shop", "types": ["system"]}, "web-shop"
        ),
        AgentStep("walk two hops", "traverse_knowledge_graph", lambda _: {"start_id": "web-shop", "depth": 2}, "atlas"),
        AgentStep("walk two hops", "get_entity", lambda _: {"id": "atlas"}, "Dublin"),
        AgentStep("ask Cypher", "describe_store", lambda _: {}, "RUNS_ON"),
        AgentStep(
            "ask Cypher",
            "query_cypher",
            lambda _: {"query": "MATCH (s:system)-[:RUNS_ON]->(m:server) RETURN s.id, m.id"},
            "atlas",
        ),
        AgentStep(
            "summarise a topic", "get_context", lambda _: {"query": "What do we know about the web shop?"}, "shop"
        ),
        AgentStep("summarise a topic", "recall", lambda _: {"query": "web shop"}, "Tuesday"),
        AgentStep("forget a person", "forget", lambda _: {"entity": "Bob", "dry_run": True}, "Bob maintains"),
        AgentStep("forget a person", "forget", lambda _: {"entity": "Bob"}, "forgotten"),
    ]


def load_token_counter() -> tuple[str, Callable[[str], int]]:
    """Return the name of the encoding, and a function that counts the tokens of a text."""
    for module in ("bpe_openai", "tiktoken"):
        try:
            encoding = importlib.import_module(module).get_encoding("cl100k_base")
            encoding.encode("one")
        except (ImportError, OSError):
            continue
        return "cl100k", lambda text, encoding=encoding: len(encoding.encode(text))
    return "estimated", lambda text: math.ceil(len(text) / _CHARS_PER_TOKEN)


def tokens(chosen: dict[str, object], _conversations: Path, **_quick: bool) -> BenchmarkReport:
    """Count the tokens of ten tasks and of the lists of tools."""
    name, count = load_token_counter()
    report = BenchmarkReport(f"ten tasks of an agent, {name} tokens")
    with serving(chosen) as (server, client):
        _seed(client)
        url = f"http://127.0.0.1:{server.port}/mcp"
        for listed in LISTED_SETS:
            _report_tools(report, listed, asyncio.run(_listed(url, listed)), count)
        steps, totals = build_steps(), Counter[str]()
        failed = asyncio.run(_drive(url, steps, totals, count, report))
    report.check("tasks at the first try", f"{len({step.task for step in steps}) - len(failed)} of 10", not failed)
    # Most of a request is what the agent has to say, so that requests have no target of their own.
    _compare(report, f"requests, {len(steps)} calls", totals["requests"], FORMER_TOKENS["requests"], None)
    for kind in ("text", "structured"):
        _compare(report, f"{kind}, {len(steps)} calls", totals[kind], FORMER_TOKENS[kind])
    read = {name: found["requests"] + found["text"] for name, found in (("now", totals), ("then", FORMER_TOKENS))}
    _compare(report, "requests and text", read["now"], read["then"])
    return report


def _compare(report: BenchmarkReport, what: str, figure: int, former: int, target: float | None = MAX_RATIO) -> None:
    mark = None if target is None else ("≤", target)
    report.compare(what, f"{figure:,}", f"{former:,}", figure / former, mark)


def _seed(client: BenchClient) -> None:
    for content in _BACKGROUND:
        client.call("POST", f"/api/v1/retain?store={STORE}", {"content": content})
    client.settle(STORE)


async def _listed(url: str, tools: str) -> list[Any]:
    async with Client(f"{url}?store={STORE}&tools={tools}") as agent:
        return [
            each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in (await agent.list_tools()).tools
        ]


def _report_tools(report: BenchmarkReport, name: str, found: list[Any], count: Callable[[str], int]) -> None:
    # What a host shows to the model of a tool: its name, description and parameters.
    shown = [{each: tool[each] for each in ("name", "description", "inputSchema")} for tool in found]
    figure = count(_to_json(shown))
    what = f"tools of {name}: {len(found)}"
    if name in MAX_LISTED_TOKENS:
        report.at_most(what, f"{figure:,}", figure, MAX_LISTED_TOKENS[name], "tokens")
    else:
        report.lines.append(ReportLine(what, f"{figure:,}"))


async def _drive(
    url: str, steps: Sequence[AgentStep], totals: Counter[str], count: Callable[[str], int], report: BenchmarkReport
) -> set[str]:
    """Make the calls; return the tasks that failed."""
    ids, failed = dict[str, str](), set[str]()
    totals.update({"requests": 0, "text": 0, "structured": 0})
    async with Client(f"{url}?store={STORE}") as agent:
        for step in steps:
            arguments = step.arguments(ids)
            result = await agent.call_tool(step.tool, arguments)
            text, values = _text(result.content), result.structured_content
            request = _to_json({"name": step.tool, "arguments": arguments})
            totals["requests"] += count(request)
            totals["text"] += count(text)
            totals["structured"] += (
                count(json.dumps(values, ensure_ascii=False, separators=(",", ":"))) if values else 0
            )
            if step.remembered and (shown := _SHOWN_ID.search(text)):
                ids[step.remembered] = shown[0]
            if result.is_error or step.expected not in text or (step.absent and step.absent in text):
                failed.add(step.task)
                report.notes.append(f"{step.task}: {step.tool} {request}: {text}")
    return failed


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(content: Sequence[Any]) -> str:
    return "\n".join(each.text for each in content if isinstance(each, TextContent))
