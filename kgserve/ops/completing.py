"""What somebody may be about to type: names that start so, each found at its place in an order, without a scan."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice, takewhile

from kgserve.catalog.catalog import Catalog
from kgserve.model.fields import MAX_ID_BYTES
from kgserve.ops.graph import Graph, Graphs

MOST = 100
"""Names that are given at once."""


def stores_like(graphs: Graphs, start: str) -> list[str]:
    """The stores whose names start so, in order; at most one more than `MOST`."""
    return [name for name in graphs.pool.names() if name.startswith(start)][: MOST + 1]


def ids_like(graph: Graph, start: str) -> list[str]:
    """The ids that start so, in order; at most one more than `MOST`. Raises NotFound for the store."""
    if not _may_begin(start):
        return []
    with graph.lease() as store, store.reading() as rows:
        behind = takewhile(lambda node_id: node_id.startswith(start), rows.ids_behind(start))
        return list(islice(chain([start] if rows.has(start) else [], behind), MOST + 1))


def types_like(graph: Graph, start: str) -> list[str]:
    """The node types that start so, the most frequent first; at most one more than `MOST`. Raises NotFound."""
    return _listed(graph, start, lambda catalog: catalog.types_like(start, MOST + 1))


def tags_like(graph: Graph, start: str) -> list[str]:
    """The tags that start so, the most frequent first; at most one more than `MOST`. Raises NotFound."""
    return _listed(graph, start, lambda catalog: [each.tag for each in catalog.tags(start, MOST + 1)])


def _listed(graph: Graph, start: str, question: Callable[[Catalog], list[str]]) -> list[str]:
    if not _may_begin(start):
        return []
    with graph.lease() as store:
        return store.listing(lambda catalog, _: question(catalog))


def _may_begin(start: str) -> bool:
    """Whether a name can start so at all."""
    try:
        return len(start.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        return False
