from __future__ import annotations

from typing import Any, cast

import pytest

from kgserve.cypher.interpreter.opencypher_parser import parse_cypher_query
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    BinaryExpression,
    CallProcedureClauseNode,
    CallSubqueryClauseNode,
    CaseExpressionNode,
    ComparisonChain,
    LiteralValue,
    MatchClauseNode,
    MergeClauseNode,
    NullPredicate,
    PathPatternElement,
    ProjectionClauseNode,
    QuerySyntaxNode,
    SetOrRemoveClauseNode,
    UnaryExpression,
    VariableReference,
)
from kgserve.errors import InvalidInput


def render(value: Any) -> str:
    """Write a tree as nested names, without positions and default values."""
    match value:
        case tuple():
            text = f"[{' '.join(render(each) for each in cast('tuple[Any, ...]', value))}]"
        case LiteralValue():
            text = repr(value.value)
        case VariableReference():
            text = value.name
        case BinaryExpression():
            text = f"({render(value.left)} {value.operator} {render(value.right)})"
        case UnaryExpression():
            text = f"({value.operator} {render(value.operand)})"
        case ComparisonChain():
            rest = "".join(f" {operator} {render(operand)}" for operator, operand in value.rest)
            text = f"({render(value.first)}{rest})"
        case NullPredicate():
            text = f"({render(value.operand)} {'NOT NULL' if value.is_negated else 'NULL'})"
        case QuerySyntaxNode():
            fields = [render(getattr(value, name)) for name in value.__struct_fields__ if name != "position"]
            text = f"{type(value).__name__}({', '.join(fields)})"
        case _:
            text = repr(value)
    return text


def parse_expression(text: str) -> Any:
    stage = parse_cypher_query(f"RETURN {text} AS x").queries[0][0]
    assert isinstance(stage, ProjectionClauseNode)
    return stage.columns[0].value


def parse_stage(text: str) -> Any:
    return parse_cypher_query(text).queries[0][0]


