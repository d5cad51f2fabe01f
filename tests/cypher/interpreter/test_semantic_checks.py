from __future__ import annotations

import pytest

from kgserve.cypher.interpreter.opencypher_parser import parse_cypher_query
from kgserve.cypher.interpreter.semantic_checks import CheckedQuerySummary, check_query_semantics
from kgserve.errors import InvalidInput


def check(text: str) -> CheckedQuerySummary:
    return check_query_semantics(parse_cypher_query(text), text)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("RETURN 1", "1"),
        ("MATCH (n) RETURN n, n.x AS y, count( * )", "n y count( * )"),
        ("MATCH (b)-[r]->(a) RETURN *", "a b r"),
        ("MATCH (b), (a) RETURN *, 1 AS x", "a b x"),
        ("CREATE (n)", ""),
        ("RETURN 1 AS a, 2 AS b UNION RETURN 2 AS b, 1 AS a", "a b"),
        ("CALL db.labels() YIELD label RETURN label AS l", "l"),
        ("CALL db.labels()", ""),
    ],
)
def test_columns(text: str, columns: str) -> None:
    assert " ".join(check(text).columns) == columns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MATCH (n) RETURN n", False),
        ("CREATE (n) RETURN n", True),
        ("MERGE (n)", True),
        ("MATCH (n) SET n.a = 1", True),
        ("MATCH (n) REMOVE n.a", True),
        ("MATCH (n) DETACH DELETE n", True),
        ("FOREACH (x IN [1] | CREATE ())", True),
        ("CALL { CREATE (n) RETURN n } RETURN n", True),
        ("RETURN 1 AS a UNION MATCH (n) SET n.x = 1 RETURN 1 AS a", True),
    ],
)
def test_statements_that_write(text: str, expected: bool) -> None:
    assert check(text).is_updating is expected


def test_procedures_are_named_once() -> None:
    text = """CALL db.labels() YIELD label CALL db.propertyKeys() YIELD propertyKey
        CALL { CALL db.labels() YIELD label AS l RETURN l } RETURN *"""
    assert check(text).procedures == ("db.labels", "db.propertyKeys")


