"""Assumptions about a store's rows under which the columns that the engine reads are the properties of Cypher.

In Cypher a node without label has no type, and an attribute shows where the optional column of its name is empty. The
engine has the type ``_`` for such a node, and knows columns only.
"""

from __future__ import annotations

from collections.abc import Iterable

from kgserve.cypher.analysis_context import CypherAnalysisContext, strip_parentheses
from kgserve.cypher.expression_parser import AND, OR
from kgserve.cypher.interpreter.graph_view_interface import NO_LABEL
from kgserve.cypher.syntax_tree import (
    CypherParameter,
    Expression,
    ListLiteral,
    Literal,
    OperatorChain,
    PostfixExpression,
    PropertyAccess,
)
from kgserve.storage.model.node_edge_fields import AUTHOR_FIELD, EDGE, NODE

ASSUMES_LABELS = "all nodes have labels"
_NO_NODE_ATTRIBUTE, _NO_EDGE_ATTRIBUTE = "no node has the attribute ", "no edge has the attribute "
LABEL_PROPERTY = "type"
_OPTIONAL_COLUMNS = {
    "node": frozenset(field.name for field in NODE.optional) - {AUTHOR_FIELD},
    "relation": frozenset(field.name for field in EDGE.optional) - {AUTHOR_FIELD},
}
_PREFIXES = {"node": _NO_NODE_ATTRIBUTE, "relation": _NO_EDGE_ATTRIBUTE}


def assume_column_is_property(context: CypherAnalysisContext, kind: str, access: int, name: str) -> None:
    """Add the assumptions under which a column is the property ``name`` of a value of a kind, read at a token."""
    kinds = [kind] if kind in _PREFIXES else [*_PREFIXES]
    if name == LABEL_PROPERTY and "node" in kinds and access not in context.label_comparisons:
        context.assumptions.add(ASSUMES_LABELS)
    for each in kinds:
        if name in _OPTIONAL_COLUMNS[each]:
            context.assumptions.add(f"{_PREFIXES[each]}{name}")


def find_assumed_missing_attributes(assumptions: Iterable[str], *, of_nodes: bool) -> list[str]:
    """Return the names of attributes that no node, or no edge, may have."""
    prefix = _NO_NODE_ATTRIBUTE if of_nodes else _NO_EDGE_ATTRIBUTE
    return sorted(each.removeprefix(prefix) for each in assumptions if each.startswith(prefix))


def drop_column_assumptions(assumptions: frozenset[str]) -> frozenset[str]:
    """Return the other assumptions, for a statement that only the engine can run: it reads columns as they are."""
    return frozenset(
        each
        for each in assumptions
        if each != ASSUMES_LABELS and not each.startswith((_NO_NODE_ATTRIBUTE, _NO_EDGE_ATTRIBUTE))
    )


def note_label_comparisons(context: CypherAnalysisContext, condition: Expression) -> None:
    """Note the types in a condition that it compares with labels, so that nodes without label fail it in any case."""
    inner = strip_parentheses(condition)
    if not isinstance(inner, OperatorChain):
        return
    if inner.level in {AND, OR}:
        for part in inner.operands:
            if part is not None:
                note_label_comparisons(context, part)
    elif [operator for operator, _ in inner.operators] in (["="], ["IN"]):
        sides = [strip_parentheses(part) for part in inner.operands if part is not None]
        for side, other in (sides, sides[::-1]):
            if isinstance(side, PostfixExpression) and is_label(context, other):
                context.label_comparisons.update(step.start for step in side.steps if isinstance(step, PropertyAccess))


def is_label(context: CypherAnalysisContext, value: Expression) -> bool:
    """Return whether a value is a literal or parameter, or a list of them, that a node's label can be."""
    match strip_parentheses(value):
        case Literal(value=str() as text):
            return text not in {"", NO_LABEL}
        case CypherParameter(name=name):
            given = context.parameters.get(name)
            return isinstance(given, str) and given not in {"", NO_LABEL}
        case ListLiteral(items=items):
            return all(is_label(context, item) for item in items)
        case _:
            return False


def is_no_label(context: CypherAnalysisContext, value: Expression) -> bool:
    """Return whether a value is a literal or parameter that stands for a node without label, or for none."""
    match strip_parentheses(value):
        case Literal(value=found):
            return found in {None, "", NO_LABEL}
        case CypherParameter(name=name):
            return context.parameters.get(name) in {None, "", NO_LABEL} if name in context.parameters else False
        case _:
            return False
