"""Calls of use cases, as interfaces make them, for tests that hold a pool."""

from __future__ import annotations

from typing import Any

from kgserve.graph.answers import NodeAnswer, NodePage, TraverseAnswer
from kgserve.graph.node_reads import get_node, list_nodes, traverse
from kgserve.graph.query_parameters import NodeRequest, NodesQuery
from kgserve.graph.request_bodies import TraverseRequest
from kgserve.graph.store_handle import StoreHandle, StoreHandles, to_answer_struct
from kgserve.projections.history_follower import HistoryWorker
from kgserve.projections.indexer import IndexWorker
from kgserve.stores.pool import StorePool


def graph_of(
    pool: StorePool, store: str, indexer: IndexWorker | None = None, historian: HistoryWorker | None = None
) -> StoreHandle:
    return StoreHandles(pool, indexer, historian).graph(store)


def node_of(of: StoreHandle, node_id: str, **wanted: Any) -> NodeAnswer:
    return to_answer_struct(get_node(of, NodeRequest(node_id=node_id, **wanted)), NodeAnswer)


def nodes_of(of: StoreHandle, wanted: NodesQuery) -> NodePage:
    return to_answer_struct(list_nodes(of, wanted), NodePage)


def walked(of: StoreHandle, request: TraverseRequest) -> TraverseAnswer:
    return to_answer_struct(traverse(of, request), TraverseAnswer)
