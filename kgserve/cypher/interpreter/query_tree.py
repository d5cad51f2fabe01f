"""Syntax tree of an openCypher statement, as the interpreter runs it.

``position`` is a character offset in the statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, cast
from typing import Literal as OneOf

import msgspec


class QueryNode(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a statement."""

    position: int = 0


# Expressions


class LiteralValue(QueryNode, frozen=True, kw_only=True):
    """Number, string, boolean or null."""

    value: bool | int | float | str | None


class ParameterReference(QueryNode, frozen=True, kw_only=True):
    """``$name``."""

    name: str


class VariableReference(QueryNode, frozen=True, kw_only=True):
    """Name bound in the row."""

    name: str


class PropertyLookup(QueryNode, frozen=True, kw_only=True):
    """``subject.name``."""

    subject: QueryExpression
    name: str


class IndexLookup(QueryNode, frozen=True, kw_only=True):
    """``subject[index]``: an element of a list, or a value of a map, node or relationship."""

    subject: QueryExpression
    index: QueryExpression


class ListSlice(QueryNode, frozen=True, kw_only=True):
    """``subject[first..last]``; ``last`` is excluded."""

    subject: QueryExpression
    first: QueryExpression | None
    last: QueryExpression | None


class LabelPredicate(QueryNode, frozen=True, kw_only=True):
    """``subject:A:B`` (all labels) or ``subject:A|B`` (any of them); on a relationship, its type."""

    subject: QueryExpression
    labels: tuple[str, ...]
    is_any: bool = False


class ListExpression(QueryNode, frozen=True, kw_only=True):
    """``[a, b]``."""

    items: tuple[QueryExpression, ...]


class MapExpression(QueryNode, frozen=True, kw_only=True):
    """``{key: value}``."""

    entries: tuple[tuple[str, QueryExpression], ...]


class MapProjection(QueryNode, frozen=True, kw_only=True):
    """``n {.name, .*, key: value, variable}``; an entry of ``.*`` has the key ``*`` and no value."""

    subject: VariableReference
    entries: tuple[tuple[str, QueryExpression | None], ...]


class FunctionInvocation(QueryNode, frozen=True, kw_only=True):
    """Call of a function or aggregate; ``name`` is in lower case, with its namespace: ``duration.between``."""

    name: str
    arguments: tuple[QueryExpression, ...]
    is_distinct: bool = False


class CountStar(QueryNode, frozen=True, kw_only=True):
    """``count(*)``."""


class UnaryExpression(QueryNode, frozen=True, kw_only=True):
    """``NOT``, ``-`` or ``+`` before an operand."""

    operator: OneOf["NOT", "-", "+"]
    operand: QueryExpression


BinaryOperator: TypeAlias = OneOf[
    "OR", "XOR", "AND", "+", "-", "*", "/", "%", "^", "IN", "STARTS WITH", "ENDS WITH", "CONTAINS", "=~"
]


class BinaryExpression(QueryNode, frozen=True, kw_only=True):
    """Operator between two operands, other than a comparison."""

    operator: BinaryOperator
    left: QueryExpression
    right: QueryExpression


class ComparisonChain(QueryNode, frozen=True, kw_only=True):
    """``a < b <= c``; operators are ``=``, ``<>``, ``<``, ``<=``, ``>`` and ``>=``."""

    first: QueryExpression
    rest: tuple[tuple[str, QueryExpression], ...]


class NullPredicate(QueryNode, frozen=True, kw_only=True):
    """``IS NULL``, or ``IS NOT NULL``."""

    operand: QueryExpression
    is_negated: bool


class CaseBranches(QueryNode, frozen=True, kw_only=True):
    """``CASE``; without a ``subject`` the branches begin with conditions."""

    subject: QueryExpression | None
    branches: tuple[tuple[QueryExpression, QueryExpression], ...]
    otherwise: QueryExpression | None


class ListComprehension(QueryNode, frozen=True, kw_only=True):
    """``[name IN source WHERE condition | result]``."""

    name: str
    source: QueryExpression
    where: QueryExpression | None
    result: QueryExpression | None


