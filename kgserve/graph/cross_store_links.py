"""Edges into other stores: requests for edges with ``to_graph``, and the links reported for a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kgserve.admin.api import LinkCounts, LinkedStore, LinkManifest
from kgserve.errors import InvalidInput
from kgserve.graph.request_bodies import EdgeInput
from kgserve.graph.store_handle import StoreHandle, StoreHandles
from kgserve.storage.layout import StoreLayout
from kgserve.storage.model.batch import EdgePut, LinkPut
from kgserve.storage.model.rows import EdgeKey, EdgeRow, LinkKey
from kgserve.storage.model.store_names import check_store_name
from kgserve.stores.open_store import OpenStore


def is_cross_store(graph: StoreHandle, to_graph: str | None) -> bool:
    """Return whether an edge leads into another store, which need not exist.

    Raises InvalidInput for an invalid store name, and NotFound for a store that the caller may not access.
    """
    if not to_graph or to_graph == graph.name:
        return False
    check_store_name(to_graph)
    graph.graphs.caller.require_store(to_graph)
    return True


def split_links(
    graph: StoreHandle, edges: Sequence[EdgeInput], puts: Iterable[EdgePut]
) -> tuple[list[EdgePut], list[LinkPut]]:
    """Split checked edges into edges within the store and links. Raises as `is_cross_store` does, with the path."""
    own: list[EdgePut] = []
    links: list[LinkPut] = []
    for index, (edge, put) in enumerate(zip(edges, puts, strict=True)):
        if edge.to_graph is None or not _leads_elsewhere(graph, edge.to_graph, index):
            own.append(put)
        else:
            links.append(LinkPut(edge.to_graph, put))
    return own, links


def _leads_elsewhere(graph: StoreHandle, to_graph: str, index: int) -> bool:
    try:
        return is_cross_store(graph, to_graph)
    except InvalidInput as error:
        path = f"edges[{index}].to_graph"
        raise InvalidInput.at(path, str(error)) from None


def find_edge(store: OpenStore, key: EdgeKey | LinkKey) -> EdgeRow | None:
    """Return an edge, or the edge of a link; None if it does not exist."""
    with store.reading() as rows:
        if not isinstance(key, LinkKey):
            return rows.edge(key)
        if not rows.linked:
            return None
    return next((row.edge for row in store.links.ask(lambda links, _: [*links.of([key])])), None)


MAX_LINKED_STORES = 1_000


def get_link_manifest(graph: StoreHandle) -> LinkManifest:
    """Return the stores that edges of this store lead into, and those whose edges lead into it, with counts.

    The stores need not exist. Only incoming edges from stores that the caller may access are counted.
    """
    with graph.lease() as store, store.reading_links() as (rows, links):
        outbound = [] if links is None else links.outbound("", MAX_LINKED_STORES + 1)
        sequence = rows.at
    inbound = graph.pool.inbound.counts(graph.name)
    linked = [LinkedStore(name, count) for name, count in inbound[:MAX_LINKED_STORES]]
    return LinkManifest(
        store=graph.name,
        outbound=[LinkedStore(*each) for each in outbound[:MAX_LINKED_STORES]],
        inbound=linked,
        inbound_seen=graph.pool.inbound.position([each.graph_id for each in linked]),
        truncated=max(len(outbound), len(inbound)) > MAX_LINKED_STORES,
        sequence=sequence,
    )


def count_links(graphs: StoreHandles, layout: StoreLayout, store: OpenStore | None) -> LinkCounts | None:
    """Return the number of edges that lead out of a store and into it; None if both are 0. Opens no store.

    The outgoing edges of a store that was not closed cleanly, and is not open, are unknown and counted as 0.
    """
    outbound = 0
    if store is None:
        mark = layout.close_mark()
        outbound = 0 if mark is None else max(mark.links, 0)
    elif store.rows.rows().linked:
        outbound = store.links.ask(lambda links, _: links.state.count)
    inbound = sum(count for _, count in graphs.pool.inbound.counts(layout.name, may_open=False))
    return LinkCounts(outbound, inbound) if outbound or inbound else None


def to_edge_or_link_key(graph: StoreHandle, edge: EdgeKey, to_graph: str | None) -> EdgeKey | LinkKey:
    """Return the key of an edge of the store, or of a link from it into another store. Raises InvalidInput."""
    if not to_graph or to_graph == graph.name:
        return edge
    return LinkKey(check_store_name(to_graph), edge)