def parse_path(text: str) -> PathPatternElement:
    stage = parse_stage(f"MATCH {text} RETURN 1")
    assert isinstance(stage, MatchClauseNode)
    return stage.paths[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a OR b XOR c AND NOT d", "(a OR (b XOR (c AND (NOT d))))"),
        ("a OR b OR c", "((a OR b) OR c)"),
        ("a AND b OR c AND d", "((a AND b) OR (c AND d))"),
        ("NOT NOT a = b", "(NOT (NOT (a = b)))"),
        ("NOT a AND b", "((NOT a) AND b)"),
        ("1 < 2 <= x <> 3", "(1 < 2 <= x <> 3)"),
        ("(1 < 2) = true", "((1 < 2) = True)"),
        ("a = b IS NULL", "(a = (b NULL))"),
        ("a + 1 IS NOT NULL", "((a + 1) NOT NULL)"),
        ("a IN b = c", "((a IN b) = c)"),
        ("a + b IN c", "((a + b) IN c)"),
        ("a STARTS WITH b + c", "(a STARTS WITH (b + c))"),
        ("a ENDS WITH 'x' AND b CONTAINS 'y' OR c =~ 'z'", "(((a ENDS WITH 'x') AND (b CONTAINS 'y')) OR (c =~ 'z'))"),
        ("1 - 2 - 3", "((1 - 2) - 3)"),
        ("1 + 2 * 3 % 4 / 5", "(1 + (((2 * 3) % 4) / 5))"),
        ("2 ^ 3 ^ 2", "((2 ^ 3) ^ 2)"),
        ("2 * 3 ^ 2", "(2 * (3 ^ 2))"),
        ("-3 ^ 2", "(-3 ^ 2)"),
        ("-a ^ b", "((- a) ^ b)"),
        ("-(3 ^ 2)", "(- (3 ^ 2))"),
        ("a - -b", "(a - (- b))"),
        ("a-1", "(a - 1)"),
        ("- - 1", "(- -1)"),
        ("a<-1", "(a < -1)"),
        ("(a) < -1", "(a < -1)"),
        ("(a)-[1]", "(a - ListExpression([1]))"),
        ("(a) - -(b)", "(a - (- b))"),
        ("-a.b[0]", "(- SubscriptNode(PropertyAccessNode(a, 'b'), 0))"),
        ("a[1..2]", "ListSlice(a, 1, 2)"),
        ("a[..-1]", "ListSlice(a, None, -1)"),
        ("a[1..]", "ListSlice(a, 1, None)"),
        ("a['k'].b", "PropertyAccessNode(SubscriptNode(a, 'k'), 'b')"),
        ("n:A:B", "LabelPredicate(n, ['A' 'B'], False)"),
        ("n:A|B AND m:C&D", "(LabelPredicate(n, ['A' 'B'], True) AND LabelPredicate(m, ['C' 'D'], False))"),
        ("[x IN xs WHERE x:A | x.b]",
         "ListComprehension('x', xs, LabelPredicate(x, ['A'], False), PropertyAccessNode(x, 'b'))"),
        ("[x IN xs WHERE x:A|B | 1]", "ListComprehension('x', xs, LabelPredicate(x, ['A' 'B'], True), 1)"),
        ("any(x IN xs WHERE x:A|B)", "QuantifiedPredicate('any', 'x', xs, LabelPredicate(x, ['A' 'B'], True))"),
        ("[x IN xs]", "ListComprehension('x', xs, None, None)"),
        ("[x IN xs, 1]", "ListExpression([(x IN xs) 1])"),
        ("[1 IN xs]", "ListExpression([(1 IN xs)])"),
        ("[]", "ListExpression([])"),
        ("{}", "MapExpression([])"),
        ("{a: 1, `b c`: [null], null: 2}", "MapExpression([['a' 1] ['b c' ListExpression([None])] ['null' 2]])"),
        ("reduce(s = 0, x IN xs | s + x)", "ReduceExpression('s', 0, 'x', xs, (s + x))"),
        ("count(*)", "CountStar()"),
        ("cOuNt ( DISTINCT a )", "FunctionInvocation('count', [a], True)"),
        ("duration.inDays(a, b).d", "PropertyAccessNode(FunctionInvocation('duration.indays', [a b], False), 'd')"),
        ("n {.a, .*, b: 1, c}", "MapProjection(n, [['a' PropertyAccessNode(n, 'a')] ['*' None] ['b' 1] ['c' c]])"),
        ("exists(n.a)", "(PropertyAccessNode(n, 'a') NOT NULL)"),
        ("$p + $`q r` + $0", "((ParameterReference('p') + ParameterReference('q r')) + ParameterReference('0'))"),
        ("order.by + end", "(PropertyAccessNode(order, 'by') + end)"),
        ("n.match.return", "PropertyAccessNode(PropertyAccessNode(n, 'match'), 'return')"),
    ],
)  # fmt: skip
def test_expression_structure(text: str, expected: str) -> None:
    assert render(parse_expression(text)) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-9223372036854775808", -(1 << 63)),
        ("- 9223372036854775807", 1 - (1 << 63)),
        ("0x1F", 31),
        ("-0x8000000000000000", -(1 << 63)),
        ("0o17", 15),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-1e-3", -0.001),
        ("6.02E23", 6.02e23),
        ("true", True),
        ("FALSE", False),
        ("Null", None),
        (r"'a\'b\"\\\n\t\u00e9\U0001F600'", "a'b\"\\\n\té😀"),
        (r"'\uD83D\uDE00'", "😀"),
        ('"it\'s"', "it's"),
        ("'// no comment'", "// no comment"),
    ],
)
def test_literals(text: str, value: object) -> None:
    found = parse_expression(text).value
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(n:A:B {k: 1})", "[NodePatternElement('n', ['A' 'B'], False, MapExpression([['k' 1]]), None)] []"),
        ("(:A|B)", "[NodePatternElement('', ['A' 'B'], True, None, None)] []"),
        (
            "(n $p WHERE n.a)",
            "[NodePatternElement('n', [], False, ParameterReference('p'), PropertyAccessNode(n, 'a'))] []",
        ),
        ("()-->()", "[] [RelationshipPatternElement('', [], None, None, '>', None)]"),
        ("()<--()", "[] [RelationshipPatternElement('', [], None, None, '<', None)]"),
        ("()--()", "[] [RelationshipPatternElement('', [], None, None, '', None)]"),
        ("()<-[r]->()", "[] [RelationshipPatternElement('r', [], None, None, '', None)]"),
        ("()-[r:A|B|:C*1..3 {k: 1}]-()",
         "[] [RelationshipPatternElement('r', ['A' 'B' 'C'], MapExpression([['k' 1]]), [1 3], '', None)]"),
        ("()-[*]->()", "[] [RelationshipPatternElement('', [], None, [None None], '>', None)]"),
        ("()-[*2]->()", "[] [RelationshipPatternElement('', [], None, [2 2], '>', None)]"),
        ("()-[*..3]->()", "[] [RelationshipPatternElement('', [], None, [None 3], '>', None)]"),
        ("()-[*2..]->()", "[] [RelationshipPatternElement('', [], None, [2 None], '>', None)]"),
        ("()-[r WHERE r.x > 1]->()",
         "[] [RelationshipPatternElement('r', [], None, None, '>', (PropertyAccessNode(r, 'x') > 1))]"),
        ("(order:Order)", "[NodePatternElement('order', ['Order'], False, None, None)] []"),
    ],
)  # fmt: skip
def test_pattern_structure(text: str, expected: str) -> None:
    path = parse_path(text)
    nodes = [node for node in path.nodes if render(node) != "NodePatternElement('', [], False, None, None)"]
    assert f"{render(tuple(nodes))} {render(path.relationships)}" == expected


