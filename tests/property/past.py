"""A store with its history, and every state that its model ever had."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import msgspec
import pytest
from typing_extensions import override

from kgserve.errors import InvalidInput, NotFound
from kgserve.graph import history_queries as history_ops
from kgserve.graph import row_to_api_conversion
from kgserve.graph.answers import Edge, Node, NodePage
from kgserve.graph.as_of_graph import PastMoment
from kgserve.graph.compat.versioned_nodes_api import (
    RetireEdgeRequest,
    RetireNodeOrEdgeAnswer,
    RetireVersionedNodeRequest,
)
from kgserve.graph.mutations import end_edge_valid_time, end_node_valid_time
from kgserve.graph.request_bodies import RevertNodeBody, TraverseRequest
from kgserve.graph.transfer.import_export import open_store_export_stream
from kgserve.graph.url_parameters import NodeHistoryRequest, NodeListParameters, RetireNodeRequest, RevertNodeRequest
from kgserve.platform.settings import Settings
from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_rfc3339_timestamp
from kgserve.projections.history_follower import HistoryWorker
from kgserve.storage.model.breadth_first_traversal import TraversalRequest
from kgserve.storage.model.node_edge_fields import NODE, TIMESTAMP_TYPE, EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch, get_conflicting_node_head_versions
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.engines import ENGINE
from tests.graphs import graph_of, node_of, nodes_of, walked
from tests.property.batches import Batches
from tests.property.driver import CATCH_UP_TIMEOUT_SECONDS, NAME, Driver, listed
from tests.property.graph import Graph, edge_extras_of, extras_of

N = TypeVar("N", bound=Node)
Harm = Literal["gone", "cut", "foreign", "log gone"]
HARMS: tuple[Harm, ...] = get_args(Harm)


class PastDriver(Driver):
    """A driver that keeps the graph after every commit, and the commits' times."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.past: list[Graph] = [Graph()]
        self.times: list[int] = [0]
        self.oldest = 0
        super().__init__(root, **options)

    # Writes

    def revert(self, source: random.Random, node_id: str) -> None:
        """Revert a node to one of its versions, or fail for a version that it never had."""
        rows = self._versions(node_id, self.oldest)
        version = source.choice([*rows, max(self._versions(node_id, 0), default=0) + 1])
        request = RevertNodeBody(version=version)
        if version not in rows:
            with pytest.raises(NotFound):
                history_ops.revert_node(
                    graph_of(self.pool, NAME, historian=self.historian),
                    RevertNodeRequest(node_id=node_id, version=request.version),
                )
            return
        row = rows[version]
        was = {name: value for name, value in extras_of(row).items() if name not in ("created_by", "conflicts")}
        put = NodeUpsert(0, row.id, row.type, row.content, row.attributes, extras=NodeExtrasUpsert(**was))
        answer = history_ops.revert_node(
            graph_of(self.pool, NAME, historian=self.historian),
            RevertNodeRequest(node_id=node_id, version=request.version),
        )
        counts = ("nodes_created", "nodes_updated", "nodes_unchanged", "sequence")
        told = _report(answer, lambda given: WriteReport(**{name: getattr(given, name) for name in counts}))
        self._settle([WriteBatch(nodes=[put])], [told])

    def _versions(self, node_id: str, since: int) -> dict[int, NodeRow]:
        """Return a node's states as of ``since`` or later by version."""
        states = (graph.nodes.get(node_id) for graph in self.past[since:])
        return {row.version: row for row in states if row is not None}

    def prune(self, source: random.Random) -> None:
        """Delete states that ended before a random commit."""
        self.oldest = source.randrange(self.oldest, len(self.past))
        follower = self.historian.of(self.store)
        assert follower.wait(self.graph.sequence, CATCH_UP_TIMEOUT_SECONDS)
        follower.prune(self.oldest)

    def look_at_heads(self) -> None:
        """Check that every conflicting head that a node names exists, whatever was pruned."""
        assert self.historian.of(self.store).wait(self.graph.sequence, CATCH_UP_TIMEOUT_SECONDS)
        graph = graph_of(self.pool, NAME, historian=self.historian)
        for row in self.graph.nodes.values():
            for version in get_conflicting_node_head_versions(row):
                found = history_ops.get_node_version(graph, row.id, version).node
                was = row_to_api_conversion.build_api_node_from_row(self._versions(row.id, 0)[version])
                assert found == msgspec.structs.replace(was, is_current=True)
        for node_id in {node_id for node_id, version, _ in self.graph.said if self._is_present(node_id, version)}:
            states = history_ops.get_node_history(graph, NodeHistoryRequest(node_id=node_id, limit=1)).states
            assert {
                (node_id, states[0].node.version, each.created_by): each.sequence for each in states[0].also_by or ()
            } == {key: at for key, at in self.graph.said.items() if self._is_present(*key[:2]) and key[0] == node_id}

    def _is_present(self, node_id: str, version: int) -> bool:
        return node_id in self.graph.nodes and self.graph.nodes[node_id].version == version

    def retire(self, source: Batches, node_id: str) -> None:
        """Retire a node at a date or now."""
        date, author = source.moment(), source.random.choice(("", "eve"))
        request = RetireVersionedNodeRequest(
            valid_to=None if date is None else format_rfc3339_timestamp(date), created_by=author
        )
        answer = end_node_valid_time(
            graph_of(self.pool, NAME),
            RetireNodeRequest(node_id=node_id, valid_to=request.valid_to, created_by=request.created_by),
        )
        row = self.graph.nodes.get(node_id)
        if row is None:
            with pytest.raises(NotFound):
                answer.result(CATCH_UP_TIMEOUT_SECONDS)
            return
        end = _end(answer, date, extras_of(row)["valid_to"])
        told = _report(answer, lambda a: _told(a, "nodes_updated" if a.changed else "nodes_unchanged"))
        put = NodeUpsert(0, node_id, extras=NodeExtrasUpsert(created_by=author, valid_to=end))
        self._settle([WriteBatch(nodes=[put])], [told])

    def retire_edge(self, source: Batches, key: EdgeKey) -> None:
        """Retire an edge at a date or now."""
        date, author = source.moment(), source.random.choice(("", "eve"))
        request = RetireEdgeRequest(
            source=key[0],
            target=key[1],
            relation_type=key[2],
            valid_to=None if date is None else format_rfc3339_timestamp(date),
            created_by=author,
        )
        answer = end_edge_valid_time(graph_of(self.pool, NAME), request)
        row = self.graph.edges.get(key)
        if row is None:
            with pytest.raises(NotFound):
                answer.result(CATCH_UP_TIMEOUT_SECONDS)
            return
        end = _end(answer, date, edge_extras_of(row)["valid_to"])
        told = _report(answer, lambda a: _told(a, "edges_updated" if a.changed else "edges_unchanged"))
        put = EdgeUpsert(0, key, extras=EdgeExtrasUpsert(created_by=author, valid_to=end))
        self._settle([WriteBatch(edges=[put], touch=False)], [told])

    @override
    def _settle(self, batches: Sequence[WriteBatch], futures: Sequence[Future[WriteReport]]) -> list[Graph]:
        stages = super()._settle(batches, futures)
        times = {change.sequence: change.time for change in self.store.journal.read(len(self.past) - 1)}
        for stage in stages:
            if stage.sequence == len(self.past):
                self.past.append(stage)
                self.times.append(times[stage.sequence])
        return stages

    # Restarts and crashes

    @override
    def crash(self, *under_way: WriteBatch, torn: int = 0) -> None:
        super().crash(*under_way, torn=torn)
        del self.past[self.graph.sequence + 1 :], self.times[self.graph.sequence + 1 :]
        self.oldest = min(self.oldest, self.graph.sequence)

    def restart_harmed(self, harm: Harm) -> None:
        """Close cleanly, damage the history in a way that the journal can repair, and open again."""
        # A store that was closed immediately may not have one yet.
        assert self.historian.of(self.store).wait(self.graph.sequence, CATCH_UP_TIMEOUT_SECONDS)
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

    @override
    def _open(self) -> None:
        self.historian = HistoryWorker()
        self.pool = StorePool(Settings(data_dir=self._data, engine=ENGINE, **self._options))
        self.pool.companions.append(self.historian)
        self.store: OpenStore = self.pool.acquire(NAME, create=True)
        self._rebuilds = self.store.engine.rebuilds

    @override
    def _close(self) -> None:
        super()._close()
        self.historian.close()

    # Reads

    def look_back(self, source: Batches, count: int) -> None:
        """Get, list, traverse and export as of random commits and valid times."""
        # Only the history knows what superseded a version.
        assert self.historian.of(self.store).wait(self.graph.sequence, CATCH_UP_TIMEOUT_SECONDS)
        for wanted in (source.walk() for _ in range(count)):
            past, graph = self._moment(source.random)
            true = graph.true_at(wanted.valid_at)
            valid_at = "any" if wanted.valid_at is None else format_rfc3339_timestamp(wanted.valid_at)
            self._get_then(past, true, wanted.start, valid_at)
            self._list_then(past, graph, source.wanted(wanted.valid_at), source.random.randrange(1, 20))
            self._walk_then(past, true, wanted, valid_at)
            self._export_then(past, true, valid_at)
            self._look_unasked(past, graph, wanted)

    def _look_unasked(self, past: PastMoment | None, graph: Graph, wanted: TraversalRequest) -> None:
        """Check reads without a valid time: they find what was valid then, or is now; by id, a node is always found."""
        true = graph.true_at(self._time_of(past))
        self._walk_then(past, true, wanted, None)
        rows = [row for _, row in sorted(true.nodes.items())][:1000]
        assert self._page(NodeListParameters(limit=1000), past).nodes == [self._shown(row, past) for row in rows]
        self._get_then(past, graph, wanted.start, None)
        self._export_then(past, graph, None)

    def _time_of(self, past: PastMoment | None) -> int:
        if past is None:
            return time.time_ns() // 1000
        text = str(past.as_of)
        return self.times[int(text)] if text.isdecimal() else parse_rfc3339_timestamp(text)

    def _moment(self, source: random.Random) -> tuple[PastMoment | None, Graph]:
        """Return the present, or a commit by number, by time, or by a time shortly before or after it."""
        if source.random() < 0.2:
            return None, self.graph
        sequence = source.randrange(self.oldest, len(self.past))
        if sequence == self.oldest or source.random() < 0.5:
            return PastMoment(self.historian, str(sequence)), self.past[sequence]
        moment = self.times[sequence] + source.choice((-1, 0, 0, 1))
        before = [number for number, at in enumerate(self.times) if at <= moment]
        return PastMoment(self.historian, format_rfc3339_timestamp(moment)), self.past[before[-1]]

    def _get_then(self, past: PastMoment | None, graph: Graph, node_id: str, valid_at: str | None) -> None:
        if node_id not in graph.nodes:
            with pytest.raises(NotFound):
                node_of(
                    graph_of(self.pool, NAME, historian=self.historian), node_id, as_of=_text(past), valid_at=valid_at
                )
            return
        found = node_of(
            graph_of(self.pool, NAME, historian=self.historian), node_id, as_of=_text(past), valid_at=valid_at
        )
        assert found.node == self._shown(graph.nodes[node_id], past)
        if not found.edges_truncated:
            assert _seen(found.outgoing) == _rows(e for e in graph.edges.values() if e.source == node_id)
            assert _seen(found.incoming) == _rows(e for e in graph.edges.values() if e.target == node_id)

    def _page(self, wanted: NodeListParameters, past: PastMoment | None) -> NodePage:
        asked = msgspec.structs.replace(wanted, as_of=_text(past))
        return nodes_of(graph_of(self.pool, NAME, historian=self.historian), asked)

    def _list_then(self, past: PastMoment | None, graph: Graph, wanted: NodeListParameters, pages: int) -> None:
        rows = listed(graph, wanted)
        limit, cursor, found = min(1000, len(rows) // pages + 1), None, []
        while True:
            page = self._page(msgspec.structs.replace(wanted, limit=limit, cursor=cursor), past)
            found += page.nodes
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == [self._shown(row, past) for row in rows]

    def _shown(self, row: NodeRow, past: PastMoment | None) -> Node:
        return self._standing(row_to_api_conversion.build_api_node_from_row(row), row, past)

    def _standing(self, node: N, row: NodeRow, past: PastMoment | None) -> N:
        """Return a node as it was, with its current status: conflicting until a state that does not name it."""
        if past is None:
            return node
        for graph in self.past[row.sequence + 1 :]:
            later = graph.nodes.get(row.id)
            if later is None or (
                later.version != row.version and row.version not in get_conflicting_node_head_versions(later)
            ):
                return msgspec.structs.replace(
                    node, is_current=False, superseded_by=msgspec.UNSET if later is None else later.version
                )
        is_present = self.graph.nodes[row.id].version == row.version
        return node if is_present else msgspec.structs.replace(node, is_current=True)

    def _walk_then(self, past: PastMoment | None, graph: Graph, wanted: TraversalRequest, valid_at: str | None) -> None:
        request = TraverseRequest(
            start_id=wanted.start,
            depth=wanted.depth,
            direction=wanted.direction,
            relation_types=None if wanted.relation_types is None else sorted(wanted.relation_types),
            min_weight=wanted.min_weight,
            max_nodes=wanted.max_nodes,
            as_of=past and past.as_of,
            valid_at=valid_at,
        )
        found = walked(graph_of(self.pool, NAME, historian=self.historian), request)
        depths, edges, more = graph.walk(msgspec.structs.replace(wanted, valid_at=None))
        assert found.nodes == [
            self._standing(
                row_to_api_conversion.build_api_traversal_node_from_row(graph.nodes[node_id], depth),
                graph.nodes[node_id],
                past,
            )
            for node_id, depth in depths.items()
        ]
        assert _seen(found.edges) == _rows(graph.edges[key] for key in edges)
        assert (len(found.edges), found.truncated, found.sequence) == (len(edges), more, graph.sequence)

    def _export_then(self, past: PastMoment | None, graph: Graph, valid_at: str | None) -> None:
        asked = graph_of(self.pool, NAME, historian=self.historian)
        stream = open_store_export_stream(asked, valid_at, past)
        with stream:
            lines = [msgspec.json.decode(line) for block in stream for line in block.splitlines()]
        self._check_beside([line for line in lines if line["kind"] in {"head", "node"}], graph, all_known=past is None)
        lines = [line for line in lines if line["kind"] in {"node", "edge"}]
        nodes = {line["id"]: line for line in lines if line["kind"] == "node"}
        edges = {(line["from"], line["to"], line["relation_type"]): line for line in lines if line["kind"] == "edge"}
        assert len(lines) == len(nodes) + len(edges), "a row is exported twice"
        assert nodes == {row.id: _line(row) for row in graph.nodes.values()}
        assert {key: _timeless(line) for key, line in edges.items()} == _rows(graph.edges.values())

    def _check_beside(self, lines: list[dict[str, Any]], graph: Graph, *, all_known: bool) -> None:
        """Check that the conflicting versions of a node precede it, each naming earlier ones."""
        heads: dict[str, list[int]] = {}
        for line in lines:
            beside = line.pop("conflicts", [])
            before = heads.setdefault(line["id"], [])
            assert beside == before
            if line["kind"] == "head":
                assert line | {"kind": "node"} == _line(self._versions(line["id"], 0)[line["version"]])
                before.append(line["version"])
            else:
                named = get_conflicting_node_head_versions(graph.nodes[line["id"]])
                assert (before == sorted(named)) if all_known else {*before} <= {*named}


def _report(answer: Future[Any], report: Callable[[Any], WriteReport]) -> Future[WriteReport]:
    """Return an answer as the writer's report."""
    told: Future[WriteReport] = Future()
    error = answer.exception(CATCH_UP_TIMEOUT_SECONDS)
    if error is not None:
        told.set_exception(error)
    else:
        told.set_result(report(answer.result()))
    return told


def _told(answer: RetireNodeOrEdgeAnswer, counted: str) -> WriteReport:
    return msgspec.structs.replace(WriteReport(sequence=answer.sequence), **{counted: 1})


def _end(answer: Future[RetireNodeOrEdgeAnswer], date: int | None, ended: int | None) -> int:
    """Return the actual end of a row that was retired at a date, or now; an earlier end is kept."""
    error, now = answer.exception(CATCH_UP_TIMEOUT_SECONDS), time.time_ns() // 1000
    if error is not None:
        assert isinstance(error, InvalidInput)
        return now if date is None else date
    end = parse_rfc3339_timestamp(answer.result().valid_to)
    if date is not None:
        assert end == date
    elif ended is not None and ended < now - CATCH_UP_TIMEOUT_SECONDS * 1_000_000:
        assert end == ended
    else:
        assert 0 <= now - end < CATCH_UP_TIMEOUT_SECONDS * 1_000_000
    return end


def _line(row: NodeRow) -> dict[str, Any]:
    extras = extras_of(row)
    sent = {field.name: field.type for field in NODE.optional if not field.is_own}
    optional = {name: extras[name] for name, kind in sent.items() if kind is not TIMESTAMP_TYPE} | {
        "tags": list(extras["tags"])
    }
    times = {name: extras[name] for name, kind in sent.items() if kind is TIMESTAMP_TYPE}
    return {
        "kind": "node",
        "id": row.id,
        "type": row.type,
        "content": row.content,
        "attributes": msgspec.json.decode(row.attributes),
        "version": row.version,
        "created_at": format_rfc3339_timestamp(row.created_at),
        "updated_at": format_rfc3339_timestamp(row.updated_at),
        **{name: value for name, value in optional.items() if value not in (None, "", [])},
        **{name: format_rfc3339_timestamp(value) for name, value in times.items() if value is not None},
    }


def _rows(rows: Iterable[EdgeRow]) -> dict[EdgeKey, dict[str, Any]]:
    return {row.key: _edge(row) for row in rows}


def _edge(row: EdgeRow) -> dict[str, Any]:
    extras = edge_extras_of(row)
    fields = {"weight": row.weight, "attributes": msgspec.json.decode(row.attributes), "version": row.version}
    for name in ("valid_from", "valid_to"):
        extras[name] = None if extras[name] is None else format_rfc3339_timestamp(extras[name])
    return _timeless({**fields, **{name: value for name, value in extras.items() if value not in (None, "")}})


def _seen(edges: Iterable[Edge]) -> dict[EdgeKey, dict[str, Any]]:
    # `render.edge` puts both times into the attributes.
    return {(e.source, e.target, e.relation_type): _timeless(msgspec.to_builtins(e)) for e in edges}


def _timeless(edge: dict[str, Any]) -> dict[str, Any]:
    """Return an edge without updated_at, which does not belong to its state."""
    attributes = {name: value for name, value in edge["attributes"].items() if name != "updated_at"}
    names = ("weight", "version", "ordinal", "created_by", "valid_from", "valid_to", "confidence", "context")
    return {"attributes": attributes, **{name: edge[name] for name in names if name in edge}}


def _text(past: PastMoment | None) -> str | None:
    return None if past is None else str(past.as_of)
