"""Server-sent events, as a client reads them.

https://html.spec.whatwg.org/multipage/server-sent-events.html is the format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Block(NamedTuple):
    """A block of a stream. ``data`` is empty in one that only says how far the stream has come."""

    kind: str
    data: str


class Parser:
    """Takes a stream as it comes. ``last_id`` is the id of the last whole block that had one."""

    def __init__(self) -> None:
        self.last_id = ""
        self.retry: float | None = None
        """Seconds to wait before coming back, when the server has said so."""
        self._start_over()

    def feed(self, chunk: bytes) -> Iterator[Block]:
        """The blocks that have become whole. ``last_id`` moves with each that is taken."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if text := line.removesuffix(b"\r").decode("utf-8", "replace"):
                self._field(text)
            else:
                yield self._whole()

    def cut(self) -> None:
        """The stream has ended; a block that is not whole counts for nothing."""
        self._start_over()

    def _start_over(self) -> None:
        self._rest = b""
        self._forget()

    def _forget(self) -> None:
        self._kind, self._place = "", None
        self._data: list[str] = []

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "id":
                self._place = value
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "retry" if value.isdecimal():
                self.retry = int(value[:9]) / 1000
            case _:  # a comment, or what later versions may add
                pass

    def _whole(self) -> Block:
        block = Block(self._kind or "message", "\n".join(self._data))
        if self._place is not None:
            self.last_id = self._place
        self._forget()
        return block
