"""Parser of openCypher statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

from typing_extensions import override

from kgserve.cypher.interpreter.opencypher_pattern_parser import SHORTEST_WORDS, OpenCypherPatternParser
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    CallProcedureClauseNode,
    CallSubqueryClauseNode,
    ComputedLabelAssignment,
    CreateClauseNode,
    DeleteClauseNode,
    ElementUpdate,
    ForeachClauseNode,
    LabelAssignment,
    LabelRemoval,
    LiteralValue,
    MatchClauseNode,
    MergeClauseNode,
    ProjectionClauseNode,
    PropertyAccessNode,
    PropertyRemoval,
    QueryExpression,
    QueryStage,
    QuerySyntaxNode,
    QueryUnion,
    ReturnOrWithColumn,
    SetOrRemoveClauseNode,
    SetPropertiesFromMap,
    SetSingleProperty,
    SortKey,
    SubscriptNode,
    UnwindClauseNode,
    VariableReference,
)
from kgserve.cypher.interpreter.opencypher_tokenizer import (
    QueryToken,
    build_query_syntax_error,
    tokenize_cypher_statement,
)

MAX_TREE_DEPTH = 200
MAX_SUBQUERY_DEPTH = 8

_UNSUPPORTED_CLAUSES = {
    "LOAD": "LOAD CSV is not supported; import files with the command line or over REST",
    "USE": "USE is not supported; a statement runs in the store that the request or session names",
    "START": "START is not supported; begin with MATCH",
    "DROP": "DROP is not supported; kgserve maintains its indexes itself and has no constraints",
    "ALTER": "ALTER is not supported in statements",
    "SHOW": "SHOW is not supported; CALL db.labels(), db.relationshipTypes() and db.propertyKeys() list what exists",
    "TERMINATE": "TERMINATE is not supported in statements",
    "USING": "planner hints with USING are not supported; leave them out",
    "FINISH": "FINISH is not supported; leave it out, or return a count",
    "INSERT": "INSERT is not supported; use CREATE",
    "LET": "LET is not supported; use WITH",
    "FILTER": "FILTER is not supported; use WITH * WHERE",
    "EXPLAIN": "EXPLAIN may only begin a statement",
    "PROFILE": "PROFILE may only begin a statement",
}
_SCHEMA_WORDS_TEXT = "INDEX CONSTRAINT UNIQUE RANGE TEXT POINT LOOKUP FULLTEXT VECTOR BTREE DATABASE USER ROLE ALIAS OR"
_SCHEMA_WORDS = frozenset(_SCHEMA_WORDS_TEXT.split())


def parse_cypher_query(text: str) -> QueryUnion:
    """Parse a Cypher query. Raises InvalidInput, with line and column, if it does not follow the grammar."""
    try:
        return OpenCypherStatementParser(tokenize_cypher_statement(text)).parse_statement()
    except RecursionError:
        raise build_query_syntax_error(text, 0, "the statement is nested too deeply; it begins") from None


class OpenCypherStatementParser(OpenCypherPatternParser):
    """Parser of openCypher statements: clauses, patterns and expressions."""

    _subquery_depth = 0

    def parse_statement(self) -> QueryUnion:
        """Parse the whole statement."""
        if self.token.kind == "end":
            self.fail("the statement is empty")
        query = self._parse_union()
        while self.skip_symbol(";"):
            if self.token.kind == "word":
                self.fail("only one statement may be sent at a time; another begins")
        if self.index < len(self.tokens) - 1:
            self._fail_at_clause()
        _check_depth(self.text, query)
        return query

    def _parse_union(self) -> QueryUnion:
        position = self.token.start
        queries = [self._parse_single_query()]
        is_all: bool | None = None
        while self.token.word == "UNION":
            token = self.advance()
            has_all = self.skip_word("ALL") or (self.skip_word("DISTINCT") and False)
            if is_all not in {None, has_all}:
                self.fail("a statement cannot mix UNION and UNION ALL", token)
            is_all = has_all
            queries.append(self._parse_single_query())
        return QueryUnion(position=position, queries=tuple(queries), is_all=bool(is_all))

    def _parse_single_query(self) -> tuple[QueryStage, ...]:
        stages: list[QueryStage] = []
        while self.token.word in self._CLAUSES:
            stages.append(self._CLAUSES[self.token.word](self))
        if not stages:
            self._fail_at_clause()
        return tuple(stages)

    def _fail_at_clause(self) -> None:
        token = self.token
        if token.word in _UNSUPPORTED_CLAUSES:
            self.fail(_UNSUPPORTED_CLAUSES[token.word])
        if token.word == "WHERE":
            self.fail("WHERE must follow MATCH, WITH or YIELD directly")
        if token.word in {"ORDER", "SKIP", "LIMIT", "OFFSET"}:
            self.fail(f"{token.word} must follow RETURN or WITH, in the order ORDER BY, SKIP, LIMIT")
        self.fail_expecting("a clause such as MATCH, CREATE or RETURN")

    @override
    def parse_braced_query(self, *, allows_pattern: bool) -> QueryUnion:
        self._subquery_depth += 1
        if self._subquery_depth > MAX_SUBQUERY_DEPTH:
            self.fail(f"subqueries may be nested at most {MAX_SUBQUERY_DEPTH} deep; exceeded")
        self.expect_symbol("{")
        is_named = self.is_name() and self.is_symbol("=", 1)
        if allows_pattern and (is_named or self.is_symbol("(") or self.token.word in SHORTEST_WORDS):
            query = QueryUnion(position=self.token.start, queries=((self._parse_match_body(self.token.start),),))
        else:
            query = self._parse_union()
        if not self.is_symbol("}"):
            self._fail_at_clause()
        self.advance()
        self._subquery_depth -= 1
        return query

    # Reading clauses

    def _parse_match(self) -> MatchClauseNode:
        position = self.token.start
        is_optional = self.skip_word("OPTIONAL")
        if is_optional and self.token.word == "CALL":
            self.fail("OPTIONAL CALL is not supported")
        self.expect_word("MATCH")
        return self._parse_match_body(position, is_optional=is_optional)

    def _parse_match_body(self, position: int, *, is_optional: bool = False) -> MatchClauseNode:
        paths = self.parse_paths()
        if self.token.word == "USING":
            self.fail(_UNSUPPORTED_CLAUSES["USING"])
        return MatchClauseNode(position=position, paths=paths, where=self._parse_where(), is_optional=is_optional)

    def _parse_where(self) -> QueryExpression | None:
        return self.parse_expression() if self.skip_word("WHERE") else None

    def _parse_unwind(self) -> UnwindClauseNode:
        position = self.advance().start
        source = self.parse_expression()
        self.expect_word("AS", "as in UNWIND list AS x")
        return UnwindClauseNode(position=position, source=source, name=self.read_name("a variable"))

    def _parse_call(self) -> CallProcedureClauseNode | CallSubqueryClauseNode:
        position = self.advance().start
        if self.is_symbol("{"):
            return self._parse_subquery(position, None)
        if self.is_symbol("("):
            return self._parse_subquery(position, self._parse_imports())
        name = self.read_name("a procedure")
        while self.skip_symbol("."):
            name += "." + self.read_name("a procedure")
        arguments = self._parse_arguments() if self.is_symbol("(") else None
        yields: tuple[tuple[str, str], ...] | None = None
        where = None
        if self.skip_word("YIELD"):
            yields = self._parse_yields()
            where = self._parse_where()
        return CallProcedureClauseNode(position=position, name=name, arguments=arguments, yields=yields, where=where)

    def _parse_imports(self) -> tuple[str, ...]:
        """Parse the variables that a subquery imports; ``*`` for all."""
        self.expect_symbol("(")
        if self.skip_symbol("*"):
            names = ["*"]
        else:
            names = [] if self.is_symbol(")") else [self.read_variable()]
            while self.skip_symbol(","):
                names.append(self.read_variable())
        self.expect_symbol(")")
        return tuple(names)

    def _parse_subquery(self, position: int, imports: tuple[str, ...] | None) -> CallSubqueryClauseNode:
        query = self.parse_braced_query(allows_pattern=False)
        if self.token.word == "IN":
            self.fail("CALL { } IN TRANSACTIONS is not supported; send several statements")
        return CallSubqueryClauseNode(position=position, query=query, imports=imports)

    def _parse_arguments(self) -> tuple[QueryExpression, ...]:
        self.expect_symbol("(")
        arguments: list[QueryExpression] = []
        if not self.is_symbol(")"):
            arguments.append(self.parse_delimited())
            while self.skip_symbol(","):
                arguments.append(self.parse_delimited())
        self.expect_symbol(")")
        return tuple(arguments)

    def _parse_yields(self) -> tuple[tuple[str, str], ...]:
        if self.skip_symbol("*"):
            return ()
        yields: list[tuple[str, str]] = []
        while True:
            column = self.read_name("a column")
            yields.append((column, self.read_name("a variable") if self.skip_word("AS") else column))
            if not self.skip_symbol(","):
                return tuple(yields)

    def _parse_projection(self) -> ProjectionClauseNode:
        token = self.advance()
        is_distinct = self.skip_word("DISTINCT")
        is_all = self.skip_symbol("*")
        columns: list[ReturnOrWithColumn] = []
        if not is_all or self.skip_symbol(","):
            columns.append(self._parse_column(token.word))
            while self.skip_symbol(","):
                columns.append(self._parse_column(token.word))
        order = self._parse_order()
        skip = self.parse_expression() if self.skip_word("SKIP") or self.skip_word("OFFSET") else None
        limit = self.parse_expression() if self.skip_word("LIMIT") else None
        return ProjectionClauseNode(
            position=token.start,
            keyword=cast("Any", token.word),
            columns=tuple(columns),
            is_all=is_all,
            is_distinct=is_distinct,
            order=order,
            skip=skip,
            limit=limit,
            where=self._parse_where() if token.word == "WITH" else None,
        )

    def _parse_column(self, keyword: str) -> ReturnOrWithColumn:
        start, index = self.token.start, self.index
        value = self.parse_expression()
        end = self.tokens[self.index - 1].end
        if self.skip_word("AS"):
            return ReturnOrWithColumn(position=start, value=value, name=self.read_name("a name"), is_aliased=True)
        is_name = isinstance(value, VariableReference) and (keyword == "WITH" or self.index == index + 1)
        name = value.name if isinstance(value, VariableReference) and is_name else self.text[start:end]
        return ReturnOrWithColumn(position=start, value=value, name=name)

    def _parse_order(self) -> tuple[SortKey, ...]:
        if not (self.token.word == "ORDER" and self.is_word("BY", 1)):
            return ()
        self.seek(self.index + 2)
        keys: list[SortKey] = []
        while True:
            position = self.token.start
            value = self.parse_expression()
            is_descending = self.token.word in {"DESC", "DESCENDING"}
            if is_descending or self.token.word in {"ASC", "ASCENDING"}:
                self.advance()
            keys.append(SortKey(position=position, value=value, is_descending=is_descending))
            if not self.skip_symbol(","):
                return tuple(keys)

    # Updating clauses

    def _parse_create(self) -> CreateClauseNode:
        position = self.advance().start
        if self.token.word in _SCHEMA_WORDS and not self.is_symbol("=", 1):
            what = f"CREATE {self.token.word}"
            self.fail(f"{what} is not supported; kgserve maintains its indexes itself and has no constraints")
        return CreateClauseNode(position=position, paths=self.parse_paths())

    def _parse_merge(self) -> MergeClauseNode:
        position = self.advance().start
        path = self.parse_path()
        updates: dict[str, list[ElementUpdate]] = {"CREATE": [], "MATCH": []}
        while self.skip_word("ON"):
            event = self.token.word
            if event not in updates:
                self.fail_expecting("CREATE or MATCH")
            self.advance()
            self.expect_word("SET")
            updates[event] += self._parse_updates()
        return MergeClauseNode(
            position=position, path=path, on_create=tuple(updates["CREATE"]), on_match=tuple(updates["MATCH"])
        )

    def _parse_set(self) -> SetOrRemoveClauseNode:
        position = self.advance().start
        return SetOrRemoveClauseNode(position=position, updates=tuple(self._parse_updates()))

    def _parse_updates(self) -> list[ElementUpdate]:
        updates = [self._parse_update()]
        while self.skip_symbol(","):
            updates.append(self._parse_update())
        return updates

    def _parse_update(self) -> ElementUpdate:
        start = self.token
        target = self.parse_target()
        if self.is_symbol(":") and self.is_symbol("$", 1):
            return self._parse_computed_labels(self._get_variable(target, start), start)
        if self.is_symbol(":"):
            labels = self._parse_label_list()
            return LabelAssignment(position=start.start, name=self._get_variable(target, start), labels=labels)
        if self.skip_symbol("+="):
            name = self._get_variable(target, start)
            return SetPropertiesFromMap(
                position=start.start, name=name, value=self.parse_expression(), keeps_others=True
            )
        self.expect_symbol("=", "as in SET n.name = value, SET n += {map} or SET n:Label")
        if isinstance(target, PropertyAccessNode | SubscriptNode):
            name = _get_property_name(target)
            value = self.parse_expression()
            return SetSingleProperty(position=start.start, subject=target.subject, name=name, value=value)
        name = self._get_variable(target, start)
        return SetPropertiesFromMap(position=start.start, name=name, value=self.parse_expression(), keeps_others=False)

    def _parse_computed_labels(self, name: str, start: QueryToken) -> ComputedLabelAssignment:
        self.seek(self.index + 2)
        self.expect_symbol("(")
        value = self.parse_delimited()
        self.expect_symbol(")")
        return ComputedLabelAssignment(position=start.start, name=name, value=value)

    def _parse_label_list(self) -> tuple[str, ...]:
        start = self.token
        labels, is_any = self.parse_labels()
        if is_any:
            self.fail("separate labels that are set or removed with a colon, as in :A:B", start)
        return labels

    def _get_variable(self, target: QueryExpression, start: QueryToken) -> str:
        if not isinstance(target, VariableReference):
            self.fail("only a variable or a property can be set or removed", start)
        return target.name

    def _parse_remove(self) -> SetOrRemoveClauseNode:
        position = self.advance().start
        updates = [self._parse_removal()]
        while self.skip_symbol(","):
            updates.append(self._parse_removal())
        return SetOrRemoveClauseNode(position=position, updates=tuple(updates))

    def _parse_removal(self) -> ElementUpdate:
        start = self.token
        target = self.parse_target()
        if self.is_symbol(":"):
            labels = self._parse_label_list()
            return LabelRemoval(position=start.start, name=self._get_variable(target, start), labels=labels)
        if not isinstance(target, PropertyAccessNode | SubscriptNode):
            self.fail("REMOVE takes a property or a label, as in REMOVE n.name or REMOVE n:Label", start)
        return PropertyRemoval(position=start.start, subject=target.subject, name=_get_property_name(target))

    def _parse_delete(self) -> DeleteClauseNode:
        position = self.token.start
        is_detaching = self.skip_word("DETACH")
        self.expect_word("DELETE")
        values = [self.parse_expression()]
        while self.skip_symbol(","):
            values.append(self.parse_expression())
        return DeleteClauseNode(position=position, values=tuple(values), is_detaching=is_detaching)

    def _parse_foreach(self) -> ForeachClauseNode:
        position = self.advance().start
        opener = self.index
        self.expect_symbol("(")
        name = self.read_variable()
        self.expect_word("IN")
        source = self.parse_delimited(self.last_bars.get(opener, -1))
        self.expect_symbol("|")
        stages = self._parse_single_query()
        self.expect_symbol(")")
        return ForeachClauseNode(position=position, name=name, source=source, stages=stages)

    _CLAUSES: ClassVar[dict[str, Callable[[OpenCypherStatementParser], QueryStage]]] = {
        "MATCH": _parse_match,
        "OPTIONAL": _parse_match,
        "UNWIND": _parse_unwind,
        "WITH": _parse_projection,
        "RETURN": _parse_projection,
        "CREATE": _parse_create,
        "MERGE": _parse_merge,
        "SET": _parse_set,
        "REMOVE": _parse_remove,
        "DELETE": _parse_delete,
        "DETACH": _parse_delete,
        "FOREACH": _parse_foreach,
        "CALL": _parse_call,
    }


def _get_property_name(target: PropertyAccessNode | SubscriptNode) -> QueryExpression:
    if isinstance(target, SubscriptNode):
        return target.index
    return LiteralValue(position=target.position, value=target.name)


def _check_depth(text: str, query: QueryUnion) -> None:
    """Raise InvalidInput for a tree that is too deep to be processed recursively."""
    stack: list[tuple[Any, int, int]] = [(query, 0, 0)]
    while stack:
        value, depth, position = stack.pop()
        if isinstance(value, tuple):
            stack.extend((each, depth, position) for each in cast("tuple[Any, ...]", value))
        elif isinstance(value, QuerySyntaxNode):
            if depth >= MAX_TREE_DEPTH:
                message = f"an expression may nest or chain at most {MAX_TREE_DEPTH} operators and forms; exceeded"
                raise build_query_syntax_error(text, value.position, message)
            stack.extend((getattr(value, name), depth + 1, value.position) for name in value.__struct_fields__)
