"""Validation of regular expressions for RE2: the engines silently return false for invalid ones."""

from __future__ import annotations

import re

MAX_REPETITIONS = 1_000
_MINOR_CATEGORIES = {"L": "ultmo", "M": "cen", "N": "dlo", "P": "cdseifo", "S": "mcko", "Z": "slp", "C": "cfo"}
_SCRIPTS = "Arabic Armenian Bengali Cyrillic Devanagari Georgian Greek Han Hangul Hebrew Hiragana Katakana Latin Thai"
_UNICODE_CATEGORIES = frozenset(
    [
        *_MINOR_CATEGORIES,
        *(major + minor for major, minors in _MINOR_CATEGORIES.items() for minor in minors),
        *re.findall(r"\w+", _SCRIPTS),
    ]
)
_REGEX_PART = re.compile(
    r"""
    (?P<set>\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\])
  | (?P<category>\\[pP](?:\{\^?(?P<braced>\w*)\}|(?P<letter>.)))
  | (?P<quoted>\\Q.*?(?:\\E|\Z))
  | (?P<escape>\\(?:x\{[0-9A-Fa-f]+\}|.))
  | (?P<flags>\(\?[imsU]*(?:-[imsU]+)?(?P<ends>[:)]))
  | (?P<named>\(\?P<\w+>)
  | (?P<special>\(\?)
  | (?P<possessive>[*+?}]\+)
  | (?P<count>\{(?P<least>\d+)(?:,(?P<most>\d*))?\})
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SET_PART = re.compile(r"(?P<category>\\[pP](?:\{\^?(?P<braced>\w*)\}|(?P<letter>.)))|(?P<escape>\\.)|\[:\^?[a-z]+:\]")
_ALLOWED_ESCAPES = frozenset("aAbBCdDfnrsStvwWxz0")


def find_re2_syntax_error(expression: str) -> str:
    """Return the fault that RE2 would find in a regular expression; empty if none."""
    simplified: list[str] = []
    for part in _REGEX_PART.finditer(expression):
        if fault := _fault(part):
            return fault
        simplified.append(_simplified(part))
    try:
        re.compile("".join(simplified))
    except re.error as error:
        return f"{error.msg} at character {error.pos + 1}" if error.pos is not None else error.msg
    return ""


def _fault(part: re.Match[str]) -> str:
    match part.lastgroup:
        case "set":
            return next(filter(None, map(_fault_of_escape, _SET_PART.finditer(part[0]))), "")
        case "special":
            return "groups that begin with (?, such as lookahead, are not supported"
        case "possessive":
            return f"{part[0]} is not a valid repetition"
        case "count":
            counts = [int(each) for each in (part["least"], part["most"]) if each]
            return f"at most {MAX_REPETITIONS} repetitions are supported" if max(counts) > MAX_REPETITIONS else ""
        case _:
            return _fault_of_escape(part)


def _fault_of_escape(part: re.Match[str]) -> str:
    name = part["braced"] if part["braced"] is not None else part["letter"]
    is_known = part["category"] is None or name in _UNICODE_CATEGORIES
    if (escape := part["escape"]) and escape[1:2].isalnum() and escape[1] not in _ALLOWED_ESCAPES:
        is_known = False
    return "" if is_known else f"{part[0]} is not supported"


def _simplified(part: re.Match[str]) -> str:
    """Return a form with the same brackets that Python's `re` can compile."""
    match part.lastgroup:
        case "set":
            return _SET_PART.sub(lambda each: each[0] if each["escape"] else "x", part[0]).replace(r"\C", "x")
        case "category":
            return "x"
        case "quoted":
            return re.escape(part[0].removeprefix(r"\Q").removesuffix(r"\E"))
        case "escape":
            return "" if part[0] in {r"\z", r"\A"} else "x" if part[0][1] in "Cx" else part[0]
        case "flags":
            return "(?:" if part["ends"] == ":" else ""
        case _:
            return part[0]