def test_named_and_shortest_paths() -> None:
    path = parse_path("p = shortestPath((a)-[:T*..5]->(b))")
    assert (path.name, path.shortest, len(path.nodes)) == ("p", "shortestpath", 2)
    assert parse_path("allShortestPaths((a)-[*]-(b))").shortest == "allshortestpaths"


@pytest.mark.parametrize(
    "text",
    [
        "(n)-->()",
        "exists((n)-->())",
        "NOT (n)<-[:T]-(:A)",
        "size((n)--())",
        "[(n)-->(m) | m.a]",
        "[p = (n)-->(m) WHERE m:A | p]",
        "EXISTS { (n)-->(m) WHERE m.a }",
        "EXISTS { MATCH (n) }",
        "COUNT { MATCH (n)-->() RETURN 1 }",
        "COLLECT { MATCH (m) RETURN m }",
        "shortestPath((n)-[*]->(m))",
    ],
)
def test_patterns_inside_expressions(text: str) -> None:
    assert "PathPatternElement(" in render(parse_expression(text))


def test_clauses() -> None:
    text = """
        OPTIONAL MATCH (a), p = (b)-->(c) WHERE a.x // comment
        UNWIND [1] AS i
        CALL my.proc(1, a) YIELD out AS o, two WHERE o > 1
        CALL { WITH a RETURN 1 AS one }
        CALL (a, b) { CREATE (z) }
        WITH DISTINCT *, a.x AS y ORDER BY y DESC, a.z SKIP 1 LIMIT $n WHERE y
        CREATE (d), (e) MERGE (f:A) ON CREATE SET f.a = 1 ON MATCH SET f:B, f += {}
        SET a = $m, a.b.c = 1, (a).d = 2, a['k'] = 3 REMOVE a.x, a:A DETACH DELETE a, b[0]
        FOREACH (x IN [1] | SET a.x = x FOREACH (y IN [x] | CREATE (:T)))
        RETURN 1 ;"""
    stages = parse_cypher_query(text).queries[0]
    kinds = [type(stage).__name__.removesuffix("ClauseNode") for stage in stages]
    assert kinds == [
        *("Match", "Unwind", "CallProcedure", "CallSubquery", "CallSubquery", "Projection", "Create", "Merge"),
        *("SetOrRemove", "SetOrRemove", "Delete", "Foreach", "Projection"),
    ]
    procedure, merge, update = stages[2], stages[7], stages[8]
    assert isinstance(procedure, CallProcedureClauseNode)
    assert procedure.name == "my.proc"
    assert procedure.yields == (("out", "o"), ("two", "two"))
    assert isinstance(merge, MergeClauseNode)
    assert (len(merge.on_create), len(merge.on_match)) == (1, 2)
    assert isinstance(update, SetOrRemoveClauseNode)
    assert len(update.updates) == 4
    assert isinstance(stages[4], CallSubqueryClauseNode)
    assert stages[4].imports == ("a", "b")


def test_procedure_without_arguments() -> None:
    assert render(parse_stage("CALL db.labels")) == "CallProcedureClauseNode('db.labels', None, None, None)"
    assert render(parse_stage("CALL db.labels() YIELD *")) == "CallProcedureClauseNode('db.labels', [], [], None)"


