from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from kgserve.errors import Conflict, NotFound, Unavailable
from kgserve.memory.consolidation.consolidate_undo_prune import (
    CONSOLIDATION_RETRY_AFTER_SECONDS,
    consolidate_memories,
    list_consolidations,
    prune_memories,
    undo_consolidation,
)
from kgserve.memory.forget import soft_delete_or_restore_memories
from kgserve.memory.memory_models import (
    ConsolidateRequest,
    ConsolidationReport,
    ConsolidationRunListQuery,
    DryRunPlanReference,
    PruneMemoriesRequest,
    UndoConsolidationRequest,
)
from kgserve.memory.retain_forget_recall_models import ForgetRequest
from kgserve.platform.timestamps import DAY_MICROSECONDS
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.write_batch import EdgeUpsert, WriteBatch
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of, node_of
from tests.memory.memory_stores import HOOKS, Place, exported, memory, placed, put, row_of
from tests.projections.indexing import StuckEmbedder, caught_up, indexed
from tests.stores.writing import settings

NOW = 1_790_000_000_000_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(tmp_path_factory.mktemp("stores")) as opened:
        yield opened


def run(place: Place, store: str, **wanted: object) -> ConsolidationReport:
    return consolidate_memories(place.graph(store), ConsolidateRequest(**wanted))  # type: ignore[arg-type]


def put_duplicates(place: Place, name: str) -> None:
    with place.pool.lease(name, create=True) as store:
        put(store, [memory(f"m{at}", text, created_at=NOW + at, tags=(f"t{at}",)) for at, text in enumerate(HOOKS)])


def test_consolidate_merges_duplicates(place: Place, store: str) -> None:
    put_duplicates(place, store)
    done = run(place, store)
    assert (done.clusters_found, done.memories_merged, done.near_checked) == (1, 4, True)
    assert done.clusters[0].primary == "m0"
    assert done.clusters[0].similarity > 0.85
    with place.pool.lease(store) as leased:
        primary = row_of(leased, "m0")
        assert primary.content.splitlines() == [*HOOKS]
        assert (primary.extras or NO_EXTRAS).tags == ("t0", "t1", "t2", "t3", "t4")
        for absorbed in done.clusters[0].absorbed:
            row = row_of(leased, absorbed)
            extras = row.extras or NO_EXTRAS
            assert (extras.ended, extras.belongs_to) == ("merged", "m0")
            assert extras.valid_from == extras.valid_to == row.created_at
            with leased.reading() as rows:
                assert rows.edge((absorbed, "m0", MERGED_INTO_RELATION)) is not None
    assert run(place, store).clusters_found == 0


def test_dry_run_writes_nothing_and_plan_is_applied_exactly(place: Place, store: str) -> None:
    put_duplicates(place, store)
    before = exported(place.graph(store))
    plan = run(place, store, dry_run=True)
    assert exported(place.graph(store)) == before
    assert plan.run is None
    done = run(place, store, apply=DryRunPlanReference(plan=plan.plan))
    assert done.clusters == plan.clusters
    assert done.run is not None
    assert (done.clusters_found, done.memories_merged) == (plan.clusters_found, plan.memories_merged)


def test_outdated_plan_is_rejected_with_changed_ids(place: Place, store: str) -> None:
    put_duplicates(place, store)
    plan = run(place, store, dry_run=True)
    with place.pool.lease(store) as leased:
        put(leased, [memory("m3", "Something else")])
    before = exported(place.graph(store))
    with pytest.raises(Conflict, match="'m3'"):
        run(place, store, apply=DryRunPlanReference(plan=plan.plan))
    assert exported(place.graph(store)) == before
    with pytest.raises(Conflict, match="is unknown"):
        run(place, store, apply=DryRunPlanReference(plan=plan.plan + 100))
    with pytest.raises(Conflict, match="is unknown"):
        run(place, store, apply=DryRunPlanReference(plan=plan.plan), similarity_threshold=0.9)


