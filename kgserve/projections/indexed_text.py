"""Texts and filterable facets of entities as the indexes store them, and the filters of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import xxhash

from kgserve.platform.codecs import decode_json
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.store_settings import EVERY_ATTRIBUTE

_encode = msgspec.msgpack.Encoder().encode


class MemoryFilterableFields(msgspec.Struct, frozen=True, array_like=True):
    """Facets (filterable properties) of a memory; ``created`` is in microseconds, the rest as in `NodeExtras`."""

    created: int
    layer: int | None = None
    source: str = ""


class EntityFilterableFields(msgspec.Struct, frozen=True, array_like=True):
    """Filterable properties that most entities lack, as in `NodeExtras`; only memories have ``marks``."""

    tags: tuple[str, ...] = ()
    freshness_at: int | None = None
    valid_from: int | None = None
    valid_to: int | None = None
    marks: MemoryFilterableFields | None = None

    def is_valid_at(self, moment: int) -> bool:
        """Return whether the entity is valid at a moment, in microseconds of valid time."""
        started = self.valid_from is None or self.valid_from <= moment
        return started and (self.valid_to is None or moment < self.valid_to)

    @property
    def packed(self) -> tuple[Any, ...]:
        """The values to store and compare; entities without ``marks`` keep the format that predates memories."""
        values = msgspec.structs.astuple(self)
        return values[:-1] if self.marks is None else values


NO_FACETS = EntityFilterableFields()


def extract_node_filterable_fields(row: NodeRow) -> EntityFilterableFields | None:
    """Return the facets of an entity, None if it has none."""
    extras = row.extras
    if extras is None:
        return None
    marks = MemoryFilterableFields(row.created_at, extras.layer, extras.source) if row.is_memory else None
    facets = EntityFilterableFields(extras.tags, extras.freshness_at, extras.valid_from, extras.valid_to, marks)
    return None if facets == NO_FACETS else facets


def extract_attribute_words(attributes: str, indexed: Sequence[str]) -> str:
    """Return the strings, numbers and booleans among the values of some attributes, at any depth, as one text."""
    found: dict[str, Any] = decode_json(attributes, dict[str, Any])
    chosen = sorted(found) if EVERY_ATTRIBUTE in indexed else (key for key in indexed if key in found)
    return " ".join(leaf for key in chosen for leaf in _leaves(found[key]))


def _leaves(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case bool() | int() | float():
            yield msgspec.json.encode(value).decode()
        case list():
            for each in cast("list[object]", value):
                yield from _leaves(each)
        case dict():
            yield from _leaves(list(cast("dict[str, object]", value).values()))
        case _:
            pass


class IndexedEntityText(msgspec.Struct, frozen=True):
    """Entity as the indexes store it: its texts, and the commits from and until which they are current.

    ``said`` contains the values of the attributes that the store's settings include in the indexes. ``until`` is None
    for current texts.
    """

    id: str
    type: str
    content: str
    since: int = 0
    summary: str = ""
    facets: EntityFilterableFields | None = None
    until: int | None = None
    name: str = ""
    context: str = ""
    said: str = ""

    @classmethod
    def of(
        cls, row: NodeRow, indexed: Sequence[str] = (), since: int | None = None, until: int | None = None
    ) -> IndexedEntityText:
        """Return the texts of a state, including its ``indexed`` attributes.

        They are current since the state's own commit, or ``since``.
        """
        first = row.sequence if since is None else since
        said = extract_attribute_words(row.attributes, indexed) if indexed else ""
        if row.extras is None:
            return cls(row.id, row.type, row.content, first, until=until, said=said)
        name = "" if row.extras.name == row.id else row.extras.name
        context = row.extras.context if row.is_memory else ""
        summary = row.extras.summary
        return cls(
            row.id,
            row.type,
            row.content,
            first,
            summary,
            extract_node_filterable_fields(row),
            until,
            name,
            context,
            said,
        )

    @property
    def tags(self) -> Sequence[str]:
        """Tags of the entity."""
        return self.facets.tags if self.facets else ()

    @property
    def meaning(self) -> str:
        """The text to embed: the name, if it differs from the id, the content, and ``said``.

        Memories omit ``said``, because their vectors are compared with those of new memories.
        """
        meant = f"{self.name} {self.content}".strip() if self.name else self.content
        said = "" if self.facets and self.facets.marks else self.said
        return f"{meant} {said}".strip() if said else meant

    @property
    def words(self) -> Iterator[str]:
        """Words in addition to content, id and name.

        These are summary, attributes and tags, and for memories context, source and type.
        """
        yield self.summary
        yield self.said
        yield from self.tags
        if self.facets and self.facets.marks:
            yield from (self.context, self.facets.marks.source, self.type)

    @property
    def has_words(self) -> bool:
        """True if there is any text to find the entity by."""
        return bool(self.content or self.summary or self.tags or self.name or self.said)

    @property
    def key(self) -> str:
        """Unique key in an index, as an entity may have several past texts."""
        return self.id if self.until is None else f"{self.id}\0{self.since}\0{self.digest.hex()}"

    @property
    def digest(self) -> bytes:
        """Checksum of everything except the commits of validity."""
        facets = None if self.facets is None else self.facets.packed
        named = (self.name, self.context) if self.name or self.context or self.said else ()
        said = (self.said,) if self.said else ()
        return xxhash.xxh3_128_digest(_encode((self.type, self.content, self.summary, facets, *named, *said)))


class PastTextKey(NamedTuple):
    """Parsed key of a past text."""

    id: str
    since: int
    digest: str


def parse_past_text_index_key(key: str) -> PastTextKey:
    """Return the parts of a past text's key."""
    node_id, since, digest = key.rsplit("\0", 2)
    return PastTextKey(node_id, int(since), digest)


