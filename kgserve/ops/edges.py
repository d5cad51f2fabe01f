"""Reading single edges and those of one node."""

from __future__ import annotations

from typing import Literal

import msgspec

from kgserve.engine import read
from kgserve.errors import NotFound
from kgserve.model.edge_ids import edge_id, edge_key
from kgserve.model.requests import EdgeKeyRequest
from kgserve.model.rows import EdgeRow, edge_stamps
from kgserve.model.times import parse_time
from kgserve.model.versioned import EdgeAnswer, EdgeList
from kgserve.ops import render
from kgserve.ops.moments import Past
from kgserve.ops.nodes import node_view
from kgserve.ops.validate import Faults, check_label
from kgserve.ops.validity import valid_moment, when_asked
from kgserve.store.pool import StorePool

MAX_PAGE = 1000
MAX_OFFSET = 1_000_000

Side = Literal["outgoing", "incoming"]


class EdgesOfNode(msgspec.Struct, frozen=True, kw_only=True):
    """Edges to list: those that start or end at a node, of any of ``kinds``, true at ``valid_at`` (RFC 3339)."""

    node_id: str
    side: Side
    kinds: tuple[str, ...] = ()
    limit: int = 100
    offset: int = 0
    valid_at: str | None = None


def list_edges(pool: StorePool, store: str, wanted: EdgesOfNode, past: Past | None = None) -> EdgeList:
    """A page of a node's edges: by ordinal, those without one last, then by age. Looks at all edges of the node.

    Raises NotFound for a node that is not there, InvalidInput, and what `Past.of` raises.
    """
    faults = Faults()
    check_label(wanted.node_id, "id", faults)
    if not 1 <= wanted.limit <= MAX_PAGE:
        faults("limit", f"is not from 1 to {MAX_PAGE}")
    if not 0 <= wanted.offset <= MAX_OFFSET:
        faults("offset", f"is not from 0 to {MAX_OFFSET}")
    faults.raise_any()
    edges = [row for row in _edges(pool, store, wanted, past) if not wanted.kinds or row.relation_type in wanted.kinds]
    edges.sort(key=_place)
    end = wanted.offset + wanted.limit
    page = [render.edge(row) for row in edges[wanted.offset : end]]
    return EdgeList(edges=page, next_offset=end if end < len(edges) else None)


def get_edge(pool: StorePool, store: str, id_: str) -> EdgeAnswer:
    """One edge by its id. Raises InvalidInput for what is no id, NotFound."""
    key = edge_key(id_)
    with pool.lease(store) as leased, leased.reading() as session:
        row = next(iter(read.find_edges(session, [key])), None)
    if row is None:
        raise NotFound(f"there is no edge {edge_id(key)} in store {store!r}")
    return EdgeAnswer(edge=render.edge(row))


def key_of(id_: str) -> EdgeKeyRequest:
    """What identifies the edge of an id. Raises InvalidInput."""
    source, target, relation_type = edge_key(id_)
    return EdgeKeyRequest(source=source, target=target, relation_type=relation_type)


def _edges(pool: StorePool, store: str, wanted: EdgesOfNode, past: Past | None) -> list[EdgeRow]:
    with pool.lease(store) as leased:
        found = node_view(leased, wanted.node_id, past, valid_moment(wanted.valid_at), whole=True)
    if found is None:
        when = when_asked(past, wanted.valid_at)
        raise NotFound(f"there is no node {wanted.node_id!r} in store {store!r}{when}")
    return found.outgoing if wanted.side == "outgoing" else found.incoming


def _place(row: EdgeRow) -> tuple[bool, int, int, str, str, str]:
    ordinal = row.extras.ordinal if row.extras is not None else None
    created_at = edge_stamps(row.attributes).created_at
    return ordinal is None, ordinal or 0, parse_time(created_at), *row.key
