"""A disk without room for the engine file that a row with extras asks for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kgserve.errors import StorageFull
from kgserve.model.batch import NodeExtrasPut, NodePut, WriteBatch
from kgserve.store.room import LEAST_BYTES, require_room
from kgserve.store.store import Store
from tests.store.writing import PATIENCE, assert_whole, batch, ids, opened, write, write_together

TAGGED = WriteBatch(nodes=[NodePut(0, "tagged", "t", extras=NodeExtrasPut(tags=("x",)))])


@contextmanager
def too_large(store: Store) -> Generator[None]:
    """The engine's file seems larger than what the disk has left, and takes no room for it: the rest is a hole."""
    [path] = store.layout.root.glob("graph*.kuzu")
    size = path.stat().st_size
    os.truncate(path, size + shutil.disk_usage(path).free)
    try:
        yield
    finally:
        os.truncate(path, size)


def engine_files(store: Store) -> list[str]:
    return sorted(path.name for path in store.layout.root.glob("graph*"))


def test_what_there_is_room_for(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    require_room(tmp_path, 0)
    with pytest.raises(StorageFull, match="MiB of room"):
        require_room(tmp_path, free)
    require_room(tmp_path, (free - LEAST_BYTES) // 4)


def test_extras_are_refused_before_the_journal(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        size, files = store.journal.bytes, engine_files(store)
        with too_large(store):
            with pytest.raises(StorageFull, match="a new engine file"):
                write(store, TAGGED)
            assert (store.journal.bytes, store.state.sequence) == (size, 1)
            assert engine_files(store) == files
            write(store, batch("b"))
            assert ids(store) == ["a", "b"]
            assert not store.view.whole
        write(store, TAGGED)
        assert store.view.whole
        assert ids(store) == ["a", "b", "tagged"]
        assert_whole(store)


def test_columns_that_a_reader_names_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        with too_large(store), pytest.raises(StorageFull):
            store.widen()
        assert not store.view.whole
        store.widen()
        assert store.view.whole
        with too_large(store):
            store.widen()
            write(store, TAGGED)
        assert ids(store) == ["a", "tagged"]


def test_it_opens_again_after_a_refusal(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        with too_large(store):
            future = store.submit(TAGGED)
            assert isinstance(future.exception(PATIENCE), StorageFull)
    with opened(tmp_path) as store:
        assert ids(store) == ["a"]
        assert store.view.rebuilds == 0
        assert_whole(store)


def test_writes_of_the_same_group_go_on(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        with too_large(store):
            before, refused, after = write_together(store, batch("b"), TAGGED, batch("c"))
            assert isinstance(refused.exception(PATIENCE), StorageFull)
            assert (before.result(PATIENCE).nodes_created, after.result(PATIENCE).nodes_created) == (1, 1)
        assert "tagged" not in ids(store)
        assert_whole(store)


def test_extras_that_say_nothing_need_no_columns(tmp_path: Path) -> None:
    nothing = NodeExtrasPut(summary="", tags=(), freshness_at=None, valid_from=None, valid_to=None)
    with opened(tmp_path) as store:
        write(store, WriteBatch(nodes=[NodePut(0, "a", "t", extras=nothing)]))
        assert not store.view.whole
        write(store, WriteBatch(nodes=[NodePut(0, "a", "t", content="x", extras=nothing, based_on=0)]))
        assert ids(store) == ["a"]
