"""When to ask again, and after how long.

Connections that nobody took and refusals with 429 are repeated for every call: nothing was done. Broken connections and
503 are repeated for what comes to the same when it is done twice: all reads, injects, deletes of nodes and edges,
creating a store, reindexing. Not repeated then: Cypher in write mode, dropping a store (the second answer would be "not
found"), and an import from which a byte was taken. Time limits are never repeated: the work would only grow.
"""

from __future__ import annotations

import math
import random
import time

import msgspec

from kgserve.client.failures import Interrupted, Unreachable
from kgserve.errors import KgserveError, Limited, Unavailable

TIMES = 4


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a client is. Pauses are in seconds and double; each is cut by chance, down to a half at most."""

    times: int | None = None
    """Repetitions of one call at most; 0 turns them off. Unless it is chosen 4, and of several nodes no limit."""
    first: float = 0.2
    """The first pause."""
    longest: float = 8.0
    """The longest pause, unless the server asks for more with Retry-After."""
    patience: float = 30.0
    """Within so many seconds of a call's beginning it is repeated. A Retry-After beyond is not waited for."""

    def allows(self, number: int, addresses: int = 1) -> bool:
        """Whether there may be a repetition ``number``, counted from 0."""
        most = math.inf if addresses > 1 else TIMES
        return number < (most if self.times is None else self.times)

    def pause(self, number: int, at_least: float = 0.0) -> float:
        """The pause before repetition ``number``, counted from 0."""
        whole = min(self.longest, self.first * 2 ** min(number, 30))
        return max(at_least, whole * random.uniform(0.5, 1.0))  # noqa: S311 - it spreads clients and hides nothing


class Attempts:
    """The attempts at one call, at one of several ``addresses`` after the other: a pause is longer after each round."""

    def __init__(self, retries: Retries, addresses: int = 1) -> None:
        self._retries = retries
        self._addresses = addresses
        self._number = 0
        self._give_up = time.monotonic() + retries.patience

    def pause_after(self, error: KgserveError, *, idempotent: bool) -> float:
        """Seconds to wait before the call is made again. Raises ``error`` when it is not to be."""
        passing = isinstance(error, Unreachable | Limited | Unavailable)
        harmless = isinstance(error, Limited) or (isinstance(error, Unreachable) and not isinstance(error, Interrupted))
        if not (passing and (idempotent or harmless)) or not self._retries.allows(self._number, self._addresses):
            raise _shown(error)
        pause = self._retries.pause(self._number // self._addresses, asked_for(error))
        if time.monotonic() + pause > self._give_up:
            raise _shown(error)
        self._number += 1
        return pause


def _shown(error: KgserveError) -> KgserveError:
    """The error as a caller is to see it: where in here a server was not reached tells nobody anything."""
    return error.with_traceback(None) if isinstance(error, Unreachable) else error


def asked_for(error: KgserveError | None) -> float:
    """Seconds that the server asks to wait."""
    return float(error.retry_after) if isinstance(error, Limited | Unavailable) else 0.0
