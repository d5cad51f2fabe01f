"""Shared state of the analysis of a statement: tokens, edits, and variables in scope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kgserve.cypher.lexer import BracketMatchedTokens
from kgserve.cypher.statement_edits import StatementEdits
from kgserve.cypher.syntax_tree import (
    CypherParameter,
    Expression,
    Literal,
    ParenthesizedExpression,
    PostfixExpression,
    PropertyAccess,
    StatementTokenRange,
    Subscript,
    Variable,
    iterate_syntax_nodes,
)
from kgserve.cypher.types import CypherStaticType
from kgserve.errors import InvalidInput

MAX_REPEATED_CHARACTERS = 4_000
MAX_REPEATED_TOKENS = 60
"""Maximum length of an operand that must be written twice for the engine."""
ASSUMES_NO_SELF_LOOPS = "no_loops"
ASSUMES_FEW_RELATIONS = "few_relations"


class CypherVariableType(msgspec.Struct, frozen=True):
    """Type of a variable of a Cypher statement.

    A path of an OPTIONAL MATCH is null exactly where the variable ``anchor`` is null.
    """

    type: CypherStaticType
    anchor: str = ""


class VariableScope:
    """Types of the variables in scope, by name. An ``is_open`` scope may have others that only the engine knows."""

    def __init__(self, bindings: Mapping[str, CypherVariableType] | None = None, *, is_open: bool = False) -> None:
        self.bindings = dict(bindings or {})
        self.is_open = is_open

    def copy(self) -> VariableScope:
        """Return a copy that can be extended."""
        return VariableScope(self.bindings, is_open=self.is_open)

    def similar(self, name: str) -> str | None:
        """Return another variable whose name differs only in case, which the engine ignores."""
        lowered = name.lower()
        return next((each for each in self.bindings if each != name and each.lower() == lowered), None)


class CypherAnalysisContext:
    """State shared by all parts of the analysis of one statement."""

    def __init__(self, outline: BracketMatchedTokens, parameters: Mapping[str, Any], edits: StatementEdits) -> None:
        self.outline = outline
        self.parameters = parameters
        self.edits = edits
        self.assumptions: set[str] = set()
        # Tokens of accesses to types that are compared with labels.
        self.label_comparisons: set[int] = set()
        # True while the condition of a pattern is read: Kùzu answers some of those incorrectly.
        self.in_pattern = False
        self.hidden: list[str] = []
        # True once a parameter's value, not only its type, affected the analysis.
        self.depends_on_values = False
        self._used_names = {token.text.strip("`").lower() for token in outline.tokens}

    def refuse(self, index: int, what: str) -> InvalidInput:
        """Return the error for a token; its position is appended to ``what``."""
        return self.outline.at(index, what)

    def create_hidden_variable(self, letter: str) -> str:
        """Return an unused name for a variable hidden from the caller."""
        number = len(self.hidden) + 1
        while f"_{letter}{number}" in self._used_names:
            number += 1
        name = f"_{letter}{number}"
        self._used_names.add(name)
        self.hidden.append(name)
        return name

    def typed(self, span: StatementTokenRange) -> str:
        """Return the original text on one line."""
        tokens = self.outline.tokens
        return " ".join(self.outline.text[tokens[span.start].start : tokens[span.end - 1].end].split())

    def check_one_source(self, whole: StatementTokenRange, bounds: tuple[Expression, ...]) -> None:
        """Raise InvalidInput if bounds vary by row and depend on other variables.

        Engines lose parts of the answer then.
        """
        varying = any(isinstance(part, Variable) for part in iterate_syntax_nodes(bounds))
        names = {part.name for part in iterate_syntax_nodes(whole) if isinstance(part, Variable)}
        if varying and len(names) > 1:
            what = f"the bounds depend on other variables than the value, of {' and '.join(sorted(names))};"
            raise self.refuse(whole.start, f"{what} the engine would lose parts of the answer. Found")

    def text(self, span: StatementTokenRange) -> str:
        """Return the engine's text of an expression, to be written a second time.

        Raises InvalidInput if it is too long for that.
        """
        found = "" if span.end - span.start > MAX_REPEATED_TOKENS else self.edits.text(span.start, span.end)
        if not found or len(found) > MAX_REPEATED_CHARACTERS:
            raise self.refuse(
                span.start, "this expression is too long; assign it to a variable with WITH … AS first. Found"
            )
        return found


def rewrite_first_slice_bound(first: str, last: str) -> str:
    """Rewrite the first bound of a slice to vary with the last one, which the engine requires.

    Engines compute functions of three arguments incorrectly if the first and last vary by row, one may be null, and the
    second is constant.
    """
    return f"({first}) + 0 * ({last})"


def is_constant_expression(expression: Expression) -> bool:
    """Return whether an expression is the same for all rows: a literal or a parameter."""
    return isinstance(strip_parentheses(expression), Literal | CypherParameter)


def is_expression_cheap_to_duplicate(expression: Expression) -> bool:
    """Return whether an expression is cheap to write twice: a literal, parameter, variable or property."""
    match expression:
        case Literal() | CypherParameter() | Variable():
            return True
        case PostfixExpression(subject=subject, steps=steps):
            return is_expression_cheap_to_duplicate(subject) and all(
                isinstance(step, PropertyAccess | Subscript) for step in steps
            )
        case ParenthesizedExpression(inner=inner):
            return is_expression_cheap_to_duplicate(inner)
        case _:
            return False


def strip_parentheses(expression: Expression) -> Expression:
    """Strip the parentheses around an expression."""
    while isinstance(expression, ParenthesizedExpression):
        expression = expression.inner
    return expression
