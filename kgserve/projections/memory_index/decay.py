"""Confidence that fades: what a memory is worth at a moment, and one number that orders memories by it at any moment.

A confidence halves once in every half-life since it was last set or used. So "at least m at the moment t" is a
comparison of a key that does not change with time, and nothing has to be rewritten or walked through while time passes.
Moments and keys are microseconds since 1970; half-lives are microseconds, too, or None for what does not fade.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kgserve.platform.settings import Settings
from kgserve.platform.times import DAY_MICROSECONDS
from kgserve.storage.model.change import Access
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.model.store_settings import MemorySettings

MIN_DECAY_KEY = -(1 << 62)
"""The key of what has no confidence at all."""
FIRST_LASTING_KEY = 1 << 62
"""Where the keys of what does not fade begin."""
_LASTING_KEY_STEPS = 1 << 52
_MAX_KEY_DISTANCE = 1 << 61


class Confidence(NamedTuple):
    """A confidence from 0 to 1, as it was at a moment."""

    confidence: float
    since: int


def live(stored: Confidence, accessed: Confidence | None) -> Confidence:
    """What counts: the value that was stored, or that of a use after it."""
    return accessed if accessed is not None and accessed.since > stored.since else stored


def effective(worth: Confidence, now: int, half_life: int | None) -> float:
    """What a confidence has come to. A clock that was set back makes it no greater than it was."""
    confidence = min(max(worth.confidence, 0.0), 1.0)
    if half_life is None:
        return confidence
    return confidence * 0.5 ** (max(now - worth.since, 0) / half_life)


def add_to_remainder(worth: Confidence, now: int, half_life: int | None, by: float) -> Confidence:
    """Return the confidence after an access that adds to what decay has left, at most 1; decay starts again."""
    return Confidence(min(effective(worth, now, half_life) + by, 1.0), max(now, worth.since))


def restore_and_add(worth: Confidence, now: int, by: float) -> Confidence:
    """Return the confidence after an access that undoes decay and then adds, at most 1; decay starts again."""
    return Confidence(min(effective(worth, worth.since, None) + by, 1.0), max(now, worth.since))


def key(worth: Confidence, half_life: int | None) -> int:
    """A number that is at least ``least_key`` of a minimum and a moment when the effective confidence then is."""
    confidence = min(worth.confidence, 1.0)
    if confidence <= 0.0:
        return MIN_DECAY_KEY
    if half_life is None:
        return FIRST_LASTING_KEY + round(confidence * _LASTING_KEY_STEPS)
    return _within(worth.since + half_life * math.log2(confidence))


def least_key(minimum: float, now: int, half_life: int | None) -> int:
    """The least key of a memory with this half-life whose effective confidence is not below a minimum at a moment.

    Memories of several half-lives have to be asked for by half-life. Of those set later than the moment, which a clock
    that was set back leaves behind, some with less confidence have such a key, too.
    """
    if minimum <= 0.0:
        return MIN_DECAY_KEY
    if half_life is None:
        return FIRST_LASTING_KEY + round(minimum * _LASTING_KEY_STEPS)
    return _within(now + half_life * math.log2(minimum))


def _within(moment: float) -> int:
    return round(min(max(moment, -_MAX_KEY_DISTANCE), _MAX_KEY_DISTANCE))


class HalfLives(NamedTuple):
    """The half-life of memories in days, and of those types that have another one; None: they do not fade."""

    days: float | None = Settings().memory_half_life_days
    by_type: Mapping[str, float | None] = MappingProxyType({})

    def of(self, memory_type: str = "") -> int | None:
        """That of a type, in microseconds: its own, where it has one, be it none at all."""
        own = self.by_type.get(memory_type, self.days)
        return None if own is None else round(own * DAY_MICROSECONDS)

    @property
    def all(self) -> list[int]:
        """Those that any memory can have, in microseconds; 0 for what does not fade."""
        types = ("", *self.by_type)
        return sorted({self.of(each) or 0 for each in types})

    def effective(self, row: NodeRow, access: Access | None, now: int) -> float:
        """What a memory's confidence has come to at a moment, in microseconds."""
        return effective(confidence_of(row, access), now, self.of(row.type))


def half_lives_of(settings: MemorySettings) -> HalfLives:
    """Return the half-lives that a store's settings set."""
    return HalfLives(settings.half_life_days, settings.half_life_by_type)


def confidence_of(row: NodeRow, access: Access | None) -> Confidence:
    """The confidence that counts, and since when: that of its last use, or else the one that was written."""
    extras = row.extras
    if extras is None or extras.confidence is None:
        raise ValueError(f"{row.id} is no memory")
    stored = Confidence(extras.confidence, stated_at(row))
    return live(stored, None if access is None else Confidence(access.confidence, access.last))


def stated_at(row: NodeRow) -> int:
    """Since when what a memory was stated with fades: since it was stated, or else since it was made."""
    at = None if row.extras is None else row.extras.confidence_at
    return row.created_at if at is None else at
