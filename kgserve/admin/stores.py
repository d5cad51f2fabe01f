"""Use cases for whole stores: list, create, configure, delete, describe; health and readiness.

The end of the module handles cluster nodes, moves of stores between them, and the audit log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from kgserve.admin.metrics import find_largest_projection_lag, measure_projection_lag
from kgserve.admin.store_admin_models import (
    CreateStoreAnswer,
    DropStoreAnswer,
    StoreList,
    StoreListParameters,
    StoreSettingsAnswer,
    StoreSettingsRequest,
    StoreSettingsSummary,
    StoreStats,
    StoreSummary,
)
from kgserve.errors import Conflict, InvalidInput, StorageFull, Unavailable
from kgserve.graph.answers import CallerInfo, HealthStatus, ReadinessStatus, ReindexAnswer
from kgserve.graph.as_of_resolution import get_caught_up_history
from kgserve.graph.cross_store_links import count_cross_store_links, count_outbound_cross_store_links
from kgserve.graph.request_bodies import NodeInput
from kgserve.graph.request_validation import ValidationErrorCollector, validate_identifier_length, validate_node_input
from kgserve.graph.store_handle import CallerStoreHandles, JsonEncodedAnswer, StoreHandle, cast_json_bytes_to_answer
from kgserve.graph.url_parameters import DropStoreParameters
from kgserve.platform.access.audit_api import AuditAnswer, AuditQuery
from kgserve.platform.access.authentication import LOCAL_CALLER
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import sync_descriptor, translate_os_error, write_all_bytes
from kgserve.platform.idempotency import current_idempotency_key, is_repeated_idempotent_call
from kgserve.platform.settings import MEBIBYTE
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.platform.version import __version__
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.storage.disk_space import MIN_FREE_BYTES
from kgserve.storage.journal import snapshot
from kgserve.storage.model.node_edge_rows import EMPTY_ATTRIBUTES_JSON
from kgserve.storage.model.projection_statuses import IndexStatus
from kgserve.storage.model.store_rows_digest import format_store_rows_digest
from kgserve.storage.model.store_settings import MAX_DISPLAY_NAME_BYTES, MemorySettingsChange, StoreSettings
from kgserve.storage.store_folder_layout import StoreDescription
from kgserve.stores.cluster_models import (
    ClusterFormatUpgradeAnswer,
    ClusterStatus,
    DrainAnswer,
    DrainRequest,
    StoreLogRepairAnswer,
    StoreMoveAnswer,
    StoreMoveRequest,
)
from kgserve.stores.local_placement import RemoteStore
from kgserve.stores.open_store import OpenStore

MAX_LISTED_STORE_TYPES = 100
MAX_LISTED_LANGUAGES = 10
MAX_LISTED_METADATA_BYTES = 4096
"""Largest metadata in bytes that the list of stores includes."""


def list_stores(graphs: CallerStoreHandles, request: StoreListParameters) -> StoreList:
    """Return a page of the stores by name, without opening any. `count` is the number of stores on all pages.

    `next_after` is null on the last page. Without parameters, the first 1,000 stores are returned.
    """
    names = select_store_names(graphs, request)
    start = bisect_right(names, request.after)
    page = names[start : start + request.limit]
    is_last = start + request.limit >= len(names)
    return StoreList(
        stores=build_store_summaries(graphs, page), count=len(names), next_after=None if is_last else page[-1]
    )


def build_store_summaries(graphs: CallerStoreHandles, names: Iterable[str]) -> list[StoreSummary]:
    """Return the summaries of stores, without opening any. Stores that are deleted meanwhile are left out."""
    found: list[StoreSummary] = []
    for name in names:
        with contextlib.suppress(FileNotFoundError), graphs.pool.peek_open(name) as store:
            if (away := graphs.pool.placement.find_remote_store(name)) is not None:
                found.append(_summary_of_remote(name, away))
            elif store is not None:
                found.append(_summary_of_open(graphs, store))
            else:
                found.append(_summary_of_closed(graphs, name))
    return found


def select_store_names(graphs: CallerStoreHandles, request: StoreListParameters) -> list[str]:
    """Return the names of the stores that the filters accept, in order."""
    names = graphs.pool.names()
    if prefix := request.prefix:
        # No name contains a character after the last one of ASCII.
        names = names[bisect_left(names, prefix) : bisect_right(names, f"{prefix}\x7f")]
    if request.state is None and request.kind is None:
        return names
    opened = graphs.pool.open_stores()
    return [name for name in names if _is_accepted(graphs, name, opened.get(name), request)]


def _is_accepted(graphs: CallerStoreHandles, name: str, store: OpenStore | None, request: StoreListParameters) -> bool:
    if (away := graphs.pool.placement.find_remote_store(name)) is not None:
        state, description = "elsewhere", away.description
    elif store is not None:
        state, description = "open", store.description
    elif request.state in ("open", "elsewhere"):
        return False
    else:
        try:
            entry = graphs.pool.placement.index.read(graphs.pool.layout(name))
        except FileNotFoundError:
            return False
        state = "damaged" if entry.is_damaged else "closed"
        description = decode_json(entry.description, StoreDescription)
    kinds = description.kind_whitelist
    return request.state in (None, state) and (request.kind is None or not kinds or request.kind in kinds)


def create_store(graph: StoreHandle, request: StoreSettingsRequest) -> CreateStoreAnswer:
    """Create a store. Answers 201 if it is new and 200 if it existed. The first inject creates a store as well.

    The body sets the settings of a new store. An existing store keeps its settings; change them with PATCH.

    Raises InvalidInput for the name and the settings, Conflict when a name differs in case alone.
    """
    created = graph.pool.create(graph.name, build_store_settings_updater(request)(graph.pool.usual))
    with graph.lease() as store:
        return CreateStoreAnswer(name=graph.name, created=created, sequence=store.state.sequence)


def get_store_settings(graph: StoreHandle) -> StoreSettingsAnswer:
    """Return the store's settings, when it was created, and its last sequence. `stats` describes its contents."""
    with graph.lease() as store:
        return _settings(store)


