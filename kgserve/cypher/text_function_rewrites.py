"""Text functions: the engines count grapheme clusters and map case character by character.

openCypher counts code points, and ``upper('ﬁ')`` is ``FI``. Texts are split into code points before counting, and case
mappings that the engine lacks make the statement fail.
"""

from __future__ import annotations

import re

from kgserve.cypher.analysis_context import (
    CypherAnalysisContext,
    is_constant_expression,
    rewrite_first_slice_bound,
    strip_parentheses,
)
from kgserve.cypher.syntax_tree import CypherParameter, Expression, FunctionCall, Literal
from kgserve.cypher.types import CypherStaticType

_WHITE_SPACE = r"[\\s\\x{b}\\x{1c}-\\x{1f}\\x{85}\\pZ]+"
"""All Unicode white space, as RE2 syntax within an engine literal."""
_JOINING_CHARACTERS = (
    r"[\\pM\\p{Cf}\\x{e33}\\x{eb3}\\x{1100}-\\x{11ff}\\x{a960}-\\x{a97f}\\x{d7b0}-\\x{d7ff}"
    r"\\x{1f1e6}-\\x{1f1ff}\\x{1f3fb}-\\x{1f3ff}]|\\r\\n"
)
"""Characters that the engines may combine with the preceding or following one."""
_UNSUPPORTED_UPPER_CASE = (
    r"[\\x{149}\\x{1f0}\\x{390}\\x{3b0}\\x{587}\\x{1e96}-\\x{1e9a}\\x{1f50}-\\x{1f56}\\x{1f80}-\\x{1fff}"
    r"\\x{fb00}-\\x{fb17}\\x{2c5f}\\x{a7c0}-\\x{a7da}\\x{a7f6}\\x{10570}-\\x{105bc}]"
)
"""Letters whose upper case has several letters (except ß), or that are too new for the engines."""
_UNSUPPORTED_LOWER_CASE = r"\\x{3a3}(?:\\PL|\\z)|[\\x{2c2f}\\x{a7c0}-\\x{a7da}\\x{a7f5}\\x{10570}-\\x{105bc}]"
"""Sigma at the end of a word, and capital letters that are too new for the engines."""
_ANY_CODE_POINT = "'(?s).'"
_PLAIN_TEXT = re.compile(
    r"[\x20-\x7e\xa1-\xac\xae-\u0148\u014a-\u01ef\u0391-\u03a1\u03b1-\u03c1\u3041-\u3096\u4e00-\u9fff]*"
)
"""Texts in which each code point is one letter with at most one other case."""
_ASCII_TEXT = re.compile(r"[\x20-\x7e]*")
"""Texts that engines slice correctly. For others they return the whole text if a slice begins past its end."""
_NULL_TEXT = "CAST(NULL AS STRING)"
_UNLIMITED_CHARS = 2_000_000
"""More characters than any text of a store can have."""


