"""Engine processes under overload, kills, crashes and stops, with concurrent clients: `python -m bench.engine`.

Options: `[--only bombs|struck] [--quick]`. No acknowledged write may be lost, the server's own memory must not grow,
and Cypher must answer again.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from bench.engine_bombs import BOMBS
from bench.graphs import blocks
from bench.measure import BenchmarkReport, parser, run_parts, times
from bench.server import HASHING, BenchClient, ServerProcess, background_work, serving
from bench.wire import RawConnection, request

STORE, OTHER = "struck", "other"
NODES = 3_000
COUNT = "MATCH (e:Entity) RETURN count(*)"
SLOW = "MATCH (a:Entity),(b:Entity),(c:Entity) RETURN sum(a.version + b.version + c.version)"
TIMEOUT_SECONDS = 5.0
MAX_ENGINE_MIB = 1024
BLOWS = (signal.SIGSEGV, signal.SIGKILL, signal.SIGSTOP)
Durations = dict[str, list[float]]


def bombs(*, quick: bool) -> BenchmarkReport:
    """Run statements that exceed resource limits: one of every kind, or all of them."""
    settings: dict[str, object] = {
        "indexes": False,
        "query_timeout": TIMEOUT_SECONDS,
        "engine_memory_mb": MAX_ENGINE_MIB,
    }
    chosen = [bomb for kind in BOMBS.values() for bomb in kind[: 1 if quick else None]]
    report = BenchmarkReport(
        f"bombs: {len(chosen)} statements of {len(BOMBS)} kinds, of {NODES:,} nodes of 8,000 bytes"
    )
    with _server_with_stores(settings, "abcdefghij" * 800) as (server, client):
        with _concurrent_requests(server) as before:
            time.sleep(3)
        own, longest, largest, statuses = _mebibytes(server.pid), 0.0, 0.0, Counter[int]()
        with _concurrent_requests(server) as meanwhile, _watch(server) as peaks:
            for bomb in chosen:
                status, _, seconds = _ask(client, STORE, bomb)
                statuses[status] += 1
                longest = max(longest, seconds)
        largest, grown = peaks["process"], peaks["server"] - own
        report.fact("answers", ", ".join(f"{count} of {status}" for status, count in sorted(statuses.items())))
        report.check("answers that are a defect", f"{statuses[500]} of 500", statuses[500] == 0)
        report.at_most("growth of the server's own memory", f"{grown:.0f} MiB", grown, 50, "MiB")
        report.at_most("the largest engine process", f"{largest:.0f} MiB", largest, MAX_ENGINE_MIB, "MiB")
        report.at_most("the slowest statement", f"{longest:.2f} s", longest, TIMEOUT_SECONDS + 1, "s")
        _compare(report, before, meanwhile, 2.0)
        rows = [_ask(client, each, COUNT)[1].get("rows") for each in (STORE, OTHER)]
        report.check("both stores answer", str(rows), rows == [[[NODES]]] * 2)
    return report


class SignalRounds:
    """Rounds of work and signals, and the acknowledged contents of nodes by id."""

    def __init__(self, server: ServerProcess, client: BenchClient) -> None:
        self.acknowledged: dict[str, str] = {}
        self.missed = 0
        self._server = server
        self._client = client
        self._choice = random.Random(11)
        self.at: dict[str, Callable[[int], None]] = {"read": self._read, "follow": self._follow, "write": self._write}

    def strike(self, number: int, work: str, blow: signal.Signals) -> float:
        """Signal an engine process of the store during some work. Return the seconds until Cypher answers again."""
        working = threading.Thread(target=self.at[work], args=(number,))
        working.start()
        time.sleep(self._choice.random() * (0.05 if work == "follow" else 0.3))
        hit = _processes_of(self._server.pid, STORE)
        if hit:
            os.kill(self._choice.choice(hit), blow)
        self.missed += not hit
        started = time.perf_counter()
        while _ask(self._client, STORE, COUNT)[0] != 200:
            time.sleep(0.02)
        seconds = time.perf_counter() - started
        working.join()
        return seconds

    def _read(self, number: int) -> None:
        self._inject(number, 1)
        with self._server.client() as client:
            _ask(client, STORE, SLOW, timeout_ms=2000)

    def _follow(self, number: int) -> None:
        self._inject(number, 500)

    def _write(self, number: int) -> None:
        node, content = f"made-{number}", f"stated in round {number}"
        query = f"CREATE (:Entity {{id: '{node}', type: 'w', content: '{content}'}})"
        with self._server.client() as client:
            if _ask(client, STORE, query, mode="write", timeout_ms=2000)[0] == 200:
                self.acknowledged[node] = content

    def _inject(self, number: int, count: int) -> None:
        contents = {f"w{number}-{each}": f"round {number}" for each in range(count)}
        nodes = [{"id": node, "type": "w", "content": content} for node, content in contents.items()]
        with self._server.client() as client:
            client.call("POST", f"/api/memory/{STORE}/inject", {"nodes": nodes})
        self.acknowledged.update(contents)


def measure_signals(*, quick: bool) -> BenchmarkReport:
    """Crash, kill or stop engine processes while they read, follow and write."""
    rounds = 9 if quick else 100
    report = BenchmarkReport(f"struck: {rounds} signals to engine processes of a small store")
    with _server_with_stores(HASHING | {"query_timeout": 10.0}, "a few words") as (server, client):
        client.settle(STORE)
        with _concurrent_requests(server) as before:
            time.sleep(3)
        back: Durations = {}
        played = SignalRounds(server, client)
        kinds = [(work, blow) for work in played.at for blow in BLOWS]
        with _concurrent_requests(server) as meanwhile:
            for number in range(rounds):
                work, blow = kinds[number % len(kinds)]
                back.setdefault(f"{blow.name} in mid-{work}", []).append(1000 * played.strike(number, work, blow))
        _check_acknowledged(report, client, played.acknowledged)
        report.fact("rounds without a process to signal", str(played.missed))
        for what, each in back.items():
            report.at_most(f"{what}: Cypher back after", str(times(each)), max(each), 2000, "ms")
        _compare(report, before, meanwhile, 1.5)
    return report


def _check_acknowledged(report: BenchmarkReport, client: BenchClient, acknowledged: dict[str, str]) -> None:
    exported = {line["id"]: line.get("content") for line in client.export(STORE) if line["kind"] == "node"}
    every = {"query": "MATCH (e:Entity {type: 'w'}) RETURN e.id, e.content", "max_rows": 100_000}
    rows: list[Any] = client.call("POST", f"/api/memory/{STORE}/cypher", every)["rows"]
    for way, found in (("REST", exported), ("Cypher", dict(rows))):
        lost = acknowledged.items() - found.items()
        report.check(f"acknowledged and lost, over {way}", f"{len(lost)} of {len(acknowledged):,}", not lost)


def _ask(client: BenchClient, store: str, query: str, **more: object) -> tuple[int, Any, float]:
    """Return status, answer and seconds of a statement."""
    started = time.perf_counter()
    reply = client.send("POST", f"/api/memory/{store}/cypher", msgspec.json.encode({"query": query, **more}))
    return reply.status, reply.json(), time.perf_counter() - started


@contextmanager
def _server_with_stores(settings: dict[str, object], content: str) -> Generator[tuple[ServerProcess, BenchClient]]:
    """Yield a server with both stores and their engines open."""
    with serving(settings) as (server, client):
        for store, text in ((STORE, content), (OTHER, "a few words")):
            nodes = ({"kind": "node", "id": f"n{number}", "type": "t", "content": text} for number in range(NODES))
            edges = (
                {"kind": "edge", "from": f"n{number}", "to": f"n{(number * 7 + step) % NODES}", "relation_type": "r"}
                for number in range(NODES)
                for step in (1, 2, 3)
            )
            client.upload(store, blocks(chain(nodes, edges)))
            _ask(client, store, COUNT)
        yield server, client


@contextmanager
def _concurrent_requests(server: ServerProcess) -> Generator[Durations]:
    """Yield concurrent durations in ms: statements on the other store, and traversals of the struck one."""
    asked = {
        "a statement of another store": request(
            "POST", f"/api/memory/{OTHER}/cypher", {"query": "MATCH (e:Entity {id: 'n7'}) RETURN e.id"}
        ),
        "a walk of the same store": request("POST", f"/api/memory/{STORE}/traverse", {"start_id": "n7", "depth": 2}),
    }
    found: Durations = {name: [] for name in asked}

    def ask(over: threading.Event) -> None:
        with RawConnection(server.port) as wire:
            while not over.wait(0.01):
                for name, ready in asked.items():
                    found[name].append(wire.ask(ready).milliseconds)

    with background_work(ask):
        yield found


@contextmanager
def _watch(server: ServerProcess) -> Generator[dict[str, float]]:
    """Yield the maximum memory of the server and of an engine process in MiB, measured concurrently."""
    peaks = {"server": 0.0, "process": 0.0}

    def look(over: threading.Event) -> None:
        while not over.wait(0.02):
            peaks["server"] = max(peaks["server"], _mebibytes(server.pid))
            peaks["process"] = max([peaks["process"], *map(_mebibytes, _processes(server.pid))])

    with background_work(look):
        yield peaks


def _compare(report: BenchmarkReport, before: Durations, meanwhile: Durations, most: float) -> None:
    for name, each in before.items():
        alone, shared = times(each), times(meanwhile[name])
        report.compare(f"{name}: p95", str(shared), f"alone {alone}", shared.p95 / alone.p95, ("≤", most))


def _mebibytes(pid: int) -> float:
    """Return the resident memory of a process without files; 0 when it has ended."""
    with suppress(OSError):
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    return 0.0


def _processes(pid: int) -> list[int]:
    """Return the engine processes of a server: the children of its fork server."""
    return [each for fork_server in _children(pid) for each in _children(fork_server)]


def _processes_of(pid: int, store: str) -> list[int]:
    return [each for each in _processes(pid) if any(f"/{store}_memory/" in path for path in _open_files(each))]


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text(encoding="ascii").split()]
    return []


def _open_files(pid: int) -> Generator[str]:
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield str(link.readlink())


PARTS: dict[str, Callable[..., BenchmarkReport]] = {"bombs": bombs, "struck": measure_signals}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part. Return 1 when an exact check failed."""
    return run_parts(PARTS, parser("engine", (__doc__ or "").split(":", 1)[0], PARTS).parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
