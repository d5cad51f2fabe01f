"""The rows of a store, as the journal and the engine hold them: as Structs, as values in columns, edges by their ids.

Columns are the fields in order, then those of the extras. Who wrote the extras tells whether there are any: None where
there are none. Columns of extras may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from kgserve.errors import InvalidInput
from kgserve.platform.times import parse_time
from kgserve.storage.model.fields import AUTHOR_FIELD, EDGE, NODE, ColumnSet, EdgeExtras, Fields, NodeExtras, names

NO_ATTRIBUTES = "{}"

EdgeKey = tuple[str, str, str]
"""Source id, target id, relation type: at most one edge has it."""


class NodeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One state of an entity. ``attributes`` is compact JSON with sorted keys; times are microseconds since 1970.

    ``extras`` is None until a state has any; from then on it stays, if need be with nothing in it.
    """

    id: str
    type: str
    content: str
    attributes: str
    version: int
    sequence: int
    created_at: int
    updated_at: int
    extras: NodeExtras | None = None

    def holds_at(self, moment: int) -> bool:
        """Whether it was true at a moment of the world, in microseconds."""
        return holds(self.extras, moment)

    @property
    def is_memory(self) -> bool:
        """Whether it is a memory: it has a confidence."""
        return self.extras is not None and self.extras.confidence is not None


class EdgeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One state of a relation. ``attributes`` starts with created_at and updated_at, as `edge_attributes` writes it.

    ``extras`` is None where there is nothing to say in it.
    """

    source: str
    target: str
    relation_type: str
    weight: float
    attributes: str
    version: int
    sequence: int
    extras: EdgeExtras | None = None

    def holds_at(self, moment: int) -> bool:
        """Whether it was true at a moment of the world, in microseconds."""
        return holds(self.extras, moment)

    @property
    def key(self) -> EdgeKey:
        """What identifies the relation."""
        return (self.source, self.target, self.relation_type)


class LinkKey(NamedTuple):
    """What identifies a link: the store that it leads into, and the key of the edge; at most one has it."""

    store: str
    edge: EdgeKey


class LinkRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One state of an edge into another ``store``: the edge's target is the id of a node there, or of none."""

    store: str
    edge: EdgeRow

    @property
    def key(self) -> LinkKey:
        """What identifies the link."""
        return LinkKey(self.store, self.edge.key)


def width_of(extras: NodeExtras | EdgeExtras | None) -> ColumnSet:
    """How many of its fields a row with these extras has."""
    return ColumnSet.PLAIN if extras is None else extras.width


def holds(extras: NodeExtras | EdgeExtras | None, moment: int) -> bool:
    """Whether what has these extras was true at a moment of the world, in microseconds."""
    if extras is None:
        return True
    begun = extras.valid_from is None or extras.valid_from <= moment
    return begun and (extras.valid_to is None or moment < extras.valid_to)


class Stamps(msgspec.Struct, frozen=True, gc=False):
    """The parts of an edge's attributes: two times as text, and the caller's own attributes as compact JSON."""

    created_at: str
    updated_at: str
    own: str


_time_of = lru_cache(maxsize=4096)(parse_time)
_CREATED_AT_JSON = '{"created_at":"'
_UPDATED_AT_JSON = '","updated_at":"'


def edge_attributes(created_at: str, updated_at: str, own: str) -> str:
    """The stored text: both times first, then the caller's attributes. Times must be RFC 3339 (no quotes inside)."""
    rest = "}" if own == NO_ATTRIBUTES else "," + own[1:]
    return f'{_CREATED_AT_JSON}{created_at}{_UPDATED_AT_JSON}{updated_at}"{rest}'


def edge_created(attributes: str) -> str:
    """The ``created_at`` of `edge_stamps`, alone."""
    return attributes[len(_CREATED_AT_JSON) : attributes.index('"', len(_CREATED_AT_JSON))]


def edge_created_at(row: EdgeRow) -> int:
    """When an edge was made, in microseconds."""
    return _time_of(edge_created(row.attributes))


def edge_stamps(attributes: str) -> Stamps:
    """The inverse of `edge_attributes`."""
    created_end = attributes.index('"', len(_CREATED_AT_JSON))
    updated_start = created_end + len(_UPDATED_AT_JSON)
    updated_end = attributes.index('"', updated_start)
    tail = attributes[updated_end + 1 :]
    own = NO_ATTRIBUTES if tail == "}" else "{" + tail[1:]
    return Stamps(attributes[len(_CREATED_AT_JSON) : created_end], attributes[updated_start:updated_end], own)


