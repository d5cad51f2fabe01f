"""Stores whose history is kept, and short ways to ask it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kgserve.projections.history_follower import Historian, HistoryFollower
from kgserve.storage.model.batch import NodePut, WriteBatch
from kgserve.storage.model.rows import EdgeKey
from kgserve.stores.pool import StorePool
from kgserve.stores.store import OpenStore
from tests.stores.writing import NAME, PATIENCE, settings

SMALL_JOURNAL: dict[str, Any] = {"journal_segment_mb": 1, "journal_retention_mb": 0}


class Kept:
    """One store with its history, in a pool of its own."""

    def __init__(self, pool: StorePool, historian: Historian, store: OpenStore) -> None:
        self.pool = pool
        self.historian = historian
        self.store = store

    @property
    def follower(self) -> HistoryFollower:
        return self.historian.of(self.store)

    def caught_up(self) -> None:
        """Wait until the history has seen the newest commit."""
        assert self.follower.wait(self.store.state.sequence, PATIENCE), self.follower.error

    def versions(self, node_id: str) -> list[tuple[int, int, int | None]]:
        """Version, first and last commit of each state of a node, newest first."""
        states = self.follower.look(lambda history: history.node_states(node_id, 1 << 60, 1000))
        return [(state.row.version, state.first, state.last) for state in states]

    def oldest(self) -> int:
        return self.follower.look(lambda history: history.oldest)

    def ids(self, at: int) -> list[str]:
        """The nodes as of a commit."""
        return [state.row.id for state in self.follower.look(lambda history: history.nodes_at(at, None, None, 10_000))]

    def keys(self, at: int) -> list[EdgeKey]:
        """The edges as of a commit."""
        return [state.row.key for state in self.follower.look(lambda history: history.edges_at(at, ("", "", ""), 1000))]


@contextmanager
def kept(data: Path, **options: Any) -> Generator[Kept]:
    """A store with a history; all is closed at the end, as the server closes it."""
    with closing(Historian()) as historian, StorePool(settings(data, **options)) as pool:
        pool.companions.append(historian)
        with pool.lease(NAME, create=True) as store:
            yield Kept(pool, historian, store)


def node(node_id: str, content: str, node_type: str | None = "t", attributes: str | None = None) -> WriteBatch:
    """An upsert of one node."""
    return WriteBatch(nodes=[NodePut(0, node_id, node_type, content, attributes)])
