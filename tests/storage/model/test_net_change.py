"""Net changes compared with applying change sets one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgserve.storage.model.change_set import ChangeSet, MemoryAccessRecord, NetChange, StoreState
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.write_planner import WritePlanningWorkspace, plan_write_batch
from tests.fuzzing import examples

IDS = st.sampled_from("abcd")
KEYS = st.tuples(IDS, IDS, st.sampled_from("rs"))
BATCHES = st.builds(
    lambda nodes, edges, gone, cut, read, touch: WriteBatch(
        nodes=[NodeUpsert(i, node_id, "t", text) for i, (node_id, text) in enumerate(nodes)],
        edges=[EdgeUpsert(i, key, weight) for i, (key, weight) in enumerate(edges)],
        delete_nodes=gone,
        delete_edges=cut,
        accesses=[MemoryAccessRecord(node_id, count, 0, 1.0) for node_id, count in read],
        touch=touch,
    ),
    st.lists(st.tuples(IDS, st.sampled_from("xyz")), max_size=4),
    st.lists(st.tuples(KEYS, st.sampled_from([0.0, 0.5, 1.0])), max_size=6),
    st.lists(IDS, max_size=2),
    st.lists(KEYS, max_size=3),
    st.lists(st.tuples(IDS, st.integers(1, 9)), max_size=3),
    st.booleans(),
)

Rows = tuple[dict[str, NodeRow], dict[EdgeKey, EdgeRow]]


def planned(batches: list[WriteBatch]) -> list[ChangeSet]:
    workspace, state, changes = WritePlanningWorkspace(), StoreState(), list[ChangeSet]()
    workspace.incident = {node_id: set() for node_id in "abcd"}
    for batch in batches:
        change, _ = plan_write_batch(batch, workspace, state, 1)
        if change is not None:
            changes.append(change)
            state = change.state
    return changes


def one_by_one(rows: Rows, change: ChangeSet) -> Rows:
    nodes, edges = dict(rows[0]), dict(rows[1])
    for key in change.edges_deleted:
        del edges[key]
    for node_id in change.nodes_deleted:
        del nodes[node_id]
    for node in (*change.nodes_created, *change.nodes_updated):
        nodes[node.id] = node
    for edge in (*change.edges_created, *change.edges_updated, *change.edges_touched):
        edges[edge.key] = edge
    return nodes, edges


def accesses_one_by_one(accesses: dict[str, MemoryAccessRecord], change: ChangeSet) -> dict[str, MemoryAccessRecord]:
    kept = {node_id: access for node_id, access in accesses.items() if node_id not in change.nodes_deleted}
    return kept | {access.id: access for access in change.accessed}


def accesses_at_once(accesses: dict[str, MemoryAccessRecord], net: NetChange) -> dict[str, MemoryAccessRecord]:
    return {node_id: access for node_id, access in accesses.items() if node_id not in net.reset_accesses} | net.accessed


def at_once(rows: Rows, net: NetChange) -> Rows:
    nodes, edges = dict(rows[0]), dict(rows[1])
    for key in net.edges_deleted:
        del edges[key]
    for node_id in net.nodes_deleted:
        del nodes[node_id]
    assert not net.nodes_created.keys() & nodes.keys()
    assert not net.edges_created.keys() & edges.keys()
    assert net.nodes_updated.keys() <= nodes.keys()
    assert net.edges_updated.keys() <= edges.keys()
    return nodes | net.nodes_created | net.nodes_updated, edges | net.edges_created | net.edges_updated


@examples(100)
@given(st.lists(BATCHES, min_size=1, max_size=8), st.integers(0, 7))
def test_net_change_equals_consecutive_change_sets(batches: list[WriteBatch], start: int) -> None:
    changes = planned(batches)
    before: Rows = ({}, {})
    for change in changes[:start]:
        before = one_by_one(before, change)
    after = before
    for change in changes[start:]:
        after = one_by_one(after, change)
        assert (change.nodes, change.edges) == (len(after[0]), len(after[1]))
        # An edge never outlives its nodes.
        assert all(edge.source in after[0] and edge.target in after[0] for edge in after[1].values())
    net = NetChange(changes[start:])
    assert at_once(before, net) == after
    assert net.state == (changes[-1].state if changes[start:] else None)
    added = NetChange()
    for change in changes[start:]:
        added.add(change)
    assert at_once(before, added) == after
    known: dict[str, MemoryAccessRecord] = {}
    for change in changes[:start]:
        known = accesses_one_by_one(known, change)
    expected = known
    for change in changes[start:]:
        expected = accesses_one_by_one(expected, change)
    assert accesses_at_once(known, net) == accesses_at_once(known, added) == expected
    assert expected.keys() <= after[0].keys()
    kinds = (
        net.nodes_created,
        net.nodes_updated,
        net.nodes_deleted,
        net.edges_created,
        net.edges_updated,
        net.edges_deleted,
    )
    assert len(net) == sum(map(len, kinds))


def test_meets_finds_written_rows_and_edges_of_deleted_nodes() -> None:
    edge = EdgeRow("a", "b", "r", 1.0, "{}", 1, 1)
    change = ChangeSet(sequence=1, time=1, digest=b"", nodes=2, edges=1, edges_created=[edge])
    assert change.touches(set(), {("a", "b", "r")}, set())
    assert change.touches(set(), set(), {"a"})
    assert change.touches(set(), set(), {"b"})
    assert not change.touches({"a", "b"}, {("b", "a", "r")}, {"c"})
