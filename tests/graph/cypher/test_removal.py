"""Writes without a copy concurrent with other writes, and bulk deletion."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgserve.errors import InvalidInput, TooLarge
from kgserve.graph.answers import CypherAnswer
from kgserve.storage.journal.journal import encode_journal_frame
from kgserve.storage.rows.current_rows import STAGED_MARK, DeltaMergeLimits
from kgserve.stores import bulk_delete
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.fuzzing import some
from tests.graph.statement_helpers import fill, single_value, write
from tests.stores.test_links import link, links, weights
from tests.stores.writing import NAME, PATIENCE, SYNC_SECONDS, assert_whole, flip, held, ids, opened, settings, until

OLD, NEWER, KEPT = 120, 60, 20
CLEAR = "MATCH (n {type: 'old'}) DETACH DELETE n"
CLEAR_NEWER = "MATCH (n {type: 'newer'}) DETACH DELETE n"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the bulk limit to a few rows."""
    monkeypatch.setattr(bulk_delete, "MIN_BULK_DELETE_ROWS", 40)


def stock(pool: StorePool) -> None:
    """Create nodes, many of which will be deleted, with edges among all of them."""
    counts = {"old": OLD, "newer": NEWER, "kept": KEPT}
    nodes = [{"id": f"{kind}{n}", "type": kind, "content": "x" * 50} for kind in counts for n in range(counts[kind])]
    edges = [
        {"from": node["id"], "to": nodes[(7 * at) % len(nodes)]["id"], "relation_type": "R"}
        for at, node in enumerate(nodes)
    ]
    fill(pool, nodes, edges)


@contextmanager
def waiting(pool: StorePool, store: OpenStore, *queries: str) -> Generator[list[Future[CypherAnswer]]]:
    """Yield statements that have computed their changes and are queued until the end of the block."""
    with ThreadPoolExecutor(len(queries)) as threads, held(store):
        running: list[Future[CypherAnswer]] = []
        for count, query in enumerate(queries, 1):
            running.append(threads.submit(write, pool, query))
            until(lambda count=count: store.queued >= count)
        yield running


def edges(store: OpenStore) -> set[tuple[str, str]]:
    with store.reading() as rows:
        return {row.key[:2] for row in rows.all_edges()}


def test_query_based_increments_are_not_lost(tmp_path: Path) -> None:
    increment = "MATCH (n {id: 'n'}) SET n.content = cast(cast(n.content AS INT64) + 1 AS STRING)"
    times, stop = 10, threading.Event()

    def disturb() -> None:
        number = 0
        while not stop.wait(SYNC_SECONDS):
            number += 1
            fill(pool, [{"id": "n", "attributes": {"i": number}}], [])

    with StorePool(settings(tmp_path / "data")) as pool, ThreadPoolExecutor(4) as threads:
        fill(pool, [{"id": "n", "type": "t", "content": "0"}], [])
        disturbing = threads.submit(disturb)
        counts = [threads.submit(lambda: [write(pool, increment) for _ in range(times)]) for _ in range(3)]
        for counting in counts:
            counting.result(PATIENCE)
        stop.set()
        disturbing.result(PATIENCE)
        assert single_value(pool, "MATCH (n {id: 'n'}) RETURN n.content") == str(3 * times)
        with pool.lease(NAME) as store:
            assert not store.copy.made
            assert_whole(store)


@pytest.mark.parametrize("answers", ["", " RETURN 1"])
def test_write_skew_is_prevented(pool: StorePool, answers: str) -> None:
    """The second of two statements that read what the other writes finds nothing to do."""
    leave = "MATCH (n {{id: '{}'}}), (m {{id: '{}'}}) WHERE m.content <> 'gone' SET n.content = 'gone'"
    with pool.lease(NAME) as store:
        with waiting(pool, store, leave.format("a", "b"), leave.format("b", "a") + answers) as running:
            pass
        made = [each.result(PATIENCE).changes for each in running]
        assert sorted(changes.nodes_updated for changes in made if changes is not None) == [0, 1]
        assert single_value(pool, "MATCH (n {content: 'gone'}) RETURN count(*)") == 1


Disturbance = dict[str, list[dict[str, Any]]]


