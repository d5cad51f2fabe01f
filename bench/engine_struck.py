"""Engines' processes that are killed, crash or stop while they read, follow and write, and others ask."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from bench.engine_server import (
    COUNT,
    HALF_MORE,
    READY_SECONDS,
    SLOW,
    STORE,
    WORDS,
    Others,
    asked,
    compared,
    filled,
    processes_of,
)
from bench.measure import Report, times
from bench.server import Client, Server

ROUNDS, FEW_ROUNDS = 100, 9
BLOWS = (signal.SIGSEGV, signal.SIGKILL, signal.SIGSTOP)
BACK_SECONDS = 2.0
FOLLOWED = 500
MOST_ROWS = 100_000
SETTINGS: dict[str, object] = {"embedding_provider": "hashing", "query_timeout": 10.0}


class Rounds:
    """What is asked and struck, round for round, and what has been acknowledged: the contents of nodes by id."""

    def __init__(self, server: Server, client: Client) -> None:
        self.acknowledged: dict[str, str] = {}
        self.statuses = Counter[int]()
        self.missed = 0
        self._server = server
        self._client = client
        self._choice = random.Random(11)
        self.at: dict[str, Callable[[int], None]] = {"read": self._read, "follow": self._follow, "write": self._write}

    def strike(self, number: int, work: str, blow: signal.Signals) -> float:
        """A process of the store is hit while it is at some work; the seconds until Cypher answers again."""
        working = threading.Thread(target=self.at[work], args=(number,))
        working.start()
        time.sleep(self._choice.random() * (0.05 if work == "follow" else 0.3))
        hit = processes_of(self._server.pid, STORE)
        if hit:
            os.kill(self._choice.choice(hit), blow)
        self.missed += not hit
        started = time.perf_counter()
        while asked(self._client, STORE, COUNT)[0] != 200:
            time.sleep(0.02)
        seconds = time.perf_counter() - started
        working.join()
        return seconds

    def _read(self, number: int) -> None:
        self._inject(number, 1)
        self._state(SLOW, "read")

    def _follow(self, number: int) -> None:
        self._inject(number, FOLLOWED)

    def _write(self, number: int) -> None:
        node, content = f"made-{number}", f"stated in round {number}"
        if self._state(f"CREATE (:Entity {{id: '{node}', type: 'w', content: '{content}'}})", "write") == 200:
            self.acknowledged[node] = content

    def _inject(self, number: int, count: int) -> None:
        contents = {f"w{number}-{each}": f"round {number}" for each in range(count)}
        nodes = [{"id": node, "type": "w", "content": content} for node, content in contents.items()]
        with self._server.client() as client:
            client.call("POST", f"/api/memory/{STORE}/inject", {"nodes": nodes})
        self.acknowledged.update(contents)

    def _state(self, query: str, mode: str) -> int:
        with self._server.client() as client:
            body = msgspec.json.encode({"query": query, "mode": mode, "timeout_ms": 2000})
            status = client.send("POST", f"/api/memory/{STORE}/cypher", body).status
        self.statuses[status] += 1
        return status


def struck(*, quick: bool) -> Report:
    """Processes that end or stop while they read, follow and write."""
    rounds = FEW_ROUNDS if quick else ROUNDS
    report = Report(f"struck: {rounds} blows to engines' processes of a small store")
    with filled(SETTINGS, WORDS) as (server, client):
        server.wait_ready(READY_SECONDS)
        _wait_for_indexes(client)
        others = Others(server, searches=True)
        with others.asking() as before:
            time.sleep(3 if quick else 10)
        back: dict[tuple[str, str], list[float]] = {}
        played = Rounds(server, client)
        kinds = [(work, blow) for work in played.at for blow in BLOWS]
        with others.asking() as meanwhile:
            for number in range(rounds):
                work, blow = kinds[number % len(kinds)]
                back.setdefault((blow.name, work), []).append(played.strike(number, work, blow))
        _check_kept(report, client, played.acknowledged)
        shown = ", ".join(f"{status}: {count}" for status, count in sorted(played.statuses.items()))
        report.fact("answers of statements that were struck", shown)
        report.fact("rounds without a process to strike", str(played.missed))
        for (name, work), each in back.items():
            shown = f"{times([1000 * seconds for seconds in each]).fine}, longest {max(each):.2f} s"
            report.at_most(f"{name} in mid-{work}: Cypher back after", shown, max(each), BACK_SECONDS, "s")
        compared(report, before, meanwhile, HALF_MORE)
    return report


def _wait_for_indexes(client: Client) -> None:
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if not any(index["lag"] for index in client.call("GET", f"/api/memory/{STORE}/stats")["indexes"]):
            return
        time.sleep(0.25)


def _check_kept(report: Report, client: Client, acknowledged: dict[str, str]) -> None:
    exported = {line["id"]: line.get("content") for line in client.export(STORE) if line["kind"] == "node"}
    every = {"query": "MATCH (e:Entity {type: 'w'}) RETURN e.id, e.content", "max_rows": MOST_ROWS}
    rows: list[Any] = client.call("POST", f"/api/memory/{STORE}/cypher", every)["rows"]
    for way, found in (("REST", exported), ("Cypher", dict(rows))):
        lost = acknowledged.items() - found.items()
        report.check(f"acknowledged and lost, over {way}", f"{len(lost)} of {len(acknowledged):,}", not lost)
