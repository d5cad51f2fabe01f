"""Conformance suite of the cluster protocols; each test runs with every implementation."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path

import pytest

from kgserve.cluster.backend import (
    ClusterNodeHeartbeat,
    ReplicatedLog,
    StoreOwnerEntry,
    VersionedHeartbeat,
    VersionedRegistryEntry,
    append_split_log_record,
)
from kgserve.cluster.replicated_log_records import (
    MAX_RECORD_BYTES,
    PositionedReplicatedLogRecord,
    ReplicatedLogRecord,
    join_replicated_log_records,
)
from kgserve.errors import Fenced, NotFound, OutcomeUnknown, ReplicatedLogCorrupt
from tests.cluster.rig import Node, Rig

NODES = 10
RACES = 8
ZOMBIES = 3
PATIENCE = 30.0
SHORT, LONG = 2.0, 20.0
"""Timeouts in seconds, shorter and longer than the time until a lost response is noticed."""


def frame(sequence: int, epoch: int = 1, data: bytes = b"rows") -> ReplicatedLogRecord:
    return ReplicatedLogRecord("frame", epoch, sequence, sequence, data)


def take(epoch: int) -> ReplicatedLogRecord:
    return ReplicatedLogRecord("take", epoch)


def owner(node: int, epoch: int = 1) -> StoreOwnerEntry:
    return StoreOwnerEntry(f"n{node}", epoch, f"http://n{node}:8080")


def whole(log: ReplicatedLog, store: str) -> list[PositionedReplicatedLogRecord]:
    """Return all records of a log, asserting that each names the previous one."""
    found = list(log.read(store, 0, log.end(store)))
    assert all(before.position == after.before < after.position for before, after in pairwise(found))
    return found


def written(log: ReplicatedLog, store: str, count: int) -> list[int]:
    """Append ``count`` frames, and return their positions."""
    positions = [0]
    for sequence in range(1, count + 1):
        positions.append(log.append(store, positions[-1], frame(sequence)))
    return positions[1:]


def took_over(log: ReplicatedLog, store: str, epoch: int) -> int:
    """Append a take record at the end of the log, retrying if another writer is faster."""
    while True:
        try:
            return log.append(store, log.end(store), take(epoch))
        except Fenced:
            continue


def write_on(log: ReplicatedLog, store: str, epoch: int, acknowledged: list[int], begun: threading.Event) -> None:
    """Append frames until an append is rejected."""
    position = log.end(store)
    for sequence in count(1):
        position = log.append(store, position, frame(sequence, epoch))
        acknowledged.append(position)
        begun.set()


# Log


def test_appended_records_are_read_in_order(rig: Rig, store: str) -> None:
    log = rig.node().log
    assert (log.end(store), list(log.read(store, 0, 0))) == (0, [])
    positions = written(log, store, 300)
    assert log.end(store) == positions[-1]
    for reader in (log, rig.node().log):
        found = whole(reader, store)
        assert [each.position for each in found] == positions
        assert [each.record for each in found] == [frame(sequence) for sequence in range(1, 301)]
    middle = list(log.read(store, positions[9], positions[19]))
    assert [each.record.first for each in middle] == list(range(11, 21))


def test_logs_of_stores_are_independent(rig: Rig, store: str) -> None:
    log = rig.node().log
    names = [store, f"{store}.b", f"{store}.b.c", f"{store}-b", store.upper()]
    for number, name in enumerate(names, 1):
        written(log, name, number)
    assert [len(whole(log, name)) for name in names] == [1, 2, 3, 4, 5]


def test_an_append_must_name_the_end_of_the_log(rig: Rig, store: str) -> None:
    mine, others = rig.node().log, rig.node().log
    first, last = written(mine, store, 2)
    for wrong in (0, first, last + 1):
        with pytest.raises(Fenced):
            others.append(store, wrong, frame(3, epoch=2))
    assert len(whole(mine, store)) == 2
    assert others.append(store, last, frame(3, epoch=2)) == mine.end(store)


def test_a_fenced_writer_appends_nothing_after_its_successor(rig: Rig, store: str) -> None:
    successor = rig.node().log
    for epoch in range(1, ZOMBIES + 1):
        acknowledged: list[int] = []
        begun = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            zombie = thread.submit(write_on, rig.node().log, store, epoch, acknowledged, begun)
            assert begun.wait(PATIENCE)
            taken = took_over(successor, store, epoch + 1)
            with pytest.raises(Fenced):
                zombie.result(PATIENCE)
        found = whole(successor, store)
        assert [each for each in found if each.position > taken] == []
        # All acknowledged records are present.
        assert {*acknowledged} <= {each.position for each in found}


def test_only_one_of_ten_concurrent_takeovers_succeeds(rig: Rig, store: str) -> None:
    nodes = [rig.node() for _ in range(NODES)]
    with ThreadPoolExecutor(NODES) as threads:
        for epoch in range(1, RACES + 1):
            end = nodes[0].log.end(store)
            claim = nodes[0].registry.owner(store)
            revision = claim.revision if claim is not None else 0
            barrier = threading.Barrier(NODES)

            def race(number: int, end: int = end, revision: int = revision, epoch: int = epoch) -> tuple[bool, bool]:
                barrier.wait()  # noqa: B023 - they are done before the next one is made
                claimed = nodes[number].registry.claim(store, owner(number, epoch), revision) is not None
                try:
                    nodes[number].log.append(store, end, ReplicatedLogRecord("take", epoch, number))
                except Fenced:
                    return claimed, False
                return claimed, True

            claimed, taken = zip(*threads.map(race, range(NODES)), strict=True)
            assert (sum(claimed), sum(taken)) == (1, 1)
            present = nodes[-1].registry.owner(store)
            assert present is not None
            assert present.owner == owner(claimed.index(True), epoch)
            assert whole(nodes[-1].log, store)[-1].record == ReplicatedLogRecord("take", epoch, taken.index(True))


@pytest.mark.usefixtures("hasty")
def test_a_lost_response_is_resolved_by_reading(rig: Rig, store: str) -> None:
    node, fault = rig.faulty_node(LONG)
    (first,) = written(node.log, store, 1)
    fault.lose_answers()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(node.log.append, store, first, frame(2))
        others = rig.node().log
        while others.end(store) == first:
            assert not waiting.done()
        fault.heal()
        assert waiting.result(LONG) == others.end(store)
    assert [each.record for each in whole(others, store)] == [frame(1), frame(2)]


@pytest.mark.usefixtures("hasty")
def test_a_missing_response_is_unconfirmed(rig: Rig, store: str) -> None:
    node, fault = rig.faulty_node(SHORT)
    (first,) = written(node.log, store, 1)
    fault.lose_answers()
    with pytest.raises(OutcomeUnknown):
        node.log.append(store, first, frame(2))
    fault.heal()
    # The record was stored, so a writer that continues without it is rejected.
    with pytest.raises(Fenced):
        rig.node().log.append(store, first, frame(2, epoch=2))
    assert [each.record for each in whole(rig.node().log, store)] == [frame(1), frame(2)]


def test_duplicate_requests_are_stored_once(rig: Rig, store: str) -> None:
    node, fault = rig.faulty_node(LONG)
    fault.double_requests()
    written(node.log, store, 20)
    revision = node.registry.claim(store, owner(1), 0)
    assert revision is not None
    assert node.registry.claim(store, owner(1, 2), revision) is not None
    assert [each.record for each in whole(rig.node().log, store)] == [frame(each) for each in range(1, 21)]


def test_a_large_frame_is_reassembled(rig: Rig, store: str) -> None:
    log = rig.node().log
    large = frame(1, data=bytes(range(256)) * (MAX_RECORD_BYTES // 100))
    last = append_split_log_record(log, store, 0, large)
    append_split_log_record(log, store, last, frame(2))
    assert [each.record.kind for each in whole(log, store)] == ["part", "part", "frame", "frame"]
    assert [each.record for each in join_replicated_log_records(whole(log, store))] == [large, frame(2)]


def test_an_incomplete_frame_is_not_read(rig: Rig, store: str) -> None:
    log = rig.node().log
    end = log.append(store, 0, frame(1))
    for _ in range(3):
        end = log.append(store, end, ReplicatedLogRecord("part", 1, 2, 2, b"half"))
    end = log.append(store, end, take(2))
    end = log.append(store, end, ReplicatedLogRecord("part", 2, 2, 2, b"an"))
    end = log.append(store, end, ReplicatedLogRecord("frame", 2, 2, 2, b"other"))
    end = log.append(store, end, ReplicatedLogRecord("part", 2, 3, 3, b"and no more"))
    assert [each.record for each in join_replicated_log_records(whole(log, store))] == [
        frame(1),
        take(2),
        frame(2, 2, b"another"),
    ]


def test_a_gap_is_reported(rig: Rig, store: str) -> None:
    log = rig.node().log
    positions = written(log, store, 10)
    rig.lose_record(store, positions[4])
    with pytest.raises(
        ReplicatedLogCorrupt, match=f"{store}.* has a gap: position {positions[3]} is followed by {positions[5]}"
    ):
        whole(log, store)
    assert len(list(log.read(store, 0, positions[3]))) == 4
    assert len(list(log.read(store, positions[4], positions[9]))) == 5


def test_a_lost_end_is_reported_and_never_overwritten(rig: Rig, store: str) -> None:
    log = rig.node().log
    positions = written(log, store, 10)
    for position in positions[5:]:
        rig.lose_record(store, position)
    assert log.end(store) == positions[4]
    with pytest.raises(ReplicatedLogCorrupt, match=f"ends at .*{positions[4]}.*{positions[9]}"):
        list(log.read(store, positions[9], log.end(store)))
    with pytest.raises(ReplicatedLogCorrupt, match="lacks the records after"):
        list(log.read(store, 0, positions[9]))
    with pytest.raises(Fenced):
        log.append(store, positions[9], frame(11))


def test_trimming_keeps_later_records(rig: Rig, store: str) -> None:
    log = rig.node().log
    positions = written(log, store, 10)
    log.trim(store, positions[3])
    rig.wait_until_gone(store, positions[0])
    assert [each.record.first for each in log.read(store, positions[3], positions[9])] == list(range(5, 11))
    with pytest.raises(ReplicatedLogCorrupt):
        list(log.read(store, 0, positions[9]))
    log.trim(store, positions[9] + 1)
    assert log.end(store) == positions[9]
    with pytest.raises(Fenced):
        log.append(store, 0, frame(1))
    last = log.append(store, positions[9], frame(11))
    assert [each.record for each in log.read(store, positions[9], last)] == [frame(11)]
    log.trim(f"{store}-empty", 5)


# Registry


def test_a_claim_replaces_the_revision_that_was_read(rig: Rig, store: str) -> None:
    mine, others = rig.node().registry, rig.node().registry
    assert mine.owner(store) is None
    assert store not in mine.owners()
    first = mine.claim(store, owner(1), 0)
    assert first is not None
    assert others.claim(store, owner(2), 0) is None
    second = others.claim(store, owner(2, 2), first)
    assert second is not None
    assert mine.claim(store, owner(1, 2), first) is None
    present = mine.owner(store)
    assert present is not None
    assert (present.owner, present.revision) == (owner(2, 2), second)
    assert mine.owners()[store] == present


def test_all_claims_are_listed(rig: Rig, store: str) -> None:
    registry = rig.node().registry
    names = [f"{store}-{number}" for number in range(300)]
    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(lambda name: registry.claim(name, owner(1), 0), names))
    for name in names[:10]:
        claim = registry.owner(name)
        assert claim is not None
        assert registry.claim(name, owner(2, 2), claim.revision)
    found = {name: claim.owner.epoch for name, claim in registry.owners().items() if name in names}
    assert found == {name: 2 if name in names[:10] else 1 for name in names}


@pytest.mark.usefixtures("hasty")
def test_a_claim_with_a_lost_response_takes_effect(rig: Rig, store: str) -> None:
    node, fault = rig.faulty_node(LONG)
    fault.lose_answers()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(node.registry.claim, store, owner(1), 0)
        others = rig.node().registry
        while others.owner(store) is None:
            assert not waiting.done()
        fault.heal()
        present = others.owner(store)
        assert present is not None
        assert waiting.result(LONG) == present.revision


def test_an_entry_is_shared_and_replaced_by_revision(rig: Rig, store: str) -> None:
    mine, others = rig.node().registry, rig.node().registry
    name = f"key.{store}"
    first = mine.put_entry(name, b"one", 0)
    assert first is not None
    assert others.entries()[name] == VersionedRegistryEntry(b"one", first)
    assert others.put_entry(name, b"two", 0) is None
    second = others.put_entry(name, b"two", first)
    assert second is not None
    assert mine.entries(first)[name] == VersionedRegistryEntry(b"two", second)
    assert name not in mine.entries(second)


def test_heartbeats_are_visible_and_duplicate_names_are_detected(rig: Rig, store: str) -> None:
    mine, others = rig.node().registry, rig.node().registry
    names = [f"{store}-a", f"{store}-b"]
    beats = [ClusterNodeHeartbeat(name, "first run", "http://here") for name in names]
    revisions = [mine.beat(beat, 0) for beat in beats]
    heard = others.beats()
    until = time.monotonic() + 10
    while others.read_replica_heartbeats().get(names[1]) != heard[names[1]]:
        assert time.monotonic() < until
    assert [heard[name] for name in names] == [
        VersionedHeartbeat(beat, revision or 0) for beat, revision in zip(beats, revisions, strict=True)
    ]
    assert revisions[0] is not None
    again = mine.beat(beats[0], revisions[0])
    assert again is not None
    assert again > revisions[0]
    usurper = ClusterNodeHeartbeat(names[0], "second run", "http://here")
    assert others.beat(usurper, others.beats()[names[0]].revision) is not None
    assert mine.beat(beats[0], again) is None
    assert mine.beats()[names[0]].beat == usurper


# Files


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for size in (0, 5, 3_000_000):
        (tmp_path / str(size)).write_bytes(b"abcde" * (size // 5))
    return tmp_path


def test_files_are_returned_unchanged(rig: Rig, store: str, files: Path) -> None:
    node, others = rig.node(), rig.node()
    for size in ("0", "5", "3000000"):
        name = f"snap/{store}/{size}"
        assert node.blobs.put(name, files / size)
        others.blobs.get(name, files / "back")
        assert (files / "back").read_bytes() == (files / size).read_bytes()
    assert node.blobs.names(f"snap/{store}/") == [f"snap/{store}/{size}" for size in ("0", "3000000", "5")]


def test_a_blob_name_is_written_once(rig: Rig, store: str, files: Path) -> None:
    node = rig.node()
    assert node.blobs.put(store, files / "5")
    assert not node.blobs.put(store, files / "0")
    node.blobs.get(store, files / "back")
    assert (files / "back").read_bytes() == b"abcde"


def test_a_dropped_blob_is_deleted_and_its_name_free(rig: Rig, store: str, files: Path) -> None:
    node: Node = rig.node()
    node.blobs.drop(store)
    assert node.blobs.put(store, files / "5")
    node.blobs.drop(store)
    assert node.blobs.names(store) == []
    with pytest.raises(NotFound, match=store):
        node.blobs.get(store, files / "back")
    assert node.blobs.put(store, files / "3000000")
