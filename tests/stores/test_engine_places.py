"""Only so many stores have an engine's process: who was asked longest ago gives way, unless somebody reads from it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from kgserve.errors import Unavailable
from kgserve.graph.cypher.write_transaction import run
from kgserve.graph.requests import CypherRequest
from kgserve.stores.pool import StorePool
from tests.captured_log import capture_log
from tests.graphs import graph_of
from tests.stores.writing import batch, settings, until, write

COUNT = CypherRequest(query="MATCH (e:Entity) RETURN count(*)")
MOST = 2
STORES = ("a", "b", "c")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path, engine_processes=MOST)) as opened:
        for name in STORES:
            with opened.lease(name, create=True) as store:
                write(store, batch(*(f"{name}{number}" for number in range(5))))
        yield opened


def asked(pool: StorePool, name: str) -> None:
    assert run(graph_of(pool, name), COUNT).rows == [[5]]


def having_one(pool: StorePool) -> set[str]:
    return {name for name, store in pool.open_stores().items() if store.engine.is_open}


def test_who_was_asked_longest_ago_gives_way_and_is_back_when_asked(pool: StorePool) -> None:
    with capture_log(store={*STORES}) as lines:
        for name in (*STORES, "a", "b"):
            asked(pool, name)
            assert len(having_one(pool)) <= MOST
    assert having_one(pool) == {"a", "b"}
    ended = [line for line in lines if line["event"] == "engine_ended"]
    assert [line["store"] for line in ended] == ["a", "b", "c"]
    assert {line["reason"] for line in ended} == {"another store needs the slot"}
    begun = {line["process"] for line in lines if line["event"] == "engine_begun"}
    assert {line["process"] for line in ended} < begun
    assert all(store.engine.rebuilds == 0 for store in pool.open_stores().values())


def test_one_that_gave_way_takes_no_place_by_itself(pool: StorePool) -> None:
    for name in STORES:
        asked(pool, name)
    with pool.lease("a") as store:
        write(store, batch("new"))
        store.tend()
    assert having_one(pool) == {"b", "c"}


def test_who_is_read_from_keeps_the_place(pool: StorePool) -> None:
    with pool.lease("a") as first, pool.lease("b") as second, pool.lease("c") as third:
        with first.engine.reading():
            asked(pool, "b")
            asked(pool, "c")
            assert having_one(pool) == {"a", "c"}
            second.engine.options = msgspec.structs.replace(second.engine.options, read_timeout=0.1)
            with third.engine.reading(), pytest.raises(Unavailable, match="KGSERVE_ENGINE_PROCESSES"):
                run(graph_of(pool, "b"), COUNT)
        asked(pool, "b")


def test_more_stores_asked_at_once_than_places_are_all_answered(pool: StorePool) -> None:
    with ThreadPoolExecutor(2 * len(STORES)) as threads:
        list(threads.map(lambda name: asked(pool, name), STORES * 12))
    assert pool.engine_places.taken <= MOST


def test_a_closed_store_leaves_its_place(pool: StorePool) -> None:
    asked(pool, "a")
    pool.drop("a")
    until(lambda: pool.engine_places.taken == 0)
