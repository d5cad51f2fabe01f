"""Real queries, and random mutations of them."""

from __future__ import annotations

import random

from kgserve.cypher.lexer import ALLOWED_FUNCTIONS, KEYWORDS, scan_cypher_tokens
from kgserve.errors import InvalidInput

PARAMETERS = {
    "id": "n5",
    "ids": ["n1", "n2", "n3"],
    "n": 3,
    "nothing": None,
    "empty": [],
    "rows": [{"id": "n1", "rank": 1}, {"rank": 2, "id": "n2"}],
    "map": {"id": "n7", "rank": 1.5},
    "text": "some words",
    "vector": [0.1, 0.2, 0.3],
}

READS = (
    "MATCH (n:Entity) RETURN count(*)",
    "MATCH (n:Entity {id: $id}) RETURN n",
    "MATCH (n:Entity) WHERE n.id IN $ids RETURN n.id, n.type, n.content ORDER BY n.id",
    "MATCH (n:Entity) WHERE n.content CONTAINS 'node 1' AND NOT n.type = 'Test' RETURN n.id AS id LIMIT 10",
    (
        "MATCH (a:Entity)-[e:RELATES_TO]->(b:Entity) WHERE e.relation_type = 'verifies' RETURN a.id, b.id, "
        "e.weight LIMIT 20"
    ),
    "MATCH p = (a:Entity {id: 'n1'})-[e:RELATES_TO*1..3]->(b:Entity) RETURN p, length(p), nodes(p) LIMIT 5",
    (
        "MATCH (a:Entity {id: $id})-[e:RELATES_TO* SHORTEST 1..4]-(b:Entity) RETURN b.id, length(e) ORDER BY "
        "length(e), b.id"
    ),
    (
        "MATCH (a:Entity)-[e:RELATES_TO]->(b) WITH a, count(b) AS degree WHERE degree > 3 RETURN a.id, degree"
        " ORDER BY degree DESC"
    ),
    "MATCH (n:Entity) WITH n.type AS kind, collect(n.id) AS ids RETURN kind, size(ids), ids[1], ids[1:3]",
    "UNWIND $rows AS row MATCH (n:Entity {id: row.id}) RETURN n.id, row.rank + 1, -row.rank",
    "UNWIND range(1, 20, 3) AS i WITH i, i * i AS square WHERE square % 2 = 1 RETURN i, square, sqrt(square)",
    "MATCH (n:Entity) RETURN n.type, CASE WHEN n.version > 1 THEN 'changed' ELSE 'new' END AS state, count(*)",
    "MATCH (n:Entity) WHERE EXISTS { MATCH (n)-[:RELATES_TO]->(m:Entity) WHERE m.type = 'Test' } RETURN n.id",
    "MATCH (n:Entity) RETURN n.id, COUNT { MATCH (n)-[:RELATES_TO]->() } AS out ORDER BY out DESC SKIP 2 LIMIT 3",
    "MATCH (n:Entity) OPTIONAL MATCH (n)<-[e:RELATES_TO]-(m:Entity) RETURN n.id, m.id, e.weight IS NULL LIMIT 30",
    "RETURN list_transform([1, 2, 3], x -> x * 2), list_filter($ids, x -> x <> 'n1')",
    (
        "MATCH p = (a:Entity)-[:RELATES_TO*1..2]->(b) WHERE size(list_filter(nodes(p), x -> x.type <> "
        "'Test')) = 1 RETURN count(p)"
    ),
    "MATCH (n:Entity) WHERE n.created_at > timestamp('2024-01-01') RETURN date_part('year', n.created_at), count(*)",
    "MATCH (n:Entity) RETURN n.created_at + interval('7 days'), date_trunc('month', n.updated_at) LIMIT 3",
    "MATCH (n:Entity) WHERE json_extract(n.attributes, '$.rank') = '5' RETURN n.*",
    (
        "MATCH (n:Entity) RETURN upper(n.id) AS u, substring(n.content, 1, 9), lpad(n.id, 8, '0'), "
        "concat(n.id, '-', n.type)"
    ),
    "MATCH (n:Entity) WHERE n.content =~ '.*node 1.*' OR n.id STARTS WITH 'n2' RETURN regexp_replace(n.id, 'n', 'm')",
    "MATCH (n:Entity) RETURN DISTINCT n.type AS type UNION ALL MATCH (n:Entity {id: 'n1'}) RETURN n.id AS type",
    "RETURN {a: 1, b: [1, 2], c: {d: 'x'}} AS m, [1, 2, 3][1:2], map(['a'], [1]), $map.id, typeof($n)",
    "RETURN CAST('5' AS INT64) + 1, CAST([1, 2] AS STRING), CAST(NULL AS DOUBLE), abs(-5.5), 7 % 3, 2 ^ 10, 1 << 3",
    (
        "MATCH (n:Entity) WHERE $nothing IS NULL OR n.type = $nothing RETURN min(n.id), max(n.version), "
        "avg(n.sequence), sum(1)"
    ),
    (
        "MATCH (a)-[e]->(b) WHERE id(a) = id(b) OR label(e) = 'RELATES_TO' RETURN labels(a), keys(a), "
        "properties([a], 'id')"
    ),
    "CALL show_tables() RETURN *",
    "CALL table_info('Entity') RETURN name, type ORDER BY name",
    (
        "UNWIND range(1, 3000) AS i WITH i, list_append(range(1, 4), i) AS v WHERE i % 2 = 0 RETURN "
        "list_filter(v, x -> x > i), size(v)"
    ),
    "MATCH (n:Entity) RETURN list_sum(list_transform(range(1, 3000), x -> x % 7)), n.id",
    (
        "MATCH (n:Entity), (m:Entity) WITH collect(n.version) AS v RETURN size(list_filter(v, x -> x = 1)), "
        "size(list_distinct(v))"
    ),
    "EXPLAIN MATCH (a:Entity)-[e]->(b) RETURN a.id, count(b)",
    "MATCH (a:Entity), (b:Entity) WHERE a.type = b.type AND a.id < b.id RETURN count(*)",
    "MATCH (a:Entity)-[:RELATES_TO]->(b)-[:RELATES_TO]->(c)-[:RELATES_TO]->(a) RETURN count(*)",
    "WITH $vector AS v RETURN list_sum(v), list_sort(v, 'DESC'), array_cosine_similarity(v, [0.3, 0.2, 0.1])",
    (
        "MATCH (a:Entity {id: 'n3'})-[e:RELATES_TO*1..3 (r, n | WHERE r.weight > 0.1 | {r.weight}, "
        "{n.id})]->(b) RETURN e, b.id"
    ),
    "MATCH (a:Entity)-[e:RELATES_TO* WSHORTEST(weight)]->(b:Entity {id: 'n9'}) RETURN a.id, b.id LIMIT 4",
    "MATCH (n:Entity) WITH n ORDER BY n.id LIMIT 5 UNWIND $empty AS x RETURN n.id, x, coalesce(n.content, 'none')",
)