ACCEPTED = """
MATCH (a)-[r]->(b) MATCH (a)-[r]->(b) RETURN r
MATCH ()-[rs*]->() MATCH ()-[rs*]->() RETURN rs
MATCH ()-[r1]->()-[r2]->() WITH [r1, r2] AS rs MATCH (a)-[rs*]->(b) RETURN a
MATCH (a {x: 1})-->(b {y: a.x}) RETURN b
MATCH p = (a)-[*]->(b) RETURN length(p), nodes(p), [n IN nodes(p) | n.x]
WITH null AS n OPTIONAL MATCH (n)-->(m) RETURN m
UNWIND $nodes AS n MATCH (n)-->(m) RETURN m
CREATE (a)-[:R]->(a)
CREATE (a), (b {x: a.y}), (a)-[:R]->(b)
CREATE p = (a)-[:R]->(b) RETURN p
CREATE (n $props)
MATCH (a), (b) MERGE (a)-[r:R {x: a.y}]-(b) ON CREATE SET r.z = 1 RETURN r
MATCH (n) WHERE (n)-->() AND NOT (n)-->(:A) OR exists((n)--()) RETURN n
MATCH (n) RETURN CASE WHEN (n)-->() THEN 1 END AS x
MATCH (n) RETURN size((n)--()) AS x, exists((n)-->()) AS y, [(n)-->(m) WHERE (m)-->() | m.x] AS z
MATCH (n) WHERE EXISTS { (n)-[r]->(m) WHERE r.x > m.y } RETURN n
MATCH (n) WHERE EXISTS { MATCH (n)-->(m) WITH n, m WHERE m.x RETURN true } RETURN n
MATCH (n) WHERE COUNT { (n)-->() } > 2 RETURN COLLECT { MATCH (n)-->(m) RETURN m.x }
MATCH (n) CALL { WITH n MATCH (n)-->(m) RETURN m } RETURN n, m
MATCH (n) CALL (n) { MATCH (n)-->(m) RETURN count(m) AS c } RETURN n, c
MATCH (n) CALL (*) { SET n.x = 1 } RETURN n
MATCH (n) CALL { WITH n SET n.x = 1 }
MATCH (n) RETURN n.x AS x ORDER BY n.y, x
MATCH (n) RETURN n.x ORDER BY n.x SKIP $s LIMIT toInteger(ceil(1.7))
MATCH (n) RETURN DISTINCT n ORDER BY n.x
MATCH (n) RETURN DISTINCT n.x AS x ORDER BY n.x
MATCH (n) RETURN n.x, count(*) ORDER BY n.x, count(*)
MATCH (n) RETURN n.x AS x, count(n.y) AS c ORDER BY n.x + count(n.y), x + c
MATCH (n) RETURN avg(n.age) AS a ORDER BY $p + avg(n.age) - 1000
MATCH (a)--(b) WITH a.x AS x, count(b.x) AS c ORDER BY x, x + count(b.x) RETURN *
MATCH (a)--(b) RETURN a.x, a.x + count(b) AS c
MATCH (a)--(b) RETURN a, a.x + count(b) AS c
MATCH (a)--(b) WITH *, count(*) AS c, a.x + count(*) AS d RETURN c
MATCH (p) RETURN [x IN collect(p) | x.y] AS ys, size(collect(p.x)) + 1 AS s
MATCH (n) WITH n.x AS y WHERE n.z = 1 RETURN y
MATCH (n) WITH n.x AS x, count(*) AS c WHERE c > 1 AND x = 2 RETURN x
MATCH (n) WITH DISTINCT n AS m WHERE m.x RETURN m
CREATE () WITH * MATCH (n) RETURN n
CREATE (a) WITH a MATCH (b) CREATE (a)-[:R]->(b)
MATCH (n) DELETE n, n.list[0]
MATCH p = ()-->() DETACH DELETE p
MATCH (n) SET n = {x: 1}, n += $m, n:A, n.y = n.z, (n).q = 1, n[$k] = 2
FOREACH (x IN [1, 2] | CREATE (n {v: x}) FOREACH (y IN [x] | SET n.w = y))
RETURN none(x IN [1, 2] WHERE x % 2 = 0) AND true AS r
RETURN [1, 'a'][0] + 1 AS x, {a: 1}.a + 1 AS y, null.a AS z
RETURN date('2020-01-01').year AS y, duration({days: 1}) * 2 AS d
RETURN coalesce(null, 1) + 1 AS x, timestamp() AS t
WITH [1, 2] AS a RETURN a[0..1], a + 3, 3 IN a, size(a), head(a) % 2
WITH {a: 1} AS m RETURN m.a, m['a'], keys(m), m {.a, b: 2}
RETURN reduce(s = 0, x IN [1] | s + x) AS x
RETURN all(x IN [] WHERE x) AS x
RETURN 'a' + 1 AS x, [1] + 2 AS y, 1.5 + 1 AS z
RETURN 'a' STARTS WITH 1 AS x, 1 < 'a' AS y
MATCH (n)-[r]->() RETURN n:A, r:T, type(r), labels(n), properties(r), startNode(r).x
MATCH (a), (b) RETURN shortestPath((a)-[*]->(b)) AS p, length(shortestPath((a)-[*]-(b))) AS l
MATCH p = shortestPath((a)-[*]-(b)) RETURN p
WITH 1 AS x CALL db.labels() YIELD label AS l WHERE l <> x RETURN l
"""

