"""Exporting a store as it is or as it was, and making a new store of that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Self

import msgspec

from kgserve.errors import Conflict
from kgserve.history.history import History, State
from kgserve.model.answers import RestoreAnswer
from kgserve.model.requests import RestoreRequest
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow, RowTuple
from kgserve.ops.graph import Graph
from kgserve.ops.importing import Importer
from kgserve.ops.moments import Held, Past, valid_moment
from kgserve.rows.encoding import ExportedNode, edge_line, exported_edge, exported_node, node_line
from kgserve.rows.snapshot import Rows
from kgserve.store.accesses import Accesses
from kgserve.views.history import HistoryFollower

_encode = msgspec.json.Encoder().encode_lines


class ExportStream:
    """All nodes, then all edges, of one state, as blocks of NDJSON lines; a context manager."""

    def __init__(self, rows: Rows, accesses: Accesses, release: Callable[[], None], valid_at: int | None) -> None:
        self._rows = rows
        self._accesses = accesses
        self._valid_at = valid_at
        self._release = release
        self.sequence = rows.at

    def __iter__(self) -> Iterator[bytes]:
        rows, moment = self._rows, self._valid_at
        for numbers in rows.node_slices():
            kept = numbers if moment is None else numbers[rows.nodes_hold(numbers, moment)]
            if len(kept):
                yield _encode(self._told([exported_node(text) for text in rows.node_texts(kept, 0)]))
        for found in rows.edge_slices():
            held = found if moment is None else rows.holding(found, moment)
            if len(held):
                yield _encode([exported_edge(text) for text in rows.edge_texts(held)])

    def _told(self, lines: list[ExportedNode]) -> list[ExportedNode]:
        """The lines, those of memories with what reading has made of them."""
        memories = {line.id: line for line in lines if line.confidence is not msgspec.UNSET}
        for node_id, access in self._accesses.of(memories).items():
            memories[node_id].tell(access)
        return lines

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
        leased.accesses.settle()
        rows = stack.enter_context(leased.reading())
        return ExportStream(rows, leased.accesses, stack.pop_all().close, moment)


def encode_nodes(rows: Iterable[RowTuple]) -> bytes:
    """Nodes, as tuples in the order of `NodeRow`, as lines."""
    return _encode([node_line(NodeRow(*row)) for row in rows])


def encode_edges(rows: Iterable[RowTuple]) -> bytes:
    """Edges, as tuples in the order of `EdgeRow`, as lines."""
    return _encode([edge_line(EdgeRow(*row)) for row in rows])


ROWS_AT_ONCE = 5_000


class PastStream:
    """All nodes, then all edges, as of one commit, as blocks of NDJSON lines; a context manager."""

    def __init__(
        self, follower: HistoryFollower, sequence: int, release: Callable[[], None], valid_at: int | None
    ) -> None:
        self._follower = follower
        self._valid_at = valid_at
        self._release = release
        self.sequence = sequence

    def __iter__(self) -> Iterator[bytes]:
        held = None if self._valid_at is None else Held(self._valid_at)
        after = ""
        while states := self._follower.look(_nodes(self.sequence, after)):
            rows = (msgspec.structs.astuple(state.row) for state in states)
            if block := encode_nodes(held.nodes(rows) if held else rows):
                yield block
            after = states[-1].row.id
        key = ("", "", "")
        while found := self._follower.look(_edges(self.sequence, key)):
            rows = (msgspec.structs.astuple(state.row) for state in found)
            if block := encode_edges(held.edges(rows) if held else rows):
                yield block
            key = found[-1].row.key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the store back."""
        release, self._release = self._release, lambda: None
        release()


Exported = ExportStream | PastStream


def exported(graph: Graph, as_of: int | str | None, valid_at: str | None) -> Exported:
    """A store as it is or as it was, to stream; see `export` and `export_as_of`."""
    past = graph.past(as_of)
    return export(graph, valid_at) if past is None else export_as_of(graph, past, valid_at)


def export_as_of(graph: Graph, past: Past, valid_at: str | None = None) -> PastStream:
    """A store as it was, to stream; it is leased until it is closed. Raises NotFound, and what `Past.of` raises.

    With ``valid_at`` (RFC 3339) only what was true in the world then.
    """
    moment = valid_moment(valid_at)
    with ExitStack() as stack:
        follower, at = past.of(stack.enter_context(graph.lease()))
        return PastStream(follower, at, stack.pop_all().close, moment)


def restore(graph: Graph, request: RestoreRequest) -> RestoreAnswer:
    """Makes a store that must not be there yet, with versions and times kept. The store itself stays as it is.

    Raises Conflict when it exists, Gone when that is no longer known.
    """
    with export_as_of(graph, Past(graph.graphs.historian, request.as_of)) as stream:
        if not graph.pool.create(request.into):
            raise Conflict(f"store {request.into!r} exists already; restore into a new one")
        importer = Importer(graph.graphs.graph(request.into))
        try:
            for block in stream:
                if importer.feed(block):
                    importer.flush()
            done = importer.finish()
        except BaseException:
            importer.abort()
            graph.pool.drop(request.into)
            raise
    return RestoreAnswer(
        name=request.into,
        nodes=done.nodes_created,
        edges=done.edges_created,
        from_sequence=stream.sequence,
        sequence=done.sequence,
    )


def _nodes(at: int, after: str) -> Callable[[History], list[State[NodeRow]]]:
    return lambda history: history.nodes_at(at, None, after, ROWS_AT_ONCE)


def _edges(at: int, after: EdgeKey) -> Callable[[History], list[State[EdgeRow]]]:
    return lambda history: history.edges_at(at, after, ROWS_AT_ONCE)
