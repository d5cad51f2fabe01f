"""Idempotency keys: a call whose answer was lost can be repeated, and is recognized as the same call."""

from __future__ import annotations

import time
import uuid
from contextvars import ContextVar
from typing import NamedTuple


class IdempotencyKey(NamedTuple):
    """Identity of a repeatable call.

    ``age`` is the time in seconds since its first attempt; 0 for the first attempt.
    """

    key: str
    age: float = 0.0

    def is_older_than(self, microseconds: int) -> bool:
        """Return whether the call was first made before this moment of the server's clock, in microseconds.

        The client's clock may differ, so only its own measure of age is used.
        """
        return time.time() - self.age < microseconds / 1_000_000


current_idempotency_key: ContextVar[IdempotencyKey | None] = ContextVar("making", default=None)
"""Idempotency key of the current call, in all threads that work for it; None if it has no key."""


def is_repeated_idempotent_call() -> bool:
    """Return whether the current call is a repetition."""
    made = current_idempotency_key.get()
    return made is not None and made.age > 0


_ID_NAMESPACE = uuid.UUID("8e6f7c1c-52b4-4c57-9d0e-6f5b7d0c3a11")


def generate_idempotent_node_id(place: int = 0) -> str:
    """Return a node id: the same for the same ``place`` within the same idempotent call, random otherwise.

    A repeated call therefore finds the node that it created, even after the server was killed in between.
    """
    made = current_idempotency_key.get()
    return str(uuid.uuid4() if made is None else uuid.uuid5(_ID_NAMESPACE, f"{made.key} {place}"))
