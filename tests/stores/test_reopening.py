"""A store reopens with its data, whatever happened to files that can be rebuilt."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kgserve.errors import JournalDamaged
from kgserve.platform.settings import MEBIBYTE
from kgserve.storage.journal import snapshot
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.store_folder_layout import StoreLayout, engine_wal_path
from tests.captured_log import capture_log
from tests.stores.writing import (
    NAME,
    ask,
    assert_whole,
    batch,
    flip,
    forget_close,
    ids,
    layout,
    newest_segment,
    opened,
    write,
)

GRAPH = batch(*"abcdef", edges=[(a, b, "r") for a in "abc" for b in "def"])


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Create a closed store with some history. Return it with its digest."""
    data = tmp_path_factory.mktemp("left")
    with opened(data) as store:
        write(store, GRAPH, WriteBatch(delete_nodes=["c"]))
        ask(store)
        write(store, batch("g", content="new"))
        ids(store)
        ask(store)
        assert store.engine.rebuilds == 0
        return data, store.state.digest


@pytest.fixture
def digest(left: tuple[Path, int], tmp_path: Path) -> int:
    """Copy the store into the test's folder, and return its digest."""
    shutil.copytree(left[0], tmp_path, dirs_exist_ok=True)
    return left[1]


def test_after_a_clean_close_files_are_reopened_unchanged(digest: int, tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        ask(store)
        assert store.engine.rebuilds == 0
        assert store.state.digest == digest
        assert not (store.layout.root / "closed.json").exists()
        assert not (store.layout.root / "engine.json").exists()
        assert_whole(store)
    assert sorted(path.name for path in layout(tmp_path).root.glob("graph*")) == ["graph.kuzu", "graph.kuzu.wal"]


def test_after_an_unclean_close_the_engine_is_rebuilt_and_logged(digest: int, tmp_path: Path) -> None:
    forget_close(tmp_path)
    with opened(tmp_path) as store:
        with capture_log(store=NAME) as lines:
            ask(store)
        told = [(line["event"], line["log_level"]) for line in lines]
        assert {("rebuild_started", "warning"), ("rebuild_done", "warning")} <= {*told}
        assert store.engine.rebuilds == 1
        assert store.state.digest == digest
        assert_whole(store)


def engine_gone(files: StoreLayout) -> None:
    files.engine.unlink()


def engine_cut(files: StoreLayout) -> None:
    with files.engine.open("r+b") as file:
        file.truncate(files.engine.stat().st_size // 2)


def engine_empty(files: StoreLayout) -> None:
    files.engine.write_bytes(b"")


def engine_flipped(files: StoreLayout) -> None:
    flip(files.engine, files.engine.stat().st_size // 2)


def engine_foreign(files: StoreLayout) -> None:
    files.engine.write_bytes(b"SQLite format 3\0" * 1000)


def engine_log_gone(files: StoreLayout) -> None:
    engine_wal_path(files.engine).unlink()


def engine_log_flipped(files: StoreLayout) -> None:
    path = engine_wal_path(files.engine)
    flip(path, path.stat().st_size // 2)


def all_but_the_journal_gone(files: StoreLayout) -> None:
    for path in files.root.iterdir():
        if path != files.journal:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        engine_gone,
        engine_cut,
        engine_empty,
        engine_flipped,
        engine_foreign,
        engine_log_gone,
        engine_log_flipped,
        all_but_the_journal_gone,
    ],
)
def test_a_damaged_engine_is_rebuilt(digest: int, tmp_path: Path, damage: Callable[[StoreLayout], None]) -> None:
    damage(layout(tmp_path))
    with opened(tmp_path) as store:
        ask(store)
        assert store.engine.rebuilds == (damage is not all_but_the_journal_gone)
        assert store.state.digest == digest
        assert ids(store) == list("abdefg")
        assert_whole(store)
        write(store, batch("after"))
    with opened(tmp_path) as store:
        ask(store)
        assert store.engine.rebuilds == 0
        assert "after" in ids(store)


@pytest.mark.parametrize("damage", ["gone", "cut", "foreign", "of the past"])
def test_a_damaged_catalog_is_rebuilt(digest: int, tmp_path: Path, damage: str) -> None:
    catalog = layout(tmp_path).catalog
    past = catalog.read_bytes()
    with opened(tmp_path) as store:
        write(store, batch("h"))
        assert "h" in ids(store)
    match damage:
        case "gone":
            catalog.unlink()
        case "cut":
            catalog.write_bytes(catalog.read_bytes()[:3000])
        case "foreign":
            catalog.write_bytes(b"this is no database" * 500)
        case _:
            catalog.write_bytes(past)
    with opened(tmp_path) as store:
        assert ids(store) == list("abdefgh")
        assert store.query_catalog(lambda c, _: (c.types(9), c.relation_types(9))) == ({"t": 7}, {"r": 6})
        assert_whole(store)


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"format":1}', b"\xff\xfe"])
def test_an_unreadable_description_is_restored(digest: int, tmp_path: Path, content: bytes | None) -> None:
    path = layout(tmp_path).root / "store.json"
    path.unlink() if content is None else path.write_bytes(content)
    with opened(tmp_path) as store:
        assert store.state.digest == digest
        assert store.description.created_at > 0
    assert layout(tmp_path).description() is not None


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"sequence":1}'])
def test_an_unreadable_clean_close_marker_counts_as_missing(digest: int, tmp_path: Path, content: bytes) -> None:
    (layout(tmp_path).root / "closed.json").write_bytes(content)
    (layout(tmp_path).root / "engine.json").write_bytes(content)
    with opened(tmp_path) as store:
        ask(store)
        assert store.engine.rebuilds == 1
        assert store.state.digest == digest


