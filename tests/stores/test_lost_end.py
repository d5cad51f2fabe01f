"""After an unclean stop, a journal that ends before a projection is refused, and salvaged from the history."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kgserve.errors import JournalDamaged
from kgserve.platform.settings import MEBIBYTE
from kgserve.storage.journal.journal import list_journal_segments
from kgserve.storage.journal.journal_reader import JournalReader
from kgserve.storage.model.write_batch import EdgeUpsert, WriteBatch
from kgserve.storage.store_folder_layout import StoreLayout, read_projection_sequences
from kgserve.stores.journal_salvage import salvage_damaged_store
from tests.projections.history.following import SMALL_JOURNAL, StoreWithHistory, kept
from tests.stores.test_links import everything, link, links
from tests.stores.writing import assert_whole, batch, forget_close, ids, layout, newest_segment, opened, settings, write

EDGES = [("a", "b", "r"), ("b", "c", "r"), ("c", "d", "r")]


def fill(of: StoreWithHistory, data: Path) -> int:
    """Write commits 1 to 9 into several segments, the last with every kind of change. Return the store's digest."""
    write(of.store, batch(*"abcd", edges=EDGES, content="x" * MEBIBYTE), batch(*"ef", content="y" * MEBIBYTE))
    assert len(list_journal_segments(layout(data).journal)) == 2
    write(of.store, batch("g"), batch("a", content="new"), batch("h", edges=[("h", "a", "s")]))
    write(of.store, WriteBatch(edges=[EdgeUpsert(0, EDGES[0], 0.5)]), WriteBatch(delete_nodes=["c"]))
    write(of.store, WriteBatch(edges=[EdgeUpsert(0, EDGES[0])]), batch("h", content="again"))
    of.caught_up()
    return of.store.state.digest


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Create a store with nine commits that was not closed cleanly. Return it with its digest."""
    data = tmp_path_factory.mktemp("left")
    with kept(data, **SMALL_JOURNAL) as of:
        found = fill(of, data)
        assert ids(of.store), "the catalog has seen them all"
    forget_close(data)
    return data, found


@pytest.fixture
def digest(left: tuple[Path, int], tmp_path: Path) -> int:
    """Copy the store into the test's folder, and return its digest."""
    shutil.copytree(left[0], tmp_path, dirs_exist_ok=True)
    return left[1]


def gone(files: StoreLayout) -> None:
    newest_segment(files.root.parent).unlink()


def cut_in_half(files: StoreLayout) -> None:
    path = newest_segment(files.root.parent)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def all_gone(files: StoreLayout) -> None:
    shutil.rmtree(files.journal)


def content(files: StoreLayout) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files.journal.glob("*.log")}


@pytest.mark.parametrize("damage", [gone, cut_in_half, all_gone])
def test_lost_commits_are_detected_and_salvaged(
    tmp_path: Path, digest: int, damage: Callable[[StoreLayout], None]
) -> None:
    files = layout(tmp_path)
    damage(files)
    left = content(files)
    with pytest.raises(JournalDamaged, match=r"--salvage") as refused, opened(tmp_path):
        pass
    assert content(files) == left
    if left:
        assert "has seen sequence 9" in refused.value.message
    said = list(salvage_damaged_store(files, settings(tmp_path)))
    assert "were restored from the history" in said[-1]
    assert list(salvage_damaged_store(files, settings(tmp_path))) == []
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        assert (of.store.state.sequence, of.store.state.digest) == (9, digest)
        assert ids(of.store) == list("abdefgh")
        assert_whole(of.store)
        write(of.store, batch("a", content="newer"))
        of.caught_up()
        # The history still has the older versions, and continues from them.
        assert of.versions("a") == [(3, 10, None), (2, 4, 10), (1, 1, 4)]
        read = [change.sequence for change in JournalReader(files.journal).read(1, 10)]
        assert read == list(range(1, 11))


def test_the_error_names_both_sequences_and_the_newer_projection(tmp_path: Path, digest: int) -> None:
    assert digest
    newest_segment(tmp_path).write_bytes(b"")
    with pytest.raises(JournalDamaged) as refused, opened(tmp_path):
        pass
    assert "whole up to sequence 2, but the history has seen sequence 9" in refused.value.message


