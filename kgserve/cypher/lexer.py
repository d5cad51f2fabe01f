"""Tokenizer for Cypher text, compatible with Kùzu 0.11.3, with matched brackets.

Ambiguities are removed rather than left to the engine: `guard.examine` passes on text without comments and with plain
spaces, and unknown characters are rejected.

The tables list words by role, in upper case, and the allowed functions and types. Functions that access files, have
side effects or crash the engine are excluded; see docs/adr/0022.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from kgserve.errors import FieldError, Forbidden, InvalidInput

FIRST_READING_WORDS = frozenset({"MATCH", "OPTIONAL", "UNWIND", "WITH", "RETURN", "CALL"})
"""Words that may begin a read statement."""

WRITE_CLAUSES = frozenset({"CREATE", "MERGE", "SET", "DELETE", "DETACH"})
"""Clauses that change rows."""

_FORBIDDEN_WORDS_TEXT = """
LOAD COPY EXPORT IMPORT ATTACH USE INSTALL UNINSTALL UPDATE EXTENSION DATABASE
BEGIN COMMIT ROLLBACK CHECKPOINT TRANSACTION COMMIT_SKIP_CHECKPOINT ROLLBACK_SKIP_CHECKPOINT
DROP ALTER RENAME ADD TABLE MACRO SEQUENCE COMMENT PROFILE PROJECT PROJECT_GRAPH HINT MULTI_JOIN
"""
FORBIDDEN_WORDS = frozenset(_FORBIDDEN_WORDS_TEXT.split())
"""Words of statements that access files, change settings or tables, or end the surrounding transaction."""

_OTHER_KEYWORDS_TEXT = """
ACYCLIC ALL AND ANY AS ASC ASCENDING BY CASE CAST COLUMN CONTAINS COUNT CYCLE DBTYPE DECIMAL DEFAULT DESC
DESCENDING DISTINCT ELSE END ENDS EXISTS EXPLAIN EXTERNAL FALSE FORCE FROM GLOB GRAPH GROUP HEADERS IF IN
INCREMENT IS JOIN KEY L_SKIP LIMIT LOGICAL MAP MAXVALUE MINVALUE NO NODE NONE NOT NULL ON ONLY OR ORDER PASSWORD
PRIMARY RDFGRAPH READ REL ROLE SHORTEST SINGLE SKIP START STARTS STRUCT THEN TO TRAIL TRUE TYPE UNION USER WHEN
WHERE WRITE WSHORTEST XOR YIELD
"""
KEYWORDS = FIRST_READING_WORDS | WRITE_CLAUSES | FORBIDDEN_WORDS | frozenset(_OTHER_KEYWORDS_TEXT.split())
"""Words that are or look like keywords of the engine."""

OPERATOR_WORDS = frozenset({"AND", "OR", "XOR", "NOT", "IN", "IS", "STARTS", "ENDS", "CONTAINS"})
"""Words that deepen an expression in the engine's parser."""

_BEFORE_PARENTHESIS_TEXT = """
ACYCLIC AND AS BY CALL CASE CONTAINS CREATE DELETE DISTINCT ELSE IN LIMIT MATCH MERGE NOT ON OR RETURN SET SHORTEST
SKIP THEN TRAIL UNWIND WHEN WHERE WITH WSHORTEST XOR
"""
WORDS_BEFORE_PARENTHESIS = frozenset(_BEFORE_PARENTHESIS_TEXT.split())
"""Words that may precede a parenthesis without being a function name."""

QUANTIFIERS = frozenset({"ALL", "ANY", "NONE", "SINGLE"})

