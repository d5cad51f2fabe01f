"""Upserting a batch of nodes and edges."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from kgserve.errors import FieldError
from kgserve.model.answers import InjectAnswer, Skipped
from kgserve.model.batch import EdgePut, NodePut, WriteBatch
from kgserve.model.fields import NodeExtrasPut
from kgserve.model.plan import Report
from kgserve.model.requests import InjectRequest
from kgserve.ops.graph import Graph
from kgserve.ops.validate import Fault, Faults, edge_put, node_put
from kgserve.settings import Settings

_Request = TypeVar("_Request")
_Put = TypeVar("_Put")


def inject(graph: Graph, request: InjectRequest) -> Future[InjectAnswer]:
    """Creates the store if it does not exist.

    Sending the same batch again changes nothing. A field that is left out keeps its stored value; an explicit empty
    one clears it. An edge with a missing endpoint is skipped and listed. Once answered, the whole batch is on disk. Of
    a key that a JSON object holds twice, and of a node or edge that a batch holds twice, the last one counts.

    Raises InvalidInput, whose `errors` name every place, TooLarge, Unavailable and StorageFull; then nothing
    is written.
    """
    nodes, edges = request.nodes or [], request.edges or []
    _check_sizes(len(nodes), len(edges), graph.graphs.settings)
    faults = Faults()
    node_puts = _checked(nodes, "nodes", node_put, faults.errors)
    edge_puts = _checked(edges, "edges", edge_put, faults.errors)
    faults.raise_any()
    batch = WriteBatch(nodes=node_puts, edges=edge_puts, touch=request.touch, cost=cost(node_puts, edge_puts))

    def answer(report: Report) -> InjectAnswer:
        return inject_answer(report, len(nodes), len(edges))

    return graph.submit(batch, answer, create=True)


def cost(nodes: list[NodePut], edges: list[EdgePut]) -> int:
    """About the bytes that rows take: their texts and something for the rest."""
    texts = sum(len(n.content or "") + len(n.attributes or "") for n in nodes)
    texts += sum(len(e.own) for e in edges if e.own is not None)
    texts += sum(_extras_cost(n.extras) for n in nodes if n.extras is not None)
    return texts + 300 * (len(nodes) + len(edges))


def _extras_cost(extras: NodeExtrasPut) -> int:
    return len(extras.summary or "") + sum(map(len, extras.tags or ())) + 100


def _check_sizes(nodes: int, edges: int, settings: Settings) -> None:
    faults = Faults()
    if nodes > settings.max_nodes:
        faults("nodes", f"has {nodes} entries; at most {settings.max_nodes} are taken at once")
    if edges > settings.max_edges:
        faults("edges", f"has {edges} entries; at most {settings.max_edges} are taken at once")
    faults.raise_any()


def _checked(
    requests: list[_Request], name: str, check: Callable[[int, _Request, Fault], _Put], errors: list[FieldError]
) -> list[_Put]:
    puts: list[_Put] = []
    for index, request in enumerate(requests):
        faults = Faults(f"{name}[{index}].")
        puts.append(check(index, request, faults))
        errors += faults.errors
    return puts


def inject_answer(report: Report, nodes_sent: int, edges_sent: int) -> InjectAnswer:
    """What callers are told of a write."""
    skipped = [
        Skipped(index=row.index, source=row.key[0], target=row.key[1], relation_type=row.key[2], reason=row.reason)
        for row in report.skipped
        if row.key is not None
    ]
    return InjectAnswer(
        nodes_sent=nodes_sent,
        edges_sent=edges_sent,
        nodes_created=report.nodes_created,
        nodes_updated=report.nodes_updated,
        nodes_unchanged=report.nodes_unchanged,
        edges_created=report.edges_created,
        edges_updated=report.edges_updated,
        edges_unchanged=report.edges_unchanged,
        edges_skipped=skipped,
        edges_skipped_count=report.skipped_count,
        sequence=report.sequence,
    )
