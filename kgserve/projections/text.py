"""An entity as the indexes take it, and what a search may be narrowed by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import xxhash

from kgserve.platform.codecs import decode_json
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.model.store_settings import EVERY_ATTRIBUTE

_encode = msgspec.msgpack.Encoder().encode


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """What filters ask of memories alone: when they were created, in microseconds, and as in `NodeExtras`."""

    created: int
    layer: int | None = None
    source: str = ""


class Facets(msgspec.Struct, frozen=True, array_like=True):
    """What most entities do not have and some filters ask for; as in `NodeExtras`. Memories alone have ``marks``."""

    tags: tuple[str, ...] = ()
    freshness_at: int | None = None
    valid_from: int | None = None
    valid_to: int | None = None
    marks: Marks | None = None

    def hold(self, moment: int) -> bool:
        """Whether the entity was true at a moment of the world, in microseconds."""
        started = self.valid_from is None or self.valid_from <= moment
        return started and (self.valid_to is None or moment < self.valid_to)

    @property
    def packed(self) -> tuple[Any, ...]:
        """What is stored and compared: of what is no memory the same as before there were any."""
        values = msgspec.structs.astuple(self)
        return values[:-1] if self.marks is None else values


NO_FACETS = Facets()


def facets_of(row: NodeRow) -> Facets | None:
    """What filters may ask of an entity; None where there is nothing to say."""
    extras = row.extras
    if extras is None:
        return None
    marks = Marks(row.created_at, extras.layer, extras.source) if row.is_memory else None
    facets = Facets(extras.tags, extras.freshness_at, extras.valid_from, extras.valid_to, marks)
    return None if facets == NO_FACETS else facets


def words_of(attributes: str, indexed: Sequence[str]) -> str:
    """The texts, numbers and truths among the values of some attributes, at any depth."""
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


class Text(msgspec.Struct, frozen=True):
    """An entity as the indexes take it: its texts have held since a commit, and for past ones until another.

    ``said`` are the values of those attributes that its store has chosen to find entities by.
    """

    id: str
    type: str
    content: str
    since: int = 0
    summary: str = ""
    facets: Facets | None = None
    until: int | None = None
    name: str = ""
    context: str = ""
    said: str = ""

    @classmethod
    def of(cls, row: NodeRow, indexed: Sequence[str] = (), since: int | None = None, until: int | None = None) -> Text:
        """The texts of a state, and of its ``indexed`` attributes; it has held since its own commit, or ``since``."""
        first = row.sequence if since is None else since
        said = words_of(row.attributes, indexed) if indexed else ""
        if row.extras is None:
            return cls(row.id, row.type, row.content, first, until=until, said=said)
        name = "" if row.extras.name == row.id else row.extras.name
        context = row.extras.context if row.is_memory else ""
        summary = row.extras.summary
        return cls(row.id, row.type, row.content, first, summary, facets_of(row), until, name, context, said)

    @property
    def tags(self) -> Sequence[str]:
        """Its tags."""
        return self.facets.tags if self.facets else ()

    @property
    def meaning(self) -> str:
        """What of it is embedded: its content, behind its name if it has one that is not its id, and what is ``said``.

        Of a memory only content and name: as such it is compared with what is retained.
        """
        meant = f"{self.name} {self.content}".strip() if self.name else self.content
        said = "" if self.facets and self.facets.marks else self.said
        return f"{meant} {said}".strip() if said else meant

    @property
    def words(self) -> Iterator[str]:
        """Beside its content and what it is called: summary, attributes and tags, and what else describes a memory."""
        yield self.summary
        yield self.said
        yield from self.tags
        if self.facets and self.facets.marks:
            yield from (self.context, self.facets.marks.source, self.type)

    @property
    def has_words(self) -> bool:
        """Whether there is anything to find it by."""
        return bool(self.content or self.summary or self.tags or self.name or self.said)

    @property
    def key(self) -> str:
        """What names it in an index: one entity may have several past texts."""
        return self.id if self.until is None else f"{self.id}\0{self.since}\0{self.digest.hex()}"

    @property
    def digest(self) -> bytes:
        """A checksum of all but when it held."""
        facets = None if self.facets is None else self.facets.packed
        named = (self.name, self.context) if self.name or self.context or self.said else ()
        said = (self.said,) if self.said else ()
        return xxhash.xxh3_128_digest(_encode((self.type, self.content, self.summary, facets, *named, *said)))


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

    The last four keep memories alone: all of them, those of some ``layers`` or ``sources``, those that were ``created``
    from a moment on and before another, in microseconds.
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
        return bool(self.tags) or self.valid_at is not None or self.fresh_at is not None or self.wants_memories

    @property
    def wants_memories(self) -> bool:
        """Whether memories alone pass."""
        return self.memories or not (self.layers is None and self.sources is None and self.created is None)

    def passes(self, node_id: str, node_type: str, facets: Facets | None = None) -> bool:
        """Whether one entity passes, but for the commit."""
        named = (self.types is None or node_type in self.types) and node_id.startswith(self.id_prefix)
        named = named and (self.ids is None or node_id in self.ids)
        return named and (not self.wants_facets or self._facets_pass(facets or NO_FACETS))

    def passes_row(self, row: NodeRow) -> bool:
        """Whether the state of an entity passes, but for the commit."""
        return self.passes(row.id, row.type, facets_of(row))

    def _facets_pass(self, facets: Facets) -> bool:
        fresh = self.fresh_at is None or facets.freshness_at is None or self.fresh_at < facets.freshness_at
        held = self.valid_at is None or facets.hold(self.valid_at)
        remembered = not self.wants_memories or (facets.marks is not None and self._marks_pass(facets.marks))
        return fresh and held and remembered and self.tags.issubset(facets.tags)

    def _marks_pass(self, marks: Marks) -> bool:
        layer = self.layers is None or marks.layer in self.layers
        source = self.sources is None or marks.source in self.sources
        return layer and source and (self.created is None or self.created[0] <= marks.created < self.created[1])


NO_TEXT_FILTER = Filter()
