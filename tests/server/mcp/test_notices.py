"""Log messages about the indexes that answered a call, for clients that set a log level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from kgserve.server.mcp.notifications import LOG_LEVELS
from tests.cli.running import ServerProcessHandle, serving
from tests.embedding.embedding_service import MODEL
from tests.embedding.embedding_service import running as embedding_service
from tests.server.http.sockets import eventually
from tests.server.mcp.talking import Mode, Session, Stateless

META = "io.modelcontextprotocol/logLevel"
NODES = {"nodes": [{"id": "a", "type": "t", "content": "words"}], "edges": []}


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcessHandle]:
    """Server whose embedding service refuses its key, with a store whose vector index therefore fails."""
    options = ("--embedding-provider", "openai", "--embedding-model", MODEL, "--embedding-url")
    data = tmp_path_factory.mktemp("failing") / "data"
    with embedding_service() as service, serving(data, *options, service.url) as running:
        api = f"{running.url}/api/memory/s"
        httpx.post(f"{api}/inject", json=NODES).raise_for_status()
        # The history index uses the same service, and may be the first to fail.
        eventually(lambda: any(index["error"] for index in stats(api)["indexes"] if index["name"] == "vector"))
        yield running


def stats(api: str) -> dict[str, Any]:
    return httpx.get(f"{api}/stats").raise_for_status().json()


def told(http: httpx.Client, mode: Mode, level: str | None, tool: str = "search_knowledge") -> dict[str, str]:
    """Return the log messages of one call by level, for a minimum level."""
    given = {"index": "s"} | ({"query": "words", "mode": "keyword"} if tool == "search_knowledge" else {})
    call: dict[str, Any] = {"name": tool, "arguments": given}
    if mode == "auto":
        answer = Stateless(http).post("tools/call", call | {"_meta": {META: level}} if level else call)
    else:
        session = Session(http)
        session.begin()
        if level:
            assert "error" not in session.post("logging/setLevel", {"level": level}).text
        answer = session.post("tools/call", call)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith(("data: {", "{"))]
    *before, last = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
    assert not last["result"]["isError"]
    assert {each["method"] for each in before} <= {"notifications/message"}
    assert all(each["params"]["data"]["store"] == "s" for each in before)
    return {each["params"]["level"]: each["params"]["data"]["message"] for each in before}


def test_index_problems_are_logged_to_subscribed_clients(failing: ServerProcessHandle, mode: Mode) -> None:
    with httpx.Client(base_url=failing.url) as http:
        assert told(http, mode, None) == {}
        assert told(http, mode, "critical") == {}
        assert told(http, mode, "debug", "describe_store") == {}
        assert list(told(http, mode, "warning")) == ["error"]
        found = told(http, mode, "debug")
        assert found.keys() == {"error", "notice"}
        assert "vector index fails" in found["error"]
        assert "1 commit behind" in found["notice"]


def test_missing_embedding_model_is_a_warning(server: ServerProcessHandle, mode: Mode) -> None:
    with httpx.Client(base_url=server.url) as http:
        http.post("/api/memory/s/inject", json=NODES).raise_for_status()
        assert "no embedding model" in told(http, mode, "warning")["warning"]


def test_unknown_log_level_is_refused(server: ServerProcessHandle) -> None:
    with httpx.Client(base_url=server.url) as http:
        session = Session(http)
        assert '"code":-32602' in session.post("logging/setLevel", {"level": "loud"}).text
        assert all('"result":{}' in session.post("logging/setLevel", {"level": level}).text for level in LOG_LEVELS)
