"""Cost of a store as it grows: `python -m bench.growth [--rows N …] [--quick] [--indexes]`.

The generated graph has four edges per node, so that the size of a depth-2 traversal's answer is constant.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import graphs
from bench.measure import BenchmarkReport, rounded, times
from bench.peers import TWO_STEPS
from bench.rows import POINT
from bench.server import HASHING, ServerProcess, scratch_folder, unwind_on_sigterm
from bench.wire import RawConnection, request

STORE = "growth"
API = f"/api/memory/{STORE}"
SEED = 20_060_925
ROWS = (10_000, 100_000, 1_000_000, 5_000_000)
QUICK_ROWS = (10_000, 40_000)
PART_ROWS = 100_000
MAX_RATIO = 2.0
WRITE, WALK = "inject 5 + 5", "walk of depth 2"
KINDS = (
    WRITE,
    "walk of depth 1",
    WALK,
    "walk of depth 3",
    "get, one id",
    "node and its edges",
    "list by type, 100",
    "neighbours",
    "Cypher, by id",
    "Cypher, two steps",
)
STATEMENTS = {"Cypher, by id": POINT, "Cypher, two steps": TWO_STEPS}

Figures = dict[str, float]


def run(folder: Path, rows: Sequence[int], repetitions: int, settings: dict[str, object]) -> list[Figures]:
    """Return the figures at each size: milliseconds by kind, imported rows per second, MiB of memory."""
    sizes: list[Figures] = []
    for before, after in zip((0, *rows), rows, strict=False):
        print(f"… {after:,} rows", file=sys.stderr)
        sizes.append(_measure(folder, before, after, repetitions, settings))
    return sizes


def _measure(folder: Path, before: int, rows: int, repetitions: int, settings: dict[str, object]) -> Figures:
    took: Figures = {}
    nodes = rows // graphs.GROWN_ROWS
    with ServerProcess(folder, settings) as server:
        seconds = _grow(server, before // graphs.GROWN_ROWS, nodes)
        with RawConnection(server.port) as wire:
            for kind in KINDS:
                requests = [_ready(kind, rows, number, nodes) for number in range(-5, repetitions)]
                took[f"{kind}: ms"] = times([wire.ask(ready).milliseconds for ready in requests][5:]).p50
            health = [wire.ask(request("GET", "/health")).milliseconds for _ in range(100)]
            took["/health: ms"] = times(health).p50
        took["import: rows/s"] = (rows - before) / seconds
        took["memory of its own: MiB"] = server.mebibytes("RssAnon")
    for how in ("clean", "killed"):
        took[f"ready, {how}: ms"], took[f"first walk, {how}: ms"] = _open(folder, settings, nodes, kill=how == "clean")
    return took


def _grow(server: ServerProcess, first: int, last: int) -> float:
    """Import missing rows, and wait until all projections have caught up. Return the seconds of the imports alone."""
    seconds, step = 0.0, PART_ROWS // graphs.GROWN_ROWS
    with server.client() as client:
        for start in range(first, last, step):
            parts = list(graphs.blocks(graphs.grown_graph_records(start, min(last, start + step))))
            began = time.perf_counter()
            client.upload(STORE, parts)
            seconds += time.perf_counter() - began
        client.settle(STORE)
    return seconds


def _open(folder: Path, settings: dict[str, object], nodes: int, *, kill: bool) -> tuple[float, float]:
    """Return the milliseconds from a start to the first answer, and from then to the first traversal.

    The server then stops after a few writes, killed or cleanly, for the next start.
    """
    start = time.perf_counter()
    with ServerProcess(folder, settings) as server:
        with RawConnection(server.port) as wire:
            wire.ask(request("GET", "/health"))
            ready = time.perf_counter()
            while (answer := wire.send(_ready(WALK, 0, 0, nodes))).status == 503:
                time.sleep(0.005)
            assert answer.status == 200, answer
            walked = time.perf_counter()
            for number in range(20):
                wire.ask(_ready(WRITE, nodes, -10 - number, nodes))
        if kill:
            server.kill()
    return (ready - start) * 1000, (walked - ready) * 1000


def _ready(kind: str, rows: int, number: int, nodes: int) -> bytes:
    choice = random.Random(f"{SEED} {kind} {rows} {number}")
    known = graphs.grown_id(choice.randrange(nodes))
    if kind != WRITE:
        return _read(kind, known)
    ids = [f"new-{rows}-{number}-{each}" for each in range(5)]
    written: list[dict[str, Any]] = [{"id": id_, "type": "note", "content": f"A note, {id_}."} for id_ in ids]
    targets = [*ids[1:3], *(graphs.grown_id(choice.randrange(nodes)) for _ in range(3))]
    edges = [{"from": a, "to": b, "relation_type": "mentions"} for a, b in zip(ids, targets, strict=True)]
    return request("POST", f"{API}/inject", {"nodes": written, "edges": edges})


def _read(kind: str, id_: str) -> bytes:
    if kind.startswith("walk of depth "):
        return request("POST", f"{API}/traverse", {"start_id": id_, "depth": int(kind[-1])})
    if kind in STATEMENTS:
        return request("POST", f"{API}/cypher", {"query": STATEMENTS[kind], "params": {"id": id_}})
    if kind == "get, one id":
        return request("POST", f"{API}/get", {"ids": [id_]})
    paths = {
        "node and its edges": f"nodes/{id_}",
        "list by type, 100": "nodes?type=number&limit=100",
        "neighbours": f"nodes/{id_}/outgoing",
    }
    return request("GET", f"{API}/{paths[kind]}")


def report(rows: Sequence[int], sizes: Sequence[Figures], repetitions: int) -> BenchmarkReport:
    """Return the table of a run: each figure at each size, and the ratio of the last size to the first."""
    table = BenchmarkReport(f"growth: a store by seed, over HTTP, at {', '.join(f'{size:,}' for size in rows)} rows")
    for what, first in sizes[0].items():
        figures = " / ".join(rounded(size[what]) for size in sizes)
        mark = ("≤", MAX_RATIO) if what.startswith(KINDS) else None
        table.compare(what, figures, f"at {rows[0]:,} rows", sizes[-1][what] / first, mark)
    table.notes += [
        f"p50 of {repetitions}, one start of each kind",
        "ready: from process start to the first answer; first walk: from then on",
    ]
    return table


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description="Cost of a store as it grows.")
    parser.add_argument("--rows", nargs="+", type=int, help=f"ascending sizes (default: {' '.join(map(str, ROWS))})")
    parser.add_argument("--quick", action="store_true", help=f"sizes {' '.join(map(str, QUICK_ROWS))}, 40 repetitions")
    parser.add_argument("--indexes", action="store_true", help="enable search indexes, with hashed vectors")
    options = parser.parse_args(arguments)
    unwind_on_sigterm()
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    repetitions = 40 if options.quick else 300
    with scratch_folder() as folder:
        sizes = run(folder, rows, repetitions, HASHING | {"indexes": options.indexes})
    report(rows, sizes, repetitions).show()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
