"""In which format nodes write: one that all of them know, until an upgrade is finished."""

from __future__ import annotations

from collections.abc import Mapping

from kgserve.cluster.protocols import Beat, Registry
from kgserve.cluster.records import FORMAT
from kgserve.errors import Conflict

_NAME = "format"
FIRST = 1


class Formats:
    """The format that the registry names. Newer programs read it and their own, older ones are kept out."""

    def __init__(self, registry: Registry, known: int = FORMAT) -> None:
        """``known`` is the newest that this program reads. Raises Conflict when that is too old, and Unavailable."""
        self._registry = registry
        self._known = known
        self.look()
        if self.current > known:
            raise Conflict(
                f"the cluster writes format {self.current}, and this version of kgserve knows {known}: its upgrade was "
                "finished, so install the version of the other nodes"
            )

    def look(self) -> None:
        """See which it is now. Raises Unavailable."""
        self.current, _ = self._entry()

    def finish(self, alive: Mapping[str, Beat]) -> int:
        """Have all write the newest format from now on; which one. Raises Conflict while a node would not know it."""
        if older := sorted(name for name, beat in alive.items() if beat.format < self._known):
            raise Conflict(f"upgrade {', '.join(older)} first: format {self._known} is not known there")
        current, revision = self._entry()
        if current < self._known and self._registry.put_entry(_NAME, str(self._known).encode(), revision) is None:
            raise Conflict("another node has just changed the format; look again")
        self.look()
        return self.current

    def _entry(self) -> tuple[int, int]:
        found = self._registry.entries().get(_NAME)
        return (FIRST, 0) if found is None else (int(found.data), found.revision)
