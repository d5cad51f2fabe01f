"""What a search may be narrowed by. Filters are exact: k results when k entities match."""

from __future__ import annotations

import msgspec

from kgserve.model.fields import NodeExtras
from kgserve.model.rows import NodeRow


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """What most entities do not have and some filters ask for; as in `NodeExtras`."""

    tags: tuple[str, ...] = ()
    freshness_at: int | None = None
    valid_from: int | None = None
    valid_to: int | None = None

    def hold(self, moment: int) -> bool:
        """Whether the entity was true at a moment of the world, in microseconds."""
        started = self.valid_from is None or self.valid_from <= moment
        return started and (self.valid_to is None or moment < self.valid_to)


NO_MARKS = Marks()


def marks_of(extras: NodeExtras | None) -> Marks | None:
    """What filters may ask of an entity; None where there is nothing to say."""
    if extras is None:
        return None
    marks = Marks(extras.tags, extras.freshness_at, extras.valid_from, extras.valid_to)
    return None if marks == NO_MARKS else marks


class Filter(msgspec.Struct, frozen=True):
    """Types to keep (None: all), what ids must start with ("" for anything), and tags of which none may be missing.

    ``valid_at`` keeps what was true then, ``fresh_at`` what was not stale then, both in microseconds. ``as_of`` keeps
    the texts that held as of a commit.
    """

    types: frozenset[str] | None = None
    id_prefix: str = ""
    tags: frozenset[str] = frozenset()
    valid_at: int | None = None
    fresh_at: int | None = None
    as_of: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything passes."""
        return self.names_nothing and self.as_of is None

    @property
    def names_nothing(self) -> bool:
        """Whether every entity passes, but for the commit."""
        return self.valid_at is None and self.only_times

    @property
    def only_times(self) -> bool:
        """Whether every entity passes, but for when it was so."""
        return self.types is None and not self.id_prefix and not self.tags and self.fresh_at is None

    @property
    def wants_marks(self) -> bool:
        """Whether it asks for what most entities do not have."""
        return bool(self.tags) or self.valid_at is not None or self.fresh_at is not None

    def passes(self, node_id: str, node_type: str, marks: Marks | None = None) -> bool:
        """Whether one entity passes, but for the commit."""
        named = (self.types is None or node_type in self.types) and node_id.startswith(self.id_prefix)
        return named and (not self.wants_marks or self._marked(marks or NO_MARKS))

    def passes_row(self, row: NodeRow) -> bool:
        """Whether the state of an entity passes, but for the commit."""
        return self.passes(row.id, row.type, marks_of(row.extras))

    def _marked(self, marks: Marks) -> bool:
        fresh = self.fresh_at is None or marks.freshness_at is None or self.fresh_at < marks.freshness_at
        return fresh and self.tags.issubset(marks.tags) and (self.valid_at is None or marks.hold(self.valid_at))


ANYTHING = Filter()
