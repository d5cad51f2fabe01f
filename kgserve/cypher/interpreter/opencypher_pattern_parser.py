"""Parser of openCypher patterns."""

from __future__ import annotations

from typing import Any, cast

from typing_extensions import override

from kgserve.cypher.interpreter.opencypher_expression_parser import OpenCypherExpressionParser
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    MapExpression,
    NodePatternElement,
    ParameterReference,
    PathPatternElement,
    QueryExpression,
    RelationshipPatternElement,
)
from kgserve.cypher.interpreter.opencypher_tokenizer import QueryToken

SHORTEST_WORDS = frozenset({"SHORTESTPATH", "ALLSHORTESTPATHS"})
"""Functions around a path of a pattern."""

_SELECTOR_WORDS = frozenset({"SHORTEST", "ANY", "ALL", "WALK", "TRAIL", "ACYCLIC", "SIMPLE", "DIFFERENT", "REPEATABLE"})
_MAX_PATH_LENGTH = 1_000_000_000


class OpenCypherPatternParser(OpenCypherExpressionParser):
    """Parser of openCypher patterns, and of the expressions in them."""

    def parse_paths(self) -> tuple[PathPatternElement, ...]:
        """Parse paths separated by commas."""
        paths = [self.parse_path()]
        while self.skip_symbol(","):
            paths.append(self.parse_path())
        return tuple(paths)

    @override
    def parse_path(self) -> PathPatternElement:
        position, name = self.token.start, ""
        if self.is_name() and self.is_symbol("=", 1):
            name = self.read_variable()
            self.advance()
        shortest = self.token.word.lower() if self.token.word in SHORTEST_WORDS and self.is_symbol("(", 1) else ""
        if shortest:
            self.advance()
            self.advance()
        if self.token.word in _SELECTOR_WORDS:
            self.fail(f"{self.token.word} is not supported here; use shortestPath((a)-[*]->(b)) or allShortestPaths")
        nodes = [self._parse_node()]
        relationships: list[RelationshipPatternElement] = []
        while self.is_symbol("-") or self.is_symbol("<"):
            relationships.append(self._parse_relationship())
            if self.token.kind == "symbol" and self.token.text in {"+", "*", "{"}:
                self.fail("write a variable length in the brackets, as in -[:TYPE*1..3]->")
            nodes.append(self._parse_node())
        if shortest:
            self._check_shortest(shortest, relationships)
            self.expect_symbol(")")
        return PathPatternElement(
            position=position,
            name=name,
            nodes=tuple(nodes),
            relationships=tuple(relationships),
            shortest=cast("Any", shortest),
        )

    def _check_shortest(self, shortest: str, relationships: list[RelationshipPatternElement]) -> None:
        function = "shortestPath" if shortest == "shortestpath" else "allShortestPaths"
        if len(relationships) != 1:
            self.fail(f"{function}() takes a pattern of exactly one relationship, as in (a)-[*]->(b)")
        lengths = relationships[0].lengths
        if lengths is not None and lengths[0] is not None and lengths[0] > 1:
            self.fail(f"{function}() supports no minimal length other than 0 or 1")

    def _parse_node(self) -> NodePatternElement:
        position = self.expect_symbol("(", "a node, as in (n:Label)").start
        name = self._read_element_name()
        labels: tuple[str, ...] = ()
        is_any = False
        if self.is_symbol(":"):
            labels, is_any = self.parse_labels()
        properties = self._parse_properties()
        where = self._parse_inline_where()
        self.expect_symbol(")")
        return NodePatternElement(
            position=position, name=name, labels=labels, is_any=is_any, properties=properties, where=where
        )

    def _read_element_name(self) -> str:
        return self.read_variable() if self.is_name() and self.token.word != "WHERE" else ""

    def _parse_properties(self) -> MapExpression | ParameterReference | None:
        if self.is_symbol("{"):
            return self.parse_map()
        if self.token.kind == "parameter":
            token = self.advance()
            return ParameterReference(position=token.start, name=token.text)
        return None

    def _parse_inline_where(self) -> QueryExpression | None:
        return self.parse_delimited() if self.skip_word("WHERE") else None

    def _parse_relationship(self) -> RelationshipPatternElement:
        position = self.token.start
        points_left = self.skip_symbol("<")
        self.expect_symbol("-")
        element = (
            self._parse_brackets(position) if self.is_symbol("[") else RelationshipPatternElement(position=position)
        )
        self.expect_symbol("-", "as in (a)-[r:TYPE]->(b)")
        points_right = self.skip_symbol(">")
        direction = "" if points_left == points_right else "<" if points_left else ">"
        return RelationshipPatternElement(
            position=position,
            name=element.name,
            types=element.types,
            properties=element.properties,
            lengths=element.lengths,
            direction=direction,
            where=element.where,
        )

    def _parse_brackets(self, position: int) -> RelationshipPatternElement:
        self.expect_symbol("[")
        name = self._read_element_name()
        types = self._parse_types() if self.is_symbol(":") else ()
        lengths = self._parse_lengths() if self.skip_symbol("*") else None
        if self.is_symbol("..") or self.token.kind == "integer":
            self.fail("a variable length begins with *, as in -[:TYPE*1..3]->")
        properties = self._parse_properties()
        where = self._parse_inline_where()
        self.expect_symbol("]")
        return RelationshipPatternElement(
            position=position, name=name, types=types, properties=properties, lengths=lengths, where=where
        )

    def _parse_types(self) -> tuple[str, ...]:
        start = self.token
        types, is_any = self.parse_labels()
        if len(types) > 1 and not is_any:
            self.fail("a relationship has exactly one type; write alternatives as :A|B", start)
        return types

    def _parse_lengths(self) -> tuple[int | None, int | None]:
        start = self.token
        least = self._read_bound()
        if not self.skip_symbol(".."):
            if self.token.kind in {"float", "parameter"} or self.is_symbol("-"):
                self.fail("the bounds of a variable length are integers that are not negative, as in *1..3")
            return least, least
        most = self._read_bound()
        if self.is_symbol("..") or self.is_symbol("-") or self.token.kind in {"float", "parameter"}:
            self.fail("the bounds of a variable length are integers that are not negative, as in *1..3", start)
        return least, most

    def _read_bound(self) -> int | None:
        if self.token.kind != "integer":
            return None
        token = self.advance()
        return min(int(token.number), _MAX_PATH_LENGTH)

    # Looking ahead

    @override
    def find_path_end(self, index: int) -> int:
        end = self._find_node_end(index)
        if end < 0 or (after := self._find_relationship_end(end)) < 0:
            return -1
        while after >= 0:
            end = self.closers[after] + 1
            after = self._find_relationship_end(end)
        return end

    def _find_node_end(self, index: int) -> int:
        """Return the index after a node that begins at a token; -1 if it is an expression in parentheses."""
        if not self._is_symbol_at(index, "("):
            return -1
        first, second = self._token_at(index + 1), self._token_at(index + 2)
        if first.kind in {"word", "quoted"}:
            is_node = second.kind == "parameter" or second.word == "WHERE" or _is_one_of(second, "):{")
        else:
            is_node = _is_one_of(first, "):{")
        return self.closers[index] + 1 if is_node else -1

    def _find_relationship_end(self, index: int) -> int:
        """Return the index of the parenthesis after a relationship that begins at a token; -1 if none begins there."""
        at = index + 1 if self._is_symbol_at(index, "<") else index
        if not self._is_symbol_at(at, "-"):
            return -1
        at += 1
        if self._is_symbol_at(at, "["):
            if not self._is_relationship(at):
                return -1
            at = self.closers[at] + 1
        elif self._token_at(at).start != self._token_at(at - 1).end:
            return -1  # a - -b
        if not self._is_symbol_at(at, "-"):
            return -1
        at += 2 if self._is_symbol_at(at + 1, ">") else 1
        return at if self._is_symbol_at(at, "(") else -1

    def _is_relationship(self, index: int) -> bool:
        first, second = self._token_at(index + 1), self._token_at(index + 2)
        if first.kind in {"word", "quoted"}:
            return second.kind == "parameter" or second.word == "WHERE" or _is_one_of(second, "]:{*")
        return first.kind == "parameter" or _is_one_of(first, "]:{*")

    def _token_at(self, index: int) -> QueryToken:
        return self.tokens[min(index, len(self.tokens) - 1)]

    def _is_symbol_at(self, index: int, symbol: str) -> bool:
        token = self._token_at(index)
        return token.kind == "symbol" and token.text == symbol


def _is_one_of(token: QueryToken, symbols: str) -> bool:
    return token.kind == "symbol" and token.text in symbols
