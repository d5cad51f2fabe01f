"""Syntax tree of a Cypher statement. Every node says which tokens it was read from: ``start`` to before ``end``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal as OneOf
from typing import TypeAlias, cast

import msgspec


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Token indexes of a part of a statement."""

    start: int
    end: int


LiteralKind: TypeAlias = OneOf["boolean", "integer", "float", "text", "null"]


class Literal(Span, frozen=True, kw_only=True):
    """A number, text, truth value or null. A text's ``value`` has its escapes decoded."""

    kind: LiteralKind
    value: bool | int | float | str | None


class Parameter(Span, frozen=True, kw_only=True):
    """``$name``."""

    name: str


class Variable(Span, frozen=True, kw_only=True):
    """A name that a clause binds, as it was typed but without back-ticks."""

    name: str


class Property(Span, frozen=True, kw_only=True):
    """``.name`` after an expression; ``*`` for all of them."""

    name: str


class Subscript(Span, frozen=True, kw_only=True):
    """``[index]`` after an expression."""

    index: Expression


class Slice(Span, frozen=True, kw_only=True):
    """``[first..last]`` after an expression, or the engine's own ``[first:last]``, which counts from 1."""

    first: Expression | None
    last: Expression | None
    is_native: bool


class LabelTest(Span, frozen=True, kw_only=True):
    """``:Label`` after an expression."""

    labels: tuple[str, ...]


Step: TypeAlias = Property | Subscript | Slice | LabelTest


class AccessExpression(Span, frozen=True, kw_only=True):
    """An expression followed by properties, elements and slices of it."""

    subject: Expression
    steps: tuple[Step, ...]


class ListLiteral(Span, frozen=True, kw_only=True):
    """``[1, 2]``."""

    items: tuple[Expression, ...]


class MapLiteral(Span, frozen=True, kw_only=True):
    """``{a: 1}``; of each entry the index of the token that is its key, the key and the value."""

    entries: tuple[tuple[int, str, Expression], ...]


class FunctionCall(Span, frozen=True, kw_only=True):
    """A function and its arguments; ``name`` in lower case. ``count(*)`` has ``is_star``."""

    name: str
    arguments: tuple[Expression, ...]
    is_distinct: bool = False
    is_star: bool = False


class Cast(Span, frozen=True, kw_only=True):
    """``CAST(operand AS TYPE)``; ``type`` in upper case."""

    operand: Expression
    type: str


class Lambda(Span, frozen=True, kw_only=True):
    """``x -> body``, the second argument of a function of lists."""

    parameters: tuple[str, ...]
    body: Expression


class Negation(Span, frozen=True, kw_only=True):
    """``NOT`` or ``-``, any number of times, before an operand."""

    operator: str
    count: int
    operand: Expression


class OperatorChain(Span, frozen=True, kw_only=True):
    """Operands joined by operators of one level, from left to right. ``IS NULL`` has no right operand.

    Each operator is its words in upper case and the index of its first token.
    """

    operators: tuple[tuple[str, int], ...]
    operands: tuple[Expression | None, ...]
    level: int


class Case(Span, frozen=True, kw_only=True):
    """``CASE``; without a ``subject`` the first of each branch is a condition."""

    subject: Expression | None
    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression | None


class Group(Span, frozen=True, kw_only=True):
    """An expression in parentheses."""

    inner: Expression


class PatternTest(Span, frozen=True, kw_only=True):
    """A pattern in the place of an expression: whether it occurs."""

    path: Path


class Subquery(Span, frozen=True, kw_only=True):
    """``EXISTS { MATCH … }`` or ``COUNT { MATCH … }``."""

    word: str
    matches: tuple[MatchClause, ...]


Expression: TypeAlias = (
    Literal
    | Parameter
    | Variable
    | AccessExpression
    | ListLiteral
    | MapLiteral
    | FunctionCall
    | Cast
    | Lambda
    | Negation
    | OperatorChain
    | Case
    | Group
    | PatternTest
    | Subquery
)


class NodePattern(Span, frozen=True, kw_only=True):
    """``(name:Label {key: value})``; ``labels`` are token indexes and names."""

    name: str
    labels: tuple[tuple[int, str], ...]
    properties: MapLiteral | None


class Length(Span, frozen=True, kw_only=True):
    """``*`` in a relationship: how often it is followed, and by which mode of the engine's, such as ``SHORTEST``."""

    mode: str
    least: int | None
    most: int | None
    inner: tuple[str, ...] = ()
    where: Expression | None = None


class RelationPattern(Span, frozen=True, kw_only=True):
    """``-[name:TYPE*1..2 {key: value}]->``. ``bracket`` is the index of its ``[``, or -1.

    ``direction`` is ``>``, ``<``, or empty for any.
    """

    name: str
    bracket: int
    types: tuple[tuple[int, str], ...]
    properties: MapLiteral | None
    length: Length | None
    direction: str


class Path(Span, frozen=True, kw_only=True):
    """One chain of a pattern, such as ``p = (a)-[r]->(b)``. It has one node more than relations."""

    name: str
    nodes: tuple[NodePattern, ...]
    relations: tuple[RelationPattern, ...]


class MatchClause(Span, frozen=True, kw_only=True):
    """``MATCH`` or ``OPTIONAL MATCH``; the pattern ends before the token ``pattern_end``."""

    is_optional: bool
    paths: tuple[Path, ...]
    pattern_end: int
    where: Expression | None


class Unwind(Span, frozen=True, kw_only=True):
    """``UNWIND list AS name``."""

    source: Expression
    name: str


class Item(Span, frozen=True, kw_only=True):
    """One column of a projection; ``alias`` is empty without an AS."""

    value: Expression
    alias: str


class ProjectionBody(Span, frozen=True, kw_only=True):
    """``WITH`` or ``RETURN``. ``star`` is the index of a ``*``, -1 without one."""

    word: str
    is_distinct: bool
    star: int
    items: tuple[Item, ...]
    items_end: int
    order: tuple[Item, ...]
    order_end: int
    bounds: tuple[Expression, ...]
    where: Expression | None
    where_start: int


class Procedure(Span, frozen=True, kw_only=True):
    """``CALL name(…)``, with the names of the columns that it yields."""

    arguments: tuple[Expression, ...]
    yields: tuple[str, ...]
    where: Expression | None


class Creation(Span, frozen=True, kw_only=True):
    """``CREATE`` or ``MERGE``."""

    word: str
    paths: tuple[Path, ...]


class SetItem(Span, frozen=True, kw_only=True):
    """``SET target = value``."""

    target: Expression
    value: Expression


class Setting(Span, frozen=True, kw_only=True):
    """``SET``, also as a part of MERGE."""

    items: tuple[SetItem, ...]


class Deletion(Span, frozen=True, kw_only=True):
    """``DELETE`` or ``DETACH DELETE``."""

    items: tuple[Expression, ...]


Clause: TypeAlias = MatchClause | Unwind | ProjectionBody | Procedure | Creation | Setting | Deletion


class QueryStatement(Span, frozen=True, kw_only=True):
    """A whole statement: the clauses of each part that UNION joins, without duplicates if it ``is_distinct``."""

    parts: tuple[tuple[Clause, ...], ...]
    is_distinct: bool


def iterate_spans(value: object) -> Iterator[Span]:
    """Yield all parts of a tree, each before its own parts."""
    if isinstance(value, tuple):
        for each in cast("tuple[object, ...]", value):
            yield from iterate_spans(each)
    elif isinstance(value, Span):
        yield value
        for name in value.__struct_fields__:
            yield from iterate_spans(getattr(value, name))
