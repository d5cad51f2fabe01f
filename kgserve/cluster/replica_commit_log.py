"""Commit log of a read replica: it applies another node's commits, and knows how old the replica may be.

The age counts from a moment at which the leader of the log named its end and the replica had all of it. That moment is
dated by the node's last accepted heartbeat before it, because a leader that was cut off answers for some seconds more,
but accepts no heartbeat.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from typing_extensions import override

from kgserve.cluster.backend import ReplicatedLog
from kgserve.cluster.journal_replicated_log_sync import (
    CopiedLogPosition,
    decode_logged_journal_frame,
    write_replicated_log_copy_position,
)
from kgserve.cluster.membership import read_boottime_clock_seconds
from kgserve.cluster.ownership import RemoteStoreOwnership, StoreOwnership
from kgserve.cluster.replicated_log_records import (
    LogPosition,
    PositionedReplicatedLogRecord,
    join_replicated_log_records,
)
from kgserve.errors import KgserveError, OwnerUnreachable, ReplicatedLogCorrupt, ServedElsewhere, Unavailable
from kgserve.storage.journal.journal import Journal
from kgserve.stores.local_placement import CopyCommitLog, ReplicaStore

LOG_CONTACT_SECONDS = 4.0
"""Time without an answer of the log after which a replica that needs it redirects instead; longer than a poll."""


def build_store_owned_elsewhere_error(store: str, found: RemoteStoreOwnership) -> ServedElsewhere | OwnerUnreachable:
    """Build the error for a request for a store of another node: a redirect, or that its owner is unreachable."""
    if found.quiet:
        return OwnerUnreachable(
            f"store {store!r} is served by node {found.node!r} of the cluster, which has not sent heartbeats for "
            "seconds; another node may take over. Try again",
            retry_after=1,
        )
    return build_owner_redirect_error(store, found)


def build_owner_redirect_error(store: str, found: RemoteStoreOwnership) -> ServedElsewhere:
    """Build the error that redirects a request to the node that serves its store."""
    message = f"store {store!r} is served by node {found.node!r} of the cluster, at {found.url}"
    return ServedElsewhere(message, found.node, found.url)


class LogShardFreshness:
    """For each shard of the log, up to when this node is known to have read all of it. Thread-safe."""

    def __init__(self, ownership: StoreOwnership, shards: int) -> None:
        self._ownership = ownership
        self._confirmed = [-math.inf] * shards
        self._answers = [True] * shards
        self._answered_at = [read_boottime_clock_seconds()] * shards

    def date_of_now(self) -> float:
        """Return the date of what the log's leader says next: that of the last accepted heartbeat."""
        return self._ownership.last_contact

    def confirm(self, shard: int, date: float) -> None:
        """Record that everything acknowledged until ``date`` was read from a shard."""
        self._confirmed[shard] = date

    def record_contact(self, shard: int, *, answers: bool) -> None:
        """Record whether the leader of a shard answers."""
        self._answers[shard] = answers
        if answers:
            self._answered_at[shard] = read_boottime_clock_seconds()

    def confirmed_at(self, shard: int) -> float:
        """Return the date until which a shard was read."""
        return self._confirmed[shard]

    def count_silent_shards(self, seconds: float) -> int:
        """Return the number of shards whose leaders have not answered for ``seconds``."""
        return sum(not self.answered_within(shard, seconds) for shard in range(len(self._answered_at)))

    def answered_within(self, shard: int, seconds: float) -> bool:
        """Return whether the leader of a shard has answered in the last ``seconds``."""
        return read_boottime_clock_seconds() - self._answered_at[shard] <= seconds

    def answers(self, shard: int) -> bool:
        """Return whether the leader of a shard answered when last asked."""
        return self._answers[shard]


