"""Cypher right after a write, after a quiet second, and beside many writers: it sees all that was acknowledged."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

from bench import baseline, clients, floor
from bench.measure import Report, clock, times
from bench.rows.ground import API, FOLLOWED, Ground, lags
from bench.server import Client, Server
from bench.wire import Answer, Wire, request

POINT = "MATCH (n:Entity {id: $id}) RETURN n.id, n.content"
COUNT = "MATCH (n:Entity) RETURN count(*)"
READERS = 4
WRITERS = 32
ENGINE_POOL_MB = 512
QUIET = 1.0


def run(ground: Ground) -> Report:
    """Measure; works on a copy."""
    report = Report(f"statements: {ground.name}, {ground.total:,} rows, over HTTP")
    bare = ground.folder / "statements.kuzu"
    baseline.measure("load", exchange_file=str(ground.file), database=str(bare))
    data = ground.copy(ground.followed(), "asked")
    with Server(data, FOLLOWED) as server, ExitStack() as stack:
        client = stack.enter_context(server.client())
        wire = stack.enter_context(Wire(server.port))
        readers = [stack.enter_context(Wire(server.port)) for _ in range(READERS)]
        engine = baseline.Engine(bare, ENGINE_POOL_MB)
        _own_writes(report, wire, readers, ground.rounds(200, 10_000))
        _quiet(report, wire, readers[0], engine, ground)
        _beside_writers(report, server, client, readers[0], ground)
    report.notes.append(f"other connections: {READERS}, in turn; bare engine: the same text, parsed each time")
    return report


def _own_writes(report: Report, wire: Wire, readers: list[Wire], count: int) -> None:
    missed, wrote, asked = 0, list[float](), list[float]()
    for number in range(count):
        content = f"written {number}"
        node = {"id": f"own-{number % 1000}", "type": "note", "content": content}
        wrote.append(wire.ask(request("POST", f"{API}/inject", {"nodes": [node]})).milliseconds)
        answer = _ask(readers[number % READERS], node["id"])
        asked.append(answer.milliseconds)
        missed += answer.json()["rows"] != [[node["id"], content]]
    report.check("own writes that Cypher did not see", f"{missed} of {count:,}", missed == 0)
    report.fact("the write", times(wrote).fine)
    report.fact("the statement after it", times(asked).fine)
    report.fact("both together", times([one + other for one, other in zip(wrote, asked, strict=True)]).fine)


def _quiet(report: Report, wire: Wire, reader: Wire, engine: baseline.Engine, ground: Ground) -> None:
    served, bare, empty = list[float](), list[float](), list[float]()
    for number, id_ in enumerate(ground.ids(ground.rounds(5, 30))):
        wire.ask(request("POST", f"{API}/inject", {"nodes": [{"id": f"quiet-{number}", "type": "note"}]}))
        time.sleep(QUIET)
        served.append(_ask(reader, id_).milliseconds)
        # A second of rest lets caches go cold for everybody, so everybody gets one.
        time.sleep(QUIET)
        empty.append(floor.health(reader, 1))
        time.sleep(QUIET)
        bare.append(clock(lambda id_=id_: engine.run(POINT, {"id": id_})))
    h, took, alone = times(empty).p50, times(served), times(bare).p50
    base = f"1.3 (bare {alone:.3g} + h {h:.3g})"
    report.within("point query after a quiet second", took.fine, took.p50, 1.3 * (alone + h), base)


def _beside_writers(report: Report, server: Server, client: Client, reader: Wire, ground: Ground) -> None:
    over, taken, behind = threading.Event(), list[float](), list[dict[str, int]]()

    def ask() -> None:
        while not over.wait(0.1):
            taken.append(_ask(reader, "own-0").milliseconds)
            behind.append(lags(client))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        together = clients.measure(server.port, WRITERS, ground.rounds(4, 10), ground.file)
    finally:
        over.set()
        asking.join()
    report.fact(f"{WRITERS} writers", f"{together.rate:,.0f} injects/s, {together.failed} refused or failed")
    lag = times(taken)
    report.fact("a statement beside them: so far is the engine behind", f"{lag.fine}, longest {lag.longest:.3g} ms")
    most = {name: max(each.get(name, 0) for each in behind) for name in behind[-1]}
    report.fact("furthest behind, commits or texts", _shown(most))
    time.sleep(2.0)
    left = lags(client)
    report.fact("the same 2 s after the last write", _shown(left))
    if "engine_lag" in left:
        report.check("engine behind 2 s after the last write", f"{left['engine_lag']} commits", left["engine_lag"] == 0)
    _count(report, client, reader)


def _count(report: Report, client: Client, reader: Wire) -> None:
    nodes = client.call("GET", f"{API}/stats")["nodes"]
    answer = reader.ask(request("POST", f"{API}/cypher", {"query": COUNT}))
    counted = answer.json()["rows"][0][0]
    figure = f"{counted:,} nodes counted of {nodes:,}, {answer.milliseconds:.3g} ms"
    report.check("a statement 2 s after the last write", figure, counted == nodes)


def _ask(reader: Wire, id_: str) -> Answer:
    return reader.ask(request("POST", f"{API}/cypher", {"query": POINT, "params": {"id": id_}}))


def _shown(figures: dict[str, int]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in figures.items())
