from __future__ import annotations

import io

import pytest

from kgserve.journal.frame import MAGIC, FrameError, encode_frame, find_frame, read_frame
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
