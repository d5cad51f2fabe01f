"""A statement's tokens with their brackets matched, and names told apart from words that do something."""

from __future__ import annotations

from kgserve.cypher.lexer import Token, invalid
from kgserve.cypher.words import FIRST, FORBIDDEN, KEYWORDS, WRITES
from kgserve.errors import InvalidInput

MAX_NESTING = 32
"""Brackets within brackets: the engine's parser crashes at 300 with a stack of 2 MiB, and is slow before."""

_PAIRS = {"(": ")", "[": "]", "{": "}"}
_ACTING = FORBIDDEN | WRITES | FIRST


class Outline:
    """Tokens by index. ``opener[i]`` is the innermost bracket around one, -1 for none; ``partner`` joins brackets."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        """Match the brackets. Raises InvalidInput for a bracket without its partner, and for deep nesting."""
        self.text = text
        self.tokens = tokens
        self.opener: list[int] = []
        self.partner: dict[int, int] = {}
        self._words = [_upper(token) for token in tokens]
        self._match()
        self.words = [
            "" if word in KEYWORDS and self._is_name(index, word) else word for index, word in enumerate(self._words)
        ]
        """Words in upper case; empty for all other tokens, and for keywords that are only names here."""

    def __len__(self) -> int:
        return len(self.tokens)

    def symbol(self, index: int) -> str:
        """The symbol at an index, empty when there is none."""
        if 0 <= index < len(self.tokens) and self.tokens[index].kind == "symbol":
            return self.tokens[index].text
        return ""

    def word(self, index: int) -> str:
        """The word at an index in upper case, empty when there is none or it is only a name."""
        return self.words[index] if 0 <= index < len(self.words) else ""

    def bracket(self, index: int) -> str:
        """The innermost bracket around a token, empty for none."""
        return self.symbol(self.opener[index])

    def calls(self, index: int) -> str:
        """The name, in lower case, that the parenthesis at an index calls; empty when it calls nothing."""
        token = self.tokens[index - 1] if index > 0 and self.symbol(index) == "(" else None
        if token is None or token.kind not in {"word", "quoted"}:
            return ""
        return token.text.strip("`").lower()

    def at(self, index: int, what: str) -> InvalidInput:
        """The error for a fault at a token."""
        return invalid(self.text, self.tokens[min(index, len(self.tokens) - 1)].start, what)

    def _match(self) -> None:
        open_brackets: list[int] = []
        for index, token in enumerate(self.tokens):
            bracket = token.text if token.kind == "symbol" else ""
            if bracket and bracket in ")]}":
                if not open_brackets or _PAIRS[self.tokens[open_brackets[-1]].text] != bracket:
                    raise self.at(index, f"{bracket} closes nothing")
                self.partner[open_brackets[-1]] = index
                self.partner[index] = open_brackets.pop()
            self.opener.append(open_brackets[-1] if open_brackets else -1)
            if bracket in _PAIRS:
                open_brackets.append(index)
                if len(open_brackets) > MAX_NESTING:
                    raise self.at(index, f"brackets may be nested {MAX_NESTING} deep; this is deeper")
        if open_brackets:
            raise self.at(open_brackets[-1], f"{self.tokens[open_brackets[-1]].text} is not closed: it opens")

    def _is_name(self, index: int, word: str) -> bool:
        before, after = self.symbol(index - 1), self.symbol(index + 1)
        if before == "." or self._is_alias(index):
            return True
        if word not in _ACTING:
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
