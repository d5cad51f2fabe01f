"""Undo of forgetting an entity: what was deleted with it is written again, from the store's history."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import msgspec

from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.graph.as_of_resolution import get_caught_up_history
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.deleted_entity_lookup import MAX_DELETED_ENTITY_MEMORIES, find_deleted_entity
from kgserve.memory.entity_name_mentions import NameMentionFinder
from kgserve.memory.retain_forget_recall_models import ForgetAnswer, ForgetRequest
from kgserve.memory.serialization import get_node_name_or_id
from kgserve.projections.history.row_state_history import NO_SEQUENCE_LIMIT, HistoryFile
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION, list_entity_names_and_aliases
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.write_batch import (
    EdgeUpsert,
    NodeUpsert,
    WriteBatch,
    build_node_restore_upsert,
    copy_edge_row_as_upsert,
)
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

MAX_RESTORED_NODES = 100_000
MAX_RESTORED_EDGES_PER_NODE = 100_000
_MAX_EARLIER_STATES = 3
"""States of an entity that are examined for its name; a deleted entity that is forgotten gets one without a name."""


class RestorableEntityData(msgspec.Struct, frozen=True):
    """Nodes and edges that were deleted with an entity, in their last state."""

    nodes: dict[str, NodeRow] = {}
    edges: dict[EdgeKey, EdgeRow] = {}

    def without_existing(self, rows: RowsSnapshot) -> RestorableEntityData:
        """Return the part of it that does not exist, and whose ends would."""
        nodes = {node_id: row for node_id, row in self.nodes.items() if not rows.has(node_id)}
        edges = {
            key: row
            for key, row in self.edges.items()
            if rows.edge(key) is None and all(end in nodes or rows.has(end) for end in key[:2])
        }
        return RestorableEntityData(nodes, edges)

    @property
    def batch(self) -> WriteBatch:
        """The write that restores it."""
        return WriteBatch(
            nodes=[*self._node_puts()], edges=[*self._edge_puts()], touch=False, cost=1_000 * len(self.nodes)
        )

    def _node_puts(self) -> Iterator[NodeUpsert]:
        for row in self.nodes.values():
            yield build_node_restore_upsert(row)

    def _edge_puts(self) -> Iterator[EdgeUpsert]:
        for row in self.edges.values():
            yield msgspec.structs.replace(copy_edge_row_as_upsert(row, row.key), version=None)


def restore_entity(graph: StoreHandle, request: ForgetRequest) -> Future[ForgetAnswer]:
    """Write a forgotten entity again, with the memories and relations that were deleted with it.

    Nodes that exist again are not changed. Raises Conflict without a history, and for an ambiguous name; Gone for a gap
    in the history.
    """
    with graph.lease() as leased:
        restoration = _find(graph, leased, request.entity or "")

    def look(store: OpenStore) -> RestorableEntityData:
        with store.reading() as rows:
            return restoration.without_existing(rows)

    def answer(found: RestorableEntityData, sequence: int) -> ForgetAnswer:
        memories = sorted(row.id for row in found.nodes.values() if row.is_memory)
        return ForgetAnswer(
            memories_removed=0,
            relations_removed=0,
            memories_restored=len(memories),
            relations_restored=len(found.edges),
            ids=memories[:MAX_REPORTED_ITEMS],
            matches=[],
            dry_run=request.dry_run,
            sequence=sequence,
        )

    return graph.submit_prepared_batch(look, lambda _, found: found.batch, answer, dry_run=request.dry_run)


def _find(graph: StoreHandle, store: OpenStore, text: str) -> RestorableEntityData:
    """Return what was deleted with an entity; nothing if it is unknown, or exists."""
    view = get_caught_up_history(graph.graphs.historian, store)
    deleted = find_deleted_entity(graph.graphs.historian, store, text, has_memories=False)
    entity = text if deleted is None else deleted.entity.id
    return view.look(lambda history: _find_in_history(history, entity))


def _find_in_history(history: HistoryFile, entity: str) -> RestorableEntityData:
    states = history.node_states(entity, NO_SEQUENCE_LIMIT, _MAX_EARLIER_STATES)
    if not states or states[0].last is None or states[0].row.is_memory:
        return RestorableEntityData()
    at = states[0].last
    named = next((each for each in states if list_entity_names_and_aliases(each.row)), states[0])
    matcher = NameMentionFinder((*list_entity_names_and_aliases(named.row), get_node_name_or_id(named.row)))
    ended = {state.row.id: state.row for state in history.nodes_ended(at, MAX_RESTORED_NODES)}
    # Kept memories were unlinked in the commit before; an entity that was deleted earlier, with its named state.
    links = {edge.key: edge for last in {at, at - 1, named.last or at} for edge in _about(history, entity, last)}
    wanted = {key[0] for key in links} | {edge.source for edge in _merged(history, entity, at)}
    nodes = {entity: named.row}
    for node_id, row in ended.items():
        owner = (row.extras or NO_EXTRAS).belongs_to
        is_named = any(each is not None and matcher.is_in_node(each) for each in (row, ended.get(owner)))
        if node_id in wanted or owner in wanted or (row.is_memory and is_named):
            nodes.setdefault(node_id, row)
    edges = {edge.key: edge for node_id in nodes for edge in _edges_before(history, node_id, at)}
    return RestorableEntityData(nodes, links | edges)


def _about(history: HistoryFile, entity: str, last: int) -> Iterator[EdgeRow]:
    states = history.edges_ended(entity, IS_ABOUT_RELATION, last, MAX_DELETED_ENTITY_MEMORIES)
    yield from (state.row for state in states)


def _merged(history: HistoryFile, entity: str, last: int) -> Iterator[EdgeRow]:
    states = history.edges_ended(entity, MERGED_INTO_RELATION, last, MAX_DELETED_ENTITY_MEMORIES)
    yield from (state.row for state in states)


def _edges_before(history: HistoryFile, node_id: str, at: int) -> Iterator[EdgeRow]:
    """Yield the edges of a node that ended with a commit."""
    for find in (history.outgoing, history.incoming):
        yield from (state.row for state in find(node_id, at - 1, MAX_RESTORED_EDGES_PER_NODE) if state.last == at)
