"""Client of server-sent events that can disconnect abruptly and reconnect."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec


class ReceivedEvent(NamedTuple):
    """An event as received."""

    id: str
    kind: str
    data: Any


UNORDERED_EVENT_KIND = "sync_complete"
"""Events sent once a second while the store is written; their position between other events is undefined."""


class EventListener:
    """One open event stream of a server on 127.0.0.1.

    ``last_id`` is the id that a browser would send on reconnecting.
    """

    def __init__(self, port: int, path: str, last_id: str = "", timeout: float = 30.0) -> None:
        self.last_id = last_id
        self.retry = 0
        self.comments = 0
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        header = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{header}\r\n".encode())
        self._response = HTTPResponse(self._socket)
        self._response.begin()
        self.status = self._response.status
        self.headers = self._response.headers

    def problem(self) -> Any:
        """Return the body of an answer that is not a stream."""
        return msgspec.json.decode(self._response.read())

    def greet(self) -> Self:
        """Wait for the first block, which holds no event; from then on the server listens for this stream."""
        assert self._block() == ("", "")
        return self

    def events(self) -> Iterator[ReceivedEvent]:
        """Yield events until the stream ends or breaks, except `UNORDERED_EVENT_KIND`.

        Raises TimeoutError when none arrives.
        """
        with suppress(ConnectionError, HTTPException):
            while (block := self._block()) is not None:
                kind, data = block
                if data and kind != UNORDERED_EVENT_KIND:
                    yield ReceivedEvent(self.last_id, kind, msgspec.json.decode(data))

    def hang_up(self) -> None:
        """End the connection; threads that wait for events receive no more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect immediately."""
        self.hang_up()
        self._response.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _block(self) -> tuple[str, str] | None:
        """Return kind and data of a block; None at the end of the stream. Incomplete blocks are dropped."""
        kind = data = ""
        place: str | None = None
        while line := self._response.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            match name:
                case "id":
                    place = value
                case "event":
                    kind = value
                case "data":
                    data = value
                case "retry":
                    self.retry = int(value)
                case "" if value:
                    self.comments += 1
                case _:
                    self.last_id = self.last_id if place is None else place
                    return kind, data
        return None
