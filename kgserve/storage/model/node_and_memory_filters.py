"""Filters and pages of node and memory lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.storage.model.attribute_filters import AttributeCondition, matches_attribute_conditions
from kgserve.storage.model.node_edge_rows import NodeRow

PageItem = TypeVar("PageItem")

MAX_SCANNED_NODES = 20_000
"""Maximum nodes examined for one page."""

MAX_COUNTED_NODES = 500_000
"""Maximum nodes examined for a count."""


class NodeFilter(msgspec.Struct, frozen=True):
    """Filter of nodes: any of ``types``, all ``tags`` and ``attributes``, valid at ``valid_at`` (microseconds).

    Empty and None values do not filter.
    """

    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    valid_at: int | None = None
    attributes: tuple[AttributeCondition, ...] = ()

    def matches(self, row: NodeRow) -> bool:
        """Return True if a node passes the filter."""
        return (
            (not self.types or row.type in self.types)
            and (not self.tags or set(self.tags) <= set(row.extras.tags if row.extras else ()))
            and (self.valid_at is None or row.is_valid_at(self.valid_at))
            and matches_attribute_conditions(row.attributes, self.attributes)
        )


NO_NODE_FILTER = NodeFilter()


class MatchCount(msgspec.Struct, frozen=True):
    """Number of matching nodes; a lower bound unless ``exact``."""

    count: int
    exact: bool


class PagePosition(NamedTuple):
    """Start of a page: after the node ``after`` ("" for the beginning), skipping ``skip`` matches."""

    after: str = ""
    skip: int = 0


class ResultPage(NamedTuple, Generic[PageItem]):
    """Page of a list, and the position of the next page; None for the last.

    A page can be short or empty and still have a next one, because the number of examined nodes is bounded.
    """

    items: list[PageItem]
    next: PagePosition | None


def take_page_of_matching_items(
    found: Iterable[tuple[str, PageItem, object]], place: PagePosition, limit: int
) -> ResultPage[PageItem]:
    """Return a page of the next ``limit`` matches. ``found`` yields id, item and match flag from after ``place``."""
    items: list[PageItem] = []
    last, skip = place
    for number, (node_id, item, fits) in enumerate(found):
        if number == MAX_SCANNED_NODES or (fits and len(items) == limit):
            return ResultPage(items, PagePosition(last, skip))
        if fits and skip:
            skip -= 1
        elif fits:
            items.append(item)
        last = node_id
    return ResultPage(items, None)


Scanned = TypeVar("Scanned")


def limit_nonblocking_scan(found: Iterable[Scanned], most: int) -> Iterator[Scanned]:
    """Yield the items that a non-blocking read scans. Raises WouldBlock after ``most``."""
    for number, each in enumerate(found):
        if number == most:
            raise WouldBlock
        yield each


ANY_WITHDRAWAL = "any"


class MemoryFilter(msgspec.Struct, frozen=True):
    """Filter of memories; empty and None values do not filter. Times are microseconds since 1970.

    - ``types``: any of them. ``tags``: all of them.
    - ``min_confidence``: lower bound of the effective confidence at ``now``.
    - ``created_from``, ``created_to``: inclusive bounds of the creation time.
    - ``entity``: the node that the memories are about. ``under``: their parent memory.
    - ``orphans``: memories without a parent that are neither domains nor concepts.
    - ``among``: ids to choose from.
    - ``valid_at``: the valid time; UNSET for ``now``, None for any. With a time, former versions match too.
    - ``ended``: only memories withdrawn in this way, "any" for all of them, regardless of valid time. By default, only
      memories that are not withdrawn.
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
        """Valid time in microseconds; None for any."""
        return self.now if self.valid_at is UNSET else self.valid_at

    @property
    def includes_former_versions(self) -> bool:
        """True if former versions can match, because a valid time is given."""
        return not self.ended and isinstance(self.valid_at, int)
