"""Parser of openCypher expressions.

Operators are resolved with explicit stacks, so that the depth of the recursion depends only on brackets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, cast

import msgspec

from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    BinaryExpression,
    BinaryOperator,
    CaseExpressionNode,
    ComparisonChain,
    CountStar,
    FunctionInvocation,
    LabelPredicate,
    ListComprehension,
    ListExpression,
    ListSlice,
    LiteralValue,
    MapExpression,
    MapProjection,
    NullPredicate,
    ParameterReference,
    PathPatternElement,
    PatternComprehension,
    PatternExistence,
    PropertyAccessNode,
    QuantifiedPredicate,
    QueryExpression,
    QueryUnion,
    ReduceExpression,
    SubqueryExpressionNode,
    SubscriptNode,
    UnaryExpression,
    VariableReference,
)
from kgserve.cypher.interpreter.opencypher_tokenizer import MAX_INTEGER_MAGNITUDE, QueryToken, TokenizedCypherQuery
from kgserve.cypher.interpreter.token_cursor import RESERVED_WORDS, TokenCursor

MAX_EXPRESSION_DEPTH = 100

_OR, _XOR, _AND, _NOT, _COMPARISON, _PREDICATE, _SUM, _PRODUCT, _POWER = range(1, 10)
_SYMBOL_LEVELS = {
    "=": _COMPARISON, "<>": _COMPARISON, "<": _COMPARISON, "<=": _COMPARISON, ">": _COMPARISON, ">=": _COMPARISON,
    "=~": _PREDICATE, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT, "^": _POWER,
}  # fmt: skip
_WORD_LEVELS = {
    "OR": _OR, "XOR": _XOR, "AND": _AND, "IN": _PREDICATE, "STARTS": _PREDICATE, "ENDS": _PREDICATE,
    "CONTAINS": _PREDICATE, "IS": _PREDICATE,
}  # fmt: skip
_CHAINED_LEVELS = frozenset({_OR, _XOR, _AND, _COMPARISON})
_LITERAL_WORDS = {"TRUE": True, "FALSE": False, "NULL": None}
_QUANTIFIER_KINDS = {"ALL": "all", "ANY": "any", "NONE": "none", "SINGLE": "single"}
_SUBQUERY_KINDS = frozenset({"EXISTS", "COUNT", "COLLECT"})


class _PendingOperator(msgspec.Struct):
    """Operator whose right operand is not complete; several of a chain of one level."""

    level: int
    names: list[str]
    position: int


class OpenCypherExpressionParser(TokenCursor):
    """Parser of openCypher expressions; patterns and subqueries inside them are those of a subclass."""

    def __init__(self, query: TokenizedCypherQuery) -> None:
        super().__init__(query)
        self._depth = 0
        self._bar_index = -1
        """Index of the ``|`` that ends the current expression, which otherwise could continue a label predicate."""

    @abstractmethod
    def parse_path(self) -> PathPatternElement:
        """Parse a path of a pattern, with its name if it has one."""

    @abstractmethod
    def parse_braced_query(self, *, allows_pattern: bool) -> QueryUnion:
        """Parse a query in braces, or a pattern if allowed."""

    @abstractmethod
    def find_path_end(self, index: int) -> int:
        """Return the index after the path with a relationship that begins at a token; -1 if none begins there."""

    def parse_expression(self) -> QueryExpression:
        """Parse an expression. Raises InvalidInput."""
        self._depth += 1
        if self._depth > MAX_EXPRESSION_DEPTH + 1:
            self.fail(f"expressions may be nested at most {MAX_EXPRESSION_DEPTH} deep; exceeded")
        operands: list[QueryExpression] = []
        operators: list[_PendingOperator] = []
        while True:
            while self.token.word == "NOT":
                if operators and operators[-1].level > _NOT:
                    self.fail("put NOT and its operand in parentheses here")
                operators.append(_PendingOperator(_NOT, ["NOT"], self.advance().start))
            operands.append(self._parse_operand())
            while (level := self._find_level()) == _PREDICATE and self.token.word == "IS":
                _apply_operators(operands, operators, level)
                operands.append(self._parse_null_predicate(operands.pop()))
            if not level:
                break
            _apply_operators(operands, operators, level)
            self._push_operator(operators, level)
        _apply_operators(operands, operators, 0)
        self._depth -= 1
        return operands[0]

    def parse_delimited(self, bar_index: int = -1) -> QueryExpression:
        """Parse an expression inside brackets, which ends before a certain ``|`` at the latest."""
        outer, self._bar_index = self._bar_index, bar_index
        expression = self.parse_expression()
        self._bar_index = outer
        return expression

    def _find_level(self) -> int:
        token = self.token
        if token.kind == "symbol":
            return _SYMBOL_LEVELS.get(token.text, 0)
        return _WORD_LEVELS.get(token.word, 0) if token.word else 0

    def _push_operator(self, operators: list[_PendingOperator], level: int) -> None:
        token = self.advance()
        name = token.word or token.text
        if name in {"STARTS", "ENDS"}:
            self.expect_word("WITH")
            name += " WITH"
        if level in _CHAINED_LEVELS and operators and operators[-1].level == level:
            operators[-1].names.append(name)
        else:
            operators.append(_PendingOperator(level, [name], token.start))

    def _parse_null_predicate(self, operand: QueryExpression) -> NullPredicate:
        position = self.advance().start
        is_negated = self.skip_word("NOT")
        self.expect_word("NULL", "only IS NULL and IS NOT NULL are supported")
        return NullPredicate(position=position, operand=operand, is_negated=is_negated)

    # Operands

    def _parse_operand(self) -> QueryExpression:
        signs: list[QueryToken] = []
        while self.token.kind == "symbol" and self.token.text in {"-", "+"}:
            signs.append(self.advance())
        is_number = self.token.kind in {"integer", "float"}
        if is_number:
            is_negative = bool(signs) and signs[-1].text == "-"
            expression: QueryExpression = self._parse_number(signs.pop() if is_negative else None)
        else:
            expression = self._parse_atom()
        while self.token.kind == "symbol":
            symbol = self.token.text
            if symbol == ".":
                position = self.advance().start
                expression = PropertyAccessNode(
                    position=position, subject=expression, name=self.read_name("a property")
                )
            elif symbol == "[":
                expression = self._parse_subscript(expression)
            else:
                break
        if self.is_symbol(":"):
            expression = self._parse_label_predicate(expression)
        for sign in reversed(signs):
            operator = "-" if sign.text == "-" else "+"
            expression = UnaryExpression(position=sign.start, operator=operator, operand=expression)
        return expression

    def parse_target(self) -> QueryExpression:
        """Parse what SET or REMOVE changes: a variable, or a property of an expression."""
        expression = self._parse_atom()
        while self.is_symbol(".") or self.is_symbol("["):
            if self.is_symbol("["):
                expression = self._parse_subscript(expression)
            else:
                position = self.advance().start
                expression = PropertyAccessNode(
                    position=position, subject=expression, name=self.read_name("a property")
                )
        return expression

    def _parse_number(self, minus: QueryToken | None = None) -> LiteralValue:
        token = self.advance()
        value = -token.number if minus else token.number
        if value == MAX_INTEGER_MAGNITUDE and token.kind == "integer":
            self.fail(f"the integer {self.text[token.start : token.end]} is too large for 64 bits", token)
        return LiteralValue(position=(minus or token).start, value=value)

    def _parse_subscript(self, subject: QueryExpression) -> QueryExpression:
        position = self.advance().start
        first = None if self.is_symbol("..") else self.parse_delimited()
        if self.skip_symbol(".."):
            last = None if self.is_symbol("]") else self.parse_delimited()
            self.expect_symbol("]")
            return ListSlice(position=position, subject=subject, first=first, last=last)
        self.expect_symbol("]")
        return SubscriptNode(position=position, subject=subject, index=cast("QueryExpression", first))

    def _parse_label_predicate(self, subject: QueryExpression) -> LabelPredicate:
        position = self.token.start
        labels, is_any = self.parse_labels()
        return LabelPredicate(position=position, subject=subject, labels=labels, is_any=is_any)

    def parse_labels(self) -> tuple[tuple[str, ...], bool]:
        """Parse labels that begin at a colon; return them, and whether any of them suffices."""
        self.advance()
        labels = [self._read_label()]
        separators: set[str] = set()
        while self.token.kind == "symbol" and self.token.text in {":", "&", "|"} and self.index != self._bar_index:
            separator = self.advance().text
            separators.add("&" if separator == ":" else separator)
            if separator == "|":
                self.skip_symbol(":")
            if len(separators) > 1:
                self.fail("labels combine either with & or with |, not both")
            labels.append(self._read_label())
        return tuple(labels), "|" in separators

    def _read_label(self) -> str:
        if self.token.kind == "symbol" and self.token.text in {"!", "%", "("}:
            self.fail("label expressions with !, % or parentheses are not supported; put a condition into WHERE")
        return self.read_name("a label")

    # Atoms

    def _parse_atom(self) -> QueryExpression:
        token = self.token
        parse = self._ATOMS.get(token.text if token.kind == "symbol" else token.kind)
        if parse is None:
            raise self.make_unexpected("an expression")
        return parse(self)

    def _parse_string(self) -> LiteralValue:
        token = self.advance()
        return LiteralValue(position=token.start, value=token.text)

    def _parse_parameter(self) -> ParameterReference:
        token = self.advance()
        return ParameterReference(position=token.start, name=token.text)

    def _parse_word(self) -> QueryExpression:
        token = self.token
        if token.word in _LITERAL_WORDS:
            return LiteralValue(position=self.advance().start, value=_LITERAL_WORDS[token.word])
        if token.word == "CASE":
            return self._parse_case()
        if self.is_symbol("(", 1) and (parse := self._FORMS.get(token.word)):
            found = parse(self)
            if found is not None:
                return found
        if token.word in _SUBQUERY_KINDS and self.is_symbol("{", 1):
            self.advance()
            query = self.parse_braced_query(allows_pattern=token.word != "COLLECT")
            return SubqueryExpressionNode(position=token.start, kind=cast("Any", token.word), query=query)
        if token.word in RESERVED_WORDS and not self.is_symbol("(", 1):
            self.fail_expecting("an expression")
        return self._parse_name()

    def _parse_name(self) -> QueryExpression:
        """Parse a function call, a map projection or a variable."""
        offset = 1
        while self.is_symbol(".", offset) and self.is_name(offset + 1):
            offset += 2
        if self.is_symbol("(", offset):
            return self._parse_invocation((offset + 1) // 2)
        token = self.advance()
        variable = VariableReference(position=token.start, name=token.text)
        if self.is_symbol("{") and (self.is_symbol(".", 1) or self.is_symbol("}", 1) or self.is_name(1)):
            return self._parse_map_projection(variable)
        return variable

    def _parse_invocation(self, part_count: int) -> QueryExpression:
        start = self.token
        parts = [self.advance().text]
        for _ in range(part_count - 1):
            self.advance()
            parts.append(self.advance().text)
        name = ".".join(parts).lower()
        self.expect_symbol("(")
        if name == "count" and self.is_symbol("*"):
            self.advance()
            self.expect_symbol(")")
            return CountStar(position=start.start)
        is_distinct = self.skip_word("DISTINCT")
        arguments: list[QueryExpression] = []
        if not self.is_symbol(")"):
            arguments.append(self.parse_delimited())
            while self.skip_symbol(","):
                arguments.append(self.parse_delimited())
        self.expect_symbol(")")
        return FunctionInvocation(position=start.start, name=name, arguments=tuple(arguments), is_distinct=is_distinct)

    def _parse_map_projection(self, subject: VariableReference) -> MapProjection:
        self.expect_symbol("{")
        entries: list[tuple[str, QueryExpression | None]] = []
        while not self.is_symbol("}"):
            if entries:
                self.expect_symbol(",")
            position = self.token.start
            if self.skip_symbol("."):
                if self.skip_symbol("*"):
                    entries.append(("*", None))
                    continue
                name = self.read_name("a property")
                entries.append((name, PropertyAccessNode(position=position, subject=subject, name=name)))
                continue
            name = self.read_name("a property, a key or a variable")
            value = self.parse_delimited() if self.skip_symbol(":") else VariableReference(position=position, name=name)
            entries.append((name, value))
        self.expect_symbol("}")
        return MapProjection(position=subject.position, subject=subject, entries=tuple(entries))

    def parse_map(self) -> MapExpression:
        """Parse a map literal."""
        position = self.expect_symbol("{").start
        entries: list[tuple[str, QueryExpression]] = []
        if not self.is_symbol("}"):
            while True:
                if self.token.kind == "string":
                    self.fail("write a key of a map without quotes, or in backticks")
                key = self.read_name("a key")
                self.expect_symbol(":")
                entries.append((key, self.parse_delimited()))
                if not self.skip_symbol(","):
                    break
        self.expect_symbol("}")
        return MapExpression(position=position, entries=tuple(entries))

    def _parse_parentheses(self) -> QueryExpression:
        if self.find_path_end(self.index) >= 0:
            return PatternExistence(position=self.token.start, path=self.parse_path())
        self.advance()
        expression = self.parse_delimited()
        self.expect_symbol(")")
        return expression

    def _parse_list(self) -> QueryExpression:
        opener = self.index
        position = self.advance().start
        if self._is_pattern_comprehension():
            return self._parse_pattern_comprehension(opener, position)
        items: list[QueryExpression] = []
        if self.is_name() and self.is_word("IN", 1) and self.token.word not in _LITERAL_WORDS:
            found = self._parse_comprehension(opener, position)
            if not isinstance(found, BinaryExpression):
                return found
            items.append(found)
        elif not self.is_symbol("]"):
            items.append(self.parse_delimited())
        while items and self.skip_symbol(","):
            items.append(self.parse_delimited())
        self.expect_symbol("]")
        return ListExpression(position=position, items=tuple(items))

    def _parse_comprehension(self, opener: int, position: int) -> ListComprehension | BinaryExpression:
        """Parse a list comprehension, or the first element of a list, which begin alike."""
        start = self.token
        name = self.read_variable()
        self.advance()
        bar_index = self.last_bars.get(opener, -1)
        source = self.parse_delimited(bar_index)
        if self.is_symbol(","):
            variable = VariableReference(position=start.start, name=name)
            return BinaryExpression(position=start.start, operator="IN", left=variable, right=source)
        where = self.parse_delimited(bar_index) if self.skip_word("WHERE") else None
        result = self.parse_delimited() if self.skip_symbol("|") else None
        self.expect_symbol("]")
        return ListComprehension(position=position, name=name, source=source, where=where, result=result)

    def _is_pattern_comprehension(self) -> bool:
        start = self.index + 2 if self.is_name() and self.is_symbol("=", 1) else self.index
        end = self.find_path_end(start)
        if end < 0:
            return False
        token = self.tokens[end]
        return token.word == "WHERE" or (token.kind == "symbol" and token.text == "|")

    def _parse_pattern_comprehension(self, opener: int, position: int) -> PatternComprehension:
        path = self.parse_path()
        where = self.parse_delimited(self.last_bars.get(opener, -1)) if self.skip_word("WHERE") else None
        self.expect_symbol("|")
        result = self.parse_delimited()
        self.expect_symbol("]")
        return PatternComprehension(position=position, path=path, where=where, result=result)

    def _parse_case(self) -> CaseExpressionNode:
        position = self.advance().start
        subject = None if self.token.word == "WHEN" else self.parse_delimited()
        branches: list[tuple[QueryExpression, QueryExpression]] = []
        while self.skip_word("WHEN"):
            conditions = [self.parse_delimited()]
            while subject is not None and self.skip_symbol(","):
                conditions.append(self.parse_delimited())
            self.expect_word("THEN")
            value = self.parse_delimited()
            branches.extend((condition, value) for condition in conditions)
        if not branches:
            self.fail_expecting("WHEN")
        otherwise = self.parse_delimited() if self.skip_word("ELSE") else None
        self.expect_word("END")
        return CaseExpressionNode(position=position, subject=subject, branches=tuple(branches), otherwise=otherwise)

    # Forms that look like calls; each returns None if it is a call after all.

    def _parse_quantifier(self) -> QueryExpression | None:
        if not (self.is_name(2) and self.is_word("IN", 3)):
            return None
        token = self.advance()
        self.advance()
        name = self.read_variable()
        self.expect_word("IN")
        source = self.parse_delimited()
        self.expect_word("WHERE", f"as in {token.text}(x IN list WHERE x > 0)")
        where = self.parse_delimited()
        self.expect_symbol(")")
        kind = cast("Any", _QUANTIFIER_KINDS[token.word])
        return QuantifiedPredicate(position=token.start, kind=kind, name=name, source=source, where=where)

    def _parse_reduce(self) -> QueryExpression | None:
        if not (self.is_name(2) and self.is_symbol("=", 3)):
            return None
        position = self.advance().start
        opener = self.index
        self.advance()
        accumulator = self.read_variable()
        self.expect_symbol("=")
        initial = self.parse_delimited()
        self.expect_symbol(",")
        name = self.read_variable()
        self.expect_word("IN")
        source = self.parse_delimited(self.last_bars.get(opener, -1))
        self.expect_symbol("|")
        body = self.parse_delimited()
        self.expect_symbol(")")
        return ReduceExpression(
            position=position, accumulator=accumulator, initial=initial, name=name, source=source, body=body
        )

    def _parse_existence(self) -> QueryExpression | None:
        """Parse ``exists(pattern)``, ``size(pattern)``, or ``exists(property)``, which is IS NOT NULL."""
        start = self.token
        closer = self.closers[self.index + 1]
        end = self.find_path_end(self.index + 2)
        if end == closer:
            self.seek(self.index + 2)
            path = self.parse_path()
            self.expect_symbol(")")
            return PatternExistence(position=start.start, path=path, is_count=start.word == "SIZE")
        if start.word == "SIZE":
            return None
        self.seek(self.index + 2)
        operand = self.parse_delimited()
        if not isinstance(operand, PropertyAccessNode | SubscriptNode):
            self.fail("exists() takes a pattern or a property; EXISTS { } takes a subquery", start)
        self.expect_symbol(")")
        return NullPredicate(position=start.start, operand=operand, is_negated=True)

    def _parse_shortest_path(self) -> QueryExpression:
        """Parse ``shortestPath(pattern)`` as a value: the first path of a pattern comprehension, or null."""
        start = self.token
        path = self.parse_path()
        name = f"  path {start.start}"
        comprehension = PatternComprehension(
            position=start.start,
            path=msgspec.structs.replace(path, name=name),
            where=None,
            result=VariableReference(position=start.start, name=name),
        )
        if start.word == "ALLSHORTESTPATHS":
            return comprehension
        return FunctionInvocation(position=start.start, name="head", arguments=(comprehension,))

    def _refuse_filter(self) -> QueryExpression | None:
        if not (self.is_name(2) and self.is_word("IN", 3)):
            return None
        self.fail(f"{self.token.text}() is not supported; write [x IN list WHERE condition | result]")

    _ATOMS: ClassVar[dict[str, Callable[[OpenCypherExpressionParser], QueryExpression]]] = {
        "word": _parse_word,
        "quoted": _parse_name,
        "string": _parse_string,
        "parameter": _parse_parameter,
        "integer": _parse_number,
        "float": _parse_number,
        "(": _parse_parentheses,
        "[": _parse_list,
        "{": parse_map,
    }
    _FORMS: ClassVar[dict[str, Callable[[OpenCypherExpressionParser], QueryExpression | None]]] = {
        **dict.fromkeys(_QUANTIFIER_KINDS, _parse_quantifier),
        "REDUCE": _parse_reduce,
        "EXISTS": _parse_existence,
        "SIZE": _parse_existence,
        "SHORTESTPATH": _parse_shortest_path,
        "ALLSHORTESTPATHS": _parse_shortest_path,
        "FILTER": _refuse_filter,
        "EXTRACT": _refuse_filter,
    }


def _apply_operators(operands: list[QueryExpression], operators: list[_PendingOperator], level: int) -> None:
    """Apply the operators that bind at least as strongly as the next one, except for a chain that it continues."""
    while operators and operators[-1].level >= level:
        if operators[-1].level == level and level in _CHAINED_LEVELS:
            return
        operator = operators.pop()
        count = 1 if operator.level == _NOT else len(operator.names) + 1
        chosen = operands[-count:]
        del operands[-count:]
        operands.append(_build_operation(operator, chosen))


def _build_operation(operator: _PendingOperator, operands: list[QueryExpression]) -> QueryExpression:
    if operator.level == _NOT:
        return UnaryExpression(position=operator.position, operator="NOT", operand=operands[0])
    if operator.level == _COMPARISON:
        rest = tuple(zip(operator.names, operands[1:], strict=True))
        return ComparisonChain(position=operator.position, first=operands[0], rest=rest)
    return _balance(cast("BinaryOperator", operator.names[0]), operator.position, operands)


def _balance(name: BinaryOperator, position: int, operands: list[QueryExpression]) -> QueryExpression:
    """Join operands of an associative operator as a tree of small depth."""
    if len(operands) == 1:
        return operands[0]
    middle = (len(operands) + 1) // 2
    left, right = _balance(name, position, operands[:middle]), _balance(name, position, operands[middle:])
    return BinaryExpression(position=position, operator=name, left=left, right=right)
