from __future__ import annotations

import gc
import shutil
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from kgserve.embedding.embedder import HashingEmbedder
from kgserve.errors import Conflict, Unavailable
from kgserve.projections.background_projection import BackgroundProjection
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.projections.read_your_writes import ProjectionNotCaughtUp, request_waits
from kgserve.projections.text_indexes import (
    CurrentKeywordIndexProjection,
    CurrentVectorIndexProjection,
    IndexSyncEventPublisher,
)
from kgserve.storage.changefeed import ChangeFeedReader
from kgserve.storage.model.change_feed_events import ChangeFeedEventFilter
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from tests.captured_log import capture_log
from tests.projections.indexing import (
    FailingEmbedder,
    OtherEmbedder,
    SlowEmbedder,
    StuckEmbedder,
    caught_up,
    contents,
    followed,
    indexed,
)
from tests.stores.writing import NAME, PATIENCE, batch, layout, opened, until, write

VIEWS = HashingEmbedder()


def many(count: int, word: str = "fox", first: int = 0) -> WriteBatch:
    """Return an upsert of nodes with different texts that share a word."""
    nodes = [NodeUpsert(i, f"n{first + i}", "t", f"{word} number{first + i}") for i in range(count)]
    return WriteBatch(nodes=nodes, edges=[EdgeUpsert(0, ("n0", "n1", "next"))] if not first else [])


def test_content_is_searchable_until_it_is_deleted(tmp_path: Path) -> None:
    with followed(tmp_path) as (store, indexes):
        write(store, batch("a", "b", "c", content="fox"), batch("empty"))
        caught_up(store, indexes)
        for found in contents(indexes, VIEWS, "fox"):
            assert sorted(found) == ["a", "b", "c"]
        write(store, batch("a", content=""), WriteBatch(delete_nodes=["b"]), batch("c", content="hen"))
        caught_up(store, indexes)
        assert contents(indexes, VIEWS, "fox")[0] == {}
        for found in contents(indexes, VIEWS, "hen"):
            assert list(found) == ["c"]
        for state in (indexes.keyword.state(), indexes.vector.state()):
            assert (state.entities, state.pending, state.error, state.sequence) == (1, 0, None, 5)


def test_a_large_change_set_is_indexed(tmp_path: Path) -> None:
    with followed(tmp_path) as (store, indexes):
        write(store, many(3000))
        caught_up(store, indexes)
        assert (indexes.keyword.state().entities, indexes.vector.state().entities) == (3000, 3000)
        assert [len(found) for found in contents(indexes, VIEWS, "fox")] == [3000, 3000]


def test_waiting_for_a_new_store_returns(tmp_path: Path) -> None:
    with followed(tmp_path) as (store, indexes):
        assert indexes.wait(0, PATIENCE)
        assert not indexes.wait(1, 0.05)
        waiting = threading.Thread(target=write, args=(store, many(2)))
        waiting.start()
        assert indexes.wait(1, PATIENCE)
        waiting.join()
        assert indexes.applied_sequence() == indexes.applied_sequence(words_alone=True) == 1


def test_waiting_for_an_index_opens_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for view in (CurrentKeywordIndexProjection(store), CurrentVectorIndexProjection(store, VIEWS)):
            assert view.wait(0, PATIENCE), "no thread serves it"
            view.close()


def test_reopening_needs_no_embedding(tmp_path: Path) -> None:
    with followed(tmp_path) as (store, indexes):
        write(store, many(20))
        caught_up(store, indexes)
        before = contents(indexes, VIEWS, "fox number3")
    embedder = FailingEmbedder()
    embedder.model_id = HashingEmbedder.model_id
    with followed(tmp_path, embedder) as (store, indexes):
        caught_up(store, indexes)
        assert embedder.asked == 0
        assert contents(indexes, VIEWS, "fox number3") == before


def test_indexes_after_an_unclean_close_equal_rebuilt_ones(tmp_path: Path) -> None:
    data, copied, rebuilt = tmp_path / "data", tmp_path / "copied", tmp_path / "rebuilt"
    with followed(data) as (store, indexes):
        for number in range(8):
            write(store, many(30, first=20 * number), WriteBatch(delete_nodes=[f"n{20 * number}"]))
        indexes.wait(4, PATIENCE)
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(data, copied, ignore=shutil.ignore_patterns(".tmp*"))  # these files are temporary
    shutil.copytree(copied, rebuilt)
    shutil.rmtree(layout(rebuilt).views)
    with followed(copied) as (store, indexes):
        caught_up(store, indexes)
        continued = contents(indexes, VIEWS, "fox number31")
    with followed(rebuilt) as (store, indexes):
        caught_up(store, indexes)
        words, near = contents(indexes, VIEWS, "fox number31")
    # BM25 counts deleted texts until segments merge, so scores may differ; the hits may not.
    assert continued[0].keys() == words.keys()
    assert continued[1] == near
    assert words.keys() == near.keys()


