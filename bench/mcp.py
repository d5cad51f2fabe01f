"""MCP against REST: what a tool costs over the REST call of the same work, and how soon a bridge's first answer comes.

`python -m bench.mcp`. Calls of one kind are made in turn, over one kept connection each, in both eras of the protocol.
"""

from __future__ import annotations

import http.client
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from bench import wordnet
from bench.batches import new_batch
from bench.measure import Report, Times, clock, times
from bench.prepared import STORE, Workspace, blocks
from bench.server import Server, ServerFailed
from bench.single import run_alone

ROUNDS = 200
WARM_UP = 20
STARTS = 10
SMALL_STORES = 10
SEED = 20_060_925
INDEX_SECONDS = 600.0
MOST = 2.0
BRIDGE_MOST_MS = 500

STATELESS = "2026-07-28"
HANDSHAKE = "2025-11-25"
ABOUT = {"name": "bench", "version": "1"}
PREFIX = "io.modelcontextprotocol"
META = {f"{PREFIX}/protocolVersion": STATELESS, f"{PREFIX}/clientCapabilities": {}, f"{PREFIX}/clientInfo": ABOUT}
JSON = {"Content-Type": "application/json"}
BOTH = JSON | {"Accept": "application/json, text/event-stream"}

_ids = count(1)


class Work(msgspec.Struct, frozen=True):
    """The same work as a request of the REST interface and as arguments of a tool."""

    method: str
    path: str
    tool: str
    body: dict[str, Any]
    index: dict[str, str]


Send = Callable[[Work], None]


def run(work: Workspace) -> Report:
    """Measure on a copy of WordNet of its own."""
    report = Report("MCP: tool calls against the REST calls of the same work, on WordNet")
    data = Path(work.scratch("mcp"))
    # Words alone are searched for, so the vectors may come from the embedder that costs next to nothing.
    with Server(data, {"embedding_provider": "hashing"}) as server:
        _load(server, work.exchange_file)
        for what, made in _kinds(wordnet.read(wordnet.folder())).items():
            _compare(report, server.port, what, made)
        for era in ("handshake", "stateless"):
            took = times([clock(lambda era=era: _first_answer(data, era)) for _ in range(STARTS)])
            figure = f"p50 {took.p50:.0f}, longest {took.longest:.0f} ms"
            report.at_most(f"bridge start to first tool answer, {era}", figure, took.p50, BRIDGE_MOST_MS, "ms")
    report.notes += [
        f"{ROUNDS} calls of each kind in each of three ways, in turn, with nothing else under way; bare HTTP clients",
        f"the bridge: {STARTS} starts of `kgserve mcp` beside a running server, until list_stores is answered",
    ]
    return report


def _kinds(graph: wordnet.Graph) -> dict[str, Callable[[str], Work]]:
    """Makers of work by its name. The argument is new with every call."""
    choice = random.Random(SEED)
    here, index = f"/api/memory/{STORE}", {"index": STORE}

    def traverse(_name: str) -> Work:
        body = {"start_id": choice.choice(graph.nodes).id, "depth": 1}
        return Work("POST", f"{here}/traverse", "traverse_knowledge_graph", body, index)

    def inject(name: str) -> Work:
        return Work("POST", f"{here}/inject", "inject_knowledge_graph", new_batch(name, choice, graph), index)

    def search(_name: str) -> Work:
        words = " ".join(choice.choice(graph.nodes).content.split()[:6])
        return Work("POST", f"{here}/search", "search_knowledge", {"query": words, "mode": "keyword"}, index)

    def stores(_name: str) -> Work:
        return Work("GET", "/api/memory", "list_stores", {}, {})

    return {
        "traverse, depth 1": traverse,
        "inject, 5 nodes and 5 edges": inject,
        "search, keyword, 10 hits": search,
        f"list_stores, {SMALL_STORES + 1} stores": stores,
    }


def _compare(report: Report, port: int, what: str, made: Callable[[str], Work]) -> None:
    ways: dict[str, Send] = {
        "rest": Rest(port).send,
        "stateless": Stateless(port).send,
        "handshake": Session(port).send,
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM_UP + ROUNDS):
        # Each way gets work of the same kind but its own: nothing may be answered from what another has read.
        for name, send in ways.items():
            work = made(f"{name}-{number}")
            took[name].append(clock(lambda send=send, work=work: send(work)))
    figures: dict[str, Times] = {name: times(milliseconds[WARM_UP:]) for name, milliseconds in took.items()}
    rest = figures.pop("rest")
    for name, figure in figures.items():
        what_here = f"{what}, {name}"
        report.compare(what_here, _fine(figure), f"REST {_fine(rest)}", figure.p50 / rest.p50, ("≤", MOST))


