"""Worker that maintains the text indexes of all open stores: keyword, vector and past indexes."""

from __future__ import annotations

from typing import Any

import structlog
from typing_extensions import override

from kgserve.embedding.cache import QueryVectorCache
from kgserve.embedding.embedder import Embedder, MeteredEmbedder
from kgserve.errors import KgserveError
from kgserve.platform.metrics.app_metrics_and_request_context import EmbeddingCounters
from kgserve.projections.base import StoreFollowedByProjections
from kgserve.projections.text_index_base import TextIndexProjectionBase
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.projections.update_scheduler import ProjectionThread
from kgserve.projections.workers import StoreProjectionWorker

log = structlog.get_logger()

# Searches in the past wait as long as necessary; no other caller should pay for these indexes.
PAST_INDEX_DELAY_SECONDS = 1.0


class TextIndexWorker(StoreProjectionWorker[StoreFollowedByProjections, CurrentAndPastTextIndexes]):
    """Worker that indexes every store while it is open."""

    of_copies = True

    def __init__(self, embedder: Embedder, patient: Embedder | None = None) -> None:
        """Initialize with the ``embedder`` for queries.

        ``patient`` is an embedder of the same model for indexing, whose calls may block for long.
        """
        self.embedding = EmbeddingCounters()
        self.embedder = MeteredEmbedder(embedder, self.embedding)
        self.queries = QueryVectorCache(self.embedder)
        self._patient = self.embedder if patient is None else MeteredEmbedder(patient, self.embedding)
        # True if a thread is still running after `close`: the process must then end without waiting for native threads.
        self.left_behind = False
        self._keyword = ProjectionThread("keyword-indexer")
        self._vector = ProjectionThread("vector-indexer")
        self._past = ProjectionThread("past-indexer", PAST_INDEX_DELAY_SECONDS)
        super().__init__(self._keyword, self._vector, self._past)

    def of(self, store: StoreFollowedByProjections) -> CurrentAndPastTextIndexes:
        """Return the indexes of an open store. Raises Unavailable if it has none."""
        return self._of(store, "the store is not indexed, because indexes are turned off or the store is closing")

    def reindex(self, store: StoreFollowedByProjections) -> None:
        """Schedule a rebuild of all indexes with the current model. Raises Conflict if the store has no index."""
        indexes = self.of(store)
        indexes.require()
        indexes.vector.change_model()
        for thread, follower in self._served(indexes):
            if not follower.is_enabled:
                continue
            follower.request_rebuild()
            thread.schedule.postpone_step(follower, 0.0)

    @override
    def close(self) -> None:
        ended = [thread.close() for thread in self._threads]
        self.left_behind = not all(ended)
        self.embedder.close()
        self._patient.close()

    @override
    def _begun(self, store: StoreFollowedByProjections) -> CurrentAndPastTextIndexes:
        return CurrentAndPastTextIndexes(store, self.queries, self._patient)

    @override
    def _served(
        self, own: CurrentAndPastTextIndexes
    ) -> tuple[tuple[ProjectionThread, TextIndexProjectionBase[Any]], ...]:
        return (
            (self._keyword, own.keyword),
            (self._vector, own.vector),
            (self._past, own.past_keyword),
            (self._past, own.past_vector),
        )

    @override
    def _let_go(self, own: CurrentAndPastTextIndexes) -> None:
        own.heads.clear()
        for thread, follower in self._served(own):
            about = {"store": follower.store.name, "index": follower.name}
            if not thread.forget(follower):
                # The process is about to end; the next opening detects the incomplete work and repeats it.
                log.warning("index_left_behind", **about)
                continue
            try:
                follower.close()
            except (KgserveError, OSError):
                log.exception("index_close_failed", **about)
