"""What statements that write take on WordNet, and for how long they hold up another writer, over HTTP."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from bench.measure import Report, rounded, times
from bench.prepared import STORE, blocks
from bench.rows.ground import Ground
from bench.server import Client, Server
from bench.wire import Wire, request

COPIED = "copied"
SETTINGS: dict[str, object] = {"indexes": False, "query_timeout": 300}
GONE, FEW_GONE = 60_000, 6_000
REPETITIONS, FEW_REPETITIONS = 300, 50
GO = "MATCH (n:Entity) WHERE n.type = 'noun' WITH n LIMIT {} DETACH DELETE n"
SET = "MATCH (n:Entity {id: $id}) SET n.content = $text"
SMALL = {
    "one property of one node": SET,
    "the same, with RETURN": f"{SET} RETURN n.content",
    "MERGE of one node": "MERGE (n:Entity {id: $id}) SET n.type = 'noun', n.content = $text",
}
GO_SECONDS, WAIT_SECONDS, SMALL_MILLISECONDS = 10, 0.5, 20


def written(*, quick: bool) -> Report:
    """Statements that change one node, and some that take very many away while another client injects."""
    report = Report("written: statements that write")
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder:
        ground = Ground(Path(folder), "wordnet", quick=quick)
        with Server(Path(folder) / "data", SETTINGS) as server, server.client() as client:
            for store in (STORE, COPIED):
                client.upload(store, blocks(ground.file))
            nodes, edges = len(ground.rows.nodes), len(ground.rows.edges)
            report.fact("the store", f"{nodes:,} nodes, {edges:,} edges")
            _small(report, server, ground.ids(ground.rounds(FEW_REPETITIONS, REPETITIONS)))
            query = GO.format(ground.rounds(FEW_GONE, GONE))
            with Wire(server.port) as wire:
                _gone(report, server, wire, client, (STORE, query))
                _gone(report, server, wire, client, (COPIED, f"{query} RETURN count(*)"))
    return report


def _small(report: Report, server: Server, ids: list[str]) -> None:
    """Each statement again and again, from the second on."""
    with Wire(server.port) as wire:
        for name, query in SMALL.items():
            taken = [wire.ask(_statement(STORE, query, id=node_id, text=name)).milliseconds for node_id in ids]
            found = times(taken[1:])
            report.at_most(name, found.fine, found.p50, SMALL_MILLISECONDS, "ms at p50")


def _gone(report: Report, server: Server, wire: Wire, client: Client, asked: tuple[str, str]) -> None:
    """Take many nodes away while another client injects into the same store; what is left has to be right."""
    store, query = asked
    before: dict[str, Any] = client.call("GET", f"/api/memory/{store}/stats")
    # What comes first opens the engine's file, which is no part of this.
    client.call("POST", f"/api/memory/{store}/cypher", {"query": "MATCH (n:Entity) RETURN count(*)"})
    with _injecting(server, store) as waits:
        answer = wire.ask(_statement(store, query))
    after: dict[str, Any] = client.call("GET", f"/api/memory/{store}/stats")
    changes = answer.json()["changes"]
    how = "with RETURN" if "RETURN" in query else "as a question"
    what = f"{changes['nodes_deleted']:,} nodes gone, {changes['edges_deleted']:,} edges, {how}"
    report.at_most(what, f"{answer.milliseconds / 1000:.2f} s", answer.milliseconds / 1000, GO_SECONDS, "s")
    found = times(waits)
    longest = found.longest / 1000
    report.at_most(f"meanwhile {found.count} injects: the longest", f"{longest:.2f} s", longest, WAIT_SECONDS, "s")
    report.fact("the injects", f"p50 {rounded(found.p50)} p95 {rounded(found.p95)} ms")
    due = before["nodes"] - changes["nodes_deleted"] + len(waits)
    report.check("nodes that are left", f"{after['nodes']:,}", ok=after["nodes"] == due)


@contextmanager
def _injecting(server: Server, store: str) -> Generator[list[float]]:
    """Another client, who makes one node after the other; the milliseconds of each."""
    stop = threading.Event()
    waits: list[float] = []

    def inject() -> None:
        with Wire(server.port) as wire:
            for body in _injects(store):
                waits.append(wire.ask(body).milliseconds)
                if stop.is_set():
                    return

    thread = threading.Thread(target=inject)
    thread.start()
    try:
        yield waits
    finally:
        stop.set()
        thread.join()


def _injects(store: str) -> Iterator[bytes]:
    for number in count():
        node = {"id": f"beside-{number}", "type": "made", "content": "some words"}
        yield request("POST", f"/api/memory/{store}/inject", {"nodes": [node]})


def _statement(store: str, query: str, **params: object) -> bytes:
    return request("POST", f"/api/memory/{store}/cypher", {"query": query, "mode": "write", "params": params})
