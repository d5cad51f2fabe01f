"""What streams of the handshake era have sent lately, for clients whose connection broke to go on from.

A client that comes back with the id of the last event that it saw gets those behind it, if they are still kept: that is
bounded, for a session and for all of them together. Each session has its own: ids of requests are a session's, too, so
in one store for all of them the answers of one would be replayed to another.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import NamedTuple

import msgspec
from mcp.server.streamable_http import GET_STREAM_KEY, EventCallback, EventMessage, EventStore
from mcp.types import JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter

RETRY_MS = 1_000
"""How long a client is to wait before it comes back."""
MAX_EVENTS = 64
"""Events of one session that are kept."""
MAX_BYTES = 16 << 20
"""Bytes of the events of all sessions that are kept."""
_OWN_STREAM, _ANSWER = "s", "a"
_ID = re.compile(r"([0-9]{1,18})-([sa])")


class _Event(NamedTuple):
    """An event of a stream; without a text it only began the stream."""

    stream: str
    text: bytes

    @property
    def bytes(self) -> int:
        """About what it takes."""
        return 200 + len(self.text)


class SentEvents:
    """The newest events of all sessions; the oldest are forgotten."""

    def __init__(self, most: int = MAX_BYTES) -> None:
        """Keep at most so many bytes."""
        self._most = most
        self._held: OrderedDict[tuple[SessionEvents, int], int] = OrderedDict()
        self._bytes = 0

    def of_session(self) -> SessionEvents:
        """Those of a new session."""
        return SessionEvents(self)

    def hold(self, session: SessionEvents, number: int, size: int) -> None:
        """A session has one more."""
        self._held[session, number] = size
        self._bytes += size
        while self._bytes > self._most:
            (owner, oldest), size = self._held.popitem(last=False)
            self._bytes -= size
            owner.events.pop(oldest, None)

    def release(self, session: SessionEvents, number: int) -> None:
        """A session has one less."""
        self._bytes -= self._held.pop((session, number), 0)


class SessionEvents(EventStore):
    """The newest events of one session, by number."""

    def __init__(self, sent: SentEvents) -> None:
        self._sent = sent
        self._number = 0
        self.events: OrderedDict[int, _Event] = OrderedDict()

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep an event, or with None the beginning of a stream; its id."""
        text = b"" if message is None else _text(message)
        self._number += 1
        event = self.events[self._number] = _Event(stream_id, text)
        self._sent.hold(self, self._number, event.bytes)
        if len(self.events) > MAX_EVENTS:
            self._sent.release(self, self.events.popitem(last=False)[0])
        return _id(self._number, stream_id)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send again what came behind an event on its stream; the stream, or None when it is no longer known."""
        given = _ID.fullmatch(last_event_id)
        if given is None:
            return None
        seen = int(given[1])
        known = self.events.get(seen)
        stream = GET_STREAM_KEY if given[2] == _OWN_STREAM else known and known.stream
        for later, event in [(at, each) for at, each in self.events.items() if at > seen and each.stream == stream]:
            if event.text:
                message = jsonrpc_message_adapter.validate_json(event.text)
                await send_callback(EventMessage(message, _id(later, event.stream)))
        return stream


def _text(message: JSONRPCMessage) -> bytes:
    """A message as JSON: answers, which are long, in a third of the time that the SDK's models take."""
    if isinstance(message, JSONRPCResponse):
        return msgspec.json.encode({"jsonrpc": message.jsonrpc, "id": message.id, "result": message.result})
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


def _id(number: int, stream: str) -> str:
    """An event's id. It tells a session's own stream, which can be gone on with when the event is long forgotten."""
    return f"{number}-{_OWN_STREAM if stream == GET_STREAM_KEY else _ANSWER}"
