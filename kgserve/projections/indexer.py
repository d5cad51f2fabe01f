"""The indexes of all open stores: for keywords, for vectors, and for those of the past, with a thread for each."""

from __future__ import annotations

from typing import Any

import structlog
from typing_extensions import override

from kgserve.embedding.cache import QueryVectors
from kgserve.embedding.embedder import Embedder, MeteredEmbedder
from kgserve.errors import KgserveError
from kgserve.platform.metrics.observation import Embedding
from kgserve.projections.background import StoreWorker
from kgserve.projections.base import FollowedStore
from kgserve.projections.index_base import StoreIndex
from kgserve.projections.indexes import Indexes
from kgserve.projections.schedule import FollowerThread

log = structlog.get_logger()

# Who looks back waits for as long as it takes; nobody else wants to pay for it.
PAST_INDEX_DELAY_SECONDS = 1.0


class Indexer(StoreWorker[FollowedStore, Indexes]):
    """A companion of the pool: indexes every store while it is open."""

    of_copies = True

    def __init__(self, embedder: Embedder, patient: Embedder | None = None) -> None:
        """Index with ``patient``, an embedder of the same model whose threads may wait; queries have ``embedder``."""
        self.embedding = Embedding()
        self.embedder = MeteredEmbedder(embedder, self.embedding)
        self.queries = QueryVectors(self.embedder)
        self._patient = self.embedder if patient is None else MeteredEmbedder(patient, self.embedding)
        # Whether a thread is still at work after `close`: the process then must end without waiting for native threads.
        self.left_behind = False
        self._keyword = FollowerThread("keyword-indexer")
        self._vector = FollowerThread("vector-indexer")
        self._past = FollowerThread("past-indexer", PAST_INDEX_DELAY_SECONDS)
        super().__init__(self._keyword, self._vector, self._past)

    def of(self, store: FollowedStore) -> Indexes:
        """The indexes of an open store. Raises Unavailable when it has none."""
        return self._of(store, "this store is not indexed: indexes are turned off, or it is just closing")

    def reindex(self, store: FollowedStore) -> None:
        """Make all indexes anew, with the present model. Raises Conflict where nothing is indexed."""
        indexes = self.of(store)
        indexes.require()
        indexes.vector.change_model()
        for thread, follower in self._served(indexes):
            if not follower.is_kept:
                continue
            follower.rebuild_wanted = True
            follower.error = None  # of the time before; who waits for the new index would take it for a present one
            thread.schedule.put_off(follower, 0.0)

    @override
    def close(self) -> None:
        """End the threads; the stores are closed already."""
        ended = [thread.close() for thread in self._threads]
        self.left_behind = not all(ended)
        self.embedder.close()
        self._patient.close()

    @override
    def _begun(self, store: FollowedStore) -> Indexes:
        return Indexes(store, self.queries, self._patient)

    @override
    def _served(self, own: Indexes) -> tuple[tuple[FollowerThread, StoreIndex[Any]], ...]:
        """All indexes of a store, each with the thread that serves it."""
        return (
            (self._keyword, own.keyword),
            (self._vector, own.vector),
            (self._past, own.past_keyword),
            (self._past, own.past_vector),
        )

    @override
    def _let_go(self, own: Indexes) -> None:
        """Stop following a store, and save its vectors."""
        own.heads.clear()
        for thread, follower in self._served(own):
            about = {"store": follower.store.name, "index": follower.name}
            if not thread.forget(follower):
                # The process is about to end: what is half done is noticed and made anew at the next opening.
                log.warning("index_left_behind", **about)
                continue
            try:
                follower.close()
            except (KgserveError, OSError):
                log.exception("index_close_failed", **about)
