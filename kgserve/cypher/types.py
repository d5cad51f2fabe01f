"""Static types of Cypher values, inferred before a statement runs.

`CypherStaticType` describes a value, its nullability and its parts. `ANY_TYPE` is an unknown type; operations that the
engine evaluates incorrectly for some types reject it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from kgserve.cypher.syntax_tree import Literal
from kgserve.storage.model.node_edge_fields import (
    DOUBLE_TYPE,
    EDGE,
    INT64_TYPE,
    INTEGER_LIST_TYPE,
    NODE,
    STRING_LIST_TYPE,
    STRING_TYPE,
    TIMESTAMP_TYPE,
    EngineAndArrowFieldType,
    RowField,
)

MAX_EXACT_FLOAT = 1 << 53
"""Largest range in which every integer is exact as a float."""
MAX_INTEGER = (1 << 63) - 1

KIND_DESCRIPTIONS = {
    "any": "a value of unknown type",
    "engine": "a value whose type the engine decides",
    "null": "null",
    "boolean": "a boolean",
    "integer": "a whole number",
    "float": "a decimal number",
    "decimal": "a decimal number",
    "text": "a text",
    "list": "a list",
    "map": "a map",
    "node": "a node",
    "relation": "a relationship",
    "path": "a path",
    "relations": "a list of relationships",
    "date": "a date",
    "time": "a timestamp",
    "duration": "a duration",
    "json": "JSON",
    "uuid": "a UUID",
    "blob": "bytes",
    "id": "an internal id",
    "entries": "a map of any keys",
}
"""Readable name of each kind of value; ``relations`` is the variable of a variable-length pattern."""

NUMBER_KINDS = frozenset({"integer", "float", "decimal"})


class CypherStaticType(msgspec.Struct, frozen=True):
    """Type of a value; ``of`` is the element type of a list, ``fields`` are the types of a map by key.

    ``may_be_nan``: a float that may be NaN. ``may_be_large``: an integer that may be inexact as a float. ``is_filled``:
    a text that cannot be empty. ``is_undirected``: a relationship that may be matched from either end.
    """

    kind: str
    of: CypherStaticType | None = None
    fields: tuple[tuple[str, CypherStaticType], ...] = ()
    is_nullable: bool = False
    may_be_nan: bool = False
    may_be_large: bool = False
    is_filled: bool = False
    is_column: bool = False
    is_undirected: bool = False

    @property
    def name(self) -> str:
        """Readable name."""
        return KIND_DESCRIPTIONS[self.kind]

    @property
    def is_known(self) -> bool:
        """True if the type is known before the statement runs."""
        return self.kind not in {"any", "engine", "null"}

    @property
    def element(self) -> CypherStaticType:
        """Type of a list element."""
        if self.kind == "engine":
            return self
        return self.of or ANY_TYPE

    def field(self, name: str) -> CypherStaticType | None:
        """Return the type of a map's value by key."""
        return dict(self.fields).get(name)

    def nullable(self) -> CypherStaticType:
        """Return the nullable variant of the type."""
        return self if self.is_nullable else msgspec.structs.replace(self, is_nullable=True)

    @property
    def is_nan_possible(self) -> bool:
        """True for a float that may be NaN."""
        return self.kind == "float" and self.may_be_nan

    def without_column(self) -> CypherStaticType:
        """Return the type for a computed value, which is not a column."""
        return msgspec.structs.replace(self, is_column=False) if self.is_column else self


ANY_TYPE = CypherStaticType("any", is_nullable=True, may_be_nan=True, may_be_large=True)
ENGINE_TYPE = CypherStaticType("engine", is_nullable=True)
"""Type known only to the engine: a procedure's result, or a property that the engine will reject."""
NULL_TYPE = CypherStaticType("null", is_nullable=True)
BOOLEAN_TYPE = CypherStaticType("boolean")
INTEGER_TYPE = CypherStaticType("integer")
FLOAT_TYPE = CypherStaticType("float")
TEXT_VALUE_TYPE = CypherStaticType("text")
TIME_VALUE_TYPE = CypherStaticType("time")
NODE_VALUE_TYPE = CypherStaticType("node")
RELATION_VALUE_TYPE = CypherStaticType("relation")
EMPTY_LIST_TYPE = CypherStaticType("list", of=None)


def make_list_type(element: CypherStaticType, *, is_nullable: bool = False) -> CypherStaticType:
    """Return the list type of an element type."""
    return CypherStaticType("list", of=element.without_column(), is_nullable=is_nullable)


_FIELD_VALUE_TYPES: dict[EngineAndArrowFieldType, CypherStaticType] = {
    STRING_TYPE: TEXT_VALUE_TYPE,
    STRING_LIST_TYPE: make_list_type(TEXT_VALUE_TYPE),
    INT64_TYPE: INTEGER_TYPE,
    INTEGER_LIST_TYPE: make_list_type(INTEGER_TYPE),
    DOUBLE_TYPE: FLOAT_TYPE,
    TIMESTAMP_TYPE: TIME_VALUE_TYPE,
}
_NEVER_EMPTY_COLUMNS = frozenset({"id", "type", "relation_type"})
_NEVER_NULL_COLUMNS = frozenset({
    "id", "type", "content", "attributes", "version", "sequence", "created_at", "updated_at",
    "relation_type", "weight",
})  # fmt: skip