CLAUSES = frozenset({"MATCH", "UNWIND", "WITH", "RETURN", "CALL", "CREATE", "MERGE", "SET", "DELETE", "UNION"})
"""Words that begin a clause."""
CLAUSE_ENDS = CLAUSES | {"OPTIONAL", "DETACH", "ORDER", "SKIP", "LIMIT", "WHERE", "ON"}
"""Words at which a clause or a part of it ends."""

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
"""JSON functions; Ladybug lacks them because they are in an extension that it would have to download."""
_CAST_FUNCTIONS = """
cast coalesce gen_random_uuid greatest hash ifnull least nullif typeof uuid to_bool to_date to_double to_float to_int128
to_int16 to_int32 to_int64 to_int8 to_uint16 to_uint32 to_uint64 to_uint8
"""

_ALLOWED_FUNCTIONS_TEXT = (
    f"{_GRAPH_FUNCTIONS} {_NUMBER_FUNCTIONS} {_TEXT_FUNCTIONS} {_LIST_FUNCTIONS} {_MAP_FUNCTIONS} {_TIME_FUNCTIONS} "
    f"{_CAST_FUNCTIONS}"
)
ALLOWED_FUNCTIONS = AGGREGATE_FUNCTIONS | JSON_FUNCTIONS | frozenset(_ALLOWED_FUNCTIONS_TEXT.split())
"""Allowed functions, in lower case."""

LAMBDA_FUNCTIONS = frozenset({"list_filter", "list_transform"})
"""Functions that accept a lambda; anywhere else a lambda crashes the engine."""

BUILDER_FUNCTIONS = frozenset(
    {"list_append", "list_cat", "list_concat", "list_prepend", "map", "range", "repeat", "lpad", "rpad"}
)
"""Functions whose results may be larger than their arguments."""

ALLOWED_PROCEDURES = frozenset(
    {"db_version", "show_connection", "show_functions", "show_indexes", "show_tables", "table_info"}
)
"""Procedures that CALL may name: free of side effects, and disclosing no paths."""

_CAST_TYPES_TEXT = """
BOOL BOOLEAN DATE DOUBLE FLOAT FLOAT8 FLOAT4 INT INT8 INT16 INT32 INT64 INT128 INTEGER BIGINT SMALLINT STRING
TIMESTAMP UINT8 UINT16 UINT32 UINT64 UUID DECIMAL
"""
CAST_TYPES = frozenset(_CAST_TYPES_TEXT.split())
"""Types that CAST may produce, also as lists and arrays."""

INTERVAL_FUNCTIONS = frozenset(
    {"to_days", "to_hours", "to_milliseconds", "to_minutes", "to_months", "to_seconds", "to_years"}
)


TokenKind = Literal["word", "quoted", "string", "number", "parameter", "symbol", "comment", "space"]


class CypherToken(msgspec.Struct, frozen=True):
    """Token of a Cypher text; ``start`` and ``end`` are character offsets. ``quoted`` is a name with its backticks."""

    kind: TokenKind
    text: str
    start: int
    end: int


class UnterminatedTokenError(InvalidInput):
    """Raised for a string, comment or quoted name without an end; more input may follow."""


# Possessive quantifiers keep matching linear. The engine accepts no other escapes: it would parse the rest of such a
# string as code.
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


def scan_cypher_tokens(text: str) -> Iterator[CypherToken]:
    """Yield all tokens of a Cypher text in order, including spaces and comments; together they cover the text.

    Raises InvalidInput for an unknown character or escape, or an unterminated token.
    """
    position = 0
    while position < len(text):
        match = _TOKEN_PATTERN.match(text, position)
        if match is None:
            raise _scan_error(text, position)
        yield CypherToken(match.lastgroup, match[0], position, match.end())  # pyright: ignore[reportArgumentType]
        position = match.end()


def scan_significant_tokens(text: str) -> list[CypherToken]:
    """Return the tokens of a text without spaces and comments. Raises InvalidInput as `scan_cypher_tokens` does."""
    return [token for token in scan_cypher_tokens(text) if token.kind not in _GAP_KINDS]


def describe_text_position(text: str, offset: int) -> str:
    """Return a readable position in a text, such as ``line 2, column 7``."""
    before = text[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - before.rfind(chr(10))}"


