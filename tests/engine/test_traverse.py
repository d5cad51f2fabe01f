"""Walks against a breadth-first search over dicts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgserve.engine.traverse import walk
from kgserve.errors import TimedOut, Unavailable
from kgserve.model.batch import EdgePut, NodePut, WriteBatch
from kgserve.model.requests import Direction
from kgserve.model.walk import Walk, clamp
from kgserve.store.store import Store
from tests.property.graph import Graph
from tests.store.writing import opened, write

SLOW = "MATCH (a:Entity), (b:Entity), (c:Entity), (d:Entity), (e:Entity) RETURN sum(a.version + b.version + e.version)"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Graph]]:
    source, graph = random.Random(3), Graph()
    names = [f"n{number}" for number in range(120)]
    keys = [(source.choice(names), source.choice(names), source.choice("ab")) for _ in range(400)]
    edges = [EdgePut(index, key, source.random()) for index, key in enumerate(keys)]
    batch = WriteBatch(nodes=[NodePut(i, name, "t") for i, name in enumerate(names)], edges=edges)
    with opened(tmp_path_factory.mktemp("walks")) as store:
        write(store, batch)
        graph.write(batch, store.state.time)
        yield store, graph


@pytest.mark.parametrize("direction", ["outgoing", "incoming", "both"])
@pytest.mark.parametrize("types", [None, frozenset("a")])
@pytest.mark.parametrize("weight", [None, 0.6])
def test_walks(
    stored: tuple[Store, Graph], direction: Direction, types: frozenset[str] | None, weight: float | None
) -> None:
    store, graph = stored
    source = random.Random(1)
    for most in (1, 2, 7, 40, 1000, 5000):
        for depth in (0, 1, 2, 4, 10):
            request = Walk(f"n{source.randrange(120)}", depth, direction, types, weight, most)
            with store.reading() as session:
                found = walk(session, request)
            depths, edges, more = graph.walk(request)
            assert [(row.id, at) for row, at in found.nodes] == list(depths.items())
            assert (sorted(row.key for row in found.edges), found.truncated) == (sorted(edges), more)
            assert all(row == graph.edges[row.key] for row in found.edges)


def test_an_unknown_start_reaches_nothing(stored: tuple[Store, Graph]) -> None:
    with stored[0].reading() as session:
        found = walk(session, Walk("nobody", 3, "both", None, None, 10))
    assert (found.nodes, found.edges, found.truncated) == ([], [], False)


def test_depths_as_they_are_taken() -> None:
    assert [clamp(depth) for depth in (-5, 0, 1, 10, 11, 1 << 40)] == [0, 0, 1, 10, 10, 10]


def test_a_query_over_its_time_is_stopped_and_the_store_goes_on(stored: tuple[Store, Graph]) -> None:
    store, _ = stored
    for _ in range(3):
        with pytest.raises(TimedOut), store.reading(timeout=0.1) as session:
            session.rows(SLOW)
    with store.reading() as session:
        assert session.rows("MATCH (e:Entity) RETURN count(*)") == [[120]]


def test_readers_are_bounded(tmp_path: Path) -> None:
    with (
        opened(tmp_path, read_connections=1, query_timeout=0.2) as store,
        store.reading(),
        pytest.raises(Unavailable),
        store.reading(),
    ):
        pass
