"""Recursive-descent parser of Cypher expressions, with openCypher's operator precedence.

The engine's grammar binds IN, IS NULL and text operators tighter than arithmetic; openCypher does not. A chain of
operators is one node, so the tree is no deeper than the nesting of brackets that the guard allows.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from kgserve.cypher.lexer import (
    KEYWORDS,
    LAMBDA_FUNCTIONS,
    WORDS_BEFORE_PARENTHESIS,
    BracketMatchedTokens,
    build_cypher_syntax_error,
)
from kgserve.cypher.string_escapes import decode_string_literal
from kgserve.cypher.syntax_tree import (
    AccessStep,
    CaseExpression,
    CastExpression,
    CypherParameter,
    Expression,
    FunctionCall,
    LabelTest,
    LambdaExpression,
    ListLiteral,
    Literal,
    MapLiteral,
    MatchClause,
    Negation,
    OperatorChain,
    ParenthesizedExpression,
    PatternPath,
    PatternPredicate,
    PostfixExpression,
    PropertyAccess,
    Slice,
    SubqueryExpression,
    Subscript,
    Variable,
)
from kgserve.errors import InvalidInput

OR, XOR, AND, NOT, COMPARISON, BITS_OR, BITS_AND, SHIFT, PREDICATE, SUM, PRODUCT, POWER, SIGN = range(13)

_OPERATOR_PRECEDENCE: Final[dict[str, int]] = {
    "OR": OR,
    "XOR": XOR,
    "AND": AND,
    "=": COMPARISON,
    "<>": COMPARISON,
    "!=": COMPARISON,
    "<": COMPARISON,
    ">": COMPARISON,
    "<=": COMPARISON,
    ">=": COMPARISON,
    "|": BITS_OR,
    "&": BITS_AND,
    "<<": SHIFT,
    ">>": SHIFT,
    "IS": PREDICATE,
    "IN": PREDICATE,
    "STARTS": PREDICATE,
    "ENDS": PREDICATE,
    "CONTAINS": PREDICATE,
    "=~": PREDICATE,
    "+": SUM,
    "-": SUM,
    "*": PRODUCT,
    "/": PRODUCT,
    "%": PRODUCT,
    "^": POWER,
}
_INTEGER_LITERAL = re.compile(r"[0-9]+")


class ExpressionParser(ABC):
    """Expression parser; ``at`` is the index of the next token."""

    def __init__(self, outline: BracketMatchedTokens) -> None:
        self.outline = outline
        self.at = 0
        # A bar ends an expression only in a pattern's filter or a comprehension.
        self._bar_ends = False

    def fail(self, index: int | None = None) -> InvalidInput:
        """Return the syntax error for a token, by default the next one."""
        at = self.at if index is None else index
        if at >= len(self.outline):
            end = self.outline.tokens[-1].end if len(self.outline) else 0
            return build_cypher_syntax_error(
                self.outline.text, end, "query: syntax error, something is missing at the end,"
            )
        return self.outline.at(at, f"query: syntax error before {self.outline.tokens[at].text},")

    def symbol(self, ahead: int = 0) -> str:
        """Return the symbol at ``at + ahead``; empty if it is none."""
        return self.outline.symbol(self.at + ahead)

    def word(self, ahead: int = 0) -> str:
        """Return the keyword at ``at + ahead`` in upper case; empty if it is none."""
        return self.outline.word(self.at + ahead)

    def accept(self, text: str) -> bool:
        """Consume a symbol or keyword if it is next; return whether it was."""
        found = text in {self.symbol(), self.word()}
        self.at += found
        return found

    def expect(self, text: str) -> int:
        """Consume a symbol or keyword and return its index. Raises InvalidInput for anything else."""
        if not self.accept(text):
            raise self.fail()
        return self.at - 1

    def name(self) -> str:
        """Consume a name and return it without backticks. Raises InvalidInput for anything else."""
        if self.at >= len(self.outline) or not self.outline.name(self.at):
            raise self.fail()
        self.at += 1
        return self.outline.tokens[self.at - 1].text.strip("`")

    def until(self, closing: str, read: Callable[[], object]) -> int:
        """Read comma-separated parts up to and including a closing symbol; return the index after it."""
        if not self.accept(closing):
            read()
            while self.accept(","):
                read()
            self.expect(closing)
        return self.at

    def expression(self, level: int = OR) -> Expression:
        """Read an expression with operators of ``level`` or tighter."""
        start = self.at
        if level <= NOT and self.word() == "NOT":
            return self._read_operators(start, self._read_negation("NOT", NOT), level)
        if self.symbol() in {"-", "+"} and level <= SIGN:
            return self._read_operators(start, self._read_negation(self.symbol(), SIGN), level)
        return self._read_operators(start, self.access(), level)

    def _read_negation(self, operator: str, level: int) -> Negation:
        start, count = self.at, 0
        while self.accept(operator):
            count += 1
        operand = self.expression(level + (level == SIGN))
        return Negation(start=start, end=self.at, operator=operator, count=count, operand=operand)

    def _read_operators(self, start: int, left: Expression, level: int) -> Expression:
        """Read the operators after an operand, tightest first."""
        found = self._level()
        while found is not None and found >= level:
            left = self._chain(start, left, found)
            following = self._level()
            if following is not None and following > found:
                raise self.fail()
            found = following
        return left

    def _chain(self, start: int, left: Expression, level: int) -> OperatorChain:
        operators: list[tuple[str, int]] = []
        operands: list[Expression | None] = [left]
        while self._level() == level:
            operators.append((self._operator(), self.at))
            self.at += len(operators[-1][0].split())
            operands.append(None if operators[-1][0].startswith("IS ") else self.expression(level + 1))
        return OperatorChain(
            start=start, end=self.at, operators=tuple(operators), operands=tuple(operands), level=level
        )

    def _level(self) -> int | None:
        if self.symbol() == "|" and self._bar_ends:
            return None
        return _OPERATOR_PRECEDENCE.get(self.symbol() or self.word())

    def _operator(self) -> str:
        word = self.symbol() or self.word()
        if word in {"STARTS", "ENDS"}:
            words = [word, "WITH"]
        elif word == "IS":
            words = ["IS", "NOT", "NULL"] if self.word(1) == "NOT" else ["IS", "NULL"]
        else:
            return word
        for ahead, expected in enumerate(words):
            if self.word(ahead) != expected:
                raise self.fail(self.at + ahead)
        return " ".join(words)

    def access(self) -> Expression:
        """Read an operand with its property accesses, subscripts and slices."""
        start = self.at
        subject = self._atom()
        steps: list[AccessStep] = []
        while step := self._step(subject):
            steps.append(step)
        return PostfixExpression(start=start, end=self.at, subject=subject, steps=tuple(steps)) if steps else subject

    def _step(self, subject: Expression) -> AccessStep | None:
        start = self.at
        if self.accept("."):
            name = "*" if self.accept("*") else self.name()
            return PropertyAccess(start=start, end=self.at, name=name)
        if self.symbol() == "[":
            return self._element()
        is_label = self.symbol() == ":" and isinstance(subject, Variable) and self.outline.bracket(start) in {"(", ""}
        if not is_label or not self.outline.name(start + 1):
            return None
        labels: list[str] = []
        while self.accept(":"):
            labels.append(self.name())
        return LabelTest(start=start, end=self.at, labels=tuple(labels))

    def _element(self) -> Subscript | Slice:
        start = self.expect("[")
        first = None if self.symbol() in {"..", ":"} else self._bracketed_expression()
        if self.symbol() not in {"..", ":"}:
            self.expect("]")
            if first is None:
                raise self.fail(start)
            return Subscript(start=start, end=self.at, index=first)
        is_native = self.symbol() == ":"
        self.at += 1
        last = None if self.symbol() == "]" else self._bracketed_expression()
        self.expect("]")
        return Slice(start=start, end=self.at, first=first, last=last, is_native=is_native)

    def _bracketed_expression(self) -> Expression:
        """Read an expression within brackets, where a bar is an operator again."""
        before, self._bar_ends = self._bar_ends, False
        found = self.expression()
        self._bar_ends = before
        return found

    def barred(self) -> Expression:
        """Read an expression that ends at a bar."""
        before, self._bar_ends = self._bar_ends, True
        found = self.expression()
        self._bar_ends = before
        return found

    def _atom(self) -> Expression:
        if self.at >= len(self.outline):
            raise self.fail()
        kind, symbol = self.outline.tokens[self.at].kind, self.symbol()
        if kind in {"number", "string", "parameter"}:
            return self._value()
        if symbol == "[":
            return self._list()
        if symbol == "{":
            return self.map()
        if symbol == "(":
            return self._parenthesis()
        return self._read_word() if kind in {"word", "quoted"} else self._refuse()

    def _refuse(self) -> Expression:
        raise self.fail()

    def _value(self) -> Expression:
        start, token = self.at, self.outline.tokens[self.at]
        self.at += 1
        if token.kind == "parameter":
            return CypherParameter(start=start, end=self.at, name=token.text[1:])
        if token.kind == "string":
            return Literal(start=start, end=self.at, kind="text", value=decode_string_literal(self.outline.text, token))
        is_whole = _INTEGER_LITERAL.fullmatch(token.text) is not None
        value = int(token.text[:40]) if is_whole else float(token.text)
        return Literal(start=start, end=self.at, kind="integer" if is_whole else "float", value=value)

    def _list(self) -> Expression:
        start, items = self.expect("["), list[Expression]()
        self.until("]", lambda: items.append(self._bracketed_expression()))
        return ListLiteral(start=start, end=self.at, items=tuple(items))

    def map(self) -> MapLiteral:
        """Read ``{key: value, …}``."""
        start, entries = self.expect("{"), list[tuple[int, str, Expression]]()

        def read() -> None:
            key, name = self.at, self.name()
            self.expect(":")
            entries.append((key, name, self._bracketed_expression()))

        self.until("}", read)
        return MapLiteral(start=start, end=self.at, entries=tuple(entries))

    def _parenthesis(self) -> Expression:
        start = self.at
        after = self.outline.partner[start] + 1
        is_path = self.outline.symbol(after) in {"-", "<"} and self.is_node(start)
        if is_path and (
            self.outline.is_relation(after + (self.outline.symbol(after) == "<") + 1) or self._dashes(after)
        ):
            path = self.path()
            return PatternPredicate(start=start, end=self.at, path=path)
        self.expect("(")
        inner = self._bracketed_expression()
        self.expect(")")
        return ParenthesizedExpression(start=start, end=self.at, inner=inner)

    def _dashes(self, at: int) -> bool:
        at += self.outline.symbol(at) == "<"
        return self.outline.symbol(at) == "-" and self.outline.symbol(at + 1) == "-"

    def is_node(self, parenthesis: int) -> bool:
        """Return whether a parenthesis may open a node of a pattern."""
        after = parenthesis + 1 + bool(self.outline.name(parenthesis + 1))
        return self.outline.symbol(after) in {")", "{", ":"}

    @abstractmethod
    def path(self) -> PatternPath:
        """Read one path of a pattern."""

    @abstractmethod
    def match(self) -> MatchClause:
        """Read a MATCH with its WHERE."""

    def _read_word(self) -> Expression:
        start, word = self.at, self.word()
        if word == "CASE":
            return self._case()
        if word in {"EXISTS", "COUNT"} and self.symbol(1) == "{":
            return self._subquery()
        if self.symbol(1) == "(" and word not in WORDS_BEFORE_PARENTHESIS:
            return self._cast() if self.outline.name(start) == "cast" else self._call()
        if word in {"TRUE", "FALSE", "NULL"}:
            self.at += 1
            value = None if word == "NULL" else word == "TRUE"
            kind = "null" if value is None else "boolean"
            return Literal(start=start, end=self.at, kind=kind, value=value)
        if word in KEYWORDS - _KEYWORDS_ALLOWED_AS_NAMES and not self._is_standalone():
            raise self.fail()
        return Variable(name=self.name(), start=start, end=self.at)

    def _is_standalone(self) -> bool:
        """Return whether a keyword can only be a variable, because no clause can start there."""
        return self.symbol(1) in {".", ",", ")", "]", "}"} or self.symbol(-1) in {"(", "[", ","}

    def _case(self) -> CaseExpression:
        start = self.expect("CASE")
        subject = None if self.word() == "WHEN" else self._bracketed_expression()
        branches: list[tuple[Expression, Expression]] = []
        while self.accept("WHEN"):
            condition = self._bracketed_expression()
            self.expect("THEN")
            branches.append((condition, self._bracketed_expression()))
        otherwise = self._bracketed_expression() if self.accept("ELSE") else None
        self.expect("END")
        return CaseExpression(start=start, end=self.at, subject=subject, branches=tuple(branches), otherwise=otherwise)

    def _subquery(self) -> SubqueryExpression:
        start, word = self.at, self.word()
        self.at += 2
        matches = [self.match()]
        while self.symbol() != "}":
            matches.append(self.match())
        self.expect("}")
        return SubqueryExpression(start=start, end=self.at, word=word, matches=tuple(matches))

    def _cast(self) -> Expression:
        start = self.at
        end = self.outline.partner[start + 1]
        if len(self.outline.items(start + 2, end)) != 1:
            return self._call()
        self.at += 2
        operand = self._bracketed_expression()
        self.expect("AS")
        written = "".join(token.text for token in self.outline.tokens[self.at : end]).upper()
        self.at = end + 1
        return CastExpression(start=start, end=self.at, operand=operand, type=written)

    def _call(self) -> FunctionCall:
        start, name = self.at, self.outline.name(self.at)
        self.at += 2
        if self.symbol() == "*" and self.symbol(1) == ")":
            self.at += 2
            return FunctionCall(start=start, end=self.at, name=name, arguments=(), is_star=True)
        is_distinct = self.accept("DISTINCT")
        arguments: list[Expression] = []
        self.until(")", lambda: arguments.append(self._argument(name, len(arguments))))
        return FunctionCall(start=start, end=self.at, name=name, arguments=tuple(arguments), is_distinct=is_distinct)

    def _argument(self, name: str, number: int) -> Expression:
        return self._lambda() if name in LAMBDA_FUNCTIONS and number == 1 else self._bracketed_expression()

    def _lambda(self) -> Expression:
        start, parameters = self.at, list[str]()
        if self.accept("("):
            self.until(")", lambda: parameters.append(self.name()))
        else:
            parameters.append(self.name())
        self.expect("-")
        self.expect(">")
        body = self._bracketed_expression()
        return LambdaExpression(start=start, end=self.at, parameters=tuple(parameters), body=body)


_KEYWORDS_ALLOWED_AS_NAMES = frozenset({
    "ANY", "ALL", "NONE", "SINGLE", "COLUMN", "CYCLE", "DBTYPE", "DECIMAL", "DEFAULT", "EXTERNAL", "FORCE", "FROM",
    "GLOB", "GRAPH", "GROUP", "HEADERS", "IF", "INCREMENT", "JOIN", "KEY", "L_SKIP", "MAP", "MAXVALUE", "MINVALUE",
    "NO", "NODE", "ONLY", "PASSWORD", "PRIMARY", "RDFGRAPH", "READ", "REL", "ROLE", "START", "STRUCT", "TO", "TRAIL",
    "TYPE", "USER", "WRITE", "COUNT", "CAST", "EXPLAIN", "LOGICAL", "ASC", "DESC", "AS", "END", "SHORTEST", "ACYCLIC",
    "ASCENDING", "DESCENDING", "WSHORTEST", "YIELD", "EXISTS",
})  # fmt: skip
"""Words allowed as variables here; the engine's grammar or other rules of the guard decide about them."""
