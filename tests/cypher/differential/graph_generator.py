"""Generated statements of openCypher over a graph with labels, relationship types and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
from typing_extensions import override

from tests.cypher.differential.generator import LISTS, OPERATORS, Generator
from tests.cypher.differential.property_graph import (
    LABELS,
    NODE_COUNT,
    NODE_PROPERTIES,
    RELATIONSHIP_PROPERTIES,
    TYPES,
)
from tests.cypher.differential.samples import read_signatures
from tests.cypher.reference import tree as t

_SIGNATURES = read_signatures("""
i: abs i | sign i | sign f | size s | size l | toInteger s | toInteger f | toInteger i | coalesce ii | coalesce iii
i: nullIf ii | head I | last I | size S | size L | abs i | char_length s | size I | coalesce ii
f: abs f | ceil f | floor f | round f | sqrt f | sqrt i | exp f | log f | log10 f | sin f | cos f | tan f | asin f
f: atan f | atan2 ff | degrees f | radians f | pi | e | toFloat s | toFloat i | toFloat f | coalesce ff | ceil i
f: floor i | round i | nullIf fi
s: toLower s | toUpper s | trim s | lTrim s | rTrim s | reverse s | left si | right si | substring si | substring sii
s: replace sss | toString i | toString b | toString s | coalesce ss | nullIf ss | head S | last S
b: toBoolean s | toBoolean b | coalesce bb | isEmpty s | isEmpty l | nullIf bb
I: reverse I | tail I | range ii | range iii | coalesce II
S: reverse S | tail S | split ss | keys m
L: reverse L | tail L | coalesce LL
x: coalesce xx
F: reverse F | tail F
m: properties m | coalesce mm
""")
_LETTERS = "abcdefg"


class GraphGenerator(Generator):
    """Random generator of reading statements over the property graph."""

    signatures = known = _SIGNATURES
    operators: ClassVar[dict[str, tuple[str, ...]]] = {
        **OPERATORS,
        "s": ("+ ss", "+ ss"),
        "I": ("+ II", "+ Ii", "+ iI", "comprehended"),
    }

    @override
    def _shapes(self) -> tuple[tuple[int, Callable[[], t.Statement]], ...]:
        return (
            (8, self._constant),
            (6, self._unwound),
            (18, self._of_nodes),
            (14, self._of_edges),
            (12, self._of_paths),
            (10, self._of_clauses),
            (10, self._grouped),
            (8, self._ordered_nodes),
            (8, self._of_subpatterns),
            (5, self._of_walks),
            (4, self._joined_nodes),
            (3, self._united_nodes),
        )

    # Patterns.

    def _label(self) -> tuple[str, ...]:
        way = self._random.random()
        if way < 0.45:
            return ()
        return tuple(self._random.sample(LABELS, 1 if way < 0.9 else 2))

    def _property_node(self, name: str, share: float = 0.25) -> t.NodePattern:
        entries: tuple[tuple[str, t.Expression], ...] = ()
        if self._chance(share):
            column, kind = self._random.choice(NODE_PROPERTIES)
            entries = ((column, self._value_like(column, kind)),)
        labels = self._label()
        return t.NodePattern(name, labels, entries, len(labels) > 1)

    def _value_like(self, column: str, kind: str) -> t.Expression:
        """Return a value that a property may have, mostly one that occurs."""
        if column == "id":
            return t.Literal(f"n{self._random.randrange(NODE_COUNT)}")
        occurring: dict[str, tuple[Any, ...]] = {
            "status": ("open", "done"), "name": ("Ann", "Bob"), "age": (7, 1, 40.0), "score": (0.5, 2.5),
            "since": (1999, 2010), "strength": (0.5, 0.75), "note": ("a", "b"), "odd": (1, "one", True),
        }  # fmt: skip
        if column in occurring and self._chance(0.7):
            value = self._random.choice(occurring[column])
            return self._parameter(value) if self._chance(0.3) else t.Literal(value)
        return self._value("i" if kind == "o" else kind)

    def _step(self, name: str = "", *, is_variable: bool = False) -> t.RelationshipPattern:
        types = tuple(self._random.sample(TYPES, self._random.choice((0, 0, 1, 1, 1, 2))))
        entries: tuple[tuple[str, t.Expression], ...] = ()
        if self._chance(0.12):
            column, kind = self._random.choice(RELATIONSHIP_PROPERTIES)
            entries = ((column, self._value_like(column, kind)),)
        lengths = self._random.choice(((1, 2), (0, 1), (2, 2), (1, 3), (0, 2))) if is_variable else None
        return t.RelationshipPattern(name, self._direction(), types, entries, lengths)

    def _bind(self, *names: str, relationships: str = "") -> None:
        for name in names:
            self._scope += [(t.Property(t.Variable(name), column), kind) for column, kind in NODE_PROPERTIES]
            self._scope += [(t.Call("properties", (t.Variable(name),)), "m"), (self._test_of(name), "b")]
        for name in relationships:
            variable = t.Variable(name)
            self._scope += [(t.Property(variable, column), kind) for column, kind in RELATIONSHIP_PROPERTIES]
            self._scope += [(t.Call("type", (variable,)), "s"), (t.LabelTest(variable, (TYPES[0],)), "b")]

    def _test_of(self, name: str) -> t.Expression:
        return t.LabelTest(t.Variable(name), tuple(self._random.sample(LABELS, self._random.choice((1, 1, 2)))))

    def _where(self) -> t.Expression | None:
        way = self._random.random()
        if way < 0.35:
            return None
        if way < 0.75:
            return self._condition()
        if way < 0.85:
            return t.Binary(self._random.choice(("AND", "OR", "XOR")), self._condition(), self._condition())
        return self.expression("b", 1)

    @override
    def _condition(self) -> t.Expression:
        """Return a condition on a property, mostly with a value that occurs."""
        column, kind = self._random.choice(self._scope)
        if not isinstance(column, t.Property) or self._chance(0.2):
            return super()._condition()
        if self._chance(0.15):
            return t.NullTest(column, self._chance(0.5))
        if self._chance(0.15):
            values = tuple(self._value_like(column.name, kind) for _ in range(3))
            return t.Binary("IN", column, t.ListOf(values))
        operator = self._random.choice(("=", "=", "=", "<>", "<", "<=", ">", ">="))
        pair = [column, self._value_like(column.name, kind)]
        return t.Binary(operator, *(pair if self._chance(0.8) else pair[::-1]))

    # Results.

    def _of_element(self, name: str) -> t.Expression:
        """Return a function of a node."""
        variable = t.Variable(name)
        some = self._random.sample([each for each, _ in NODE_PROPERTIES], 2)
        return self._random.choice((
            t.Call("labels", (variable,)),
            t.Index(t.Call("labels", (variable,)), t.Literal(0)),
            t.Call("keys", (variable,)),
            t.Call("properties", (variable,)),
            t.Call("elementId", (variable,)),
            variable,
            t.Property(variable, some[0]),
            t.Index(variable, t.Literal(some[0])),
            t.MapProjection(name, ((some[0], None), (some[1], None))),
            t.MapProjection(name, (("*", None), ("own", self.expression("i", 1)))),
            t.MapProjection(name, ((some[0], None), ("l", t.Call("labels", (variable,))))),
            self._test_of(name),
            t.Call("size", (t.Call("keys", (variable,)),)),
        ))  # fmt: skip

    def _of_relationship(self, name: str) -> t.Expression:
        variable = t.Variable(name)
        column, _kind = self._random.choice(RELATIONSHIP_PROPERTIES)
        return self._random.choice((
            t.Call("type", (variable,)),
            t.Call("keys", (variable,)),
            t.Call("properties", (variable,)),
            variable,
            t.Property(variable, column),
            t.MapProjection(name, (("*", None),)),
            t.LabelTest(variable, tuple(self._random.sample(TYPES, 2))),
        ))  # fmt: skip

    def _results(self, nodes: list[str], relationships: list[str], count: int) -> list[t.Expression]:
        found: list[t.Expression] = []
        for _ in range(count):
            way = self._random.random()
            if way < 0.3:
                found.append(self.expression(self._random.choice("iiffssbbISm"), 2))
            elif way < 0.7 or not relationships:
                found.append(self._of_element(self._random.choice(nodes)))
            else:
                found.append(self._of_relationship(self._random.choice(relationships)))
        return found

    # Statements.

    @override
    def _of_nodes(self) -> t.Query:
        self._bind("n")
        match = t.Match((t.PathPattern((self._property_node("n"),)),), self._where(), self._chance(0.1))
        return t.Query((match, _return(self._results(["n"], [], 2), is_distinct=self._chance(0.15))))

    @override
    def _of_edges(self) -> t.Query:
        self._bind("a", "b", relationships="r")
        path = t.PathPattern((self._property_node("a"), self._step("r"), self._property_node("b")))
        match = t.Match((path,), self._where(), self._chance(0.15))
        return t.Query((match, _return(self._results(["a", "b"], ["r"], 2), is_distinct=self._chance(0.15))))

    def _path(self, names: list[str], relationships: list[str], steps: int) -> t.PathPattern:
        """Return a path; add the names that it binds to the lists."""
        elements: list[Any] = [self._property_node(self._random.choice(names) if names else "a")]
        for each in elements:
            names += [each.name] if each.name not in names else []
        for _ in range(steps):
            is_variable = self._chance(0.25)
            name = "" if is_variable or self._chance(0.3) else f"r{len(relationships)}"
            relationships += [name] if name else []
            end = self._random.choice((_LETTERS[len(names)], _LETTERS[len(names)], "", *names))
            elements += [self._step(name, is_variable=is_variable), self._property_node(end, 0.1)]
            names += [end] if end and end not in names else []
        return t.PathPattern(tuple(elements))

    def _of_paths(self) -> t.Query:
        names, relationships = list[str](), list[str]()
        patterns = [self._path(names, relationships, self._random.choice((1, 2, 2, 3)))]
        if self._chance(0.3):
            patterns.append(self._path(names, relationships, 1))
        self._bind(*names)
        match = t.Match(tuple(patterns), self._where(), self._chance(0.15))
        shown: list[t.Expression] = [t.Property(t.Variable(each), "id") for each in names]
        shown += [t.Call("type", (t.Variable(each),)) for each in relationships]
        if self._chance(0.4):
            shown = [t.CountRows()]
        return t.Query((match, _return(shown)))

    def _of_clauses(self) -> t.Query:
        """Return several MATCH, UNWIND and WITH clauses that share variables."""
        names, relationships = list[str](), list[str]()
        clauses: list[t.Clause] = [t.Match((self._path(names, relationships, self._random.choice((0, 1))),))]
        self._bind(*names)
        for _ in range(self._random.choice((1, 1, 2))):
            way = self._random.random()
            if way < 0.55:
                more, new = [*names], [*relationships]
                path = self._path(more, new, 1)
                self._bind(*more[len(names) :])
                clauses.append(t.Match((path,), self._where(), self._chance(0.55)))
                names, relationships = more, new
            elif way < 0.75:
                kept = tuple(t.Item(t.Variable(each), each) for each in names)
                clauses.append(t.Projection("WITH", kept, self._chance(0.3), where=self._where()))
                relationships = []
            else:
                clauses.append(self._unwind(f"x{len(clauses)}"))
        shown: list[t.Expression] = [t.Property(t.Variable(each), "id") for each in names]
        shown += [t.Call("type", (t.Variable(each),)) for each in relationships]
        return t.Query((*clauses, _return([*shown, *self._results(names, relationships, 1)])))

    def _grouped(self) -> t.Query:
        names, relationships = list[str](), list[str]()
        match = t.Match((self._path(names, relationships, self._random.choice((0, 1, 1))),))
        self._bind(*names)
        if self._chance(0.5):
            match = msgspec.structs.replace(match, where=self._where())
        keys = [self._group_key(names[0])] if self._chance(0.7) else []
        sums = [self._calculated_aggregate() for _ in range(self._random.choice((1, 1, 2)))]
        items = tuple(t.Item(each, f"c{at}") for at, each in enumerate([*keys, *sums]))
        if self._chance(0.6):
            return t.Query((match, t.Projection("RETURN", items)))
        outer: list[t.Expression] = [t.Variable(item.alias) for item in items]
        condition = t.Binary(self._random.choice((">", "<>", "<=")), t.Variable(items[-1].alias), t.Literal(1))
        return t.Query((match, t.Projection("WITH", items, where=condition), _return(outer)))

    def _group_key(self, name: str) -> t.Expression:
        variable = t.Variable(name)
        return self._random.choice((
            t.Call("labels", (variable,)),
            t.Property(variable, "status"),
            t.Property(variable, "active"),
            variable,
            t.Binary("%", t.Property(variable, "age"), t.Literal(2)),
            t.LabelTest(variable, LABELS[:2]),
        ))  # fmt: skip

    @override
    def _aggregate(self) -> t.Expression:
        if self._chance(0.1):
            return t.CountRows()
        name = self._random.choice(("count", "count", "sum", "avg", "min", "max", "collect"))
        kinds = {"sum": "if", "avg": "if", "count": "ifsbSmo"}.get(name, "ifsb")
        return t.Call(name, (self._from_scope(self._random.choice(kinds)) or t.Literal(1),), self._chance(0.3))

    def _ordered_nodes(self) -> t.Query:
        self._bind("n")
        match = t.Match((t.PathPattern((self._property_node("n", 0.05),)),), self._where())
        variable = t.Variable("n")
        columns = [*self._random.sample(["status", "age", "score", "name", "active", "numbers", "words"], 2), "id"]
        items = tuple(t.Item(t.Property(variable, each), each) for each in columns)
        keys = [t.Variable(each) if self._chance(0.5) else t.Property(variable, each) for each in columns]
        order = tuple(t.Order(key, self._chance(0.4)) for key in keys)
        limit = self._count() if self._chance(0.6) else None
        skip = self._count() if self._chance(0.3) else None
        if self._chance(0.5):
            return t.Query((match, t.Projection("RETURN", items, order=order, skip=skip, limit=limit)))
        kept = (t.Item(variable, "n"),)
        order = tuple(t.Order(t.Property(variable, each), self._chance(0.4)) for each in columns)
        inner = t.Projection("WITH", kept, order=order, skip=skip, limit=limit, where=self._maybe(self._condition))
        path = t.PathPattern((t.NodePattern("n"), self._step("r"), t.NodePattern("m")))
        last = t.Match((path,), None, is_optional=True)
        shown: list[t.Expression] = [t.Property(variable, "id"), t.Call("type", (t.Variable("r"),))]
        return t.Query((match, inner, last, _return(shown)))

    def _of_subpatterns(self) -> t.Query:
        """Return pattern comprehensions, counts and conditions from a node."""
        self._bind("n")
        match = t.Match((t.PathPattern((self._property_node("n"),)),))
        elements = [t.NodePattern("n"), self._step("", is_variable=self._chance(0.2)), self._property_node("")]
        path = t.PathPattern(tuple(elements if self._chance(0.8) else elements[::-1]))
        ending = t.PathPattern((t.NodePattern("n"), self._step("q"), self._property_node("m")))
        before = [*self._scope]
        self._bind("m", relationships="q")
        where, result = self._where(), self.expression(self._random.choice("ifsb"), 1)
        self._scope = before
        listed = t.PatternComprehension(ending, where, result)
        count = t.PatternCount("COUNT", ending, where)
        exists = t.PatternCount(self._random.choice(("EXISTS", "EXISTS", "pattern")), path)
        values: list[t.Expression] = [
            listed, t.Call("size", (listed,)), count, t.PatternCount("size", path), exists,
            t.PatternCount("EXISTS", ending, where), t.Unary("NOT", exists),
            t.Comprehension("e", listed, t.NullTest(t.Variable("e"), is_negated=True), None),
            t.Case(None, ((exists, t.Literal("yes")),), t.Property(t.Variable("n"), "id")),
        ]  # fmt: skip
        if self._chance(0.4):
            condition = self._random.choice((exists, t.Binary(">", count, t.Literal(1)), t.Unary("NOT", exists)))
            if self._chance(0.3):
                condition = t.Binary(self._random.choice(("AND", "OR")), condition, self._condition())
            match = msgspec.structs.replace(match, where=condition)
        values = [each for each in values if not isinstance(each, t.PatternCount) or each.form != "pattern"]
        return t.Query((match, _return([t.Property(t.Variable("n"), "id"), self._random.choice(values)])))

    def _of_walks(self) -> t.Query:
        """Return functions of a named path."""
        step = self._step("", is_variable=self._chance(0.6))
        elements = (self._property_node("a", 0.5), step, self._property_node("b"))
        path = t.PathPattern(elements, "p")
        variable, each = t.Variable("p"), t.Variable("e")
        nodes, relationships = t.Call("nodes", (variable,)), t.Call("relationships", (variable,))
        items: list[t.Expression] = [
            t.Call("length", (variable,)),
            nodes,
            relationships,
            variable,
            t.NullTest(variable, self._chance(0.5)),
            t.Comprehension("e", nodes, None, t.Property(each, self._random.choice(NODE_PROPERTIES)[0])),
            t.Comprehension("e", nodes, t.LabelTest(each, (LABELS[0],)), t.Property(each, "id")),
            t.Comprehension("e", relationships, None, t.Call("type", (each,))),
            t.Quantifier(
                self._random.choice(("all", "any", "none", "single")), "e", nodes,
                t.Binary(">", t.Property(each, "age"), t.Literal(1)),
            ),
            t.Reduce("s", t.Literal(0), "e", nodes, t.Binary("+", t.Variable("s"), t.Property(each, "age"))),
            t.Index(t.Comprehension("e", nodes, None, t.Property(each, "id")), t.Literal(-1)),
            t.Call("head", (nodes,)),
        ]  # fmt: skip
        where = t.Binary(">", t.Call("length", (variable,)), t.Literal(1)) if self._chance(0.3) else None
        return t.Query((t.Match((path,), where, self._chance(0.2)), _return(self._random.sample(items, 2))))

    def _joined_nodes(self) -> t.Query:
        """Return a match of nodes by values of other nodes, or of a list."""
        column, kind = self._random.choice(NODE_PROPERTIES)
        source: t.Clause = self._unwind("x")
        other: t.Expression = t.Variable("x")
        if self._chance(0.6):
            fitting = [name for name, its in NODE_PROPERTIES if its == kind]
            other = t.Property(t.Variable("m"), self._random.choice(fitting))
            source = t.Match((t.PathPattern((self._property_node("m"),)),))
        its = t.Property(t.Variable("n"), column)
        is_entry = self._chance(0.4)
        labels = self._label()
        node = t.NodePattern("n", labels, ((column, other),) if is_entry else (), len(labels) > 1)
        where = None if is_entry else t.Binary("=", *self._random.sample((its, other), 2))
        match = t.Match((t.PathPattern((node,)),), where, self._chance(0.3))
        shown: list[t.Expression] = [t.CountRows(), t.Call("count", (t.Variable("n"),))]
        shown = shown if self._chance(0.3) else [other, t.Property(t.Variable("n"), "id")]
        return t.Query((source, match, _return(shown)))

    def _united_nodes(self) -> t.Union:
        queries: list[t.Query] = []
        for _ in range(2):
            self._scope = []
            self._bind("n")
            match = t.Match((t.PathPattern((self._property_node("n"),)),), self._where())
            queries.append(t.Query((match, _return([self._of_element("n")]))))
        return t.Union(tuple(queries), self._chance(0.5))

    # Values.

    @override
    def _literal(self, kind: str) -> t.Expression:
        return super()._literal({"t": "s", "o": "i"}.get(kind, kind))

    @override
    def _plain(self, kind: str) -> Any:
        return super()._plain({"t": "s", "o": "i"}.get(kind, kind))

    @override
    def _comprehended(self, depth: int) -> t.Expression:
        """Return a list comprehension, whose parts may also use variables of the row."""
        kind = self._random.choice("IS")
        source = self.expression(kind, depth)
        before, self._scope = self._scope, [(t.Variable("e"), LISTS[kind]), *self._scope]
        condition = self._comparison(0) if self._chance(0.5) else None
        result = self.expression(LISTS[kind], 1) if self._chance(0.6) else None
        self._scope = before
        return t.Comprehension("e", source, condition, result)


def _return(values: list[t.Expression], *, is_distinct: bool = False) -> t.Projection:
    return t.Projection("RETURN", tuple(t.Item(each, f"c{at}") for at, each in enumerate(values)), is_distinct)
