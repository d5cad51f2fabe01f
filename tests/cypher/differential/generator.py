"""Statements made by chance, as trees, with the parameters that they name; the same ones for the same seed.

A letter stands for a kind of value: `i` integer, `f` float, `n` either, `s` text, `b` boolean, `t` timestamp, `I`, `F`,
`S` and `B` lists of these, `N` a list of lists of integers, `L` a list of anything, `l` any list, `m` a map, `x`
anything.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tests.cypher.differential.samples import (
    COLUMNS_OF_EDGES,
    COLUMNS_OF_NODES,
    FLOATS,
    INTEGERS,
    KNOWN,
    SIGNATURES,
    TEXTS,
    TIMESTAMPS,
    written_text,
)
from tests.cypher.reference import tree as t
from tests.cypher.reference.text import render

SCALARS = "ifsbt"
LISTS = {"I": "i", "F": "f", "S": "s", "B": "b", "N": "I", "L": "x"}
KINDS = "iiiffsssbbtISNLm"
NULL_SHARE, ODD_SHARE, PARAMETER_SHARE, CALM_SHARE = 0.1, 0.07, 0.12, 0.6
"""A calm statement has no null and nothing of the wrong type where it is written, and names known functions alone."""


_BUILDERS = {
    "compare": "_comparison",
    "null test": "_null_test",
    "in": "_membership",
    "quantified": "_quantified",
    "comprehended": "_comprehended",
    "transformed": "_transformed",
    "negated": "_negated",
}
OPERATORS: dict[str, tuple[str, ...]] = {
    "i": ("+ ii", "- ii", "* ii", "/ ii", "% ii", "negated"),
    "f": ("+ ff", "- fi", "* if", "/ ff", "/ if", "% ff", "% fi", "^ ii", "^ fi", "^ ff", "negated"),
    "s": ("+ ss", "+ ss", "+ si"),
    "b": (
        "compare", "compare", "compare", "compare", "AND bb", "OR bb", "XOR bb", "NOT b", "in", "in", "null test",
        "STARTS WITH ss", "ENDS WITH ss", "CONTAINS ss", "CONTAINS sx", "quantified",
    ),
    "I": ("+ II", "+ Ii", "+ iI", "comprehended", "transformed"),
    "S": ("+ SS", "+ Ss", "+ sS"),
    "L": ("+ LL", "+ Lx", "comprehended"),
}  # fmt: skip


class GeneratedStatement(msgspec.Struct, frozen=True):
    """Statement with its parameters."""

    statement: t.Statement
    parameters: dict[str, Any]


class Generator:
    """Random generator of statements, deterministic for a seed."""

    signatures, known = SIGNATURES, KNOWN
    operators = OPERATORS

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._parameters: dict[str, Any] = {}
        self._is_calm = False
        self._scope: list[tuple[t.Expression, str]] = []

    def make(self) -> GeneratedStatement:
        """Return the next statement."""
        self._parameters, self._scope = {}, []
        self._is_calm = self._chance(CALM_SHARE)
        weights, makers = zip(*self._shapes(), strict=True)
        [maker] = self._random.choices(makers, weights)
        statement = maker()
        named = set(re.findall(r"\$(\w+)", render(statement)))  # expressions with others may have been thrown away
        return GeneratedStatement(statement, {name: self._parameters[name] for name in named & self._parameters.keys()})

    def _shapes(self) -> tuple[tuple[int, Callable[[], t.Statement]], ...]:
        """Return the makers of statements with their weights."""
        return (
            (30, self._constant),
            (22, self._unwound),
            (14, self._of_nodes),
            (10, self._of_edges),
            (8, self._aggregated),
            (6, self._ordered),
            (4, self._united),
            (6, self._patterned),
            (4, self._chained),
            (3, self._of_path),
            (4, self._joined),
            (3, self._counted),
        )

    def text_of_node(self, name: str) -> tuple[t.Expression, dict[str, Any]]:
        """Return a text expression for a node property, mostly a literal, and its parameters."""
        self._parameters, self._scope, self._is_calm = {}, [], self._chance(CALM_SHARE)
        self._bind_node(name)
        return self._value("s") if self._chance(0.6) else self.expression("s", 2), self._parameters

    # Statements.

    def _constant(self) -> t.Query:
        items = self._items(self._random.choice((1, 1, 1, 2)))
        if self._chance(0.15):
            name = "v"
            kind = self._random.choice(KINDS)
            bound = t.Projection("WITH", (t.Item(self.expression(kind, 1), name),))
            self._scope = [(t.Variable(name), kind)]
            return t.Query((bound, t.Projection("RETURN", self._items(1))))
        return t.Query((t.Projection("RETURN", items),))

    def _unwound(self) -> t.Query:
        clauses: list[t.Clause] = [self._unwind("x")]
        if self._chance(0.3):
            passed = tuple(t.Item(each) for each, _kind in self._scope)
            clauses.append(t.Projection("WITH", passed, where=self.expression("b", 2)))
        return t.Query((*clauses, t.Projection("RETURN", self._items(1), is_distinct=self._chance(0.12))))

    def _unwind(self, name: str) -> t.Unwind:
        kind = self._random.choice("ifsbtiiffssISx")
        values = tuple(
            self._element(self._random.choice("ifsb") if kind == "x" else kind)
            for _ in range(self._random.randrange(1, 6))
        )
        self._scope.append((t.Variable(name), kind))
        way = self._random.random()
        if way < 0.1 and kind in "ifsb":
            return t.Unwind(self._parameter([self._plain(kind) for _ in values]), name)
        if way < 0.13:
            return t.Unwind(self._value(self._random.choice("ISl")), name)
        return t.Unwind(t.ListOf(values), name)

    def _element(self, kind: str, nulls: float = 0.2) -> t.Expression:
        return t.Literal(None) if self._chance(nulls) and not self._is_calm else self._literal(kind)

    def _of_nodes(self) -> t.Query:
        self._bind_node("n")
        match = t.Match((t.PathPattern((self._node("n"),)),), self._maybe(self._condition))
        return t.Query((match, t.Projection("RETURN", self._items(1), is_distinct=self._chance(0.15))))

    def _of_edges(self) -> t.Query:
        for name in "ab":
            self._bind_node(name)
        self._bind_edge("r")
        step = t.RelationshipPattern("r", self._direction(), self._random.choice((("RELATES_TO",), ())))
        path = t.PathPattern((self._node("a"), step, self._node("b")))
        match = t.Match((path,), self._maybe(self._condition), is_optional=self._chance(0.2))
        return t.Query((match, t.Projection("RETURN", self._items(1), is_distinct=self._chance(0.15))))

    def _aggregated(self) -> t.Query:
        source: t.Clause
        if self._chance(0.6):
            source = self._unwind("x")
            if self._chance(0.1):
                source = t.Unwind(t.ListOf(()), "x")
        else:
            self._bind_node("n")
            source = t.Match((t.PathPattern((self._node("n"),)),), self._maybe(self._condition))
        keys = [self.expression(self._random.choice("isbf"), 1)] if self._chance(0.4) else []
        sums = [self._calculated_aggregate() for _ in range(self._random.choice((1, 1, 2)))]
        named = tuple(t.Item(each, f"c{n}") for n, each in enumerate([*keys, *sums]))
        if self._chance(0.7):
            return t.Query((source, t.Projection("RETURN", named)))
        self._scope = [(t.Variable(item.alias), "i") for item in named]
        having = t.Projection("WITH", named, where=self._comparison(0))
        outer = tuple(t.Item(t.Variable(item.alias), item.alias) for item in named)
        return t.Query((source, having, t.Projection("RETURN", outer)))

    def _calculated_aggregate(self) -> t.Expression:
        """Return an aggregate, sometimes within an expression."""
        found = self._aggregate()
        way = self._random.random()
        if way < 0.1:
            return t.Binary(self._random.choice(("+", "*", "-")), found, self._literal(self._random.choice("if")))
        if way < 0.15:
            return t.Call("size", (t.Call("collect", (self._from_scope("x") or t.Literal(1),)),))
        if way < 0.2:
            return t.Binary(self._random.choice(("=", ">", "<>")), found, self._value("i"))
        return t.NullTest(found) if way < 0.22 else found

    def _aggregate(self) -> t.Expression:
        name = self._random.choice(("count", "count", "sum", "avg", "min", "max", "collect", "*"))
        if name == "*":
            return t.CountRows()
        kind = self._random.choice("if" if name in {"sum", "avg"} else "ifsbtS" if name != "count" else "ifsbtISx")
        return t.Call(name, (self._from_scope(kind) or self.expression(kind, 1),), self._chance(0.3))

    def _ordered(self) -> t.Query:
        source: t.Clause = self._unwind("x")
        if self._chance(0.4):
            self._scope = []
            self._bind_node("n")
            source = t.Match((t.PathPattern((self._node("n"),)),))
        names = ["c0", "c1"][: self._random.choice((1, 2))]
        if self._chance(0.2) and isinstance(source, t.Unwind):
            names[0] = "x"
        items = tuple(t.Item(self.expression(self._random.choice("ifsb"), 1), name) for name in names)
        distinct = self._chance(0.2)
        order = tuple(t.Order(t.Variable(name), self._chance(0.4)) for name in names)
        if self._chance(0.2) and not distinct:
            order = (t.Order(self._from_scope("x") or t.Variable(names[0]), self._chance(0.3)), *order)
        limit = self._count() if self._chance(0.5) else None
        skip = self._count() if self._chance(0.3) else None
        if self._chance(0.3):
            inner = t.Projection("WITH", items, distinct, order=order, skip=skip, limit=limit)
            self._scope = [(t.Variable(name), "x") for name in names]
            outer = tuple(t.Item(t.Variable(name), name) for name in names)
            return t.Query((source, inner, t.Projection("RETURN", outer)))
        return t.Query((source, t.Projection("RETURN", items, distinct, order=order, skip=skip, limit=limit)))

    def _count(self) -> t.Expression:
        value = self._random.choice((0, 1, 2, 3, 10))
        return self._parameter(value) if self._chance(0.2) else t.Literal(value)

    def _united(self) -> t.Union:
        kind, queries = self._random.choice("ifsbtSx"), list[t.Query]()
        for _ in range(self._random.choice((2, 2, 3))):
            self._scope = []
            source: tuple[t.Clause, ...] = (self._unwind("x"),) if self._chance(0.4) else ()
            name = "d" if self._chance(0.05) else "c"
            queries.append(t.Query((*source, t.Projection("RETURN", (t.Item(self.expression(kind, 1), name),)))))
        return t.Union(tuple(queries), self._chance(0.5))

    def _patterned(self) -> t.Query:
        elements: list[Any] = [t.NodePattern("a", ("Entity",), self._some_id())]
        names = ["a"]
        edges: list[str] = []
        for number in range(self._random.choice((1, 2, 2, 3))):
            end = self._random.choice((f"b{number}", f"b{number}", "", *names))
            edges += [f"r{number}"]
            lengths = self._random.choice((None, None, None, (1, 2), (1, 3), (0, 1), (2, 2)))
            types = self._random.choice(((), ("RELATES_TO",)))
            elements += [
                t.RelationshipPattern(f"r{number}" if lengths is None else "", self._direction(), types, (), lengths),
                t.NodePattern(end, self._random.choice(((), ("Entity",)))),
            ]
            if lengths is not None:
                edges.pop()
            names += [end] if end and end not in names else []
        name = "p" if self._chance(0.25) else ""
        patterns = [t.PathPattern(tuple(elements), name)]
        if self._chance(0.25):
            other = t.RelationshipPattern("q", self._direction())
            patterns.append(t.PathPattern((t.NodePattern(names[-1]), other, t.NodePattern("z"))))
            names.append("z")
        where = self._maybe(lambda: self._pattern_condition(names, edges))
        optional = self._chance(0.15)
        items: list[t.Expression] = [t.Property(t.Variable(each), "id") for each in names]
        items += [t.Property(t.Variable(each), self._random.choice(("relation_type", "weight"))) for each in edges]
        if name:
            items.append(t.Call("length", (t.Variable(name),)))
            items.append(t.NullTest(t.Variable(name)))
        if self._chance(0.4):
            items = [t.CountRows()]
        returned = tuple(t.Item(each, f"c{n}") for n, each in enumerate(items))
        return t.Query((t.Match(tuple(patterns), where, optional), t.Projection("RETURN", returned)))

    def _chained(self) -> t.Query:
        """Return several MATCH and WITH clauses that reuse earlier variables."""
        start = t.Match((t.PathPattern((t.NodePattern("a", ("Entity",), self._some_id()),)),))
        step = t.RelationshipPattern("r", self._direction())
        again = self._random.choice(("r", "s", "s"))
        further = t.RelationshipPattern(again, self._direction())
        end = self._random.choice(("b", "c", "a"))
        first = t.Match((t.PathPattern((t.NodePattern("a"), step, t.NodePattern("b"))),), None, self._chance(0.5))
        second = t.Match((t.PathPattern((t.NodePattern("b"), further, t.NodePattern(end))),), None, self._chance(0.5))
        shown = [t.Property(t.Variable("a"), "id"), t.Property(t.Variable("b"), "id")]
        if self._chance(0.6):
            items: list[t.Expression] = [*shown, t.Property(t.Variable(again), "relation_type")]
            if self._chance(0.4):
                items = [t.CountRows(), t.Call("count", (t.Variable(again),))]
            return t.Query((start, first, second, _returned(items)))
        self._scope = [(t.Property(t.Variable("b"), "version"), "i"), (t.Property(t.Variable("r"), "weight"), "f")]
        names = tuple(t.Item(t.Variable(each)) for each in ("a", "b"))
        passed = names if self._chance(0.5) else (*names, t.Item(t.Variable("r")))
        condition = t.NullTest(t.Variable("r"), self._chance(0.5)) if self._chance(0.5) else self._comparison(0)
        kept = t.Projection("WITH", passed, self._chance(0.2), where=condition)
        return t.Query((start, first, kept, _returned(shown)))

    def _joined(self) -> t.Query:
        """Return a match of nodes by a value of another node, a relationship or a list."""
        column, kind = self._random.choice(COLUMNS_OF_NODES)
        source: t.Clause = self._unwind("x")
        [(other, _kind)] = self._scope
        if self._chance(0.6):
            fitting = [name for name, its in COLUMNS_OF_NODES if its == kind]
            other = t.Property(t.Variable("m"), self._random.choice(fitting))
            source = t.Match((t.PathPattern((t.NodePattern("m"),)),))
        its = t.Property(t.Variable("n"), column)
        is_entry = self._chance(0.4)
        node = t.NodePattern("n", (), ((column, other),) if is_entry else ())
        where = None if is_entry else t.Binary("=", *self._random.sample((its, other), 2))
        match = t.Match((t.PathPattern((node,)),), where, self._chance(0.3))
        shown: list[t.Expression] = [t.CountRows(), t.Call("count", (t.Variable("n"),))]
        return t.Query((source, match, _returned(shown if self._chance(0.5) else [t.Property(t.Variable("n"), "id")])))

    def _counted(self) -> t.Query:
        """Return a pattern count from a node that is not used otherwise."""
        ends = [t.NodePattern("a"), t.RelationshipPattern("", self._direction()), t.NodePattern("")]
        count = t.PatternCount("COUNT", t.PathPattern(tuple(ends if self._chance(0.5) else ends[::-1])))
        match = t.Match((t.PathPattern((t.NodePattern("a"),)),))
        condition = t.Binary(self._random.choice(("=", "<", ">")), count, t.Literal(self._random.randrange(3)))
        if self._chance(0.5):
            return t.Query((msgspec.structs.replace(match, where=condition), _returned([t.CountRows()])))
        return t.Query((match, _returned([self._random.choice((count, condition))])))

    def _of_path(self) -> t.Query:
        """Return functions of a path, matched or not."""
        lengths = self._random.choice((None, (1, 2), (0, 2)))
        step = t.RelationshipPattern("", self._direction(), ("RELATES_TO",), (), lengths)
        path = t.PathPattern((t.NodePattern("a", ("Entity",), self._some_id()), step, t.NodePattern("b")), "p")
        variable = t.Variable("p")
        items: list[t.Expression] = [
            t.Call("length", (variable,)),
            t.NullTest(variable, self._chance(0.5)),
            t.Call("size", (t.Call("nodes", (variable,)),)),
            t.Call("nodes", (variable,)),
            t.Call("relationships", (variable,)),
            t.Call("coalesce", (t.Call("length", (variable,)), t.Literal(-1))),
            variable,
            t.Call("labels", (t.Variable("b"),)),
            t.Property(t.Variable("b"), "id"),
        ]
        chosen = self._random.sample(items, self._random.choice((1, 2)))
        return t.Query((t.Match((path,), None, self._chance(0.4)), _returned(chosen)))

    def _pattern_condition(self, names: list[str], edges: list[str]) -> t.Expression:
        self._scope = [(t.Property(t.Variable(each), "type"), "s") for each in names]
        self._scope += [(t.Property(t.Variable(each), "weight"), "f") for each in edges]
        if self._chance(0.3):
            step = t.RelationshipPattern("", self._direction())
            path = t.PathPattern((t.NodePattern(names[0]), step, t.NodePattern("")))
            return self._random.choice((
                t.PatternCount("EXISTS", path),
                t.Binary(">", t.PatternCount("COUNT", path), t.Literal(1)),
            ))  # fmt: skip
        return self.expression("b", 1)

    def _some_id(self) -> tuple[tuple[str, t.Expression], ...]:
        return (("id", t.Literal(f"n{self._random.randrange(12)}")),) if self._chance(0.5) else ()

    def _node(self, name: str) -> t.NodePattern:
        entries: tuple[tuple[str, t.Expression], ...] = ()
        if self._chance(0.15):
            column, kind = self._random.choice(COLUMNS_OF_NODES)
            if kind in SCALARS:
                entries = ((column, self._value(self._random.choice((kind, kind, "n" if kind in "if" else kind)))),)
        return t.NodePattern(name, ("Entity",), entries)

    def _bind_node(self, name: str) -> None:
        self._scope += [(t.Property(t.Variable(name), column), kind) for column, kind in COLUMNS_OF_NODES]

    def _bind_edge(self, name: str) -> None:
        self._scope += [(t.Property(t.Variable(name), column), kind) for column, kind in COLUMNS_OF_EDGES]

    def _direction(self) -> Any:
        return self._random.choice(("->", "<-", "-", "->"))

    def _items(self, count: int) -> tuple[t.Item, ...]:
        kinds = [self._random.choice(KINDS) for _ in range(count)]
        return tuple(t.Item(self.expression(kind, 2), f"c{n}") for n, kind in enumerate(kinds))

    # Expressions.

    def _condition(self) -> t.Expression:
        """Return a condition on a column, mostly a comparison with a value of any type."""
        if self._chance(0.3):
            return self.expression("b", 2)
        column, kind = self._random.choice(self._scope)
        other = kind if self._chance(0.6) else self._random.choice("ifsbt")
        operator = self._random.choice(("=", "<>", "<", "<=", ">", ">="))
        value = self._value(other)
        pair = (column, value) if self._chance(0.7) else (value, column)
        compared: t.Expression = t.Binary(operator, *pair)
        if self._chance(0.15):
            compared = t.Unary("NOT", compared)
        return (
            t.Binary(self._random.choice(("AND", "OR")), compared, self.expression("b", 1))
            if self._chance(0.2)
            else compared
        )

    def expression(self, kind: str, depth: int) -> t.Expression:
        """Return an expression of a kind; sometimes of another kind, or null."""
        if self._chance(ODD_SHARE) and not self._is_calm:
            kind = self._random.choice(KINDS)
        if kind == "x":
            kind = self._random.choice(KINDS)
        if kind == "n":
            kind = self._random.choice("if")
        if kind == "l":
            kind = self._random.choice("ISNLF")
        if depth <= 0 or self._chance(0.15):
            return (self._from_scope(kind) if self._chance(0.7) else None) or self._value(kind)
        forms = [*(self.known if self._is_calm else self.signatures).get(kind, ()), "CASE", "[]"]
        operators = self.operators.get(kind, ())
        form = self._random.choice(operators) if operators and self._chance(0.5) else self._random.choice(forms)
        return self._formed(form, kind, depth - 1)

    def _formed(self, form: str, kind: str, depth: int) -> t.Expression:
        if form == "CASE":
            return self._case(kind, depth)
        if form == "[]":
            return self._part(kind, depth)
        if form in _BUILDERS:
            return getattr(self, _BUILDERS[form])(depth)
        name, _, arguments = form.partition(" ")
        if arguments and not name[0].isalnum():
            left, right = (self.expression(each, depth) for each in arguments)
            return t.Binary(name, left, right)
        if name in {"STARTS", "ENDS"} or name.isupper():
            return self._worded(form, depth)
        return t.Call(name, tuple(self.expression(each, depth) for each in arguments.replace(" ", "")))

    def _worded(self, form: str, depth: int) -> t.Expression:
        *words, arguments = form.split(" ")
        operator = " ".join(words)
        values = [self.expression(each, depth) for each in arguments]
        if operator == "NOT":
            return t.Unary("NOT", values[0])
        return t.Binary(operator, values[0], values[1])

    def _comparison(self, depth: int) -> t.Expression:
        kind = self._random.choice("iifffsssbtISNLmn")
        other = kind if self._chance(0.75) else self._random.choice("ifsbtISL")
        operator = self._random.choice(("=", "=", "<>", "<", "<=", ">", ">="))
        if self._chance(0.06):
            rest = tuple(
                (self._random.choice(("<", "<=", "=", "<>", ">")), self.expression(kind, depth)) for _ in range(2)
            )
            return t.Chain(self.expression(kind, depth), rest)
        return t.Binary(operator, self.expression(kind, depth), self.expression(other, depth))

    def _null_test(self, depth: int) -> t.Expression:
        return t.NullTest(self.expression("x", depth), self._chance(0.5))

    def _membership(self, depth: int) -> t.Expression:
        kind = self._random.choice("ifsbILx")
        lists = {"i": "I", "f": "F", "s": "S", "b": "B", "I": "N"}
        return t.Binary("IN", self.expression(kind, depth), self.expression(lists.get(kind, "L"), depth))

    def _quantified(self, depth: int) -> t.Expression:
        kind = self._random.choice("IS")
        source = self.expression(kind, depth)
        before, self._scope = self._scope, [(t.Variable("e"), LISTS[kind]), *self._scope]
        condition = self._comparison(0)
        self._scope = before
        return t.Quantifier(self._random.choice(("all", "any", "none", "single")), "e", source, condition)

    def _comprehended(self, depth: int) -> t.Expression:
        kind = self._random.choice("IS")
        source = self.expression(kind, depth)
        before = self._scope
        self._scope = [(t.Variable("e"), LISTS[kind])]
        condition = self._comparison(0) if self._chance(0.5) else None
        result = self.expression(LISTS[kind], 1) if self._chance(0.6) else None
        self._scope = before
        return t.Comprehension("e", source, condition, result)

    def _transformed(self, depth: int) -> t.Expression:
        kind = self._random.choice("ISF")
        source = self.expression(kind, depth)
        before = self._scope
        self._scope = [(t.Variable("e"), LISTS[kind])]
        is_filter = self._chance(0.5)
        body = self.expression("b" if is_filter else LISTS[kind], 1)
        self._scope = before
        return t.Call("list_filter" if is_filter else "list_transform", (source, t.Lambda("e", body)))

    def _case(self, kind: str, depth: int) -> t.Expression:
        subject_kind = self._random.choice("isfbx")
        subject = self.expression(subject_kind, depth) if self._chance(0.5) else None
        branches = tuple(
            (self.expression("b" if subject is None else subject_kind, depth), self.expression(kind, depth))
            for _ in range(self._random.choice((1, 1, 2)))
        )
        return t.Case(subject, branches, self.expression(kind, depth) if self._chance(0.7) else None)

    def _part(self, kind: str, depth: int) -> t.Expression:
        """Return an element of a list or map of the given kind."""
        containers = {element: container for container, element in LISTS.items()}
        if kind in containers and self._chance(0.7):
            index = (
                t.Literal(self._random.choice((0, 1, 2, -1, -2, 5, -9)))
                if self._chance(0.8)
                else self.expression("i", 0)
            )
            return t.Index(self.expression(containers[kind], depth), index)
        if kind in LISTS and self._chance(0.8):
            ends = (
                self._maybe(lambda: self.expression("i", 0)),
                self._maybe(lambda: t.Literal(self._random.randrange(-3, 5))),
            )
            return t.Slice(self.expression(kind, depth), *ends)
        mapped = t.MapOf((("a", self.expression(kind, depth)), ("b", self.expression("x", 0))))
        key = self._random.choice(("a", "a", "b", "A"))
        return t.Property(mapped, key) if self._chance(0.6) else t.Index(mapped, t.Literal(key))

    def _negated(self, depth: int) -> t.Expression:
        return t.Unary("-", self.expression(self._random.choice("if"), depth))

    # Values.

    def _value(self, kind: str) -> t.Expression:
        if self._chance(NULL_SHARE) and not self._is_calm:
            return self._parameter(None) if self._chance(0.2) else t.Literal(None)
        if kind == "n":
            kind = self._random.choice("if")
        if self._chance(PARAMETER_SHARE) and kind != "t":
            return self._parameter(self._plain(kind))
        return self._literal(kind)

    def _literal(self, kind: str) -> t.Expression:  # noqa: PLR0911 - one line for each kind
        choice = self._random
        match kind:
            case "s":
                value = choice.choice(TEXTS)
                return t.Literal(value, written_text(value, choice))
            case "f":
                text, value = choice.choice(FLOATS)
                return t.Literal(value, text)
            case "t":
                text, value = choice.choice(TIMESTAMPS)
                return t.Literal(value, f"timestamp('{text}')")
            case "m":
                names = choice.sample(("a", "b", "A", "key one"), choice.randrange(3))
                return t.MapOf(tuple((name, self._value(choice.choice("isfb"))) for name in names))
            case _ if kind in LISTS:
                return self._list_literal(kind)
            case "b":
                return t.Literal(choice.random() < 0.5)
            case _:
                return t.Literal(choice.choice(INTEGERS))

    def _list_literal(self, kind: str) -> t.Expression:
        count = self._random.choice((0, 1, 2, 3))
        if kind == "N":
            return t.ListOf(tuple(self._list_literal("I") for _ in range(count)))
        elements = [LISTS[kind] if kind != "L" else self._random.choice("ifsbI") for _ in range(count)]
        return t.ListOf(
            tuple(
                t.Literal(None) if self._chance(0.12) and not self._is_calm else self._literal(each)
                for each in elements
            )
        )

    def _plain(self, kind: str) -> Any:
        """Return a value for a parameter."""
        match kind:
            case "s":
                return self._random.choice(TEXTS)
            case "f":
                return self._random.choice([value for _text, value in FLOATS])
            case "b":
                return self._random.random() < 0.5
            case "m":
                return {"a": self._plain(self._random.choice("is")), "b": None if not self._is_calm else 1}
            case _ if kind in LISTS:
                elements = [
                    LISTS[kind] if kind != "L" else self._random.choice("ifsb")
                    for _ in range(self._random.randrange(4))
                ]
                return [None if self._chance(0.15) and not self._is_calm else self._plain(each) for each in elements]
            case _:
                return self._random.choice(INTEGERS)

    def _parameter(self, value: Any) -> t.Expression:
        name = f"p{len(self._parameters)}"
        self._parameters[name] = value
        return t.Parameter(name)

    def _from_scope(self, kind: str) -> t.Expression | None:
        fitting = [each for each, its in self._scope if kind in {its, "x"} or its == "x"]
        return self._random.choice(fitting) if fitting else None

    def _maybe(self, make: Callable[[], Any]) -> Any:
        return make() if self._chance(0.65) else None

    def _chance(self, share: float) -> bool:
        return self._random.random() < share


def _returned(items: Sequence[t.Expression]) -> t.Projection:
    return t.Projection("RETURN", tuple(t.Item(each, f"c{n}") for n, each in enumerate(items)))