class ReplicaCommitLog(CopyCommitLog):
    """Commit log of a replica, which only applies commits from the store's log."""

    def __init__(
        self,
        journal: Journal,
        logs: ReplicatedLog,
        ownership: StoreOwnership,
        store: str,
        reached: CopiedLogPosition,
        freshness: LogShardFreshness,
        confirmed_at: float,
    ) -> None:
        """Follow a log from the position ``reached``, which was its end at the date ``confirmed_at``."""
        super().__init__(journal)
        self.is_followed = False
        """True while the updater hands every new record of the shard to this replica, and none failed."""
        self._shard = logs.shard_of(store)
        self._freshness = freshness
        self._confirmed_at = confirmed_at
        self._log = logs
        self._ownership = ownership
        self._store = store
        self._reached = reached
        self._turn = threading.Lock()
        self._is_over = False

    @property
    @override
    def is_current(self) -> bool:
        owner = self._ownership.find_cached_owner(self._store)
        if self._is_over or owner is None or owner.node == self._ownership.node:
            return False
        return not self._reached.is_outdated(owner)

    @property
    @override
    def age(self) -> float:
        confirmed = self._confirmed_at
        if self.is_followed:
            confirmed = max(confirmed, self._freshness.confirmed_at(self._shard))
        return max(read_boottime_clock_seconds() - confirmed, 0.0)

    @override
    def require_log_contact(self) -> None:
        answers = self._freshness.answers(self._shard)
        # An updater that waits for a log that has just stopped learns nothing of it until it times out.
        if answers and self._freshness.answered_within(self._shard, LOG_CONTACT_SECONDS):
            return
        if (found := self._ownership.find_cached_remote_owner(self._store)) is not None:
            raise build_owner_redirect_error(self._store, found)
        if answers:
            return
        raise Unavailable(
            f"the copy of store {self._store!r} at node {self._ownership.node!r} is {self.age:.0f} seconds old and "
            "cannot be updated, because neither the cluster's log nor the node that serves the store answers; try "
            "again, or allow an older copy with Kgserve-Max-Staleness",
            retry_after=5,
        )

    @override
    def confirm(self) -> bool:
        if self.is_current:
            self.raise_for_owner()
        return False

    def raise_for_owner(self) -> None:
        """Raise ServedElsewhere or OwnerUnreachable if another node serves the store.

        Raises NoStore and Unavailable.
        """
        found = self._ownership.evaluate_claim(self._store, self._ownership.claimed(self._store))
        if isinstance(found, RemoteStoreOwnership):
            raise build_store_owned_elsewhere_error(self._store, found)

    @override
    def build_write_refusal(self) -> KgserveError:
        self.raise_for_owner()
        return Unavailable(f"store {self._store!r} is being taken over", retry_after=1)

    @override
    def note(self) -> None:
        write_replicated_log_copy_position(self.journal.folder.parent, self._reached)

    @override
    def catch_up(self, store: ReplicaStore, found: Sequence[PositionedReplicatedLogRecord] = ()) -> None:
        """Apply the new records of the log, some of which may be ``found`` already. Blocks.

        Raises StorageFull, Unavailable, and ReplicatedLogCorrupt, after which the replica is unusable.
        """
        with self._turn:
            date, is_behind = self._freshness.date_of_now(), True
            try:
                for logged in join_replicated_log_records(
                    read_new_log_records(self._log, self._store, self._reached.position, found)
                ):
                    self._take(store, logged)
                is_behind = False
            except ReplicatedLogCorrupt:
                self._is_over = True
                raise
            finally:
                if is_behind:
                    self.is_followed = False
                elif not found:
                    self._confirmed_at = date

    def _take(self, store: ReplicaStore, logged: PositionedReplicatedLogRecord) -> None:
        sequence = self._reached.sequence
        if logged.record.kind == "frame":
            frame = decode_logged_journal_frame(self._store, logged)
            if frame.first != sequence + 1:
                raise ReplicatedLogCorrupt(
                    f"the log of store {self._store!r} continues with sequence {frame.first} after {sequence}"
                )
            self.apply_frame(store, frame, logged.record.data)
            sequence = frame.last
        self._reached = replace(self._reached, position=logged.position, sequence=sequence)


def read_new_log_records(
    logs: ReplicatedLog, store: str, after: LogPosition, found: Sequence[PositionedReplicatedLogRecord]
) -> Iterable[PositionedReplicatedLogRecord]:
    """Return the records after a position: ``found`` if that matches, else read from the log.

    Raises ReplicatedLogCorrupt and Unavailable.
    """
    if found and found[0].before == after:
        return found
    if found and found[-1].position <= after:
        return ()
    return logs.read(store, after, logs.end(store))
