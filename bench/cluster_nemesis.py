"""Fault injection on a three-machine cluster in network namespaces: `make cluster-test`.

One client per store writes through any answering node, reads back through another, and records the results. The chosen
faults are injected in turn until the time is over, with a recovery period between them. In the end, every store is read
through every node that serves it, and `bench.cluster_history` checks the clients' history. Requires root; otherwise it
prints the reason and succeeds.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import cycle
from pathlib import Path
from typing import Literal, NamedTuple

from typing_extensions import override

from bench import lossy_disk
from bench.cluster_faults import FAULTS
from bench.cluster_history import End, Operation, find_violations, first_write_gap
from bench.cluster_machines import SimulatedMachine, machines, missing_prerequisite, run_in_namespaces, settle
from bench.measure import BenchmarkReport
from bench.preload import COMPILER
from kgserve.client import Client
from kgserve.client.errors import Interrupted, Unreachable
from kgserve.errors import KgserveError, NotFound

STORES = 30
SECONDS = 600
CALM_SECONDS = 12.0
PAUSE_SECONDS = 0.2
WRITTEN_SECONDS = 0.3
ANSWER_SECONDS = 2.0
ORDINARY = {"rolling", "move"}
POWERLESS = {"power", "blackout"}
LAST = "last"
_MACHINE_LOSS_LIMITS_SECONDS = (12, 25)
GAP_LIMITS_SECONDS: dict[str, tuple[float, float]] = {
    "kill": (3, 3),
    "move": (1, 1),
    **dict.fromkeys(("loss", "power", "cut"), _MACHINE_LOSS_LIMITS_SECONDS),
}
"""Limits in seconds until the first acknowledged write: median and 99th percentile."""


class ClusterClient(threading.Thread):
    """Client that writes unique values to one store and reads back the last one, through any answering node."""

    def __init__(self, store: str, urls: list[str]) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.history: list[Operation] = []
        self.failed: list[str] = []
        self.errors: Counter[str] = Counter()
        self.stopping = threading.Event()
        self.ordinary = False
        self.idle = threading.Event()
        self._plain = [Client(url, retries=0, timeout=ANSWER_SECONDS) for url in urls]
        self._clients_in_rotation = cycle(random.sample(self._plain, len(urls)))
        self._patient = Client(",".join(urls))

    @override
    def run(self) -> None:
        """Run until stopped."""
        value = 0
        while not self.stopping.is_set():
            value += 1
            done = self._call("write", value) and self._call("read", value)
            self.stopping.wait(WRITTEN_SECONDS if done else PAUSE_SECONDS)
        for client in [*self._plain, self._patient]:
            client.close()

    def recorded_operations(self) -> list[Operation]:
        """Return the recorded history."""
        return [*self.history]

    def _call(self, kind: Literal["write", "read"], value: int) -> bool:
        ordinary = self.ordinary
        # Nodes in rotation, as clients with several addresses switch to the next one after a failure.
        client = self._patient if ordinary else next(self._clients_in_rotation)
        began = time.monotonic()
        outcome: Literal["ok", "fail", "unknown"] = "unknown"
        sequence = 0
        try:
            sequence, value = self._ask(client, kind, value)
            outcome = "ok"
        except (KgserveError, OSError) as error:
            self.errors[type(error).__name__] += 1
            if isinstance(error, NotFound) or (isinstance(error, Unreachable) and not isinstance(error, Interrupted)):
                outcome = "fail"
            if ordinary:
                self.failed.append(f"{kind} of {value} in {self.store}: {error}")
        self.history.append(
            Operation(self.store, kind, value, began, time.monotonic(), outcome, sequence, repeated=ordinary)
        )
        return outcome == "ok"

    def _ask(self, client: Client, kind: str, value: int) -> tuple[int, int]:
        store = client.store(self.store)
        if kind == "write":
            nodes = [{"id": name, "type": "t", "content": str(value)} for name in (str(value), LAST)]
            return store.inject(nodes=nodes).sequence, value
        found = store.node(LAST).node
        return found.sequence, int(found.content)


class WriteGaps(NamedTuple):
    """Seconds until a store's first acknowledged write, for stores affected by the fault and for others."""

    own: list[float]
    others: list[float]


