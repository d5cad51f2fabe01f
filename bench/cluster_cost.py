"""What nodes of a cluster cost beside one server: `python -m bench.cluster_cost [--calls N] [--many N]`.

Three NATS servers and three nodes are processes on loopback. A write of one client, and an append to the log by itself,
in turn with the same write to a server without a cluster; writers of 32 stores at once, of one node and of all three;
a read that another node passes on. Then N stores that nobody asks for, what they take in memory, and what it costs when
the node that owns a third of them is killed and some are asked for.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec

from bench.measure import Report, clock, times
from bench.wire import Wire, request
from kgserve.client import Client
from kgserve.cluster.jetstream.connection import NatsConnection
from kgserve.cluster.jetstream.kept import JetStreamLog, JetStreamRegistry
from kgserve.cluster.protocols import Owner
from kgserve.cluster.records import Record
from kgserve.errors import KgserveError
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.stores.placement import described
from tests.cli.running import COMMAND
from tests.cluster.nodes import ServingNode, serving_nodes
from tests.cluster.servers import free_ports, nats_servers

CALLS = 400
MANY = 10_000
WRITERS = 32
CALLS_AT_LEAST = 100
"""Of each writer: what the first ones have to wait for shall not be all that is measured."""
RECORD_BYTES = 2_048
ASKED = 200
ASKERS = 8
PATIENCE = 60.0


def writes(report: Report, folder: Path, node: ServingNode, servers: str, calls: int) -> None:
    """A write by one client: of this node, and of a server without a cluster; and an append, in turn."""
    alone = ServingNode("alone", folder, "", free_ports(1)[0], program=COMMAND)
    alone.start()
    with ExitStack() as stack:
        stack.callback(alone.end)
        log = JetStreamLog(stack.enter_context(closing(NatsConnection(servers))))
        here = stack.enter_context(node.client()).store("cost")
        there = stack.enter_context(alone.client()).store("cost")
        data, at = os.urandom(RECORD_BYTES), [log.end("appended")]

        def append(_number: int) -> None:
            at[0] = log.append("appended", at[0], Record("frame", 1, 1, 1, data))

        acts: dict[str, Callable[[int], object]] = {
            "cluster": lambda number: here.inject(nodes=[_node(number)]),
            "alone": lambda number: there.inject(nodes=[_node(number)]),
            "append": append,
        }
        taken: dict[str, list[float]] = {name: [] for name in acts}
        for number in range(calls):
            for name, act in acts.items():
                taken[name].append(clock(partial(act, number)))
    found = {name: times(each) for name, each in taken.items()}
    limit = found["alone"].p50 + 1.5 * found["append"].p50
    baseline = f"alone {found['alone'].fine}; append {found['append'].fine}"
    report.within(
        "inject of one node: p50 of alone + 1.5 appends",
        found["cluster"].fine,
        found["cluster"].p50 / limit,
        1,
        baseline,
    )


def writers(report: Report, nodes: list[ServingNode], calls: int) -> None:
    """Writers of one store each: one, many of one node, and as many of all nodes in turn."""
    alone = _rate(nodes[:1], 1, calls)
    for among in (nodes[:1], nodes):
        rate = _rate(among, WRITERS, calls)
        times_as_many = rate.writes / alone.writes
        report.check(
            f"{WRITERS} stores at once, on {len(among)} of {len(nodes)} nodes",
            f"{rate}; one: {alone}: {times_as_many:.1f} x (3 wanted)",
            times_as_many >= 3,
        )


class Rate(NamedTuple):
    """Writes a second, and how many of the machine's cores were busy with them: nodes, NATS servers, and clients."""

    writes: float
    cores: float

    def __str__(self) -> str:
        return f"{self.writes:,.0f}/s on {self.cores:.1f} of {os.cpu_count()} cores"


