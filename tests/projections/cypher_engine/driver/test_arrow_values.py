"""Rows read through Arrow equal those read directly, except that only one path supports every date."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from kgserve.cypher.guard import GuardedCypherStatement
from kgserve.projections.cypher_engine.driver import cypher_statement_execution
from kgserve.projections.cypher_engine.driver.engine_file_opening_and_build import create_engine_tables
from kgserve.projections.cypher_engine.driver.prepared_statement_session import PreparedStatementSession
from kgserve.projections.cypher_engine.driver.selected_engine_classes import Database  # noqa: TID251

CREATE = """
CREATE (a:Entity {id: 'a', type: 't', content: 'A', version: 1, attributes: '{}',
  created_at: timestamp('2024-02-29 12:30:00')})
-[:RELATES_TO {relation_type: 'R', weight: 0.5, attributes: '{}'}]->(b:Entity {id: 'b', type: 't'})
-[:RELATES_TO {relation_type: 'S', weight: 1.0}]->(c:Entity {id: 'c', type: 'u'})
"""


@pytest.fixture(scope="module")
def session() -> Generator[PreparedStatementSession]:
    database = Database(":memory:", buffer_pool_size=64 << 20, max_db_size=1 << 30)
    session = PreparedStatementSession(database)
    create_engine_tables(session)
    session.run(CREATE)
    yield session
    session.close()
    database.close()


def rows(session: PreparedStatementSession, text: str, *, through_arrow: bool) -> list[list[Any]]:
    way = (
        cypher_statement_execution.open_write_statement_result
        if through_arrow
        else cypher_statement_execution.open_read_statement_result
    )
    with way(session, GuardedCypherStatement(text, updates=False, explains=False, parameters={})) as cursor:
        return cursor.take(1000)


@pytest.mark.parametrize(
    "text",
    [
        "MATCH (n:Entity) RETURN n ORDER BY n.id",
        "MATCH (a:Entity)-[r]->(b:Entity) RETURN r, a.id, b.id ORDER BY a.id",
        "MATCH p = (a:Entity {id: 'a'})-[*1..2]->(b:Entity) RETURN p, length(p) ORDER BY length(p)",
        "MATCH (n:Entity) RETURN collect(n.id), count(*), avg(n.version)",
        "MATCH (n:Entity) RETURN collect(n)",
        "RETURN [1, 2, NULL], [[1], []], ['a', 'b'], CAST([1, 2] AS INT64[2])",
        "RETURN {a: 1, b: {c: 'x', d: [1.5]}}, map(['k', 'l'], [1, 2])",
        "RETURN 1.5, true, 'text', NULL, CAST(7 AS INT8), CAST(7 AS UINT64), CAST(1.25 AS DECIMAL(5, 2))",
        "RETURN uuid('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'), BLOB('\\\\xAA'), 1.0 / 0.0, sqrt(-1.0)",
        "MATCH (n:Entity) WHERE n.id = 'none' RETURN n, n.id",
        "MATCH (a:Entity) OPTIONAL MATCH (a)-[r {relation_type: 'S'}]->(b:Entity) RETURN a.id, r, [b] ORDER BY a.id",
        "UNWIND [1, 2, 3, 4] AS i RETURN i, CASE WHEN i % 2 = 0 THEN {a: i, b: {c: [i]}} ELSE NULL END AS s",
    ],
)
def test_arrow_and_direct_reads_agree(session: PreparedStatementSession, text: str) -> None:
    assert rows(session, text, through_arrow=True) == rows(session, text, through_arrow=False)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("date('2024-02-29')", "2024-02-29"),
        ("date('9999-12-31') + interval('10 years')", "10009-12-31"),
        ("date('0001-01-01') - interval('2 years')", "-0001-01-01"),
        ("timestamp('2024-02-29 12:30:00.5')", "2024-02-29T12:30:00.500000Z"),
        ("[timestamp('9999-12-31') + interval('10 years'), NULL]", ["10009-12-31T00:00:00.000000Z", None]),
        ("{at: date('2024-02-29')}", {"at": "2024-02-29"}),
        ("map(['x'], [date('2024-02-29')])", {"x": "2024-02-29"}),
        ("interval('90 seconds')", "PT90.000000S"),
        ("CAST('2024-02-29' AS TIMESTAMP_NS)", "2024-02-29T00:00:00.000000000Z"),
        ("CAST(NULL AS DATE)", None),
    ],
)
def test_times_are_text_in_any_year(session: PreparedStatementSession, expression: str, value: object) -> None:
    assert rows(session, f"RETURN {expression}", through_arrow=False) == [[value]]


def test_nulls_in_lists_of_different_lengths(session: PreparedStatementSession) -> None:
    text = "UNWIND [[date('2024-01-01')], NULL, [], [date('2024-01-02'), NULL]] AS days RETURN days"
    assert rows(session, text, through_arrow=False) == [[["2024-01-01"]], [None], [[]], [["2024-01-02", None]]]
