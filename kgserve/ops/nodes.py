"""Reading single nodes, and listing them."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from kgserve.engine import read
from kgserve.errors import FieldError, InvalidInput, NotFound
from kgserve.model.answers import NodeAnswer, NodePage
from kgserve.ops import as_of, render
from kgserve.ops.moments import Past
from kgserve.ops.validate import Faults, check_label
from kgserve.store.pool import StorePool
from kgserve.store.store import Store

MAX_PAGE = 1000


def get_node(pool: StorePool, store: str, node_id: str, past: Past | None = None) -> NodeAnswer:
    """A node and its edges, at most 1,000 in each direction. Raises NotFound, and what `Past.of` raises."""
    faults = Faults()
    check_label(node_id, "id", faults)
    faults.raise_any()
    with pool.lease(store) as leased:
        found = _view(leased, node_id) if past is None else as_of.view(leased, past, node_id)
    if found is None:
        when = f" as of {past.as_of}" if past else ""
        raise NotFound(f"there is no node {node_id!r} in store {store!r}{when}")
    return NodeAnswer(
        node=render.node(found.node),
        outgoing=[render.edge(row) for row in found.outgoing],
        incoming=[render.edge(row) for row in found.incoming],
        edges_truncated=found.truncated,
    )


def list_nodes(
    pool: StorePool, store: str, type_: str | None, limit: int, cursor: str | None, past: Past | None = None
) -> NodePage:
    """The next nodes in the order of their ids (by code point), of one type or of all.

    A node that is there from the first page to the last is listed exactly once, whatever is written meanwhile.
    Raises InvalidInput for a limit outside 1 to 1,000 or a cursor that no page gave.
    """
    if not 1 <= limit <= MAX_PAGE:
        message = f"is not from 1 to {MAX_PAGE}"
        raise InvalidInput(f"limit: {message}", (FieldError("limit", message),))
    after = None if cursor is None else _decode(cursor)
    with pool.lease(store) as leased:
        if past is None:
            rows = leased.listing(lambda catalog: catalog.page(type_, after, limit + 1))
        else:
            rows = as_of.page(leased, past, type_, after, limit + 1)
    nodes = [render.node(row) for row in rows[:limit]]
    return NodePage(nodes=nodes, next_cursor=_encode(rows[limit - 1].id) if len(rows) > limit else None)


def _view(leased: Store, node_id: str) -> read.NodeView | None:
    with leased.reading() as session:
        return read.view(session, node_id)


def _encode(node_id: str) -> str:
    return urlsafe_b64encode(node_id.encode()).decode().rstrip("=")


def _decode(cursor: str) -> str:
    try:
        decoded = urlsafe_b64decode((cursor + "=" * (-len(cursor) % 4)).encode("ascii")).decode()
    except ValueError:
        decoded = ""
    # The decoder passes over signs that are none of its alphabet.
    if not decoded or _encode(decoded) != cursor:
        message = "is not a cursor that a page of this list gave"
        raise InvalidInput(f"cursor: {message}", (FieldError("cursor", message),))
    return decoded
