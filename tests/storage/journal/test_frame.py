from __future__ import annotations

import io
import random
from pathlib import Path

import msgspec
import pytest

from kgserve.storage.journal.journal import (
    FRAME_MAGIC,
    MIN_COMPRESSED_FRAME_ROWS,
    PACKED_FRAME_MAGIC,
    JournalFrameError,
    encode_and_compress_journal_frame,
    encode_journal_frame,
    encode_uncompressed_journal_frame,
    find_frame_offset_by_sequence,
    find_next_whole_journal_frame,
    read_journal_frame,
)
from kgserve.storage.model.change_set import ChangeSet
from tests.storage.journal.history import mixed, nodes

CHANGES = mixed().changes
ONE = encode_journal_frame(CHANGES)
ALIKE = nodes(MIN_COMPRESSED_FRAME_ROWS, 50)
PACKED_ONE, SPARED = encode_and_compress_journal_frame(ALIKE)


@pytest.mark.parametrize(("data", "changes"), [(ONE, CHANGES), (PACKED_ONE, ALIKE)])
def test_frame_roundtrip(data: bytes, changes: list[ChangeSet]) -> None:
    frame = read_journal_frame(io.BytesIO(data), 0, len(data))
    assert frame.changes() == changes
    assert (frame.first, frame.last, frame.count) == (1, len(changes), len(changes))
    assert (frame.offset, frame.end) == (0, len(data))
    assert encode_uncompressed_journal_frame(frame) == encode_journal_frame(changes)


def test_only_similar_rows_are_compressed() -> None:
    assert PACKED_ONE.startswith(PACKED_FRAME_MAGIC)
    assert len(PACKED_ONE) + SPARED == len(encode_journal_frame(ALIKE)) > 3 * len(PACKED_ONE)
    assert encode_and_compress_journal_frame(CHANGES) == (encode_journal_frame(CHANGES), 0)
    assert encode_and_compress_journal_frame(ALIKE[1:]) == (encode_journal_frame(ALIKE[1:]), 0)
    letters = random.Random(1)
    unlike = [with_content(change, letters.randbytes(500).hex()) for change in nodes(MIN_COMPRESSED_FRAME_ROWS)]
    assert encode_and_compress_journal_frame(unlike) == (encode_journal_frame(unlike), 0)


def with_content(change: ChangeSet, content: str) -> ChangeSet:
    [row] = change.nodes_created
    return msgspec.structs.replace(change, nodes_created=[msgspec.structs.replace(row, content=content)])


@pytest.mark.parametrize("data", [ONE, PACKED_ONE])
def test_every_flipped_byte_is_detected(data: bytes) -> None:
    for offset in range(len(data)):
        damaged = bytearray(data)
        damaged[offset] ^= 0x01
        with pytest.raises(JournalFrameError):
            read_journal_frame(io.BytesIO(damaged), 0, len(damaged))


@pytest.mark.parametrize("data", [ONE, PACKED_ONE])
def test_every_truncation_is_detected(data: bytes) -> None:
    for end in range(len(data)):
        with pytest.raises(JournalFrameError):
            read_journal_frame(io.BytesIO(data[:end]), 0, end)


@pytest.mark.parametrize("one", [ONE, PACKED_ONE])
@pytest.mark.parametrize("gap", [0, 1, 3, 100, (1 << 20) - 2, 1 << 20, (1 << 20) + 5])
def test_next_frame_is_found_at_any_offset(gap: int, one: bytes) -> None:
    data = b"?" + b"K" * gap + one
    assert find_next_whole_journal_frame(io.BytesIO(data), 0, len(data)) == 1 + gap
    assert find_next_whole_journal_frame(io.BytesIO(data[:-1]), 0, len(data) - 1) is None


def test_magic_bytes_alone_are_not_a_frame() -> None:
    data = b"?" + FRAME_MAGIC + b"?" * 50 + FRAME_MAGIC * 20 + PACKED_FRAME_MAGIC * 20
    assert find_next_whole_journal_frame(io.BytesIO(data), 0, len(data)) is None


@pytest.mark.parametrize("one", [ONE, PACKED_ONE])
def test_stray_magic_bytes_do_not_hide_a_later_frame(one: bytes) -> None:
    """Content may contain the magic bytes. If they ended the search, frames behind damage would be cut off."""
    head = b"?" + FRAME_MAGIC + PACKED_FRAME_MAGIC + b"?" * 50 + FRAME_MAGIC * 20
    assert find_next_whole_journal_frame(io.BytesIO(head + one), 0, len(head + one)) == len(head)


def test_skip_frames_stops_at_requested_sequence(tmp_path: Path) -> None:
    changes = nodes(6)
    [node] = changes[2].nodes_created
    changes[2] = msgspec.structs.replace(changes[2], nodes_created=[node] * MIN_COMPRESSED_FRAME_ROWS)
    frames = [
        encode_journal_frame(changes[:1]),
        encode_and_compress_journal_frame(changes[1:4]).data,
        encode_journal_frame(changes[4:]),
    ]
    assert [frame.startswith(PACKED_FRAME_MAGIC) for frame in frames] == [False, True, False]
    starts = [0, len(frames[0]), len(frames[0] + frames[1])]
    (tmp_path / "segment").write_bytes(b"".join(frames))
    with (tmp_path / "segment").open("rb") as file:
        end = len(b"".join(frames))
        found = [find_frame_offset_by_sequence(file, 0, end, sequence) for sequence in range(1, 8)]
        assert found == [starts[0], starts[1], starts[1], starts[1], starts[2], starts[2], end]
        with pytest.raises(JournalFrameError):
            find_frame_offset_by_sequence(file, 1, end, 6)