def relations() -> list[EdgeUpsert]:
    return [
        EdgeUpsert(0, ("m0", "x", "is_about"), 0.3),
        EdgeUpsert(0, ("m1", "x", "is_about"), 0.9, '{"how":"well"}'),
        EdgeUpsert(0, ("m1", "y", "is_about"), 0.7),
        EdgeUpsert(0, ("m2", "y", "is_about"), 0.8),
        EdgeUpsert(0, ("m1", "m0", "related_to"), 0.4),
        EdgeUpsert(0, ("m1", "m2", "related_to"), 0.4),
        EdgeUpsert(0, ("z", "m2", "mentions"), 0.2),
        EdgeUpsert(0, ("m1", "p", "child_of")),
        EdgeUpsert(0, ("m2", "q", "child_of")),
        EdgeUpsert(0, ("c", "m2", "child_of")),
    ]


def put_related(place: Place, name: str) -> None:
    with place.pool.lease(name, create=True) as store:
        others = [memory(each, f"Thing {each}", "concept", created_at=NOW) for each in "xyzpqc"]
        own = {"source": "chat", "n": 1}
        first = memory(
            "m0",
            HOOKS[0],
            created_at=NOW,
            created_by="alice",
            importance=0.4,
            valid_from=5,
            attributes=own,
            tags=("old",),
        )
        second = memory("m1", HOOKS[1], created_at=NOW + 1, attributes={"n": 2}, importance=0.9, valid_from=5)
        third = memory("m2", HOOKS[2] + ".", created_at=NOW + 2, created_by="bob", valid_from=5)
        put(store, [*others, first, second, third], relations())


def test_primary_takes_over_relations_metadata_and_tags(place: Place, store: str) -> None:
    put_related(place, store)
    assert run(place, store, types=["observation"]).memories_merged == 2
    with place.pool.lease(store) as leased, leased.reading() as rows:
        out = {(row.target, row.relation_type): row.weight for row in rows.outgoing("m0")}
        assert out == {("x", "is_about"): 0.9, ("y", "is_about"): 0.8, ("p", "child_of"): 1.0}
        into = {(row.source, row.relation_type) for row in rows.incoming("m0") if row.source in {"z", "c", "m1", "m2"}}
        assert into == {
            ("z", "mentions"),
            ("c", "child_of"),
            ("m1", MERGED_INTO_RELATION),
            ("m2", MERGED_INTO_RELATION),
        }
        row = rows.node("m0")
        assert row is not None
        assert row.attributes == '{"n":2,"source":"chat"}'
        assert (row.extras or NO_EXTRAS).importance == 0.9
        for absorbed in ("m1", "m2"):
            assert {edge.relation_type for edge in rows.outgoing(absorbed)} == {MERGED_INTO_RELATION}
            extras = (rows.node(absorbed) or row).extras or NO_EXTRAS
            assert (extras.valid_from, extras.valid_to, extras.former_from, extras.former_to) == (5, 5, 5, None)


@pytest.mark.parametrize(
    "chosen", [{}, {"history": "none"}, {"conflict_policy": "manual"}, {"kind_whitelist": ("observation", "concept")}]
)
def test_undo_restores_store(place: Place, store: str, chosen: dict[str, Any]) -> None:
    put_related(place, store)
    with place.pool.lease(store) as leased:
        leased.change_settings(lambda settings: msgspec.structs.replace(settings, **chosen))
    of = place.graph(store)
    before = exported(of)
    done = run(place, store, types=["observation"])
    assert exported(of) != before
    assert list_consolidations(of, ConsolidationRunListQuery()).runs[0].id == done.run
    undone = undo_consolidation(of, UndoConsolidationRequest(run_id=done.run or ""))
    assert (undone.restored_count, undone.skipped) == (2, [])
    assert exported(of) == before
    assert list_consolidations(of, ConsolidationRunListQuery()).runs == []
    with pytest.raises(NotFound):
        undo_consolidation(of, UndoConsolidationRequest(run_id=done.run or ""))


