from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgserve.errors import Forbidden, NotFound, QuotaExceeded
from kgserve.platform.access.authentication import LOCAL_CALLER, AuthenticatedCaller
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.stores.pool import StorePool
from kgserve.stores.scoped_stores import CallerScopedStores, scope_stores_to_caller
from tests.stores.writing import batch, settings, write


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path, indexes=False)) as pool:
        for name in ("a", "team-1", "z"):
            pool.create(name)
        yield pool


def test_hidden_stores_look_missing(pool: StorePool) -> None:
    view = scope_stores_to_caller(pool, AuthenticatedCaller("n", "admin", ("a", "team-*")))
    assert view.names() == ["a", "team-1"]
    assert set(view.open_stores()) == {"a", "team-1"}
    for attempt in (
        lambda: view.acquire("z"),
        lambda: view.lease("z").__enter__(),
        lambda: view.create("z"),
        lambda: view.create("zz"),
        lambda: view.drop("z"),
        lambda: view.layout("z"),
        lambda: view.feeds.of("z"),
        lambda: view.staging("z"),
        lambda: view.adopt("zz", view.data_dir / "nothing"),
    ):
        with pytest.raises(NotFound, match="there is no store 'z"):
            attempt()
    assert pool.names() == ["a", "team-1", "z"]
    assert view.create("team-2")
    with view.lease("team-2") as store:
        assert store.name == "team-2"
    view.drop("team-2")
    assert pool.names() == ["a", "team-1", "z"]


def test_a_caller_can_discard_only_visible_stores(pool: StorePool) -> None:
    view = scope_stores_to_caller(pool, AuthenticatedCaller("n", "write", ("team-*",)))
    store = view.acquire("team-2", create=True)
    assert view.release_or_discard(store)
    assert "team-2" not in pool.names()


def test_a_caller_with_access_to_all_stores_gets_the_pool(pool: StorePool) -> None:
    assert scope_stores_to_caller(pool, LOCAL_CALLER) is pool


def test_named_change_notifications_are_filtered(pool: StorePool) -> None:
    told: list[str] = []
    view = scope_stores_to_caller(pool, AuthenticatedCaller("n", "read", ("team-*",)))
    unlisten = view.feeds.listen_by_name(told.append)
    pool.create("team-3")
    pool.create("zebra")
    pool.drop("team-3")
    unlisten()
    pool.create("team-4")
    assert told == ["team-3", "team-3"]
    assert view.feeds.store_list_generation == pool.feeds.store_list_generation


def test_quotas_refuse_growth_and_accept_deletions(tmp_path: Path) -> None:
    chosen = settings(tmp_path, max_store_nodes=2, max_stores_per_key=1)
    with StorePool(chosen) as pool:
        caller = AuthenticatedCaller("some", "write", ("s*",))
        mine = CallerScopedStores(pool, caller)
        with mine.lease("s1", create=True) as store:
            write(store, batch("a", "b"))
            with pytest.raises(QuotaExceeded, match="max-store-nodes"):
                write(store, batch("b", "c"))
            write(store, batch("a"))
            write(store, WriteBatch(delete_nodes=["a"]))
            write(store, batch("c"))
            assert (store.state.nodes, store.quota.refusals) == (2, 1)
            store.quota._max_bytes = 1
            with pytest.raises(QuotaExceeded, match="max-store-mb"):
                write(store, batch("b", content="more"))
            write(store, WriteBatch(delete_nodes=["b"]))
        with pytest.raises(Forbidden, match="max-stores-per-key"), mine.lease("s2", create=True):
            pass
        assert (mine.names(), pool.observation.stores_over_quota) == (["s1"], 1)
        with pool.lease("s2", create=True):
            assert mine.names() == ["s1", "s2"]
