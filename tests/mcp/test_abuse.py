"""Rows 64 to 70 of the list of abuse, each under its number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from mcp import Client, MCPError

from tests.cli.running import Running, serving
from tests.mcp.talking import STATELESS, Mode, Session, Stateless, call, message, refusal, talk

SESSIONS = 256


def test_64_an_unknown_tool(server: Running, mode: Mode) -> None:
    async def unknown(client: Client) -> None:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("no_such_tool", {})
        assert refused.value.error.code == -32602
        assert "no_such_tool" in refused.value.error.message

    talk(server.url, mode, unknown)


@pytest.mark.parametrize(
    ("tool", "arguments", "path"),
    [
        ("traverse_knowledge_graph", {"start_id": "a", "depth": 11}, "depth"),
        ("traverse_knowledge_graph", {"start_id": 7}, "start_id"),
        ("traverse_knowledge_graph", {}, "start_id"),
        ("traverse_knowledge_graph", {"start_id": "a", "deep": 1}, "deep"),
        ("inject_knowledge_graph", {"nodes": [{"id": "a", "type": "t"}, {"id": ""}]}, "nodes[1].id"),
        ("inject_knowledge_graph", {"nodes": [{"id": "a", "type": "é" * 300}]}, "nodes[0].type"),
        ("inject_knowledge_graph", {"edges": [{"from": "a", "to": "b"}]}, "edges[0].relation_type"),
        ("inject_knowledge_graph", {"nodes": [{"id": "a", "type": "t", "attributes": {"n": 2**70}}]}, "attributes.n"),
        ("search_batch", {"queries": []}, "queries"),
        ("get_context", {"query": "x", "budget": 0}, "budget"),
    ],
)
def test_65_bad_arguments(
    server: Running, mode: Mode, store: str, tool: str, arguments: dict[str, object], path: str
) -> None:
    assert path in refusal(server.url, mode, tool, index=store, **arguments)
    assert "no store" in refusal(server.url, mode, "describe_store", index=store)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose data folder holds something that no code expects: a folder in the place of a file."""
    data = tmp_path_factory.mktemp("damaged") / "data"
    (data / "odd_memory" / "journal").mkdir(parents=True)
    (data / "odd_memory" / "journal" / "00000000000000000001.log").write_bytes(b"")
    (data / "odd_memory" / "store.json").mkdir()
    with serving(data, "--embedding-provider", "hashing") as running:
        yield running


def test_66_an_exception_in_a_tool(damaged: Running, mode: Mode) -> None:
    text = refusal(damaged.url, mode, "list_stores")
    assert text.startswith("internal error")
    assert "odd_memory" not in text
    assert str(damaged.data) not in text
    lines = Path(f"{damaged.data}.log").read_text().splitlines()
    [line] = [line for line in map(msgspec.json.decode, lines) if text.endswith(f" {line.get('request_id')}")][:1]
    assert (line["event"], line["tool"]) == ("internal_error", "list_stores")
    assert "IsADirectoryError" in line["exception"]


def test_66_an_exception_in_a_resource(damaged: Running, mode: Mode) -> None:
    async def read(client: Client) -> MCPError:
        with pytest.raises(MCPError) as refused:
            await client.read_resource("kgserve://stores")
        return refused.value

    error = talk(damaged.url, mode, read)
    assert error.error.code == -32603
    assert error.error.message.startswith("internal error")
    assert "odd_memory" not in str(error)


def test_67_header_and_body_disagree(bare: httpx.Client) -> None:
    stateless, params = Stateless(bare), {"name": "list_stores", "arguments": {}}
    assert stateless.post("tools/call", params).status_code == 200
    assert stateless.post("tools/call", params, mcp_method="tools/list").status_code == 400
    assert stateless.post("tools/call", params, mcp_name="drop_store").status_code == 400
    session = Session(bare)
    session.begin()
    assert session.post("tools/call", params, mcp_protocol_version=STATELESS).status_code == 400
    session.end()


def test_68_an_unsupported_version(bare: httpx.Client) -> None:
    answer = Stateless(bare).post("tools/call", {"name": "list_stores", "arguments": {}}, version="2031-01-01")
    assert answer.status_code == 400
    assert STATELESS in str(message(answer)["error"]["data"])
    session = Session(bare)
    session.begin()
    assert session.post("tools/list", {}, mcp_protocol_version="2031-01-01").status_code == 400
    session.end()


def test_69_one_session_too_many(bare: httpx.Client) -> None:
    sessions = [Session(bare) for _ in range(SESSIONS)]
    try:
        assert {session.opening.status_code for session in sessions} == {200}
        assert Session(bare).opening.status_code == 503
        sessions[0].begin()
        assert not sessions[0].call("list_stores", {})["isError"], "who is in stays in"
        assert not Stateless(bare).call("list_stores", {})["isError"], "who needs no session is not held up"
    finally:
        for session in sessions:
            session.end()
    again = Session(bare)
    assert again.opening.status_code == 200
    again.end()


def test_70_dropping_without_confirming(server: Running, mode: Mode, store: str) -> None:
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=[{"id": "a", "type": "t"}])
    for confirm in ({}, {"confirm": ""}, {"confirm": store.upper()}, {"confirm": "yes"}):
        assert "confirm" in refusal(server.url, mode, "drop_store", index=store, **confirm)
    assert "index" in refusal(server.url, mode, "drop_store", confirm=store)
    assert call(server.url, mode, "describe_store", index=store).structured_content["nodes"] == 1
    call(server.url, mode, "drop_store", index=store, confirm=store)
    assert "no store" in refusal(server.url, mode, "describe_store", index=store)
