"""Reads with reader processes: `python -m bench.readers [--only reads|writes] [--quick]`.

Needs `wrk`, a load generator in C (Debian's package of this name). All servers run at once, on copies of one folder,
and take turns, so that other work on the machine affects them alike.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bench import graphs, wire
from bench.measure import BenchmarkReport, parser, rounded, run_parts, times
from bench.server import HASHING, ServerProcess, scratch_folder, serving

STORE = "grown"
CONNECTIONS = 16
READERS = (0, 1, 2, 4)
SETTINGS = HASHING | {"indexes": "none", "history": "false", "log_level": "warning"}
TARGETS = {"node and edges": 1.5, "walk, depth 2": 1.8}
"""Requests per second with one reader process, relative to none."""
SCRIPTS = {
    "node and edges": 'request = function() return wrk.format("GET", "/api/memory/grown/nodes/"..number()) end',
    **{
        f"walk, depth {depth}": "request = function() return wrk.format('POST', '/api/memory/grown/traverse', "
        "{['Content-Type'] = 'application/json'}, "
        f'\'{{"start_id":"\'..number()..\'","depth":{depth}}}\') end'
        for depth in (2, 3)
    },
}
_TICKS = 100


class Burst(NamedTuple):
    """Requests per second, and processor microseconds per request of all processes of a server."""

    rate: float
    processor: float


def reads(*, quick: bool) -> BenchmarkReport:
    """Measure requests per second and processor time per request, and the memory of each reader process."""
    nodes, rounds, seconds = (2_000, 2, 1) if quick else (50_000, 7, 2)
    report = BenchmarkReport(f"reads, {CONNECTIONS} connections, {nodes:,} nodes, {graphs.GROWN_DEGREE} edges each")
    with _servers(nodes) as servers, scratch_folder() as folder:
        for what, script in SCRIPTS.items():
            path = folder / "request.lua"
            path.write_text(
                f"number = function() return string.format('g%08d', math.random(0, {nodes - 1})) end\n{script}\n"
            )
            bursts: list[list[Burst]] = [[] for _ in servers]
            for _ in range(rounds):
                for server, found in zip(servers, bursts, strict=True):
                    found.append(_burst(server, path, seconds))
            for count, found in zip(READERS, bursts, strict=True):
                rate = statistics.median(each.rate for each in found)
                gain = statistics.median(each.rate / none.rate for each, none in zip(found, bursts[0], strict=True))
                figure = f"{rate:,.0f} requests/s, {min(each.processor for each in found):.0f} µs"
                mark = ("≥", TARGETS[what]) if count == 1 and what in TARGETS else None
                report.compare(f"{what}: {count} readers", figure, "no readers", gain, mark)
        for count, server in zip(READERS, servers, strict=True):
            for process in _readers(server):
                own = _own_mebibytes(process)
                report.at_most(f"own memory of one of {count}", f"{own:.0f} MiB", own, 60, "MiB")
    report.notes.append("median of paired rounds; the load generator shares the cores")
    return report


def writes(*, quick: bool) -> BenchmarkReport:
    """Measure the first read after a write on another connection, and what a commit costs a reader process."""
    count = 50 if quick else 500
    report = BenchmarkReport("a commit of 5 nodes and 5 edges, then a read on another connection")
    with _servers(1_000) as servers:
        for number, server in zip(READERS[:2], servers, strict=False):
            with wire.RawConnection(server.port) as writer, wire.RawConnection(server.port) as reader:
                read = wire.request("GET", f"/api/memory/{STORE}/nodes/{graphs.grown_id(1)}")
                for _ in range(10):
                    reader.ask(read)
                before = sum(map(_seconds, _readers(server)))
                waits = [_write_then_read(writer, reader, read, each) for each in range(count)]
                spent = (sum(map(_seconds, _readers(server))) - before) / count * 1000
            report.fact(f"read after a commit, {number} readers", str(times(waits)))
            if number:
                report.at_most("reader: commit and read", f"{rounded(spent)} ms", spent, 0.3 + 0.2, "ms")
    report.notes.append("processor time in steps of 10 ms; the read itself takes about 0.15 ms")
    return report


def _write_then_read(writer: wire.RawConnection, reader: wire.RawConnection, read: bytes, number: int) -> float:
    """Return the milliseconds of a read after a write. Raises AssertionError if it does not see the write."""
    ids = [*map(graphs.grown_id, range(1, 7))]
    nodes = [{"id": node, "type": "t", "content": f"{number}"} for node in ids[:5]]
    edges = [{"from": start, "to": end, "relation_type": "next to"} for start, end in pairwise(ids)]
    written = writer.ask(wire.request("POST", f"/api/memory/{STORE}/inject", {"nodes": nodes, "edges": edges}))
    found = reader.ask(read)
    assert found.json()["node"]["sequence"] == written.json()["sequence"]
    return found.milliseconds


@contextmanager
def _servers(nodes: int) -> Generator[list[ServerProcess]]:
    """Yield a server for each number of reader processes, all with the same graph."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        with serving(SETTINGS, folder / "0") as (_, client):
            client.upload(STORE, graphs.blocks(graphs.grown_graph_records(0, nodes)))
        for count in READERS[1:]:
            shutil.copytree(folder / "0", folder / str(count), ignore=shutil.ignore_patterns("server.json"))
        servers = [
            stack.enter_context(ServerProcess(folder / str(count), SETTINGS | {"readers": count})) for count in READERS
        ]
        for count, server in zip(READERS, servers, strict=True):
            while len(_readers(server)) < count:
                time.sleep(0.1)
        yield servers


def _burst(server: ServerProcess, script: Path, seconds: int) -> Burst:
    processes = _family(server.pid)
    before = sum(map(_seconds, processes))
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script), f"http://127.0.0.1:{server.port}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    spent = sum(map(_seconds, processes)) - before
    count, rate = re.search(r"(\d+) requests in", said), re.search(r"Requests/sec: +([\d.]+)", said)
    assert count is not None, said
    assert rate is not None, said
    assert "Non-2xx" not in said, said
    return Burst(float(rate[1]), spent / int(count[1]) * 1e6)


def _family(process: int) -> list[int]:
    """Return a process and its descendants."""
    return [process, *(each for child in _children(process) for each in _family(child))]


def _readers(server: ServerProcess) -> list[int]:
    return [reader for child in _children(server.pid) for reader in _children(child)]


def _children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def _seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _own_mebibytes(process: int) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


PARTS = {"reads": reads, "writes": writes}


def main(arguments: Sequence[str]) -> int:
    """Run the chosen parts. Return 1 when an exact check failed."""
    if shutil.which("wrk") is None:
        print("readers skipped: wrk is not installed")
        return 0
    return run_parts(PARTS, parser("readers", "Reads with reader processes.", PARTS).parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
