from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgserve.memory.consolidation import candidates
from kgserve.memory.consolidation.consolidate_undo_prune import list_consolidations, undo_consolidation
from kgserve.memory.consolidation.plan import ConsolidationRunRecord
from kgserve.memory.memory_models import ConsolidationRun, ConsolidationRunListQuery, UndoConsolidationRequest
from kgserve.platform.timestamps import DAY_MICROSECONDS
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.write_batch import KIND_CONSOLIDATION, NodeUpsert
from kgserve.stores.open_store import OpenStore
from tests.memory.memory_stores import HOOKS, Place, memory, placed, put, row_of
from tests.stores.writing import NAME, PATIENCE

TICK = 0.05


def update_settings(store: OpenStore, **memory_settings: Any) -> None:
    def change(settings: Any) -> Any:
        return msgspec.structs.replace(settings, memory=msgspec.structs.replace(settings.memory, **memory_settings))

    store.change_settings(change)


def awaited(what: Callable[[], Any]) -> Any:
    """Return the result once it is true."""
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def runs(place: Place) -> list[ConsolidationRun]:
    return list_consolidations(place.graph(NAME), ConsolidationRunListQuery()).runs


def finished_runs(store: OpenStore, node_id: str) -> str:
    return (row_of(store, node_id).extras or NO_EXTRAS).ended


def test_automatic_consolidation_merges_equal_wording_and_suggests_near(tmp_path: Path) -> None:
    with placed(tmp_path, tick=TICK) as place, place.pool.lease(NAME, create=True) as store:
        update_settings(store, consolidation_interval=3)
        put(store, [memory("a", "Tea is hot"), memory("b", "The tea is hot.")])
        time.sleep(4 * TICK)
        assert runs(place) == []
        put(store, [memory("c", HOOKS[0]), memory("d", HOOKS[1])])
        (run,) = awaited(lambda: [run for run in runs(place) if run.state == "done"])
        assert (run.trigger, run.clusters, run.merged) == ("automatic", 1, 1)
        assert [sorted(each.ids) for each in run.suggestions] == [["c", "d"]]
        assert [finished_runs(store, each) for each in "abcd"] == ["", "merged", "", ""]


def test_memories_without_vectors_are_compared_by_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "MEMORY_JOB_TIMEOUT_SECONDS", TICK)
    with placed(tmp_path, tick=TICK) as place, place.pool.lease(NAME, create=True) as store:
        update_settings(store, consolidation_interval=4)
        assert place.indexer.of(store).wait(0, PATIENCE)
        woken = [*store.after_commit]
        store.after_commit.clear()  # so that the indexes do not advance
        put(store, [memory("a", HOOKS[0]), memory("b", HOOKS[1])])
        put(store, [memory("c", "Tea is hot"), memory("d", "The tea is hot.")])
        (run,) = awaited(lambda: [run for run in runs(place) if run.state == "done"])
        assert (run.merged, run.suggestions) == (1, [])
        store.after_commit.extend(woken)
        put(store, [memory("e", "Milk"), memory("f", "Rain falls"), memory("g", "Owls hunt")])
        assert place.indexer.of(store).wait(store.state.sequence, PATIENCE)
        put(store, [memory("h", "Oak trees")])
        newest = awaited(lambda: len(found := runs(place)) == 2 and found[0])
        assert [sorted(each.ids) for each in newest.suggestions] == [["a", "b"]]


def test_undone_merge_is_not_repeated_automatically(tmp_path: Path) -> None:
    with placed(tmp_path, tick=TICK) as place, place.pool.lease(NAME, create=True) as store:
        update_settings(store, consolidation_interval=2)
        put(store, [memory("a", "Tea is hot"), memory("b", "The tea is hot.")])
        (run,) = awaited(lambda: [run for run in runs(place) if run.state == "done"])
        undo_consolidation(place.graph(NAME), UndoConsolidationRequest(run_id=run.id))
        assert runs(place)[0].state == "undone"
        put(store, [memory("c", "Milk is cold"), memory("d", "The milk is cold.")])
        awaited(lambda: finished_runs(store, "d") == "merged")
        assert finished_runs(store, "b") == ""


