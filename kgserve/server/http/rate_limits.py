"""Rate limits: token buckets per API key and per address."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING

from kgserve.errors import RateLimited
from kgserve.platform.network_addresses import is_loopback, network_counted_as_one_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgserve.platform.access.authentication import AuthenticatedCaller


MAX_RATE_BUCKETS = 10_000
"""Maximum number of buckets; the least recently used one is evicted first, which refills it."""
BURST_SECONDS = 2
"""Size of a bucket in seconds of its rate."""
LEASED_SECONDS = 0.1
"""Size of a lease in seconds of its rate."""
FAILURES_PER_SECOND = 0.2
FAILURE_BURST = 20.0
is_local = lru_cache(maxsize=1024)(is_loopback)
"""Return whether an address is a loopback address; local programs need no key and are not limited."""


def name_rate_bucket(caller: AuthenticatedCaller, address: str) -> str:
    """Return the name of the bucket of a caller: an API key's, or else that of an address or network."""
    return network_counted_as_one_client(address) if caller.key_id is None else f"key {caller.key_id}"


class TokenBuckets:
    """Token buckets by name, refilled with ``rate`` tokens per second up to ``size``."""

    def __init__(self, rate: float, size: float, clock: Callable[[], float], most: int = MAX_RATE_BUCKETS) -> None:
        self._rate = rate
        self._size = size
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str) -> float:
        """Take a token and return 0; if the bucket is empty, return the seconds until the next token."""
        now = self._clock()
        tokens = self._tokens(name, now)
        taken = tokens >= 1
        self._buckets[name] = (tokens - 1 if taken else tokens, now)
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1 - tokens) / self._rate

    def take_many(self, name: str, most: int) -> int:
        """Take up to ``most`` tokens, and return how many."""
        now = self._clock()
        tokens = self._tokens(name, now)
        taken = min(most, int(tokens))
        self._buckets[name] = tokens - taken, now
        return taken

    def _tokens(self, name: str, now: float) -> float:
        tokens, updated = self._buckets.get(name, (self._size, now))
        return min(self._size, tokens + (now - updated) * self._rate)


class RateLimiter:
    """Rate limits of one server, in requests per second; 0 disables the limit for requests."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._requests = TokenBuckets(rate, max(1.0, rate * BURST_SECONDS), clock) if rate else None
        self._failures = TokenBuckets(FAILURES_PER_SECOND, FAILURE_BURST, clock)

    def admit(self, caller: AuthenticatedCaller, address: str) -> None:
        """Count a request of an API key, or of an address without a key. Raises RateLimited."""
        if self._requests is None:
            return
        if wait := self._requests.take(name_rate_bucket(caller, address)):
            who = address if caller.key_id is None else f"the key {caller.name!r}"
            raise RateLimited(f"more than {self.rate:g} requests per second from {who}; slow down", math.ceil(wait))

    def take_lease(self, bucket: str) -> int:
        """Take the tokens of `LEASED_SECONDS` from a bucket, for another process that admits requests with them."""
        most = max(1, int(self.rate * LEASED_SECONDS))
        return 0 if self._requests is None else self._requests.take_many(bucket, most)

    def count_wrong_key(self, address: str) -> None:
        """Count a request with a wrong key. Raises RateLimited when an address sends too many.

        The limit never applies to valid keys, so that one program with an old key cannot lock out others behind the
        same router or proxy.
        """
        if wait := self._failures.take(network_counted_as_one_client(address)):
            raise RateLimited(f"too many wrong keys from {address}; wait", math.ceil(wait))
