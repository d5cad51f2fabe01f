"""Clients of a server that is killed repeatedly: they reconnect and check the answers."""

from __future__ import annotations

import random
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
from typing_extensions import override

from bench.ledger import Ledger, WriteUnit
from bench.listener import EventListener, ReceivedEvent
from bench.server import BenchClient, HttpReply, ServerProcess
from bench.writers import GONE, write_unit

UNITS = 24
"""Units per writer; all generations of a unit keep the stores' sizes constant."""
SIZE = 200
WRITE_SECONDS = 0.15
READ_SECONDS = 0.1
DUTY_CYCLE_SECONDS = (9.0, 2.5)
"""Seconds of writing and of pause, common to all writers, so that compaction finds an idle store."""
STARTING_SECONDS = 30.0
"""Seconds after a start in which 503 is allowed, while stores and indexes open."""

_GENERATION = re.compile(r"generation (\d+) of ")


class SoakServerState:
    """The server as its clients see it: its port, whether it is up, and counts of its answers."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.over = threading.Event()
        self._up, self._writable = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._writing = 0
        self._server: ServerProcess | None = None
        self._started = 0.0

    @property
    def port(self) -> int:
        """Current port of the server."""
        assert self._server is not None
        return self._server.port

    def starts(self, server: ServerProcess) -> None:
        """Record that a server answers; writers still wait."""
        self._server, self._started = server, time.monotonic()
        self._up.set()

    def opens(self) -> None:
        """Let writers continue."""
        self._writable.set()

    def ends(self) -> None:
        """Record that the server is about to be killed or stopped."""
        self._up.clear()

    def rests(self) -> None:
        """Wait until no writer is active; none starts until `opens`."""
        self._writable.clear()
        while self._writing:
            time.sleep(0.01)

    def wait(self) -> bool:
        """Wait for a server. Return False when the test is over."""
        while not self.over.is_set():
            if self._up.wait(0.1):
                return True
        return False

    def may_write(self) -> bool:
        """Register a write, to be ended with `wrote`. Return True if writing is allowed."""
        if not self._writable.wait(0.1) or self.over.is_set():
            return False
        with self._lock:
            self._writing += self._writable.is_set()
            return self._writable.is_set()

    def wrote(self) -> None:
        """End a write registered with `may_write`."""
        with self._lock:
            self._writing -= 1

    def violate(self, text: str) -> None:
        """Record a violation."""
        with self._lock:
            self.violations.append(text)

    def judge(self, what: str, reply: HttpReply) -> bool:
        """Count an answer, and return True for success. 503 is allowed while the server starts or stops."""
        self.count(what if reply.status < 300 else f"{what}: {reply.status}")
        if reply.status == 503 and self.is_moving:
            self.count("503 while starting or stopping")
        elif reply.status >= 500:
            self.violate(f"{what}: {reply.status} {reply.body[:300]!r}")
        return reply.status < 300

    @property
    def is_moving(self) -> bool:
        """True if the server is ending or has just started."""
        return not self._up.is_set() or time.monotonic() - self._started < STARTING_SECONDS

    def count(self, what: str, number: int = 1) -> None:
        """Count an event for the report."""
        with self._lock:
            self.counts[what] += number


class SoakClient(threading.Thread, ABC):
    """A client that runs until the test ends, with a new connection after each end of the server."""

    def __init__(self, site: SoakServerState, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.site = site
        self.choice = random.Random(name)

    @override
    def run(self) -> None:
        """Visit the server repeatedly."""
        while self.site.wait():
            with suppress(*GONE):
                self.visit()
            self.site.over.wait(0.05)

    @abstractmethod
    def visit(self) -> None:
        """Use the server while it runs. Raises the errors of broken connections."""


class Writer(SoakClient):
    """Client that injects, updates and deletes its own units, and records acknowledgements and expected events."""

    def __init__(self, site: SoakServerState, name: str, ledger: Ledger) -> None:
        super().__init__(site, name)
        self._ledger = ledger
        self._units = [WriteUnit(f"{name}-{number}", SIZE, None) for number in range(UNITS)]
        self.events: dict[int, int] = {}

    @override
    def visit(self) -> None:
        with BenchClient(self.site.port, timeout=60) as client:
            while not self.site.over.wait(WRITE_SECONDS * self.choice.random() * 2):
                if time.monotonic() % sum(DUTY_CYCLE_SECONDS) > DUTY_CYCLE_SECONDS[0] or not self.site.may_write():
                    continue
                try:
                    self._step(client)
                finally:
                    self.site.wrote()

    def writes_to(self, ledger: Ledger) -> bool:
        """Return True if it is one of a store's writers."""
        return self._ledger is ledger

    def _step(self, client: BenchClient) -> None:
        settled = [unit for unit in self._units if len(unit.allowed) == 1]
        if not settled:
            return
        unit = self.choice.choice(settled)
        reply, after = write_unit(client, self._ledger, unit, self.choice)
        if self.site.judge("write", reply):
            self._ledger.acknowledge(unit, after)
            self._expect(reply.json(), delete=not after.first)

    def _expect(self, answer: Any, *, delete: bool) -> None:
        count_fields = [f"{part}_{what}" for part in ("nodes", "edges") for what in ("created", "updated")]
        self.events[answer["sequence"]] = 1 if delete else sum(answer[name] for name in count_fields)


