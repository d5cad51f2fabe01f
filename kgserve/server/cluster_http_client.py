"""HTTP client for the other nodes of a cluster; forwards requests on behalf of their callers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kgserve.errors import ServedElsewhere, Unavailable
from kgserve.stores.local_placement import StorePlacement

if TYPE_CHECKING:
    import aiohttp

HOPS_HEADER = "kgserve-hops"
"""Header of a forwarded request. Such a request is not forwarded again, because a store has one owner."""
_CONNECT_SECONDS = 3.0
_IDLE_SECONDS = 2.0


class ClusterNodeHttpClient:
    """HTTP client for other nodes, with persistent connections. Belongs to one event loop."""

    def __init__(self, placement: StorePlacement) -> None:
        """placement: provides the owner of each store and the tokens of other nodes."""
        self._placement = placement
        self._session: aiohttp.ClientSession | None = None

    def find_cached_owner(self, store: str) -> ServedElsewhere | None:
        """Return the other node that is likely to serve ``store``, without asking the registry; None if unknown."""
        return self._placement.find_redirect(store)

    @asynccontextmanager
    async def send_request(
        self,
        served: ServedElsewhere,
        request: tuple[str, str],
        headers: Mapping[str, str],
        body: bytes | AsyncIterator[bytes],
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a request to the node that serves a store; yield its response, whose body is not read yet.

        request: method and target (path and query).
        Raises Unavailable when the node does not answer, or when the request was forwarded already.
        """
        if HOPS_HEADER in headers:
            raise Unavailable("the store is moving to another node; try again", retry_after=1)
        method, target = request
        own_headers = {HOPS_HEADER: "1", "authorization": f"Bearer {self._placement.token_of(served.node)}"}
        if self._placement.counts is not None:
            self._placement.counts.asked.add()
        # Imported on first use: only nodes of a cluster need it.
        from aiohttp import ClientError  # noqa: PLC0415
        from yarl import URL  # noqa: PLC0415

        url = URL(served.url.rstrip("/") + target, encoded=True)
        sending = self._open_session().request(
            method, url, headers={**headers, **own_headers}, data=body or None, allow_redirects=False
        )
        try:
            async with sending as response:
                yield response
        except (TimeoutError, ClientError, OSError) as error:
            raise Unavailable(
                f"node {served.node!r}, which serves the store, does not answer", retry_after=2
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            from aiohttp import ClientSession, ClientTimeout, TCPConnector  # noqa: PLC0415 - as above

            self._session = ClientSession(
                connector=TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
                timeout=ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                auto_decompress=False,
                skip_auto_headers=("accept", "content-type"),
            )
        return self._session
