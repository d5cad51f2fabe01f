"""Stores with real indexes, and embedders that fail, are slow, block, or use another model."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kgserve.embedding.embedder import Embedder, HashingEmbedder
from kgserve.errors import Unavailable
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.stores.writing import NAME, PATIENCE, settings


class OtherEmbedder(HashingEmbedder):
    """Embedder of another model."""

    model_id = "another-model"


class FailingEmbedder(HashingEmbedder):
    """Embedder that fails until it is repaired."""

    model_id = "fails-at-first"

    def __init__(self) -> None:
        self.broken = True
        self.asked = 0

    @override
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += 1
        if self.broken:
            raise Unavailable("the embedding service does not answer")
        return super().embed(texts)


class SlowEmbedder(HashingEmbedder):
    """Embedder that takes a while for each batch."""

    model_id = "slow"

    def __init__(self) -> None:
        self.started = threading.Event()

    @override
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.started.set()
        threading.Event().wait(0.1)
        return super().embed(texts)


class StuckEmbedder(HashingEmbedder):
    """Embedder that blocks until it is released."""

    model_id = "stuck"

    def __init__(self) -> None:
        self.asked = 0
        self.started = threading.Event()
        self.let_go = threading.Event()

    @override
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += 1
        self.started.set()
        self.let_go.wait(60)
        return super().embed(texts)


@contextmanager
def indexed(
    data: Path, embedder: Embedder | None = None, **options: Any
) -> Generator[tuple[StorePool, TextIndexWorker]]:
    """Yield a pool with an indexer; both are closed at the end, as the server does."""
    with (
        closing(TextIndexWorker(embedder or HashingEmbedder())) as indexer,
        StorePool(settings(data, **options)) as pool,
    ):
        pool.companions.append(indexer)
        yield pool, indexer


@contextmanager
def followed(
    data: Path, embedder: Embedder | None = None, **options: Any
) -> Generator[tuple[OpenStore, CurrentAndPastTextIndexes]]:
    """Yield one store and its indexes."""
    with indexed(data, embedder, **options) as (pool, indexer), pool.lease(NAME, create=True) as store:
        yield store, indexer.of(store)


def caught_up(store: OpenStore, indexes: CurrentAndPastTextIndexes) -> None:
    """Wait until both indexes have applied the newest commit."""
    assert indexes.wait(store.state.sequence, PATIENCE), (indexes.keyword.state(), indexes.vector.state())


def contents(
    indexes: CurrentAndPastTextIndexes, embedder: Embedder, query: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Return everything that both indexes find for a query, with comparable scores."""
    words = {hit.id: round(hit.score, 4) for hit in indexes.keyword.search(KeywordQuery(query), 10_000)}
    near = indexes.vector.search(embedder.embed([query])[0], 10_000)
    return words, {hit.id: round(hit.similarity, 4) for hit in near}
