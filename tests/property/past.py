"""A store with its history beside every state that its model ever had."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import pytest

from kgserve.errors import NotFound
from kgserve.model.answers import Edge
from kgserve.model.batch import NodePut, WriteBatch
from kgserve.model.plan import Report
from kgserve.model.requests import RevertRequest, TraverseRequest
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.model.times import format_time
from kgserve.model.walk import Walk
from kgserve.ops import history as history_ops
from kgserve.ops import render
from kgserve.ops.moments import Past
from kgserve.ops.nodes import get_node, list_nodes
from kgserve.ops.past_export import export_as_of
from kgserve.ops.traverse import traverse
from kgserve.settings import Settings
from kgserve.store.pool import StorePool
from kgserve.store.store import Store
from kgserve.views.historian import Historian
from tests.property.driver import NAME, PATIENCE, Driver
from tests.property.graph import Graph

Harm = Literal["gone", "cut", "foreign", "log gone"]
HARMS: tuple[Harm, ...] = get_args(Harm)


class PastDriver(Driver):
    """A driver that keeps the graph as it was after every commit, and the commits' times."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.past: list[Graph] = [Graph()]
        self.times: list[int] = [0]
        super().__init__(root, **options)

    # Writing

    def revert(self, source: random.Random, node_id: str) -> None:
        """Go back to one of the versions that a node has had, or fail for one that it has not."""
        rows = {row.version: row for graph in self.past if (row := graph.nodes.get(node_id)) is not None}
        version = source.choice([*rows, max(rows, default=0) + 1])
        request = RevertRequest(version=version)
        if version not in rows:
            with pytest.raises(NotFound):
                history_ops.revert(self.pool, self.historian, NAME, node_id, request)
            return
        row = rows[version]
        answer = history_ops.revert(self.pool, self.historian, NAME, node_id, request).result(PATIENCE)
        report: Future[Report] = Future()
        counts = {
            name: getattr(answer, name) for name in ("nodes_created", "nodes_updated", "nodes_unchanged", "sequence")
        }
        report.set_result(Report(**counts))
        put = NodePut(0, row.id, row.type, row.content, row.attributes)
        self._settle([WriteBatch(nodes=[put])], [report])

    def _settle(self, batches: Sequence[WriteBatch], futures: Sequence[Future[Report]]) -> list[Graph]:
        stages = super()._settle(batches, futures)
        times = {change.sequence: change.time for change in self.store.journal.read(len(self.past) - 1)}
        for stage in stages:
            if stage.sequence == len(self.past):
                self.past.append(stage)
                self.times.append(times[stage.sequence])
        return stages

    # Lives

    def crash(self, *under_way: WriteBatch, torn: int = 0) -> None:
        """See `Driver.crash`: what the copy has not seen never was."""
        super().crash(*under_way, torn=torn)
        del self.past[self.graph.sequence + 1 :], self.times[self.graph.sequence + 1 :]

    def restart_harmed(self, harm: Harm) -> None:
        """Close cleanly, do something to the history that leaves the journal to make it from, and open."""
        # A store that is closed at once may not have one yet.
        assert self.historian.of(self.store).wait(self.graph.sequence, PATIENCE)
        self._close()
        path = self._layout().root / "history.sqlite"
        match harm:
            case "gone":
                path.unlink()
            case "cut":
                with path.open("r+b") as file:
                    file.truncate(path.stat().st_size // 2)
            case "foreign":
                path.write_bytes(b"no database at all" * 1000)
            case "log gone":
                path.with_name("history.sqlite-wal").unlink(missing_ok=True)
        self._open()

    def _open(self) -> None:
        self.historian = Historian()
        self.pool = StorePool(Settings(data_dir=self._data, **self._options))
        self.pool.companions.append(self.historian)
        self.store: Store = self.pool.acquire(NAME, create=True)
        self._rebuilds = self.store.view.rebuilds

    def _close(self) -> None:
        super()._close()
        self.historian.close()

    # Looking

    def look_back(self, source: random.Random, walks: Iterable[Walk]) -> None:
        """At random moments: get, list, walk, export."""
        for wanted in walks:
            past, graph = self._moment(source)
            self._get_then(past, graph, wanted.start)
            self._list_then(past, graph, source.choice((None, "person", "place")), source.randrange(1, 20))
            self._walk_then(past, graph, wanted)
            self._export_then(past, graph)

    def _moment(self, source: random.Random) -> tuple[Past, Graph]:
        """A commit by its number, by its time, or by a time shortly before or after it."""
        sequence = source.randrange(len(self.past))
        if sequence == 0 or source.random() < 0.5:
            return Past(self.historian, str(sequence)), self.past[sequence]
        time = self.times[sequence] + source.choice((-1, 0, 0, 1))
        before = [number for number, at in enumerate(self.times) if at <= time]
        return Past(self.historian, format_time(time)), self.past[before[-1]]

    def _get_then(self, past: Past, graph: Graph, node_id: str) -> None:
        if node_id not in graph.nodes:
            with pytest.raises(NotFound):
                get_node(self.pool, NAME, node_id, past)
            return
        found = get_node(self.pool, NAME, node_id, past)
        assert found.node == render.node(graph.nodes[node_id])
        if not found.edges_truncated:
            assert _seen(found.outgoing) == _rows(e for e in graph.edges.values() if e.source == node_id)
            assert _seen(found.incoming) == _rows(e for e in graph.edges.values() if e.target == node_id)

    def _list_then(self, past: Past, graph: Graph, type_: str | None, pages: int) -> None:
        wanted = [row for _, row in sorted(graph.nodes.items()) if type_ in (None, row.type)]
        limit, cursor, found = min(1000, len(wanted) // pages + 1), None, []
        while True:
            page = list_nodes(self.pool, NAME, type_, limit, cursor, past)
            found += page.nodes
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == list(map(render.node, wanted))

    def _walk_then(self, past: Past, graph: Graph, wanted: Walk) -> None:
        request = TraverseRequest(
            start_id=wanted.start,
            depth=wanted.depth,
            direction=wanted.direction,
            relation_types=None if wanted.relation_types is None else sorted(wanted.relation_types),
            min_weight=wanted.min_weight,
            max_nodes=wanted.max_nodes,
            as_of=past.as_of,
        )
        found = traverse(self.pool, NAME, request, self.historian)
        depths, edges, more = graph.walk(wanted)
        assert found.nodes == [render.reached(graph.nodes[node_id], depth) for node_id, depth in depths.items()]
        assert _seen(found.edges) == _rows(graph.edges[key] for key in edges)
        assert (len(found.edges), found.truncated, found.sequence) == (len(edges), more, graph.sequence)

    def _export_then(self, past: Past, graph: Graph) -> None:
        with export_as_of(self.pool, NAME, past) as stream:
            lines = [msgspec.json.decode(line) for block in stream for line in block.splitlines()]
        nodes = {line["id"]: line for line in lines if line["kind"] == "node"}
        edges = {(line["from"], line["to"], line["relation_type"]): line for line in lines if line["kind"] == "edge"}
        assert len(lines) == len(nodes) + len(edges), "a row is exported twice"
        assert nodes == {row.id: _line(row) for row in graph.nodes.values()}
        held = {key: _timeless(e["weight"], e["attributes"], e["version"]) for key, e in edges.items()}
        assert held == _rows(graph.edges.values())


def _line(row: NodeRow) -> dict[str, Any]:
    return {
        "kind": "node",
        "id": row.id,
        "type": row.type,
        "content": row.content,
        "attributes": msgspec.json.decode(row.attributes),
        "version": row.version,
        "created_at": format_time(row.created_at),
        "updated_at": format_time(row.updated_at),
    }


def _rows(rows: Iterable[EdgeRow]) -> dict[EdgeKey, tuple[Any, ...]]:
    return {row.key: _timeless(row.weight, msgspec.json.decode(row.attributes), row.version) for row in rows}


def _seen(edges: Iterable[Edge]) -> dict[EdgeKey, tuple[Any, ...]]:
    # What `render.edge` makes of attributes keeps both times among them.
    return {(e.source, e.target, e.relation_type): _timeless(e.weight, e.attributes, e.version) for e in edges}


def _timeless(weight: float, attributes: dict[str, Any], version: int) -> tuple[Any, ...]:
    """All of an edge but updated_at: to move that makes no state."""
    return weight, {name: value for name, value in attributes.items() if name != "updated_at"}, version
