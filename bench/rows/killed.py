"""The first walk after a kill: how long after the server's first answer, and how long after its start."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Report
from bench.rows.ground import API, FOLLOWED, Ground, walking
from bench.server import Server, ServerFailed
from bench.wire import Wire, request

ALLOWED = 1.0
"""Seconds between the server's first answer and walks of three depths."""
PATIENCE = 60.0
WRITTEN = 20
COUNT = request("POST", f"{API}/cypher", {"query": "MATCH (n:Entity) RETURN count(n)"})
HEALTH = request("GET", "/health")


def run(ground: Ground) -> Report:
    """Measure, on a copy of a store with its indexes; the engine's file is open at each kill."""
    report = Report(f"after a kill: {ground.name}, {ground.total:,} rows, over HTTP")
    data = ground.copy(ground.followed(), "killed")
    starts = ground.ids(3)
    first = Server(data, FOLLOWED)
    with Wire(first.port) as wire:
        wire.ask(COUNT)
        _write(wire, 0)
    first.kill()
    found = [_measured(data, starts, number + 1) for number in range(ground.rounds(2, 7))]
    answered, walked, asked = (max(column) for column in zip(*found, strict=True))
    every = ", ".join(f"{each:.2f}" for _, each, _ in found)
    report.fact("start to the first answer, longest", f"{answered:.2f} s")
    report.at_most("first answer to walks of depth 1 to 3, longest", f"{walked:.2f} s", walked, ALLOWED, "s")
    report.fact("first answer to the first statement, longest", f"{asked:.2f} s")
    report.notes.append(f"{len(found)} kills, with {WRITTEN} writes just before; seconds to the walks: {every}")
    return report


def _measured(data: Path, starts: Sequence[str], number: int) -> tuple[float, float, float]:
    """Seconds to the first answer, and from there to the walks and to a statement; killed afterwards, in mid-write."""
    started = time.monotonic()
    server = Server(data, FOLLOWED)
    with Wire(server.port) as wire:
        wire.ask(HEALTH)
        answered = time.monotonic()
        for depth, start in enumerate(starts, 1):
            _until_answered(wire, walking(start, depth))
        walked = time.monotonic()
        _until_answered(wire, COUNT)
        asked = time.monotonic()
        _write(wire, number)
    server.kill()
    return answered - started, walked - answered, asked - answered


def _until_answered(wire: Wire, ready: bytes) -> None:
    """Ask again while the answer is 503."""
    end = time.monotonic() + PATIENCE
    while (answer := wire.send(ready)).status != 200:
        if answer.status != 503 or time.monotonic() > end:
            raise ServerFailed(f"{ready[:80]!r}: {answer.status} {answer.body[:300]!r}")
        time.sleep(0.01)


def _write(wire: Wire, number: int) -> None:
    for each in range(WRITTEN):
        node = {"id": f"killed-{number}-{each}", "type": "noun", "content": "written just before a kill"}
        wire.ask(request("POST", f"{API}/inject", {"nodes": [node]}))
