"""Every field of a node and of an edge, declared once.

`NODE` and `EDGE` say what there is, in the order in which it is stored, sent and written to files; statements, tables
and columns are made from them when their modules are imported. The Structs are the extras, fields that most rows have
no use for, in each form that they take: stored, to be written, sent by a caller, answered. A test says that they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, LiteralString, NamedTuple

import msgspec

from kgserve.model.times import format_time, time_of

MAX_ID_BYTES = 512
MAX_CONTENT_BYTES = 1 << 20
MAX_ATTRIBUTES_BYTES = 256 << 10
MAX_SUMMARY_BYTES = 4096
MAX_TAGS = 100
MAX_ORDINAL = 1 << 53

Moment = int | None | msgspec.UnsetType
"""A time to store, None to have none, UNSET to keep what is stored."""


class Type(NamedTuple):
    """What a field holds, by its names in the engine and in Arrow; ``[]`` stands behind those of lists."""

    engine: LiteralString
    arrow: str


TEXT = Type("STRING", "string")
TEXTS = Type("STRING[]", "string[]")
WHOLE = Type("INT64", "int64")
WHOLES = Type("INT64[]", "int64[]")
REAL = Type("DOUBLE", "float64")
TIME = Type("TIMESTAMP", "timestamp[us]")


class Field(NamedTuple):
    """A field: its name in rows and in the engine, what it holds, and ``wire``, its name wherever a caller sees it.

    What ``is_own`` is kept by the store itself: no caller sends it, and no line of an export has it.
    """

    name: LiteralString
    type: Type
    wire: LiteralString
    is_own: bool = False
    max_bytes: int = MAX_ID_BYTES


class Fields(NamedTuple):
    """The fields of a row: those that every row has, and the extras."""

    plain: tuple[Field, ...]
    extras: tuple[Field, ...]

    @property
    def whole(self) -> tuple[Field, ...]:
        """All of them."""
        return self.plain + self.extras

    @property
    def exchanged(self) -> tuple[Field, ...]:
        """Those that the lines of an export have."""
        return tuple(field for field in self.whole if not field.is_own)


def names(fields: tuple[Field, ...]) -> tuple[LiteralString, ...]:
    """The names of fields in rows and in the engine."""
    return tuple(field.name for field in fields)


def _field(
    name: LiteralString,
    type_: Type,
    wire: LiteralString = "",
    *,
    is_own: bool = False,
    max_bytes: int = MAX_ID_BYTES,
) -> Field:
    return Field(name, type_, wire or name, is_own, max_bytes)


NODE = Fields(
    plain=(
        _field("id", TEXT),
        _field("type", TEXT),
        _field("content", TEXT, max_bytes=MAX_CONTENT_BYTES),
        _field("attributes", TEXT, max_bytes=MAX_ATTRIBUTES_BYTES),
        _field("version", WHOLE),
        _field("sequence", WHOLE, is_own=True),
        _field("created_at", TIME),
        _field("updated_at", TIME),
    ),
    extras=(
        _field("summary", TEXT, max_bytes=MAX_SUMMARY_BYTES),
        _field("tags", TEXTS),
        _field("freshness_at", TIME),
        _field("created_by", TEXT),
        _field("valid_from", TIME),
        _field("valid_to", TIME),
        _field("conflicts", WHOLES, is_own=True),
    ),
)
EDGE = Fields(
    plain=(
        _field("source", TEXT, "from"),
        _field("target", TEXT, "to"),
        _field("relation_type", TEXT),
        _field("weight", REAL),
        _field("attributes", TEXT, max_bytes=MAX_ATTRIBUTES_BYTES),
        _field("version", WHOLE),
        _field("sequence", WHOLE, is_own=True),
    ),
    extras=(
        _field("ordinal", WHOLE),
        _field("created_by", TEXT),
        _field("valid_from", TIME),
        _field("valid_to", TIME),
    ),
)
ENDS = 2
"""So many fields of an edge, the first, name the nodes that it joins."""
AUTHOR = "created_by"
"""The extra that is stored with all rows that have extras, be it empty: by it they are known."""


class NodeExtras(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The extras of a node as they are stored. Times are microseconds since 1970.

    ``created_by`` is whoever wrote this state, "" when nobody said. It is true in the world from ``valid_from`` to
    before ``valid_to``. ``conflicts`` are the versions of other heads that no state has superseded.
    """

    summary: str = ""
    tags: tuple[str, ...] = ()
    freshness_at: int | None = None
    created_by: str = ""
    valid_from: int | None = None
    valid_to: int | None = None
    conflicts: tuple[int, ...] = ()

    @classmethod
    def of_columns(cls, values: Sequence[Any]) -> NodeExtras | None:
        """The extras in columns of values; None where nobody is their author."""
        summary, tags, freshness_at, author, valid_from, valid_to, conflicts = values
        if author is None:
            return None
        return cls(summary or "", tuple(tags or ()), freshness_at, author, valid_from, valid_to, tuple(conflicts or ()))

    @property
    def columns(self) -> tuple[Any, ...]:
        """The inverse of `of_columns`: nothing for empty texts and lists, but for the author."""
        return (
            self.summary or None,
            self.tags or None,
            self.freshness_at,
            self.created_by,
            self.valid_from,
            self.valid_to,
            self.conflicts or None,
        )


