"""Three nodes that serve stores, and what befalls them: `make cluster-test` (FAULTS=kill,pause SECONDS=600 to choose).

Each machine is a network namespace with a NATS server and a node of kgserve. Visitors write and read keys of 30 stores
by whichever node answers, while one fault after the other is begun and mended. What each of them was told, and when, is
then checked to be what one register a key could have said: nothing lost, doubled, put in another order, or read when
it was over. In the end every store is read by every node, and moved to another one, which must have the same digest.

It takes root. `--loopback` needs none, and leaves out what is done to networks and disks.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from bench.measure import Report
from bench.networks import Machine, machines, refusal
from bench.register import READ, Checker, Operation, Step, misnumbered
from kgserve.client import Client
from kgserve.cluster.jetstream.connection import Connection
from kgserve.cluster.jetstream.registry import JetStreamRegistry
from kgserve.cluster.protocols import Owner
from kgserve.errors import KgserveError, NotFound, Unavailable
from tests.cluster.nodes import ServingNode, serving, serving_nodes, settle
from tests.cluster.servers import NatsServer, NatsServers, nats_servers

STORES = 30
KEYS = 24
"""Of each store: so many that few of the writes to one are not known to have happened."""
SECONDS = 600.0
STRUCK_SECONDS = 20.0
CALM_SECONDS = 12.0
AWAY_SECONDS = 25.0
ANSWER_SECONDS = 3.0
PAUSE_SECONDS = 0.6
AGAIN_SECONDS = 0.1
SHARE_OF_READS = 0.4
LATE_SECONDS = 60.0
"""After so long nothing of a request that was given up can still happen."""
DISK_MB = 400
NODE_PORT, SERVER_PORT, ROUTE_PORT = 7999, 4222, 6222
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


class Told(NamedTuple):
    """An acknowledged write: when it was begun and when it was acknowledged."""

    start: float
    end: float


class Visitor(threading.Thread):
    """Writes and reads keys of one store, one after the other, by any node."""

    values = count(1)

    def __init__(self, store: str, urls: Sequence[str], number: int) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.name = f"{store}-{number}"
        self.history: defaultdict[str, list[Operation]] = defaultdict(list)
        self.told: list[Told] = []
        self.refusals: Counter[str] = Counter()
        self.stopping = threading.Event()
        self._clients = [Client(url, retries=0, timeout=ANSWER_SECONDS) for url in urls]
        self._choice = random.Random(self.name)

    def run(self) -> None:
        """Until it is told to stop."""
        pause = PAUSE_SECONDS
        while not self.stopping.wait(pause):
            key = f"k{self._choice.randrange(KEYS)}"
            client = self._choice.choice(self._clients)
            went_well = self._noted(key, client, self.read if self._choice.random() < SHARE_OF_READS else self._written)
            pause = 2 * PAUSE_SECONDS * self._choice.random() if went_well else AGAIN_SECONDS
        for client in self._clients:
            client.close()

    def _noted(self, key: str, client: Client, act: Callable[[Client, str], Operation]) -> bool:
        start = time.monotonic()
        try:
            self.history[key].append(act(client, key))
            return True
        except (KgserveError, OSError) as error:
            self.refusals[f"{type(error).__name__}: {str(error)[:60]}"] += 1
            if act != self.read and not isinstance(error, ConnectionRefusedError):
                step = Step(kind="inject", value=self._last)
                end = start + LATE_SECONDS
                self.history[key].append(Operation(step=step, start=start, end=end, unknown=True, who=self.name))
            return False

    def _written(self, client: Client, key: str) -> Operation:
        self._last = value = next(self.values)
        start = time.monotonic()
        done = client.store(self.store).inject(nodes=[{"id": key, "type": "t", "content": str(value)}])
        end = time.monotonic()
        self.told.append(Told(start, end))
        step = Step(kind="inject", value=value)
        created = done.nodes_created == 1
        return Operation(step=step, start=start, end=end, answer=created, sequence=done.sequence, who=self.name)

    def read(self, client: Client, key: str) -> Operation:
        """What a node says that a key holds."""
        start, shown, sequence = time.monotonic(), None, 0
        with suppress(NotFound):
            found = client.store(self.store).node(key).node
            shown, sequence = (int(found.content), found.version), found.sequence
        end = time.monotonic()
        return Operation(step=READ, start=start, end=end, answer=shown, sequence=sequence, who=self.name)

    def first_after(self, moment: float) -> float | None:
        """Seconds from a moment to the first acknowledgement of a write that was begun later."""
        return next((each.end - moment for each in [*self.told] if each.start >= moment), None)


class Site:
    """Machines with their servers and nodes, and the visitors of their stores."""

    def __init__(self, servers: NatsServers, nodes: Sequence[ServingNode], hosts: Sequence[Machine]) -> None:
        self.servers = servers
        self.nodes = nodes
        self.hosts = hosts
        self.visitors: list[Visitor] = []
        self.choice = random.Random(7)
        self._connection = Connection(servers.urls)
        self._registry = JetStreamRegistry(self._connection)

    def close(self) -> None:
        """End what it has."""
        for visitor in self.visitors:
            visitor.stopping.set()
        for visitor in self.visitors:
            visitor.join()
        self._connection.close()

    def begin(self, stores: int, visitors: int) -> None:
        """Have every store visited."""
        urls = [node.url for node in self.nodes]
        self.visitors = [Visitor(f"s{store}", urls, each) for store in range(stores) for each in range(visitors)]
        for visitor in self.visitors:
            visitor.start()

    def others(self, at: int) -> list[Machine]:
        """All machines but one."""
        return [host for number, host in enumerate(self.hosts) if number != at]

    def owners(self) -> dict[str, Owner]:
        """Who owns which store."""
        while True:
            with suppress(Unavailable):
                return {store: claim.owner for store, claim in self._registry.owners().items()}

    def busiest(self) -> int:
        """The number of the node that owns most."""
        names = Counter(owner.node for owner in self.owners().values())
        most = max(names.values(), default=0)
        return self.choice.choice([at for at, node in enumerate(self.nodes) if names[node.name] == most] or [0])


Strike = Callable[[Site, int], None]


class Fault(NamedTuple):
    """What is done to one of the machines, for how long, and what mends it."""

    says: str
    begin: Strike
    mend: Strike
    seconds: float = STRUCK_SECONDS
    moves: bool = True
    """Whether its stores are taken over by others."""
    mark: tuple[float, float] | None = None
    """Wanted at most, in seconds: the median and the worst of a hundred gaps of its stores."""


def _nothing(_site: Site, _at: int) -> None:
    """It goes on as it is."""


def _kill_and_start(site: Site, at: int) -> None:
    site.nodes[at].end(signal.SIGKILL)
    site.nodes[at].start()


def _lose_machine(site: Site, at: int) -> None:
    site.nodes[at].end(signal.SIGKILL)
    site.servers.servers[at].stop()


def _start_machine(site: Site, at: int) -> None:
    site.servers.start_one(site.servers.servers[at])
    site.nodes[at].start()


def _pause(site: Site, at: int) -> None:
    site.nodes[at].send(signal.SIGSTOP)


def _resume(site: Site, at: int) -> None:
    site.nodes[at].send(signal.SIGCONT)


def _cut(site: Site, at: int) -> None:
    site.hosts[at].cut()


def _deafen(site: Site, at: int) -> None:
    site.hosts[at].deafen(site.others(at))


def _mute(site: Site, at: int) -> None:
    site.hosts[at].mute()


def _part(site: Site, at: int) -> None:
    site.hosts[at].part_from(site.hosts[(at + 1) % len(site.hosts)])


def _mend(site: Site, at: int) -> None:
    site.hosts[at].mend(site.others(at))


def _stop_server(site: Site, at: int) -> None:
    site.servers.servers[at].stop()


def _start_server(site: Site, at: int) -> None:
    site.servers.start_one(site.servers.servers[at])


def _stop_servers(site: Site, _at: int) -> None:
    for server in site.servers.servers:
        server.stop()
    for server in site.choice.sample(list(site.servers.servers), len(site.servers.servers)):
        site.servers.start_one(server)


def _jump(site: Site, at: int) -> None:
    site.nodes[at].data_dir.with_name(f"{site.nodes[at].name}.clock").write_text(
        site.choice.choice(["+3600s", "-3600s"])
    )


def _set_right(site: Site, at: int) -> None:
    site.nodes[at].data_dir.with_name(f"{site.nodes[at].name}.clock").write_text("+0s")


def _fill(site: Site, at: int) -> None:
    with suppress(OSError), (site.nodes[at].data_dir / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))


def _empty(site: Site, at: int) -> None:
    (site.nodes[at].data_dir / "filling").unlink()


def _roll(site: Site, _at: int) -> None:
    for node in site.nodes:
        node.end()
        node.start()
        settle(list(site.nodes))


def _move(site: Site, at: int) -> None:
    other = site.nodes[(at + 1) % len(site.nodes)]
    owned = [store for store, owner in site.owners().items() if owner.node == site.nodes[at].name]
    with closing(other.client()) as client:
        for store in owned:
            client.store(store).move(other.name)


FAULTS = {
    "kill": Fault("node killed, started at once", _kill_and_start, _nothing, 10, moves=False, mark=(3, 3)),
    "machine": Fault("node and NATS server killed", _lose_machine, _start_machine, AWAY_SECONDS, mark=(12, 25)),
    "pause": Fault("node stopped for 20 s", _pause, _resume),
    "cut": Fault("machine cut off", _cut, _mend, AWAY_SECONDS, mark=(12, 25)),
    "deaf": Fault("machine hears nothing", _deafen, _mend),
    "mute": Fault("machine is not heard", _mute, _mend),
    "link": Fault("link between two machines cut", _part, _mend),
    "server": Fault("NATS server killed", _stop_server, _start_server, moves=False),
    "servers": Fault("all NATS servers killed and started", _stop_servers, _nothing, moves=False),
    "clock": Fault("clock of a node an hour off", _jump, _set_right, 10, moves=False),
    "disk": Fault("disk of a node full", _fill, _empty, 10),
    "move": Fault("stores moved", _move, _nothing, 5, mark=(1, 1)),
    "roll": Fault("all nodes asked to end and started, in turn", _roll, _nothing, 5),
}
OF_NETWORKS = {"cut", "deaf", "mute", "link", "disk", "clock"}


class Gaps:
    """How long the stores of whom a fault befell, and those of others, were without an acknowledged write."""

    def __init__(self) -> None:
        self.own: defaultdict[str, list[float]] = defaultdict(list)
        self.others: defaultdict[str, list[float]] = defaultdict(list)
        self.uncaused: list[str] = []


def befall(site: Site, name: str, gaps: Gaps) -> None:
    """Have a fault come and go."""
    fault, at = FAULTS[name], site.busiest()
    before = site.owners()
    began = time.monotonic()
    fault.begin(site, at)
    time.sleep(max(0.0, began + fault.seconds - time.monotonic()))
    fault.mend(site, at)
    time.sleep(CALM_SECONDS)
    for visitor in site.visitors:
        seconds = visitor.first_after(began)
        owner = before.get(visitor.store)
        struck = owner is not None and (owner.node == site.nodes[at].name or name == "roll")
        (gaps.own if struck else gaps.others)[name].append(seconds if seconds is not None else float("inf"))
    settle(list(site.nodes))


def calm(site: Site, seconds: float, gaps: Gaps) -> None:
    """A while in which nobody has a reason to take a store over."""
    before = site.owners()
    time.sleep(seconds)
    after = site.owners()
    gaps.uncaused += [store for store, owner in before.items() if after[store].epoch != owner.epoch]


def violations(site: Site, report: Report) -> list[str]:
    """What cannot be, of all that the visitors were told, and of what is there in the end."""
    found: list[str] = []
    histories: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
    by_store: defaultdict[str, list[Operation]] = defaultdict(list)
    for visitor in site.visitors:
        for key, operations in visitor.history.items():
            histories[visitor.store, key] += operations
            by_store[visitor.store] += operations
    last = Visitor("last", [], 0)
    for node in site.nodes:
        with closing(node.client()) as client:
            for store, key in histories:
                last.store = store
                histories[store, key].append(last.read(client, key))
    for (store, key), operations in histories.items():
        told = Checker(operations).violation()
        found += [f"{store}, {key}: {told}"] if told else []
    found += [f"{store}: {each}" for store, operations in by_store.items() for each in misnumbered(operations)]
    report.fact("operations, keys", f"{sum(map(len, histories.values())):,}, {len(histories):,}")
    return found + _different(site)


def _different(site: Site) -> list[str]:
    """Stores whose digest is another one once another node serves them."""
    found: list[str] = []
    names = [node.name for node in site.nodes]
    with closing(site.nodes[0].client()) as client:
        for store, owner in site.owners().items():
            before = client.store(store).stats()
            client.store(store).move(names[(names.index(owner.node) + 1) % len(names)])
            after = client.store(store).stats()
            if (before.digest, before.sequence) != (after.digest, after.sequence):
                found.append(f"{store}: {before.digest} at {before.sequence}, then {after.digest} at {after.sequence}")
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """By nearest rank."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def told(report: Report, gaps: Gaps) -> None:
    """Lines of what each kind of fault came to."""
    for name, own in gaps.own.items():
        fault, others = FAULTS[name], gaps.others.get(name) or [0.0]
        median, worst = percentile(own, 0.5), percentile(own, 0.99)
        figure = f"p50 {median:.1f}, p99 {worst:.1f} s of {len(own)}"
        beside = f"others' p99 {percentile(others, 0.99):.1f} s"
        what = f"{fault.says}: first acknowledged write"
        if fault.mark is None:
            report.fact(what, f"{figure}; {beside}")
        else:
            report.within(what, figure, max(median / fault.mark[0], worst / fault.mark[1]), 1.0, beside)
    report.check("take-overs without a cause", ", ".join(gaps.uncaused) or "none", not gaps.uncaused)


