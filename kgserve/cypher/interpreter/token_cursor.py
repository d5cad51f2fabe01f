"""Cursor over the tokens of a statement, with the errors of a parser."""

from __future__ import annotations

from typing import NoReturn

from kgserve.cypher.interpreter.opencypher_tokenizer import QueryToken, TokenizedCypherQuery, build_query_syntax_error
from kgserve.errors import InvalidInput

_RESERVED_WORDS_TEXT = (
    "TRUE FALSE NULL CASE WHEN THEN ELSE NOT AND OR XOR IN IS AS CONTAINS STARTS ENDS WHERE RETURN WITH MATCH OPTIONAL"
    " CREATE MERGE SET DELETE DETACH REMOVE UNWIND UNION DISTINCT"
)
RESERVED_WORDS = frozenset(_RESERVED_WORDS_TEXT.split())
"""Words that are no variable without backticks."""


class TokenCursor:
    """Cursor of a parser over tokens: reads them in order, and looks ahead."""

    def __init__(self, query: TokenizedCypherQuery) -> None:
        self.text = query.text
        self.tokens = query.tokens
        self.closers = query.closers
        self.last_bars = query.last_bars
        self.index = 0
        self.token = query.tokens[0]

    def advance(self) -> QueryToken:
        """Return the current token and move past it."""
        token = self.token
        self.seek(self.index + 1)
        return token

    def seek(self, index: int) -> None:
        """Move to a token, at most the last."""
        self.index = min(index, len(self.tokens) - 1)
        self.token = self.tokens[self.index]

    def peek(self, offset: int = 1) -> QueryToken:
        """Return a token after the current one; the last if there are fewer."""
        return self.tokens[min(self.index + offset, len(self.tokens) - 1)]

    def is_symbol(self, symbol: str, offset: int = 0) -> bool:
        """Return whether a token is a symbol."""
        token = self.peek(offset) if offset else self.token
        return token.kind == "symbol" and token.text == symbol

    def is_word(self, word: str, offset: int = 0) -> bool:
        """Return whether a token is a word, given in upper case."""
        return (self.peek(offset) if offset else self.token).word == word

    def is_name(self, offset: int = 0) -> bool:
        """Return whether a token can be a name of any kind."""
        return (self.peek(offset) if offset else self.token).kind in {"word", "quoted"}

    def skip_symbol(self, symbol: str) -> bool:
        """Move past a symbol if it is the current token."""
        if self.is_symbol(symbol):
            self.advance()
            return True
        return False

    def skip_word(self, word: str) -> bool:
        """Move past a word if it is the current token."""
        if self.token.word == word:
            self.advance()
            return True
        return False

    def expect_symbol(self, symbol: str, hint: str = "") -> QueryToken:
        """Move past a symbol. Raises InvalidInput if another token is there."""
        if not self.is_symbol(symbol):
            self.fail_expecting(f"'{symbol}'", hint)
        return self.advance()

    def expect_word(self, word: str, hint: str = "") -> QueryToken:
        """Move past a word. Raises InvalidInput if another token is there."""
        if self.token.word != word:
            self.fail_expecting(word, hint)
        return self.advance()

    def read_name(self, what: str) -> str:
        """Return a name that may be a keyword: a property, label, type or alias. Raises InvalidInput."""
        if not self.is_name():
            if self.token.kind == "parameter":
                self.fail(f"a parameter cannot be {what} here")
            self.fail_expecting(what)
        return self.advance().text

    def read_variable(self) -> str:
        """Return the name of a variable. Raises InvalidInput."""
        if self.token.word in RESERVED_WORDS:
            self.fail(f"{self.token.text} is a keyword; put it in backticks to use it as a variable")
        return self.read_name("a variable")

    def make_error(self, message: str, token: QueryToken | None = None) -> InvalidInput:
        """Return an error at a token, by default the current one."""
        return build_query_syntax_error(self.text, (token or self.token).start, message)

    def fail(self, message: str, token: QueryToken | None = None) -> NoReturn:
        """Raise InvalidInput at a token, by default the current one."""
        raise self.make_error(message, token)

    def fail_expecting(self, expected: str, hint: str = "") -> NoReturn:
        """Raise InvalidInput for an unexpected token."""
        raise self.make_unexpected(expected, hint)

    def make_unexpected(self, expected: str, hint: str = "") -> InvalidInput:
        """Return the error for an unexpected token."""
        return self.make_error(f"unexpected {self.describe_token()}, expected {expected}{hint and f' ({hint})'}")

    def describe_token(self) -> str:
        """Return the current token for a message."""
        token = self.token
        return "end of the statement" if token.kind == "end" else f"'{self.text[token.start : token.end][:40]}'"
