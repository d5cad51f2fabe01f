"""Tokenizer for Cypher with the values of literals."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tests.cypher.reference.values import CypherError

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<number>0[xX][0-9a-fA-F]+|0o[0-7]+|(?:\d+\.\d+|\.\d+|\d+)(?:[eE][-+]?\d+)?)
  | (?P<word>[^\W\d]\w*)
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
  | (?P<parameter>\$\w+)
  | (?P<symbol><=|>=|<>|=~|\.\.|\+=|[-+*/%^=<>()\[\]{},.:|$])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "'": "'", '"': '"', "\\": "\\"}


class Token(msgspec.Struct, frozen=True):
    """Piece of a text; `value` is a literal's value, or a name."""

    kind: str
    text: str
    value: Any = None


def tokens(text: str) -> list[Token]:
    """Return the tokens of a statement. Raises CypherError for an invalid token."""
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise CypherError(f"unexpected {text[at]!r}")
        at = match.end()
        if match.lastgroup != "space":
            found.append(Token(match.lastgroup, match[0], _value(match.lastgroup, match[0])))
    return found


def _value(kind: str, text: str) -> Any:
    match kind:
        case "number":
            is_whole = text.startswith(("0x", "0X", "0o")) or text.isdecimal()
            return int(text, 0 if text[:2].lower() in {"0x", "0o"} else 10) if is_whole else float(text)
        case "text":
            return _ESCAPE.sub(_unescaped, text[1:-1])
        case "quoted":
            return text[1:-1].replace("``", "`")
        case _:
            return text.removeprefix("$")


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    if escape not in _ESCAPED:
        raise CypherError(f"unknown escape \\{escape}")
    return _ESCAPED[escape]
