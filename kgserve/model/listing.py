"""Which nodes a list is about, and what a page of it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from kgserve.model.attributes import Condition, has_all
from kgserve.model.rows import NodeRow

Item = TypeVar("Item")

MAX_PASSED = 20_000
"""Nodes that one page looks at, at most."""

MAX_COUNTED = 500_000
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


EVERYTHING = NodeFilter()


class Counted(msgspec.Struct, frozen=True):
    """How many nodes fit; if it is not exact, at least so many do."""

    count: int
    exact: bool


class Place(NamedTuple):
    """Where a page begins: behind the node ``after``, "" for the start, with ``skip`` nodes of the list passed over."""

    after: str = ""
    skip: int = 0


class Listed(NamedTuple, Generic[Item]):
    """A page, and where the next one begins: None when there is none.

    It may be short, or empty, with a next one: it has looked at as many nodes as it may.
    """

    items: list[Item]
    next: Place | None


def page_of(found: Iterable[tuple[str, Item, object]], place: Place, limit: int) -> Listed[Item]:
    """The next ``limit`` of those that fit: ``found`` are ids in order, from behind ``place``, items, and whether."""
    items: list[Item] = []
    last, skip = place
    for number, (node_id, item, fits) in enumerate(found):
        if number == MAX_PASSED or (fits and len(items) == limit):
            return Listed(items, Place(last, skip))
        if fits and skip:
            skip -= 1
        elif fits:
            items.append(item)
        last = node_id
    return Listed(items, None)
