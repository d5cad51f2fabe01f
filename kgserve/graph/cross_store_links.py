"""Edges into other stores: what callers send as an edge with ``to_graph``, and what they get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kgserve.admin.api import LinkCounts, LinkedStore, LinkManifest
from kgserve.errors import InvalidInput
from kgserve.graph.handle import Graph, Graphs
from kgserve.graph.requests import EdgeInput
from kgserve.storage.layout import Layout
from kgserve.storage.model.batch import EdgePut, LinkPut
from kgserve.storage.model.rows import EdgeKey, EdgeRow, LinkKey
from kgserve.storage.model.store_names import check_store_name
from kgserve.stores.store import OpenStore


def leads_elsewhere(graph: Graph, to_graph: str | None) -> bool:
    """Whether an edge leads into another store than its own, which the caller sees or would see, be it there or not.

    Raises InvalidInput for what no store can be called, and NotFound for a store of others.
    """
    if not to_graph or to_graph == graph.name:
        return False
    check_store_name(to_graph)
    graph.graphs.caller.require_store(to_graph)
    return True


def parted(graph: Graph, edges: Sequence[EdgeInput], puts: Iterable[EdgePut]) -> tuple[list[EdgePut], list[LinkPut]]:
    """Checked edges, and those of them that are links. Raises what `leads_elsewhere` does, with the place."""
    own: list[EdgePut] = []
    links: list[LinkPut] = []
    for index, (edge, put) in enumerate(zip(edges, puts, strict=True)):
        if edge.to_graph is None or not _leads_elsewhere(graph, edge.to_graph, index):
            own.append(put)
        else:
            links.append(LinkPut(edge.to_graph, put))
    return own, links


def _leads_elsewhere(graph: Graph, to_graph: str, index: int) -> bool:
    try:
        return leads_elsewhere(graph, to_graph)
    except InvalidInput as error:
        path = f"edges[{index}].to_graph"
        raise InvalidInput.at(path, str(error)) from None


def edge_of(store: OpenStore, key: EdgeKey | LinkKey) -> EdgeRow | None:
    """An edge or a link, without the store that it leads into; None if it is not there."""
    with store.reading() as rows:
        if not isinstance(key, LinkKey):
            return rows.edge(key)
        if not rows.linked:
            return None
    return next((row.edge for row in store.links.ask(lambda links, _: [*links.of([key])])), None)


MAX_LINKED_STORES = 1_000


def store_links(graph: Graph) -> LinkManifest:
    """Where edges of the store lead, and whose edges lead into it, with how many; stores need not be there to be named.

    Only stores that the caller sees are told of whose edges lead into it.
    """
    with graph.lease() as store, store.reading_links() as (rows, links):
        outbound = [] if links is None else links.outbound("", MAX_LINKED_STORES + 1)
        sequence = rows.at
    inbound = graph.pool.inbound.counts(graph.name)
    told = [LinkedStore(name, count) for name, count in inbound[:MAX_LINKED_STORES]]
    return LinkManifest(
        store=graph.name,
        outbound=[LinkedStore(*each) for each in outbound[:MAX_LINKED_STORES]],
        inbound=told,
        inbound_seen=graph.pool.inbound.position([each.graph_id for each in told]),
        truncated=max(len(outbound), len(inbound)) > MAX_LINKED_STORES,
        sequence=sequence,
    )


def link_counts(graphs: Graphs, layout: Layout, store: OpenStore | None) -> LinkCounts | None:
    """How many edges lead from a store into others, and into it; None where there are none. No store is opened for it.

    Of one that was not closed cleanly, and is not open, those that lead from it are not known, and count as none.
    """
    outbound = 0
    if store is None:
        mark = layout.close_mark()
        outbound = 0 if mark is None else max(mark.links, 0)
    elif store.rows.rows().linked:
        outbound = store.links.ask(lambda links, _: links.state.count)
    inbound = sum(count for _, count in graphs.pool.inbound.counts(layout.name, may_open=False))
    return LinkCounts(outbound, inbound) if outbound or inbound else None


def key_of(graph: Graph, edge: EdgeKey, to_graph: str | None) -> EdgeKey | LinkKey:
    """What a caller names: an edge of the store, or one that leads from it into another one. Raises InvalidInput."""
    if not to_graph or to_graph == graph.name:
        return edge
    return LinkKey(check_store_name(to_graph), edge)