def test_undo_of_related_clusters(place: Place, store: str) -> None:
    with place.pool.lease(store, create=True) as leased:
        memories = [memory(f"{each}{at}", f"Thing {at}", created_at=NOW) for at in range(6) for each in "abc"]
        links = [EdgeUpsert(0, (f"b{at}", f"b{(at + 1) % 6}", "next"), 0.5 + at / 20) for at in range(6)]
        links += [EdgeUpsert(0, (f"c{at}", f"b{(at + 2) % 6}", "next")) for at in range(6)]
        links += [EdgeUpsert(0, (f"a{at}", f"a{(at + 1) % 6}", "next"), 0.6) for at in range(6)]
        put(leased, memories, links)
    of = place.graph(store)
    before = exported(of)
    done = run(place, store, similarity_threshold=1.0)
    assert (done.clusters_found, done.memories_merged) == (6, 12)
    with place.pool.lease(store) as leased, leased.reading() as rows:
        found = {row.key: row.weight for row in rows.all_edges() if row.relation_type == "next"}
    weights = {("a0", "a1"): 0.6, ("a3", "a4"): 0.65, ("a5", "a0"): 0.75, ("a2", "a4"): 1.0}
    assert len(found) == 12
    assert {pair: found[(*pair, "next")] for pair in weights} == weights
    undone = undo_consolidation(of, UndoConsolidationRequest(run_id=done.run or ""))
    assert (undone.restored_count, undone.skipped) == (12, [])
    assert exported(of) == before


def test_undo_conflicts_with_later_changes(place: Place, store: str) -> None:
    put_related(place, store)
    of = place.graph(store)
    done = run(place, store, types=["observation"])
    with place.pool.lease(store) as leased:
        put(leased, [memory("m0", "Hooks are fine")], [EdgeUpsert(0, ("m0", "y", "is_about"), 0.1)])
    taken = UndoConsolidationRequest(run_id=done.run or "")
    with pytest.raises(Conflict, match="'m0'"):
        undo_consolidation(of, taken)
    undone = undo_consolidation(of, UndoConsolidationRequest(run_id=done.run or "", force=True))
    assert (undone.restored, undone.skipped) == (["m1", "m2"], ["m0"])
    with place.pool.lease(store) as leased, leased.reading() as rows:
        assert row_of(leased, "m0").content == "Hooks are fine"
        assert row_of(leased, "m1").content == HOOKS[1]
        assert {row.target: row.weight for row in rows.outgoing("m0")} == {"x": 0.3, "y": 0.1}
        assert {row.target for row in rows.outgoing("m2")} == {"y", "q"}


def test_undo_names_later_run_that_absorbed_primary(place: Place, store: str) -> None:
    with place.pool.lease(store, create=True) as leased:
        put(
            leased,
            [memory("a", "The user likes tea", confidence=0.9), memory("b", "the user likes tea", confidence=0.5)],
        )
    of = place.graph(store)
    before = exported(of)
    first = run(place, store)
    with place.pool.lease(store) as leased:
        put(leased, [memory("c", "The user likes tea.", confidence=1.0)])
    again = run(place, store)
    assert [(each.primary, each.absorbed) for each in again.clusters] == [("c", ["a"])]
    with pytest.raises(Conflict, match=f"'a' was absorbed by 'c' since, in the consolidation '{again.run}'; undo that"):
        undo_consolidation(of, UndoConsolidationRequest(run_id=first.run or ""))
    # A third run, in which "c" is the primary and takes over content.
    with place.pool.lease(store) as leased:
        put(leased, [memory("d", "the user likes tea!", confidence=0.5, tags=("warm",))])
    third = run(place, store)
    assert [(each.primary, each.absorbed) for each in third.clusters] == [("c", ["d"])]
    with pytest.raises(Conflict, match="changed since the consolidation: 'c'"):
        undo_consolidation(of, UndoConsolidationRequest(run_id=again.run or ""))
    for done in (third, again, first):
        assert undo_consolidation(of, UndoConsolidationRequest(run_id=done.run or "")).restored_count == 1
    with place.pool.lease(store) as leased:
        leased.submit(WriteBatch(delete_nodes=["c", "d"])).result()
    assert exported(of) == before


