"""Durability of access counts: after flush, restart, compaction, kill and restore."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from kgserve.admin import backup as backups
from kgserve.graph.history_queries import list_changes
from kgserve.graph.url_parameters import StoreChangesParameters
from kgserve.memory.memory_crud import get_memory, store_memory
from kgserve.memory.memory_models import Memory, ReadMemoryRequest, StoreMemoryRequest
from kgserve.storage.changefeed import ChangeFeedReader
from kgserve.storage.model.change_feed_events import ChangeFeedEventFilter, FeedPosition
from kgserve.stores.backup.create import BackupOptions
from kgserve.stores.pool import StorePool
from tests.graph.transfer.test_importing import exported
from tests.graphs import graph_of
from tests.memory.test_access_export_import import READ
from tests.stores.writing import NAME, PATIENCE, layout, settings

READERS = 4


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path / "data")) as opened:
        yield opened


def put(pool: StorePool, *contents: str) -> list[str]:
    requests = [StoreMemoryRequest(content=content) for content in contents]
    return [store_memory(graph_of(pool, NAME), request).result(PATIENCE).id for request in requests]


def read(pool: StorePool, memory_id: str, *, touch: bool = True, store: str = NAME) -> Memory:
    return get_memory(graph_of(pool, store), ReadMemoryRequest(memory_id=memory_id, touch=touch))


def flush_accesses(pool: StorePool) -> None:
    with pool.lease(NAME) as store:
        assert store.accesses.flush_and_wait()


def test_concurrent_accesses_are_all_counted_during_writes_and_compaction(pool: StorePool) -> None:
    first, second = put(pool, "tea is green", "coffee is black")

    def read_often(_: int) -> None:
        for number in range(30):
            read(pool, first)
            if number % 10 == 0:
                flush_accesses(pool)

    with ThreadPoolExecutor(READERS) as readers:
        list(readers.map(read_often, range(READERS)))
    with pool.lease(NAME) as store:
        store.compactor.run()
    found = read(pool, first, touch=False)
    assert (found.access_count, found.confidence, found.version) == (30 * READERS, 1.0, 1)
    assert read(pool, second, touch=False).access_count == 0


def test_accesses_survive_restart_compaction_kill_and_restore(pool: StorePool, tmp_path: Path) -> None:
    (memory,) = put(pool, "tea is green")
    for _ in range(2):
        read(pool, memory)
    backups.back_up_single_store(pool, tmp_path / "backup", NAME, BackupOptions(live=False))
    read(pool, memory)
    last = read(pool, memory, touch=False)
    assert (last.access_count, last.last_accessed_at) == (3, last.last_accessed_at)
    backups.restore_stores(pool, tmp_path / "backup", [backups.StoreRestoreSpec(NAME, "restored")])
    assert read(pool, memory, store="restored", touch=False).access_count == 2
    pool.close()
    for is_view_gone in (False, True):
        if is_view_gone:
            shutil.rmtree(layout(tmp_path / "data").views)
        with StorePool(settings(tmp_path / "data")) as again:
            found = read(again, memory, touch=False)
            assert (found.access_count, found.last_accessed_at) == (3, last.last_accessed_at)


def test_access_is_not_in_events_or_change_list(pool: StorePool) -> None:
    (memory,) = put(pool, "tea is green")
    with pool.lease(NAME) as store:
        reader = ChangeFeedReader(store.feed, FeedPosition.after(0), lambda: None)
        told = [entry.event.kind for entry in reader.take(ChangeFeedEventFilter()) or ()]
        before, sequence = exported(pool), store.state.sequence
        for _ in range(5):
            read(pool, memory)
            flush_accesses(pool)
        assert store.state.sequence == sequence + 5
        assert told == ["node_created", "memory_created"]
        assert [entry.event for entry in reader.take(ChangeFeedEventFilter()) or ()] == []
        reader.close()
    assert [entry.sequence for entry in list_changes(graph_of(pool, NAME), StoreChangesParameters()).changes] == [
        sequence
    ]
    (was,), (now,) = (list(map(msgspec.json.decode, lines)) for lines in (before, exported(pool)))
    assert {name for name in now if now[name] != was.get(name)} == READ
    assert now["access_count"] == 5
