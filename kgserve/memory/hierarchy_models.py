"""Requests, answers and rules of the memory hierarchy: `child_of` relations from each child to its parent.

A relation counts while both ends are active memories and it has no end of validity. If a child has several parents, the
newest relation counts; the newest relation of a cycle does not count.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, field

from kgserve.errors import Conflict
from kgserve.graph.request_bodies import AsOfText
from kgserve.memory.memory_models import (
    EPISODE_LAYER,
    LAYER_TYPES,
    MAX_PAGE_MEMORIES,
    Memory,
    NodeIdText,
    ReadMemoryQuery,
)
from kgserve.storage.model.entity_names import DEFAULT_MEMORY_TYPE
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import NodeRow


def check_parent_memory_layer(child: NodeRow, parent: NodeRow) -> None:
    """Raise Conflict if the parent has a more specific layer; a memory without a layer fits anywhere."""
    below, above = (child.extras or NO_EXTRAS).layer, (parent.extras or NO_EXTRAS).layer
    if below is not None and above is not None and above > below:
        raise Conflict(
            f"memory {child.id!r} of layer {below} cannot be placed below {parent.id!r} of layer {above}: the "
            "parent's layer number must be equal or smaller"
        )


def can_merge_memory_layers(one: int | None, other: int | None) -> bool:
    """Return whether memories of two layers can be merged: equal layers, or no layer and any but episode."""
    return one == other or (None in {one, other} and EPISODE_LAYER not in {one, other})


def can_merge_memory_types(one: tuple[str, int | None], other: tuple[str, int | None]) -> bool:
    """Return whether memories of two types, each given with its layer, can be merged.

    The types must be equal, or each the default of its layer.
    """
    return one[0] == other[0] or (_is_default(*one) and _is_default(*other))


def _is_default(memory_type: str, layer: int | None) -> bool:
    default = DEFAULT_MEMORY_TYPE if layer is None else dict(enumerate(LAYER_TYPES)).get(layer)
    return memory_type == default


class MemoryHierarchyQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query string of the ancestors or descendants of a memory."""

    layer: Annotated[int, Meta(ge=0, le=3, description="Only those of this layer")] | None = None
    as_of: AsOfText | None = None


class DescendantMemoriesQuery(MemoryHierarchyQuery, kw_only=True):
    """Query string of the descendants of a memory, in pages ordered by id."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Maximum number of memories")] = 100
    cursor: Annotated[NodeIdText, Meta(description="Id from the `Link` header of the previous page")] | None = None


class MemoryParentChainRequest(MemoryHierarchyQuery, kw_only=True):
    """Request for the ancestors of a memory."""

    memory_id: str = field(name="id")


class DescendantMemoriesRequest(DescendantMemoriesQuery, kw_only=True):
    """Request for the descendants of a memory."""

    memory_id: str = field(name="id")


class MemoryDetailsRequest(ReadMemoryQuery, kw_only=True):
    """Request for a memory with its surroundings."""

    memory_id: str = field(name="id")


class MemoryAncestorOrDescendant(Memory, kw_only=True):
    """An ancestor or descendant of a memory."""

    depth: Annotated[int, Meta(description="Distance in levels: 1 for a parent or a child")]


class MemoryHierarchyPage(msgspec.Struct, frozen=True):
    """A page of memories; `next` is the id after which the next page begins, None on the last page."""

    memories: list[MemoryAncestorOrDescendant]
    next: str | None
