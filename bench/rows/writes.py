"""Small writes while everything follows: against SQLite and one fdatasync; while embedding; and from 32 clients."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from bench import clients, floor, graphs
from bench.batches import changed_batch, new_batch
from bench.measure import Report, clock, times
from bench.rows.ground import API, FOLLOWED, SEED, Ground, lags, settle
from bench.server import Server
from bench.sqlite import Database
from bench.wire import Wire, request
from kgserve.embedding.embedder import load_embedder
from kgserve.platform import settings

CLIENTS = 32
EMBEDDED: dict[str, object] = {"embedding_provider": "local"}
WHILE_EMBEDDING = 1.5


class Write(NamedTuple):
    """One write, as it is sent and as SQLite does it."""

    ready: bytes
    bare: Callable[[], object]


class Kind(NamedTuple):
    """Writes of one kind, and how often SQLite's time they may take besides h and f."""

    what: str
    allowed: float
    writes: list[Write]


def run(ground: Ground) -> Report:
    """Measure; works on copies."""
    report = Report(f"writes: {ground.name}, {ground.total:,} rows, over HTTP")
    data = ground.copy(ground.followed(), "written")
    database, _ = ground.database("written")
    with Server(data, FOLLOWED) as server, server.client() as client, Wire(server.port) as wire:
        settle(client)
        before = client.call("GET", f"{API}/stats")["nodes"]
        limits = _quiet(report, wire, _kinds(ground, database, "quiet"), data)
        settle(client)
        added = client.call("GET", f"{API}/stats")["nodes"] - before
        report.check("nodes added and deleted", f"{added:,} more", added == 4 * _repetitions(ground))
        _together(report, server.port, ground)
    _while_embedding(report, data, _kinds(ground, database, "embedding"), limits)
    database.close()
    report.notes += [
        f"p50 of {_repetitions(ground)} of each kind, by seed; h: /health, f: one fdatasync, s: the same in SQLite",
        "inject: 5 nodes and 5 edges; history and both indexes follow, vectors from letters unless said otherwise",
    ]
    return report


def _repetitions(ground: Ground) -> int:
    return ground.rounds(40, 200)


def _quiet(report: Report, wire: Wire, kinds: Iterator[Kind], data: Path) -> dict[str, float]:
    """The limit of each kind in milliseconds, as measured."""
    limits: dict[str, float] = {}
    for kind in kinds:
        served, bare = _in_turn(wire, kind.writes)
        h, f = floor.health(wire, 100), floor.fdatasync(data, 100)
        took, s = times(served), times(bare).p50
        limits[kind.what] = h + f + kind.allowed * s
        base = f"h {h:.3g} + f {f:.3g} + {kind.allowed:g} s {s:.3g}"
        report.within(kind.what, took.fine, took.p50, limits[kind.what], base)
    return limits


def _while_embedding(report: Report, data: Path, kinds: Iterator[Kind], limits: dict[str, float]) -> None:
    embedder = load_embedder(settings.load())
    embedder.close()
    if embedder.degraded:
        report.notes.append("no embedding model is prepared: writes were not measured beside embedding")
        return
    with Server(data, EMBEDDED) as server, server.client() as client, Wire(server.port) as wire:
        client.call("POST", f"{API}/reindex", {})
        settle(client, but="vector")
        for kind in kinds:
            took = times(_in_turn(wire, kind.writes)[0])
            limit = WHILE_EMBEDDING * limits[kind.what]
            base = f"{WHILE_EMBEDDING:g} x {limits[kind.what]:.3g}"
            report.within(f"while embedding: {kind.what}", took.fine, took.p50, limit, base)
        pending = lags(client)["vector"]
        report.check("still to be embedded after that", f"{pending:,}", pending > 0)
        # What is left would hold up the end of the server.
        server.kill()


def _together(report: Report, port: int, ground: Ground) -> None:
    seconds = ground.rounds(3, 8)
    one = clients.measure(port, 1, seconds / 2, ground.file)
    many = clients.measure(port, CLIENTS, seconds, ground.file)
    base = f"1 client {one.rate:,.0f}/s"
    report.compare(f"{CLIENTS} clients together", f"{many.rate:,.0f} injects/s", base, many.rate / one.rate, ("≥", 4.0))
    report.fact(f"{CLIENTS} clients: each", times(many.milliseconds).fine)
    report.check("refused or failed", str(one.failed + many.failed), one.failed + many.failed == 0)


def _in_turn(wire: Wire, writes: Sequence[Write]) -> tuple[list[float], list[float]]:
    served, bare = list[float](), list[float]()
    for write in writes:
        served.append(wire.ask(write.ready).milliseconds)
        bare.append(clock(write.bare))
    return served, bare


def _kinds(ground: Ground, database: Database, name: str) -> Iterator[Kind]:
    """The kinds in the order in which they must be done: each begins where the one before has ended."""
    graph, count = graphs.as_graph(ground.rows), _repetitions(ground)
    choice = random.Random(f"{SEED} {name}")
    new = [new_batch(f"{name}-{number}", choice, graph) for number in range(count)]
    yield Kind("inject, new", 3, [_inject(database, batch) for batch in new])
    yield Kind("inject, touch", 4, [_inject(database, batch) for batch in new])
    yield Kind("inject, unchanged", 4, [_inject(database, batch, touch=False) for batch in new])
    changed = [changed_batch(choice, graph) for _ in range(count)]
    yield Kind("inject, update", 4, [_inject(database, batch) for batch in changed])
    yield Kind("put_node", 4, [_put(database, node) for node in choice.sample(ground.rows.nodes, count)])
    yield Kind("edge delete", 4, [_delete_edge(database, edge) for edge in choice.sample(ground.rows.edges, count)])
    yield Kind("node delete", 4, [_delete_node(database, f"{name}-{number}-2") for number in range(count)])


def _inject(database: Database, batch: dict[str, Any], *, touch: bool = True) -> Write:
    ready = request("POST", f"{API}/inject", batch if touch else batch | {"touch": False})
    return Write(ready, lambda: database.inject(batch, touch=touch))


def _put(database: Database, node: dict[str, Any]) -> Write:
    said = {"id": node["id"], "type": node["type"], "content": f"{node['content']} Once more."}
    return Write(request("POST", f"{API}/nodes", said), lambda: database.inject({"nodes": [said], "edges": []}))


def _delete_edge(database: Database, edge: dict[str, Any]) -> Write:
    key = {name: edge[name] for name in ("from", "to", "relation_type")}
    return Write(request("DELETE", f"{API}/edges", key), lambda: database.delete_edge(key))


def _delete_node(database: Database, id_: str) -> Write:
    path = f"{API}/nodes/{quote(id_, safe='')}"
    return Write(request("DELETE", path), lambda: database.delete_node(id_))
