"""Use cases for whole stores: list, create, configure, delete, describe; health and readiness.

The end of the module handles cluster nodes, moves of stores between them, and the audit log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from kgserve.admin.api import (
    DropAnswer,
    StoreAnswer,
    StoreChoices,
    StoreList,
    StoreSettingsAnswer,
    StoreSettingsRequest,
    StoreStats,
    StoreSummary,
)
from kgserve.admin.metrics import most_behind, standing_of
from kgserve.errors import Conflict, InvalidInput, JournalDamaged, StorageFull, Unavailable
from kgserve.graph.answers import Health, Ready, ReindexAnswer, Whoami
from kgserve.graph.cross_store_links import link_counts
from kgserve.graph.handle import EncodedAnswer, Graph, Graphs, encoded
from kgserve.graph.queries import DropQuery
from kgserve.graph.requests import NodeInput
from kgserve.graph.temporal import whole_history
from kgserve.graph.validate import Faults, check_label, node_put
from kgserve.platform.access.audit_api import AuditAnswer, AuditQuery
from kgserve.platform.access.authentication import LOCAL_CALLER
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import storage_error, write_all
from kgserve.platform.idempotency import is_repeated, making
from kgserve.platform.settings import MEBIBYTE
from kgserve.platform.times import format_time
from kgserve.platform.version import __version__
from kgserve.projections.indexer import Indexer
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import list_segments
from kgserve.storage.layout import MIN_FREE_BYTES, Layout, StoreFile, closed_state
from kgserve.storage.model.change import StoreState
from kgserve.storage.model.digest import to_text
from kgserve.storage.model.rows import NO_ATTRIBUTES
from kgserve.storage.model.statuses import IndexStatus
from kgserve.storage.model.store_settings import MAX_NAME_BYTES, MemorySettingsChange, StoreSettings
from kgserve.stores.cluster_api import (
    ClusterStatus,
    DrainAnswer,
    DrainRequest,
    MoveAnswer,
    MoveRequest,
    RepairAnswer,
    UpgradeAnswer,
)
from kgserve.stores.placement import Away
from kgserve.stores.store import OpenStore

MAX_LISTED_STORE_TYPES = 100
MAX_LISTED_METADATA_BYTES = 4096
"""Largest metadata in bytes that the list of stores includes."""


def list_stores(graphs: Graphs) -> StoreList:
    """Return all stores by name, without opening any."""
    stores: list[StoreSummary] = []
    for name in graphs.pool.names():
        # A store may be deleted while the list is built.
        with contextlib.suppress(FileNotFoundError), graphs.pool.held_open(name) as store:
            if (away := graphs.pool.placement.away(name)) is not None:
                stores.append(_summary_of_remote(name, away))
            else:
                stores.append(_summary(graphs, graphs.pool.layout(name), store))
    return StoreList(stores=stores, count=len(stores))


def create_store(graph: Graph, request: StoreSettingsRequest) -> StoreAnswer:
    """Create a store. Answers 201 if it is new and 200 if it existed. The first inject creates a store as well.

    The body sets the settings of a new store. An existing store keeps its settings; change them with PATCH.

    Raises InvalidInput for the name and the settings, Conflict when a name differs in case alone.
    """
    created = graph.pool.create(graph.name, checked_settings(request)(graph.pool.usual))
    with graph.lease() as store:
        return StoreAnswer(name=graph.name, created=created, sequence=store.state.sequence)


def store_settings(graph: Graph) -> StoreSettingsAnswer:
    """Return the store's settings, when it was created, and its last sequence. `stats` describes its contents."""
    with graph.lease() as store:
        return _settings(store)


def update_store(graph: Graph, request: StoreSettingsRequest) -> StoreSettingsAnswer:
    """Change the settings that are named. Omitted and null ones stay; an empty text, list or object clears a setting.

    Listeners get a `store_changed` event, unless nothing changes. `history` "none" deletes the store's history, unless
    versions are in conflict; if turned on again, the history begins with the current state. A number of days deletes
    the states that ended earlier.

    Raises Conflict, InvalidInput, whose `errors` name every place, NotFound and StorageFull.
    """
    change = checked_settings(request)
    with graph.lease() as store:
        if request.history == "none":
            _require_no_conflicts(graph, store)
        store.change_settings(change)
        return _settings(store)


