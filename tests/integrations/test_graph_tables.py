"""Data frames, Arrow tables and networkx graphs: into stores, back out, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kgserve.client import Store
from kgserve.errors import InvalidInput
from kgserve.graph.request_bodies import EdgeNdjsonLine, NodeNdjsonLine
from kgserve.integrations.networkx import from_networkx
from kgserve.integrations.tables import from_arrow, from_pandas

PEOPLE = pd.DataFrame(
    {
        "id": [1, 2, 3],
        "type": "person",
        "content": ["Ada", "Charles", None],
        "born": [1815, np.nan, 1912],
        "seen": pd.to_datetime(["2024-05-01T10:00:00+02:00", None, "2024-05-02T02:00:00.25+02:00"], format="ISO8601"),
        "attributes": [{"field": "mathematics"}, '{"tools": ["lathe"]}', None],
        "tags": [["poet", "countess"], None, np.array(["runner"])],
    }
)
KNOWS = pd.DataFrame(
    {"source": [1, 3], "target": [2, 1], "relation_type": "KNOWS", "weight": [0.5, np.nan], "via": "x"}
)


def read_store(store: Store) -> tuple[dict[str, NodeNdjsonLine], list[EdgeNdjsonLine]]:
    """Return all nodes by id, and all edges by their start."""
    with store.export() as lines:
        found = list(lines)
    nodes = {line.id: line for line in found if isinstance(line, NodeNdjsonLine)}
    edges = [line for line in found if isinstance(line, EdgeNdjsonLine)]
    return nodes, sorted(edges, key=lambda edge: edge.source)


def test_data_frames_become_nodes_and_edges(graph: Store) -> None:
    answer = graph.import_(from_pandas(PEOPLE, KNOWS))
    assert (answer.nodes_created, answer.edges_created, answer.errors) == (3, 2, [])
    nodes, edges = read_store(graph)
    assert nodes["1"].attributes == {"field": "mathematics", "born": 1815.0, "seen": "2024-05-01T08:00:00Z"}
    assert nodes["2"].attributes == {"tools": ["lathe"]}
    assert nodes["3"].attributes == {"born": 1912.0, "seen": "2024-05-02T00:00:00.250000Z"}
    assert (nodes["1"].content, nodes["1"].tags, nodes["3"].content, nodes["3"].tags) == (
        "Ada",
        ["poet", "countess"],
        "",
        ["runner"],
    )
    assert [(edge.source, edge.target, edge.weight) for edge in edges] == [("1", "2", 0.5), ("3", "1", 1.0)]
    assert (edges[0].attributes or {})["via"] == "x"
    assert graph.import_(from_pandas(PEOPLE, KNOWS)).nodes_unchanged == 3


def test_arrow_tables_become_nodes_and_edges(graph: Store) -> None:
    nodes = pa.table({
        "id": ["a", "b"], "type": ["t", "t"], "size": pa.array([1, None], pa.int8()),
        "at": pa.array([1_500_000_000, None], pa.timestamp("ns")), "parts": [[{"n": 1}], []],
        "counts": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), "real": [float("nan"), 0.5],
        "attributes": pa.array([[("m", "x")], None], pa.map_(pa.string(), pa.string())),
    })  # fmt: skip
    edges = pa.table({"from": ["a"], "to": ["b"], "relation_type": pa.array(["R"]).dictionary_encode()})
    assert graph.import_(from_arrow(nodes, edges)).edges_created == 1
    assert {node.id: node.attributes for node in read_store(graph)[0].values()} == {
        "a": {"size": 1, "at": "1970-01-01T00:00:01.500000Z", "parts": [{"n": 1}], "counts": {"k": 1}, "m": "x"},
        "b": {"parts": [], "real": 0.5},
    }
    assert from_arrow() == from_arrow(nodes.slice(0, 0)) == []
    assert from_arrow(nodes.to_reader(), edges.to_reader()) == from_arrow(nodes, edges)


@pytest.mark.parametrize(
    ("column", "maps"), [("attributes", lambda maps: maps), ("parts", lambda maps: [[each] for each in maps])]
)
def test_an_arrow_map_with_a_key_twice_is_refused(column: str, maps: Any) -> None:
    kind = pa.map_(pa.string(), pa.int64())
    cells = maps([[("x", 1)], [("y", 1), ("y", 2)]])
    nodes = pa.table({"id": ["a", "b"], column: pa.array(cells, kind if column == "attributes" else pa.list_(kind))})
    with pytest.raises(InvalidInput, match=f"nodes row 1, column '{column}': a map has a key twice") as caught:
        from_arrow(nodes)
    assert [fault.path for fault in caught.value.errors] == [f"nodes[1].{column}"]


@pytest.mark.parametrize("form", ["to_df", "to_arrow", "to_networkx"])
def test_a_walk_is_written_to_another_store(graph: Store, form: str) -> None:
    periods = {"valid_from": "2020-01-01T00:00:00Z", "valid_to": pd.to_datetime("2030-01-01T00:00:00.5Z")}
    layers, ordinals = pd.array([0, None, 1], "Int64"), pd.array([0, None], "Int64")
    given = PEOPLE.assign(
        **periods, summary=[None, "s", None], importance=[0.0, None, 0.5], layer=layers, confidence=[1.0, None, 0.0]
    )
    graph.import_(from_pandas(given, KNOWS.assign(**periods, ordinal=ordinals, context="c")))
    walk = graph.traverse("3", depth=2)
    match form:
        case "to_df":
            lines = from_pandas(walk.to_df(), walk.to_df("edges"))
        case "to_arrow":
            lines = from_arrow(*walk.to_arrow())
        case _:
            lines = from_networkx(walk.to_networkx())
    other = type(graph)(graph.connection, f"{graph.name}-{form.replace('_', '-')}")
    assert other.import_(lines).ok
    assert read_store(other) == read_store(graph)
    assert other.import_(lines).nodes_unchanged == 3


def test_hits_are_written_back_without_their_scores(graph: Store) -> None:
    done = graph.import_(from_pandas(PEOPLE))
    for hits in (
        graph.search("ada", mode="keyword", at_least=done.sequence),
        graph.search_batch([{"query": "ada", "mode": "keyword"}], at_least=done.sequence),
    ):
        for lines in (from_pandas(hits.to_df()), from_arrow(hits.to_arrow())):
            answer = graph.import_(lines)
            assert (answer.nodes_sent, answer.nodes_unchanged) == (1, 1)


def test_answers_as_data_frames(graph: Store) -> None:
    done = graph.import_(from_pandas(PEOPLE, KNOWS))
    walk = graph.traverse("3", depth=2)
    nodes, edges = walk.to_df(), walk.to_df("edges")
    assert list(nodes["id"]) == [node.id for node in walk] == ["3", "1", "2"]
    assert list(nodes["depth"]) == [0, 1, 2]
    assert str(nodes["created_at"].dtype) == "datetime64[us, UTC]"
    assert edges[["from", "to", "weight"]].to_numpy().tolist() == [["3", "1", 1.0], ["1", "2", 0.5]]
    rows = graph.cypher("MATCH (n:Entity) RETURN n.id AS id, size(n.content) AS size ORDER BY id").to_df()
    assert rows.to_dict("list") == {"id": ["1", "2", "3"], "size": [3, 7, 0]}
    big = graph.cypher("UNWIND [9007199254740993, null] AS v RETURN v, [v, null] AS l").to_df()
    assert (str(big["v"].dtype), big["v"][0], big["l"][0][0]) == ("Int64", 2**53 + 1, 2**53 + 1)
    hits = graph.search("ada", mode="keyword", at_least=done.sequence).to_df()
    assert list(hits["id"]) == ["1"]


@pytest.mark.parametrize(
    ("made", "directed"), [(nx.Graph, False), (nx.DiGraph, True), (nx.MultiGraph, False), (nx.MultiDiGraph, True)]
)
def test_graphs_of_networkx_of_each_class(graph: Store, made: Any, directed: bool) -> None:
    given: Any = made()
    given.add_node(1, type="person", content="Ada", born=1815)
    given.add_node("two", weight=np.float32(0.5))
    keys = {"key": "LIKES"} if given.is_multigraph() else {}
    given.add_edge(1, "two", **keys, weight=3)
    assert graph.import_(from_networkx(given)).edges_created == 1
    found, [edge] = read_store(graph)
    nodes = {node.id: (node.type, node.content, node.attributes or {}) for node in found.values()}
    assert nodes == {"1": ("person", "Ada", {"born": 1815}), "two": ("node", "", {"weight": 0.5})}
    assert (edge.relation_type, edge.weight) == ("LIKES" if keys else "RELATED_TO", 3.0)
    assert (edge.attributes or {}).get("directed", True) is directed


@pytest.mark.parametrize(
    ("nodes", "edges", "path", "words"),
    [
        ({"id": ["a", None]}, None, "nodes[1].id", "nodes row 1, column 'id': "),
        ({"id": ["a"], "tags": ["x"]}, None, "nodes[0].tags", "nodes row 0, column 'tags': Expected `array"),
        ({"id": ["a"], "attributes": ["{"]}, None, "nodes[0].attributes", "is not JSON"),
        ({"id": ["a"], "attributes": [[1]]}, None, "nodes[0].attributes", "must be a mapping or a JSON object"),
        ({"id": ["a"], "k": [1], "attributes": [{"k": 2}]}, None, "nodes[0].k", "is also in `attributes`"),
        ({"id": ["a"], "k": [np.inf]}, None, "nodes[0].k", "is inf, which is not a finite number"),
        ({"id": ["a"], "k": [[{"x": b"y"}]]}, None, "nodes[0].k", "is of type bytes, which JSON cannot represent"),
        ({"id": ["a"], "k": np.array([2**63], np.uint64)}, None, "nodes[0].k", "does not fit into 64 bits"),
        ({"id": ["a"], "k": [Decimal("12345678901234567890.12")]}, None, "nodes[0].k", "has too many digits"),
        ({"id": ["a"], "k": [{1: 2}]}, None, "nodes[0].k", "has the key 1, which is not text"),
        (None, {"from": ["a"], "to": [1.5], "relation_type": ["R"]}, "edges[0].to", "Expected `str`, got `float`"),
        (None, {"from": ["a"], "to": ["b"], "relation_type": [3]}, "edges[0].relation_type", "edges row 0, column"),
        (None, {"from": ["a"], "to": ["b"]}, None, "edges: the columns relation_type are missing; there are from, to"),
        ({"type": ["a"]}, None, None, "nodes: the columns id are missing"),
        ({"id": ["a"], 3: [1]}, None, None, "nodes: column 3 is not text"),
        (None, {"from": [1], "source": [1], "to": [1], "relation_type": ["R"]}, None, "column 'from' occurs twice"),
    ],
)  # fmt: skip
def test_faults_name_row_and_column(nodes: Any, edges: Any, path: str | None, words: str) -> None:
    frames = [None if each is None else pd.DataFrame(each) for each in (nodes, edges)]
    with pytest.raises(InvalidInput) as caught:
        from_pandas(*frames)
    assert words in str(caught.value)
    assert [fault.path for fault in caught.value.errors] == ([] if path is None else [path])


def test_all_faults_are_listed_and_nothing_is_written() -> None:
    with pytest.raises(InvalidInput, match=r"nodes row 0, column 'weight'.*\(2 more in `errors`\)"):
        from_pandas(
            pd.DataFrame({"id": ["a", "b"], "weight": [b"", 1]}),
            pd.DataFrame({"from": [0.5, "a"], "to": [b"", "b"], "relation_type": "R"}),
        )
    with pytest.raises(InvalidInput, match=r"node \(1, 2\), data 'id': Expected `str`, got `array`"):
        from_networkx(nx.DiGraph([((1, 2), "a")]))
    with pytest.raises(InvalidInput, match="edge 'a' to 'b', data 'weight': Expected `float"):
        from_networkx(nx.DiGraph([("a", "b", {"weight": "heavy"})]))


def test_rows_of_several_stores_are_refused() -> None:
    row = {"type": "t", "depth": 0, "version": 1, "sequence": 1, "missing": False}
    frame = pd.DataFrame([row | {"id": "a", "store": "one"}, row | {"id": "b", "store": "two"}])
    with pytest.raises(InvalidInput, match=r"nodes are of several stores \(one, two\)"):
        from_pandas(frame)
    [line] = from_pandas(frame.query("store == 'two'"))
    assert (line.attributes, line.version) == (None, 1)