def _rate(nodes: list[ServingNode], count: int, calls: int) -> Rate:
    """Writes a second to so many stores that these nodes serve, which have a connection each."""
    each = max(calls // count, CALLS_AT_LEAST)
    with ExitStack() as stack:
        waiting = []
        for number in range(count):
            node, store = nodes[number % len(nodes)], f"w{len(nodes)}-{count}-{number}"
            with closing(node.client()) as client:
                client.store(store).inject(nodes=[_node(0)])
            wire = stack.enter_context(Wire(node.port))
            ready = [request("POST", f"/api/memory/{store}/inject", {"nodes": [_node(n)]}) for n in range(1, each + 1)]
            waiting.append(partial(_write_all, wire, ready))
        began, worked = time.perf_counter(), _worked()
        with ThreadPoolExecutor(count) as threads:
            for done in [threads.submit(write) for write in waiting]:
                done.result()
        seconds = time.perf_counter() - began
        return Rate(count * each / seconds, (_worked() - worked) / seconds)


def _worked() -> float:
    """Seconds that the machine's cores have worked."""
    user, nice, system, _idle, _waiting, *rest = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def _write_all(wire: Wire, ready: list[bytes]) -> None:
    for one in ready:
        wire.ask(one)


def reads(report: Report, owner: ServingNode, other: ServingNode, calls: int) -> None:
    """A read of the node that has the store, and one that another node passes on, in turn."""
    with closing(owner.client()) as client:
        client.store("read").inject(nodes=[_node(1)])
    taken: dict[str, list[float]] = {owner.url: [], other.url: []}
    with httpx.Client(headers={"Kgserve-No-Redirect": "1"}) as http:
        for _ in range(calls):
            for url, each in taken.items():
                each.append(clock(lambda url=url: http.get(f"{url}/api/memory/read/nodes/1").raise_for_status()))
    local, passed = times(taken[owner.url]), times(taken[other.url])
    report.within(
        "read that is passed on: p50 of local + 1 ms", passed.fine, passed.p50 / (local.p50 + 1), 1, local.fine
    )


def many(report: Report, nodes: list[ServingNode], servers: str, count: int) -> None:
    """Stores that are there, and asked for by few."""
    before = [_resident(node) for node in nodes]
    with closing(NatsConnection(servers)) as connection:
        registry = JetStreamRegistry(connection)
        description = msgspec.json.encode(described(StoreSettings()))

        def made(number: int) -> None:
            node = nodes[number % len(nodes)]
            registry.claim(f"many-{number}", Owner(node.name, 1, node.url, description), 0)

        began = time.perf_counter()
        with ThreadPoolExecutor(ASKERS) as threads:
            list(threads.map(made, range(count)))
        report.fact(f"{count:,} entries made", f"{time.perf_counter() - began:.0f} s")
        _awaited(lambda: _known(nodes[1]) >= count)
        grown = sum(_resident(node) - rss for node, rss in zip(nodes, before, strict=True)) / len(nodes)
        report.fact("memory of a node for each store that is not open", f"{1024 * grown / count:.2f} kB")
        nodes[0].end(signal.SIGKILL)
        killed = time.monotonic()
        asked = [number for number in range(count) if number % len(nodes) == 0][:ASKED]
        rss = _resident(nodes[1])
        with ThreadPoolExecutor(ASKERS) as threads:
            took = list(threads.map(partial(_taken_over, nodes[1].url, nodes[2].url, killed), asked))
        report.fact(
            f"{ASKED} of its stores written to, from the kill on", f"first {min(took):.1f} s, last {max(took):.1f} s"
        )
        changed = [store for store, claim in registry.owners().items() if _is_made(store) and claim.owner.epoch > 1]
        report.check("stores that were taken over", f"{len(changed):,}; {ASKED:,} asked for", len(changed) == ASKED)
        report.fact("memory of the node that was asked", f"{rss:.0f} → {_resident(nodes[1]):.0f} MiB")


def _is_made(store: str) -> bool:
    return store.startswith("many-")


def _taken_over(url: str, other: str, killed: float, number: int) -> float:
    """Seconds from the kill until a store took a write."""
    with closing(Client(f"{url},{other}", retries=0, timeout=5)) as client:
        while time.monotonic() - killed < PATIENCE:
            with suppress(KgserveError):
                client.store(f"many-{number}").inject(nodes=[_node(1)])
                return time.monotonic() - killed
            time.sleep(0.1)
    return PATIENCE


def _known(node: ServingNode) -> int:
    with closing(node.client()) as client:
        return sum(each.stores for each in client.cluster().nodes)


def _awaited(what: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not what() and time.monotonic() < until:
        time.sleep(0.2)


def _resident(node: ServingNode) -> float:
    """Memory of a node's process, in MiB."""
    assert node.process is not None
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def _node(number: int) -> dict[str, str]:
    return {"id": str(number), "type": "t", "content": "x" * 1000}


def run(calls: int, count: int) -> Report:
    """All of it, with servers of its own."""
    report = Report(f"What nodes of a cluster cost, and {count:,} stores of theirs")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with (
            nats_servers(folder / "nats") as servers,
            serving_nodes(servers, folder / "nodes", program=COMMAND) as nodes,
        ):
            writes(report, folder, nodes[0], servers.urls, calls)
            writers(report, nodes, calls)
            reads(report, nodes[0], nodes[1], calls)
            if count:
                many(report, nodes, servers.urls, count)
    return report


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--many", type=int, default=MANY, help="stores; 0 leaves them out")
    chosen = parser.parse_args()
    report = run(chosen.calls, chosen.many)
    report.show()
    return int(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
