"""Tokenizer of openCypher statements: words, names, literals and symbols, with matched brackets."""

from __future__ import annotations

import re
import unicodedata
from math import isinf
from typing import Literal, cast

import msgspec

from kgserve.cypher.lexer import build_cypher_syntax_error
from kgserve.errors import InvalidInput

MAX_QUERY_BYTES = 64 << 10
MAX_QUERY_TOKENS = 20_000
MAX_BRACKET_DEPTH = 100
MAX_INTEGER_MAGNITUDE = 1 << 63

QueryTokenKind = Literal["word", "quoted", "string", "integer", "float", "parameter", "symbol", "end"]


class QueryToken(msgspec.Struct, frozen=True):
    """Token of a Cypher query, from character ``start`` to ``end``.

    ``text`` is the text of a word, the name in backticks, the contents of a string, the name of a parameter or the
    symbol. ``word`` is the text of a word in upper case, otherwise empty. ``number`` is the value of a number; an
    integer may be one larger than 64 bits allow, which only a minus before it makes valid.
    """

    kind: QueryTokenKind
    text: str
    start: int
    end: int
    word: str = ""
    number: int | float = 0


class TokenizedCypherQuery(msgspec.Struct, frozen=True):
    """Tokens of a query, ending with one of kind ``end``.

    ``closers`` maps the index of an opening bracket to that of its closing bracket. ``last_bars`` maps it to the last
    ``|`` directly inside the brackets.
    """

    text: str
    tokens: tuple[QueryToken, ...]
    closers: dict[int, int]
    last_bars: dict[int, int]


def build_query_syntax_error(text: str, position: int, message: str) -> InvalidInput:
    """Build the error for a syntax fault at a character of a query."""
    return build_cypher_syntax_error(text, position, f"{message},")


