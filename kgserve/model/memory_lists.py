"""Which memories a list or a search is about."""

from __future__ import annotations

import msgspec

ANY_END = "any"


class MemoryFilter(msgspec.Struct, frozen=True):
    """Memories that meet all of this; what is empty or None does not matter. Times are microseconds since 1970.

    They have any of ``types``, all ``tags``, at ``now`` an effective confidence of ``min_confidence`` or more, were
    created between ``created_from`` and ``created_to`` (both may be), are about the node ``entity``, below the memory
    ``under``, with ``orphans`` below none and no domains or concepts, and among some ids. They are in force: none that
    has ended, and true in the world at ``now``, or at ``valid_at``, or whenever if that is None; at a ``valid_at``
    former versions count, too. With ``ended`` they are those that have ended in that way, or all there are for "any",
    whenever they were true.
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
    under: str = ""
    orphans: bool = False
    ended: str = ""
    valid_at: int | msgspec.UnsetType | None = msgspec.UNSET
    among: frozenset[str] | None = None

    @property
    def moment(self) -> int | None:
        """When they have to be true in the world; None: whenever."""
        return self.now if self.valid_at is msgspec.UNSET else self.valid_at

    @property
    def looks_back(self) -> bool:
        """Whether former versions are wanted, of which those that were true at the moment do."""
        return not self.ended and isinstance(self.valid_at, int)
