"""Filtered, hybrid and concurrent searches over the glosses of WordNet, next to PostgreSQL with pgvector.

Vectors are hashed: embedding costs next to nothing, and what remains is the cost of searching. PostgreSQL is measured
if `BENCH_POSTGRES` is the URL of an empty database whose server has pgvector, and psycopg is installed.
"""

from __future__ import annotations

import importlib
import os
import random
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench import graphs, wordnet
from bench.measure import BenchmarkReport, DurationPercentiles, clock, times
from bench.postgres import POSTGRES_URL_VARIABLE, get_postgres_url
from bench.server import HASHING, ServerProcess, serving
from bench.wire import RawConnection, request
from kgserve.embedding.embedder import load_embedder
from kgserve.platform import settings

STORE = "glosses"
SEED = 20_060_925
LIMIT = 20
POOL = 100
QUICK_NODES = 12_000
CLIENTS = (1, 8)
CLOCK_TICK_MILLISECONDS = 1000 / os.sysconf("SC_CLK_TCK")
MODES = ("keyword", "semantic", "hybrid")
TYPES = ("noun", "verb", "adverb")


class GlossQuery(NamedTuple):
    """Some words of a gloss, and their vector."""

    words: str
    vector: NDArray[np.float32]


class SearchCost(NamedTuple):
    """Durations of searches, and the server's processor time for each, in milliseconds."""

    wall: DurationPercentiles
    processor: float


def speed(*, quick: bool) -> BenchmarkReport:
    """Measure every mode without and with a filter by type, and hybrid searches of several clients at once."""
    rows, choice = graphs.read(wordnet.exchange_file()), random.Random(SEED)
    rows = graphs.subgraph_rows(rows, QUICK_NODES) if quick else rows
    nodes = rows.nodes
    embedder = load_embedder(settings.load_settings(HASHING))
    words = [" ".join(node["content"].split()[:6]) for node in choice.sample(nodes, 40 if quick else 200)]
    queries = [*map(GlossQuery, words, embedder.embed(words))]
    report = BenchmarkReport(f"search of {len(nodes):,} glosses over HTTP, processor time of the server in brackets")
    with serving(HASHING) as (server, client):
        client.upload(STORE, graphs.blocks([*nodes, *rows.edges]))
        client.settle(STORE)
        with _postgres(nodes, embedder.embed) as peer:
            _compare_filters(report, server, queries, peer)
            _compare_clients(report, server, queries, 1.0 if quick else 4.0)
            if peer is None:
                report.notes.append(
                    f"PostgreSQL is not measured: {POSTGRES_URL_VARIABLE} is not set, or psycopg is missing"
                )
    embedder.close()
    return report


Peer = Callable[[str, str | None, GlossQuery], float]


def _compare_filters(
    report: BenchmarkReport, server: ServerProcess, queries: Sequence[GlossQuery], peer: Peer | None
) -> None:
    with RawConnection(server.port) as wire:
        for mode in MODES:
            free = _cost(wire, server, queries, mode, None)
            report.fact(mode, f"{free.wall} [{free.processor:.2f}]{_peer_figure(peer, mode, None, queries)}")
            for kind in TYPES:
                cost = _cost(wire, server, queries, mode, kind)
                figure = f"{cost.wall} [{cost.processor:.2f}]{_peer_figure(peer, mode, kind, queries)}"
                base = f"{mode} without a filter"
                report.compare(f"{mode}, type {kind}", figure, base, cost.wall.p50 / free.wall.p50, ("≤", 1.3))


def _cost(
    wire: RawConnection, server: ServerProcess, queries: Sequence[GlossQuery], mode: str, kind: str | None
) -> SearchCost:
    asked = [_search_request(query, mode, kind) for query in queries]
    for each in asked[:20]:
        wire.ask(each)
    before = _processor_milliseconds(server)
    wall = times([wire.ask(each).milliseconds for each in asked])
    return SearchCost(wall, (_processor_milliseconds(server) - before) / len(asked))


def _search_request(query: GlossQuery, mode: str, kind: str | None) -> bytes:
    wanted = {"query": query.words, "mode": mode, "limit": LIMIT} | ({} if kind is None else {"types": [kind]})
    return request("POST", f"/api/memory/{STORE}/search", wanted)


def _processor_milliseconds(server: ServerProcess) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * CLOCK_TICK_MILLISECONDS


