"""What indexes cost: import with and without them, and embedding in the service against the bare library.

`python -m bench.indexing`. Import is measured in alternating pairs, for the machine's mood changes.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fastembed import TextEmbedding

from bench import wordnet
from bench.measure import Report
from bench.prepared import STORE, Workspace, blocks
from bench.server import Client, Server
from bench.single import run_alone
from kgserve.embedding.embedder import LocalEmbedder, load_embedder
from kgserve.platform import settings

PAIRS = 3
EMBEDDED = 4_000
SEED = 20_061_001
WAIT_SECONDS = 600.0


def run(work: Workspace) -> Report:
    """Measure both."""
    report = Report(f"indexing: WordNet, {wordnet.NODE_COUNT:,} nodes, and {EMBEDDED:,} of its texts embedded")
    _import(report, work)
    _embedding(report)
    return report


def _import(report: Report, work: Workspace) -> None:
    without, with_indexes = [], []
    for number in range(PAIRS):
        without.append(_seconds(work, f"without-{number}", indexes=False))
        with_indexes.append(_seconds(work, f"with-{number}", indexes=True))
    off, on = statistics.median(without), statistics.median(with_indexes)
    rows = wordnet.NODE_COUNT + wordnet.EDGE_COUNT
    report.compare(
        "import, indexes on",
        f"{rows / on:,.0f} rows/s",
        f"indexes off {rows / off:,.0f} rows/s",
        off / on,
        ("≥", 0.85),
    )
    report.notes.append(
        f"import: medians of {PAIRS} pairs; {_listed(with_indexes)} s with, {_listed(without)} s without"
    )


def _seconds(work: Workspace, name: str, *, indexes: bool) -> float:
    with Server(work.folder / name, {"indexes": indexes}) as server, server.client() as client:
        start = time.perf_counter()
        client.upload(STORE, blocks(work.exchange_file))
        return time.perf_counter() - start


def _embedding(report: Report) -> None:
    embedder = load_embedder(settings.load())
    if not isinstance(embedder, LocalEmbedder):
        report.notes.append("no embedding model is prepared: embedding was not measured")
        return
    nodes = random.Random(SEED).sample(wordnet.read(wordnet.folder()).nodes, EMBEDDED)
    texts = [node.content for node in nodes]
    bare = _bare(embedder, texts)
    served = _served(nodes)
    bare = min(bare, _bare(embedder, texts))
    report.compare(
        "embedding and indexing in the service",
        f"{EMBEDDED / served:,.0f} texts/s",
        f"fastembed alone {EMBEDDED / bare:,.0f} texts/s",
        bare / served,
        ("≥", 0.8),
    )


def _served(nodes: list[wordnet.Synset]) -> float:
    """Seconds from a finished import to the moment at which both indexes have seen it; the model is loaded before."""
    with (
        tempfile.TemporaryDirectory(prefix="kgserve-bench-") as folder,
        Server(Path(folder)) as server,
        server.client() as client,
    ):
        client.upload("first", wordnet.lines(wordnet.Graph(nodes[:200], [])))
        _indexed(client, "first")
        client.upload("texts", wordnet.lines(wordnet.Graph(nodes, [])))
        start = time.perf_counter()
        _indexed(client, "texts")
        return time.perf_counter() - start


def _bare(embedder: LocalEmbedder, texts: Sequence[str]) -> float:
    """Seconds that fastembed takes, at its best: as many threads, texts of like length together."""
    chosen = settings.load()
    model = TextEmbedding(
        embedder.manifest.name, specific_model_path=str(embedder.folder), threads=chosen.embedding_threads
    )
    list(model.embed(texts[:200], batch_size=chosen.embedding_batch))
    start = time.perf_counter()
    count = sum(1 for _ in model.embed(sorted(texts, key=len), batch_size=chosen.embedding_batch))
    assert count == len(texts)
    return time.perf_counter() - start


def _indexed(client: Client, store: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while True:
        stats = client.call("GET", f"/api/memory/{store}/stats")
        if all(index["sequence"] >= stats["sequence"] for index in stats["indexes"]):
            return
        assert time.monotonic() < end, stats["indexes"]
        time.sleep(0.1)


def _listed(seconds: Sequence[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in seconds)


if __name__ == "__main__":
    sys.exit(run_alone(run))
