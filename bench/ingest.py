"""WordNet through HTTP import and back by export, against the bare engine and against one MERGE per row."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import baseline
from bench.measure import Report
from bench.prepared import STORE, Workspace, blocks
from bench.server import Client, Server
from bench.single import run_alone
from bench.wordnet import EDGE_COUNT, NODE_COUNT

SAMPLE = 3_000
ROWS = NODE_COUNT + EDGE_COUNT
SETTLE_SECONDS = 60.0
STAMPS = ("created_at", "updated_at")


def run(work: Workspace) -> Report:
    """Measure; leaves WordNet loaded in the workspace."""
    report = Report(f"ingest: WordNet, {NODE_COUNT:,} nodes and {EDGE_COUNT:,} edges, over HTTP")
    bare = _best_load(work)
    with Server(work.folder / "again") as server, server.client() as client:
        again_seconds, _ = _import(client, work.exchange_file)
    with Server(work.data) as server, server.client() as client:
        first_seconds, first = _import(client, work.exchange_file)
        report.check("everything created", _counts(first), _created(first) == ROWS and first["ok"])
        best = min(again_seconds, first_seconds)
        _compare_with_bare(report, best, bare)
        _compare_with_merge(report, best, work)
        settle_seconds = settle(client, STORE)
        _second_import(report, client, work.exchange_file, best)
        start = time.perf_counter()
        exported = client.export(STORE)
        seconds = time.perf_counter() - start
        report.fact("export", f"{seconds:.2f} s, {ROWS / seconds:,.0f} rows/s")
        differences = compare(work.exchange_file, exported)
        report.check("export equals input", f"{differences or 'no'} differences", differences == 0)
        peak = server.mebibytes("VmHWM")
        report.at_most("peak memory of the server", f"{peak:,.0f} MiB", peak, 1536, "MiB")
        report.fact("resident at the end", f"{server.mebibytes('VmRSS'):,.0f} MiB")
        stats = client.call("GET", f"/api/memory/{STORE}/stats")
        sizes = {key: f"{stats[key] / 1e6:,.0f} MB" for key in ("journal_bytes", "engine_bytes", "engine_log_bytes")}
        report.fact("on disk", ", ".join(f"{key} {size}" for key, size in sizes.items()))
    report.notes.append(f"the second import started {settle_seconds:.1f} s after the first, when compaction was done")
    return report


def settle(client: Client, store: str) -> float:
    """Wait until the store has no compaction ahead, at most a minute: the engine's log is short or stays as it is."""
    start, last, since = time.monotonic(), -1, time.monotonic()
    while (now := time.monotonic()) - start < SETTLE_SECONDS:
        stats = client.call("GET", f"/api/memory/{store}/stats")
        state = (stats["engine_log_bytes"], stats["engine_bytes"], stats["compactions"])
        if state != last:
            last, since = state, now
        if stats["engine_log_bytes"] < 1 << 20 or now - since > 10:
            break
        time.sleep(0.2)
    return time.monotonic() - start


def compare(exchange_file: Path, exported: Iterable[dict[str, Any]]) -> int:
    """Rows that are missing, added or different, in ids, types, contents, attributes and edges."""
    wanted = baseline.read_rows(exchange_file)
    nodes = {node["id"]: (node["type"], node["content"], node["attributes"]) for node in wanted.nodes}
    edges: dict[tuple[str, str, str], tuple[float, dict[str, Any]]]
    edges = {(edge["from"], edge["to"], edge["relation_type"]): (1.0, {}) for edge in wanted.edges}
    differences = 0
    for line in exported:
        if line["kind"] == "node":
            differences += nodes.pop(line["id"], None) != (line["type"], line["content"], line["attributes"])
        else:
            key = (line["from"], line["to"], line["relation_type"])
            own = {
                name: value for name, value in line["attributes"].items() if name not in ("created_at", "updated_at")
            }
            differences += edges.pop(key, None) != (line["weight"], own)
    return differences + len(nodes) + len(edges)


def _import(client: Client, exchange_file: Path) -> tuple[float, dict[str, Any]]:
    start = time.perf_counter()
    answer = client.upload(STORE, blocks(exchange_file))
    return time.perf_counter() - start, answer


def _best_load(work: Workspace) -> dict[str, float]:
    file = str(work.exchange_file)
    again = baseline.measure("load", exchange_file=file, database=work.scratch("again.kuzu"))
    kept = baseline.measure("load", exchange_file=file, database=str(work.database))
    return min(again, kept, key=lambda figures: figures["seconds"])


def _compare_with_bare(report: Report, seconds: float, bare: dict[str, float]) -> None:
    figure = f"{seconds:.2f} s, {ROWS / seconds:,.0f} rows/s"
    base = f"bare engine {bare['seconds']:.2f} s, {ROWS / bare['seconds']:,.0f} rows/s"
    report.compare("import, new store", figure, base, seconds / bare["seconds"], ("≤", 3.0))
    report.notes.append(
        "bare engine: the decoded rows to Arrow tables and into a new database of this schema in one transaction,"
        f" pool {baseline.POOL_MB} MiB, {bare['transaction']:.2f} s of it the transaction; the better of two for both"
    )


def _compare_with_merge(report: Report, seconds: float, work: Workspace) -> None:
    for label, prepared in (("prepared once", True), ("as text", False)):
        figures = baseline.measure(
            "merge",
            exchange_file=str(work.exchange_file),
            database=work.scratch(f"merge-{prepared}.kuzu"),
            sample=SAMPLE,
            prepared=prepared,
        )
        whole = figures["per_node"] * NODE_COUNT + figures["per_edge"] * EDGE_COUNT
        base = f"MERGE {label} {ROWS / whole:,.0f} rows/s"
        report.compare("import, new store", f"{ROWS / seconds:,.0f} rows/s", base, whole / seconds, ("≥", 30.0))
    report.notes.append(
        f"MERGE: one statement per row, {SAMPLE:,} nodes and {figures['edges']:,.0f} edges of WordNet in one"
        " transaction of the bare engine, weighted to WordNet's share of edges"
    )


def _second_import(report: Report, client: Client, exchange_file: Path, first: float) -> None:
    before = client.call("GET", f"/api/memory/{STORE}/stats")
    seconds, answer = _import(client, exchange_file)
    after = client.call("GET", f"/api/memory/{STORE}/stats")
    unchanged = answer["nodes_unchanged"] + answer["edges_unchanged"]
    report.check("second import: unchanged", _counts(answer), unchanged == ROWS and _created(answer) == 0)
    written = {key: after[key] - before[key] for key in ("sequence", "journal_bytes")}
    report.check(
        "second import: written", ", ".join(f"{k} +{v}" for k, v in written.items()), not any(written.values())
    )
    figure, base = f"{seconds:.2f} s", f"import into a new store {first:.2f} s"
    report.compare("second import", figure, base, seconds / first, ("≤", 1.0))


def _created(answer: dict[str, Any]) -> int:
    return answer["nodes_created"] + answer["edges_created"]


def _counts(answer: dict[str, Any]) -> str:
    parts = [f"{answer[f'nodes_{what}']:,}+{answer[f'edges_{what}']:,} {what}" for what in ("created", "unchanged")]
    return ", ".join(parts)


if __name__ == "__main__":
    sys.exit(run_alone(run))
