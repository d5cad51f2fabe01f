"""One server with thousands of closed stores: `python -m bench.many_stores [--stores N]`.

Lists, start, probes, events, backups and stop, in wall seconds and in processor seconds of the server.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.measure import BenchmarkReport
from bench.server import HASHING, BenchClient, ServerProcess, run, scratch_folder, serving

STORES = 10_000
PAGE_STORES = 100
ROUNDS = 9
BACKUP_TIMEOUT_SECONDS = 600.0
_COPIED = ("journal", "store.json", "closed.json")


def create_stores(data: Path, count: int) -> None:
    """Fill a data folder with copies of one closed store; what is derived is left out."""
    with serving(HASHING, data) as (_, client):
        nodes = [{"id": f"n{number}", "type": "thing", "content": f"Thing {number}"} for number in range(5)]
        client.call("POST", "/api/memory/s00000/inject", {"nodes": nodes})
        client.settle("s00000")
    first = data / "s00000_memory"
    for number in range(1, count):
        copy = data / f"s{number:05d}_memory"
        copy.mkdir(mode=0o700)
        for name in _COPIED:
            source = first / name
            if source.is_dir():
                shutil.copytree(source, copy / name)
            else:
                shutil.copy2(source, copy / name)


class ServerCost:
    """Wall and processor time of calls to one server."""

    def __init__(self, server: ServerProcess, report: BenchmarkReport) -> None:
        self._server = server
        self._report = report

    def measure(self, what: str, call: Callable[[], Any], rounds: int = ROUNDS) -> None:
        """Report the median wall milliseconds of a call, and the mean processor milliseconds of the server."""
        took: list[float] = []
        before = self._server.processor_seconds()
        for _ in range(rounds):
            started = time.perf_counter()
            call()
            took.append((time.perf_counter() - started) * 1000)
        used = (self._server.processor_seconds() - before) / rounds * 1000
        self._report.fact(what, f"{sorted(took)[rounds // 2]:,.1f} ms, {used:,.0f} ms of processor time")


def measure_server(report: BenchmarkReport, data: Path) -> None:
    """Report start, lists, probes, events, memory and stop of a server."""
    started = time.perf_counter()
    server = ServerProcess(data, HASHING)
    with server.client() as client:
        client.call("GET", "/health")
        wall = time.perf_counter() - started
        report.fact(
            "start until /health answers", f"{wall:.2f} s, {server.processor_seconds():.2f} s of processor time"
        )
        cost = ServerCost(server, report)
        page = f"/api/memory?limit={PAGE_STORES}"
        if client.send("GET", page).status != 200:  # a version without pages
            page = "/api/memory"
        cost.measure("first list after the start", lambda: client.call("GET", page), 1)
        cost.measure(f"a page of {PAGE_STORES} stores", lambda: client.call("GET", page))
        cost.measure("a page in the middle", lambda: client.call("GET", f"{page}&after=s05" if "?" in page else page))
        cost.measure("the list without a limit", lambda: client.call("GET", "/api/memory"))
        for path in ("/metrics", "/ready"):
            cost.measure(path, lambda path=path: client.send("GET", path))
        cost.measure("create a store", lambda: client.call("PUT", f"/api/memory/made-{time.time_ns()}"), 3)
        cost.measure("open /api/events", lambda: _open_events(server), 3)
    report.fact("memory", f"{server.mebibytes('RssAnon'):,.0f} MiB its own, {server.descriptors()} descriptors")
    started = time.perf_counter()
    server.stop(120)
    report.fact("stop", f"{time.perf_counter() - started:.2f} s")


def _open_events(server: ServerProcess) -> None:
    """Open the events of all stores, and wait for the preamble; a refusal counts as an answer."""
    client = BenchClient(server.port)
    connection = client._connection  # noqa: SLF001 - the answer is a stream
    connection.request("GET", "/api/events")
    connection.getresponse().readline()
    client.close()


def measure_backups(report: BenchmarkReport, data: Path, stores: int) -> None:
    """Report a first and an unchanged backup of all stores by the command, next to a running server."""
    with scratch_folder() as folder, ServerProcess(data, HASHING):
        for what in ("first backup", "backup of unchanged stores"):
            started = time.perf_counter()
            done = run(["backup", "--data", str(data), "--to", str(folder / "backup"), "--json"])
            took = time.perf_counter() - started
            report.check(what, f"{took:.1f} s, {took / stores * 1000:.2f} ms a store", done.returncode == 0)


def main(arguments: Sequence[str]) -> int:
    """Print a table. Return 1 when a backup failed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--stores", type=int, default=STORES)
    options.add_argument("--data", type=Path, help="keep the stores in this folder, and use those that are there")
    options.add_argument("--no-backups", action="store_true")
    given = options.parse_args(arguments)
    report = BenchmarkReport(f"{given.stores:,} stores")
    with scratch_folder() as folder:
        data = given.data or folder / "data"
        if not data.exists():
            create_stores(data, given.stores)
        for _ in range(2):
            measure_server(report, data)
        if not given.no_backups:
            measure_backups(report, data, given.stores)
    report.show()
    return int(report.wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