class EdgeExtras(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """As `NodeExtras`, of a relation; ``ordinal`` is its place among those of its source."""

    ordinal: int | None = None
    created_by: str = ""
    valid_from: int | None = None
    valid_to: int | None = None

    @classmethod
    def of_columns(cls, values: Sequence[Any]) -> EdgeExtras | None:
        """The extras in columns of values; None where nobody is their author."""
        return None if values[1] is None else cls(*values)

    @property
    def columns(self) -> tuple[Any, ...]:
        """The inverse of `of_columns`."""
        return msgspec.structs.astuple(self)


NO_EXTRAS = NodeExtras()
NO_EDGE_EXTRAS = EdgeExtras()


class NodeExtrasPut(msgspec.Struct, frozen=True):
    """The extras of a node to write: what is as in an empty one is kept.

    Only ``created_by`` is not: it is of this state alone.
    """

    summary: str | None = None
    tags: tuple[str, ...] | None = None
    freshness_at: Moment = msgspec.UNSET
    created_by: str = ""
    valid_from: Moment = msgspec.UNSET
    valid_to: Moment = msgspec.UNSET

    @property
    def says_any(self) -> bool:
        """Whether a node without extras has some once this is written."""
        return self.onto(NO_EXTRAS) != NO_EXTRAS

    def onto(self, old: NodeExtras) -> NodeExtras:
        """What is stored once this is written, without conflicts."""
        return NodeExtras(
            old.summary if self.summary is None else self.summary,
            old.tags if self.tags is None else self.tags,
            old.freshness_at if self.freshness_at is msgspec.UNSET else self.freshness_at,
            self.created_by,
            old.valid_from if self.valid_from is msgspec.UNSET else self.valid_from,
            old.valid_to if self.valid_to is msgspec.UNSET else self.valid_to,
        )

    def over(self, earlier: NodeExtrasPut | None) -> NodeExtrasPut:
        """Both as one: what this one leaves out comes from the earlier."""
        return self if earlier is None else NodeExtrasPut(*_joined(self, earlier, _KEPT))


class EdgeExtrasPut(msgspec.Struct, frozen=True):
    """The extras of an edge to write, as `NodeExtrasPut`."""

    ordinal: int | None = None
    created_by: str = ""
    valid_from: Moment = msgspec.UNSET
    valid_to: Moment = msgspec.UNSET

    def onto(self, old: EdgeExtras) -> EdgeExtras:
        """What is stored once this is written."""
        return EdgeExtras(
            old.ordinal if self.ordinal is None else self.ordinal,
            self.created_by,
            old.valid_from if self.valid_from is msgspec.UNSET else self.valid_from,
            old.valid_to if self.valid_to is msgspec.UNSET else self.valid_to,
        )

    def over(self, earlier: EdgeExtrasPut | None) -> EdgeExtrasPut:
        """Both as one: what this one leaves out comes from the earlier."""
        return self if earlier is None else EdgeExtrasPut(*_joined(self, earlier, _KEPT_OF_EDGE))


_astuple = msgspec.structs.astuple
_KEPT, _KEPT_OF_EDGE = _astuple(NodeExtrasPut()), _astuple(EdgeExtrasPut())


def _joined(put: msgspec.Struct, old: msgspec.Struct, kept: tuple[Any, ...]) -> list[Any]:
    """The values of ``put``, and those of ``old`` where it has what stands for keeping them."""
    values = zip(_astuple(put), _astuple(old), kept, strict=True)
    return [was if given == keeping else given for given, was, keeping in values]


_Moment = Annotated[str, msgspec.Meta(max_length=64)]
_Author = (
    Annotated[str, msgspec.Meta(max_length=MAX_ID_BYTES, description="Who writes this state; never interpreted")] | None
)
_Start = Annotated[_Moment, msgspec.Meta(description="True from then on (RFC 3339); empty: none")] | None
_End = Annotated[_Moment, msgspec.Meta(description="True until then (RFC 3339); empty: none")] | None
_Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_BYTES)]


