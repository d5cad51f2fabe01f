"""Write queue of a store: bounded, committed in groups, finished before closing."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from kgserve.errors import InvalidInput, StorageFull, Unavailable
from kgserve.platform.metrics.app_metrics_and_request_context import StoreWriteCounters
from kgserve.storage.model.node_edge_fields import NodeExtrasUpsert
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.write_planner import MIN_COMMIT_TIME_MICROSECONDS, WriteReport
from kgserve.stores import writer_thread
from tests.stores.writing import PATIENCE, assert_whole, batch, frames, held, ids, opened, until, write, write_together


def test_concurrent_writes_get_distinct_sequences_and_share_frames(tmp_path: Path) -> None:
    futures: list[Future[WriteReport]] = []
    with opened(tmp_path) as store:
        write(store, batch("hub"))

        def work(number: int) -> None:
            for turn in range(25):
                node = f"n{number}-{turn}"
                futures.append(store.submit(batch(node, edges=[(node, "hub", "r")])))

        with held(store):
            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        reports = [future.result(PATIENCE) for future in futures]
        assert sorted(report.sequence for report in reports) == list(range(2, 202))
        assert all(report.edges_created == 1 for report in reports)
        assert_whole(store)
    found = frames(tmp_path)
    assert sum(frame.count for frame in found) == 201
    assert len(found) < 10


def test_a_full_queue_rejects_or_waits_as_requested(tmp_path: Path) -> None:
    with opened(tmp_path, write_queue=3) as store:
        with held(store):
            first = store.submit(batch("taken"))
            waiting = [store.submit(batch(f"n{number}")) for number in range(2)]
            with pytest.raises(Unavailable) as refused:
                store.submit(batch("one too many"))
            assert refused.value.retry_after > 0
            started = time.monotonic()
            with pytest.raises(Unavailable):
                store.submit(batch("one too many"), wait=0.2)
            assert time.monotonic() - started >= 0.2
            late: list[Future[WriteReport]] = []
            patient = threading.Thread(target=lambda: late.append(store.submit(batch("patient"), wait=PATIENCE)))
            patient.start()
        patient.join()
        for future in (first, *waiting, *late):
            future.result(PATIENCE)
        assert ids(store) == ["n0", "n1", "patient", "taken"]


def test_the_queue_is_bounded_in_bytes_but_accepts_one_write_of_any_size(tmp_path: Path) -> None:
    with opened(tmp_path) as store, held(store):
        big = WriteBatch(nodes=[NodeUpsert(0, "big", "t")], cost=writer_thread.MAX_WRITE_QUEUE_BYTES + 1)
        store.submit(big)
        with pytest.raises(Unavailable):
            store.submit(batch("small"))


def test_commit_groups_are_bounded_in_rows(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        rows = writer_thread.MAX_COMMIT_GROUP_ROWS // 2 + 1
        halves = [
            WriteBatch(delete_nodes=["x"] * rows, nodes=[NodeUpsert(0, f"n{number}", "t")]) for number in range(3)
        ]
        for future in write_together(store, *halves):
            future.result(PATIENCE)
    assert [frame.count for frame in frames(tmp_path)] == [1, 1, 1]


def test_commit_groups_and_the_queue_are_bounded_in_bytes() -> None:
    groups: list[list[int]] = []
    begun, go_on = threading.Event(), threading.Event()

    def commit(writes: list[writer_thread.QueuedWrite]) -> None:
        groups.append([each.batch.cost >> 20 for each in writes])
        begun.set()
        assert go_on.wait(PATIENCE)
        for each in writes:
            each.future.set_exception(InvalidInput("none is taken"))

    def of_mebibytes(cost: int) -> writer_thread.QueuedWrite:
        return writer_thread.QueuedWrite(WriteBatch(cost=cost << 20), Future())

    queue = writer_thread.WriterThread("hens", commit, lambda: None, 10)
    for _ in range(2):  # finished writes free queue space
        groups.clear()
        begun.clear()
        go_on.clear()
        queue.submit(of_mebibytes(1))
        assert begun.wait(PATIENCE)
        sent = [queue.submit(of_mebibytes(cost)) for cost in (40, 20, 30, 60)]
        with pytest.raises(Unavailable):
            queue.submit(of_mebibytes((writer_thread.MAX_WRITE_QUEUE_BYTES >> 20) - 149))
        sent.append(queue.submit(of_mebibytes((writer_thread.MAX_WRITE_QUEUE_BYTES >> 20) - 150)))
        go_on.set()
        assert all(isinstance(each.exception(PATIENCE), InvalidInput) for each in sent)
        assert groups == [[1], [40, 20], [30], [60], [106]]
    queue.stop()


def test_failed_groups_are_counted_and_reported() -> None:
    count = StoreWriteCounters()

    def commit(_: list[writer_thread.QueuedWrite]) -> None:
        raise StorageFull("the disk is full")

    queue = writer_thread.WriterThread("hens", commit, lambda: None, 10, count)
    for failures in (1, 2):
        told = queue.submit(writer_thread.QueuedWrite(WriteBatch(), Future())).exception(PATIENCE)
        assert (type(told), count.failures) == (StorageFull, failures)
    queue.stop()


def test_a_rejected_batch_does_not_affect_its_group(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        good, bad, dependent = write_together(
            store,
            batch("a"),
            WriteBatch(nodes=[NodeUpsert(0, "b", "t"), NodeUpsert(1, "typeless")]),
            batch("c", edges=[("a", "c", "r"), ("b", "c", "r")]),
        )
        assert good.result(PATIENCE).sequence == 1
        with pytest.raises(InvalidInput) as refused:
            bad.result(PATIENCE)
        assert [error.path for error in refused.value.errors] == ["nodes[1].type"]
        report = dependent.result(PATIENCE)
        assert (report.sequence, report.edges_created, report.skipped_count) == (2, 1, 1)
        assert_whole(store)


def test_a_write_without_changes_writes_no_frame(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b", edges=[("a", "b", "r")]))
        size = store.journal.bytes
        [report] = write(store, batch("a", "b", edges=[("a", "b", "r")], touch=False))
        assert (report.nodes_unchanged, report.edges_unchanged, report.sequence) == (2, 1, 1)
        assert store.journal.bytes == size


def _outcome(future: Future[WriteReport]) -> object:
    """Return the report of a write, or the type and the faults of its refusal."""
    error = future.exception(PATIENCE)
    return future.result() if error is None else (type(error), str(error), getattr(error, "errors", ()))


def _random_batch(choice: random.Random) -> WriteBatch:
    """Return a batch whose few values often equal the stored ones."""
    texts, names, options = (None, "", "one", "two"), ("a", "b", "c", "missing"), (True, False)
    spans = (None, NodeExtrasUpsert(valid_from=2, valid_to=choice.choice((1, 3))), NodeExtrasUpsert(created_by="me"))
    nodes = [
        NodeUpsert(at, choice.choice(names[:3]), choice.choice((None, "t")), choice.choice(texts), extras=each)
        for at, each in enumerate(choice.choices(spans, weights=(6, 1, 1), k=choice.randrange(3)))
    ]
    ends = (choice.choices(names, weights=(4, 4, 4, 1), k=2) for _ in range(choice.randrange(3)))
    edges = [
        EdgeUpsert(at, (source, target, "r"), choice.choice((None, 1.0, 2.0)))
        for at, (source, target) in enumerate(ends)
    ]
    partial, returned, touch = choice.choice(options), choice.choice(options), choice.random() < 0.2
    return WriteBatch(nodes=nodes, edges=edges, touch=touch, partial=partial, return_rows=returned)


def test_unqueued_batches_have_the_outcome_of_queued_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice, unqueued = random.Random(5), 0
    with opened(tmp_path / "one") as direct, opened(tmp_path / "other") as queued:
        for store in (direct, queued):
            # A version with the time of its commit differs between two stores.
            monkeypatch.setattr(store.clock, "now", lambda: MIN_COMMIT_TIME_MICROSECONDS)
            write(store, batch("a", "b", "c", content="one", edges=[("a", "b", "r"), ("b", "c", "r")]))
        for _ in range(200):
            given, before = _random_batch(choice), direct.journal.bytes
            sent = direct.submit(given)
            unqueued += sent.done() and direct.journal.bytes == before
            with held(queued):
                later = queued.submit(given)
            assert _outcome(sent) == _outcome(later)
            assert direct.state == queued.state
        assert unqueued > 20
        assert_whole(direct)


def test_an_unchanged_batch_stays_behind_the_writes_before_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", content="one"))
        changed, back = write_together(store, batch("a", content="two"), batch("a", content="one"))
        assert (changed.result(PATIENCE).sequence, back.result(PATIENCE).sequence) == (2, 3)
        assert _outcome(store.submit(batch("a", content="one"))) == WriteReport(nodes_unchanged=1, sequence=3)
        until(lambda: not store.writing)
        assert store.submit(batch("a", content="one")).done()
    with pytest.raises(Unavailable):
        store.submit(batch("a", content="one"))


def test_a_cancelled_write_is_skipped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        with held(store):
            first = store.submit(batch("taken"))
            doomed, kept = store.submit(batch("doomed")), store.submit(batch("kept"))
            assert doomed.cancel()
        first.result(PATIENCE)
        kept.result(PATIENCE)
        assert ids(store) == ["kept", "taken"]


def test_a_write_too_large_for_the_disk_is_rejected_before_the_journal(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        with pytest.raises(StorageFull):
            write(store, batch("a", cost=1 << 60))
        assert store.journal.bytes == 0
        write(store, batch("b"))
        assert ids(store) == ["b"]


def test_queued_writes_finish_before_the_store_closes(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        futures = [store.submit(batch(f"n{number:03}")) for number in range(100)]
    assert all(future.done() for future in futures)
    with pytest.raises(Unavailable):
        store.submit(batch("late"))
    with opened(tmp_path) as store:
        assert len(ids(store)) == 100
