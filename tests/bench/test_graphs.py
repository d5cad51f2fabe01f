from __future__ import annotations

import hashlib
from collections import Counter
from itertools import islice
from typing import Any

import pytest

from bench import graphs

Record = dict[str, Any]


@pytest.fixture(scope="module")
def dense() -> list[Record]:
    return list(graphs.dense_graph_records())


def test_the_dense_graph_has_its_documented_shape(dense: list[Record]) -> None:
    nodes = {record["id"] for record in dense if record["kind"] == "node"}
    edges = [(record["from"], record["to"], record["relation_type"]) for record in dense if record["kind"] == "edge"]
    assert (len(nodes), len(set(edges)), len({kind for _, _, kind in edges})) == (14_505, 272_115, 237)
    outgoing, incoming = Counter(edge[0] for edge in edges), Counter(edge[1] for edge in edges)
    assert outgoing.keys() == nodes
    assert incoming.keys() <= nodes
    # Heavy-tailed: the maximum degree is a hundred times the median.
    assert max(outgoing.values()) > 80 * sorted(outgoing.values())[len(outgoing) // 2]
    assert max(incoming.values()) > 500 * sorted(incoming.values())[len(incoming) // 2]


def test_the_dense_graph_is_reproducible(dense: list[Record]) -> None:
    some = 20_000
    digests = {
        hashlib.sha256(repr(rows).encode()).hexdigest()
        for rows in (dense[:some], [*islice(graphs.dense_graph_records(), some)])
    }
    assert len(digests) == 1


def test_a_grown_graph_is_the_same_in_one_piece_and_in_several() -> None:
    whole = list(graphs.grown_graph_records(0, 300))
    pieces = [record for first in range(0, 300, 100) for record in graphs.grown_graph_records(first, first + 100)]
    assert sorted(map(repr, whole)) == sorted(map(repr, pieces))
    assert Counter(record["kind"] for record in whole) == {"node": 300, "edge": 4 * 296}


def test_a_part_holds_only_edges_between_its_nodes() -> None:
    records = list(graphs.grown_graph_records(0, 100))
    rows = graphs.Rows([r for r in records if r["kind"] == "node"], [r for r in records if r["kind"] == "edge"])
    some = graphs.subgraph_rows(rows, 50)
    known = {node["id"] for node in some.nodes}
    assert len(known) == 50
    assert len(some.edges) == 4 * 46
    assert {edge["from"] for edge in some.edges} | {edge["to"] for edge in some.edges} <= known
