"""Pruning returns disk space, and large states are processed in small batches."""

from __future__ import annotations

import random
import sqlite3
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kgserve.platform.settings import MEBIBYTE
from kgserve.projections.history import reader as reading
from kgserve.projections.history.history_sql import HISTORY_SCHEMA
from kgserve.projections.history.reader import EndedStateReadPosition, read_ended_node_states
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.storage.journal import journal_reader
from kgserve.storage.journal.journal_reader import JournalReader
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_rows import NodeRow
from tests.projections.history.following import kept, node
from tests.stores.writing import batch, opened, until, write

STATES = 20
LARGE = 200_000


def states(count: int = STATES) -> Iterator[ChangeSet]:
    """Yield commits that write one node with incompressible text."""
    source = random.Random(7)
    for at in range(1, count + 1):
        row = NodeRow("a", "t", b64encode(source.randbytes(LARGE * 4 // 5)).decode(), "{}", at, at, 1, at)
        created, updated = ([row], []) if at == 1 else ([], [row])
        yield ChangeSet(
            sequence=at, time=at, nodes_created=created, nodes_updated=updated, digest=b"", nodes=1, edges=0
        )


def filled(path: Path) -> HistoryFile:
    history = HistoryFile(path)
    for change in states():
        history.take([change])
    return history


def create_without_incremental_vacuum(path: Path) -> None:
    """Create a file as older versions did, without incremental vacuum."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(HISTORY_SCHEMA.replace("PRAGMA auto_vacuum = INCREMENTAL;", ""))


def bytes_of(path: Path) -> int:
    """Return the size of a file with its log."""
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*") if not each.name.endswith("-shm"))


@pytest.mark.parametrize("old", [False, True])
def test_pruning_returns_disk_space(tmp_path: Path, *, old: bool) -> None:
    path = tmp_path / "history.sqlite"
    if old:
        create_without_incremental_vacuum(path)
    with closing(filled(path)) as history:
        assert bytes_of(path) > STATES * LARGE // 2
        assert history.prune(STATES - 1) == STATES - 2
        assert path.stat().st_size < 4 * LARGE
        assert [state.first for state in history.node_states("a", 100, 100)] == [STATES, STATES - 1]
    assert bytes_of(path) < 4 * LARGE


def test_an_old_file_is_not_rewritten_for_little_free_space(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    create_without_incremental_vacuum(path)
    with closing(filled(path)) as history:
        before = path.stat().st_size
        history.prune(STATES // 4)
        assert path.stat().st_size >= before
        history.prune(STATES - 1)
        assert path.stat().st_size < 4 * LARGE


def test_concurrent_reads_continue_during_pruning(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    count = "SELECT count(*), sum(length(row)) FROM node"
    with closing(filled(path)) as history, closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        before = reader.execute(count).fetchone()
        assert history.prune(STATES - 1) == STATES - 2
        assert reader.execute(count).fetchone() == before
        reader.execute("COMMIT")
        assert reader.execute(count).fetchone()[0] == 2
    assert bytes_of(path) < 4 * LARGE


def test_locks_are_released_between_slices(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with closing(filled(path)) as history, closing(sqlite3.connect(path, timeout=0)) as other:
        for _ in history.prune_in_slices(STATES):
            # No lock is held between two slices.
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")


def test_large_ended_states_are_read_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.sqlite"
    filled(path).close()
    monkeypatch.setattr(reading, "ENDED_STATES_BATCH_BYTES", 3 * LARGE)
    place, ends = EndedStateReadPosition(0), list[int | None]()
    while (found := read_ended_node_states(path, place, 1_000)) is not None:
        assert len(found.states) <= 3
        ends += [state.last for state in found.states]
        place = found.place
        if not found.more:
            break
    assert ends == [*range(2, STATES + 1)]


def test_large_commits_are_read_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_reader, "MAX_TAIL_BATCH_BYTES", 30_000)
    with opened(tmp_path) as store:
        write(store, *(batch("a", content=f"{number}" * 10_000) for number in range(10)))
        follower, seen = JournalReader(store.layout.journal), list[int]()
        while page := follower.page(len(seen), store.state.sequence):
            assert len(page) <= 3
            seen += [change.sequence for change in page]
        assert seen == [*range(1, 11)]


def test_an_oversized_history_prunes_its_oldest_states(tmp_path: Path) -> None:
    source = random.Random(7)
    with kept(tmp_path, history_mb=1) as of:
        for _ in range(STATES):
            write(of.store, node("a", b64encode(source.randbytes(LARGE)).decode()))
        of.caught_up()
        until(lambda: of.follower.look(lambda history: history.bytes) <= MEBIBYTE)
        assert 0 < of.oldest() < of.store.state.sequence
        assert 0 < len(of.versions("a")) < STATES


def test_current_states_are_never_pruned_by_size(tmp_path: Path) -> None:
    source = random.Random(7)
    with kept(tmp_path, history_mb=1) as of:
        for number in range(STATES):
            write(of.store, node(f"n{number}", b64encode(source.randbytes(LARGE)).decode()))
        of.caught_up()
        until(lambda: of.oldest() == of.store.state.sequence)
        assert len(of.ids(of.store.state.sequence)) == STATES
