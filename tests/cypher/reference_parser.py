"""Parser for the part of openCypher that the interpreter supports."""

from __future__ import annotations

from typing import Any

from tests.cypher.reference import tree as t
from tests.cypher.reference.values import CypherError, UnmodelledFeature
from tests.cypher.reference_lexer import Token, tokens

_END = Token("end", "")
_COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})
_QUANTIFIERS = frozenset({"ALL", "ANY", "NONE", "SINGLE"})
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}


def parse(text: str) -> t.Statement:
    """Return the tree of a statement. Raises CypherError for bad syntax, or UnmodelledFeature."""
    parser = _Clauses(tokens(text))
    statement = parser.statement()
    if parser.word() == ";" or parser.is_at_end:
        return statement
    raise CypherError(f"unexpected {parser.token.text}")


class _TokenReader:
    """Token stream with a position."""

    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._at = 0

    @property
    def token(self) -> Token:
        """Next token."""
        return self.ahead(0)

    @property
    def is_at_end(self) -> bool:
        """True if no token is left."""
        return self.token.kind == "end"

    def ahead(self, count: int) -> Token:
        """Return a later token."""
        at = self._at + count
        return self._tokens[at] if at < len(self._tokens) else _END

    def word(self, count: int = 0) -> str:
        """Return a word in upper case, or a symbol; empty for other tokens."""
        token = self.ahead(count)
        return token.text.upper() if token.kind in {"word", "symbol"} else ""

    def take(self) -> Token:
        """Consume and return the next token."""
        token = self.token
        self._at += 1
        return token

    def accept(self, *words: str) -> bool:
        """Consume these words if they are next; return whether they were."""
        if any(self.word(n) != word for n, word in enumerate(words)):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Consume these words. Raises CypherError for others."""
        if not self.accept(*words):
            raise CypherError(f"{' '.join(words)} is expected, not {self.token.text!r}")

    def name(self) -> str:
        """Consume and return a name."""
        if self.token.kind not in {"word", "quoted"}:
            raise CypherError(f"a name is expected, not {self.token.text!r}")
        return self.take().value

    def attempt(self, read: Any) -> Any:
        """Return the result of a rule, or None without consuming anything if it fails."""
        at = self._at
        try:
            return read()
        except CypherError:
            self._at = at
            return None


class _Expressions(_TokenReader):
    """Reads expressions, the loosest operators first."""

    def expression(self) -> t.Expression:
        """OR."""
        return self._left(("OR",), lambda: self._left(("XOR",), lambda: self._left(("AND",), self._not)))

    def _left(self, operators: tuple[str, ...], operand: Any) -> t.Expression:
        found = operand()
        while self.word() in operators:
            operator = self.take().text.upper()
            found = t.Binary(operator, found, operand())
        return found

    def _not(self) -> t.Expression:
        return t.Unary("NOT", self._not()) if self.accept("NOT") else self._comparison()

    def _comparison(self) -> t.Expression:
        first, rest = self._predicate(), list[tuple[str, t.Expression]]()
        while self.word() in _COMPARISONS:
            operator = self.take().text
            rest.append((operator, self._predicate()))
        if len(rest) == 1:
            return t.Binary(rest[0][0], first, rest[0][1])
        return t.Chain(first, tuple(rest)) if rest else first

    def _predicate(self) -> t.Expression:
        found = self._sum()
        while True:
            if self.accept("STARTS", "WITH"):
                found = t.Binary("STARTS WITH", found, self._sum())
            elif self.accept("ENDS", "WITH"):
                found = t.Binary("ENDS WITH", found, self._sum())
            elif self.word() in {"CONTAINS", "IN", "=~"}:
                operator = self.take().text.upper()
                found = t.Binary(operator, found, self._sum())
            elif self.accept("IS", "NOT", "NULL"):
                found = t.NullTest(found, is_negated=True)
            elif self.accept("IS", "NULL"):
                found = t.NullTest(found)
            else:
                return found

    def _sum(self) -> t.Expression:
        return self._left(("+", "-"), lambda: self._left(("*", "/", "%"), lambda: self._left(("^",), self._sign)))

    def _sign(self) -> t.Expression:
        if self.word() in {"+", "-"}:
            operator = self.take().text
            if operator == "-" and self.token.kind == "number" and self.ahead(1).text not in {"[", "."}:
                return t.Literal(-self.take().value)
            return t.Unary(operator, self._sign())
        return self._postfix()

    def _postfix(self) -> t.Expression:
        found = self._atom()
        while True:
            if self.accept("."):
                found = t.Property(found, self.name())
            elif self.accept("["):
                found = self._subscript(found)
            elif self.word() == ":" and isinstance(found, t.Variable):
                raise UnmodelledFeature("a label as a predicate")
            else:
                return found

    def _subscript(self, subject: t.Expression) -> t.Expression:
        start = None if self.word() == ".." else self.expression()
        if not self.accept(".."):
            self.expect("]")
            assert start is not None
            return t.Index(subject, start)
        end = None if self.word() == "]" else self.expression()
        self.expect("]")
        return t.Slice(subject, start, end)

    def _atom(self) -> t.Expression:  # noqa: PLR0911 - one line for each kind
        token, word = self.token, self.word()
        if token.kind in {"number", "text"}:
            return t.Literal(self.take().value)
        if token.kind == "parameter":
            return t.Parameter(self.take().value)
        match word:
            case "(":
                return self._parenthesis()
            case "[":
                return self._list()
            case "{":
                return t.MapOf(self.entries())
            case "CASE":
                return self._case()
            case "TRUE" | "FALSE" | "NULL" if self.word(1) != "(":
                self.take()
                return t.Literal(_CONSTANTS[word])
            case _:
                return self._named(word)

    def _parenthesis(self) -> t.Expression:
        pattern = self.attempt(self._pattern_atom)
        if pattern is not None:
            return pattern
        self.expect("(")
        found = self.expression()
        self.expect(")")
        return found

    def _pattern_atom(self) -> t.Expression:
        path = self.path()
        if len(path.elements) == 1:
            raise CypherError("no pattern")
        return t.PatternCount("pattern", path)

    def _list(self) -> t.Expression:
        if self.word(2) == "IN" and self.ahead(1).kind in {"word", "quoted"}:
            found = self.attempt(self._comprehension)
            if found is not None:
                return found
        self.expect("[")
        items: list[t.Expression] = []
        while not self.accept("]"):
            items.append(self.expression())
            if self.word() != "]":
                self.expect(",")
        return t.ListOf(tuple(items))

    def _comprehension(self) -> t.Expression:
        self.expect("[")
        name = self.name()
        self.expect("IN")
        source = self.expression()
        condition = self.expression() if self.accept("WHERE") else None
        result = self.expression() if self.accept("|") else None
        self.expect("]")
        return t.Comprehension(name, source, condition, result)

    def _case(self) -> t.Expression:
        self.expect("CASE")
        subject = None if self.word() == "WHEN" else self.expression()
        branches: list[tuple[t.Expression, t.Expression]] = []
        while self.accept("WHEN"):
            when = self.expression()
            self.expect("THEN")
            branches.append((when, self.expression()))
        default = self.expression() if self.accept("ELSE") else None
        self.expect("END")
        return t.Case(subject, tuple(branches), default)

    def _named(self, word: str) -> t.Expression:
        if word in _QUANTIFIERS and self.word(1) == "(" and self.word(3) == "IN":
            return self._quantifier()
        if word in {"EXISTS", "COUNT"} and self.word(1) == "{":
            return self._subquery()
        name = self.name()
        if not self.accept("("):
            return t.Variable(name)
        if name.lower() == "count" and self.accept("*", ")"):
            return t.CountRows()
        is_distinct = self.accept("DISTINCT")
        arguments: list[t.Expression] = []
        while not self.accept(")"):
            arguments.append(self.expression())
            if self.word() != ")":
                self.expect(",")
        if name.lower() == "size" and len(arguments) == 1 and isinstance(arguments[0], t.PatternCount):
            return t.PatternCount("size", arguments[0].pattern)
        return t.Call(name, tuple(arguments), is_distinct)

    def _quantifier(self) -> t.Expression:
        kind = self.take().text.lower()
        self.expect("(")
        name = self.name()
        self.expect("IN")
        source = self.expression()
        condition: t.Expression = self.expression() if self.accept("WHERE") else t.Literal(value=True)
        self.expect(")")
        return t.Quantifier(kind, name, source, condition)

    def _subquery(self) -> t.Expression:
        form: Any = self.take().text.upper()
        self.expect("{")
        self.accept("MATCH")
        path = self.path()
        where = self.expression() if self.accept("WHERE") else None
        if not self.accept("}"):
            raise UnmodelledFeature("a whole subquery")
        return t.PatternCount(form, path, where)

    def entries(self) -> tuple[tuple[str, t.Expression], ...]:
        """Read a map literal."""
        self.expect("{")
        found: list[tuple[str, t.Expression]] = []
        while not self.accept("}"):
            name = self.name()
            self.expect(":")
            found.append((name, self.expression()))
            if self.word() != "}":
                self.expect(",")
        return tuple(found)

    def path(self) -> t.PathPattern:
        """Read a path of a pattern."""
        name = self.name() if self.word(1) == "=" else ""
        if name:
            self.expect("=")
        elements: list[Any] = [self._node()]
        while self.word() == "-" or (self.word() == "<" and self.word(1) == "-"):
            elements += [self._relationship(), self._node()]
        return t.PathPattern(tuple(elements), name)

    def _node(self) -> t.NodePattern:
        self.expect("(")
        name = self.name() if self.token.kind in {"word", "quoted"} else ""
        labels: list[str] = []
        while self.accept(":"):
            labels.append(self.name())
        entries = self.entries() if self.word() == "{" else ()
        self.expect(")")
        return t.NodePattern(name, tuple(labels), entries)

    def _relationship(self) -> t.RelationshipPattern:
        is_left = self.accept("<", "-")
        if not is_left:
            self.expect("-")
        name, types, lengths, entries = "", list[str](), None, ()
        if self.accept("["):
            name = self.name() if self.token.kind in {"word", "quoted"} else ""
            while self.accept(":") or self.accept("|"):
                self.accept(":")
                types.append(self.name())
            lengths = self._lengths() if self.accept("*") else None
            entries = self.entries() if self.word() == "{" else ()
            self.expect("]")
        self.expect("-")
        is_right = self.accept(">")
        direction = "-" if is_left == is_right else "<-" if is_left else "->"
        return t.RelationshipPattern(name, direction, tuple(types), entries, lengths)

    def _lengths(self) -> tuple[int | None, int | None]:
        least = self.take().value if self.token.kind == "number" else None
        if not self.accept(".."):
            return (1, None) if least is None else (least, least)
        return least, self.take().value if self.token.kind == "number" else None


class _Clauses(_Expressions):
    """Reads statements."""

    def statement(self) -> t.Statement:
        """Read a query, or several with UNION."""
        queries, is_all = [self._query()], False
        while self.accept("UNION"):
            is_now = self.accept("ALL")
            if len(queries) > 1 and is_now != is_all:
                raise CypherError("UNION and UNION ALL")
            is_all = is_now
            queries.append(self._query())
        return t.Union(tuple(queries), is_all) if len(queries) > 1 else queries[0]

    def _query(self) -> t.Query:
        clauses: list[t.Clause] = []
        while not self.is_at_end and self.word() not in {"UNION", ";"}:
            clauses.append(self._clause())
        return t.Query(tuple(clauses))

    def _clause(self) -> t.Clause:
        is_optional = self.accept("OPTIONAL")
        match self.word():
            case "MATCH":
                return self._match(is_optional=is_optional)
            case "UNWIND":
                self.take()
                source = self.expression()
                self.expect("AS")
                return t.Unwind(source, self.name())
            case "WITH" | "RETURN":
                return self._projection()
            case "CREATE" | "MERGE" | "SET" | "DELETE" | "REMOVE" | "DETACH" | "CALL" | "FOREACH":
                raise UnmodelledFeature(self.word())
            case _:
                raise CypherError(f"a clause is expected, not {self.token.text!r}")

    def _match(self, *, is_optional: bool) -> t.Match:
        self.take()
        paths = [self.path()]
        while self.accept(","):
            paths.append(self.path())
        where = self.expression() if self.accept("WHERE") else None
        return t.Match(tuple(paths), where, is_optional)

    def _projection(self) -> t.Projection:
        keyword: Any = self.take().text.upper()
        is_distinct = self.accept("DISTINCT")
        is_all, items = self.accept("*"), list[t.Item]()
        while (is_all and self.accept(",")) or (not is_all and (not items or self.accept(","))):
            expression = self.expression()
            items.append(t.Item(expression, self.name() if self.accept("AS") else ""))
            if is_all:
                continue
        order = self._order() if self.accept("ORDER", "BY") else ()
        skip = self.expression() if self.accept("SKIP") else None
        limit = self.expression() if self.accept("LIMIT") else None
        where = self.expression() if self.accept("WHERE") else None
        return t.Projection(keyword, tuple(items), is_distinct, is_all, order, skip, limit, where)

    def _order(self) -> tuple[t.Order, ...]:
        found: list[t.Order] = []
        while not found or self.accept(","):
            expression = self.expression()
            descending = self.word() in {"DESC", "DESCENDING"}
            if descending or self.word() in {"ASC", "ASCENDING"}:
                self.take()
            found.append(t.Order(expression, descending))
        return tuple(found)
