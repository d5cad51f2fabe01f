"""Backend interface of a cluster. `tests/cluster` runs the same tests against each implementation.

A backend provides three things: a log per store, which only a client that knows its end can append to; small registry
entries that change by compare-and-set; and files that are written once.

An unanswered request is repeated under the same identity until the implementation's timeout. Then the outcome is
unknown, and the caller has to read the current state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from kgserve.cluster.replicated_log_records import (
    LogPosition,
    PositionedReplicatedLogRecord,
    ReplicatedLogRecord,
    split_replicated_log_record,
)


class ReplicatedLog(Protocol):
    """Replicated logs of all stores. Appended records are durable on a majority of the servers. Thread-safe."""

    def end(self, store: str) -> LogPosition:
        """Return the position of a store's last record, or 0; read from the leader. Raises Unavailable."""
        ...

    def read_intact_records(self, store: str, after: LogPosition) -> Iterator[PositionedReplicatedLogRecord]:
        """Yield the intact records after a position of a damaged log, regardless of gaps. Raises Unavailable."""
        ...

    def append(self, store: str, after: LogPosition, record: ReplicatedLogRecord) -> LogPosition:
        """Append a record of limited size to a log that ends at ``after``, and return its position.

        This is the fence: after another writer has appended, a writer that does not know the new end is rejected.

        Raises Fenced if the log ends elsewhere, and OutcomeUnknown. In both cases the record may be in the log,
        unacknowledged: the caller has to read the log before it continues.
        """
        ...

    def read(self, store: str, after: LogPosition, to: LogPosition) -> Iterator[PositionedReplicatedLogRecord]:
        """Yield the records after one position up to another, in order, checking that each names the one before it.

        Raises Unavailable, and ReplicatedLogCorrupt if a record is missing or damaged, or if ``to`` lies before
        ``after``.
        """
        ...

    @property
    def shards(self) -> int:
        """Number of shards, numbered from 0, over which the stores' logs are distributed."""
        ...

    def shard_of(self, store: str) -> int:
        """Return the shard of a store's log."""
        ...

    def latest(self) -> list[LogPosition | None]:
        """Return the position of the last record in each shard, or 0; read from the leader.

        None for a shard whose leader does not answer at once.
        """
        ...

    def recent(self, shard: int, after: LogPosition) -> list[tuple[str, PositionedReplicatedLogRecord]]:
        """Return some records of a shard after a position, in order, with their stores; empty if none are new.

        The newest records may be missing until a later call, and damaged records are skipped; callers detect gaps by
        the previous position in each record. Raises Unavailable.
        """
        ...

    def trim(self, store: str, before: LogPosition, *, erase: bool = False) -> None:
        """Delete the records before a position except the last one. Idempotent. Raises Unavailable.

        With ``erase`` they are overwritten, if the backend supports that.
        """
        ...


class BootstrapSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """Files from which any node can continue a store's log: a snapshot, the history and the embeddings.

    They contain at least what the log has up to ``position``, the end of the frame with ``sequence``, and nothing
    beyond the log. ``files`` maps paths in the store's folder to names in `BlobStorage`. ``vectors`` is the size of the
    embeddings in bytes.
    """

    sequence: int
    position: LogPosition
    files: dict[str, str]
    vectors: int = 0


class StoreOwnerEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Registry entry of a store's owner: the node that serves it, its URL and the fencing epoch.

    ``description`` is the encoded description of the store. ``dropped`` marks a store that was dropped; after it is
    created again, the log up to ``begins`` belongs to the dropped one. ``bases`` are the bootstrap snapshots, oldest
    first; the log may be trimmed before the first. While a store is ``coming``, only this node has its files, and no
    log is complete. ``erasures`` counts purges; files older than a purge still contain the purged data.
    """

    node: str
    epoch: int
    url: str
    description: bytes = b""
    begins: LogPosition = 0
    dropped: bool = False
    bases: tuple[BootstrapSnapshot, ...] = ()
    coming: bool = False
    erasures: int = 0

    @property
    def oldest(self) -> LogPosition:
        """Position from which the log is certain to be available."""
        return self.bases[0].position if self.bases else self.begins

    def outdates(self, begins: LogPosition, position: LogPosition, erasures: int) -> bool:
        """Return whether a replica of the log from ``begins`` to ``position`` is obsolete or contains purged data."""
        return begins != self.begins or position < self.oldest or erasures < self.erasures


class VersionedStoreOwnerEntry(msgspec.Struct, frozen=True):
    """Registry entry of a store's owner, and its revision for compare-and-set."""

    owner: StoreOwnerEntry
    revision: int


