"""Evaluation of expressions for a row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tests.cypher.reference import tree as t
from tests.cypher.reference.arithmetic import as_integer, calculate, is_integer, negate
from tests.cypher.reference.functions import as_text, call
from tests.cypher.reference.values import (
    Bag,
    CypherError,
    Node,
    Relationship,
    Timestamp,
    Truth,
    TruthTypeError,
    UnmodelledFeature,
    Zero,
    compare,
    conjunction,
    contains,
    disjunction,
    equals,
    exclusive,
    is_number,
    order_key,
    type_name,
)
from tests.cypher.reference.values import negate as _negate_truth

Row = Mapping[str, Any]
_LOGIC: dict[str, Callable[[Truth, Truth], Truth]] = {"AND": conjunction, "OR": disjunction, "XOR": exclusive}
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "STARTS WITH": str.startswith,
    "ENDS WITH": str.endswith,
    "CONTAINS": str.__contains__,
}
COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})


class MatchFinder(Protocol):
    """Callable that finds the matches of a pattern for a row."""

    def __call__(self, pattern: t.PathPattern, where: t.Expression | None, row: Row) -> list[dict[str, Any]]:
        """Return the row extended by each match."""
        ...


class Evaluator:
    """Evaluates expressions with the parameters of a statement."""

    def __init__(self, parameters: Mapping[str, Any], find_matches: MatchFinder) -> None:
        self._parameters = parameters
        self._find_matches = find_matches
        self._by_kind: dict[type[t.Expression], Callable[[Any, Row], Any]] = {
            t.Literal: self._literal,
            t.ComputedValue: self._known,
            t.Parameter: self._parameter,
            t.Variable: self._variable,
            t.Property: self._property,
            t.Unary: self._unary,
            t.Binary: self._binary,
            t.Chain: self._chain,
            t.NullTest: self._null_test,
            t.ListOf: self._list_of,
            t.MapOf: self._map_of,
            t.Index: self._index,
            t.Slice: self._slice,
            t.Case: self._case,
            t.Call: self._call,
            t.Cast: self._cast,
            t.Comprehension: self._comprehension,
            t.Quantifier: self._quantifier,
            t.PatternCount: self._pattern_count,
            t.PatternComprehension: self._pattern_comprehension,
            t.LabelTest: self._label_test,
            t.MapProjection: self._map_projection,
            t.Reduce: self._reduce,
        }

    def evaluate(self, expression: t.Expression, row: Row) -> Any:
        """Return the value. Raises CypherError if openCypher raises an error."""
        if type(expression) not in self._by_kind:
            raise CypherError(f"{type(expression).__name__} is not allowed here")
        return self._by_kind[type(expression)](expression, row)

    def truth(self, expression: t.Expression, row: Row) -> Truth:
        """Return the value of a condition. Raises CypherError unless it is a truth value."""
        return _truth(self.evaluate(expression, row))

    def _literal(self, expression: t.Literal, _row: Row) -> Any:
        value = expression.value
        if isinstance(value, float) and math.isinf(value):
            raise CypherError("the number is too large for a float")
        return as_integer(value) if is_integer(value) else value

    def _known(self, expression: t.ComputedValue, _row: Row) -> Any:
        return expression.value

    def _parameter(self, expression: t.Parameter, _row: Row) -> Any:
        return self._parameters[expression.name]

    def _variable(self, expression: t.Variable, row: Row) -> Any:
        if expression.name not in row:
            raise CypherError(f"variable {expression.name} is not defined")
        return row[expression.name]

    def _property(self, expression: t.Property, row: Row) -> Any:
        subject = self.evaluate(expression.subject, row)
        match subject:
            case None:
                return None
            case dict():
                return subject.get(expression.name)
            case Node() | Relationship():
                return subject.properties.get(expression.name)
            case _:
                raise CypherError(f"{type_name(subject)} has no properties")

    def _unary(self, expression: t.Unary, row: Row) -> Any:
        value = self.evaluate(expression.operand, row)
        if expression.operator == "NOT":
            return _negate_truth(_truth(value))
        return negate(value) if expression.operator == "-" else negate(negate(value))

    def _binary(self, expression: t.Binary, row: Row) -> Any:
        operator = expression.operator
        if operator in {"AND", "OR"}:
            return self._decided(expression, row)
        left, right = self.evaluate(expression.left, row), self.evaluate(expression.right, row)
        if operator in _LOGIC:
            return _LOGIC[operator](_truth(left), _truth(right))
        if operator in COMPARISONS:
            return compare(operator, left, right)
        if operator == "IN":
            return contains(right, left)
        if operator in _TEXT_TESTS:
            are_texts = isinstance(left, str) and isinstance(right, str)
            return _TEXT_TESTS[operator](left, right) if are_texts else None
        return _matches(left, right) if operator == "=~" else calculate(operator, left, right)

    def _decided(self, expression: t.Binary, row: Row) -> Truth:
        """Evaluate AND or OR; an operand that decides the result hides an error of the other one."""
        sides: list[Truth] = []
        failure: CypherError | None = None
        for side in (expression.left, expression.right):
            try:
                sides.append(self.truth(side, row))
            except TruthTypeError:
                raise
            except CypherError as error:
                failure = error
        if (expression.operator == "OR") in sides:
            return expression.operator == "OR"
        if failure is not None:
            raise failure
        return _LOGIC[expression.operator](*sides)

    def _chain(self, expression: t.Chain, row: Row) -> Truth:
        left, found = self.evaluate(expression.first, row), True
        for operator, part in expression.rest:
            right = self.evaluate(part, row)
            found, left = conjunction(found, compare(operator, left, right)), right
        return found

    def _null_test(self, expression: t.NullTest, row: Row) -> bool:
        return (self.evaluate(expression.operand, row) is None) != expression.is_negated

    def _list_of(self, expression: t.ListOf, row: Row) -> list[Any]:
        return [self.evaluate(each, row) for each in expression.items]

    def _map_of(self, expression: t.MapOf, row: Row) -> dict[str, Any]:
        return {name: self.evaluate(value, row) for name, value in expression.entries}

    def _index(self, expression: t.Index, row: Row) -> Any:
        subject, index = self.evaluate(expression.subject, row), self.evaluate(expression.index, row)
        if isinstance(subject, Bag) and len(subject) > 1:
            raise UnmodelledFeature("the order of a list is open")
        if subject is None or index is None:
            return None
        if isinstance(subject, list) and is_integer(index):
            return subject[index] if -len(subject) <= index < len(subject) else None
        if isinstance(subject, dict) and isinstance(index, str):
            return subject.get(index)
        if isinstance(subject, (Node, Relationship)) and isinstance(index, str):
            return subject.properties.get(index)
        raise CypherError(f"{type_name(subject)} has no element {type_name(index)}")

    def _slice(self, expression: t.Slice, row: Row) -> Any:
        subject = self.evaluate(expression.subject, row)
        ends = [None if end is None else self.evaluate(end, row) for end in (expression.start, expression.end)]
        given = [value for value, end in zip(ends, (expression.start, expression.end), strict=True) if end is not None]
        if subject is None or any(each is None for each in given):
            return None
        if isinstance(subject, Bag) and len(subject) > 1:
            raise UnmodelledFeature("the order of a list is open")
        if not isinstance(subject, list) or not all(map(is_integer, given)):
            raise CypherError(f"a slice of {type_name(subject)}")
        return subject[slice(*ends)]

    def _case(self, expression: t.Case, row: Row) -> Any:
        subject = None if expression.subject is None else self.evaluate(expression.subject, row)
        for when, then in expression.branches:
            holds = self.truth(when, row) if expression.subject is None else equals(subject, self.evaluate(when, row))
            if holds is True:
                return self.evaluate(then, row)
        return None if expression.default is None else self.evaluate(expression.default, row)

    def _call(self, expression: t.Call, row: Row) -> Any:
        name, arguments = expression.name.lower(), expression.arguments
        if name == "coalesce":
            return next((value for each in arguments if (value := self.evaluate(each, row)) is not None), None)
        if len(arguments) == 2 and isinstance(arguments[1], t.Lambda):
            return self._of_elements(name, arguments[0], arguments[1], row)
        return call(name, [self.evaluate(each, row) for each in arguments])

    def _of_elements(self, name: str, source: t.Expression, function: t.Lambda, row: Row) -> Any:
        values = self._elements(source, row)
        if values is None:
            return None
        results = [self.evaluate(function.body, {**row, function.name: value}) for value in values]
        kept = [value for value, holds in zip(values, results, strict=True) if name != "list_filter" or _truth(holds)]
        found = results if name == "list_transform" else kept
        return Bag(found) if isinstance(values, Bag) else found

    def _elements(self, source: t.Expression, row: Row) -> list[Any] | None:
        values = self.evaluate(source, row)
        if values is not None and not isinstance(values, list):
            raise CypherError(f"a list is needed, not {type_name(values)}")
        return values

    def _comprehension(self, expression: t.Comprehension, row: Row) -> Any:
        values = self._elements(expression.source, row)
        if values is None:
            return None
        rows = [{**row, expression.name: value} for value in values]
        if expression.condition is not None:
            condition = expression.condition
            rows = [each for each in rows if self.truth(condition, each) is True]
        result = expression.result or t.Variable(expression.name)
        found = [self.evaluate(result, each) for each in rows]
        return Bag(found) if isinstance(values, Bag) else found

    def _quantifier(self, expression: t.Quantifier, row: Row) -> Truth:
        values = self._elements(expression.source, row)
        if values is None:
            return None
        found = [self.truth(expression.condition, {**row, expression.name: value}) for value in values]
        match expression.kind.upper():
            case "ALL":
                return False if False in found else None if None in found else True
            case "ANY":
                return True if True in found else None if None in found else False
            case "NONE":
                return False if True in found else None if None in found else True
            case _:
                return False if found.count(True) > 1 else None if None in found else found.count(True) == 1

    def _cast(self, expression: t.Cast, row: Row) -> Any:
        value = self.evaluate(expression.operand, row)
        if value is None:
            return None
        match expression.type:
            case "STRING":
                return as_text(value) if not isinstance(value, Timestamp) else str(value)
            case _:
                return call({"INT64": "toInteger", "DOUBLE": "toFloat", "BOOL": "toBoolean"}[expression.type], [value])

    def _pattern_count(self, expression: t.PatternCount, row: Row) -> Any:
        count = len(self._find_matches(expression.pattern, expression.where, row))
        return count > 0 if expression.form in {"EXISTS", "pattern"} else count

    def _pattern_comprehension(self, expression: t.PatternComprehension, row: Row) -> Any:
        found = self._find_matches(expression.pattern, expression.where, row)
        return Bag([self.evaluate(expression.result, each) for each in found])

    def _label_test(self, expression: t.LabelTest, row: Row) -> Truth:
        match self.evaluate(expression.subject, row):
            case None:
                return None
            case Node() as node:
                return node.properties["type"] in expression.labels
            case Relationship() as relationship:
                return relationship.properties["relation_type"] in expression.labels
            case other:
                raise CypherError(f"{type_name(other)} has no label")

    def _map_projection(self, expression: t.MapProjection, row: Row) -> Any:
        subject = self.evaluate(t.Variable(expression.name), row)
        if subject is None:
            return None
        if not isinstance(subject, (Node, Relationship, dict)):
            raise CypherError(f"{type_name(subject)} has no properties")
        found: dict[str, Any] = {}
        for key, value in expression.entries:
            if value is not None:
                found[key] = self.evaluate(value, row)
            elif key == "*":
                found |= subject if isinstance(subject, dict) else subject.own
            else:
                found[key] = self.evaluate(t.Property(t.Variable(expression.name), key), row)
        return found

    def _reduce(self, expression: t.Reduce, row: Row) -> Any:
        values, total = self._elements(expression.source, row), self.evaluate(expression.initial, row)
        if values is None:
            return None
        if isinstance(values, Bag) and len(values) > 1:
            raise UnmodelledFeature("the order of a list is open")
        for value in values:
            total = self.evaluate(expression.body, {**row, expression.total: total, expression.name: value})
        return total


def _truth(value: Any) -> Truth:
    if value is not None and not isinstance(value, bool):
        raise TruthTypeError(f"a truth value is needed, not {type_name(value)}")
    return value


def _matches(text: Any, pattern: Any) -> Truth:
    if not isinstance(text, str) or not isinstance(pattern, str):
        return None
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error as error:
        raise CypherError(f"{pattern!r}: {error}") from None


AGGREGATES = frozenset({"count", "sum", "avg", "min", "max", "collect"})


def aggregates_of(expression: t.Expression) -> list[t.Expression]:
    """Return the aggregates within an expression."""
    return [
        part
        for part in t.parts(expression)
        if isinstance(part, t.CountRows) or (isinstance(part, t.Call) and part.name.lower() in AGGREGATES)
    ]


def aggregate(name: str, values: list[Any]) -> Any:
    """Return an aggregate of the non-null values of a group, in row order."""
    match name:
        case "count":
            return len(values)
        case "collect":
            return Bag(values)
        case "min":
            return min(values, key=order_key, default=None)
        case "max":
            return max(values, key=order_key, default=None)
        case _:
            pass
    if not all(map(is_number, values)):
        raise CypherError(f"{name} needs numbers")
    total: Any = 0.0 if name == "avg" else 0
    for value in values:
        total = calculate("+", total, value)
    if name == "sum":
        return total if values else Zero(0)
    return calculate("/", float(total), float(len(values))) if values else None
