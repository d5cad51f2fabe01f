"""Reading single nodes, and listing them."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
import numpy as np

from kgserve.catalog.catalog import Catalog
from kgserve.errors import FieldError, InvalidInput, NotFound
from kgserve.model.answers import ListedNode, ListedPage, Node, NodeAnswer, NodePage
from kgserve.model.fields import AUTHOR
from kgserve.model.listing import EVERYTHING, Listed, NodeFilter, Place, page_of
from kgserve.model.queries import MAX_OFFSET, NodeRequest, NodesQuery
from kgserve.model.rows import NodeRow
from kgserve.ops import as_of, render
from kgserve.ops.graph import Encoded, Graph
from kgserve.ops.history import node_version
from kgserve.ops.moments import Past
from kgserve.ops.validate import Faults, check_label
from kgserve.ops.validity import MAX_SHOWN, valid_moment, when_asked, world_moment
from kgserve.rows.edge_page import held_around
from kgserve.rows.snapshot import Rows
from kgserve.rows.walk import TooLong
from kgserve.store.catalog_view import CatalogDamaged
from kgserve.store.store import Store


def get_node(graph: Graph, request: NodeRequest) -> Encoded[NodeAnswer]:
    """The node, and at most 1,000 of its edges in each direction: now, or as it was; a version comes without edges.

    Raises NotFound, and Gone for a moment that is no longer known.
    """
    if request.version is not None:
        if request.as_of is not None or request.valid_at:
            raise InvalidInput("version: goes with neither as_of nor valid_at")
        return Encoded(msgspec.json.encode(node_version(graph, request.node_id, request.version)))
    moment, past, node_id = valid_moment(request.valid_at), graph.past(request.as_of), request.node_id
    faults = Faults()
    check_label(node_id, "id", faults)
    faults.raise_any()
    with graph.lease() as store:
        found = (
            _present(store, node_id, moment, graph.most_edges) if past is None else _past(store, past, node_id, moment)
        )
    if found is None:
        raise NotFound(f"there is no node {node_id!r} in store {graph.name!r}{when_asked(past, request.valid_at)}")
    return Encoded(found)


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


def list_nodes(graph: Graph, request: NodesQuery) -> NodePage | ListedPage:
    """Pages follow the order of ids. Writes made while paging neither repeat a node nor hide one that stays.

    A page that has looked at 20,000 nodes ends there: it may be short, or empty, with a `next_cursor`.

    Raises InvalidInput for a cursor that no page gave, and Gone for a moment that is no longer known.
    """
    rows, next_cursor = _page(graph, request)
    nodes = [render.node(row) for row in rows]
    if request.compact:
        return ListedPage(nodes=list(map(_compact, nodes)), next_cursor=next_cursor)
    return NodePage(nodes=nodes, next_cursor=next_cursor)


def _page(graph: Graph, wanted: NodesQuery) -> tuple[list[NodeRow], str | None]:
    place, past = _checked(wanted), graph.past(wanted.as_of)
    types, tags = tuple(filter(None, (*wanted.type, *wanted.kind))), tuple(filter(None, dict.fromkeys(wanted.tag)))
    with graph.lease() as leased:
        wanted_nodes = NodeFilter(types, tags, world_moment(wanted.valid_at, leased, past))
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


def _checked(wanted: NodesQuery) -> Place:
    faults = Faults()
    if wanted.offset and wanted.cursor:
        faults("offset", "goes with the first page only; the cursor knows how far that was")
    faults.raise_any()
    return _decode(wanted.cursor) if wanted.cursor else Place("", wanted.offset)


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