def _compare_clients(
    report: BenchmarkReport, server: ServerProcess, queries: Sequence[GlossQuery], seconds: float
) -> None:
    rates = {clients: _rate(server, queries, clients, seconds) for clients in CLIENTS}
    one, many = rates[CLIENTS[0]], rates[CLIENTS[-1]]
    report.compare(
        f"hybrid, {CLIENTS[-1]} clients", f"{many:.0f} a second", f"one client: {one:.0f}", many / one, ("≥", 1.7)
    )


def _rate(server: ServerProcess, queries: Sequence[GlossQuery], clients: int, seconds: float) -> float:
    asked = [_search_request(query, "hybrid", None) for query in queries]
    counts = [0] * clients
    end = time.monotonic() + seconds

    def ask(client: int) -> None:
        with RawConnection(server.port) as wire:
            while time.monotonic() < end:
                wire.ask(asked[(client + counts[client] * clients) % len(asked)])
                counts[client] += 1

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def _peer_figure(peer: Peer | None, mode: str, kind: str | None, queries: Sequence[GlossQuery]) -> str:
    if peer is None:
        return ""
    for query in queries[:20]:
        peer(mode, kind, query)
    return f"; PostgreSQL {times([peer(mode, kind, query) for query in queries])}"


_CREATE = """
CREATE EXTENSION IF NOT EXISTS vector;
DROP TABLE IF EXISTS glosses;
CREATE TABLE glosses (id text PRIMARY KEY, type text, content text, words tsvector, meaning vector(384))
"""
_INDEX = """
UPDATE glosses SET words = to_tsvector('english', content);
CREATE INDEX ON glosses USING gin (words);
CREATE INDEX ON glosses (type);
SET maintenance_work_mem = '1GB';
CREATE INDEX ON glosses USING hnsw (meaning vector_ip_ops);
SET hnsw.ef_search = 200;
SET hnsw.iterative_scan = relaxed_order;
"""
_BY_WORDS = """
SELECT id, type, content, ts_rank(words, asked) AS score FROM glosses, to_tsquery('english', %(words)s) AS asked
WHERE words @@ asked AND (%(type)s::text IS NULL OR type = %(type)s) ORDER BY score DESC LIMIT %(limit)s
"""
_BY_MEANING = """
SELECT id, type, content, -(meaning <#> %(vector)s::vector) AS score FROM glosses
WHERE %(type)s::text IS NULL OR type = %(type)s ORDER BY meaning <#> %(vector)s::vector LIMIT %(limit)s
"""
_BOTH = f"""
WITH by_words AS ({_BY_WORDS}), by_meaning AS ({_BY_MEANING})
SELECT id, type, content, .4 * coalesce(w.score, 0) + .6 * coalesce(m.score, 0) AS score
FROM by_words AS w FULL JOIN by_meaning AS m USING (id, type, content) ORDER BY score DESC LIMIT %(page)s
"""
_STATEMENTS = {"keyword": _BY_WORDS, "semantic": _BY_MEANING, "hybrid": _BOTH}


@contextmanager
def _postgres(
    nodes: Sequence[dict[str, Any]], embed: Callable[[Sequence[str]], NDArray[np.float32]]
) -> Generator[Peer | None]:
    """Yield a function that times a search by PostgreSQL, None without one."""
    try:
        psycopg = importlib.import_module("psycopg")  # not a dependency
    except ImportError:
        yield None
        return
    if not (url := get_postgres_url()):
        yield None
        return
    with psycopg.connect(url, autocommit=True, prepare_threshold=1) as connection:
        connection.execute(_CREATE)
        with connection.cursor().copy("COPY glosses (id, type, content, meaning) FROM STDIN") as copy:
            for node, vector in zip(nodes, embed([node["content"] for node in nodes]), strict=True):
                copy.write_row((node["id"], node["type"], node["content"], _literal(vector)))
        connection.execute(_INDEX)
        connection.execute("VACUUM ANALYZE glosses")

        def ask(mode: str, kind: str | None, query: GlossQuery) -> float:
            limit = POOL if mode == "hybrid" else LIMIT
            given = {
                "words": " | ".join(word for word in query.words.split() if word.isalnum()),
                "vector": _literal(query.vector),
                "type": kind,
                "limit": limit,
                "page": LIMIT,
            }
            return clock(lambda: connection.execute(_STATEMENTS[mode], given).fetchall())

        yield ask


def _literal(vector: NDArray[np.float32]) -> str:
    return f"[{','.join(map(str, vector.tolist()))}]"
