"""Three nodes that share journals, and what befalls them: `python -m bench.cluster_nodes [--rounds N] [--stores N]`.

Each node is a process that beats, owns stores, writes to their journals and takes those of others over; three NATS
servers are beside them on loopback. A writer for each store goes where it is sent. In turn a node is killed, one is
stopped for longer than its lease, a server is killed, and both at once. In the end every acknowledged write has to be
in its store's log once, in order, under epochs that never go back. One round of four takes three minutes.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, Self

from bench.measure import Report, rounded
from kgserve.cluster.jetstream.connection import NatsConnection
from kgserve.cluster.jetstream.kept import JetStreamLog, JetStreamRegistry
from kgserve.cluster.membership import Membership
from kgserve.cluster.ownership import Elsewhere, Ownership
from kgserve.cluster.protocols import Beat, Log
from kgserve.cluster.records import joined
from kgserve.cluster.shipping import Shipping, take_over
from kgserve.errors import KgserveError
from kgserve.platform import log
from kgserve.storage.journal.journal import Journal
from kgserve.storage.model.batch import NodePut, WriteBatch
from kgserve.storage.model.change import ChangeSet, StoreState
from kgserve.storage.plan import Workspace, plan
from tests.cluster.servers import NatsServers, nats_servers

STORES = 12
NODES = ("n0", "n1", "n2")
SEGMENT_BYTES = 1 << 22
STRUCK_SECONDS = 20.0
CALM_SECONDS = 15.0
ANSWER_SECONDS = 3.0
PAUSE_SECONDS = 0.05
WRITTEN_SECONDS = 0.02
"""Between writes to a store: what is measured is who takes over, not how fast they write."""
PATIENCE = 60.0

Answer = dict[str, Any]


class Node:
    """What a node of kgserve does with the journals of its stores, without the stores."""

    def __init__(self, name: str, servers: str, folder: Path) -> None:
        connection = NatsConnection(servers)
        self._log = JetStreamLog(connection)
        registry = JetStreamRegistry(connection)
        membership = Membership(registry, Beat(name, token_hex(4), name))
        membership.start()
        self._ownership = Ownership(registry, membership)
        self._folder = folder / name
        self._locks = defaultdict[str, threading.Lock](threading.Lock)
        self._open: dict[str, Shipping] = {}
        self._states: dict[str, StoreState] = {}

    def write(self, store: str, key: str) -> Answer:
        """Write a node of a key to a store, or say who would."""
        with self._locks[store]:
            try:
                elsewhere = None if store in self._open else self._take(store)
                return {"elsewhere": elsewhere} if elsewhere else {"sequence": self._append(store, key)}
            except KgserveError as error:
                self._let_go(store)
                return {"error": f"{type(error).__name__}: {error}"}

    def _take(self, store: str) -> str | None:
        placed = self._ownership.seek(store, b"")
        if isinstance(placed, Elsewhere):
            return placed.node
        path = self._folder / store / "journal"
        journal = Journal.open(path, SEGMENT_BYTES, 0) if path.is_dir() else Journal.create(path, SEGMENT_BYTES)
        try:
            self._open[store] = take_over(journal, self._log, store, placed.claim.owner)
        except BaseException:
            journal.close()
            raise
        last = next(iter(journal.read(journal.last - 1)), None) if journal.last else None
        self._states[store] = last.state if last is not None else StoreState()
        return None

    def _append(self, store: str, key: str) -> int:
        change = _change(self._states[store], key)
        self._open[store].append([change])
        self._states[store] = change.state
        return change.sequence

    def _let_go(self, store: str) -> None:
        self._ownership.give_up(store)
        if (owned := self._open.pop(store, None)) is not None:
            owned.journal.close()


def _change(state: StoreState, key: str) -> ChangeSet:
    change, _ = plan(WriteBatch(nodes=[NodePut(0, key, "t")]), Workspace(), state, time.time_ns() // 1000)
    assert change is not None
    return change


def serve(name: str, servers: str, folder: Path) -> None:
    """Be a node: take writes as lines of JSON from standard input, and answer each."""
    log.configure("json", "info")
    node, writing = Node(name, servers, folder), threading.Lock()

    def answer(number: int, store: str, key: str) -> None:
        line = json.dumps([number, node.write(store, key)])
        with writing:
            print(line, flush=True)

    with ThreadPoolExecutor(64) as threads:
        print(json.dumps([0, {}]), flush=True)
        for line in sys.stdin:
            threads.submit(answer, *json.loads(line))


class NodeProcess:
    """A node in a process of its own, as its clients see it."""

    def __init__(self, name: str, servers: str, folder: Path) -> None:
        self._command = [sys.executable, "-m", "bench.cluster_nodes", "--node", name]
        self._command += ["--servers", servers, "--folder", str(folder)]
        self._waiting: dict[int, Future[Answer]] = {}
        self._lock = threading.Lock()
        self._number = 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Begin, and wait until it takes writes."""
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._waiting[0] = ready = Future[Answer]()
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        ready.result(PATIENCE)

    def ask(self, store: str, key: str) -> Answer:
        """Its answer, or that there is none."""
        with self._lock:
            self._number += 1
            number, future = self._number, Future[Answer]()
            self._waiting[number] = future
        try:
            assert self.process is not None
            assert self.process.stdin is not None
            with self._lock:
                self.process.stdin.write(json.dumps([number, store, key]) + "\n")
                self.process.stdin.flush()
            return future.result(ANSWER_SECONDS)
        except (TimeoutError, OSError, ValueError) as error:
            self._waiting.pop(number, None)
            return {"error": str(error)}

    def send(self, number: signal.Signals) -> None:
        """Signal it."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            number, answer = json.loads(line)
            if (future := self._waiting.pop(number, None)) is not None:
                future.set_result(answer)


class Told(NamedTuple):
    """An acknowledged write: when, under which key, with which sequence, and by whom."""

    at: float
    key: str
    sequence: int
    node: str


class Writer(threading.Thread):
    """Writes to one store all the time, each key once, where it is sent."""

    def __init__(self, store: str, nodes: dict[str, NodeProcess]) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.told: list[Told] = []
        self.errors: list[str] = []
        self.stopping = threading.Event()
        self._nodes = nodes

    def run(self) -> None:
        """Until it is told to stop."""
        at, number = NODES[hash(self.store) % len(NODES)], 0
        while not self.stopping.is_set():
            number += 1
            answer = self._nodes[at].ask(self.store, key := f"{self.store}-{number}")
            if "sequence" in answer:
                self.told.append(Told(time.monotonic(), key, answer["sequence"], at))
                self.stopping.wait(WRITTEN_SECONDS)
                continue
            self.errors += [answer["error"]] if "error" in answer else []
            at = answer.get("elsewhere") or NODES[(NODES.index(at) + 1) % len(NODES)]
            self.stopping.wait(PAUSE_SECONDS)

    def gap(self, since: float, until: float) -> float:
        """The longest time without an acknowledgement."""
        times = [since, *(each.at for each in [*self.told] if since < each.at < until), until]
        return max(after - before for before, after in pairwise(times))


class Cluster:
    """Servers, nodes and writers."""

    def __init__(self, servers: NatsServers, folder: Path, stores: int) -> None:
        self.servers = servers
        self.nodes = {name: NodeProcess(name, servers.urls, folder) for name in NODES}
        self.writers = [Writer(f"s{number}", self.nodes) for number in range(stores)]

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(len(NODES)) as threads:
            list(threads.map(NodeProcess.start, self.nodes.values()))
        for writer in self.writers:
            writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.stopping.set()
        for node in self.nodes.values():
            node.kill()
        for writer in self.writers:
            writer.join()

    def strike(self, what: str) -> tuple[float, float]:
        """Have something befall the node with the most stores; the longest gaps of its stores and of others'."""
        owners = {writer.store: writer.told[-1].node for writer in self.writers if writer.told}
        victim = Counter(owners.values()).most_common(1)[0][0]
        begin, end = self.strikes(NODES.index(victim))[what]
        since = time.monotonic()
        begin()
        time.sleep(STRUCK_SECONDS)
        end()
        time.sleep(CALM_SECONDS)
        until = time.monotonic()
        own, others = [0.0], [0.0]
        for writer in self.writers:
            (own if owners.get(writer.store) == victim else others).append(writer.gap(since, until))
        return max(own), max(others)

    def strikes(self, number: int) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
        """What may befall the node of a number, and how it ends."""
        node, server = self.nodes[NODES[number]], self.servers.servers[number]

        def both() -> None:
            node.kill()
            server.stop()

        def both_again() -> None:
            self.servers.start_one(server)
            self.servers.wait()
            node.start()

        return {
            "node killed": (node.kill, node.start),
            "node stopped": (lambda: node.send(signal.SIGSTOP), lambda: node.send(signal.SIGCONT)),
            "server killed": (server.stop, lambda: self.servers.start_one(server)),
            "both killed": (both, both_again),
        }