def _columns(fields: tuple[RowField, ...]) -> dict[str, CypherStaticType]:
    found: dict[str, CypherStaticType] = {}
    for field in fields:
        found[field.name] = msgspec.structs.replace(
            _FIELD_VALUE_TYPES[field.type],
            is_nullable=field.name not in _NEVER_NULL_COLUMNS,
            is_filled=field.name in _NEVER_EMPTY_COLUMNS,
            is_column=True,
        )
    return found


NODE_COLUMN_TYPES = _columns(NODE.whole)
EDGE_COLUMN_TYPES = {name: kind for name, kind in _columns(EDGE.whole).items() if name not in {"source", "target"}}
ELSEWHERE_COLUMN_TYPES = {name: msgspec.structs.replace(TEXT_VALUE_TYPE, is_column=True) for name in ("store", "id")}


def type_of_literal(literal: Literal) -> CypherStaticType:
    """Return the type of a literal."""
    value = literal.value
    if literal.kind == "null":
        return NULL_TYPE
    if literal.kind == "text":
        return CypherStaticType("text", is_filled=value != "")
    if literal.kind == "integer":
        return CypherStaticType("integer", may_be_large=isinstance(value, int) and abs(value) > MAX_EXACT_FLOAT)
    return CypherStaticType(literal.kind)


def infer_parameter_value_type(value: Any) -> CypherStaticType:  # noqa: PLR0911 - one for each type
    """Return the type of a parameter value prepared by `guard.values`."""
    match value:
        case None:
            return NULL_TYPE
        case bool():
            return BOOLEAN_TYPE
        case int():
            return CypherStaticType("integer", may_be_large=abs(value) > MAX_EXACT_FLOAT)
        case float():
            return FLOAT_TYPE
        case str():
            return CypherStaticType("text", is_filled=value != "")
        case list():
            return make_list_type(_common(value)) if value else CypherStaticType("list")
        case dict():
            return _type_of_map(value)
        case _:
            return ANY_TYPE


def _type_of_map(value: Mapping[str, Any]) -> CypherStaticType:
    return CypherStaticType(
        "map", fields=tuple((name, infer_parameter_value_type(part)) for name, part in value.items())
    )


def _common(items: list[Any]) -> CypherStaticType:
    found = {infer_parameter_value_type(item) for item in items}
    known = [each for each in found if each.kind != "null"]
    if not known:
        return NULL_TYPE if found else ANY_TYPE
    joined = known[0]
    for each in known[1:]:
        joined = compute_common_cypher_type(joined, each)
    return joined.nullable() if len(known) < len(found) else joined


def compute_common_cypher_type(first: CypherStaticType, second: CypherStaticType) -> CypherStaticType:
    """Return the common type of two types; `ANY_TYPE` if they have none."""
    if first == second:
        return first
    if first.kind == "null" or second.kind == "null":
        return (second if first.kind == "null" else first).nullable()
    if first.kind != second.kind:
        return ANY_TYPE
    names = {name: None for name, _ in (*first.fields, *second.fields)}
    fields = tuple(
        (name, compute_common_cypher_type(first.field(name) or NULL_TYPE, second.field(name) or NULL_TYPE))
        for name in names
    )
    return CypherStaticType(
        first.kind,
        of=compute_common_element_type(first, second),
        fields=fields,
        is_nullable=first.is_nullable or second.is_nullable,
        may_be_nan=first.may_be_nan or second.may_be_nan,
        may_be_large=first.may_be_large or second.may_be_large,
        is_filled=first.is_filled and second.is_filled,
    )


def compute_common_element_type(first: CypherStaticType, second: CypherStaticType) -> CypherStaticType | None:
    """Return the common element type of two lists; an empty list has none."""
    if first.of is None or second.of is None:
        return first.of or second.of
    return compute_common_cypher_type(first.of, second.of)


_DECLARED_TYPES = {"integer": "INT64", "float": "DOUBLE", "text": "STRING", "boolean": "BOOL"}
_PLAIN_KEY = re.compile(r"[a-z][a-z0-9_]*")


def contains_integer_type(kind: CypherStaticType) -> bool:
    """Return whether a type is the integer type or contains it."""
    parts = [part for _, part in kind.fields] if kind.of is None else [kind.of]
    return kind.kind == "integer" or any(map(contains_integer_type, parts))


def to_engine_type_name(kind: CypherStaticType) -> str | None:
    """Return the engine's name of a type; None if part of it is unknown."""
    if kind.kind == "list":
        element = None if kind.of is None else to_engine_type_name(kind.of)
        return None if element is None else f"{element}[]"
    if kind.kind != "map":
        return _DECLARED_TYPES.get(kind.kind)
    fields = [(name, to_engine_type_name(part)) for name, part in kind.fields]
    is_plain = all(part is not None and _PLAIN_KEY.fullmatch(name) for name, part in fields)
    return f"STRUCT({', '.join(f'{name} {part}' for name, part in fields)})" if is_plain else None
