"""Search: how much of the evidence it finds in real conversations, and how fast it is on WordNet.

`python -m bench.search [--only quality|speed] [--quick]`. Quality is asked of the service with its default settings.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import graphs, locomo, wordnet
from bench.measure import Report, Times, clock, parser, run_parts, times
from bench.server import HASHING, Client, scratch_folder, serving
from kgserve.embedding.embedder import Embedder, load_embedder
from kgserve.platform import settings
from kgserve.projections.vector.index import VectorIndex

DEPTHS = (5, 10, 20)
MIN_RECALL = 0.64
"""At 10, of the default mode."""
SEED = 20_060_925
QUERIES = 200
NEIGHBOURS = 10
EMBEDDED_NODES = 20_000
MODES: dict[str, dict[str, object]] = {
    "default": {},
    "hybrid, rrf": {"mode": "hybrid", "fusion": "rrf"},
    "hybrid without relations": {"mode": "hybrid", "neighbours": False},
    "keyword": {"mode": "keyword"},
    "semantic": {"mode": "semantic"},
    "graph": {"mode": "graph"},
}
# Measured with nothing tuned: tantivy's en_stem with OR, all-MiniLM-L6-v2, 20 hits of each fused.
UNTUNED = {"keyword": 0.576, "semantic": 0.392, "hybrid without relations": 0.565}

Recalls = list[tuple[float, ...]]


def quality(path: Path, *, quick: bool) -> Report:
    """Recall of all modes. Raises FileNotFoundError without conversations."""
    conversations = locomo.read(path)[: 1 if quick else None]
    total = sum(len(conversation.questions) for conversation in conversations)
    report = Report(f"search: {total} questions to {len(conversations)} conversations, recall@5/10/20")
    with serving({}) as (_, client):
        for conversation in conversations:
            client.upload(conversation.name, conversation.lines())
            client.settle(conversation.name)
        degraded = _search(client, conversations[0].name, {"query": "hello"})["degraded"]
        for name, body in MODES.items():
            recalls, took = _recalls(client, conversations, body)
            means = [statistics.fmean(column) for column in zip(*recalls, strict=True)]
            figure = f"{'/'.join(f'{mean:.3f}' for mean in means)}  {took}"
            base = MIN_RECALL if name == "default" else UNTUNED.get(name)
            if base is None or degraded:
                report.fact(name, figure)
            else:
                mark = ("≥", 1.0) if name == "default" else None
                report.compare(name, figure, f"recall@10 of {base}", means[1] / base, mark)
    report.notes.append("the baselines are fixed figures, not of this run: the mark, and untuned BM25 and MiniLM")
    if degraded:
        report.notes.append("no embedding model is prepared: meaning is judged by letters alone, and no mark applies")
    return report


def _recalls(
    client: Client, conversations: Sequence[locomo.Conversation], body: Mapping[str, object]
) -> tuple[Recalls, Times]:
    recalls, took = Recalls(), list[float]()
    for conversation in conversations:
        for question in conversation.questions:
            hits: list[Any] = []
            asked = {"query": question.question, "limit": max(DEPTHS), **body}
            ask = lambda asked=asked, hits=hits: hits.extend(_search(client, conversation.name, asked)["hits"])  # noqa: B023, E731
            took.append(clock(ask))
            found = [hit["node"]["id"] for hit in hits]
            recalls.append(tuple(locomo.recall(found, question.evidence, depth) for depth in DEPTHS))
    return recalls, times(took)


def speed(_path: Path, *, quick: bool) -> Report:
    """Latency on WordNet, and recall of the approximate index. Raises wordnet.Unavailable."""
    rows = graphs.read(wordnet.exchange_file())
    rows = graphs.part(rows, 5_000) if quick else rows
    report, choice = Report("search: speed on WordNet, over HTTP"), random.Random(SEED)
    queries = [_query(node["content"], choice) for node in choice.sample(rows.nodes, QUERIES)]
    with serving(HASHING) as (_, client):
        _load(client, rows)
        took = {mode: _latency(client, queries, mode) for mode in ("keyword", "hybrid")}
    report.at_most(f"keyword, {len(rows.nodes):,} nodes", str(took["keyword"]), took["keyword"].p50, 3, "ms")
    report.fact(f"hybrid with letters for meaning, {len(rows.nodes):,} nodes", str(took["hybrid"]))
    embedder = load_embedder(settings.load())
    try:
        if embedder.degraded:
            report.notes.append("no embedding model is prepared: semantic search was not measured")
        else:
            _semantic(report, graphs.part(rows, 1_000 if quick else EMBEDDED_NODES), embedder, choice)
    finally:
        embedder.close()
    return report


def _semantic(report: Report, rows: graphs.Rows, embedder: Embedder, choice: random.Random) -> None:
    queries = [_query(node["content"], choice) for node in choice.sample(rows.nodes, QUERIES)]
    with serving({}) as (_, client):
        _load(client, rows)
        # Before and after, so that both meet the same machine.
        embedding = [clock(lambda query=query: embedder.embed([query])) for query in queries]
        served = _latency(client, queries, "semantic")
        embedding += [clock(lambda query=query: embedder.embed([query])) for query in queries]
    alone = times(embedding)
    base = f"embedding the query {alone}"
    report.compare(f"semantic, {len(rows.nodes):,} nodes", str(served), base, served.p50 / alone.p50, ("≤", 1.5))
    vectors = embedder.embed([node["content"] for node in rows.nodes])
    _approximate(report, vectors, embedder.embed(queries))


def _approximate(report: Report, vectors: NDArray[np.float32], queries: NDArray[np.float32]) -> None:
    ids = [str(number) for number in range(len(vectors))]
    with scratch_folder() as folder:
        index = VectorIndex(folder / "approximate", vectors.shape[1], "bench", exact_up_to=0)
        index.put(ids, ["synset"] * len(ids), vectors)
        shares: list[float] = []
        for query in queries:
            best = {ids[place] for place in np.argsort(-(vectors @ query), kind="stable")[:NEIGHBOURS]}
            shares.append(len(best & {hit.id for hit in index.search(query, NEIGHBOURS)}) / NEIGHBOURS)
        near = times([clock(lambda query=query: index.search(query, NEIGHBOURS)) for query in queries])
    share = statistics.fmean(shares)
    report.compare(f"hnswlib recall@{NEIGHBOURS}", f"{share:.4f}, {near}", "exact search", share, ("≥", 0.98))


def _query(content: str, choice: random.Random) -> str:
    """Return some words in a row from a text, as a person would remember them."""
    words = content.split()
    start = choice.randrange(max(1, len(words) - 5))
    return " ".join(words[start : start + 6])


def _latency(client: Client, queries: Sequence[str], mode: str) -> Times:
    asked = [{"query": query, "mode": mode} for query in [*queries[:10], *queries]]
    return times([clock(lambda body=body: _search(client, "wordnet", body)) for body in asked][10:])


def _load(client: Client, rows: graphs.Rows) -> None:
    client.upload("wordnet", graphs.blocks([*rows.nodes, *rows.edges]))
    client.settle("wordnet")


def _search(client: Client, store: str, body: Mapping[str, object]) -> Any:
    return client.call("POST", f"/api/memory/{store}/search", body)


PARTS: dict[str, Callable[..., Report]] = {"quality": quality, "speed": speed}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part; one without its data is skipped with a reason."""
    options = parser("search", (__doc__ or "").split("\n", 1)[0], PARTS)
    options.add_argument("--conversations", type=Path, default=locomo.FILE, help="file of conversations (%(default)s)")
    given = options.parse_args(arguments)
    return run_parts(PARTS, given, given.conversations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
