"""Limit on engine processes: the least recently used store is evicted, unless it is being read."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from kgserve.errors import Unavailable
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.request_bodies import CypherRequest
from kgserve.stores.pool import StorePool
from tests.captured_log import capture_log
from tests.graphs import graph_of
from tests.stores.writing import batch, settings, until, write

COUNT = CypherRequest(query="MATCH (e:Entity) RETURN count(*)")
MAX_PROCESSES = 2
STORES = ("a", "b", "c")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path, engine_processes=MAX_PROCESSES)) as opened:
        for name in STORES:
            with opened.lease(name, create=True) as store:
                write(store, batch(*(f"{name}{number}" for number in range(5))))
        yield opened


def query(pool: StorePool, name: str) -> None:
    assert run_cypher_request(graph_of(pool, name), COUNT).rows == [[5]]


def stores_with_engine(pool: StorePool) -> set[str]:
    return {name for name, store in pool.open_stores().items() if store.engine.is_open}


def test_the_least_recently_used_engine_is_evicted_and_reopened_on_demand(pool: StorePool) -> None:
    with capture_log(store={*STORES}) as lines:
        for name in (*STORES, "a", "b"):
            query(pool, name)
            assert len(stores_with_engine(pool)) <= MAX_PROCESSES
    assert stores_with_engine(pool) == {"a", "b"}
    ended = [line for line in lines if line["event"] == "engine_ended"]
    assert [line["store"] for line in ended] == ["a", "b", "c"]
    assert {line["reason"] for line in ended} == {"another store needs the slot"}
    begun = {line["process"] for line in lines if line["event"] == "engine_begun"}
    assert {line["process"] for line in ended} < begun
    assert all(store.engine.rebuilds == 0 for store in pool.open_stores().values())


def test_an_evicted_engine_is_not_reopened_automatically(pool: StorePool) -> None:
    for name in STORES:
        query(pool, name)
    with pool.lease("a") as store:
        write(store, batch("new"))
        store.tend()
    assert stores_with_engine(pool) == {"b", "c"}


def test_an_engine_with_running_reads_is_not_evicted(pool: StorePool) -> None:
    with pool.lease("a") as first, pool.lease("b") as second, pool.lease("c") as third:
        with first.engine.reading():
            query(pool, "b")
            query(pool, "c")
            assert stores_with_engine(pool) == {"a", "c"}
            second.engine.options = msgspec.structs.replace(second.engine.options, read_timeout=0.1)
            with third.engine.reading(), pytest.raises(Unavailable, match="KGSERVE_ENGINE_PROCESSES"):
                run_cypher_request(graph_of(pool, "b"), COUNT)
        query(pool, "b")


def test_concurrent_queries_of_more_stores_than_engine_processes_succeed(pool: StorePool) -> None:
    with ThreadPoolExecutor(2 * len(STORES)) as threads:
        list(threads.map(lambda name: query(pool, name), STORES * 12))
    assert pool.engine_places.slots_in_use <= MAX_PROCESSES


def test_closing_a_store_releases_its_engine_process(pool: StorePool) -> None:
    query(pool, "a")
    pool.drop("a")
    until(lambda: pool.engine_places.slots_in_use == 0)
