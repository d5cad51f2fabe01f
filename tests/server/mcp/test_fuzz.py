"""Generated calls in both protocol revisions: each gets a readable answer, sessions survive, and no internals leak."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeGuard

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.server.mcp.toolsets import TOOLS
from tests.cli.running import ServerProcessHandle, serving
from tests.fuzzing import examples
from tests.leak_checks import assert_no_internals
from tests.server.mcp.made_up import METHODS, arguments, messages, params, schema
from tests.server.mcp.talking import BOTH, HANDSHAKE, STATELESS, Session

ERAS = ("stateless", "handshake")
GRAPH = {
    "nodes": [{"id": each, "type": "t", "content": f"about {each}", "tags": ["x"]} for each in ("a", "b", "it's")],
    "edges": [{"from": "a", "to": "b", "relation_type": "r"}, {"from": "b", "to": "it's", "relation_type": "r"}],
}


class Talk:
    """Client side of a conversation in one protocol revision; checks every response."""

    def __init__(self, http: httpx.Client, era: str, running: ServerProcessHandle) -> None:
        self._http, self._era, self._running = http, era, running
        self._session: Session | None = None
        if era == "handshake":
            self._session = Session(http)
            self._session.begin()

    def send(self, body: bytes, method: object = "", name: object = "") -> httpx.Response:
        """Send a raw body with the headers that match it."""
        answer = self._http.post("/mcp", content=body, headers=self._headers(method, name))
        assert answer.status_code < 500, f"{answer.status_code} {answer.text[:500]} to {body[:500]!r}"
        assert "internal error" not in answer.text.lower(), body[:1000]
        assert_no_internals(answer.text, self._running.data)
        return answer

    def ask(self, method: str, given: Any) -> httpx.Response:
        """Send a complete request with these parameters."""
        if isinstance(given, dict) and self._era == "stateless":
            meta = {
                "io.modelcontextprotocol/protocolVersion": STATELESS,
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
            }
            given = {**given, "_meta": meta}
        name = given.get("name", given.get("uri", "")) if isinstance(given, dict) else ""
        return self.send(encoded({"jsonrpc": "2.0", "id": 1, "method": method, "params": given}), method, name)

    def assert_alive(self) -> None:
        """Assert that the session, or the server, still answers."""
        answer = self.ask("tools/call", {"name": "list_stores", "arguments": {}})
        assert answer.status_code == 200, answer.text
        assert '"isError":false' in answer.text.replace(" ", ""), answer.text

    def end(self) -> None:
        if self._session is not None:
            self._session.end()

    def _headers(self, method: object, name: object) -> dict[str, str]:
        if self._session is not None:
            return self._session.headers | {"content-type": "application/json"}
        said = {"mcp-method": method, "mcp-name": name}
        return {
            "accept": BOTH,
            "content-type": "application/json",
            "mcp-protocol-version": STATELESS,
            **{key: value for key, value in said.items() if is_sayable(value)},
        }


def is_sayable(value: object) -> TypeGuard[str]:
    """Return whether a text can be the value of a header."""
    return isinstance(value, str) and value.isprintable() and value.isascii() and value == value.strip()


def encoded(value: Any) -> bytes:
    """Encode as JSON, including lone surrogates and non-finite numbers."""
    return json.dumps(value).encode()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcessHandle]:
    """Server for these tests only, with a nonempty store."""
    data = tmp_path_factory.mktemp("fuzzed") / "data"
    with serving(data, "--embedding-provider", "hashing", "--query-timeout", "1") as running:
        assert httpx.post(f"{running.url}/api/memory/fuzzed/inject", json=GRAPH, timeout=30).is_success
        yield running
        assert running.process.poll() is None
    assert "Traceback" not in data.with_suffix(".log").read_text()


@pytest.fixture(scope="module", params=ERAS)
def talk(request: pytest.FixtureRequest, running: ServerProcessHandle) -> Iterator[Talk]:
    """Conversation that all generated calls of a revision use."""
    with httpx.Client(base_url=running.url, timeout=60) as http:
        talk = Talk(http, request.param, running)
        yield talk
        talk.assert_alive()
        talk.end()


@pytest.mark.parametrize("tool", TOOLS)
@examples(4, times=60)
@given(data=st.data())
def test_tools(talk: Talk, tool: str, data: st.DataObject) -> None:
    given = data.draw(arguments(schema(TOOLS[tool].arguments)))
    talk.ask("tools/call", {"name": tool, "arguments": given})


@examples(40, times=30)
@given(method=st.sampled_from(METHODS), given=params)
def test_methods(talk: Talk, method: str, given: Any) -> None:
    talk.ask(method, given)


@examples(40, times=30)
@given(message=messages)
def test_envelopes(talk: Talk, message: Any) -> None:
    method = message.get("method") if isinstance(message, dict) else ""
    talk.send(encoded(message), method)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[", b"\xff\xfe", b"\x00", b"{}" * 3, b"1e999999", b"-", b'"\\ud800"', b"\xef\xbb\xbf{}"),
        *(b"[" * 100_000, b'{"a":' * 100_000, b"[" + b"1," * 100_000 + b"1]", b'{"id":' + b"9" * 100_000 + b"}"),
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call","params":{}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_stores","arguments":'
        + b'{"a":' * 5_000
        + b"1"
        + b"}" * 5_000
        + b"}}",
    ],
    ids=map(str, range(16)),
)
def test_bodies(talk: Talk, body: bytes) -> None:
    assert talk.send(body, "tools/call", "list_stores").status_code in (200, 202, 400)
    talk.assert_alive()


@pytest.mark.parametrize("version", ["", "x", "2031-01-01", HANDSHAKE, STATELESS, "é", "0", "9" * 5_000])
@pytest.mark.parametrize("session", ["", "none-such", "x" * 5_000, "é"])
def test_headers(running: ServerProcessHandle, version: str, session: str) -> None:
    headers = {
        name.encode(): value.encode()
        for name, value in (("accept", BOTH), ("mcp-protocol-version", version), ("mcp-session-id", session))
    }
    for method in ("POST", "GET", "DELETE", "PUT", "HEAD"):
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}' if method == "POST" else None
        answer = httpx.request(method, f"{running.url}/mcp", headers=headers, content=body)
        assert 400 <= answer.status_code < 500
        assert_no_internals(answer.text, running.data)
