"""What a statement calls: an allow-list of functions, and bounds for those that make large values out of small ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kgserve.cypher.functions import ALLOWED, BUILDERS, CALLS, INTERVALS, LAMBDAS, TYPES
from kgserve.cypher.limits import is_lambda, is_subscript
from kgserve.cypher.outline import Outline
from kgserve.cypher.shapes import Shapes
from kgserve.cypher.words import BEFORE_PARENTHESIS, KEYWORDS, QUANTIFIERS
from kgserve.errors import Forbidden

MAX_VALUES = 10_000
"""Values that all ranges of a statement make together, and the factor by which texts are repeated or padded."""
MAX_ARRAY = 2_048
MAX_DIMENSIONS = 4
MAX_REPLACEMENT = 256
MAX_UNITS = 1_000_000
MAX_ROWS = 1_000_000_000

_TYPE = re.compile(r"([A-Z0-9]++)(?:\([0-9]{1,2}, ?[0-9]{1,2}\))?(?:\[\])*")
Span = tuple[int, int]


class Calls:
    """Checks every call of a statement, with the values of its parameters."""

    def __init__(self, outline: Outline, parameters: Mapping[str, Any]) -> None:
        self._outline = outline
        self._parameters = parameters
        self._shapes = Shapes(outline, parameters)
        self.range_values = 0
        # Whether any check went by the value of a parameter.
        self.met_values = False
        self._factor = 1

    def check(self) -> None:
        """Raises InvalidInput or Forbidden for a call that may not be made."""
        for index in range(len(self._outline)):
            if self._outline.word(index) == "CALL":
                self._check_procedure(index)
            elif self._outline.word(index) in {"LIMIT", "SKIP"}:
                self._check_rows(index)
            elif self._outline.symbol(index) == "(":
                self._check_call(index)
            elif self._outline.symbol(index) in {"=~", "[", "!"}:
                self._check_operator(index, self._outline.symbol(index))
            elif is_lambda(self._outline, index):
                self._check_lambda(index)

    def _check_procedure(self, index: int) -> None:
        name = self._outline.calls(index + 2)
        if name not in CALLS:
            message = f"CALL may be followed by one of {', '.join(sorted(CALLS))}; something else is called"
            raise not_allowed(self._outline, index, message)

    def _check_rows(self, index: int) -> None:
        """A large SKIP before a LIMIT crashes the engine: the sum overflows."""
        outline, start = self._outline, index + 1
        if start >= len(outline) or outline.word(start) in KEYWORDS - {"CASE", "NOT", "NULL", "CAST", "COUNT"}:
            return
        value = self._constant((start, start + 1))
        ends = start + 1 >= len(outline) or outline.word(start + 1) in KEYWORDS or outline.symbol(start + 1) == "}"
        if not ends or type(value) is not int or not 0 <= value <= MAX_ROWS:
            raise outline.at(index, f"a literal or a parameter up to {MAX_ROWS} has to follow {outline.word(index)}")

    def _check_call(self, index: int) -> None:
        outline = self._outline
        name = outline.calls(index)
        if not name or outline.word(index - 1) in BEFORE_PARENTHESIS or outline.word(index - 2) == "CALL":
            return
        if outline.word(index - 1) in QUANTIFIERS:
            # It crashes as soon as the lists of all rows of a batch have more than 2,048 elements.
            instead = "size(list_filter(list, x -> condition)) with > 0, = 0, = 1 or = size(list)"
            raise outline.at(index - 1, f"the engine crashes on {name}(… IN …); write {instead}. It stands")
        if name == "decimal" and outline.calls(outline.opener[index]) == "cast":
            return
        if name not in ALLOWED:
            hint = "; it is written EXISTS { MATCH … }" if name == "exists" else ""
            raise outline.at(index - 1, f"there is no function {name} here{hint}")
        self._check_arguments(name, index)

    def _check_arguments(self, name: str, index: int) -> None:
        arguments = self._arguments(index)
        if name.startswith("regexp_"):
            self._check_expression(name, index, arguments)
        elif name in {"list_sort", "list_reverse_sort", "interval", "duration"}:
            self._check_literals(name, index, arguments[name.startswith("list_") :])
        elif name in INTERVALS | {"substring", "substr"}:
            self._check_numbers(name, index, arguments)
        elif name in {"repeat", "lpad", "rpad"}:
            self._multiply(index, self._whole(index, name, arguments, 1))
        elif name == "split_part":
            if any(not self._shapes.is_only_text(start, end - 1) for start, end in arguments[:2]):
                raise self._outline.at(index, "write string(…) around what split_part is to look at; it stands")
        elif name == "range":
            self._check_range(index, arguments)
        elif name == "cast":
            self._check_cast(index, arguments)
        elif name in {"label", "labels"} and not (len(arguments) == 1 and self._is_matched(arguments[0])):
            raise self._outline.at(index, f"{name} needs a variable of a pattern; it is given something else")

    def _is_matched(self, span: Span) -> bool:
        return span[1] == span[0] + 1 and self._shapes.is_matched(span[0])

    def _check_literals(self, name: str, index: int, arguments: list[Span]) -> None:
        if any(not isinstance(self._constant(span), str) for span in arguments):
            raise self._outline.at(index, f"{name} needs literals here; it is given something else")

    def _check_numbers(self, name: str, index: int, arguments: list[Span]) -> None:
        """A negative length and the smallest interval crash the engine."""
        if name in INTERVALS:
            value = abs(self._whole(index, name, arguments, 0))
        else:
            value = self._whole(index, name, arguments, 2) if len(arguments) > 2 else 0  # noqa: PLR2004 - the length
        if not 0 <= value <= MAX_UNITS:
            raise self._outline.at(index, f"{name} takes a number up to {MAX_UNITS}, not this one,")

    def _check_expression(self, name: str, index: int, arguments: list[Span]) -> None:
        if arguments and not self._shapes.is_only_text(arguments[0][0], arguments[0][1] - 1):
            raise self._outline.at(index, f"write string(…) around what {name} is to look at; it stands")
        if len(arguments) > 1:
            self._check_pattern(index, arguments[1])
        if name == "regexp_replace":
            self._check_replacement(index, arguments)
        elif name.startswith("regexp_extract") and arguments[2:] and not self._is_digit(name, index, arguments):
            raise self._outline.at(index, "the group of an expression is from 0 to 9; another is asked for")

    def _is_digit(self, name: str, index: int, arguments: list[Span]) -> bool:
        return self._whole(index, name, arguments, 2) in range(10)

    def _check_range(self, index: int, arguments: list[Span]) -> None:
        first, last = self._whole(index, "range", arguments, 0), self._whole(index, "range", arguments, 1)
        step = self._whole(index, "range", arguments, 2) if len(arguments) > 2 else 1  # noqa: PLR2004 - it has one
        if step == 0:
            raise self._outline.at(index, "range needs a step other than 0")
        # Taken for as many in the wrong direction too: the engine asks for the memory of 2^64 less their number.
        self.range_values += abs(last - first) // abs(step) + 1
        if self.range_values > MAX_VALUES:
            raise self._outline.at(index, f"ranges may have {MAX_VALUES} values together; this one makes it more")

    def _multiply(self, index: int, factor: int) -> None:
        self._factor *= max(factor, 1)
        if factor < 0 or self._factor > MAX_VALUES:
            raise self._outline.at(
                index, f"texts may be repeated or padded {MAX_VALUES} times in all, not more or below 0,"
            )

    def _check_operator(self, index: int, symbol: str) -> None:
        """`=~` and slices take any value for a text or a list, and a factorial never ends."""
        outline, before = self._outline, index - 1
        if symbol == "!":
            raise outline.at(index, "factorials cannot be asked for")
        if symbol == "=~":
            self._check_pattern(index, (index + 1, index + 2))
            if not self._shapes.is_text(before):
                raise outline.at(index, "write string(…) around what =~ is to match; it stands")
        elif self._is_slice(index) and not (self._shapes.is_text(before) or self._shapes.is_list(before)):
            what = "only what is certainly a list or a text can be sliced, such as string(…) or a list from collect(…)"
            raise outline.at(index, f"{what}; something else is")

    def _is_slice(self, index: int) -> bool:
        """Whether a bracket opens ``[1:2]`` after an expression, and not a list or a relation of a pattern."""
        outline = self._outline
        return (
            is_subscript(outline, index)
            and outline.word(index - 1) not in KEYWORDS
            and any(
                outline.symbol(i) == ":" and outline.opener[i] == index
                for i in range(index + 1, outline.partner[index])
            )
        )

    def _check_pattern(self, index: int, span: Span) -> None:
        """Other types for an expression crash it."""
        if not isinstance(self._constant(span), str):
            raise self._outline.at(index, "a regular expression has to be a literal or a parameter; this one is not")

    def _check_replacement(self, index: int, arguments: list[Span]) -> None:
        value = self._constant(arguments[2]) if len(arguments) > 2 else ""  # noqa: PLR2004 - text, pattern, replacement
        if not isinstance(value, str) or len(value) > MAX_REPLACEMENT:
            raise self._outline.at(
                index,
                f"regexp_replace puts in a literal or a parameter of at most {MAX_REPLACEMENT} characters",
            )

    def _check_cast(self, index: int, arguments: list[Span]) -> None:
        outline = self._outline
        if len(arguments) == 2:  # noqa: PLR2004 - CAST(value, "TYPE")
            value = self._constant(arguments[1])
            match = _TYPE.fullmatch(value.upper()) if isinstance(value, str) else None
            if match is None or match[1] not in TYPES:
                raise outline.at(index, "CAST needs the name of a simple type")
            return
        start = _find(outline, *arguments[0], "AS") + 1 if arguments else 0
        if start == 0:
            raise outline.at(index, "CAST needs AS and a type")
        name = outline.tokens[start].text.upper() if start < len(outline) else ""
        if name not in TYPES:
            raise outline.at(start, f"CAST cannot make {name or 'nothing'} here")
        self._check_array(start + 1, arguments[-1][1])

    def _check_array(self, start: int, end: int) -> None:
        outline, size, dimensions = self._outline, 1, 0
        for index in range(start, end):
            token = outline.tokens[index]
            dimensions += token.text == "["
            if token.kind == "number" and outline.bracket(index) == "[":
                size *= int(token.text) if token.text.isdecimal() else MAX_ARRAY + 1
            if size > MAX_ARRAY or dimensions > MAX_DIMENSIONS:
                raise outline.at(
                    index, f"arrays may have {MAX_ARRAY} values and {MAX_DIMENSIONS} dimensions; this has more"
                )

    def _check_lambda(self, index: int) -> None:
        outline = self._outline
        opener = outline.opener[index]
        name = outline.calls(opener) if opener >= 0 else ""
        arguments = self._arguments(opener) if name in LAMBDAS else []
        if len(arguments) < 2 or not arguments[1][0] < index < arguments[1][1]:  # noqa: PLR2004 - the second one
            raise outline.at(index, "only list_transform and list_filter take a function, as their second argument;")
        start, end = arguments[1]
        variables = {token.text for token in outline.tokens[start:index] if token.kind in {"word", "quoted"}}
        if index - start != 1 and not (outline.symbol(start) == "(" and outline.partner[start] == index - 1):
            raise outline.at(start, "a function is written x -> … or (x, y) -> …; this is not")
        self._check_body(name, variables, index + 2, end)

    def _check_body(self, name: str, variables: set[str], start: int, end: int) -> None:
        outline = self._outline
        for index in range(start, end):
            if outline.symbol(index) == "(" and outline.calls(index) in BUILDERS:
                raise outline.at(index, f"{outline.calls(index)} cannot be used on each element of a list")
            if name == "list_filter" or not self._is_variable(index):
                continue
            text = outline.tokens[index].text
            if text not in variables and not self._is_bound(index):
                raise outline.at(index, f"{name} cannot put {text} from outside into each element of a list")

    def _is_variable(self, index: int) -> bool:
        outline, token = self._outline, self._outline.tokens[index]
        return (
            token.kind in {"word", "quoted"}
            and outline.words[index] not in KEYWORDS
            and outline.symbol(index - 1) != "."
            and outline.symbol(index + 1) not in {"(", ":", "."}
        )

    def _is_bound(self, index: int) -> bool:
        """Whether a lambda around this token has the variable."""
        outline, text = self._outline, self._outline.tokens[index].text
        opener = outline.opener[index]
        while opener >= 0:
            if outline.calls(opener) in LAMBDAS and (arguments := self._arguments(opener))[1:]:
                start = arguments[1][0]
                head = outline.partner[start] if outline.symbol(start) == "(" else start
                if any(token.text == text for token in outline.tokens[start : head + 1]):
                    return True
            opener = outline.opener[opener]
        return False

    def _arguments(self, index: int) -> list[Span]:
        """First token and the one after the last, for each argument of the call that opens at an index."""
        outline, end = self._outline, self._outline.partner[index]
        if end == index + 1:
            return []
        commas = [i for i in range(index + 1, end) if outline.symbol(i) == "," and outline.opener[i] == index]
        return list(zip([index + 1, *(comma + 1 for comma in commas)], [*commas, end], strict=True))

    def _constant(self, span: Span) -> Any:
        """The value of a literal or a parameter; None for anything else."""
        found = self._outline.tokens[slice(*span)]
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

    def _whole(self, index: int, name: str, arguments: list[Span], number: int) -> int:
        value = self._constant(arguments[number]) if number < len(arguments) else None
        if not isinstance(value, int) or isinstance(value, bool):
            what = f"{name} needs whole numbers or parameters in place of expressions"
            raise self._outline.at(index, f"{what}, and is given something else")
        return value


def _find(outline: Outline, start: int, end: int, word: str) -> int:
    """The last place of a word directly within a call's argument; -1 when it is not there."""
    opener = outline.opener[start]
    places = (
        i for i in range(end - 1, start, -1) if outline.tokens[i].text.upper() == word and outline.opener[i] == opener
    )
    return next(places, -1)


def not_allowed(outline: Outline, index: int, what: str) -> Forbidden:
    """The refusal of a word, with its place."""
    return Forbidden(outline.at(index, what).message)
