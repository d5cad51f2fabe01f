"""Node and edge rows of a store, as in the journal and the engine: Structs, column values, and edge ids.

Columns are the fields in order, then those of the extras, which may be missing. A row has extras if its author column
is not null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from kgserve.errors import InvalidInput
from kgserve.platform.timestamps import parse_rfc3339_timestamp
from kgserve.storage.model.node_edge_fields import (
    AUTHOR_FIELD,
    EDGE,
    NODE,
    EdgeExtras,
    NodeEdgeColumnSet,
    NodeExtras,
    RowFieldGroups,
    get_row_field_names,
)

EMPTY_ATTRIBUTES_JSON = "{}"

EdgeKey = tuple[str, str, str]
"""Source id, target id, relation type: unique among edges."""


class NodeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Stored row of a node. ``attributes`` is compact JSON with sorted keys; times are microseconds since 1970.

    ``extras`` is None until a state has any; later states keep it, possibly empty.
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

    def is_valid_at(self, moment: int) -> bool:
        """Return True if the state is valid at a valid time, in microseconds."""
        return is_valid_at(self.extras, moment)

    @property
    def is_memory(self) -> bool:
        """True for a memory: a node with a confidence."""
        return self.extras is not None and self.extras.confidence is not None


class EdgeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Stored row of an edge.

    ``attributes`` starts with created_at and updated_at, as `encode_edge_attributes` writes it.

    ``extras`` is None if all are empty.
    """

    source: str
    target: str
    relation_type: str
    weight: float
    attributes: str
    version: int
    sequence: int
    extras: EdgeExtras | None = None

    def is_valid_at(self, moment: int) -> bool:
        """Return True if the state is valid at a valid time, in microseconds."""
        return is_valid_at(self.extras, moment)

    @property
    def key(self) -> EdgeKey:
        """Key of the relation."""
        return (self.source, self.target, self.relation_type)


class CrossStoreLinkKey(NamedTuple):
    """Unique key of a cross-store link: the target store, and the key of the edge."""

    store: str
    edge: EdgeKey


class CrossStoreLinkRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Stored row of a cross-store link: an edge whose target is in another ``store`` and need not exist."""

    store: str
    edge: EdgeRow

    @property
    def key(self) -> CrossStoreLinkKey:
        """Key of the link."""
        return CrossStoreLinkKey(self.store, self.edge.key)


def get_column_set_for_extras(extras: NodeExtras | EdgeExtras | None) -> NodeEdgeColumnSet:
    """Return the smallest column set that can hold a row with these extras."""
    return NodeEdgeColumnSet.PLAIN if extras is None else extras.width


def is_valid_at(extras: NodeExtras | EdgeExtras | None, moment: int) -> bool:
    """Return True if a row with these extras is valid at a valid time, in microseconds."""
    if extras is None:
        return True
    begun = extras.valid_from is None or extras.valid_from <= moment
    return begun and (extras.valid_to is None or moment < extras.valid_to)


def has_validity_ended(extras: NodeExtras | EdgeExtras | None, moment: int) -> bool:
    """Return True if a row with these extras was valid for a time that ended by ``moment``, as a retired one was."""
    if extras is None or extras.valid_to is None:
        return False
    return extras.valid_to <= moment and extras.valid_from != extras.valid_to


class EdgeAttributeParts(msgspec.Struct, frozen=True, gc=False):
    """Parts of an edge's attributes: two times as text, and the caller's own attributes as compact JSON."""

    created_at: str
    updated_at: str
    own: str


_time_of = lru_cache(maxsize=4096)(parse_rfc3339_timestamp)
_CREATED_AT_JSON = '{"created_at":"'
_UPDATED_AT_JSON = '","updated_at":"'


def encode_edge_attributes(created_at: str, updated_at: str, own: str) -> str:
    """Return the stored text: both times first, then the caller's attributes. Times must be RFC 3339 (no quotes)."""
    rest = "}" if own == EMPTY_ATTRIBUTES_JSON else "," + own[1:]
    return f'{_CREATED_AT_JSON}{created_at}{_UPDATED_AT_JSON}{updated_at}"{rest}'


def extract_edge_created_at_text(attributes: str) -> str:
    """Return the ``created_at`` in an edge's attributes, faster than `split_edge_times_from_attributes`."""
    return attributes[len(_CREATED_AT_JSON) : attributes.index('"', len(_CREATED_AT_JSON))]


def edge_created_at(row: EdgeRow) -> int:
    """Return when an edge was created, in microseconds."""
    return _time_of(extract_edge_created_at_text(row.attributes))


def split_edge_times_from_attributes(attributes: str) -> EdgeAttributeParts:
    """Split an edge's stored attributes into the times of creation and update, and the edge's own attributes."""
    created_end = attributes.index('"', len(_CREATED_AT_JSON))
    updated_start = created_end + len(_UPDATED_AT_JSON)
    updated_end = attributes.index('"', updated_start)
    tail = attributes[updated_end + 1 :]
    own = EMPTY_ATTRIBUTES_JSON if tail == "}" else "{" + tail[1:]
    return EdgeAttributeParts(
        attributes[len(_CREATED_AT_JSON) : created_end], attributes[updated_start:updated_end], own
    )


_UNESCAPED_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_EDGE_KEY_PARTS = 3