def build_cypher_syntax_error(text: str, offset: int, what: str) -> InvalidInput:
    """Build the error for a syntax fault at a character of a text."""
    return _at(InvalidInput, text, offset, what)


def _at(kind: type[InvalidInput], text: str, offset: int, what: str) -> InvalidInput:
    message = f"{what} at {describe_text_position(text, offset)}"
    return kind(message, (FieldError("query", message),))


_TOKEN_NAMES_BY_QUOTE = {"'": "this string", '"': "this string", "`": "this quoted name"}
_VALID_QUOTED_PREFIXES = {quote: re.compile(rf"{quote}(?:[^{quote}\\]|{_ESCAPE_PATTERN})*+") for quote in "'\""}


def _scan_error(text: str, offset: int) -> InvalidInput:
    character = text[offset]
    if text.startswith("/*", offset):
        return _at(UnterminatedTokenError, text, offset, "this comment is not terminated; it begins")
    if text.startswith("``", offset):
        return build_cypher_syntax_error(text, offset, "a quoted name cannot be empty")
    if (
        (sound := _VALID_QUOTED_PREFIXES.get(character))
        and (match := sound.match(text, offset))
        and match.end() < len(text)
    ):
        return build_cypher_syntax_error(text, match.end(), "unknown escape in a string; write a backslash as \\\\")
    if character in _TOKEN_NAMES_BY_QUOTE:
        return _at(
            UnterminatedTokenError, text, offset, f"{_TOKEN_NAMES_BY_QUOTE[character]} is not terminated; it begins"
        )
    if character == "$":
        return build_cypher_syntax_error(text, offset, "a parameter needs a name directly after $,")
    return build_cypher_syntax_error(text, offset, f"unexpected character {character!a}")


MAX_BRACKET_DEPTH = 32
"""Maximum depth of brackets; the engine's parser crashes at 300 with a 2 MiB stack, and slows down earlier."""

_NAME_TOKEN_KINDS = frozenset({"word", "quoted"})
_BRACKET_PAIRS = {"(": ")", "[": "]", "{": "}"}
_STATEMENT_WORDS = FORBIDDEN_WORDS | WRITE_CLAUSES | FIRST_READING_WORDS


