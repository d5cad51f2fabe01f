"""Reading single nodes, and listing them."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from kgserve.engine import read
from kgserve.errors import FieldError, InvalidInput, NotFound
from kgserve.model.answers import Node, NodeAnswer, NodePage
from kgserve.model.listing import NodeFilter, Place
from kgserve.model.rows import NodeRow
from kgserve.model.schema import ListedNode, ListedPage
from kgserve.ops import as_of, render
from kgserve.ops.moments import Past
from kgserve.ops.validate import Faults, check_label
from kgserve.ops.validity import held_view, valid_moment, when_asked, world_moment
from kgserve.store.pool import StorePool
from kgserve.store.store import Store

MAX_PAGE = 1000
MAX_OFFSET = 10_000


def get_node(
    pool: StorePool, store: str, node_id: str, past: Past | None = None, valid_at: str | None = None
) -> NodeAnswer:
    """A node and its edges, at most 1,000 in each direction. Raises NotFound, and what `Past.of` raises.

    With ``valid_at`` (RFC 3339) only what was true in the world then: the node, its edges, their other ends.
    """
    moment = valid_moment(valid_at)
    faults = Faults()
    check_label(node_id, "id", faults)
    faults.raise_any()
    with pool.lease(store) as leased:
        found = node_view(leased, node_id, past, moment)
    if found is None:
        raise NotFound(f"there is no node {node_id!r} in store {store!r}{when_asked(past, valid_at)}")
    return NodeAnswer(
        node=render.node(found.node),
        outgoing=[render.edge(row) for row in found.outgoing[: read.MAX_SHOWN]],
        incoming=[render.edge(row) for row in found.incoming[: read.MAX_SHOWN]],
        edges_truncated=found.truncated or max(len(found.outgoing), len(found.incoming)) > read.MAX_SHOWN,
    )


def node_view(
    leased: Store, node_id: str, past: Past | None, moment: int | None, *, whole: bool = False
) -> read.NodeView | None:
    """A node and its edges, now or as of a commit, true whenever or at a moment; None when it was not there.

    With ``whole`` or a moment it has all its edges, otherwise at most 1,000 in each direction.
    """
    if past is not None:
        return as_of.view(leased, past, node_id, moment, whole=whole)
    with leased.reading() as session:
        if moment is None and not whole:
            return read.view(session, node_id)
        found = read.whole_view(session, node_id)
        if found is None or moment is None:
            return found
        return held_view(found.node, found.outgoing, found.incoming, lambda ids: read.find_nodes(session, ids), moment)


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """A page to list: of nodes of any of ``types``, with all of ``tags``, true at ``valid_at``; see `world_moment`.

    It begins behind ``cursor``, or passes over ``offset`` nodes.
    """

    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    valid_at: str | None = None
    limit: int = 100
    cursor: str | None = None
    offset: int = 0


def list_nodes(
    pool: StorePool, store: str, type_: str | None, limit: int, cursor: str | None, past: Past | None = None
) -> NodePage:
    """The next nodes of one type or of all; see `page_nodes`."""
    types = () if type_ is None else (type_,)
    return page_nodes(pool, store, NodeList(types=types, limit=limit, cursor=cursor), past)


def page_nodes(pool: StorePool, store: str, wanted: NodeList, past: Past | None = None) -> NodePage:
    """The next nodes in the order of their ids (by code point), now or as of a commit.

    A node that is there from the first page to the last is listed exactly once, whatever is written meanwhile; one that
    changes so that it no longer fits may be left out. A page may be short with a next one; see `MAX_PASSED`.
    Raises InvalidInput for a limit outside 1 to 1,000, a cursor that no page gave, and what is no time.
    """
    rows, next_cursor = _page(pool, store, wanted, past)
    return NodePage(nodes=[render.node(row) for row in rows], next_cursor=next_cursor)


def page_compact(pool: StorePool, store: str, wanted: NodeList, past: Past | None = None) -> ListedPage:
    """As `page_nodes`, without contents, attributes, and who wrote what and beside what."""
    rows, next_cursor = _page(pool, store, wanted, past)
    return ListedPage(nodes=[_compact(render.node(row)) for row in rows], next_cursor=next_cursor)


def _page(pool: StorePool, store: str, wanted: NodeList, past: Past | None) -> tuple[list[NodeRow], str | None]:
    place = _checked(wanted)
    with pool.lease(store) as leased:
        moment = world_moment(wanted.valid_at, leased, past)
        wanted_nodes = NodeFilter(wanted.types, tuple(dict.fromkeys(wanted.tags)), moment)
        if past is None:
            found = leased.listing(lambda catalog: catalog.listed(wanted_nodes, place, wanted.limit))
        else:
            found = as_of.page(leased, past, wanted_nodes, place, wanted.limit)
    return found.items, None if found.next is None else _encode(found.next)


def _checked(wanted: NodeList) -> Place:
    faults = Faults()
    if not 1 <= wanted.limit <= MAX_PAGE:
        faults("limit", f"is not from 1 to {MAX_PAGE}")
    if not 0 <= wanted.offset <= MAX_OFFSET:
        faults("offset", f"is not from 0 to {MAX_OFFSET}")
    if wanted.offset and wanted.cursor is not None:
        faults("offset", "goes with the first page only; the cursor knows how far that was")
    faults.raise_any()
    return Place("", wanted.offset) if wanted.cursor is None else _decode(wanted.cursor)


def _compact(node: Node) -> ListedNode:
    return ListedNode(
        id=node.id,
        type=node.type,
        version=node.version,
        sequence=node.sequence,
        created_at=node.created_at,
        updated_at=node.updated_at,
        summary=node.summary,
        tags=node.tags,
        stale=node.stale,
        valid_from=node.valid_from,
        valid_to=node.valid_to,
    )


def _encode(place: Place) -> str:
    after = urlsafe_b64encode(place.after.encode()).decode().rstrip("=")
    return f"{after}.{place.skip}" if place.skip else after


def _decode(cursor: str) -> Place:
    text, _, skip = cursor.partition(".")
    try:
        after = urlsafe_b64decode((text + "=" * (-len(text) % 4)).encode("ascii")).decode()
        place = Place(after, int(skip or "0"))
    except ValueError:
        place = Place()
    # The decoder passes over signs that are none of its alphabet.
    if not place.after or not 0 <= place.skip <= MAX_OFFSET or _encode(place) != cursor:
        message = "is not a cursor that a page of this list gave"
        raise InvalidInput(f"cursor: {message}", (FieldError("cursor", message),))
    return place
