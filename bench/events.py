"""The event stream under writes: a listener that leaves at random and comes back sees every event once, in order.

`python -m bench.events`. Writers are a process of their own. Writes are made in slices, in turn without listeners, with
one that comes and goes, and with several that stay, so that whatever else the machine does falls on all alike.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from bench.listener import Listener
from bench.measure import Report, Times, times
from bench.server import Client, Server

WRITES = 10_000
WRITERS = 4
SLICES = 10
STAYING = 8
PATIENCE = 120.0
STEP = 30
"""On average, so many events come between two departures."""
TICKS = os.sysconf("SC_CLK_TCK")


class Written(msgspec.Struct):
    """What the writers did: how long it took, and how many events each sequence must have."""

    seconds: float = 0.0
    events: dict[int, int] = {}

    @property
    def ids(self) -> list[str]:
        """The ids of all events in order."""
        return [f"{sequence}-{at}" for sequence, count in sorted(self.events.items()) for at in range(count)]


def batch(name: str, number: int) -> dict[str, Any]:
    """One to three nodes, of which one is new and the others are shared, and an edge now and then."""
    ids = [f"{name}/{number}", *(f"{name}/shared-{n}" for n in range(number % 3))]
    nodes = [{"id": each, "type": "note", "content": f"write {number} of {name}"} for each in ids]
    edges = [{"from": ids[0], "to": ids[1], "relation_type": "near"}] if number % 3 == 1 else []
    return {"nodes": nodes, "edges": edges}


class _Writer(threading.Thread):
    """One client that writes one batch after the other."""

    def __init__(self, port: int, store: str, name: str, writes: int) -> None:
        super().__init__()
        self._port, self._store, self._name, self._writes = port, store, name, writes
        self.events: dict[int, int] = {}

    def run(self) -> None:
        """Write, and note what each write must be told as."""
        with Client(self._port) as client:
            for number in range(self._writes):
                answer = client.call("POST", f"/api/memory/{self._store}/inject", batch(self._name, number))
                told = (answer[f"{part}_{what}"] for part in ("nodes", "edges") for what in ("created", "updated"))
                self.events[answer["sequence"]] = sum(told)


def write(port: int, store: str, name: str, writes: int) -> Written:
    """Let some clients of this process write together."""
    crew = [_Writer(port, store, f"{name}-{n}", writes // WRITERS) for n in range(WRITERS)]
    start = time.perf_counter()
    for each in crew:
        each.start()
    for each in crew:
        each.join()
    seconds = time.perf_counter() - start
    return Written(seconds, {sequence: count for each in crew for sequence, count in each.events.items()})


def write_apart(port: int, store: str, name: str, writes: int) -> Written:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "bench.events", str(port), store, name, str(writes)]
    return msgspec.json.decode(subprocess.run(command, capture_output=True, check=True).stdout, type=Written)


class Restless:
    """A listener that leaves after a random number of events, in the middle of whatever comes then."""

    def __init__(self, port: int, store: str, seed: int) -> None:
        self._port, self._path = port, f"/api/memory/{store}/events?since=0"
        self._choice = random.Random(seed)
        self._last: tuple[int, ...] = ()
        self._last_id = ""
        self.seen: list[str] = []
        self.departures = 0

    def start(self) -> None:
        """Begin to come and go."""
        self._last = ()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self, written: Written) -> None:
        """Wait until the last of these writes has been told of."""
        self._last = _place(written.ids[-1])  # not only its sequence: the others of that commit come too
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while not self._arrived():
            with suppress(TimeoutError), Listener(self._port, self._path, self._last_id, timeout=0.5) as listener:
                try:
                    self._listen(listener)
                finally:
                    self._last_id = listener.last_id
            self.departures += 1

    def _arrived(self) -> bool:
        return bool(self._last and self.seen) and _place(self.seen[-1]) >= self._last

    def _listen(self, listener: Listener) -> None:
        left = self._choice.randint(0, 2 * STEP)
        for told in listener.events():
            self.seen.append(told.id)
            left -= 1
            if left <= 0 or self._arrived():
                return


class Staying:
    """A listener that stays for a slice."""

    def __init__(self, port: int, store: str) -> None:
        self._port, self._path = port, f"/api/memory/{store}/events"
        self.seen: list[str] = []

    def start(self) -> None:
        """Listen from now on; returns once the server does too."""
        self._listener = Listener(self._port, self._path, timeout=PATIENCE).greet()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._expected = len(self.seen)
        self._thread.start()

    def finish(self, written: Written) -> None:
        """Wait until all events of these writes have come, and leave."""
        self._expected += len(written.ids)
        end = time.monotonic() + PATIENCE
        while len(self.seen) < self._expected and time.monotonic() < end:
            time.sleep(0.01)
        self._listener.hang_up()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        for told in self._listener.events():
            self.seen.append(told.id)


class Manner:
    """Writes with some listeners, slice by slice."""

    def __init__(self, server: Server, store: str, listeners: Sequence[Restless | Staying]) -> None:
        self._server = server
        self._store = store
        self._listeners = listeners
        self.written = Written()
        self.processor = 0.0

    def slice(self, number: int, writes: int) -> None:
        """Write so many more batches, and wait until they were heard of."""
        for each in self._listeners:
            each.start()
        before = _processor_seconds(self._server.pid)
        written = write_apart(self._server.port, self._store, f"s{number}", writes)
        for each in self._listeners:
            each.finish(written)
        self.processor += _processor_seconds(self._server.pid) - before
        self.written.seconds += written.seconds
        self.written.events |= written.events

    @property
    def rate(self) -> float:
        """Writes per second."""
        return len(self.written.events) / self.written.seconds

    def __str__(self) -> str:
        """For a table: writes per second, and the server's processor time per write."""
        milliseconds = self.processor / len(self.written.events) * 1000
        return f"{self.rate:,.0f} writes/s, {milliseconds:.2f} ms of CPU each"


