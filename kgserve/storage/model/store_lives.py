"""Lives of a store: periods within which a sequence names one commit.

A store that was dropped and created again, or restored from a backup, counts its commits from an earlier sequence. The
tag of its life, in the ids of its events, tells its positions from those of a former life. The first life has no tag.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class StoreLife(msgspec.Struct, frozen=True, array_like=True):
    """A life of a store. Commits up to ``shared_sequence`` are those of the life before; 0 for none."""

    tag: str
    shared_sequence: int = 0


def begin_store_life(shared_sequence: int = 0) -> StoreLife:
    """Return a life that begins now. Later lives have greater tags."""
    number, tag = time.time_ns() // 1000, ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        tag = _DIGITS[digit] + tag
    return StoreLife(tag, shared_sequence)


def find_last_valid_sequence(lives: Sequence[StoreLife], tag: str) -> int | None:
    """Return the last sequence of a life that the store still has; None if the life continues, 0 if it is unknown."""
    tags = ["", *(life.tag for life in lives)]
    if tag not in tags:
        return 0
    return min((life.shared_sequence for life in lives[tags.index(tag) :]), default=None)