def test_indexes_beyond_the_journal_are_rebuilt_from_rows(tmp_path: Path) -> None:
    with followed(tmp_path) as (store, indexes):
        write(store, many(5))
        caught_up(store, indexes)
    small: dict[str, Any] = {"journal_segment_mb": 1, "journal_retention_mb": 0}
    with opened(tmp_path, **small) as store:
        for number in range(12):
            write(store, batch(f"big{number}", content=f"fox {number} {'x' * 250_000}"))
            if number % 4 == 3:
                store.compactor.run()
        write(store, WriteBatch(delete_nodes=["n0"]))
        assert store.journal.oldest > 2
    with followed(tmp_path, **small) as (store, indexes):
        caught_up(store, indexes)
        for found in contents(indexes, VIEWS, "fox"):
            assert sorted(found) == sorted([f"n{i}" for i in range(1, 5)] + [f"big{i}" for i in range(12)])


def test_commits_during_a_rebuild_are_applied(tmp_path: Path) -> None:
    with indexed(tmp_path) as (pool, indexer), pool.lease(NAME, create=True) as store:
        indexes = indexer.of(store)
        write(store, many(2000))
        caught_up(store, indexes)
        indexer.reindex(store)
        for number in range(10):
            write(store, many(1, "hen", 5000 + number), WriteBatch(delete_nodes=[f"n{number}"]))
        until(lambda: not indexes.keyword.is_rebuilding and not indexes.vector.is_rebuilding)
        caught_up(store, indexes)
        for found in contents(indexes, VIEWS, "fox hen"):
            assert sorted(found) == sorted(f"n{i}" for i in (*range(10, 2000), *range(5000, 5010)))


def test_a_rebuild_requested_during_a_rebuild_is_not_lost(tmp_path: Path) -> None:
    embedder = SlowEmbedder()
    with indexed(tmp_path, embedder) as (pool, indexer), pool.lease(NAME, create=True) as store:
        indexes = indexer.of(store)
        write(store, many(600))
        caught_up(store, indexes)
        with capture_log(store=NAME, event="index_refill_done", index="vector") as refills:
            indexer.reindex(store)
            until(lambda: not indexes.vector.rebuild_wanted)
            indexer.reindex(store)
            until(lambda: not indexes.vector.is_rebuilding and not indexes.keyword.is_rebuilding)
        caught_up(store, indexes)
        assert len(refills) == 2


class _FailingOnceReleasedEmbedder(StuckEmbedder):
    @override
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = super().embed(texts)
        if self.asked == 1:
            raise Unavailable("the embedding service does not answer")
        return vectors


def test_a_requested_rebuild_voids_the_error_of_a_step_in_progress(tmp_path: Path) -> None:
    embedder = _FailingOnceReleasedEmbedder()
    with indexed(tmp_path, embedder) as (pool, indexer), pool.lease(NAME, create=True) as store, ExitStack() as held:
        held.callback(embedder.let_go.set)
        indexes = indexer.of(store)
        write(store, many(5))
        assert embedder.started.wait(PATIENCE)
        indexer.reindex(store)
        with capture_log(store=NAME, event="index_step_failed", index="vector") as failures:
            embedder.let_go.set()
            until(lambda: bool(failures))
        assert indexes.vector.state().error is None
        caught_up(store, indexes)


