"""When a store's present rows get a new base, and who makes it: one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import structlog

from kgserve.errors import KgserveError
from kgserve.rows.encoding import RowsDamaged
from kgserve.rows.view import Foreseen, RowsView

log = structlog.get_logger()

HOLD_BACK_SECONDS = 30.0
LOOK_SECONDS = 0.1


class Folding:
    """Makes new bases of a store's rows. ``renew`` is called when the old one turns out to be damaged."""

    def __init__(self, name: str, rows: RowsView, renew: Callable[[], None]) -> None:
        self._name = name
        self._rows = rows
        self._renew = renew
        self._idle = threading.Event()
        self._idle.set()
        self._begins = threading.Lock()
        self._is_foreseeing = False

    def wait(self) -> None:
        """Block until nobody makes a base, but for who foresees one and may wait for the caller."""
        while not self._is_foreseeing and not self._idle.wait(LOOK_SECONDS):
            pass

    def settle(self) -> None:
        """Block until nobody makes a base."""
        self._idle.wait()

    def hold_back(self) -> None:
        """Block while the changes beside the base are far too many and a new one is being made."""
        if self._rows.is_overfull and not self._idle.is_set() and not self._is_foreseeing:
            log.warning("writes_held_back", store=self._name, changed=self._rows.changed)
            self._idle.wait(HOLD_BACK_SECONDS)

    def begin_if_wanted(self, *, idle: bool = False) -> None:
        """Have a base made beside everything else, if the changes have outgrown their limits."""
        if self._rows.wants_fold(idle=idle) and self._begin():
            # A thread of its own, for writes may come to wait for it.
            threading.Thread(target=self._fold, name=f"fold-{self._name}", daemon=True).start()

    def at_once(self) -> None:
        """Make one now, unless somebody is at it. Blocks."""
        if self._begin():
            self._fold()

    @contextmanager
    def foreseeing(self, check: Callable[[], None] = lambda: None) -> Generator[Foreseen]:
        """Rows to leave some out of before the commit that takes them away.

        Waits for who makes a base; ``check`` is called now and then meanwhile.
        """
        while not self._begin(foreseeing=True):
            self._idle.wait(LOOK_SECONDS)
            check()
        try:
            with self._rows.foreseeing() as foreseen:
                yield foreseen
        finally:
            self._is_foreseeing = False
            self._idle.set()
            self.begin_if_wanted()

    def _begin(self, *, foreseeing: bool = False) -> bool:
        """Whether nobody else makes a base; from here on the caller does."""
        with self._begins:
            if not self._idle.is_set():
                return False
            # Said first, for the writer must not wait for who foresees one.
            self._is_foreseeing = foreseeing
            self._idle.clear()
            return True

    def _fold(self) -> None:
        try:
            self._rows.fold()
        except RowsDamaged:
            log.exception("rows_damaged", store=self._name)
            self._idle.set()
            self._renew()
        except (KgserveError, OSError):
            # The journal has everything; it is tried again after the next write.
            log.exception("rows_not_folded", store=self._name)
        finally:
            self._idle.set()
