"""Rate limits in a reader process: it admits requests with tokens that the server has taken from its own buckets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from typing_extensions import override

from kgserve.platform.access.authentication import ANONYMOUS_CALLER
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.server.http.connection import ensure_running_in_task
from kgserve.server.http.rate_limits import MAX_RATE_BUCKETS, RateLimiter, name_rate_bucket

if TYPE_CHECKING:
    from kgserve.platform.access.authentication import AuthenticatedCaller

RATE_LEASE_SECONDS = 1.0
"""Seconds after which leased tokens expire."""
RATE_LEASE_TIMEOUT_SECONDS = 1.0


class RateLease(msgspec.Struct):
    """Tokens of one bucket that a reader process may still use until ``expires``, on the monotonic clock."""

    tokens: int
    expires: float


class RateLeaseMissing(Exception):
    """The reader process has no token of a caller's bucket; `LeasedRateLimiter.renew` gets some."""

    def __init__(self, bucket: str) -> None:
        super().__init__(bucket)
        self.bucket = bucket


class LeasedRateLimiter(RateLimiter):
    """Rate limiter with leased tokens. Leaves requests with wrong keys and refusals to the server."""

    def __init__(self, rate: float, request_lease: Callable[[str], None]) -> None:
        super().__init__(rate)
        self._request_lease = request_lease
        self._leases: dict[str, RateLease] = {}
        self._awaited: dict[str, asyncio.Event] = {}

    @override
    def admit(self, caller: AuthenticatedCaller, address: str) -> None:
        """Use a leased token. Raises RateLeaseMissing."""
        if not self.rate:
            return
        if caller is ANONYMOUS_CALLER:
            raise WouldBlock
        bucket = name_rate_bucket(caller, address)
        lease = self._leases.get(bucket)
        if lease is None or not lease.tokens or time.monotonic() > lease.expires:
            raise RateLeaseMissing(bucket)
        lease.tokens -= 1

    @override
    def count_wrong_key(self, address: str) -> None:
        raise WouldBlock

    async def renew(self, bucket: str) -> None:
        """Wait for a lease of a bucket from the server, which may have no tokens."""
        await ensure_running_in_task()  # which a timeout needs
        arrived = self._awaited.get(bucket)
        if arrived is None:
            arrived = self._awaited[bucket] = asyncio.Event()
            self._request_lease(bucket)
        with suppress(TimeoutError):
            await asyncio.wait_for(arrived.wait(), RATE_LEASE_TIMEOUT_SECONDS)

    def grant(self, bucket: str, tokens: int) -> None:
        """Use a lease from the server from now on."""
        if len(self._leases) >= MAX_RATE_BUCKETS:
            self._leases.clear()
        self._leases[bucket] = RateLease(tokens, time.monotonic() + RATE_LEASE_SECONDS)
        if (arrived := self._awaited.pop(bucket, None)) is not None:
            arrived.set()
