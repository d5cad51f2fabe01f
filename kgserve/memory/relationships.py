"""Relationships of memories, and the answer with a memory and its surroundings."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kgserve.memory.memory_models import Memory


class MemoryRelationship(msgspec.Struct, kw_only=True):
    """A typed relation of a memory to another memory, or to an entity, in either direction."""

    id: Annotated[str, Meta(description="Its id, for `DELETE /api/relations/{id}`")]
    source_id: str
    target_id: str
    type: str
    strength: Annotated[float, Meta(description="0 to 1")]
    confidence: Annotated[float, Meta(description="Confidence when it was last written")]
    effective_confidence: Annotated[float, Meta(description="Confidence after decay, now")]
    context: str | None
    created_at: str
    updated_at: str


class FormerMemory(msgspec.Struct, kw_only=True):
    """A former version of a memory, or a memory that it absorbed.

    It is valid from ``valid_from`` to before ``valid_to``; never if both are equal.
    """

    id: str
    content: str
    ended: str | None
    valid_from: str | None
    valid_to: str | None


class MemoryDetails(Memory, kw_only=True):
    """A memory with its parent, number of children, relationships and former versions."""

    parent: Annotated[Memory | None, Meta(description="Its parent, or null")]
    children: Annotated[int, Meta(description="Number of its children that are valid now")]
    relationships: Annotated[
        list[MemoryRelationship],
        Meta(description="Typed relations to other memories, in either direction; the 100 strongest"),
    ]
    versions: Annotated[
        list[FormerMemory],
        Meta(description="Former versions and absorbed memories, by valid time; the first 100"),
    ]
