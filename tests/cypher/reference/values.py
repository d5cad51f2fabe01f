"""Values of openCypher with equality, comparison and order.

Integers, floats, texts, booleans, lists, maps and null are Python's own. A truth value is True, False, or None for
unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard

import msgspec
from typing_extensions import override

MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 63) - 1
Truth = bool | None
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


NO_LABEL = "_"
"""Type of a node without a label."""


class CypherError(Exception):
    """Raised if the statement is an error in openCypher; the message is the reason."""


class TruthTypeError(CypherError):
    """Raised for a condition that is not a truth value."""


class UnmodelledFeature(Exception):
    """Raised where the reference does not define the answer."""


class Timestamp(msgspec.Struct, frozen=True, order=True):
    """Microseconds since 1970 in UTC."""

    microseconds: int

    @property
    def moment(self) -> datetime:
        """Return it as a datetime in UTC."""
        return EPOCH + timedelta(microseconds=self.microseconds)

    @override
    def __str__(self) -> str:
        """Return it as the engines' literals have it."""
        return self.moment.strftime("%Y-%m-%d %H:%M:%S.%f")


class Node(msgspec.Struct, frozen=True, eq=False):
    """A node; two are equal when their ids are."""

    id: str
    properties: dict[str, Any]

    @property
    def own(self) -> dict[str, Any]:
        """Properties that `properties()` and `keys()` list."""
        found = {name: value for name, value in self.properties.items() if value is not None and name != "type"}
        return {name: value for name, value in found.items() if name != "content" or value}


class Relationship(msgspec.Struct, frozen=True, eq=False):
    """Directed relationship between nodes by id, identified by `key`."""

    source: str
    target: str
    properties: dict[str, Any]

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifying key."""
        return self.source, self.target, self.properties["relation_type"]

    @property
    def own(self) -> dict[str, Any]:
        """Properties that `properties()` and `keys()` list."""
        return {name: value for name, value in self.properties.items() if value is not None and name != "relation_type"}


class Path(msgspec.Struct, frozen=True, eq=False):
    """Nodes and, between each two of them, a relationship."""

    nodes: tuple[Node, ...]
    relationships: tuple[Relationship, ...]


class Bag(list[Any]):
    """List with undefined order, such as `collect` of unordered rows."""


class Zero(int):
    """Sum of nothing: 0, of unknown number type."""


_MAX_EXACT_FLOAT = 1 << 53


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is an integer or a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def type_name(value: Any) -> str:
    """Return the name of a value's type."""
    if value is None:
        return "null"
    names = {
        bool: "boolean",
        int: "integer",
        Zero: "integer",
        float: "float",
        str: "text",
        dict: "map",
        Bag: "list",
        list: "list",
    }
    return names.get(type(value), type(value).__name__.lower())


def read_parameter(value: Any) -> Any:
    """Return a parameter as kgserve documents it: a list with a decimal number holds only decimal numbers."""
    return _decimal(value) if isinstance(value, list) and _has_decimal(value) else value


def _has_decimal(value: Any) -> bool:
    return any(map(_has_decimal, value)) if isinstance(value, list) else isinstance(value, float)


def _decimal(value: Any) -> Any:
    if isinstance(value, list):
        return [_decimal(item) for item in value]
    if is_number(value) and isinstance(value, int) and abs(value) > _MAX_EXACT_FLOAT:
        raise CypherError("a whole number is too large for a list of decimal ones")
    return float(value) if is_number(value) else value


def negate(truth: Truth) -> Truth:
    """NOT."""
    return None if truth is None else not truth