class ClusterUnderTest:
    """Machines and clients, and the observations about them."""

    def __init__(self, each: list[SimulatedMachine], stores: int) -> None:
        self.machines = each
        self.clients = [ClusterClient(f"s{number}", [machine.node.url for machine in each]) for number in range(stores)]
        self.gaps: dict[str, WriteGaps] = defaultdict(lambda: WriteGaps([], []))
        self.causeless: list[str] = []
        self.ended: list[str] = []

    def begin(self) -> None:
        """Start the clients, and wait until each store exists."""
        for client_thread in self.clients:
            client_thread.start()
        while any(first_write_gap(client_thread.recorded_operations(), 0) is None for client_thread in self.clients):
            time.sleep(0.2)
        time.sleep(CALM_SECONDS)

    def inject_fault(self, name: str) -> None:
        """Inject a fault, by default into the machine with the most stores; wait for recovery and record the effect."""
        owners = {store: machine for machine in self.machines for store in machine.serves}
        fault = FAULTS[name]
        busiest = Counter(owners.values()).most_common(1)[0][0]
        victim = busiest if fault.at is None else self.machines[fault.at]
        self._set_ordinary(name in ORDINARY)
        opened = self._opened()
        since = time.monotonic()
        fault.begin(self.machines, victim)
        if name == "move":
            self._move_all(owners)
        time.sleep(fault.seconds)
        fault.end(self.machines, victim)
        self.ended += [f"{name}: {machine.node.name}" for machine in self.machines if machine.revive()]
        settle(self.machines)
        time.sleep(CALM_SECONDS)
        self._set_ordinary(ordinary=False)
        if name == "calm":
            self.causeless += [f"{self._opened() - opened} stores opened without a fault"] * (self._opened() > opened)
        elif name != "move":
            self._record_gaps(name, since, {store for store, machine in owners.items() if machine is victim})
        print(f"{name}: {self.summary(name)}", flush=True)

    def summary(self, name: str) -> str:
        """Return the measured gaps of a fault as text."""
        own, others = self.gaps[name]
        figures = f"p50 {_percentile(own, 0.5):.1f} s, p99 {_percentile(own, 0.99):.1f} s of {len(own)}"
        return f"{figures}; others p99 {_percentile(others, 0.99):.1f} s"

    def finish(self) -> dict[str, dict[str, End]]:
        """Stop the clients. Return the final stores as read from each node that serves them."""
        for client_thread in self.clients:
            client_thread.stopping.set()
        for client_thread in self.clients:
            client_thread.join()
        ends: dict[str, dict[str, End]] = {}
        for machine in self.machines:
            with closing(machine.node.client()) as client, ThreadPoolExecutor(4) as threads:
                stores = [client_thread.store for client_thread in self.clients]
                read = threads.map(
                    lambda store, client=client, machine=machine: _read_end(client, store, machine), stores
                )
                ends[machine.node.name] = dict(zip(stores, read, strict=True))
        return ends

    def _record_gaps(self, name: str, since: float, struck: set[str]) -> None:
        for client_thread in self.clients:
            found = first_write_gap(client_thread.recorded_operations(), since)
            own, others = self.gaps[name]
            (own if client_thread.store in struck else others).append(
                time.monotonic() - since if found is None else found
            )

    def _move_all(self, owners: dict[str, SimulatedMachine]) -> None:
        with closing(self.machines[0].node.client()) as client:
            for client_thread in self.clients:
                others = [machine for machine in self.machines if machine is not owners.get(client_thread.store)]
                since = time.monotonic()
                client.store(client_thread.store).move(random.choice(others).node.name)
                while (found := first_write_gap(client_thread.history[-4:], since)) is None:
                    time.sleep(0.02)
                self.gaps["move"].own.append(found)

    def _set_ordinary(self, ordinary: bool) -> None:
        for client_thread in self.clients:
            client_thread.ordinary = ordinary

    def _opened(self) -> int:
        return sum(machine.opened for machine in self.machines)


