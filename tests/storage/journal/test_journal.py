from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kgserve.errors import JournalDamaged, StorageFull, Unavailable
from kgserve.storage.journal.journal import (
    Journal,
    JournalEnd,
    encode_journal_frame,
    journal_segment_path,
    list_journal_segments,
    read_journal_segment_frames,
)
from kgserve.storage.journal.journal_reader import JournalReader
from kgserve.storage.model.change_set import ChangeSet
from tests.storage.journal.history import SEGMENT, journal_of, mixed, nodes

SMALL = 1000


def reopened(folder: Path, after: int = 0, trusted: JournalEnd | None = None) -> Journal:
    return Journal.open(folder, SEGMENT, after, trusted)


def contents(folder: Path, after: int = 0) -> list[ChangeSet]:
    journal = reopened(folder, after)
    try:
        return list(journal.read(after))
    finally:
        journal.close()


def test_appended_changes_are_read_back(tmp_path: Path) -> None:
    changes = mixed().changes
    journal = journal_of(tmp_path, changes, per_frame=2)
    assert (journal.last, journal.oldest) == (len(changes), 1)
    assert journal.bytes == list_journal_segments(tmp_path)[0].size
    for after in range(len(changes) + 1):
        assert list(journal.read(after)) == changes[after:]
    journal.close()
    assert contents(tmp_path) == changes


def test_segments_rotate_and_reads_span_them(tmp_path: Path) -> None:
    changes = nodes(40, 200)
    journal = journal_of(tmp_path, changes, SMALL)
    segments = list_journal_segments(tmp_path)
    assert len(segments) > 5
    assert journal.segments == segments
    for after in (0, 1, 7, 39, 40):
        assert list(journal.read(after)) == changes[after:]
        assert contents(tmp_path, after) == changes[after:]
    journal.close()


def test_read_returns_durable_changes_during_appends(tmp_path: Path) -> None:
    changes = nodes(60, 200)
    journal = journal_of(tmp_path, changes[:30], SMALL)
    reading = journal.read(0)
    found = [next(reading) for _ in range(3)]
    for change in changes[30:]:
        journal.append([change])
    assert found + list(reading) == changes[:30]
    assert list(journal.read(30)) == changes[30:]
    journal.close()


def test_torn_tail_is_cut_at_any_length(tmp_path: Path) -> None:
    changes = mixed().changes
    journal_of(tmp_path, changes[:-1]).close()
    path = list_journal_segments(tmp_path)[0].path
    whole = path.read_bytes()
    last = encode_journal_frame(changes[-1:])
    for length in range(len(last)):
        path.write_bytes(whole + last[:length])
        journal = reopened(tmp_path)
        assert journal.last == len(changes) - 1
        assert path.read_bytes() == whole
        journal.close()
    path.write_bytes(whole + last)
    assert contents(tmp_path) == changes


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"KGF1" * 100, os.urandom(3000), b"\xff"])
def test_garbage_tail_is_cut(tmp_path: Path, tail: bytes) -> None:
    changes = nodes(4)
    journal_of(tmp_path, changes[:3]).close()
    path = list_journal_segments(tmp_path)[0].path
    with path.open("ab") as file:
        file.write(tail)
    journal = reopened(tmp_path)
    journal.append(changes[3:])
    journal.close()
    assert contents(tmp_path) == changes


@pytest.mark.parametrize("where", [0, 3, 4, 12, 20, 40, -1])
def test_damage_before_a_whole_frame_is_reported(tmp_path: Path, where: int) -> None:
    journal_of(tmp_path, nodes(6)).close()
    [segment] = list_journal_segments(tmp_path)
    frame = list(read_journal_segment_frames(segment, 1))[2]
    data = bytearray(segment.path.read_bytes())
    data[frame.offset + where if where >= 0 else frame.end - 1] ^= 0x40
    segment.path.write_bytes(data)
    with pytest.raises(JournalDamaged) as found:
        reopened(tmp_path)
    assert str(segment.path) in found.value.message
    assert f"offset {frame.offset}" in found.value.message
    assert "--salvage" in found.value.message
    assert segment.path.read_bytes() == bytes(data)


@pytest.mark.parametrize("index", [0, 2, 4])
def test_truncated_older_segment_is_damage(tmp_path: Path, index: int) -> None:
    journal_of(tmp_path, nodes(40, 200), SMALL).close()
    segment = list_journal_segments(tmp_path)[index]
    with segment.path.open("r+b") as file:
        file.truncate(segment.size - 1)
    with pytest.raises(JournalDamaged) as found:
        reopened(tmp_path)
    assert segment.path.name in found.value.message


