"""What the library's methods about versions, edges by node, and tags do; as `work`."""

# ruff: noqa: D103 - the descriptions have the words
from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from kgserve.library.work import past
from kgserve.model.answers import DeleteEdgeAnswer, SchemaDescription, TagList
from kgserve.model.versioned import (
    EdgeAnswer,
    EdgeList,
    PutNodeAnswer,
    PutNodeRequest,
    PutSubgraphAnswer,
    PutSubgraphRequest,
    RetireAnswer,
    RetireEdgeRequest,
    RetireRequest,
)
from kgserve.ops import delete as delete_ops
from kgserve.ops import edges as edge_ops
from kgserve.ops import retire as retire_ops
from kgserve.ops import schema as schema_ops
from kgserve.ops.put_node import put_node as put_one
from kgserve.ops.put_subgraph import put_subgraph as put_some
from kgserve.views.companions import Opened


def put_node(opened: Opened, store: str, request: PutNodeRequest) -> Future[PutNodeAnswer]:
    return put_one(opened.pool, store, request)


def put_subgraph(opened: Opened, store: str, request: PutSubgraphRequest) -> PutSubgraphAnswer:
    return put_some(opened.pool, store, request)


def retire(
    opened: Opened, store: str, node_id: str, *, valid_to: str | None = None, created_by: str | None = None
) -> Future[RetireAnswer]:
    wanted = RetireRequest(valid_to=valid_to, created_by=created_by)
    return retire_ops.retire_node(opened.pool, store, node_id, wanted)


def retire_edge(opened: Opened, store: str, request: RetireEdgeRequest) -> Future[RetireAnswer]:
    return retire_ops.retire_edge(opened.pool, store, request)


def _edges_of(side: edge_ops.Side) -> Callable[..., EdgeList]:
    """The work of one side; the descriptions have the types of its arguments."""

    def edges(  # noqa: PLR0913 - those of the client
        opened: Opened,
        store: str,
        node_id: str,
        *,
        kinds: Iterable[str] = (),
        limit: int = 100,
        offset: int = 0,
        as_of: int | str | None = None,
        valid_at: str | None = None,
    ) -> EdgeList:
        wanted = edge_ops.EdgesOfNode(
            node_id=node_id, side=side, kinds=tuple(kinds), limit=limit, offset=offset, valid_at=valid_at
        )
        return edge_ops.list_edges(opened.pool, store, wanted, past(opened, as_of))

    return edges


outgoing = _edges_of("outgoing")
incoming = _edges_of("incoming")


def edge(opened: Opened, store: str, edge_id: str) -> EdgeAnswer:
    return edge_ops.get_edge(opened.pool, store, edge_id)


def delete_edge_by_id(opened: Opened, store: str, edge_id: str) -> Future[DeleteEdgeAnswer]:
    return delete_ops.delete_edge(opened.pool, store, edge_ops.key_of(edge_id))


def describe_schema(opened: Opened, store: str) -> SchemaDescription:
    return schema_ops.describe_schema(opened.pool, store)


def list_tags(opened: Opened, store: str, prefix: str = "", *, limit: int = 100) -> TagList:
    return schema_ops.list_tags(opened.pool, store, prefix, limit)
