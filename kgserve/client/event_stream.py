"""State of an event stream that resumes after interruptions: the next request and its time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from kgserve.client.errors import Retries, Unreachable, decode_json_answer, retry_after_seconds
from kgserve.client.wire import ClientRequest, ClientRoute
from kgserve.errors import KgserveError, NotFound, RateLimited, TimedOut, Unavailable
from kgserve.graph.answers import Edge, Node
from kgserve.platform.codecs import convert_plain_value_to_type
from kgserve.platform.media_types import EVENT_STREAM_MEDIA_TYPE
from kgserve.storage.model.store_settings import StoreSettings

MAX_SILENCE_SECONDS = 60.0
"""Seconds without data after which a connection is considered lost; the server sends a sign of life every 15 s."""
RECONNECT_TIMEOUT_SECONDS = 60.0
"""Default number of seconds for which a lost server is retried."""
_EDGE_EVENT_KINDS = {"edge_created", "edge_updated", "link_created", "link_updated"}


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a store. Pass its ``id`` as ``last_event_id`` to continue after it."""

    id: str
    kind: str
    store: str
    sequence: int
    time: str
    data: dict[str, Any]
    """Complete data of the event: the current row, or the id or key of a deleted one."""

    @property
    def node(self) -> Node | None:
        """The node that was created or updated, else None."""
        return convert_plain_value_to_type(self.data, Node) if self.kind in {"node_created", "node_updated"} else None

    @property
    def edge(self) -> Edge | None:
        """The edge that was created or updated, else None. Edges into another store have `to_graph`."""
        return convert_plain_value_to_type(self.data, Edge) if self.kind in _EDGE_EVENT_KINDS else None

    @property
    def settings(self) -> StoreSettings | None:
        """Current settings of the store that was created or changed, else None."""
        return (
            convert_plain_value_to_type(self.data, StoreSettings)
            if self.kind in {"store_created", "store_changed"}
            else None
        )


class _EventHeader(msgspec.Struct):
    store: str
    sequence: int
    time: str


class ResumableSseListenerState:
    """Progress of one listener over any number of connections. Performs no I/O itself."""

    def __init__(
        self,
        route: ClientRoute[bytes],
        store: str | None,
        query: dict[str, str | None],
        start: tuple[int | None, str | None],
        give_up_after: float | None,
    ) -> None:
        self._route = route
        self.store = store
        self.query = query
        self.since, self.last_id = start
        self._parser = SseParser()
        self._parser.last_id = self.last_id or ""
        self._give_up_after = give_up_after
        self._blocks = 0  # of the current connection; the first is a greeting and proves nothing about its health
        self._known = False
        self._lost_at: float | None = None
        self._failures = 0
        self.ended = False

    def call(self) -> ClientRequest[bytes]:
        """Return the next request."""
        place = self._parser.last_id
        self._parser.cut()
        self._blocks = 0
        headers = {"Accept": EVENT_STREAM_MEDIA_TYPE} | ({"Last-Event-ID": place} if place else {})
        parts = {} if self.store is None else {"store": self.store}
        query = {**self.query, "since": None if place else self.since}
        return self._route.call(parts, query, headers=headers, wait=MAX_SILENCE_SECONDS)

    def take(self, chunk: bytes) -> list[Event]:
        """Return the events that ``chunk`` completes."""
        complete: list[Event] = []
        for block in self._parser.feed(chunk):
            self._known = True
            self._blocks += 1
            if block.data and block.kind == "dropped":
                continue  # the server closes the stream after it; the next request continues there
            if block.data or self._blocks > 1:
                self._failures, self._lost_at = 0, None
            if block.data:
                complete.append(self._event(block))
        return complete

    def pause_after(self, error: KgserveError | None, retries: Retries) -> float:
        """Return the seconds until `call` should be sent again; ``error`` ended the stream. Raises it to give up."""
        if self.ended:
            return 0.0
        if self._known and self.store is not None and isinstance(error, NotFound):
            self.ended = True  # dropped while no connection was open
            return 0.0
        if error is not None and not isinstance(error, Unreachable | Unavailable | RateLimited | TimedOut):
            raise error
        pause = self._next_pause(retries, retry_after_seconds(error))
        if error is not None and self._is_exhausted(pause, retries):
            raise error
        self._failures += 1
        return pause

    def _next_pause(self, retries: Retries, asked: float) -> float:
        usual = self._parser.retry or retries.first
        return retries.pause(self._failures, max(asked, usual if self._failures == 0 else 0.0))

    def _is_exhausted(self, pause: float, retries: Retries) -> bool:
        if not self._known:
            return not retries.allows(self._failures)
        now = time.monotonic()
        self._lost_at = now if self._lost_at is None else self._lost_at
        return self._give_up_after is not None and now + pause > self._lost_at + self._give_up_after

    def _event(self, block: SseMessage) -> Event:
        body = block.data.encode()
        data = decode_json_answer(body, dict[str, Any])
        about = decode_json_answer(body, _EventHeader)
        if block.kind == "store_dropped" and about.store == self.store:
            self.ended = True
        return Event(
            id=self._parser.last_id,
            kind=block.kind,
            store=about.store,
            sequence=about.sequence,
            time=about.time,
            data=data,
        )


class SseMessage(NamedTuple):
    """One message of a stream of server-sent events. ``data`` is empty if it only reports progress."""

    kind: str
    data: str


class SseParser:
    """Incremental parser of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

    ``last_id`` is the id of the last complete block that had one.
    """

    def __init__(self) -> None:
        self.last_id = ""
        self.retry: float | None = None
        """Seconds to wait before reconnecting, if the server sent them."""
        self._reset()

    def feed(self, chunk: bytes) -> Iterator[SseMessage]:
        """Yield the blocks that ``chunk`` completes. ``last_id`` advances with each of them."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if text := line.removesuffix(b"\r").decode("utf-8", "replace"):
                self._field(text)
            else:
                yield self._finish_block()

    def cut(self) -> None:
        """Discard an incomplete block after the stream has ended."""
        self._reset()

    def _reset(self) -> None:
        self._rest = b""
        self._clear_block()

    def _clear_block(self) -> None:
        self._kind, self._id = "", None
        self._data: list[str] = []

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "id":
                self._id = value
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "retry" if value.isdecimal():
                self.retry = int(value[:9]) / 1000
            case _:  # a comment, or a field of later versions
                pass

    def _finish_block(self) -> SseMessage:
        block = SseMessage(self._kind or "message", "\n".join(self._data))
        if self._id is not None:
            self.last_id = self._id
        self._clear_block()
        return block
