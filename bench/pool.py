"""Many stores in turn in one process: none lost; memory, threads and descriptors stay within bounds."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.measure import Report
from bench.server import Client, Server

STORES = 500
STEP = 100
OPEN = 64
NODES = 20


class Footprint(msgspec.Struct):
    """What the server's process uses."""

    resident: float
    threads: int
    descriptors: int

    def __str__(self) -> str:
        """For a table."""
        return f"{self.resident:,.0f} MiB, {self.threads} threads, {self.descriptors} descriptors"


def run(stores: int = STORES, open_stores: int = OPEN) -> Report:
    """Measure with a data folder of its own; `open_stores` is the most that the server may hold open."""
    report = Report(f"pool: {stores} stores in turn, at most {open_stores} open")
    settings = {"max_open_stores": open_stores}
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder:
        with Server(Path(folder), settings) as server, server.client() as client:
            report.fact("at the start", str(_footprint(server)))
            prints = [_turn(report, server, client, stores, generation) for generation in (1, 2)]
            _bounds(report, prints[0][0], prints[1][-1])
            lost = [number for number in range(stores) if not _whole(client, number, 2)]
            report.check("stores lost or not whole", str(len(lost)), not lost)
            listed = client.call("GET", "/api/memory")["count"]
            report.check("stores listed", str(listed), listed == stores)
        with Server(Path(folder), settings) as server, server.client() as client:
            lost = [number for number in range(0, stores, 10) if not _whole(client, number, 2)]
            report.check("after a restart, every tenth", f"{len(lost)} lost", not lost)
    return report


def _turn(report: Report, server: Server, client: Client, stores: int, generation: int) -> list[Footprint]:
    prints: list[Footprint] = []
    start = time.perf_counter()
    for number in range(stores):
        client.call("POST", f"/api/memory/{_name(number)}/inject", _batch(number, generation))
        if number % 7 == 0 and number:  # an older store in between, which opens again
            assert _whole(client, number // 2, generation), f"store {number // 2} is not whole"
        if (number + 1) % min(STEP, stores) == 0:
            prints.append(_footprint(server))
            report.fact(f"turn {generation}, after {number + 1} stores", str(prints[-1]))
    seconds = time.perf_counter() - start
    report.fact(f"turn {generation}", f"{seconds:.1f} s, {seconds / stores * 1000:.0f} ms a store")
    return prints


def _bounds(report: Report, early: Footprint, late: Footprint) -> None:
    for what, then, now, slack in (
        ("resident MiB", early.resident, late.resident, 100),
        ("threads", early.threads, late.threads, 16),
        ("descriptors", early.descriptors, late.descriptors, 32),
    ):
        base = f"in turn 1, first reading {then:,.0f}"
        ratio = now / then
        report.compare(f"{what} at the end", f"{now:,.0f}", base, ratio, ("≤", round(1.15 + slack / then, 2)))


def _name(number: int) -> str:
    return f"store-{number:03d}"


def _batch(number: int, generation: int) -> dict[str, Any]:
    ids = [f"{_name(number)}/{n}" for n in range(NODES)]
    nodes = [{"id": id_, "type": "thing", "content": f"generation {generation}"} for id_ in ids]
    edges = [{"from": a, "to": b, "relation_type": "next"} for a, b in zip(ids, ids[1:] + ids[:1], strict=True)]
    return {"nodes": nodes, "edges": edges}


def _whole(client: Client, number: int, generation: int) -> bool:
    question = {"start_id": f"{_name(number)}/0", "depth": 10, "direction": "both"}
    answer = client.call("POST", f"/api/memory/{_name(number)}/traverse", question)
    contents = {node["content"] for node in answer["nodes"]}
    return contents == {f"generation {generation}"} and (answer["count"], len(answer["edges"])) == (NODES, NODES)


def _footprint(server: Server) -> Footprint:
    return Footprint(server.mebibytes("VmRSS"), server.threads(), server.descriptors())


def main() -> int:
    """Run and print."""
    report = run()
    report.show()
    return int(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
