"""Edges into other stores: requests for edges with ``to_graph``, and the links reported for a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kgserve.admin.store_admin_models import CrossStoreEdgeCounts, LinkedStoreEdgeCount, LinkedStoresAnswer
from kgserve.errors import InvalidInput
from kgserve.graph.request_bodies import EdgeInput
from kgserve.graph.store_handle import CallerStoreHandles, StoreHandle
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, EdgeKey, EdgeRow
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.model.write_batch import CrossStoreLinkUpsert, EdgeUpsert
from kgserve.stores.open_store import OpenStore


def is_cross_store_edge(graph: StoreHandle, to_graph: str | None) -> bool:
    """Return whether an edge leads into another store, which need not exist.

    Raises InvalidInput for an invalid store name, and NotFound for a store that the caller may not access.
    """
    if not to_graph or to_graph == graph.name:
        return False
    check_store_name(to_graph)
    graph.graphs.caller.require_store(to_graph)
    return True


def split_edges_and_cross_store_links(
    graph: StoreHandle, edges: Sequence[EdgeInput], puts: Iterable[EdgeUpsert]
) -> tuple[list[EdgeUpsert], list[CrossStoreLinkUpsert]]:
    """Split checked edges into edges within the store and links. Raises like `is_cross_store_edge`, with the path."""
    own: list[EdgeUpsert] = []
    links: list[CrossStoreLinkUpsert] = []
    for index, (edge, put) in enumerate(zip(edges, puts, strict=True)):
        if edge.to_graph is None or not _leads_elsewhere(graph, edge.to_graph, index):
            own.append(put)
        else:
            links.append(CrossStoreLinkUpsert(edge.to_graph, put))
    return own, links


def _leads_elsewhere(graph: StoreHandle, to_graph: str, index: int) -> bool:
    try:
        return is_cross_store_edge(graph, to_graph)
    except InvalidInput as error:
        path = f"edges[{index}].to_graph"
        raise InvalidInput.at(path, str(error)) from None


def find_edge_or_cross_store_link(store: OpenStore, key: EdgeKey | CrossStoreLinkKey) -> EdgeRow | None:
    """Return an edge, or the edge of a link; None if it does not exist."""
    with store.reading() as rows:
        if not isinstance(key, CrossStoreLinkKey):
            return rows.edge(key)
        if not rows.linked:
            return None
    return next((row.edge for row in store.links.ask(lambda links, _: [*links.of([key])])), None)


MAX_LINKED_STORES = 1_000


def get_cross_store_link_counts(graph: StoreHandle) -> LinkedStoresAnswer:
    """Return the stores that edges of this store lead into, and those whose edges lead into it, with counts.

    The stores need not exist. Only incoming edges from stores that the caller may access are counted.
    """
    with graph.lease() as store, store.reading_links() as (rows, links):
        outbound = [] if links is None else links.outbound("", MAX_LINKED_STORES + 1)
        sequence = rows.at
    inbound = graph.pool.inbound.counts(graph.name)
    linked = [LinkedStoreEdgeCount(name, count) for name, count in inbound[:MAX_LINKED_STORES]]
    return LinkedStoresAnswer(
        store=graph.name,
        outbound=[LinkedStoreEdgeCount(*each) for each in outbound[:MAX_LINKED_STORES]],
        inbound=linked,
        inbound_seen=graph.pool.inbound.position([each.graph_id for each in linked]),
        truncated=max(len(outbound), len(inbound)) > MAX_LINKED_STORES,
        sequence=sequence,
    )


def count_outbound_cross_store_links(store: OpenStore) -> int:
    """Return the number of edges that lead out of a store."""
    return store.links.ask(lambda links, _: links.state.count) if store.rows.rows().linked else 0


def count_cross_store_links(graphs: CallerStoreHandles, name: str, outbound: int) -> CrossStoreEdgeCounts | None:
    """Return the number of edges that lead out of a store and into it; None if both are 0. Opens no store."""
    inbound = sum(count for _, count in graphs.pool.inbound.counts(name, may_open=False))
    return CrossStoreEdgeCounts(outbound, inbound) if outbound or inbound else None


def to_edge_or_link_key(graph: StoreHandle, edge: EdgeKey, to_graph: str | None) -> EdgeKey | CrossStoreLinkKey:
    """Return the key of an edge of the store, or of a link from it into another store. Raises InvalidInput."""
    if not to_graph or to_graph == graph.name:
        return edge
    return CrossStoreLinkKey(check_store_name(to_graph), edge)
