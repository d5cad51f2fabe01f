from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.cluster.replicated_log_records import (
    RECORD_FORMAT,
    PositionedReplicatedLogRecord,
    ReplicatedLogRecord,
    decode_replicated_log_record,
    encode_replicated_log_record,
    join_replicated_log_records,
    split_replicated_log_record,
)
from tests.fuzzing import examples


@examples(50)
@given(st.binary(max_size=60), st.integers(1, 20), st.integers(0, 2))
def test_split_records_are_reassembled(data: bytes, most: int, earlier: int) -> None:
    record = ReplicatedLogRecord("frame", 3, 10, 12, data)
    pieces = list(split_replicated_log_record(record, most))
    assert all(len(piece.data) <= most for piece in pieces)
    assert [piece.kind for piece in pieces] == ["part"] * (len(pieces) - 1) + ["frame"]
    # Preceded by pieces of an incomplete frame of an earlier epoch.
    broken = [ReplicatedLogRecord("part", 2, 10, 12, b"broken off")] * earlier
    found = [
        PositionedReplicatedLogRecord(position, position - 1, each)
        for position, each in enumerate([*broken, *pieces], 1)
    ]
    assert [each.record for each in join_replicated_log_records(found)] == [record]


@pytest.mark.parametrize("kind", ["take", "frame", "part"])
def test_records_round_trip(kind: str) -> None:
    record = ReplicatedLogRecord(kind, 1, 2, 3, b"data")  # pyright: ignore[reportArgumentType]
    assert decode_replicated_log_record(9, encode_replicated_log_record(7, record)) == PositionedReplicatedLogRecord(
        9, 7, record
    )


def test_any_flipped_bit_is_detected() -> None:
    data = encode_replicated_log_record(7, ReplicatedLogRecord("frame", 1, 2, 3, b"data"))
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(ValueError, match="checksum"):
                decode_replicated_log_record(9, bytes(flipped))
    for length in range(len(data)):
        with pytest.raises(ValueError, match="checksum"):
            decode_replicated_log_record(9, data[:length])


def test_a_newer_record_format_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.cluster.replicated_log_records.RECORD_FORMAT", RECORD_FORMAT + 1)
    data = encode_replicated_log_record(7, ReplicatedLogRecord("take", 1))
    monkeypatch.undo()
    with pytest.raises(ValueError, match=f"format {RECORD_FORMAT + 1} is not supported by this version"):
        decode_replicated_log_record(9, data)
