from __future__ import annotations

import io
from pathlib import Path

import pytest

from kgserve.journal.journal import MAGIC, FrameError, encode_frame, find_frame, read_frame, skip_frames
from tests.journal.history import mixed, nodes

CHANGES = mixed().changes
ONE = encode_frame(CHANGES)


def test_a_frame_holds_what_was_put_into_it() -> None:
    frame = read_frame(io.BytesIO(ONE), 0, len(ONE))
    assert frame.changes() == CHANGES
    assert (frame.first, frame.last, frame.count) == (1, len(CHANGES), len(CHANGES))
    assert (frame.offset, frame.end) == (0, len(ONE))


def test_frames_follow_each_other() -> None:
    two = encode_frame(nodes(3)[2:])
    data = ONE + two
    assert read_frame(io.BytesIO(data), len(ONE), len(data)).end == len(data)


def test_every_flipped_byte_is_found() -> None:
    for offset in range(len(ONE)):
        damaged = bytearray(ONE)
        damaged[offset] ^= 0x01
        with pytest.raises(FrameError):
            read_frame(io.BytesIO(damaged), 0, len(damaged))


def test_every_cut_is_found() -> None:
    for end in range(len(ONE)):
        with pytest.raises(FrameError):
            read_frame(io.BytesIO(ONE[:end]), 0, end)


@pytest.mark.parametrize("gap", [0, 1, 3, 100, (1 << 20) - 2, 1 << 20, (1 << 20) + 5])
def test_the_next_frame_is_found_wherever_it_starts(gap: int) -> None:
    data = b"?" + b"K" * gap + ONE
    assert find_frame(io.BytesIO(data), 0, len(data)) == 1 + gap
    assert find_frame(io.BytesIO(data[:-1]), 0, len(data) - 1) is None


def test_the_mark_alone_is_no_frame() -> None:
    data = b"?" + MAGIC + b"?" * 50 + MAGIC * 20
    assert find_frame(io.BytesIO(data), 0, len(data)) is None


def test_frames_are_passed_over_up_to_the_one_that_is_wanted(tmp_path: Path) -> None:
    changes = nodes(6)
    frames = [encode_frame(changes[:1]), encode_frame(changes[1:4]), encode_frame(changes[4:])]
    starts = [0, len(frames[0]), len(frames[0] + frames[1])]
    (tmp_path / "segment").write_bytes(b"".join(frames))
    with (tmp_path / "segment").open("rb") as file:
        end = len(b"".join(frames))
        found = [skip_frames(file, 0, end, sequence) for sequence in range(1, 8)]
        assert found == [starts[0], starts[1], starts[1], starts[1], starts[2], starts[2], end]
        with pytest.raises(FrameError):
            skip_frames(file, 1, end, 6)
