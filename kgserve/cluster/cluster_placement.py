"""Placement of stores on one node of a cluster: it owns some stores, and its files are replicas of their logs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from typing_extensions import override

from kgserve.cluster.audit_and_api_key_sync import read_replicated_audit_records
from kgserve.cluster.backend import (
    BlobStorage,
    ClusterEntryRegistry,
    ClusterNodeHeartbeat,
    ReplicatedLog,
    StoreOwnerEntry,
    VersionedStoreOwnerEntry,
)
from kgserve.cluster.bootstrap_snapshots import delete_unreferenced_snapshot_blobs
from kgserve.cluster.journal_replicated_log_sync import (
    CopiedLogPosition,
    ReplicatedJournalWriter,
    count_intact_replicated_log_frames,
    delete_replicated_log_copy_position,
    fence_replicated_log_writers,
    read_replicated_log_copy_position,
    take_over_replicated_log,
    verify_replicated_log_copy_position,
    write_replicated_log_copy_position,
)
from kgserve.cluster.membership import READ_FENCE_SECONDS, ClusterHeartbeatExchange, ClusterRecordFormat
from kgserve.cluster.ownership import RemoteStoreOwnership, StoreOwnership
from kgserve.cluster.peer_reachability import PeerReachability
from kgserve.cluster.read_replicas import (
    BootstrapSnapshotUploader,
    ReadReplicaUpdater,
    build_store_files_from_snapshot,
)
from kgserve.cluster.replica_commit_log import build_owner_redirect_error, build_store_owned_elsewhere_error
from kgserve.cluster.store_handover import StoreHandoverTarget, wait_until_node_opened_store
from kgserve.errors import Conflict, Fenced, KgserveError, NotFound, OutcomeUnknown, ServedElsewhere, Unavailable
from kgserve.platform.access.audit import read_newest_audit_records
from kgserve.platform.access.audit_api import AuditRecord
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import fsync_folder, write_file_atomically
from kgserve.platform.file_permissions import create_private_folder
from kgserve.platform.metrics.app_metrics_and_request_context import ClusterNodeMetrics
from kgserve.platform.settings import Settings
from kgserve.storage.journal.journal import Journal, list_journal_segments
from kgserve.storage.journal.snapshot import list_journal_snapshots
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.storage.store_folder_layout import StoreDescription, StoreLayout, open_journal
from kgserve.stores.cluster_models import (
    ClusterFormatUpgradeAnswer,
    ClusterNode,
    ClusterStatus,
    NodeState,
    StoreMoveAnswer,
)
from kgserve.stores.local_placement import (
    NODE_FILE,
    CommitLog,
    OpenStoreLookup,
    RemoteStore,
    StorePlacement,
    new_store_description,
)

log = structlog.get_logger()

_encode = msgspec.json.Encoder().encode
_SET_ASIDE_PREFIX = ".aside-"
_FAILURE_NAMES: dict[type[KgserveError], str] = {Fenced: "fenced", OutcomeUnknown: "unconfirmed"}


class ClusterStorePlacement(StorePlacement):
    """Placement of a cluster's stores: this node takes a store over when a caller asks it for that store.

    The registry has the list of stores and their settings. Local files of a store that another node serves are an older
    replica, from which the next takeover continues.
    """

    is_shared = True

    def __init__(
        self,
        data_dir: Path,
        settings: Settings,
        logs: ReplicatedLog,
        registry: ClusterEntryRegistry,
        blobs: BlobStorage,
        membership: ClusterHeartbeatExchange,
    ) -> None:
        """Open the data folder. Raises Unavailable, and Conflict if the folder belongs to another node."""
        self._log = logs
        self._registry = registry
        self._blobs = blobs
        self._membership = membership
        self._ownership = StoreOwnership(registry, membership)
        self._formats = ClusterRecordFormat(registry)
        self._lock = threading.Lock()
        # The claim by which each store was placed, and the number of silent periods before it.
        self._placed: dict[str, _PlacedStore] = {}
        self.counts = counts = ClusterNodeMetrics()
        self._counts = counts
        self._copies = ReadReplicaUpdater(logs, self._ownership, self, settings.cluster_copies, settings.compact_wal_mb)
        super().__init__(data_dir, settings)
        self._ownership.look()
        self._ownership.outdated.append(self._was_outdated)
        self._peers = PeerReachability(membership)
        membership.after_each_round(self._ownership.look)
        membership.after_each_round(self._peers.look)

    @override
    def names(self) -> list[str]:
        with suppress(Unavailable):
            self._ownership.look()
        return sorted(self._ownership.stores())

    @override
    def local_store_names(self) -> list[str]:
        return sorted(name for name in self._ownership.stores() if self.is_here(name))

    @override
    def exists(self, name: str) -> bool:
        return self._ownership.exists(name) or self._is_unregistered(name)

    @override
    def is_here(self, name: str) -> bool:
        return self._ownership.owns(name)

    @override
    def find_remote_store(self, name: str) -> RemoteStore | None:
        owner = self._ownership.find_cached_owner(name)
        if owner is None or self.is_here(name):
            return None
        return RemoteStore(owner.node, decode_json(owner.description, StoreDescription))

    @override
    def find_redirect(self, name: str) -> ServedElsewhere | None:
        found = self._ownership.find_cached_remote_owner(name)
        return None if found is None else build_owner_redirect_error(name, found)

    @override
    def place(self, name: str, chosen: StoreSettings | None) -> bool:
        layout = self.layout(name)
        if chosen is not None:
            self._refuse_twin(name)
        description = (
            None if chosen is None else new_store_description(chosen, was_dropped=self._ownership.was_dropped(name))
        )
        if coming := self._is_unregistered(name):
            description = layout.read_description_or_default()
        began, silences = time.perf_counter(), self._membership.silences
        made = None if description is None else _encode(description)
        found = self._ownership.get_or_claim_owner(name, made, coming=coming)
        if isinstance(found, RemoteStoreOwnership):
            raise build_store_owned_elsewhere_error(name, found)
        try:
            self._prepare(layout, found.claim.owner)
        except BaseException:
            self._ownership.release_claim(name)
            raise
        with self._lock:
            self._placed[name] = _PlacedStore(found.claim, silences, began)
        return found.made and chosen is not None

    @override
    def place_replica(self, name: str) -> None:
        began, silences = time.perf_counter(), self._membership.silences
        claim = self._ownership.require_complete_owner(name)
        self._prepare(self.layout(name), claim.owner, to_own=False)
        with self._lock:
            self._placed[name] = _PlacedStore(claim, silences, began, is_copy=True)

    def open_replica_files(self, name: str) -> tuple[Journal, CopiedLogPosition]:
        """Return the journal of a closed replica, created if missing, and its position.

        Raises NoStore and Unavailable.
        """
        owner, layout = self._ownership.require_complete_owner(name).owner, self.layout(name)
        self._prepare(layout, owner, to_own=False)
        layout.mark_open()
        journal = open_journal(layout, self._settings.journal_segment_mb)
        try:
            return journal, verify_replicated_log_copy_position(journal, name, owner)
        except BaseException:
            journal.close()
            raise

    @override
    def begin(self, pool: OpenStoreLookup) -> None:
        self._copies.begin(pool)

    @override
    def close(self) -> None:
        self._copies.close()

    @override
    def remove(self, name: str) -> None:
        self._copies.close_files(name)
        super().remove(name)

    @override
    def status(self, *, look: bool = True) -> ClusterStatus:
        with suppress(Unavailable):
            if look:
                self._ownership.look()
                self._formats.look()
        owners = [*self._ownership.stores().values()]
        alive = self._membership.alive()
        known = {owner.node: owner.url for owner in owners} | {name: beat.url for name, beat in alive.items()}
        stores = Counter(owner.node for owner in owners)
        nodes = [
            ClusterNode(
                name=name,
                url=url,
                state=_state(alive.get(name)),
                stores=stores[name],
            )
            for name, url in sorted(known.items())
        ]
        silent = self._membership.is_silent
        return ClusterStatus(node=self._ownership.node, silent=silent, format=self._formats.current, nodes=nodes)

    @override
    def find_disconnection(self) -> str:
        node = self._ownership.node
        if self._membership.is_silent:
            return (
                f"node {node!r} is cut off from the cluster's log: its heartbeats have not been accepted for more than "
                f"{READ_FENCE_SECONDS:g} seconds; check its connection to the NATS servers, and that two of three run"
            )
        if silent := self._copies.count_silent_shards(READ_FENCE_SECONDS):
            return (
                f"node {node!r} is cut off from the cluster's log: {silent} of its {self._log.shards} streams have not "
                f"answered for more than {READ_FENCE_SECONDS:g} seconds; check the NATS servers"
            )
        if unreached := self._peers.unreached():
            named = ", ".join(f"{name} at {url}" for name, url in sorted(unreached.items()))
            return (
                f"node {node!r} is cut off from its peers: their heartbeats arrive, but none accepts connections "
                f"({named}); check the network and --advertise-url"
            )
        return ""

    @override
    def hand_over(self, name: str, node: str) -> StoreMoveAnswer:
        alive = self._membership.alive()
        if node not in alive:
            raise Conflict(f"node {node!r} is not alive; live nodes: {', '.join(sorted(alive))}")
        url = alive[node].url
        if node != self._ownership.node:
            self._ownership.hand_over(name, node, url)
        return StoreMoveAnswer(store=name, node=node, url=url)

    @override
    def await_opened(self, name: str, node: str, until: float) -> str:
        alive = self._membership.alive()
        if node not in alive:
            return f"node {node!r} is no longer alive; another node takes over store {name!r}"
        return wait_until_node_opened_store(name, StoreHandoverTarget(node, alive[node].url, alive[node].token), until)

    @override
    def drain(self, *, undo: bool) -> list[str]:
        self._membership.drain(undo=undo)
        stores = self._ownership.stores()
        return [] if undo else sorted(name for name, owner in stores.items() if owner.node == self._ownership.node)

    @override
    def choose_successor(self, name: str) -> str:
        return self._ownership.choose_takeover_node(name, self._ownership.node).node

    @override
    def repair(self, name: str) -> int:
        layout = self.layout(name)
        claim = self._ownership.claimed(name)
        if not layout.exists:
            raise Conflict(f"node {self._ownership.node!r} has no files of store {name!r}; ask another node")
        try:
            begins = fence_replicated_log_writers(self._log, name, claim.owner.epoch + 1)
            found = self._count_matching_frames(layout, claim.owner)
            self._ownership.claim_forcibly(name, begins)
        except BaseException:
            self._ownership.release_claim(name)
            raise
        delete_replicated_log_copy_position(layout.root)
        log.warning("replicated_log_recreated", store=name, found=found, begins=begins)
        return found

    def _count_matching_frames(self, layout: StoreLayout, owner: StoreOwnerEntry) -> int:
        """Return the number of frames that a damaged log still has, all of which match the local files.

        Raises Conflict.
        """
        with closing(open_journal(layout, self._settings.journal_segment_mb)) as journal:
            return count_intact_replicated_log_frames(journal, self._log, layout.name, owner)

    @override
    def finalize_cluster_upgrade(self) -> ClusterFormatUpgradeAnswer:
        return ClusterFormatUpgradeAnswer(format=self._formats.finish(self._membership.alive()))

    @override
    def read_audit_records(self, node: str | None, limit: int) -> list[AuditRecord]:
        known = self._registry.beats()
        if node is not None and node not in known:
            raise NotFound(f"no node {node!r} was ever in this cluster; known nodes: {', '.join(sorted(known))}")
        found = [record for each in known if node in (None, each) for record in self._recorded_by(each, limit)]
        return sorted(found, key=attrgetter("time"))[-limit:]

    def _recorded_by(self, node: str, limit: int) -> list[AuditRecord]:
        if node != self._ownership.node:
            return read_replicated_audit_records(self._log, node, limit)
        return [msgspec.structs.replace(each, node=node) for each in read_newest_audit_records(self.data_dir, limit)]

    @override
    def token_of(self, node: str) -> str:
        alive = self._membership.alive()
        return alive[node].token if node in alive else ""

    @override
    def other_node_urls(self) -> dict[str, str]:
        alive = self._membership.alive()
        return {name: beat.url for name, beat in alive.items() if name != self._ownership.node}

    @override
    def open_commit_log(self, name: str, journal: Journal) -> CommitLog:
        with self._lock:
            claim, silences, began, is_copy = self._placed[name]
        if is_copy:
            return self._copies.opened(journal, name, claim.owner)
        bases = BootstrapSnapshotUploader(self.layout(name), self._settings, self._blobs, self._log, self._ownership)
        try:
            arrived = bases.arrival(claim.owner, journal) if claim.owner.coming else None
            shipping = take_over_replicated_log(journal, self._log, name, claim.owner)
            if arrived is not None:
                self._ownership.update_registry_entry(name, arrived)
                self._log.trim(name, claim.owner.begins)
        except BaseException:
            self._ownership.release_claim(name)
            raise
        self._counts.takeovers.observe(time.perf_counter() - began)
        return OwnedStoreCommitLog(shipping, bases, self._ownership, self._membership, silences, self._counts)

    @override
    def describe(self, layout: StoreLayout, description: StoreDescription) -> StoreDescription:
        self._ownership.describe(layout.name, _encode(description))
        return layout.describe(description)

    @override
    def adopt(self, name: str, folder: Path) -> None:
        if self._ownership.exists(name):
            raise Conflict(f"store {name!r} exists already")
        super().adopt(name, folder)

    @override
    def drop(self, name: str) -> None:
        with self._lock:
            claim = self._placed.pop(name).claim
        begins = fence_replicated_log_writers(self._log, name, claim.owner.epoch)
        self._ownership.drop(name, begins)
        self.remove(name)
        try:
            self._log.trim(name, begins)
            delete_unreferenced_snapshot_blobs(self._blobs, name, claim.owner, ())
        except KgserveError as error:
            log.warning("log_not_trimmed", store=name, reason=str(error))

    @override
    def forget_outdated(self, name: str) -> bool:
        self._copies.close_files(name)
        reached = read_replicated_log_copy_position(self.layout(name).root)
        if reached is None:
            return False
        exists = self._ownership.exists(name)
        owner = self._ownership.find_cached_owner(name)
        if not exists or (owner is not None and reached.is_outdated(owner)):
            self.remove(name)
        return not exists

    @override
    def list_set_aside_copies(self, name: str) -> list[Path]:
        prefix = f"{_SET_ASIDE_PREFIX}{name}-"
        # The rest is a time; other names may begin with this one.
        found = self.data_dir.glob(f"{prefix}*")
        return sorted(path for path in found if path.name.removeprefix(prefix).isdecimal())

    @override
    def clear_trash(self) -> None:
        super().clear_trash()
        for name in super().local_store_names():
            self.forget_outdated(name)

    def _was_outdated(self, name: str) -> None:
        for wake in self.outdated:
            wake(name)

    @override
    def _check_folder(self) -> None:
        file, own_name = self.data_dir / NODE_FILE, self._ownership.node
        if file.exists():
            before = decode_json(file.read_bytes(), _ClusterFile).node
            if before != own_name:
                raise Conflict(f"{self.data_dir} belongs to node {before!r} of the cluster, not to {own_name!r}")
        else:
            write_file_atomically(file, _encode(_ClusterFile(own_name)))

    @override
    def _others(self) -> Iterable[str]:
        return [*self._ownership.stores(), *super()._others()]

    def _is_unregistered(self, name: str) -> bool:
        """Return whether the folder holds a store of this name that the cluster does not know yet."""
        layout = self.layout(name)
        return (
            layout.exists
            and read_replicated_log_copy_position(layout.root) is None
            and not self._ownership.exists(name)
        )

    def _prepare(self, layout: StoreLayout, owner: StoreOwnerEntry, *, to_own: bool = True) -> None:
        """Prepare local files from which the store's log can be continued, with the settings from the registry."""
        self._copies.close_files(layout.name)
        reached = read_replicated_log_copy_position(layout.root)
        if reached is not None and reached.is_outdated(owner):
            self.remove(layout.name)
        if reached is None and layout.exists and not owner.coming and not self._is_beginning(layout, owner):
            self._set_aside(layout)
        description = decode_json(owner.description, StoreDescription)
        if layout.exists:
            if layout.description() != description:
                layout.describe(description)
        elif owner.bases:
            staging = self.staging(layout.name)
            segment_mb = self._settings.journal_segment_mb
            build_store_files_from_snapshot(staging, layout, owner, self._blobs, self._log, segment_mb, to_own=to_own)
            super().adopt(layout.name, staging)
        else:
            # Written before the journal, whose presence makes it a store. Without this position, the files would be
            # taken for a new store once the store was dropped elsewhere.
            create_private_folder(layout.root)
            write_replicated_log_copy_position(
                layout.root, CopiedLogPosition(owner.begins, 0, owner.begins, owner.erasures)
            )
            self._make(layout, description)

    def _is_beginning(self, layout: StoreLayout, owner: StoreOwnerEntry) -> bool:
        """Return whether the files are empty and the log can be read from its beginning."""
        return _is_empty(layout) and not owner.bases

    def _set_aside(self, layout: StoreLayout) -> None:
        """Rename files that are not a known replica of the log, so that the store is fetched; nothing is deleted."""
        aside = self.data_dir / f"{_SET_ASIDE_PREFIX}{layout.name}-{time.time_ns()}"
        layout.root.rename(aside)
        fsync_folder(self.data_dir)
        log.warning(
            "store_set_aside", store=layout.name, folder=str(aside), reason="it is not a known replica of the log"
        )


