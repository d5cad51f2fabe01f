"""Ancestors and descendants of a memory, currently or as of a commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from kgserve.errors import NotFound
from kgserve.graph.graph_reader import GraphReader, query_memory_hierarchy
from kgserve.graph.request_validation import require_valid_id_or_type_length
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.entity_associations import list_entities_of_memories
from kgserve.memory.hierarchy_models import (
    DescendantMemoriesRequest,
    MemoryAncestorOrDescendant,
    MemoryHierarchyPage,
    MemoryParentChainRequest,
)
from kgserve.memory.memory_crud import find_active_memory, require_active_memory_row
from kgserve.memory.serialization import build_memory_answer_fields
from kgserve.projections.memory_index.confidence_decay import memory_half_lives_from_settings
from kgserve.projections.memory_index.hierarchy import MemoryAtDepth
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.stores.open_store import OpenStore

R = TypeVar("R")


def list_child_memories(graph: StoreHandle, request: DescendantMemoriesRequest) -> MemoryHierarchyPage:
    """Return the active children of a memory, ordered by id. Does not count as a use.

    Raises NotFound; with `as_of` TooLarge for more than 10,000, Gone, and Conflict if no history is kept.
    """
    return _below(graph, request, near=True)


def list_descendant_memories(graph: StoreHandle, request: DescendantMemoriesRequest) -> MemoryHierarchyPage:
    """Return the active descendants of a memory at any depth, ordered by id. Does not count as a use.

    A page ends after examining 20,000 memories. Raises the same errors as `list_child_memories`.
    """
    return _below(graph, request, near=False)


def list_memory_parent_chain(graph: StoreHandle, request: MemoryParentChainRequest) -> list[MemoryAncestorOrDescendant]:
    """Return the active ancestors of a memory, nearest first, at most 100.

    Raises the same errors as `list_child_memories`.
    """

    def question(store: OpenStore, reader: GraphReader) -> list[MemoryAncestorOrDescendant]:
        memory_id = resolve_active_memory_in_graph_reader(reader, request.memory_id, graph.name).id
        return to_memories_with_depth(store, reader, reader.ancestors(memory_id, request.layer))

    return _ask(graph, request.as_of, question)


def _below(graph: StoreHandle, request: DescendantMemoriesRequest, *, near: bool) -> MemoryHierarchyPage:
    def question(store: OpenStore, reader: GraphReader) -> MemoryHierarchyPage:
        memory_id = resolve_active_memory_in_graph_reader(reader, request.memory_id, graph.name).id
        page = reader.descendants(memory_id, request.layer, request.cursor or "", request.limit, near=near)
        return MemoryHierarchyPage(to_memories_with_depth(store, reader, page.found), page.next)

    return _ask(graph, request.as_of, question)


def _ask(graph: StoreHandle, as_of: int | str | None, question: Callable[[OpenStore, GraphReader], R]) -> R:
    past = graph.resolve_as_of(as_of)
    with graph.lease() as store:
        return query_memory_hierarchy(store, past, lambda reader: question(store, reader))


def resolve_active_memory_in_store(store: OpenStore, memory_id: str, name: str) -> NodeRow:
    """Return an active memory of a store after following merges. Raises InvalidInput and NotFound."""
    require_valid_id_or_type_length(memory_id)
    with store.reading() as rows:
        return find_active_memory(rows, memory_id, name)


def resolve_active_memory_in_graph_reader(reader: GraphReader, memory_id: str, store: str) -> NodeRow:
    """Return an active memory of a reader after following merges. Raises InvalidInput and NotFound."""
    require_valid_id_or_type_length(memory_id)
    found = reader.resolve_redirects((memory_id,))[memory_id]
    return require_active_memory_row(reader.nodes((found,)).get(found), memory_id, store)


def to_memories_with_depth(
    store: OpenStore, reader: GraphReader, places: Sequence[MemoryAtDepth]
) -> list[MemoryAncestorOrDescendant]:
    """Return memories with their depths, as answers. Raises NotFound if one is no longer known."""
    ids = [place.id for place in places]
    rows, accesses = reader.nodes(ids), reader.accesses(ids)
    about, above = list_entities_of_memories(reader, ids), reader.parents(ids)
    half_lives = memory_half_lives_from_settings(store.description.memory)
    found: list[MemoryAncestorOrDescendant] = []
    for memory_id, depth in places:
        row = rows.get(memory_id)
        if row is None:
            raise NotFound(f"memory {memory_id!r} is no longer known in its past state")
        access, parent = accesses.get(memory_id), above.get(memory_id)
        fields = build_memory_answer_fields(half_lives, row, access, about.get(memory_id, ()), reader.now, parent)
        found.append(MemoryAncestorOrDescendant(**fields, depth=depth))
    return found
