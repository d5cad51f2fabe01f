"""What a search looks at: the store as it is or as it was, in the world as it is or was."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from kgserve.embedding.cache import QueryVectors
from kgserve.ops.graphs import Graph, PastGraph, PresentGraph
from kgserve.ops.moments import Past
from kgserve.ops.validity import world_moment
from kgserve.store.store import Store
from kgserve.views.history import Historian
from kgserve.views.indexes import Indexes, IndexesAsOf


class Moment(msgspec.Struct, frozen=True):
    """When a searcher wants to look, as `Past` and RFC 3339 have it, and who remembers."""

    as_of: int | str | None
    valid_at: str | None
    historian: Historian | None


class Scene(msgspec.Struct, frozen=True):
    """A store at a moment: ``at`` is the commit, None for now, ``valid_at`` the time in the world in microseconds."""

    at: int | None
    valid_at: int | None
    graph: Graph
    indexes: Indexes | IndexesAsOf
    queries: QueryVectors


@contextmanager
def at_moment(store: Store, indexes: Indexes, moment: Moment) -> Generator[Scene]:
    """The store as it was; the indexes may have yet to see the commit. Raises InvalidInput, and what `Past.of` does."""
    past = None if moment.as_of is None else Past(moment.historian, moment.as_of)
    valid_at = world_moment(moment.valid_at, store, past)
    if past is not None:
        history, at = past.of(store)
        then = IndexesAsOf(indexes, history, at)
        yield Scene(at, valid_at, PastGraph(history, at, valid_at), then, indexes.queries)
        return
    with store.reading() as rows:
        yield Scene(None, valid_at, PresentGraph(rows, valid_at), indexes, indexes.queries)
