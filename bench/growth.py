"""What a store costs as it grows: `python -m bench.growth [--rows N …] [--quick] [--indexes] [--picture PATH]`.

The graph by seed has four edges to each node, so that a walk of depth 2 gives an answer of the same size throughout.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import floor, graphs
from bench.growth_picture import markdown, svg
from bench.measure import Report, rounded, times
from bench.prepared import STORE
from bench.rows.ground import API, SEED, settle, walking, warm_up
from bench.server import KEPT_EVENTS, Server, end_when_told
from bench.wire import Wire, request

ROWS = (10_000, 100_000, 1_000_000, 5_000_000)
QUICK_ROWS = (10_000, 40_000)
PART = 100_000
AT_MOST = 2.0
KINDS = ("inject 5 + 5", "walk of depth 2", "node get")
STARTS = ("ready, clean", "first walk, clean", "ready, killed", "first walk, killed")
DRAWN = (*KINDS, "first walk, killed")


class Size(NamedTuple):
    """What a store of so many rows costs: milliseconds of KINDS and of STARTS, and the rate of its import."""

    rows: int
    milliseconds: dict[str, float]
    seconds_imported: float
    rows_imported: int
    own: float
    health: float
    base: float

    @property
    def rate(self) -> float:
        """Rows a second of the part of the import that led here."""
        return self.rows_imported / self.seconds_imported


def run(folder: Path, rows: Sequence[int], repetitions: int, settings: dict[str, object]) -> list[Size]:
    """Measure at each size."""
    sizes: list[Size] = []
    for number in rows:
        print(f"… {number:,} rows", file=sys.stderr)
        sizes.append(_measure(folder, sizes[-1].rows if sizes else 0, number, repetitions, settings))
    return sizes


def _measure(folder: Path, before: int, rows: int, repetitions: int, settings: dict[str, object]) -> Size:
    took: dict[str, float] = {}
    nodes = rows // graphs.GROWN_ROWS
    with Server(folder, settings) as server:
        seconds = _grow(server, before // graphs.GROWN_ROWS, nodes)
        with Wire(server.port) as wire:
            for kind in KINDS:
                requests = [_ready(kind, rows, number, nodes) for number in range(repetitions)]
                warm_up(wire, [_ready(kind, rows, -1 - number, nodes) for number in range(5)])
                took[kind] = times([wire.ask(ready).milliseconds for ready in requests]).p50
            health, own = floor.health(wire, 100), server.mebibytes("RssAnon")
        bases = [event["seconds"] for event in server.log_tail(KEPT_EVENTS) if event.get("event") == "rows_folded"]
    took["ready, clean"], took["first walk, clean"] = _open(folder, settings, nodes, kill=True)
    took["ready, killed"], took["first walk, killed"] = _open(folder, settings, nodes, kill=False)
    return Size(rows, took, seconds, rows - before, own, health, bases[-1] if bases else 0.0)


def _grow(server: Server, first: int, last: int) -> float:
    """Import what is missing, and wait until all that follows has seen it; seconds of the imports alone."""
    seconds, step = 0.0, PART // graphs.GROWN_ROWS
    with server.client() as client:
        for start in range(first, last, step):
            parts = list(graphs.blocks(graphs.grown(start, min(last, start + step))))
            began = time.perf_counter()
            client.upload(STORE, parts)
            seconds += time.perf_counter() - began
        settle(client)
    return seconds


def _open(folder: Path, settings: dict[str, object], nodes: int, *, kill: bool) -> tuple[float, float]:
    """Milliseconds until a started server answers, and from then to its first walk; it ends by `kill` after a write."""
    start = time.perf_counter()
    with Server(folder, settings) as server:
        with Wire(server.port) as wire:
            wire.ask(request("GET", "/health"))
            ready = time.perf_counter()
            _first_walk(wire, nodes)
            walked = time.perf_counter()
            warm_up(wire, [_ready(KINDS[0], nodes, -10 - number, nodes) for number in range(20)])
        if kill:
            server.kill()
    return (ready - start) * 1000, (walked - ready) * 1000


def _first_walk(wire: Wire, nodes: int) -> None:
    """Ask until it is answered; a server may say that it is not ready yet."""
    while (answer := wire.send(_ready(KINDS[1], 0, 0, nodes))).status == 503:
        time.sleep(0.005)
    assert answer.status == 200, answer


def _ready(kind: str, rows: int, number: int, nodes: int) -> bytes:
    choice = random.Random(f"{SEED} {kind} {rows} {number}")
    known = graphs.grown_id(choice.randrange(nodes))
    if kind == "walk of depth 2":
        return walking(known, 2)
    if kind == "node get":
        return request("GET", f"{API}/nodes/{known}")
    ids = [f"new-{rows}-{number}-{each}" for each in range(5)]
    written: list[dict[str, Any]] = [{"id": id_, "type": "note", "content": f"A note, {id_}."} for id_ in ids]
    targets = [*ids[1:3], *(graphs.grown_id(choice.randrange(nodes)) for _ in range(3))]
    edges = [{"from": a, "to": b, "relation_type": "mentions"} for a, b in zip(ids, targets, strict=True)]
    return request("POST", f"{API}/inject", {"nodes": written, "edges": edges})


def report(sizes: Sequence[Size], repetitions: int) -> Report:
    """The table of a run."""
    made, first, last = Report("growth: a store by seed, over HTTP"), sizes[0], sizes[-1]
    for kind in (*KINDS, *STARTS):
        figures = " / ".join(rounded(size.milliseconds[kind]) for size in sizes)
        ratio = last.milliseconds[kind] / first.milliseconds[kind]
        mark = ("≤", AT_MOST) if kind in KINDS else None
        made.compare(f"{kind}: ms", figures, f"at {first.rows:,} rows", ratio, mark)
    made.fact("import, rows/s", " / ".join(f"{size.rate:,.0f}" for size in sizes))
    made.fact("the last base of rows made, s", " / ".join(rounded(size.base) for size in sizes))
    made.fact("memory of its own, MiB", " / ".join(f"{size.own:,.0f}" for size in sizes))
    made.fact("/health, ms", " / ".join(rounded(size.health) for size in sizes))
    made.notes += [
        f"at {', '.join(f'{size.rows:,}' for size in sizes)} rows; p50 of {repetitions}, one start of each kind",
        "ready: from the start of the process to the first answer; first walk: from then on",
    ]
    return made


def main(arguments: Sequence[str]) -> int:
    """Print the table, and write the picture and its page when asked to."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description="What a store costs as it grows.")
    parser.add_argument("--rows", nargs="+", type=int, help=f"sizes, rising (default: {' '.join(map(str, ROWS))})")
    parser.add_argument("--quick", action="store_true", help=f"sizes {' '.join(map(str, QUICK_ROWS))}, 40 repetitions")
    parser.add_argument("--indexes", action="store_true", help="keep search indexes, with vectors from letters")
    parser.add_argument("--picture", type=Path, help="write an SVG here, and the table as Markdown beside it")
    options = parser.parse_args(arguments)
    end_when_told()
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    repetitions = 40 if options.quick else 300
    settings: dict[str, object] = {"embedding_provider": "hashing", "indexes": options.indexes}
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder:
        sizes = run(Path(folder), rows, repetitions, settings)
    report(sizes, repetitions).show()
    if options.picture:
        figures = {kind: [size.milliseconds[kind] for size in sizes] for kind in (*KINDS, *STARTS)}
        options.picture.write_text(svg(rows, {kind: figures[kind] for kind in DRAWN}))
        options.picture.with_suffix(".md").write_text(markdown(rows, figures, options.picture.name))
        print(f"{options.picture} and {options.picture.with_suffix('.md')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
