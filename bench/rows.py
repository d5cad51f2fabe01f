"""Traversals, writes, imports, statements, search and startup over HTTP, each against a baseline of the same run.

`python -m bench.rows [--graph wordnet|dense] [--only PART …] [--quick]`
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from bench import graphs, wordnet
from bench.baseline import BareEngine, measure_fdatasync
from bench.measure import BenchmarkReport, clock, parser, run_parts, times
from bench.server import HASHING, ServerFailed, ServerProcess, scratch_folder, serving
from bench.sqlite import Database
from bench.wire import RawConnection, request
from kgserve.embedding.embedder import load_embedder
from kgserve.platform import settings

STORE = "rows"
API = f"/api/memory/{STORE}"
SEED = 20_060_925
QUICK_NODES = 3_000
WRITERS = 32
POINT = "MATCH (n:Entity {id: $id}) RETURN n.id, n.content"
COUNT = "MATCH ()-[r:RELATES_TO]->() RETURN count(*)"
HEALTH = request("GET", "/health")


class BenchmarkGraph:
    """A graph, the same rows in SQLite, and a data folder with the graph. Raises wordnet.Unavailable."""

    def __init__(self, folder: Path, name: str, *, quick: bool) -> None:
        self.folder, self.quick = folder, quick
        self.file = (
            wordnet.exchange_file()
            if name == "wordnet"
            else graphs.write(graphs.dense_graph_records(), folder / "dense")
        )
        self.rows = graphs.read(self.file)
        if quick:
            self.rows = graphs.subgraph_rows(self.rows, QUICK_NODES)
            self.file = graphs.write([*self.rows.nodes, *self.rows.edges], folder / "part")
        self.total = len(self.rows.nodes) + len(self.rows.edges)
        self.title = f"{name}, {self.total:,} rows, over HTTP"

    def ids(self, quick: int, full: int) -> list[str]:
        """Return random ids."""
        count = quick if self.quick else full
        return random.Random(SEED).sample([node["id"] for node in self.rows.nodes], count)

    @cached_property
    def loaded(self) -> tuple[Database, float]:
        """The rows in SQLite, and the seconds of loading them."""
        database = Database(self.folder / "rows.sqlite")
        return database, database.load(self.rows)

    @cached_property
    def engine(self) -> tuple[BareEngine, float]:
        """The rows in the bare engine, and the seconds of loading them."""
        engine = BareEngine(self.folder / "bare.kuzu")
        return engine, engine.load(self.rows)

    @cached_property
    def _data(self) -> Path:
        with ServerProcess(self.folder / "data", HASHING) as server, server.client() as client:
            client.upload(STORE, graphs.file_blocks(self.file))
            client.settle(STORE)
        return self.folder / "data"

    def copy(self, name: str) -> Path:
        """Return a copy of the data folder with the graph and complete indexes."""
        return Path(shutil.copytree(self._data, self.folder / name))


def walks(ground: BenchmarkGraph, *, quick: bool) -> BenchmarkReport:
    """Compare traversals from random starts with SQLite, including the answers."""
    report, starts = BenchmarkReport(f"walks: {ground.title}"), ground.ids(10, 60)
    database, _ = ground.loaded
    with serving(HASHING, ground.copy("walked")) as (server, _), RawConnection(server.port) as wire:
        for depth in (1, 2, 3):
            served, near, differing = list[float](), list[float](), 0
            for start in starts:
                ready = request("POST", f"{API}/traverse", {"start_id": start, "depth": depth, "max_nodes": 10_000})
                held: list[bytes] = []
                near.append(clock(lambda start=start, depth=depth, held=held: held.append(database.walk(start, depth))))
                answer = wire.ask(ready)
                served.append(answer.milliseconds)
                differing += _rows(answer.body) != _rows(held[0])
            took, s, h = times(served), times(near).p50, _health(wire)
            _at_most(report, f"depth {depth}", took.p50, str(took), h + s, f"/health {h:.3g} + SQLite {s:.3g}")
            report.check(f"depth {depth}: answers that differ from SQLite's", str(differing), differing == 0)
        most = times([_longest_traversal_seconds(wire, start) for start in starts[: 3 if quick else 30]])
        report.at_most("depth 10, at most 10,000 nodes: longest", str(most), most.longest, 1000, "ms")
    return report


def _longest_traversal_seconds(wire: RawConnection, start: str) -> float:
    return wire.ask(
        request("POST", f"{API}/traverse", {"start_id": start, "depth": 10, "max_nodes": 10_000})
    ).milliseconds


def _rows(body: bytes) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    answer = msgspec.json.decode(body)
    nodes = {(node["id"], node["depth"], node["content"]) for node in answer["nodes"]}
    return nodes, {(edge["from"], edge["relation_type"], edge["to"]) for edge in answer["edges"]}


def writes(ground: BenchmarkGraph, *, quick: bool) -> BenchmarkReport:
    """Compare injects of 5 nodes and 5 edges, by one client and by many, with SQLite and one fdatasync."""
    report, count = BenchmarkReport(f"writes: {ground.title}"), 40 if quick else 200
    database, _ = ground.loaded
    data, choice = ground.copy("written"), random.Random(SEED)
    new = [_batch(f"new-{number}", choice, ground) for number in range(count)]
    kinds = {"new": new, "updated": [_updated(batch) for batch in new]}
    with serving(HASHING, data) as (server, client), RawConnection(server.port) as wire:
        for what, batches in kinds.items():
            served, near = list[float](), list[float]()
            for batch in batches:
                served.append(wire.ask(request("POST", f"{API}/inject", batch)).milliseconds)
                near.append(clock(lambda batch=batch: database.inject(batch)))
            took, s, h, f = times(served), times(near).p50, _health(wire), measure_fdatasync(data)
            base = f"/health {h:.3g} + fdatasync {f:.3g} + 4 SQLite {s:.3g}"
            _at_most(report, f"inject, {what}", took.p50, str(took), h + f + 4 * s, base)
        before = client.call("GET", f"{API}/stats")["nodes"]
        seconds = 2 if quick else 6
        one, many = (_count_injects(server, ground, clients, seconds) for clients in (1, WRITERS))
        report.compare(f"{WRITERS} clients", f"{many / seconds:,.0f}/s", f"1 client {one / seconds:,.0f}/s", many / one)
        added = client.call("GET", f"{API}/stats")["nodes"] - before
        report.check("nodes written by them", f"{added:,} of {5 * (one + many):,}", added == 5 * (one + many))
    return report


def _batch(name: str, choice: random.Random, ground: BenchmarkGraph) -> dict[str, Any]:
    ids = [f"{name}-{number}" for number in range(5)]
    targets = [*ids[1:3], *(node["id"] for node in choice.sample(ground.rows.nodes, 3))]
    edges = [
        {"from": a, "to": b, "relation_type": "mentions", "weight": 0.5} for a, b in zip(ids, targets, strict=True)
    ]
    return {"nodes": [{"id": id_, "type": "note", "content": f"A note, {id_}."} for id_ in ids], "edges": edges}


def _updated(batch: dict[str, Any]) -> dict[str, Any]:
    nodes = [node | {"content": f"{node['content']} Once more."} for node in batch["nodes"]]
    return {"nodes": nodes, "edges": [edge | {"weight": 0.6} for edge in batch["edges"]]}


def _count_injects(server: ServerProcess, ground: BenchmarkGraph, clients: int, seconds: float) -> int:
    """Return the number of injects that several clients make in a time."""
    counts, end = list[int](), time.monotonic() + seconds

    def write(number: int) -> None:
        choice, done = random.Random(number), 0
        with RawConnection(server.port) as wire:
            while time.monotonic() < end:
                wire.ask(request("POST", f"{API}/inject", _batch(f"of-{clients}-{number}-{done}", choice, ground)))
                done += 1
        counts.append(done)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def loading(ground: BenchmarkGraph, *, quick: bool) -> BenchmarkReport:
    """Compare an import and an export of all rows with SQLite, and the engine's lag with a bare engine's."""
    report, total = BenchmarkReport(f"loading: {ground.title}"), ground.total
    (_, near), (_, bare) = ground.loaded, ground.engine
    parts = list(graphs.file_blocks(ground.file))
    for label, indexes in (("without indexes", False), ("with indexes", True)):
        with serving(HASHING | {"indexes": indexes}) as (server, client), RawConnection(server.port) as wire:
            answer: dict[str, Any] = {}
            first = clock(lambda client=client, answer=answer: answer.update(client.upload(STORE, parts))) / 1000
            created = answer["nodes_created"] + answer["edges_created"]
            report.compare(
                f"import, {label}", f"{total / first:,.0f} rows/s", f"SQLite {total / near:,.0f}", near / first
            )
            report.check(f"created, {label}", f"{created:,}", created == total)
            behind = _seconds_until_caught_up(wire, len(ground.rows.edges))
            report.compare(f"engine caught up, {label}", f"{behind:.2f} s later", f"bare {bare:.2f} s", behind / bare)
            exported = wire.ask(request("GET", f"{API}/export"))
            lines = exported.body.count(b"\n")
            report.fact(f"export, {label}", f"{total / exported.milliseconds * 1000:,.0f} rows/s")
            report.check(f"exported, {label}", f"{lines:,}", lines == total)
            if not quick:
                client.settle(STORE)
    return report


def _seconds_until_caught_up(wire: RawConnection, edges: int) -> float:
    """Return the seconds until a statement finds all edges."""
    start = time.perf_counter()
    while _until_answered(wire, request("POST", f"{API}/cypher", {"query": COUNT})).json()["rows"] != [[edges]]:
        time.sleep(0.05)
    return time.perf_counter() - start


def _until_answered(wire: RawConnection, ready: bytes) -> Any:
    """Repeat a request while the answer is 503 or 504."""
    end = time.monotonic() + 600
    while (answer := wire.send(ready)).status != 200:
        if answer.status not in (503, 504) or time.monotonic() > end:
            raise ServerFailed(f"{ready[:80]!r}: {answer.status} {answer.body[:300]!r}")
        time.sleep(0.01)
    return answer


def statements(ground: BenchmarkGraph, *, quick: bool) -> BenchmarkReport:
    """Compare Cypher right after a write, which it must see, with the same statement in the bare engine."""
    report, (engine, _) = BenchmarkReport(f"statements: {ground.title}"), ground.engine
    with (
        serving(HASHING, ground.copy("asked")) as (server, _),
        RawConnection(server.port) as wire,
        RawConnection(server.port) as other,
    ):
        missed, took = 0, list[float]()
        for number in range(100 if quick else 2_000):
            node = {"id": f"own-{number % 50}", "type": "note", "content": f"written {number}"}
            wire.ask(request("POST", f"{API}/inject", {"nodes": [node]}))
            answer = other.ask(_point(node["id"]))
            took.append(answer.milliseconds)
            missed += answer.json()["rows"] != [[node["id"], node["content"]]]
        report.check("own writes that Cypher did not see", f"{missed} of {len(took):,}", missed == 0)
        report.fact("a statement right after a write", str(times(took)))
        served, bare = list[float](), list[float]()
        for id_ in ground.ids(20, 200):
            served.append(wire.ask(_point(id_)).milliseconds)
            bare.append(clock(lambda id_=id_: engine.run(POINT, {"id": id_})))
        quiet, b, h = times(served), times(bare).p50, _health(wire)
        _at_most(report, "point query", quiet.p50, str(quiet), 1.3 * (b + h), f"1.3 (/health {h:.3g} + bare {b:.3g})")
    return report


def _point(id_: str) -> bytes:
    return request("POST", f"{API}/cypher", {"query": POINT, "params": {"id": id_}})


def search(ground: BenchmarkGraph, *, quick: bool) -> BenchmarkReport:
    """Compare hybrid search with embedding the query alone, with hashed vectors."""
    report, choice = BenchmarkReport(f"hybrid search: {ground.title}"), random.Random(SEED)
    embedder = load_embedder(settings.load_settings(HASHING))
    queries = [" ".join(node["content"].split()[:6]) for node in choice.sample(ground.rows.nodes, 40 if quick else 200)]
    with serving(HASHING, ground.copy("searched")) as (server, _), RawConnection(server.port) as wire:
        served = times([_time_search(wire, query) for query in [*queries[:10], *queries]][10:])
        e = times([clock(lambda query=query: embedder.embed([query])) for query in queries]).p50
        _at_most(report, "hybrid", served.p50, str(served), e + 5, f"embedding {e:.3g} + 5 ms")
    embedder.close()
    return report


def _time_search(wire: RawConnection, query: str) -> float:
    return wire.ask(request("POST", f"{API}/search", {"query": query, "mode": "hybrid"})).milliseconds


def killed(ground: BenchmarkGraph, *, quick: bool) -> BenchmarkReport:
    """Measure the first answer, traversal and statement after kills in the middle of writes."""
    report, data, [start] = BenchmarkReport(f"after a kill: {ground.title}"), ground.copy("killed"), ground.ids(1, 1)
    found = [_kill_and_restart(data, start, number) for number in range(3 if quick else 8)]
    answered, walked, asked = (max(column) for column in zip(*found[1:], strict=True))
    report.fact("start to the first answer, longest", f"{answered:.2f} s")
    report.at_most("first answer to a walk of depth 3, longest", f"{walked:.2f} s", walked, 1, "s")
    report.fact("first answer to the first statement, longest", f"{asked:.2f} s")
    return report


def _kill_and_restart(data: Path, start: str, number: int) -> tuple[float, float, float]:
    began = time.monotonic()
    server = ServerProcess(data, HASHING)
    with RawConnection(server.port) as wire:
        wire.ask(HEALTH)
        answered = time.monotonic()
        _until_answered(wire, request("POST", f"{API}/traverse", {"start_id": start, "depth": 3}))
        walked = time.monotonic()
        _until_answered(wire, request("POST", f"{API}/cypher", {"query": COUNT}))
        asked = time.monotonic()
        for each in range(20):
            node = {"id": f"killed-{number}-{each}", "type": "note", "content": "written just before a kill"}
            wire.ask(request("POST", f"{API}/inject", {"nodes": [node]}))
    server.kill()
    return answered - began, walked - answered, asked - answered


def _health(wire: RawConnection) -> float:
    return times([wire.ask(HEALTH).milliseconds for _ in range(100)]).p50


def _at_most(report: BenchmarkReport, what: str, value: float, figure: str, limit: float, base: str) -> None:
    """Add a figure with a limit that was measured in the same run."""
    report.compare(what, figure, f"{base} = {limit:.3g} ms", value / limit, ("≤", 1.0))


PARTS: dict[str, Callable[..., BenchmarkReport]] = {
    "walks": walks,
    "writes": writes,
    "loading": loading,
    "statements": statements,
    "search": search,
    "killed": killed,
}


def run_parts_on_graph(
    name: str,
    description: str,
    parts: Mapping[str, Callable[..., BenchmarkReport]],
    arguments: Sequence[str],
    prepare: Callable[[BenchmarkGraph], Sequence[object]] = lambda _: (),
) -> int:
    """Print a table for each chosen part, called with the graph and what ``prepare`` returns for it.

    Return 1 when an exact check failed.
    """
    options = parser(name, description.split("\n", 1)[0], parts)
    options.add_argument("--graph", choices=["wordnet", "dense"], default="wordnet", help="default: %(default)s")
    given = options.parse_args(arguments)
    with scratch_folder() as folder:
        try:
            ground = BenchmarkGraph(folder, given.graph, quick=given.quick)
        except wordnet.Unavailable as reason:
            print(f"skipped: {reason}")
            return 0
        return run_parts(parts, given, ground, *prepare(ground))


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part. Return 1 when an exact check failed."""
    return run_parts_on_graph("rows", __doc__ or "", PARTS, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
