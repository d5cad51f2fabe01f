"""Statements that exceed resource limits, by kind. The guard accepts all of them, so they reach the engine."""

from __future__ import annotations

BOMBS: dict[str, tuple[str, ...]] = {
    "cross products": (
        "MATCH (a:Entity),(b:Entity),(c:Entity) RETURN a,b,c",
        "MATCH (a:Entity),(b:Entity) RETURN a,b",
        "MATCH (a:Entity),(b:Entity),(c:Entity) RETURN sum(a.version + b.version * c.version)",
        "MATCH (a:Entity),(b:Entity) WHERE a.content CONTAINS b.id + b.content RETURN count(*)",
    ),
    "aggregates": (
        "MATCH (a:Entity),(b:Entity) RETURN collect(a.content + b.content)",
        "MATCH (a:Entity),(b:Entity) RETURN a.id, b.id, count(*), max(a.content + b.content), min(b.content)",
        "MATCH (a:Entity),(b:Entity) RETURN count(DISTINCT a.content + b.id)",
        "MATCH (a:Entity),(b:Entity) RETURN DISTINCT a.content + b.id",
        "MATCH (a:Entity),(b:Entity),(c:Entity) RETURN a.id + b.id + c.id, avg(a.version), collect(b.id)",
    ),
    "ORDER BY of large sets": (
        "MATCH (a:Entity),(b:Entity),(c:Entity) RETURN a.id + b.id + c.id ORDER BY a.id",
        "MATCH (a:Entity),(b:Entity) WITH a.content + b.content AS x RETURN x + x + x + x + x + x + x ORDER BY x",
        "MATCH (a:Entity),(b:Entity) RETURN a.content + b.content AS x, count(*) ORDER BY x",
        "UNWIND range(1,3000) AS i UNWIND range(1,3000) AS j RETURN i, j ORDER BY i * j",
        "MATCH (a:Entity),(b:Entity) RETURN a.id, b.id ORDER BY reverse(a.content), b.content SKIP 100 LIMIT 10",
    ),
    "huge lists": (
        "MATCH (a:Entity) WITH collect(a.content) AS x RETURN list_concat(x, list_concat(x, list_concat(x, x)))",
        "MATCH (a:Entity) WITH collect(a.content) AS all UNWIND all AS one RETURN one, all",
        "MATCH (a:Entity) WITH collect(a) AS all UNWIND all AS one UNWIND all AS two RETURN one, two",
        "MATCH (a:Entity) WITH collect(a.content) AS x MATCH (b:Entity) RETURN b.id, list_contains(x, b.content), x",
        "UNWIND range(1,10000) AS i MATCH (a:Entity) RETURN collect(a.content)",
    ),
    "nested lists": (
        "MATCH (a:Entity) WITH collect([a.content, a.id]) AS x WITH [x, x, x] AS y RETURN [y, y, y]",
        "UNWIND range(1,5000) AS i UNWIND range(1,5000) AS j RETURN collect([[i, j], [j, i]])",
        "MATCH (a:Entity),(b:Entity) WITH a, collect([[b.content], [a.content]]) AS x RETURN collect(x)",
    ),
    "functions given to functions": (
        "MATCH (a:Entity) WITH collect(a.content) AS x MATCH (b:Entity) RETURN list_transform(x, y -> y + b.content)",
        "MATCH (a:Entity) WITH collect(a.content) AS x MATCH (b:Entity) RETURN list_filter(x, y -> y <> b.content)",
        "MATCH (a:Entity) RETURN list_transform(regexp_extract_all(a.content, '.'), y -> y + a.content)",
    ),
    "ranges": (
        "UNWIND range(1,3000) AS i UNWIND range(1,3000) AS j UNWIND range(1,3000) AS k RETURN count(i + j + k)",
        "UNWIND range(1,4000) AS i UNWIND range(1,4000) AS j RETURN i, collect(cast(j AS STRING))",
        "UNWIND range(1,10000) AS i MATCH (a:Entity),(b:Entity) RETURN sum(i * a.version * b.version)",
    ),
    "recursive patterns": (
        "MATCH p = (a)-[*1..15]->(b) RETURN p",
        "MATCH (a)-[r*1..20]->(b) RETURN count(*)",
        "MATCH p = (a)-[* SHORTEST 1..20]->(b) RETURN count(p)",
        "MATCH p = (a)-[* ALL SHORTEST 1..20]->(b) RETURN p",
        "MATCH (a)-[*1..6]-(b) RETURN collect(b.content)",
        "MATCH (a:Entity) OPTIONAL MATCH (a)-[*1..5]->(b) OPTIONAL MATCH (b)-[*1..5]->(c) RETURN a, b, c",
    ),
    "wide patterns": (
        "MATCH (a)--(b)--(c)--(d)--(e) RETURN a, b, c, d, e",
        "MATCH (a)-->(b)-->(c)-->(d)-->(e)-->(f) RETURN count(*)",
        "MATCH (a)-->(b), (a)-->(c), (a)-->(d), (b)-->(e), (c)-->(f) RETURN a, b, c, d, e, f ORDER BY a.id",
    ),
    "regular expressions": (
        "MATCH (a:Entity) RETURN regexp_extract_all(a.content,'.')",
        "MATCH (a:Entity) RETURN list_sort(regexp_extract_all(a.content,'.'))",
        "MATCH (a:Entity) RETURN collect(regexp_extract_all(a.content,'.'))",
        "MATCH (a:Entity) RETURN regexp_replace(a.content,'(a+)+b','x','g')",
        "MATCH (a:Entity) WHERE a.content =~ '(a|b|ab)*c.*(a|b|ab)*d.*(a|b|ab)*z' RETURN count(*)",
        "MATCH (a:Entity),(b:Entity) RETURN count(regexp_matches(string(a.content + b.content), '(.*)*x(.*)*y'))",
        "MATCH (a:Entity) RETURN regexp_split_to_array(a.content, '')",
    ),
    "texts put together": (
        "UNWIND range(1,10000) AS i RETURN lpad('x', 90, 'y') + rpad('x', 90, 'y') + repeat('abcdefghij', 1)",
        "MATCH (a:Entity),(b:Entity) RETURN lpad(a.content, 9000, b.content)",
        "MATCH (a:Entity) RETURN rpad(a.content, 10000, a.content), reverse(a.content), upper(a.content)",
        "MATCH (a:Entity),(b:Entity) RETURN concat(a.content, b.content, upper(a.content), lower(b.content))",
    ),
    "texts of gigabytes": (
        "MATCH (a:Entity) RETURN repeat(a.content, 10000)",
        "UNWIND range(1,10000) AS i RETURN repeat('abcdefghij', 10000)",
        "MATCH (a:Entity) WITH list_to_string(',', collect(a.content)) AS x MATCH (b:Entity) RETURN x + x + b.id",
        "MATCH (a:Entity) RETURN sha256(repeat(a.content, 5000)), md5(repeat(a.content, 2))",
    ),
    "maps": (
        "MATCH (a:Entity {type:'t'}) RETURN map(regexp_extract_all(a.content,'.'),regexp_extract_all(a.content,'.'))",
        "MATCH (a:Entity) WITH collect(a.id) AS k, collect(a.content) AS v MATCH (b:Entity) RETURN map(k, v)",
        "MATCH (a:Entity),(b:Entity) RETURN collect({a: a.content, b: b.content})",
    ),
    "casts": (
        "MATCH (a:Entity),(b:Entity) RETURN collect(cast(a AS STRING) + cast(b AS STRING))",
        "MATCH (a:Entity) RETURN cast(a.content AS INT64)",
        "MATCH (a:Entity) WITH collect(a.content) AS x MATCH (b:Entity) RETURN cast(x AS STRING) + b.id",
        "MATCH (a:Entity),(b:Entity) RETURN sum(cast(size(cast(a.content AS STRING) + b.id) AS DECIMAL))",
    ),
    "unions and JSON": (
        "MATCH (a:Entity),(b:Entity) RETURN a.content + b.id AS x UNION MATCH (a),(b) RETURN b.content AS x",
        "MATCH (a:Entity),(b:Entity) RETURN collect(to_json(a.content + b.content))",
    ),
}