_UNESCAPED_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_EDGE_KEY_PARTS = 3


def edge_id(key: EdgeKey) -> str:
    """The id of an edge: what identifies it, as a text that fits into the path of a URL.

    ``source~relation_type~target``, each percent-encoded, the tilde too. It holds the key itself, so that looking an
    edge up by its id needs no index, and one that is deleted and made again has the id that it had.
    """
    source, target, relation_type = key
    if _UNESCAPED_KEY.fullmatch(source + relation_type + target):
        return f"{source}~{relation_type}~{target}"
    return f"{_quoted(source)}~{_quoted(relation_type)}~{_quoted(target)}"


def edge_key(text: str) -> EdgeKey:
    """What an id stands for. Raises InvalidInput for a text that no edge has as its id."""
    parts = text.split("~")
    try:
        source, relation_type, target = (unquote(part, errors="strict") for part in parts)
    except ValueError:
        source = relation_type = target = ""
    if not (source and target and relation_type) or edge_id((source, target, relation_type)) != text:
        raise InvalidInput.at("id", "is not the id of an edge: source~relation_type~target, each percent-encoded")
    return source, target, relation_type


def link_id(key: LinkKey) -> str:
    """As `edge_id`, with the store behind it: ``source~relation_type~target~store``."""
    return f"{edge_id(key.edge)}~{_quoted(key.store)}"


def any_edge_id(key: EdgeKey | LinkKey) -> str:
    """The id of an edge or of a link."""
    return link_id(key) if isinstance(key, LinkKey) else edge_id(key)


def any_edge_key(text: str) -> EdgeKey | LinkKey:
    """What the id of an edge or of a link stands for. Raises InvalidInput for a text that none of them has."""
    edge, _, store = text.rpartition("~")
    if edge.count("~") != _EDGE_KEY_PARTS - 1:
        return edge_key(text)
    return LinkKey(unquote(store), edge_key(edge))


def _quoted(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


NODE_FIELDS, EDGE_FIELDS = len(NODE.plain), len(EDGE.plain)
NODE_EXTRAS, EDGE_EXTRAS = names(NODE.optional), names(EDGE.optional)

RowTuple = tuple[Any, ...]
"""The fields of a row in order; its extras may be left out when there are none."""

_NO_NODE_EXTRAS, _NO_EDGE_EXTRAS = (None,) * len(NODE_EXTRAS), (None,) * len(EDGE_EXTRAS)


def node_tuples(columns: Sequence[Sequence[Any]]) -> Iterable[RowTuple]:
    """Nodes; times are microseconds."""
    return _tuples(columns, NODE, NodeExtras.of_columns)


def edge_tuples(columns: Sequence[Sequence[Any]]) -> Iterable[RowTuple]:
    """Edges; times are microseconds."""
    return _tuples(columns, EDGE, EdgeExtras.of_columns)


def node_values(row: RowTuple) -> RowTuple:
    """The inverse of `node_tuples` for one row: its fields and those of its extras."""
    extras: NodeExtras | None = row[NODE_FIELDS] if len(row) > NODE_FIELDS else None
    return (*row[:NODE_FIELDS], *(_NO_NODE_EXTRAS if extras is None else extras.columns))


def edge_values(row: RowTuple) -> RowTuple:
    """As `node_values`, of an edge."""
    extras: EdgeExtras | None = row[EDGE_FIELDS] if len(row) > EDGE_FIELDS else None
    return (*row[:EDGE_FIELDS], *(_NO_EDGE_EXTRAS if extras is None else extras.columns))


def _tuples(
    columns: Sequence[Sequence[Any]], fields: Fields, extras_of: Callable[[Sequence[Any]], Any]
) -> Iterable[RowTuple]:
    plain, extras = columns[: len(fields.plain)], columns[len(fields.plain) :]
    if not extras or _all_none(extras[names(fields.extras).index(AUTHOR_FIELD)]):
        return zip(*plain, strict=True)
    return _joined(plain, map(extras_of, zip(*extras, strict=True)))


def _joined(plain: Sequence[Sequence[Any]], extras: Iterable[Any]) -> Iterator[RowTuple]:
    return ((*row, more) for row, more in zip(zip(*plain, strict=True), extras, strict=True))


def _all_none(column: Sequence[Any]) -> bool:
    return column.count(None) == len(column)
