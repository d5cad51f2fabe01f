"""Which memories a list or a search is about."""

from __future__ import annotations

import msgspec

ANY_END = "any"


class MemoryFilter(msgspec.Struct, frozen=True):
    """Memories that meet all of this; what is empty or None does not matter. Times are microseconds since 1970.

    They have any of ``types``, all ``tags``, at ``now`` an effective confidence of ``min_confidence`` or more, were
    created between ``created_from`` and ``created_to`` (both may be), and are about the node ``entity``. They are in
    force: none that has ended, and true in the world at ``now``. With ``ended`` they are those that have ended in that
    way, or all there are for "any", whenever they were true.
    """

    now: int
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    min_confidence: float = 0.0
    created_from: int | None = None
    created_to: int | None = None
    source: str = ""
    layer: int | None = None
    entity: str = ""
    ended: str = ""