def update_store_settings(graph: StoreHandle, request: StoreSettingsRequest) -> StoreSettingsAnswer:
    """Change the settings that are named. Omitted and null ones stay; an empty text, list or object clears a setting.

    Listeners get a `store_changed` event, unless nothing changes. `history` "none" deletes the store's history, unless
    versions are in conflict; if turned on again, the history begins with the current state. A number of days deletes
    the states that ended earlier.

    Raises Conflict, InvalidInput, whose `errors` name every place, NotFound and StorageFull.
    """
    change = build_store_settings_updater(request)
    with graph.lease() as store:
        if request.history == "none":
            _require_no_conflicts(graph, store)
        store.change_settings(change)
        return _settings(store)


def _require_no_conflicts(graph: StoreHandle, store: OpenStore) -> None:
    """Raise Conflict if nodes have conflicting versions, which only the history holds."""
    if graph.graphs.historian is None or store.description.history == "none":
        return
    follower = get_caught_up_history(graph.graphs.historian, store)
    if heads := follower.look(lambda history: history.heads(1)):
        message = (
            f"would delete versions in conflict, such as version {heads[0].row.version} of node "
            f"{heads[0].row.id!r}; resolve the conflicts first"
        )
        raise Conflict(f"history: {message}")


def drop_store(graph: StoreHandle, request: DropStoreParameters) -> DropStoreAnswer:
    """Delete the store's graph, journal and files permanently.

    `confirm` must repeat the name from the path. Edges from other stores remain; the answer counts them.

    Raises NotFound.
    """
    if request.confirm != graph.name:
        raise InvalidInput.at("confirm", f"must repeat the store's name: ?confirm={graph.name}")
    inbound = sum(count for _, count in graph.pool.inbound.counts(graph.name))
    if not _is_dropped(graph):
        graph.pool.drop(graph.name)
    return DropStoreAnswer(dropped=graph.name, inbound=inbound)


