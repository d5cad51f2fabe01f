"""Pagination of lists is stable under writes."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from kgserve.admin.store_admin_models import StoreListParameters, StoreSettingsSummary, StoreSummary
from kgserve.admin.stores import list_stores
from kgserve.errors import InvalidInput
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.graph.url_parameters import NodeListParameters
from kgserve.storage.data_folder_store_index import STORE_INDEX_FILE, DataFolderStoreIndex
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.storage.store_folder_layout import StoreLayout
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
        assert [store.name for store in summaries(pool)] == ["broken", "whole"]
        assert pool.create("whole") is False


def summaries(pool: StorePool, **filters: Any) -> list[StoreSummary]:
    """Return the stores of all pages of three."""
    graphs, found, after = CallerStoreHandles(pool), list[StoreSummary](), ""
    while True:
        page = list_stores(graphs, StoreListParameters(limit=3, after=after, **filters))
        found += page.stores
        assert len(page.stores) <= 3
        if page.next_after is None:
            assert page.count == len(found)
            return found
        after = page.next_after


def without_index(pool: StorePool) -> list[StoreSummary]:
    """Return the stores as read from their folders."""
    kept, pool.placement.index = pool.placement.index, DataFolderStoreIndex(pool.data_dir)
    (pool.data_dir / STORE_INDEX_FILE).unlink(missing_ok=True)
    try:
        return summaries(pool)
    finally:
        pool.placement.index = kept


def change_stores(pool: StorePool, random: Random, folder: Path) -> None:
    """Make one random change to the stores, or to their folders by hand."""
    name = f"s{random.randrange(12)}"
    layout = StoreLayout(folder, name)
    match random.randrange(7):
        case 0 if layout.exists:
            pool.drop(name)
        case 1 if layout.exists and name not in pool.open_stores():
            shutil.rmtree(layout.root)
        case 2 if layout.exists and name not in pool.open_stores() and not StoreLayout(folder, "copy").exists:
            shutil.copytree(layout.root, folder / "copy_memory")
        case 3 if layout.exists and name not in pool.open_stores():
            layout.mark_open()
        case 4:
            with pool.lease(name, create=True) as store:
                kinds = (random.choice(["t", "u"]),)
                store.change_settings(lambda before: msgspec.structs.replace(before, kind_whitelist=kinds))
        case _:
            with pool.lease(name, create=True) as store, contextlib.suppress(InvalidInput):
                store.submit(batch(f"n{random.randrange(9)}")).result(PATIENCE)


def test_the_index_lists_stores_as_their_folders_do(tmp_path: Path) -> None:
    random = Random(49)
    for _ in range(3):
        with StorePool(settings(tmp_path, max_open_stores=2)) as pool:
            for _ in range(8):
                change_stores(pool, random, tmp_path)
                pool.placement.index.tend()
                found = summaries(pool)
                assert found == without_index(pool)
                for state in ("open", "closed"):
                    assert summaries(pool, state=state) == [each for each in found if each.state == state]
                assert summaries(pool, prefix="s1") == [each for each in found if each.name.startswith("s1")]
                assert summaries(pool, kind="t") == [each for each in found if accepts(each, "t")]
        if random.random() < 0.5:
            (tmp_path / STORE_INDEX_FILE).write_bytes(random.randbytes(99))


def accepts(listed_store: StoreSummary, kind: str) -> bool:
    assert isinstance(listed_store.settings, StoreSettingsSummary)
    return not listed_store.settings.kind_whitelist or kind in listed_store.settings.kind_whitelist


def test_the_index_survives_a_restart_and_reads_no_closed_store_again(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool:
        for name in ("a", "b"):
            pool.create(name)
    with StorePool(settings(tmp_path)) as pool:
        before = summaries(pool)
    with StorePool(settings(tmp_path)) as pool:
        assert all(pool.find_closed(name) for name in ("a", "b"))
        assert summaries(pool) == before
    (tmp_path / "a_memory" / "closed.json").write_bytes(b"damaged")
    with StorePool(settings(tmp_path)) as pool:
        assert pool.find_closed("a") is None
        assert [each.name for each in summaries(pool, state="closed")] == ["a", "b"]
