"""Listing, making, changing, dropping and describing stores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from kgserve.decoding import decode_json
from kgserve.errors import FieldError, InvalidInput, JournalDamaged, Unavailable
from kgserve.journal import snapshot
from kgserve.journal.journal import list_segments
from kgserve.model.answers import ReindexAnswer
from kgserve.model.change import StoreState
from kgserve.model.digest import to_text
from kgserve.model.requests import NodeInput
from kgserve.model.rows import EMPTY_OBJECT
from kgserve.model.stores import (
    MAX_NAME_BYTES,
    DropAnswer,
    IndexStatus,
    StoreAnswer,
    StoreList,
    StoreSettings,
    StoreSettingsAnswer,
    StoreSettingsRequest,
    StoreStats,
    StoreSummary,
)
from kgserve.model.times import format_time
from kgserve.ops.store_metrics import most_behind, standing_of
from kgserve.ops.validate import Faults, check_label, node_put
from kgserve.store.layout import Layout
from kgserve.store.pool import StorePool
from kgserve.store.store import USUAL, Store
from kgserve.store.summary import closed_state
from kgserve.views.historian import Historian
from kgserve.views.indexer import Indexer

TOP_TYPES = 100


def list_stores(pool: StorePool, indexer: Indexer | None = None, historian: Historian | None = None) -> StoreList:
    """All stores with their counts and sizes; none is opened for it. What follows stores, if given, has its lag."""
    opened = pool.open_stores()
    stores: list[StoreSummary] = []
    for name in pool.names():
        # A store may be dropped while the list is made.
        with contextlib.suppress(FileNotFoundError):
            stores.append(_summary(pool.layout(name), opened.get(name), indexer, historian))
    return StoreList(stores=stores, count=len(stores))


def create_store(pool: StorePool, store: str, request: StoreSettingsRequest | None = None) -> StoreAnswer:
    """Make a store with settings, or find it as it is.

    Raises InvalidInput for the name and the settings, Conflict when a name differs in case alone.
    """
    chosen = _checked(request or StoreSettingsRequest())(USUAL)
    created = pool.create(store, chosen)
    with pool.lease(store) as leased:
        return StoreAnswer(name=store, created=created, sequence=leased.state.sequence)


def store_settings(pool: StorePool, store: str) -> StoreSettingsAnswer:
    """The settings of a store. Raises NotFound."""
    with pool.lease(store) as leased:
        return _settings(leased)


def update_store(pool: StorePool, store: str, request: StoreSettingsRequest) -> StoreSettingsAnswer:
    """Change the settings that are named; they are durable afterwards. Raises InvalidInput, NotFound, StorageFull."""
    change = _checked(request)
    with pool.lease(store) as leased:
        leased.change_settings(change)
        return _settings(leased)


def drop_store(pool: StorePool, store: str, confirm: str | None) -> DropAnswer:
    """Remove a store and its files for good. Raises InvalidInput unless ``confirm`` repeats the name, NotFound."""
    if confirm != store:
        message = f"must repeat the store's name: ?confirm={store}"
        raise InvalidInput(f"confirm: {message}", (FieldError("confirm", message),))
    pool.drop(store)
    return DropAnswer(dropped=store)


def stats(
    pool: StorePool, store: str, indexer: Indexer | None = None, historian: Historian | None = None
) -> StoreStats:
    """What a store holds and how it is doing."""
    with pool.lease(store) as leased:
        found = _stats(leased, _index_states(leased, indexer) if indexer else [])
        return msgspec.structs.replace(found, history_lag=standing_of(leased, None, historian).lags.get("history"))


def reindex(pool: StorePool, store: str, indexer: Indexer | None) -> ReindexAnswer:
    """Begin to make both indexes of a store anew, with the present model. Raises Unavailable without indexes."""
    with pool.lease(store) as leased:
        if indexer is None:
            raise Unavailable("indexes are turned off on this server", retry_after=3600)
        indexer.reindex(leased)
        return ReindexAnswer(name=store, sequence=leased.state.sequence)


def _index_states(store: Store, indexer: Indexer) -> list[IndexStatus]:
    indexes = indexer.of(store)
    last = store.state.sequence
    return [
        IndexStatus(
            name=state.name,
            sequence=state.sequence,
            lag=max(last - state.sequence, 0),
            entities=state.entities,
            pending=max(state.pending, 0),
            bytes=state.bytes,
            model=state.model,
            degraded=state.name in ("vector", "past-vector") and indexer.embedder.degraded,
            error=state.error,
        )
        for state in indexes.states()
    ]


def _stats(store: Store, indexes: list[IndexStatus]) -> StoreStats:
    state = store.state
    engine_bytes, engine_log_bytes = store.engine.bytes()
    snapshots = snapshot.list_snapshots(store.layout.journal)
    checked = store.last_check
    return StoreStats(
        name=store.name,
        nodes=state.nodes,
        edges=state.edges,
        sequence=state.sequence,
        types=store.listing(lambda catalog, _: catalog.types(TOP_TYPES)),
        relation_types=store.listing(lambda catalog, _: catalog.relation_types(TOP_TYPES)),
        journal_bytes=store.journal.bytes,
        journal_segments=len(store.journal.segments),
        snapshot_sequence=snapshot.sequence_of(snapshots[0]) if snapshots else None,
        engine_bytes=engine_bytes,
        engine_log_bytes=engine_log_bytes,
        engine_lag=store.engine.lag,
        engine_rebuilds=store.engine.rebuilds,
        compactions=store.compactor.done,
        queued_writes=store.queued,
        indexes=indexes,
        last_check=format_time(checked.time) if checked else None,
        last_check_ok=checked.ok if checked else None,
        digest=to_text(state.digest),
        created_at=format_time(store.description.created_at),
    )


def _summary(layout: Layout, store: Store | None, indexer: Indexer | None, historian: Historian | None) -> StoreSummary:
    standing: Literal["open", "closed", "damaged"] = "open" if store else "closed"
    try:
        state = store.state if store else closed_state(layout)
    except JournalDamaged:
        standing, state = "damaged", StoreState()
    engine_bytes = sum(path.stat().st_size for path in layout.root.glob("graph*.kuzu*"))
    checked = store.last_check if store else None
    return StoreSummary(
        name=layout.name,
        state=standing,
        nodes=state.nodes,
        edges=state.edges,
        sequence=state.sequence,
        journal_bytes=sum(segment.size for segment in list_segments(layout.journal)),
        engine_bytes=engine_bytes,
        created_at=format_time(layout.created_at()),
        lag=most_behind(standing_of(store, indexer, historian)) if store else None,
        last_check=format_time(checked.time) if checked else None,
        last_check_ok=checked.ok if checked else None,
    )


def _settings(store: Store) -> StoreSettingsAnswer:
    described = store.description
    return StoreSettingsAnswer(
        store=store.name,
        name=described.name,
        conflict_policy=described.conflict_policy,
        kind_whitelist=list(described.kind_whitelist),
        metadata=described.metadata,
        history=described.history,
        created_at=format_time(described.created_at),
        sequence=store.state.sequence,
    )


def _checked(request: StoreSettingsRequest) -> Callable[[StoreSettings], StoreSettings]:
    """What a request makes of settings. Raises InvalidInput for what its schema cannot say."""
    faults = Faults()
    if request.name is not None and len(request.name.encode()) > MAX_NAME_BYTES:
        faults("name", f"is longer than {MAX_NAME_BYTES} bytes of UTF-8")
    kinds = tuple(dict.fromkeys(request.kind_whitelist or ()))
    for at, kind in enumerate(kinds):
        check_label(kind, f"kind_whitelist.{at}", faults)
    metadata = None if request.metadata is None else _metadata(request.metadata, faults)
    faults.raise_any()
    given = {
        "name": request.name,
        "conflict_policy": request.conflict_policy,
        "kind_whitelist": None if request.kind_whitelist is None else kinds,
        "metadata": metadata,
        "history": request.history,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    return lambda settings: msgspec.structs.replace(settings, **changes)


def _metadata(metadata: dict[str, Any], faults: Faults) -> dict[str, Any]:
    """Metadata with its keys in order, checked as the attributes of a node are."""
    node = NodeInput(id="metadata", attributes=metadata)
    checked = node_put(0, node, lambda path, what: faults(path.replace("attributes", "metadata", 1), what))
    return decode_json(checked.attributes or EMPTY_OBJECT, dict[str, Any])
