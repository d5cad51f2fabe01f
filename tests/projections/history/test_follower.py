from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from kgserve.errors import Gone
from kgserve.projections.history_follower import HistoryWorker
from kgserve.storage.journal.snapshot import list_journal_snapshots, parse_snapshot_sequence
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.stores.pool import StorePool
from tests.captured_log import capture_log
from tests.fuzzing import is_thorough
from tests.graphs import graph_of, node_of
from tests.projections.history.following import SMALL_JOURNAL, StoreWithHistory, kept, node
from tests.stores.writing import NAME, batch, copy_in_use, flip, layout, opened, settings, until, write

LARGE = "x" * 250_000


def history_file(data: Path) -> Path:
    return layout(data).root / "history.sqlite"


def content_as_of(of: StoreWithHistory, node_id: str, as_of: str) -> str | None:
    return node_of(graph_of(of.pool, NAME, historian=of.historian), node_id, as_of=as_of).node.content


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with three versions of one node, which is deleted and created again, and an edge."""
    data = tmp_path_factory.mktemp("left")
    with kept(data) as of:
        write(of.store, *(node("a", f"text {number}") for number in range(3)), WriteBatch(delete_nodes=["a"]))
        write(of.store, batch("a", "b", edges=[("a", "b", "R")]))
        of.caught_up()
    return data


@pytest.fixture
def filled(left: Path, tmp_path: Path) -> Path:
    """Return a copy of that store in the test's folder."""
    return shutil.copytree(left, tmp_path, dirs_exist_ok=True)


VERSIONS = [(4, 5, None), (3, 3, 4), (2, 2, 3), (1, 1, 2)]


def test_history_follows_the_journal_across_a_restart(filled: Path) -> None:
    with kept(filled) as of:
        of.caught_up()
        assert of.versions("a") == VERSIONS
        write(of.store, node("a", "more"))
        of.caught_up()
        assert of.versions("a")[0] == (5, 6, None)
        assert of.oldest() == 0


def test_writes_while_history_was_off_are_applied_from_the_journal(filled: Path) -> None:
    with opened(filled) as store:
        write(store, node("a", "meanwhile"), node("a", "and again"))
    with kept(filled) as of:
        of.caught_up()
        assert of.versions("a") == [(6, 7, None), (5, 6, 7), (4, 5, 6), *VERSIONS[1:]]


def test_an_unclean_close_neither_loses_nor_duplicates_states(tmp_path: Path) -> None:
    data, copied = tmp_path / "data", tmp_path / "copied"
    with kept(data) as of:
        for number in range(30):
            write(of.store, node("a", f"text {number}"))
            if number == 15:
                of.caught_up()
        shutil.rmtree(copied, ignore_errors=True)
        copy_in_use(data, copied)
    with kept(copied) as of:
        of.caught_up()
        last = [None, *range(30, 1, -1)]
        assert of.versions("a") == [(n, n, end) for n, end in zip(range(30, 0, -1), last, strict=True)]


def test_commits_beyond_the_journal_become_a_gap(tmp_path: Path) -> None:
    with opened(tmp_path, **SMALL_JOURNAL) as store:
        for number in range(12):
            write(store, node("a", f"{number} {LARGE}"), batch("b", edges=[("a", "b", "R")]))
            if number % 4 == 3:
                store.compactor.run()
        write(store, node("b", "last"))
        assert store.journal.oldest > 2
        last = store.state.sequence
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        of.caught_up()
        first = min(map(parse_snapshot_sequence, list_journal_snapshots(of.store.layout.journal)))
        assert (of.ids(last), of.keys(last)) == (["a", "b"], [("a", "b", "R")])
        assert content_as_of(of, "b", str(last)) == "last"
        assert of.ids(first) == ["a", "b"], "the journal leads on from there"
        with pytest.raises(Gone, match=f"gap from sequence 1 up to sequence {first}") as caught:
            content_as_of(of, "b", str(first - 1))
        assert caught.value.oldest == first
        with pytest.raises(Gone):
            content_as_of(of, "b", "2020-01-01T00:00:00Z")
        write(of.store, node("b", "later"))
        assert content_as_of(of, "b", str(last)) == "last"


def test_a_lagging_history_retains_the_journal(tmp_path: Path) -> None:
    with kept(tmp_path, **SMALL_JOURNAL) as of, held_up(of):
        for number in range(12):
            write(of.store, node("a", f"{number} {LARGE}"))
            if number % 4 == 3:
                of.store.compactor.run()
        assert of.follower.sequence < of.store.state.sequence
        assert of.store.journal.oldest == 1
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        of.caught_up()
        assert of.oldest() == 0
        assert [version for version, *_ in of.versions("a")] == list(range(12, 0, -1))
        # Once the history has applied them, the journal may be truncated.
        for number in range(12):
            write(of.store, node("a", f"again {number} {LARGE}"))
            of.caught_up()
            if number % 4 == 3:
                of.store.compactor.run()
        assert of.store.journal.oldest > 2
        assert [version for version, *_ in of.versions("a")] == list(range(24, 0, -1))


