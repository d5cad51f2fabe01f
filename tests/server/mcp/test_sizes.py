"""Replies stay within their size limit and say how to get the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from mcp.types import CallToolResult

from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import call, text_of

LONG = 40_000
WORDS = "wide " * 600


@pytest.fixture(scope="module")
def wide(server: ServerProcessHandle) -> Iterator[str]:
    """Store with a node that has 300 neighbours with long contents, and one long node."""
    nodes: list[dict[str, Any]] = [{"id": "hub", "type": "hub", "content": "".join(map(str, range(LONG)))[:LONG]}]
    nodes += [{"id": f"n{n:03}", "type": "leaf", "content": f"{n} {WORDS}"} for n in range(300)]
    edges = [{"from": "hub", "to": f"n{n:03}", "relation_type": "HAS"} for n in range(300)]
    answer = call(server.url, "auto", "inject_knowledge_graph", index="wide", nodes=nodes, edges=edges)
    assert answer.structured_content["nodes_created"] == 301
    yield "wide"
    call(server.url, "auto", "drop_store", index="wide", confirm="wide")


def sized(result: CallToolResult) -> dict[str, Any]:
    assert len(text_of(result)) <= 25_500
    assert len(msgspec.json.encode(result.structured_content)) <= 25_500
    return result.structured_content


def test_wide_traversal_is_truncated(server: ServerProcessHandle, wide: str) -> None:
    result = call(server.url, "auto", "traverse_knowledge_graph", index=wide, start_id="hub", depth=1)
    walked = sized(result)
    assert walked["truncated"] is True
    assert walked["count"] == len(walked["nodes"]) < 301
    ids = {node["id"] for node in walked["nodes"]}
    assert all({edge["from"], edge["to"]} <= ids for edge in walked["edges"])
    assert "smaller depth" in walked["more"]
    assert text_of(result).startswith('Traversal from "hub" (depth 1) — 301 nodes, 300 edges')
    left = 301 - walked["count"]
    assert text_of(result).splitlines()[-1].startswith(f"More: {left} nodes and {left} edges are not shown: ")


def test_a_long_entity_is_read_in_parts(server: ServerProcessHandle, wide: str) -> None:
    content, asked = "", 0
    while True:
        answer = call(server.url, "auto", "get_entity", index=wide, id="hub", content_offset=len(content))
        part = sized(answer)
        asked += 1
        content += part["node"]["content"]
        if len(content) == part["content_length"]:
            break
        assert f"content_offset={len(content)}" in part["more"]
        assert f"content_offset={len(content)}" in text_of(answer)
    assert content == "".join(map(str, range(LONG)))[:LONG]
    assert asked == 4


def test_search_pagination(server: ServerProcessHandle, wide: str) -> None:
    seen: set[str] = set()
    while len(seen) < 40:
        arguments = {
            "index": wide,
            "query": "wide",
            "mode": "keyword",
            "limit": 100,
            "offset": len(seen),
            "at_least": 1,
        }
        page = sized(call(server.url, "auto", "search_knowledge", **arguments))
        ids = {hit["node"]["id"] for hit in page["hits"]}
        assert ids
        assert not ids & seen
        seen |= ids
        assert f"offset={len(seen)}" in page["more"]


def test_search_batch_stays_within_the_size_limit(server: ServerProcessHandle, wide: str) -> None:
    variants = [{"query": "wide", "mode": "keyword", "limit": 50}]
    found = sized(call(server.url, "auto", "search_batch", index=wide, queries=variants, limit=50, at_least=1))
    assert 0 < len(found["hits"]) <= 50


def test_context_keeps_to_its_budget(server: ServerProcessHandle, wide: str) -> None:
    found = call(server.url, "auto", "get_context", index=wide, query="wide", budget=500, at_least=1)
    assert found.structured_content["tokens"] <= 500
    assert found.structured_content["truncated"] is True
    assert "raise budget" in text_of(found)


def test_query_rows_are_truncated(server: ServerProcessHandle, wide: str) -> None:
    query = "MATCH (e:Entity) RETURN e.id, e.content ORDER BY e.id"
    rows = sized(call(server.url, "auto", "query_cypher", index=wide, query=query, max_rows=300))
    assert rows["truncated"] is True
    assert rows["row_count"] == len(rows["rows"]) < 300
    assert "SKIP" in rows["more"]