class Reader(SoakClient):
    """Client that reads in all ways, and checks that no unit is ever seen half written."""

    def __init__(self, site: SoakServerState, name: str, stores: Iterable[str], units: Iterable[str]) -> None:
        super().__init__(site, name)
        self._stores, self._units = list(stores), list(units)

    @override
    def visit(self) -> None:
        with BenchClient(self.site.port, timeout=60) as client:
            while not self.site.over.wait(READ_SECONDS * self.choice.random() * 2):
                self._ask(client, f"/api/memory/{self.choice.choice(self._stores)}", self.choice.choice(self._units))

    def _ask(self, client: BenchClient, api: str, unit: str) -> None:
        match self.choice.randrange(10):
            case 0 | 1:
                self.site.judge("node", client.send("GET", f"{api}/nodes/{unit}%2F1"))
            case 2:
                self._send(client, "walk", f"{api}/traverse", {"start_id": f"{unit}/1", "depth": 3})
            case 3 | 4:
                self._send(client, "search", f"{api}/search", {"query": f"generation of {unit}", "limit": 5})
            case 5:
                self.site.judge("list", client.send("GET", f"{api}/nodes?limit=100"))
            case 6:
                self.site.judge("history", client.send("GET", f"{api}/nodes/{unit}%2F2/history?limit=5"))
            case 7:
                self.site.judge("stats", client.send("GET", f"{api}/stats"))
            case _:
                self._check_unit(client, api, unit)

    def _check_unit(self, client: BenchClient, api: str, unit: str) -> None:
        query = "MATCH (n:Entity) WHERE n.id STARTS WITH $unit RETURN n.content"
        reply = self._send(client, "cypher", f"{api}/cypher", {"query": query, "params": {"unit": f"{unit}/"}})
        if reply.status == 200:
            found = {_generation(row[0]) for row in reply.json()["rows"]}
            if len(found) > 1:
                self.site.violate(f"{unit} seen half written: generations {sorted(found)}")

    def _send(self, client: BenchClient, what: str, path: str, body: dict[str, Any]) -> HttpReply:
        reply = client.send("POST", path, msgspec.json.encode(body))
        self.site.judge(what, reply)
        return reply


def _generation(content: str) -> int:
    found = _GENERATION.match(content)
    return int(found[1]) if found else -1


class SoakListener(SoakClient):
    """Client that listens to a store and resumes at its position. ``seen`` counts the received events per commit."""

    def __init__(self, site: SoakServerState, store: str) -> None:
        super().__init__(site, f"listener of {store}")
        self._path = f"/api/memory/{store}/events"
        self._last_id = "0"
        self.seen: dict[int, int] = {}
        self._place = (0, 0)

    @override
    def visit(self) -> None:
        stay = time.monotonic() + self.choice.uniform(1, 20)
        with EventListener(self.site.port, self._path, self._last_id, timeout=3.0) as listener:
            if listener.status != 200:
                self._report_refusal(listener)
                return
            self.site.count("stream")
            with suppress(TimeoutError):
                for event in listener.events():
                    self._record_event(event)
                    if time.monotonic() > stay:
                        break
            self._last_id = listener.last_id

    def reached(self, sequence: int) -> bool:
        """Return True if all commits up to ``sequence`` were received."""
        return int(self._last_id.partition("-")[0]) >= sequence

    def _report_refusal(self, listener: EventListener) -> None:
        self.site.count(f"stream: {listener.status}")
        if listener.status not in (404, 429, 503) or (listener.status == 503 and not self.site.is_moving):
            self.site.violate(f"{self.name}: {listener.status} after {self._last_id}: {listener.problem()}")

    def _record_event(self, event: ReceivedEvent) -> None:
        self._last_id = event.id
        if event.kind in ("dropped", "index_ready"):  # belongs to no commit and has no position
            self.site.count(event.kind)
            return
        sequence, _, index = event.id.partition("-")
        place = (int(sequence), int(index))
        follows = place == (self._place[0], self._place[1] + 1) or (place[0] > self._place[0] and not place[1])
        if not follows:
            self.site.violate(f"{self.name}: {place} after {self._place}")
        self._place = place
        self.seen[place[0]] = self.seen.get(place[0], 0) + 1
        self.site.count("event")
