"""Exporting a store as it is or as it was, and making a new store of that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Self

import msgspec

from kgserve.errors import Conflict
from kgserve.history.history import History, State
from kgserve.links.links import LinkReader
from kgserve.model.answers import RestoreAnswer
from kgserve.model.requests import RestoreRequest
from kgserve.model.rows import EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow, RowTuple
from kgserve.ops.graph import Graph
from kgserve.ops.importing import Importer
from kgserve.ops.moments import Held, Past, valid_moment, whole_history
from kgserve.rows.encoding import (
    ExportedHead,
    ExportedNode,
    edge_line,
    exported_edge,
    exported_node,
    link_line,
    node_line,
)
from kgserve.rows.snapshot import Rows
from kgserve.store.accesses import Accesses
from kgserve.store.store import Store
from kgserve.views.history import HistoryFollower

_encode = msgspec.json.Encoder().encode_lines


class Beside:
    """The settings of a store as a line, and the versions beside its nodes, each in a line before that of its node."""

    def __init__(self, graph: Graph, store: Store) -> None:
        self._graph = graph
        self._store = store

    def settings(self) -> Iterator[bytes]:
        """The line, where anything is not as in a new store."""
        chosen, usual = map(msgspec.to_builtins, (self._store.description.settings, self._graph.pool.usual))
        differing = _differing(chosen, usual)
        if "memory" in differing:
            differing["memory"] = _differing(chosen["memory"], usual["memory"])
        if differing:
            yield _encode([{"kind": "store", **differing}])

    def among(self, lines: list[ExportedNode]) -> list[ExportedNode]:
        """Lines of nodes with those of the versions beside them that are known."""
        if all(line.conflicts is msgspec.UNSET for line in lines):
            return lines
        return [each for line in lines for each in (*self._heads(line), line)]

    def _heads(self, line: ExportedNode) -> list[ExportedNode]:
        named = () if line.conflicts is msgspec.UNSET else sorted(line.conflicts)
        rows = [row for version in named if (row := self._version(line.id, version)) is not None]
        lines = [node_line(row, ExportedHead) for row in rows]
        for place, each in enumerate((*lines, line)):
            each.conflicts = [row.version for row in rows[:place]] or msgspec.UNSET
        return lines

    def _version(self, node_id: str, version: int) -> NodeRow | None:
        try:
            follower = whole_history(self._graph.graphs.historian, self._store)
        except Conflict:  # no history is kept, so nobody knows
            return None
        state = follower.look(lambda history: history.node_version(node_id, version))
        return None if state is None else state.row


def _differing(chosen: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in chosen.items() if value != usual[name]}


class _Leased:
    """A store that is held until this is closed; a context manager."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the store back."""
        release, self._release = self._release, lambda: None
        release()


class ExportStream(_Leased):
    """Settings, all nodes, all edges, all links, of one state, as blocks of NDJSON lines; a context manager."""

    def __init__(
        self,
        beside: Beside,
        rows: Rows,
        links: LinkReader | None,
        accesses: Accesses,
        release: Callable[[], None],
        valid_at: int | None,
    ) -> None:
        self._beside = beside
        self._rows = rows
        self._links = links
        self._accesses = accesses
        self._valid_at = valid_at
        super().__init__(release)
        self.sequence = rows.at

    def __iter__(self) -> Iterator[bytes]:
        rows, moment = self._rows, self._valid_at
        yield from self._beside.settings()
        for numbers in rows.node_slices():
            kept = numbers if moment is None else numbers[rows.nodes_hold(numbers, moment)]
            if len(kept):
                lines = self._told([exported_node(text) for text in rows.node_texts(kept, 0)])
                yield _encode(self._beside.among(lines))
        for found in rows.edge_slices():
            held = found if moment is None else rows.holding(found, moment)
            if len(held):
                yield _encode([exported_edge(text) for text in rows.edge_texts(held)])
        for links in self._links.all() if self._links else ():
            if kept := [row for row in links if moment is None or self._holds(row.edge, moment)]:
                yield _encode(map(link_line, kept))

    def _holds(self, edge: EdgeRow, moment: int) -> bool:
        return edge.holds_at(moment) and self._rows.node_holds(self._rows.number(edge.source), moment)

    def _told(self, lines: list[ExportedNode]) -> list[ExportedNode]:
        """The lines, those of memories with what reading has made of them."""
        memories = {line.id: line for line in lines if line.confidence is not msgspec.UNSET}
        for node_id, access in self._accesses.of(memories).items():
            memories[node_id].tell(access)
        return lines