def violations(logs: Log, writer: Writer) -> list[str]:
    """What a store's log shows that must not be."""
    found = list(joined(logs.read(writer.store, 0, logs.end(writer.store))))
    frames = [each.record for each in found if each.record.kind == "frame"]
    epochs = [each.record.epoch for each in found]
    wrong: list[str] = []
    if [frame.first for frame in frames] != list(range(1, len(frames) + 1)):
        wrong.append("sequences are doubled, lost or moved")
    if epochs != sorted(epochs):
        wrong.append("an epoch went back")
    wrong += [
        f"{told.key} is not at sequence {told.sequence}"
        for told in writer.told
        if told.sequence > len(frames) or told.key.encode() not in frames[told.sequence - 1].data
    ]
    return [f"{writer.store}: {each}" for each in wrong]


def run(rounds: int, stores: int) -> Report:
    """All of it, with servers of its own."""
    report = Report(f"Three nodes that share the journals of {stores} stores")
    with tempfile.TemporaryDirectory() as scratch, nats_servers(Path(scratch) / "nats") as servers:
        with Cluster(servers, Path(scratch) / "nodes", stores) as cluster:
            time.sleep(CALM_SECONDS)
            for what in [*cluster.strikes(0)] * rounds:
                own, others = cluster.strike(what)
                report.fact(f"{what}: longest gap of its stores, and of others'", f"{own:.1f} s, {others:.1f} s")
        with closing(NatsConnection(servers.urls)) as connection:
            logs = JetStreamLog(connection)
            found = [each for writer in cluster.writers for each in violations(logs, writer)]
    acknowledged = sum(len(writer.told) for writer in cluster.writers)
    report.fact("acknowledged writes", f"{acknowledged:,}")
    report.check("lost, doubled or moved", "; ".join(found[:5]) or "none", not found)
    errors = sorted({error.partition(":")[0] for writer in cluster.writers for error in writer.errors})
    report.notes.append(
        f"Refusals met: {', '.join(filter(None, errors))}; unanswered after {rounded(ANSWER_SECONDS)} s."
    )
    return report


def main() -> int:
    """Measure, or be a node."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--stores", type=int, default=STORES)
    parser.add_argument("--node", help=argparse.SUPPRESS)
    parser.add_argument("--servers", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.node:
        with suppress(KeyboardInterrupt):
            serve(chosen.node, chosen.servers, chosen.folder)
        return 0
    report = run(chosen.rounds, chosen.stores)
    report.show()
    return int(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
