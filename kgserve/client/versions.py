"""What a client can ask of nodes as versions: writing with regard to what was seen, ends, edges by node, tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kgserve.client.wire import Call, Route
from kgserve.model.answers import DeleteEdgeAnswer, SchemaDescription, TagList
from kgserve.model.versioned import (
    EdgeAnswer,
    EdgeList,
    EdgeSpec,
    NodeSpec,
    PutNodeAnswer,
    PutNodeRequest,
    PutSubgraphAnswer,
    RetireAnswer,
    RetireEdgeRequest,
    RetireRequest,
)

_STORE = "/api/memory/{store}"
_NODE = f"{_STORE}/nodes/{{id}}"

PUT_NODE = Route("POST", f"{_STORE}/nodes", PutNodeAnswer)
PUT_SUBGRAPH = Route("POST", f"{_STORE}/subgraph", PutSubgraphAnswer)
RETIRE = Route("POST", f"{_NODE}/retire", RetireAnswer)
RETIRE_EDGE = Route("POST", f"{_STORE}/edges/retire", RetireAnswer)
OUTGOING = Route("GET", f"{_NODE}/outgoing", EdgeList)
INCOMING = Route("GET", f"{_NODE}/incoming", EdgeList)
EDGE = Route("GET", f"{_STORE}/edges/{{id}}", EdgeAnswer)
DELETE_EDGE = Route("DELETE", f"{_STORE}/edges/{{id}}", DeleteEdgeAnswer)
SCHEMA = Route("GET", f"{_STORE}/schema", SchemaDescription)
TAGS = Route("GET", f"{_STORE}/tags", TagList)


def put_node(store: str, node: Mapping[str, Any] | PutNodeRequest) -> Call[PutNodeAnswer]:
    """Write a version of a node, whole: what is left out is empty. Without an id a new node is made; never repeated.

    Raises ConflictManual, with the node as written, when it is kept beside other heads, and KindNotAllowed.
    """
    return PUT_NODE.call({"store": store}, body=node, idempotent=False)


def put_subgraph(
    store: str,
    nodes: Iterable[Mapping[str, Any] | NodeSpec] = (),
    edges: Iterable[Mapping[str, Any] | EdgeSpec] = (),
) -> Call[PutSubgraphAnswer]:
    """Write at most 50 nodes and 100 edges, each by itself: one result for each, in order. It is never repeated."""
    return PUT_SUBGRAPH.call({"store": store}, body={"nodes": list(nodes), "edges": list(edges)}, idempotent=False)


def retire(
    store: str, node_id: str, *, valid_to: str | None = None, created_by: str | None = None
) -> Call[RetireAnswer]:
    """Say until when a node was true, by default now; it stays, and reads with ``valid_at`` go by it."""
    return RETIRE.call({"store": store, "id": node_id}, body=RetireRequest(valid_to=valid_to, created_by=created_by))


def retire_edge(
    store: str,
    source: str,
    target: str,
    relation_type: str,
    *,
    valid_to: str | None = None,
    created_by: str | None = None,
) -> Call[RetireAnswer]:
    """Say until when an edge was true, by default now."""
    body = RetireEdgeRequest(
        source=source, target=target, relation_type=relation_type, valid_to=valid_to, created_by=created_by
    )
    return RETIRE_EDGE.call({"store": store}, body=body)


def outgoing(
    store: str,
    node_id: str,
    *,
    kinds: Iterable[str] = (),
    limit: int = 100,
    offset: int = 0,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> Call[EdgeList]:
    """The edges that start at a node, by ordinal and then by age, of some relation types or of all."""
    query = {"kind": list(kinds), "limit": limit, "offset": offset, "as_of": as_of, "valid_at": valid_at}
    return OUTGOING.call({"store": store, "id": node_id}, query)


def incoming(
    store: str,
    node_id: str,
    *,
    kinds: Iterable[str] = (),
    limit: int = 100,
    offset: int = 0,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> Call[EdgeList]:
    """The edges that end at a node, in the same way."""
    query = {"kind": list(kinds), "limit": limit, "offset": offset, "as_of": as_of, "valid_at": valid_at}
    return INCOMING.call({"store": store, "id": node_id}, query)


def edge(store: str, edge_id: str) -> Call[EdgeAnswer]:
    """One edge by its id. Raises NotFound."""
    return EDGE.call({"store": store, "id": edge_id})


def delete_edge_by_id(store: str, edge_id: str) -> Call[DeleteEdgeAnswer]:
    """Delete one edge by its id; one that does not exist is no error."""
    return DELETE_EDGE.call({"store": store, "id": edge_id})


def describe_schema(store: str) -> Call[SchemaDescription]:
    """The types and tags that are in use, the most frequent first."""
    return SCHEMA.call({"store": store})


def list_tags(store: str, prefix: str = "", *, limit: int = 100) -> Call[TagList]:
    """The most frequent tags that start with a prefix, and how many nodes have each."""
    return TAGS.call({"store": store}, {"prefix": prefix, "limit": limit})
