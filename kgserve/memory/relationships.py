"""Relationships: typed, weighted relations of memories; and a memory with all that belongs to it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kgserve.memory.api import Memory


class Relationship(msgspec.Struct, kw_only=True):
    """A typed relation of a memory to another memory, or to an entity, in either direction."""

    id: Annotated[str, Meta(description="Its id, as `DELETE /api/relations/{id}` takes it")]
    source_id: str
    target_id: str
    type: str
    strength: Annotated[float, Meta(description="0 to 1")]
    confidence: Annotated[float, Meta(description="As it was stated")]
    effective_confidence: Annotated[float, Meta(description="What is left of it now")]
    context: str | None
    created_at: str
    updated_at: str


class FormerMemory(msgspec.Struct, kw_only=True):
    """A former version of a memory, or one that it has absorbed.

    It was true from ``valid_from`` to before ``valid_to``; where both are the same, at no moment.
    """

    id: str
    content: str
    ended: str | None
    valid_from: str | None
    valid_to: str | None


class WholeMemory(Memory, kw_only=True):
    """A memory with what belongs to it: parent, how many stand directly below it, relationships, and what it was."""

    parent: Annotated[Memory | None, Meta(description="What it stands below; null: nothing")]
    children: Annotated[int, Meta(description="Memories directly below it that are true now")]
    relationships: Annotated[
        list[Relationship], Meta(description="Typed relations to other memories, either way; the 100 strongest")
    ]
    versions: Annotated[
        list[FormerMemory],
        Meta(description="Former versions and those that it absorbed, by when they were true; the first 100"),
    ]
