from __future__ import annotations

from pathlib import Path

import pytest

from kgserve.errors import JournalDamaged
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import (
    DAMAGED_SUFFIX,
    Journal,
    describe_journal_segment,
    journal_segment_path,
    list_journal_segments,
    read_journal_segment_frames,
    truncate_damaged_journal,
)
from kgserve.storage.journal.row_materialization import materialize_rows_to_parquet
from kgserve.storage.model.change_set import ChangeSet
from tests.storage.journal.history import SEGMENT, journal_of, nodes

CHANGES = nodes(40, 200)
SMALL = 1000


def damage(folder: Path, sequence: int) -> Path:
    """Flip a bit in the frame of a sequence; return the segment's path."""
    for segment in list_journal_segments(folder):
        for frame in read_journal_segment_frames(segment, None):
            if frame.first <= sequence <= frame.last:
                data = bytearray(segment.path.read_bytes())
                data[frame.end - 1] ^= 1
                segment.path.write_bytes(data)
                return segment.path
    raise AssertionError


def take_snapshot(folder: Path, sequence: int) -> None:
    rows = folder / "rows"
    rows.mkdir()
    snapshot.publish_journal_snapshot(rows, folder, materialize_rows_to_parquet(None, CHANGES[:sequence], rows).state)


def read_on(folder: Path, after: int) -> list[ChangeSet]:
    """Open the journal, append one change set, reopen it and return its contents."""
    journal = Journal.open(folder, SEGMENT, after)
    journal.append([CHANGES[journal.last]])
    journal.close()
    journal = Journal.open(folder, SEGMENT, after)
    found = list(journal.read(after))
    journal.close()
    return found


def test_salvage_leaves_undamaged_journal_unchanged(tmp_path: Path) -> None:
    journal_of(tmp_path, CHANGES, SMALL).close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert list(truncate_damaged_journal(tmp_path)) == []
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("sequence", [1, 2, 17, 39])
def test_salvage_keeps_everything_before_damage_and_sets_aside_the_rest(tmp_path: Path, sequence: int) -> None:
    journal_of(tmp_path, CHANGES, SMALL).close()
    path = damage(tmp_path, sequence)
    before = path.read_bytes()
    with pytest.raises(JournalDamaged):
        Journal.open(tmp_path, SEGMENT, 0)
    said = list(truncate_damaged_journal(tmp_path))
    assert f"cut after sequence {sequence - 1}" in said[0]
    assert path.with_name(path.name + DAMAGED_SUFFIX).read_bytes() == before
    assert len(said) == len(list(tmp_path.glob(f"*{DAMAGED_SUFFIX}")))
    assert read_on(tmp_path, 0) == CHANGES[:sequence]


def test_salvage_sets_aside_segments_after_a_gap(tmp_path: Path) -> None:
    journal_of(tmp_path, CHANGES, SMALL).close()
    second = list_journal_segments(tmp_path)[1]
    second.path.unlink()
    assert list(truncate_damaged_journal(tmp_path))
    assert read_on(tmp_path, 0) == CHANGES[: second.first]


def test_salvage_loses_nothing_before_a_snapshot(tmp_path: Path) -> None:
    journal_of(tmp_path, CHANGES[:39], SMALL).close()
    take_snapshot(tmp_path, 30)
    damage(tmp_path, 3)
    list(truncate_damaged_journal(tmp_path))
    assert read_on(tmp_path, 30) == CHANGES[30:]


def test_salvage_keeps_segments_after_one_ending_at_the_snapshot(tmp_path: Path) -> None:
    journal_of(tmp_path, CHANGES[:39], SMALL).close()
    segments = list_journal_segments(tmp_path)
    at = segments[3].first - 1
    take_snapshot(tmp_path, at)
    assert damage(tmp_path, segments[2].first) == segments[2].path
    Journal.open(tmp_path, SEGMENT, at).close()
    assert [line.split()[0] for line in truncate_damaged_journal(tmp_path)] == [segments[2].path.name]
    assert read_on(tmp_path, at) == CHANGES[at:]


def test_salvage_continues_after_snapshot_inside_damaged_segment(tmp_path: Path) -> None:
    journal_of(tmp_path, CHANGES[:30]).close()
    take_snapshot(tmp_path, 20)
    damage(tmp_path, 5)
    assert list(truncate_damaged_journal(tmp_path))
    assert read_on(tmp_path, 20) == [CHANGES[20]]


def test_salvage_starts_a_segment_if_none_is_left(tmp_path: Path) -> None:
    assert list(truncate_damaged_journal(tmp_path)) == ["a new segment was started after sequence 0"]
    assert read_on(tmp_path, 0) == CHANGES[:1]


def test_salvage_is_idempotent(tmp_path: Path) -> None:
    journal_of(tmp_path, CHANGES, SMALL).close()
    damage(tmp_path, 9)
    assert list(truncate_damaged_journal(tmp_path))
    assert list(truncate_damaged_journal(tmp_path)) == []


def test_segment_fault_describes_segment(tmp_path: Path) -> None:
    journal_of(tmp_path, CHANGES[:3]).close()
    [segment] = list_journal_segments(tmp_path)
    assert describe_journal_segment(segment) == "sequences 1 to 3"
    journal_segment_path(tmp_path, 4).touch()
    assert describe_journal_segment(list_journal_segments(tmp_path)[1]) == "empty"
    damage(tmp_path, 2)
    with pytest.raises(JournalDamaged, match=r"at offset \d+; whole up to sequence 1"):
        describe_journal_segment(segment)
