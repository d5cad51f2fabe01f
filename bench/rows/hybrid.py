"""Hybrid search against embedding the query alone: with letters for meaning over all, with the model over a part."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import graphs
from bench.measure import Report, clock, times
from bench.prepared import STORE, blocks
from bench.rows.ground import API, FOLLOWED, SEED, Ground, settle
from bench.server import Server
from bench.wire import Wire, request
from kgserve.embedding.embedder import Embedder, load_embedder
from kgserve.platform import settings

WORDS = 6
ALLOWED = 5.0
"""Milliseconds that all but embedding may take."""
MODEL_NODES = 20_000
QUICK_MODEL_NODES = 1_500


def run(ground: Ground) -> Report:
    """Measure; leaves the shared data folders as they are."""
    report = Report(f"hybrid search: {ground.name}, over HTTP")
    queries = _queries(ground)
    _measure(
        report, ground.copy(ground.followed(), "searched"), FOLLOWED, queries, f"letters, {len(ground.rows.nodes):,}"
    )
    local: dict[str, object] = {"embedding_provider": "local"}
    embedder = load_embedder(settings.load(local))
    embedder.close()
    if embedder.degraded:
        report.notes.append("no embedding model is prepared: search by meaning was not measured")
        return report
    some = graphs.part(ground.rows, ground.rounds(QUICK_MODEL_NODES, MODEL_NODES))
    file = graphs.write([*some.nodes, *some.edges], ground.folder / "some.ndjson")
    data = ground.folder / "embedded"
    with Server(data, local) as server, server.client() as client:
        client.upload(STORE, blocks(file))
        settle(client)
    _measure(report, data, local, queries, f"the model, {len(some.nodes):,}")
    report.notes.append(f"{len(queries)} queries of {WORDS} words in a row from contents; embedding before and after")
    return report


def _measure(report: Report, data: Path, chosen: Mapping[str, object], queries: Sequence[str], what: str) -> None:
    embedder = load_embedder(settings.load(chosen))
    with Server(data, chosen) as server, server.client() as client, Wire(server.port) as wire:
        settle(client)
        for query in queries[:10]:
            wire.ask(_ready(f"warm {query}"))
        alone = _embedding(embedder, queries)
        served = times([wire.ask(_ready(query)).milliseconds for query in queries])
        # Before and after, so that both meet the same machine.
        embedding = times([*alone, *_embedding(embedder, queries)])
    embedder.close()
    limit, base = embedding.p50 + ALLOWED, f"embedding {embedding.p50:.3g} + {ALLOWED:g} ms"
    report.within(f"hybrid, {what} nodes", served.fine, served.p50, limit, base)


def _embedding(embedder: Embedder, queries: Sequence[str]) -> list[float]:
    return [clock(lambda query=query: embedder.embed([query])) for query in queries]


def _ready(query: str) -> bytes:
    return request("POST", f"{API}/search", {"query": query, "mode": "hybrid"})


def _queries(ground: Ground) -> list[str]:
    """Some words in a row from contents, each query another, so that none is answered from what was kept."""
    choice, found = random.Random(SEED), dict[str, None]()
    count = ground.rounds(40, 200)
    while len(found) < count:
        words = choice.choice(ground.rows.nodes)["content"].split()
        start = choice.randrange(max(1, len(words) - WORDS + 1))
        found[" ".join(words[start : start + WORDS])] = None
    return list(found)
