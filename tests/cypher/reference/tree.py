"""Syntax trees of statements: expressions, patterns and clauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from typing import Literal as OneOf

import msgspec


class Tree(msgspec.Struct, frozen=True):
    """Part of a statement."""


class Expression(Tree, frozen=True):
    """Part with a value for each row."""


class Literal(Expression, frozen=True):
    """Value; `text` is its spelling if it is not the usual one."""

    value: Any
    text: str = ""


class ComputedValue(Expression, frozen=True):
    """Value computed already, such as an aggregate of a group; it is never rendered."""

    value: Any


class Parameter(Expression, frozen=True):
    """Value sent with the statement."""

    name: str


class Variable(Expression, frozen=True):
    """Name bound in the row."""

    name: str


class Property(Expression, frozen=True):
    """A property of a node, a relationship or a map."""

    subject: Expression
    name: str


class Unary(Expression, frozen=True):
    """`-`, `+` or NOT before an operand."""

    operator: str
    operand: Expression


class Binary(Expression, frozen=True):
    """An operator between two operands."""

    operator: str
    left: Expression
    right: Expression


class Chain(Expression, frozen=True):
    """Comparisons in a row: `1 < x <= 3`."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]


class NullTest(Expression, frozen=True):
    """IS NULL, or IS NOT NULL."""

    operand: Expression
    is_negated: bool = False


class ListOf(Expression, frozen=True):
    """A list literal."""

    items: tuple[Expression, ...]


class MapOf(Expression, frozen=True):
    """A map literal."""

    entries: tuple[tuple[str, Expression], ...]


class Index(Expression, frozen=True):
    """An element of a list, or of a map by its key."""

    subject: Expression
    index: Expression


class Slice(Expression, frozen=True):
    """A part of a list."""

    subject: Expression
    start: Expression | None
    end: Expression | None


class Case(Expression, frozen=True):
    """CASE, simple when it has a subject, else searched."""

    subject: Expression | None
    branches: tuple[tuple[Expression, Expression], ...]
    default: Expression | None


class Call(Expression, frozen=True):
    """A function or an aggregate with its arguments."""

    name: str
    arguments: tuple[Expression, ...]
    is_distinct: bool = False


class CountRows(Expression, frozen=True):
    """`count(*)`."""


class Cast(Expression, frozen=True):
    """`CAST(x AS TYPE)`, which the engines have and openCypher does not."""

    operand: Expression
    type: str


class Lambda(Expression, frozen=True):
    """`x -> body`, as the engines' functions of lists take it."""

    name: str
    body: Expression


class Comprehension(Expression, frozen=True):
    """`[x IN source WHERE condition | result]`."""

    name: str
    source: Expression
    condition: Expression | None
    result: Expression | None


class Quantifier(Expression, frozen=True):
    """ALL, ANY, NONE or SINGLE `(x IN source WHERE condition)`."""

    kind: str
    name: str
    source: Expression
    condition: Expression


class NodePattern(Tree, frozen=True):
    """A node of a pattern; it has all labels, or any of them if `is_any`."""

    name: str = ""
    labels: tuple[str, ...] = ()
    entries: tuple[tuple[str, Expression], ...] = ()
    is_any: bool = False


class RelationshipPattern(Tree, frozen=True):
    """A relationship of a pattern; `lengths` are bounds when it is of variable length, None for an open end."""

    name: str = ""
    direction: OneOf["->", "<-", "-"] = "-"
    types: tuple[str, ...] = ()
    entries: tuple[tuple[str, Expression], ...] = ()
    lengths: tuple[int | None, int | None] | None = None


class PathPattern(Tree, frozen=True):
    """Nodes and relationships in turn, beginning and ending with a node."""

    elements: tuple[NodePattern | RelationshipPattern, ...]
    name: str = ""


class PatternCount(Expression, frozen=True):
    """Number of matches of a pattern from the row; for `EXISTS { … }` or a condition, whether it matches."""

    form: OneOf["size", "COUNT", "EXISTS", "pattern"]
    pattern: PathPattern
    where: Expression | None = None


