"""Declarations of all fields of nodes and edges: names, types and sizes.

`NODE` and `EDGE` list the fields in the order in which they are stored, sent and written to files. Statements, tables
and columns are generated from them at import. The Structs are the extras, optional fields that most rows lack, in each
of their forms: stored, to be written, sent by a caller, returned. A test checks that they agree.

The last extras are those of memories and named nodes. They were added later: a row without them is stored, hashed and
kept in columns as before they existed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Annotated, Any, LiteralString, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from typing_extensions import override

from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_stored_time

MAX_ID_BYTES = 512
MAX_CONTENT_BYTES = 1 << 20
MAX_ATTRIBUTES_BYTES = 256 << 10
MAX_SUMMARY_BYTES = 4096
MAX_CONTEXT_BYTES = 64 << 10
MAX_TAGS = 100
MAX_ORDINAL = 1 << 53

TimestampPut = int | None | UnsetType
"""Time to store in microseconds, None to clear it, UNSET to keep the stored one."""
NumberPut = float | None | UnsetType
_Text = str | UnsetType


class EngineAndArrowFieldType(NamedTuple):
    """Type of a field, by its names in the engine and in Arrow; ``[]`` marks lists."""

    engine: LiteralString
    arrow: str


STRING_TYPE = EngineAndArrowFieldType("STRING", "string")
STRING_LIST_TYPE = EngineAndArrowFieldType("STRING[]", "string[]")
INT64_TYPE = EngineAndArrowFieldType("INT64", "int64")
INTEGER_LIST_TYPE = EngineAndArrowFieldType("INT64[]", "int64[]")
DOUBLE_TYPE = EngineAndArrowFieldType("DOUBLE", "float64")
TIMESTAMP_TYPE = EngineAndArrowFieldType("TIMESTAMP", "timestamp[us]")


class NodeEdgeColumnSet(IntEnum):
    """Set of fields that a row has, or that a file has columns for; each set includes the ones before.

    LINKS applies to engine files only: the file has all columns and may have the tables of links.
    """

    PLAIN = 0
    EXTRAS = 1
    MEMORY = 2
    LINKS = 3


class RowField(NamedTuple):
    """Field of a row: its name in rows and in the engine, its type, and ``wire``, its name in requests and answers.

    ``is_own`` fields are maintained by the store: callers cannot send them, and exports omit them. ``is_kept`` fields
    cannot be sent either, but exports contain them.
    """

    name: LiteralString
    type: EngineAndArrowFieldType
    wire: LiteralString
    is_own: bool = False
    is_kept: bool = False
    max_bytes: int = MAX_ID_BYTES


class RowFieldGroups(NamedTuple):
    """Fields of a node or edge in groups: those of every row, the extras, and the extras of memories and names.

    ``read`` fields come from access records: no row has them, but exports contain them.
    """

    plain: tuple[RowField, ...]
    extras: tuple[RowField, ...]
    memory: tuple[RowField, ...]
    read: tuple[RowField, ...] = ()

    @property
    def optional(self) -> tuple[RowField, ...]:
        """All extras."""
        return self.extras + self.memory

    @property
    def whole(self) -> tuple[RowField, ...]:
        """All fields of a row."""
        return self.plain + self.optional

    def columns(self, width: NodeEdgeColumnSet) -> tuple[RowField, ...]:
        """Return the fields of a column set."""
        parts = (self.plain, self.extras, self.memory)
        return tuple(field for part in parts[: width + 1] for field in part)

    def width(self, columns: int) -> NodeEdgeColumnSet:
        """Return the column set with a number of columns."""
        return next(width for width in NodeEdgeColumnSet if len(self.columns(width)) == columns)

    @property
    def exchanged(self) -> tuple[RowField, ...]:
        """Fields in the lines of an export."""
        return tuple(field for field in (*self.whole, *self.read) if not field.is_own)


def get_row_field_names(fields: tuple[RowField, ...]) -> tuple[LiteralString, ...]:
    """Return the names of fields in rows and in the engine."""
    return tuple(field.name for field in fields)


def _field(
    name: LiteralString,
    type_: EngineAndArrowFieldType,
    wire: LiteralString = "",
    *,
    is_own: bool = False,
    is_kept: bool = False,
    max_bytes: int = MAX_ID_BYTES,
) -> RowField:
    return RowField(name, type_, wire or name, is_own, is_kept, max_bytes)


NODE = RowFieldGroups(
    plain=(
        _field("id", STRING_TYPE),
        _field("type", STRING_TYPE),
        _field("content", STRING_TYPE, max_bytes=MAX_CONTENT_BYTES),
        _field("attributes", STRING_TYPE, max_bytes=MAX_ATTRIBUTES_BYTES),
        _field("version", INT64_TYPE),
        _field("sequence", INT64_TYPE, is_own=True),
        _field("created_at", TIMESTAMP_TYPE),
        _field("updated_at", TIMESTAMP_TYPE),
    ),
    extras=(
        _field("summary", STRING_TYPE, max_bytes=MAX_SUMMARY_BYTES),
        _field("tags", STRING_LIST_TYPE),
        _field("freshness_at", TIMESTAMP_TYPE),
        _field("created_by", STRING_TYPE),
        _field("valid_from", TIMESTAMP_TYPE),
        _field("valid_to", TIMESTAMP_TYPE),
        _field("conflicts", INTEGER_LIST_TYPE, is_own=True),
    ),
    memory=(
        _field("name", STRING_TYPE),
        _field("confidence", DOUBLE_TYPE),
        _field("confidence_at", TIMESTAMP_TYPE),
        _field("importance", DOUBLE_TYPE),
        _field("source", STRING_TYPE),
        _field("context", STRING_TYPE, max_bytes=MAX_CONTEXT_BYTES),
        _field("layer", INT64_TYPE),
        _field("ended", STRING_TYPE, is_kept=True),
        _field("former_from", TIMESTAMP_TYPE, is_kept=True),
        _field("former_to", TIMESTAMP_TYPE, is_kept=True),
        _field("belongs_to", STRING_TYPE, is_kept=True),
    ),
    read=(
        _field("access_count", INT64_TYPE),
        _field("last_accessed_at", TIMESTAMP_TYPE),
        _field("access_confidence", DOUBLE_TYPE),
    ),
)
EDGE = RowFieldGroups(
    plain=(
        _field("source", STRING_TYPE, "from"),
        _field("target", STRING_TYPE, "to"),
        _field("relation_type", STRING_TYPE),
        _field("weight", DOUBLE_TYPE),
        _field("attributes", STRING_TYPE, max_bytes=MAX_ATTRIBUTES_BYTES),
        _field("version", INT64_TYPE),
        _field("sequence", INT64_TYPE, is_own=True),
    ),
    extras=(
        _field("ordinal", INT64_TYPE),
        _field("created_by", STRING_TYPE),
        _field("valid_from", TIMESTAMP_TYPE),
        _field("valid_to", TIMESTAMP_TYPE),
    ),
    memory=(
        _field("confidence", DOUBLE_TYPE),
        _field("context", STRING_TYPE, max_bytes=MAX_CONTEXT_BYTES),
    ),
)
LINK_STORE_FIELD = "to_graph"
"""Field for the target store of a link in requests and answers; all other fields are those of an edge."""
EDGE_ENDPOINTS = 2
"""Number of leading fields of an edge that name its endpoints."""
AUTHOR_FIELD = "created_by"
"""Extra that every row with extras stores, even if empty; it marks rows that have extras."""


class NodeExtras(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Extras (optional fields) of a node as stored. Times are microseconds since 1970.

    - ``created_by``: author of this state, "" if unknown.
    - ``valid_from``, ``valid_to``: valid time, a half-open interval.
    - ``conflicts``: versions of other heads that no state has superseded.
    - ``name``: any node may have one.

    The following extras belong to memories, which are the nodes with a ``confidence``:

    - ``confidence``: 0..1; decays from ``confidence_at`` on, or from the node's creation.
    - ``importance``: 0..1; 1 pins the memory.
    - ``layer``: 0..3.
    - ``ended``: why a memory is withdrawn ("forgotten", "merged", "pruned", "superseded").
    - ``former_from``, ``former_to``: its validity before the withdrawal. Of a memory that is not withdrawn,
      ``former_from`` is when its statement began, before another version interrupted it.
    - ``belongs_to``: the memory that absorbed it, or of which it is a version.
    """

    summary: str = ""
    tags: tuple[str, ...] = ()
    freshness_at: int | None = None
    created_by: str = ""
    valid_from: int | None = None
    valid_to: int | None = None
    conflicts: tuple[int, ...] = ()
    name: str = ""
    confidence: float | None = None
    confidence_at: int | None = None
    importance: float | None = None
    source: str = ""
    context: str = ""
    layer: int | None = None
    ended: str = ""
    former_from: int | None = None
    former_to: int | None = None
    belongs_to: str = ""

    @classmethod
    def of_columns(cls, values: Sequence[Any]) -> NodeExtras | None:
        """Return the extras in column values, the last of which may be missing; None if the author is null."""
        summary, tags, freshness_at, author, valid_from, valid_to, conflicts, *memory = values
        if author is None:
            return None
        some = (summary or "", tuple(tags or ()), freshness_at, author, valid_from, valid_to, tuple(conflicts or ()))
        return cls(*some, *_replace_nulls(_NO_MEMORY, memory)) if memory else cls(*some)

    @property
    def columns(self) -> tuple[Any, ...]:
        """Column values of the extras; empty texts and lists become null, except the author."""
        some = (
            self.summary or None,
            self.tags or None,
            self.freshness_at,
            self.created_by,
            self.valid_from,
            self.valid_to,
            self.conflicts or None,
        )
        return (*some, *((None if value == "" else value) for value in _memory_of_node(self)))

    @property
    def width(self) -> NodeEdgeColumnSet:
        """EXTRAS, or MEMORY if any field of a memory or a name is set."""
        return NodeEdgeColumnSet.EXTRAS if _memory_of_node(self) == _NO_MEMORY else NodeEdgeColumnSet.MEMORY

    @property
    def narrow(self) -> tuple[Any, ...]:
        """Values without the fields of memories and names."""
        return msgspec.structs.astuple(self)[: len(NODE.extras)]


