"""What the analysis of a statement has at hand: its tokens, the changes to its text, and the variables in scope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kgserve.cypher.edits import Edits
from kgserve.cypher.lexer import Outline
from kgserve.cypher.syntax import (
    AccessExpression,
    Expression,
    Group,
    Literal,
    Parameter,
    Property,
    Span,
    Subscript,
    Variable,
    iterate_spans,
)
from kgserve.cypher.types import ValueType
from kgserve.errors import InvalidInput

MAX_REPEATED_CHARACTERS = 4_000
MAX_REPEATED_TOKENS = 60
"""An operand that has to be written twice for the engine has this many tokens at most."""
NO_LOOPS = "no_loops"
FEW_RELATIONS = "few_relations"


class Binding(msgspec.Struct, frozen=True):
    """What a variable is. A path of an OPTIONAL MATCH is null where the variable ``anchor`` is."""

    type: ValueType
    anchor: str = ""


class Scope:
    """Variables by name, as they were typed. An ``is_open`` scope has others, which only the engine knows."""

    def __init__(self, bindings: Mapping[str, Binding] | None = None, *, is_open: bool = False) -> None:
        self.bindings = dict(bindings or {})
        self.is_open = is_open

    def copy(self) -> Scope:
        """Return a scope that may get more variables."""
        return Scope(self.bindings, is_open=self.is_open)

    def similar(self, name: str) -> str | None:
        """Return another variable whose name differs in case only: the engine takes both for one."""
        lowered = name.lower()
        return next((each for each in self.bindings if each != name and each.lower() == lowered), None)


class AnalysisContext:
    """Shared by all parts of the analysis of one statement."""

    def __init__(self, outline: Outline, parameters: Mapping[str, Any], edits: Edits) -> None:
        self.outline = outline
        self.parameters = parameters
        self.edits = edits
        self.assumptions: set[str] = set()
        # Whether a condition is read that belongs to a pattern: Kùzu answers some of those wrongly.
        self.in_pattern = False
        self.hidden: list[str] = []
        # Whether the value of a parameter was looked at, where another of its type may be treated differently.
        self.depends_on_values = False
        self._taken = {token.text.strip("`").lower() for token in outline.tokens}

    def refuse(self, index: int, what: str) -> InvalidInput:
        """Return the error for what stands at a token."""
        return self.outline.at(index, what)

    def hide(self, letter: str) -> str:
        """Return a name that the statement does not use, for a variable that the caller does not see."""
        number = len(self.hidden) + 1
        while f"_{letter}{number}" in self._taken:
            number += 1
        name = f"_{letter}{number}"
        self._taken.add(name)
        self.hidden.append(name)
        return name

    def typed(self, span: Span) -> str:
        """Return what was typed, in one line."""
        tokens = self.outline.tokens
        return " ".join(self.outline.text[tokens[span.start].start : tokens[span.end - 1].end].split())

    def check_one_source(self, whole: Span, bounds: tuple[Expression, ...]) -> None:
        """Raise InvalidInput for bounds that vary, of what is cut from another variable: engines lose some parts."""
        varying = any(isinstance(part, Variable) for part in iterate_spans(bounds))
        names = {part.name for part in iterate_spans(whole) if isinstance(part, Variable)}
        if varying and len(names) > 1:
            what = f"this is cut at a place that depends on other variables, of {' and '.join(sorted(names))};"
            raise self.refuse(whole.start, f"{what} the engine would lose parts of the answer. It stands")

    def text(self, span: Span) -> str:
        """Return the text of an expression for the engine, to be written a second time.

        Raises InvalidInput for one that is too long for that.
        """
        found = "" if span.end - span.start > MAX_REPEATED_TOKENS else self.edits.text(span.start, span.end)
        if not found or len(found) > MAX_REPEATED_CHARACTERS:
            raise self.refuse(span.start, "this is too long here; give it a name with WITH … AS first. It stands")
        return found


def tie_bounds(first: str, last: str) -> str:
    """Return the first bound of a part, made to vary as the last one does.

    Engines answer a function of three arguments wrongly where the first and the last of them vary by row, one of them
    may be null, and the second is the same for all rows.
    """
    return f"({first}) + 0 * ({last})"


def is_constant(expression: Expression) -> bool:
    """Tell whether an expression is the same for all rows: a literal or a parameter."""
    return isinstance(ungroup(expression), Literal | Parameter)


def is_simple(expression: Expression) -> bool:
    """Tell whether an expression costs nothing to write twice: a literal, parameter, variable or property of one."""
    match expression:
        case Literal() | Parameter() | Variable():
            return True
        case AccessExpression(subject=subject, steps=steps):
            return is_simple(subject) and all(isinstance(step, Property | Subscript) for step in steps)
        case Group(inner=inner):
            return is_simple(inner)
        case _:
            return False


def ungroup(expression: Expression) -> Expression:
    """Return an expression without the parentheses around it."""
    while isinstance(expression, Group):
        expression = expression.inner
    return expression