def test_missing_segment_is_damage_only_if_needed(tmp_path: Path) -> None:
    changes = nodes(40, 200)
    journal_of(tmp_path, changes, SMALL).close()
    first, second, third, *_ = list_journal_segments(tmp_path)
    second.path.unlink()
    with pytest.raises(JournalDamaged, match=f"after sequence {second.first - 1} are missing"):
        reopened(tmp_path)
    assert contents(tmp_path, third.first - 1) == changes[third.first - 1 :]
    first.path.unlink()
    journal = reopened(tmp_path, third.first - 1)
    assert journal.oldest == third.first
    for after in (0, third.first - 2):
        with pytest.raises(JournalDamaged):
            list(journal.read(after))
    journal.close()


def test_frame_out_of_order_is_damage(tmp_path: Path) -> None:
    changes = nodes(5)
    journal_of(tmp_path, changes[:2]).close()
    with list_journal_segments(tmp_path)[0].path.open("ab") as file:
        file.write(encode_journal_frame(changes[3:]))
    with pytest.raises(JournalDamaged, match="sequence 4 where 3 was due"):
        reopened(tmp_path)


def test_journal_without_segments_is_damage(tmp_path: Path) -> None:
    with pytest.raises(JournalDamaged):
        reopened(tmp_path)


def test_empty_newest_segment_is_accepted(tmp_path: Path) -> None:
    changes = nodes(4)
    journal_of(tmp_path, changes[:3]).close()
    journal_segment_path(tmp_path, 4).touch()
    journal = reopened(tmp_path)
    journal.append(changes[3:])
    journal.close()
    assert contents(tmp_path) == changes


def test_trusted_end_skips_verification(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, nodes(4))
    end = journal.end
    journal.close()
    path = list_journal_segments(tmp_path)[0].path
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    assert reopened(tmp_path, 0, end).last == 4
    with pytest.raises(JournalDamaged):
        reopened(tmp_path)


def test_journal_shorter_than_trusted_end_is_damage(tmp_path: Path) -> None:
    changes = nodes(4)
    journal = journal_of(tmp_path, changes)
    end = journal.end
    journal.close()
    path = list_journal_segments(tmp_path)[0].path
    data = path.read_bytes()
    last = len(encode_journal_frame(changes[-1:]))
    for cut in (1, last - 1, last):
        path.write_bytes(data[:-cut])
        with pytest.raises(JournalDamaged):
            reopened(tmp_path, 0, end)


def test_journal_behind_its_snapshot_continues_after_it(tmp_path: Path) -> None:
    changes = nodes(8)
    journal_of(tmp_path, changes[:3]).close()
    journal = reopened(tmp_path, 6)
    assert journal.last == 6
    journal.append([changes[6]])
    journal.close()
    assert contents(tmp_path, 6) == [changes[6]]


