"""Statements that write, over HTTP: the first, for which a copy is made, and those that follow while it is kept.

Beside each of them small injects are written one after the other: the longest wait among them is what a statement costs
everybody else.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench import baseline
from bench.measure import Report, clock, rounded, times
from bench.prepared import STORE, Workspace, blocks
from bench.server import Client, Server
from bench.single import run_alone
from bench.wire import Wire, request

SIZES = (1_000, 50_000)
FOLLOWING = 8
FIRSTS = 2
AIM_RATIO = 0.2
AIM_MILLISECONDS = 30.0
KINDS = {
    "SET of a content": "MATCH (n:Entity {id: $id}) SET n.content = n.content + '.'",
    "CREATE of a node": "CREATE (n:Entity {id: $new, type: 'note'})",
    "SET by way of edges": "MATCH (n:Entity {id: $id})-[e]->(m:Entity) SET m.content = $new",
    "DELETE of an edge": "MATCH (n:Entity {id: $id})-[e]->(m:Entity) WITH e LIMIT 1 DELETE e",
    "MERGE of a node": "MERGE (n:Entity {id: $id}) ON CREATE SET n.type = 'note' ON MATCH SET n.content = $new",
}
FAILING = "MATCH (n:Entity {id: $id}) SET n.content = cast(cast('x' + n.id AS INT64) AS STRING)"
"""A copy in which it was tried is given back."""


def run(work: Workspace) -> Report:
    """Measure, in stores of its own."""
    report = Report("statements that write, over HTTP: the first and those that follow")
    nodes = baseline.read_rows(work.exchange_file).nodes
    with Server(Path(work.scratch("written")), {"indexes": False}) as server, server.client() as client:
        for size in SIZES:
            store = f"written-{size}"
            client.upload(store, _lines(size))
            _measure(report, server.port, client, store, f"{size:,} rows", [f"n{at}" for at in range(size // 2)])
        client.upload(STORE, blocks(work.exchange_file))
        _measure(report, server.port, client, STORE, "WordNet", [node["id"] for node in nodes])
    report.notes.append(
        "others wait: the longest of small injects one after the other, beside the first / the following"
    )
    return report


def _measure(report: Report, port: int, client: Client, store: str, label: str, ids: Sequence[str]) -> None:
    for kind, query in KINDS.items():
        first, following = list[float](), list[float]()
        first_waits, following_waits = list[float](), list[float]()
        for number in range(FIRSTS + FOLLOWING):
            taken, waits = (first, first_waits) if number < FIRSTS else (following, following_waits)
            if number < FIRSTS:
                failing = msgspec.json.encode(_body(FAILING, ids[0], ""))
                client.send("POST", f"/api/memory/{store}/cypher", failing)
            body = _body(query, ids[number * len(ids) // (FIRSTS + FOLLOWING)], f"{kind} {number}")
            with _others(port, store, waits):
                taken.append(clock(lambda body=body: client.call("POST", f"/api/memory/{store}/cypher", body)))
        one, others = times(first), times(following)
        figure = f"p50 {rounded(others.p50)} longest {rounded(others.longest)} ms"
        beside = f"first {rounded(one.p50)} ms"
        if label == "WordNet":
            report.within(f"{label}, {kind}", figure, others.p50, AIM_RATIO * one.p50, beside)
        else:
            report.at_most(f"{label}, {kind}, {beside}", figure, others.p50, AIM_MILLISECONDS, "ms")
        report.fact("  ratio to the first; others wait", _ratio(others.p50 / one.p50, first_waits, following_waits))


def _ratio(ratio: float, first: Sequence[float], following: Sequence[float]) -> str:
    waits = [f"{rounded(times(each).p50)}" for each in (first, following)]
    return f"{ratio:.3f}; p50 {waits[0]} / {waits[1]} ms"


@contextmanager
def _others(port: int, store: str, longest: list[float]) -> Generator[None]:
    """While inside, small injects are written; the longest of them is noted."""
    over, taken = threading.Event(), list[float]()

    def write() -> None:
        with Wire(port) as wire:
            while not over.wait(0.005):
                nodes = [{"id": f"other-{len(taken) % 100}", "type": "note", "content": str(len(taken))}]
                taken.append(wire.ask(request("POST", f"/api/memory/{store}/inject", {"nodes": nodes})).milliseconds)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield
    finally:
        over.set()
        writing.join()
    longest.append(max(taken, default=0.0))


def _body(query: str, node_id: str, new: str) -> dict[str, object]:
    params = {name: value for name, value in (("id", node_id), ("new", new)) if f"${name}" in query}
    return {"query": query, "params": params, "mode": "write"}


def _lines(rows: int) -> list[bytes]:
    """Half of them nodes, half edges."""
    half = rows // 2
    nodes = [{"kind": "node", "id": f"n{at}", "type": "t", "content": "x" * 100} for at in range(half)]
    edges = [
        {"kind": "edge", "from": f"n{at}", "to": f"n{(7 * at + 1) % half}", "relation_type": "r"} for at in range(half)
    ]
    return [msgspec.json.encode(line) + b"\n" for line in (*nodes, *edges)]


if __name__ == "__main__":
    sys.exit(run_alone(run))