def _require_no_conflicts(graph: Graph, store: OpenStore) -> None:
    """Raise Conflict if nodes have conflicting versions, which only the history holds."""
    if graph.graphs.historian is None or store.description.history == "none":
        return
    follower = whole_history(graph.graphs.historian, store)
    if heads := follower.look(lambda history: history.heads(1)):
        message = (
            f"would delete versions in conflict, such as version {heads[0].row.version} of node "
            f"{heads[0].row.id!r}; resolve the conflicts first"
        )
        raise Conflict(f"history: {message}")


def drop_store(graph: Graph, request: DropQuery) -> DropAnswer:
    """Delete the store's graph, journal and files permanently.

    `confirm` must repeat the name from the path. Edges from other stores remain; the answer counts them.

    Raises NotFound.
    """
    if request.confirm != graph.name:
        raise InvalidInput.at("confirm", f"must repeat the store's name: ?confirm={graph.name}")
    inbound = sum(count for _, count in graph.pool.inbound.counts(graph.name))
    if not _is_dropped(graph):
        graph.pool.drop(graph.name)
    return DropAnswer(dropped=graph.name, inbound=inbound)


def _is_dropped(graph: Graph) -> bool:
    """Return True if a repeated call has deleted the store already. Raises Conflict if it was created again since."""
    made = making.get()
    if made is None or not is_repeated():
        return False
    layout = graph.pool.layout(graph.name)
    if layout.exists and made.precedes(layout.created_at()):
        raise Conflict(f"store {graph.name!r} was made after this call, which deleted an earlier one; it was kept")
    return not layout.exists


def stats(graph: Graph) -> StoreStats:
    """Return counts by type, sizes on disk, and the state of journal, engine and indexes. Raises NotFound."""
    indexer, historian, extractor = graph.graphs.indexer, graph.graphs.historian, graph.graphs.extractor
    with graph.lease() as store:
        found = _stats(store, _index_states(store, indexer) if indexer else [])
        if extractor is not None:
            with contextlib.suppress(Unavailable):
                found.extraction = extractor.of(store).status()
        if historian is not None:
            with contextlib.suppress(Conflict, Unavailable):
                found.history = historian.of(store).status() or msgspec.UNSET
        if graph.graphs.syncers is not None:
            found.syncers = [each.status() for each in graph.graphs.syncers.of(store)]
        return msgspec.structs.replace(found, history_lag=standing_of(store, None, historian).lags.get("history"))


def reindex(graph: Graph) -> ReindexAnswer:
    """Rebuild the search indexes, with vectors from the configured model. Searches continue with the existing entries.

    `stats` shows the progress. Raises Unavailable where indexes are turned off.
    """
    with graph.lease() as store:
        if graph.graphs.indexer is None:
            raise Unavailable("indexes are turned off on this server", retry_after=3600)
        graph.graphs.indexer.reindex(store)
        return ReindexAnswer(name=graph.name, sequence=store.state.sequence)


def _index_states(store: OpenStore, indexer: Indexer) -> list[IndexStatus]:
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
            degraded=state.name in ("vector", "past-vector") and indexes.degraded,
            error=state.error,
        )
        for state in indexes.states()
    ]


def _stats(store: OpenStore, indexes: list[IndexStatus]) -> StoreStats:
    state = store.state
    engine_bytes, engine_log_bytes = store.engine.bytes()
    snapshots = snapshot.list_snapshots(store.layout.journal)
    checked = store.last_check
    return StoreStats(
        name=store.name,
        nodes=state.nodes,
        edges=state.edges,
        sequence=state.sequence,
        types=store.listing(lambda catalog, _: catalog.types(MAX_LISTED_STORE_TYPES)),
        relation_types=store.listing(lambda catalog, _: catalog.relation_types(MAX_LISTED_STORE_TYPES)),
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
        future_stamp=None if (ahead := store.clock.future_stamp) is None else format_time(ahead),
    )