class EdgeExtras(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Extras (optional fields) of an edge as stored; ``ordinal`` is its rank among the edges of its source."""

    ordinal: int | None = None
    created_by: str = ""
    valid_from: int | None = None
    valid_to: int | None = None
    confidence: float | None = None
    context: str = ""

    @classmethod
    def of_columns(cls, values: Sequence[Any]) -> EdgeExtras | None:
        """Return the extras in column values, the last of which may be missing; None if the author is null."""
        if values[1] is None:
            return None
        ordinal, author, valid_from, valid_to, *memory = values
        return cls(ordinal, author, valid_from, valid_to, *_replace_nulls(_NO_MEMORY_OF_EDGE, memory))

    @property
    def columns(self) -> tuple[Any, ...]:
        """Column values of the extras; an empty context becomes null."""
        return (*msgspec.structs.astuple(self)[:-1], self.context or None)

    @property
    def width(self) -> NodeEdgeColumnSet:
        """EXTRAS, or MEMORY if confidence or context is set."""
        return NodeEdgeColumnSet.EXTRAS if self.confidence is None and not self.context else NodeEdgeColumnSet.MEMORY

    @property
    def narrow(self) -> tuple[Any, ...]:
        """Values without confidence and context."""
        return msgspec.structs.astuple(self)[: len(EDGE.extras)]


def _replace_nulls(nothing: tuple[Any, ...], values: Sequence[Any]) -> Iterator[Any]:
    """Return the given column values, with nulls replaced by the value for "not set"."""
    return (none if value is None else value for none, value in zip(nothing, values, strict=False))


_MEMORY_FIELD_NAMES = get_row_field_names(NODE.memory)
_memory_of_node = attrgetter(*_MEMORY_FIELD_NAMES)
NO_EXTRAS = NodeExtras()
NO_EDGE_EXTRAS = EdgeExtras()
_NO_MEMORY, _NO_MEMORY_OF_EDGE = _memory_of_node(NO_EXTRAS), (None, "")


class NodeExtrasUpsert(msgspec.Struct, frozen=True):
    """Extras (optional fields) of a node to create or update. Default values keep what is stored.

    ``created_by`` is the exception: it applies to this state only.
    """

    summary: str | None = None
    tags: tuple[str, ...] | None = None
    freshness_at: TimestampPut = UNSET
    created_by: str = ""
    valid_from: TimestampPut = UNSET
    valid_to: TimestampPut = UNSET
    name: _Text = UNSET
    confidence: NumberPut = UNSET
    confidence_at: TimestampPut = UNSET
    importance: NumberPut = UNSET
    source: _Text = UNSET
    context: _Text = UNSET
    layer: TimestampPut = UNSET
    ended: _Text = UNSET
    former_from: TimestampPut = UNSET
    former_to: TimestampPut = UNSET
    belongs_to: _Text = UNSET

    def applied_to(self, old: NodeExtras) -> NodeExtras:
        """Return the extras to store after this write, without conflicts."""
        return NodeExtras(
            old.summary if self.summary is None else self.summary,
            old.tags if self.tags is None else self.tags,
            old.freshness_at if self.freshness_at is UNSET else self.freshness_at,
            self.created_by,
            old.valid_from if self.valid_from is UNSET else self.valid_from,
            old.valid_to if self.valid_to is UNSET else self.valid_to,
            (),
            *self._merged_memory_values(old),
        )

    def _merged_memory_values(self, old: NodeExtras) -> Sequence[Any]:
        given, unset = _memory_of_node(self), UNSET
        if given == _NO_MEMORY_PUT:
            return _memory_of_node(old)
        return [was if value is unset else value for value, was in zip(given, _memory_of_node(old), strict=True)]

    def over(self, earlier: NodeExtrasUpsert | None) -> NodeExtrasUpsert:
        """Merge with an earlier put, which provides the values that this one omits."""
        return self if earlier is None else NodeExtrasUpsert(*_overlay(self, earlier, _UNCHANGED_NODE_EXTRAS))


class EdgeExtrasUpsert(msgspec.Struct, frozen=True):
    """Extras (optional fields) of an edge to write. Defaults keep what is stored, except for ``created_by``."""

    ordinal: TimestampPut = UNSET
    created_by: str = ""
    valid_from: TimestampPut = UNSET
    valid_to: TimestampPut = UNSET
    confidence: NumberPut = UNSET
    context: _Text = UNSET

    def applied_to(self, old: EdgeExtras) -> EdgeExtras:
        """Return the extras to store after this write."""
        return EdgeExtras(
            old.ordinal if self.ordinal is UNSET else self.ordinal,
            self.created_by,
            old.valid_from if self.valid_from is UNSET else self.valid_from,
            old.valid_to if self.valid_to is UNSET else self.valid_to,
            old.confidence if self.confidence is UNSET else self.confidence,
            old.context if self.context is UNSET else self.context,
        )

    def over(self, earlier: EdgeExtrasUpsert | None) -> EdgeExtrasUpsert:
        """Merge with an earlier put, which provides the values that this one omits."""
        return self if earlier is None else EdgeExtrasUpsert(*_overlay(self, earlier, _UNCHANGED_EDGE_EXTRAS))


_NO_MEMORY_PUT = _memory_of_node(NodeExtrasUpsert())
_astuple = msgspec.structs.astuple
_UNCHANGED_NODE_EXTRAS, _UNCHANGED_EDGE_EXTRAS = _astuple(NodeExtrasUpsert()), _astuple(EdgeExtrasUpsert())


def _overlay(put: msgspec.Struct, old: msgspec.Struct, kept: tuple[Any, ...]) -> list[Any]:
    """Return the values of ``put``, with those of ``old`` where ``put`` has the value for "keep"."""
    values = zip(_astuple(put), _astuple(old), kept, strict=True)
    return [was if given is keeping or given == keeping else given for given, was, keeping in values]


_Moment = Annotated[str, Meta(max_length=64)]
_Author = Annotated[str, Meta(max_length=MAX_ID_BYTES, description="Author of this state; not interpreted")] | None
_Start = Annotated[_Moment, Meta(description="Start of validity (RFC 3339); empty: none")] | None
_End = Annotated[_Moment, Meta(description="End of validity (RFC 3339), exclusive; empty: none")] | None
_Tag = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]


class NodeExtrasInput(msgspec.Struct, kw_only=True):
    """Extras (optional fields) of a node in requests."""

    summary: Annotated[
        str | None, Meta(description="Short form of the content, at most 4 KiB; omitted: kept; empty: cleared")
    ] = None
    tags: (
        Annotated[
            list[_Tag],
            Meta(max_length=MAX_TAGS, description="At most 100 of 1 to 512 bytes; omitted: kept; given: replaced"),
        ]
        | None
    ) = None
    freshness_at: Annotated[_Moment, Meta(description="Stale from this time on (RFC 3339); empty: none")] | None = None
    created_by: _Author = None
    valid_from: _Start = None
    valid_to: _End = None
    name: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="Display name, in addition to the id")] | None = None
    confidence: (
        Annotated[float, Meta(ge=0, le=1, description="Makes the node a memory; decays from confidence_at on")] | None
    ) = None
    confidence_at: (
        Annotated[_Moment, Meta(description="Start of the decay of confidence (RFC 3339); empty: creation")] | None
    ) = None
    importance: Annotated[float, Meta(ge=0, le=1, description="Importance of a memory; 1 pins it")] | None = None
    source: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="Origin of a memory; empty: cleared")] | None = (
        None
    )
    context: Annotated[str, Meta(description="Context in which a memory was recorded, at most 64 KiB")] | None = None
    layer: Annotated[int, Meta(ge=0, le=3, description="0 domain, 1 concept, 2 fact, 3 episode")] | None = None


class EdgeExtrasInput(msgspec.Struct, kw_only=True):
    """Extras (optional fields) of an edge in requests."""

    ordinal: (
        Annotated[int, Meta(ge=-MAX_ORDINAL, le=MAX_ORDINAL, description="Rank among the edges of its source")] | None
    ) = None
    created_by: _Author = None
    valid_from: _Start = None
    valid_to: _End = None
    confidence: Annotated[float, Meta(ge=0, le=1, description="Confidence, 0 to 1")] | None = None
    context: Annotated[str, Meta(description="Context in which it was recorded, at most 64 KiB")] | None = None


class NodeExtrasExportLine(msgspec.Struct, kw_only=True):
    """Extras (optional fields) of a node in a line of an export."""

    summary: str | None = None
    tags: list[str] | None = None
    freshness_at: str | None = None
    created_by: str | None = None
    valid_from: str | None = None
    valid_to: str | None = None
    name: str | None = None
    confidence: float | None = None
    confidence_at: str | None = None
    importance: float | None = None
    source: str | None = None
    context: str | None = None
    layer: int | None = None
    ended: str | None = None
    former_from: str | None = None
    former_to: str | None = None
    belongs_to: str | None = None
    access_count: int | None = None
    last_accessed_at: str | None = None
    access_confidence: float | None = None


class EdgeExtrasExportLine(msgspec.Struct, kw_only=True):
    """Extras (optional fields) of an edge in a line of an export."""

    ordinal: int | None = None
    created_by: str | None = None
    valid_from: str | None = None
    valid_to: str | None = None
    confidence: float | None = None
    context: str | None = None


class SparseReprStruct(msgspec.Struct):
    """Base of Structs whose repr omits absent fields."""

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    @override
    def __rich_repr__(self) -> list[tuple[str, Any]]:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, value) for name, value in values if value is not UNSET and value is not None]


class NodeExtrasAnswer(SparseReprStruct, kw_only=True):
    """Extras (optional fields) of a node in answers: those that are set, times as text.

    Three fields are computed when read. ``stale``: ``freshness_at`` is past. For a former state, ``superseded_by`` is
    the next version, and ``is_current`` is true if it is one of the node's heads.
    """

    summary: _Text = UNSET
    tags: list[str] | UnsetType = UNSET
    freshness_at: _Text = UNSET
    stale: bool | UnsetType = UNSET
    created_by: _Text = UNSET
    valid_from: _Text = UNSET
    valid_to: _Text = UNSET
    conflicts: list[int] | UnsetType = UNSET
    superseded_by: int | UnsetType = UNSET
    is_current: bool | UnsetType = UNSET
    name: _Text = UNSET
    confidence: float | UnsetType = UNSET
    confidence_at: _Text = UNSET
    importance: float | UnsetType = UNSET
    source: _Text = UNSET
    context: _Text = UNSET
    layer: int | UnsetType = UNSET
    ended: _Text = UNSET
    former_from: _Text = UNSET
    former_to: _Text = UNSET
    belongs_to: _Text = UNSET

    def show(self, extras: NodeExtras) -> None:
        """Set the fields that the extras have. Runs for every row, hence without a loop."""
        if extras.summary:
            self.summary = extras.summary
        if extras.tags:
            self.tags = list(extras.tags)
        if extras.freshness_at is not None:
            self.freshness_at = format_rfc3339_timestamp(extras.freshness_at)
        if extras.created_by:
            self.created_by = extras.created_by
        if extras.valid_from is not None:
            self.valid_from = format_rfc3339_timestamp(extras.valid_from)
        if extras.valid_to is not None:
            self.valid_to = format_rfc3339_timestamp(extras.valid_to)
        if extras.conflicts:
            self.conflicts = list(extras.conflicts)
        if (memory := _memory_of_node(extras)) != _NO_MEMORY:
            self._show_memory(memory)

    def _show_memory(self, values: tuple[Any, ...]) -> None:
        for field, value in zip(NODE.memory, values, strict=True):
            if value is not None and value != "":
                setattr(self, field.name, format_rfc3339_timestamp(value) if field.type is TIMESTAMP_TYPE else value)

    @property
    def extras(self) -> NodeExtras:
        """Stored form of the extras."""
        values = _memory_of_node(self)
        memory = () if values == _ALL_UNSET else [*map(_stored_value, _STORED_AS, values)]
        return NodeExtras(
            self.summary or "",
            tuple(self.tags or ()),
            _time_of(self.freshness_at),
            self.created_by or "",
            _time_of(self.valid_from),
            _time_of(self.valid_to),
            tuple(self.conflicts or ()),
            *memory,
        )


class EdgeExtrasAnswer(SparseReprStruct, kw_only=True):
    """Extras (optional fields) of an edge in answers: those that are set, times as text."""

    ordinal: int | UnsetType = UNSET
    created_by: _Text = UNSET
    valid_from: _Text = UNSET
    valid_to: _Text = UNSET
    confidence: float | UnsetType = UNSET
    context: _Text = UNSET

    def show(self, extras: EdgeExtras) -> None:
        """Set the fields that the extras have."""
        if extras.ordinal is not None:
            self.ordinal = extras.ordinal
        if extras.created_by:
            self.created_by = extras.created_by
        if extras.valid_from is not None:
            self.valid_from = format_rfc3339_timestamp(extras.valid_from)
        if extras.valid_to is not None:
            self.valid_to = format_rfc3339_timestamp(extras.valid_to)
        if extras.confidence is not None:
            self.confidence = extras.confidence
        if extras.context:
            self.context = extras.context

    @property
    def extras(self) -> EdgeExtras:
        """Stored form of the extras."""
        return EdgeExtras(
            _value_of(self.ordinal),
            self.created_by or "",
            _time_of(self.valid_from),
            _time_of(self.valid_to),
            _value_of(self.confidence),
            self.context or "",
        )


_ALL_UNSET = (UNSET,) * len(_MEMORY_FIELD_NAMES)
_Value = TypeVar("_Value", int, float, str)


def _value_of(shown: _Value | UnsetType) -> _Value | None:
    return None if shown is UNSET else shown


_STORED_AS = [(field.type is TIMESTAMP_TYPE, none) for field, none in zip(NODE.memory, _NO_MEMORY, strict=True)]


def _stored_value(stored_as: tuple[bool, Any], shown: Any) -> Any:
    """Return the stored form of a value in an answer; the value for "not set" if it is absent."""
    is_time, none = stored_as
    if shown is UNSET or shown is None:
        return none
    return parse_stored_time(shown) if is_time else shown


def _time_of(text: _Text) -> int | None:
    return parse_stored_time(text) if isinstance(text, str) else None
