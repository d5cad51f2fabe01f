"""Calls of use cases, as interfaces make them, for tests that hold a pool."""

from __future__ import annotations

from typing import Any

from kgserve.graph.answers import NodePage, NodeWithEdgesAnswer, TraverseAnswer
from kgserve.graph.node_reads import get_node, list_nodes, traverse_graph
from kgserve.graph.request_bodies import TraverseRequest
from kgserve.graph.store_handle import CallerStoreHandles, StoreHandle, decode_answer_struct
from kgserve.graph.url_parameters import GetNodeRequest, NodeListParameters
from kgserve.projections.history_follower import HistoryWorker
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.stores.pool import StorePool


def graph_of(
    pool: StorePool, store: str, indexer: TextIndexWorker | None = None, historian: HistoryWorker | None = None
) -> StoreHandle:
    return CallerStoreHandles(pool, indexer, historian).graph(store)


def node_of(of: StoreHandle, node_id: str, **wanted: Any) -> NodeWithEdgesAnswer:
    return decode_answer_struct(get_node(of, GetNodeRequest(node_id=node_id, **wanted)), NodeWithEdgesAnswer)


def nodes_of(of: StoreHandle, wanted: NodeListParameters) -> NodePage:
    return decode_answer_struct(list_nodes(of, wanted), NodePage)


def walked(of: StoreHandle, request: TraverseRequest) -> TraverseAnswer:
    return decode_answer_struct(traverse_graph(of, request), TraverseAnswer)
