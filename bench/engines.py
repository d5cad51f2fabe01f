"""Both engines on the same 100,000 nodes and 200,000 edges: `python -m bench.engines`.

Every figure is that of a process as the server begins it, ladybug's beside kuzu's of the same run. No marks are set:
they are what a choice between the two goes by.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import msgspec

from bench.measure import Report, clock, rounded, times
from kgserve.cypher.guard import examine
from kgserve.platform.settings import EngineName
from kgserve.projections.cypher_engine.engine.engine import Engine, EngineOptions, build
from kgserve.projections.cypher_engine.engine.process import nursery
from kgserve.projections.cypher_engine.engine.protocol import Change, FileOptions
from kgserve.storage.journal.fold import write_rows
from kgserve.storage.model.change import NetChange, StoreState
from kgserve.storage.model.digest import measure
from kgserve.storage.model.fields import Width
from kgserve.storage.model.rows import EdgeRow, NodeRow

NODES, EDGES = 100_000, 200_000
POINTS = 2_000
COMMITS = 200
QUERIES = {
    "one node by its id": "MATCH (e:Entity {id: 'n7'}) RETURN e.id, e.content",
    "the edges of a node": "MATCH (e:Entity {id: 'n7'})-[r]->(o:Entity) RETURN o.id, r.relation_type, r.weight",
    "three hops": "MATCH (e:Entity {id: 'n7'})-[r* SHORTEST 1..3]->(o:Entity) RETURN o.id, length(r)",
    "counted by type": "MATCH (e:Entity) RETURN e.type, count(*)",
    "100,000 rows": "MATCH (e:Entity) RETURN e.id, e.type, e.content, e.version",
}
Figures = dict[str, tuple[float, str]]


def rows() -> tuple[list[NodeRow], list[EdgeRow], StoreState]:
    """The rows of the larger store, and the state they come to."""
    choice = random.Random(0)
    nodes = [NodeRow(f"n{n}", f"t{n % 20}", "some words that say something", "{}", 1, 1, 0, 0) for n in range(NODES)]
    keys = {(f"n{choice.randrange(NODES)}", f"n{choice.randrange(NODES)}", "r") for _ in range(EDGES)}
    edges = [EdgeRow(*key, 1.0, "{}", 1, 1) for key in sorted(keys)]
    return nodes, edges, StoreState(1, 1, measure(nodes, edges)[0], len(nodes), len(edges))


def figures(engine: EngineName, folder: Path, source: Path, state: StoreState) -> Figures:
    """Milliseconds and mebibytes of an engine, by what was measured."""
    options, path = EngineOptions(FileOptions(), engine=engine, readers=1), folder / "graph"
    nursery(engine).prepare()
    nursery(engine).process(0).close()
    shutil.copytree(source, folder / "rows")
    started = time.perf_counter()
    opened = build(path, folder / "rows", state, options)
    found: Figures = {"building the file": (1000 * (time.perf_counter() - started), "ms")}
    found["size of the file"] = (sum(opened.bytes()) / (1 << 20), "MiB")
    for what, query in QUERIES.items():
        repetitions = POINTS if "one" in what or "edges" in what else 20
        found[what] = (asked(opened, query, repetitions), "ms")
    found["a commit of a node and an edge"] = (committed(opened, state), "ms")
    found["memory after that"] = (opened.resident / (1 << 20), "MiB")
    opened.retire()
    found["opening it again, first answer"] = (clock(lambda: _opened(path, options)), "ms")
    small = build(folder / "small", Change(None, *_few()), StoreState(1, 1, 0, 10, 0), options)
    asked(small, QUERIES["one node by its id"], 10)
    found["memory of a small store's process"] = (small.resident / (1 << 20), "MiB")
    small.retire()
    return found


def asked(engine: Engine, query: str, repetitions: int) -> float:
    """The median time that a statement takes, with all its rows."""
    statement = examine(query, {}, writable=False)

    def ask() -> None:
        with session.reading(statement) as cursor:
            for _part in cursor.parts():
                pass

    with engine.reader(0) as session:
        return times([clock(ask) for _ in range(repetitions)]).p50


def committed(engine: Engine, state: StoreState) -> float:
    """The median time that following a small commit takes."""
    spent: list[float] = []
    for number in range(1, COMMITS + 1):
        net = NetChange()
        net.nodes_created = {f"new{number}": NodeRow(f"new{number}", "t", "new", "{}", 1, 1, 0, 0)}
        key = (f"new{number}", f"n{number}", "r")
        net.edges_created = {key: EdgeRow(*key, 1.0, "{}", 1, 1)}
        after = msgspec.structs.replace(
            state, sequence=1 + number, nodes=state.nodes + number, edges=state.edges + number
        )
        spent.append(clock(lambda net=net, after=after: engine.apply(net, after)))
    return times(spent).p50


def _opened(path: Path, options: EngineOptions) -> None:
    engine = Engine(path, options)
    asked(engine, QUERIES["one node by its id"], 1)
    engine.retire()


def _few() -> list[Any]:
    return [[NodeRow(f"n{n}", "t", "", "{}", 1, 1, 0, 0) for n in range(10)], *([] for _ in range(6))]


def run() -> Report:
    """Measure both."""
    nodes, edges, state = rows()
    report = Report(f"engines, with {NODES:,} nodes and {len(edges):,} edges")
    found: dict[EngineName, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-") as folder:
        source = Path(folder) / "source"
        source.mkdir()
        write_rows([nodes], [edges], state, source, width=Width.PLAIN)
        for engine in get_args(EngineName):
            (place := Path(folder) / engine).mkdir()
            found[engine] = figures(engine, place, source, state)
    for what, (value, unit) in found["ladybug"].items():
        baseline = found["kuzu"][what][0]
        report.compare(what, f"{rounded(value)} {unit}", f"{rounded(baseline)} {unit}", value / baseline)
    return report


def main() -> int:
    """Measure and print."""
    run().show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