class held_up:  # noqa: N801 - used as a function
    """Lock on the file held by another connection, so that the history cannot advance within the block."""

    def __init__(self, of: StoreWithHistory) -> None:
        of.caught_up()
        self._other = sqlite3.connect(history_file(of.pool.settings.data_dir), isolation_level=None)

    def __enter__(self) -> None:
        self._other.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self._other.close()


def test_a_lock_is_not_treated_as_damage(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.projections.history.row_state_history.HISTORY_LOCK_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr("kgserve.projections.update_scheduler.STEP_FIRST_RETRY_SECONDS", 0.1)
    # Captured, because an unconfigured log renders tracebacks in color, which takes seconds.
    with capture_log(event="index_step_failed") as lines, kept(filled) as of:
        with held_up(of):
            write(of.store, node("a", "more"))
            until(lambda: of.follower.error is not None)
            assert content_as_of(of, "a", "3") == "text 2", "it can be read meanwhile"
        of.caught_up()
        assert of.versions("a") == [(5, 6, None), (4, 5, 6), *VERSIONS[1:]]
        assert any("locked" in line["error"] for line in lines)


def test_a_check_for_damage_is_made_after_a_failed_step(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_log(event="index_step_failed") as lines, kept(filled) as of:
        of.caught_up()
        before, advance = of.follower.history, of.follower._advance

        def fail_once(last: int) -> None:
            if not lines:
                of.follower.schedule_damage_check()
                raise sqlite3.OperationalError("database is locked")
            advance(last)

        monkeypatch.setattr(of.follower, "_advance", fail_once)
        write(of.store, node("a", "more"))
        of.caught_up()
        assert of.follower.history is not before


@pytest.mark.parametrize("harm", ["gone", "cut", "cut to nothing", "head flipped", "foreign", "another database"])
def test_a_damaged_file_is_rebuilt_from_the_journal(filled: Path, harm: str) -> None:
    path = history_file(filled)
    match harm:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        case "cut to nothing":
            path.write_bytes(b"")
        case "head flipped":
            flip(path, 3)
        case "foreign":
            path.write_bytes(b"no database at all" * 1000)
        case _:
            path.unlink()
            with closing(sqlite3.connect(path)) as other:
                other.execute("CREATE TABLE node (id TEXT)")
    with kept(filled) as of:
        of.caught_up()
        assert of.versions("a") == VERSIONS
        assert of.keys(5) == [("a", "b", "R")]


def test_a_corrupted_state_is_detected_before_a_read(filled: Path) -> None:
    path = history_file(filled)
    flip(path, path.read_bytes().index(b"text 1"))
    with kept(filled) as of:
        of.caught_up()
        assert content_as_of(of, "a", "2") == "text 1"
        assert of.versions("a") == VERSIONS


def test_damage_found_while_following_is_repaired(filled: Path) -> None:
    with closing(sqlite3.connect(history_file(filled))) as other:
        page_size, pages = (other.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count"))
        root = other.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'moment'").fetchone()[0]
    assert root <= pages
    data = bytearray(history_file(filled).read_bytes())
    data[(root - 1) * page_size : root * page_size] = b"\xff" * page_size
    history_file(filled).write_bytes(data)
    with kept(filled) as of:
        write(of.store, node("a", "more"))
        of.caught_up()
        assert of.versions("a") == [(5, 6, None), (4, 5, 6), *VERSIONS[1:]]


def test_reads_as_of_a_commit_are_stable_during_writes(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, batch(*(f"n{number}" for number in range(50)), edges=[("n0", "n1", "R")]))
        of.caught_up()
        over = threading.Event()
        writing = threading.Thread(target=_write_on, args=(of, over))
        writing.start()
        try:
            for _ in range(100 if is_thorough() else 20):
                assert len(of.ids(1)) == 50
                assert of.keys(1) == [("n0", "n1", "R")]
                assert content_as_of(of, "n1", "1") == ""
        finally:
            over.set()
            writing.join()
        assert of.store.state.sequence > 3


def _write_on(of: StoreWithHistory, over: threading.Event) -> None:
    number = 0
    while not over.is_set():
        number += 1
        write(of.store, node("n1", f"{number}"), WriteBatch(delete_nodes=[f"n{number % 50}"]), batch(f"n{number % 50}"))


def test_dropping_a_store_deletes_its_history(tmp_path: Path) -> None:
    with closing(HistoryWorker()) as historian, StorePool(settings(tmp_path)) as pool:
        pool.companions.append(historian)
        for content in ("first", "second"):
            with pool.lease(NAME, create=True) as store:
                write(store, node("a", content))
                of = StoreWithHistory(pool, historian, store)
                of.caught_up()
                assert of.versions("a") == [(1, 1, None)]
                assert content_as_of(of, "a", "1") == content
            pool.drop(NAME)
