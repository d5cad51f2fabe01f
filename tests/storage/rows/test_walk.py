"""Traversals compared with a breadth-first search over dicts."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kgserve.storage.model.breadth_first_traversal import TraversalDirection, TraversalRequest, clamp_traversal_depth
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.rows.breadth_first_row_traversal import load_traversal_result, traverse_rows_breadth_first
from kgserve.stores.open_store import OpenStore
from tests.property.graph import Graph
from tests.stores.writing import opened, write


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OpenStore, Graph]]:
    source, graph = random.Random(3), Graph()
    names = [f"n{number}" for number in range(120)]
    keys = [(source.choice(names), source.choice(names), source.choice("ab")) for _ in range(400)]
    edges = [EdgeUpsert(index, key, source.random()) for index, key in enumerate(keys)]
    batch = WriteBatch(nodes=[NodeUpsert(i, name, "t") for i, name in enumerate(names)], edges=edges)
    with opened(tmp_path_factory.mktemp("walks")) as store:
        write(store, batch)
        graph.write(batch, store.state.time)
        yield store, graph


@pytest.mark.parametrize("direction", ["outgoing", "incoming", "both"])
@pytest.mark.parametrize("types", [None, frozenset("a")])
@pytest.mark.parametrize("weight", [None, 0.6])
def test_traversal_matches_breadth_first_search(
    stored: tuple[OpenStore, Graph], direction: TraversalDirection, types: frozenset[str] | None, weight: float | None
) -> None:
    store, graph = stored
    source = random.Random(1)
    for most in (1, 2, 7, 40, 1000, 5000):
        for depth in (0, 1, 2, 4, 10):
            request = TraversalRequest(f"n{source.randrange(120)}", depth, direction, types, weight, most)
            with store.reading() as rows:
                found = load_traversal_result(rows, traverse_rows_breadth_first(rows, request))
            depths, edges, more = graph.walk(request)
            assert [(row.id, at) for row, at in found.nodes] == list(depths.items())
            assert (sorted(row.key for row in found.edges), found.truncated) == (sorted(edges), more)
            assert all(row == graph.edges[row.key] for row in found.edges)


def test_unknown_start_reaches_nothing(stored: tuple[OpenStore, Graph]) -> None:
    with stored[0].reading() as rows:
        found = load_traversal_result(
            rows, traverse_rows_breadth_first(rows, TraversalRequest("nobody", 3, "both", None, None, 10))
        )
    assert (found.nodes, found.edges, found.truncated) == ([], [], False)


def test_depth_is_clamped() -> None:
    assert [clamp_traversal_depth(depth) for depth in (-5, 0, 1, 10, 11, 1 << 40)] == [0, 0, 1, 10, 10, 10]
