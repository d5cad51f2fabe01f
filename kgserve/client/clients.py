"""Client classes for a server and for one store, synchronous and asynchronous."""

from __future__ import annotations

import os
from typing import Self

from typing_extensions import override

from kgserve.client.asynchronous import AsyncConnection
from kgserve.client.custom_request_builders import export
from kgserve.client.errors import Retries
from kgserve.client.methods import (
    AsyncServerClientMethods,
    AsyncStoreClientMethods,
    ServerClientMethods,
    StoreClientMethods,
)
from kgserve.client.synchronous import BlockingConnection, ClientTransport
from kgserve.client.wire import DEFAULT_REQUEST_TIMEOUT_SECONDS, ServerTarget


class Client(ServerClientMethods):
    """Client of a server: at ``url``, else of the one that serves the folder ``data``, else at the configured address.

    ``key``: API key; default KGSERVE_KEY, else the token in the data folder. ``timeout``: seconds that an answer may
    take; None for no limit. ``retries``: number and timing of retries; 0 disables them. ``copies``: let any node of a
    cluster answer reads from a replica that contains this client's previous writes and reads, and is at most
    ``max_staleness`` seconds old (default: the server's setting). Threads may share a client.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        data: str | os.PathLike[str] | None = None,
        key: str | None = None,
        timeout: float | None = DEFAULT_REQUEST_TIMEOUT_SECONDS,
        retries: Retries | int = Retries(),  # noqa: B008 - it is frozen
        copies: bool = False,
        max_staleness: float | None = None,
    ) -> None:
        policy = Retries(times=retries) if isinstance(retries, int) else retries
        self.http = BlockingConnection(
            ServerTarget(url, data, key, copies=copies, max_staleness=max_staleness), timeout, policy
        )
        self.connection: ClientTransport = self.http

    def store(self, name: str) -> Store:
        """Return one store, whether it exists or not: the first inject creates it."""
        return Store(self.connection, name)

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @override
    def __repr__(self) -> str:
        return f"Client({self.http.target.address.url!r})"


class Store(StoreClientMethods):
    """Client of one store, of a server or of a folder opened in this process."""

    def __init__(self, connection: ClientTransport, name: str) -> None:
        self.connection = connection
        self.name = name

    def export_to(self, path: str | os.PathLike[str]) -> int:
        """Write an export to a file that appears when it is complete; return the sequence of its snapshot."""
        return self.connection.save(export(self.name).call, path)

    @override
    def __repr__(self) -> str:
        return f"<Store {self.name!r} {self.connection!r}>"


class AsyncClient(AsyncServerClientMethods):
    """Asynchronous client of a server: at ``url``, else of the folder ``data``, else at the configured address.

    ``key``: API key; default KGSERVE_KEY, else the token in the data folder. ``timeout``: seconds that an answer may
    take; None for no limit. ``retries``: number and timing of retries; 0 disables them. ``copies``: let any node of a
    cluster answer reads from a replica that contains this client's previous writes and reads, and is at most
    ``max_staleness`` seconds old (default: the server's setting). A client belongs to one event loop.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        data: str | os.PathLike[str] | None = None,
        key: str | None = None,
        timeout: float | None = DEFAULT_REQUEST_TIMEOUT_SECONDS,
        retries: Retries | int = Retries(),  # noqa: B008 - it is frozen
        copies: bool = False,
        max_staleness: float | None = None,
    ) -> None:
        policy = Retries(times=retries) if isinstance(retries, int) else retries
        self.connection = AsyncConnection(
            ServerTarget(url, data, key, copies=copies, max_staleness=max_staleness), timeout, policy
        )

    def store(self, name: str) -> AsyncStore:
        """Return one store, whether it exists or not: the first inject creates it."""
        return AsyncStore(self.connection, name)

    async def close(self) -> None:
        """Close the connections."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @override
    def __repr__(self) -> str:
        return f"AsyncClient({self.connection.target.address.url!r})"


class AsyncStore(AsyncStoreClientMethods):
    """Asynchronous client of one store of a server."""

    def __init__(self, connection: AsyncConnection, name: str) -> None:
        self.connection = connection
        self.name = name

    async def export_to(self, path: str | os.PathLike[str]) -> int:
        """Write an export to a file that appears when it is complete; return the sequence of its snapshot."""
        return await self.connection.save(export(self.name).call, path)

    @override
    def __repr__(self) -> str:
        return f"<AsyncStore {self.name!r} at {self.connection.target.address.url}>"