def test_guard_reports_pairs_kept_apart(place: Place, store: str) -> None:
    with place.pool.lease(store, create=True) as leased:
        texts = ("The user prefers React over Vue", "The user prefers Vue over React")
        put(leased, [memory("a", texts[0]), memory("b", texts[1])])
        put(leased, [memory("c", "The server has 8 cores"), memory("d", "The server has 16 cores")])
    told = run(place, store, dry_run=True)
    assert told.clusters == []
    found = {tuple(each.ids): each.differs for each in told.kept_apart}
    assert found == {("a", "b"): "names", ("c", "d"): "numbers"}
    assert all(each.similarity > 0.85 for each in told.kept_apart)
    assert run(place, store, guard=False).clusters_found == 2


def test_ineligible_memories_are_not_consolidated(place: Place, store: str) -> None:
    same = "The build runs on Linux"
    with place.pool.lease(store, create=True) as leased:
        memories = [
            memory("pinned", same, created_at=NOW + 9, importance=1.0),
            memory("also pinned", same, created_at=NOW + 10, importance=1.0),
            memory("older", same, created_at=NOW),
            memory("weak", same + ".", created_at=NOW - 1, confidence=0.4),
            memory("episode", same, layer=3),
            memory("other episode", same, layer=3),
            memory("fact", same, "fact"),
            memory("layered", same, layer=2),
            memory("named", same, name="Linux"),
            memory("other time", same, valid_from=1),
            memory("ended", same, valid_to=2),
        ]
        put(leased, memories)
    done = run(place, store, similarity_threshold=1.0)
    assert [(each.primary, sorted(each.absorbed)) for each in done.clusters] == [
        ("pinned", ["layered", "older", "weak"])
    ]


def test_memory_without_layer_is_consolidated_with_layered_ones(place: Place, store: str) -> None:
    with place.pool.lease(store, create=True) as leased:
        puts = [
            memory("none", HOOKS[0], created_at=NOW),
            memory("fact", HOOKS[1], "fact", layer=2, created_at=NOW + 1),
            memory("concept", HOOKS[0] + ".", "concept", layer=1, created_at=NOW + 2),
            memory("episode", HOOKS[0], "episode", layer=3, created_at=NOW + 3),
            memory("decided", HOOKS[0], "decision", created_at=NOW + 4),
        ]
        put(leased, puts)
        done = run(place, store)
        assert [(each.primary, each.absorbed) for each in done.clusters] == [("none", ["concept"])]
        assert (row_of(leased, "none").extras or NO_EXTRAS).layer == 1
        assert run(place, store).clusters == []
        undo_consolidation(place.graph(store), UndoConsolidationRequest(run_id=done.run or ""))
        assert (row_of(leased, "none").extras or NO_EXTRAS).layer is None


def test_fact_and_unlayered_restatement_are_merged(place: Place, store: str) -> None:
    with place.pool.lease(store, create=True) as leased:
        put(leased, [memory("fact", HOOKS[0], "fact", layer=2, created_at=NOW), memory("none", HOOKS[1])])
    (cluster,) = run(place, store).clusters
    assert {cluster.primary, *cluster.absorbed} == {"fact", "none"}


