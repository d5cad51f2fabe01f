"""Syntax tree of an openCypher statement, as the interpreter runs it.

``position`` is a character offset in the statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, cast
from typing import Literal as OneOf

import msgspec


class QuerySyntaxNode(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of the nodes of the syntax tree of a statement."""

    position: int = 0


# Expressions


class LiteralValue(QuerySyntaxNode, frozen=True, kw_only=True):
    """Literal: a number, string, boolean or null."""

    value: bool | int | float | str | None


class ParameterReference(QuerySyntaxNode, frozen=True, kw_only=True):
    """Reference to a query parameter: ``$name``."""

    name: str


class VariableReference(QuerySyntaxNode, frozen=True, kw_only=True):
    """Reference to a variable that the row binds."""

    name: str


class PropertyAccessNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """Access to a property: ``subject.name``."""

    subject: QueryExpression
    name: str


class SubscriptNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """Subscript ``subject[index]``: an element of a list, or a value of a map, node or relationship."""

    subject: QueryExpression
    index: QueryExpression


class ListSlice(QuerySyntaxNode, frozen=True, kw_only=True):
    """Slice of a list: ``subject[first..last]``; ``last`` is excluded."""

    subject: QueryExpression
    first: QueryExpression | None
    last: QueryExpression | None


class LabelPredicate(QuerySyntaxNode, frozen=True, kw_only=True):
    """Test of labels: ``subject:A:B`` (all) or ``subject:A|B`` (any); on a relationship, of its type."""

    subject: QueryExpression
    labels: tuple[str, ...]
    is_any: bool = False


class ListExpression(QuerySyntaxNode, frozen=True, kw_only=True):
    """List of expressions: ``[a, b]``."""

    items: tuple[QueryExpression, ...]


class MapExpression(QuerySyntaxNode, frozen=True, kw_only=True):
    """Map of expressions by key: ``{key: value}``."""

    entries: tuple[tuple[str, QueryExpression], ...]


class MapProjection(QuerySyntaxNode, frozen=True, kw_only=True):
    """Map projection ``n {.name, .*, key: value, variable}``; an entry of ``.*`` has the key ``*`` and no value."""

    subject: VariableReference
    entries: tuple[tuple[str, QueryExpression | None], ...]


class FunctionInvocation(QuerySyntaxNode, frozen=True, kw_only=True):
    """Call of a function or aggregate; ``name`` is in lower case, with its namespace: ``duration.between``."""

    name: str
    arguments: tuple[QueryExpression, ...]
    is_distinct: bool = False


class CountStar(QuerySyntaxNode, frozen=True, kw_only=True):
    """Aggregate ``count(*)``, the number of rows."""


class UnaryExpression(QuerySyntaxNode, frozen=True, kw_only=True):
    """Unary operator, ``NOT``, ``-`` or ``+``, before an operand."""

    operator: OneOf["NOT", "-", "+"]
    operand: QueryExpression


BinaryOperator: TypeAlias = OneOf[
    "OR", "XOR", "AND", "+", "-", "*", "/", "%", "^", "IN", "STARTS WITH", "ENDS WITH", "CONTAINS", "=~"
]


class BinaryExpression(QuerySyntaxNode, frozen=True, kw_only=True):
    """Binary operator between two operands, other than a comparison."""

    operator: BinaryOperator
    left: QueryExpression
    right: QueryExpression


class ComparisonChain(QuerySyntaxNode, frozen=True, kw_only=True):
    """Chain of comparisons ``a < b <= c``, of the operators ``=``, ``<>``, ``<``, ``<=``, ``>`` and ``>=``."""

    first: QueryExpression
    rest: tuple[tuple[str, QueryExpression], ...]


class NullPredicate(QuerySyntaxNode, frozen=True, kw_only=True):
    """Test for null: ``IS NULL``, or ``IS NOT NULL``."""

    operand: QueryExpression
    is_negated: bool


class CaseExpressionNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """``CASE`` expression; without a ``subject`` its branches begin with conditions."""

    subject: QueryExpression | None
    branches: tuple[tuple[QueryExpression, QueryExpression], ...]
    otherwise: QueryExpression | None


class ListComprehension(QuerySyntaxNode, frozen=True, kw_only=True):
    """List comprehension: ``[name IN source WHERE condition | result]``."""

    name: str
    source: QueryExpression
    where: QueryExpression | None
    result: QueryExpression | None


