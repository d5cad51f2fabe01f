from __future__ import annotations

import pytest

from kgserve.cypher.guard import validate_cypher_statement_for_engine
from kgserve.cypher.write_analysis import StatementWriteBounds, analyze_statement_write_bounds

SAID = {
    "MATCH (n {id: 'a'}) SET n.content = 'x'": "sets",
    "match (n) set n.`content` = n.type": "sets",
    "CREATE (:Entity {id: 'DELETE', type: 'SET'})": "creates",
    "MERGE (n:Entity {id: 'a'}) ON MATCH SET n.content = 'x'": "creates sets",
    "MATCH (n) DELETE n": "deletes",
    "MATCH (n) DETACH DELETE n": "deletes relations",
    "MATCH (a)--(b) SET b.content = a.id": "sets relations",
    "MATCH (a)-[r]->(b) DELETE r CREATE (b)<-[:RELATES_TO]-(a)": "creates deletes relations",
}


@pytest.mark.parametrize("text", SAID)
def test_write_scope_of_statements(text: str) -> None:
    found = analyze_statement_write_bounds(validate_cypher_statement_for_engine(text, {}, writable=True))
    names = ("creates", "deletes", "sets", "relations")
    assert " ".join(name for name in names if getattr(found, name)) == SAID[text]


def test_only_named_properties_may_be_set() -> None:
    query = "MATCH (n {valid_to: timestamp($t)}) WHERE n.type = 't' SET n.content = n.summary, n.`tags`=['x']"
    found = analyze_statement_write_bounds(
        validate_cypher_statement_for_engine(query, {"t": "2020-01-01"}, writable=True)
    )
    names = ("type", "content", "tags", "summary", "valid_to", "version")
    assert [name for name in names if found.may_set(name)] == ["type", "content", "tags"]
    assert StatementWriteBounds().may_set("version")
    assert not analyze_statement_write_bounds(
        validate_cypher_statement_for_engine("CREATE (:Entity {id: 'a', version: 1})", {}, writable=True)
    ).may_set("version")
    assert analyze_statement_write_bounds(
        validate_cypher_statement_for_engine("CREATE (:Entity {id: 'a', version: 1})", {}, writable=True)
    ).may_name("version")
