"""Rules of write planning."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kgserve.errors import Conflict, InvalidInput
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.change_set import ChangeSet, MemoryAccessRecord, StoreState
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION
from kgserve.storage.model.node_edge_fields import NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow, split_edge_times_from_attributes
from kgserve.storage.model.soft_delete import VERSION_OF_RELATION
from kgserve.storage.model.store_rows_digest import rows_digest
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.write_planner import (
    MAX_REPORTED_ROWS,
    WritePlanningWorkspace,
    WriteReport,
    check_write_batch,
    plan_write_batch,
)

AB = ("a", "b", "r")


class Planner:
    """Planner of consecutive batches, one second apart."""

    def __init__(self, *batches: WriteBatch) -> None:
        self.workspace = WritePlanningWorkspace()
        self.workspace.incident = {node_id: set() for node_id in "abc"}
        self.state = StoreState()
        self.now = 0
        self.change: ChangeSet | None = None
        for batch in batches:
            self.write(batch)

    def write(self, batch: WriteBatch) -> WriteReport:
        self.now += 1_000_000
        check_write_batch(batch, self.workspace)
        self.change, report = plan_write_batch(batch, self.workspace, self.state, self.now)
        self.state = self.change.state if self.change else self.state
        rows = [*self.workspace.nodes.values(), *(edge for edge in self.workspace.edges.values() if edge)]
        assert self.state.digest == rows_digest([msgspec.structs.astuple(row) for row in rows])
        assert self.state.nodes + self.state.edges == len(rows)
        return report

    def node(self, **fields: Any) -> WriteReport:
        return self.write(WriteBatch(nodes=[NodeUpsert(0, fields.pop("id", "a"), **fields)]))

    def edge(self, *, touch: bool = True, **fields: Any) -> WriteReport:
        return self.write(WriteBatch(edges=[EdgeUpsert(0, fields.pop("key", AB), **fields)], touch=touch))

    @property
    def a(self) -> NodeRow:
        return self.workspace.nodes["a"]

    @property
    def ab(self) -> EdgeRow:
        found = self.workspace.edges[AB]
        assert found is not None
        return found


NODES = WriteBatch(nodes=[NodeUpsert(0, "a", "t", "text", '{"k":1}'), NodeUpsert(1, "b", "t")])


@pytest.fixture
def nodes() -> Planner:
    return Planner(NODES)


@pytest.fixture
def edge(nodes: Planner) -> Planner:
    nodes.edge(weight=0.5, own='{"k":1}')
    return nodes


def test_create_node(nodes: Planner) -> None:
    assert nodes.a == NodeRow("a", "t", "text", '{"k":1}', 1, 1, 1_000_000, 1_000_000)
    assert (nodes.state.sequence, nodes.state.nodes, nodes.state.time) == (1, 2, 1_000_000)


def test_omitted_fields_are_kept_and_empty_ones_cleared(nodes: Planner) -> None:
    assert nodes.node(type="u").nodes_updated == 1
    assert nodes.a == NodeRow("a", "u", "text", '{"k":1}', 2, 2, 1_000_000, 2_000_000)
    nodes.node(content="", attributes="{}")
    assert nodes.a == NodeRow("a", "u", "", "{}", 3, 3, 1_000_000, 3_000_000)


def test_attributes_are_replaced(nodes: Planner) -> None:
    nodes.node(attributes='{"other":2}')
    assert nodes.a.attributes == '{"other":2}'


def test_noop_is_not_a_write(nodes: Planner) -> None:
    before = nodes.state
    report = nodes.write(NODES)
    assert (report.nodes_unchanged, report.sequence, nodes.change, nodes.state) == (2, 1, None, before)


def test_new_node_requires_type(nodes: Planner) -> None:
    with pytest.raises(InvalidInput) as refused:
        nodes.write(WriteBatch(nodes=[NodeUpsert(4, "x", "t"), NodeUpsert(7, "y")]))
    assert [error.path for error in refused.value.errors] == ["nodes[7].type"]
    assert nodes.state.sequence == 1
    report = nodes.write(WriteBatch(nodes=[NodeUpsert(4, "x", "t"), NodeUpsert(7, "y")], partial=True))
    assert (report.nodes_created, report.rejected_count, report.rejected[0].index) == (1, 1, 7)


def test_recreating_without_type_in_one_batch_is_rejected(nodes: Planner) -> None:
    with pytest.raises(InvalidInput):
        nodes.write(WriteBatch(delete_nodes=["a"], nodes=[NodeUpsert(0, "a", content="x")]))


def test_last_put_of_a_node_wins_by_field(nodes: Planner) -> None:
    puts = [NodeUpsert(0, "c", "t", "first", '{"k":1}'), NodeUpsert(1, "c", content="last"), NodeUpsert(2, "c", "u")]
    report = nodes.write(WriteBatch(nodes=puts))
    assert report.nodes_created == 1
    assert nodes.workspace.nodes["c"] == NodeRow("c", "u", "last", '{"k":1}', 1, 2, 2_000_000, 2_000_000)


def test_create_edge(nodes: Planner) -> None:
    assert nodes.edge().edges_created == 1
    assert nodes.ab.weight == 1.0
    now = format_rfc3339_timestamp(2_000_000)
    assert msgspec.json.decode(nodes.ab.attributes) == {"created_at": now, "updated_at": now}
    assert (nodes.ab.version, nodes.ab.sequence) == (1, 2)


def test_edge_keeps_omitted_fields_and_created_at(edge: Planner) -> None:
    assert edge.edge(weight=0.75).edges_updated == 1
    assert edge.edge(own='{"other":2}').edges_updated == 1
    stamps = split_edge_times_from_attributes(edge.ab.attributes)
    assert (edge.ab.weight, edge.ab.version, stamps.own) == (0.75, 3, '{"other":2}')
    assert (stamps.created_at, stamps.updated_at) == (
        format_rfc3339_timestamp(2_000_000),
        format_rfc3339_timestamp(4_000_000),
    )


def test_touch_updates_edge_time_without_new_version(edge: Planner) -> None:
    report = edge.edge()
    assert (report.edges_unchanged, report.edges_updated, report.sequence) == (1, 0, 3)
    assert (edge.ab.version, edge.ab.sequence) == (1, 2)
    assert split_edge_times_from_attributes(edge.ab.attributes).updated_at == format_rfc3339_timestamp(3_000_000)
    assert edge.change is not None
    assert [row.key for row in edge.change.edges_touched] == [AB]
    assert edge.change.edges_updated == []


def test_edge_without_touch_is_unchanged(edge: Planner) -> None:
    before = edge.ab
    for fields in ({}, {"weight": 0.5}, {"own": '{"k":1}'}, {"weight": 0.5, "own": '{"k":1}'}):
        assert edge.edge(touch=False, **fields).edges_unchanged == 1
        assert edge.change is None
    assert edge.ab == before
    assert edge.edge(touch=False, weight=0.6).edges_updated == 1
    assert split_edge_times_from_attributes(edge.ab.attributes).updated_at == format_rfc3339_timestamp(edge.now)


def test_caller_times_take_precedence(nodes: Planner) -> None:
    past = "2020-01-01T00:00:00+01:00"
    nodes.edge(created_at=past, own="{}")
    assert split_edge_times_from_attributes(nodes.ab.attributes).created_at == past
    nodes.edge(weight=2.0)
    assert split_edge_times_from_attributes(nodes.ab.attributes).created_at == past


def test_edge_without_endpoints_is_skipped_and_reported(nodes: Planner) -> None:
    edges = [
        EdgeUpsert(0, ("a", "x", "r")),
        EdgeUpsert(1, ("y", "z", "r")),
        EdgeUpsert(2, ("x", "x", "r")),
        EdgeUpsert(3, AB),
    ]
    report = nodes.write(WriteBatch(edges=edges))
    assert (report.edges_created, report.skipped_count) == (1, 3)
    assert [(row.index, row.reason) for row in report.skipped] == [
        (0, 'no such node: "x"'),
        (1, 'no such node: "y", "z"'),
        (2, 'no such node: "x"'),
    ]


def test_report_limits_listed_skipped_edges(nodes: Planner) -> None:
    report = nodes.write(WriteBatch(edges=[EdgeUpsert(i, ("a", f"x{i}", "r")) for i in range(MAX_REPORTED_ROWS + 20)]))
    assert (len(report.skipped), report.skipped_count) == (MAX_REPORTED_ROWS, MAX_REPORTED_ROWS + 20)
    assert nodes.change is None


def test_nodes_are_applied_before_edges(nodes: Planner) -> None:
    report = nodes.write(WriteBatch(edges=[EdgeUpsert(0, ("b", "c", "r"))], nodes=[NodeUpsert(0, "c", "t")]))
    assert (report.nodes_created, report.edges_created) == (1, 1)


def test_relation_types_distinguish_edges(edge: Planner) -> None:
    assert edge.edge(key=("a", "b", "other")).edges_created == 1
    assert edge.edge(key=("b", "a", "r")).edges_created == 1
    assert edge.state.edges == 3


def test_delete_node_deletes_its_edges(edge: Planner) -> None:
    edge.edge(key=("b", "a", "r"))
    edge.edge(key=("a", "a", "r"))
    edge.edge(key=("b", "b", "r"))
    report = edge.write(WriteBatch(delete_nodes=["a"]))
    assert (report.nodes_deleted, report.edges_deleted) == (1, 3)
    assert (edge.state.nodes, edge.state.edges) == (1, 1)


def test_delete_of_missing_rows_is_a_noop(edge: Planner) -> None:
    report = edge.write(WriteBatch(delete_nodes=["x"], delete_edges=[("a", "b", "other")]))
    assert (report.nodes_deleted, report.edges_deleted, edge.change) == (0, 0, None)


def test_duplicate_delete_counts_once(edge: Planner) -> None:
    report = edge.write(WriteBatch(delete_nodes=["a", "a"], delete_edges=[AB, AB]))
    assert (report.nodes_deleted, report.edges_deleted) == (1, 1)


def test_recreated_node_in_one_batch_continues_version_number(edge: Planner) -> None:
    again = WriteBatch(delete_nodes=["a"], nodes=[NodeUpsert(0, "a", "t")], edges=[EdgeUpsert(0, AB)])
    report = edge.write(again)
    assert (report.nodes_deleted, report.nodes_created, report.edges_deleted, report.edges_created) == (1, 1, 1, 1)
    assert (edge.a.version, edge.ab.version, edge.ab.weight) == (2, 1, 1.0)


def test_imported_versions_and_times_never_decrease(nodes: Planner) -> None:
    nodes.node(id="c", type="t", version=7, created_at=5, updated_at=0)
    assert nodes.workspace.nodes["c"] == NodeRow("c", "t", "", "{}", 7, 2, 5, 0)
    nodes.node(id="c", content="x", version=3)
    assert nodes.workspace.nodes["c"].version == 8
    nodes.node(id="c", content="y", version=20)
    assert nodes.workspace.nodes["c"].version == 20


def test_commit_times_increase_with_a_stopped_clock(nodes: Planner) -> None:
    for number in range(3):
        change, _ = plan_write_batch(
            WriteBatch(nodes=[NodeUpsert(0, f"n{number}", "t")]), nodes.workspace, nodes.state, 0
        )
        assert change is not None
        assert change.time == nodes.state.time + 1
        nodes.state = change.state


def test_batch_sees_earlier_batches_of_its_group() -> None:
    planner = Planner()
    reports = [
        planner.write(batch)
        for batch in (
            WriteBatch(nodes=[NodeUpsert(0, "a", "t"), NodeUpsert(1, "b", "t")], edges=[EdgeUpsert(0, AB)]),
            WriteBatch(delete_nodes=["a"]),
            WriteBatch(edges=[EdgeUpsert(0, AB)]),
            WriteBatch(nodes=[NodeUpsert(0, "a", "t")], edges=[EdgeUpsert(0, AB)]),
            WriteBatch(delete_edges=[AB]),
        )
    ]
    assert [(r.edges_created, r.edges_deleted, r.skipped_count) for r in reports] == [
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        (1, 0, 0),
        (0, 1, 0),
    ]
    assert [r.sequence for r in reports] == [1, 2, 2, 3, 4]


def test_accesses_alone_make_a_commit_without_rows(nodes: Planner) -> None:
    before = nodes.state
    report = nodes.write(
        WriteBatch(
            accesses=[
                MemoryAccessRecord("a", 1, 5, 0.5),
                MemoryAccessRecord("b", 1, 5, 0.5),
                MemoryAccessRecord("a", 2, 6, 0.6),
            ]
        )
    )
    assert nodes.change is not None
    assert nodes.change.accessed == [MemoryAccessRecord("a", 2, 6, 0.6), MemoryAccessRecord("b", 1, 5, 0.5)]
    assert (nodes.change.size, nodes.state.digest, nodes.state.sequence) == (0, before.digest, before.sequence + 1)
    assert report == WriteReport(sequence=before.sequence + 1)


def test_access_of_missing_node_is_dropped(nodes: Planner) -> None:
    def accessed(batch: WriteBatch) -> list[str] | None:
        nodes.write(batch)
        return nodes.change and [access.id for access in nodes.change.accessed]

    some = [MemoryAccessRecord(node_id, 1, 5, 0.5) for node_id in ("a", "b", "c")]
    assert accessed(WriteBatch(accesses=some[2:])) is None
    assert nodes.state.sequence == 1
    assert accessed(WriteBatch(delete_nodes=["a"], accesses=some)) == ["b"]
    assert accessed(WriteBatch(nodes=[NodeUpsert(0, "c", "t")], accesses=some)) == ["b", "c"]


def merged(into: str) -> Planner:
    """Return a planner with the nodes a to d, of which b was merged into ``into``."""
    planner = Planner(WriteBatch(nodes=[NodeUpsert(at, node_id, "t") for at, node_id in enumerate("abcd")]))
    planner.edge(key=("b", into, MERGED_INTO_RELATION))
    planner.workspace.merged["b"] = into
    return planner


@pytest.mark.parametrize("into", ["a", "c"])
def test_edges_of_merged_node_are_redirected(into: str) -> None:
    planner = merged(into)
    edges = [EdgeUpsert(0, ("b", "d", "r")), EdgeUpsert(1, ("d", "b", "r")), EdgeUpsert(2, ("b", into, "r"))]
    report = planner.write(WriteBatch(edges=edges))
    assert planner.change is not None
    assert [row.key for row in planner.change.edges_created] == [(into, "d", "r"), ("d", into, "r")]
    assert report.redirected == {"b": into}
    assert [(row.index, row.reason) for row in report.skipped] == [(2, f'its ends were merged: both are "{into}"')]


def test_unmerge_applies_to_later_batches_of_the_group() -> None:
    planner = merged("a")
    planner.write(WriteBatch(delete_edges=[("b", "a", MERGED_INTO_RELATION)], edges=[EdgeUpsert(0, ("b", "d", "r"))]))
    report = planner.edge(key=("d", "b", "r"))
    assert (report.edges_created, report.redirected) == (1, {})
    assert {key for key, row in planner.workspace.edges.items() if row} == {("b", "d", "r"), ("d", "b", "r")}


def test_merged_node_rejects_writes_until_unmerge() -> None:
    planner = merged("a")
    assert planner.node(id="b", type="t").nodes_unchanged == 1
    with pytest.raises(Conflict):
        planner.node(id="b", content="new")
    assert planner.node(id="a", content="new").nodes_updated == 1
    new = WriteBatch(nodes=[NodeUpsert(0, "b", content="new")], delete_edges=[("b", "a", MERGED_INTO_RELATION)])
    assert planner.write(new).nodes_updated == 1


@pytest.mark.parametrize("again", [False, True])
def test_delete_memory_deletes_former_versions_except_those_put(*, again: bool) -> None:
    belonging = {"a": "", "b": "", "v1": "a", "v2": "a", "other": "b"}
    puts = [
        NodeUpsert(at, node_id, "fact", extras=NodeExtrasUpsert(confidence=0.5, belongs_to=to))
        for at, (node_id, to) in enumerate(belonging.items())
    ]
    planner = Planner(WriteBatch(nodes=puts))
    planner.write(WriteBatch(edges=[EdgeUpsert(0, (each, "a", VERSION_OF_RELATION)) for each in ("v1", "v2", "other")]))
    report = planner.write(WriteBatch(delete_nodes=["a"], nodes=puts[2:3] if again else []))
    assert planner.change is not None
    assert planner.change.nodes_deleted == (["a", "v2"] if again else ["a", "v1", "v2"])
    assert (report.nodes_deleted, report.edges_deleted) == (len(planner.change.nodes_deleted), 3)
    assert planner.workspace.nodes.keys() == {"b", "other"} | ({"v1"} if again else set())