class ClusterNodeHeartbeat(msgspec.Struct, frozen=True):
    """Heartbeat of a node; ``leaving`` marks the last one. ``run`` identifies the process.

    ``token`` authorizes any request to the node, including those forwarded for callers. A ``draining`` node takes over
    no stores. ``format`` is the newest record format that its program supports. ``gone`` maps nodes that it observed
    silent for the lease to the revisions of their last heartbeats.
    """

    node: str
    run: str
    url: str
    token: str = ""
    leaving: bool = False
    draining: bool = False
    format: int = 1
    gone: dict[str, int] = msgspec.field(default_factory=dict[str, int])


class VersionedHeartbeat(msgspec.Struct, frozen=True):
    """Last heartbeat of a node, with a rising revision."""

    beat: ClusterNodeHeartbeat
    revision: int


class VersionedRegistryEntry(msgspec.Struct, frozen=True):
    """Entry shared by all nodes, and its revision for compare-and-set."""

    data: bytes
    revision: int


class ClusterEntryRegistry(Protocol):
    """Registry of small entries with compare-and-set: store owners, heartbeats and shared entries."""

    def entries(self, after: int = 0) -> dict[str, VersionedRegistryEntry]:
        """Return the shared entries with a revision above ``after``, by name. May lag, like `owners`.

        Raises Unavailable.
        """
        ...

    def put_entry(self, name: str, data: bytes, revision: int) -> int | None:
        """Replace an entry of a revision, like `claim`. Names consist of letters, digits and dots."""
        ...

    def owners(self, after: int = 0) -> dict[str, VersionedStoreOwnerEntry]:
        """Return the claims with a revision above ``after``, of all stores that ever had an owner. Raises Unavailable.

        The result may lag and be incomplete.
        """
        ...

    def owner(self, store: str) -> VersionedStoreOwnerEntry | None:
        """Return the current claim to a store. Raises Unavailable."""
        ...

    def claim(self, store: str, owner: StoreOwnerEntry, revision: int) -> int | None:
        """Replace the claim of a revision (0 for none). Return the new revision, or None if another node was first.

        Raises OutcomeUnknown if the outcome is unknown: the claim may be in effect, so read it again.
        """
        ...

    def beat(self, beat: ClusterNodeHeartbeat, revision: int) -> int | None:
        """Replace a node's heartbeat of a revision, like `claim`. None: another process uses the same node name."""
        ...

    def beats(self) -> dict[str, VersionedHeartbeat]:
        """Return the last heartbeat of each node. The result may lag, even behind an earlier call.

        Raises Unavailable.
        """
        ...

    def read_replica_heartbeats(self) -> dict[str, VersionedHeartbeat]:
        """Return the last heartbeats that any server has, even during an election; empty if no server answers."""
        ...


class BlobStorage(Protocol):
    """Files shared by all nodes, by name. They are written once and never change."""

    def put(self, name: str, path: Path) -> bool:
        """Store a file. Return False if the name exists; that file is unchanged. Raises Unavailable."""
        ...

    def get(self, name: str, path: Path) -> None:
        """Download a file to ``path``.

        Raises NotFound, Unavailable, StorageFull, and ReplicatedLogCorrupt if it is damaged.
        """
        ...

    def names(self, prefix: str) -> list[str]:
        """Return the names with a prefix, sorted. Raises Unavailable."""
        ...

    def drop(self, name: str, *, erase: bool = False) -> None:
        """Delete a file if it exists; ``erase`` as in `ReplicatedLog.trim`. Raises Unavailable."""
        ...


def append_split_log_record(
    log: ReplicatedLog, store: str, after: LogPosition, record: ReplicatedLogRecord
) -> LogPosition:
    """Append a record of any size, split into parts if large. Return the position of the last part.

    Raises the errors of `ReplicatedLog.append`.
    """
    for part in split_replicated_log_record(record):
        after = log.append(store, after, part)
    return after
