"""Exponential decay of confidence, and a time-independent sort key for it.

A confidence halves with every half-life since it was last set or used. So "at least m at time t" is a comparison with a
key that does not change with time. Nothing has to be rewritten or scanned as time passes. Times and keys are
microseconds since 1970. Half-lives are microseconds as well, or None for no decay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kgserve.platform.settings import Settings
from kgserve.platform.timestamps import DAY_MICROSECONDS
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.store_settings import MemorySettings

MIN_DECAY_KEY = -(1 << 62)
"""Key of a confidence of zero."""
MIN_UNDECAYING_KEY = 1 << 62
"""Lower bound of the keys of memories that do not decay."""
_LASTING_KEY_STEPS = 1 << 52
_MAX_KEY_DISTANCE = 1 << 61


class ConfidenceAtTime(NamedTuple):
    """Confidence from 0 to 1, as of a moment."""

    confidence: float
    since: int


def get_later_confidence(stored: ConfidenceAtTime, accessed: ConfidenceAtTime | None) -> ConfidenceAtTime:
    """Return the stored confidence, or that of a later access."""
    return accessed if accessed is not None and accessed.since > stored.since else stored


def decayed_confidence(worth: ConfidenceAtTime, now: int, half_life: int | None) -> float:
    """Return a confidence after decay. A clock that was set back does not increase it."""
    confidence = min(max(worth.confidence, 0.0), 1.0)
    if half_life is None:
        return confidence
    return confidence * 0.5 ** (max(now - worth.since, 0) / half_life)


def boost_decayed_confidence(worth: ConfidenceAtTime, now: int, half_life: int | None, by: float) -> ConfidenceAtTime:
    """Return the confidence after an access that adds to the decayed confidence, at most 1; decay restarts."""
    return ConfidenceAtTime(min(decayed_confidence(worth, now, half_life) + by, 1.0), max(now, worth.since))


def boost_undecayed_confidence(worth: ConfidenceAtTime, now: int, by: float) -> ConfidenceAtTime:
    """Return the confidence after an access that undoes decay and then adds, at most 1; decay restarts."""
    return ConfidenceAtTime(min(decayed_confidence(worth, worth.since, None) + by, 1.0), max(now, worth.since))


def compute_decay_sort_key(worth: ConfidenceAtTime, half_life: int | None) -> int:
    """Return the sort key of a confidence; `compute_decay_key_of_min_confidence` gives that of a minimum at a moment."""
    confidence = min(worth.confidence, 1.0)
    if confidence <= 0.0:
        return MIN_DECAY_KEY
    if half_life is None:
        return MIN_UNDECAYING_KEY + round(confidence * _LASTING_KEY_STEPS)
    return _clamp(worth.since + half_life * math.log2(confidence))


def compute_decay_key_of_min_confidence(minimum: float, now: int, half_life: int | None) -> int:
    """Return the least key with which a memory of this half-life has at least a minimum confidence at a moment.

    Memories of several half-lives need one comparison each. Memories set after ``now``, as after the clock was set
    back, may reach this key with less confidence.
    """
    if minimum <= 0.0:
        return MIN_DECAY_KEY
    if half_life is None:
        return MIN_UNDECAYING_KEY + round(minimum * _LASTING_KEY_STEPS)
    return _clamp(now + half_life * math.log2(minimum))


def _clamp(moment: float) -> int:
    return round(min(max(moment, -_MAX_KEY_DISTANCE), _MAX_KEY_DISTANCE))


class MemoryHalfLives(NamedTuple):
    """Half-life of memories in days, and deviating half-lives by type; None: no decay."""

    days: float | None = Settings().memory_half_life_days
    by_type: Mapping[str, float | None] = MappingProxyType({})

    def of(self, memory_type: str = "") -> int | None:
        """Return the half-life of a type in microseconds, None for no decay."""
        own = self.by_type.get(memory_type, self.days)
        return None if own is None else round(own * DAY_MICROSECONDS)

    @property
    def all_half_lives(self) -> list[int]:
        """All half-lives that memories may have, in microseconds; 0 for no decay."""
        types = ("", *self.by_type)
        return sorted({self.of(each) or 0 for each in types})

    def decayed_confidence(self, row: NodeRow, access: MemoryAccessRecord | None, now: int) -> float:
        """Return the confidence of a memory at a moment, in microseconds."""
        return decayed_confidence(get_last_memory_confidence(row, access), now, self.of(row.type))


def memory_half_lives_from_settings(settings: MemorySettings) -> MemoryHalfLives:
    """Return the half-lives that a store's settings set."""
    return MemoryHalfLives(settings.half_life_days, settings.half_life_by_type)


def get_last_memory_confidence(row: NodeRow, access: MemoryAccessRecord | None) -> ConfidenceAtTime:
    """Return the confidence of a memory's last access, or else that of its row."""
    extras = row.extras
    if extras is None or extras.confidence is None:
        raise ValueError(f"{row.id} is not a memory")
    stored = ConfidenceAtTime(extras.confidence, confidence_stated_at(row))
    return get_later_confidence(stored, None if access is None else ConfidenceAtTime(access.confidence, access.last))


def confidence_stated_at(row: NodeRow) -> int:
    """Return the time from which a memory's stated confidence decays: when it was stated, or else created."""
    at = None if row.extras is None else row.extras.confidence_at
    return row.created_at if at is None else at
