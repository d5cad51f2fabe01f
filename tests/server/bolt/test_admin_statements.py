from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import neo4j
import pytest
from neo4j.exceptions import ClientError

from kgserve.cypher.interpreter.explain_profile_prefix import split_explain_profile_prefix
from kgserve.server.bolt.admin_statements import parse_cypher_admin_statement
from tests.server.bolt.running import RunningServer
from tests.server.bolt.scripted_backend import PASSWORD, ScriptedBackend


@pytest.fixture
def driver(server: RunningServer) -> Iterator[neo4j.Driver]:
    with neo4j.GraphDatabase.driver(server.url, auth=("ada", PASSWORD)) as driver:
        yield driver


def ask(driver: neo4j.Driver, statement: str, database: str | None = None, **parameters: Any) -> list[list[Any]]:
    return [
        record.values()
        for record in driver.execute_query(cast("Any", statement), parameters, database_=database).records
    ]


@pytest.mark.parametrize(
    ("statement", "subject"),
    [
        ("SHOW DATABASES", "DATABASES"),
        ("  show  databases ; ", "DATABASES"),
        ("// list\nSHOW /* all */ DATABASES", "DATABASES"),
        ("SHOW DATABASE home YIELD name", "DATABASES"),
        ("SHOW DEFAULT DATABASE", "DEFAULT DATABASE"),
        ("SHOW HOME DATABASE", "HOME DATABASE"),
        ("SHOW CURRENT USER", "CURRENT USER"),
        ("SHOW PROCEDURES EXECUTABLE BY CURRENT USER YIELD name", "PROCEDURES"),
        ("SHOW ALL FUNCTIONS", "FUNCTIONS"),
        ("SHOW BUILT IN FUNCTIONS", "FUNCTIONS"),
        ("SHOW INDEXES", "INDEXES"),
        ("SHOW CONSTRAINTS", "CONSTRAINTS"),
        ("CALL dbms.clientConfig()", "dbms.clientconfig"),
        ("call dbms.showCurrentUser", "dbms.showcurrentuser"),
        ("CALL dbms.routing.getRoutingTable({}, 'x')", "dbms.routing.getroutingtable"),
        ("CALL db.labels()", None),
        ("MATCH (show) RETURN show", None),
        ("SHOW TRANSACTIONS", None),
        ("SHOWDATABASES", None),
    ],
)
def test_statements_are_recognized(statement: str, subject: str | None) -> None:
    found = parse_cypher_admin_statement(statement)
    assert (found and found.subject) == subject


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("EXPLAIN RETURN 1", ("EXPLAIN", "        RETURN 1")),
        ("\n profile\nRETURN 1", ("PROFILE", "\n        \nRETURN 1")),
        ("CYPHER 25 RETURN 1", ("", " " * 10 + "RETURN 1")),
        ("CYPHER runtime=slotted EXPLAIN RETURN 1", ("EXPLAIN", " " * 31 + "RETURN 1")),
        ("RETURN 1", ("", "RETURN 1")),
        ("EXPLAINED", ("", "EXPLAINED")),
    ],
)
def test_plan_prefixes_are_blanked(statement: str, expected: tuple[str, str]) -> None:
    plan, text = split_explain_profile_prefix(statement)
    assert (plan, text) == expected


@pytest.mark.parametrize("database", [None, "system", "other"])
def test_databases_are_listed(driver: neo4j.Driver, database: str | None) -> None:
    records = driver.execute_query("SHOW DATABASES", database_=database).records
    assert [(record["name"], record["access"], record["home"]) for record in records] == [
        ("home", "read-write", True),
        ("other", "read-only", False),
        ("system", "read-write", False),
    ]


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("SHOW DATABASES YIELD name", [["home"], ["other"], ["system"]]),
        ("SHOW DATABASES YIELD name AS n, type AS t WHERE t = 'system' RETURN n ORDER BY n DESC", [["system"]]),
        ("SHOW DATABASES YIELD name ORDER BY name DESC SKIP 1 LIMIT 1", [["other"]]),
        ("SHOW DATABASES YIELD * RETURN count(*) AS n", [[3]]),
        ("SHOW DATABASES YIELD name WHERE name <> ' RETURN ' RETURN count(name)", [[3]]),
        ("SHOW DATABASE other YIELD name, access", [["other", "read-only"]]),
        ("SHOW DATABASE $name YIELD name", [["home"]]),
        ("SHOW DEFAULT DATABASE YIELD name", [["home"]]),
        ("SHOW HOME DATABASE YIELD name", [["home"]]),
        ("SHOW CURRENT USER", [["ada", ["admin"], False, False, "home"]]),
        ("CALL dbms.showCurrentUser()", [["ada", ["admin"], []]]),
        ("CALL dbms.clientConfig() YIELD name, value WHERE name = 'client.allow_telemetry' RETURN value", [["false"]]),
        ("CALL dbms.components() YIELD name, versions UNWIND versions AS v RETURN v LIMIT 1", [["5.22.0"]]),
        ("SHOW PROCEDURES YIELD name WHERE name STARTS WITH 'db.label'", [["db.labels"]]),
        ("SHOW FUNCTIONS WHERE name IN ['count', 'date']", [["count", "Aggregating", ""], ["date", "Temporal", ""]]),
        ("SHOW INDEXES YIELD name, type WHERE type = 'VECTOR'", []),
        ("SHOW CONSTRAINTS", []),
        ("EXPLAIN SHOW DATABASES", []),
    ],
)  # fmt: skip
def test_tables_are_queried(driver: neo4j.Driver, statement: str, rows: list[list[Any]]) -> None:
    assert ask(driver, statement, name="home") == rows