class PatternComprehension(QuerySyntaxNode, frozen=True, kw_only=True):
    """Pattern comprehension: ``[path WHERE condition | result]``."""

    path: PathPatternElement
    where: QueryExpression | None
    result: QueryExpression


class QuantifiedPredicate(QuerySyntaxNode, frozen=True, kw_only=True):
    """Quantifier over a list: ``all``, ``any``, ``none`` or ``single`` ``(name IN source WHERE condition)``."""

    kind: OneOf["all", "any", "none", "single"]
    name: str
    source: QueryExpression
    where: QueryExpression


class ReduceExpression(QuerySyntaxNode, frozen=True, kw_only=True):
    """Reduction of a list: ``reduce(accumulator = initial, name IN source | body)``."""

    accumulator: str
    initial: QueryExpression
    name: str
    source: QueryExpression
    body: QueryExpression


class PatternExistence(QuerySyntaxNode, frozen=True, kw_only=True):
    """Test whether a pattern exists: bare, ``exists(pattern)``, or ``size(pattern)`` if ``is_count``."""

    path: PathPatternElement
    is_count: bool = False


class SubqueryExpressionNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """Subquery expression ``EXISTS { … }``, ``COUNT { … }`` or ``COLLECT { … }``; a bare pattern is one MATCH.

    The last query may lack a RETURN if the kind is not COLLECT.
    """

    kind: OneOf["EXISTS", "COUNT", "COLLECT"]
    query: QueryUnion


QueryExpression: TypeAlias = (
    LiteralValue
    | ParameterReference
    | VariableReference
    | PropertyAccessNode
    | SubscriptNode
    | ListSlice
    | LabelPredicate
    | ListExpression
    | MapExpression
    | MapProjection
    | FunctionInvocation
    | CountStar
    | UnaryExpression
    | BinaryExpression
    | ComparisonChain
    | NullPredicate
    | CaseExpressionNode
    | ListComprehension
    | PatternComprehension
    | QuantifiedPredicate
    | ReduceExpression
    | PatternExistence
    | SubqueryExpressionNode
)

# Patterns


class NodePatternElement(QuerySyntaxNode, frozen=True, kw_only=True):
    """Node of a pattern ``(name:A:B {key: value} WHERE condition)``; ``is_any`` if one label suffices.

    ``name`` is empty for an anonymous node. ``properties`` is a map or a parameter.
    """

    name: str = ""
    labels: tuple[str, ...] = ()
    is_any: bool = False
    properties: MapExpression | ParameterReference | None = None
    where: QueryExpression | None = None


class RelationshipPatternElement(QuerySyntaxNode, frozen=True, kw_only=True):
    """Relationship of a pattern: ``-[name:A|B *least..most {key: value} WHERE condition]->``.

    ``direction`` is ``>``, ``<``, or empty for both. ``lengths`` is None for a single relationship; its bounds are
    None if open.
    """

    name: str = ""
    types: tuple[str, ...] = ()
    properties: MapExpression | ParameterReference | None = None
    lengths: tuple[int | None, int | None] | None = None
    direction: OneOf[">", "<", ""] = ""
    where: QueryExpression | None = None


class PathPatternElement(QuerySyntaxNode, frozen=True, kw_only=True):
    """Path of a pattern: one more node than relationships; ``shortest`` is the function around it, if any."""

    name: str = ""
    nodes: tuple[NodePatternElement, ...]
    relationships: tuple[RelationshipPatternElement, ...] = ()
    shortest: OneOf["", "shortestpath", "allshortestpaths"] = ""


# Clauses


class MatchClauseNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """``MATCH`` or ``OPTIONAL MATCH`` clause."""

    paths: tuple[PathPatternElement, ...]
    where: QueryExpression | None = None
    is_optional: bool = False


class UnwindClauseNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """``UNWIND source AS name`` clause."""

    source: QueryExpression
    name: str


class ReturnOrWithColumn(QuerySyntaxNode, frozen=True, kw_only=True):
    """Column of WITH or RETURN; without AS, ``name`` is the text of the expression as typed."""

    value: QueryExpression
    name: str
    is_aliased: bool = False


class SortKey(QuerySyntaxNode, frozen=True, kw_only=True):
    """Sort key of ORDER BY."""

    value: QueryExpression
    is_descending: bool = False


class ProjectionClauseNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """``WITH`` or ``RETURN`` clause; ``is_all`` represents ``*``, before the other columns."""

    keyword: OneOf["WITH", "RETURN"]
    columns: tuple[ReturnOrWithColumn, ...]
    is_all: bool = False
    is_distinct: bool = False
    order: tuple[SortKey, ...] = ()
    skip: QueryExpression | None = None
    limit: QueryExpression | None = None
    where: QueryExpression | None = None


class CreateClauseNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """``CREATE`` clause."""

    paths: tuple[PathPatternElement, ...]


class SetSingleProperty(QuerySyntaxNode, frozen=True, kw_only=True):
    """Update of one property: ``SET subject.name = value`` or ``SET subject[name] = value``."""

    subject: QueryExpression
    name: QueryExpression
    value: QueryExpression


class SetPropertiesFromMap(QuerySyntaxNode, frozen=True, kw_only=True):
    """Assignment of properties from a map: ``SET name = value``, or ``SET name += value`` if ``keeps_others``."""

    name: str
    value: QueryExpression
    keeps_others: bool


class LabelAssignment(QuerySyntaxNode, frozen=True, kw_only=True):
    """Assignment of labels: ``SET name:A``."""

    name: str
    labels: tuple[str, ...]


class ComputedLabelAssignment(QuerySyntaxNode, frozen=True, kw_only=True):
    """Assignment of computed labels, a string or a list of strings: ``SET name:$(value)``."""

    name: str
    value: QueryExpression


class PropertyRemoval(QuerySyntaxNode, frozen=True, kw_only=True):
    """Removal of a property: ``REMOVE subject.name`` or ``REMOVE subject[name]``."""

    subject: QueryExpression
    name: QueryExpression


class LabelRemoval(QuerySyntaxNode, frozen=True, kw_only=True):
    """Removal of labels: ``REMOVE name:A``."""

    name: str
    labels: tuple[str, ...]


ElementUpdate: TypeAlias = (
    SetSingleProperty
    | SetPropertiesFromMap
    | LabelAssignment
    | ComputedLabelAssignment
    | PropertyRemoval
    | LabelRemoval
)


class SetOrRemoveClauseNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """``SET`` or ``REMOVE`` clause."""

    updates: tuple[ElementUpdate, ...]


class MergeClauseNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """``MERGE`` clause with ``ON CREATE SET`` and ``ON MATCH SET``."""

    path: PathPatternElement
    on_create: tuple[ElementUpdate, ...] = ()
    on_match: tuple[ElementUpdate, ...] = ()


class DeleteClauseNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """``DELETE`` clause, or ``DETACH DELETE`` if ``is_detaching``."""

    values: tuple[QueryExpression, ...]
    is_detaching: bool = False


class ForeachClauseNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """``FOREACH (name IN source | clauses)`` clause; its clauses only write."""

    name: str
    source: QueryExpression
    stages: tuple[QueryStage, ...]


class CallProcedureClauseNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """``CALL name(arguments) YIELD column AS alias`` clause, which calls a procedure.

    ``arguments`` is None without parentheses. ``yields`` is None without YIELD, and empty for ``YIELD *``. ``name`` is
    as typed.
    """

    name: str
    arguments: tuple[QueryExpression, ...] | None
    yields: tuple[tuple[str, str], ...] | None
    where: QueryExpression | None = None


class CallSubqueryClauseNode(QuerySyntaxNode, frozen=True, kw_only=True):
    """``CALL { … }`` clause, which runs a subquery; ``imports`` is None if that begins with its own WITH."""

    query: QueryUnion
    imports: tuple[str, ...] | None = None


QueryStage: TypeAlias = (
    MatchClauseNode
    | UnwindClauseNode
    | ProjectionClauseNode
    | CreateClauseNode
    | SetOrRemoveClauseNode
    | MergeClauseNode
    | DeleteClauseNode
    | ForeachClauseNode
    | CallProcedureClauseNode
    | CallSubqueryClauseNode
)


class QueryUnion(QuerySyntaxNode, frozen=True, kw_only=True):
    """Queries connected by UNION, or a single one; rows are distinct unless ``is_all``."""

    queries: tuple[tuple[QueryStage, ...], ...]
    is_all: bool = False


def iterate_syntax_tree(value: object) -> Iterator[QuerySyntaxNode]:
    """Yield all nodes of a tree in pre-order."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, QuerySyntaxNode):
            yield part
            pending += [getattr(part, name) for name in reversed(part.__struct_fields__)]
        elif type(part) is tuple:
            pending += reversed(cast("tuple[Any, ...]", part))
