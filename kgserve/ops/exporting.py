"""Exporting a store as NDJSON from one snapshot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import msgspec

from kgserve.model.rows import EdgeRow, NodeRow, RowTuple
from kgserve.ops.graph import Graph
from kgserve.ops.validity import valid_moment
from kgserve.rows.encoding import edge_line, exported_edge, exported_node, node_line
from kgserve.rows.snapshot import Rows

_encode = msgspec.json.Encoder().encode_lines


class ExportStream:
    """All nodes, then all edges, of one state, as blocks of NDJSON lines; a context manager."""

    def __init__(self, rows: Rows, release: Callable[[], None], valid_at: int | None) -> None:
        self._rows = rows
        self._valid_at = valid_at
        self._release = release
        self.sequence = rows.at

    def __iter__(self) -> Iterator[bytes]:
        rows, moment = self._rows, self._valid_at
        for numbers in rows.node_slices():
            kept = numbers if moment is None else numbers[rows.nodes_hold(numbers, moment)]
            if len(kept):
                yield _encode([exported_node(text) for text in rows.node_texts(kept, 0)])
        for found in rows.edge_slices():
            held = found if moment is None else rows.holding(found, moment)
            if len(held):
                yield _encode([exported_edge(text) for text in rows.edge_texts(held)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the rows and the store back."""
        release, self._release = self._release, lambda: None
        release()


def export(graph: Graph, valid_at: str | None = None) -> ExportStream:
    """The rows of a store as they are, to be streamed; the store is leased until that is closed. Raises NotFound.

    With ``valid_at`` (RFC 3339) only what was true in the world then.
    """
    moment = valid_moment(valid_at)
    with contextlib.ExitStack() as stack:
        leased = stack.enter_context(graph.lease())
        rows = stack.enter_context(leased.reading())
        return ExportStream(rows, stack.pop_all().close, moment)


def encode_nodes(rows: Iterable[RowTuple]) -> bytes:
    """Nodes, as tuples in the order of `NodeRow`, as lines."""
    return _encode([node_line(NodeRow(*row)) for row in rows])


def encode_edges(rows: Iterable[RowTuple]) -> bytes:
    """Edges, as tuples in the order of `EdgeRow`, as lines."""
    return _encode([edge_line(EdgeRow(*row)) for row in rows])
