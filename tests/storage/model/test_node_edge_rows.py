from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.storage.model.node_edge_rows import (
    EdgeAttributeParts,
    EdgeRow,
    NodeRow,
    encode_edge_attributes,
    split_edge_times_from_attributes,
)
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.model.store_rows_digest import (
    digest_and_count_rows,
    format_store_rows_digest,
    parse_store_rows_digest,
    row_hash,
    rows_digest,
    update_digest_for_row_changes,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OWN = st.dictionaries(TEXT.filter(lambda key: key not in {"created_at", "updated_at"}), VALUES, max_size=4)
COUNTS = st.integers(0, (1 << 63) - 1)
NODES = st.builds(NodeRow, TEXT, TEXT, TEXT, TEXT, COUNTS, COUNTS, COUNTS, COUNTS)
EDGES = st.builds(EdgeRow, TEXT, TEXT, TEXT, st.floats(allow_nan=False), TEXT, COUNTS, COUNTS)


@given(OWN)
def test_edge_attributes_roundtrip(own: dict[str, Any]) -> None:
    text = msgspec.json.encode(own, order="deterministic").decode()
    times = "2025-07-15T12:00:00Z", "2026-01-01T00:00:00.000001+01:00"
    stored = encode_edge_attributes(*times, text)
    assert split_edge_times_from_attributes(stored) == EdgeAttributeParts(*times, text)
    assert msgspec.json.decode(stored) == {"created_at": times[0], "updated_at": times[1], **own}


@given(st.lists(st.one_of(NODES, EDGES), max_size=12), st.randoms(use_true_random=False))
def test_digest_is_order_independent_and_incremental(rows: list[NodeRow | EdgeRow], order: Any) -> None:
    whole = rows_digest([msgspec.structs.astuple(row) for row in rows])
    shuffled = list(rows)
    order.shuffle(shuffled)
    assert rows_digest([msgspec.structs.astuple(row) for row in shuffled]) == whole
    nodes = [row for row in shuffled if isinstance(row, NodeRow)]
    edges = [row for row in shuffled if isinstance(row, EdgeRow)]
    assert digest_and_count_rows(nodes, edges) == (whole, len(nodes), len(edges))
    digest = 0
    for row in shuffled:
        digest = update_digest_for_row_changes(digest, [row], ())
    assert digest == whole
    half = shuffled[: len(rows) // 2]
    assert update_digest_for_row_changes(whole, (), half) == rows_digest(
        [msgspec.structs.astuple(row) for row in shuffled[len(half) :]]
    )
    assert parse_store_rows_digest(format_store_rows_digest(whole)) == whole
    assert len(format_store_rows_digest(whole)) == 32


@given(NODES, st.integers(0, 7))
def test_every_field_changes_the_hash(row: NodeRow, index: int) -> None:
    values = list(msgspec.structs.astuple(row))
    values[index] = (
        values[index] + "x" if isinstance(values[index], str) else values[index] // 2 + 1 + (values[index] == 1)
    )
    changed = NodeRow(*values)
    assert changed == row or row_hash(changed) != row_hash(row)


@pytest.mark.parametrize("name", ["a", "0", "demo", "A-b_C", "a" * 64, "con1", "lpt0"])
def test_valid_store_names(name: str) -> None:
    assert check_store_name(name) == name