def test_union() -> None:
    assert parse_cypher_query("RETURN 1 AS a UNION ALL RETURN 2 AS a").is_all
    assert len(parse_cypher_query("RETURN 1 AS a UNION RETURN 2 AS a UNION RETURN 3 AS a").queries) == 3


def test_column_names_are_the_text_as_typed() -> None:
    stage = parse_stage("RETURN  cOuNt( * ) , n . a  , `odd name`, `x` AS `y z`, {a: 1} /* note */ , -1 ORDER BY 1")
    assert [column.name for column in stage.columns] == ["cOuNt( * )", "n . a", "odd name", "y z", "{a: 1}", "-1"]


def test_case_with_several_values() -> None:
    case = parse_expression("CASE x WHEN 1, 2 THEN 'a' ELSE 'b' END")
    assert isinstance(case, CaseExpressionNode)
    assert len(case.branches) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the statement is empty"),
        ("RETURN", "unexpected end of the statement, expected an expression, at line 1, column 7"),
        ("MATCH (n)\nRETRUN n", "unexpected 'RETRUN', expected a clause such as MATCH, CREATE or RETURN, at line 2"),
        ("MATCH n RETURN n", "expected '(' (a node, as in (n:Label))"),
        ("MATCH (n RETURN n", "this '(' is not closed by ')', at line 1, column 7"),
        ("RETURN (1]", "unexpected ']', expected ')'"),
        ("RETURN 1 == 2", "use = for equality instead of =="),
        ("RETURN 1 != 2", "use <> for inequality"),
        ("RETURN a && b", "use AND"),
        ("RETURN a || b", "use OR for a disjunction and + for a concatenation"),
        ("RETURN 'abc", "this string is not terminated"),
        ("RETURN `abc", "this quoted name is not terminated"),
        ("RETURN 1 /* x", "this comment is not terminated"),
        ("RETURN 9223372036854775808", "too large for 64 bits"),
        ("RETURN -9223372036854775809", "too large for 64 bits"),
        ("RETURN 0x8000000000000000", "too large for 64 bits"),
        ("RETURN 0o1000000000000000000000", "too large for 64 bits"),
        (f"RETURN {'9' * 6000}", "too large for 64 bits"),
        ("RETURN 1.34E999", "too large for a float"),
        ("RETURN 9223372h54775808", "invalid number 9223372h54775808"),
        ("RETURN 0x", "invalid number 0x"),
        ("RETURN 0xg1", "invalid number 0xg1"),
        ("RETURN 017", "write octal numbers as 0o17"),
        (r"RETURN '\uH'", "invalid Unicode escape"),
        (r"RETURN '\q'", r"unknown escape \q"),
        (r"RETURN '\uD83D'", "surrogate"),
        ("RETURN 42 — 41", "unexpected character"),
        ("RETURN 9223372#54775808", "unexpected character '#'"),
        ("RETURN [, ]", "expected an expression"),
        ("RETURN {1B2c: 1}", "invalid number"),
        ("RETURN {k1.k: 1}", "unexpected '.', expected ':'"),
        ("RETURN {a: 1,}", "expected a key"),
        ("RETURN 1; RETURN 2", "only one statement"),
        ("MATCH (n:$label) RETURN n", "a parameter cannot be a label"),
        ("MATCH (n) WHERE n.a = NOT b RETURN n", "put NOT and its operand in parentheses"),
        ("MATCH (n) LIMIT 1", "LIMIT must follow RETURN or WITH"),
        ("CREATE (n) WHERE n.a RETURN n", "WHERE must follow MATCH, WITH or YIELD"),
        ("RETURN 1 LIMIT 1 SKIP 1", "in the order ORDER BY, SKIP, LIMIT"),
        ("MATCH (a)-[:LIKES..]->(c) RETURN c", "a variable length begins with *"),
        ("MATCH (a)-[:LIKES*-2]->(c) RETURN c", "integers that are not negative"),
        ("MATCH (a:A&B|C) RETURN a", "not both"),
        ("MATCH (a:!A) RETURN a", "not supported"),
        ("MATCH (a)-[:A&B]->() RETURN a", "exactly one type"),
        ("MATCH p = shortestPath((a)-[*]->()-->(b)) RETURN p", "exactly one relationship"),
        ("SET n = ", "expected an expression"),
        ("MATCH (n) SET n RETURN n", "expected '='"),
        ("MATCH (n) SET n:A|B", "with a colon"),
        ("MATCH (n) REMOVE n", "REMOVE takes a property or a label"),
        ("MATCH (n) SET labels(n) = 1", "only a variable or a property"),
        ("LOAD CSV FROM 'x' AS row RETURN row", "LOAD CSV is not supported"),
        ("USE other MATCH (n) RETURN n", "USE is not supported"),
        ("START n = node(1) RETURN n", "START is not supported"),
        ("CREATE INDEX FOR (n:A) ON (n.x)", "CREATE INDEX is not supported"),
        ("CREATE CONSTRAINT c FOR (n:A) REQUIRE n.x IS UNIQUE", "CREATE CONSTRAINT is not supported"),
        ("DROP INDEX x", "DROP is not supported"),
        ("SHOW INDEXES", "SHOW is not supported"),
        ("CALL { MATCH (n) RETURN n } IN TRANSACTIONS", "IN TRANSACTIONS is not supported"),
        ("RETURN filter(x IN [1] WHERE x > 0)", "write [x IN list WHERE condition | result]"),
        ("RETURN all(x IN [1])", "expected WHERE"),
        ("RETURN 1 AS a UNION RETURN 2 AS a UNION ALL RETURN 3 AS a", "cannot mix UNION and UNION ALL"),
        ("RETURN {'a': 1}", "without quotes"),
        ("RETURN “a”", "straight quotes"),
        ("MATCH p = SHORTEST 1 (a)-[*]->(b) RETURN p", "use shortestPath"),
        ("MATCH (a)-[:T]->+(b) RETURN a", "-[:TYPE*1..3]->"),
        ("MATCH (a)-[:T]->{1,3}(b) RETURN a", "-[:TYPE*1..3]->"),
        ("RETURN 1 IS TRUE", "expected NULL"),
        ("RETURN CASE WHEN true THEN 1", "expected END"),
        ("MATCH (where) RETURN 1", "expected an expression"),
        ("MATCH (return) RETURN 1", "put it in backticks"),
    ],
)  # fmt: skip
def test_syntax_errors_say_what_and_where(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_cypher_query(text)
    assert message in str(caught.value)
    assert ", at line " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RETURN " + "(" * 5_000, "nested at most 100"),
        ("RETURN " + "(" * 5_000 + "1" + ")" * 5_000, "nested at most 100"),
        ("RETURN " + "[" * 101 + "]" * 101, "nested at most 100"),
        ("RETURN 1" + "+1" * 10_000, "at most"),
        ("RETURN 1" + "+1" * 300, "at most 200 operators"),
        ("RETURN " + "NOT " * 5_000 + "true", "at most 200 operators"),
        ("RETURN " + "-" * 5_000 + "n", "at most 200 operators"),
        ("RETURN a" + ".b" * 5_000, "at most 200 operators"),
        ("RETURN " + "CASE WHEN " * 500, "nested at most 100"),
        ("RETURN " + "a = [1 OR 1 AND NOT 1 = 1 + 1 * (" * 49 + "1" + ")]" * 49, "at most 200 operators"),
        ("RETURN " + "EXISTS { MATCH (n) WHERE " * 20 + "true" + "}" * 20, "subqueries may be nested at most 8"),
        ("RETURN '" + "x" * (64 << 10) + "'", "bytes"),
    ],
)
def test_large_statements_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_cypher_query(text)


@pytest.mark.parametrize(
    "text",
    [
        "RETURN " + "(" * 99 + "1" + ")" * 99,
        "RETURN " + "[" * 99 + "]" * 99,
        "RETURN " + "f(" * 99 + "1" + ")" * 99,
        "RETURN " + "a = [1 OR 1 AND NOT 1 = 1 + 1 * (" * 20 + "1" + ")]" * 20,
        "RETURN " + "{a: " * 99 + "1" + "}" * 99,
        "RETURN " + "[(a {x: " * 33 + "1" + "})--(b) | 1]" * 33,
        "RETURN true" + " OR a = 1" * 4_000,
        "RETURN [" + "1, " * 9_000 + "1]",
        "MATCH " + "()--" * 4_000 + "() RETURN 1",
        "CREATE ()" + "CREATE ()" * 4_000,
        "RETURN 1" + " UNION RETURN 1" * 2_000,
    ],
)
def test_deep_and_long_statements_parse(text: str) -> None:
    assert parse_cypher_query(text).queries
