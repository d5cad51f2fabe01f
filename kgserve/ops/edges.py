"""Reading single edges and those of one node."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from kgserve.errors import NotFound
from kgserve.model.queries import EdgeId, EdgesRequest
from kgserve.model.rows import EdgeRow, edge_id, edge_key, edge_stamps
from kgserve.model.times import parse_time
from kgserve.model.versioned import EdgeAnswer, EdgeList
from kgserve.ops import as_of, render
from kgserve.ops.graph import Encoded, Graph
from kgserve.ops.moments import Past
from kgserve.ops.validate import Faults, check_label
from kgserve.ops.validity import valid_moment, when_asked
from kgserve.rows.edge_page import held_around, of_kinds, page_of_edges
from kgserve.store.store import Store


def outgoing(graph: Graph, request: EdgesRequest) -> Encoded[EdgeList]:
    """By `ordinal`, those without one last, then by `created_at`; of some relation types, or of all.

    Raises NotFound, and Gone for a moment that is no longer known.
    """
    return _edges(graph, request, outgoing=True)


def incoming(graph: Graph, request: EdgesRequest) -> Encoded[EdgeList]:
    """By `ordinal`, those without one last, then by `created_at`; of some relation types, or of all.

    Raises NotFound, and Gone for a moment that is no longer known.
    """
    return _edges(graph, request, outgoing=False)


def get_edge(graph: Graph, request: EdgeId) -> EdgeAnswer:
    """The id is `source~relation_type~target`, each percent-encoded, and the whole once more for the path.

    Raises InvalidInput for what is no id, and NotFound.
    """
    key = edge_key(request.edge_id)
    with graph.lease() as store, store.reading() as rows:
        row = rows.edge(key)
    if row is None:
        raise NotFound(f"there is no edge {edge_id(key)} in store {graph.name!r}")
    return EdgeAnswer(edge=render.edge(row))


def _edges(graph: Graph, request: EdgesRequest, *, outgoing: bool) -> Encoded[EdgeList]:
    """A page of a node's edges. Looks at all edges of the node."""
    faults = Faults()
    check_label(request.node_id, "id", faults)
    faults.raise_any()
    moment, past = valid_moment(request.valid_at), graph.past(request.as_of)
    wanted = _Wanted(request.node_id, outgoing, tuple(filter(None, request.kinds)), request.limit, request.offset)
    with graph.lease() as store:
        found = _present(store, wanted, moment) if past is None else _past(store, past, wanted, moment)
    if found is None:
        when = when_asked(past, request.valid_at)
        raise NotFound(f"there is no node {request.node_id!r} in store {graph.name!r}{when}")
    return Encoded(found)


class _Wanted(NamedTuple):
    node_id: str
    outgoing: bool
    kinds: tuple[str, ...]
    limit: int
    offset: int


def _present(leased: Store, wanted: _Wanted, moment: int | None) -> bytes | None:
    with leased.reading() as rows:
        numbers = np.array([rows.number(wanted.node_id)])
        if numbers[0] < 0 or (moment is not None and not rows.nodes_hold(numbers, moment)[0]):
            return None
        outgoing = wanted.outgoing
        edges = of_kinds(rows, rows.around(numbers, outgoing=outgoing), wanted.kinds)
        edges = edges if moment is None else held_around(rows, edges, moment, outgoing=outgoing)
        page, more = page_of_edges(rows, edges, wanted.offset, wanted.limit)
    next_offset = b"%d" % (wanted.offset + wanted.limit) if more else b"null"
    return b'{"edges":[%b],"next_offset":%b}' % (b",".join(page), next_offset)


def _past(leased: Store, past: Past, wanted: _Wanted, moment: int | None) -> bytes | None:
    found = as_of.view(leased, past, wanted.node_id, moment, whole=True)
    if found is None:
        return None
    edges = found.outgoing if wanted.outgoing else found.incoming
    edges = sorted((row for row in edges if not wanted.kinds or row.relation_type in wanted.kinds), key=_place)
    end = wanted.offset + wanted.limit
    page = [render.edge(row) for row in edges[wanted.offset : end]]
    return msgspec.json.encode(EdgeList(edges=page, next_offset=end if end < len(edges) else None))


def _place(row: EdgeRow) -> tuple[bool, int, int, str, str, str]:
    ordinal = row.extras.ordinal if row.extras is not None else None
    created_at = edge_stamps(row.attributes).created_at
    return ordinal is None, ordinal or 0, parse_time(created_at), *row.key
