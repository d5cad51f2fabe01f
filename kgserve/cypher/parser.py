"""Parser for patterns, clauses and whole statements, over the tokens accepted by the guard."""

from __future__ import annotations

from typing_extensions import override

from kgserve.cypher.expression_parser import ExpressionParser
from kgserve.cypher.lexer import BracketMatchedTokens
from kgserve.cypher.syntax_tree import (
    CallClause,
    Clause,
    CreateOrMergeClause,
    DeleteClause,
    Expression,
    MapLiteral,
    MatchClause,
    NodePattern,
    PathLengthBounds,
    PatternPath,
    ProjectionClause,
    ProjectionItem,
    QueryStatement,
    RelationPattern,
    SetClause,
    SetClauseItem,
    UnwindClause,
)

_PATH_MODES = ("ALL", "TRAIL", "ACYCLIC", "SHORTEST", "WSHORTEST")


def parse_cypher_statement_tokens(outline: BracketMatchedTokens) -> QueryStatement:
    """Return the syntax tree of a statement. Raises InvalidInput, with line and column, for invalid syntax."""
    return _StatementParser(outline).query()


class _StatementParser(ExpressionParser):
    """Statement parser; its rules recurse only through brackets."""

    def query(self) -> QueryStatement:
        """Read the whole statement."""
        if self.accept("EXPLAIN"):
            self.accept("LOGICAL")
        parts, is_distinct = [self._part()], False
        while self.accept("UNION"):
            is_distinct = not self.accept("ALL") or is_distinct
            parts.append(self._part())
        if self.at < len(self.outline):
            raise self.fail()
        return QueryStatement(start=0, end=self.at, parts=tuple(parts), is_distinct=is_distinct)

    def _part(self) -> tuple[Clause, ...]:
        clauses: list[Clause] = []
        while self.at < len(self.outline) and self.word() != "UNION":
            clauses.append(self._clause())
        if not clauses:
            raise self.fail()
        return tuple(clauses)

    def _clause(self) -> Clause:  # noqa: PLR0911 - one for each clause
        match self.word():
            case "MATCH" | "OPTIONAL":
                return self.match()
            case "UNWIND":
                return self._unwind()
            case "WITH" | "RETURN":
                return self._projection()
            case "CALL":
                return self._procedure()
            case "CREATE" | "MERGE":
                return self._creation()
            case "SET" | "ON":
                return self._setting()
            case "DELETE" | "DETACH":
                return self._deletion()
            case _:
                raise self.fail()

    @override
    def match(self) -> MatchClause:
        start, is_optional = self.at, self.accept("OPTIONAL")
        self.expect("MATCH")
        paths = self._paths()
        pattern_end = self.at
        where = self.expression() if self.accept("WHERE") else None
        return MatchClause(
            start=start,
            end=self.at,
            is_optional=is_optional,
            paths=paths,
            pattern_end=pattern_end,
            where=where,
        )

    def _paths(self) -> tuple[PatternPath, ...]:
        paths = [self.path()]
        while self.accept(","):
            paths.append(self.path())
        return tuple(paths)

    @override
    def path(self) -> PatternPath:
        start, name = self.at, ""
        if self.symbol() != "(" and self.symbol(1) == "=":
            name = self.name()
            self.expect("=")
        nodes, relations = [self._node()], list[RelationPattern]()
        while self.symbol() in {"-", "<"}:
            relations.append(self._relation())
            nodes.append(self._node())
        return PatternPath(start=start, end=self.at, name=name, nodes=tuple(nodes), relations=tuple(relations))

    def _node(self) -> NodePattern:
        start = self.expect("(")
        name = self._optional_name()
        labels: list[tuple[int, str]] = []
        while self.symbol() in {":", "|"}:
            self.at += 1
            self.accept(":")
            labels.append((self.at, self.name()))
        properties = self._properties()
        self.expect(")")
        return NodePattern(start=start, end=self.at, name=name, labels=tuple(labels), properties=properties)

    def _optional_name(self) -> str:
        is_named = self.at < len(self.outline) and self.outline.name(self.at) != ""
        return self.name() if is_named else ""

    def _properties(self) -> MapLiteral | None:
        return self.map() if self.symbol() == "{" else None

    def _relation(self) -> RelationPattern:
        start, points_left = self.at, self.accept("<")
        self.expect("-")
        bracket, name, properties, length = -1, "", None, None
        types: list[tuple[int, str]] = []
        if self.symbol() == "[":
            bracket = self.expect("[")
            name = self._optional_name()
            while self.symbol() in {":", "|"}:
                self.at += 1
                self.accept(":")
                types.append((self.at, self.name()))
            length = self._length()
            properties = self._properties()
            self.expect("]")
        self.expect("-")
        points_right = self.accept(">")
        direction = {(True, False): "<", (False, True): ">"}.get((points_left, points_right), "")
        return RelationPattern(
            start=start,
            end=self.at,
            name=name,
            bracket=bracket,
            types=tuple(types),
            properties=properties,
            length=length,
            direction=direction,
        )

    def _length(self) -> PathLengthBounds | None:
        if self.symbol() != "*":
            return None
        start = self.expect("*")
        mode = self._mode()
        least = self._number()
        is_range = self.accept("..")
        most = self._number() if is_range else least
        inner, where = list[str](), None
        if self.accept("("):
            inner = [self.name()]
            self.expect(",")
            inner.append(self.name())
            where = self._filter()
        return PathLengthBounds(
            start=start, end=self.at, mode=mode, least=least, most=most, inner=tuple(inner), where=where
        )

    def _mode(self) -> str:
        words: list[str] = []
        while self.word() in _PATH_MODES:
            words.append(self.word())
            self.at += 1
        if words and words[-1] == "WSHORTEST":
            self.expect("(")
            self.name()
            self.expect(")")
        return " ".join(words)

    def _number(self) -> int | None:
        token = self.outline.tokens[self.at] if self.at < len(self.outline) else None
        if token is None or token.kind != "number" or not token.text.isdecimal():
            return None
        self.at += 1
        return int(token.text[:20])

    def _filter(self) -> Expression | None:
        """Read the part after ``(r, n |``: a condition, and the projections of both."""
        where = None
        if self.accept("|"):
            where = self.barred() if self.accept("WHERE") else None
            while self.symbol() in {"|", ",", "{"}:
                at = self.at
                self.at = self.outline.partner[at] + 1 if self.symbol() == "{" else at + 1
        self.expect(")")
        return where

    def _unwind(self) -> UnwindClause:
        start = self.expect("UNWIND")
        source = self.expression()
        self.expect("AS")
        return UnwindClause(start=start, source=source, name=self.name(), end=self.at)

    def _projection(self) -> ProjectionClause:
        start, word = self.at, self.word()
        self.at += 1
        is_distinct = self.accept("DISTINCT")
        star, items = self._items()
        items_end = self.at
        order = self._order()
        order_end, bounds = self.at, self._bounds()
        where_start = self.at
        where = self.expression() if word == "WITH" and self.accept("WHERE") else None
        return ProjectionClause(
            start=start,
            end=self.at,
            word=word,
            is_distinct=is_distinct,
            star=star,
            items=tuple(items),
            items_end=items_end,
            order=tuple(order),
            order_end=order_end,
            bounds=bounds,
            where=where,
            where_start=where_start,
        )

    def _items(self) -> tuple[int, list[ProjectionItem]]:
        star = self.at if self.symbol() == "*" else -1
        if star >= 0:
            self.at += 1
        items: list[ProjectionItem] = []
        if star < 0 or self.accept(","):
            items.append(self._item())
            while self.accept(","):
                items.append(self._item())
        return star, items

    def _item(self) -> ProjectionItem:
        start, value = self.at, self.expression()
        alias = self.name() if self.accept("AS") else ""
        return ProjectionItem(start=start, end=self.at, value=value, alias=alias)

    def _order(self) -> list[ProjectionItem]:
        found: list[ProjectionItem] = []
        if self.accept("ORDER"):
            self.expect("BY")
            found.append(self._sorted())
            while self.accept(","):
                found.append(self._sorted())
        return found

    def _sorted(self) -> ProjectionItem:
        start, value = self.at, self.expression()
        found = next((word for word in ("ASC", "ASCENDING", "DESC", "DESCENDING") if self.accept(word)), "")
        return ProjectionItem(start=start, end=self.at, value=value, alias=found)

    def _bounds(self) -> tuple[Expression, ...]:
        return tuple([self.expression() for word in ("SKIP", "LIMIT") if self.accept(word)])

    def _procedure(self) -> CallClause:
        start, arguments, yields = self.expect("CALL"), list[Expression](), list[str]()
        self.name()
        self.expect("(")
        self.until(")", lambda: arguments.append(self.expression()))
        if self.accept("YIELD"):
            yields.append(self._yielded())
            while self.accept(","):
                yields.append(self._yielded())
        where = self.expression() if self.accept("WHERE") else None
        return CallClause(start=start, end=self.at, arguments=tuple(arguments), yields=tuple(yields), where=where)

    def _yielded(self) -> str:
        name = self.name()
        return self.name() if self.accept("AS") else name

    def _creation(self) -> CreateOrMergeClause:
        start, word = self.at, self.word()
        self.at += 1
        return CreateOrMergeClause(start=start, word=word, paths=self._paths(), end=self.at)

    def _setting(self) -> SetClause:
        start = self.at
        if self.accept("ON") and not (self.accept("CREATE") or self.accept("MATCH")):
            raise self.fail()
        self.expect("SET")
        items = [self._assignment()]
        while self.accept(","):
            items.append(self._assignment())
        return SetClause(start=start, end=self.at, items=tuple(items))

    def _assignment(self) -> SetClauseItem:
        start, target = self.at, self.access()
        self.expect("=")
        value = self.expression()
        return SetClauseItem(start=start, end=self.at, target=target, value=value)

    def _deletion(self) -> DeleteClause:
        start = self.at
        self.accept("DETACH")
        self.expect("DELETE")
        items = [self.expression()]
        while self.accept(","):
            items.append(self.expression())
        return DeleteClause(start=start, end=self.at, items=tuple(items))
