"""Small injects into a large store: 5 nodes and 5 edges into WordNet, from one client and from 32."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from bench import clients, wordnet
from bench.batches import PATH, changed_batch, new_batch
from bench.measure import Report, Times, clock, times
from bench.prepared import STORE, Workspace
from bench.server import Client, Server, ServerFailed
from bench.single import run_alone

REPETITIONS = 200
CLIENTS = 32
SECONDS = 8.0
SEED = 20_060_925


def run(work: Workspace) -> Report:
    """Measure; changes the workspace's store."""
    graph = wordnet.read(wordnet.folder())
    report = Report("inject: 5 nodes and 5 edges into WordNet, over HTTP")
    new = [new_batch(f"new-{n}", random.Random(SEED + n), graph) for n in range(REPETITIONS)]
    changed = [changed_batch(random.Random(SEED + n), graph) for n in range(REPETITIONS)]
    with Server(work.loaded_data()) as server, server.client() as client:
        before = client.call("GET", f"/api/memory/{STORE}/stats")["nodes"]
        measured = {
            "new nodes, linked to each other and to synsets": _send(client, new),
            "synsets and pointers updated": _send(client, changed),
            "the first again (moves updated_at)": _send(client, new),
            "the first again, touch: false": _send(client, [batch | {"touch": False} for batch in new]),
        }
        for what, figures in measured.items():
            report.at_most(f"1 client: {what}", str(figures), figures.p50, 20, "ms")
        batches = REPETITIONS + _compare_clients(report, server.port)
        after = client.call("GET", f"/api/memory/{STORE}/stats")["nodes"]
        report.check("nodes added", f"{after - before:,} of {5 * batches:,} sent", after - before == 5 * batches)
    return report


def _send(client: Client, batches: Sequence[dict[str, Any]]) -> Times:
    bodies = [msgspec.json.encode(batch) for batch in batches]
    return times([clock(lambda body=body: _post(client, body)) for body in bodies])


def _post(client: Client, body: bytes) -> None:
    reply = client.send("POST", PATH, body)
    if reply.status != 200:
        raise ServerFailed(f"inject: {reply.status} {reply.body[:500]!r}")


def _compare_clients(report: Report, port: int) -> int:
    one = clients.measure(port, connections=1, seconds=SECONDS / 2)
    many = clients.measure(port, connections=CLIENTS, seconds=SECONDS)
    figure, base = f"{many.rate:,.0f} batches/s", f"1 client {one.rate:,.0f} batches/s"
    report.compare(f"{CLIENTS} clients together", figure, base, many.rate / one.rate, ("≥", 3.0))
    report.fact(f"{CLIENTS} clients: latency", str(times(many.milliseconds)))
    report.check("refused or failed", str(one.failed + many.failed), one.failed + many.failed == 0)
    report.notes.append("clients: connections kept open by the threads of one separate process, new batches each time")
    return len(one.milliseconds) + len(many.milliseconds)


if __name__ == "__main__":
    sys.exit(run_alone(run))
