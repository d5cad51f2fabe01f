"""Writing statements concurrent with other work, and random statements."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kgserve.errors import Conflict, TimedOut
from kgserve.graph.cypher.engine_read_statements import StatementCancellation
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.request_bodies import CypherRequest
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.fuzzing import is_thorough, some
from tests.graph.bare_engine import RandomStatements, ReferenceEngine
from tests.graph.statement_helpers import changed, fill, rows, single_value, write
from tests.graphs import graph_of
from tests.stores.writing import NAME, PATIENCE, SYNC_SECONDS, assert_copy_right, assert_whole, settings, until


def test_concurrent_increments_are_not_lost(tmp_path: Path) -> None:
    """Two clients increment a counter by statement while eight inject, one of them into the same node."""
    increment = "MATCH (n {id: 'n'}) SET n.content = cast(cast(n.content AS INT64) + 1 AS STRING) RETURN n.content"
    times, stop = 8, threading.Event()
    with StorePool(settings(tmp_path / "data")) as pool:
        fill(pool, [{"id": "n", "type": "t", "content": "0"}], [])

        def count() -> list[int]:
            return [int(write(pool, increment).rows[0][0]) for _ in range(times)]

        def disturb(thread: int) -> int:
            number = 0
            while not stop.wait(SYNC_SECONDS):
                node = (
                    {"id": "n", "attributes": {"i": number}}
                    if thread == 0
                    else {"id": f"m{thread}-{number}", "type": "u"}
                )
                fill(pool, [node], [])
                number += 1
            return number

        with ThreadPoolExecutor(10) as threads:
            injects = [threads.submit(disturb, thread) for thread in range(8)]
            counts = [threads.submit(count) for _ in range(2)]
            seen = [number for counted in counts for number in counted.result(60)]
            stop.set()
            added = [injected.result(PATIENCE) for injected in injects]
        assert sorted(seen) == list(range(1, 2 * times + 1))
        assert single_value(pool, "MATCH (n {id: 'n'}) RETURN n.content") == str(2 * times)
        assert single_value(pool, "MATCH (n {type: 'u'}) RETURN count(*)") == sum(added[1:])
        assert min(added) > 0
        with pool.lease(NAME) as store:
            assert_whole(store)


def test_statement_cancelled_while_queued_is_not_run(pool: StorePool) -> None:
    control = StatementCancellation()
    request = CypherRequest(query="CREATE (:Entity {id: 'x', type: 't'})", mode="write")
    control.interrupt()
    with pytest.raises(TimedOut):
        run_cypher_request(graph_of(pool, NAME), request, control)
    assert single_value(pool, "MATCH (n) RETURN count(*)") == 3


def test_cancellation_does_not_affect_later_statements(pool: StorePool) -> None:
    """Sessions run further statements while their former users still cancel."""
    stop = threading.Event()
    controls: list[StatementCancellation] = []

    def pester() -> None:
        while not stop.is_set():
            for control in controls[-50:]:
                control.interrupt()

    pestering = threading.Thread(target=pester)
    pestering.start()
    try:
        query = CypherRequest(query="MATCH (a), (b), (c) RETURN count(*)")
        for _ in range(200 if is_thorough() else 50):
            control = StatementCancellation()
            assert run_cypher_request(graph_of(pool, NAME), query, control).rows == [[27]]
            controls.append(control)
    finally:
        stop.set()
        pestering.join()


def test_store_is_not_dropped_during_a_statement(pool: StorePool) -> None:
    query = "UNWIND range(1, 3000) AS i UNWIND range(1, 1500) AS j WITH count(i + j) AS n"
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write, pool, query + " CREATE (:Entity {id: 'x', type: 't'})")
        until(lambda: writing.running() and bool(list(scratch(pool))))
        try:
            pool.drop(NAME)
        except Conflict:
            pass
        else:
            assert writing.done()
        answer = writing.result(PATIENCE)
    assert answer.changes is not None
    assert answer.changes.nodes_created == 1


def scratch(pool: StorePool) -> Iterator[Path]:
    folder = pool.layout(NAME).scratch
    return folder.iterdir() if folder.exists() else iter(())


def test_compaction_concurrent_with_statements(pool: StorePool) -> None:
    stop = threading.Event()

    def compact(store: OpenStore) -> None:
        while not stop.is_set():
            store.compactor.run()

    with pool.lease(NAME) as store:
        compacting = threading.Thread(target=compact, args=(store,))
        compacting.start()
        try:
            for number in range(6):
                assert changed(pool, f"CREATE (:Entity {{id: 'x{number}', type: 't'}})") == {"nodes_created": 1}
        finally:
            stop.set()
            compacting.join()
        assert store.compactor.done > 0
        assert_whole(store)


@pytest.mark.parametrize("seed", some(range(2), 0))
def test_random_statements_equal_bare_engine(tmp_path: Path, seed: int) -> None:
    statements, executed = RandomStatements(seed), []
    with StorePool(settings(tmp_path / "data")) as pool:
        fill(pool, [{"id": "n0", "type": "t"}], [])
        for _ in range(14):
            bare = ReferenceEngine()
            bare.fill(rows(pool))
            executed.append(statements.next())
            bare.run(executed[-1])
            write(pool, executed[-1])
            assert rows(pool) == bare.rows(), executed
        with pool.lease(NAME) as store:
            assert_copy_right(store)
            assert_whole(store)
