"""What one node of a cluster asks another one for, in the name of who has asked it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kgserve.errors import ServedElsewhere, Unavailable
from kgserve.stores.placement import Placement

if TYPE_CHECKING:
    import aiohttp

HOPS_HEADER = "kgserve-hops"
"""The header of what was forwarded once, and is not forwarded again: a store has one owner."""
_CONNECT_SECONDS = 3.0
_IDLE_SECONDS = 2.0


class NodeProxy:
    """Asks other nodes, over connections that are kept. For one event loop."""

    def __init__(self, placement: Placement) -> None:
        """``placement`` knows what opens everything at another node."""
        self._placement = placement
        self._session: aiohttp.ClientSession | None = None

    def known(self, store: str) -> ServedElsewhere | None:
        """See `Placement.elsewhere`."""
        return self._placement.elsewhere(store)

    @asynccontextmanager
    async def asked(
        self,
        served: ServedElsewhere,
        request: tuple[str, str],
        headers: Mapping[str, str],
        body: bytes | AsyncIterator[bytes],
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """The answer to a request, which is a method and a target, of who serves a store; its body is still to come.

        Raises Unavailable when there is none, or the request was forwarded already.
        """
        if HOPS_HEADER in headers:
            raise Unavailable("the store is just moving from one node to another; try again", retry_after=1)
        method, target = request
        known = {HOPS_HEADER: "1", "authorization": f"Bearer {self._placement.token_of(served.node)}"}
        if self._placement.counts is not None:
            self._placement.counts.asked.add()
        # Only nodes of a cluster need it, and these not before they ask another one.
        from aiohttp import ClientError  # noqa: PLC0415
        from yarl import URL  # noqa: PLC0415

        url = URL(served.url.rstrip("/") + target, encoded=True)
        asking = self._opened().request(
            method, url, headers={**headers, **known}, data=body or None, allow_redirects=False
        )
        try:
            async with asking as response:
                yield response
        except (TimeoutError, ClientError, OSError) as error:
            raise Unavailable(
                f"node {served.node!r}, which serves the store, does not answer", retry_after=2
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            from aiohttp import ClientSession, ClientTimeout, TCPConnector  # noqa: PLC0415 - as above

            self._session = ClientSession(
                connector=TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
                timeout=ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                auto_decompress=False,
                skip_auto_headers=("accept", "content-type"),
            )
        return self._session
