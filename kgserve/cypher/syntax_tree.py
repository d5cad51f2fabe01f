"""Syntax tree of a Cypher statement; each node covers the tokens from ``start`` up to, but excluding, ``end``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal as OneOf
from typing import TypeAlias, cast

import msgspec


class StatementTokenRange(msgspec.Struct, frozen=True, kw_only=True):
    """Token range of a part of a statement."""

    start: int
    end: int


LiteralKind: TypeAlias = OneOf["boolean", "integer", "float", "text", "null"]


class Literal(StatementTokenRange, frozen=True, kw_only=True):
    """Literal in a Cypher statement: number, text, boolean or null, with escapes in a text's ``value`` decoded."""

    kind: LiteralKind
    value: bool | int | float | str | None


class CypherParameter(StatementTokenRange, frozen=True, kw_only=True):
    """Parameter of a Cypher statement: ``$name``."""

    name: str


class Variable(StatementTokenRange, frozen=True, kw_only=True):
    """Variable in a Cypher statement: a name bound by a clause, as typed but without backticks."""

    name: str


class PropertyAccess(StatementTokenRange, frozen=True, kw_only=True):
    """Access to a property after an expression: ``.name``, or ``.*`` for all properties."""

    name: str


class Subscript(StatementTokenRange, frozen=True, kw_only=True):
    """``[index]`` after an expression."""

    index: Expression


class Slice(StatementTokenRange, frozen=True, kw_only=True):
    """Slice of a list: ``[first..last]``, or the engine's native ``[first:last]``, which counts from 1."""

    first: Expression | None
    last: Expression | None
    is_native: bool


class LabelTest(StatementTokenRange, frozen=True, kw_only=True):
    """Test for a label after an expression: ``:Label``."""

    labels: tuple[str, ...]


AccessStep: TypeAlias = PropertyAccess | Subscript | Slice | LabelTest


class PostfixExpression(StatementTokenRange, frozen=True, kw_only=True):
    """Expression followed by property accesses, subscripts and slices."""

    subject: Expression
    steps: tuple[AccessStep, ...]


class ListLiteral(StatementTokenRange, frozen=True, kw_only=True):
    """``[1, 2]``."""

    items: tuple[Expression, ...]


class MapLiteral(StatementTokenRange, frozen=True, kw_only=True):
    """``{a: 1}``; each entry is the key's token index, the key and the value."""

    entries: tuple[tuple[int, str, Expression], ...]


class FunctionCall(StatementTokenRange, frozen=True, kw_only=True):
    """Function call; ``name`` is in lower case, ``is_star`` marks ``count(*)``."""

    name: str
    arguments: tuple[Expression, ...]
    is_distinct: bool = False
    is_star: bool = False


class CastExpression(StatementTokenRange, frozen=True, kw_only=True):
    """``CAST(operand AS TYPE)``; ``type`` is in upper case."""

    operand: Expression
    type: str


class LambdaExpression(StatementTokenRange, frozen=True, kw_only=True):
    """``x -> body``, the second argument of a list function."""

    parameters: tuple[str, ...]
    body: Expression


class Negation(StatementTokenRange, frozen=True, kw_only=True):
    """Negation of an operand: ``NOT`` or ``-``, repeated ``count`` times."""

    operator: str
    count: int
    operand: Expression


class OperatorChain(StatementTokenRange, frozen=True, kw_only=True):
    """Operands joined left to right by operators of one precedence level; ``IS NULL`` has no right operand.

    An operator is its words in upper case and the index of its first token.
    """

    operators: tuple[tuple[str, int], ...]
    operands: tuple[Expression | None, ...]
    level: int


class CaseExpression(StatementTokenRange, frozen=True, kw_only=True):
    """``CASE``; without a ``subject`` the branches start with conditions."""

    subject: Expression | None
    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression | None


class ParenthesizedExpression(StatementTokenRange, frozen=True, kw_only=True):
    """Expression in parentheses."""

    inner: Expression


class PatternPredicate(StatementTokenRange, frozen=True, kw_only=True):
    """Pattern used as a condition: true if it occurs."""

    path: PatternPath


class SubqueryExpression(StatementTokenRange, frozen=True, kw_only=True):
    """Subquery used as an expression: ``EXISTS { MATCH … }`` or ``COUNT { MATCH … }``."""

    word: str
    matches: tuple[MatchClause, ...]


