"""Repeated calls with the same idempotency key."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from kgserve.errors import Conflict
from kgserve.platform.idempotency import IdempotencyKey
from kgserve.server.idempotent_calls import (
    MAX_REMEMBERED_ANSWER_BYTES,
    MAX_REMEMBERED_BYTES,
    MAX_REMEMBERED_CALLS_PER_CALLER,
    IdempotentCallCache,
)
from kgserve.server.mcp.tool_calls import get_tool_call_idempotency_key
from tests.cli.running import SERVER_TIMEOUT_SECONDS, ServerProcessHandle, serving

PREFIX = "io.modelcontextprotocol"
STATELESS = "2026-07-28"
META = {
    f"{PREFIX}/protocolVersion": STATELESS,
    f"{PREFIX}/clientCapabilities": {},
    f"{PREFIX}/clientInfo": {"name": "test", "version": "1"},
}


def call(url: str, call_id: str, tool: str, age: float, **arguments: Any) -> dict[str, Any]:
    """Return the result of a tool called with an id; ``age``: seconds since the first call."""
    headers = {
        "kgserve-answers": "both",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": STATELESS,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
        "Kgserve-Call": call_id,
    } | ({"Kgserve-Call-Age": str(age)} if age else {})
    params = {"name": tool, "arguments": arguments, "_meta": META}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = httpx.post(f"{url}/mcp", json=message, headers=headers, timeout=30)
    text = (
        answer.text.partition("data: ")[2].partition("\n")[0]
        if "event-stream" in answer.headers["content-type"]
        else ""
    )
    return msgspec.json.decode(text or answer.content, type=dict[str, Any])["result"]


def test_repeated_call_returns_the_first_answer(server: ServerProcessHandle, store: str) -> None:
    node = {"kind": "letter", "content": "one"}
    first = call(server.url, "call-0000-0000-0001", "put_node", 0, index=store, **node)
    assert call(server.url, "call-0000-0000-0001", "put_node", 1, index=store, **node) == first
    assert call(server.url, "call-0000-0000-0002", "put_node", 0, index=store, **node) != first
    other = node | {"content": "two"}
    assert call(server.url, "call-0000-0000-0001", "put_node", 0, index=store, **other) != first
    assert httpx.get(f"{server.url}/api/memory/{store}/stats").json()["nodes"] == 3


def test_idempotency_survives_a_server_crash(tmp_path: Path) -> None:
    subgraph: dict[str, Any] = {
        "nodes": [{"ref": "a", "kind": "letter"}, {"ref": "b", "kind": "letter"}],
        "edges": [{"from_ref": "a", "to_ref": "b", "kind": "next"}],
    }
    answers: list[list[Any]] = []
    for age in (0, 5):
        with serving(tmp_path, "--embedding-provider", "hashing") as server:
            put = call(server.url, "call-0000-0000-0003", "put_node", age, index="s", kind="letter", content="x")
            many = call(server.url, "call-0000-0000-0004", "put_subgraph", age, index="s", **subgraph)
            answers.append([put["structuredContent"]["node"]["id"], many["structuredContent"]["nodes"]])
            stats = httpx.get(f"{server.url}/api/memory/s/stats").json()
            assert (stats["nodes"], stats["edges"], stats["sequence"]) == (3, 1, 4)
            server.process.kill()
            server.process.wait(SERVER_TIMEOUT_SECONDS)
    assert answers[0] == answers[1]


def test_repeated_drop_spares_a_recreated_store(server: ServerProcessHandle, store: str) -> None:
    made = {"index": store, "nodes": [{"id": "a", "type": "letter"}], "edges": []}
    call(server.url, "call-0000-0000-0005", "inject_knowledge_graph", 0, **made)
    refused = call(server.url, "call-0000-0000-0006", "drop_store", 60, index=store, confirm=store)
    assert refused["isError"] is True
    assert "was made after this call" in refused["content"][0]["text"]
    for number, age in ((7, 0), (8, 60)):
        dropped = call(server.url, f"call-0000-0000-000{number}", "drop_store", age, index=store, confirm=store)
        assert dropped["structuredContent"]["dropped"] == store


@pytest.mark.parametrize("given", ["", "short", "x" * 200, "with a blank in it"])
def test_invalid_call_ids_are_ignored(given: str) -> None:
    assert get_tool_call_idempotency_key({"kgserve-call": given}, "put_node", {}) is None
    assert (
        get_tool_call_idempotency_key({"kgserve-call": "x" * 16, "kgserve-call-age": "soon"}, "put_node", {})
        is not None
    )


def test_idempotency_eviction_is_per_caller() -> None:
    done: list[int] = []

    async def answer() -> int:
        done.append(len(done))
        return done[-1]

    async def go() -> None:
        repeats = IdempotentCallCache()
        assert await repeats.run_once("other", IdempotencyKey("a"), answer) == 0
        for number in range(MAX_REMEMBERED_CALLS_PER_CALLER + 2):
            await repeats.run_once("often", IdempotencyKey(f"{number}"), answer)
        assert await repeats.run_once("other", IdempotencyKey("a"), answer) == 0
        before = len(done)
        assert await repeats.run_once("often", IdempotencyKey("5"), answer) < before
        assert await repeats.run_once("often", IdempotencyKey("0"), answer) == before
        assert await repeats.run_once("often", None, answer) == before + 1
        assert len(repeats) == MAX_REMEMBERED_CALLS_PER_CALLER + 1

    asyncio.run(go())


def test_idempotency_answers_are_bounded_by_size() -> None:
    async def answer(size: int) -> int:
        return size

    async def go() -> None:
        repeats = IdempotentCallCache()

        async def ask(caller: str, key: str, size: int) -> int:
            made = IdempotencyKey(key)
            return await repeats.run_once(caller, made, partial(answer, size), weigh=lambda found: found or None)

        assert await ask("a", "too large", MAX_REMEMBERED_ANSWER_BYTES + 1) > MAX_REMEMBERED_ANSWER_BYTES
        with pytest.raises(Conflict):
            await ask("a", "too large", 1)
        assert await ask("a", "not kept", 0) == 0
        assert await ask("a", "not kept", 1) == 1
        for number in range(100):
            caller = f"c{number % 6}"
            await ask(caller, f"{number}", MAX_REMEMBERED_ANSWER_BYTES)
        assert repeats.size <= MAX_REMEMBERED_BYTES
        assert await ask("c3", "99", 5) == MAX_REMEMBERED_ANSWER_BYTES
        assert await ask("c3", "3", 5) == 5
        repeats.forget_all()
        assert await ask("c3", "99", 6) == 6

    asyncio.run(go())
