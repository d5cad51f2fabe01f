"""Imports and exports against SQLite, how soon the engine has it all, and the rate on the way to a million rows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import baseline, graphs
from bench.measure import Report
from bench.prepared import STORE, blocks
from bench.rows.ground import API, FOLLOWED, WITHOUT_INDEXES, Ground, settle, walking
from bench.server import Client, Reply, Server, ServerFailed
from bench.wire import Wire, request

STEP = 100_000
CYPHER_COUNT = "MATCH ()-[r:RELATES_TO]->() RETURN count(*)"


def run(ground: Ground) -> Report:
    """Measure, in data folders of its own."""
    report = Report(f"loading: {ground.name}, {ground.total:,} rows, over HTTP")
    database, bare_rate = ground.database("loaded")
    database.close()
    file, target = str(ground.file), str(ground.folder / "loaded.kuzu")
    engine = baseline.measure("load", exchange_file=file, database=target)["transaction"]
    for label, settings in {"without indexes": WITHOUT_INDEXES, "with indexes": FOLLOWED}.items():
        with Server(ground.folder / f"loaded-{label[:5].strip()}", settings) as server:
            _load(report, server, ground, label, (bare_rate, engine))
            if settings is FOLLOWED:
                server.kill()
    _rise(report, ground)
    report.notes += [
        "SQLite: the decoded rows into an empty file with its indexes, one transaction, synced",
        "bare engine: Arrow tables into a new database in one transaction; caught up: a statement counts all edges",
    ]
    return report


def _load(report: Report, server: Server, ground: Ground, label: str, bare: tuple[float, float]) -> None:
    total, (bare_rate, engine) = ground.total, bare
    with server.client() as client, Wire(server.port) as wire:
        first, answer = _upload(client, ground.file)
        _readable(report, wire, ground, label)
        behind = _caught_up(client, len(ground.rows.edges))
        rate = total / first
        figure = f"{rate:,.0f} rows/s"
        report.compare(f"import, {label}", figure, f"SQLite {bare_rate:,.0f} rows/s", rate / bare_rate, ("≥", 0.28))
        created = answer["nodes_created"] + answer["edges_created"]
        report.check(f"created, {label}", f"{created:,}", created == total)
        what, base = f"engine caught up, {label}", f"bare engine {engine:.2f} s"
        report.compare(what, f"{behind:.2f} s after the answer", base, behind / engine, ("≤", 2.0))
        report.compare(f"{what}, import included", f"{first + behind:.2f} s", base, (first + behind) / engine)
        if not label.startswith("without"):
            return
        settle(client)
        second, answer = _upload(client, ground.file)
        report.compare("second import", f"{second:.2f} s", f"the first {first:.2f} s", second / first, ("≤", 0.5))
        unchanged = answer["nodes_unchanged"] + answer["edges_unchanged"]
        report.check("second import: unchanged", f"{unchanged:,}", unchanged == total)
        _export(report, wire, total)


def _upload(client: Client, file: Path) -> tuple[float, dict[str, Any]]:
    # Read before, so that the disk's part is not measured.
    return _send(client, list(blocks(file)))


def _send(client: Client, parts: Iterable[bytes]) -> tuple[float, dict[str, Any]]:
    start = time.perf_counter()
    answer = client.upload(STORE, parts)
    return time.perf_counter() - start, answer


def _readable(report: Report, wire: Wire, ground: Ground, label: str) -> None:
    """The last node and the last edge, at once after the import."""
    edge = ground.rows.edges[-1]
    answer = wire.ask(walking(edge["from"], 1))
    reached = {(each["from"], each["to"], each["relation_type"]) for each in answer.json()["edges"]}
    there = (edge["from"], edge["to"], edge["relation_type"]) in reached
    figure = f"{'there' if there else 'not there'}, {answer.milliseconds:.3g} ms"
    report.check(f"the last edge at once, {label}", figure, there)


def _caught_up(client: Client, edges: int) -> float:
    """Seconds until a statement finds all edges; it may be asked to come again meanwhile."""
    start = time.perf_counter()
    while True:
        path, body = f"{API}/cypher", b'{"query": "%s"}' % CYPHER_COUNT.encode()
        reply: Reply = client.send("POST", path, body)
        if reply.status == 200 and reply.json()["rows"] == [[edges]]:
            return time.perf_counter() - start
        if reply.status not in (200, 503, 504) or time.perf_counter() - start > 600:
            raise ServerFailed(f"cypher: {reply.status} {reply.body[:300]!r}, not {edges} edges")
        time.sleep(0.05)


def _export(report: Report, wire: Wire, total: int) -> None:
    answer = wire.ask(request("GET", f"{API}/export"))
    lines = answer.body.count(b"\n")
    report.check("exported lines", f"{lines:,}", lines == total)
    rate = total / answer.milliseconds * 1000
    report.compare("export", f"{rate:,.0f} rows/s", "200,000 rows/s", rate / 200_000, ("≥", 1.0))


def _rise(report: Report, ground: Ground) -> None:
    last = ground.rounds(3 * STEP, 10 * STEP)
    rates: list[float] = []
    with Server(ground.folder / "rising", WITHOUT_INDEXES) as server, server.client() as client:
        for rows in range(0, last, STEP):
            nodes = (rows // graphs.GROWN_ROWS, (rows + STEP) // graphs.GROWN_ROWS)
            parts = list(graphs.blocks(graphs.grown(*nodes)))
            rates.append(STEP / _send(client, parts)[0])
    shown = ", ".join(f"{rate / 1000:,.0f}" for rate in rates)
    report.fact(f"a rise to {last:,} rows, thousands of rows/s", shown)
    # The first is the smallest store's, the last two are the mean of what a large one does.
    late = sum(rates[-2:]) / 2
    report.compare(
        "rate of the last two parts", f"{late:,.0f} rows/s", f"first {rates[0]:,.0f}", late / rates[0], ("≥", 0.8)
    )
