"""Bulk deletion by filter during other writes, and the size of its commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgserve.graph import node_reads
from kgserve.graph.node_reads import delete_matching_nodes
from kgserve.graph.request_bodies import DeleteNodesRequest
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import NAME, PATIENCE, batch, held, settings, write

OPEN, DONE = '{"status":"open"}', '{"status":"done"}'


def test_bulk_delete_skips_nodes_that_no_longer_match(tmp_path: Path) -> None:
    wanted = DeleteNodesRequest(attributes={"status": "open"})
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        write(store, WriteBatch(nodes=[NodeUpsert(0, node_id, "t", attributes=OPEN) for node_id in "abc"]))
        with held(store):
            earlier = store.submit(WriteBatch(nodes=[NodeUpsert(0, "b", attributes=DONE)], delete_nodes=["c"]))
            later = delete_matching_nodes(graph_of(pool, NAME), wanted)
        earlier.result(PATIENCE)
        done = later.result(PATIENCE)
        assert (done.ids, done.count, done.more) == (["a"], 1, False)
        with store.reading() as rows:
            assert [row.id for row in rows.all_nodes()] == ["b"]


@pytest.mark.parametrize(
    ("most", "at_once"), [(1, [["a"], ["b"], ["c"]]), (5, [["a"], ["b", "c"]]), (9, [["a", "b", "c"]])]
)
def test_bulk_delete_splits_commits_by_edge_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, at_once: list[list[str]]
) -> None:
    """ "a" has six edges, "b" and "c" have two each, and one connects "a" and "b"."""
    monkeypatch.setattr(node_reads, "MAX_EDGES_PER_DELETION", most)
    wanted = DeleteNodesRequest(ids=["a", "b", "c"])
    dry = DeleteNodesRequest(ids=["a", "b", "c"], dry_run=True)
    edges = [
        *(("a", f"x{n}", "r") for n in range(5)),
        ("b", "a", "r"),
        ("b", "b", "r"),
        ("x0", "c", "r"),
        ("c", "x1", "r"),
    ]
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        write(store, batch("a", "b", "c", *(f"x{n}" for n in range(5)), edges=edges))
        graph, gone = graph_of(pool, NAME), 0
        for ids in at_once:
            foretold = delete_matching_nodes(graph, dry).result(PATIENCE)
            done = delete_matching_nodes(graph, wanted).result(PATIENCE)
            assert done.ids == foretold.ids == ids
            assert (done.more, foretold.more) == (ids != at_once[-1],) * 2
            assert done.edges_deleted == foretold.edges_deleted
            gone += done.edges_deleted
        assert gone == len(edges)
        assert store.state.edges == 0
        assert delete_matching_nodes(graph, wanted).result(PATIENCE).missing == ["a", "b", "c"]