def edge_id(key: EdgeKey) -> str:
    """Return the id of an edge: its key, as a text that fits into the path of a URL.

    The id is ``source~relation_type~target``, each percent-encoded, including tildes. It contains the key, so that a
    lookup by id needs no index. An edge that is deleted and created again keeps its id.
    """
    source, target, relation_type = key
    if _UNESCAPED_KEY.fullmatch(source + relation_type + target):
        return f"{source}~{relation_type}~{target}"
    return f"{_quoted(source)}~{_quoted(relation_type)}~{_quoted(target)}"


def compute_edge_ids(sources: Sequence[str], targets: Sequence[str], relation_types: Sequence[str]) -> list[str]:
    """Return the ids of edges, each composed of source, relation type and target."""
    texts = {*sources, *targets, *relation_types}
    keys = zip(sources, relation_types, targets, strict=True)
    if _UNESCAPED_KEY.fullmatch("".join(texts)):
        return [f"{source}~{name}~{target}" for source, name, target in keys]
    quoted = {text: _quoted(text) for text in texts}
    return [f"{quoted[source]}~{quoted[name]}~{quoted[target]}" for source, name, target in keys]


def parse_edge_id(text: str) -> EdgeKey:
    """Parse an edge's id; return the key of the edge. Raises InvalidInput for a text that is no such id."""
    parts = text.split("~")
    try:
        source, relation_type, target = (unquote(part, errors="strict") for part in parts)
    except ValueError:
        source = relation_type = target = ""
    if not (source and target and relation_type) or edge_id((source, target, relation_type)) != text:
        raise InvalidInput.at("id", "is not an edge id: source~relation_type~target, each percent-encoded")
    return source, target, relation_type


def format_cross_store_link_id(key: CrossStoreLinkKey) -> str:
    """Return the id of a cross-store link, as text: ``source~relation_type~target~store``."""
    return f"{edge_id(key.edge)}~{_quoted(key.store)}"


def edge_or_link_id(key: EdgeKey | CrossStoreLinkKey) -> str:
    """Return the id of an edge or of a cross-store link, as text."""
    return format_cross_store_link_id(key) if isinstance(key, CrossStoreLinkKey) else edge_id(key)


def parse_edge_or_link_id(text: str) -> EdgeKey | CrossStoreLinkKey:
    """Parse the id of an edge or cross-store link; return its key. Raises InvalidInput for a text that is neither."""
    edge, _, store = text.rpartition("~")
    if edge.count("~") != _EDGE_KEY_PARTS - 1:
        return parse_edge_id(text)
    return CrossStoreLinkKey(unquote(store), parse_edge_id(edge))


def _quoted(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


NODE_FIELD_COUNT, EDGE_FIELD_COUNT = len(NODE.plain), len(EDGE.plain)
NODE_EXTRA_NAMES, EDGE_EXTRA_NAMES = get_row_field_names(NODE.optional), get_row_field_names(EDGE.optional)

RowTuple = tuple[Any, ...]
"""Fields of a row in order; extras of None may be omitted."""

_NO_NODE_EXTRAS, _NO_EDGE_EXTRAS = (None,) * len(NODE_EXTRA_NAMES), (None,) * len(EDGE_EXTRA_NAMES)


def node_rows_from_columns(columns: Sequence[Sequence[Any]]) -> Iterable[RowTuple]:
    """Return node rows from columns; times are microseconds."""
    return _tuples(columns, NODE, NodeExtras.of_columns)


def edge_rows_from_columns(columns: Sequence[Sequence[Any]]) -> Iterable[RowTuple]:
    """Return edge rows from columns; times are microseconds."""
    return _tuples(columns, EDGE, EdgeExtras.of_columns)


def node_column_values(row: RowTuple) -> RowTuple:
    """Return the column values of one node: its fields and those of its extras."""
    extras: NodeExtras | None = row[NODE_FIELD_COUNT] if len(row) > NODE_FIELD_COUNT else None
    return (*row[:NODE_FIELD_COUNT], *(_NO_NODE_EXTRAS if extras is None else extras.columns))


def edge_column_values(row: RowTuple) -> RowTuple:
    """Return the column values of one edge: its fields and those of its extras."""
    extras: EdgeExtras | None = row[EDGE_FIELD_COUNT] if len(row) > EDGE_FIELD_COUNT else None
    return (*row[:EDGE_FIELD_COUNT], *(_NO_EDGE_EXTRAS if extras is None else extras.columns))


def _tuples(
    columns: Sequence[Sequence[Any]], fields: RowFieldGroups, extras_of: Callable[[Sequence[Any]], Any]
) -> Iterable[RowTuple]:
    plain, extras = columns[: len(fields.plain)], columns[len(fields.plain) :]
    if not extras or _all_none(extras[get_row_field_names(fields.extras).index(AUTHOR_FIELD)]):
        return zip(*plain, strict=True)
    return _join_extras(plain, map(extras_of, zip(*extras, strict=True)))


def _join_extras(plain: Sequence[Sequence[Any]], extras: Iterable[Any]) -> Iterator[RowTuple]:
    return ((*row, more) for row, more in zip(zip(*plain, strict=True), extras, strict=True))


def _all_none(column: Sequence[Any]) -> bool:
    return column.count(None) == len(column)
