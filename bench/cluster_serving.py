"""Three nodes that serve stores, and what befalls them: `python -m bench.cluster_serving [--rounds N] [--stores N]`.

Nodes of kgserve and NATS servers are processes on loopback. A client for each store writes nodes, each once, by
whichever node answers, and reads the last one back by another. In turn the node with the most stores is killed and
started again, killed for good, stopped for 20 s, and asked to end; in the end every acknowledged node has to be in its
store, under the commit that was told. One round takes four minutes. What a write costs beside one machine alone is
measured first, in one run.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bench.measure import Report, clock, rounded, times
from kgserve.client import Client
from kgserve.errors import KgserveError, NotFound
from tests.cluster.nodes import ServingNode, serving_nodes, settle
from tests.cluster.servers import NatsServers, free_ports, nats_servers

STORES = 30
STRUCK_SECONDS = 20.0
CALM_SECONDS = 15.0
PAUSE_SECONDS = 0.05
WRITTEN_SECONDS = 0.1
ANSWER_SECONDS = 3.0
COSTED = 300


class Told(NamedTuple):
    """An acknowledged write: when, which node of the store, and its commit."""

    at: float
    key: str
    sequence: int


class Visitor(threading.Thread):
    """Writes to one store all the time, each key once, and reads the last one back, by any node that answers."""

    def __init__(self, store: str, urls: list[str]) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.told: list[Told] = []
        self.stale: list[str] = []
        self.errors: Counter[str] = Counter()
        self.stopping = threading.Event()
        self._clients = [Client(url, retries=0, timeout=ANSWER_SECONDS) for url in urls]
        self._at = random.randrange(len(urls))

    def run(self) -> None:
        """Until it is told to stop."""
        number = 0
        while not self.stopping.is_set():
            number += 1
            key = f"{self.store}-{number}"
            try:
                self._write(key)
                self._at = random.randrange(len(self._clients))
                self._read(key)
                self.stopping.wait(WRITTEN_SECONDS)
            except (KgserveError, OSError) as error:
                self.errors[type(error).__name__] += 1
                self._at = (self._at + 1) % len(self._clients)
                self.stopping.wait(PAUSE_SECONDS)
        for client in self._clients:
            client.close()

    def _write(self, key: str) -> None:
        done = self._clients[self._at].store(self.store).inject(nodes=[{"id": key, "type": "t", "content": key}])
        self.told.append(Told(time.monotonic(), key, done.sequence))

    def _read(self, key: str) -> None:
        try:
            self._clients[self._at].store(self.store).node(key)
        except NotFound:
            self.stale.append(f"{key} was acknowledged and not to be read")

    def gap(self, since: float, until: float) -> float:
        """The longest time without an acknowledgement."""
        times = [since, *(each.at for each in [*self.told] if since < each.at < until), until]
        return max(after - before for before, after in pairwise(times))


class Site:
    """Servers, nodes and visitors."""

    def __init__(self, nodes: list[ServingNode], stores: int) -> None:
        self.nodes = nodes
        self.visitors = [Visitor(f"s{number}", [node.url for node in nodes]) for number in range(stores)]

    def strike(self, begin: Callable[[ServingNode], None], end: Callable[[ServingNode], None]) -> tuple[float, float]:
        """Have something befall the node with the most stores; the longest gaps of its stores and of others'."""
        owners = {name: node.name for node in self.nodes for name in _served(node)}
        busiest = Counter(owners.values()).most_common(1)[0][0]
        victim = next(node for node in self.nodes if node.name == busiest)
        since = time.monotonic()
        begin(victim)
        time.sleep(STRUCK_SECONDS)
        end(victim)
        time.sleep(CALM_SECONDS)
        until = time.monotonic()
        own = [each.gap(since, until) for each in self.visitors if owners.get(each.store) == busiest]
        others = [each.gap(since, until) for each in self.visitors if owners.get(each.store) != busiest]
        settle(self.nodes)
        return max(own, default=0.0), max(others, default=0.0)

    def violations(self) -> list[str]:
        """What must not be: something acknowledged that is not there, or twice, or was told under another commit."""
        found = [fault for visitor in self.visitors for fault in visitor.stale]
        with closing(self.nodes[0].client()) as client:
            for visitor in self.visitors:
                present = {node.id: node.sequence for node in client.store(visitor.store).nodes()}
                found += [each.key for each in visitor.told if present.get(each.key) != each.sequence]
                if len({each.sequence for each in visitor.told}) != len(visitor.told):
                    found.append(f"{visitor.store}: a sequence was told twice")
        return found