Expression: TypeAlias = (
    Literal
    | CypherParameter
    | Variable
    | PostfixExpression
    | ListLiteral
    | MapLiteral
    | FunctionCall
    | CastExpression
    | LambdaExpression
    | Negation
    | OperatorChain
    | CaseExpression
    | ParenthesizedExpression
    | PatternPredicate
    | SubqueryExpression
)


class NodePattern(StatementTokenRange, frozen=True, kw_only=True):
    """``(name:Label {key: value})``; ``labels`` are token indexes and names."""

    name: str
    labels: tuple[tuple[int, str], ...]
    properties: MapLiteral | None


class PathLengthBounds(StatementTokenRange, frozen=True, kw_only=True):
    """``*`` in a relationship: bounds, and the engine's path mode such as ``SHORTEST``."""

    mode: str
    least: int | None
    most: int | None
    inner: tuple[str, ...] = ()
    where: Expression | None = None


class RelationPattern(StatementTokenRange, frozen=True, kw_only=True):
    """``-[name:TYPE*1..2 {key: value}]->``; ``bracket`` is the index of its ``[``, or -1.

    ``direction`` is ``>``, ``<``, or empty for both.
    """

    name: str
    bracket: int
    types: tuple[tuple[int, str], ...]
    properties: MapLiteral | None
    length: PathLengthBounds | None
    direction: str


class PatternPath(StatementTokenRange, frozen=True, kw_only=True):
    """Path of a pattern, such as ``p = (a)-[r]->(b)``, with one more node than relations."""

    name: str
    nodes: tuple[NodePattern, ...]
    relations: tuple[RelationPattern, ...]


class MatchClause(StatementTokenRange, frozen=True, kw_only=True):
    """``MATCH`` or ``OPTIONAL MATCH``; the pattern ends before token ``pattern_end``."""

    is_optional: bool
    paths: tuple[PatternPath, ...]
    pattern_end: int
    where: Expression | None


class UnwindClause(StatementTokenRange, frozen=True, kw_only=True):
    """``UNWIND list AS name``."""

    source: Expression
    name: str


class ProjectionItem(StatementTokenRange, frozen=True, kw_only=True):
    """Column of a projection; ``alias`` is empty without AS."""

    value: Expression
    alias: str


class ProjectionClause(StatementTokenRange, frozen=True, kw_only=True):
    """``WITH`` or ``RETURN``; ``star`` is the index of ``*``, or -1."""

    word: str
    is_distinct: bool
    star: int
    items: tuple[ProjectionItem, ...]
    items_end: int
    order: tuple[ProjectionItem, ...]
    order_end: int
    bounds: tuple[Expression, ...]
    where: Expression | None
    where_start: int


class CallClause(StatementTokenRange, frozen=True, kw_only=True):
    """``CALL name(…)`` with the names of the columns it yields."""

    arguments: tuple[Expression, ...]
    yields: tuple[str, ...]
    where: Expression | None


class CreateOrMergeClause(StatementTokenRange, frozen=True, kw_only=True):
    """``CREATE`` or ``MERGE``."""

    word: str
    paths: tuple[PatternPath, ...]


class SetClauseItem(StatementTokenRange, frozen=True, kw_only=True):
    """``SET target = value``."""

    target: Expression
    value: Expression


class SetClause(StatementTokenRange, frozen=True, kw_only=True):
    """``SET``, also within MERGE."""

    items: tuple[SetClauseItem, ...]


class DeleteClause(StatementTokenRange, frozen=True, kw_only=True):
    """``DELETE`` or ``DETACH DELETE``."""

    items: tuple[Expression, ...]


Clause: TypeAlias = (
    MatchClause | UnwindClause | ProjectionClause | CallClause | CreateOrMergeClause | SetClause | DeleteClause
)


class QueryStatement(StatementTokenRange, frozen=True, kw_only=True):
    """Whole Cypher statement: the clauses of each query of a UNION, which ``is_distinct`` unless UNION ALL."""

    parts: tuple[tuple[Clause, ...], ...]
    is_distinct: bool


def iterate_syntax_nodes(value: object) -> Iterator[StatementTokenRange]:
    """Yield all nodes of a tree in pre-order."""
    if isinstance(value, tuple):
        for each in cast("tuple[object, ...]", value):
            yield from iterate_syntax_nodes(each)
    elif isinstance(value, StatementTokenRange):
        yield value
        for name in value.__struct_fields__:
            yield from iterate_syntax_nodes(getattr(value, name))
