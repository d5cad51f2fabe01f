"""Blocks of a file are compared with their sums before they are used."""

from __future__ import annotations

import pytest
import xxhash

from kgserve.rows.format import BLOCK, Blocks, RowsDamaged


def blocks_of(data: bytes, said: bytes) -> Blocks:
    sums = [xxhash.xxh3_64_intdigest(said[at : at + BLOCK]) for at in range(0, len(said), BLOCK)]
    return Blocks(data, sums, len(data), "base")


@pytest.mark.parametrize("size", [BLOCK, 2 * BLOCK, 2 * BLOCK + 1])
def test_a_range_of_nothing_may_end_where_the_file_does(size: int) -> None:
    data = bytes(size)
    blocks = blocks_of(data, data)
    blocks.check_range(size, size)
    blocks.check_range(0, size)
    assert all(blocks.checked)


def test_what_does_not_fit_is_told_once_it_is_reached() -> None:
    said = bytes(2 * BLOCK)
    blocks = blocks_of(said[:-1] + b"x", said)
    blocks.check_range(0, BLOCK)
    with pytest.raises(RowsDamaged, match=f"at offset {BLOCK}"):
        blocks.check_range(0, BLOCK + 1)
