"""What the server's process takes: `python -m bench.footprint [--only idle|stores|wordnet] [--quick]`.

Memory of its own and pages of files are told apart; the kernel takes the second back when it needs them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import graphs, wordnet
from bench.baseline import read_rows
from bench.measure import Report
from bench.prepared import STORE, blocks
from bench.rows.ground import API, settle
from bench.server import Client, Server, end_when_told

HASHING: dict[str, object] = {"embedding_provider": "hashing"}
LOCAL: dict[str, object] = {"embedding_provider": "local"}
STORES = (1, 64, 500)
QUICK_STORES = (1, 4, 12)
NODES = 20
REST = 60.0
QUICK_REST = 5.0
QUICK_NODES = 10_000
# A machine that swaps measures nothing, and may be shared.
LEFT_FREE = 4096


class Footprint(NamedTuple):
    """Mebibytes of the process, and what else it holds."""

    own: float
    files: float
    threads: int
    descriptors: int

    @property
    def resident(self) -> float:
        """Both kinds of memory."""
        return self.own + self.files

    def __str__(self) -> str:
        """For a table."""
        memory = f"{self.resident:,.0f} MiB: {self.own:,.0f} its own, {self.files:,.0f} of files"
        return f"{memory}; {self.threads} threads, {self.descriptors} descriptors"


def footprint(server: Server) -> Footprint:
    """What it takes now."""
    own = server.mebibytes("RssAnon") + server.mebibytes("RssShmem")
    return Footprint(own, server.mebibytes("RssFile"), server.threads(), server.descriptors())


def idle(*, quick: bool) -> Report:
    """A server that nobody asks, without and with the embedding model in memory."""
    report, rest = Report("memory: idle"), QUICK_REST if quick else REST
    with _folder() as folder, Server(Path(folder), HASHING) as server, server.client() as client:
        client.call("GET", "/health")
        time.sleep(rest)
        without = footprint(server)
    report.at_most("without the model", str(without), without.resident, 120, "MiB")
    with _folder() as folder, Server(Path(folder), LOCAL) as server, server.client() as client:
        client.call("POST", "/api/memory/one/inject", _batch(0))
        settle(client, "one")
        found = client.call("POST", "/api/memory/one/search", {"query": "a thing", "mode": "semantic"})
        time.sleep(rest)
        loaded = footprint(server)
    if found["degraded"]:
        report.notes.append("no embedding model is prepared: what it takes was not measured")
    else:
        report.at_most("with the model, and one small store", str(loaded), loaded.resident, 250, "MiB")
    report.notes.append(f"{rest:.0f} s after the last request")
    return report


def stores(*, quick: bool) -> Report:
    """Small stores, all open and at rest."""
    report, rest = Report(f"memory: small stores, {NODES} nodes and {NODES} edges each, all open"), QUICK_REST
    counts = QUICK_STORES if quick else STORES
    settings = HASHING | {"max_open_stores": counts[-1]}
    with _folder() as folder, Server(Path(folder), settings) as server, server.client() as client:
        report.fact("no store", str(footprint(server)))
        first, opened = None, 0
        for count in counts:
            opened = _open(client, opened, count)
            time.sleep(rest if quick else REST)
            now = footprint(server)
            report.fact(f"{opened} stores", str(now))
            if first is not None and opened > 1:
                each = (now.own - first.own) / (opened - 1)
                figure = f"{each:.1f} MiB its own, {(now.files - first.files) / (opened - 1):.1f} of files"
                report.at_most(f"each further of {opened}", figure, each, 5, "MiB its own")
            first = first or now
            if opened < count:
                report.notes.append(f"stopped at {opened} stores: {LEFT_FREE:,} MiB of the machine are left free")
                break
        server.kill()
    return report


def large(*, quick: bool) -> Report:
    """WordNet with both indexes, at rest after its import, and at rest after a start and a few questions."""
    report, rest = Report("memory: WordNet with both indexes"), QUICK_REST if quick else REST
    with _folder() as name:
        folder = Path(name)
        file = wordnet.exchange_file()
        if quick:
            some = graphs.part(read_rows(file), QUICK_NODES)
            file = graphs.write([*some.nodes, *some.edges], folder / "part.ndjson")
        for what in ("after import", "started again, a walk and a search"):
            with Server(folder / "data", HASHING | {"shutdown_grace": 60}) as server, server.client() as client:
                if what == "after import":
                    client.upload(STORE, blocks(file))
                settle(client)
                _ask(client)
                report.fact(f"{what}, at once", str(footprint(server)))
                time.sleep(rest)
                now = footprint(server)
                report.at_most(f"{what}, at rest", str(now), now.own, 500, "MiB its own")
    report.notes.append(f"at rest: {rest:.0f} s after the last request; vectors of 384 numbers from letters")
    return report


def _ask(client: Client) -> None:
    client.call("POST", f"{API}/traverse", {"start_id": "n00001740", "depth": 2})
    client.call("POST", f"{API}/search", {"query": "a thing that moves"})


def _open(client: Client, opened: int, count: int) -> int:
    """Write into further stores; returns how many are open, fewer than asked for when memory ends."""
    for number in range(opened, count):
        if _free() < LEFT_FREE:
            return number
        client.call("POST", f"/api/memory/store-{number:03d}/inject", _batch(number))
    return count


def _free() -> float:
    """Mebibytes that the machine could give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _batch(store: int) -> dict[str, Any]:
    ids = [f"{store}/{number}" for number in range(NODES)]
    nodes = [{"id": id_, "type": "thing", "content": f"This is thing {id_} of a small store."} for id_ in ids]
    edges = [{"from": a, "to": b, "relation_type": "next"} for a, b in zip(ids, ids[1:] + ids[:1], strict=True)]
    return {"nodes": nodes, "edges": edges}


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True)


PARTS: Mapping[str, Callable[..., Report]] = {"idle": idle, "stores": stores, "wordnet": large}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(prog="python -m bench.footprint", description="What the server's process takes.")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer stores, a part of WordNet, shorter rests")
    options = parser.parse_args(arguments)
    end_when_told()
    try:
        for name in options.only or PARTS:
            PARTS[name](quick=options.quick).show()
    except wordnet.Unavailable as reason:
        print(f"skipped: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
