"""What is done with all nodes that a filter lets pass, or that are named: count them, get them, delete them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future
from itertools import islice

import msgspec
import numpy as np

from kgserve.errors import InvalidInput
from kgserve.model.answers import CountAnswer, DeleteNodesAnswer, NodesAnswer
from kgserve.model.batch import WriteBatch
from kgserve.model.listing import NodeFilter, Place
from kgserve.model.requests import CountRequest, DeleteNodesRequest, NodesRequest
from kgserve.model.rows import NodeRow
from kgserve.ops import render
from kgserve.ops.graph import Graph
from kgserve.ops.moments import Past, rows_at, valid_moment, world_moment
from kgserve.ops.reading import listed
from kgserve.ops.render import shown_then
from kgserve.ops.validate import Faults, asked_attributes, check_label
from kgserve.rows.edge_page import with_versions
from kgserve.rows.snapshot import Rows
from kgserve.store.store import Store

EDGES_AT_ONCE = 100_000
"""Edges that go with the nodes of one deletion, at most, unless a single node has more."""


def count(graph: Graph, request: CountRequest) -> CountAnswer:
    """Counts the nodes of any of `types`, with all of `tags` and `attributes`; without any of them all nodes.

    `valid_at` left out counts what is true now, as lists do. Where more than 500,000 nodes would have to be looked at,
    `exact` is false, and at least so many fit.
    """
    with graph.lease() as store:
        wanted = _filter(store, request)
        found, sequence = store.listing(
            lambda catalog, rows: (catalog.count(wanted), rows.at), by_attributes=bool(wanted.attributes)
        )
    return CountAnswer(count=found.count, exact=found.exact, sequence=sequence)


def get_nodes(graph: Graph, request: NodesRequest) -> NodesAnswer:
    """The nodes of up to 1,000 ids, without edges: now, or as they were. `missing` names those that are not there.

    Raises Gone for a moment that is no longer known.
    """
    ids = _checked(request.ids)
    moment, past = valid_moment(request.valid_at), graph.past(request.as_of)
    with graph.lease() as store:
        found = _present(store, ids) if past is None else _then(store, past, ids)
        found = [row for row in found if moment is None or row.holds_at(moment)]
        shown = map(render.node, found) if past is None else shown_then(store, past, found)
        nodes = {node.id: node for node in shown}
    return NodesAnswer(nodes=list(nodes.values()), missing=_missing(ids, nodes))


def delete_nodes(graph: Graph, request: DeleteNodesRequest) -> Future[DeleteNodesAnswer]:
    """Deletes the nodes that all filters let pass, with their edges: the first of them by id, at most `limit`.

    One of `ids`, `types`, `tags` and `attributes` must be there and not empty. What goes in one request goes in one
    commit, with 100,000 edges at most unless a single node has more; `more` tells whether any are left. With a memory
    go its former versions, which are not counted. With `dry_run` nothing is deleted, and the answer is what it would
    be. `valid_at` left out deletes what is true now.

    Raises InvalidInput without a filter, NotFound for the store.
    """
    if not (request.ids or request.types or request.tags or request.attributes):
        raise InvalidInput("a filter is needed: ids, types, tags or attributes; DELETE of the store deletes everything")
    with graph.lease() as store:
        wanted = _filter(store, request)
        deletion = _Deletion(request, wanted, _candidates(store, wanted, request))

    def look(leased: Store) -> _Chosen:
        with leased.reading() as rows:
            return deletion.chosen(rows)

    def batch(_: Store, chosen: _Chosen) -> WriteBatch:
        return WriteBatch(delete_nodes=chosen.ids, cost=sum(map(len, chosen.ids)) + 100 * chosen.edges)

    return graph.prepared(look, batch, deletion.answer, dry_run=request.dry_run)


class _Chosen(msgspec.Struct, frozen=True):
    """What goes: nodes with so many edges; ``more`` if others fit. ``unfit`` are candidates that do not."""

    ids: list[str]
    edges: int
    more: bool
    unfit: list[str]


class _Deletion(msgspec.Struct, frozen=True):
    """A deletion: the nodes among ``candidates`` that still fit when it comes to it."""

    request: DeleteNodesRequest
    wanted: NodeFilter
    candidates: list[str]

    def chosen(self, rows: Rows) -> _Chosen:
        """What is to go of the rows that are there now."""
        found = rows.nodes(self.candidates)
        fitting = {node_id: None for node_id, row in found.items() if self.wanted.matches(row)}
        ids, edges = _bounded(rows, islice(fitting, self.request.limit))
        return _Chosen(ids, edges, len(ids) < len(fitting), _missing(self.candidates, fitting))

    def answer(self, chosen: _Chosen, sequence: int) -> DeleteNodesAnswer:
        """What callers are told."""
        return DeleteNodesAnswer(
            dry_run=self.request.dry_run,
            count=len(chosen.ids),
            ids=chosen.ids,
            edges_deleted=chosen.edges,
            missing=chosen.unfit if self.request.ids else [],
            more=chosen.more,
            sequence=sequence,
        )


def _bounded(rows: Rows, nodes: Iterable[str]) -> tuple[list[str], int]:
    """The first of some nodes that may go at once, and how many edges go with them."""
    ids: list[str] = []
    edges: set[int] = set()
    for node_id in nodes:
        more = _edges_of(rows, node_id) - edges
        if ids and len(edges) + len(more) > EDGES_AT_ONCE:
            break
        edges |= more
        ids.append(node_id)
    return ids, len(edges)


def _edges_of(rows: Rows, node_id: str) -> set[int]:
    """The numbers of the edges that go with a node, those of its former versions among them."""
    node = np.array([rows.number(each) for each in with_versions(rows, (node_id,))])
    found = [rows.around(node, outgoing=outgoing) for outgoing in (True, False)]
    return {number for each in found for number in (*each.base.tolist(), *(changed for changed, _ in each.changed))}


def _candidates(store: Store, wanted: NodeFilter, request: DeleteNodesRequest) -> list[str]:
    """Ids of nodes that may fit, one more than may be deleted: those that are named, or the first that fit now."""
    if request.ids:
        return _checked(request.ids)
    found: list[str] = []
    place: Place | None = Place()
    while place is not None and len(found) <= request.limit:
        page = listed(store, wanted, place, request.limit + 1 - len(found))
        found += [row.id for row in page.items]
        place = page.next
    return found


def _filter(store: Store, request: CountRequest | DeleteNodesRequest) -> NodeFilter:
    types, tags = tuple(_unique(request.types or ())), tuple(_unique(request.tags or ()))
    return NodeFilter(types, tags, world_moment(request.valid_at, store), asked_attributes(request.attributes))


def _checked(ids: Iterable[str]) -> list[str]:
    """Ids, each once. Raises InvalidInput for one that none can be."""
    faults = Faults()
    unique = _unique(ids)
    for place, node_id in enumerate(unique):
        check_label(node_id, f"ids[{place}]", faults)
    faults.raise_any()
    return unique


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _missing(ids: Iterable[str], found: Collection[str]) -> list[str]:
    there = frozenset(found)
    return [node_id for node_id in ids if node_id not in there]


def _present(store: Store, ids: list[str]) -> list[NodeRow]:
    with store.reading() as rows:
        return [*rows.nodes(ids).values()]


def _then(store: Store, past: Past, ids: list[str]) -> list[NodeRow]:
    follower, at = past.of(store)
    return follower.look(lambda history: [*rows_at(history, ids, at)])
