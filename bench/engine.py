"""What the engine's processes cost, and keep from the server: `python -m bench.engine [--only PART …] [--quick]`.

Parts: ``bombs``, statements that want too much, while others ask; ``struck``, processes that are killed, crash or stop,
while others ask; ``stores``, many small ones asked in turn; ``beside``, writes and walks while statements go on;
``written``, statements that write to WordNet; ``cost``, statements in a process of their own beside the same in this
one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.engine_beside import beside
from bench.engine_bombs import bombs
from bench.engine_server import COUNT, asked, processes
from bench.engine_stores import stores
from bench.engine_struck import struck
from bench.engine_written import written
from bench.measure import Report, Times, rounded, times
from bench.server import Server, end_when_told
from kgserve.cypher.guard import examine
from kgserve.projections.cypher_engine.driver import chosen, database, statement
from kgserve.projections.cypher_engine.driver.session import DriverSession
from kgserve.projections.cypher_engine.engine.engine import EngineOptions, build
from kgserve.projections.cypher_engine.engine.process import nursery, own_memory
from kgserve.projections.cypher_engine.engine.protocol import Change, FileOptions
from kgserve.storage.model.change import StoreState
from kgserve.storage.model.rows import NodeRow


def cost(*, quick: bool) -> Report:
    """Statements in a process of their own, beside the same in this one."""
    report = Report("the cost of a process")
    repetitions = 200 if quick else 2_000
    nodes = [NodeRow(f"n{n}", "t", "some words", "{}", 1, 1, 0, 0) for n in range(100_000)]
    point = examine("MATCH (e:Entity {id: $id}) RETURN e.id, e.content", {"id": "n7"}, writable=False)
    every = examine("MATCH (e:Entity) RETURN e.id, e.type, e.content, e.version", {}, writable=False)
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-") as folder:
        path, options = Path(folder) / "graph.kuzu", EngineOptions(FileOptions(), engine=chosen.engine, readers=1)
        nursery(chosen.engine).prepare()
        engine = build(path, Change(None, nodes, [], [], [], [], [], []), StoreState(1, 1, 0, len(nodes), 0), options)
        with engine.reader(0) as session:

            def asked_there(what: Any) -> None:
                with session.reading(what) as cursor:
                    for _part in cursor.parts():
                        pass

            there = _timed(lambda: asked_there(point), repetitions)
            streamed = min(_timed(lambda: asked_there(every), 5).p50 for _ in range(2))
        engine.retire()
        opened, writer = database.open_for_service(path, FileOptions())
        here_session = DriverSession(opened)
        encode = msgspec.json.Encoder().encode

        def asked_here(what: Any) -> None:
            with statement.reading(here_session, what) as cursor:
                while rows := cursor.take(500):
                    _ = b"\n".join(map(encode, rows))

        here = _timed(lambda: asked_here(point), repetitions)
        whole = _timed(lambda: asked_here(every), 5).p50
        here_session.close()
        writer.close()
        opened.close()
        limit = f"in one process {rounded(here.p50)} + 0.3"
        report.within("point query: p50", there.fine, there.p50, here.p50 + 0.3, limit)
        rate, baseline = (f"{len(nodes) / each:,.0f} rows/ms" for each in (streamed, whole))
        report.compare("100,000 rows", rate, baseline, whole / streamed, ("≥", 0.8))
        begun = _timed(lambda: nursery(chosen.engine).process(4).close(), 50)
        report.fact("a process begun", begun.fine)
    _cold(report, 5 if quick else 20)
    return report


def _timed(call: Callable[[], object], count: int) -> Times:
    call()
    found: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        found.append(1000 * (time.perf_counter() - started))
    return times(found)


def _cold(report: Report, count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder:
        settings = {"indexes": False, "max_open_stores": 2 * count, "engine_processes": count}
        with Server(Path(folder), settings) as server, server.client() as client:
            nodes = [{"id": f"n{n}", "type": "t", "content": "some words"} for n in range(20)]
            edges = [{"from": f"n{n}", "to": f"n{n + 1}", "relation_type": "r"} for n in range(19)]
            for number in range(count):
                client.call("POST", f"/api/memory/s{number}/inject", {"nodes": nodes, "edges": edges})
            time.sleep(2)
            made = times([1000 * asked(client, f"s{number}", COUNT)[2] for number in range(count)])
        with Server(Path(folder), settings) as server, server.client() as client:
            time.sleep(2)
            found = times([1000 * asked(client, f"s{number}", COUNT)[2] for number in range(count)])
            memory = sum(map(own_memory, processes(server.pid))) / count / (1 << 20)
    report.at_most("first statement of a small store, file made", made.fine, made.p50, 150, "ms")
    report.at_most("first statement of a small store, file there", found.fine, found.p50, 150, "ms")
    report.fact("a small store's process", f"{memory:.1f} MiB of its own")


PARTS: dict[str, Callable[..., Report]] = {
    "bombs": bombs,
    "struck": struck,
    "stores": stores,
    "beside": beside,
    "written": written,
    "cost": cost,
}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part. Exit code 1 when an exact check failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer statements and rounds")
    options = parser.parse_args(arguments)
    end_when_told()
    wrong = False
    for name in options.only or PARTS:
        report = PARTS[name](quick=options.quick)
        report.show()
        wrong = wrong or report.wrong
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
