"""Ending the validity of a node or an edge, instead of deleting it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from kgserve.errors import FieldError, InvalidInput, NotFound
from kgserve.model.answers import EdgeKeyAnswer
from kgserve.model.batch import EdgePut, NodePut, WriteBatch
from kgserve.model.fields import EdgeExtrasPut, Moment, NodeExtrasPut
from kgserve.model.plan import Report
from kgserve.model.queries import RetireNode
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.model.times import format_time
from kgserve.model.versioned import RetireAnswer, RetireEdgeRequest, RetireRequest
from kgserve.ops.graph import Graph
from kgserve.ops.validate import Faults, check_author, check_label, moment
from kgserve.store.store import Store


def retire_node(graph: Graph, request: RetireNode) -> Future[RetireAnswer]:
    """Sets `valid_to`, now if no time is sent; nothing is deleted, and reads with `valid_at` go by it.

    One that has ended already keeps its end, unless another is sent. Its edges are not there where it is not.

    Raises NotFound, and InvalidInput for an end before the beginning.
    """
    node_id, faults = request.node_id, Faults()
    check_label(node_id, "id", faults)
    valid_to, author = _checked(request, faults)

    def batch(leased: Store) -> WriteBatch:
        with leased.reading() as rows:
            row = rows.node(node_id)
        if row is None:
            raise NotFound(f"there is no node {node_id!r} in store {graph.name!r}")
        end = _end(row, valid_to)
        put = NodePut(0, node_id, extras=NodeExtrasPut(created_by=author, valid_to=end))
        return WriteBatch(nodes=[put], told=True, cost=len(node_id))

    return _retire(graph, batch)


def retire_edge(graph: Graph, request: RetireEdgeRequest) -> Future[RetireAnswer]:
    """Sets `valid_to`, now if no time is sent. One that has ended already keeps its end, unless another is sent.

    Raises NotFound, and InvalidInput for an end before the beginning.
    """
    faults = Faults()
    key: EdgeKey = (request.source, request.target, request.relation_type)
    for text, path in zip(key, EdgeKeyAnswer.__struct_encode_fields__, strict=True):
        check_label(text, path, faults)
    valid_to, author = _checked(request, faults)

    def batch(leased: Store) -> WriteBatch:
        with leased.reading() as rows:
            row = rows.edge(key)
        if row is None:
            raise NotFound(f"there is no edge of type {key[2]!r} from {key[0]!r} to {key[1]!r} in store {graph.name!r}")
        put = EdgePut(0, key, extras=EdgeExtrasPut(created_by=author, valid_to=_end(row, valid_to)))
        return WriteBatch(edges=[put], touch=False, told=True, cost=sum(map(len, key)))

    return _retire(graph, batch)


def _retire(graph: Graph, batch: Callable[[Store], WriteBatch]) -> Future[RetireAnswer]:
    return graph.write(lambda store: store.submit_prepared(lambda: batch(store)), _answer)


def _checked(request: RetireRequest | RetireEdgeRequest, faults: Faults) -> tuple[Moment, str]:
    """The end that is asked for, and who asks. Raises InvalidInput for all faults found."""
    valid_to, author = moment(request.valid_to or None, "valid_to", faults), check_author(request.created_by, faults)
    faults.raise_any()
    return valid_to, author


def _end(row: NodeRow | EdgeRow, asked: Moment) -> int:
    """The end that was asked for; without one now, unless it has ended already."""
    if isinstance(asked, int):
        return asked
    now = time.time_ns() // 1000
    begun = row.extras.valid_from if row.extras is not None else None
    if begun is not None and begun > now:
        message = f"is needed: it begins to be true only at {format_time(begun)}"
        raise InvalidInput(f"valid_to: {message}", (FieldError("valid_to", message),))
    ended = row.extras.valid_to if row.extras is not None else None
    return now if ended is None else min(ended, now)


def _answer(report: Report) -> RetireAnswer:
    row = report.rows[0]
    end = row.extras.valid_to if row.extras is not None else None
    return RetireAnswer(
        valid_to=format_time(end or 0),
        changed=report.nodes_updated + report.edges_updated > 0,
        version=row.version,
        sequence=report.sequence,
    )
