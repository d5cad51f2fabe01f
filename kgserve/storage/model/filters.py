"""Which nodes a list is about, and what a page of it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from kgserve.storage.model.attributes import Condition, has_all
from kgserve.storage.model.rows import NodeRow

Item = TypeVar("Item")

MAX_SCANNED_NODES = 20_000
"""Nodes that one page looks at, at most."""

MAX_COUNTED_NODES = 500_000
"""Nodes that a count looks at, at most."""


class NodeFilter(msgspec.Struct, frozen=True):
    """Nodes of any of ``types``, with all ``tags`` and ``attributes``, true at ``valid_at`` (microseconds).

    What is empty or None does not matter.
    """

    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    valid_at: int | None = None
    attributes: tuple[Condition, ...] = ()

    def matches(self, row: NodeRow) -> bool:
        """Whether a node is among them."""
        return (
            (not self.types or row.type in self.types)
            and (not self.tags or set(self.tags) <= set(row.extras.tags if row.extras else ()))
            and (self.valid_at is None or row.holds_at(self.valid_at))
            and has_all(row.attributes, self.attributes)
        )


NO_NODE_FILTER = NodeFilter()


class Counted(msgspec.Struct, frozen=True):
    """How many nodes fit; if it is not exact, at least so many do."""

    count: int
    exact: bool


class PagePosition(NamedTuple):
    """Where a page begins: behind the node ``after``, "" for the start, with ``skip`` nodes of the list passed over."""

    after: str = ""
    skip: int = 0


class Listed(NamedTuple, Generic[Item]):
    """A page, and where the next one begins: None when there is none.

    It may be short, or empty, with a next one: it has looked at as many nodes as it may.
    """

    items: list[Item]
    next: PagePosition | None


def page_of(found: Iterable[tuple[str, Item, object]], place: PagePosition, limit: int) -> Listed[Item]:
    """The next ``limit`` of those that fit: ``found`` are ids in order, from behind ``place``, items, and whether."""
    items: list[Item] = []
    last, skip = place
    for number, (node_id, item, fits) in enumerate(found):
        if number == MAX_SCANNED_NODES or (fits and len(items) == limit):
            return Listed(items, PagePosition(last, skip))
        if fits and skip:
            skip -= 1
        elif fits:
            items.append(item)
        last = node_id
    return Listed(items, None)


ANY_END = "any"


class MemoryFilter(msgspec.Struct, frozen=True):
    """Memories that meet all of this; what is empty or None does not matter. Times are microseconds since 1970.

    They have any of ``types``, all ``tags``, at ``now`` an effective confidence of ``min_confidence`` or more, were
    created between ``created_from`` and ``created_to`` (both may be), are about the node ``entity``, below the memory
    ``under``, with ``orphans`` below none and no domains or concepts, and among some ids. They are in force: none that
    has ended, and true in the world at ``now``, or at ``valid_at``, or whenever if that is None; at a ``valid_at``
    former versions count, too. With ``ended`` they are those that have ended in that way, or all there are for "any",
    whenever they were true.
    """

    now: int
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    min_confidence: float = 0.0
    created_from: int | None = None
    created_to: int | None = None
    source: str = ""
    layer: int | None = None
    entity: str = ""
    under: str = ""
    orphans: bool = False
    ended: str = ""
    valid_at: int | UnsetType | None = UNSET
    among: frozenset[str] | None = None

    @property
    def moment(self) -> int | None:
        """When they have to be true in the world; None: whenever."""
        return self.now if self.valid_at is UNSET else self.valid_at

    @property
    def looks_back(self) -> bool:
        """Whether former versions are wanted, of which those that were true at the moment do."""
        return not self.ended and isinstance(self.valid_at, int)
