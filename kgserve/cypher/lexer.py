"""Cypher text cut into tokens, as Kùzu 0.11.3 cuts it, with its brackets matched.

Where the two could still differ, the engine does not get to choose: `guard.examine` passes on a text without comments
and with plain spaces, and characters that mean something to the engine but are not known here are refused.

First the words, by what they do, in upper case; and the functions and types that a text may name. Functions that read
files or change anything are left out, and those that fail the engine: docs/adr/0022 says how.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from kgserve.errors import FieldError, Forbidden, InvalidInput

FIRST_READING_WORDS = frozenset({"MATCH", "OPTIONAL", "UNWIND", "WITH", "RETURN", "CALL"})
"""What a reading statement may begin with."""

WRITE_CLAUSES = frozenset({"CREATE", "MERGE", "SET", "DELETE", "DETACH"})
"""Clauses that change rows."""

_FORBIDDEN_WORDS_TEXT = """
LOAD COPY EXPORT IMPORT ATTACH USE INSTALL UNINSTALL UPDATE EXTENSION DATABASE
BEGIN COMMIT ROLLBACK CHECKPOINT TRANSACTION COMMIT_SKIP_CHECKPOINT ROLLBACK_SKIP_CHECKPOINT
DROP ALTER RENAME ADD TABLE MACRO SEQUENCE COMMENT PROFILE PROJECT PROJECT_GRAPH HINT MULTI_JOIN
"""
FORBIDDEN_WORDS = frozenset(_FORBIDDEN_WORDS_TEXT.split())
"""Words of statements that read or write files, change settings or tables, or end the transaction around them."""

_OTHER_KEYWORDS_TEXT = """
ACYCLIC ALL AND ANY AS ASC ASCENDING BY CASE CAST COLUMN CONTAINS COUNT CYCLE DBTYPE DECIMAL DEFAULT DESC
DESCENDING DISTINCT ELSE END ENDS EXISTS EXPLAIN EXTERNAL FALSE FORCE FROM GLOB GRAPH GROUP HEADERS IF IN
INCREMENT IS JOIN KEY L_SKIP LIMIT LOGICAL MAP MAXVALUE MINVALUE NO NODE NONE NOT NULL ON ONLY OR ORDER PASSWORD
PRIMARY RDFGRAPH READ REL ROLE SHORTEST SINGLE SKIP START STARTS STRUCT THEN TO TRAIL TRUE TYPE UNION USER WHEN
WHERE WRITE WSHORTEST XOR YIELD
"""
KEYWORDS = FIRST_READING_WORDS | WRITE_CLAUSES | FORBIDDEN_WORDS | frozenset(_OTHER_KEYWORDS_TEXT.split())
"""All words with a meaning of their own to the engine, and some that only look so."""

OPERATOR_WORDS = frozenset({"AND", "OR", "XOR", "NOT", "IN", "IS", "STARTS", "ENDS", "CONTAINS"})
"""Words that make an expression deeper for the engine."""

_BEFORE_PARENTHESIS_TEXT = """
ACYCLIC AND AS BY CALL CASE CONTAINS CREATE DELETE DISTINCT ELSE IN LIMIT MATCH MERGE NOT ON OR RETURN SET SHORTEST
SKIP THEN TRAIL UNWIND WHEN WHERE WITH WSHORTEST XOR
"""
BEFORE_PARENTHESIS = frozenset(_BEFORE_PARENTHESIS_TEXT.split())
"""Words that a parenthesis may follow without being called."""

QUANTIFIERS = frozenset({"ALL", "ANY", "NONE", "SINGLE"})

CLAUSES = frozenset({"MATCH", "UNWIND", "WITH", "RETURN", "CALL", "CREATE", "MERGE", "SET", "DELETE", "UNION"})
"""Words that begin a clause."""
CLAUSE_ENDS = CLAUSES | {"OPTIONAL", "DETACH", "ORDER", "SKIP", "LIMIT", "WHERE", "ON"}
"""Words before which a clause or a part of it ends."""

AGGREGATE_FUNCTIONS = frozenset({"avg", "collect", "count", "max", "min", "sum"})

_GRAPH_FUNCTIONS = (
    "end_node id is_acyclic is_trail keys label labels length nodes properties rels relationships start_node"
)
_NUMBER_FUNCTIONS = """
abs acos asin atan atan2 bitshift_left bitshift_right bitwise_and bitwise_or bitwise_xor cbrt ceil ceiling cos cot
degrees even floor gamma lgamma ln log log10 log2 negate pi pow radians round sign sin sqrt tan
"""
_TEXT_FUNCTIONS = """
concat concat_ws contains ends_with lcase left lower lpad ltrim md5 octet_length prefix regexp_extract
regexp_extract_all regexp_matches regexp_replace regexp_split_to_array repeat reverse right rpad rtrim
sha256 size split_part starts_with string substr substring suffix to_string tolower toupper trim ucase upper
"""
_LIST_FUNCTIONS = """
array_cosine_similarity array_distance array_dot_product array_inner_product array_squared_distance
list_any_value list_append list_cat list_concat list_contains list_distinct list_element list_extract list_filter
list_has list_has_all list_indexof list_position list_prepend list_product list_reverse list_reverse_sort
list_sort list_sum list_to_string list_transform list_unique range
"""
_MAP_FUNCTIONS = "cardinality element_at map map_extract map_keys map_values struct_extract struct_pack"
_TIME_FUNCTIONS = """
century current_date current_timestamp date date_part date_trunc datepart datetrunc dayname duration epoch_ms interval
last_day make_date monthname timestamp to_days to_epoch_ms to_hours to_milliseconds to_minutes to_months
to_seconds to_timestamp to_years
"""
JSON_FUNCTIONS = frozenset({"json_array_length", "json_contains", "json_extract", "json_valid", "to_json"})
"""Ladybug has none of them: they are in an extension that it would have to fetch."""
_CAST_FUNCTIONS = """
cast coalesce gen_random_uuid greatest hash ifnull least nullif typeof uuid to_bool to_date to_double to_float to_int128
to_int16 to_int32 to_int64 to_int8 to_uint16 to_uint32 to_uint64 to_uint8
"""

_ALLOWED_FUNCTIONS_TEXT = (
    f"{_GRAPH_FUNCTIONS} {_NUMBER_FUNCTIONS} {_TEXT_FUNCTIONS} {_LIST_FUNCTIONS} {_MAP_FUNCTIONS} {_TIME_FUNCTIONS} "
    f"{_CAST_FUNCTIONS}"
)
ALLOWED_FUNCTIONS = AGGREGATE_FUNCTIONS | JSON_FUNCTIONS | frozenset(_ALLOWED_FUNCTIONS_TEXT.split())
"""Functions, in lower case."""

LAMBDA_FUNCTIONS = frozenset({"list_filter", "list_transform"})
"""The only ones that take a function; in any other place one crashes the engine."""

BUILDER_FUNCTIONS = frozenset(
    {"list_append", "list_cat", "list_concat", "list_prepend", "map", "range", "repeat", "lpad", "rpad"}
)
"""Their results can be larger than what they are given."""

ALLOWED_PROCEDURES = frozenset(
    {"db_version", "show_connection", "show_functions", "show_indexes", "show_tables", "table_info"}
)
"""What CALL may name: it changes nothing and shows no path."""

_CAST_TYPES_TEXT = """
BOOL BOOLEAN DATE DOUBLE FLOAT FLOAT8 FLOAT4 INT INT8 INT16 INT32 INT64 INT128 INTEGER BIGINT SMALLINT STRING
TIMESTAMP UINT8 UINT16 UINT32 UINT64 UUID DECIMAL
"""
CAST_TYPES = frozenset(_CAST_TYPES_TEXT.split())
"""What CAST may make, and lists and arrays of these."""

INTERVAL_FUNCTIONS = frozenset(
    {"to_days", "to_hours", "to_milliseconds", "to_minutes", "to_months", "to_seconds", "to_years"}
)


Kind = Literal["word", "quoted", "string", "number", "parameter", "symbol", "comment", "space"]


class Token(msgspec.Struct, frozen=True):
    """A piece of a text; ``start`` and ``end`` count characters. ``quoted`` is a name in back-ticks, with them."""

    kind: Kind
    text: str
    start: int
    end: int


class Unterminated(InvalidInput):
    """A string, a comment or a name in back-ticks does not end: more text may be to come."""


# Possessive: no part gives back what it took, so that matching is linear. The engine knows no other escapes, and takes
# a string with one for stray characters and code.
_ESCAPE_PATTERN = r"\\(?:[\\'\"bBfFnNrRtT]|[uU][0-9A-Fa-f]{4})"
_TOKEN_PATTERN = re.compile(
    rf"""
    (?P<space>[\s\u180e\ufeff]++)
  | (?P<comment>//[^\n\r]*+|/\*(?s:.*?)\*/)
  | (?P<word>[^\W\d][\w$]*+)
  | (?P<string>'(?:[^'\\]|{_ESCAPE_PATTERN})*+'|"(?:[^"\\]|{_ESCAPE_PATTERN})*+")
  | (?P<quoted>`[^`]++`(?:`[^`]++`)*+)
  | (?P<number>[0-9]++(?:\.[0-9]++)?(?:[eE]-?[0-9]++)?|\.[0-9]++(?:[eE]-?[0-9]++)?)
  | (?P<parameter>\$(?:[^\W\d][\w$]*+|[0-9]++))
  | (?P<symbol>\.\.|<=|>=|<>|!=|=~|<<|>>|/(?!\*)|[-()\[\]{{}}.,:;=<>+*%^|&!])
    """,
    re.VERBOSE,
)
_GAP_KINDS = ("space", "comment")


def scan(text: str) -> Iterator[Token]:
    """All tokens in order, with the spaces and comments between them; they tile the text.

    Raises InvalidInput where none can be: at an unknown character or escape, or what is opened and not closed.
    """
    position = 0
    while position < len(text):
        match = _TOKEN_PATTERN.match(text, position)
        if match is None:
            raise _unreadable(text, position)
        yield Token(match.lastgroup, match[0], position, match.end())  # pyright: ignore[reportArgumentType]
        position = match.end()


def tokens(text: str) -> list[Token]:
    """The tokens that mean something, without spaces and comments. Raises InvalidInput as `scan` does."""
    return [token for token in scan(text) if token.kind not in _GAP_KINDS]


def place(text: str, offset: int) -> str:
    """The place of a character, for people: ``line 2, column 7``."""
    before = text[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - before.rfind(chr(10))}"


def invalid(text: str, offset: int, what: str) -> InvalidInput:
    """The error for a fault at a character of a text."""
    return _at(InvalidInput, text, offset, what)


def _at(kind: type[InvalidInput], text: str, offset: int, what: str) -> InvalidInput:
    message = f"{what} at {place(text, offset)}"
    return kind(message, (FieldError("query", message),))


_QUOTED_THINGS = {"'": "this string", '"': "this string", "`": "this name in back-ticks"}
_VALID_QUOTED_PREFIXES = {quote: re.compile(rf"{quote}(?:[^{quote}\\]|{_ESCAPE_PATTERN})*+") for quote in "'\""}


def _unreadable(text: str, offset: int) -> InvalidInput:
    character = text[offset]
    if text.startswith("/*", offset):
        return _at(Unterminated, text, offset, "this comment does not end: it begins")
    if text.startswith("``", offset):
        return invalid(text, offset, "a name in back-ticks cannot be empty")
    if (
        (sound := _VALID_QUOTED_PREFIXES.get(character))
        and (match := sound.match(text, offset))
        and match.end() < len(text)
    ):
        return invalid(text, match.end(), "unknown escape in a string; a backslash is written \\\\")
    if character in _QUOTED_THINGS:
        return _at(Unterminated, text, offset, f"{_QUOTED_THINGS[character]} does not end: it begins")
    if character == "$":
        return invalid(text, offset, "a parameter needs a name right after $,")
    return invalid(text, offset, f"unexpected character {character!a}")


MAX_NESTING = 32
"""Brackets within brackets: the engine's parser crashes at 300 with a stack of 2 MiB, and is slow before."""

