"""Rate limits: token buckets of keys and of addresses."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING

from kgserve.errors import Limited
from kgserve.platform.hosts import is_loopback, network_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgserve.platform.access.authentication import Caller


MAX_RATE_BUCKETS = 10_000
"""Callers that are remembered; the one that was silent for longest is forgotten first, which refills its bucket."""
BURST_SECONDS = 2
"""A bucket holds what comes in so many seconds."""
FAILURES_PER_SECOND = 0.2
FAILURE_BURST = 20.0
is_local = lru_cache(maxsize=1024)(is_loopback)
"""Whether an address is of this machine, whose programs need no key and are not limited."""


class TokenBuckets:
    """One token bucket per name: ``rate`` tokens come in each second, up to ``size``."""

    def __init__(self, rate: float, size: float, clock: Callable[[], float], most: int = MAX_RATE_BUCKETS) -> None:
        self._rate = rate
        self._size = size
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str) -> float:
        """Take a token; 0, or the seconds after which there will be one."""
        now = self._clock()
        tokens = self._content(name, now)
        taken = tokens >= 1
        self._buckets[name] = (tokens - 1 if taken else tokens, now)
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1 - tokens) / self._rate

    def _content(self, name: str, now: float) -> float:
        tokens, then = self._buckets.get(name, (self._size, now))
        return min(self._size, tokens + (now - then) * self._rate)


class RateLimits:
    """The limits of one server, in requests per second; 0 turns off the one for requests."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._requests = TokenBuckets(rate, max(1.0, rate * BURST_SECONDS), clock) if rate else None
        self._failures = TokenBuckets(FAILURES_PER_SECOND, FAILURE_BURST, clock)

    def admit(self, caller: Caller, address: str) -> None:
        """Count a request of a key, or of an address without a key. Raises Limited."""
        if self._requests is None:
            return
        if caller.key_id is not None:
            wait, who = self._requests.take(f"key {caller.key_id}"), f"the key {caller.name!r}"
        else:
            wait, who = self._requests.take(network_of(address)), address
        if wait:
            raise Limited(f"more than {self.rate:g} requests per second of {who}; slow down", math.ceil(wait))

    def failed(self, address: str) -> None:
        """A key was wrong. Raises Limited when that happened too often.

        It keeps no right key out: one program with an old key, or one stranger behind the same router or proxy, would
        lock out all others. Looking at a key costs less than refusing one, and 256 random bits are not guessed.
        """
        if wait := self._failures.take(network_of(address)):
            raise Limited(f"too many wrong keys from {address}; wait", math.ceil(wait))
