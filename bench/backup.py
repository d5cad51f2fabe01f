"""What a backup costs those who write meanwhile, and whether what is restored is what was: `python -m bench.backup`.

Sixteen clients inject into WordNet while backup after backup is made, everything copied each time, and without any, in
alternating pairs. Then one client writes what a model follows, and three random commits are restored and compared.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench import clients, wordnet
from bench.batches import PATH as INJECT
from bench.batches import changed_batch, new_batch
from bench.measure import Report, Times, times
from bench.prepared import STORE, Workspace, blocks
from bench.server import Client, Server, ServerFailed
from bench.single import run_alone

CLIENTS = 16
SECONDS = 6.0
PAIRS = 4
COMMITS = 40
POINTS = 3
SEED = 20_061_205
API = f"/api/memory/{STORE}"

Rows = dict[Any, tuple[Any, ...]]


class Made(NamedTuple):
    """A backup: seconds that the command took, and its answer for the store."""

    seconds: float
    answer: dict[str, Any]


class Moment(NamedTuple):
    """What a store must hold: nodes by id and edges by key, each with its values and version."""

    nodes: Rows
    edges: Rows


def run(work: Workspace) -> Report:
    """Measure, in a data folder of its own."""
    report = Report(f"backup: WordNet while {CLIENTS} clients write")
    graph = wordnet.read(wordnet.folder())
    data = work.folder / "backed-up"
    folder = work.folder / "backup"
    options = {"indexes": False, "backup_dir": work.folder / "by-server", "rate_limit": 0, "shutdown_grace": 60}
    with Server(data, options) as server, server.client() as client:
        client.upload(STORE, blocks(work.exchange_file))
        for how in ("a command", "the server"):
            _beside_writers(report, server, folder, how)
        _increment(report, client, data, folder, graph)
        _points(report, client, data, folder, graph)
    _verified(report, folder)
    report.notes.append(f"medians of {PAIRS} alternating pairs of {SECONDS:g} s; everything is copied again and again")
    return report


def _beside_writers(report: Report, server: Server, folder: Path, how: str) -> None:
    alone: list[Times] = []
    beside: list[Times] = []
    made: list[Made] = []
    for _ in range(PAIRS):
        alone.append(times(clients.measure(server.port, CLIENTS, SECONDS).milliseconds))
        stop = threading.Event()
        backing = threading.Thread(target=_again_and_again, args=(server, folder, how, stop, made))
        backing.start()
        try:
            beside.append(times(clients.measure(server.port, CLIENTS, SECONDS).milliseconds))
        finally:
            stop.set()
            backing.join()
    without, during = (statistics.median(each.p95 for each in measured) for measured in (alone, beside))
    what = f"inject of {CLIENTS} clients, p95, backups by {how}"
    report.compare(what, f"{during:.1f} ms", f"without {without:.1f} ms", during / without, ("≤", 2.0))
    counts = [sum(each.count for each in measured) for measured in (alone, beside)]
    report.fact("injects in that time", f"{counts[1]:,}, without {counts[0]:,}")
    taken = [each.answer["took_ms"] / 1000 for each in made]
    size = made[-1].answer["bytes_copied"] / 1e6
    report.fact(f"a full backup by {how}", f"{statistics.median(taken):.2f} s for {size:,.0f} MB, {len(made)} made")


def _again_and_again(server: Server, folder: Path, how: str, stop: threading.Event, made: list[Made]) -> None:
    with server.client() as client:
        while not stop.is_set():
            start = time.perf_counter()
            if how == "the server":
                answer = client.call("POST", f"{API}/backup", {"full": True, "keep": 1})
            else:
                answer = _backup(server.data, folder, "--full", "--keep", "1")
            made.append(Made(time.perf_counter() - start, answer))


def _backup(data: Path, folder: Path, *options: str) -> dict[str, Any]:
    done = _kgserve("backup", STORE, "--to", str(folder), "--data", str(data), "--json", *options)
    return msgspec.json.decode(done)["stores"][0]


def _increment(report: Report, client: Client, data: Path, folder: Path, graph: wordnet.Graph) -> None:
    before = _backup(data, folder, "--full", "--keep", "1")
    body = msgspec.json.encode(new_batch("one-more", random.Random(SEED), graph))
    client.send("POST", INJECT, body)
    after = _backup(data, folder)
    share = after["bytes_copied"] / before["bytes_copied"]
    figure = f"{after['bytes_copied']:,} bytes in {after['took_ms']:.0f} ms"
    report.compare("a backup after 10 rows more", figure, f"all {before['bytes_copied']:,} bytes", share)


def _points(report: Report, client: Client, data: Path, folder: Path, graph: wordnet.Graph) -> None:
    choice = random.Random(SEED)
    wanted, commits = _written(client, data, folder, graph, choice)
    points = set(choice.sample([sequence for sequence, _ in commits], POINTS))
    for sequence, batch in commits:
        _follow(wanted, batch)
        if sequence in points:
            start = time.perf_counter()
            name, until = f"restored-{sequence}", str(sequence)
            _kgserve("restore", str(folder), "--data", str(data), "--store", STORE, "--as", name, "--until", until)
            seconds = time.perf_counter() - start
            found = _held(client, name)
            sizes = f"{len(found.nodes):,} nodes, {len(found.edges):,} edges, in {seconds:.1f} s"
            report.check(f"restored to sequence {sequence:,}", sizes, found == wanted)


def _written(
    client: Client, data: Path, folder: Path, graph: wordnet.Graph, choice: random.Random
) -> tuple[Moment, list[tuple[int, dict[str, Any]]]]:
    """Write, and back up every now and then: what the store held before, and each commit with its sequence."""
    before = _held(client, STORE)
    commits: list[tuple[int, dict[str, Any]]] = []
    for number in range(COMMITS):
        batch = changed_batch(choice, graph) if number % 2 else new_batch(f"kept-{number}", choice, graph)
        commits.append((client.call("POST", INJECT, batch)["sequence"], batch))
        if number % 8 == 7:
            _backup(data, folder)
    return before, commits


def _follow(rows: Moment, batch: dict[str, Any]) -> None:
    """Do to the model what a batch does to the store."""
    for node in batch["nodes"]:
        _put(rows.nodes, node["id"], (node["type"], node["content"]))
    for edge in batch["edges"]:
        _put(rows.edges, (edge["from"], edge["to"], edge["relation_type"]), (edge["weight"],))


def _put(rows: Rows, key: Any, values: tuple[Any, ...]) -> None:
    version = rows[key][-1] if key in rows else 0
    if version == 0 or rows[key][:-1] != values:
        rows[key] = (*values, version + 1)


def _held(client: Client, store: str) -> Moment:
    nodes: Rows = {}
    edges: Rows = {}
    for line in client.export(store):
        if line["kind"] == "node":
            nodes[line["id"]] = (line["type"], line["content"], line["version"])
        else:
            edges[line["from"], line["to"], line["relation_type"]] = (line["weight"], line["version"])
    return Moment(nodes, edges)


def _verified(report: Report, folder: Path) -> None:
    start = time.perf_counter()
    found = msgspec.json.decode(_kgserve("verify", str(folder), "--json"))[0]
    size = sum(base["bytes"] for base in found["bases"]) / 1e6
    report.check("verified", f"{size:,.0f} MB in {time.perf_counter() - start:.1f} s", found["ok"])


def _kgserve(*arguments: str) -> bytes:
    done = subprocess.run([sys.executable, "-m", "kgserve", *arguments], capture_output=True, check=False)
    if done.returncode:
        raise ServerFailed(f"kgserve {arguments[0]}: {done.returncode} {done.stderr.decode(errors='replace')[:500]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(run_alone(run))
