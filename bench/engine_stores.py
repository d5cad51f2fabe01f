"""Many small stores asked in turn in Cypher: what that takes in memory, and what the first statement of each waits."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.engine_server import COUNT, asked, family, processes, share
from bench.measure import Report, times
from bench.server import Client, Server

STORES, PLACES = 64, 16
FEW_STORES, FEW_PLACES = 12, 4
STORE_NODES = 20
FIRST_MILLISECONDS = 150.0
PROCESS_MIB = 45.0
SERVER_MIB = 250.0
"""The server with its open stores, and the nursery."""
REST_SECONDS = 70.0
"""A minute, and what closing takes."""


def stores(*, quick: bool) -> Report:
    """Small stores that are asked in turn, more of them than may have a process at once."""
    count, places = (FEW_STORES, FEW_PLACES) if quick else (STORES, PLACES)
    report = Report(f"stores: {count} of {STORE_NODES} nodes asked in turn, {places} may have a process")
    settings = {"indexes": False, "max_open_stores": count, "engine_processes": places}
    with (
        tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder,
        Server(Path(folder), settings) as server,
        server.client() as client,
    ):
        _fill(client, count)
        report.fact("before any is asked", _shown(server))
        limit = SERVER_MIB + places * PROCESS_MIB
        for way in ("its file made", "its file there"):
            most, alive, waits = _ask_each(server, client, count)
            report.at_most(f"memory at the peak, {way}", f"{most:,.0f} MiB", most, limit, "MiB")
            report.check(f"processes at the most, {way}", str(alive), alive <= places)
            found = times(waits)
            shown = f"{found.fine}, longest {found.longest:,.0f} ms"
            report.at_most(f"first statement of each, {way}", shown, found.p50, FIRST_MILLISECONDS, "ms")
        time.sleep(REST_SECONDS)
        report.fact("after a minute's rest", _shown(server))
        report.check("processes after that", str(len(processes(server.pid))), not processes(server.pid))
    report.notes.append("memory: the server, what it forks from, and all engines' processes, what they share once")
    return report


def _fill(client: Client, count: int) -> None:
    nodes = [{"id": f"n{n}", "type": "t", "content": "some words"} for n in range(STORE_NODES)]
    edges = [{"from": f"n{n}", "to": f"n{n + 1}", "relation_type": "r"} for n in range(STORE_NODES - 1)]
    for number in range(count):
        client.call("POST", f"/api/memory/s{number}/inject", {"nodes": nodes, "edges": edges})


def _ask_each(server: Server, client: Client, count: int) -> tuple[float, int, list[float]]:
    """The most memory in MiB, the most processes, and the milliseconds of each store's statement."""
    most, alive, waits = 0.0, 0, list[float]()
    for number in range(count):
        status, answer, seconds = asked(client, f"s{number}", COUNT)
        assert (status, answer["rows"]) == (200, [[STORE_NODES]]), answer
        waits.append(1000 * seconds)
        most = max(most, _memory(server))
        alive = max(alive, len(processes(server.pid)))
    return most, alive, waits


def _memory(server: Server) -> float:
    return sum(map(share, family(server.pid)))


def _shown(server: Server) -> str:
    return f"{_memory(server):,.0f} MiB, {len(processes(server.pid))} engines' processes"