class NodeExtrasInput(msgspec.Struct, kw_only=True):
    """The extras of a node as callers send them."""

    summary: Annotated[
        str | None, msgspec.Meta(description="Short form of the content, at most 4 KiB; left out: kept; empty: cleared")
    ] = None
    tags: (
        Annotated[
            list[_Tag],
            msgspec.Meta(
                max_length=MAX_TAGS, description="At most 100 of 1 to 512 bytes; left out: kept; given: replaces"
            ),
        ]
        | None
    ) = None
    freshness_at: Annotated[_Moment, msgspec.Meta(description="Stale from then on (RFC 3339); empty: none")] | None = (
        None
    )
    created_by: _Author = None
    valid_from: _Start = None
    valid_to: _End = None


class EdgeExtrasInput(msgspec.Struct, kw_only=True):
    """The extras of an edge as callers send them."""

    ordinal: (
        Annotated[int, msgspec.Meta(ge=-MAX_ORDINAL, le=MAX_ORDINAL, description="Place among the edges of its source")]
        | None
    ) = None
    created_by: _Author = None
    valid_from: _Start = None
    valid_to: _End = None


class NodeExtrasLine(msgspec.Struct, kw_only=True):
    """The extras of a node in a line of an export."""

    summary: str | None = None
    tags: list[str] | None = None
    freshness_at: str | None = None
    created_by: str | None = None
    valid_from: str | None = None
    valid_to: str | None = None


class EdgeExtrasLine(msgspec.Struct, kw_only=True):
    """The extras of an edge in a line of an export."""

    ordinal: int | None = None
    created_by: str | None = None
    valid_from: str | None = None
    valid_to: str | None = None


_Text = str | msgspec.UnsetType


class Shown(msgspec.Struct):
    """What prints as the fields that it has: what is absent is left out."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, value) for name, value in values if value is not msgspec.UNSET and value is not None]


class NodeExtrasShown(Shown, kw_only=True):
    """The extras of a node as callers get them, those that are set, times as text.

    Two are found when it is read. ``stale``: ``freshness_at`` is past. ``superseded_by``: the version after this one.
    """

    summary: _Text = msgspec.UNSET
    tags: list[str] | msgspec.UnsetType = msgspec.UNSET
    freshness_at: _Text = msgspec.UNSET
    stale: bool | msgspec.UnsetType = msgspec.UNSET
    created_by: _Text = msgspec.UNSET
    valid_from: _Text = msgspec.UNSET
    valid_to: _Text = msgspec.UNSET
    conflicts: list[int] | msgspec.UnsetType = msgspec.UNSET
    superseded_by: int | msgspec.UnsetType = msgspec.UNSET

    def show(self, extras: NodeExtras) -> None:
        """Set what there is; a row's way to its JSON, and so without a loop."""
        if extras.summary:
            self.summary = extras.summary
        if extras.tags:
            self.tags = list(extras.tags)
        if extras.freshness_at is not None:
            self.freshness_at = format_time(extras.freshness_at)
        if extras.created_by:
            self.created_by = extras.created_by
        if extras.valid_from is not None:
            self.valid_from = format_time(extras.valid_from)
        if extras.valid_to is not None:
            self.valid_to = format_time(extras.valid_to)
        if extras.conflicts:
            self.conflicts = list(extras.conflicts)

    @property
    def extras(self) -> NodeExtras:
        """The inverse of `show`."""
        return NodeExtras(
            self.summary or "",
            tuple(self.tags or ()),
            _time_of(self.freshness_at),
            self.created_by or "",
            _time_of(self.valid_from),
            _time_of(self.valid_to),
            tuple(self.conflicts or ()),
        )


class EdgeExtrasShown(Shown, kw_only=True):
    """The extras of an edge as callers get them, those that are set, times as text."""

    ordinal: int | msgspec.UnsetType = msgspec.UNSET
    created_by: _Text = msgspec.UNSET
    valid_from: _Text = msgspec.UNSET
    valid_to: _Text = msgspec.UNSET

    def show(self, extras: EdgeExtras) -> None:
        """Set what there is."""
        if extras.ordinal is not None:
            self.ordinal = extras.ordinal
        if extras.created_by:
            self.created_by = extras.created_by
        if extras.valid_from is not None:
            self.valid_from = format_time(extras.valid_from)
        if extras.valid_to is not None:
            self.valid_to = format_time(extras.valid_to)

    @property
    def extras(self) -> EdgeExtras:
        """The inverse of `show`."""
        ordinal = None if self.ordinal is msgspec.UNSET else self.ordinal
        return EdgeExtras(ordinal, self.created_by or "", _time_of(self.valid_from), _time_of(self.valid_to))


def _time_of(text: _Text) -> int | None:
    return time_of(text) if isinstance(text, str) else None
