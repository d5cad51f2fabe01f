from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.graphs import Rows
from bench.sqlite import Database

EDGES = [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("d", "a")]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    nodes: list[dict[str, Any]] = [
        {"id": id_, "type": "t", "content": f"it is {id_}", "attributes": {}} for id_ in "abcd"
    ]
    made = Database(tmp_path / "rows.sqlite")
    made.load(Rows(nodes, [{"from": source, "to": target, "relation_type": "to"} for source, target in EDGES]))
    yield made
    made.close()


def walked(database: Database, depth: int, max_nodes: int = 100) -> tuple[dict[str, int], set[tuple[str, str]]]:
    answer = msgspec.json.decode(database.walk("a", depth, max_nodes))
    return {node["id"]: node["depth"] for node in answer["nodes"]}, {(e["from"], e["to"]) for e in answer["edges"]}


def test_a_traversal_returns_nodes_by_distance_and_the_edges_between_them(database: Database) -> None:
    assert walked(database, 1) == ({"a": 0, "b": 1, "c": 1}, {("a", "b"), ("b", "c"), ("a", "c")})
    assert walked(database, 2) == ({"a": 0, "b": 1, "c": 1, "d": 2}, set(EDGES))
    assert len(walked(database, 2, max_nodes=2)[0]) == 2


def test_writes_have_the_same_result_as_on_the_server(database: Database) -> None:
    node = {"id": "e", "type": "t", "content": "new"}
    edge = {"from": "a", "to": "e", "relation_type": "to", "weight": 0.5}
    for _ in range(2):
        database.inject({"nodes": [node], "edges": [edge, edge | {"to": "nobody"}]})
    assert walked(database, 1) == ({"a": 0, "b": 1, "c": 1, "e": 1}, {("a", "b"), ("b", "c"), ("a", "c"), ("a", "e")})