@contextmanager
def in_namespaces(folder: Path, *, clocks: bool) -> Generator[Site]:
    """Everything in networks of its own, each node's data on a small disk of its own, and with a clock of its own."""
    with ExitStack() as stack:
        hosts = stack.enter_context(machines(3))
        ports = (SERVER_PORT, ROUTE_PORT)
        made = [NatsServer(f"n{at}", folder, ports, host.address, host.within) for at, host in enumerate(hosts)]
        servers = NatsServers(made)
        stack.callback(servers.stop)
        servers.start()
        nodes: list[ServingNode] = []
        for at, host in enumerate(hosts):
            node = ServingNode(
                f"k{at}",
                folder,
                servers.urls,
                NODE_PORT,
                host.address,
                (*host.within, *(_clock(folder, at) if clocks else ())),
            )
            node.data_dir.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", node.data_dir], check=True)
            stack.callback(subprocess.run, ["umount", "-l", node.data_dir], check=True)
            nodes.append(node)
        stack.enter_context(serving(nodes))
        yield stack.enter_context(closing(Site(servers, nodes, hosts)))


def _clock(folder: Path, at: int) -> tuple[str, ...]:
    """The command that gives a node a clock of its own."""
    file = folder / f"k{at}.clock"
    file.write_text("+0s")
    told = (f"FAKETIME_TIMESTAMP_FILE={file}", "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_CACHE_DURATION=1")
    return ("env", f"LD_PRELOAD={FAKETIME}", *told)


