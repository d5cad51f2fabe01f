"""What an expression certainly is, as far as tokens tell.

A few operators of the engine read whatever they are given as if it were a text or a list: `=~` on a timestamp, a slice
of a large integer, `label` of a map. They are let through where the operand cannot be anything else than they expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgserve.cypher.limits import is_lambda
from kgserve.cypher.outline import Outline
from kgserve.cypher.words import KEYWORDS

_TEXT_CALLS = """
string to_string lower lcase tolower upper ucase toupper trim ltrim rtrim substring substr left right reverse concat
regexp_replace lpad rpad repeat split_part
"""
TEXTS = frozenset(_TEXT_CALLS.split())
_LIST_CALLS = """
collect nodes rels relationships range regexp_split_to_array list_filter list_transform list_append list_prepend
list_concat list_cat list_distinct list_sort list_reverse list_reverse_sort
"""
LISTS = frozenset(_LIST_CALLS.split())
_TEXT_PROPERTIES = frozenset({"id", "type", "content", "attributes", "relation_type"})


class Shapes:
    """Questions about the operand that ends with a given token."""

    def __init__(self, outline: Outline, parameters: Mapping[str, Any]) -> None:
        self._outline = outline
        self._parameters = parameters
        self._aliases: dict[str, list[int]] = {}
        self._elements: set[str] = set()
        for index in range(len(outline)):
            name = self._name(index)
            if name and outline.word(index - 1) == "AS":
                self._aliases.setdefault(name, []).append(index - 2)
            elif is_lambda(outline, index):
                start = outline.partner.get(index - 1, index - 1)
                self._elements.update(self._name(at) for at in range(start, index))

    def is_matched(self, index: int) -> bool:
        """Whether a variable that a pattern binds stands here, and nothing else has its name."""
        name = self._name(index)
        return bool(name) and name not in self._aliases and name not in self._elements

    def is_text(self, end: int) -> bool:
        """Whether a text ends here: a literal, a property that holds one, or a call that makes one."""
        token = self._outline.tokens[end]
        if token.kind == "string":
            return True
        if token.kind == "parameter":
            return isinstance(self._parameters.get(token.text[1:]), str)
        if self._outline.symbol(end) == ")":
            return self._called(end) in TEXTS
        is_property = self._outline.symbol(end - 1) == "." and self._outline.symbol(end - 3) != "."
        return is_property and self._name(end) in _TEXT_PROPERTIES and self.is_matched(end - 2)

    def is_only_text(self, start: int, end: int) -> bool:
        """Whether all tokens from one to another, both included, are one text."""
        first = self._outline.partner.get(end, end + 1) - 1 if self._outline.symbol(end) == ")" else end
        if self._outline.symbol(end - 1) == ".":
            first = end - 2
        return first == start and self.is_text(end)

    def is_list(self, end: int) -> bool:
        """Whether a list ends here: a literal, a part of one, a call that makes one, or a variable for only that."""
        outline, token = self._outline, self._outline.tokens[end]
        if token.kind == "parameter":
            return isinstance(self._parameters.get(token.text[1:]), list)
        if outline.symbol(end) == ")":
            return self._called(end) in LISTS
        if outline.symbol(end) == "]":
            start = outline.partner[end]
            return outline.symbol(start - 1) in {"(", ",", "+", "="} or outline.word(start - 1) in KEYWORDS
        defined = self._aliases.get(self._name(end), []) if outline.symbol(end - 1) != "." else []
        return bool(defined) and self._name(end) not in self._elements and all(self._makes_list(at) for at in defined)

    def _makes_list(self, end: int) -> bool:
        token = self._outline.tokens[end]
        return (token.kind == "parameter" or token.text in {")", "]"}) and self.is_list(end)

    def _called(self, end: int) -> str:
        return self._outline.calls(self._outline.partner[end])

    def _name(self, index: int) -> str:
        """The name at an index, lower case, for the engine takes variables so."""
        if not 0 <= index < len(self._outline):
            return ""
        token = self._outline.tokens[index]
        return token.text.strip("`").lower() if token.kind in {"word", "quoted"} else ""