WRITES = (
    "CREATE (n:Entity {id: 'new1', type: 'Test', content: $text}) RETURN n",
    "MERGE (n:Entity {id: 'new2'}) ON CREATE SET n.type = 'A', n.version = 1 ON MATCH SET n.type = 'B' RETURN n.type",
    "MATCH (n:Entity {id: $id}) SET n.content = 'changed', n.version = n.version + 1 RETURN n",
    (
        "MATCH (a:Entity {id: 'n1'}), (b:Entity {id: 'n2'}) CREATE (a)-[:RELATES_TO {relation_type: 'x', "
        "weight: 1.0}]->(b)"
    ),
    "MATCH (a:Entity {id: 'n3'})-[e:RELATES_TO]->(b:Entity) DELETE e",
    # No DETACH DELETE: replayed from the engine's log it leaves dangling edges that crash traversals.
    "MATCH (n:Entity {id: 'n250'})-[e]->(m:Entity) DELETE e",
    "UNWIND $rows AS row MERGE (n:Entity {id: row.id}) SET n.version = row.rank",
    (
        "MATCH (a:Entity {id: 'n1'}), (b:Entity {id: 'n9'}) MERGE (a)-[e:RELATES_TO {relation_type: "
        "'m'}]->(b) SET e.weight = 2.0"
    ),
    "MATCH (n:Entity) WHERE n.type = 'Test' SET n.attributes = NULL",
)

_LITERALS = """
0 1 -1 3 0.5 1e308 9223372036854775807 -9223372036854775808 99999999999999999999 '' 'a' "b" 'n1' [] [1] ['a'] [[]] {a:1}
NULL true $id $ids $n $nothing $empty $rows $map $text $vector n a b e p x row n.id a.id n.version n.created_at count(*)
"""
_VALUES = _LITERALS.split()
_SIGNS = "( ) [ ] { } , . .. : = <> < > <= >= + - * / % ^ | & ! =~ << >> -> -- ; ' \" ` // /* */ $ x->x"
_SYMBOLS = _SIGNS.split()
_SPACES = (" ", " ", " ", "\n", "\t", "/**/", "/* x */", "//\n", "\u00a0")


