"""The index of imported keys, compared with a dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgserve.graph.transfer.seen_import_keys import SeenImportKeys


@given(st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=12))
def test_import_keys_return_earliest_line(blocks: list[list[int]]) -> None:
    index, first, line = SeenImportKeys(), dict[int, int](), 0
    for block in blocks:
        lines = list(range(line + 1, line + len(block) + 1))
        line += len(block)
        expected = {
            place: first[key] for place, key in enumerate(block) if first.setdefault(key, lines[place]) < lines[place]
        }
        assert index.add(block, lines) == expected