def test_an_index_that_was_behind_publishes_index_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.projections.update_scheduler.STEP_FIRST_RETRY_SECONDS", 0.1)
    with opened(tmp_path) as store:
        write(store, many(3), many(3, "hen"))
    embedder = FailingEmbedder()
    with followed(tmp_path, embedder) as (store, indexes):
        until(lambda: indexes.vector.state().error is not None)
        heard: list[tuple[str, object]] = []
        reader = ChangeFeedReader(store.feed, None, lambda: None)

        def has_received(kind: str, subject: object = None) -> bool:
            heard.extend(
                (entry.event.kind, entry.event.subject) for entry in reader.take(ChangeFeedEventFilter()) or ()
            )
            return any(heard_kind == kind and subject in (None, about) for heard_kind, about in heard)

        embedder.broken = False
        caught_up(store, indexes)
        until(lambda: has_received("index_ready", {"index": "vector", "sequence": 2}))
        write(store, many(1, "cow"))
        caught_up(store, indexes)
        until(lambda: has_received("node_updated"))
        reader.close()
        kinds = [kind for kind, _ in heard if kind == "index_ready"]
        assert len(kinds) <= 2, "each index says so once, keyword perhaps before the listener was added"


def test_no_step_starts_after_halt(tmp_path: Path) -> None:
    with indexed(tmp_path) as (pool, indexer), pool.lease(NAME, create=True) as store:
        indexes = indexer.of(store)
        write(store, many(3))
        caught_up(store, indexes)
        indexer.halt()
        write(store, many(1, "hen", 9))
        assert not indexes.wait(2, 0.5)


def test_closing_after_halt_does_not_wait_for_an_endless_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.projections.update_scheduler.FOLLOWER_CLOSE_TIMEOUT_SECONDS", 0.2)
    embedder = StuckEmbedder()
    with indexed(tmp_path, embedder) as (pool, indexer), pool.lease(NAME, create=True) as store:
        write(store, many(3))
        assert embedder.started.wait(PATIENCE)
        indexer.halt()
        started = time.monotonic()
        indexer.on_store_closing(store)
        assert 0.2 <= time.monotonic() - started < PATIENCE
        embedder.let_go.set()
    with followed(tmp_path, HashingEmbedder()) as (store, indexes):
        assert indexes.keyword.wait(1, PATIENCE)
        assert len(indexes.keyword.search(KeywordQuery("fox"), 10)) == 3


def test_another_model_is_rejected_until_reindex(tmp_path: Path) -> None:
    with followed(tmp_path) as (store, indexes):
        write(store, many(20))
        caught_up(store, indexes)
    other = OtherEmbedder()
    with indexed(tmp_path, other) as (pool, indexer), pool.lease(NAME) as store:
        indexes = indexer.of(store)
        started = time.monotonic()
        assert not indexes.wait(0, 20 * PATIENCE)
        assert time.monotonic() - started < 10 * PATIENCE
        assert indexes.wait(1, PATIENCE, words_alone=True)
        assert len(indexes.keyword.search(KeywordQuery("fox"), 50)) == 20
        with pytest.raises(Conflict, match=f"kgserve reindex {NAME}"):
            indexes.vector.search(other.embed(["fox"])[0], 5)
        state = indexes.vector.state()
        assert state.model == HashingEmbedder.model_id
        assert "kgserve reindex" in (state.error or "")
        indexer.reindex(store)
        until(lambda: indexes.vector.state().error is None and not indexes.vector.is_rebuilding)
        caught_up(store, indexes)
        assert len(indexes.vector.search(other.embed(["fox"])[0], 50)) == 20
        assert indexes.vector.state().model == other.model_id


def test_retry_after_an_embedder_failure(tmp_path: Path) -> None:
    embedder = FailingEmbedder()
    with followed(tmp_path, embedder) as (store, indexes):
        assert indexes.wait(0, PATIENCE)
        write(store, many(5))
        until(lambda: indexes.vector.state().error is not None)
        assert indexes.vector.state().error == "the embedding service does not answer"
        assert indexes.keyword.wait(1, PATIENCE)
        asked = embedder.asked
        for number in range(20):
            write(store, batch(f"more{number}", content="fox"))
        assert embedder.asked <= asked + 2, "commits do not shorten the pause"
        assert store.state.nodes == 25
        embedder.broken = False
        caught_up(store, indexes)
        assert indexes.vector.state().error is None
        assert indexes.vector.state().entities == 25


