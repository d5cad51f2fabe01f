from __future__ import annotations

import pytest

from kgserve.cypher.guard import GuardedCypherStatement, validate_cypher_statement_for_engine

PATTERNS = {
    "MATCH (n) RETURN n": "MATCH (n:Entity) RETURN n",
    "MATCH () RETURN 1": "MATCH (:Entity) RETURN 1",
    "MATCH (:Entity) RETURN 1": "MATCH (:Entity) RETURN 1",
    "MATCH (n:Entity:Other) RETURN n": "MATCH (n:Entity:Other) RETURN n",
    "MATCH (n {id: 'a'}) RETURN n": "MATCH (n:Entity {id: 'a'}) RETURN n",
    "MATCH ({id: 'a'}) RETURN 1": "MATCH (:Entity{id: 'a'}) RETURN 1",
    "MATCH (a)-[r]->(b)<--(c) RETURN a": (
        "MATCH (a:Entity)-[r]->(b:Entity)<-[_r1]-(c:Entity) WHERE id(`r`) <> id(`_r1`) RETURN a"
    ),
    "MATCH (`odd name`) RETURN 1": "MATCH (`odd name`:Entity) RETURN 1",
    "match (n), (m {id: $p}) return n": "match (n:Entity), (m:Entity {id: $p}) return n",
    "MATCH (n) WHERE (n.version + 1) > (2) RETURN (n.id)": "MATCH (n:Entity) WHERE (n.version + 1) > (2) RETURN (n.id)",
    "MATCH (n) WITH (n) MATCH (m) RETURN (m)": "MATCH (n:Entity) WITH (n) MATCH (m:Entity) RETURN (m)",
    "OPTIONAL MATCH (n) RETURN n": "OPTIONAL MATCH (n:Entity) RETURN n",
    "MATCH p = (a)-[e*1..2]->(b) RETURN p": "MATCH p = (a:Entity)-[e:RELATES_TO* TRAIL 1..2]->(b:Entity) RETURN p",
    "MATCH (a)-[* SHORTEST 1..3]-(b) RETURN a": "MATCH (a:Entity)-[:RELATES_TO* SHORTEST 1..3]-(b:Entity) RETURN a",
    "MATCH (a) WHERE (a)-[]->() AND 1 - (2) < 3 RETURN a": (
        "MATCH (a:Entity) WHERE (a:Entity)-[]->(:Entity) AND 1 - (2) < 3 RETURN a"
    ),
    "MATCH (e:Elsewhere) MATCH (a)-[:LINKS_TO]->(e) RETURN a": (
        "MATCH (e:Elsewhere) MATCH (a:Entity)-[:LINKS_TO]->(e) RETURN a"
    ),
    "MATCH (a)-[e:RELATES_TO* SHORTEST 1..3]->(b) RETURN length(e)": (
        "MATCH (a:Entity)-[e:RELATES_TO* SHORTEST 1..3]->(b:Entity) RETURN length(e)"
    ),
    "MATCH (a)-[e:RELATES_TO*1..2 (r, n | WHERE r.weight > (0))]->(b) RETURN a": (
        "MATCH (a:Entity)-[e:RELATES_TO* TRAIL 1..2 (r, n | WHERE r.weight > (0))]->(b:Entity) RETURN a"
    ),
    "MATCH (n {id: md5('A')}) RETURN md5(n.id)": "MATCH (n:Entity {id: md5('A')}) RETURN md5(n.id)",
    "MATCH (n) WHERE EXISTS { MATCH (n)-[]->(m) WHERE (m.id) = 'x' } RETURN (n.id)": (
        "MATCH (n:Entity) WHERE EXISTS { MATCH (n:Entity)-[]->(m:Entity) WHERE (m.id) = 'x' } RETURN (n.id)"
    ),
    "MATCH (n) RETURN COUNT { MATCH (x) }, (n.id)": (
        "MATCH (n:Entity) RETURN COUNT { MATCH (x:Entity) } AS `COUNT { MATCH (x) }`, (n.id)"
    ),
    "MATCH (n) DELETE (n)": "MATCH (n:Entity) DELETE (n)",
    "MATCH (a) CREATE (a)-[:RELATES_TO {relation_type: 'x'}]->(a)": (
        "MATCH (a:Entity) CREATE (a)-[:RELATES_TO {relation_type: 'x'}]->(a)"
    ),
    "MATCH (n) RETURN n UNION MATCH (m) RETURN m AS n": (
        "MATCH (n:Entity) RETURN n UNION MATCH (m:Entity) RETURN m AS n"
    ),
    "RETURN '(n)' AS x": "RETURN '(n)' AS x",
    "MATCH (n) WHERE n.content = 'MATCH (m)' RETURN n": "MATCH (n:Entity) WHERE n.content = 'MATCH (m)' RETURN n",
    "EXPLAIN MATCH (n) RETURN n": "EXPLAIN MATCH (n:Entity) RETURN n",
}


def examined(text: str) -> GuardedCypherStatement:
    return validate_cypher_statement_for_engine(text, {"p": "x"}, writable=True)


@pytest.mark.parametrize("text", PATTERNS)
def test_missing_labels_are_added(text: str) -> None:
    assert examined(text).text == PATTERNS[text]


@pytest.mark.parametrize("text", PATTERNS)
def test_positions_map_back_to_the_original(text: str) -> None:
    statement = examined(text)
    for mark in ("RETURN", "WHERE", "DELETE", "CREATE", "return"):
        if mark in text:
            place = statement.text.rindex(mark)
            assert statement.place(place) == (1, text.rindex(mark) + 1)


def test_positions_on_later_lines() -> None:
    text = "MATCH (a),\n  (b), (c) /* x\n */ RETURN a,\r\n b , c"
    statement = examined(text)
    assert statement.text.count(":Entity") == 3
    assert statement.place(statement.text.rindex("RETURN")) == (3, 5)
    assert statement.place(statement.text.rindex("c")) == (4, 6)
    assert statement.place(statement.text.index("(c")) == (2, 8)
    assert statement.place(len(statement.text)) == (4, 7)


def test_position_within_an_added_label() -> None:
    statement = examined("MATCH (n) RETURN n")
    label = statement.text.index(":Entity")
    assert {statement.place(label + offset) for offset in range(1, 8)} == {(1, 9)}
    assert statement.place(label) == (1, 9)
    assert statement.place(label + 7) == (1, 9)
    assert statement.place(label + 8) == (1, 10)
