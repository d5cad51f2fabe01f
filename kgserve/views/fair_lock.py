"""A lock that its holder does not get again before those who are waiting."""

from __future__ import annotations

import threading


class FairLock:
    """Who lets go of a `threading.Lock` and asks again gets it first, for others must be woken: here they come first.

    So a long piece of work that lets go between its parts holds others up for one part.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._held = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()
