"""Events as a listener sees them who comes back where he was: which request is next, and when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from kgserve.client.failures import Retries, Unreachable, asked_for, decoded
from kgserve.client.wire import ClientRequest, Route
from kgserve.errors import KgserveError, Limited, NotFound, TimedOut, Unavailable
from kgserve.graph.answers import Edge, Node
from kgserve.platform.codecs import convert
from kgserve.platform.media_types import EVENT_STREAM_MEDIA_TYPE
from kgserve.storage.model.store_settings import StoreSettings

MAX_SILENCE_SECONDS = 60.0
"""Seconds without a sign of life, of which the server gives one every 15, after which a connection counts as lost."""
RECONNECT_TIMEOUT_SECONDS = 60.0
"""Seconds that a lost server is looked for, unless told otherwise."""
_EDGE_EVENT_KINDS = {"edge_created", "edge_updated", "link_created", "link_updated"}


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened in a store. ``id`` is what ``last_event_id`` takes to go on behind it."""

    id: str
    kind: str
    store: str
    sequence: int
    time: str
    data: dict[str, Any]
    """All that the server said: the row as it is now, or the id or key of what is gone."""

    @property
    def node(self) -> Node | None:
        """The node that was created or updated."""
        return convert(self.data, Node) if self.kind in {"node_created", "node_updated"} else None

    @property
    def edge(self) -> Edge | None:
        """The edge that was created or updated, be it one into another store, which has `to_graph`."""
        return convert(self.data, Edge) if self.kind in _EDGE_EVENT_KINDS else None

    @property
    def settings(self) -> StoreSettings | None:
        """The settings of the store that was created or changed, as they are now."""
        return convert(self.data, StoreSettings) if self.kind in {"store_created", "store_changed"} else None


class _Data(msgspec.Struct):
    store: str
    sequence: int
    time: str


class Following:
    """One listener's progress over any number of connections. It sends nothing itself."""

    def __init__(
        self,
        route: Route[bytes],
        store: str | None,
        query: dict[str, str | None],
        start: tuple[int | None, str | None],
        give_up_after: float | None,
    ) -> None:
        self._route = route
        self.store = store
        self.query = query
        self.since, self.last_id = start
        self._parser = Parser()
        self._parser.last_id = self.last_id or ""
        self._give_up_after = give_up_after
        self._blocks = 0  # of the present connection; the first is a greeting, which says nothing of its health
        self._known = False
        self._lost_at: float | None = None
        self._failures = 0
        self.ended = False

    def call(self) -> ClientRequest[bytes]:
        """The request to make now."""
        place = self._parser.last_id
        self._parser.cut()
        self._blocks = 0
        headers = {"Accept": EVENT_STREAM_MEDIA_TYPE} | ({"Last-Event-ID": place} if place else {})
        parts = {} if self.store is None else {"store": self.store}
        query = {**self.query, "since": None if place else self.since}
        return self._route.call(parts, query, headers=headers, wait=MAX_SILENCE_SECONDS)

    def take(self, chunk: bytes) -> list[Event]:
        """The events that have become whole."""
        told: list[Event] = []
        for block in self._parser.feed(chunk):
            self._known = True
            self._blocks += 1
            if block.data and block.kind == "dropped":
                continue  # the stream ends behind it, and is taken up where it was
            if block.data or self._blocks > 1:
                self._failures, self._lost_at = 0, None
            if block.data:
                told.append(self._event(block))
        return told

    def pause_after(self, error: KgserveError | None, retries: Retries) -> float:
        """Seconds until `call` is worth making again; ``error`` is what ended the stream. Raises it to give up."""
        if self.ended:
            return 0.0
        if self._known and self.store is not None and isinstance(error, NotFound):
            self.ended = True  # dropped while nobody listened
            return 0.0
        if error is not None and not isinstance(error, Unreachable | Unavailable | Limited | TimedOut):
            raise error
        pause = self._next_pause(retries, asked_for(error))
        if error is not None and self._hopeless(pause, retries):
            raise error
        self._failures += 1
        return pause

    def _next_pause(self, retries: Retries, asked: float) -> float:
        usual = self._parser.retry or retries.first
        return retries.pause(self._failures, max(asked, usual if self._failures == 0 else 0.0))

    def _hopeless(self, pause: float, retries: Retries) -> bool:
        if not self._known:
            return not retries.allows(self._failures)
        now = time.monotonic()
        self._lost_at = now if self._lost_at is None else self._lost_at
        return self._give_up_after is not None and now + pause > self._lost_at + self._give_up_after

    def _event(self, block: Block) -> Event:
        body = block.data.encode()
        data = decoded(body, dict[str, Any])
        about = decoded(body, _Data)
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


class Block(NamedTuple):
    """A block of a stream. ``data`` is empty in one that only says how far the stream has come."""

    kind: str
    data: str


class Parser:
    """Takes a stream of server-sent events as it comes (https://html.spec.whatwg.org/multipage/server-sent-events.html).

    ``last_id`` is the id of the last whole block that had one.
    """

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
