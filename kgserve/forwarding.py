"""What one node of a cluster asks another one for, in the name of who has asked it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property

import httpx

from kgserve.errors import ServedElsewhere, Unavailable
from kgserve.store.placement import Placement

HOPS = "kgserve-hops"
"""The header of what was forwarded once, and is not forwarded again: a store has one owner."""
_CONNECT_SECONDS = 3.0
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0)


class Forwarder:
    """Asks other nodes, over connections that are kept. For one event loop."""

    def __init__(self, placement: Placement) -> None:
        """``placement`` knows what opens everything at another node."""
        self._placement = placement

    @asynccontextmanager
    async def asked(
        self,
        served: ServedElsewhere,
        request: tuple[str, str],
        headers: Mapping[str, str],
        body: bytes | AsyncIterator[bytes],
    ) -> AsyncGenerator[httpx.Response]:
        """The answer to a request, which is a method and a target, of who serves a store; its body is still to come.

        Raises Unavailable when there is none, or the request was forwarded already.
        """
        if HOPS in headers:
            raise Unavailable("the store is just moving from one node to another; try again", retry_after=1)
        method, target = request
        known = {HOPS: "1", "authorization": f"Bearer {self._placement.token_of(served.node)}"}
        if self._placement.counts is not None:
            self._placement.counts.asked.add()
        url = served.url.rstrip("/") + target
        try:
            async with self._http.stream(method, url, headers={**headers, **known}, content=body) as response:
                yield response
        except httpx.TransportError as error:
            raise Unavailable(
                f"node {served.node!r}, which serves the store, does not answer", retry_after=2
            ) from error

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        return httpx.AsyncClient(timeout=timeout, limits=_LIMITS)
