"""Walking the graph from one node."""

from __future__ import annotations

import time

import msgspec

from kgserve.decoding import json_decoder
from kgserve.model.answers import TraverseAnswer
from kgserve.model.requests import TraverseRequest
from kgserve.model.walk import Walk, clamp
from kgserve.ops import as_of, render
from kgserve.ops.moments import Past
from kgserve.ops.validate import Faults, check_label
from kgserve.ops.validity import world_moment
from kgserve.rows.walk import edges_json, nodes_json, walk
from kgserve.store.pool import StorePool
from kgserve.store.store import Store
from kgserve.views.history import Historian

_decode = json_decoder(TraverseAnswer).decode


def traverse(
    pool: StorePool, store: str, request: TraverseRequest, historian: Historian | None = None
) -> TraverseAnswer:
    """Nodes within reach, nearest first, and the edges between them; see `traverse_json`."""
    return _decode(traverse_json(pool, store, request, historian))


def traverse_json(
    pool: StorePool,
    store: str,
    request: TraverseRequest,
    historian: Historian | None = None,
    allowed: int | None = None,
) -> bytes:
    """A `TraverseAnswer` as JSON. An unknown start reaches nothing.

    Raises NotFound for the store, TooLong when more than ``allowed`` edges are met, InvalidInput for a ``valid_at``
    that is no time, and with ``as_of`` what `Past.of` raises.
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
    past = None if request.as_of is None else Past(historian, request.as_of)
    with pool.lease(store) as leased:
        wanted = msgspec.structs.replace(wanted, valid_at=world_moment(request.valid_at, leased, past))
        return _now(leased, wanted, allowed) if past is None else _then(leased, past, wanted)


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