class PatternComprehension(Expression, frozen=True):
    """`[pattern WHERE condition | result]`."""

    pattern: PathPattern
    where: Expression | None
    result: Expression


class LabelTest(Expression, frozen=True):
    """`subject:A` or `subject:A|B`: a label of a node, or the type of a relationship."""

    subject: Expression
    labels: tuple[str, ...]


class MapProjection(Expression, frozen=True):
    """`name {.key, .*, key: value}`; an entry without a value is a property, or all of them for `*`."""

    name: str
    entries: tuple[tuple[str, Expression | None], ...]


class Reduce(Expression, frozen=True):
    """`reduce(total = initial, name IN source | body)`."""

    total: str
    initial: Expression
    name: str
    source: Expression
    body: Expression


class Clause(Tree, frozen=True):
    """Part of a query that transforms rows."""


class Match(Clause, frozen=True):
    """MATCH or OPTIONAL MATCH."""

    patterns: tuple[PathPattern, ...]
    where: Expression | None = None
    is_optional: bool = False


class Unwind(Clause, frozen=True):
    """One row for each element of a list."""

    source: Expression
    name: str


class Item(Tree, frozen=True):
    """Column of a projection; its default name is its text."""

    expression: Expression
    alias: str = ""


class Order(Tree, frozen=True):
    """A key of ORDER BY."""

    expression: Expression
    is_descending: bool = False


class Projection(Clause, frozen=True):
    """WITH or RETURN; `is_all` represents `*`."""

    keyword: OneOf["WITH", "RETURN"]
    items: tuple[Item, ...]
    is_distinct: bool = False
    is_all: bool = False
    order: tuple[Order, ...] = ()
    skip: Expression | None = None
    limit: Expression | None = None
    where: Expression | None = None


class Assignment(Tree, frozen=True):
    """`variable.property = value`."""

    target: Property
    value: Expression


class MapAssignment(Tree, frozen=True):
    """`variable = map`, or `variable += map` if `keeps_others`."""

    name: str
    value: Expression
    keeps_others: bool


class LabelChange(Tree, frozen=True):
    """`variable:Label`, to set or to remove."""

    name: str
    label: str


Change = Assignment | MapAssignment | LabelChange


class SetProperties(Clause, frozen=True):
    """SET."""

    assignments: tuple[Change, ...]


class Remove(Clause, frozen=True):
    """REMOVE."""

    targets: tuple[Property | LabelChange, ...]


class Create(Clause, frozen=True):
    """CREATE."""

    patterns: tuple[PathPattern, ...]


class Merge(Clause, frozen=True):
    """MERGE."""

    pattern: PathPattern
    on_create: tuple[Change, ...] = ()
    on_match: tuple[Change, ...] = ()


class Delete(Clause, frozen=True):
    """DELETE, or DETACH DELETE if `is_detaching`."""

    names: tuple[str, ...]
    is_detaching: bool = False


class Query(Tree, frozen=True):
    """Clauses in sequence."""

    clauses: tuple[Clause, ...]


class Union(Tree, frozen=True):
    """Queries whose rows are combined, without duplicates unless `is_all`."""

    queries: tuple[Query, ...]
    is_all: bool = False


Statement = Query | Union


def parts(value: Any) -> Iterator[Tree]:
    """Yield a tree and all its parts, outermost first."""
    if isinstance(value, Tree):
        yield value
        for field in value.__struct_fields__:
            yield from parts(getattr(value, field))
    elif isinstance(value, tuple):
        for each in value:
            yield from parts(each)


def transform(value: Any, change: Callable[[Tree], Tree]) -> Any:
    """Return a copy with `change` applied to each part, innermost first."""
    if isinstance(value, tuple):
        return tuple(transform(each, change) for each in value)
    if not isinstance(value, Tree):
        return value
    fields = {field: transform(getattr(value, field), change) for field in value.__struct_fields__}
    return change(type(value)(**fields))