class PatternComprehension(QueryNode, frozen=True, kw_only=True):
    """``[path WHERE condition | result]``."""

    path: PathElement
    where: QueryExpression | None
    result: QueryExpression


class QuantifiedPredicate(QueryNode, frozen=True, kw_only=True):
    """``all``, ``any``, ``none`` or ``single`` ``(name IN source WHERE condition)``."""

    kind: OneOf["all", "any", "none", "single"]
    name: str
    source: QueryExpression
    where: QueryExpression


class ReduceExpression(QueryNode, frozen=True, kw_only=True):
    """``reduce(accumulator = initial, name IN source | body)``."""

    accumulator: str
    initial: QueryExpression
    name: str
    source: QueryExpression
    body: QueryExpression


class PatternExistence(QueryNode, frozen=True, kw_only=True):
    """Pattern as a condition, ``exists(pattern)``, or ``size(pattern)`` if ``is_count``."""

    path: PathElement
    is_count: bool = False


class SubqueryValue(QueryNode, frozen=True, kw_only=True):
    """``EXISTS { … }``, ``COUNT { … }`` or ``COLLECT { … }``; a bare pattern is a query of one MATCH.

    The last query may lack a RETURN if the kind is not COLLECT.
    """

    kind: OneOf["EXISTS", "COUNT", "COLLECT"]
    query: QueryUnion


QueryExpression: TypeAlias = (
    LiteralValue
    | ParameterReference
    | VariableReference
    | PropertyLookup
    | IndexLookup
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
    | CaseBranches
    | ListComprehension
    | PatternComprehension
    | QuantifiedPredicate
    | ReduceExpression
    | PatternExistence
    | SubqueryValue
)

# Patterns


class NodeElement(QueryNode, frozen=True, kw_only=True):
    """``(name:A:B {key: value} WHERE condition)``; ``labels`` are all required, or any of them if ``is_any``.

    ``name`` is empty for an anonymous node. ``properties`` is a map or a parameter.
    """

    name: str = ""
    labels: tuple[str, ...] = ()
    is_any: bool = False
    properties: MapExpression | ParameterReference | None = None
    where: QueryExpression | None = None


class RelationshipElement(QueryNode, frozen=True, kw_only=True):
    """``-[name:A|B *least..most {key: value} WHERE condition]->``.

    ``direction`` is ``>``, ``<``, or empty for both. ``lengths`` is None for a single relationship; its bounds are
    None if open.
    """

    name: str = ""
    types: tuple[str, ...] = ()
    properties: MapExpression | ParameterReference | None = None
    lengths: tuple[int | None, int | None] | None = None
    direction: OneOf[">", "<", ""] = ""
    where: QueryExpression | None = None


class PathElement(QueryNode, frozen=True, kw_only=True):
    """Path of a pattern: one more node than relationships; ``shortest`` is the function around it, if any."""

    name: str = ""
    nodes: tuple[NodeElement, ...]
    relationships: tuple[RelationshipElement, ...] = ()
    shortest: OneOf["", "shortestpath", "allshortestpaths"] = ""


# Clauses


class MatchStage(QueryNode, frozen=True, kw_only=True):
    """``MATCH`` or ``OPTIONAL MATCH``."""

    paths: tuple[PathElement, ...]
    where: QueryExpression | None = None
    is_optional: bool = False


class UnwindStage(QueryNode, frozen=True, kw_only=True):
    """``UNWIND source AS name``."""

    source: QueryExpression
    name: str


class ProjectedColumn(QueryNode, frozen=True, kw_only=True):
    """Column of a projection; without AS, ``name`` is the text of the expression as typed."""

    value: QueryExpression
    name: str
    is_aliased: bool = False


class SortKey(QueryNode, frozen=True, kw_only=True):
    """Key of ORDER BY."""

    value: QueryExpression
    is_descending: bool = False


class ProjectionStage(QueryNode, frozen=True, kw_only=True):
    """``WITH`` or ``RETURN``; ``is_all`` represents ``*``, before the other columns."""

    keyword: OneOf["WITH", "RETURN"]
    columns: tuple[ProjectedColumn, ...]
    is_all: bool = False
    is_distinct: bool = False
    order: tuple[SortKey, ...] = ()
    skip: QueryExpression | None = None
    limit: QueryExpression | None = None
    where: QueryExpression | None = None


