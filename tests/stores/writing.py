"""Helpers that write to a store, and that damage its files like a crash or a failing disk."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
import time
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kgserve.cypher.write_analysis import StatementWriteBounds
from kgserve.platform.settings import Settings
from kgserve.projections.cypher_engine.engine.protocol import NO_ROW_CHANGES
from kgserve.storage.current_rows_rebuild import recreate_empty_folder
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import JournalFrame, list_journal_segments, read_journal_segment_frames
from kgserve.storage.model.node_and_memory_filters import NodeFilter, PagePosition
from kgserve.storage.model.node_edge_rows import EdgeKey
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.store_folder_layout import StoreLayout
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from kgserve.stores.scratch_database import ScratchStatement
from tests.engines import ENGINE
from tests.timeouts import REQUEST_SECONDS

PATIENCE = 120
SYNC_SECONDS = 0.003
"""Pause of concurrent writers, like a disk sync; without it they would outrun the code under test."""
NAME = "s"
UNTOUCHED = StatementWriteBounds(creates=False, deletes=False, sets=False)


def settings(data: Path, **options: Any) -> Settings:
    """Return settings for a data folder: a small page cache, no background checks, a minute per statement."""
    usual = {"buffer_pool_mb": 64, "check_interval": 0, "engine": ENGINE, "query_timeout": REQUEST_SECONDS}
    values: dict[str, Any] = {"data_dir": data, **usual, **options}
    return Settings(**values)


@contextmanager
def opened(data: Path, name: str = NAME, **options: Any) -> Generator[OpenStore]:
    """Yield a store in a pool of its own; both are closed at the end."""
    with StorePool(settings(data, **options)) as pool, pool.lease(name, create=True) as store:
        yield store


def batch(*ids: str, edges: Iterable[EdgeKey] = (), content: str | None = None, **fields: Any) -> WriteBatch:
    """Return an upsert of nodes of one type, and of edges."""
    nodes = [NodeUpsert(index, node_id, "t", content) for index, node_id in enumerate(ids)]
    return WriteBatch(nodes=nodes, edges=[EdgeUpsert(i, key) for i, key in enumerate(edges)], **fields)


def write(store: OpenStore, *batches: WriteBatch) -> list[WriteReport]:
    """Write batches one after the other."""
    return [store.submit(each).result(PATIENCE) for each in batches]


@contextmanager
def held(store: OpenStore) -> Generator[None]:
    """Hold the writer thread back within the block, so that writes made meanwhile form one group."""
    begun, free = threading.Event(), threading.Event()

    def prepare() -> WriteBatch:
        begun.set()
        assert free.wait(PATIENCE)
        return WriteBatch()

    future = store.submit_prepared(prepare)
    assert begun.wait(PATIENCE)
    try:
        yield
    finally:
        free.set()
        future.result(PATIENCE)


def write_together(store: OpenStore, *batches: WriteBatch) -> list[Future[WriteReport]]:
    """Write batches as one group, by holding the writer thread back until all are queued."""
    with held(store):
        return [store.submit(each) for each in batches]


def ask(store: OpenStore) -> None:
    """Open the engine and bring it up to date."""
    with store.engine.reading():
        pass


def tamper(store: OpenStore, statement: str) -> None:
    """Change the engine's file without the store's knowledge."""
    ask(store)
    engine = store.engine._engine
    assert engine is not None
    with store.engine.commits:
        engine.writer.run(statement)


def until(condition: Any, patience: float = PATIENCE) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def layout(data: Path, name: str = NAME) -> StoreLayout:
    return StoreLayout(data, name)


def forget_close(data: Path, name: str = NAME) -> None:
    """Remove the clean-close marker."""
    layout(data, name).mark_open()
    layout(data, name).remove_engine_marker()


def frames(data: Path, name: str = NAME) -> list[JournalFrame]:
    """Return all frames of a store's journal."""
    segments = list_journal_segments(layout(data, name).journal)
    return [frame for segment in segments for frame in read_journal_segment_frames(segment, None)]


def newest_segment(data: Path, name: str = NAME) -> Path:
    return list_journal_segments(layout(data, name).journal)[-1].path


def flip(path: Path, offset: int) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def copy_in_use(source: Path, target: Path) -> None:
    """Copy a folder in use. Files removed meanwhile are skipped; the copy starts again if files are replaced."""
    while True:
        copied = subprocess.run(["cp", "-r", str(source), str(target)], check=False, capture_output=True, text=True)
        told = copied.stderr.splitlines()
        if not any(line.endswith("was replaced while being copied") for line in told):
            break
        shutil.rmtree(target)
    assert all(line.endswith("No such file or directory") for line in told), copied.stderr


def hurt(data: Path, file: Path, choose: random.Random) -> None:
    """Damage a file of a closed store like a crash, a failing disk or an operator might."""
    match choose.randrange(4):
        case 0:
            shutil.rmtree(layout(data).views)
        case 1:
            forget_close(data)
        case 2 if file.exists():
            flip(file, min(5_000, file.stat().st_size - 1))
        case _:
            pass


def ids(store: OpenStore) -> list[str]:
    """Return the ids of all nodes in order, and assert that the catalog has the same."""
    with store.reading() as rows:
        found = list(rows.ids_after(""))
    assert (
        store.query_catalog(lambda catalog, _: catalog.list_matching_ids(NodeFilter(), PagePosition(), 1_000_000)).items
        == found[:20_000]
    )
    return found


def assert_whole(store: OpenStore) -> None:
    """Assert that engine, rows, journal digest and catalog agree."""
    ask(store)
    rebuilds = store.engine.rebuilds
    assert store.check().ok
    assert store.engine.rebuilds == rebuilds
    assert store.engine.state == store.state
    assert store.query_catalog(lambda catalog, _: catalog.sequence) == store.state.sequence
    assert len(ids(store)) == store.state.nodes


def assert_copy_right(store: OpenStore) -> None:
    """Assert that the scratch copy, if any, holds exactly the store's rows."""
    folder = store.layout.scratch / "rows"
    made = store.copy.made

    def look(trial: ScratchStatement) -> None:
        trial.session.dump(recreate_empty_folder(folder))
        assert trial.difference(UNTOUCHED) == NO_ROW_CHANGES

    is_warm = store.copy.is_warm
    if is_warm:
        with store.copy.exclusive_use(lambda: None):
            store.copy.run(look, UNTOUCHED)
        assert store.copy.made == made
        state = store.state
        assert snapshot.digest_and_count_snapshot_rows(folder) == (state.digest, state.nodes, state.edges)
        shutil.rmtree(folder)
    assert [path.name for path in store.layout.scratch.glob("*")] == ["statement"] * is_warm
