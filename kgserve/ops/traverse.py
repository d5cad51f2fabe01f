"""Walking the graph from one node."""

from __future__ import annotations

import msgspec

from kgserve.engine.traverse import walk
from kgserve.model.answers import TraverseAnswer
from kgserve.model.requests import TraverseRequest
from kgserve.model.walk import Reached, Walk, clamp
from kgserve.ops import as_of, render
from kgserve.ops.moments import Past
from kgserve.ops.validate import Faults, check_label
from kgserve.ops.validity import world_moment
from kgserve.store.pool import StorePool
from kgserve.store.store import Store
from kgserve.views.historian import Historian


def traverse(
    pool: StorePool, store: str, request: TraverseRequest, historian: Historian | None = None
) -> TraverseAnswer:
    """Nodes within reach, nearest first, and the edges between them. An unknown start reaches nothing.

    Raises NotFound for the store, TimedOut when it takes longer than the query time limit, InvalidInput for a
    ``valid_at`` that is no time, and with ``as_of`` what `Past.of` raises.
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
        if past is not None:
            found, sequence = as_of.walk(leased, past, wanted)
        else:
            found, sequence = _now(leased, wanted)
    nodes = [render.reached(row, depth) for row, depth in found.nodes]
    edges = [render.edge(row) for row in found.edges]
    return TraverseAnswer(nodes=nodes, edges=edges, count=len(nodes), truncated=found.truncated, sequence=sequence)


def _now(leased: Store, wanted: Walk) -> tuple[Reached, int]:
    with leased.reading() as session:
        # Read before the walk begins: what it sees is this commit, or one that came meanwhile.
        sequence = leased.state.sequence
        return walk(session, wanted), sequence
