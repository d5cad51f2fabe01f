"""Making a base out of rows alone: an empty one, and one of all rows in slices that are folded one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from kgserve.model.change import StoreState
from kgserve.model.rows import EdgeRow, NodeRow
from kgserve.rows.base import Base
from kgserve.rows.file import RowsFile
from kgserve.rows.fold import Changes, EdgePut, NodePut, fold
from kgserve.rows.format import COLUMNS, OFFSETS, TEXTS

SLICE_ROWS = 500_000
SLICE_BYTES = 256 << 20
"""Rows that are put together at once when a base is made of all of them."""


def write_empty(path: Path) -> None:
    """Write a base without rows, as of before the first commit. Raises OSError."""
    with path.open("wb", buffering=0) as file:
        writer = RowsFile(file)
        for name in COLUMNS:
            writer.column(name, np.zeros(int(name in OFFSETS)))
        for name in TEXTS:
            with writer.text(name):
                pass
        writer.finish(StoreState())


def build(folder: Path, nodes: Iterable[NodeRow], edges: Iterable[EdgeRow], state: StoreState) -> Base:
    """A base of rows in any order, made in slices in a folder of its own. Raises OSError."""
    path = folder / "empty"
    write_empty(path)
    base = Base(path)
    for number, rows in enumerate(chain(_slices(nodes), _slices(edges))):
        change = Changes([], [], [], [])
        change.nodes = [NodePut(row) for row in rows if isinstance(row, NodeRow)]
        change.edges = [EdgePut(row) for row in rows if isinstance(row, EdgeRow)]
        path = folder / str(number)
        fold(base, change, state, path)
        base.path.unlink()
        base = Base(path)
    if base.state.sequence != state.sequence:
        fold(base, Changes([], [], [], []), state, folder / "none")
        base = Base(folder / "none")
    return base


def _slices(rows: Iterable[NodeRow] | Iterable[EdgeRow]) -> Iterator[list[NodeRow | EdgeRow]]:
    found: list[NodeRow | EdgeRow] = []
    size = 0
    for row in rows:
        found.append(row)
        size += len(row.attributes) + (len(row.content) if isinstance(row, NodeRow) else 0)
        if len(found) >= SLICE_ROWS or size >= SLICE_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found
