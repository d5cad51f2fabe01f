"""Walking the graph from one node."""

from __future__ import annotations

import time

import msgspec

from kgserve.model.answers import TraverseAnswer
from kgserve.model.requests import TraverseRequest
from kgserve.model.walk import Walk, clamp
from kgserve.ops import as_of, render
from kgserve.ops.graph import Encoded, Graph
from kgserve.ops.moments import Past
from kgserve.ops.validate import Faults, check_label
from kgserve.ops.validity import world_moment
from kgserve.rows.walk import edges_json, nodes_json, walk
from kgserve.store.store import Store


def traverse(graph: Graph, request: TraverseRequest) -> Encoded[TraverseAnswer]:
    """Answers with each node in reach once, at its shortest distance, nearest first.

    With them come all edges between the nodes returned. A start that does not exist gives empty arrays. `as_of` is a
    sequence or an RFC 3339 time: the walk is then what it would have been. `valid_at` is an RFC 3339 time: only what
    was true in the world then.

    Raises NotFound for the store, and Gone for a moment that is no longer known.
    """
    faults = Faults()
    check_label(request.start_id, "start_id", faults)
    faults.raise_any()
    types = None if request.relation_types is None else frozenset(request.relation_types)
    wanted = Walk(
        request.start_id,
        clamp(request.depth),
        request.direction,
        types,
        request.min_weight,
        request.max_nodes,
    )
    past = graph.past(request.as_of)
    with graph.lease() as store:
        wanted = msgspec.structs.replace(wanted, valid_at=world_moment(request.valid_at, store, past))
        return Encoded(_now(store, wanted, graph.most_edges) if past is None else _then(store, past, wanted))


def _now(leased: Store, wanted: Walk, allowed: int | None) -> bytes:
    with leased.reading() as rows:
        found = walk(rows, wanted, allowed)
        nodes, edges = nodes_json(rows, found, time.time_ns() // 1000), edges_json(rows, found)
    truncated = b"true" if found.truncated else b"false"
    return b'{"nodes":[%b],"edges":[%b],"count":%d,"truncated":%b,"sequence":%d}' % (
        nodes,
        edges,
        found.count,
        truncated,
        rows.at,
    )


def _then(leased: Store, past: Past, wanted: Walk) -> bytes:
    found, sequence = as_of.walk(leased, past, wanted)
    nodes = [render.reached(row, depth) for row, depth in found.nodes]
    edges = [render.edge(row) for row in found.edges]
    answer = TraverseAnswer(nodes=nodes, edges=edges, count=len(nodes), truncated=found.truncated, sequence=sequence)
    return msgspec.json.encode(answer)