def _fine(figure: Times) -> str:
    return f"p50 {figure.p50:.2f} p95 {figure.p95:.2f} ms"


class Rest:
    """The REST interface over one kept connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def send(self, work: Work) -> None:
        """Do it. Raises ServerFailed on a refusal."""
        body = msgspec.json.encode(work.body) if work.body else None
        self.exchange(work.method, work.path, body, JSON)

    def exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        """The body of the answer, which must be a success."""
        self._connection.request(method, path, body, dict(headers))
        answer = self._connection.getresponse()
        found = answer.read()
        if answer.status not in (200, 202):
            raise ServerFailed(f"{method} {path}: {answer.status} {found[:500]!r}")
        self.headers = answer.headers
        return found


class Stateless(Rest):
    """Tools in the stateless era: every request stands alone."""

    def send(self, work: Work) -> None:
        """Call the tool. Raises ServerFailed on a refusal."""
        params = {"name": work.tool, "arguments": work.index | work.body, "_meta": META}
        headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": work.tool}
        self.tell("tools/call", params, headers)

    def tell(self, method: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Send a request whose answer must not be an error."""
        message = {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": params}
        answer = self.exchange("POST", "/mcp", msgspec.json.encode(message), {**BOTH, **headers})
        if b'"result"' not in answer or b'"isError":true' in answer:
            raise ServerFailed(f"{method}: {answer[:500]!r}")


class Session(Stateless):
    """Tools in the handshake era, in a session of its own."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        opening = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": ABOUT}
        self.tell("initialize", opening, {})
        self._session = {"MCP-Protocol-Version": HANDSHAKE, "Mcp-Session-Id": self.headers["mcp-session-id"]}
        done = msgspec.json.encode({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.exchange("POST", "/mcp", done, BOTH | self._session)

    def send(self, work: Work) -> None:
        """Call the tool. Raises ServerFailed on a refusal."""
        self.tell("tools/call", {"name": work.tool, "arguments": work.index | work.body}, self._session)


def _first_answer(data: Path, era: str) -> None:
    """Start a bridge as an editor does, and wait for the answer of its first tool."""
    command = [sys.executable, "-m", "kgserve", "mcp", "--data", str(data)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bridge:
        try:
            assert bridge.stdin is not None
            assert bridge.stdout is not None
            for message in _greeting(era):
                bridge.stdin.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")
                bridge.stdin.flush()
                if message.get("id") is not None:
                    answer = bridge.stdout.readline()
                    if b'"result"' not in answer or b'"isError":true' in answer:
                        raise ServerFailed(f"the bridge answered {answer[:500]!r}")
        finally:
            bridge.kill()


def _greeting(era: str) -> Iterator[dict[str, Any]]:
    call = {"name": "list_stores", "arguments": {}}
    if era == "stateless":
        yield {"id": 1, "method": "server/discover", "params": {"_meta": META}}
        yield {"id": 2, "method": "tools/call", "params": call | {"_meta": META}}
        return
    opening = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": ABOUT}
    yield {"id": 1, "method": "initialize", "params": opening}
    yield {"method": "notifications/initialized"}
    yield {"id": 2, "method": "tools/call", "params": call}


def _load(server: Server, exchange_file: Path) -> None:
    """Import WordNet and a few small stores, and wait until the indexes have seen them."""
    with closing(server.client()) as client:
        sequence = client.upload(STORE, blocks(exchange_file))["sequence"]
        for number in range(SMALL_STORES):
            node = {"id": "a", "type": "note", "content": "small"}
            client.call("POST", f"/api/memory/small-{number}/inject", {"nodes": [node]})
        end = time.monotonic() + INDEX_SECONDS
        while any(
            index["sequence"] < sequence for index in client.call("GET", f"/api/memory/{STORE}/stats")["indexes"]
        ):
            if time.monotonic() > end:
                raise ServerFailed(f"the indexes have not come to sequence {sequence} in {INDEX_SECONDS:.0f} s")
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(run_alone(run))
