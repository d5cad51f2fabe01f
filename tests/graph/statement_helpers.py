"""Helpers that change a store by Cypher statements and read the result."""

from __future__ import annotations

from typing import Any

import msgspec

from kgserve.graph.answers import CypherAnswer, CypherChanges
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.mutations import upsert_nodes_and_edges
from kgserve.graph.request_bodies import CypherRequest, InjectRequest
from kgserve.stores.pool import StorePool
from tests.graph.bare_engine import EDGE, NODE, Rows, plain
from tests.graphs import graph_of
from tests.stores.writing import NAME, PATIENCE

NODES = [{"id": name, "type": "t", "content": name} for name in "abc"]


EDGES = [{"from": "a", "to": "b", "relation_type": "R", "weight": 0.5, "attributes": {"k": 1}}]


def fill(pool: StorePool, nodes: list[dict[str, Any]] = NODES, edges: list[dict[str, Any]] = EDGES) -> None:
    upsert_nodes_and_edges(
        graph_of(pool, NAME), msgspec.convert({"nodes": nodes, "edges": edges}, InjectRequest)
    ).result(PATIENCE)


def write(pool: StorePool, query: str, **more: Any) -> CypherAnswer:
    return run_cypher_request(graph_of(pool, NAME), CypherRequest(query=query, mode="write", **more))


def changed(pool: StorePool, query: str, **more: Any) -> dict[str, int]:
    """Return the changes of a statement, without zeros."""
    changes = write(pool, query, **more).changes
    assert isinstance(changes, CypherChanges)
    found = msgspec.structs.asdict(changes)
    with pool.lease(NAME) as store:
        assert found.pop("sequence") == store.state.sequence
    return {name: count for name, count in found.items() if count}


def rows(pool: StorePool) -> tuple[Rows, Rows]:
    """Return all nodes and edges; attributes of edges without the times that kgserve maintains."""
    with pool.lease(NAME) as store, store.engine.reading() as session:
        return plain(session.rows(NODE)), plain(session.rows(EDGE))


def single_value(pool: StorePool, query: str) -> Any:
    [[value]] = run_cypher_request(graph_of(pool, NAME), CypherRequest(query=query)).rows
    return value
