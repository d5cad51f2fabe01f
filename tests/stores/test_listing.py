"""Pagination of lists is stable under writes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kgserve.admin.stores import list_stores
from kgserve.errors import InvalidInput
from kgserve.graph.query_parameters import NodeListParameters
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of, nodes_of
from tests.stores.writing import NAME, PATIENCE, batch, settings


def listed(pool: StorePool, limit: int, type_: str | None = None) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = nodes_of(
            graph_of(pool, NAME), NodeListParameters(type=[] if type_ is None else [type_], limit=limit, cursor=cursor)
        )
        assert len(page.nodes) <= limit
        found += [node.id for node in page.nodes]
        cursor = page.next_cursor
        if cursor is None:
            return found


def test_pagination_lists_unchanged_nodes_once_under_writes(tmp_path: Path) -> None:
    steady = [f"n{number:03}" for number in range(300)]
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        store.submit(batch(*steady)).result(PATIENCE)
        stop = threading.Event()

        def disturb() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                passing = [f"n{place:03}x{number}" for place in range(0, 300, 7)]
                store.submit(batch(*passing)).result(PATIENCE)
                store.submit(WriteBatch(delete_nodes=passing)).result(PATIENCE)

        writer = threading.Thread(target=disturb)
        writer.start()
        for limit in (7, 40, 1000):
            found = listed(pool, limit)
            assert found == sorted(found)
            assert len(set(found)) == len(found)
            assert [node_id for node_id in found if "x" not in node_id] == steady
        stop.set()
        writer.join()


def test_lists_are_ordered_by_code_point(tmp_path: Path) -> None:
    wanted = sorted(["a", "B", "é", "e", "日本", "😀", "\uffee", " ", "a\0b", "a\0", "'", "\u00ad"])
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        store.submit(batch(*wanted)).result(PATIENCE)
        for limit in (1, 3, 100):
            assert listed(pool, limit) == wanted


def test_lists_filtered_by_type(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        puts = [NodeUpsert(number, f"n{number}", "even" if number % 2 == 0 else "odd") for number in range(10)]
        store.submit(WriteBatch(nodes=puts)).result(PATIENCE)
        store.submit(WriteBatch(nodes=[NodeUpsert(0, "n0", "odd")])).result(PATIENCE)
        assert listed(pool, 2, "even") == ["n2", "n4", "n6", "n8"]
        assert listed(pool, 2, "odd") == ["n0", "n1", "n3", "n5", "n7", "n9"]
        assert listed(pool, 2, "other") == []


@pytest.mark.parametrize("cursor", ["!", "ü", "a", "_w", "\ud800"])
def test_pagination_rejects_invalid_cursors(tmp_path: Path, cursor: str) -> None:
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True), pytest.raises(InvalidInput):
        nodes_of(graph_of(pool, NAME), NodeListParameters(limit=10, cursor=cursor))


def test_a_store_with_unreadable_settings_does_not_hide_others(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool:
        for name in ("broken", "whole"):
            pool.create(name)
    description = tmp_path / "broken_memory" / "store.json"
    description.unlink()
    description.mkdir()
    with StorePool(settings(tmp_path)) as pool:
        assert [store.name for store in list_stores(CallerStoreHandles(pool)).stores] == ["broken", "whole"]
        assert pool.create("whole") is False
