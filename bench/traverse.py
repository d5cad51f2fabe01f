"""Traversal over HTTP on WordNet, against the bare engine in process: the original's query shape, and the fastest."""

from __future__ import annotations

import random
import sys

import msgspec

from bench import baseline, wordnet
from bench.measure import Report, Times, clock, times
from bench.prepared import STORE, Workspace
from bench.server import Client, Server, ServerFailed
from bench.single import run_alone

PATH = f"/api/memory/{STORE}/traverse"
DEPTHS = (1, 2, 3)
STARTS = 100
DEEP_STARTS = 30
SEED = 20_060_925


def run(work: Workspace) -> Report:
    """Measure; leaves the workspace's data as it is."""
    report = Report("traverse: WordNet, over HTTP")
    choice = random.Random(SEED)
    ids = [node.id for node in wordnet.read(wordnet.folder()).nodes]
    starts, deep = choice.sample(ids, STARTS), choice.sample(ids, DEEP_STARTS)
    bare = baseline.measure("traverse", database=str(work.loaded_database()), ids=starts, depths=DEPTHS)
    with Server(work.loaded_data()) as server, server.client() as client:
        _walk(client, starts[:20], 1, 10_000)
        for depth in DEPTHS:
            _compare(report, depth, _walk(client, starts, depth, 10_000), bare[str(depth)])
        for limit in (1_000, 10_000):
            deepest = _walk(client, deep, 10, limit)
            figure = f"longest {deepest.longest:.0f} ms, p50 {deepest.p50:.0f} ms"
            report.at_most(f"depth 10, max_nodes {limit:,}", figure, deepest.longest, 1000, "ms")
    report.notes += [
        f"{STARTS} random starts, the same for all (slow shapes: the first {STARTS // 4}); {DEEP_STARTS} at depth 10",
        "original: `*0..d`, collect, IN, one query each for nodes and edges; two queries: the list as a parameter",
        "fastest bare: the faster of SHORTEST queries for nodes and edges and of look-ups node by node, prepared",
    ]
    return report


def _walk(client: Client, starts: list[str], depth: int, max_nodes: int) -> Times:
    bodies = [msgspec.json.encode({"start_id": id_, "depth": depth, "max_nodes": max_nodes}) for id_ in starts]
    return times([clock(lambda body=body: _post(client, body)) for body in bodies])


def _post(client: Client, body: bytes) -> None:
    reply = client.send("POST", PATH, body)
    if reply.status != 200:
        raise ServerFailed(f"traverse: {reply.status} {reply.body[:500]!r}")


def _compare(report: Report, depth: int, served: Times, bare: dict[str, list[float]]) -> None:
    p50 = {shape: times(durations).p50 for shape, durations in bare.items()}
    what, figure = f"depth {depth}", str(served)
    original = p50["walk_collect"]
    report.compare(f"{what}: times faster", figure, f"original {original:.1f} ms", original / served.p50, ("≥", 10.0))
    in_two = p50["walk_list"]
    report.compare(f"{what}: times faster", figure, f"in two queries {in_two:.1f} ms", in_two / served.p50)
    name = min(("shortest", "lookups"), key=lambda shape: p50[shape])
    report.compare(f"{what}: times the time", figure, f"{name} {p50[name]:.1f} ms", served.p50 / p50[name], ("≤", 2.0))


if __name__ == "__main__":
    sys.exit(run_alone(run))