def export(graph: Graph, valid_at: str | None = None) -> ExportStream:
    """The rows of a store as they are, to be streamed; the store is leased until that is closed. Raises NotFound.

    With ``valid_at`` (RFC 3339) only what was true in the world then.
    """
    moment = valid_moment(valid_at)
    with contextlib.ExitStack() as stack:
        leased = stack.enter_context(graph.lease())
        leased.accesses.settle()
        rows, links = stack.enter_context(leased.reading_links())
        return ExportStream(Beside(graph, leased), rows, links, leased.accesses, stack.pop_all().close, moment)


def encode_edges(rows: Iterable[RowTuple]) -> bytes:
    """Edges, as tuples in the order of `EdgeRow`, as lines."""
    return _encode([edge_line(EdgeRow(*row)) for row in rows])


ROWS_AT_ONCE = 5_000


class PastStream(_Leased):
    """As `ExportStream`, as of one commit; the settings are those of now."""

    def __init__(
        self,
        beside: Beside,
        follower: HistoryFollower,
        sequence: int,
        release: Callable[[], None],
        valid_at: int | None,
    ) -> None:
        self._beside = beside
        self._follower = follower
        self._valid_at = valid_at
        super().__init__(release)
        self.sequence = sequence

    def __iter__(self) -> Iterator[bytes]:
        held = None if self._valid_at is None else Held(self._valid_at)
        yield from self._beside.settings()
        after = ""
        while states := self._follower.look(_nodes(self.sequence, after)):
            rows = (msgspec.structs.astuple(state.row) for state in states)
            lines = [node_line(NodeRow(*row)) for row in (held.nodes(rows) if held else rows)]
            if lines:
                yield _encode(self._beside.among(lines))
            after = states[-1].row.id
        key = ("", "", "")
        while found := self._follower.look(_edges(self.sequence, key)):
            rows = (msgspec.structs.astuple(state.row) for state in found)
            if block := encode_edges(held.edges(rows) if held else rows):
                yield block
            key = found[-1].row.key
        link = LinkKey("", ("", "", ""))
        while links := self._follower.look(_links(self.sequence, link)):
            rows_of = [state.row for state in links]
            if kept := [row for row in rows_of if held is None or held.link(row)]:
                yield _encode(map(link_line, kept))
            link = rows_of[-1].key


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
        leased = stack.enter_context(graph.lease())
        follower, at = past.of(leased)
        return PastStream(Beside(graph, leased), follower, at, stack.pop_all().close, moment)


def restore(graph: Graph, request: RestoreRequest) -> RestoreAnswer:
    """Makes a store that must not be there yet, with versions, times, open conflicts and the settings of now.

    The store itself stays as it is.

    Raises Conflict when it exists, Gone when that is no longer known.
    """
    with export_as_of(graph, Past(graph.graphs.historian, request.as_of)) as stream:
        if not graph.pool.create(request.into):
            raise Conflict(f"store {request.into!r} exists already; restore into a new one")
        importer = Importer(graph.graphs.graph(request.into), as_they_are=True)
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


def _links(at: int, after: LinkKey) -> Callable[[History], list[State[LinkRow]]]:
    return lambda history: history.links_at(at, after, ROWS_AT_ONCE)


def _edges(at: int, after: EdgeKey) -> Callable[[History], list[State[EdgeRow]]]:
    return lambda history: history.edges_at(at, after, ROWS_AT_ONCE)
