from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from typing_extensions import override

from kgserve.cluster import replica_commit_log
from kgserve.cluster.backend import ClusterNodeHeartbeat, ReplicatedLog, StoreOwnerEntry
from kgserve.cluster.journal_replicated_log_sync import (
    LOG_POSITION_FILE,
    CopiedLogPosition,
    ReplicatedJournalWriter,
    append_replicated_records,
    fence_replicated_log_writers,
    take_over_replicated_log,
)
from kgserve.cluster.membership import ClusterHeartbeatExchange
from kgserve.cluster.ownership import StoreOwnership
from kgserve.cluster.read_replicas import ReadReplicaUpdater
from kgserve.cluster.replica_commit_log import ReplicaCommitLog
from kgserve.cluster.replicated_log_records import (
    MAX_RECORD_BYTES,
    LogPosition,
    PositionedReplicatedLogRecord,
    ReplicatedLogRecord,
    split_replicated_log_record,
)
from kgserve.errors import Fenced, NoStore, OutcomeUnknown, ReplicatedLogCorrupt, ServedElsewhere, Unavailable
from kgserve.platform.settings import Settings
from kgserve.storage.journal.journal import Journal, encode_journal_frame
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.storage.store_folder_layout import StoreLayout
from kgserve.stores.local_placement import create_store_files, new_store_description
from kgserve.stores.pool import StorePool
from tests.cluster.in_memory import MemoryLog, MemoryRig, Wire
from tests.cluster.rig import Node, Rig
from tests.engines import ENGINE
from tests.storage.journal.history import SEGMENT, mixed, nodes

CHANGES = nodes(30)
LONG = 30.0
FEW_BYTES = 500
"""Segment size in bytes, small enough for several segments."""


def owned(epoch: int, begins: int = 0, *, coming: bool = False) -> StoreOwnerEntry:
    return StoreOwnerEntry("n1", epoch, "http://n1", begins=begins, coming=coming)


class Machines:
    """Folders of one store on several machines, with their journals."""

    def __init__(self, folder: Path, closing_with: ExitStack) -> None:
        self._folder = folder
        self._closing = closing_with

    def path(self, machine: str) -> Path:
        return self._folder / machine / "journal"

    def journal(self, machine: str) -> Journal:
        """Open the journal of a machine as after a kill, or create it."""
        path = self.path(machine)
        found = Journal.open(path, FEW_BYTES, 0) if path.is_dir() else Journal.create(path, FEW_BYTES)
        return self._closing.enter_context(closing(found))

    def owner(
        self, machine: str, log: ReplicatedLog, store: str, epoch: int, *, coming: bool = False
    ) -> ReplicatedJournalWriter:
        return take_over_replicated_log(self.journal(machine), log, store, owned(epoch, coming=coming))

    def kept(self, machine: str) -> list[ChangeSet]:
        """Return the content of a machine's files."""
        return list(self.journal(machine).read(0))


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(tmp_path, stack)


@pytest.fixture
def memory() -> MemoryRig:
    """Return an in-memory rig, for tests that do not depend on the backend."""
    return MemoryRig()


def write(owner: ReplicatedJournalWriter, upto: int, per_frame: int = 1) -> None:
    while (done := owner.journal.last) < upto:
        owner.append(CHANGES[done : min(done + per_frame, upto)])


def test_a_new_owner_has_the_previous_owners_commits(rig: Rig, store: str, machines: Machines) -> None:
    first = machines.owner("a", rig.node().log, store, 1)
    write(first, 10, per_frame=3)
    second = machines.owner("b", rig.node().log, store, 2)
    assert machines.kept("b") == CHANGES[:10]
    with pytest.raises(Fenced):
        write(first, 11)
    with pytest.raises(Unavailable, match="is being taken over"):
        write(first, 11)
    assert machines.kept("a") == CHANGES[:10]
    write(second, 20)
    third = machines.owner("a", rig.node().log, store, 3)
    write(third, 25)
    machines.owner("b", rig.node().log, store, 4)
    assert machines.kept("a") == machines.kept("b") == CHANGES[:25]


