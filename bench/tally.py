"""Table of the crash test, and reading of a store that may still be opening."""

from __future__ import annotations

import time
from collections.abc import Sequence
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import msgspec

from bench.server import BenchClient, ServerFailed, doctor

OPENING_SECONDS = 60.0
SHOWN = 4


class Tally(msgspec.Struct):
    """Rounds of one kind. `reached` counts those that hit the intended moment."""

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


def export_when_open(client: BenchClient, store: str) -> list[Any]:
    """Return all lines of a store; retry while it is opening, and treat a missing store as empty."""
    end = time.monotonic() + OPENING_SECONDS
    while True:
        reply = client.send("GET", f"/api/memory/{store}/stats")
        if reply.status == 404:
            return []
        if reply.status == 200:
            try:
                return client.export(store)
            except IncompleteRead:
                # Rows were found damaged meanwhile and are being rebuilt.
                client.close()
        elif reply.status != 503 or time.monotonic() > end:
            raise ServerFailed(f"{store} cannot be opened: {reply.status} {reply.body[:500]!r}")
        time.sleep(0.1)


def check_with_doctor(data: Path, store: str, tally: Tally) -> None:
    """Run the doctor on a store of a stopped server; its findings are violations."""
    found = doctor(data, store)
    if found.returncode != 0:
        words = f"{found.stdout[-1500:]}{found.stderr[-500:]}"
        tally.violations.append(f"doctor {store}: exit {found.returncode}: {words}")