def _is_dropped(graph: StoreHandle) -> bool:
    """Return True if a repeated call has deleted the store already. Raises Conflict if it was created again since."""
    made = current_idempotency_key.get()
    if made is None or not is_repeated_idempotent_call():
        return False
    layout = graph.pool.layout(graph.name)
    if layout.exists and made.is_older_than(layout.created_at()):
        raise Conflict(f"store {graph.name!r} was made after this call, which deleted an earlier one; it was kept")
    return not layout.exists


def get_store_stats(graph: StoreHandle) -> StoreStats:
    """Return counts by type, sizes on disk, and the state of journal, engine and indexes. Raises NotFound."""
    indexer, historian, extractor = graph.graphs.indexer, graph.graphs.historian, graph.graphs.extractor
    with graph.lease() as store:
        found = _stats(store, _index_states(store, indexer) if indexer else [])
        if indexer is not None:
            found.languages = dict(islice(indexer.of(store).languages().items(), MAX_LISTED_LANGUAGES))
        if extractor is not None:
            with contextlib.suppress(Unavailable):
                found.extraction = extractor.of(store).status()
        if historian is not None:
            with contextlib.suppress(Conflict, Unavailable):
                found.history = historian.of(store).status() or msgspec.UNSET
        if graph.graphs.syncers is not None:
            found.syncers = [each.status() for each in graph.graphs.syncers.of(store)]
        return msgspec.structs.replace(
            found, history_lag=measure_projection_lag(store, None, historian).lags.get("history")
        )


def rebuild_search_indexes(graph: StoreHandle) -> ReindexAnswer:
    """Rebuild the search indexes, with vectors from the configured model. Searches continue with the existing entries.

    `stats` shows the progress. Raises Unavailable where indexes are turned off.
    """
    with graph.lease() as store:
        if graph.graphs.indexer is None:
            raise Unavailable("indexes are turned off on this server", retry_after=3600)
        graph.graphs.indexer.reindex(store)
        return ReindexAnswer(name=graph.name, sequence=store.state.sequence)


