"""What the engine's processes cost, and keep from the server: `python -m bench.engine [--only PART …] [--quick]`.

Parts: ``bombs``, statements that want too much, while others ask; ``struck``, processes that are killed, crash or stop,
while others ask; ``cost``, statements in a process of their own beside the same in this one.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from bench.measure import Report, Times, rounded, times
from bench.server import Client, Server, end_when_told
from bench.wire import Wire, request
from kgserve.cypher.guard import examine
from kgserve.engine.engine import EngineOptions, build
from kgserve.engine.process import nursery
from kgserve.engine.protocol import Change, FileOptions
from kgserve.model.change import StoreState
from kgserve.model.rows import NodeRow
from kgserve.worker import chosen, database, statement
from kgserve.worker.session import Session

STORE, OTHER = "bombed", "other"
NODES, CONTENT = 3_000, "abcdefghij" * 800
TIMEOUT = 5.0
BOUND = 1024
MORE, TWICE, HALF_MORE = 50.0, 2.0, 1.5
COUNT = "MATCH (e:Entity) RETURN count(*)"
SETTINGS: dict[str, object] = {"indexes": False, "query_timeout": TIMEOUT, "engine_memory_mb": BOUND}
BOMBS = (
    "MATCH (a:Entity {type:'t'}) RETURN map(regexp_extract_all(a.content,'.'),regexp_extract_all(a.content,'.'))",
    "MATCH (a:Entity) RETURN regexp_extract_all(a.content,'.')",
    "MATCH (a:Entity) RETURN list_sort(regexp_extract_all(a.content,'.'))",
    "MATCH (a:Entity) RETURN collect(regexp_extract_all(a.content,'.'))",
    "MATCH (a:Entity) RETURN regexp_replace(a.content,'(a+)+b','x','g')",
    "MATCH (a:Entity) WHERE a.content =~ '(a|b|ab)*c.*(a|b|ab)*d.*(a|b|ab)*z' RETURN count(*)",
    "MATCH (a:Entity) RETURN string_split(a.content,'')",
    "MATCH (a:Entity) RETURN list_distinct(string_split(a.content,'a'))",
    "MATCH (a:Entity),(b:Entity) RETURN a,b",
    "MATCH (a:Entity),(b:Entity),(c:Entity) RETURN a,b,c",
    "MATCH (a:Entity),(b:Entity),(c:Entity) RETURN a.id + b.id + c.id ORDER BY a.id",
    "MATCH (a:Entity),(b:Entity),(c:Entity) RETURN sum(a.version + b.version * c.version)",
    "MATCH (a:Entity),(b:Entity) RETURN collect(a.content + b.content)",
    "MATCH (a:Entity),(b:Entity) RETURN DISTINCT a.content + b.id",
    "MATCH (a:Entity),(b:Entity) WITH a.content + b.content AS x RETURN x + x + x + x + x + x + x ORDER BY x",
    "MATCH (a:Entity),(b:Entity) RETURN a.content + b.content AS x, count(*) ORDER BY x",
    "MATCH (a)-[r*1..20]->(b) RETURN count(*)",
    "MATCH p = (a)-[*1..15]->(b) RETURN p",
    "MATCH p = (a)-[* SHORTEST 1..20]->(b) RETURN count(p)",
    "MATCH p = (a)-[* ALL SHORTEST 1..20]->(b) RETURN p",
    "MATCH (a)-[*1..6]-(b) RETURN collect(b.content)",
    "MATCH (a)-->(b)-->(c)-->(d)-->(e)-->(f) RETURN count(*)",
    "MATCH (a)--(b)--(c)--(d)--(e) RETURN a, b, c, d, e",
    "UNWIND range(1,10000) AS i MATCH (a:Entity) RETURN collect(a.content)",
    "UNWIND range(1,10000) AS i MATCH (a:Entity),(b:Entity) RETURN sum(i * a.version * b.version)",
    "UNWIND range(1,5000) AS i UNWIND range(1,5000) AS j RETURN collect([i, j])",
    "UNWIND range(1,4000) AS i UNWIND range(1,4000) AS j RETURN i, collect(cast(j AS STRING))",
    "UNWIND range(1,3000) AS i UNWIND range(1,3000) AS j UNWIND range(1,3000) AS k RETURN count(i + j + k)",
    "UNWIND range(1,3000) AS i UNWIND range(1,3000) AS j RETURN i, j ORDER BY i * j",
    "UNWIND range(1,10000) AS i RETURN repeat('abcdefghij', 10000)",
    "UNWIND range(1,10000) AS i RETURN lpad('x', 10000, 'y') + rpad('x', 10000, 'y')",
    "MATCH (a:Entity) RETURN repeat(a.content, 10000)",
    "MATCH (a:Entity) WITH collect(a.content) AS all UNWIND all AS one RETURN one, all",
    "MATCH (a:Entity) WITH collect(a) AS all UNWIND all AS one UNWIND all AS two RETURN one, two",
    "MATCH (a:Entity) WITH collect(a.content) AS all RETURN list_concat(all, list_concat(all, list_concat(all, all)))",
    "MATCH (a:Entity) WITH collect(a.content) AS x MATCH (b:Entity) RETURN b.id, list_contains(x, b.content), x",
    "MATCH (a:Entity) RETURN cast(a.content AS INT64)",
    "MATCH (a:Entity) RETURN levenshtein(a.content, reverse(a.content))",
    "MATCH (a:Entity),(b:Entity) RETURN max(levenshtein(a.content, b.content))",
    "MATCH (a:Entity) RETURN sha256(a.content), md5(repeat(a.content, 100)), string_split(a.content, 'e')",
    "MATCH (a:Entity),(b:Entity) WHERE a.content CONTAINS b.id + b.content RETURN count(*)",
    "MATCH (a:Entity) OPTIONAL MATCH (a)-[*1..5]->(b) OPTIONAL MATCH (b)-[*1..5]->(c) RETURN a, b, c",
)


class Others:
    """Who asks beside: point queries of another store, and walks of the store that is bombed."""

    def __init__(self, server: Server) -> None:
        self._port = server.port
        query = request("POST", f"/api/memory/{OTHER}/cypher", {"query": "MATCH (e:Entity {id: 'n7'}) RETURN e.id"})
        walk = request("POST", f"/api/memory/{STORE}/traverse", {"start_id": "n7", "depth": 2})
        self._asked = {"a statement of another store": query, "a walk of the same store": walk}

    @contextmanager
    def asking(self) -> Generator[dict[str, list[float]]]:
        """Milliseconds of each kind while the block runs; the statement of the other store waits 10 ms each time."""
        stop = threading.Event()
        found: dict[str, list[float]] = {name: [] for name in self._asked}

        def ask(name: str) -> None:
            with Wire(self._port) as wire:
                while not stop.is_set():
                    found[name].append(wire.ask(self._asked[name]).milliseconds)
                    stop.wait(0.01)

        threads = [threading.Thread(target=ask, args=(name,)) for name in self._asked]
        for thread in threads:
            thread.start()
        try:
            yield found
        finally:
            stop.set()
            for thread in threads:
                thread.join()


class Watch:
    """The largest resident memory of the server and of each process that it has begun, in MiB, while a block runs."""

    def __init__(self, server: Server) -> None:
        self.server = self.process = 0.0
        self._pid = server.pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            self.server = max(self.server, resident(self._pid))
            self.process = max([self.process, *map(resident, processes(self._pid))])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def resident(number: int) -> float:
    """MiB of memory of a process's own; 0 when it has ended."""
    try:
        pages = Path(f"/proc/{number}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def processes(server: int) -> list[int]:
    """The engines' processes of a server: its nursery's children."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    return [child for nursery_ in parents.get(server, ()) for child in parents.get(nursery_, ())]


@contextmanager
def filled(settings: dict[str, object]) -> Generator[tuple[Server, Client]]:
    """A server with both stores, their engines open."""
    with (
        tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder,
        Server(Path(folder), settings) as server,
        server.client() as client,
    ):
        for store, content in ((STORE, CONTENT), (OTHER, "a few words")):
            client.upload(store, _lines(content))
            asked(client, store, COUNT)
        yield server, client


def _lines(content: str) -> Generator[bytes]:
    for number in range(NODES):
        node = {"kind": "node", "id": f"n{number}", "type": "t", "content": content}
        yield msgspec.json.encode(node) + b"\n"
    for number in range(NODES):
        for step in (1, 2, 3):
            edge = {"from": f"n{number}", "to": f"n{(number * 7 + step) % NODES}", "relation_type": "r"}
            yield msgspec.json.encode({"kind": "edge", **edge}) + b"\n"


def asked(client: Client, store: str, query: str) -> tuple[int, Any, float]:
    """Status, answer and seconds of a statement."""
    started = time.perf_counter()
    reply = client.send("POST", f"/api/memory/{store}/cypher", msgspec.json.encode({"query": query}))
    return reply.status, reply.json(), time.perf_counter() - started


def bombs(*, quick: bool) -> Report:
    """Statements of every kind that want too much."""
    report = Report(f"bombs: {NODES:,} nodes of {len(CONTENT):,} bytes, time limit {TIMEOUT:g} s, bound {BOUND} MiB")
    with filled(SETTINGS) as (server, client):
        others = Others(server)
        with others.asking() as before:
            time.sleep(3 if quick else 10)
        own, longest, largest, grown, outcomes = resident(server.pid), 0.0, 0.0, 0.0, dict[int, int]()
        meanwhile: dict[str, list[float]] = {}
        for bomb in BOMBS[::4] if quick else BOMBS:
            with Watch(server) as watch, others.asking() as found:
                status, answer, seconds = asked(client, STORE, bomb)
            for name, each in found.items():
                meanwhile.setdefault(name, []).extend(each)
            outcomes[status] = outcomes.get(status, 0) + 1
            longest, largest = max(longest, seconds), max(largest, watch.process)
            grown = max(grown, watch.server - own)
            shown = answer.get("detail", f"{answer.get('row_count')} rows")
            print(f"  {seconds:5.2f} s {watch.process:5.0f} MiB {status} {bomb[:60]} … {shown[:60]}", file=sys.stderr)
        report.fact("answers", ", ".join(f"{status}: {count}" for status, count in sorted(outcomes.items())))
        report.check("none is a defect", f"{outcomes.get(500, 0)} with 500", 500 not in outcomes)
        report.at_most("the server's own memory grew by", f"{grown:.0f} MiB", grown, MORE, "MiB")
        report.at_most("the largest process", f"{largest:.0f} MiB", largest, BOUND, "MiB")
        report.at_most("the longest statement", f"{longest:.2f} s", longest, TIMEOUT + 1, "s")
        _compared(report, before, meanwhile, TWICE)
        rows = [asked(client, each, COUNT)[1]["rows"] for each in (STORE, OTHER)]
        report.check("both stores answer", str(rows), rows == [[[NODES]]] * 2)
    return report


def _compared(report: Report, before: dict[str, list[float]], meanwhile: dict[str, list[float]], most: float) -> None:
    for name, each in before.items():
        alone, beside = times(each), times(meanwhile[name])
        report.compare(f"{name}: p95 beside", beside.fine, alone.fine, beside.p95 / alone.p95, ("≤", most))


def struck(*, quick: bool) -> Report:
    """Processes that end or stop while they read, follow and write."""
    rounds = 9 if quick else 100
    report = Report(f"struck: {rounds} blows to engines' processes")
    choice = random.Random(11)
    slow = "MATCH (a:Entity),(b:Entity),(c:Entity) RETURN sum(a.version + b.version + c.version)"
    set_ = "MATCH (e:Entity {id: 'n%d'}) SET e.content = 'at %d' RETURN e.id"
    with filled({**SETTINGS, "query_timeout": 10.0}) as (server, client):
        others = Others(server)
        with others.asking() as before:
            time.sleep(3 if quick else 10)
        back: dict[str, list[float]] = {"SIGSEGV": [], "SIGKILL": [], "SIGSTOP": []}
        acknowledged, statuses = dict[str, str](), dict[int, int]()
        with others.asking() as meanwhile:
            for number in range(rounds):
                blow = choice.choice((signal.SIGSEGV, signal.SIGKILL, signal.SIGSTOP))
                working = threading.Thread(target=_work, args=(server, choice.choice((slow, set_ % (9, 9))), statuses))
                working.start()
                node, content = f"w{number}", f"round {number}"
                written = [{"id": node, "type": "w", "content": content}]
                client.call("POST", f"/api/memory/{STORE}/inject", {"nodes": written})
                acknowledged[node] = content
                time.sleep(choice.random() * 0.3)
                hit = processes(server.pid)
                if hit:
                    os.kill(choice.choice(hit), blow)
                started = time.perf_counter()
                while asked(client, STORE, COUNT)[0] != 200:
                    time.sleep(0.02)
                back[blow.name].append(1000 * (time.perf_counter() - started))
                working.join()
        rows = asked(client, STORE, "MATCH (e:Entity {type: 'w'}) RETURN e.id, e.content")[1]["rows"]
        exported = {line["id"] for line in client.export(STORE) if line["kind"] == "node"}
        lost = acknowledged.items() - dict(rows).items() | acknowledged.keys() - exported
        report.check("acknowledged and lost", f"{len(lost)} of {len(acknowledged)}", not lost)
        shown = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
        report.fact("answers of statements beside", shown)
        for name, each in back.items():
            if each:
                longest, shown = max(each) / 1000, times(each).fine
                report.at_most(f"{name}: Cypher back after", f"{shown}, longest {longest:.2f} s", longest, 2, "s")
        _compared(report, before, meanwhile, HALF_MORE)
    return report


def _work(server: Server, query: str, statuses: dict[int, int]) -> None:
    with server.client() as client:
        mode = "write" if " SET " in query else "read"
        body = msgspec.json.encode({"query": query, "mode": mode, "timeout_ms": 2000})
        status = client.send("POST", f"/api/memory/{STORE}/cypher", body).status
    statuses[status] = statuses.get(status, 0) + 1


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
        here_session = Session(opened)
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
        settings = {"indexes": False, "max_open_stores": 2 * count}
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
            memory = sum(map(resident, processes(server.pid))) / count
    report.at_most("first statement of a small store, file made", made.fine, made.p50, 150, "ms")
    report.at_most("first statement of a small store, file there", found.fine, found.p50, 150, "ms")
    report.fact("a small store's process", f"{memory:.1f} MiB of its own")


PARTS: dict[str, Callable[..., Report]] = {"bombs": bombs, "struck": struck, "cost": cost}


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
