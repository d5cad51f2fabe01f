"""Consolidation in a process that is killed during a run."""

from __future__ import annotations

from pathlib import Path

from kgserve.memory.consolidation.consolidate_undo_prune import list_consolidations, undo_consolidation
from kgserve.memory.memory_models import ConsolidationRunListQuery, UndoConsolidationRequest
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.write_batch import EdgeUpsert
from kgserve.stores.pool import StorePool
from tests.cli.running import PythonProcess
from tests.graphs import graph_of
from tests.memory.memory_stores import exported, memory, put
from tests.stores.writing import NAME, settings

CLUSTERS = 60
CONSOLIDATE = """
import sys
from pathlib import Path
from kgserve.memory.memory_models import ConsolidateRequest
from kgserve.memory.consolidation.consolidate_undo_prune import consolidate_memories
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import NAME, settings

with StorePool(settings(Path(sys.argv[1]))) as pool, pool.lease(NAME) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    store.after_commit.append(lambda: print("x", end="", flush=True))
    consolidate_memories(graph_of(pool, NAME), ConsolidateRequest())
"""


def kill_after(data: Path, commits: int) -> None:
    """Run a consolidation in a process, and kill it after a number of commits."""
    with PythonProcess(CONSOLIDATE, str(data)) as process:
        while "ready" not in process.stdout.readline():
            pass
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.read(commits)


def test_killed_consolidation_is_atomic_and_can_be_undone(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        first = [memory(f"a{at}", f"Thing {at} is good", tags=("one",)) for at in range(CLUSTERS)]
        second = [
            memory(f"b{at}", f"The thing {at} is good", tags=("other",), confidence=0.5) for at in range(CLUSTERS)
        ]
        about = [EdgeUpsert(0, (f"b{at}", f"a{(at + 1) % CLUSTERS}", "is_about")) for at in range(CLUSTERS)]
        put(store, [*first, *second], about)
        before = exported(graph_of(pool, NAME))
    for commits in (1, 2, 23):
        kill_after(tmp_path, commits)
        with StorePool(settings(tmp_path)) as pool, pool.lease(NAME) as store:
            of = graph_of(pool, NAME)
            with store.reading() as rows:
                nodes = {row.id: row.extras or NO_EXTRAS for row in rows.all_nodes()}
                edges = {row.key for row in rows.all_edges()}
            merged = {at for at in range(CLUSTERS) if nodes[f"b{at}"].ended == "merged"}
            assert len(merged) >= commits - 1
            for at in range(CLUSTERS):
                target = f"a{(at + 1) % CLUSTERS}"
                assert ((f"a{at}", target, "is_about") in edges) is (at in merged)
                assert ((f"b{at}", target, "is_about") in edges) is (at not in merged)
                assert ("other" in nodes[f"a{at}"].tags) is (at in merged)
            (run,) = list_consolidations(of, ConsolidationRunListQuery()).runs
            assert run.state == ("done" if len(merged) == CLUSTERS and run.clusters else "interrupted")
            undo_consolidation(of, UndoConsolidationRequest(run_id=run.id))
            assert exported(of) == before