def run(writes: int = WRITES, slices: int = SLICES, staying: int = STAYING) -> Report:
    """Measure on a server and a data folder of its own."""
    report = Report(f"events: {writes:,} writes in each manner, by {WRITERS} clients, in {slices} slices")
    with (
        tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder,
        Server(Path(folder), {"indexes": "false"}) as server,
    ):
        with server.client() as client:
            for store in ("alone", "restless", "staying"):
                client.call("PUT", f"/api/memory/{store}")
        _measure(report, server, writes // slices, slices, staying)
    return report


def _measure(report: Report, server: Server, writes: int, slices: int, staying: int) -> None:
    restless = Restless(server.port, "restless", seed=1)
    stayers = [Staying(server.port, "staying") for _ in range(staying)]
    alone = Manner(server, "alone", [])
    manners = [alone, Manner(server, "restless", [restless]), Manner(server, "staying", stayers)]
    for number in range(slices):
        for manner in manners:
            manner.slice(number, writes)
    report.fact("without listeners", str(alone))
    for what, manner in zip(("with one that comes and goes", f"with {staying} that stay"), manners[1:], strict=True):
        report.compare(what, str(manner), f"{alone.rate:,.0f} writes/s", manner.rate / alone.rate)
    report.fact("departures", f"{restless.departures:,}")
    expected = manners[1].written.ids
    _check(report, "seen by the one that comes and goes", restless.seen, expected)
    _check(report, "seen in one replay at the end", _replay(server.port, "restless", len(expected)), expected)
    expected = manners[2].written.ids
    worst = next((each for each in stayers if each.seen != expected), stayers[0])
    _check(report, "seen by each that stays", worst.seen, expected)
    report.fact("from sending a write to its event", str(_delay(server)))


def _check(report: Report, what: str, seen: list[str], expected: list[str]) -> None:
    doubled = len(seen) - len(set(seen))
    missing = len(set(expected) - set(seen))
    order = "in order" if seen == sorted(seen, key=_place) else "OUT OF ORDER"
    finding = f"{len(seen):,} of {len(expected):,}: {doubled} twice, {missing} missing, {order}"
    report.check(what, finding, seen == expected)


def _place(event: str) -> tuple[int, ...]:
    return tuple(map(int, event.split("-")))


def _replay(port: int, store: str, count: int) -> list[str]:
    with Listener(port, f"/api/memory/{store}/events?since=0") as listener:
        return [told.id for told in islice(listener.events(), count)]


def _delay(server: Server, rounds: int = 100) -> Times:
    """Milliseconds until the event is there, with one listener."""
    took: list[float] = []
    with server.client() as client, Listener(server.port, "/api/memory/alone/events").greet() as listener:
        events = listener.events()
        for number in range(rounds):
            start = time.perf_counter()
            client.call("POST", "/api/memory/alone/inject", {"nodes": [{"id": f"delay-{number}", "type": "note"}]})
            next(events)
            took.append((time.perf_counter() - start) * 1000)
    return times(took)


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> int:
    """Run and print, with another number of writes if one is given; with port, store, name and number only write."""
    if len(sys.argv) == 5:
        written = write(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
        sys.stdout.buffer.write(msgspec.json.encode(written))
        return 0
    report = run(int(sys.argv[1]) if len(sys.argv) == 2 else WRITES)
    report.show()
    return int(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