class _PlacedStore(NamedTuple):
    """Claim by which a store was placed, with the number of silent periods before it and its start time."""

    claim: VersionedStoreOwnerEntry
    silences: int
    began: float
    is_copy: bool = False


class OwnedStoreCommitLog(CommitLog):
    """Commit log of an owned store.

    Commits are durable on a majority of the cluster's servers and on the local disk.
    """

    def __init__(
        self,
        shipping: ReplicatedJournalWriter,
        bases: BootstrapSnapshotUploader,
        ownership: StoreOwnership,
        membership: ClusterHeartbeatExchange,
        silences: int,
        counts: ClusterNodeMetrics,
    ) -> None:
        """Create the log of a store. ``silences`` is the number of silent periods before the store was claimed."""
        super().__init__(shipping.journal)
        self._store = shipping.store
        self._shipping = shipping
        self._bases = bases
        self._ownership = ownership
        self._membership = membership
        self._silences = silences
        self._counts = counts

    @override
    def note(self) -> None:
        self._shipping.note()

    @override
    def append(self, changes: list[ChangeSet]) -> None:
        began = time.perf_counter()
        try:
            self._shipping.append(changes)
        except KgserveError as error:
            self._counts.failures.add(_FAILURE_NAMES.get(type(error), "failed"))
            raise
        self._counts.appends.observe(time.perf_counter() - began)

    @override
    def begin_segment(self) -> None:
        super().begin_segment()
        self._shipping.mark_log()

    @property
    @override
    def is_current(self) -> bool:
        if self._membership.is_silent:
            raise Unavailable("this node has lost contact with its cluster; ask another node", retry_after=5)
        known = self._silences == self._membership.silences
        return known and not self._shipping.is_over and self._ownership.owns(self._store)

    @override
    @contextmanager
    def replicate_snapshot(self, *, alone: bool = False) -> Generator[None]:
        with self._bases.upload_snapshot(lambda: self._shipping.reached, alone=alone):
            yield
            # Written before the log is trimmed, because files with an older position would be fetched again.
            self.note()
        if alone and (owner := self._ownership.find_cached_owner(self._store)) is not None:
            self._shipping.record_purge(owner.erasures)
            self.note()

    @override
    def confirm(self) -> bool:
        silences = self._membership.silences
        if not self._shipping.is_over:
            with suppress(Fenced):
                self._ownership.require_owned(self._store)
                self._silences = silences
                return True
        self._ownership.release_claim(self._store)
        return False


def _state(beat: ClusterNodeHeartbeat | None) -> NodeState:
    if beat is None:
        return "gone"
    return "draining" if beat.draining else "alive"


def _is_empty(layout: StoreLayout) -> bool:
    """Return whether a store's files contain no data, as during creation."""
    return not any(each.size for each in list_journal_segments(layout.journal)) and not list_journal_snapshots(
        layout.journal
    )


class _ClusterFile(msgspec.Struct, frozen=True):
    """Content of cluster.json: the node that owns the data folder."""

    node: str