def test_most_confident_memory_is_primary(place: Place, store: str) -> None:
    with place.pool.lease(store, create=True) as leased:
        put(leased, [memory("old", HOOKS[0], created_at=NOW, confidence=0.5), memory("new", HOOKS[0] + ".")])
    (cluster,) = run(place, store).clusters
    assert (cluster.primary, cluster.absorbed, cluster.content) == ("new", ["old"], HOOKS[0] + ".")


def test_oversized_cluster_is_reported_and_not_merged(place: Place, store: str) -> None:
    long = "React hooks allow state in functional components and are easy to test. " * 20
    with place.pool.lease(store, create=True) as leased:
        put(leased, [memory("a", long + "Good."), memory("b", long + "Good work.")])
    done = run(place, store)
    assert done.clusters == []
    assert [(each.primary, each.absorbed, "2,000 characters" in each.reason) for each in done.left] == [
        ("a", ["b"], True)
    ]


def test_memory_changed_during_run_is_not_merged(place: Place, store: str) -> None:
    with place.pool.lease(store, create=True) as leased:
        put(leased, [memory(f"{each}{at}", f"Thing {at}") for at in range(3) for each in "ab"])
        refused: list[str] = []

        class MemoryChangingSet(set[str]):
            """Set of running consolidations that changes a memory when a run starts."""

            @override
            def add(self, run: str, /) -> None:
                leased.submit(WriteBatch(nodes=[memory("b1", "Other thing")])).result()
                super().add(run)

        def take_back() -> None:
            # In the writer thread: no write happens meanwhile.
            for going in list_consolidations(place.graph(store), ConsolidationRunListQuery()).runs:
                if going.state == "running":
                    with pytest.raises(Unavailable, match="still running"):
                        undo_consolidation(place.graph(store), UndoConsolidationRequest(run_id=going.id))
                    refused.append(going.id)

        leased.runs = MemoryChangingSet()
        leased.after_commit.append(take_back)
        done = run(place, store, similarity_threshold=1.0)
        leased.after_commit.remove(take_back)
        assert (done.clusters_found, done.memories_merged) == (2, 2)
        assert [(each.primary, each.absorbed, each.reason) for each in done.left] == [
            ("a1", ["b1"], "changed meanwhile")
        ]
        assert row_of(leased, "b1").content == "Other thing"
    assert {*refused} == {done.run}
    listed = list_consolidations(place.graph(store), ConsolidationRunListQuery()).runs
    assert [(each.clusters, each.merged, each.state) for each in listed] == [(2, 2, "done")]


