"""Reading single nodes, and listing them."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
import numpy as np

from kgserve.catalog.catalog import Catalog
from kgserve.decoding import json_decoder
from kgserve.errors import FieldError, InvalidInput, NotFound
from kgserve.model.answers import ListedNode, ListedPage, Node, NodeAnswer, NodePage
from kgserve.model.fields import AUTHOR
from kgserve.model.listing import EVERYTHING, Listed, NodeFilter, Place, page_of
from kgserve.model.rows import NodeRow
from kgserve.ops import as_of, render
from kgserve.ops.moments import Past
from kgserve.ops.validate import Faults, check_label
from kgserve.ops.validity import MAX_SHOWN, valid_moment, when_asked, world_moment
from kgserve.rows.edge_page import held_around
from kgserve.rows.snapshot import Rows
from kgserve.rows.walk import TooLong
from kgserve.store.lists import CatalogDamaged
from kgserve.store.pool import StorePool
from kgserve.store.store import Store

MAX_PAGE = 1000
MAX_OFFSET = 10_000

_decode_answer = json_decoder(NodeAnswer).decode


def get_node(
    pool: StorePool, store: str, node_id: str, past: Past | None = None, valid_at: str | None = None
) -> NodeAnswer:
    """A node and its edges; see `get_node_json`."""
    return _decode_answer(get_node_json(pool, store, node_id, past, valid_at))


def get_node_json(
    pool: StorePool,
    store: str,
    node_id: str,
    past: Past | None = None,
    valid_at: str | None = None,
    allowed: int | None = None,
) -> bytes:
    """A `NodeAnswer` as JSON: a node and its edges, at most 1,000 in each direction.

    With ``valid_at`` (RFC 3339) only what was true in the world then: the node, its edges, their other ends. Raises
    NotFound, TooLong for one that has more than ``allowed`` edges, and what `Past.of` raises.
    """
    moment = valid_moment(valid_at)
    faults = Faults()
    check_label(node_id, "id", faults)
    faults.raise_any()
    with pool.lease(store) as leased:
        found = _present(leased, node_id, moment, allowed) if past is None else _past(leased, past, node_id, moment)
    if found is None:
        raise NotFound(f"there is no node {node_id!r} in store {store!r}{when_asked(past, valid_at)}")
    return found


def _present(leased: Store, node_id: str, moment: int | None, allowed: int | None) -> bytes | None:
    with leased.reading() as rows:
        number = rows.number(node_id)
        numbers = np.array([number])
        if number < 0 or (moment is not None and not rows.nodes_hold(numbers, moment)[0]):
            return None
        lists: list[bytes] = []
        truncated = False
        for outgoing in (True, False):
            edges = rows.around(numbers, outgoing=outgoing)
            if allowed is not None and len(edges) > allowed:
                raise TooLong
            edges = edges if moment is None else held_around(rows, edges, moment, outgoing=outgoing)
            truncated = truncated or len(edges) > MAX_SHOWN
            lists.append(b",".join(rows.edge_texts(edges.first(MAX_SHOWN))))
        node = rows.node_text(number, time.time_ns() // 1000)
    return b'{"node":%b,"outgoing":[%b],"incoming":[%b],"edges_truncated":%b}' % (
        node,
        *lists,
        b"true" if truncated else b"false",
    )


def _past(leased: Store, past: Past, node_id: str, moment: int | None) -> bytes | None:
    found = as_of.view(leased, past, node_id, moment, whole=False)
    if found is None:
        return None
    answer = NodeAnswer(
        node=render.node(found.node),
        outgoing=[render.edge(row) for row in found.outgoing[:MAX_SHOWN]],
        incoming=[render.edge(row) for row in found.incoming[:MAX_SHOWN]],
        edges_truncated=found.truncated or max(len(found.outgoing), len(found.incoming)) > MAX_SHOWN,
    )
    return msgspec.json.encode(answer)


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
            found = _listed(leased, wanted_nodes, place, wanted.limit)
        else:
            found = as_of.page(leased, past, wanted_nodes, place, wanted.limit)
    return found.items, None if found.next is None else _encode(found.next)


def _listed(leased: Store, wanted: NodeFilter, place: Place, limit: int) -> Listed[NodeRow]:
    if wanted == EVERYTHING:
        with leased.reading() as rows:
            ids = ((node_id, node_id, True) for node_id in rows.ids_behind(place.after))
            return _with_rows(rows, page_of(ids, place, limit))

    def look(catalog: Catalog, rows: Rows) -> Listed[NodeRow]:
        page = _with_rows(rows, catalog.listed(wanted, place, limit))
        if not all(map(wanted.matches, page.items)):
            raise CatalogDamaged("it names a node that does not fit")
        return page

    return leased.listing(look)


def _with_rows(rows: Rows, page: Listed[str]) -> Listed[NodeRow]:
    found = rows.nodes(page.items)
    if len(found) != len(page.items):
        raise CatalogDamaged("it names a node that is not there")
    return Listed(list(found.values()), page.next)


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
    return ListedNode(**{name: getattr(node, name) for name in _COMPACT})


_LEFT_OUT = {"content", "attributes", "freshness_at", AUTHOR, "conflicts", "superseded_by"}
_COMPACT = [name for name in ListedNode.__struct_fields__ if name not in _LEFT_OUT]


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
