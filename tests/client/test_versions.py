"""Versions of nodes through the client."""

from __future__ import annotations

import pytest

from kgserve.client import Client
from kgserve.errors import ConflictManual, KindNotAllowed
from kgserve.graph.compat.versioned_nodes_api import PutNodeRequest


def test_put_by_version_and_conflict_resolution(client: Client, store: str) -> None:
    client.create(store, conflict_policy="manual", kind_whitelist=["note"])
    of = client.store(store)
    made = of.put_node({"lineage_id": "a", "kind": "note", "summary": "one", "tags": ["x:1"]})
    assert (made.created, made.node.version) == (True, 1)
    of.put_node(PutNodeRequest(lineage_id="a", kind="note", summary="two", based_on_version=1))
    with pytest.raises(ConflictManual) as caught:
        of.put_node({"lineage_id": "a", "kind": "note", "summary": "beside", "based_on_version": 1})
    assert (caught.value.node.summary, caught.value.node.conflicts) == ("beside", [2])
    with pytest.raises(KindNotAllowed) as refused:
        of.put_node({"kind": "other"})
    assert refused.value.errors


def test_subgraphs_retirement_and_ordered_edges(client: Client, store: str) -> None:
    of = client.store(store)
    nodes = [{"ref": each, "lineage_id": each, "kind": "t", "tags": ["k:v"]} for each in "abc"]
    edges = [
        {"from_ref": "a", "to_ref": "c", "kind": "r", "ordinal": 2},
        {"from_ref": "a", "to_ref": "b", "kind": "r", "ordinal": 1},
        {"from_ref": "a", "to_ref": "nobody", "kind": "r"},
    ]
    done = of.put_subgraph(nodes, edges)
    assert [each.error is None for each in done.edges] == [True, True, False]
    assert [edge.target for edge in of.outgoing("a", kinds=["r", "s"]).edges] == ["b", "c"]
    assert of.outgoing("a", kinds=["s"]).edges == []
    assert [edge.source for edge in of.incoming("b").edges] == ["a"]
    name = done.edges[0].edge_id
    assert name is not None
    assert of.edge(name).edge.target == "c"
    assert of.retire_edge("a", "b", "r", valid_to="2020-01-01T00:00:00Z").valid_to == "2020-01-01T00:00:00.000000Z"
    assert [edge.target for edge in of.outgoing("a", valid_at="2021-01-01T00:00:00Z").edges] == ["c"]
    assert of.delete_edge_by_id(name).ok
    assert of.retire("c").changed
    assert [each.count for each in of.list_tags("k").tags] == [3]
    assert [each.kind for each in of.describe_schema().kinds] == ["t"]
    assert [node.id for node in of.nodes(tags=["k:v"], valid_at="2999-01-01T00:00:00Z")] == ["a", "b"]