def test_after_a_clean_close_only_new_records_are_read(memory: MemoryRig, store: str, machines: Machines) -> None:
    log = memory.node().log
    owner = machines.owner("a", log, store, 1)
    write(owner, 10)
    owner.note()
    log.trim(store, log.end(store))
    write(machines.owner("a", log, store, 2), 20)
    assert machines.kept("a") == CHANGES[:20]
    with pytest.raises(ReplicatedLogCorrupt):
        machines.owner("b", log, store, 3)


def test_after_a_kill_the_files_are_compared_with_the_log(memory: MemoryRig, store: str, machines: Machines) -> None:
    log = memory.node().log
    write(machines.owner("a", log, store, 1), 10)
    write(machines.owner("a", log, store, 2), 20)
    assert machines.kept("a") == CHANGES[:20]


def test_lost_files_are_restored_from_the_log(memory: MemoryRig, store: str, machines: Machines) -> None:
    log = memory.node().log
    owner = machines.owner("a", log, store, 1)
    write(owner, 10)
    owner.note()
    for path in machines.path("a").iterdir():
        path.unlink()
    machines.path("a").rmdir()
    machines.owner("a", log, store, 2)
    assert machines.kept("a") == CHANGES[:10]


def test_files_that_differ_from_the_log_are_reported(memory: MemoryRig, store: str, machines: Machines) -> None:
    log = memory.node().log
    write(machines.owner("a", log, store, 1), 10)
    other = machines.journal("b")
    other.append(CHANGES[:4])
    other.append(nodes(5, size=11)[4:])
    with pytest.raises(ReplicatedLogCorrupt, match=r"sequence 1 of .* differs between the log and this node"):
        machines.owner("b", log, store, 2)


def test_a_log_that_lost_its_end_is_reported(memory: MemoryRig, store: str, machines: Machines) -> None:
    log = memory.node().log
    write(machines.owner("a", log, store, 1), 10)
    for _ in range(3):
        memory.lose_record(store, log.end(store))
    with pytest.raises(ReplicatedLogCorrupt, match=r"ends with sequence 7, but this node has sequence 10"):
        machines.owner("a", log, store, 2)
    assert machines.kept("a") == CHANGES[:10]


def test_a_standalone_journal_is_appended_to_the_log(memory: MemoryRig, store: str, machines: Machines) -> None:
    log = memory.node().log
    alone = machines.journal("a")
    for change in CHANGES[:10]:
        alone.append([change])
    write(machines.owner("a", log, store, 1, coming=True), 15)
    machines.owner("b", log, store, 2)
    assert machines.kept("a") == machines.kept("b") == CHANGES[:15]


def test_an_interrupted_import_of_a_journal_is_repeated(memory: MemoryRig, store: str, machines: Machines) -> None:
    log = memory.node().log
    alone = machines.journal("a")
    for change in CHANGES[:10]:
        alone.append([change])
    machines.owner("a", log, store, 1, coming=True)
    for _ in range(4):
        memory.lose_record(store, log.end(store))
    (machines.path("a").parent / LOG_POSITION_FILE).unlink()
    machines.owner("a", log, store, 2, coming=True)
    machines.owner("b", log, store, 3)
    assert machines.kept("b") == CHANGES[:10]


def test_a_dropped_store_of_the_same_name_is_ignored(memory: MemoryRig, store: str, machines: Machines) -> None:
    log = memory.node().log
    write(dropped := machines.owner("a", log, store, 1), 10)
    begins = fence_replicated_log_writers(log, store, 1)
    with pytest.raises(Fenced):
        write(dropped, 11)
    log.trim(store, begins)
    write(take_over_replicated_log(machines.journal("b"), log, store, owned(2, begins)), 5)
    take_over_replicated_log(machines.journal("c"), log, store, owned(3, begins))
    assert machines.kept("b") == machines.kept("c") == CHANGES[:5]


def test_a_late_takeover_does_not_fence_a_later_owner(memory: MemoryRig, store: str, machines: Machines) -> None:
    log = memory.node().log
    write(machines.owner("a", log, store, 1), 5)
    latest = machines.owner("b", log, store, 3)
    with pytest.raises(Fenced, match="by the owner of epoch 3"):
        machines.owner("a", log, store, 2)
    write(latest, 10)