@pytest.mark.parametrize(
    ("disturbance", "left"),
    [
        ({"nodes": [{"id": "new", "type": "old"}]}, set[str]()),
        ({"nodes": [{"id": "old1", "type": "kept"}]}, {"old1"}),
        ({"nodes": [{"id": "kept1", "type": "old"}]}, set[str]()),
        ({"edges": [{"from": "kept1", "to": "old1", "relation_type": "late"}]}, set[str]()),
        (
            {"nodes": [{"id": "new", "type": "t"}], "edges": [{"from": "new", "to": "kept1", "relation_type": "R"}]},
            {"new"},
        ),
    ],
)  # fmt: skip
def test_bulk_delete_sees_concurrent_writes(tmp_path: Path, disturbance: Disturbance, left: set[str]) -> None:
    with StorePool(settings(tmp_path / "data")) as pool:
        stock(pool)
        with pool.lease(NAME) as store, ThreadPoolExecutor(2) as threads:
            with held(store):
                writing = threads.submit(fill, pool, disturbance.get("nodes", []), disturbance.get("edges", []))
                until(lambda: store.queued == 1)
                clearing = threads.submit(write, pool, CLEAR)
                until(lambda: store.queued == 2)
            writing.result(PATIENCE)
            clearing.result(PATIENCE)
            due = {f"newer{n}" for n in range(NEWER)} | {f"kept{n}" for n in range(KEPT)} | left
            if any(node["id"] == "kept1" for node in disturbance.get("nodes", [])):
                due.remove("kept1")
            assert set(ids(store)) == due
            assert all(due.issuperset(ends) for ends in edges(store))
            assert_whole(store)


def test_delete_without_detach_fails_on_concurrent_edge(tmp_path: Path) -> None:
    """The edge is created while a base is built, which the deletion has to wait for."""
    with StorePool(settings(tmp_path / "data")) as pool, ThreadPoolExecutor(1) as threads:
        fill(pool, [{"id": f"n{n}", "type": "old"} for n in range(OLD)], [])
        with pool.lease(NAME) as store:
            with store.folding.stage_deletion():
                deleting = threads.submit(write, pool, "MATCH (n {type: 'old'}) DELETE n")
                until(lambda: waits(store))
                fill(pool, [], [{"from": "n1", "to": "n2", "relation_type": "R"}])
            with pytest.raises(InvalidInput, match="has connected edges"):
                deleting.result(PATIENCE)
            assert len(ids(store)) == OLD
            assert_whole(store)


def waits(store: OpenStore) -> bool:
    """Return whether a thread waits for the builder of a base."""
    return bool(store.folding._idle._cond._waiters)  # pyright: ignore[reportAttributeAccessIssue]


def test_bulk_delete_with_readers_fold_and_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, copied = tmp_path / "data", tmp_path / "copied"
    with StorePool(settings(data)) as pool, ThreadPoolExecutor(1) as threads:
        stock(pool)
        with pool.lease(NAME) as store, store.reading() as before:
            gone_edges = len(list(before.outgoing("old1")))
            with ExitStack() as merges:
                with held(store):
                    clearing = threads.submit(write, pool, CLEAR)
                    until(lambda: store.queued == 1)
                    # Only now, because the deletion waits for a running merge.
                    merges.enter_context(postponed_merges(store, monkeypatch))
                until(lambda: store.state.nodes == NEWER + KEPT)
                bases = [path.name for path in store.rows.folder.iterdir()]
                fill(pool, [{"id": "late", "type": "t"}], [{"from": "late", "to": "kept1", "relation_type": "R"}])
                due, state = ids(store), store.state
                # The state after a kill, before the rows are in a permanent base.
                shutil.copytree(data, copied)
            assert any(STAGED_MARK in name for name in bases)
            clearing.result(PATIENCE)
            assert before.node("old1") is not None
            assert len(list(before.outgoing("old1"))) == gone_edges > 0
            assert len(list(before.all_nodes())) == OLD + NEWER + KEPT
            until(lambda: not foreseen_files(store))
            assert_whole(store)
    (copied / "kgserve.lock").unlink(missing_ok=True)
    with opened(copied) as store:
        assert (ids(store), store.state) == (due, state)
        assert not foreseen_files(store)
        assert_whole(store)


