"""Statements whose final write kgserve applies itself, and the read statement that precedes it."""

from __future__ import annotations

import pytest

from kgserve.cypher.guard import validate_cypher_statement_for_engine
from kgserve.cypher.write_analysis import extract_final_write_clause

PARAMETERS = {"id": "a", "text": "x", "nothing": None}
WITH_ENDING = {
    "MATCH (n {id: $id}) DELETE n": "RETURN DISTINCT n.id AS column_0",
    "MATCH (n) WHERE n.type = 'set' WITH n LIMIT 9 DETACH DELETE n": "RETURN DISTINCT n.id AS column_0",
    "MATCH (n)-[r]->(m) DELETE m, r": (
        "RETURN DISTINCT m.id AS column_0, n.id AS column_1, m.id AS column_2, r.relation_type AS column_3"
    ),
    "MATCH (n)<-[r:RELATES_TO]-(m) WHERE n.id STARTS WITH 'a' DELETE r": (
        "RETURN DISTINCT m.id AS column_0, n.id AS column_1, r.relation_type AS column_2"
    ),
    # An edge identifies itself if its endpoints are unnamed, may be rebound, or have no direction.
    "MATCH ()-[r]->(m) DELETE r": "RETURN DISTINCT r AS column_0",
    "MATCH (n)-[r]-(m) DELETE r": "RETURN DISTINCT r AS column_0",
    "MATCH (n)-[r]->(m) WITH r MATCH (n {id: 'a'}), (m) DELETE r": "RETURN DISTINCT r AS column_0",
    "MATCH (n) SET n.content = n.content + $text": "RETURN  n.id AS column_0, (n.content + $text) AS column_1",
    "MATCH (n) SET n.type = 'a', n.content = cast(n.version AS STRING)": (
        "RETURN  n.id AS column_0, ('a') AS column_1, (cast(n.version AS STRING)) AS column_2"
    ),
    "MATCH (n)-[r]->(m) SET r.weight = 2, n.content = m.id": (
        "RETURN  n.id AS column_0, m.id AS column_1, r.relation_type AS column_2, n.id AS column_3,"
        " (2) AS column_4, (m.id) AS column_5"
    ),
}
WITHOUT = [
    "CREATE (:Entity {id: 'x', type: 't'})",
    "MERGE (n:Entity {id: 'a'}) SET n.type = 't'",
    "MATCH (n) DELETE n RETURN 1",
    "MATCH (n) SET n.content = 'x' RETURN count(*)",
    "OPTIONAL MATCH (n) SET n.content = 'x' RETURN n.content",
    "MATCH (n) SET n.content = 'x' RETURN DISTINCT n.type",
    "MATCH (n) SET n.content = 'x' RETURN n.id ORDER BY n.id",
    "MATCH (n) SET n.content = 'x' RETURN [n] AS l",
    "MATCH (n) SET n.content = 'x', n.content = 'y'",
    "MATCH (n) DELETE n CREATE (:Entity {id: 'x', type: 't'})",
    "MATCH (n) WITH n AS m DELETE m",
    "MATCH (n) WITH collect(n) AS found UNWIND found AS n DELETE n",
    "MATCH p = (n)-[]->(m) DELETE p",
    "MATCH (n)-[r*1..2]->(m) DELETE r",
    "MATCH (`n`) DELETE `n`",
    "MATCH (n:Entity:Other) DELETE n",
    "MATCH (n) SET n.content = NULL",
    "MATCH (n) SET n.content = $nothing",
    "MATCH (n) SET n.content = cast(count(*) AS STRING)",
    "MATCH (n) SET n.content = cast(count(true) AS STRING)",
    "MATCH (n) SET n.content = cast(COUNT { MATCH (n)-[]->() } AS STRING)",
    "MATCH (n) SET n.type = upper(n.type), n.content = 'x'",
    "MATCH (n) SET n.type = 'a', n.content = n.`type`",
    "MATCH (n) SET n.type = 'a', n.content = cast(n AS STRING)",
    "MATCH (n) SET n.weight = 2",
    "MATCH (n)-[r]->() SET r.content = 'a'",
    "MATCH (n)-[r]->() SET r.relation_type = 'a'",
    "MATCH (n) SET n.tags = ['a']",
    "MATCH (n) SET n.version = 2",
]


@pytest.mark.parametrize("query", WITH_ENDING)
def test_final_write_is_split_from_the_read_statement(query: str) -> None:
    found = extract_final_write_clause(validate_cypher_statement_for_engine(query, PARAMETERS, writable=True))
    assert found is not None
    assert found.question.text.endswith(WITH_ENDING[query])


@pytest.mark.parametrize("query", WITHOUT)
def test_unsupported_final_write_is_left_to_the_engine(query: str) -> None:
    assert extract_final_write_clause(validate_cypher_statement_for_engine(query, PARAMETERS, writable=True)) is None
