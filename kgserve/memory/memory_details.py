"""A memory, or one of its versions, with its parent, children, relationships and former versions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import asdict, replace

from kgserve.errors import NotFound
from kgserve.graph.as_of_graph import AsOfGraph, make_history_opener_for_lease
from kgserve.graph.as_of_resolution import get_caught_up_history
from kgserve.graph.former_versions import is_former_version_id, parse_version_id_sequence
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.entity_operations import convert_edges_to_entity_relations
from kgserve.memory.hierarchy import to_memories_with_depth
from kgserve.memory.hierarchy_models import MemoryDetailsRequest
from kgserve.memory.memory_crud import get_memory
from kgserve.memory.memory_models import Memory, ReadMemoryRequest
from kgserve.memory.relationships import FormerMemory, MemoryDetails, MemoryRelationship
from kgserve.memory.serialization import build_memories_from_rows, now_in_microseconds
from kgserve.memory.short_memory_ids import expand_short_memory_ids
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.history.row_state_history import RowStateInterval
from kgserve.projections.memory_index.built_in_relation_types import STRUCTURAL_RELATIONS
from kgserve.projections.memory_index.hierarchy import MemoryAtDepth
from kgserve.projections.memory_index.memory_index_file import MemoryIndexSqliteFile
from kgserve.storage.model.merge_redirects import is_node_never_valid
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow
from kgserve.storage.model.soft_delete import is_current_unwithdrawn_memory
from kgserve.storage.rows.edge_pages import exclude_edges_of_types
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

MAX_SHOWN_VERSIONS = 100
MAX_SHOWN_RELATIONSHIPS = 100
"""Maximum number of relationships in the answer, the strongest ones."""
MAX_RELATIONSHIPS_COMPARED = 1_000
"""Maximum number of relations per direction that are examined for these."""


def get_memory_details(graph: StoreHandle, request: MemoryDetailsRequest) -> MemoryDetails:
    """Return a memory with its parent, number of children, relationships and former versions.

    The id of a version, as listed by a history, returns that version, which `belongs_to` the memory. Memories count as
    used, versions do not; nor with `touch` false or a read-only key. Raises NotFound.
    """
    request = expand_short_memory_ids(graph, request)
    with graph.lease() as store:
        with store.reading() as rows:
            head = _head(rows, request.memory_id)
        if head is not None:
            return _version(graph, store, head, request.memory_id)
        return _whole(store, get_memory(graph, ReadMemoryRequest(memory_id=request.memory_id, touch=request.touch)))


def _whole(store: OpenStore, memory: Memory) -> MemoryDetails:
    now, memory_id, parent_id = now_in_microseconds(), memory.id, memory.parent_id

    def look(memories: MemoryIndexSqliteFile, rows: RowsSnapshot) -> MemoryDetails:
        above = rows.node(parent_id) if isinstance(parent_id, str) else None
        former = rows.nodes([each.id for each in memories.versions(memory_id, MAX_SHOWN_VERSIONS)])
        return MemoryDetails(
            **asdict(memory),
            parent=None
            if above is None or not is_current_unwithdrawn_memory(above)
            else build_memories_from_rows(store, rows, [above], now)[0],
            children=memories.count_children(memory_id, now),
            relationships=_relationships(store, rows, memory_id, now),
            versions=[_former(row) for row in former.values()],
        )

    return store.memories.ask(look)


def _former(row: NodeRow) -> FormerMemory:
    extras = row.extras
    times = (extras.valid_from, extras.valid_to) if extras is not None else (None, None)
    since, until = (None if time is None else format_rfc3339_timestamp(time) for time in times)
    ended = (extras.ended or None) if extras is not None else None
    return FormerMemory(id=row.id, content=row.content, ended=ended, valid_from=since, valid_to=until)


def _relationships(store: OpenStore, rows: RowsSnapshot, memory_id: str, now: int) -> list[MemoryRelationship]:
    """Return the strongest relationships of a memory that are valid now."""
    number = np.array([rows.number(memory_id)])
    edges: dict[tuple[str, str, str], EdgeRow] = {}
    for outgoing in (True, False):
        found = exclude_edges_of_types(rows, rows.edges_around(number, outgoing=outgoing), STRUCTURAL_RELATIONS)
        valid = rows.filter_valid_edges(found, now).first(MAX_RELATIONSHIPS_COMPARED)
        edges |= {edge.key: edge for edge in rows.rows_of(valid)}
    ends = rows.nodes({end for key in edges for end in key[:2]})
    joining = [edge for edge in edges.values() if all(_is_active(ends.get(end)) for end in edge.key[:2])]
    joining.sort(key=lambda edge: (-edge.weight, edge.key))
    return [
        MemoryRelationship(
            id=each.id,
            source_id=each.source,
            target_id=each.target,
            type=each.relation_type,
            strength=each.strength,
            confidence=each.confidence,
            effective_confidence=each.effective_confidence,
            context=each.context,
            created_at=each.created_at,
            updated_at=each.updated_at,
        )
        for each in convert_edges_to_entity_relations(store, rows, joining[:MAX_SHOWN_RELATIONSHIPS])
    ]


def _is_active(row: NodeRow | None) -> bool:
    return row is not None and (
        is_current_unwithdrawn_memory(row) if row.is_memory else not is_node_never_valid(row.extras)
    )


# Versions


def _head(rows: RowsSnapshot, memory_id: str) -> NodeRow | None:
    """Return the memory if an id names a version without a node of its own; None for any other id."""
    if rows.has(memory_id) or not is_former_version_id(memory_id):
        return None
    row = rows.node(memory_id.rpartition("@")[0])
    return row if is_current_unwithdrawn_memory(row) else None


def _version(graph: StoreHandle, store: OpenStore, head: NodeRow, version_id: str) -> MemoryDetails:
    """Return a version of a memory. Raises NotFound."""
    sequence = parse_version_id_sequence(version_id, 0)
    if sequence == head.sequence and version_id == f"{head.id}@{sequence}":
        found = _whole(store, get_memory(graph, ReadMemoryRequest(memory_id=head.id, touch=False)))
        return replace(found, id=version_id, belongs_to=head.id)
    follower = get_caught_up_history(graph.graphs.historian, store)
    states: Sequence[RowStateInterval[NodeRow]] = follower.look(
        lambda history: history.node_states_after(head.id, sequence - 1, 1)
    )
    if not states or version_id != f"{head.id}@{states[0].first}" or not states[0].row.is_memory:
        raise NotFound(f"memory {head.id!r} has no version {version_id!r}; its history lists the existing versions")
    [state] = states
    if state.last is None:
        found = _whole(store, get_memory(graph, ReadMemoryRequest(memory_id=head.id, touch=False)))
        return replace(found, id=version_id, belongs_to=head.id)
    reader = AsOfGraph(make_history_opener_for_lease(store, follower), state.last - 1, None, state.started)
    [placed] = to_memories_with_depth(store, reader, [MemoryAtDepth(head.id, 0)])
    fields = {name: value for name, value in asdict(placed).items() if name != "depth"}
    extras = state.row.extras or NO_EXTRAS
    if extras.valid_to is None and state.ended is not None:
        fields["valid_to"] = format_rfc3339_timestamp(state.ended)
    fields |= {"id": version_id, "belongs_to": head.id}
    return MemoryDetails(**fields, parent=None, children=0, relationships=[], versions=[])