def _served(node: ServingNode) -> list[str]:
    with closing(node.client()) as client:
        return [each.name for each in client.stores().stores if each.state != "elsewhere"]


def _nothing(_: ServingNode) -> None:
    """It goes on as it is."""


def _kill(node: ServingNode) -> None:
    node.end(signal.SIGKILL)


def _kill_and_start(node: ServingNode) -> None:
    node.end(signal.SIGKILL)
    node.start()


def _stop(node: ServingNode) -> None:
    node.send(signal.SIGSTOP)


def _go_on(node: ServingNode) -> None:
    node.send(signal.SIGCONT)


STRIKES: dict[str, tuple[Callable[[ServingNode], None], Callable[[ServingNode], None]]] = {
    "killed, started again at once": (_kill_and_start, _nothing),
    "killed, away for 20 s": (_kill, ServingNode.start),
    "stopped for 20 s": (_stop, _go_on),
    "asked to end, away for 20 s": (ServingNode.end, ServingNode.start),
}


def cost(report: Report, folder: Path, node: ServingNode) -> None:
    """Milliseconds of a write by one client to one store: of this node, and of a server without a cluster, in turn."""
    alone = ServingNode("alone", folder, "", free_ports(1)[0])
    alone.start()
    try:
        taken: dict[str, list[float]] = {"cluster": [], "alone": []}
        with ExitStack() as stack:
            clients = {"cluster": stack.enter_context(node.client()), "alone": stack.enter_context(alone.client())}
            for number in range(COSTED):
                for name, client in clients.items():
                    inject = partial(client.store("cost").inject, nodes=[_node(number)])
                    taken[name].append(clock(inject))
        for name, each in taken.items():
            report.fact(f"inject of one node, {name}", str(times(each)))
    finally:
        alone.end()


def _node(number: int) -> dict[str, str]:
    return {"id": str(number), "type": "t", "content": "x" * 1000}


def run(rounds: int, stores: int) -> Report:
    """All of it, with servers of its own."""
    report = Report(f"Three nodes that serve {stores} stores")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with nats_servers(folder / "nats") as servers, serving_nodes(servers, folder / "nodes") as nodes:
            cost(report, folder, nodes[0])
            _visited(report, servers, nodes, rounds, stores)
    return report


def _visited(report: Report, servers: NatsServers, nodes: list[ServingNode], rounds: int, stores: int) -> None:
    site = Site(nodes, stores)
    for visitor in site.visitors:
        visitor.start()
    time.sleep(CALM_SECONDS)
    strikes = {name: (begin, end) for name, (begin, end) in STRIKES.items()}
    for name in [*strikes] * rounds:
        own, others = site.strike(*strikes[name])
        report.fact(f"node {name}: longest gap of its stores, of others'", f"{own:.1f} s, {others:.1f} s")
    server = servers.servers[0]
    since = time.monotonic()
    server.stop()
    time.sleep(STRUCK_SECONDS)
    servers.start_one(server)
    servers.wait()
    time.sleep(CALM_SECONDS)
    longest = max(visitor.gap(since, time.monotonic()) for visitor in site.visitors)
    report.fact("NATS server killed, away for 20 s: longest gap", f"{longest:.1f} s")
    for visitor in site.visitors:
        visitor.stopping.set()
    for visitor in site.visitors:
        visitor.join()
    found = site.violations()
    report.fact("acknowledged writes, each read back by any node", f"{sum(len(each.told) for each in site.visitors):,}")
    report.check("lost, doubled, moved or stale", "; ".join(found[:5]) or "none", not found)
    errors = sum((visitor.errors for visitor in site.visitors), Counter[str]())
    report.notes.append(f"Refusals met: {dict(errors)}; a call is given up after {rounded(ANSWER_SECONDS)} s.")


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--stores", type=int, default=STORES)
    chosen = parser.parse_args()
    report = run(chosen.rounds, chosen.stores)
    report.show()
    return int(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
