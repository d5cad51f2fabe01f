"""Resource usage of the server process: `python -m bench.footprint [--only idle|stores|model|wordnet] [--quick]`.

Anonymous memory and file pages are listed separately; the kernel reclaims file pages when needed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from bench import graphs, wordnet
from bench.measure import BenchmarkReport, parser, run_parts
from bench.server import HASHING, BenchClient, ServerProcess, scratch_folder, serving

NODES = 20
REST_SECONDS, QUICK_REST_SECONDS = 60.0, 5.0
# A swapping machine yields no valid measurement, and may be shared.
MIN_FREE_MIB = 4096


class Footprint(NamedTuple):
    """Memory of the process in MiB, and its threads and descriptors."""

    own: float
    files: float
    threads: int
    descriptors: int

    @override
    def __str__(self) -> str:
        """Format all figures for a table."""
        memory = f"{self.own + self.files:,.0f} MiB: {self.own:,.0f} its own, {self.files:,.0f} of files"
        return f"{memory}; {self.threads} threads, {self.descriptors} descriptors"


def footprint(server: ServerProcess, rest: float = 0.0) -> Footprint:
    """Return the process's resource usage after ``rest`` seconds of idling."""
    time.sleep(rest)
    own = server.mebibytes("RssAnon") + server.mebibytes("RssShmem")
    return Footprint(own, server.mebibytes("RssFile"), server.threads(), server.descriptors())


def idle(*, quick: bool) -> BenchmarkReport:
    """Measure an idle server, without and with the embedding model in memory."""
    report, rest = BenchmarkReport("memory: idle"), QUICK_REST_SECONDS if quick else REST_SECONDS
    with serving(HASHING) as (server, client):
        client.call("GET", "/health")
        without = footprint(server, rest)
    report.at_most("without the model", str(without), without.own + without.files, 120, "MiB")
    with serving({"embedding_provider": "local"}) as (server, client):
        client.call("POST", "/api/memory/one/inject", _batch(0))
        client.settle("one")
        found = client.call("POST", "/api/memory/one/search", {"query": "a thing", "mode": "semantic"})
        loaded = footprint(server, rest)
    if found["degraded"]:
        report.notes.append("no embedding model is prepared; its memory was not measured")
    else:
        report.at_most("with the model, and a small store", str(loaded), loaded.own + loaded.files, 250, "MiB")
    report.notes.append(f"{rest:.0f} s after the last request")
    return report


def stores(*, quick: bool) -> BenchmarkReport:
    """Measure many small stores, all open and idle."""
    report, rest = (
        BenchmarkReport(f"memory: small stores of {NODES} nodes, all open"),
        QUICK_REST_SECONDS if quick else 30,
    )
    counts = (1, 12) if quick else (1, 64, 500)
    with serving(HASHING | {"max_open_stores": counts[-1]}) as (server, client):
        found = [footprint(server)]
        report.fact("no store", str(found[0]))
        for before, count in zip((0, *counts), counts, strict=False):
            for number in range(before, count):
                if _free() < MIN_FREE_MIB:
                    report.notes.append(f"stopped at {number} stores, with {MIN_FREE_MIB:,} MiB of memory left")
                    return report
                client.call("POST", f"/api/memory/store-{number:03d}/inject", _batch(number))
            found.append(footprint(server, rest))
            report.fact(f"{count} stores", str(found[-1]))
            if count > 1:
                each = (found[-1].own - found[1].own) / (count - 1)
                report.at_most(f"each further of {count}", f"{each:.1f} MiB", each, 5, "MiB its own")
        server.kill()
    return report


def stores_with_model(*, quick: bool) -> BenchmarkReport:
    """Measure small stores, all open and idle, with their texts embedded and the model in memory."""
    report, count = BenchmarkReport(f"memory: small stores of {NODES} nodes with the model"), 8 if quick else 64
    with serving({"embedding_provider": "local"}) as (server, client):
        for number in range(count):
            client.call("POST", f"/api/memory/store-{number:03d}/inject", _batch(number))
        for number in range(count):
            client.settle(f"store-{number:03d}")
        found = client.call("POST", "/api/memory/store-000/search", {"query": "a thing", "mode": "semantic"})
        if found["degraded"]:
            report.notes.append("no embedding model is prepared; nothing was measured")
            return report
        now = footprint(server, QUICK_REST_SECONDS if quick else REST_SECONDS)
    report.at_most(f"{count} stores", str(now), now.own + now.files, 250, "MiB")
    return report


def large(*, quick: bool) -> BenchmarkReport:
    """Measure WordNet with both indexes, idle after its import, and idle after a restart and a few requests."""
    report, rest = BenchmarkReport("memory: WordNet with both indexes"), QUICK_REST_SECONDS if quick else REST_SECONDS
    with scratch_folder() as folder:
        file = wordnet.exchange_file()
        if quick:
            some = graphs.subgraph_rows(graphs.read(file), 10_000)
            file = graphs.write([*some.nodes, *some.edges], folder / "part.ndjson")
        for what in ("after import", "started again"):
            with serving(HASHING, folder / "data") as (server, client):
                if what == "after import":
                    client.upload("wordnet", graphs.file_blocks(file))
                client.settle("wordnet")
                _ask(client)
                now = footprint(server, rest)
                report.at_most(f"{what}, at rest", str(now), now.own, 500, "MiB its own")
    report.notes.append(f"at rest: {rest:.0f} s after a walk and a search; vectors of 384 numbers from letters")
    return report


def _ask(client: BenchClient) -> None:
    client.call("POST", "/api/memory/wordnet/traverse", {"start_id": "n00001740", "depth": 2})
    client.call("POST", "/api/memory/wordnet/search", {"query": "a thing that moves"})


def _free() -> float:
    """Return the available memory of the machine in MiB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable:"))


def _batch(store: int) -> dict[str, Any]:
    ids = [f"{store}/{number}" for number in range(NODES)]
    nodes = [{"id": id_, "type": "thing", "content": f"This is thing {id_} of a small store."} for id_ in ids]
    edges = [{"from": a, "to": b, "relation_type": "next"} for a, b in zip(ids, ids[1:] + ids[:1], strict=True)]
    return {"nodes": nodes, "edges": edges}


PARTS: dict[str, Callable[..., BenchmarkReport]] = {
    "idle": idle,
    "stores": stores,
    "model": stores_with_model,
    "wordnet": large,
}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part."""
    return run_parts(PARTS, parser("footprint", "Resource usage of the server process.", PARTS).parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
