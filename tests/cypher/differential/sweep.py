"""Statements that apply each operator and function to values of each type.

Includes comparisons of every column with a literal of every type in the WHERE of a MATCH.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from tests.cypher.differential.generator import GeneratedStatement
from tests.cypher.differential.samples import COLUMNS_OF_EDGES, COLUMNS_OF_NODES, SIGNATURES
from tests.cypher.reference import tree as t
from tests.cypher.reference.values import Timestamp

_MAX = (1 << 63) - 1


def _list(*values: Any) -> t.Expression:
    return t.ListOf(tuple(each if isinstance(each, t.Expression) else t.Literal(each) for each in values))


_TRUE = t.Literal(value=True)
VALUES: tuple[t.Expression, ...] = (
    _TRUE, t.Literal(value=False), *map(t.Literal, (None, 0, 1, -3, _MAX, -_MAX - 1, 0.0, 1.0, 0.5, -2.5, 1e308)),
    t.Binary("/", t.Literal(0.0), t.Literal(0.0)),
    t.Binary("/", t.Literal(-1.0), t.Literal(0.0)),
    *map(t.Literal, ("", "1", "a", "Abc", "1.0", "true", "ß😀", "a\\b\n", "  x ")),
    _list(), _list(1, 2, 3), _list(None), _list(1, None), _list(1.0, 2.5), _list("a", "b"), _list("a", 1, _TRUE),
    _list(_list(1), _list(2, None)), t.MapOf(()), t.MapOf((("a", t.Literal(1)),)), t.MapOf((("a", t.Literal(None)),)),
    t.Literal(Timestamp(1_709_209_800_000_000)),
)  # fmt: skip
OPERATORS = (
    "=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "^", "AND", "OR", "XOR", "IN", "STARTS WITH", "ENDS WITH",
    "CONTAINS", "=~",
)  # fmt: skip
_KINDS: dict[str, tuple[t.Expression, ...]] = {
    "i": tuple(map(t.Literal, (None, 0, 1, -3, 7, _MAX))),
    "f": tuple(map(t.Literal, (None, 0.0, 2.5, -0.5))),
    "s": tuple(map(t.Literal, (None, "", "Abc", "é1", " b "))),
    "b": tuple(map(t.Literal, (None, True, False))),
    "t": (t.Literal(Timestamp(1_709_209_800_000_000)), t.Literal(None)),
    "I": (_list(), _list(1, 2, 3), _list(1, None, 1), t.Literal(None)),
    "F": (_list(), _list(1.5, 2.0), _list(None, 0.5)),
    "S": (_list(), _list("b", "a"), _list("a", None)),
    "L": (_list(1, "a"), _list(), _list(None, 1)),
    "m": (t.MapOf(()), t.MapOf((("a", t.Literal(1)), ("B", t.Literal("x")))), t.Literal(None)),
}
_KINDS["l"] = _KINDS["I"] + _KINDS["S"]
_KINDS["x"] = tuple(values[1] for values in _KINDS.values())
_KINDS["n"] = _KINDS["i"] + _KINDS["f"]


def swept() -> Iterator[GeneratedStatement]:
    """Yield all statements."""
    for expression in (*_operated(), *_called(), *_looked_up()):
        yield GeneratedStatement(t.Query((t.Projection("RETURN", (t.Item(expression, "c"),)),)), {})
    yield from compared_columns()
    yield from _of_rows()


def _operated() -> Iterator[t.Expression]:
    for operator, left, right in product(OPERATORS, VALUES, VALUES):
        yield t.Binary(operator, left, right)
    for value in VALUES:
        yield t.Unary("-", value)
        yield t.Unary("NOT", value)
        yield t.NullTest(value)
        yield t.Case(
            value, ((t.Literal(1), t.Literal("one")), (t.Literal(None), t.Literal("none"))), t.Literal("other")
        )
        yield t.Case(None, ((value, t.Literal(1)),), t.Literal(0))


def _called() -> Iterator[t.Expression]:
    for kinds in SIGNATURES.values():
        for form in kinds:
            name, _, arguments = form.partition(" ")
            for values in product(*(_KINDS[each] for each in arguments)):
                yield t.Call(name, values)
            if len(arguments) == 1:
                yield from (t.Call(name, (value,)) for value in VALUES)


def _looked_up() -> Iterator[t.Expression]:
    indexes = tuple(map(t.Literal, (0, 1, -1, 3, -4, None, "a", 1.0, True)))
    for value, index in product(VALUES, indexes):
        yield t.Index(value, index)
    bounds = (None, *map(t.Literal, (0, 1, -1, 9, -9, None)))
    for value, start, end in product((_list(), _list(1, 2, 3), t.Literal("abc"), t.Literal(None)), bounds, bounds):
        if start is not None or end is not None:
            yield t.Slice(value, start, end)
    for value in VALUES:
        yield t.Property(value, "a")


def compared_columns() -> Iterator[GeneratedStatement]:
    """Yield comparisons of every column with every type in the WHERE of a MATCH, in both directions."""
    columns = [("n", name) for name, _kind in COLUMNS_OF_NODES] + [("r", name) for name, _kind in COLUMNS_OF_EDGES]
    counted = t.Projection("RETURN", (t.Item(t.CountRows(), "c"),))
    for (owner, name), operator, value in product(columns, ("=", "<>", "<", ">="), VALUES):
        column = t.Property(t.Variable(owner), name)
        node = t.NodePattern("n", ("Entity",))
        step = (t.RelationshipPattern("r", "->"), t.NodePattern("m"))
        path = t.PathPattern((node, *(step if owner == "r" else ())))
        for pair in ((column, value), (value, column)):
            where = t.Binary(operator, *pair)
            yield GeneratedStatement(t.Query((t.Match((path,), where), counted)), {})


def _of_rows() -> Iterator[GeneratedStatement]:
    """Yield each operator over rows, where the engine cannot fold constants."""
    for operator, left, right in product(OPERATORS, VALUES, VALUES):
        if isinstance(left, (t.ListOf, t.MapOf)) and isinstance(right, (t.ListOf, t.MapOf)):
            continue
        rows = (t.Unwind(_list(left, left), "x"), t.Unwind(_list(right), "y"))
        item = t.Item(t.Binary(operator, t.Variable("x"), t.Variable("y")), "c")
        yield GeneratedStatement(t.Query((*rows, t.Projection("RETURN", (item,)))), {})