def test_an_unconfirmed_write_is_present_or_absent_after_takeover(
    memory: MemoryRig, store: str, machines: Machines
) -> None:
    node, fault = memory.faulty_node(1)
    owner = machines.owner("a", node.log, store, 1)
    write(owner, 5)
    fault.lose_answers()
    with pytest.raises(OutcomeUnknown):
        write(owner, 6)
    # The files are never ahead of the log, and no write follows an unconfirmed one.
    assert machines.kept("a") == CHANGES[:5]
    fault.heal()
    assert owner.is_over
    again = machines.owner("a", memory.node().log, store, 2)
    assert machines.kept("a") == CHANGES[:6]
    write(again, 7)


def test_frames_missing_in_the_files_are_read_from_the_log(memory: MemoryRig, store: str, machines: Machines) -> None:
    log = memory.node().log
    owner = machines.owner("a", log, store, 1)
    write(owner, 5)
    os.close(owner.journal._descriptor)
    owner.journal._descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OutcomeUnknown, match=r"it appears when the store is opened again: .*space"):
        write(owner, 6)
    with pytest.raises(Unavailable, match="is being taken over"):
        write(owner, 6)
    machines.owner("a", log, store, 2)
    assert machines.kept("a") == CHANGES[:6]


def test_a_frame_larger_than_a_message_is_shipped(rig: Rig, store: str, machines: Machines) -> None:
    log, large = rig.node().log, nodes(3, size=MAX_RECORD_BYTES)
    machines.owner("a", log, store, 1).append(large)
    machines.owner("b", log, store, 2)
    assert machines.kept("b") == large


def test_a_partially_read_frame_is_read_again(memory: MemoryRig, store: str, machines: Machines) -> None:
    log, large = memory.node().log, nodes(3, size=MAX_RECORD_BYTES)
    journal = machines.journal("a")
    *parts, final = split_replicated_log_record(ReplicatedLogRecord("frame", 1, 1, 3, encode_journal_frame(large)))
    end = 0
    for part in parts:
        end = log.append(store, end, part)
    reached = append_replicated_records(journal, log.read(store, 0, end), store, 2, CopiedLogPosition())
    end = log.append(store, end, final)
    append_replicated_records(journal, log.read(store, reached.position, end), store, 2, reached)
    assert machines.kept("a") == large


def test_a_store_opens_unchanged_after_a_takeover(memory: MemoryRig, store: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, engine=ENGINE, embedding_provider="hashing")
    log, history = memory.node().log, mixed()
    for epoch, name in enumerate(("a", "b"), 1):
        layout = StoreLayout(tmp_path, name)
        create_store_files(layout, settings.journal_segment_mb, new_store_description(StoreSettings()))
        with closing(Journal.open(layout.journal, SEGMENT, 0)) as journal:
            owner = take_over_replicated_log(journal, log, store, owned(epoch))
            if name == "a":
                owner.append(history.changes[:3])
                owner.append(history.changes[3:])
    pool = StorePool(settings)
    try:
        for name in ("a", "b"):
            with pool.lease(name) as found:
                assert found.state == history.state
                assert found.check().ok
    finally:
        pool.close()


def test_a_takeover_waits_for_a_concurrent_write(memory: MemoryRig, store: str, machines: Machines) -> None:
    node, fault = memory.faulty_node(LONG)
    owner = machines.owner("a", node.log, store, 1)
    fault.lose_answers()
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write, owner, 1)
        others = memory.node().log
        while [each.record.kind for each in others.read(store, 0, others.end(store))] != ["take", "frame"]:
            assert not writing.done()
        assert not owner.is_over
        fault.heal()
        writing.result(LONG)
    assert not owner.is_over


class _OpenReplica:
    """An open replica that records, for each commit that it applies, whether it counted as up to date until then."""

    def __init__(self, commits: ReplicaCommitLog) -> None:
        self.commits = commits
        self.is_open = False
        self.counted_as_followed: list[bool] = []

    def follow(self, changes: list[ChangeSet]) -> None:
        self.counted_as_followed.append(self.commits.is_followed)
        self.commits.append(changes)

    @contextmanager
    def peek_open(self, name: str) -> Generator[_OpenReplica | None]:
        yield self if self.is_open else None

    @contextmanager
    def reserve_if_closed(self, name: str) -> Generator[bool]:
        yield False


