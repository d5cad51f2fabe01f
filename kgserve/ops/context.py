"""What an agent really wants: the best nodes for a question with what connects them, as text of a given size."""

from __future__ import annotations

from kgserve.model import context as texts
from kgserve.model.answers import ContextAnswer, Edge, Node
from kgserve.model.requests import ContextRequest, SearchRequest
from kgserve.ops import render
from kgserve.ops.graphs import Graph
from kgserve.ops.scene import Moment, at_moment
from kgserve.ops.search import MAX_LIMIT, Finder, await_sequence, opened
from kgserve.store.pool import StorePool
from kgserve.views.history import Historian
from kgserve.views.indexer import Indexer


def context(
    pool: StorePool, indexer: Indexer | None, store: str, request: ContextRequest, historian: Historian | None = None
) -> ContextAnswer:
    """Search, and put hits and the edges between them into text that is never over the budget.

    Raises what `search` raises.
    """
    moment = Moment(request.as_of, request.valid_at, historian)
    with pool.lease(store) as leased:
        indexes = opened(indexer).of(leased)
        await_sequence(indexes, request.at_least, words_alone=False)
        with at_moment(leased, indexes, moment) as scene:
            if scene.at is not None:
                await_sequence(indexes, scene.at, words_alone=False)
            wanted = SearchRequest(query=request.query, types=request.types)
            hits = Finder(scene, wanted).page(max(1, min(request.limit, MAX_LIMIT)), 0)
            nodes = [hit.node for hit in hits]
            edges = _between(scene.graph, nodes)
        sequence = indexes.seen() if scene.at is None else scene.at
        degraded = opened(indexer).embedder.degraded
    write = texts.markdown if request.format == "markdown" else texts.as_json
    made = write(nodes, edges, request.budget)
    return ContextAnswer(
        text=made.text,
        tokens=made.tokens,
        ids=made.ids,
        truncated=made.truncated,
        degraded=degraded,
        index_sequence=sequence,
    )


def _between(graph: Graph, nodes: list[Node]) -> list[Edge]:
    ids = {node.id for node in nodes}
    return [render.edge(row) for node in nodes for row in graph.outgoing(node.id) if row.target in ids]
