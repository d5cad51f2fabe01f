"""What a store takes, and how long it keeps one waiting: `python -m bench.capacity [--only tiny wordnet million]`.

Bytes of the disk by part, and of them and of memory for each node, edge, vector and former version; seconds to open, to
make its indexes anew, and to back up. Vectors are made from letters, of the usual 384 numbers: none is waited for.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import graphs, wordnet
from bench.footprint import Footprint, footprint
from bench.measure import Report, rounded
from bench.prepared import STORE, blocks
from bench.rows.ground import API, settle
from bench.server import Client, Server, end_when_told, run

SIZES = ("tiny", "wordnet", "million")
PARTS = {
    "journal": "journal",
    "history": "history.sqlite*",
    "engine": "graph.kuzu*",
    "present rows": "views/rows",
    "words": "views/*keyword",
    "vectors": "views/*vector",
    "cache of vectors": "views/embeddings.sqlite*",
}
"""Where the parts of a store are; everything else is told as the rest."""
WITHOUT: dict[str, object] = {"indexes": False, "history": False, "shutdown_grace": 60, "rate_limit": 0}
WHOLE: dict[str, object] = {"embedding_provider": "hashing", "shutdown_grace": 120, "rate_limit": 0}
VERSIONS = 10
"""How often some nodes are written again, to see what a former state takes."""
WRITTEN_AGAIN = 1_000
MEGABYTE = 1_000_000
REST = 15.0
TINY_NODES = 20


class Rows(NamedTuple):
    """A graph as a file of exchange lines, and how many nodes and edges it has."""

    file: Path
    nodes: int
    edges: int


def measure(rows: Rows, name: str, folder: Path, *, indexes: bool) -> Report:
    """Measure one graph, with or without ``indexes``, in a folder of its own."""
    report = Report(f"capacity: {name}, {rows.nodes:,} nodes and {rows.edges:,} edges")
    _disk_of_rows(report, rows, folder / "halves")
    data = folder / "data"
    with Server(data, WHOLE | {"indexes": False}) as server, server.client() as client:
        empty = footprint(server)
        client.upload(STORE, blocks(rows.file))
        settle(client)
        time.sleep(REST)
        plain = footprint(server)
    _memory(report, "memory, without indexes", plain, empty, rows.nodes + rows.edges, "row")
    without = _parts(data)
    if indexes:
        _indexes(report, rows, data, without)
    else:
        _disk(report, without)
    _versions(report, data)
    _times(report, data, folder)
    return report


def _disk_of_rows(report: Report, rows: Rows, folder: Path) -> None:
    """What nodes alone take in journal and present rows, and what edges add to that."""
    with Server(folder, WITHOUT) as server, server.client() as client:
        client.upload(STORE, _lines(rows.file, b'"kind":"node"'))
        time.sleep(REST)
        nodes = sum(_parts(folder).values())
        client.upload(STORE, _lines(rows.file, b'"kind":"edge"'))
        time.sleep(REST)
        edges = sum(_parts(folder).values()) - nodes
    report.fact("disk of a node, without history and indexes", f"{nodes / rows.nodes:,.0f} bytes")
    report.fact("disk of an edge, without history and indexes", f"{edges / max(rows.edges, 1):,.0f} bytes")


def _indexes(report: Report, rows: Rows, data: Path, without: dict[str, int]) -> None:
    """What indexes add, and how long it takes to make them anew from nothing."""
    with Server(data, WHOLE) as server, server.client() as client:
        started = time.monotonic()
        before = footprint(server)
        client.call("GET", f"{API}/stats")
        settle(client)
        report.fact("indexes made anew", f"{time.monotonic() - started:,.1f} s")
        client.call("POST", f"{API}/search", {"query": "a thing that moves"})
        client.call("POST", f"{API}/cypher", {"query": "MATCH (n:Entity) RETURN count(n)"})
        time.sleep(REST)
        _memory(report, "memory, with indexes", footprint(server), before, rows.nodes, "node")
    parts = _parts(data)
    _disk(report, parts)
    whole = sum(parts.values())
    vectors = parts["vectors"] + parts["cache of vectors"]
    report.fact("disk of the store, with indexes", f"{whole / MEGABYTE:,.2f} MB")
    report.fact("disk of the store, without indexes", f"{sum(without.values()) / MEGABYTE:,.2f} MB")
    report.fact("disk of a vector", f"{vectors / rows.nodes:,.0f} bytes")
    lines = rows.file.stat().st_size
    each = f"{(whole - vectors) / lines:,.2f}, and {vectors / lines:,.2f} of vectors"
    report.fact("disk for each byte of its lines", each)


def _disk(report: Report, parts: dict[str, int]) -> None:
    for name, size in parts.items():
        report.fact(f"disk: {name}", f"{size / MEGABYTE:,.2f} MB")


def _versions(report: Report, data: Path) -> None:
    """What a state takes that is over: a node with a text of 100 characters, in the history alone."""
    with Server(data, WHOLE | {"indexes": False}) as server, server.client() as client:
        ids = [f"again-{number}" for number in range(WRITTEN_AGAIN)]
        sizes: list[int] = []
        for version in range(VERSIONS + 1):
            nodes = [{"id": each, "type": "thing", "content": f"{each} {version} ".ljust(100, "x")} for each in ids]
            client.call("POST", f"{API}/inject", {"nodes": nodes})
            if version in (0, VERSIONS):
                settle(client)
                sizes.append(sum(path.stat().st_size for path in (data / f"{STORE}_memory").glob("history.sqlite")))
    grown = sum(path.stat().st_size for path in (data / f"{STORE}_memory").glob("history.sqlite")) - sizes[0]
    report.fact("disk of a former version of 100 characters", f"{grown / (VERSIONS * WRITTEN_AGAIN):,.0f} bytes")


def _times(report: Report, data: Path, folder: Path) -> None:
    with Server(data, WHOLE | {"indexes": False}) as server, server.client() as client:
        report.fact("opened, after a clean stop", _seconds(client))
        server.kill()
    with Server(data, WHOLE | {"indexes": False}) as server, server.client() as client:
        report.fact("opened, after a kill", _seconds(client))
    started = time.monotonic()
    run(["backup", STORE, "--to", str(folder / "backup"), "--data", str(data)]).check_returncode()
    seconds = time.monotonic() - started
    size = sum(path.stat().st_size for path in (folder / "backup").rglob("*") if path.is_file())
    report.fact("backed up", f"{seconds:,.1f} s, {size / MEGABYTE:,.2f} MB")


def _seconds(client: Client) -> str:
    started = time.monotonic()
    client.call("GET", f"{API}/stats")
    return f"{time.monotonic() - started:,.2f} s"


def _memory(report: Report, what: str, now: Footprint, before: Footprint, count: int, unit: str) -> None:
    own, files = (1 << 20) * (now.own - before.own), (1 << 20) * (now.files - before.files)
    each = f"{own / count:,.0f} bytes a {unit} its own, {files / count:,.0f} of files"
    report.fact(what, f"{rounded(own / MEGABYTE)} MB its own, {rounded(files / MEGABYTE)} of files: {each}")


def _parts(data: Path) -> dict[str, int]:
    """Bytes of each part of the store, and of what is in none."""
    root = data / f"{STORE}_memory"
    sizes = {part: sum(map(_size, root.glob(pattern))) for part, pattern in PARTS.items()}
    return sizes | {"everything else": _size(root) - sum(sizes.values())}


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def _lines(file: Path, having: bytes) -> Iterator[bytes]:
    with file.open("rb") as lines:
        yield from (line for line in lines if having in line)


def _rows(size: str, folder: Path) -> Rows:
    """The graph of a size. Raises wordnet.Unavailable."""
    if size == "wordnet":
        return Rows(wordnet.exchange_file(), wordnet.NODE_COUNT, wordnet.EDGE_COUNT)
    nodes = TINY_NODES if size == "tiny" else 1_000_000
    made = [_node(number) for number in range(nodes)]
    edges = [_edge(number, (number * 7 + 1) % nodes) for number in range(nodes)]
    return Rows(graphs.write([*made, *edges], folder / f"{size}.ndjson"), nodes, nodes)


def _node(number: int) -> dict[str, Any]:
    return {"kind": "node", "id": f"n{number:07}", "type": "thing", "content": f"This is thing {number} of many."}


def _edge(source: int, target: int) -> dict[str, Any]:
    return {"kind": "edge", "from": f"n{source:07}", "to": f"n{target:07}", "relation_type": "next"}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description="What a store takes, and how long.")
    parser.add_argument("--only", nargs="+", choices=SIZES, default=SIZES, help="what to measure (default: all)")
    parser.add_argument("--without-indexes", action="store_true", help="a million vectors take half an hour")
    parser.add_argument("--quick", action="store_true", help="a tiny store alone")
    options = parser.parse_args(arguments)
    end_when_told()
    for size in ["tiny"] if options.quick else options.only:
        with tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as name:
            try:
                measure(_rows(size, Path(name)), size, Path(name), indexes=not options.without_indexes).show()
            except wordnet.Unavailable as reason:
                print(f"skipped: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
