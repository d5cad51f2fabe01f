"""The table of the crash bench, and how it reads a store that may still be opening."""

from __future__ import annotations

import time
from collections.abc import Sequence
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import msgspec

from bench.server import Client, ServerFailed, doctor

OPENING_SECONDS = 60.0
SHOWN = 4


class Tally(msgspec.Struct):
    """Rounds of one kind. `reached` counts those in which the intended moment was hit."""

    kind: str
    rounds: int = 0
    reached: int = 0
    acknowledged: int = 0
    violations: list[str] = []
    remark: str = ""


def show(tallies: Sequence[Tally]) -> None:
    """Print the table, then the first violations of each kind."""
    width = max(len(tally.kind) for tally in tallies)
    print(f"{'':{width}}  rounds  moment hit  acknowledged  violations")
    for tally in tallies:
        figures = f"{tally.rounds:6}  {tally.reached:10}  {tally.acknowledged:12,}  {len(tally.violations):10}"
        print(f"{tally.kind:{width}}  {figures}  {tally.remark}".rstrip())
    for tally in tallies:
        for text in tally.violations[:SHOWN]:
            print(f"! {tally.kind}: {text}")


def export_when_open(client: Client, store: str) -> list[Any]:
    """All lines of a store; comes again while it is opening, and takes one that was never created as empty."""
    end = time.monotonic() + OPENING_SECONDS
    while True:
        reply = client.send("GET", f"/api/memory/{store}/stats")
        if reply.status == 404:
            return []
        if reply.status == 200:
            try:
                return client.export(store)
            except IncompleteRead:
                # Rows turned out to be damaged on the way, and are being made anew.
                client.close()
        elif reply.status != 503 or time.monotonic() > end:
            raise ServerFailed(f"{store} does not open: {reply.status} {reply.body[:500]!r}")
        time.sleep(0.1)


def consult(data: Path, store: str, tally: Tally) -> None:
    """Let the doctor look at a store of a stopped server; what it finds is a violation."""
    found = doctor(data, store)
    if found.returncode != 0:
        words = f"{found.stdout[-1500:]}{found.stderr[-500:]}"
        tally.violations.append(f"doctor {store}: exit {found.returncode}: {words}")