def test_a_wait_for_both_indexes_outlasts_the_one_that_catches_up_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words are indexed between two looks at them, while the vectors are still being computed."""
    embedder = StuckEmbedder()
    with followed(tmp_path, embedder) as (store, indexes), ExitStack() as held:
        held.callback(embedder.let_go.set)
        words = indexes.keyword
        assert words.wait(0, PATIENCE)
        held.enter_context(words._step_lock)
        write(store, batch("a", content="fox"))

        def can_still_reach(sequence: int) -> bool:
            words._step_lock.release()
            try:
                assert words.wait(sequence, PATIENCE)
            finally:
                words._step_lock.acquire()
            return BackgroundProjection.can_still_reach(words, sequence)

        monkeypatch.setattr(words, "can_still_reach", can_still_reach)
        retried = request_waits.set({})
        with pytest.raises(ProjectionNotCaughtUp):
            indexes.wait_or_retry(1, PATIENCE, "test")
        request_waits.reset(retried)


def test_an_index_closed_during_a_call_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with followed(tmp_path) as (store, indexes):
        write(store, batch("a", content="fox"))
        caught_up(store, indexes)
        for view in (indexes.keyword, indexes.vector):
            with monkeypatch.context() as patched:
                looks = iter([view._index])
                patched.setattr(type(view), "_index", property(lambda _, looks=looks: next(looks, None)), raising=False)
                assert view._opened() is not None
                with pytest.raises(Unavailable):
                    view._opened()


def test_closing_does_not_wait_for_the_backlog(tmp_path: Path) -> None:
    embedder = StuckEmbedder()
    with followed(tmp_path, embedder) as (store, indexes):
        write(store, many(8000))
        assert embedder.started.wait(PATIENCE)
        assert indexes.keyword.wait(1, PATIENCE)
        indexes.vector.watch(embedder.let_go.set)  # called on stop, as the projection does not advance within a step
    assert embedder.asked == 1
    with followed(tmp_path) as (store, indexes):
        indexes.keyword.wait(1, PATIENCE)
        assert len(indexes.keyword.search(KeywordQuery("fox"), 10_000)) == 8000


def test_eviction_of_a_store_closes_its_indexes(tmp_path: Path) -> None:
    with indexed(tmp_path, max_open_stores=1) as (pool, indexer):
        held: list[weakref.ref[object]] = []
        for name in ("a", "b", "c", "a", "b", "c"):
            with pool.lease(name, create=True) as store:
                write(store, batch(f"of {name}", content="fox"))
                indexes = indexer.of(store)
                caught_up(store, indexes)
                for found in contents(indexes, VIEWS, "fox"):
                    assert list(found) == [f"of {name}"]
                held.append(weakref.ref(indexes.vector))
                del store, indexes
        assert len(pool.open_stores()) == 1
        until(lambda: gc.collect() >= 0 and sum(reference() is not None for reference in held) <= 1)


def test_a_closed_store_is_not_indexed(tmp_path: Path) -> None:
    with indexed(tmp_path) as (pool, indexer):
        with pool.lease(NAME, create=True) as store:
            indexes = indexer.of(store)
            caught_up(store, indexes)
        pool.drop(NAME)
        with pytest.raises(Unavailable):
            indexer.of(store)
        with pytest.raises(Unavailable):
            indexes.keyword.search(KeywordQuery("fox"), 1)


def test_listeners_receive_sync_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with followed(tmp_path) as (store, indexes):
        store.each_second.clear()
        sync = IndexSyncEventPublisher(store, (indexes.keyword, indexes.vector))
        reader = ChangeFeedReader(store.feed, None, lambda: None)

        def published(batch: WriteBatch | None = None) -> list[int]:
            if batch is not None:
                write(store, batch)
            caught_up(store, indexes)
            sync.look()
            only = ChangeFeedEventFilter(kinds=frozenset({"sync_complete"}))
            found = [msgspec.json.decode(entry.data) for entry in reader.take(only) or reader.take(only) or ()]
            assert all(data["timestamp"] <= data["time"] for data in found)
            return [data["sequence"] for data in found]

        assert published() == []
        assert published(many(2, "cow")) == [1]
        assert published(many(1, "hen", 9)) == [], "so soon after the last time"
        monkeypatch.setattr("kgserve.projections.text_indexes.MIN_SYNC_MARKER_INTERVAL_SECONDS", 0.0)
        assert published() == [2]
        assert published() == []
        assert published(WriteBatch(accesses=[MemoryAccessRecord("n0", 1, 1, 1.0)])) == []
        assert published(many(1, "cat", 5)) == [4]
        reader.close()


def test_sync_complete_is_checked_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.stores.pool.POOL_TICK_SECONDS", 0.05)
    with followed(tmp_path) as (store, _):
        looked = threading.Event()
        store.each_second.append(looked.set)
        assert looked.wait(PATIENCE)
