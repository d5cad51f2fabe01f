"""A node with very many edges: `python -m bench.hub [--edges N] [--pages N]`.

A hub with 200,000 edges that leave it and a sink with as many that end there, half of them with bounds of validity:
what pages of their edges, the nodes themselves, walks from them and writes to them take, in time and in memory of the
server.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.mcp import Stateless, Work
from bench.measure import Report, clock, times
from bench.prepared import STORE
from bench.rows.ground import API
from bench.server import Server, end_when_told
from bench.wire import Wire, request

EDGES = 200_000
PAGES = 50
WARM_UP = 3
MOST_MS = 20
MOST_MIB = 5
HUB, SINK = "hub", "sink"
KINDS = 4
MOMENT = "2020-06-01T00:00:00Z"
HALF = ("2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z")

SETTINGS: dict[str, object] = {"indexes": False, "shutdown_grace": 120}
PATIENCE = 300.0

Call = Callable[[int], float]
"""Does the work of a number, and returns milliseconds."""


class Took(NamedTuple):
    """What so many calls of one kind took; ``work`` is the server's own milliseconds for each, whoever else runs."""

    milliseconds: list[float]
    work: float
    mebibytes: float


def blocks(edges: int) -> Iterator[bytes]:
    """The graph as exchange lines: every other edge has bounds, every tenth an ordinal, and no two are of one age."""
    encode = msgspec.json.Encoder().encode
    nodes = [HUB, SINK, *(f"leaf-{number:06}" for number in range(edges))]
    for start in range(0, len(nodes), 1000):
        lines = ({"kind": "node", "id": each, "type": "thing"} for each in nodes[start : start + 1000])
        yield b"".join(encode(line) + b"\n" for line in lines)
    for start in range(0, edges, 1000):
        lines = (line for number in range(start, min(start + 1000, edges)) for line in _edges(number))
        yield b"".join(encode(line) + b"\n" for line in lines)


def _edges(number: int) -> Iterator[dict[str, object]]:
    age = f"2024-{number % 12 + 1:02}-{number // 12 % 28 + 1:02}T00:00:00.{number:06}Z"
    for source, target in ((HUB, f"leaf-{number:06}"), (f"leaf-{number:06}", SINK)):
        edge: dict[str, object] = {"kind": "edge", "from": source, "to": target, "relation_type": f"R{number % KINDS}"}
        edge |= {"weight": 1.0, "attributes": {"created_at": age}}
        if number % 2:
            edge |= {"valid_from": HALF[0], "valid_to": HALF[1]}
        if number % 10 == 0:
            edge["ordinal"] = number * 7919 % 1000
        yield edge