def test_drop_before_keeps_needed_segments(tmp_path: Path) -> None:
    changes = nodes(40, 200)
    journal = journal_of(tmp_path, changes, SMALL)
    sizes = [segment.size for segment in journal.segments]
    middle = journal.segments[len(sizes) // 2]
    journal.remove_segments_before(middle.first, sum(sizes))
    assert journal.oldest == 1
    journal.remove_segments_before(middle.first - 2, 0)
    assert journal.oldest < middle.first
    journal.remove_segments_before(middle.first - 1, 0)
    assert journal.oldest == middle.first
    assert list(journal.read(middle.first - 1)) == changes[middle.first - 1 :]
    journal.remove_segments_before(40, 0)
    assert len(list_journal_segments(tmp_path)) == 1
    journal.close()
    reopened(tmp_path, 40).close()


def test_begin_segment_reuses_an_empty_segment(tmp_path: Path) -> None:
    changes = nodes(4)
    journal = journal_of(tmp_path, changes[:2])
    for _ in range(2):
        journal.begin_segment()
        assert [segment.first for segment in journal.segments] == [1, 3]
    journal.append(changes[2:3])
    journal.begin_segment()
    journal.append(changes[3:])
    assert [segment.first for segment in list_journal_segments(tmp_path)] == [1, 3, 4]
    journal.close()
    assert contents(tmp_path) == changes


FULL = """
import resource, signal, sys
from pathlib import Path
from kgserve.errors import StorageFull
from kgserve.storage.journal.journal import Journal
from tests.storage.journal.history import nodes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
changes = nodes(40, 500)
journal = Journal.create(Path(sys.argv[1]), 1 << 30)
kept = refused = 0
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
for change in changes[:20]:
    try:
        journal.append([changes[kept]])
        kept += 1
    except StorageFull:
        refused += 1
assert journal.last == kept, (journal.last, kept)
assert Path(journal.segments[0].path).stat().st_size == journal.bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for change in changes[kept:]:
    journal.append([change])
assert [c.sequence for c in journal.read(0)] == list(range(1, 41))
print(kept, refused)
"""


def test_full_disk_leaves_no_partial_frame_and_writes_recover(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False, cwd=root
    )
    assert done.returncode == 0, done.stderr
    kept, refused = map(int, done.stdout.split())
    assert kept > 3
    assert refused > 10
    assert contents(tmp_path) == nodes(40, 500)


def test_frames_are_compressed_after_the_callback(tmp_path: Path) -> None:
    changes, callbacks = nodes(600, 100), list[int]()
    plain = journal_of(tmp_path / "plain", changes, per_frame=300)
    packed = journal_of(tmp_path / "packed", changes, per_frame=300, before_packing=lambda: callbacks.append(1))
    small = journal_of(tmp_path / "small", changes, before_packing=lambda: callbacks.append(1))
    assert len(callbacks) == 2
    assert 5 * packed.bytes < plain.bytes < small.bytes
    assert packed.bytes + packed.compression_savings_after(0) == plain.bytes
    assert [packed.compression_savings_after(each) > 0 for each in (0, 299, 300, 599, 600)] == [
        True,
        True,
        True,
        True,
        False,
    ]
    assert plain.compression_savings_after(0) == small.compression_savings_after(0) == 0
    for journal in (plain, packed, small):
        journal.close()
        for after in (0, 7, 300, 599):
            assert contents(journal.folder, after) == changes[after:]
            assert [each.sequence for each in JournalReader(journal.folder).page(after, 600)] == list(
                range(after + 1, 601)
            )


def test_nothing_is_written_if_the_compression_callback_raises(tmp_path: Path) -> None:
    def refuse() -> None:
        raise StorageFull("no room")

    journal = journal_of(tmp_path, nodes(1), before_packing=refuse)
    with pytest.raises(StorageFull):
        journal.append(nodes(301, 100)[1:])
    journal.append(nodes(2)[1:])
    journal.close()
    assert contents(tmp_path) == nodes(2)


def test_truncated_compressed_frame_is_cut(tmp_path: Path) -> None:
    changes = nodes(900, 100)
    journal = journal_of(tmp_path, changes, per_frame=300, before_packing=lambda: None)
    journal.close()
    [segment] = list_journal_segments(tmp_path)
    whole = segment.path.read_bytes()
    ends = [frame.end for frame in read_journal_segment_frames(segment, 1)]
    for size in (ends[1] + 1, ends[1] + 40, (ends[1] + ends[2]) // 2, ends[2] - 1):
        segment.path.write_bytes(whole[:size])
        assert contents(tmp_path) == changes[:600]
        assert segment.path.stat().st_size == ends[1]
    for offset in (3, ends[0] - 1, ends[0] + 20, ends[1] - 1):
        segment.path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        with pytest.raises(JournalDamaged):
            reopened(tmp_path)


KILLED = """
import sys
from pathlib import Path
from kgserve.storage.journal.journal import Journal
from tests.storage.journal.history import nodes
changes = nodes(6_000, 100)
journal = Journal.create(Path(sys.argv[1]), 20_000)
journal.before_packing = lambda: None
print("begun", flush=True)
for first in range(0, 6_000, 300):
    journal.append(changes[first : first + 300])
    print(journal.last, flush=True)
"""


@pytest.mark.parametrize("seconds", [0.0, 0.002, 0.005, 0.01])
def test_acknowledged_compressed_frames_survive_sigkill(tmp_path: Path, seconds: float) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", KILLED, str(tmp_path / "journal")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(seconds)
        process.kill()
        acknowledged = max((int(line) for line in process.stdout if line.endswith("\n")), default=0)
    found = contents(tmp_path / "journal")
    assert len(found) >= acknowledged
    assert len(found) % 300 == 0
    assert found == nodes(6_000, 100)[: len(found)]


def test_journal_is_read_only_after_failed_truncation(tmp_path: Path) -> None:
    changes = nodes(3)
    journal = journal_of(tmp_path, changes[:1])
    os.close(journal._descriptor)
    journal._descriptor = os.open(journal.segments[-1].path, os.O_RDONLY)
    for _ in range(2):
        with pytest.raises(Unavailable):
            journal.append([changes[1]])
    journal.close()
    assert contents(tmp_path) == changes[:1]


def test_concurrent_readers_see_no_gap(tmp_path: Path) -> None:
    changes = nodes(300, 100)
    journal = Journal.create(tmp_path, 5000)
    failures: list[Exception] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                found = [change.sequence for change in journal.read(0)]
                assert found == list(range(1, len(found) + 1))
        except Exception as error:  # noqa: BLE001  # shown at the end
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for change in changes:
        journal.append([change])
    stop.set()
    reader.join()
    journal.close()
    assert failures == []
