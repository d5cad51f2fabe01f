"""The requests that have no answer yet."""

from __future__ import annotations

import threading

from kgserve.bridge.message import LISTEN, Message
from kgserve.bridge.wire import Call


class Flight:
    """One request under way.

    ``cancelled``: the editor no longer waits for it. ``acknowledged``: the editor has heard that it listens.
    """

    def __init__(self, message: Message) -> None:
        self.message = message
        self.cancelled = False
        self.acknowledged = False
        self._call: Call | None = None

    def boards(self, call: Call) -> None:
        """The call that carries the request from now on."""
        self._call = call
        if self.cancelled:
            call.abort()

    def abort(self) -> None:
        """Break the connection: in the stateless era this is how a request is cancelled."""
        self.cancelled = True
        if self._call is not None:
            self._call.abort()


class Flights:
    """All of them, by the request's id."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._flights: dict[str, Flight] = {}

    def open(self, message: Message) -> Flight:
        """Remember a request before anything is done about it, so that it can be cancelled from then on."""
        flight = Flight(message)
        with self._changed:
            self._flights[repr(message.id)] = flight
        return flight

    def close(self, flight: Flight) -> None:
        """The request is answered, or cannot be."""
        with self._changed:
            if self._flights.get(repr(flight.message.id)) is flight:
                del self._flights[repr(flight.message.id)]
            self._changed.notify_all()

    def find(self, request: object) -> Flight | None:
        """The request with this id, if it is under way."""
        with self._changed:
            return self._flights.get(repr(request))

    def wait(self, seconds: float) -> None:
        """Wait until every request is answered, but for those that listen for ever."""
        with self._changed:
            self._changed.wait_for(self._all_answered, seconds)

    def _all_answered(self) -> bool:
        return all(flight.message.method == LISTEN for flight in self._flights.values())
