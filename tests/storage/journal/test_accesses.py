"""Access records in frames, and reading them from a journal."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.errors import JournalDamaged
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import JournalFrame, encode_journal_frame
from kgserve.storage.journal.journal_reader import read_last_node_accesses_from_journal
from kgserve.storage.journal.row_materialization import materialize_rows_to_parquet
from kgserve.storage.model.change_set import ChangeSet, MemoryAccessRecord, NetChange
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from tests.fuzzing import examples
from tests.storage.journal.history import History, journal_of

SOME = [MemoryAccessRecord(f"n{number}", number, -number, number / 7) for number in range(25_000)]


class OldChangeSet(msgspec.Struct, kw_only=True):
    """Fields of a change set before access records existed."""

    sequence: int
    nodes_created: list[NodeRow] = []
    digest: bytes


def accessed(*ids: str, count: int = 1) -> WriteBatch:
    return WriteBatch(accesses=[MemoryAccessRecord(node_id, count, count, 0.5) for node_id in ids])


def test_older_decoders_ignore_access_records() -> None:
    history = History()
    history.add(WriteBatch(nodes=[NodeUpsert(0, "a", "t")], accesses=[MemoryAccessRecord("a", 1, 2, 0.5)]))
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(history.changes), type=list[OldChangeSet])
    assert [(change.sequence, [row.id for row in change.nodes_created]) for change in read] == [(1, ["a"])]


def test_access_record_takes_about_sixty_bytes() -> None:
    history = History()
    ids = [f"01936b2c-7f3a-7abc-8def-{number:012d}" for number in range(1000)]
    history.add(WriteBatch(nodes=[NodeUpsert(0, node_id, "t") for node_id in ids]))
    change = history.add(
        WriteBatch(accesses=[MemoryAccessRecord(node_id, 3, 1_700_000_000_000_000, 0.7) for node_id in ids])
    )
    assert len(encode_journal_frame([change])) < 62 * len(ids)


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "access", "both"]), st.sampled_from("abcd"), st.integers(1, 9)),
    min_size=1,
    max_size=20,
)


@examples(100)
@given(STEPS, st.integers(0, 20), st.integers(0, 20), st.integers(1, 3))
def test_changed_accesses_equal_net_change_of_change_sets(
    steps: list[tuple[str, str, int]], after: int, last: int, per_frame: int
) -> None:
    changes = _changes(steps)
    frames = [_frame(changes[at : at + per_frame]) for at in range(0, len(changes), per_frame)]
    changed = read_last_node_accesses_from_journal(iter(frames), after, last)
    before = NetChange(change for change in changes if change.sequence <= after).accessed
    left = {key: access for key, access in (before | changed).items() if access is not None}
    assert left == NetChange(change for change in changes if change.sequence <= max(after, last)).accessed


def _changes(steps: list[tuple[str, str, int]]) -> list[ChangeSet]:
    history = History()
    history.add(WriteBatch(nodes=[NodeUpsert(0, node_id, "t") for node_id in "ab"]))
    for kind, node_id, count in steps:
        access = [MemoryAccessRecord(node_id, count, 0, 1.0)]
        there = node_id in history.workspace.present
        if kind == "put" or not there:
            history.add(WriteBatch(nodes=[NodeUpsert(0, node_id, "t", f"{count}{history.state.sequence}")]))
        elif kind == "delete":
            history.add(WriteBatch(delete_nodes=[node_id]))
        elif kind == "access":
            history.add(WriteBatch(accesses=access))
        else:
            history.add(WriteBatch(delete_nodes=[node_id], nodes=[NodeUpsert(0, node_id, "t")], accesses=access))
    return history.changes


def _frame(changes: list[ChangeSet]) -> JournalFrame:
    return JournalFrame(0, 0, changes[0].sequence, len(changes), msgspec.msgpack.encode(changes), packed=False)


def test_frames_returns_frames_after_a_sequence(tmp_path: Path) -> None:
    history = History()
    history.add(WriteBatch(nodes=[NodeUpsert(0, "a", "t")]))
    for count in range(1, 8):
        history.add(accessed("a", count=count))
    journal = journal_of(tmp_path, history.changes, per_frame=3)
    assert [frame.first for frame in journal.frames(3)] == [4, 7]
    assert read_last_node_accesses_from_journal(journal.frames(0), 0, 5) == {"a": MemoryAccessRecord("a", 4, 4, 0.5)}
    journal.close()


@pytest.mark.parametrize("accesses", [SOME, []])
def test_snapshot_has_accesses_file_only_if_accesses_exist(tmp_path: Path, accesses: list[MemoryAccessRecord]) -> None:
    path = _snapshot(tmp_path, accesses)
    assert (path / snapshot.ACCESSES_FILE).exists() is bool(accesses)
    assert [access for some in snapshot.read_snapshot_access_records(path) for access in some] == accesses
    assert (snapshot.ACCESSES_FILE in snapshot.verify_snapshot(path).files) is bool(accesses)


def _snapshot(folder: Path, accesses: list[MemoryAccessRecord]) -> Path:
    history = History()
    history.add(WriteBatch(nodes=[NodeUpsert(0, "a", "t")]))
    rows = folder / "rows"
    rows.mkdir()
    state = materialize_rows_to_parquet(None, history.changes, rows).state
    snapshot.write_snapshot_access_records((accesses[at : at + 10_000] for at in range(0, len(accesses), 10_000)), rows)
    return snapshot.publish_journal_snapshot(rows, folder, state)


def test_damaged_accesses_are_reported_without_reading_rows(tmp_path: Path) -> None:
    path = _snapshot(tmp_path, SOME[:3])
    (path / snapshot.NODES_FILE).write_bytes(b"")
    assert [access for some in snapshot.read_snapshot_access_records(path) for access in some] == SOME[:3]
    (path / snapshot.ACCESSES_FILE).write_bytes(b"")
    with pytest.raises(JournalDamaged, match=snapshot.ACCESSES_FILE):
        snapshot.find_optional_snapshot_file(path, snapshot.ACCESSES_FILE)