def _summary(graphs: Graphs, layout: Layout, store: OpenStore | None) -> StoreSummary:
    standing: Literal["open", "closed", "damaged"] = "open" if store else "closed"
    try:
        state = store.state if store else closed_state(layout)
        journal_bytes = sum(segment.size for segment in list_segments(layout.journal))
    except JournalDamaged:
        standing, state, journal_bytes = "damaged", StoreState(), 0
    engine_bytes = sum(path.stat().st_size for path in layout.root.glob("graph*.kuzu*"))
    checked = store.last_check if store else None
    described = store.description if store else layout.as_described()
    return StoreSummary(
        name=layout.name,
        state=standing,
        nodes=state.nodes,
        edges=state.edges,
        sequence=state.sequence,
        journal_bytes=journal_bytes,
        engine_bytes=engine_bytes,
        created_at=format_time(described.created_at),
        last_write=format_time(state.time) if state.sequence else None,
        settings=_settings_summary(described),
        lag=most_behind(standing_of(store, graphs.indexer, graphs.historian)) if store else None,
        last_check=format_time(checked.time) if checked else None,
        last_check_ok=checked.ok if checked else None,
        links=link_counts(graphs, layout, store),
    )


def _summary_of_remote(name: str, away: Away) -> StoreSummary:
    return StoreSummary(
        name=name,
        state="elsewhere",
        nodes=0,
        edges=0,
        sequence=0,
        journal_bytes=0,
        engine_bytes=0,
        created_at=format_time(away.description.created_at),
        settings=_settings_summary(away.description),
        node=away.node,
    )


def _settings_summary(described: StoreFile) -> StoreChoices:
    small = len(msgspec.json.encode(described.metadata)) <= MAX_LISTED_METADATA_BYTES
    return StoreChoices(
        name=described.name,
        conflict_policy=described.conflict_policy,
        kind_whitelist=list(described.kind_whitelist),
        indexed_attributes=list(described.indexed_attributes),
        metadata=described.metadata if small else msgspec.UNSET,
    )


def _settings(store: OpenStore) -> StoreSettingsAnswer:
    described = store.description
    return StoreSettingsAnswer(
        store=store.name,
        name=described.name,
        conflict_policy=described.conflict_policy,
        kind_whitelist=list(described.kind_whitelist),
        metadata=described.metadata,
        indexed_attributes=list(described.indexed_attributes),
        indexes=described.indexes,
        history=described.history,
        memory=described.memory,
        created_at=format_time(described.created_at),
        sequence=store.state.sequence,
    )


def checked_settings(request: StoreSettingsRequest) -> Callable[[StoreSettings], StoreSettings]:
    """Return the function that applies a request to settings.

    Raises InvalidInput for faults that the schema cannot express.
    """
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
        "conflict_policy": request.conflict_policy or None,
        "kind_whitelist": None if request.kind_whitelist is None else kinds,
        "metadata": metadata,
        "indexed_attributes": None
        if request.indexed_attributes is None
        else tuple(sorted({*request.indexed_attributes})),
        "indexes": request.indexes,
        "history": request.history,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    memory = request.memory or MemorySettingsChange()

    def changed(settings: StoreSettings) -> StoreSettings:
        after = msgspec.structs.replace(settings, **changes, memory=memory.onto(settings.memory))
        if after.conflict_policy == "manual" and after.history == "none":
            _raise_incompatible(changes)
        return after

    return changed


def _raise_incompatible(changes: Mapping[str, Any]) -> None:
    """Raise InvalidInput if the request named one of two settings that exclude each other."""
    for field in ("conflict_policy", "history"):
        if field in changes:
            message = (
                '`conflict_policy` "manual" keeps conflicting versions in the history and cannot be combined with '
                '`history` "none"; choose "lww", or keep a history'
            )
            raise InvalidInput.at(field, message)


def _metadata(metadata: dict[str, Any], faults: Faults) -> dict[str, Any]:
    """Return metadata with sorted keys, checked like the attributes of a node."""
    node = NodeInput(id="metadata", attributes=metadata)
    checked = node_put(0, node, lambda path, what: faults(path.replace("attributes", "metadata", 1), what))
    return decode_json(checked.attributes or NO_ATTRIBUTES, dict[str, Any])


