"""Search: how much of the evidence it finds in real conversations, and how fast it is.

`python -m bench.search [--only quality|speed]`, both by default. Quality is asked of the service as it is by default.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench import locomo, wordnet
from bench.locomo import Conversation
from bench.measure import Report, Times, clock, times
from bench.server import Client, Server, ServerFailed
from kgserve.embedding.cache import EmbeddingCache, embed_cached
from kgserve.embedding.embedder import Embedder, load_embedder
from kgserve.platform import settings
from kgserve.projections.vector.index import VectorIndex

DEPTHS = (5, 10, 20)
RECALL_MARK = 0.64
RECALL_AIM = 0.70
SEED = 20_060_925
QUERIES = 200
NEIGHBOURS = 10
SEMANTIC_NODES = 20_000
INDEX_SECONDS = 1800.0

MODES: dict[str, dict[str, object]] = {
    "default": {},
    "hybrid, rrf": {"mode": "hybrid", "fusion": "rrf"},
    "hybrid without relations": {"mode": "hybrid", "neighbours": False},
    "hybrid, rrf, without relations": {"mode": "hybrid", "fusion": "rrf", "neighbours": False},
    "keyword": {"mode": "keyword"},
    "semantic": {"mode": "semantic"},
    "graph": {"mode": "graph"},
}
# Measured with nothing tuned: tantivy's en_stem with OR, all-MiniLM-L6-v2, 20 hits of each fused.
UNTUNED = {
    "keyword": (0.489, 0.576, 0.650),
    "semantic": (0.309, 0.392, 0.490),
    "hybrid without relations": (0.447, 0.565, 0.669),
    "hybrid, rrf, without relations": (0.444, 0.544, 0.646),
}

Vectors = NDArray[np.float32]
Recalls = list[tuple[float, ...]]


class Asked(msgspec.Struct):
    """What one mode answered: recall at each of DEPTHS per question, by conversation, and how long each took."""

    recalls: dict[str, Recalls]
    milliseconds: list[float]

    @property
    def means(self) -> tuple[float, ...]:
        """Over the questions of all conversations."""
        return _means([one for recalls in self.recalls.values() for one in recalls])


def quality(path: Path) -> Report:
    """Recall of all modes. Raises OSError when the file cannot be read."""
    conversations = locomo.read(path)
    total = sum(len(conversation.questions) for conversation in conversations)
    report = Report(
        f"search: {total} questions to {len(conversations)} conversations, recall@{'/'.join(map(str, DEPTHS))}"
    )
    with _folder() as folder, Server(Path(folder)) as server, server.client() as client:
        for conversation in conversations:
            _load(client, conversation.name, conversation.lines())
        answers = {name: _ask_all(client, conversations, body) for name, body in MODES.items()}
        degraded = _search(client, conversations[0].name, {"query": "hello"})["degraded"]
    for name, asked in answers.items():
        _report_mode(report, name, asked)
    report.notes.append("the baselines of the modes are fixed figures, not of this run: untuned BM25 and MiniLM")
    if degraded:
        report.notes.append("no embedding model is prepared: meaning is judged by letters alone, and no mark applies")
        return report
    _judge(report, answers["default"])
    return report


def _judge(report: Report, asked: Asked) -> None:
    at10 = asked.means[DEPTHS.index(10)]
    report.compare(
        "default, recall@10",
        f"{at10:.3f}",
        f"the mark, {RECALL_MARK}",
        at10 / RECALL_MARK,
        ("≥", 1.0),
    )
    for name, recalls in asked.recalls.items():
        report.fact(f"  {name}, {len(recalls)} questions", _figures(_means(recalls)))
    report.notes.append(f"the aim is recall@10 of {RECALL_AIM}; no language model, default settings")


def _report_mode(report: Report, name: str, asked: Asked) -> None:
    figure = f"{_figures(asked.means)}  {times(asked.milliseconds)}"
    if name in UNTUNED:
        untuned = UNTUNED[name]
        report.compare(name, figure, _figures(untuned), asked.means[1] / untuned[1])
    else:
        report.fact(name, figure)


def _ask_all(client: Client, conversations: Iterable[Conversation], body: Mapping[str, object]) -> Asked:
    asked = Asked({}, [])
    for conversation in conversations:
        recalls = asked.recalls.setdefault(conversation.name, [])
        for question in conversation.questions:
            start = time.perf_counter()
            answer = _search(client, conversation.name, {"query": question.question, "limit": max(DEPTHS), **body})
            asked.milliseconds.append((time.perf_counter() - start) * 1000)
            found = [hit["node"]["id"] for hit in answer["hits"]]
            recalls.append(tuple(locomo.recall(found, question.evidence, depth) for depth in DEPTHS))
    return asked


def _means(recalls: Recalls) -> tuple[float, ...]:
    return tuple(statistics.fmean(column) for column in zip(*recalls, strict=True))


def _figures(values: Iterable[float]) -> str:
    return "/".join(f"{value:.3f}" for value in values)


def speed() -> Report:
    """Latency on WordNet, and recall of the approximate index. Raises wordnet.Unavailable."""
    graph = wordnet.read(wordnet.folder())
    nodes = graph.nodes
    report = Report("search: speed on WordNet, over HTTP")
    choice = random.Random(SEED)
    _keyword_speed(
        report, wordnet.lines(graph), [_query(node.content, choice) for node in choice.sample(nodes, QUERIES)]
    )
    some = choice.sample(nodes, SEMANTIC_NODES)
    embedder = load_embedder(settings.load())
    try:
        if embedder.degraded:
            report.notes.append("no embedding model is prepared: semantic search was not measured")
            return report
        _semantic_speed(report, graph, some, [_query(node.content, choice) for node in some[:QUERIES]], embedder)
    finally:
        embedder.close()
    return report


def _keyword_speed(report: Report, lines: Iterable[bytes], queries: Sequence[str]) -> None:
    # Words alone are asked for, so the vectors may come from the embedder that costs next to nothing.
    fast = {"embedding_provider": "hashing"}
    with _folder() as folder, Server(Path(folder), fast) as server, server.client() as client:
        _load(client, "wordnet", lines)
        took = _latency(client, "wordnet", queries, "keyword")
        mixed = _latency(client, "wordnet", queries, "hybrid")
    report.at_most(f"keyword, {wordnet.NODE_COUNT:,} entities", str(took), took.p50, 3, "ms")
    report.fact(f"hybrid with letters for meaning, {wordnet.NODE_COUNT:,} entities", str(mixed))


def _semantic_speed(
    report: Report, graph: wordnet.Graph, nodes: Sequence[wordnet.Synset], queries: Sequence[str], embedder: Embedder
) -> None:
    with _folder() as folder:
        with Server(Path(folder)) as server, server.client() as client:
            _load(client, "some", _part(graph, nodes))
            # Before and after, so that both meet the same machine.
            embedding = [clock(lambda query=query: embedder.embed([query])) for query in queries]
            served = _latency(client, "some", queries, "semantic")
            embedding += [clock(lambda query=query: embedder.embed([query])) for query in queries]
            mixed = _latency(client, "some", queries, "hybrid")
        alone = times(embedding)
        what, base = f"semantic, {len(nodes):,} entities", f"embedding the query {alone}"
        report.compare(what, str(served), base, served.p50 / alone.p50, ("≤", 1.5))
        report.fact(f"hybrid, {len(nodes):,} entities", str(mixed))
        # The server has embedded them all; what it keeps saves doing it again.
        cache = EmbeddingCache(Path(folder) / "some_memory" / "views" / "embeddings.sqlite")
        vectors = embed_cached(embedder, cache, [node.content for node in nodes])
        cache.close()
        _approximate_recall(report, [node.id for node in nodes], vectors, embedder.embed(list(queries)), Path(folder))


def _approximate_recall(report: Report, ids: list[str], vectors: Vectors, queries: Vectors, folder: Path) -> None:
    index = VectorIndex(folder / "approximate", vectors.shape[1], "bench", exact_up_to=0)
    index.put(ids, ["synset"] * len(ids), vectors)
    shares: list[float] = []
    for query in queries:
        best = {ids[place] for place in np.argsort(-(vectors @ query), kind="stable")[:NEIGHBOURS]}
        shares.append(len(best & {hit.id for hit in index.search(query, NEIGHBOURS)}) / NEIGHBOURS)
    share = statistics.fmean(shares)
    exact = [clock(lambda query=query: vectors @ query) for query in queries]
    near = [clock(lambda query=query: index.search(query, NEIGHBOURS)) for query in queries]
    report.compare(f"hnswlib recall@{NEIGHBOURS}", f"{share:.4f}", "exact search", share, ("≥", 0.98))
    report.fact("hnswlib", f"p50 {times(near).p50:.2f} ms; matrix product p50 {times(exact).p50:.2f} ms")


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True)


def _part(graph: wordnet.Graph, nodes: Sequence[wordnet.Synset]) -> Iterable[bytes]:
    """Some synsets and the pointers between them, in the exchange format."""
    ids = {node.id for node in nodes}
    edges = [edge for edge in graph.edges if edge.source in ids and edge.target in ids]
    return wordnet.lines(wordnet.Graph(list(nodes), edges))


def _query(content: str, choice: random.Random) -> str:
    """Some words in a row from a text, as a person would remember them."""
    words = content.split()
    start = choice.randrange(max(1, len(words) - 5))
    return " ".join(words[start : start + 6])


def _latency(client: Client, store: str, queries: Sequence[str], mode: str) -> Times:
    for query in queries[:10]:
        _search(client, store, {"query": query, "mode": mode})
    return times(
        [clock(lambda query=query: _search(client, store, {"query": query, "mode": mode})) for query in queries]
    )


def _load(client: Client, store: str, lines: Iterable[bytes]) -> None:
    """Import, and wait until both indexes have seen it."""
    sequence = client.upload(store, lines)["sequence"]
    end = time.monotonic() + INDEX_SECONDS
    while any(index["sequence"] < sequence for index in client.call("GET", f"/api/memory/{store}/stats")["indexes"]):
        if time.monotonic() > end:
            raise ServerFailed(f"the indexes of {store} have not come to sequence {sequence} in {INDEX_SECONDS:.0f} s")
        time.sleep(0.2)


def _search(client: Client, store: str, body: Mapping[str, object]) -> Any:
    return client.call("POST", f"/api/memory/{store}/search", body)


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when an exact check failed; 0 also when there is nothing to measure with, which is said."""
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__)
    parser.add_argument("--only", choices=["quality", "speed"], help="what to measure (default: both)")
    parser.add_argument("--conversations", type=Path, default=locomo.FILE, help="file of conversations (%(default)s)")
    options = parser.parse_args(arguments)
    parts = {options.only} if options.only else {"quality", "speed"}
    reports: list[Report] = []
    if "quality" in parts:
        if options.conversations.is_file():
            reports.append(quality(options.conversations))
            reports[-1].show()
        else:
            print(f"skipped: the file of conversations {options.conversations} is not there")
    if "speed" in parts:
        try:
            reports.append(speed())
            reports[-1].show()
        except wordnet.Unavailable as reason:
            print(f"skipped: {reason}")
    return int(any(report.wrong for report in reports))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
