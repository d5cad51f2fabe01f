"""Connections of the server that reader processes may take over, and their stand-ins while one serves them."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol, cast

from typing_extensions import override

from kgserve.server.http.connection import HttpServerConnection
from kgserve.server.readers.reader_channel import count_missing_request_bytes

MIN_REQUESTS_BEFORE_HANDOVER = 1
"""Requests in a row that reader processes could answer, after which a new connection is handed over."""
MAX_REQUESTS_BEFORE_HANDOVER = 4_096
"""The same for a connection that came back often; the number doubles each time."""


class ConnectionTaker(Protocol):
    """Takes connections whose next requests reader processes could answer."""

    def take_connection(self, connection: HandoverHttpConnection, data: bytes) -> bool:
        """Hand a connection and its next request to a reader process; False if this process has to answer."""
        ...


class ReaderServedConnection:
    """Stand-in for a connection that a reader process serves; it counts as one of the server's connections.

    ``returned`` is the input that the reader process has returned so far.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.returned = b""

    def check_deadlines(self, now: float) -> None:
        """Do nothing: the reader process checks the time limits."""


class HandoverHttpConnection(HttpServerConnection):
    """Connection that is handed to a reader process once it sends requests that one can answer.

    A connection that a reader process returned replaces its stand-in, and begins with the bytes of its next request.
    """

    def __init__(
        self,
        *args: Any,
        readers: ConnectionTaker,
        stand_in: ReaderServedConnection | None = None,
        first: bytes = b"",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._readers = readers
        self._stand_in = stand_in
        self._first = first
        self._in_a_row = 0
        self.patience = MIN_REQUESTS_BEFORE_HANDOVER
        if stand_in is not None:
            self.patience = min(2 * stand_in.patience, MAX_REQUESTS_BEFORE_HANDOVER) if first else stand_in.patience

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:
        if self._stand_in is not None:
            self._open_connections.remove(self._stand_in)
        super().connection_made(transport)
        if self._first:
            self.data_received(self._first)  # here, because the transport reads before it runs other callbacks

    @override
    def data_received(self, data: bytes) -> None:
        if self.is_between_requests and self._is_handed_over(data):
            return
        super().data_received(data)

    def _is_handed_over(self, data: bytes) -> bool:
        if count_missing_request_bytes(data) is None:
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        return self._readers.take_connection(self, data)

    @property
    def is_ready(self) -> bool:
        """True if enough requests in a row could be answered by a reader process."""
        return self._in_a_row > self.patience

    @property
    def descriptor(self) -> int | None:
        """Descriptor of the socket; None while an answer waits to be sent."""
        waits = self.wire.get_write_buffer_size()
        return None if waits else cast("socket.socket", self.wire.get_extra_info("socket")).fileno()

    def leave(self) -> None:
        """Close this process's descriptor of the connection only."""
        self._unset_keepalive_if_required()
        self._ignores_input = True
        self.wire.abort()