@pytest.mark.usefixtures("digest")
def test_a_flipped_bit_in_the_clean_close_marker_is_detected(tmp_path: Path) -> None:
    path = layout(tmp_path).root / "closed.json"
    whole = path.read_bytes()
    assert layout(tmp_path).close_mark() is not None
    for bit in range(0, len(whole) * 8, 3):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert layout(tmp_path).close_mark() is None, bit


def compacted(data: Path, retention: int) -> int:
    """Create a store with several snapshots that was not closed cleanly. Return its digest."""
    with opened(data, journal_segment_mb=1, journal_retention_mb=retention) as store:
        for number in range(3):
            write(store, batch(f"big{number}", content=f"{number}" * MEBIBYTE), batch(f"n{number}"))
            store.compactor.run()
            assert store.compactor.done == number + 1
        write(store, batch("last"))
        digest = store.state.digest
    forget_close(data)
    return digest


@pytest.mark.parametrize("part", [snapshot.NODES_FILE, snapshot.SNAPSHOT_MANIFEST_FILE])
@pytest.mark.parametrize("retention", [0, 256])
def test_a_damaged_snapshot_is_skipped(tmp_path: Path, part: str, retention: int) -> None:
    digest = compacted(tmp_path, retention)
    newest, older = snapshot.list_journal_snapshots(layout(tmp_path).journal)
    flip(newest / part, 10)
    if retention:
        (older / part).unlink()
    with opened(tmp_path) as store:
        assert store.state.digest == digest
        assert_whole(store)


def test_losing_all_snapshots_and_older_segments_is_reported(tmp_path: Path) -> None:
    compacted(tmp_path, 0)
    files = layout(tmp_path)
    assert first_kept(files) > 1
    for path in snapshot.list_journal_snapshots(files.journal):
        flip(path / snapshot.NODES_FILE, 10)
    with opened(tmp_path) as store:
        assert "last" in ids(store), "the present rows are another view"
    shutil.rmtree(files.rows)
    with pytest.raises(JournalDamaged), opened(tmp_path):
        pass
    assert newest_segment(tmp_path).exists()


def first_kept(files: StoreLayout) -> int:
    return min(int(path.stem) for path in files.journal.glob("*.log"))
