"""Full disk when a row needs an engine file with more columns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kgserve.errors import StorageFull
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.request_bodies import CypherRequest
from kgserve.storage.disk_space import (
    MIN_REBUILD_ROOM_BYTES,
    require_disk_space_for_rebuild,
)
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet, NodeExtrasUpsert
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import ask, assert_whole, batch, ids, opened, settings, write

TAGGED = WriteBatch(nodes=[NodeUpsert(0, "tagged", "t", extras=NodeExtrasUpsert(tags=("x",)))])


@contextmanager
def too_large(store: OpenStore) -> Generator[None]:
    """Make the engine's file seem larger than the free disk space, as a sparse file."""
    [path] = store.layout.root.glob("graph*.kuzu")
    size = path.stat().st_size
    os.truncate(path, size + shutil.disk_usage(path).free)
    try:
        yield
    finally:
        os.truncate(path, size)


def test_disk_space_checks(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    require_disk_space_for_rebuild(tmp_path, 0)
    with pytest.raises(StorageFull, match="MiB of disk space"):
        require_disk_space_for_rebuild(tmp_path, free)
    require_disk_space_for_rebuild(tmp_path, (free - MIN_REBUILD_ROOM_BYTES) // 4)


def test_a_full_disk_for_the_engine_does_not_reject_writes(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        ask(store)
        # The background follower must not run before the disk is full.
        with store.engine.commits:
            write(store, TAGGED)
            with too_large(store), pytest.raises(StorageFull, match="A new engine file"):
                ask(store)
        assert ids(store) == ["a", "tagged"]
        ask(store)
        assert store.engine.width is NodeEdgeColumnSet.EXTRAS
        assert_whole(store)


def test_reading_columns_without_disk_space_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        ask(store)
        with too_large(store), pytest.raises(StorageFull), store.engine.reading(width=NodeEdgeColumnSet.EXTRAS):
            pass
        assert store.engine.width is NodeEdgeColumnSet.PLAIN
        with store.engine.reading(width=NodeEdgeColumnSet.EXTRAS):
            assert store.engine.width is NodeEdgeColumnSet.EXTRAS


def test_empty_extras_need_no_columns(tmp_path: Path) -> None:
    nothing = NodeExtrasUpsert(summary="", tags=(), freshness_at=None, valid_from=None, valid_to=None)
    with opened(tmp_path) as store:
        write(store, WriteBatch(nodes=[NodeUpsert(0, "a", "t", extras=nothing)]))
        ask(store)
        assert store.engine.width is NodeEdgeColumnSet.PLAIN
        write(store, WriteBatch(nodes=[NodeUpsert(0, "a", "t", content="x", extras=nothing, based_on=0)]))
        assert ids(store) == ["a"]


def test_cypher_reads_need_no_disk_space(tmp_path: Path) -> None:
    """The interpreter answers from the current rows while the engine's file has no room."""
    count = CypherRequest(query="MATCH (n:Entity) RETURN count(n) AS count")
    with StorePool(settings(tmp_path)) as pool, pool.lease("s", create=True) as store:
        write(store, batch("a"))
        ask(store)
        with store.engine.commits:
            write(store, TAGGED)
            with too_large(store):
                assert run_cypher_request(graph_of(pool, "s"), count).rows == [[2]]
                with pytest.raises(StorageFull, match="A new engine file"):
                    run_cypher_request(graph_of(pool, "s"), CypherRequest(query="RETURN list_sum([1, 2])"))


def test_deletion_pruning_and_reads_work_on_a_full_disk(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=64m tmpfs "$1" && exec "$2" -m tests.stores.full_disk "$1"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", str(tmp_path), sys.executable]
    if shutil.which("unshare") is None or subprocess.run([*command[:3], "true"], check=False).returncode != 0:
        pytest.skip("this machine allows no mount namespaces")
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