READY_PROBE_FILE = ".ready"
_HEALTH_ANSWER = encoded(msgspec.json.encode(Health(version=__version__)))


def health(_graphs: Graphs) -> EncodedAnswer[Health]:
    """Return the version of the running process, without access to disk or stores."""
    return _HEALTH_ANSWER


def whoami(graphs: Graphs) -> EncodedAnswer[Whoami]:
    """Return name, role, stores and expiry of the key that was sent; `open` is true if no key is required."""
    caller = graphs.caller
    found = Whoami(
        name=caller.name,
        role=caller.role,
        stores=[*caller.stores],
        expires=None if caller.expires_at is None else format_time(caller.expires_at),
        open=caller is LOCAL_CALLER,
        backups=caller.role == "admin" and graphs.settings.backup_dir is not None,
    )
    return encoded(msgspec.json.encode(found))


def ready(graphs: Graphs) -> Ready:
    """Check that a write would be accepted now; answers 503 or 507 with the reason otherwise.

    Raises Unavailable or StorageFull.
    """
    pool = graphs.pool
    free = shutil.disk_usage(pool.data_dir).free
    if free < MIN_FREE_BYTES:
        raise StorageFull(f"Only {free // MEBIBYTE} MiB of disk space are left for {pool.data_dir.name}.")
    try:
        _write_probe(pool.data_dir / READY_PROBE_FILE)
    except OSError as error:
        raise storage_error(error, "writing to the data folder") from error
    opened = pool.open_stores().values()
    ahead = sum(store.clock.future_stamp is not None for store in opened)
    return Ready(open_stores=len(opened), free_bytes=free, future_stamps=ahead)


def _write_probe(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(descriptor, b"kgserve\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    path.unlink(missing_ok=True)


def cluster(graphs: Graphs) -> ClusterStatus:
    """Return the nodes, whether they are alive, and how many stores each claims. Raises Conflict without a cluster."""
    return graphs.pool.placement.status()


def move(graph: Graph, request: MoveRequest) -> MoveAnswer:
    """Move a store to another node, and wait until that node has opened it.

    Requests wait during the move and are then sent to the new node. After half a minute the answer is `opened: false`
    with the `reason`; the store belongs to the other node in this case, too. Any node accepts this request.

    Raises Conflict for a node that is not alive, and where there is no cluster.
    """
    return graph.pool.move(graph.name, request.to)


def drain(graphs: Graphs, request: DrainRequest) -> DrainAnswer:
    """Move all stores of this node to other nodes; it takes over none until `undo` or its next start.

    Stores move one after the other; requests wait meanwhile, and are sent to the new node. Stores that cannot be moved
    are listed under `failed`. Stores that their new nodes have not opened within half a minute in total are listed
    under `unopened`.

    Raises Conflict where there is no cluster.
    """
    return graphs.pool.drain(undo=request.undo)


def repair(graph: Graph) -> RepairAnswer:
    """Rebuild a store's log from the files of this node, after the log has lost commits.

    The files must contain everything that is left of the log, unchanged, and nothing beyond it.

    Raises Conflict if they do not, if the log is intact, or where there is no cluster.
    """
    return graph.pool.repair(graph.name)


def audit(graphs: Graphs, request: AuditQuery) -> AuditAnswer:
    """Return the newest refusals and administrative actions, oldest first; in a cluster, of all nodes or one.

    Raises NotFound for an unknown node, and Conflict for a named node where there is no cluster.
    """
    graphs.caller.require_every_store("reading the audit log")
    return AuditAnswer(records=graphs.pool.placement.recorded(request.node, request.limit))


def finish_upgrade(graphs: Graphs) -> UpgradeAnswer:
    """Let all nodes write the newest format that each of them supports; older versions cannot join afterwards.

    Raises Conflict while a live node supports only older formats than this one, and where there is no cluster.
    """
    graphs.caller.require_every_store("finishing an upgrade")
    return graphs.pool.placement.finish_upgrade()
