"""One entity over time, as readers of layered memories know it."""

from __future__ import annotations

from typing import Any

import msgspec


class EntityVersion(msgspec.Struct, kw_only=True):
    """One state of an entity. ``id`` is ``ENTITY_ID@SEQUENCE``: no other state of the store has it.

    ``layer`` and ``parent_id`` are the attributes of these names, or null. It was true from ``valid_from`` to before
    ``valid_to``: as the writer said, or else from when it was recorded until it was superseded; null: it still is.
    """

    id: str
    entity_id: str
    content: str
    layer: Any
    parent_id: Any
    valid_from: str
    valid_to: str | None
    version: int
    type: str
    attributes: dict[str, Any]
    sequence: int