def test_where_filters_the_usual_columns(driver: neo4j.Driver) -> None:
    (record,) = driver.execute_query("SHOW DATABASES WHERE name = $wanted", wanted="other").records
    assert record.keys()[0] == "name"
    assert len(record) == 13


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SHOW DATABASES YIELD nothing", "nothing"),
        ("SHOW DATABASES YIELD", "YIELD must be followed"),
        ("SHOW DATABASES LIMIT 1", "YIELD or WHERE"),
        ("SHOW DATABASES YIELD name CREATE (n) RETURN name", "only clauses that read"),
        ("SHOW DATABASES YIELD name WHERE 1 / 0 = 1", "zero"),
    ],
)
def test_faults_in_what_follows_are_reported(driver: neo4j.Driver, statement: str, message: str) -> None:
    with pytest.raises(ClientError, match=message) as caught:
        driver.execute_query(cast("Any", statement))
    assert "column" not in str(caught.value.message) or "columns are" in str(caught.value.message)


def test_explain_shows_the_clauses_and_runs_nothing(driver: neo4j.Driver, backend: ScriptedBackend) -> None:
    statement = "EXPLAIN MATCH (n)-[r]->() CALL (n) { RETURN 1 AS one UNION RETURN 2 AS one } CREATE (m) RETURN n, one"
    records, summary, keys = driver.execute_query(statement)
    assert (records, keys, summary.query_type, backend.requests) == ([], ["n", "one"], "rw", [])
    names: list[str] = []
    plan = summary.plan
    while plan is not None:
        names.append(plan["operatorType"])
        plan = plan["children"][0] if plan["children"] else None
    assert names == ["ProduceResults", "Create", "Apply", "Match"]
    with pytest.raises(neo4j.exceptions.CypherSyntaxError, match="line 1, column 15"):
        driver.execute_query("EXPLAIN MATCH (n")


def test_routing_by_procedure_is_refused(driver: neo4j.Driver) -> None:
    with pytest.raises(ClientError, match="ROUTE"):
        driver.execute_query("CALL dbms.routing.getRoutingTable({})")


def test_the_system_database_has_no_graph(driver: neo4j.Driver, backend: ScriptedBackend) -> None:
    with pytest.raises(ClientError, match="only answers SHOW"):
        driver.execute_query("MATCH (n) RETURN n", database_="system")
    with driver.session(database="system") as session:
        with pytest.raises(ClientError, match="only answers SHOW"):
            session.run("CREATE DATABASE x").consume()
        with session.begin_transaction() as transaction:
            assert len(transaction.run("SHOW DATABASES").values()) == 3
            transaction.commit()
    assert backend.requests == []


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE CONSTRAINT IF NOT EXISTS FOR (n:`__Node__`)\n REQUIRE n.id IS UNIQUE;",
        "CREATE CONSTRAINT ids FOR (p:Person) REQUIRE (p.id) IS NODE KEY",
        "create constraint `if` if not exists for (p:Person) require p.id is not null",
        "CREATE INDEX FOR (n:Person) ON (n.name)",
        "CREATE RANGE INDEX names IF NOT EXISTS FOR (n:Person) ON (n.`full name`)",
    ],
)
def test_what_every_store_has_may_be_declared(driver: neo4j.Driver, statement: str) -> None:
    summary = driver.execute_query(cast("Any", statement)).summary
    assert summary.query_type == "s"
    assert any("nothing was changed" in each.status_description for each in summary.gql_status_objects)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE CONSTRAINT FOR (p:Person) REQUIRE p.name IS UNIQUE",
        "CREATE CONSTRAINT FOR (p:Person) REQUIRE q.id IS UNIQUE",
        "CREATE CONSTRAINT FOR ()-[r:R]-() REQUIRE r.id IS UNIQUE",
        "CREATE CONSTRAINT FOR (p:Person) REQUIRE p.id IS :: STRING",
        "CREATE VECTOR INDEX v IF NOT EXISTS FOR (n:Person) ON n.embedding",
        "CREATE INDEX FOR (n:Person) ON (n.a, n.b)",
        "CREATE INDEX FOR (n:Person) ON (n.a) CREATE (m)",
    ],
)
def test_other_declarations_are_left_to_the_backend(statement: str) -> None:
    assert parse_cypher_admin_statement(statement) is None
