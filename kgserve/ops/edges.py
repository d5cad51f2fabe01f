"""Reading single edges and those of one node."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from kgserve.decoding import json_decoder
from kgserve.errors import NotFound
from kgserve.model.requests import EdgeKeyRequest
from kgserve.model.rows import EdgeRow, edge_id, edge_key, edge_stamps
from kgserve.model.times import parse_time
from kgserve.model.versioned import EdgeAnswer, EdgeList
from kgserve.ops import as_of, render
from kgserve.ops.moments import Past
from kgserve.ops.validate import Faults, check_label
from kgserve.ops.validity import valid_moment, when_asked
from kgserve.rows.edge_page import held_around, of_kinds, page_of_edges
from kgserve.store.pool import StorePool
from kgserve.store.store import Store

MAX_PAGE = 1000
MAX_OFFSET = 1_000_000

_decode = json_decoder(EdgeList).decode

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
    return _decode(list_edges_json(pool, store, wanted, past))


def list_edges_json(pool: StorePool, store: str, wanted: EdgesOfNode, past: Past | None = None) -> bytes:
    """As `list_edges`, as JSON."""
    faults = Faults()
    check_label(wanted.node_id, "id", faults)
    if not 1 <= wanted.limit <= MAX_PAGE:
        faults("limit", f"is not from 1 to {MAX_PAGE}")
    if not 0 <= wanted.offset <= MAX_OFFSET:
        faults("offset", f"is not from 0 to {MAX_OFFSET}")
    faults.raise_any()
    moment = valid_moment(wanted.valid_at)
    with pool.lease(store) as leased:
        found = _present(leased, wanted, moment) if past is None else _past(leased, past, wanted, moment)
    if found is None:
        when = when_asked(past, wanted.valid_at)
        raise NotFound(f"there is no node {wanted.node_id!r} in store {store!r}{when}")
    return found


def get_edge(pool: StorePool, store: str, id_: str) -> EdgeAnswer:
    """One edge by its id. Raises InvalidInput for what is no id, NotFound."""
    key = edge_key(id_)
    with pool.lease(store) as leased, leased.reading() as rows:
        row = rows.edge(key)
    if row is None:
        raise NotFound(f"there is no edge {edge_id(key)} in store {store!r}")
    return EdgeAnswer(edge=render.edge(row))


def key_of(id_: str) -> EdgeKeyRequest:
    """What identifies the edge of an id. Raises InvalidInput."""
    source, target, relation_type = edge_key(id_)
    return EdgeKeyRequest(source=source, target=target, relation_type=relation_type)


def _present(leased: Store, wanted: EdgesOfNode, moment: int | None) -> bytes | None:
    with leased.reading() as rows:
        numbers = np.array([rows.number(wanted.node_id)])
        if numbers[0] < 0 or (moment is not None and not rows.nodes_hold(numbers, moment)[0]):
            return None
        outgoing = wanted.side == "outgoing"
        edges = of_kinds(rows, rows.around(numbers, outgoing=outgoing), wanted.kinds)
        edges = edges if moment is None else held_around(rows, edges, moment, outgoing=outgoing)
        page, more = page_of_edges(rows, edges, wanted.offset, wanted.limit)
    next_offset = b"%d" % (wanted.offset + wanted.limit) if more else b"null"
    return b'{"edges":[%b],"next_offset":%b}' % (b",".join(page), next_offset)


def _past(leased: Store, past: Past, wanted: EdgesOfNode, moment: int | None) -> bytes | None:
    found = as_of.view(leased, past, wanted.node_id, moment, whole=True)
    if found is None:
        return None
    edges = found.outgoing if wanted.side == "outgoing" else found.incoming
    edges = sorted((row for row in edges if not wanted.kinds or row.relation_type in wanted.kinds), key=_place)
    end = wanted.offset + wanted.limit
    page = [render.edge(row) for row in edges[wanted.offset : end]]
    return msgspec.json.encode(EdgeList(edges=page, next_offset=end if end < len(edges) else None))


def _place(row: EdgeRow) -> tuple[bool, int, int, str, str, str]:
    ordinal = row.extras.ordinal if row.extras is not None else None
    created_at = edge_stamps(row.attributes).created_at
    return ordinal is None, ordinal or 0, parse_time(created_at), *row.key
