from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgserve.errors import NotFound
from kgserve.graph.handle import ScopedFeeds, ScopedPool, seen_by
from kgserve.platform.access.authentication import LOCAL_CALLER, Caller
from kgserve.storage.changefeed import Feeds
from kgserve.stores.pool import StorePool
from tests.stores.writing import settings

BELONGS_TO_THE_WHOLE = {"lease", "release_or_discard", "__enter__", "__exit__"}
"""Made of what is redefined."""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path, indexes=False)) as pool:
        for name in ("a", "team-1", "z"):
            pool.create(name)
        yield pool


def test_nothing_of_a_pool_is_left_to_chance() -> None:
    for whole, view in ((StorePool, ScopedPool), (Feeds, ScopedFeeds)):
        public = {name for name, _ in inspect.getmembers(whole, callable) if not name.startswith("_")}
        own = set(vars(view)) | BELONGS_TO_THE_WHOLE
        of_the_server = {"created", "arrived", "changed", "dropped", "moved", "close"} if whole is Feeds else set[str]()
        assert public - of_the_server <= own, f"{view.__name__} says nothing of {public - own}"


def test_what_is_hidden_is_not_there(pool: StorePool) -> None:
    view = seen_by(pool, Caller("n", "admin", ("a", "team-*")))
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
    view.close()
    assert pool.names() == ["a", "team-1", "z"]


def test_who_sees_all_gets_the_pool_itself(pool: StorePool) -> None:
    assert seen_by(pool, LOCAL_CALLER) is pool


def test_news_by_name(pool: StorePool) -> None:
    told: list[str] = []
    view = seen_by(pool, Caller("n", "read", ("team-*",)))
    unlisten = view.feeds.listen_by_name(told.append)
    pool.create("team-3")
    pool.create("zebra")
    pool.drop("team-3")
    unlisten()
    pool.create("team-4")
    assert told == ["team-3", "team-3"]
    assert view.feeds.turn == pool.feeds.turn
