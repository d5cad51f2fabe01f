"""Limits on statements: size, untyped nulls, allowed calls, and constructs that the engine evaluates incorrectly.

The engine recurses over brackets, operators, CASE and lambdas, plans joins in exponential time, and ignores timeouts
meanwhile. Functions that multiply values are bounded. docs/adr/0022 has the measurements.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from kgserve.cypher.lexer import (
    AGGREGATE_FUNCTIONS,
    ALLOWED_FUNCTIONS,
    ALLOWED_PROCEDURES,
    BUILDER_FUNCTIONS,
    CAST_TYPES,
    CLAUSE_ENDS,
    CLAUSES,
    INTERVAL_FUNCTIONS,
    KEYWORDS,
    LAMBDA_FUNCTIONS,
    OPERATOR_WORDS,
    QUANTIFIERS,
    WORDS_BEFORE_PARENTHESIS,
    BracketMatchedTokens,
)
from kgserve.cypher.re2_validation import find_re2_syntax_error
from kgserve.cypher.string_escapes import decode_string_literal

MAX_RANGE_VALUES = 10_000
"""Maximum values of all ranges of a statement, and maximum factor by which texts are repeated or padded."""
MAX_ARRAY_VALUES = 2_048
MAX_ARRAY_DIMENSIONS = 4
MAX_REPLACEMENT_CHARS = 256
MAX_INTERVAL_UNITS = 1_000_000
MAX_LIMIT_ROWS = 1_000_000_000

_CAST_TYPE_PATTERN = re.compile(r"([A-Z0-9]++)(?:\([0-9]{1,2}, ?[0-9]{1,2}\))?(?:\[\])*")


class FunctionCallChecker:
    """Checks all function calls of a statement, given its parameter values."""

    def __init__(self, outline: BracketMatchedTokens, parameters: Mapping[str, Any]) -> None:
        self._outline = outline
        self._parameters = parameters
        self._operand_types = _OperandTypes(outline, parameters)
        self.range_values = 0
        # True once a check depended on a parameter's value.
        self.met_values = False
        self._text_growth = 1

    def check(self) -> None:
        """Raise InvalidInput or Forbidden for a call that is not allowed."""
        for index in range(len(self._outline)):
            if self._outline.word(index) == "CALL":
                self._check_procedure(index)
            elif self._outline.word(index) in {"LIMIT", "SKIP"}:
                self._check_rows(index)
            elif self._outline.symbol(index) == "(":
                self._check_call(index)
            elif self._outline.symbol(index) in {"=~", "[", "!"}:
                self._check_operator(index, self._outline.symbol(index))
            elif self._outline.is_lambda(index):
                self._check_lambda(index)

    def _check_procedure(self, index: int) -> None:
        if self._outline.symbol(index + 1) in {"{", "("}:
            raise self._outline.at(index, "the engine has no subqueries with CALL; found")
        name = self._outline.calls(index + 2)
        if name not in ALLOWED_PROCEDURES:
            message = f"CALL must be followed by one of {', '.join(sorted(ALLOWED_PROCEDURES))}; found"
            raise self._outline.not_allowed(index, message)

    def _check_rows(self, index: int) -> None:
        """Check SKIP and LIMIT; a large SKIP before a LIMIT overflows and crashes the engine."""
        outline, start = self._outline, index + 1
        if start >= len(outline) or outline.word(start) in KEYWORDS - {"CASE", "NOT", "NULL", "CAST", "COUNT"}:
            return
        value = self._constant(range(start, start + 1))
        ends = start + 1 >= len(outline) or outline.word(start + 1) in KEYWORDS or outline.symbol(start + 1) == "}"
        if not ends or type(value) is not int or not 0 <= value <= MAX_LIMIT_ROWS:
            raise outline.at(
                index, f"{outline.word(index)} needs a literal or a parameter of at most {MAX_LIMIT_ROWS}; found"
            )

    def _check_call(self, index: int) -> None:
        outline = self._outline
        name = outline.calls(index)
        if not name or outline.word(index - 1) in WORDS_BEFORE_PARENTHESIS or outline.word(index - 2) == "CALL":
            return
        if outline.word(index - 1) in QUANTIFIERS:
            # The engine crashes once the lists of a batch have more than 2,048 elements in total.
            instead = "size(list_filter(list, x -> condition)) with > 0, = 0, = 1 or = size(list)"
            raise outline.at(index - 1, f"{name}(… IN …) is not supported by the engine; write {instead}. Found")
        if name == "decimal" and outline.calls(outline.opener[index]) == "cast":
            return
        if name not in ALLOWED_FUNCTIONS:
            hint = "; write EXISTS { MATCH … }" if name == "exists" else ""
            raise outline.at(index - 1, f"unknown function {name}{hint}")
        self._check_arguments(name, index)

    def _check_arguments(self, name: str, index: int) -> None:
        arguments = self._arguments(index)
        if name.startswith("regexp_"):
            self._check_expression(name, index, arguments)
        elif name in {"list_sort", "list_reverse_sort", "interval", "duration"}:
            self._check_literals(name, index, arguments[name.startswith("list_") :])
        elif name in INTERVAL_FUNCTIONS | {"substring", "substr"}:
            self._check_numbers(name, index, arguments)
        elif name in {"repeat", "lpad", "rpad"}:
            self._multiply(index, self._integer_argument(index, name, arguments, 1))
        elif name == "split_part":
            if not all(map(self._operand_types.is_only_text, arguments[:2])):
                raise self._outline.at(index, "wrap the argument of split_part in string(…); found")
        elif name == "range":
            self._check_range(index, arguments)
        elif name == "cast":
            self._check_cast(index, arguments)
        elif name in {"label", "labels"} and not (len(arguments) == 1 and self._is_matched(arguments[0])):
            raise self._outline.at(index, f"{name} needs a variable of a pattern; found")

    def _is_matched(self, span: range) -> bool:
        return len(span) == 1 and self._operand_types.is_matched(span[0])

    def _check_literals(self, name: str, index: int, arguments: list[range]) -> None:
        if any(not isinstance(self._constant(span), str) for span in arguments):
            raise self._outline.at(index, f"{name} needs literals; found")

    def _check_numbers(self, name: str, index: int, arguments: list[range]) -> None:
        """Check lengths and intervals; negative lengths and the smallest interval crash the engine."""
        if name in INTERVAL_FUNCTIONS:
            value = abs(self._integer_argument(index, name, arguments, 0))
        else:
            value = self._integer_argument(index, name, arguments, 2) if len(arguments) > 2 else 0  # noqa: PLR2004 - the length
        if not 0 <= value <= MAX_INTERVAL_UNITS:
            raise self._outline.at(index, f"{name} takes a number from 0 to {MAX_INTERVAL_UNITS}; found")

    def _check_expression(self, name: str, index: int, arguments: list[range]) -> None:
        if arguments and not self._operand_types.is_only_text(arguments[0]):
            raise self._outline.at(index, f"wrap the argument of {name} in string(…); found")
        if len(arguments) > 1:
            self._check_pattern(index, arguments[1])
        if name == "regexp_replace":
            self._check_replacement(index, arguments)
        elif name.startswith("regexp_extract") and arguments[2:] and not self._is_digit(name, index, arguments):
            raise self._outline.at(index, "the group of a regular expression must be from 0 to 9; found")

    def _is_digit(self, name: str, index: int, arguments: list[range]) -> bool:
        return self._integer_argument(index, name, arguments, 2) in range(10)

    def _check_range(self, index: int, arguments: list[range]) -> None:
        first, last = (
            self._integer_argument(index, "range", arguments, 0),
            self._integer_argument(index, "range", arguments, 1),
        )
        step = self._integer_argument(index, "range", arguments, 2) if len(arguments) > 2 else 1  # noqa: PLR2004 - it has one
        if step == 0:
            raise self._outline.at(index, "range needs a step other than 0")
        # Counted alike in the wrong direction: there the engine requests memory for 2^64 minus that many values.
        self.range_values += abs(last - first) // abs(step) + 1
        if self.range_values > MAX_RANGE_VALUES:
            raise self._outline.at(index, f"all ranges together may have at most {MAX_RANGE_VALUES} values; exceeded")

    def _multiply(self, index: int, factor: int) -> None:
        self._text_growth *= max(factor, 1)
        if factor < 0 or self._text_growth > MAX_RANGE_VALUES:
            what = f"texts may be repeated or padded 0 to {MAX_RANGE_VALUES} times in total; found"
            raise self._outline.at(index, what)

    def _check_operator(self, index: int, symbol: str) -> None:
        """Check `=~` and slices, which misread operands of other types, and factorials, which never end."""
        outline, before = self._outline, index - 1
        if symbol == "!":
            raise outline.at(index, "factorials are not supported; found")
        if symbol == "=~":
            self._check_pattern(index, range(index + 1, index + 2))
            if not self._operand_types.is_text(before):
                raise outline.at(index, "wrap the left side of =~ in string(…); found")
        elif self._is_slice(index) and not (self._operand_types.is_text(before) or self._operand_types.is_list(before)):
            what = "only a value known to be a list or a text can be sliced, such as string(…) or collect(…)"
            raise outline.at(index, f"{what}; found")

    def _is_slice(self, index: int) -> bool:
        """Return whether a bracket opens a slice like ``[1:2]``, not a list or a relation."""
        outline = self._outline
        return outline.is_subscript(index) and outline.word(index - 1) not in KEYWORDS and outline.has_own(index, ":")

    def _check_pattern(self, index: int, span: range) -> None:
        """Check a regular expression; values of other types crash the engine."""
        expression = self._constant(span)
        if not isinstance(expression, str):
            raise self._outline.at(index, "a regular expression must be a literal or a parameter; found")
        token = self._outline.tokens[span.start]
        if token.kind == "string":
            expression = decode_string_literal(self._outline.text, token)
        if fault := find_re2_syntax_error(expression):
            raise self._outline.at(span.start, f"this regular expression is invalid in RE2: {fault}. Found")

    def _check_replacement(self, index: int, arguments: list[range]) -> None:
        value = self._constant(arguments[2]) if len(arguments) > 2 else ""  # noqa: PLR2004 - text, pattern, replacement
        if not isinstance(value, str) or len(value) > MAX_REPLACEMENT_CHARS:
            what = (
                f"the replacement must be a literal or a parameter of at most {MAX_REPLACEMENT_CHARS} characters; found"
            )
            raise self._outline.at(index, what)

    def _check_cast(self, index: int, arguments: list[range]) -> None:
        outline = self._outline
        if len(arguments) == 2:  # noqa: PLR2004 - CAST(value, "TYPE")
            value = self._constant(arguments[1])
            match = _CAST_TYPE_PATTERN.fullmatch(value.upper()) if isinstance(value, str) else None
            if match is None or match[1] not in CAST_TYPES:
                raise outline.at(index, "CAST needs the name of a simple type")
            return
        own = [at for at in (arguments[0] if arguments else ())[1:] if outline.opener[at] == index]
        start = max((at for at in own if outline.tokens[at].text.upper() == "AS"), default=-1) + 1
        if start == 0:
            raise outline.at(index, "CAST needs AS and a type")
        name = outline.tokens[start].text.upper() if start < len(outline) else ""
        if name not in CAST_TYPES:
            raise outline.at(start, f"CAST does not support {name or 'an empty type'}; found")
        self._check_array(start + 1, arguments[-1].stop)

    def _check_array(self, start: int, end: int) -> None:
        outline, size, dimensions = self._outline, 1, 0
        for index in range(start, end):
            token = outline.tokens[index]
            dimensions += token.text == "["
            if token.kind == "number" and outline.bracket(index) == "[":
                size *= int(token.text) if token.text.isdecimal() else MAX_ARRAY_VALUES + 1
            if size > MAX_ARRAY_VALUES or dimensions > MAX_ARRAY_DIMENSIONS:
                what = f"arrays may have {MAX_ARRAY_VALUES} values and {MAX_ARRAY_DIMENSIONS} dimensions; exceeded"
                raise outline.at(index, what)

    def _check_lambda(self, index: int) -> None:
        outline = self._outline
        opener = outline.opener[index]
        name = outline.calls(opener) if opener >= 0 else ""
        arguments = self._arguments(opener) if name in LAMBDA_FUNCTIONS else []
        if len(arguments) < 2 or index not in arguments[1][1:]:  # noqa: PLR2004 - the second one
            raise outline.at(index, "only list_transform and list_filter accept a lambda, as their second argument;")
        start = arguments[1].start
        variables = {outline.tokens[at].text for at in range(start, index) if outline.name(at)}
        if index - start != 1 and not (outline.symbol(start) == "(" and outline.partner[start] == index - 1):
            raise outline.at(start, "a lambda must be written x -> … or (x, y) -> …; found")
        self._check_body(name, variables, range(index + 2, arguments[1].stop))

    def _check_body(self, name: str, variables: set[str], body: range) -> None:
        outline = self._outline
        for index in body:
            if outline.calls(index) in BUILDER_FUNCTIONS:
                raise outline.at(index, f"{outline.calls(index)} cannot be used inside a lambda; found")
            if name == "list_filter" or not self._is_variable(index):
                continue
            text = outline.tokens[index].text
            if text not in variables and not self._is_bound(index):
                raise outline.at(index, f"the lambda of {name} cannot use the outer variable {text}; found")

    def _is_variable(self, index: int) -> bool:
        outline = self._outline
        is_alone = outline.symbol(index - 1) != "." and outline.symbol(index + 1) not in {":", "."}
        return is_alone and outline.is_variable(index)

    def _is_bound(self, index: int) -> bool:
        """Return whether an enclosing lambda binds the variable at this token."""
        outline, text = self._outline, self._outline.tokens[index].text
        opener = outline.opener[index]
        while opener >= 0:
            if outline.calls(opener) in LAMBDA_FUNCTIONS and (arguments := self._arguments(opener))[1:]:
                start = arguments[1].start
                head = outline.partner[start] if outline.symbol(start) == "(" else start
                if any(token.text == text for token in outline.tokens[start : head + 1]):
                    return True
            opener = outline.opener[opener]
        return False

    def _arguments(self, index: int) -> list[range]:
        """Return the token range of each argument of the call that opens at an index."""
        end = self._outline.partner[index]
        return self._outline.items(index + 1, end) if end > index + 1 else []

    def _constant(self, span: range) -> Any:
        """Return the value of a literal or a parameter; None for anything else."""
        found = self._outline.tokens[span.start : span.stop]
        if len(found) == 2 and found[0].text == "-" and found[1].text.isdecimal():  # noqa: PLR2004 - sign and number
            return -int(found[1].text[:20])
        if len(found) != 1:
            return None
        token = found[0]
        if token.kind == "parameter":
            self.met_values = True
            return self._parameters.get(token.text[1:])
        if token.kind == "string":
            return token.text[1:-1]
        return int(token.text[:20]) if token.kind == "number" and token.text.isdecimal() else None

    def _integer_argument(self, index: int, name: str, arguments: list[range], number: int) -> int:
        value = self._constant(arguments[number]) if number < len(arguments) else None
        if not isinstance(value, int) or isinstance(value, bool):
            what = f"{name} needs integer literals or parameters"
            raise self._outline.at(index, f"{what}; found")
        return value


_TEXT_RESULT_FUNCTIONS = """
string to_string lower lcase tolower upper ucase toupper trim ltrim rtrim substring substr left right reverse concat
regexp_replace lpad rpad repeat split_part
"""
TEXT_RESULT_FUNCTIONS = frozenset(_TEXT_RESULT_FUNCTIONS.split())
_LIST_RESULT_FUNCTIONS = """
collect nodes rels relationships range regexp_split_to_array list_filter list_transform list_append list_prepend
list_concat list_cat list_distinct list_sort list_reverse list_reverse_sort
"""
LIST_RESULT_FUNCTIONS = frozenset(_LIST_RESULT_FUNCTIONS.split())
_TEXT_PROPERTIES = frozenset({"id", "type", "content", "attributes", "relation_type"})


class _OperandTypes:
    """Syntactic type information about the operand that ends at a given token.

    Some operators of the engine treat any operand as a text or list: `=~` on a timestamp, a slice of a large integer,
    `label` of a map. They are allowed only for operands of a known type.
    """

    def __init__(self, outline: BracketMatchedTokens, parameters: Mapping[str, Any]) -> None:
        self._outline = outline
        self._parameters = parameters
        self._aliases: dict[str, list[int]] = {}
        self._elements: set[str] = set()
        for index in range(len(outline)):
            name = outline.name(index)
            if name and outline.word(index - 1) == "AS":
                self._aliases.setdefault(name, []).append(index - 2)
            elif outline.is_lambda(index):
                start = outline.partner.get(index - 1, index - 1)
                self._elements.update(outline.name(at) for at in range(start, index))

    def is_matched(self, index: int) -> bool:
        """Return whether a token is a variable bound by a pattern and by nothing else."""
        name = self._outline.name(index)
        return bool(name) and name not in self._aliases and name not in self._elements

    def is_text(self, end: int) -> bool:
        """Return whether a text ends here: a literal, a text property, or a call that returns a text."""
        token = self._outline.tokens[end]
        if token.kind == "string":
            return True
        if token.kind == "parameter":
            return isinstance(self._parameters.get(token.text[1:]), str)
        if self._outline.symbol(end) == ")":
            return self._called(end) in TEXT_RESULT_FUNCTIONS
        is_property = self._outline.symbol(end - 1) == "." and self._outline.symbol(end - 3) != "."
        return is_property and self._outline.name(end) in _TEXT_PROPERTIES and self.is_matched(end - 2)

    def is_only_text(self, span: range) -> bool:
        """Return whether all these tokens form one text."""
        end = span.stop - 1
        first = self._outline.partner.get(end, end + 1) - 1 if self._outline.symbol(end) == ")" else end
        if self._outline.symbol(end - 1) == ".":
            first = end - 2
        return first == span.start and self.is_text(end)

    def is_list(self, end: int) -> bool:
        """Return whether a list ends here: a literal, a slice, a call that returns a list, or a list variable."""
        outline, token = self._outline, self._outline.tokens[end]
        if token.kind == "parameter":
            return isinstance(self._parameters.get(token.text[1:]), list)
        if outline.symbol(end) == ")":
            return self._called(end) in LIST_RESULT_FUNCTIONS
        if outline.symbol(end) == "]":
            start = outline.partner[end]
            return outline.symbol(start - 1) in {"(", ",", "+", "="} or outline.word(start - 1) in KEYWORDS
        name = outline.name(end)
        defined = self._aliases.get(name, []) if outline.symbol(end - 1) != "." else []
        return bool(defined) and name not in self._elements and all(map(self._makes_list, defined))

    def _makes_list(self, end: int) -> bool:
        token = self._outline.tokens[end]
        return (token.kind == "parameter" or token.text in {")", "]"}) and self.is_list(end)

    def _called(self, end: int) -> str:
        return self._outline.calls(self._outline.partner[end])


MAX_OPERATORS = 600
MAX_CASE_DEPTH = 8
MAX_LAMBDA_DEPTH = 3
MAX_CLAUSES = 100
MAX_UNIONS = 20
MAX_OPTIONAL_MATCHES = 20
MAX_SUBQUERIES = 8
MAX_JOINED_RELATIONS = 10
MAX_STATEMENT_RELATIONS = 30
MAX_STATEMENT_PATTERNS = 100
MAX_VALUE_GROWTH = 64

_BUILDER_PREFIXES = ("list_", "struct_", "map", "concat", "coalesce")
_COMPARISON_SYMBOLS = frozenset({"=", "<>", "<", ">", "<=", ">="})
_WORDS_AFTER_NULL = KEYWORDS - {"IN", "STARTS", "ENDS", "CONTAINS", "IS"}
_WORDS_BEFORE_NULL = frozenset({"WHERE", "AND", "OR", "XOR", "NOT", "WHEN", "RETURN", "WITH", "CASE"})
# Constant for a pattern with a single label.
_CONSTANT_LABEL_FUNCTIONS = frozenset({"label", "labels"})
_OPERATOR_SYMBOLS = frozenset({"+", "-", "*", "/", "%", "^", "|", "&", "<<", ">>", ".", "=", "<", ">", "!", "=~"})


def check_statement_size_limits(outline: BracketMatchedTokens) -> None:
    """Raise InvalidInput for a statement that exceeds a limit."""
    _check_count(outline, _operators(outline), MAX_OPERATORS, "operators")
    _check_count(outline, _words(outline, CLAUSES), MAX_CLAUSES, "clauses")
    _check_count(outline, _words(outline, frozenset({"UNION"})), MAX_UNIONS, "UNIONs")
    _check_count(outline, _words(outline, frozenset({"OPTIONAL"})), MAX_OPTIONAL_MATCHES, "OPTIONAL MATCHes")
    _check_count(outline, _subqueries(outline), MAX_SUBQUERIES, "subqueries")
    relations = filter(outline.is_relation, range(len(outline)))
    _check_count(outline, relations, MAX_STATEMENT_RELATIONS, "relations in its patterns")
    _check_count(
        outline, _patterns(outline), MAX_STATEMENT_PATTERNS, "patterns; give many rows as a parameter and UNWIND it"
    )
    _check_relations(outline)
    _check_cases(outline)
    _check_functions(outline)


def compute_value_duplication_factor(outline: BracketMatchedTokens) -> int:
    """Return the largest factor by which a value can be duplicated: ``WITH [a, a] AS b`` doubles it.

    Raises InvalidInput above 64, because the engine does not limit the memory of lists.
    """
    total = 1
    mentions: Counter[str] = Counter()
    for index in range(len(outline)):
        if outline.word(index) == "WITH" and outline.opener[index] < 0:
            total *= max(mentions.values(), default=1)
            mentions.clear()
        elif _is_copied(outline, index):
            mentions[outline.name(index)] += 1
        if total * max(mentions.values(), default=1) > MAX_VALUE_GROWTH:
            raise outline.at(index, f"values are duplicated more than {MAX_VALUE_GROWTH} times; found")
    return total * max(mentions.values(), default=1)


def _check_count(outline: BracketMatchedTokens, found: Iterator[int], most: int, what: str) -> None:
    for count, index in enumerate(found):
        if count >= most:
            raise outline.at(index, f"a statement may have at most {most} {what}; the first one too many is")


def _operators(outline: BracketMatchedTokens) -> Iterator[int]:
    for index, token in enumerate(outline.tokens):
        is_symbol = token.kind == "symbol" and (token.text in _OPERATOR_SYMBOLS or outline.is_subscript(index))
        if is_symbol or outline.words[index] in OPERATOR_WORDS:
            yield index


def _words(outline: BracketMatchedTokens, words: frozenset[str]) -> Iterator[int]:
    return (index for index, word in enumerate(outline.words) if word in words)


def _subqueries(outline: BracketMatchedTokens) -> Iterator[int]:
    return (i for i in range(len(outline)) if outline.symbol(i) == "{" and outline.word(i - 1) in {"EXISTS", "COUNT"})


def _patterns(outline: BracketMatchedTokens) -> Iterator[int]:
    for index in range(len(outline)):
        if outline.symbol(index) == "(" and outline.opener[index] < 0 and outline.symbol(index - 1) in {",", "="}:
            yield index


def _check_relations(outline: BracketMatchedTokens) -> None:
    """Check the number of relations joined before the next WITH or UNION; those of CREATE do not count."""
    count = 0
    for index in range(len(outline)):
        if outline.word(index) in {"WITH", "UNION"} and outline.is_clause(index):
            count = 0
        elif outline.is_relation(index) and find_enclosing_clause_keyword(outline, index) != "CREATE":
            count += 1
            if count > MAX_JOINED_RELATIONS:
                raise outline.at(
                    index, f"at most {MAX_JOINED_RELATIONS} relations may be joined at once; put a WITH before the one"
                )


def _check_cases(outline: BracketMatchedTokens) -> None:
    depth = 0
    for index, word in enumerate(outline.words):
        depth = depth + 1 if word == "CASE" else max(0, depth - (word == "END"))
        if depth > MAX_CASE_DEPTH:
            raise outline.at(index, f"CASE may be nested at most {MAX_CASE_DEPTH} deep; exceeded")


def _check_functions(outline: BracketMatchedTokens) -> None:
    """Check the nesting of lambdas; each level multiplies the parser's time."""
    depths: dict[int, int] = {-1: 0}
    for index in range(len(outline)):
        if outline.symbol(index) not in {"(", "[", "{"}:
            continue
        nests = outline.calls(index) in LAMBDA_FUNCTIONS
        depths[index] = depths[outline.opener[index]] + nests
        if depths[index] > MAX_LAMBDA_DEPTH:
            raise outline.at(index, f"lambdas may be nested at most {MAX_LAMBDA_DEPTH} deep; exceeded")