_NAME_TOKEN_KINDS = frozenset({"word", "quoted"})
_BRACKET_PAIRS = {"(": ")", "[": "]", "{": "}"}
_STATEMENT_WORDS = FORBIDDEN_WORDS | WRITE_CLAUSES | FIRST_READING_WORDS


class Outline:
    """Tokens by index. ``opener[i]`` is the innermost bracket around one, -1 for none; ``partner`` joins brackets."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        """Match the brackets. Raises InvalidInput for a bracket without its partner, and for deep nesting."""
        self.text = text
        self.tokens = tokens
        self.opener: list[int] = []
        self.partner: dict[int, int] = {}
        self._words = [_upper(token) for token in tokens]
        self._symbols = [token.text if token.kind == "symbol" else "" for token in tokens]
        self._names = [token.text.strip("`").lower() if token.kind in _NAME_TOKEN_KINDS else "" for token in tokens]
        self._match()
        self.words = [
            "" if word in KEYWORDS and self._is_name(index, word) else word for index, word in enumerate(self._words)
        ]
        """Words in upper case; empty for all other tokens, and for keywords that are only names here."""

    def __len__(self) -> int:
        return len(self.tokens)

    def symbol(self, index: int) -> str:
        """The symbol at an index, empty when there is none."""
        return self._symbols[index] if 0 <= index < len(self._symbols) else ""

    def word(self, index: int) -> str:
        """The word at an index in upper case, empty when there is none or it is only a name."""
        return self.words[index] if 0 <= index < len(self.words) else ""

    def bracket(self, index: int) -> str:
        """The innermost bracket around a token, empty for none."""
        return self.symbol(self.opener[index])

    def calls(self, index: int) -> str:
        """The name, in lower case, that the parenthesis at an index calls; empty when it calls nothing."""
        return self.name(index - 1) if self.symbol(index) == "(" else ""

    def name(self, index: int) -> str:
        """The word or quoted name at an index, in lower case, as the engine takes names; empty when there is none."""
        return self._names[index] if 0 <= index < len(self._names) else ""

    def is_variable(self, index: int) -> bool:
        """Whether a name stands there that neither is a keyword nor called."""
        return self.name(index) != "" and self.words[index] not in KEYWORDS and not self.calls(index + 1)

    def is_clause(self, index: int) -> bool:
        """Whether a word is none of STARTS WITH and ENDS WITH, which begin no clause."""
        return self.word(index) != "WITH" or self.word(index - 1) not in {"STARTS", "ENDS"}

    def is_lambda(self, index: int) -> bool:
        """Whether the token is the arrow's dash of ``x -> …``, and not of a pattern."""
        return self.symbol(index) == "-" and self.symbol(index + 1) == ">" and self.symbol(index - 1) not in {"-", "]"}

    def is_subscript(self, index: int) -> bool:
        """Whether a bracket comes right after an expression: an element or a slice of it."""
        if self.symbol(index) != "[" or index == 0:
            return False
        before = self.tokens[index - 1]
        return before.kind in {"word", "quoted", "parameter", "string"} or before.text in {")", "]", "}"}

    def is_relation(self, index: int) -> bool:
        """Whether a relation of a pattern begins there: ``[`` after a dash, or the first of two dashes."""
        symbol = self.symbol(index)
        return (symbol == "[" and self.symbol(index - 1) == "-") or (symbol == "-" and self.symbol(index + 1) == "-")

    def has_own(self, bracket: int, symbol: str) -> bool:
        """Whether a symbol stands directly within a pair of brackets."""
        within = range(bracket + 1, self.partner[bracket])
        return any(self.symbol(at) == symbol and self.opener[at] == bracket for at in within)

    def items(self, start: int, end: int) -> list[range]:
        """What stands between commas, from a token to before another; within brackets only between those of theirs."""
        opener = self.opener[start] if start < len(self) else -1
        commas = [at for at in range(start, end) if self.symbol(at) == "," and self.opener[at] == opener]
        return [range(*each) for each in zip([start, *(at + 1 for at in commas)], [*commas, end], strict=True)]

    def at(self, index: int, what: str) -> InvalidInput:
        """The error for a fault at a token."""
        return invalid(self.text, self.tokens[min(index, len(self.tokens) - 1)].start, what)

    def not_allowed(self, index: int, what: str) -> Forbidden:
        """The refusal of a token, with its place."""
        return Forbidden(self.at(index, what).message)

    def _match(self) -> None:
        open_brackets: list[int] = []
        for index, bracket in enumerate(self._symbols):
            if bracket and bracket in ")]}":
                if not open_brackets or _BRACKET_PAIRS[self.tokens[open_brackets[-1]].text] != bracket:
                    raise self.at(index, f"{bracket} closes nothing")
                self.partner[open_brackets[-1]] = index
                self.partner[index] = open_brackets.pop()
            self.opener.append(open_brackets[-1] if open_brackets else -1)
            if bracket in _BRACKET_PAIRS:
                open_brackets.append(index)
                if len(open_brackets) > MAX_NESTING:
                    raise self.at(index, f"brackets may be nested {MAX_NESTING} deep; this is deeper")
        if open_brackets:
            raise self.at(open_brackets[-1], f"{self.tokens[open_brackets[-1]].text} is not closed: it opens")

    def _is_name(self, index: int, word: str) -> bool:
        before, after = self.symbol(index - 1), self.symbol(index + 1)
        if before == "." or self._is_alias(index):
            return True
        if word not in _STATEMENT_WORDS:
            return after == ":" and self.symbol(self.opener[index]) == "{"
        # No clause can begin after these, nor within parentheses and square brackets.
        return before in {":", ","} or after in {":", "."} or self.symbol(self.opener[index]) in {"(", "["}

    def _is_alias(self, index: int) -> bool:
        """Whether the word follows an AS that can be nothing but that: a variable may be called "as" too."""
        if self._words[max(index - 1, 0)] != "AS" or index == 1:
            return False
        before = self.tokens[index - 2]
        if before.kind == "word" and self.symbol(index - 3) != ".":
            return self._words[index - 2] not in KEYWORDS
        return before.kind != "symbol" or before.text in {")", "]", "}", "*"}


def _upper(token: Token) -> str:
    return token.text.upper() if token.kind == "word" and token.text.isascii() else ""