def test_without_vectors_only_equal_wording_is_merged(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool, pool.lease("s", create=True) as leased:
        put(leased, [memory(f"m{at}", text) for at, text in enumerate((HOOKS[0], HOOKS[1], HOOKS[0].lower()))])
        done = consolidate_memories(graph_of(pool, "s"), ConsolidateRequest(similarity_threshold=0.0))
    assert not done.near_checked
    assert [(each.primary, each.absorbed) for each in done.clusters] == [("m0", ["m2"])]


class BusyModel(StuckEmbedder):
    """A slow embedding model."""

    degraded = False


def test_consolidate_is_unavailable_while_embedding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.memory.consolidation.candidates.MEMORY_JOB_TIMEOUT_SECONDS", 0.1)
    model = BusyModel()
    with indexed(tmp_path, model) as (pool, indexer), pool.lease("s", create=True) as leased:
        put(leased, [memory(f"m{at}", text) for at, text in enumerate((HOOKS[0], HOOKS[0].lower()))])
        graph = graph_of(pool, "s", indexer)
        for dry_run in (True, False):
            with pytest.raises(Unavailable, match="were not compared and nothing was merged") as refused:
                consolidate_memories(graph, ConsolidateRequest(dry_run=dry_run))
            assert refused.value.retry_after == CONSOLIDATION_RETRY_AFTER_SECONDS
        assert list_consolidations(graph, ConsolidationRunListQuery()).runs == []
        model.let_go.set()
        caught_up(leased, indexer.of(leased))
        done = consolidate_memories(graph, ConsolidateRequest())
    assert (done.near_checked, done.memories_merged) == (True, 1)


def test_letter_vectors_are_not_used_for_merging(tmp_path: Path) -> None:
    with indexed(tmp_path) as (pool, indexer), pool.lease("s", create=True) as leased:
        put(leased, [memory("a", "The build runs on Linux"), memory("b", "The build ran on Linux")])
        caught_up(leased, indexer.of(leased))
        done = consolidate_memories(
            graph_of(pool, "s", indexer), ConsolidateRequest(similarity_threshold=0.1, guard=False)
        )
    assert (done.near_checked, done.clusters) == (False, [])


def test_absorbed_id_redirects_to_primary(place: Place, store: str) -> None:
    put_duplicates(place, store)
    run(place, store)
    found = node_of(place.graph(store), "m3")
    assert (found.node.id, found.redirected_from) == ("m0", "m3")
    with place.pool.lease(store) as leased, pytest.raises(Conflict, match="was merged into 'm0'"):
        put(leased, [memory("m3", "Something new")])


def test_many_equal_memories_are_merged(place: Place, store: str) -> None:
    with place.pool.lease(store, create=True) as leased:
        put(leased, [memory(f"m{at:03}", "The build runs on Linux", created_at=NOW + at) for at in range(150)])
    done = run(place, store)
    assert [(each.primary, len(each.absorbed)) for each in done.clusters] == [("m000", 149)]


def test_type_whitelist_allows_run_nodes(place: Place, store: str) -> None:
    put_duplicates(place, store)
    with place.pool.lease(store) as leased:
        kinds = ("observation",)
        leased.change_settings(lambda settings: msgspec.structs.replace(settings, kind_whitelist=kinds))
    assert run(place, store).clusters_found == 1


def test_prune_withdraws_unprotected_low_confidence_memories(place: Place, store: str) -> None:
    now = time.time_ns() // 1000
    with place.pool.lease(store, create=True) as leased:
        ages = {"fresh": 0, "kept": 129, "faded": 131}
        memories = [memory(each, each, created_at=now - days * DAY_MICROSECONDS) for each, days in ages.items()]
        old = now - 400 * DAY_MICROSECONDS
        memories += [
            memory("pinned", "p", created_at=old, importance=1.0),
            memory("domain", "d", created_at=old, layer=0),
        ]
        memories += [memory("parent", "q", created_at=old), memory("child", "r"), memory("plain", "s", confidence=None)]
        put(leased, memories, [EdgeUpsert(0, ("child", "parent", "child_of"))])
        put(leased, [memory("rewritten", "x", created_at=old)])
        put(leased, [memory("rewritten", "y")])
    of = place.graph(store)
    told = prune_memories(of, PruneMemoriesRequest(dry_run=True))
    assert (told.ids, told.count, told.mode) == (["faded"], 1, "archive")
    assert told.kept == {"pinned": 1, "layer": 1, "parent": 1, "recent": 1}
    done = prune_memories(of, PruneMemoriesRequest())
    assert done.ids == ["faded"]
    with place.pool.lease(store) as leased:
        extras = row_of(leased, "faded").extras or NO_EXTRAS
        assert (extras.ended, extras.valid_from == extras.valid_to) == ("pruned", True)
    assert prune_memories(of, PruneMemoriesRequest()).count == 0
    undone = soft_delete_or_restore_memories(of, ForgetRequest(ids=["faded"], undo=True)).result(60)
    assert (undone.memories_restored, undone.ids) == (1, ["faded"])
    with place.pool.lease(store) as leased:
        restored = row_of(leased, "faded").extras or NO_EXTRAS
        assert (restored.ended, restored.valid_from, restored.valid_to) == ("", None, None)
    assert prune_memories(of, PruneMemoriesRequest()).count == 0, "written within a day"