class CreateStage(QueryNode, frozen=True, kw_only=True):
    """``CREATE``."""

    paths: tuple[PathElement, ...]


class PropertyUpdate(QueryNode, frozen=True, kw_only=True):
    """``SET subject.name = value`` or ``SET subject[name] = value``."""

    subject: QueryExpression
    name: QueryExpression
    value: QueryExpression


class MapAssignment(QueryNode, frozen=True, kw_only=True):
    """``SET name = value``, or ``SET name += value`` if ``keeps_others``."""

    name: str
    value: QueryExpression
    keeps_others: bool


class LabelAssignment(QueryNode, frozen=True, kw_only=True):
    """``SET name:A``."""

    name: str
    labels: tuple[str, ...]


class ComputedLabels(QueryNode, frozen=True, kw_only=True):
    """``SET name:$(value)``: labels that are a string or a list of strings."""

    name: str
    value: QueryExpression


class PropertyRemoval(QueryNode, frozen=True, kw_only=True):
    """``REMOVE subject.name`` or ``REMOVE subject[name]``."""

    subject: QueryExpression
    name: QueryExpression


class LabelRemoval(QueryNode, frozen=True, kw_only=True):
    """``REMOVE name:A``."""

    name: str
    labels: tuple[str, ...]


ElementUpdate: TypeAlias = (
    PropertyUpdate | MapAssignment | LabelAssignment | ComputedLabels | PropertyRemoval | LabelRemoval
)


class UpdateStage(QueryNode, frozen=True, kw_only=True):
    """``SET`` or ``REMOVE``."""

    updates: tuple[ElementUpdate, ...]


class MergeStage(QueryNode, frozen=True, kw_only=True):
    """``MERGE`` with ``ON CREATE SET`` and ``ON MATCH SET``."""

    path: PathElement
    on_create: tuple[ElementUpdate, ...] = ()
    on_match: tuple[ElementUpdate, ...] = ()


class DeleteStage(QueryNode, frozen=True, kw_only=True):
    """``DELETE``, or ``DETACH DELETE`` if ``is_detaching``."""

    values: tuple[QueryExpression, ...]
    is_detaching: bool = False


class ForeachStage(QueryNode, frozen=True, kw_only=True):
    """``FOREACH (name IN source | clauses)``; its clauses only write."""

    name: str
    source: QueryExpression
    stages: tuple[QueryStage, ...]


class ProcedureStage(QueryNode, frozen=True, kw_only=True):
    """``CALL name(arguments) YIELD column AS alias``.

    ``arguments`` is None without parentheses. ``yields`` is None without YIELD, and empty for ``YIELD *``. ``name`` is
    as typed.
    """

    name: str
    arguments: tuple[QueryExpression, ...] | None
    yields: tuple[tuple[str, str], ...] | None
    where: QueryExpression | None = None


class SubqueryStage(QueryNode, frozen=True, kw_only=True):
    """``CALL { … }`` or ``CALL (imports) { … }``; ``imports`` is None if the query begins with its own WITH."""

    query: QueryUnion
    imports: tuple[str, ...] | None = None


QueryStage: TypeAlias = (
    MatchStage
    | UnwindStage
    | ProjectionStage
    | CreateStage
    | UpdateStage
    | MergeStage
    | DeleteStage
    | ForeachStage
    | ProcedureStage
    | SubqueryStage
)


class QueryUnion(QueryNode, frozen=True, kw_only=True):
    """Statement: the clauses of each query of a UNION, whose rows are distinct unless ``is_all``."""

    queries: tuple[tuple[QueryStage, ...], ...]
    is_all: bool = False


def iterate_nodes(value: object) -> Iterator[QueryNode]:
    """Yield all nodes of a tree in pre-order."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, QueryNode):
            yield part
            pending += [getattr(part, name) for name in reversed(part.__struct_fields__)]
        elif type(part) is tuple:
            pending += reversed(cast("tuple[Any, ...]", part))
