"""Incarnations of a store: periods within which a sequence names one commit.

A store that was dropped and created again, or restored from a backup, counts its commits from an earlier sequence. The
tag of its incarnation, in the ids of its events, tells its positions from those of a former one. The first has no tag.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class StoreIncarnation(msgspec.Struct, frozen=True, array_like=True):
    """An incarnation of a store. Commits up to ``shared_sequence`` are those of the one before; 0 for none."""

    tag: str
    shared_sequence: int = 0


def begin_store_incarnation(shared_sequence: int = 0) -> StoreIncarnation:
    """Return an incarnation that begins now. Later incarnations have greater tags."""
    number, tag = time.time_ns() // 1000, ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        tag = _DIGITS[digit] + tag
    return StoreIncarnation(tag, shared_sequence)


def find_last_valid_sequence(incarnations: Sequence[StoreIncarnation], tag: str) -> int | None:
    """Return the last sequence of an incarnation that the store still has; None: the present one, 0: an unknown one."""
    tags = ["", *(incarnation.tag for incarnation in incarnations)]
    if tag not in tags:
        return 0
    return min((incarnation.shared_sequence for incarnation in incarnations[tags.index(tag) :]), default=None)