def _is_copied(outline: BracketMatchedTokens, index: int) -> bool:
    """Return whether a variable as a whole becomes part of a list, a map, a text or a call's result here."""
    if not outline.is_variable(index):
        return False
    before, after = outline.symbol(index - 1), outline.symbol(index + 1)
    if before == "." or after in {".", ":"}:
        return False
    opener = outline.opener[index]
    inside = outline.bracket(index)
    if (inside == "[" and not outline.is_relation(opener)) or inside == "{":
        return True
    return "+" in {before, after} or outline.calls(opener).startswith(_BUILDER_PREFIXES)


def check_untyped_nulls(outline: BracketMatchedTokens, parameters: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a literal or parameter null without a type, which crashes the engine."""
    for index in range(len(outline)):
        if _is_null(outline, index, parameters) and not _is_safe(outline, index):
            name = outline.tokens[index].text
            raise outline.at(
                index, f"{name} is null without a type; write CAST(NULL AS STRING), or use it in a comparison; found"
            )
    _check_branches(outline, parameters)


def _is_null(outline: BracketMatchedTokens, index: int, parameters: Mapping[str, Any]) -> bool:
    token = outline.tokens[index]
    if token.kind == "parameter":
        return parameters.get(token.text[1:], False) is None
    return outline.words[index] == "NULL"


def _is_safe(outline: BracketMatchedTokens, index: int) -> bool:
    before, after = outline.word(index - 1), outline.word(index + 1)
    if before == "IS" or (before == "NOT" and outline.word(index - 2) == "IS"):
        return True
    if outline.calls(outline.opener[index]) == "cast" and outline.tokens[index + 1].text.upper() in {"AS", ","}:
        return outline.symbol(index - 1) == "("
    if before in {"THEN", "ELSE"}:
        return after in {"WHEN", "ELSE", "END"}
    if outline.symbol(index - 1) in _COMPARISON_SYMBOLS:
        return _ends(outline, index + 1)
    if _is_column(outline, index):
        return True
    begins = before in _WORDS_BEFORE_NULL or (outline.symbol(index - 1) == "(" and not outline.calls(index - 1))
    return begins and (after == "IS" or (outline.symbol(index + 1) in _COMPARISON_SYMBOLS and before != "CASE"))


def _is_column(outline: BracketMatchedTokens, index: int) -> bool:
    """Return whether a null is a whole column of WITH or RETURN, which the analysis gives a type."""
    if outline.opener[index] != -1 or outline.tokens[index].kind == "parameter":
        return False
    begins = outline.word(index - 1) in {"RETURN", "WITH", "DISTINCT"} or outline.symbol(index - 1) == ","
    after = outline.word(index + 1)
    ends = index + 1 >= len(outline) or after in CLAUSE_ENDS | {"AS"} or outline.symbol(index + 1) == ","
    return begins and ends and find_enclosing_clause_keyword(outline, index) in {"RETURN", "WITH"}


def _ends(outline: BracketMatchedTokens, index: int) -> bool:
    """Return whether an expression ends before this token."""
    ends = outline.symbol(index) in {")", ",", "]", "}", "|"} or outline.word(index) in _WORDS_AFTER_NULL
    return ends or index >= len(outline)


def _check_branches(outline: BracketMatchedTokens, parameters: Mapping[str, Any]) -> None:
    """Reject a CASE whose branches are all null, because it has no type."""
    typed: list[bool] = []
    for index, word in enumerate(outline.words):
        if word == "CASE":
            typed.append(False)
        elif word in {"THEN", "ELSE"} and typed:
            typed[-1] = typed[-1] or not (index + 1 < len(outline) and _is_null(outline, index + 1, parameters))
        elif word == "END" and typed and not typed.pop():
            raise outline.at(index, "a CASE with only nulls has no type; it ends")


def check_wrong_result_constructs(outline: BracketMatchedTokens) -> None:
    """Raise InvalidInput for constructs that the engine silently evaluates incorrectly, with an alternative."""
    for index, token in enumerate(outline.tokens):
        if token.kind == "quoted" and "``" in token.text:
            raise outline.at(index, "the engine does not read `` within a quoted name as a backtick; found")
    for index, word in enumerate(outline.words):
        if word == "WHERE" and find_enclosing_clause_keyword(outline, index) == "MATCH":
            _check_conditions(outline, index + 1, _end(outline, index))
        elif word in {"RETURN", "WITH"} and outline.is_clause(index):
            _check_aggregates(outline, index + 1, _end(outline, index))
        elif word == "IN":
            _check_slice(outline, index)


def find_enclosing_clause_keyword(outline: BracketMatchedTokens, where: int) -> str:
    """Return the word that begins the clause around a token; empty if outside a clause."""
    opener = outline.opener[where]
    before = (at for at in range(where - 1, opener, -1) if outline.opener[at] == opener and outline.is_clause(at))
    return next((outline.word(at) for at in before if outline.word(at) in CLAUSES), "")


def _end(outline: BracketMatchedTokens, start: int) -> int:
    """Return the token index before which a clause ends."""
    opener = outline.opener[start]
    limit = outline.partner[opener] if opener >= 0 else len(outline)
    own = (at for at in range(start + 1, limit) if outline.opener[at] == opener and outline.is_clause(at))
    return next((at for at in own if outline.word(at) in CLAUSE_ENDS), limit)


def _check_conditions(outline: BracketMatchedTokens, start: int, end: int) -> None:
    """Reject conditions on parameters alone in the WHERE of MATCH, which the engine treats as true."""
    for span in _and_operands(outline, start, end):
        start, last = span.start, span.stop - 1
        if outline.symbol(start) == "(" and outline.partner[start] == last:
            _check_conditions(outline, start + 1, last)
        elif any(outline.tokens[at].kind == "parameter" for at in span) and not any(
            _depends_on(outline, at) for at in span
        ):
            raise outline.at(
                start,
                "the engine ignores a condition that depends only on parameters; put it after a WITH, as in"
                " MATCH (n) WITH n WHERE $wanted. Found",
            )


def _and_operands(outline: BracketMatchedTokens, start: int, end: int) -> Iterator[range]:
    """Yield the token ranges between ANDs."""
    opener, cases = outline.opener[start] if start < end else -1, 0
    for index in range(start, end):
        word = outline.word(index)
        cases += (word == "CASE") - (word == "END")
        if word == "AND" and outline.opener[index] == opener and not cases:
            yield range(start, index)
            start = index + 1
    if start < end:
        yield range(start, end)


def _depends_on(outline: BracketMatchedTokens, index: int) -> bool:
    """Return whether a token is a variable that differs by row."""
    is_key = outline.symbol(index + 1) == ":" and outline.bracket(index) == "{"
    return (
        outline.is_variable(index)
        and not is_key
        and outline.calls(outline.opener[index]) not in _CONSTANT_LABEL_FUNCTIONS
    )


def _check_aggregates(outline: BracketMatchedTokens, start: int, end: int) -> None:
    """Reject aggregates after one with DISTINCT next to a grouping key; the engine loses their values."""
    calls = [at for at in range(start, end) if outline.calls(at) in AGGREGATE_FUNCTIONS]
    distinct = [at for at in calls if outline.word(at + 1) == "DISTINCT"]
    lost = [at for at in calls if distinct and at > distinct[0] and at not in distinct]
    has_key = any(item.isdisjoint(calls) for item in map(set, outline.items(start, end)))
    if lost and has_key:
        raise outline.at(
            lost[0] - 1,
            "the engine loses aggregates that follow one with DISTINCT; put those with DISTINCT last,"
            " or each kind in a separate WITH. Found",
        )


def _check_slice(outline: BracketMatchedTokens, index: int) -> None:
    """Reject a slice directly after IN, which the engine applies to the result of IN."""
    at = index + 1
    while at + 1 < len(outline) and outline.symbol(at + 1) == ".":
        at += 2
    at = outline.partner.get(at, at) + 1
    if outline.symbol(at) == "[" and outline.has_own(at, ":"):
        raise outline.at(index, "put a slice after IN in parentheses, as in IN (list[1:2]); the IN is")
