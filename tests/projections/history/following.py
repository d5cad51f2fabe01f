"""Stores with a history, and shortcuts to query it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kgserve.projections.history_follower import HistoryProjection, HistoryWorker
from kgserve.storage.model.node_edge_rows import EdgeKey
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.stores.writing import NAME, PATIENCE, settings

SMALL_JOURNAL: dict[str, Any] = {"journal_segment_mb": 1, "journal_retention_mb": 0}


class StoreWithHistory:
    """One store with its history, in a pool of its own."""

    def __init__(self, pool: StorePool, historian: HistoryWorker, store: OpenStore) -> None:
        self.pool = pool
        self.historian = historian
        self.store = store

    @property
    def follower(self) -> HistoryProjection:
        return self.historian.of(self.store)

    def caught_up(self) -> None:
        """Wait until the history has applied the newest commit."""
        assert self.follower.wait(self.store.state.sequence, PATIENCE), self.follower.error

    def versions(self, node_id: str) -> list[tuple[int, int, int | None]]:
        """Return version, first and last commit of each state of a node, newest first."""
        states = self.follower.look(lambda history: history.node_states(node_id, 1 << 60, 1000))
        return [(state.row.version, state.first, state.last) for state in states]

    def oldest(self) -> int:
        return self.follower.look(lambda history: history.oldest)

    def ids(self, at: int) -> list[str]:
        """Return the nodes as of a commit."""
        return [state.row.id for state in self.follower.look(lambda history: history.nodes_at(at, None, None, 10_000))]

    def keys(self, at: int) -> list[EdgeKey]:
        """Return the edges as of a commit."""
        return [state.row.key for state in self.follower.look(lambda history: history.edges_at(at, ("", "", ""), 1000))]


@contextmanager
def kept(data: Path, **options: Any) -> Generator[StoreWithHistory]:
    """Yield a store with a history; everything is closed at the end, as the server does."""
    with closing(HistoryWorker()) as historian, StorePool(settings(data, **options)) as pool:
        pool.companions.append(historian)
        with pool.lease(NAME, create=True) as store:
            yield StoreWithHistory(pool, historian, store)


def node(node_id: str, content: str, node_type: str | None = "t", attributes: str | None = None) -> WriteBatch:
    """Return an upsert of one node."""
    return WriteBatch(nodes=[NodeUpsert(0, node_id, node_type, content, attributes)])
