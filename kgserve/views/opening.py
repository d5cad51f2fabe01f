"""The stores of a data folder with everybody who follows them, wired as the settings want it."""

from __future__ import annotations

from contextlib import ExitStack, closing

import msgspec

from kgserve.embedding.embedder import for_indexing, load_embedder
from kgserve.settings import Settings
from kgserve.store.pool import StorePool
from kgserve.views.history import Historian
from kgserve.views.indexer import Indexer
from kgserve.views.keeper import Keeper


class Opened(msgspec.Struct, frozen=True):
    """What operations work on; without ``indexer`` there is no search, without ``historian`` no past."""

    pool: StorePool
    indexer: Indexer | None
    historian: Historian | None
    keeper: Keeper


def open_all(settings: Settings, stack: ExitStack) -> Opened:
    """Open the data folder's stores, to be closed with ``stack``; who calls has the folder's lock already.

    Raises InvalidInput for a data folder that cannot be one, and for an embedding service without a usable address.
    """
    # Built first and closed last: closing a store saves its indexes.
    indexer = stack.enter_context(closing(make_indexer(settings))) if settings.indexes else None
    historian = stack.enter_context(closing(Historian())) if settings.history else None
    keeper = stack.enter_context(closing(Keeper(indexer)))
    pool = stack.enter_context(StorePool(settings))
    pool.companions += [each for each in (indexer, historian, keeper) if each is not None]
    return Opened(pool, indexer, historian, keeper)


def make_indexer(settings: Settings) -> Indexer:
    """One model for queries, and for indexing another copy of it while there is much to index."""
    embedder = load_embedder(settings)
    return Indexer(embedder, for_indexing(settings, embedder))
