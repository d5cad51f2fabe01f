"""Search quality on real conversations, the recall of the approximate index, and the speed of filtered searches.

`python -m bench.search [--only quality|approximate|speed] [--quick]`. Quality uses the service's defaults.
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

from bench import graphs, locomo, search_speed, wordnet
from bench.measure import BenchmarkReport, DurationPercentiles, clock, parser, run_parts, times
from bench.server import BenchClient, scratch_folder, serving
from kgserve.embedding.embedder import load_embedder
from kgserve.platform import settings
from kgserve.projections.vector.vector_index import VectorIndex

DEPTHS = (5, 10, 20)
MIN_RECALL = 0.64
"""Target recall at 10 of the default mode."""
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
# Measured without tuning: tantivy's en_stem with OR, all-MiniLM-L6-v2, 20 fused hits of each.
UNTUNED = {"keyword": 0.576, "semantic": 0.392, "hybrid without relations": 0.565}

Recalls = list[tuple[float, ...]]


def quality(path: Path, *, quick: bool) -> BenchmarkReport:
    """Measure the recall of all modes. Raises FileNotFoundError without conversations."""
    conversations = locomo.read(path)[: 1 if quick else None]
    total = sum(len(conversation.questions) for conversation in conversations)
    report = BenchmarkReport(f"search: {total} questions to {len(conversations)} conversations, recall@5/10/20")
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
    report.notes.append("the baselines are fixed figures, not of this run: the target, and untuned BM25 and MiniLM")
    if degraded:
        report.notes.append("no embedding model is prepared: vectors are hashed, and no target applies")
    return report


def _recalls(
    client: BenchClient, conversations: Sequence[locomo.Conversation], body: Mapping[str, object]
) -> tuple[Recalls, DurationPercentiles]:
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


def approximate(_path: Path, *, quick: bool) -> BenchmarkReport:
    """Measure the recall of the approximate index on glosses of WordNet. Raises wordnet.Unavailable."""
    rows, choice = graphs.read(wordnet.exchange_file()), random.Random(SEED)
    texts = [node["content"] for node in rows.nodes[: 1_000 if quick else EMBEDDED_NODES]]
    queries = [_query(text, choice) for text in choice.sample(texts, QUERIES)]
    embedder = load_embedder(settings.load_settings())
    vectors, asked = embedder.embed(texts), embedder.embed(queries)
    report = BenchmarkReport(f"search: the approximate index of {len(texts):,} nodes")
    _approximate(report, vectors, asked)
    if embedder.degraded:
        report.notes.append("no embedding model is prepared: vectors are hashed")
    embedder.close()
    return report


def _approximate(report: BenchmarkReport, vectors: NDArray[np.float32], queries: NDArray[np.float32]) -> None:
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


def speed(_path: Path, *, quick: bool) -> BenchmarkReport:
    """Measure filtered, hybrid and concurrent searches. Raises wordnet.Unavailable."""
    return search_speed.speed(quick=quick)


def _query(content: str, choice: random.Random) -> str:
    """Return consecutive words of a text, as a person would remember them."""
    words = content.split()
    start = choice.randrange(max(1, len(words) - 5))
    return " ".join(words[start : start + 6])


def _search(client: BenchClient, store: str, body: Mapping[str, object]) -> Any:
    return client.call("POST", f"/api/memory/{store}/search", body)


PARTS: dict[str, Callable[..., BenchmarkReport]] = {"quality": quality, "approximate": approximate, "speed": speed}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part; parts without data are skipped with a reason."""
    options = parser("search", (__doc__ or "").split("\n", 1)[0], PARTS)
    options.add_argument("--conversations", type=Path, default=locomo.FILE, help="file of conversations (%(default)s)")
    given = options.parse_args(arguments)
    return run_parts(PARTS, given, given.conversations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
