"""An entity as the indexes take it, and what a search may be narrowed by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import xxhash

from kgserve.model.fields import NodeExtras
from kgserve.model.rows import NodeRow

_encode = msgspec.msgpack.Encoder().encode


class Facets(msgspec.Struct, frozen=True, array_like=True):
    """What most entities do not have and some filters ask for; as in `NodeExtras`."""

    tags: tuple[str, ...] = ()
    freshness_at: int | None = None
    valid_from: int | None = None
    valid_to: int | None = None

    def hold(self, moment: int) -> bool:
        """Whether the entity was true at a moment of the world, in microseconds."""
        started = self.valid_from is None or self.valid_from <= moment
        return started and (self.valid_to is None or moment < self.valid_to)


NO_FACETS = Facets()


def facets_of(extras: NodeExtras | None) -> Facets | None:
    """What filters may ask of an entity; None where there is nothing to say."""
    if extras is None:
        return None
    facets = Facets(extras.tags, extras.freshness_at, extras.valid_from, extras.valid_to)
    return None if facets == NO_FACETS else facets


class Text(msgspec.Struct, frozen=True):
    """An entity as the indexes take it: its texts have held since a commit, and for past ones until another."""

    id: str
    type: str
    content: str
    since: int = 0
    summary: str = ""
    facets: Facets | None = None
    until: int | None = None

    @classmethod
    def of(cls, row: NodeRow, since: int | None = None, until: int | None = None) -> Text:
        """The texts of a state, which has held since its own commit if nothing else is said."""
        summary = row.extras.summary if row.extras else ""
        first = row.sequence if since is None else since
        return cls(row.id, row.type, row.content, first, summary, facets_of(row.extras), until)

    @property
    def tags(self) -> Sequence[str]:
        """Its tags."""
        return self.facets.tags if self.facets else ()

    @property
    def has_words(self) -> bool:
        """Whether there is anything to find it by."""
        return bool(self.content or self.summary or self.tags)

    @property
    def key(self) -> str:
        """What names it in an index: one entity may have several past texts."""
        return self.id if self.until is None else f"{self.id}\0{self.since}\0{self.digest.hex()}"

    @property
    def digest(self) -> bytes:
        """A checksum of all but when it held."""
        return xxhash.xxh3_128_digest(_encode((self.type, self.content, self.summary, self.facets)))


class PastKey(NamedTuple):
    """A key of a past text, taken apart."""

    id: str
    since: int
    digest: str


def past_key(key: str) -> PastKey:
    """The parts of the key that a past text has."""
    node_id, since, digest = key.rsplit("\0", 2)
    return PastKey(node_id, int(since), digest)


class Filter(msgspec.Struct, frozen=True):
    """Types to keep (None: all), what ids must start with ("" for anything), and tags of which none may be missing.

    ``valid_at`` keeps what was true then, ``fresh_at`` what was not stale then, both in microseconds. ``as_of`` keeps
    the texts that held as of a commit. ``ids`` are the only ones to keep, ``past_ids`` those of texts that are over.
    """

    types: frozenset[str] | None = None
    id_prefix: str = ""
    tags: frozenset[str] = frozenset()
    valid_at: int | None = None
    fresh_at: int | None = None
    as_of: int | None = None
    ids: frozenset[str] | None = None
    past_ids: frozenset[str] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything passes."""
        return self.as_of is None and not self.wants_facets and not self.names_some

    @property
    def names_some(self) -> bool:
        """Whether it goes by what an entity is called, or of which type it is."""
        return self.types is not None or bool(self.id_prefix) or self.ids is not None

    @property
    def of_the_past(self) -> Filter:
        """The same for texts that are over."""
        return msgspec.structs.replace(self, ids=self.past_ids)

    @property
    def wants_facets(self) -> bool:
        """Whether it asks for what most entities do not have."""
        return bool(self.tags) or self.valid_at is not None or self.fresh_at is not None

    def passes(self, node_id: str, node_type: str, facets: Facets | None = None) -> bool:
        """Whether one entity passes, but for the commit."""
        named = (self.types is None or node_type in self.types) and node_id.startswith(self.id_prefix)
        named = named and (self.ids is None or node_id in self.ids)
        return named and (not self.wants_facets or self._facets_pass(facets or NO_FACETS))

    def passes_row(self, row: NodeRow) -> bool:
        """Whether the state of an entity passes, but for the commit."""
        return self.passes(row.id, row.type, facets_of(row.extras))

    def _facets_pass(self, facets: Facets) -> bool:
        fresh = self.fresh_at is None or facets.freshness_at is None or self.fresh_at < facets.freshness_at
        return fresh and self.tags.issubset(facets.tags) and (self.valid_at is None or facets.hold(self.valid_at))


ANYTHING = Filter()
