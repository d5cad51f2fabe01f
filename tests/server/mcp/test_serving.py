"""The endpoint in the server: startup, access checks, shutdown and speed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from litestar import Litestar
from mcp import Client

from kgserve.server.mcp.server import MAX_SESSIONS
from kgserve.server.mcp.toolsets import TOOLSET_GRAPH, TOOLSETS
from tests.cli.running import COMMAND, SERVER_TIMEOUT_SECONDS, ServerProcessHandle, serving
from tests.server.http.serving import RunningServer, exchange, problem
from tests.server.mcp.talking import BOTH, Mode, Session, Stateless, hang_up

GRACE = 8


def test_sdk_is_not_imported_at_startup() -> None:
    program = "import sys, kgserve.server.app; sys.exit('mcp' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "127.0.0.1", "127.0.0.1:9999", "[::1]:80"])
def test_local_hosts_are_accepted(bare: httpx.Client, host: str) -> None:
    assert not Stateless(bare).call("list_stores", {}, host=host)["isError"]


def test_foreign_hosts_and_origins_are_refused(bare: httpx.Client) -> None:
    params = {"name": "list_stores", "arguments": {}}
    misdirected = Stateless(bare).post("tools/call", params, host="evil.example")
    assert misdirected.status_code == 421
    for origin in ("https://evil.example", "null", "http://localhost:1"):
        refused = Stateless(bare).post("tools/call", params, origin=origin)
        assert problem(refused.status_code, refused.headers, refused.content)["status"] == 403
    assert Stateless(bare).post("tools/call", params, origin=str(bare.base_url).rstrip("/")).status_code == 200


def test_request_id_and_body_limit(server: ServerProcessHandle, bare: httpx.Client) -> None:
    answer = Stateless(bare).post("tools/call", {"name": "list_stores", "arguments": {}}, x_request_id="find-me")
    assert answer.headers["x-request-id"] == "find-me"
    lines = ("POST /mcp HTTP/1.1", "Host: localhost", f"Accept: {BOTH}", "Content-Type: application/json")
    port = httpx.URL(server.url).port
    assert port is not None
    announced = exchange(port, "\r\n".join((*lines, f"Content-Length: {5 << 20}", "", "{")).encode())
    assert (announced.status, announced.headers["connection"]) == (413, "close")


def test_whitespace_around_headers_is_ignored(server: ServerProcessHandle, bare: httpx.Client) -> None:
    sample = Stateless(bare).post("tools/call", {"name": "list_stores", "arguments": {}}).request
    port = httpx.URL(server.url).port
    assert port is not None
    lines = [f"{name}: {value}" for name, value in sample.headers.items() if name != "mcp-name"]
    head = "\r\n".join(["POST /mcp HTTP/1.1", *lines, "mcp-name: \t list_stores \t ", "", ""])
    assert exchange(port, head.encode() + sample.content).status == 200


def test_ended_session_is_removed(served: RunningServer) -> None:
    app = served.server.config.app
    assert isinstance(app, Litestar)
    with httpx.Client(base_url=served.url, timeout=30) as client:
        session = Session(client)
        session.begin()
        assert not session.call("list_stores", {})["isError"]
        kept = app.state["mcp"]._served.result().notifications._sessions
        assert session.headers["mcp-session-id"] in kept
        session.end()
        deadline = time.monotonic() + SERVER_TIMEOUT_SECONDS
        while kept and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not kept


def test_idle_sessions_are_replaced(server: ServerProcessHandle, bare: httpx.Client) -> None:
    hang_up(server.url)
    used, idle = Session(bare), Session(bare)
    used.begin()
    idle.begin()
    with bare.stream("GET", "/mcp", headers=used.headers | {"accept": "text/event-stream"}):
        assert {Session(bare).opening.status_code for _ in range(MAX_SESSIONS)} == {200}
        gone = idle.post("tools/list", {})
        assert (gone.status_code, gone.json()["error"]["message"]) == (404, "Session not found")
        assert used.post("tools/list", {}).status_code == 200
        again = Session(bare)
        again.begin()
        assert not again.call("list_stores", {})["isError"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 100_000, b'"\xff"', b"null"])
def test_malformed_requests_are_400(bare: httpx.Client, body: bytes) -> None:
    headers = {"content-type": "application/json", "accept": BOTH}
    for version in ({}, {"mcp-protocol-version": "2026-07-28"}):
        assert bare.post("/mcp", content=body, headers=headers | version).status_code == 400
    assert bare.post("/mcp", content=b"{}", headers=headers | {"content-type": "text/plain"}).status_code in (400, 415)


def test_duplicate_keys_are_refused(bare: httpx.Client) -> None:
    headers = {"content-type": "application/json", "accept": BOTH}
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"id":"a","id":"b"}}}'
    for version in ({}, {"mcp-protocol-version": "2026-07-28"}):
        answer = bare.post("/mcp", content=body, headers=headers | version)
        assert answer.status_code == 400
        assert "params.arguments.id: occurs twice" in answer.json()["error"]["message"]


def test_first_request_and_shutdown_do_not_wait(tmp_path: Path) -> None:
    # Runs in a new process: a forked one has imported the SDK already.
    with serving(tmp_path / "data", "--shutdown-grace", str(GRACE), program=COMMAND) as running:
        with httpx.Client(base_url=running.url, timeout=SERVER_TIMEOUT_SECONDS) as client:
            assert not Stateless(client).call("list_stores", {})["isError"]
        ended = [_stream(running.url, opening) for opening in (_of_a_session, _of_a_listener)]
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(SERVER_TIMEOUT_SECONDS) == 0  # The exit code after the grace period would be 1.
        assert all(each.wait(SERVER_TIMEOUT_SECONDS) for each in ended)
    log = (tmp_path / "data.log").read_text()
    assert "Traceback" not in log
    assert "grace_time_over" not in log
    assert "store_closed" in log or "request" in log


def _stream(url: str, opening: Callable[[httpx.Client], httpx.Request]) -> threading.Event:
    """Open a stream and read it in a thread; return an event that is set when it ends."""
    opened, ended = threading.Event(), threading.Event()

    def follow() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            answer = client.send(opening(client), stream=True)
            assert answer.headers["content-type"].startswith("text/event-stream")
            opened.set()
            try:
                for _ in answer.iter_raw():
                    pass
            except httpx.RemoteProtocolError:
                pass
            answer.close()
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    assert opened.wait(SERVER_TIMEOUT_SECONDS)
    return ended


def _of_a_session(client: httpx.Client) -> httpx.Request:
    session = Session(client)
    session.begin()
    return client.build_request("GET", "/mcp", headers=session.headers | {"accept": "text/event-stream"})


def _of_a_listener(client: httpx.Client) -> httpx.Request:
    sample = Stateless(client).post("subscriptions/listen", {"notifications": {}}, accept="application/json")
    assert sample.status_code == 406
    request = client.build_request(
        "POST", "/mcp", content=sample.request.content, headers={**sample.request.headers, "accept": BOTH}
    )
    request.headers["content-length"] = str(len(sample.request.content))
    return request


def test_trailing_slash_is_accepted(server: ServerProcessHandle, mode: Mode) -> None:
    async def list_tools() -> int:
        async with Client(f"{server.url}/mcp/?tools=graph", mode=mode) as client:
            return len((await client.list_tools()).tools)

    assert asyncio.run(list_tools()) == len(TOOLSETS[TOOLSET_GRAPH])
