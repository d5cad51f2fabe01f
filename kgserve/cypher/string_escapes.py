r"""Escapes of text literals: decoded by openCypher's rules, encoded for the engines.

Both engines drop unknown backslashes: Kùzu stores ``\n`` as ``n``. Literals are therefore decoded and re-encoded with
plain characters, in which only backslashes and the quote are escaped.
"""

from __future__ import annotations

import re

from kgserve.cypher.lexer import CypherToken, build_cypher_syntax_error

_STRING_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPED_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "'": "'", '"': '"', "\\": "\\"}
_MAX_CODE_POINT = 0x10FFFF


def decode_string_literal(text: str, token: CypherToken) -> str:
    """Return the value of a literal. Raises InvalidInput for an escape that openCypher does not define."""
    written = token.text[1:-1]
    if "\\" not in written:
        return written

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        known = _ESCAPED_CHARACTERS.get(match[3]) if code is None else _character(int(code, 16))
        if known is None:
            message = (
                r"unknown escape in a string; use \n \t \r \b \f \' \" \\ or \uXXXX, and write a backslash as \\; found"
            )
            raise build_cypher_syntax_error(text, token.start + 1 + match.start(), message)
        return known

    decoded = _STRING_ESCAPE.sub(character, written).encode("utf-16", "surrogatepass")
    try:
        return decoded.decode("utf-16")
    except UnicodeDecodeError:
        raise build_cypher_syntax_error(
            text,
            token.start,
            r"half of a surrogate pair; an escape such as \uD83D must be followed by its second half; found",
        ) from None


def _character(code: int) -> str | None:
    return chr(code) if 0 < code <= _MAX_CODE_POINT else None


def encode_string_literal(value: str, quote: str) -> str:
    """Return a literal for the engine with the given quote."""
    escaped = value.replace("\\", "\\\\").replace(quote, "\\" + quote)
    return f"{quote}{escaped}{quote}"