REFUSED = """
MATCH (n) | Query cannot conclude with MATCH (must be RETURN or an updating clause)
WITH 1 AS a | cannot conclude with WITH
UNWIND [1] AS a | cannot conclude with UNWIND
MATCH (n) CALL db.labels() YIELD label | cannot conclude with CALL
MATCH (n) CALL { WITH n RETURN n.x AS x } | cannot conclude with CALL
RETURN 1 AS a MATCH (n) RETURN n | RETURN must be the last clause
RETURN 1 AS a CREATE () | RETURN must be the last clause
CREATE (a) MATCH (b) RETURN b | a WITH is required between a clause that writes and MATCH
CREATE (a) UNWIND [1] AS x RETURN x | a WITH is required
MERGE (a) CALL db.labels() YIELD label RETURN label | a WITH is required
RETURN x | variable x is not defined
MATCH (node) RETURN nod | did you mean node?
MATCH (a) CREATE (a)-[:R]->(b {x: missing}) | variable missing is not defined
CREATE (a {x: a.y}) | variable a is not defined
MERGE (n) ON CREATE SET x.num = 1 | variable x is not defined
MATCH (n) WITH n.x AS x RETURN n | variable n is not defined
MATCH (n) SET m.x = 1 | variable m is not defined
MATCH (n) SET m:A | variable m is not defined
MATCH (n) DELETE m | variable m is not defined
MATCH (n) WHERE (n)-[r]->() RETURN n | variable r is not defined; a pattern in an expression cannot introduce it
MATCH (n) WHERE (n)-->(m) RETURN n | variable m is not defined
MATCH (n) RETURN [x IN n.l | x], x | variable x is not defined
MATCH (n) CALL { MATCH (n) WITH m RETURN 1 AS x } RETURN x | variable m is not defined
MATCH (n) CALL { RETURN n.x AS x } RETURN x | variable n is not defined
MATCH (n) CALL (m) { RETURN 1 AS x } RETURN x | variable m is not defined
MATCH (n) CALL { WITH n WHERE n.x RETURN n.y AS y } RETURN y | only names them
MATCH (n) CALL { WITH *, 1 AS one MATCH (n) RETURN count(n) AS c } RETURN c | cannot define others
MATCH (n) CALL { WITH n RETURN n } RETURN n | variable n is already defined
MATCH (a) CREATE (a) | variable a is already defined
MATCH (a) CREATE (a:A)-[:R]->() | cannot give it labels or properties
MATCH (a) CREATE (a {})-[:R]->() | cannot give it labels or properties
CREATE (n:A)-[:R]->(), (n:B)-[:R]->() | cannot give it labels
MATCH ()-[r]->() CREATE ()-[r:T]->() | variable r is already defined
MATCH (a) MERGE (a) | variable a is already defined
CREATE (a:Foo) MERGE (a)-[r:KNOWS]->(a:Bar) | cannot give it labels
MATCH (a)-[r:T]->(b) MERGE (a)-[r:T]->(b) | variable r is already defined
MATCH (p)-->() MATCH p = ()-->() RETURN p | variable p is already defined
MATCH p = (p)-->() RETURN p | variable p is
WITH 1 AS x UNWIND [2] AS x RETURN x | variable x is already defined
WITH 'a' AS label CALL db.labels() YIELD label RETURN label | variable label is already defined
CALL test.my.proc(null) YIELD a AS x, b AS x RETURN x | variable x is already defined
MATCH (a)-[r]->()-[r]->(a) RETURN r | occurs twice in one pattern
MATCH (a)-[r]->(), (b)-[r]->() RETURN r | occurs twice in one pattern
MATCH ()-[r]->() MATCH (r) RETURN r | variable r is a relationship; it cannot also be a node
MATCH ()-[r]->(r) RETURN r | cannot also be
MATCH (r) MATCH ()-[r]->() RETURN r | variable r is a node; it cannot also be a relationship
MATCH r = ()-->() MATCH (r) RETURN r | variable r is a path
WITH 1 AS n MATCH (n) RETURN n | variable n is an integer
WITH [10] AS r MATCH ()-[r*]->() RETURN r | cannot also be a list of relationships
MATCH (n) WITH [n] AS ns MATCH (ns)-->() RETURN ns | variable ns is a list
MATCH ()-[r]->() MATCH ()-[r*]->() RETURN r | cannot also be a list of relationships
MATCH (n $p) RETURN n | a parameter cannot be the properties of a pattern to match
MERGE (n $p) | a parameter cannot be the properties of MERGE
CREATE ()-->() | exactly one type
CREATE ()-[:A|B]->() | exactly one type
CREATE ()-[:A]-() | CREATE needs the direction
CREATE ()<-[:A]->() | CREATE needs the direction
CREATE ()-[:A*2]->() | variable length
CREATE (n:A|B) | not alternatives
CREATE (n WHERE n.x) | WHERE is not allowed
MERGE (a)-->(b) | exactly one type
MERGE (a)-[:A*2]->(b) | variable length
MERGE (a {x: null}) | with the value null
CREATE p = shortestPath((a)-[:R]->(b)) | cannot create a shortest path
MATCH (a) WHERE count(a) > 10 RETURN a | aggregates are not allowed in WHERE
MATCH (a) SET a.x = count(*) | aggregates are only allowed in WITH and RETURN
UNWIND count(*) AS x RETURN x | aggregates are only allowed
MATCH (a {x: count(*)}) RETURN a | aggregates are only allowed
MATCH (n) CALL db.labels(count(n)) YIELD label RETURN label | aggregates are only allowed
RETURN count(count(*)) | aggregates cannot be nested
RETURN sum(1 + max(2)) | aggregates cannot be nested
RETURN count(rand()) | rand() is not allowed in an aggregate
RETURN [x IN [1] | count(x)] | for each element
MATCH (a)--(b) RETURN a.x + count(b) | a is used next to an aggregate
MATCH (a)--(b) RETURN a.x + b.x, a.x + b.x + count(*) | is used next to an aggregate
MATCH (a)--(b) WITH a.x AS x RETURN x + 1 AS y, x + count(*) AS z | x is used next to an aggregate
MATCH (a)--(b) RETURN count(*) + size([(a)--(c) | c]) AS x | a is used next to an aggregate
MATCH (a)--(b) RETURN count(*) + COUNT { (a)--() } AS x | a is used next to an aggregate
MATCH (a)--(b) RETURN count(b.x) AS c ORDER BY a.x + count(b.x) | ORDER BY and WHERE can only use columns; found a
MATCH (a)--(b) RETURN a.x + b.x, count(*) AS c ORDER BY a.x + b.x + count(*) | can only use columns
MATCH (a) RETURN DISTINCT a.x ORDER BY a.y | can only use columns
MATCH (n) RETURN n.x ORDER BY max(n.y) | must also be a column
MATCH (n) WITH n.x AS x, count(*) AS c ORDER BY max(n.y) RETURN x | must also be a column
MATCH (n) WITH n.x AS x, count(*) AS c WHERE n.y RETURN x | can only use columns
RETURN 1 AS a, 2 AS a | two columns have the name a
MATCH (n) RETURN *, 1 AS n | two columns have the name n
WITH 1 AS a, 2 AS a RETURN a | two columns have the name a
MATCH (a) WITH a, count(*) RETURN a | an expression in WITH needs a name; write count(*) AS name
MATCH () RETURN * | RETURN * needs at least one variable
RETURN 1 AS a UNION RETURN 2 AS b | same columns
RETURN 1 AS a UNION CREATE (n) | same columns
MATCH (n) RETURN n SKIP n.count | SKIP cannot use variables
MATCH (n) RETURN n LIMIT -1 | LIMIT must not be negative
MATCH (n) RETURN n SKIP 1.5 | SKIP must be an integer, not a float
MATCH (n) RETURN n LIMIT 'a' | LIMIT must be an integer
MATCH (n) RETURN n LIMIT COUNT { (n) } | cannot use a pattern
MATCH (n) DELETE n:Person | use REMOVE
MATCH (n) DELETE 1 + 1 | a value to delete must be a node or a relationship or a path, not an integer
MATCH (n) DELETE [n] | not a list
RETURN NOT 1 | the operand of NOT must be a boolean, not an integer
RETURN 1 AND true | an operand of AND must be a boolean, not an integer
RETURN null OR 'foo' | not a string
RETURN [] XOR false | not a list
MATCH (n) WHERE n RETURN n | WHERE must be a boolean, not a node
MATCH (n) WHERE 'a' RETURN n | WHERE must be a boolean, not a string
MATCH (n) WHERE (n) RETURN n | not a node
RETURN 1.x | an integer has no properties; found .x
WITH 1 AS x RETURN x.y | an integer has no properties
MATCH p = ()-->() WHERE p.x = 1 RETURN p | a path has no properties
RETURN 1 IN 'abc' | the right operand of IN must be a list, not a string
WITH true AS l RETURN l[0] | a boolean has no elements
WITH [1] AS l RETURN l['a'] | the index of a list must be an integer
WITH {a: 1} AS m RETURN m[0] | must be a string, not an integer
WITH 1 AS x RETURN x[0..1] | must be a list
RETURN none(x IN ['a'] WHERE x % 2 = 0) | the left operand of % must be a number, not a string
RETURN [x IN 1 | x] | the source of a list comprehension must be a list
RETURN -'a' | must be a number
MATCH p = ()-->() RETURN labels(p) | labels() takes a node, not a path
MATCH (n) RETURN type(n) | type() takes a relationship, not a node
MATCH (n) RETURN length(n) | length() takes a path, not a node
MATCH ()-[r]->() RETURN length(r) | length() takes a path
RETURN length('abc') | size() counts its elements
MATCH p = ()-[*]->() RETURN size(p) | not a path
MATCH (n) RETURN nodes(n) | nodes() takes a path
RETURN properties(1) | not an integer
RETURN foo(1) | unknown function foo()
RETURN sze([1]) | did you mean size()
RETURN size() | size() takes 1 argument, not 0
RETURN count(1, 2) | count() takes 1 argument
RETURN size(DISTINCT [1]) | DISTINCT is only allowed in aggregates
MATCH (n) RETURN (n)-->() | a pattern is no value
MATCH (n) WITH (n)-->() AS x RETURN x | a pattern is no value
MATCH (n) SET n.x = head(nodes(head((n)-[:REL]->()))).foo | a pattern is no value
MATCH (n) RETURN [(n)-->(), 1] | a pattern is no value
MATCH (n) SET n = 1 | the new properties must be a map
WITH 1 AS n SET n.x = 1 | must be a node or a relationship, not an integer
WITH 1 AS n SET n:A | labels of an integer cannot be changed
MATCH ()-[r]->() SET r:A | labels of a relationship cannot be changed
MATCH p = ()-->() SET p = {} | properties of a path cannot be changed
FOREACH (x IN 1 | CREATE ()) | the source of FOREACH must be a list
FOREACH (x IN [1] | MATCH (n)) | FOREACH takes clauses that write, not MATCH
FOREACH (x IN [1] | RETURN x) | not RETURN
MATCH (n) WHERE EXISTS { MATCH (n) SET n.x = 1 } RETURN n | a subquery of EXISTS cannot write
RETURN COLLECT { MATCH (n) RETURN n, n.x } | exactly one column
RETURN COLLECT { MATCH (n) } | cannot conclude with MATCH
MATCH (n) CALL db.labels() RETURN n | CALL needs parentheses and YIELD
MATCH (n) CALL db.labels() YIELD * RETURN n | YIELD * is only allowed
RETURN {a: 1, a: 2} | the key a occurs twice
"""