class _NoReplicaFiles:
    def open_replica_files(self, name: str) -> tuple[Journal, CopiedLogPosition]:
        raise NoStore(name)

    def remove(self, name: str) -> None:
        raise NoStore(name)


def _updater(node: Node, store: str) -> ReadReplicaUpdater:
    """Return the updater of node n2, while node n1 serves the store."""
    node.registry.claim(store, owned(1), 0)
    membership = ClusterHeartbeatExchange(node.registry, ClusterNodeHeartbeat("n2", "run", "http://n2"))
    membership.send_heartbeat()
    ownership = StoreOwnership(node.registry, membership)
    ownership.look()
    return ReadReplicaUpdater(node.log, ownership, _NoReplicaFiles(), 0, 64)


def test_a_replica_that_missed_records_is_not_followed_before_it_has_them(
    memory: MemoryRig, store: str, machines: Machines
) -> None:
    node = memory.node()
    updater = _updater(node, store)
    owner = machines.owner("a", node.log, store, 1)
    write(owner, 5)
    replica = _OpenReplica(updater.opened(machines.journal("b"), store, owned(1)))
    write(owner, 6)
    updater.follow_logs(replica)
    replica.is_open = True
    updater.follow_logs(replica)
    assert (replica.counted_as_followed, replica.commits.is_followed) == ([False], True)
    assert machines.kept("b") == CHANGES[:6]


class _FourShardLog(MemoryLog):
    """Log of four shards that names their ends, but returns no new records, as if its servers had just stopped."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self.ends: list[LogPosition | None] = [0] * 4
        self.asked = list[int]()

    @property
    @override
    def shards(self) -> int:
        return len(self.ends)

    @override
    def latest(self) -> list[LogPosition | None]:
        return self.ends

    @override
    def recent(self, shard: int, after: LogPosition) -> list[tuple[str, PositionedReplicatedLogRecord]]:
        self.asked.append(shard)
        return []


def test_a_log_that_stops_answering_is_waited_for_once(memory: MemoryRig, store: str, machines: Machines) -> None:
    node, wire = memory.faulty_node(10)
    log = _FourShardLog(wire)
    updater = _updater(replace(node, log=log), store)
    machines.owner("a", node.log, store, 1)
    replica = _OpenReplica(updater.opened(machines.journal("b"), store, owned(1)))
    # The leaders of two shards have answered when all servers stop.
    log.ends = [None, 9, None, 9]
    updater.follow_logs(replica)
    assert log.asked == [1]


class _StoppingLog(MemoryLog):
    """Log that can be stopped after it has named the ends of its shards."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self.running = threading.Event()
        self.running.set()
        self.is_waited_for = threading.Event()

    @override
    def end(self, store: str) -> LogPosition:
        self.is_waited_for.set()
        assert self.running.wait(LONG)
        return super().end(store)


def test_a_replica_redirects_while_its_updater_waits_for_a_stopped_log(
    memory: MemoryRig, store: str, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_commit_log, "LOG_CONTACT_SECONDS", LONG)
    node, wire = memory.faulty_node(10)
    log = _StoppingLog(wire)
    ClusterHeartbeatExchange(node.registry, ClusterNodeHeartbeat("n1", "run", "http://n1")).send_heartbeat()
    updater = _updater(replace(node, log=log), store)
    machines.owner("a", node.log, store, 1)
    replica = _OpenReplica(updater.opened(machines.journal("b"), store, owned(1)))
    replica.is_open = True
    log.running.clear()
    log.is_waited_for.clear()
    with ThreadPoolExecutor(1) as pool:
        updating = pool.submit(updater.follow_logs, replica)
        assert log.is_waited_for.wait(LONG)
        replica.commits.require_log_contact()
        monkeypatch.setattr(replica_commit_log, "LOG_CONTACT_SECONDS", 0.0)
        with pytest.raises(ServedElsewhere, match="http://n1"):
            replica.commits.require_log_contact()
        log.running.set()
        updating.result(LONG)
    monkeypatch.setattr(replica_commit_log, "LOG_CONTACT_SECONDS", LONG)
    replica.commits.require_log_contact()
    assert replica.commits.is_followed