def _index_states(store: OpenStore, indexer: TextIndexWorker) -> list[IndexStatus]:
    indexes = indexer.of(store)
    last = store.state.sequence
    return [
        IndexStatus(
            name=state.name,
            sequence=state.sequence,
            lag=max(last - state.sequence, 0),
            entities=state.entities,
            pending=max(state.pending, 0),
            progress=None if state.progress is None else round(state.progress, 3),
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
    snapshots = snapshot.list_journal_snapshots(store.layout.journal)
    checked = store.last_check
    return StoreStats(
        name=store.name,
        nodes=state.nodes,
        edges=state.edges,
        sequence=state.sequence,
        types=store.query_catalog(lambda catalog, _: catalog.types(MAX_LISTED_STORE_TYPES)),
        relation_types=store.query_catalog(lambda catalog, _: catalog.relation_types(MAX_LISTED_STORE_TYPES)),
        journal_bytes=store.journal.bytes,
        journal_segments=len(store.journal.segments),
        snapshot_sequence=snapshot.parse_snapshot_sequence(snapshots[0]) if snapshots else None,
        engine_bytes=engine_bytes,
        engine_log_bytes=engine_log_bytes,
        engine_lag=store.engine.lag,
        engine_rebuilds=store.engine.rebuilds,
        compactions=store.compactor.done,
        queued_writes=store.queued,
        indexes=indexes,
        languages={},
        last_check=format_rfc3339_timestamp(checked.time) if checked else None,
        last_check_ok=checked.ok if checked else None,
        digest=format_store_rows_digest(state.digest),
        created_at=format_rfc3339_timestamp(store.description.created_at),
        future_stamp=None if (ahead := store.clock.future_stamp) is None else format_rfc3339_timestamp(ahead),
    )


def _summary_of_open(graphs: CallerStoreHandles, store: OpenStore) -> StoreSummary:
    state, checked, described = store.state, store.last_check, store.description
    return StoreSummary(
        name=store.name,
        state="open",
        nodes=state.nodes,
        edges=state.edges,
        sequence=state.sequence,
        journal_bytes=store.journal.bytes,
        engine_bytes=sum(path.stat().st_size for path in store.layout.root.glob("graph*.kuzu*")),
        created_at=format_rfc3339_timestamp(described.created_at),
        last_write=format_rfc3339_timestamp(state.time) if state.sequence else None,
        settings=_settings_summary(described),
        lag=find_largest_projection_lag(measure_projection_lag(store, graphs.indexer, graphs.historian)),
        last_check=format_rfc3339_timestamp(checked.time) if checked else None,
        last_check_ok=checked.ok if checked else None,
        links=count_cross_store_links(graphs, store.name, count_outbound_cross_store_links(store)),
    )


def _summary_of_closed(graphs: CallerStoreHandles, name: str) -> StoreSummary:
    entry = graphs.pool.placement.index.read(graphs.pool.layout(name))
    return StoreSummary(
        name=name,
        state="damaged" if entry.is_damaged else "closed",
        nodes=entry.nodes,
        edges=entry.edges,
        sequence=entry.sequence,
        journal_bytes=entry.journal_bytes,
        engine_bytes=entry.engine_bytes,
        created_at=format_rfc3339_timestamp(entry.created_at),
        last_write=format_rfc3339_timestamp(entry.time) if entry.sequence else None,
        settings=_settings_summary(decode_json(entry.description, StoreDescription)),
        links=count_cross_store_links(graphs, name, max(entry.links, 0)),
    )


def _summary_of_remote(name: str, away: RemoteStore) -> StoreSummary:
    return StoreSummary(
        name=name,
        state="elsewhere",
        nodes=None,
        edges=None,
        sequence=None,
        journal_bytes=None,
        engine_bytes=None,
        created_at=format_rfc3339_timestamp(away.description.created_at),
        settings=_settings_summary(away.description),
        node=away.node,
    )


def _settings_summary(described: StoreDescription) -> StoreSettingsSummary:
    small = len(msgspec.json.encode(described.metadata)) <= MAX_LISTED_METADATA_BYTES
    return StoreSettingsSummary(
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
        language=described.language,
        late_interaction=described.late_interaction,
        history=described.history,
        memory=described.memory,
        created_at=format_rfc3339_timestamp(described.created_at),
        sequence=store.state.sequence,
    )


def build_store_settings_updater(request: StoreSettingsRequest) -> Callable[[StoreSettings], StoreSettings]:
    """Return the function that applies a request to settings.

    Raises InvalidInput for faults that the schema cannot express.
    """
    faults = ValidationErrorCollector()
    if request.name is not None and len(request.name.encode()) > MAX_DISPLAY_NAME_BYTES:
        faults("name", f"is longer than {MAX_DISPLAY_NAME_BYTES} bytes of UTF-8")
    kinds = tuple(dict.fromkeys(request.kind_whitelist or ()))
    for at, kind in enumerate(kinds):
        validate_identifier_length(kind, f"kind_whitelist.{at}", faults)
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
        "language": request.language,
        "late_interaction": request.late_interaction,
        "history": request.history,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    memory = request.memory or MemorySettingsChange()

    def changed(settings: StoreSettings) -> StoreSettings:
        after = msgspec.structs.replace(settings, **changes, memory=memory.applied_to(settings.memory))
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


def _metadata(metadata: dict[str, Any], faults: ValidationErrorCollector) -> dict[str, Any]:
    """Return metadata with sorted keys, checked like the attributes of a node."""
    node = NodeInput(id="metadata", attributes=metadata)
    checked = validate_node_input(0, node, lambda path, what: faults(path.replace("attributes", "metadata", 1), what))
    return decode_json(checked.attributes or EMPTY_ATTRIBUTES_JSON, dict[str, Any])


READY_PROBE_FILE = ".ready"
_HEALTH_ANSWER = cast_json_bytes_to_answer(msgspec.json.encode(HealthStatus(version=__version__)))


def get_server_health(_graphs: CallerStoreHandles) -> JsonEncodedAnswer[HealthStatus]:
    """Return the version of the running process, without access to disk or stores."""
    return _HEALTH_ANSWER


def whoami(graphs: CallerStoreHandles) -> JsonEncodedAnswer[CallerInfo]:
    """Return name, role, stores and expiry of the key that was sent; `open` is true if no key is required."""
    caller = graphs.caller
    found = CallerInfo(
        name=caller.name,
        role=caller.role,
        stores=[*caller.stores],
        expires=None if caller.expires_at is None else format_rfc3339_timestamp(caller.expires_at),
        open=caller is LOCAL_CALLER,
        backups=caller.role == "admin" and graphs.settings.backup_dir is not None,
    )
    return cast_json_bytes_to_answer(msgspec.json.encode(found))


def check_readiness(graphs: CallerStoreHandles) -> ReadinessStatus:
    """Check that a write would be accepted now; answers 503 or 507 with the reason otherwise.

    A node of a cluster also answers 503 while it is cut off from the cluster's log, or from all other nodes.

    Raises Unavailable or StorageFull.
    """
    pool = graphs.pool
    if reason := pool.placement.find_disconnection():
        raise Unavailable(reason, retry_after=5)
    free = shutil.disk_usage(pool.data_dir).free
    if free < MIN_FREE_BYTES:
        raise StorageFull(f"Only {free // MEBIBYTE} MiB of disk space are left for {pool.data_dir.name}.")
    try:
        _write_probe(pool.data_dir / READY_PROBE_FILE)
    except OSError as error:
        raise translate_os_error(error, "writing to the data folder") from error
    opened = pool.open_stores().values()
    ahead = sum(store.clock.future_stamp is not None for store in opened)
    return ReadinessStatus(open_stores=len(opened), free_bytes=free, future_stamps=ahead)


def _write_probe(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all_bytes(descriptor, b"kgserve\n")
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)
    path.unlink(missing_ok=True)


def get_cluster_status(graphs: CallerStoreHandles) -> ClusterStatus:
    """Return the nodes, whether they are alive, and how many stores each claims. Raises Conflict without a cluster."""
    return graphs.pool.placement.status()


def move_store_to_node(graph: StoreHandle, request: StoreMoveRequest) -> StoreMoveAnswer:
    """Move a store to another node, and wait until that node has opened it.

    Requests wait during the move and are then sent to the new node. After half a minute the answer is `opened: false`
    with the `reason`; the store belongs to the other node in this case, too. Any node accepts this request.

    Raises Conflict for a node that is not alive, and where there is no cluster.
    """
    return graph.pool.move(graph.name, request.to)


def drain_cluster_node(graphs: CallerStoreHandles, request: DrainRequest) -> DrainAnswer:
    """Move all stores of this node to other nodes; it takes over none until `undo` or its next start.

    Stores move one after the other; requests wait meanwhile, and are sent to the new node. Stores that cannot be moved
    are listed under `failed`. Stores that their new nodes have not opened within half a minute in total are listed
    under `unopened`.

    Raises Conflict where there is no cluster.
    """
    return graphs.pool.drain(undo=request.undo)


def rebuild_replicated_log(graph: StoreHandle) -> StoreLogRepairAnswer:
    """Rebuild a store's log from the files of this node, after the log has lost commits.

    The files must contain everything that is left of the log, unchanged, and nothing beyond it.

    Raises Conflict if they do not, if the log is intact, or where there is no cluster.
    """
    return graph.pool.repair(graph.name)


def read_audit_log(graphs: CallerStoreHandles, request: AuditQuery) -> AuditAnswer:
    """Return the newest refusals and administrative actions, oldest first; in a cluster, of all nodes or one.

    Raises NotFound for an unknown node, and Conflict for a named node where there is no cluster.
    """
    graphs.caller.require_every_store("reading the audit log")
    return AuditAnswer(records=graphs.pool.placement.read_audit_records(request.node, request.limit))


def finalize_cluster_upgrade(graphs: CallerStoreHandles) -> ClusterFormatUpgradeAnswer:
    """Let all nodes write the newest format that each of them supports; older versions cannot join afterwards.

    Raises Conflict while a live node supports only older formats than this one, and where there is no cluster.
    """
    graphs.caller.require_every_store("finishing an upgrade")
    return graphs.pool.placement.finalize_cluster_upgrade()
