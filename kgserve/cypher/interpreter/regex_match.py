"""Regular expressions of ``=~`` in the syntax of RE2, as in statements that the engines run.

RE2 takes linear time for every expression, and pyarrow has it. Python's `re` is ten times as fast for a single text;
it matches the expressions whose time is bounded and whose meaning is the same.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from kgserve.cypher.interpreter.value_comparison import describe_value
from kgserve.cypher.re2_validation import find_re2_syntax_error
from kgserve.errors import InvalidInput
from kgserve.platform.lazy_pyarrow import pa, pc

_SAFE_PATTERN = re.compile(
    r"""
    (?P<folds>\(\?i\))?
    (?:
        (?:
            [^\\.*+?()\[\]{}|^$]              # a character
          | \\[.*+?()\[\]{}|^$\\/-]           # an escaped one
          | \.
          | \\d
          | \[\^?[A-Za-z0-9_](?:[A-Za-z0-9_.,:\ ]|-(?!-))*\]
          | \|(?![*+?])                       # an alternative of the whole expression
        )
        [*+?]?
    )*+
    """,
    re.VERBOSE,
)
_UNBOUNDED = re.compile(r"(?<!\\)[*+]")
_MAX_STEPS = 10_000_000


class _RegexProgram(NamedTuple):
    """Checked expression; ``python`` is None if only RE2 may match it."""

    re2: str
    python: re.Pattern[str] | None = None
    folds_case: bool = False
    unbounded: int = 0

    def matches(self, text: str) -> bool:
        """Return whether a whole text matches."""
        if (
            self.python is not None
            and len(text) ** self.unbounded <= _MAX_STEPS
            and (not self.folds_case or text.isascii())
        ):
            return self.python.fullmatch(text) is not None
        return pc.match_substring_regex(pa.scalar(text, pa.large_string()), pattern=self.re2).as_py()


def matches_whole_string_regex(value: Any, pattern: Any) -> bool | None:
    """Return whether a regular expression matches a whole string; null if not a string. Raises InvalidInput."""
    if pattern is None:
        return None
    if type(pattern) is not str:
        raise InvalidInput(f"=~ expects a regular expression as a string, not {describe_value(pattern)}")
    if type(value) is not str:
        return None
    return _compile(pattern).matches(value)


@lru_cache(maxsize=256)
def _compile(pattern: str) -> _RegexProgram:
    if fault := find_re2_syntax_error(pattern):
        raise InvalidInput(f"invalid regular expression: {fault}")
    re2 = rf"\A(?:{pattern})\z"
    safe = _SAFE_PATTERN.fullmatch(pattern)
    if safe is not None and (pattern.isascii() or not safe["folds"]):
        return _RegexProgram(re2, re.compile(pattern, re.ASCII), bool(safe["folds"]), len(_UNBOUNDED.findall(pattern)))
    try:
        pc.match_substring_regex(pa.scalar(""), pattern=re2)
    except (pa.ArrowInvalid, UnicodeError) as error:
        raise InvalidInput(f"invalid regular expression: {pattern}") from error
    return _RegexProgram(re2)