class EntitySearchFilter(msgspec.Struct, frozen=True):
    """Conditions on the entities that a search returns.

    ``types`` are the allowed types (None: all), ``id_prefix`` is the required beginning of the id, and all ``tags`` are
    required. ``valid_at`` keeps entities valid then, ``fresh_at`` those not stale then, both in microseconds. ``as_of``
    keeps texts that were current as of a commit. ``ids`` are the only ids allowed, ``past_ids`` those allowed for past
    texts.

    The last four restrict the search to memories: to all, to some ``layers`` or ``sources``, or to those ``created`` in
    a half-open interval, in microseconds.
    """

    types: frozenset[str] | None = None
    id_prefix: str = ""
    tags: frozenset[str] = frozenset()
    valid_at: int | None = None
    fresh_at: int | None = None
    as_of: int | None = None
    ids: frozenset[str] | None = None
    past_ids: frozenset[str] | None = None
    memories: bool = False
    layers: frozenset[int] | None = None
    sources: frozenset[str] | None = None
    created: tuple[int, int] | None = None

    @property
    def is_empty(self) -> bool:
        """True if everything passes."""
        return self.as_of is None and not self.wants_facets and not self.restricts_ids_or_types

    @property
    def restricts_ids_or_types(self) -> bool:
        """True if it restricts ids or types."""
        return self.types is not None or bool(self.id_prefix) or self.ids is not None

    @property
    def for_past_texts(self) -> EntitySearchFilter:
        """Filter with the same conditions, for past texts."""
        return msgspec.structs.replace(self, ids=self.past_ids)

    @property
    def wants_facets(self) -> bool:
        """True if it restricts properties that most entities lack."""
        return bool(self.tags) or self.valid_at is not None or self.fresh_at is not None or self.wants_memories

    @property
    def wants_memories(self) -> bool:
        """True if only memories pass."""
        return self.memories or not (self.layers is None and self.sources is None and self.created is None)

    def passes(self, node_id: str, node_type: str, facets: EntityFilterableFields | None = None) -> bool:
        """Return whether an entity passes all conditions other than ``as_of``."""
        named = (self.types is None or node_type in self.types) and node_id.startswith(self.id_prefix)
        named = named and (self.ids is None or node_id in self.ids)
        return named and (not self.wants_facets or self._facets_pass(facets or NO_FACETS))

    def passes_row(self, row: NodeRow) -> bool:
        """Return whether the state of an entity passes all conditions other than ``as_of``."""
        return self.passes(row.id, row.type, extract_node_filterable_fields(row))

    def _facets_pass(self, facets: EntityFilterableFields) -> bool:
        fresh = self.fresh_at is None or facets.freshness_at is None or self.fresh_at < facets.freshness_at
        held = self.valid_at is None or facets.is_valid_at(self.valid_at)
        remembered = not self.wants_memories or (facets.marks is not None and self._marks_pass(facets.marks))
        return fresh and held and remembered and self.tags.issubset(facets.tags)

    def _marks_pass(self, marks: MemoryFilterableFields) -> bool:
        layer = self.layers is None or marks.layer in self.layers
        source = self.sources is None or marks.source in self.sources
        return layer and source and (self.created is None or self.created[0] <= marks.created < self.created[1])


NO_TEXT_FILTER = EntitySearchFilter()