def calls(wire: Wire, edges: int) -> dict[str, Call]:
    """Everything that is measured, by what it is."""

    def ask(method: str, path: str, body: object = None) -> Call:
        ready = request(method, path if path.startswith("/") else f"{API}/{path}", body)
        return lambda _number: wire.ask(ready).milliseconds

    def edge(number: int) -> dict[str, object]:
        return {"from": HUB, "to": f"leaf-{number:06}", "relation_type": "NEW"}

    def inject(number: int) -> float:
        return wire.ask(request("POST", f"{API}/inject", {"edges": [edge(number)]})).milliseconds

    def inject_then_page(number: int) -> float:
        inject(edges // 2 + number)
        return wire.ask(first).milliseconds

    first = request("GET", f"{API}/nodes/{HUB}/outgoing")
    found: dict[str, Call] = {}
    for node, side in ((HUB, "outgoing"), (SINK, "incoming")):
        page = f"nodes/{node}/{side}"
        found |= {
            f"{side}: first page": ask("GET", page),
            f"{side}: a page in the middle": ask("GET", f"{page}?offset={edges // 2}"),
            f"{side}: the last page": ask("GET", f"{page}?offset={edges - 100}"),
            f"{side}: first page of 1,000": ask("GET", f"{page}?limit=1000"),
            f"{side}: of one relation type": ask("GET", f"{page}?kind=R1"),
            f"{side}: with valid_at": ask("GET", f"{page}?valid_at={MOMENT}"),
            f"{side}: in the middle, of two types, with valid_at": ask(
                "GET", f"{page}?kind=R1&kind=R2&valid_at={MOMENT}&offset={edges // 4}"
            ),
            f"{side}: the node, with edges": ask("GET", f"nodes/{node}"),
            f"{side}: the node with valid_at": ask("GET", f"nodes/{node}?valid_at={MOMENT}"),
        }
        walk = {"start_id": node, "depth": 1, "max_nodes": 100, "direction": side}
        found[f"{side}: walk of depth 1, 100 nodes"] = ask("POST", f"{API}/traverse", walk)
    walk = {"start_id": HUB, "depth": 1, "max_nodes": 100, "direction": "both", "valid_at": MOMENT}
    found["walk both ways with valid_at, 100 nodes"] = ask("POST", f"{API}/traverse", walk)
    found["an edge is added to the hub"] = inject
    found["first page after an edge was added"] = inject_then_page
    found["a new edge between leaf and hub is deleted"] = lambda number: (
        wire.ask(request("DELETE", f"{API}/edges", edge(number))).milliseconds
    )
    return found


def tools(port: int) -> dict[str, Call]:
    """The same of MCP."""
    client = Stateless(port)

    def tool(name: str, **arguments: object) -> Call:
        work = Work("POST", "", name, arguments, {"index": STORE})
        return lambda _number: clock(lambda: client.send(work))

    return {
        "MCP: get_entity": tool("get_entity", id=HUB),
        "MCP: get_entity with valid_at": tool("get_entity", id=HUB, valid_at=MOMENT),
        "MCP: list_relations": tool("list_relations", id=HUB),
        "MCP: traverse_knowledge_graph, 100 nodes": tool("traverse_knowledge_graph", start_id=HUB, max_nodes=100),
    }


def measured(server: Server, call: Call, pages: int) -> Took:
    """So many calls, and how much more memory of its own the server has after them."""
    for number in range(WARM_UP):
        call(number)
    before, worked = server.mebibytes("RssAnon"), _work(server)
    took = [call(WARM_UP + number) for number in range(pages)]
    return Took(took, (_work(server) - worked) / pages, server.mebibytes("RssAnon") - before)


def _work(server: Server) -> float:
    """Milliseconds for which the server's threads have had a processor; threads that have ended are left out."""
    files = Path(f"/proc/{server.pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e6


def run(edges: int = EDGES, pages: int = PAGES) -> Report:
    """All of it, on a store of its own."""
    report = Report(f"a hub with {edges:,} edges, and a sink with as many")
    with tempfile.TemporaryDirectory(prefix="kgserve-hub-", ignore_cleanup_errors=True) as folder:
        with Server(Path(folder), SETTINGS) as server, server.client() as client:
            client.upload(STORE, blocks(edges))
            server.stop(PATIENCE)
        # Another server, in which nothing is left to follow what was imported.
        with Server(Path(folder), SETTINGS) as server, Wire(server.port) as wire:
            _check(wire, edges)
            for what, call in (calls(wire, edges) | tools(server.port)).items():
                found = measured(server, call, pages)
                _note(report, what, found)
            server.kill()
    report.notes.append(f"{pages} calls of each kind after {WARM_UP}; memory: growth of the process's own in between")
    report.notes.append("work: what the server's threads took of a processor for one call, whoever else runs beside it")
    return report


def _note(report: Report, what: str, found: Took) -> None:
    took = times(found.milliseconds)
    figure = f"{took.fine[:-3]}, longest {took.longest:.1f} ms; work {found.work:.1f} ms"
    report.at_most(what, f"{figure}; {found.mebibytes:+.1f} MiB", took.p95, MOST_MS, "ms at p95")
    if found.mebibytes > MOST_MIB:
        report.at_most(f"{what}: memory", f"{found.mebibytes:+.1f} MiB", found.mebibytes, MOST_MIB, "MiB more")


def _check(wire: Wire, edges: int) -> None:
    """Pages hold what they should, so that nothing else is measured."""

    def page(question: str) -> list[dict[str, Any]]:
        return wire.ask(request("GET", f"{API}/nodes/{HUB}/outgoing?{question}")).json()["edges"]

    last = page(f"offset={edges - 100}")
    assert len(last) == len(page("")) == 100
    assert len(page(f"offset={edges - 50}")) == 50
    assert [each["ordinal"] for each in page("")] == sorted(each["ordinal"] for each in page(""))
    assert len(page(f"kind=R1&offset={edges // KINDS - 10}")) == 10
    assert len(page(f"valid_at=2030-01-01T00:00:00Z&offset={edges // 2 - 10}")) == 10


def main(arguments: Sequence[str]) -> int:
    """Run for what is asked for, and print. Exit code 1 when a mark is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.hub", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--edges", type=int, default=EDGES, help=f"of each of the two (default {EDGES:,})")
    parser.add_argument("--pages", type=int, default=PAGES, help=f"calls of each kind (default {PAGES})")
    given = parser.parse_args(arguments)
    end_when_told()
    report = run(given.edges, given.pages)
    report.show()
    return int(any(line.met is False for line in report.lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
