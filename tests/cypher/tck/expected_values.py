"""Expected values of scenarios, in the notation of openCypher's results."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

_NUMBER = re.compile(r"NaN|[+-]?Inf|[+-]?(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?")
_NAME = re.compile(r"[\w$]+|`[^`]*`")
_CONSTANTS = {"null": None, "true": True, "false": False}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class ExpectedNode(msgspec.Struct, frozen=True):
    """Node by its labels and properties."""

    labels: frozenset[str]
    properties: dict[str, Any]


class ExpectedRelationship(msgspec.Struct, frozen=True):
    """Relationship by its type and properties."""

    type: str
    properties: dict[str, Any]


class ExpectedPath(msgspec.Struct, frozen=True):
    """Path: its first node, and then direction, relationship and node of each step."""

    start: ExpectedNode
    steps: tuple[tuple[bool, ExpectedRelationship, ExpectedNode], ...]


def parse_value(text: str) -> Any:
    """Return the value of a cell. Raises ValueError for any other notation."""
    reader = _ValueReader(text)
    found = reader.value()
    reader.skip()
    if reader.at < len(text):
        raise ValueError(f"unexpected rest {text[reader.at :]!r} in {text!r}")
    return found


class _ValueReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def accept(self, symbol: str) -> bool:
        self.skip()
        found = self.text.startswith(symbol, self.at)
        self.at += len(symbol) * found
        return found

    def expect(self, symbol: str) -> None:
        if not self.accept(symbol):
            raise ValueError(f"{symbol!r} expected at {self.at} of {self.text!r}")

    def name(self) -> str:
        self.skip()
        match = _NAME.match(self.text, self.at)
        if match is None:
            raise ValueError(f"name expected at {self.at} of {self.text!r}")
        self.at = match.end()
        return match[0].strip("`")

    def value(self) -> Any:
        self.skip()
        match self.text[self.at : self.at + 1]:
            case "'":
                return self._string()
            case "{":
                return self._map()
            case "(":
                return self._node()
            case "<":
                return self._path()
            case "[":
                return self._relationship() if self._opens_relationship() else self._list()
            case _:
                return self._scalar()

    def _opens_relationship(self) -> bool:
        return re.match(r"\[\s*:", self.text[self.at :]) is not None

    def _scalar(self) -> Any:
        for word, constant in _CONSTANTS.items():
            if self.accept(word):
                return constant
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            raise ValueError(f"value expected at {self.at} of {self.text!r}")
        self.at = match.end()
        if match[0] == "NaN":
            return math.nan
        if match[0].endswith("Inf"):
            return -math.inf if match[0][0] == "-" else math.inf
        return float(match[0]) if match[2] or match[3] or match[0].startswith(".") else int(match[0])

    def _string(self) -> str:
        self.at += 1
        found: list[str] = []
        while (character := self.text[self.at]) != "'":
            if character == "\\":
                self.at += 1
                character = _ESCAPES.get(self.text[self.at], self.text[self.at])
            found.append(character)
            self.at += 1
        self.at += 1
        return "".join(found)

    def _list(self) -> list[Any]:
        self.expect("[")
        found: list[Any] = []
        if self.accept("]"):
            return found
        while True:
            found.append(self.value())
            if self.accept("]"):
                return found
            self.expect(",")

    def _map(self) -> dict[str, Any]:
        self.expect("{")
        found: dict[str, Any] = {}
        if self.accept("}"):
            return found
        while True:
            key = self.name()
            self.expect(":")
            found[key] = self.value()
            if self.accept("}"):
                return found
            self.expect(",")

    def _optional_map(self) -> dict[str, Any]:
        self.skip()
        return self._map() if self.text.startswith("{", self.at) else {}

    def _node(self) -> ExpectedNode:
        self.expect("(")
        labels: list[str] = []
        while self.accept(":"):
            labels.append(self.name())
        properties = self._optional_map()
        self.expect(")")
        return ExpectedNode(frozenset(labels), properties)

    def _relationship(self) -> ExpectedRelationship:
        self.expect("[")
        self.expect(":")
        type_ = self.name()
        properties = self._optional_map()
        self.expect("]")
        return ExpectedRelationship(type_, properties)

    def _path(self) -> ExpectedPath:
        self.expect("<")
        start, steps = self._node(), list[tuple[bool, ExpectedRelationship, ExpectedNode]]()
        while not self.accept(">"):
            is_forward = not self.accept("<-")
            if is_forward:
                self.expect("-")
            relationship = self._relationship()
            self.expect("->" if is_forward else "-")
            steps.append((is_forward, relationship, self._node()))
        return ExpectedPath(start, tuple(steps))


def parse_answer_value(value: Any) -> Any:
    """Return a value of a JSON answer in the form of expected values."""
    if isinstance(value, list):
        return [parse_answer_value(each) for each in value]
    if not isinstance(value, dict):
        return {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(value, value)
    if "_label" in value:
        return _parse_element(value)
    if value.keys() == {"nodes", "relations"}:
        return _parse_path(value["nodes"], value["relations"])
    return {key: parse_answer_value(part) for key, part in value.items()}


def _parse_element(value: dict[str, Any]) -> ExpectedNode | ExpectedRelationship:
    attributes = value.get("attributes") or "{}"
    properties = json.loads(attributes) if isinstance(attributes, str) else attributes
    if "_from" not in value:
        labels = frozenset({value["type"]} - {"_"})
        return ExpectedNode(labels, {key: each for key, each in properties.items() if each is not None})
    own = {key: each for key, each in properties.items() if key not in {"created_at", "updated_at"}}
    return ExpectedRelationship(value["relation_type"], own)


def _parse_path(nodes: list[dict[str, Any]], relations: list[dict[str, Any]]) -> ExpectedPath:
    first, *others = [_parse_element(each) for each in nodes]
    steps = [
        (relation["_from"] == before["id"], _parse_element(relation), other)
        for before, relation, other in zip(nodes, relations, others, strict=False)
    ]
    return ExpectedPath(first, tuple(steps))  # pyright: ignore[reportArgumentType]


def is_same_value(left: Any, right: Any, *, ignores_order: bool = False) -> bool:
    """Return whether two values are the same: integers differ from floats, and NaN equals itself."""
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-12, abs_tol=0.0)
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return is_same_bag(left, right, ignores_order=ignores_order) if ignores_order else _is_same_list(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(
            is_same_value(part, right[key], ignores_order=ignores_order) for key, part in left.items()
        )
    if isinstance(left, msgspec.Struct):
        left, right = msgspec.structs.astuple(left), msgspec.structs.astuple(right)
    return _is_same_list([*left], [*right]) if isinstance(left, tuple) else bool(left == right)


def _is_same_list(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(map(is_same_value, left, right))


def is_same_bag(left: list[Any], right: list[Any], *, ignores_order: bool = False) -> bool:
    """Return whether two lists have the same values in any order."""
    rest = list(right)
    for value in left:
        at = next((i for i, each in enumerate(rest) if is_same_value(value, each, ignores_order=ignores_order)), None)
        if at is None:
            return False
        del rest[at]
    return not rest