_WRAPPED = (
    "[{}, {}]",
    "{{a: {}, b: {}}}",
    "({} + {})",
    "({} - {})",
    "({} = {})",
    "({} < {})",
    "({} IN [{}])",
    "{}[{}]",
    "NOT ({} OR {})",
    "CASE WHEN {} THEN {} END",
    "CASE {} WHEN {} THEN 1 ELSE NULL END",
    "list_transform([{}], x -> {})",
    "list_filter({}, x -> x = {})",
    "CAST({} AS STRING)",
    "CAST({} AS INT64[])",
    "CAST({} AS DOUBLE)",
    "CAST({} AS DATE)",
    "CAST({} AS TIMESTAMP)",
    "CAST({} AS INT64)",
    "CAST({} AS DECIMAL(9, 2))",
    "CAST({} AS BOOL)",
    "CAST({} AS UUID)",
    "range(1, 30)",
    "repeat({}, 3)",
    "{} STARTS WITH {}",
    "{} =~ {}",
    "({} % {})",
    "({} * {})",
    "({} ^ {})",
    "({} / {})",
    "-{}",
    "({} >> {})",
    "{} IS NULL",
    "coalesce({}, {})",
    "collect({})",
    "DISTINCT {}",
    "{}[{}:{}]",
    "({} AND {})",
    "{}.id",
)


def mutate(choice: random.Random, sources: list[str]) -> str:
    """Return a text derived from one or two real queries by one to four changes, mostly of values."""
    text = choice.choice(sources)
    for _ in range(choice.choice((1, 1, 1, 2, 2, 3, 4))):
        way = choice.random()
        if way < 0.7:
            text = _values(choice, text)
        else:
            text = _characters(choice, text) if way < 0.75 else _tokens(choice, text, sources)
    return text


def _values(choice: random.Random, text: str) -> str:
    """Replace an expression by another one."""
    spans = _operands(_parts(text))
    parts = _parts(text)
    if not spans:
        return text
    start, end = choice.choice(spans)
    return "".join([*parts[:start], _expression(choice, "".join(parts[start:end]), 2), *parts[end:]])


def _expression(choice: random.Random, former: str, depth: int) -> str:
    """Return a value, or a function or operator applied to values and the former expression."""
    way = choice.random()
    if way < 0.25 or depth == 0:
        return choice.choice((former, choice.choice(_VALUES), choice.choice(_VALUES)))
    inner = [_expression(choice, former, depth - 1) for _ in range(3)]
    if way < 0.6:
        return (
            f"{choice.choice(sorted(ALLOWED_FUNCTIONS))}({', '.join(inner[: choice.choice((0, 1, 1, 1, 2, 2, 2, 3))])})"
        )
    return choice.choice(_WRAPPED).format(*inner)


def _operands(parts: list[str]) -> list[tuple[int, int]]:
    """Return the positions of literals, parameters, properties and calls."""
    spans: list[tuple[int, int]] = []
    for index, part in enumerate(parts):
        after = parts[index + 1] if index + 1 < len(parts) else ""
        if part[0] in "'\"$" or part[0].isdigit():
            spans.append((index, index + 1))
        elif after == "." and part.isidentifier() and index + 2 < len(parts):
            spans.append((index, index + 3))
        elif after == "(" and part.lower() in ALLOWED_FUNCTIONS:
            spans.append((index, _closing(parts, index + 1)))
    return spans


def _closing(parts: list[str], start: int) -> int:
    depth = 0
    for index in range(start, len(parts)):
        depth += (parts[index] == "(") - (parts[index] == ")")
        if depth == 0:
            return index + 1
    return start


def _tokens(choice: random.Random, text: str, sources: list[str]) -> str:
    parts = _parts(text)
    solid = [index for index, part in enumerate(parts) if not part.isspace()]
    at = choice.choice(solid) if solid else 0
    other = _parts(choice.choice(sources))
    match choice.randrange(9):
        case 0:
            del parts[at : at + choice.choice((1, 1, 2, 4))]
        case 1:
            parts[at:at] = parts[at : at + choice.choice((1, 2, 5))] * choice.choice((1, 1, 2, 30))
        case 2 if parts:
            to = choice.choice(solid or [0])
            parts[at], parts[to] = parts[to], parts[at]
        case 3:
            parts.insert(at, f" {choice.choice(sorted(KEYWORDS))} ")
        case 4:
            parts.insert(at, f" {choice.choice(_SYMBOLS)} ")
        case 5:
            start = choice.randrange(len(other))
            parts[at:at] = other[start : start + choice.choice((2, 4, 8))]
        case 6:
            parts = [*parts[:at], *other[choice.randrange(len(other)) :]]
        case _:
            parts = [_disguised(choice, part) for part in parts]
    return "".join(parts)


def _disguised(choice: random.Random, part: str) -> str:
    if part.isspace():
        return choice.choice(_SPACES)
    return choice.choice((part.lower(), part.title())) if part in KEYWORDS else part


def _characters(choice: random.Random, text: str) -> str:
    at = choice.randrange(len(text) + 1)
    kind = choice.randrange(3)
    if kind == 0:
        return text[:at] + text[at + 1 :]
    character = chr(choice.choice((choice.randrange(1, 128), choice.randrange(128, 0x3000))))
    return text[:at] + character + text[at + (kind == 1) :]


def _parts(text: str) -> list[str]:
    try:
        return [token.text for token in scan_cypher_tokens(text)]
    except InvalidInput:
        return list(text)
