"""Calls that have an id of their own: one whose answer was lost can be made again, and is known to be the same."""

from __future__ import annotations

import secrets
import time
import uuid
from contextvars import ContextVar
from typing import NamedTuple


class IdempotencyKey(NamedTuple):
    """A call that may be made again. ``age``: seconds since its caller made it first; 0 when this is the first time."""

    key: str
    age: float = 0.0

    def precedes(self, microseconds: int) -> bool:
        """Whether it was made before this moment of the server's clock: its caller may have another."""
        return time.time() - self.age < microseconds / 1_000_000


making: ContextVar[IdempotencyKey | None] = ContextVar("making", default=None)
"""The call that is being carried out, in the threads that work for it, if it has an id."""


def is_repeated() -> bool:
    """Whether the call that is being carried out has been made before."""
    made = making.get()
    return made is not None and made.age > 0


_ID_NAMESPACE = uuid.UUID("8e6f7c1c-52b4-4c57-9d0e-6f5b7d0c3a11")


def new_id(place: int = 0) -> str:
    """The id of a node that is to be made: always the same for the same place of the same call, otherwise random.

    So a call that is made again meets the node that it has made, also after the server was killed in between.
    """
    made = making.get()
    return str(uuid.uuid4() if made is None else uuid.uuid5(_ID_NAMESPACE, f"{made.key} {place}"))


def ordered_id(place: int = 0) -> str:
    """As `new_id`, of the time when it is made: later ids sort behind earlier ones (UUID version 7, RFC 9562)."""
    if making.get() is not None:
        return new_id(place)
    bits = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(76)
    version, variant = 0x7 << 76, 0b10 << 62
    return str(uuid.UUID(int=bits & ~(0xF << 76) & ~(0b11 << 62) | version | variant))
