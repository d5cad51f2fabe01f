"""The official MCP client, and bare requests in both protocol revisions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any, Literal, TypeVar

import httpx
import msgspec
from anyio.from_thread import start_blocking_portal
from mcp import Client
from mcp.types import CallToolResult, TextContent

T = TypeVar("T")
Mode = Literal["auto", "legacy"]

MODES: tuple[Mode, ...] = ("auto", "legacy")
STATELESS = "2026-07-28"
HANDSHAKE = "2025-11-25"
BOTH = "application/json, text/event-stream"
CLIENT = {"name": "tests", "version": "1"}

_ids = count(1)
_lines: dict[tuple[str, Mode], Line] = {}


def talk(url: str, mode: Mode, conversation: Callable[[Client], Awaitable[T]], tools: str = "graph") -> T:
    """Run a conversation with the server and return its result; raises its exceptions."""

    async def run() -> T:
        async with Client(f"{url}/mcp?tools={tools}&answers=both", mode=mode) as client:
            assert client.protocol_version == (STATELESS if mode == "auto" else HANDSHAKE)
            return await conversation(client)

    return asyncio.run(run())


class Line:
    """Client that stays connected: a new one lists all tools before its first call."""

    def __init__(self, url: str, mode: Mode) -> None:
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._client = self._stack.enter_context(
            self._portal.wrap_async_context_manager(Client(f"{url}/mcp?answers=both", mode=mode))
        )

    def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Return the result of a tool."""
        return self._portal.call(self._client.call_tool, tool, arguments)

    def close(self) -> None:
        """Close the connection."""
        self._stack.close()


@contextmanager
def lines(url: str) -> Generator[None]:
    """Provide persistent connections for `call` and `refusal` until the end of the block."""
    try:
        yield
    finally:
        hang_up(url)


def hang_up(url: str) -> None:
    """Close these connections, for tests that count sessions; the next call opens others."""
    for mode in MODES:
        if line := _lines.pop((url, mode), None):
            line.close()


def _called(url: str, mode: Mode, tool: str, arguments: dict[str, Any]) -> CallToolResult:
    if (url, mode) not in _lines:
        _lines[url, mode] = Line(url, mode)
    return _lines[url, mode].call(tool, arguments)


def result(url: str, tool: str, arguments: dict[str, Any]) -> CallToolResult:
    """Return the result of one tool call, error or not."""
    return _called(url, "auto", tool, arguments)


def call(url: str, mode: Mode, tool: str, /, **arguments: Any) -> CallToolResult:
    """Return the result of one tool call that must succeed."""
    result = _called(url, mode, tool, arguments)
    assert not result.is_error, text_of(result)
    return result


def refusal(url: str, mode: Mode, tool: str, /, **arguments: Any) -> str:
    """Return the error text of a tool call that must fail."""
    result = _called(url, mode, tool, arguments)
    assert result.is_error, text_of(result)
    assert result.structured_content is None
    return text_of(result)


def text_of(result: CallToolResult) -> str:
    """Return the text of a result."""
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


class Stateless:
    """Bare requests of the stateless revision over one connection."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def post(self, method: str, params: dict[str, Any], version: str = STATELESS, **headers: str) -> httpx.Response:
        """Send a request and return the response; underscores in header names become hyphens."""
        return self._http.send(self.request(method, params, version, **headers))

    def request(self, method: str, params: dict[str, Any], version: str = STATELESS, **headers: str) -> httpx.Request:
        """Build the request."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": CLIENT,
        }
        body = {
            "jsonrpc": "2.0",
            "id": next(_ids),
            "method": method,
            "params": {**params, "_meta": meta | params.get("_meta", {})},
        }
        routing = {"accept": BOTH, "mcp-protocol-version": version, "mcp-method": method, "kgserve-answers": "both"}
        if "name" in params:
            routing["mcp-name"] = params["name"]
        routing |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self._http.build_request("POST", "/mcp", json=body, headers=routing)

    def call(self, tool: str, arguments: dict[str, Any], **headers: str) -> dict[str, Any]:
        """Return the result of a tool."""
        answer = self.post("tools/call", {"name": tool, "arguments": arguments}, **headers)
        assert answer.status_code == 200, answer.text
        return message(answer)["result"]


class Session:
    """Session of a session-based revision, with bare requests over one connection."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT}
        self.opening = http.post("/mcp", json=_request("initialize", params), headers={"accept": BOTH})
        self.headers = {
            "accept": BOTH,
            "mcp-protocol-version": HANDSHAKE,
            "mcp-session-id": self.opening.headers.get("mcp-session-id", ""),
            "kgserve-answers": "both",
        }

    def begin(self) -> None:
        """Complete the handshake."""
        done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert self._http.post("/mcp", json=done, headers=self.headers).status_code == 202

    def post(self, method: str, params: dict[str, Any], **headers: str) -> httpx.Response:
        """Send a request and return the response."""
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._http.post("/mcp", json=_request(method, params), headers=self.headers | extra)

    def call(self, tool: str, arguments: dict[str, Any], **headers: str) -> dict[str, Any]:
        """Return the result of a tool from the event stream of the response."""
        answer = self.post("tools/call", {"name": tool, "arguments": arguments}, **headers)
        assert answer.status_code == 200, answer.text
        return message(answer)["result"]

    def end(self) -> None:
        """Delete the session."""
        assert self._http.delete("/mcp", headers=self.headers).status_code == 200


def message(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON-RPC answer in a response: JSON, or the end of an event stream, as of calls that take long."""
    if answer.headers["content-type"].startswith("application/json"):
        return answer.json()
    *_, data = filter(
        None, (line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: "))
    )
    return msgspec.json.decode(data, type=dict[str, Any])


def _request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": params}