def conjunction(left: Truth, right: Truth) -> Truth:
    """AND."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def disjunction(left: Truth, right: Truth) -> Truth:
    """OR."""
    return negate(conjunction(negate(left), negate(right)))


def exclusive(left: Truth, right: Truth) -> Truth:
    """XOR."""
    return None if left is None or right is None else left != right


def _all(truths: Iterable[Truth]) -> Truth:
    found: Truth = True
    for truth in truths:
        found = conjunction(found, truth)
    return found


def equals(left: Any, right: Any) -> Truth:
    """Compare with `=`."""
    if left is None or right is None:
        return None
    if is_number(left) and is_number(right):
        return left == right
    match left, right:
        case list(), list():
            return _equal_lists(left, right)
        case dict(), dict():
            return _equal_maps(left, right)
        case (Node(), Node()) | (Relationship(), Relationship()) | (Path(), Path()):
            return _identity(left) == _identity(right)
        case _:
            return type(left) is type(right) and left == right


def _equal_lists(left: list[Any], right: list[Any]) -> Truth:
    if len(left) != len(right):
        return False
    return _all(map(equals, left, right))


def _equal_maps(left: dict[str, Any], right: dict[str, Any]) -> Truth:
    if left.keys() != right.keys():
        return False
    return _all(equals(left[name], right[name]) for name in left)


def _identity(value: Any) -> Any:
    match value:
        case Node():
            return value.id
        case Relationship():
            return value.key
        case _:
            return [node.id for node in value.nodes], [each.key for each in value.relationships]


def is_less(left: Any, right: Any) -> Truth:
    """Compare with `<`; unknown for values that cannot be compared."""
    if left is None or right is None:
        return None
    if is_number(left) and is_number(right):
        return left < right
    if isinstance(left, list) and isinstance(right, list):
        return _list_less(left, right)
    comparable = type(left) is type(right) and isinstance(left, (str, bool, Timestamp))
    return left < right if comparable else None


def _list_less(left: list[Any], right: list[Any]) -> Truth:
    for one, other in zip(left, right, strict=False):
        same = equals(one, other)
        if same is not True:
            return None if same is None else is_less(one, other)
    return len(left) < len(right)


def compare(operator: str, left: Any, right: Any) -> Truth:
    """Compare with any of the six operators."""
    if operator in {"=", "<>"}:
        same = equals(left, right)
        return same if operator == "=" else negate(same)
    if operator in {">", ">="}:
        left, right, operator = right, left, {">": "<", ">=": "<="}[operator]
    less = is_less(left, right)
    return less if operator == "<" or less is not False else _less_or_equal(left, right)


def _less_or_equal(left: Any, right: Any) -> Truth:
    """Compare with `<=` what is not less."""
    return equals(left, right)


def contains(collection: Any, value: Any) -> Truth:
    """IN."""
    if collection is None:
        return None
    if not isinstance(collection, list):
        raise CypherError(f"IN needs a list, not {type_name(collection)}")
    return negate(_all(negate(equals(value, each)) for each in collection))


_MAP, _NODE, _RELATIONSHIP, _LIST, _PATH, _TIMESTAMP, _TEXT, _BOOLEAN, _NUMBER, _NULL = range(10)


def order_key(value: Any) -> tuple[Any, ...]:  # noqa: PLR0911 - one line for each type
    """Return a key that sorts values of any types as ORDER BY does."""
    match value:
        case None:
            return (_NULL,)
        case bool():
            return _BOOLEAN, value
        case int() | float():
            return (_NUMBER, 1, 0) if math.isnan(value) else (_NUMBER, 0, value)
        case str():
            return _TEXT, value
        case list():
            return _LIST, tuple(map(order_key, value))
        case dict():
            return _MAP, tuple(sorted((name, order_key(part)) for name, part in value.items()))
        case Timestamp():
            return _TIMESTAMP, value.microseconds
        case Node():
            return _NODE, value.id
        case Relationship():
            return _RELATIONSHIP, value.key
        case _:
            return _PATH, _identity(value)


def group_key(value: Any) -> Any:
    """Return a hashable key for DISTINCT and grouping: null equals null, and NaN equals NaN."""
    match value:
        case list():
            return (_LIST, *map(group_key, value))
        case Path():
            return repr(_identity(value))
        case _:
            return order_key(value)
