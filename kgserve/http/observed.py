"""What is counted and timed of each request: at its end, once, by route template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from kgserve.metrics.observation import UNMATCHED
from kgserve.metrics.origin import Origin, begin, end

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from litestar.types import HTTPScope

    from kgserve.access.caller import Caller
    from kgserve.metrics.observation import Observation

REFUSED = "refused"
"""The key of the scope's state under which an error's code is left for the count of refusals."""
_LEAST_ERROR = 400
_STREAM = b"text/event-stream"


class Answered(Protocol):
    """An exchange that is over: the status that the log shows, bytes of both bodies, and whether it was a stream."""

    request_id: str
    received: int
    sent: int
    streamed: bool

    @property
    def outcome(self) -> int | None:
        """The status of the answer, or that of a client that has left."""
        ...

    @property
    def seconds(self) -> float:
        """Since the request began."""
        ...


class Observed:
    """While inside, a request is worked for; at the end it is counted."""

    def __init__(self, observation: Observation, scope: HTTPScope, exchange: Answered) -> None:
        self._observation = observation
        self._scope = scope
        self._exchange = exchange
        self._origin = Origin(exchange.request_id)
        self._traced: AbstractContextManager[Any] | None = None
        self._span: Any = None

    def __enter__(self) -> None:
        """Begin."""
        self._token = begin(self._origin)
        tracing = self._observation.tracing
        if tracing is not None:
            self._traced = tracing.request(self._origin, self._scope["method"], self._scope["headers"])
            self._span = self._traced.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Count, and end the span."""
        try:
            self._count()
        finally:
            if self._traced is not None:
                self._traced.__exit__(kind, error, trace)
            end(self._token)

    def _count(self) -> None:
        exchange, method = self._exchange, self._scope["method"]
        route = self._scope.get("path_template") or UNMATCHED
        status = exchange.outcome or 0
        seconds = None if exchange.streamed else exchange.seconds
        self._observation.requests.done(method, route, status, (exchange.received, exchange.sent), seconds)
        if status >= _LEAST_ERROR:
            self._observation.requests.refused.add(self._scope["state"].get(REFUSED) or f"http_{status}")
        if seconds is not None and seconds >= self._observation.slow.seconds:
            self._note(method, route, status, seconds)
        if self._span is not None and self._observation.tracing is not None:
            self._observation.tracing.answered(self._span, method, route, status)

    def _note(self, method: str, route: str, status: int, seconds: float) -> None:
        caller = cast("Caller", self._scope["state"]["caller"]).name
        store = self._scope.get("path_params", {}).get("store")
        fields = {"method": method, "route": route, "status": status, "store": store, "caller": caller}
        self._observation.slow.note("request", seconds, self._origin.parts, **fields)


def is_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether an answer is an event stream, which lasts for as long as somebody listens."""
    return any(name == b"content-type" and value.startswith(_STREAM) for name, value in headers)
