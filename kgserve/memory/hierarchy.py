"""Ancestors and descendants of a memory, currently or as of a commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from kgserve.errors import NotFound
from kgserve.graph.handle import Graph
from kgserve.graph.readers import GraphReader, ask_hierarchy
from kgserve.graph.validate import checked_label
from kgserve.memory.associations import memory_entities
from kgserve.memory.hierarchy_api import AncestorsRequest, BelowRequest, PlacedMemory, PlacedPage
from kgserve.memory.presentation import fields_of
from kgserve.memory.store_memory import memory_in, require_memory
from kgserve.projections.memory_index.closure import MemoryDepth
from kgserve.projections.memory_index.decay import half_lives_of
from kgserve.storage.model.rows import NodeRow
from kgserve.stores.store import OpenStore

R = TypeVar("R")


def children(graph: Graph, request: BelowRequest) -> PlacedPage:
    """Return the active children of a memory, ordered by id. Does not count as a use.

    Raises NotFound; with `as_of` TooLarge for more than 10,000, Gone, and Conflict if no history is kept.
    """
    return _below(graph, request, near=True)


def descendants(graph: Graph, request: BelowRequest) -> PlacedPage:
    """Return the active descendants of a memory at any depth, ordered by id. Does not count as a use.

    A page ends after examining 20,000 memories. Raises the same errors as `children`.
    """
    return _below(graph, request, near=False)


def ancestors(graph: Graph, request: AncestorsRequest) -> list[PlacedMemory]:
    """Return the active ancestors of a memory, nearest first, at most 100. Raises the same errors as `children`."""

    def question(store: OpenStore, reader: GraphReader) -> list[PlacedMemory]:
        memory_id = find_memory(reader, request.memory_id, graph.name).id
        return place_memories(store, reader, reader.ancestors(memory_id, request.layer))

    return _ask(graph, request.as_of, question)


def _below(graph: Graph, request: BelowRequest, *, near: bool) -> PlacedPage:
    def question(store: OpenStore, reader: GraphReader) -> PlacedPage:
        memory_id = find_memory(reader, request.memory_id, graph.name).id
        page = reader.descendants(memory_id, request.layer, request.cursor or "", request.limit, near=near)
        return PlacedPage(place_memories(store, reader, page.found), page.next)

    return _ask(graph, request.as_of, question)


def _ask(graph: Graph, as_of: int | str | None, question: Callable[[OpenStore, GraphReader], R]) -> R:
    past = graph.past(as_of)
    with graph.lease() as store:
        return ask_hierarchy(store, past, lambda reader: question(store, reader))


def found_memory(store: OpenStore, memory_id: str, name: str) -> NodeRow:
    """Return an active memory of a store after following merges. Raises InvalidInput and NotFound."""
    checked_label(memory_id)
    with store.reading() as rows:
        return memory_in(rows, memory_id, name)


def find_memory(reader: GraphReader, memory_id: str, store: str) -> NodeRow:
    """Return an active memory of a reader after following merges. Raises InvalidInput and NotFound."""
    checked_label(memory_id)
    found = reader.resolve_redirects((memory_id,))[memory_id]
    return require_memory(reader.nodes((found,)).get(found), memory_id, store)


def place_memories(store: OpenStore, reader: GraphReader, places: Sequence[MemoryDepth]) -> list[PlacedMemory]:
    """Return memories with their depths, as answers. Raises NotFound if one is no longer known."""
    ids = [place.id for place in places]
    rows, accesses = reader.nodes(ids), reader.accesses(ids)
    about, above = memory_entities(reader, ids), reader.parents(ids)
    half_lives = half_lives_of(store.description.memory)
    found: list[PlacedMemory] = []
    for memory_id, depth in places:
        row = rows.get(memory_id)
        if row is None:
            raise NotFound(f"memory {memory_id!r} is no longer known in its past state")
        access, parent = accesses.get(memory_id), above.get(memory_id)
        fields = fields_of(half_lives, row, access, about.get(memory_id, ()), reader.now, parent)
        found.append(PlacedMemory(**fields, depth=depth))
    return found
