"""Rows 64 to 70 of the abuse list, each under its number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
from mcp import Client, MCPError

from kgserve.stores.pool import StorePool
from tests.captured_log import capture_log
from tests.cli.running import ServerProcessHandle
from tests.leak_checks import assert_no_internals
from tests.server.http.serving import RunningServer
from tests.server.http.serving import serving as in_process
from tests.server.mcp.talking import STATELESS, Mode, Session, Stateless, call, hang_up, lines, message, refusal, talk

SESSIONS = 256


@pytest.mark.abuse(64)
def test_64_an_unknown_tool(server: ServerProcessHandle, mode: Mode) -> None:
    async def unknown(client: Client) -> None:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("no_such_tool", {})
        assert refused.value.error.code == -32602
        assert "no_such_tool" in refused.value.error.message

    talk(server.url, mode, unknown)


@pytest.mark.abuse(65)
@pytest.mark.parametrize(
    ("tool", "arguments", "path"),
    [
        ("traverse_knowledge_graph", {"start_id": "a", "depth": 11}, "depth"),
        ("traverse_knowledge_graph", {"start_id": [7]}, "start_id"),
        ("traverse_knowledge_graph", {}, "start_id"),
        ("traverse_knowledge_graph", {"start_id": "a", "deep": 1}, "deep"),
        ("inject_knowledge_graph", {"nodes": [{"id": "a", "type": "t"}, {"id": ""}]}, "nodes[1].id"),
        ("inject_knowledge_graph", {"nodes": [{"id": "a", "type": "é" * 300}]}, "nodes[0].type"),
        ("inject_knowledge_graph", {"edges": [{"from": "a", "to": "b"}]}, "edges[0].relation_type"),
        ("inject_knowledge_graph", {"nodes": [{"id": "a", "type": "t", "attributes": {"n": 2**70}}]}, "attributes.n"),
        ("search_batch", {"queries": []}, "queries"),
        ("get_context", {"query": "x", "budget": 0}, "budget"),
        ("store_memory", {"content": ""}, "content"),
        ("store_memory", {"content": "x", "confidence": 1.5}, "confidence"),
        ("store_memory", {"content": "x", "metadata": {"n": 2**70}}, "metadata"),
        ("recall_memories", {"query": "x", "limit": 101}, "limit"),
        ("recall_memories", {"query": "x", "search_mode": "magic"}, "search_mode"),
        ("create_entities", {"entities": [{"name": "A"}]}, "entities[0].entity"),
        ("create_relations", {"relations": [{"source": "A", "target": "B"}]}, "relations[0].relation"),
        ("delete_memories", {"before_date": ""}, "before_date"),
        ("delete_memories", {"before_date": "2025-01-01T00:00:61"}, "before_date"),
        ("delete_entities", {"entity_names": []}, "entity_names"),
        ("get_entity_graph", {"entity_name": "A", "depth": 11}, "depth"),
        ("consolidate_memories", {"similarity_threshold": 2}, "similarity_threshold"),
        ("get_memory_stats", {"deep": 1}, "deep"),
    ],
)
def test_65_bad_arguments(
    server: ServerProcessHandle, mode: Mode, store: str, tool: str, arguments: dict[str, object], path: str
) -> None:
    assert path in refusal(server.url, mode, tool, index=store, **arguments)
    assert "no store" in refusal(server.url, mode, "describe_store", index=store)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose pool contains an unexpected object in place of a store."""
    with in_process(tmp_path_factory.mktemp("damaged") / "data") as served, lines(served.url):
        pool: StorePool = cast("Any", served.server.config.app).state["service"].graphs.pool
        pool.create("odd-place")
        place, pool._entries["odd-place"] = pool._entries["odd-place"], cast("Any", object())
        yield served
        pool._entries["odd-place"] = place


def assert_kept_to_ourselves(text: str, lines: list[Any], served: RunningServer, **where: str) -> None:
    """Assert that the caller learns of an internal error and its request id, but no details."""
    assert text.startswith("internal error")
    assert "odd-place" not in text
    assert_no_internals(text, served.data)
    [line] = [line for line in lines if text.endswith(f" {line['request_id']}")]
    assert where.items() <= line.items()
    assert line["exc_info"]


@pytest.mark.abuse(66)
def test_66_an_exception_in_a_tool(damaged: RunningServer, mode: Mode) -> None:
    with capture_log(event="internal_error") as lines:
        text = refusal(damaged.url, mode, "list_stores")
    assert_kept_to_ourselves(text, lines, damaged, tool="list_stores")


@pytest.mark.abuse(66)
def test_66_an_exception_in_a_resource(damaged: RunningServer, mode: Mode) -> None:
    async def read(client: Client) -> MCPError:
        with pytest.raises(MCPError) as refused:
            await client.read_resource("kgserve://stores")
        return refused.value

    with capture_log(event="internal_error") as lines:
        error = talk(damaged.url, mode, read)
    assert error.error.code == -32603
    assert error.error.data is None
    assert_kept_to_ourselves(error.error.message, lines, damaged, uri="kgserve://stores")


@pytest.mark.abuse(67)
def test_67_header_and_body_disagree(bare: httpx.Client) -> None:
    stateless, params = Stateless(bare), {"name": "list_stores", "arguments": {}}
    assert stateless.post("tools/call", params).status_code == 200
    assert stateless.post("tools/call", params, mcp_method="tools/list").status_code == 400
    assert stateless.post("tools/call", params, mcp_name="drop_store").status_code == 400
    session = Session(bare)
    session.begin()
    assert session.post("tools/call", params, mcp_protocol_version=STATELESS).status_code == 400
    session.end()


@pytest.mark.abuse(68)
def test_68_an_unsupported_version(bare: httpx.Client) -> None:
    answer = Stateless(bare).post("tools/call", {"name": "list_stores", "arguments": {}}, version="2031-01-01")
    assert answer.status_code == 400
    assert STATELESS in str(message(answer)["error"]["data"])
    session = Session(bare)
    session.begin()
    assert session.post("tools/list", {}, mcp_protocol_version="2031-01-01").status_code == 400
    session.end()


@pytest.mark.abuse(69)
def test_69_one_session_too_many(server: ServerProcessHandle, bare: httpx.Client) -> None:
    hang_up(server.url)
    sessions = [Session(bare) for _ in range(SESSIONS)]
    try:
        assert {session.opening.status_code for session in sessions} == {200}
        sessions[0].begin()
        sessions.append(Session(bare))
        assert sessions[-1].opening.status_code == 200, "the one that has been idle longest makes room"
        assert not sessions[0].call("list_stores", {})["isError"], "who is in stays in"
        assert bare.delete("/mcp", headers=sessions.pop(1).headers).status_code == 404
        assert not Stateless(bare).call("list_stores", {})["isError"], "stateless requests are not blocked"
    finally:
        for session in sessions:
            session.end()
    again = Session(bare)
    assert again.opening.status_code == 200
    again.end()


@pytest.mark.abuse(70)
def test_70_dropping_without_confirming(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=[{"id": "a", "type": "t"}])
    for confirm in ({}, {"confirm": ""}, {"confirm": store.upper()}, {"confirm": "yes"}):
        assert "confirm" in refusal(server.url, mode, "drop_store", index=store, **confirm)
    assert "index" in refusal(server.url, mode, "drop_store", confirm=store)
    assert call(server.url, mode, "describe_store", index=store).structured_content["nodes"] == 1
    call(server.url, mode, "drop_store", index=store, confirm=store)
    assert "no store" in refusal(server.url, mode, "describe_store", index=store)