def test_salvage_without_history_never_reuses_sequence_numbers(tmp_path: Path) -> None:
    with opened(tmp_path, **SMALL_JOURNAL) as store:
        write(store, batch("a", content="x" * MEBIBYTE), batch("b"), batch("c"))
        assert ids(store) == ["a", "b", "c"]
    forget_close(tmp_path)
    gone(layout(tmp_path))
    with pytest.raises(JournalDamaged, match="sequence 1, but the catalog has seen sequence 3"), opened(tmp_path):
        pass
    said = list(salvage_damaged_store(layout(tmp_path), settings(tmp_path)))
    assert said[-1] == "sequences 2 to 3, which the catalog had seen, are lost"
    with opened(tmp_path) as store:
        assert (store.state.sequence, ids(store)) == (3, ["a"])
        assert write(store, batch("d"))[0].sequence == 4
        assert_whole(store)


def test_only_rows_damaged_in_the_history_are_lost(tmp_path: Path, digest: int) -> None:
    files = layout(tmp_path)
    with closing(sqlite3.connect(files.history)) as history:
        history.execute("UPDATE node SET row = x'00' WHERE id IN ('g', 'a') AND last IS NULL")
        history.commit()
    gone(files)
    said = "\n".join(salvage_damaged_store(files, settings(tmp_path)))
    assert "node 'g' is damaged in the history" in said
    with opened(tmp_path) as store:
        assert store.state.digest != digest
        assert ids(store) == list("abdefh")
        with store.reading() as rows:
            first = rows.node("a")
        assert first is not None
        assert first.version == 1
        assert_whole(store)


def test_an_unreadable_history_is_set_aside(tmp_path: Path, digest: int) -> None:
    assert digest
    files = layout(tmp_path)
    gone(files)
    files.history.write_bytes(files.history.read_bytes()[:8192])
    said = "\n".join(salvage_damaged_store(files, settings(tmp_path)))
    assert "set aside as damaged-history.sqlite" in said
    assert "sequences 3 to 9, which the catalog had seen, are lost" in said
    with kept(tmp_path) as of:
        assert (of.store.state.sequence, ids(of.store)) == (9, list("abcdef"))
        write(of.store, batch("i"))
        of.caught_up()
        assert of.ids(10) == list("abcdefi")


def test_an_unacknowledged_write_is_truncated_silently(tmp_path: Path, digest: int) -> None:
    path = newest_segment(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:100])
    assert {each.sequence for each in read_projection_sequences(layout(tmp_path))} == {0, 9}
    with opened(tmp_path) as store:
        assert store.state.digest == digest
    assert path.read_bytes() == whole


def test_salvage_restores_links(tmp_path: Path) -> None:
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        write(of.store, batch(*"abcd", content="x" * MEBIBYTE), links(link("a", "o", "1"), link("b", "o", "1")))
        write(of.store, links(link("c", "o", "1"), link("d", "o", "1")), batch(content="y" * MEBIBYTE))
        write(of.store, batch(*"ef", content="y" * MEBIBYTE))
        assert len(list_journal_segments(layout(tmp_path).journal)) == 2
        write(of.store, links(link("e", "o", "2"), link("a", "o", "1", 0.5)), WriteBatch(delete_nodes=["b"]))
        write(of.store, WriteBatch(delete_links=[link("c", "o", "1").key]), links(link("c", "o", "1", 3.0)))
        write(of.store, WriteBatch(links=[link("d", "o", "1")]))
        of.caught_up()
        expected, last = everything(of.store), of.store.state.sequence
    forget_close(tmp_path)
    gone(layout(tmp_path))
    said = "\n".join(salvage_damaged_store(layout(tmp_path), settings(tmp_path)))
    assert "were restored from the history" in said
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        assert of.store.state.sequence == last
        assert everything(of.store) == expected
        assert_whole(of.store)
        write(of.store, links(link("a", "o", "3")))
        of.caught_up()


def test_salvage_with_a_damaged_link_and_a_history_without_links(tmp_path: Path) -> None:
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        write(
            of.store,
            batch(*"ab", content="x" * MEBIBYTE),
            batch("c", content="y" * MEBIBYTE),
            links(link("a", "o", "1")),
        )
        of.caught_up()
    forget_close(tmp_path)
    files = layout(tmp_path)
    for statement, told, found in (
        ("UPDATE link SET row = x'00'", "link 'a~knows~1~o' is damaged in the history", {}),
        ("DROP TABLE link", "", {}),
    ):
        copy = tmp_path / "copy"
        shutil.copytree(files.root.parent, copy)
        with closing(sqlite3.connect(layout(copy).history)) as history:
            history.execute(statement)
            history.commit()
        gone(layout(copy))
        assert told in "\n".join(salvage_damaged_store(layout(copy), settings(copy)))
        with opened(copy) as store:
            assert everything(store) == found
            assert_whole(store)
        shutil.rmtree(copy)