@contextmanager
def postponed_merges(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Hold merges of the delta back until the end of the block."""
    free, fold = threading.Event(), store.rows.fold

    def fold_later(*, copying: bool = False) -> None:
        assert free.wait(PATIENCE)
        fold(copying=copying)

    monkeypatch.setattr(store.rows, "fold", fold_later)
    try:
        yield
    finally:
        free.set()


def foreseen_files(store: OpenStore) -> list[str]:
    return [path.name for path in store.rows.folder.iterdir() if STAGED_MARK in path.suffixes]


def test_concurrent_bulk_deletes_leave_no_files(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path / "data")) as pool, ThreadPoolExecutor(2) as threads:
        stock(pool)
        with pool.lease(NAME) as store:
            for clearing in [threads.submit(write, pool, query) for query in (CLEAR, CLEAR_NEWER)]:
                clearing.result(PATIENCE)
            assert ids(store) == sorted(f"kept{n}" for n in range(KEPT))
            store.folding.wait_until_idle()
            store.folding.at_once()
            assert len([*store.rows.folder.iterdir()]) == 2
            assert_whole(store)


@pytest.mark.parametrize("damage", [False, True])
def test_bulk_delete_after_row_rebuild(tmp_path: Path, damage: bool) -> None:
    with StorePool(settings(tmp_path / "data")) as pool, ThreadPoolExecutor(2) as threads:
        stock(pool)
        with pool.lease(NAME) as store:
            store.folding.at_once()
            with held(store):
                renewing = threads.submit(store._renew_rows)
                until(lambda: store.queued == 1)
                clearing = threads.submit(write, pool, CLEAR)
                until(lambda: store.queued == 2)
                if damage:
                    [texts] = store.rows.folder.glob("*.texts")
                    flip(texts, texts.stat().st_size // 2)
            renewing.result(PATIENCE)
            clearing.result(PATIENCE)
            assert len(ids(store)) == NEWER + KEPT
            assert_whole(store)


@pytest.mark.parametrize("seed", some(range(2), 0))
def test_bulk_delete_with_concurrent_writers_and_folds(tmp_path: Path, seed: int) -> None:
    """Rows acknowledged after the last deletion exist, and every edge has its nodes."""
    stop = threading.Event()
    with StorePool(settings(tmp_path / "data")) as pool:
        stock(pool)
        with pool.lease(NAME) as store, ThreadPoolExecutor(5) as threads:
            store.rows.limits = DeltaMergeLimits(rows=60)
            writers = [threads.submit(disturb, pool, stop, 10 * seed + each) for each in range(4)]
            for number in range(4):
                cleared = write(
                    pool, (CLEAR, CLEAR_NEWER, "MATCH (n:Entity)-[r]->(m {type: 'w'}) DELETE r")[number % 3]
                )
                assert cleared.changes
                if number < 3:
                    stock(pool)
            stop.set()
            added = [written.result(PATIENCE) for written in writers]
            assert all(added)
            existing = set(ids(store))
            assert existing.issuperset(node_id for each in added for node_id in each)
            assert all(existing.issuperset(ends) for ends in edges(store))
            assert_whole(store)


def disturb(pool: StorePool, stop: threading.Event, seed: int) -> list[str]:
    """Create nodes with edges to nodes that may be deleted; return the acknowledged ids."""
    source, added = random.Random(seed), list[str]()
    ways: list[Callable[[str], list[dict[str, Any]]]] = [
        lambda new: [{"from": new, "to": f"kept{source.randrange(KEPT)}", "relation_type": "R"}],
        lambda new: [{"from": f"old{source.randrange(OLD)}", "to": new, "relation_type": "R"}],
        lambda _new: [],
    ]
    while not stop.wait(SYNC_SECONDS):
        new = f"w{seed}-{len(added)}"
        nodes = [{"id": new, "type": "w"}]
        if source.random() < 0.2:
            nodes.append({"id": f"old{source.randrange(OLD)}", "type": "old"})
        try:
            fill(pool, nodes, source.choice(ways)(new))
        except InvalidInput:  # its other end was deleted
            continue
        added.append(new)
    return added


def test_bulk_delete_over_limit_is_rejected(pool: StorePool, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(pool, [{"id": each, "type": "old"} for each in "abc"], [{"from": "a", "to": "b", "relation_type": "R"}])
    monkeypatch.setattr(bulk_delete, "MAX_BULK_DELETE_ROWS", 3)
    with pytest.raises(TooLarge, match=r"more than 3 rows; split it into smaller deletes"):
        write(pool, CLEAR)
    with pool.lease(NAME) as store:
        assert ids(store) == list("abc")
    monkeypatch.setattr(bulk_delete, "MAX_BULK_DELETE_ROWS", 4)
    write(pool, CLEAR)
    with pool.lease(NAME) as store:
        assert ids(store) == []


def test_bulk_delete_estimates_journal_size(pool: StorePool) -> None:
    with pool.lease(NAME) as store, store.folding.stage_deletion() as foreseen:
        found = bulk_delete.BulkDelete(foreseen, ["a", "c"], [])
        change, report = found.change(store.state, 0)
        assert (report.nodes_deleted, report.edges_deleted) == (2, len(change.edges_deleted))
        least = msgspec.structs.replace(change, nodes_deleted=[], edges_deleted=[])
        assert (
            0
            < len(encode_journal_frame([change])) - len(encode_journal_frame([least]))
            <= found.cost + len("nodes_deleted" * 3)
        )


def test_bulk_delete_includes_links(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool:
        stock(pool)
        with pool.lease(NAME) as store:
            for source in ("old0", "old1", "kept0"):
                store.submit(links(link(source, "elsewhere", "x"))).result(PATIENCE)
            with store.reading() as rows:
                gone = sum(1 for row in rows.all_edges() if {"old"} & {end[:3] for end in row.key[:2]})
            changes = write(pool, CLEAR).changes
            assert changes is not None
            assert (changes.nodes_deleted, changes.edges_deleted) == (OLD, gone + 2)
            assert list(weights(store)) == [("kept0", "elsewhere", "x")]
            assert_whole(store)
