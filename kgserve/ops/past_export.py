"""Exporting a store as it was, and making a new store of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Self

import msgspec

from kgserve.errors import Conflict
from kgserve.history.history import History, State
from kgserve.model.answers import RestoreAnswer
from kgserve.model.requests import RestoreRequest
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.ops.exporting import ExportStream, encode_edges, encode_nodes, export
from kgserve.ops.graph import Graph
from kgserve.ops.importing import Importer
from kgserve.ops.moments import Past
from kgserve.ops.validity import Held, valid_moment
from kgserve.views.history import HistoryFollower

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
