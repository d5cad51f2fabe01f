"""Interpreter of whole statements over a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cmp_to_key
from typing import Any

import msgspec

from tests.cypher.reference import tree as t
from tests.cypher.reference.arithmetic import is_integer
from tests.cypher.reference.expressions import Evaluator, aggregate, aggregates_of
from tests.cypher.reference.patterns import Bindings, Graph, Matcher
from tests.cypher.reference.text import expression as text_of
from tests.cypher.reference.updates import Updater
from tests.cypher.reference.values import Bag, CypherError, Zero, group_key, order_key

_Keys = list[Any]


class Answer(msgspec.Struct):
    """Columns and rows; `ranks` has a number per row, equal where ORDER BY leaves the order open."""

    columns: list[str]
    rows: list[list[Any]]
    ranks: list[int]


class Interpreter:
    """Runs statements on a graph."""

    def __init__(self, graph: Graph, parameters: Mapping[str, Any]) -> None:
        self._evaluator = Evaluator(parameters, self._find_matches)
        self._matcher = Matcher(graph, self._evaluator.evaluate)
        self._updater = Updater(graph, self._evaluator, self._matcher)

    def run(self, statement: t.Statement) -> Answer:
        """Run a statement. Raises CypherError if openCypher raises an error."""
        if isinstance(statement, t.Union):
            return self._union(statement)
        rows: list[Bindings] = [{}]
        ranks = [0]
        columns: list[str] = []
        for clause in statement.clauses:
            match clause:
                case t.Match():
                    rows = [found for row in rows for found in self._match(clause, row)]
                case t.Unwind():
                    rows = [found for row in rows for found in self._unwind(clause, row)]
                case t.Projection():
                    columns, rows, ranks = _Projection(self._evaluator, clause, rows).run()
                case _:
                    columns, rows = [], self._updater.run(clause, rows)
        self._updater.finish()
        if not isinstance(statement.clauses[-1], t.Projection):
            return Answer([], [], [])
        return Answer(columns, [[row[name] for name in columns] for row in rows], ranks)

    def _union(self, statement: t.Union) -> Answer:
        answers = [self.run(query) for query in statement.queries]
        if any(answer.columns != answers[0].columns for answer in answers):
            raise CypherError("the columns of a UNION have to be the same")
        rows = [row for answer in answers for row in answer.rows]
        if not statement.is_all:
            rows = list({group_key(row): row for row in reversed(rows)}.values())
        return Answer(answers[0].columns, rows, [0] * len(rows))

    def _match(self, clause: t.Match, row: Bindings) -> list[Bindings]:
        found = list(self._matcher.match(clause.patterns, row))
        if clause.where is not None:
            condition = clause.where
            found = [each for each in found if self._evaluator.truth(condition, each) is True]
        if found or not clause.is_optional:
            return found
        return [{**dict.fromkeys(_names(clause.patterns)), **row}]

    def _unwind(self, clause: t.Unwind, row: Bindings) -> list[Bindings]:
        values = self._evaluator.evaluate(clause.source, row)
        if values is None:
            return []
        return [{**row, clause.name: value} for value in (values if isinstance(values, list) else [values])]

    def _find_matches(
        self, pattern: t.PathPattern, where: t.Expression | None, row: Mapping[str, Any]
    ) -> list[Bindings]:
        found = self._matcher.match((pattern,), dict(row))
        return [each for each in found if where is None or self._evaluator.truth(where, each) is True]


def _names(patterns: tuple[t.PathPattern, ...]) -> list[str]:
    elements = [element for pattern in patterns for element in (*pattern.elements, pattern)]
    return [element.name for element in elements if element.name]


class _Projection:
    """Evaluation of one WITH or RETURN."""

    def __init__(self, evaluator: Evaluator, clause: t.Projection, rows: list[Bindings]) -> None:
        self._evaluator = evaluator
        self._clause = clause
        self._rows = rows
        starred = [t.Item(t.Variable(name), name) for name in (rows[0] if rows and clause.is_all else ())]
        self._items = [*starred, *clause.items]
        self._columns = [item.alias or text_of(item.expression) for item in self._items]
        inner = [
            part for item in self._items for part in aggregates_of(item.expression) if len(aggregates_of(part)) > 1
        ]
        if inner:
            raise CypherError("an aggregate within an aggregate")
        if len(set(self._columns)) < len(self._columns):
            raise CypherError("two columns have one name")

    def run(self) -> tuple[list[str], list[Bindings], list[int]]:
        """Return the columns, the rows and their ranks."""
        projected = self._grouped() if self._is_aggregating else self._plain()
        if self._clause.is_distinct:
            projected = list({self._key(row): (row, scope) for row, scope in reversed(projected)}.values())[::-1]
        ranks = [0] * len(projected)
        if self._clause.order:
            projected, ranks = self._ordered(projected)
        start, end = self._bounds()
        kept = [
            (row, rank)
            for (row, scope), rank in zip(projected[start:end], ranks[start:end], strict=True)
            if self._clause.where is None or self._evaluator.truth(self._clause.where, scope) is True
        ]
        return self._columns, [row for row, _rank in kept], [rank for _row, rank in kept]

    @property
    def _is_aggregating(self) -> bool:
        return any(aggregates_of(item.expression) for item in self._items)

    def _key(self, row: Bindings) -> Any:
        return tuple(group_key(row[name]) for name in self._columns)

    def _plain(self) -> list[tuple[Bindings, Bindings]]:
        """Return each row as projected, and the scope of its ORDER BY and WHERE."""
        found: list[tuple[Bindings, Bindings]] = []
        for row in self._rows:
            values = [self._evaluator.evaluate(item.expression, row) for item in self._items]
            now = dict(zip(self._columns, values, strict=True))
            found.append((now, now if self._clause.is_distinct else {**row, **now}))
        return found

    def _grouped(self) -> list[tuple[Bindings, Bindings]]:
        keys = [item for item in self._items if not aggregates_of(item.expression)]
        groups: dict[Any, list[Bindings]] = {} if keys else {(): []}
        for row in self._rows:
            key = tuple(group_key(self._evaluator.evaluate(item.expression, row)) for item in keys)
            groups.setdefault(key, []).append(row)
        found = [self._of_group(rows) for rows in groups.values()]
        return [(row, row) for row in found]

    def _of_group(self, rows: list[Bindings]) -> Bindings:
        first = rows[0] if rows else {}

        def resolve(part: t.Tree) -> t.Tree:
            if isinstance(part, t.Expression) and aggregates_of(part)[:1] == [part]:
                return t.ComputedValue(self._aggregated(part, rows))
            return part

        values = [self._evaluator.evaluate(t.transform(item.expression, resolve), first) for item in self._items]
        return dict(zip(self._columns, values, strict=True))

    def _aggregated(self, part: t.Expression, rows: list[Bindings]) -> Any:
        if not isinstance(part, t.Call):
            return len(rows)
        values = [self._evaluator.evaluate(part.arguments[0], row) for row in rows]
        some = [value for value in values if value is not None]
        if part.is_distinct:
            some = list({group_key(value): value for value in reversed(some)}.values())[::-1]
        return aggregate(part.name.lower(), some)

    def _ordered(self, projected: list[tuple[Bindings, Bindings]]) -> tuple[list[tuple[Bindings, Bindings]], list[int]]:
        order = self._clause.order
        keyed = [
            ([order_key(self._evaluator.evaluate(key.expression, scope)) for key in order], (row, scope))
            for row, scope in projected
        ]

        def compare(one: tuple[_Keys, Any], other: tuple[_Keys, Any]) -> int:
            for key, left, right in zip(order, one[0], other[0], strict=True):
                if left != right:
                    return (-1 if left < right else 1) * (-1 if key.is_descending else 1)
            return 0

        keyed.sort(key=cmp_to_key(compare))
        ranks = [0] * len(keyed)
        for at in range(1, len(keyed)):
            ranks[at] = ranks[at - 1] + (keyed[at][0] != keyed[at - 1][0])
        return [pair for _keys, pair in keyed], ranks

    def _bounds(self) -> tuple[int, int | None]:
        bounds = [
            None if each is None else self._evaluator.evaluate(each, {})
            for each in (self._clause.skip, self._clause.limit)
        ]
        if any(each is not None and (not is_integer(each) or each < 0) for each in bounds):
            raise CypherError("SKIP and LIMIT need integers of 0 or more")
        start, limit = bounds
        return start or 0, None if limit is None else (start or 0) + limit


def same(expected: Any, found: Any) -> bool:
    """Return whether an answer's value is as expected; unordered lists may differ in order."""
    if isinstance(expected, Bag) and isinstance(found, list):
        return _same_bag(list(expected), found)
    if isinstance(expected, list):
        is_like = isinstance(found, list) and len(found) == len(expected)
        return is_like and all(map(same, expected, found))
    if isinstance(expected, dict):
        is_like = isinstance(found, dict) and found.keys() == expected.keys()
        return is_like and all(same(expected[name], found[name]) for name in expected)
    return _same_scalar(expected, found)


def _same_scalar(expected: Any, found: Any) -> bool:
    if isinstance(expected, Zero):
        return not isinstance(found, bool) and found == 0
    if type(expected) is not type(found):
        return False
    if isinstance(expected, float):
        is_exact = expected == found or (math.isnan(expected) and math.isnan(found))
        return is_exact or math.isclose(expected, found, rel_tol=1e-12)
    return group_key(expected) == group_key(found)


def _same_bag(expected: list[Any], found: list[Any]) -> bool:
    rest = list(found)
    for value in expected:
        at = next((n for n, each in enumerate(rest) if same(value, each)), None)
        if at is None:
            return False
        del rest[at]
    return not rest


def same_rows(expected: Answer, rows: list[list[Any]]) -> bool:
    """Return whether rows match an answer, in an order that its ORDER BY allows."""
    if len(rows) != len(expected.rows):
        return False
    start = 0
    while start < len(rows):
        end = start
        while end < len(rows) and expected.ranks[end] == expected.ranks[start]:
            end += 1
        if not _same_bag(expected.rows[start:end], rows[start:end]):
            return False
        start = end
    return True
