"""Replacement of parts of expressions, such as aggregates by variables that hold their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    ListComprehension,
    LiteralValue,
    PatternComprehension,
    PatternExistence,
    QuantifiedPredicate,
    QueryExpression,
    QuerySyntaxNode,
    ReduceExpression,
    SubqueryExpressionNode,
)
from kgserve.cypher.interpreter.pattern_model import find_variable_names

_Part = TypeVar("_Part")
_LITERAL_POSITIONS: dict[type, int] = {type(None): 0, bool: 1, int: 2, float: 3, str: 4}


def strip_source_positions(part: _Part) -> _Part:
    """Strip source positions from a tree, so that equal expressions compare equal; 1, 1.0 and true differ."""
    if isinstance(part, tuple):
        return cast("_Part", tuple(strip_source_positions(each) for each in cast("tuple[Any, ...]", part)))
    if not isinstance(part, QuerySyntaxNode):
        return part
    if isinstance(part, LiteralValue):
        return msgspec.structs.replace(part, position=_LITERAL_POSITIONS[type(part.value)])
    fields = {
        name: strip_source_positions(getattr(part, name)) for name in part.__struct_fields__ if name != "position"
    }
    return msgspec.structs.replace(part, position=0, **fields)


def replace_subexpressions(tree: QueryExpression, replacements: Mapping[QueryExpression, QueryExpression]) -> Any:
    """Replace parts of an expression by others; the keys have no positions.

    Parts that mention a variable which the expression around them binds itself stay.
    """
    return _replace(tree, replacements) if replacements else tree


def _replace(part: Any, replacements: Mapping[QueryExpression, QueryExpression]) -> Any:
    if isinstance(part, tuple):
        items = cast("tuple[Any, ...]", part)
        replaced = tuple(_replace(each, replacements) for each in items)
        return part if all(new is old for new, old in zip(replaced, items, strict=True)) else replaced
    if not isinstance(part, QuerySyntaxNode):
        return part
    found = replacements.get(cast("QueryExpression", strip_source_positions(part)))
    if found is not None:
        return found
    inner = _without_shadowed(part, replacements)
    fields = {name: getattr(part, name) for name in part.__struct_fields__}
    changed = {name: new for name, value in fields.items() if (new := _replace(value, inner)) is not value}
    return msgspec.structs.replace(part, **changed) if changed else part


def _without_shadowed(
    part: QuerySyntaxNode, replacements: Mapping[QueryExpression, QueryExpression]
) -> Mapping[QueryExpression, QueryExpression]:
    own = _find_own_names(part)
    if not own:
        return replacements
    return {key: value for key, value in replacements.items() if own.isdisjoint(find_variable_names(key))}


def _find_own_names(part: QuerySyntaxNode) -> frozenset[str]:
    """Return the variables that an expression may bind for its parts."""
    match part:
        case ListComprehension() | QuantifiedPredicate():
            return frozenset((part.name,))
        case ReduceExpression():
            return frozenset((part.name, part.accumulator))
        case PatternComprehension() | PatternExistence():
            return find_variable_names(part.path)
        case SubqueryExpressionNode():
            return find_variable_names(part)
        case _:
            return frozenset()
