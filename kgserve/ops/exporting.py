"""Exporting a store as NDJSON from one snapshot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import msgspec

from kgserve.model.columns import EDGE_FIELDS, NODE_FIELDS, RowTuple
from kgserve.model.rows import EdgeExtras, NodeExtras
from kgserve.model.times import format_time
from kgserve.ops.graph import Graph
from kgserve.ops.validity import valid_moment
from kgserve.rows.encoding import EdgeFields, NodeFields, edge_fields, node_fields
from kgserve.rows.snapshot import Rows

_Text = str | None


class _NodeLine(msgspec.Struct, tag="node", tag_field="kind", omit_defaults=True):
    """Like `NodeLine`, with attributes that are JSON already."""

    id: str
    type: str
    content: str
    attributes: msgspec.Raw
    version: int
    created_at: str
    updated_at: str
    summary: str = ""
    tags: tuple[str, ...] = ()
    freshness_at: _Text = None
    created_by: str = ""
    valid_from: _Text = None
    valid_to: _Text = None


class _EdgeLine(msgspec.Struct, tag="edge", tag_field="kind", omit_defaults=True):
    """Like `EdgeLine`, with attributes that are JSON already."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float
    attributes: msgspec.Raw
    version: int
    ordinal: int | None = None
    created_by: str = ""
    valid_from: _Text = None
    valid_to: _Text = None


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
                yield _encode([_line_of_node(node) for node in map(node_fields, rows.node_texts(kept, 0))])
        for found in rows.edge_slices():
            held = found if moment is None else rows.holding(found, moment)
            if len(held):
                yield _encode([_line_of_edge(edge) for edge in map(edge_fields, rows.edge_texts(held))])

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


def _line_of_node(node: NodeFields) -> _NodeLine:
    line = _NodeLine(node.id, node.type, node.content, node.attributes, node.version, node.created_at, node.updated_at)
    line.summary, line.tags, line.created_by = node.summary or "", node.tags or (), node.created_by or ""
    line.freshness_at, line.valid_from, line.valid_to = (
        node.freshness_at or None,
        node.valid_from or None,
        node.valid_to or None,
    )
    return line


def _line_of_edge(edge: EdgeFields) -> _EdgeLine:
    line = _EdgeLine(edge.source, edge.target, edge.relation_type, edge.weight, edge.attributes, edge.version)
    line.ordinal = edge.ordinal if isinstance(edge.ordinal, int) else None
    line.created_by = edge.created_by or ""
    line.valid_from, line.valid_to = edge.valid_from or None, edge.valid_to or None
    return line


def encode_nodes(rows: Iterable[RowTuple]) -> bytes:
    """Nodes, as tuples in the order of `NodeRow`, as lines."""
    return _encode([_node_line(row) for row in rows])


def encode_edges(rows: Iterable[RowTuple]) -> bytes:
    """Edges, as tuples in the order of `EdgeRow`, as lines."""
    return _encode([_edge_line(row) for row in rows])


def _node_line(row: RowTuple) -> _NodeLine:
    node_id, node_type, content, attributes, version, _sequence, created, updated = row[:NODE_FIELDS]
    line = _NodeLine(
        node_id, node_type, content, msgspec.Raw(attributes), version, format_time(created), format_time(updated)
    )
    extras: NodeExtras | None = row[NODE_FIELDS] if len(row) > NODE_FIELDS else None
    if extras is not None:
        line.summary, line.tags, line.created_by = extras.summary, extras.tags, extras.created_by
        line.freshness_at = _time(extras.freshness_at)
        line.valid_from, line.valid_to = _time(extras.valid_from), _time(extras.valid_to)
    return line


def _edge_line(row: RowTuple) -> _EdgeLine:
    source, target, relation_type, weight, attributes, version, _sequence = row[:EDGE_FIELDS]
    line = _EdgeLine(source, target, relation_type, weight, msgspec.Raw(attributes), version)
    extras: EdgeExtras | None = row[EDGE_FIELDS] if len(row) > EDGE_FIELDS else None
    if extras is not None:
        line.ordinal, line.created_by = extras.ordinal, extras.created_by
        line.valid_from, line.valid_to = _time(extras.valid_from), _time(extras.valid_to)
    return line


def _time(microseconds: int | None) -> str | None:
    return None if microseconds is None else format_time(microseconds)