def split_refused() -> list[tuple[str, str]]:
    return [(text, message) for line in REFUSED.strip().splitlines() for text, message in [line.rsplit(" | ", 1)]]


@pytest.mark.parametrize("text", ACCEPTED.strip().splitlines())
def test_valid_statements_pass(text: str) -> None:
    check(text)


@pytest.mark.parametrize(("text", "message"), split_refused())
def test_faults_are_reported_before_the_statement_runs(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(text)
    assert message in str(caught.value)
    assert ", at line 1, column " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MATCH " + "()--" * 100 + "() RETURN 1", "at most 200 nodes and relationships; this one has 201"),
        ("MATCH " + "()--" * 99 + "() WITH 1 AS a MATCH " + "()--" * 99 + "()", "cannot conclude"),
        (
            ("MATCH " + "()--" * 99 + "() WITH 1 AS a ") * 6 + "RETURN 1",
            "at most 1000 nodes and relationships together",
        ),
    ],
)
def test_large_patterns_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check(text)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE " + ", ".join(f"(a{i})" for i in range(3_500)),
        "WITH 1 AS a " * 3_000 + "RETURN a",
        "RETURN true" + " OR true" * 6_000,
        "RETURN 1" + " + 1" * 150,
        "RETURN " + "[" * 99 + "]" * 99,
        "MATCH (n) RETURN " + "[x IN n.l | " * 60 + "1" + "]" * 60,
        "RETURN 1 AS a" + " UNION RETURN 1 AS a" * 2_000,
    ],
)
def test_large_statements_pass_the_checks(text: str) -> None:
    assert not check_query_semantics(parse_cypher_query(text), text).procedures
