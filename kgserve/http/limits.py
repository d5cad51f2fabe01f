"""What connections may cost: how many there may be, and how long they may keep the server waiting.

One timer looks at all connections now and then, instead of one for every request: what a plain request pays for these
limits is a few comparisons.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import msgspec

from kgserve.errors import Unavailable
from kgserve.metrics.instruments import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgserve.settings import Settings

KILOBYTE = 1000
MAX_HEADER_LINES = 200
MAX_PIPELINED = 32
"""Requests that may wait on one connection behind the one that is being answered."""
LEAST_PROGRESS = 1000
"""Bytes that a body must bring in ``body_timeout``."""
STOP_BODY_TIMEOUT = 1.0
"""Seconds that take the place of ``body_timeout`` once the server is stopping."""
FRAMING_ALLOWANCE = 64 * KILOBYTE
FRAMING_FACTOR = 16
"""A chunked body may take this many times its own size on the wire, beyond the allowance: chunks of a byte take six."""
LINGER = 1.0
"""Seconds for which a connection that is closed early goes on reading, so that the client gets to see the answer."""
MAX_LINGERING = 64
"""Connections beyond the limit that are told so; when more come than that they are only closed."""

_SLICES = 8
_LONGEST_TICK = 1.0
_RETRY_AFTER = 5


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds."""

    connections: int
    connections_per_address: int
    head: int
    url: int
    head_timeout: float
    body_timeout: float
    answer_timeout: float

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Those that were set."""
        return cls(
            connections=settings.max_connections,
            connections_per_address=settings.max_connections_per_address,
            head=settings.max_header_kb * KILOBYTE,
            url=settings.max_url_kb * KILOBYTE,
            head_timeout=settings.head_timeout,
            body_timeout=settings.body_timeout,
            answer_timeout=settings.answer_timeout,
        )

    @property
    def tick(self) -> float:
        """Seconds between two looks at all connections."""
        return min(_LONGEST_TICK, min(self.head_timeout, self.body_timeout, self.answer_timeout) / _SLICES)


class Progress:
    """How a body gets on: in windows of time, each of which must bring enough."""

    def __init__(self) -> None:
        self._since = 0.0
        self._bytes = 0

    def begin(self, now: float) -> None:
        """A window begins."""
        self._since, self._bytes = now, 0

    def add(self, count: int) -> None:
        """Bytes have come."""
        self._bytes += count

    def has_stopped(self, now: float, window: float) -> bool:
        """Whether too little came in a window of so many seconds; the next one begins when one is over."""
        if now - self._since <= window:
            return False
        too_little = self._bytes < LEAST_PROGRESS
        self.begin(now)
        return too_little


class Connection(Protocol):
    """What is known of a connection here."""

    def look(self, now: float) -> None:
        """End it if it has kept the server waiting for too long; ``now`` is the loop's time."""
        ...


class Connections:
    """The open connections of one server. Lives on its event loop."""

    def __init__(self, limits: Limits, is_proxy: Callable[[str], bool]) -> None:
        self.limits = limits
        self._is_proxy = is_proxy
        self._open: dict[Connection, str] = {}
        self._refused: set[Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self.refused = Tally()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection, address: str) -> Unavailable | None:
        """Take a connection in; the reason why it cannot be."""
        reason = self._objection(address)
        if reason is None:
            self._open[connection] = address
            self._per_address[address] += 1
        else:
            self._refused.add(connection)
        if self._timer is None:
            self._arm()
        return reason

    @property
    def overrun(self) -> bool:
        """Whether so many are being refused that there is no time left for words."""
        return len(self._refused) > MAX_LINGERING

    def leave(self, connection: Connection) -> None:
        """It is closed."""
        self._refused.discard(connection)
        address = self._open.pop(connection, None)
        if address is not None:
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]

    def _objection(self, address: str) -> Unavailable | None:
        if len(self._open) >= self.limits.connections:
            return Unavailable(f"{len(self._open)} connections are open already; try again later", _RETRY_AFTER)
        most = self.limits.connections_per_address
        if self._per_address[address] >= most and not self._is_proxy(address):
            return Unavailable(f"{most} connections from {address} are open already; close one first", _RETRY_AFTER)
        return None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.limits.tick, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._open or self._refused:
            self._arm()
        now = asyncio.get_running_loop().time()
        for connection in (*self._open, *self._refused):
            connection.look(now)