_QUERY_TOKEN_PATTERN = re.compile(
    r"""
    (?P<space>[\s\u180e\ufeff]++)
  | (?P<comment>//[^\n\r]*+|/\*(?s:.*?)\*/)
  | (?P<word>[^\W\d]\w*+)
  | (?P<float>(?:[0-9]++\.[0-9]++|\.[0-9]++)(?:[eE][+-]?[0-9]++)?|[0-9]++[eE][+-]?[0-9]++)
  | (?P<integer>0[xXoO]\w*+|[0-9]++)
  | (?P<string>'(?:[^'\\]|\\(?s:.))*+'|"(?:[^"\\]|\\(?s:.))*+")
  | (?P<quoted>`(?:[^`]|``)*+`)
  | (?P<parameter>\$(?:\w++|`(?:[^`]|``)*+`))
  | (?P<symbol>\$(?=\s*+\()|\.\.|<=|>=|<>|=~|\+=|!=|==|\|\||&&|/(?!\*)|[-()\[\]{}.,:;=<>+*%^|&!])
    """,
    re.VERBOSE,
)
_NUMBER_REST_PATTERN = re.compile(r"\w+")
_ESCAPE_PATTERN = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(?s:(.)))")
_ESCAPES = {
    "\\": "\\", "'": "'", '"': '"', "`": "`", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_HINTS = {
    "!=": "use <> for inequality instead of !=",
    "==": "use = for equality instead of ==",
    "&&": "use AND instead of &&",
    "||": "use OR for a disjunction and + for a concatenation instead of ||",
}
_CLOSING_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_MAX_CODE_POINT = 0x10FFFF


def tokenize_cypher_statement(text: str) -> TokenizedCypherQuery:
    """Split a statement into tokens, without spaces and comments.

    Raises InvalidInput for unknown characters, invalid literals, brackets that do not match, and a text above the
    limits.
    """
    if len(text) > MAX_QUERY_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_QUERY_BYTES:
        raise build_query_syntax_error(text, 0, f"the statement has more than {MAX_QUERY_BYTES} bytes; it begins")
    tokens: list[QueryToken] = []
    position = 0
    while position < len(text):
        match = _QUERY_TOKEN_PATTERN.match(text, position)
        if match is None:
            raise _describe_unknown(text, position)
        if match.lastgroup not in {"space", "comment"}:
            tokens.append(_make_token(text, match))
        position = match.end()
        if len(tokens) > MAX_QUERY_TOKENS:
            raise build_query_syntax_error(
                text,
                tokens[-1].start,
                f"a statement may have at most {MAX_QUERY_TOKENS} words and symbols; pass large lists as parameters",
            )
    tokens.append(QueryToken("end", "", len(text), len(text)))
    closers, last_bars = _match_brackets(text, tokens)
    return TokenizedCypherQuery(text, tuple(tokens), closers, last_bars)


def _make_token(text: str, match: re.Match[str]) -> QueryToken:
    kind, found, start, end = cast("QueryTokenKind", match.lastgroup), match[0], match.start(), match.end()
    if kind == "word":
        return QueryToken(kind, found, start, end, word=found.upper() if found.isascii() else found)
    if kind == "symbol" and found in _HINTS:
        raise build_query_syntax_error(text, start, _HINTS[found])
    if kind == "string":
        found = _unescape(text, start, found[1:-1])
    elif kind == "quoted":
        found = _unquote(found)
    elif kind == "parameter":
        found = _unquote(found[1:]) if found[1] == "`" else found[1:]
    if kind not in {"integer", "float"}:
        return QueryToken(kind, found, start, end)
    if rest := _NUMBER_REST_PATTERN.match(text, end):
        raise build_query_syntax_error(text, start, f"invalid number {found}{rest[0]}")
    read = _read_float if kind == "float" else _read_integer
    return QueryToken(kind, found, start, end, number=read(text, start, found))


def _unquote(name: str) -> str:
    return name[1:-1].replace("``", "`")


def _read_float(text: str, start: int, found: str) -> float:
    value = float(found)
    if isinf(value):
        raise build_query_syntax_error(text, start, f"the number {found} is too large for a float")
    return value


def _read_integer(text: str, start: int, found: str) -> int:
    base = {"x": 16, "o": 8}.get(found[1:2].lower(), 10)
    digits = found if base == 10 else found[2:]  # noqa: PLR2004 - decimal
    if base == 10 and len(found) > 1 and found[0] == "0":  # noqa: PLR2004 - as above
        raise build_query_syntax_error(
            text, start, f"invalid number {found}; write octal numbers as 0o{found.lstrip('0') or '0'}"
        )
    if len(digits) > 100 and (digits := digits.lstrip("0") or "0") and len(digits) > 100:  # noqa: PLR2004 - see below
        raise build_query_syntax_error(text, start, "the integer is too large for 64 bits")  # and too long to print
    try:
        value = int(digits, base) if digits.isascii() and "_" not in digits else -1
    except ValueError:
        value = -1
    if value < 0:
        raise build_query_syntax_error(text, start, f"invalid number {found}")
    if value > MAX_INTEGER_MAGNITUDE:
        raise build_query_syntax_error(text, start, f"the integer {found} is too large for 64 bits")
    return value


def _unescape(text: str, start: int, contents: str) -> str:
    """Replace the escapes of a string."""
    if "\\" not in contents:
        return contents

    def replace(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        if code is None:
            character = match[3]
            if character in "uU":
                where = start + 1 + match.start()
                raise build_query_syntax_error(
                    text, where, "invalid Unicode escape in a string; write \\uXXXX or \\UXXXXXXXX"
                )
            if character not in _ESCAPES:
                where = start + 1 + match.start()
                raise build_query_syntax_error(
                    text, where, f"unknown escape \\{character} in a string; write a backslash as \\\\"
                )
            return _ESCAPES[character]
        if (value := int(code, 16)) > _MAX_CODE_POINT:
            raise build_query_syntax_error(text, start + 1 + match.start(), f"\\U{code} is no Unicode character")
        return chr(value)

    unescaped = _ESCAPE_PATTERN.sub(replace, contents)
    try:
        # Two escapes may be the halves of one character.
        return unescaped.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise build_query_syntax_error(text, start, "a string holds half of a surrogate pair") from None


def _match_brackets(text: str, tokens: list[QueryToken]) -> tuple[dict[int, int], dict[int, int]]:
    closers: dict[int, int] = {}
    last_bars: dict[int, int] = {}
    openers: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind != "symbol":
            continue
        symbol = token.text
        if symbol in "([{":
            openers.append(index)
            if len(openers) > MAX_BRACKET_DEPTH:
                raise build_query_syntax_error(
                    text, token.start, f"brackets may be nested at most {MAX_BRACKET_DEPTH} deep; exceeded"
                )
        elif symbol in ")]}":
            if not openers:
                raise build_query_syntax_error(text, token.start, f"unexpected '{symbol}', which closes nothing")
            opener = openers.pop()
            if _CLOSING_BRACKETS[tokens[opener].text] != symbol:
                expected = _CLOSING_BRACKETS[tokens[opener].text]
                raise build_query_syntax_error(text, token.start, f"unexpected '{symbol}', expected '{expected}'")
            closers[opener] = index
        elif symbol == "|" and openers:
            last_bars[openers[-1]] = index
    if openers:
        opener = tokens[openers[-1]]
        raise build_query_syntax_error(
            text, opener.start, f"this '{opener.text}' is not closed by '{_CLOSING_BRACKETS[opener.text]}'"
        )
    return closers, last_bars


def _describe_unknown(text: str, position: int) -> InvalidInput:
    character = text[position]
    if text.startswith("/*", position):
        return build_query_syntax_error(text, position, "this comment is not terminated; it begins")
    if character in "'\"":
        return build_query_syntax_error(text, position, "this string is not terminated; it begins")
    if character == "`":
        return build_query_syntax_error(text, position, "this quoted name is not terminated; it begins")
    if character == "$":
        return build_query_syntax_error(text, position, "a parameter needs a name after $")
    hint = "; names with such characters need backticks" if character in "#@~?\\" else ""
    if unicodedata.category(character) in {"Pi", "Pf"}:
        hint = "; put strings into straight quotes"
    return build_query_syntax_error(text, position, f"unexpected character {character!r}{hint}")
