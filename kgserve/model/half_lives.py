"""How fast the memories of a store fade, and what they have come to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kgserve.model.change import Access
from kgserve.model.decay import DAY, Worth, effective, live
from kgserve.model.rows import NodeRow
from kgserve.settings import Settings


class HalfLives(NamedTuple):
    """The half-life of memories in days, and of those types that have another one; None: they do not fade."""

    days: float | None = Settings().memory_half_life_days
    by_type: Mapping[str, float | None] = MappingProxyType({})

    def of(self, memory_type: str = "") -> int | None:
        """That of a type, in microseconds: its own, where it has one, be it none at all."""
        own = self.by_type.get(memory_type, self.days)
        return None if own is None else round(own * DAY)

    @property
    def all(self) -> list[int]:
        """Those that any memory can have, in microseconds; 0 for what does not fade."""
        types = ("", *self.by_type)
        return sorted({self.of(each) or 0 for each in types})

    def effective(self, row: NodeRow, access: Access | None, now: int) -> float:
        """What a memory's confidence has come to at a moment, in microseconds."""
        return effective(worth_of(row, access), now, self.of(row.type))


def worth_of(row: NodeRow, access: Access | None) -> Worth:
    """The confidence that counts, and since when: that of its last use, or else the one that was written."""
    extras = row.extras
    if extras is None or extras.confidence is None:
        raise ValueError(f"{row.id} is no memory")
    stored = Worth(extras.confidence, stated_at(row))
    return live(stored, None if access is None else Worth(access.confidence, access.last))


def stated_at(row: NodeRow) -> int:
    """Since when what a memory was stated with fades: since it was stated, or else since it was made."""
    at = None if row.extras is None else row.extras.confidence_at
    return row.created_at if at is None else at
