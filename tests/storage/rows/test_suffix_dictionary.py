"""Common suffixes of rows are stored once, through all later writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgserve.storage.model.change_set import ChangeSet, StoreState
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow, encode_edge_attributes
from kgserve.storage.rows.base_segment_file_format import ROWS_BLOCK_BYTES
from kgserve.storage.rows.base_segment_merge import build_base_segment_from_rows, write_merged_row_base_segment
from kgserve.storage.rows.current_rows import CurrentRowsProjection, collect_row_changes_since_base
from kgserve.storage.rows.row_json_encoder import encode_edge_as_json, encode_node_as_unclosed_json
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.rows.suffix_dictionary import (
    MAX_SUFFIX_BYTES,
    MAX_SUFFIXES,
    MIN_SUFFIX_ROWS,
    SUFFIX_SAMPLE_ROWS,
    RowSuffixDictionary,
)

STAMP = "2025-07-15T12:00:00.000000Z"
NESTED = '{"attributes":{"version":1},"k":",\\"version\\":"}'


def node(number: int, sequence: int = 1, attributes: str = NESTED, size: int = 30) -> NodeRow:
    return NodeRow(f"n{number:05}", "t", f'{number} "attributes":'.ljust(size, "x"), attributes, 1, sequence, 1, 1)


def edge(number: int, weight: float = 1.0, sequence: int = 1) -> EdgeRow:
    attributes = encode_edge_attributes(STAMP, STAMP, NESTED)
    return EdgeRow(f"n{number:05}", "n00000", "to", weight, attributes, 1, sequence)


def written(
    view: CurrentRowsProjection, sequence: int, nodes: list[NodeRow], edges: list[EdgeRow], *, created: bool = True
) -> None:
    how = "created" if created else "updated"
    rows: dict[str, Any] = {f"nodes_{how}": nodes, f"edges_{how}": edges}
    counts = {"nodes": len(nodes), "edges": len(edges)}
    view.apply([ChangeSet(sequence=sequence, time=sequence, digest=bytes(16), **counts, **rows)])


def check(rows: RowsSnapshot, nodes: list[NodeRow], edges: list[EdgeRow]) -> None:
    """Check that texts are complete when read singly, in batches and all at once."""
    base = rows.base
    wanted = [[encode_node_as_unclosed_json(row) for row in nodes], [encode_edge_as_json(row) for row in edges]]
    assert [base.node(at) for at in range(base.nodes)] == wanted[0]
    assert [base.edge(at) for at in range(base.edges)] == wanted[1]
    assert base.some_node_texts(range(base.nodes)) == base.node_texts(np.arange(base.nodes)) == wanted[0]
    assert base.some_edge_texts(range(base.edges)) == base.edge_texts(np.arange(base.edges)) == wanted[1]
    for kind, texts in zip(("node", "edge"), wanted, strict=True):
        assert base.sizes(kind).tolist() == [*map(len, texts)]


def stored(rows: RowsSnapshot) -> int:
    base = rows.base
    return int(base.node_size.sum(dtype=np.int64) + base.edge_size.sum(dtype=np.int64))


def test_common_suffixes_are_stored_once_across_merges(tmp_path: Path) -> None:
    nodes, edges = [node(number) for number in range(300)], [edge(number) for number in range(300)]
    view = CurrentRowsProjection(tmp_path)
    written(view, 1, nodes, edges)
    view.fold()
    with view.reading() as rows:
        check(rows, nodes, edges)
        assert len(rows.base.endings) == 3
        whole = sum(map(len, [*map(encode_node_as_unclosed_json, nodes), *map(encode_edge_as_json, edges)]))
        assert stored(rows) < whole / 2
    # Rare suffixes are not added, suffixes of the base are reused, and unused ones are removed.
    for number in range(MIN_SUFFIX_ROWS - 1):
        nodes[number], edges[number] = node(number, 2), edge(number, 2.5, 2)
    written(view, 2, nodes[: MIN_SUFFIX_ROWS - 1], edges[: MIN_SUFFIX_ROWS - 1], created=False)
    view.fold()
    with view.reading() as rows:
        check(rows, nodes, edges)
        assert len(rows.base.endings) == 3
    nodes = [node(number, 3) for number in range(300)]
    written(view, 3, nodes, [], created=False)
    view.fold()
    with view.reading() as rows:
        check(rows, nodes, edges)
        assert len(rows.base.endings) == 3
        assert not any(b'"sequence":1,' in ending for ending in rows.base.endings)
    with CurrentRowsProjection(tmp_path).reading() as rows:
        check(rows, nodes, edges)


def test_copying_keeps_suffixes(tmp_path: Path) -> None:
    nodes, edges = [node(number) for number in range(50)], [edge(number) for number in range(50)]
    view = CurrentRowsProjection(tmp_path)
    written(view, 1, nodes, edges)
    view.fold()
    written(view, 2, [node(0, 2)], [], created=False)
    view.fold(copying=True)
    with view.reading() as rows:
        check(rows, [node(0, 2), *nodes[1:]], edges)
        write_merged_row_base_segment(
            rows.base, collect_row_changes_since_base(rows), rows.state, tmp_path / "again.rows", copying=True
        )


@pytest.mark.parametrize("size", [MAX_SUFFIX_BYTES + 1, 1 << 16])
def test_long_suffixes_are_not_shared(tmp_path: Path, size: int) -> None:
    """A later, shorter suffix of the same row may be shared."""
    nodes = [node(number, attributes='{"k":"' + "x" * size + '"}') for number in range(20)]
    view = CurrentRowsProjection(tmp_path)
    written(view, 1, nodes, [])
    view.fold()
    with view.reading() as rows:
        check(rows, nodes, [])
        assert 0 < max(map(len, rows.base.endings)) <= MAX_SUFFIX_BYTES


def test_number_of_suffixes_is_bounded() -> None:
    texts = [
        b'{"id":"%d","attributes":{"k":%d}' % (at, at // MIN_SUFFIX_ROWS)
        for at in range(MIN_SUFFIX_ROWS * (MAX_SUFFIXES + 500))
    ]
    whole, endings = [*texts], RowSuffixDictionary([b""], [])
    numbers = endings.split_suffixes("node", texts)
    assert len(endings.texts) == MAX_SUFFIXES
    assert [text + endings.texts[number] for text, number in zip(texts, numbers, strict=True)] == whole
    assert numbers[: SUFFIX_SAMPLE_ROWS // 2].count(0) == 0
    assert numbers[-MIN_SUFFIX_ROWS * 400 :].count(0) == MIN_SUFFIX_ROWS * 400


def test_columns_use_the_narrowest_type(tmp_path: Path) -> None:
    """A column of equal values stores one value, and a larger number widens it again."""
    edges = [edge(number) for number in range(300)]
    view = CurrentRowsProjection(tmp_path)
    written(view, 1, [node(number, size=30 + number % 5) for number in range(300)], edges)
    view.fold()
    with view.reading() as rows:
        base = rows.base
        assert (base.source.itemsize, base.node_size.itemsize, base.weight.strides) == (2, 1, (0,))
        assert base.weights[299] == 1.0
        assert base.weight[[0, 7, 299]].tolist() == [1.0] * 3
    edges[7] = edge(7, 0.5, 2)
    long = node(7, 2, size=70_000)
    written(view, 2, [long], [edges[7]], created=False)
    view.fold()
    with view.reading() as rows:
        base = rows.base
        assert (base.node_size.itemsize, base.weight.strides) == (4, (8,))
        assert base.weight[:8].tolist() == [1.0] * 7 + [0.5]
        assert rows.node("n00007") == long
        assert [*rows.all_edges()] == edges


def test_base_without_rows_may_end_at_a_block_boundary(tmp_path: Path) -> None:
    offsets = set[int]()
    for count in range(150, 200):
        folder = tmp_path / str(count)
        folder.mkdir()
        nodes = [
            NodeRow(f"n{number:05}", "t", "", f'{{"a":{number}}}', 1, 1, number, number) for number in range(count)
        ]
        base = build_base_segment_from_rows(folder, nodes, [], StoreState(1, 1, 1, count, 0))
        assert (base.endings, base.nodes) == ([b""], count)
        offsets.add(base._directory.sections["endings"].offset % ROWS_BLOCK_BYTES)
    assert 0 in offsets
