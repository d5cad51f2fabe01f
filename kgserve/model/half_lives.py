"""How fast the memories of a store fade."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kgserve.model.decay import half_life_of

USUAL_DAYS = 30.0


class HalfLives(NamedTuple):
    """The half-life of memories in days, and of those types that have another one; None: they do not fade."""

    days: float | None = USUAL_DAYS
    by_type: Mapping[str, float | None] = MappingProxyType({})

    def of(self, memory_type: str) -> int | None:
        """That of a type, in microseconds."""
        return half_life_of(self.days, self.by_type, memory_type)

    @property
    def all(self) -> list[int]:
        """Those that any memory can have, in microseconds; 0 for what does not fade."""
        types = ("", *self.by_type)
        return sorted({self.of(each) or 0 for each in types})