def test_due_maintenance_survives_restart(tmp_path: Path) -> None:
    with placed(tmp_path) as place, place.pool.lease(NAME, create=True) as store:
        update_settings(store, consolidation_interval=4)
        put(store, [memory(each, "Tea is hot") for each in "abc"])
        broken = ConsolidationRunRecord(
            status="running",
            trigger="manual",
            similarity_threshold=0.85,
            guard=True,
            through=1,
            started_at="2025-01-01T00:00:00Z",
        )
        put(store, [NodeUpsert(0, "consolidation-0", KIND_CONSOLIDATION, "", broken.text)])
        assert runs(place)[0].state == "interrupted"
    with placed(tmp_path, tick=TICK) as place, place.pool.lease(NAME) as store:
        awaited(lambda: '"interrupted"' in row_of(store, "consolidation-0").attributes)
        put(store, [memory("d", "Tea is hot")])
        awaited(lambda: [run for run in runs(place) if run.merged == 3])
        sequence = awaited(lambda: runs(place)[0].state == "done" and store.state.sequence)
    with placed(tmp_path, tick=TICK) as place, place.pool.lease(NAME) as store:
        time.sleep(4 * TICK)
        assert store.state.sequence == sequence


def test_interrupted_run_is_repeated(tmp_path: Path) -> None:
    with placed(tmp_path) as place, place.pool.lease(NAME, create=True) as store:
        update_settings(store, consolidation_interval=2)
        put(store, [memory(each, "Tea is hot") for each in "ab"])
        broken = ConsolidationRunRecord(
            status="running",
            trigger="automatic",
            similarity_threshold=0.85,
            guard=True,
            through=store.state.sequence,
            started_at="2025-01-01T00:00:00Z",
        )
        put(store, [NodeUpsert(0, "consolidation-0", KIND_CONSOLIDATION, "", broken.text)])
    with placed(tmp_path, tick=TICK) as place, place.pool.lease(NAME) as store:
        awaited(lambda: finished_runs(store, "b") == "merged")
        assert {run.state for run in runs(place)} >= {"interrupted"}


def test_maintenance_prunes_and_flushes_accesses(tmp_path: Path) -> None:
    now = time.time_ns() // 1000
    with placed(tmp_path) as place, place.pool.lease(NAME, create=True) as store:
        put(store, [memory("old", "Long ago", created_at=now - 200 * DAY_MICROSECONDS), memory("new", "Just now")])
        put(store, [memory("deleted", "Also long ago", "error", created_at=now - 200 * DAY_MICROSECONDS)])
    with placed(tmp_path, tick=TICK) as place, place.pool.lease(NAME) as store:
        awaited(lambda: finished_runs(store, "old") == "pruned")
        assert finished_runs(store, "new") == ""
        many = [f"m{at}" for at in range(1_000)]
        put(store, [memory(each, each) for each in many])
        store.accesses.update(many, lambda node_id, _: MemoryAccessRecord(node_id, 1, now, 1.0))
        awaited(lambda: len(store.accesses) == 0)


def test_disabled_maintenance_does_nothing(tmp_path: Path) -> None:
    now = time.time_ns() // 1000
    with placed(tmp_path, tick=TICK) as place, place.pool.lease(NAME, create=True) as store:
        update_settings(store, consolidation="off", consolidation_interval=1, prune="off")
        put(
            store,
            [
                memory("a", "Tea is hot"),
                memory("b", "Tea is hot"),
                memory("c", "x", created_at=now - 200 * DAY_MICROSECONDS),
            ],
        )
        sequence = store.state.sequence
        time.sleep(6 * TICK)
        assert store.state.sequence == sequence
        update_settings(store, consolidation="full")
        awaited(lambda: finished_runs(store, "b") == "merged")
