"""Static types: the types of values that are known before a statement runs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kgserve.cypher.interpreter.graph_view_interface import NodeReference, PathValue, RelationshipReference


class StaticValueType(msgspec.Struct, frozen=True):
    """Static type of a value, which may also be null; ``element`` is that of a list's elements, if known."""

    name: str
    element: StaticValueType | None = None

    def is_one_of(self, *names: str) -> bool:
        """Return whether the value can be of one of these kinds."""
        return self.name in names or self.name in {"any", "null"}

    def describe(self) -> str:
        """Return the kind for a message: ``a node``."""
        return _DESCRIPTIONS[self.name]

    def accepts_types(self, types: frozenset[type]) -> bool:
        """Return whether the value can be of one of these types; no types represent all."""
        return not types or self.name in {"any", "null"} or _TYPES[self.name] in types


ANY_KIND = StaticValueType("any")
NULL_KIND = StaticValueType("null")
BOOLEAN_KIND = StaticValueType("boolean")
INTEGER_KIND = StaticValueType("integer")
FLOAT_KIND = StaticValueType("float")
STRING_KIND = StaticValueType("string")
MAP_KIND = StaticValueType("map")
NODE_KIND = StaticValueType("node")
RELATIONSHIP_KIND = StaticValueType("relationship")
PATH_KIND = StaticValueType("path")
LIST_KIND = StaticValueType("list")
STRING_LIST_KIND = StaticValueType("list", STRING_KIND)
NODE_LIST_KIND = StaticValueType("list", NODE_KIND)
RELATIONSHIP_LIST_KIND = StaticValueType("list", RELATIONSHIP_KIND)
INTEGER_LIST_KIND = StaticValueType("list", INTEGER_KIND)

_DESCRIPTIONS = {
    "any": "any value", "null": "null", "boolean": "a boolean", "integer": "an integer", "float": "a float",
    "string": "a string", "map": "a map", "node": "a node", "relationship": "a relationship", "path": "a path",
    "list": "a list",
}  # fmt: skip
_TYPES: dict[str, type] = {
    "boolean": bool, "integer": int, "float": float, "string": str, "map": dict, "node": NodeReference,
    "relationship": RelationshipReference, "path": PathValue, "list": list,
}  # fmt: skip
_LITERAL_KINDS: dict[type, StaticValueType] = {
    bool: BOOLEAN_KIND,
    int: INTEGER_KIND,
    float: FLOAT_KIND,
    str: STRING_KIND,
}

FUNCTION_KINDS: dict[str, StaticValueType] = {
    "labels": STRING_LIST_KIND, "keys": STRING_LIST_KIND, "split": STRING_LIST_KIND, "type": STRING_KIND,
    "tostring": STRING_KIND, "toupper": STRING_KIND, "tolower": STRING_KIND, "trim": STRING_KIND,
    "replace": STRING_KIND, "substring": STRING_KIND, "left": STRING_KIND, "right": STRING_KIND,
    "properties": MAP_KIND, "nodes": NODE_LIST_KIND, "relationships": RELATIONSHIP_LIST_KIND,
    "rels": RELATIONSHIP_LIST_KIND, "startnode": NODE_KIND, "endnode": NODE_KIND, "length": INTEGER_KIND,
    "size": INTEGER_KIND, "range": INTEGER_LIST_KIND, "tointeger": INTEGER_KIND, "tofloat": FLOAT_KIND,
    "toboolean": BOOLEAN_KIND, "isempty": BOOLEAN_KIND, "count": INTEGER_KIND, "collect": LIST_KIND,
    "rand": FLOAT_KIND, "sqrt": FLOAT_KIND, "pi": FLOAT_KIND, "e": FLOAT_KIND,
}  # fmt: skip
"""Kinds of the results of functions; others may return any value."""


def find_literal_type(value: object) -> StaticValueType:
    """Return the static type of a literal: a number, string, boolean or null."""
    return _LITERAL_KINDS.get(type(value), NULL_KIND)


def join_static_types(kinds: Iterable[StaticValueType]) -> StaticValueType:
    """Return the static type that values of several types have in common."""
    found = {kind for kind in kinds if kind.name != "null"}
    if len(found) == 1:
        return found.pop()
    if found and all(kind.name == "list" for kind in found):
        return LIST_KIND
    return ANY_KIND if found else NULL_KIND