def _read_end(client: Client, store: str, machine: SimulatedMachine) -> End:
    client.store(store).move(machine.node.name)
    return {int(node.id): node.sequence for node in client.store(store).nodes() if node.id != LAST}


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run(folder: Path, faults: list[str], seconds: float, stores: int, before: Path | None) -> BenchmarkReport:
    """Run the whole test within its own namespaces."""
    report = BenchmarkReport(f"Three machines that serve {stores} stores for {seconds:.0f} s: {', '.join(faults)}")
    faked, small, lossy = ("clock" in faults, "disk" in faults, not POWERLESS.isdisjoint(faults))
    with machines(folder, faked=faked, small=small, lossy=lossy, before=before) as each:
        site = ClusterUnderTest(each, stores)
        site.begin()
        until = time.monotonic() + seconds
        count = 0
        while time.monotonic() < until:
            site.inject_fault(faults[count % len(faults)])
            count += 1
        _report_results(report, site, site.finish(), count)
    return report


def _report_results(
    report: BenchmarkReport, site: ClusterUnderTest, ends: dict[str, dict[str, End]], count: int
) -> None:
    history = [each for client_thread in site.clients for each in client_thread.history]
    outcomes = Counter(f"{each.kind} {each.outcome}" for each in history)
    report.fact("faults", str(count))
    report.fact("operations", ", ".join(f"{number:,} {what}" for what, number in sorted(outcomes.items())))
    for name, gaps in site.gaps.items():
        what = f"{FAULTS[name].what}: time to the first write"
        report.fact(what, site.summary(name))
        for share, limit in zip((0.5, 0.99), GAP_LIMITS_SECONDS.get(name, ()), strict=False):
            report.at_most(
                f"    p{share * 100:.0f}",
                f"{_percentile(gaps.own, share):.2f} s",
                _percentile(gaps.own, share),
                limit,
                "s",
            )
    found = find_violations(history, ends)
    kinds = Counter(each.kind for each in found)
    report.check("violations", str(dict(kinds)) if found else "none", not found)
    report.notes += [f"{each.kind}, {each.store}: {each.what}" for each in found[:10]]
    failed = [each for client_thread in site.clients for each in client_thread.failed]
    report.check("failed for ordinary clients, in moves and rolling restarts", str(len(failed)), not failed)
    report.check("takeovers without a cause", "; ".join(site.causeless) or "none", not site.causeless)
    report.notes += failed[:5] + [f"exited unexpectedly, {each}" for each in site.ended]
    errors = sum((client_thread.errors for client_thread in site.clients), Counter[str]())
    report.notes.append(f"Rejections: {dict(errors)}; calls time out after {ANSWER_SECONDS:.0f} s.")


def _select_faults(named: str) -> list[str]:
    chosen = named.replace(",", " ").split() or [*FAULTS]
    if unknown := set(chosen) - set(FAULTS):
        sys.exit(f"unknown fault: {', '.join(sorted(unknown))}. Faults: {', '.join(FAULTS)}")
    if "clock" in chosen and shutil.which(COMPILER) is None:
        print("clock: skipped, because no C compiler was found.")
        chosen.remove("clock")
    if not POWERLESS.isdisjoint(chosen) and (why := lossy_disk.missing_disk_prerequisite()):
        print(f"{' and '.join(sorted(POWERLESS))}: skipped: {why}")
        chosen = [name for name in chosen if name not in POWERLESS]
    return chosen


def main() -> int:
    """Set up the cluster, inject faults, check the results, and clean up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default="", help=f"comma-separated faults of {', '.join(FAULTS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--stores", type=int, default=STORES)
    parser.add_argument("--keep", type=Path, help="folder for the files of nodes and servers, such as logs")
    parser.add_argument("--before", type=Path, help="source of another version that nodes run until `rolling`")
    parser.add_argument("--within", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.within is not None:
        report = run(chosen.within, _select_faults(chosen.faults), chosen.seconds, chosen.stores, chosen.before)
        report.show()
        return int(report.wrong)
    if why := missing_prerequisite():
        print(f"skipped: {why}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ExitStack() as stack:
        if chosen.keep is not None:
            chosen.keep.mkdir(parents=True, exist_ok=True)
        scratch = chosen.keep or stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        return run_in_namespaces(["bench.cluster_nemesis", "--within", str(scratch), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