class StringFunctionRewrites:
    """Rewrites of calls to string functions, whose first argument is a text."""

    def __init__(self, context: CypherAnalysisContext) -> None:
        self._context = context

    def rewrite(self, call: FunctionCall, kinds: list[CypherStaticType]) -> None:
        """Rewrite a call so that it returns openCypher's result."""
        match call.name:
            case "size":
                self._around(call.arguments[0], "regexp_replace(", f", {_ANY_CODE_POINT}, 'a', 'g')")
            case "trim" | "ltrim" | "rtrim":
                self._trim(call)
            case "upper" | "ucase" | "toupper":
                self._map_case(call, "ß", "SS", _UNSUPPORTED_UPPER_CASE)
            case "lower" | "lcase" | "tolower":
                self._map_case(call, "İ", "i\u0307", _UNSUPPORTED_LOWER_CASE)
            case "reverse" if not self._is_plain(call.arguments[0]):
                self._around(call.arguments[0], "list_reverse(regexp_extract_all(", f", {_ANY_CODE_POINT}))")
                self._join(call)
            case "left" | "right":
                self._cut_end(call)
            case "substring" if len(call.arguments) > 1:
                self._cut_middle(call, kinds)
            case "lpad" | "rpad":
                self._pad(call)
            case "split_part":
                self._split(call)
            case _:
                pass

    def _around(self, expression: Expression, opening: str, closing: str) -> None:
        self._context.edits.around(expression.start, expression.end, opening, closing)

    def _is_plain(self, expression: Expression, plain: re.Pattern[str] = _PLAIN_TEXT) -> bool:
        """Return whether a text is known and each code point is a separate letter."""
        inner = strip_parentheses(expression)
        value = inner.value if isinstance(inner, Literal) else None
        if isinstance(inner, CypherParameter):
            value = self._context.parameters.get(inner.name)
            self._context.depends_on_values |= isinstance(value, str)
        return isinstance(value, str) and plain.fullmatch(value) is not None

    def _trim(self, call: FunctionCall) -> None:
        """Trim Unicode white space; the engine only trims ASCII."""
        ends = {
            "trim": (f"^{_WHITE_SPACE}|{_WHITE_SPACE}$", ", 'g'"),
            "ltrim": (f"^{_WHITE_SPACE}", ""),
            "rtrim": (f"{_WHITE_SPACE}$", ""),
        }
        expression, option = ends[call.name]
        self._context.edits.replace(call.start, call.start + 1, "regexp_replace")
        self._context.edits.behind(call.end - 2, f", '{expression}', ''{option}")

    def _map_case(self, call: FunctionCall, letter: str, several: str, unknown: str) -> None:
        """Replace letters that map to several, and fail on those that the engine cannot map."""
        text = call.arguments[0]
        if not self._is_plain(text):
            # Wraps the call, because engines lose texts if a replacement varies by row (`rewrite_first_slice_bound`).
            failing = self._failing(
                text, unknown, f"{call.name}() does not support letters whose other case has several characters"
            )
            self._context.edits.around(call.start, call.end, f"(CASE {failing} WHEN 0 THEN ", " END)")
        self._around(text, "regexp_replace(", f", '{letter}', '{several}', 'g')")

    def _failing(self, text: Expression, unknown: str, what: str) -> str:
        """Return an engine expression that is 0, or fails with ``what`` if the text has unknown letters."""
        written = self._context.text(text)
        return f"CAST(CASE WHEN regexp_matches({written}, '{unknown}') THEN '{what}' ELSE '0' END AS INT64)"

    def _join(self, call: FunctionCall) -> None:
        """Concatenate the code points that a call returns."""
        self._context.edits.replace(call.start, call.start + 1, "list_to_string('', ")
        self._context.edits.replace(call.start + 1, call.start + 2, "")

    def _cut_end(self, call: FunctionCall) -> None:
        """Cut by the engine's letters first, which are at least as many code points, and then by code points."""
        text, count = call.arguments
        if self._is_plain(text):
            return
        self._context.check_one_source(call, (count,))
        number = self._number(count)
        first = "1" if number.isdecimal() else rewrite_first_slice_bound("1", number)
        part = f"[{first}:{number}]" if call.name == "left" else f"[-{number}:]"
        self._context.edits.before(call.start, "list_to_string('', regexp_extract_all(")
        self._context.edits.behind(call.end - 1, f", {_ANY_CODE_POINT}){part})")

    def _cut_middle(self, call: FunctionCall, kinds: list[CypherStaticType]) -> None:
        text, start, *lengths = call.arguments
        edits, first = self._context.edits, self._number(start)
        following = str(int(first) + 1) if first.isdecimal() else f"({first} + 1)"
        if self._is_plain(text, _ASCII_TEXT):
            edits.replace(start.start, start.end, following)
            if not lengths:
                edits.behind(start.end - 1, f", {_UNLIMITED_CHARS}")
            return
        self._context.check_one_source(call, (start, *lengths))
        opening, closing = "list_to_string('', regexp_extract_all(", f", {_ANY_CODE_POINT})"
        if lengths:
            end = f"({first} + {self._number(lengths[0])})"
            edits.replace(call.start, call.start + 1, f"{opening}left")
            edits.replace(start.start, lengths[0].end, end)
            edits.behind(call.end - 1, f"{closing}[{following}:{end}])")
            return
        edits.replace(call.start, call.start + 1, opening.removesuffix("("))
        edits.replace(start.start, start.end, _ANY_CODE_POINT)
        edits.behind(call.end - 1, f"[{following}:{_UNLIMITED_CHARS}])")
        if kinds[1].is_nullable:
            edits.around(call.start, call.end, f"(CASE WHEN {first} IS NULL THEN {_NULL_TEXT} ELSE ", " END)")

    def _number(self, expression: Expression) -> str:
        inner = strip_parentheses(expression)
        if isinstance(inner, Literal):
            return str(inner.value)
        return f"({self._context.text(expression)})"

    def _split(self, call: FunctionCall) -> None:
        _, separator, number = call.arguments
        if not is_constant_expression(number):
            # Same workaround as `rewrite_first_slice_bound`, for a text.
            self._around(separator, "(", f" + repeat('', 0 * ({self._context.text(number)})))")

    def _pad(self, call: FunctionCall) -> None:
        """Fail if the text has letters of several code points, which the engine counts as one."""
        text, count, filler = call.arguments
        failing = [
            self._failing(each, _JOINING_CHARACTERS, f"{call.name}() does not support combining characters")
            for each in (text, filler)
            if not self._is_plain(each)
        ]
        if failing:
            self._around(count, "(", f" + {' + '.join(failing)})")
