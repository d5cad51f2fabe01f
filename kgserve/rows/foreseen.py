"""A base that is made before the commit that it is for: rows that a write is to take away are left out ahead of it.

What others write meanwhile must not meet those rows; so it comes to the same before and after, and is put beside the
new base in the order in which it came.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from kgserve.model.change import ChangeSet, StoreState
from kgserve.rows.base import Base
from kgserve.rows.delta import Delta
from kgserve.rows.snapshot import Rows


class View(Protocol):
    """What makes such a base, and puts it in service."""

    def without(self, rows: Rows, nodes: set[int], edges: set[int]) -> Base:
        """A base of these rows without some."""
        ...

    def rows(self) -> Rows:
        """The newest rows, for who applies commits."""
        ...

    def show_foreseen(self, base: Base, delta: Delta, state: StoreState) -> None:
        """Have readers see it."""
        ...


class Foreseen:
    """Rows of a commit of which some are to go, and the base without them; others may write meanwhile."""

    def __init__(self, view: View, rows: Rows, pending: deque[ChangeSet]) -> None:
        self.rows = rows
        self.base: Base | None = None
        self._view = view
        self._pending = pending
        self._delta: Delta | None = None

    @property
    def is_current(self) -> bool:
        """Whether these rows, and what came since, are still what the view has."""
        return self._view.rows().base is self.rows.base

    def begin_again(self) -> None:
        """Go by the rows of now. For who applies commits, while nothing is left out yet."""
        self._pending.clear()
        self.rows = self._view.rows()

    def leave_out(self, nodes: set[int], edges: set[int]) -> None:
        """Make the base without these. Raises StorageFull, Unavailable and RowsDamaged."""
        self.base = self._view.without(self.rows, nodes, edges)
        self._delta = Delta(self.base)

    def catch_up(self) -> list[ChangeSet]:
        """What others have written since this was last asked; it must not meet what is to go."""
        taken = [self._pending.popleft() for _ in range(len(self._pending))]
        if self._delta is not None:
            for change in taken:
                self._delta.apply(change, change.sequence)
        return taken

    def show(self, change: ChangeSet) -> None:
        """Show the commit that takes the rows away, once nothing is left to catch up with. For who applies commits."""
        assert self.base is not None  # noqa: S101
        assert self._delta is not None  # noqa: S101
        self._delta.sequence = change.sequence
        self._view.show_foreseen(self.base, self._delta, change.state)