class BracketMatchedTokens:
    """Tokens of a statement, indexed by position, with their matching brackets.

    ``opener[i]`` is the innermost bracket around token i, or -1. ``partner`` maps brackets to their counterparts.
    """

    def __init__(self, text: str, tokens: list[CypherToken]) -> None:
        """Match the brackets. Raises InvalidInput for unbalanced brackets or deep nesting."""
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
        """Words in upper case; empty for other tokens, and for keywords used as names."""

    def __len__(self) -> int:
        return len(self.tokens)

    def symbol(self, index: int) -> str:
        """Return the symbol at an index; empty if it is none."""
        return self._symbols[index] if 0 <= index < len(self._symbols) else ""

    def word(self, index: int) -> str:
        """Return the word at an index in upper case; empty if it is none or only a name."""
        return self.words[index] if 0 <= index < len(self.words) else ""

    def bracket(self, index: int) -> str:
        """Return the innermost bracket around a token; empty if none."""
        return self.symbol(self.opener[index])

    def calls(self, index: int) -> str:
        """Return the lower-case name that the parenthesis at an index calls; empty if it is no call."""
        return self.name(index - 1) if self.symbol(index) == "(" else ""

    def name(self, index: int) -> str:
        """Return the lower-case word or quoted name at an index, without backticks; empty if it is none."""
        return self._names[index] if 0 <= index < len(self._names) else ""

    def is_variable(self, index: int) -> bool:
        """Return whether a token is a name that is neither a keyword nor called."""
        return self.name(index) != "" and self.words[index] not in KEYWORDS and not self.calls(index + 1)

    def is_clause(self, index: int) -> bool:
        """Return whether a word is not part of STARTS WITH or ENDS WITH."""
        return self.word(index) != "WITH" or self.word(index - 1) not in {"STARTS", "ENDS"}

    def is_lambda(self, index: int) -> bool:
        """Return whether a token is the dash in the arrow of ``x -> …``, not in a pattern."""
        return self.symbol(index) == "-" and self.symbol(index + 1) == ">" and self.symbol(index - 1) not in {"-", "]"}

    def is_subscript(self, index: int) -> bool:
        """Return whether a bracket directly follows an expression: a subscript or slice."""
        if self.symbol(index) != "[" or index == 0:
            return False
        before = self.tokens[index - 1]
        return before.kind in {"word", "quoted", "parameter", "string"} or before.text in {")", "]", "}"}

    def is_relation(self, index: int) -> bool:
        """Return whether a relation of a pattern begins here: ``[`` after a dash, or the first of two dashes."""
        symbol = self.symbol(index)
        return (symbol == "[" and self.symbol(index - 1) == "-") or (symbol == "-" and self.symbol(index + 1) == "-")

    def has_own(self, bracket: int, symbol: str) -> bool:
        """Return whether a symbol occurs directly within a pair of brackets."""
        within = range(bracket + 1, self.partner[bracket])
        return any(self.symbol(at) == symbol and self.opener[at] == bracket for at in within)

    def items(self, start: int, end: int) -> list[range]:
        """Return the comma-separated parts of a token range, split only at its own bracket level."""
        opener = self.opener[start] if start < len(self) else -1
        commas = [at for at in range(start, end) if self.symbol(at) == "," and self.opener[at] == opener]
        return [range(*each) for each in zip([start, *(at + 1 for at in commas)], [*commas, end], strict=True)]

    def at(self, index: int, what: str) -> InvalidInput:
        """Return the error for a fault at a token."""
        return build_cypher_syntax_error(self.text, self.tokens[min(index, len(self.tokens) - 1)].start, what)

    def not_allowed(self, index: int, what: str) -> Forbidden:
        """Return the error for a forbidden token, with its position."""
        return Forbidden(self.at(index, what).message)

    def _match(self) -> None:
        open_brackets: list[int] = []
        for index, bracket in enumerate(self._symbols):
            if bracket and bracket in ")]}":
                if not open_brackets or _BRACKET_PAIRS[self.tokens[open_brackets[-1]].text] != bracket:
                    raise self.at(index, f"{bracket} has no opening bracket")
                self.partner[open_brackets[-1]] = index
                self.partner[index] = open_brackets.pop()
            self.opener.append(open_brackets[-1] if open_brackets else -1)
            if bracket in _BRACKET_PAIRS:
                open_brackets.append(index)
                if len(open_brackets) > MAX_BRACKET_DEPTH:
                    raise self.at(index, f"brackets may be nested at most {MAX_BRACKET_DEPTH} deep; exceeded")
        if open_brackets:
            raise self.at(open_brackets[-1], f"{self.tokens[open_brackets[-1]].text} is not closed; it opens")

    def _is_name(self, index: int, word: str) -> bool:
        before, after = self.symbol(index - 1), self.symbol(index + 1)
        if before == "." or self._is_alias(index):
            return True
        if word not in _STATEMENT_WORDS:
            return after == ":" and self.symbol(self.opener[index]) == "{"
        # No clause can begin after these symbols, or within parentheses and square brackets.
        return before in {":", ","} or after in {":", "."} or self.symbol(self.opener[index]) in {"(", "["}

    def _is_alias(self, index: int) -> bool:
        """Return whether the word follows an AS that cannot itself be a variable named "as"."""
        if self._words[max(index - 1, 0)] != "AS" or index == 1:
            return False
        before = self.tokens[index - 2]
        if before.kind == "word" and self.symbol(index - 3) != ".":
            return self._words[index - 2] not in KEYWORDS
        return before.kind != "symbol" or before.text in {")", "]", "}", "*"}


def _upper(token: CypherToken) -> str:
    return token.text.upper() if token.kind == "word" and token.text.isascii() else ""
