"""A listener to server-sent events, which may leave without a word and come back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec


class Told(NamedTuple):
    """An event as it came."""

    id: str
    kind: str
    data: Any


NOW_AND_THEN = "sync_complete"
"""What comes of itself once a second while something is written; nobody can say between which events."""


class Listener:
    """One open stream of a server on 127.0.0.1. ``last_id`` is what a browser would send when it comes back."""

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
        """The body of an answer that is no stream."""
        return msgspec.json.decode(self._response.read())

    def greet(self) -> Self:
        """Wait for the first block, which holds no event; from then on the server listens for this stream."""
        assert self._block() == ("", "")
        return self

    def events(self) -> Iterator[Told]:
        """The events as they come, until the stream ends or breaks, but for those that come now and then.

        Raises TimeoutError when nothing comes.
        """
        with suppress(ConnectionError, HTTPException):
            while (block := self._block()) is not None:
                kind, data = block
                if data and kind != NOW_AND_THEN:
                    yield Told(self.last_id, kind, msgspec.json.decode(data))

    def hang_up(self) -> None:
        """End the connection; whoever waits for events, in whatever thread, gets no more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Leave at once."""
        self.hang_up()
        self._response.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _block(self) -> tuple[str, str] | None:
        """Kind and data of a block; None at the end of the stream. One that breaks off counts for nothing."""
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
