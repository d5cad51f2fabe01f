"""The hierarchy of memories: what stands below what, by relations from each child to its parent; requests and answers.

A relation counts while both its ends are memories in force and it has no end in time. Of several that a child has, the
newest one counts; of those that make a circle, the newest one does not.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, field

from kgserve.errors import Conflict
from kgserve.graph.requests import AsOfText
from kgserve.memory.api import EPISODE_LAYER, LAYER_TYPES, MAX_PAGE_MEMORIES, Id, Memory, MemoryQuery
from kgserve.storage.model.fields import NO_EXTRAS
from kgserve.storage.model.names import DEFAULT_MEMORY_TYPE
from kgserve.storage.model.rows import NodeRow


def check_layers(child: NodeRow, parent: NodeRow) -> None:
    """Raise Conflict for a memory below one of a more specific layer. Without a layer it may stand anywhere."""
    below, above = (child.extras or NO_EXTRAS).layer, (parent.extras or NO_EXTRAS).layer
    if below is not None and above is not None and above > below:
        raise Conflict(
            f"memory {child.id!r} of layer {below} cannot stand below {parent.id!r} of layer {above}: a parent is of "
            "the same layer or of a more general one, whose number is smaller"
        )


def can_share_layer(one: int | None, other: int | None) -> bool:
    """Whether memories of two layers may be one: of the same layer, or one of no layer and the other no episode."""
    return one == other or (None in {one, other} and EPISODE_LAYER not in {one, other})


def can_share_type(one: tuple[str, int | None], other: tuple[str, int | None]) -> bool:
    """Whether memories of two types, each given with its layer, may be one.

    They may if the types are equal, or if each is the default of its layer: then neither caller has chosen one.
    """
    return one[0] == other[0] or (_is_default(*one) and _is_default(*other))


def _is_default(memory_type: str, layer: int | None) -> bool:
    default = DEFAULT_MEMORY_TYPE if layer is None else dict(enumerate(LAYER_TYPES)).get(layer)
    return memory_type == default


class HierarchyQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of what stands above or below a memory."""

    layer: Annotated[int, Meta(ge=0, le=3, description="Only those of this layer")] | None = None
    as_of: AsOfText | None = None


class BelowQuery(HierarchyQuery, kw_only=True):
    """The query of what stands below a memory, page by page in the order of ids."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Most memories on the page")] = 100
    cursor: Annotated[Id, Meta(description="The id that the header `Link` of the page before names")] | None = None


class AncestorsRequest(HierarchyQuery, kw_only=True):
    """What a memory stands below."""

    memory_id: str = field(name="id")


class BelowRequest(BelowQuery, kw_only=True):
    """What stands below a memory."""

    memory_id: str = field(name="id")


class WholeMemoryRequest(MemoryQuery, kw_only=True):
    """A memory to be read with what belongs to it."""

    memory_id: str = field(name="id")


class PlacedMemory(Memory, kw_only=True):
    """A memory above or below another one, so many levels away."""

    depth: Annotated[int, Meta(description="Levels between the two: 1 for a parent or a child")]


class PlacedPage(msgspec.Struct, frozen=True):
    """Some memories, and the id that the next page begins behind: None when there is none."""

    memories: list[PlacedMemory]
    next: str | None