@contextmanager
def on_loopback(folder: Path) -> Generator[Site]:
    """Everything on this machine's own network."""
    with ExitStack() as stack:
        servers = stack.enter_context(nats_servers(folder / "nats"))
        nodes = stack.enter_context(serving_nodes(servers, folder))
        yield stack.enter_context(closing(Site(servers, nodes, [])))


def run(chosen: argparse.Namespace) -> Report:
    """All of it."""
    report = Report(f"Three nodes that serve {chosen.stores} stores, and what befalls them")
    names = [name for name in (chosen.faults or ",".join(FAULTS)).split(",") if name in FAULTS]
    if chosen.loopback:
        names = [name for name in names if name not in OF_NETWORKS]
    elif not FAKETIME.exists() and "clock" in names:
        names.remove("clock")
        report.notes.append("Clocks were left alone: Debian's libfaketime is not installed.")
    report.notes.append("No page cache was lost: that takes dm-flakey or LazyFS, which are not here.")
    gaps = Gaps()
    with tempfile.TemporaryDirectory() as scratch:
        ground = (
            on_loopback(Path(scratch)) if chosen.loopback else in_namespaces(Path(scratch), clocks="clock" in names)
        )
        with ground as site:
            site.begin(chosen.stores, chosen.visitors)
            calm(site, CALM_SECONDS, Gaps())
            until = time.monotonic() + chosen.seconds
            for name in _in_turn(names, until):
                print(f"{time.strftime('%H:%M:%S')} {FAULTS[name].says}", file=sys.stderr, flush=True)
                befall(site, name, gaps)
                calm(site, 3.0, gaps)
            calm(site, chosen.calm, gaps)
            for visitor in site.visitors:
                visitor.stopping.set()
            for visitor in site.visitors:
                visitor.join()
            found = violations(site, report)
            refusals = sum((visitor.refusals for visitor in site.visitors), Counter[str]())
        if chosen.keep:
            shutil.copytree(scratch, chosen.keep, dirs_exist_ok=True)
    told(report, gaps)
    report.check("lost, doubled, moved, stale or different", f"{len(found)}", not found)
    report.notes += found[:5]
    report.notes.append(f"Refusals met: {dict(refusals.most_common(8))}")
    return report


def _in_turn(names: Sequence[str], until: float) -> Generator[str]:
    """Each fault once, and again until the time is over."""
    first = True
    while names and (first or time.monotonic() < until):
        for name in names:
            if first or time.monotonic() < until:
                yield name
        first = False


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default="", help=f"of {', '.join(FAULTS)}; all if none is named")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="in which faults begin, each at least once")
    parser.add_argument("--calm", type=float, default=0.0, help="seconds without a fault at the end")
    parser.add_argument("--stores", type=int, default=STORES)
    parser.add_argument("--visitors", type=int, default=1, help="of each store")
    parser.add_argument("--loopback", action="store_true", help="without namespaces, and without root")
    parser.add_argument("--keep", type=Path, help="where logs and data are left")
    chosen = parser.parse_args()
    if not chosen.loopback and (told := refusal()) is not None:
        print(f"Skipped: {told}.")
        return 0
    report = run(chosen)
    report.show()
    return int(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
