"""Whole answers, sent at once: an extension of ASGI, whose two messages for one answer are two calls of the system."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

Whole = Callable[[bytes, bytes, bool], bool]
WHOLE = "kgserve.whole"
"""The key of the scope's extensions for a function that sends a whole answer, 200, in one piece.

It takes the head from behind the date, the body, and whether to close the connection then. It answers whether it could:
not while a client is too slow to read."""


def answer_whole(cycle: RequestResponseCycle, head: bytes, body: bytes, close: bool) -> bool:
    """As uvicorn's `send` twice, without looking at each header for what is never in ours."""
    if cycle.flow.write_paused or cycle.response_started:
        return False
    if cycle.disconnected:
        return True
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.keep_alive = cycle.keep_alive and not close
    lines = [STATUS_LINE[200], *(b"%b: %b\r\n" % line for line in cycle.default_headers), head]
    cycle.transport.write(b"".join([*lines, b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body]))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
