from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kgserve.cypher.guard import GuardedCypherStatement, validate_cypher_statement_for_engine
from kgserve.errors import Forbidden, InvalidInput, KgserveError, StorageFull, TimedOut
from kgserve.projections.cypher_engine.driver import cypher_statement_execution
from kgserve.projections.cypher_engine.driver.engine_file_opening_and_build import (
    create_engine_tables,
    open_engine_file_with_writer,
)
from kgserve.projections.cypher_engine.driver.prepared_statement_session import PreparedStatementSession
from kgserve.projections.cypher_engine.engine.protocol import EngineFileOptions

OPTIONS = EngineFileOptions(cache_bytes=64 << 20)
ENDLESS = "UNWIND range(1, 3000) AS i UNWIND range(1, 3000) AS j UNWIND range(1, 3000) AS k RETURN count(i + j + k)"


class Engine:
    """Engine file opened in the test's own process."""

    def __init__(self, path: Path) -> None:
        self._database, self.writer = open_engine_file_with_writer(path, OPTIONS)

    @contextmanager
    def reader(self, seconds: float = 5) -> Generator[PreparedStatementSession]:
        """Yield a separate session."""
        session = PreparedStatementSession(self._database)
        session.limit(seconds)
        try:
            yield session
        finally:
            session.close()

    def retire(self) -> None:
        """Close the engine."""
        self.writer.close()
        self._database.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(tmp_path_factory.mktemp("engine") / "graph.kuzu")
    create_engine_tables(engine.writer)
    engine.writer.run("UNWIND range(0, 299) AS i CREATE (:Entity {id: 'n' + cast(i AS STRING), type: 't', version: i})")
    engine.writer.run("""
        MATCH (a:Entity), (b:Entity) WHERE b.version = (a.version + 1) % 300
        CREATE (a)-[:RELATES_TO {relation_type: 'R', weight: 1.5}]->(b)
    """)
    yield engine
    engine.retire()


@pytest.fixture
def session(engine: Engine) -> Iterator[PreparedStatementSession]:
    with engine.reader() as session:
        yield session


def examined(text: str, **parameters: Any) -> GuardedCypherStatement:
    return validate_cypher_statement_for_engine(text, parameters, writable=True)


def rows(session: PreparedStatementSession, text: str, at_once: int = 1000) -> list[list[Any]]:
    found: list[list[Any]] = []
    with cypher_statement_execution.open_read_statement_result(session, examined(text)) as cursor:
        while some := cursor.take(at_once):
            assert len(some) <= at_once
            found += some
        assert cursor.total == len(found)
        assert cursor.take(at_once) == []
    return found


def test_rows_are_fetched_in_batches(session: PreparedStatementSession) -> None:
    text = "MATCH (n) RETURN n.version ORDER BY n.version"
    assert [rows(session, text, at_once) for at_once in (1, 7, 300, 301)] == [[[i] for i in range(300)]] * 4
    with cypher_statement_execution.open_read_statement_result(session, examined(text)) as cursor:
        assert cursor.take(0) == []
        assert (cursor.columns, cursor.types, cursor.total) == (["n.version"], ["INT64"], 300)


def test_ends_of_relations_have_names_in_every_batch(session: PreparedStatementSession) -> None:
    for at_once in (1, 40, 500):
        found = [relation for [relation] in rows(session, "MATCH ()-[r]->() RETURN r", at_once)]
        assert {(r["_from"], r["_to"]) for r in found} == {(f"n{i}", f"n{(i + 1) % 300}") for i in range(300)}


def test_ends_have_names_in_nested_relations(session: PreparedStatementSession) -> None:
    text = "MATCH (a {id: 'n5'})-[r]->() RETURN [r], {x: [r]}, collect(r), r"
    [[in_list, in_map, collected, plain]] = rows(session, text)
    assert plain["_from"] == "n5"
    assert in_list == in_map["x"] == collected == [plain]


def test_the_transaction_ends(session: PreparedStatementSession) -> None:
    for _ in range(3):
        assert rows(session, "MATCH (n) RETURN count(*)") == [[300]]
        session.run("BEGIN TRANSACTION READ ONLY")  # fails within another
        session.run("COMMIT")


def test_a_read_only_session_rejects_writes(engine: Engine) -> None:
    with pytest.raises(Forbidden, match="mode write"), engine.reader() as session:
        rows(session, "MATCH (n) SET n.content = 'x'")
    with engine.reader() as session:
        assert rows(session, "MATCH (n) WHERE n.content = 'x' RETURN count(*)") == [[0]]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("MATCH (n) RETURN m", InvalidInput, "Variable m is not in scope, at line 1, column 18"),
        ("MATCH (n)\n RETURN n.nope", InvalidInput, "line 2, column 11"),
        ("MATCH (n) RETRN n", InvalidInput, "syntax error before RETRN, at line 1, column 11"),
        ("RETURN 1 +", InvalidInput, "syntax error, something is missing at the end, at line 1, column 11"),
        ("RETURN 1 / 0", InvalidInput, "Divide by zero"),
        ("RETURN cast('x' AS INT64)", InvalidInput, "Could not convert"),
        ("MATCH (n:Nope) RETURN n", InvalidInput, "Nope.*line 1, column 10"),
        ("MATCH (a), (b), (c) RETURN a, b, c, a.id + b.id + c.id", StorageFull, "KGSERVE_BUFFER_POOL_MB"),
    ],
)
def test_statement_errors_are_reported_to_the_caller(
    engine: Engine, text: str, kind: type[KgserveError], message: str
) -> None:
    with pytest.raises(kind, match=message), engine.reader() as session:
        rows(session, text)
    with engine.reader() as session:
        assert rows(session, "MATCH (n) RETURN count(*)") == [[300]]


def test_a_session_is_usable_after_a_timeout(engine: Engine) -> None:
    start = time.perf_counter()
    with pytest.raises(TimedOut), engine.reader(0.2) as session:
        rows(session, ENDLESS)
    assert time.perf_counter() - start < 30
    with engine.reader(5) as session:
        assert rows(session, "MATCH (n) RETURN count(*)") == [[300]]


def test_interrupting_a_statement(engine: Engine) -> None:
    def run_until_interrupted() -> None:
        with engine.reader(0) as session:
            threading.Timer(0.3, session.interrupt).start()
            rows(session, ENDLESS)

    with pytest.raises(TimedOut):
        run_until_interrupted()
    with engine.reader(0) as session:
        session.interrupt()  # no statement runs, so this has no effect
        assert rows(session, "MATCH (n) RETURN count(*)") == [[300]]


LOOK_ALIKES: list[dict[str, Any]] = [
    {"_nodes": 1, "_rels": 2},
    {"_nodes": [{"a": 1}], "_rels": [{"a": 1}]},
    {"_label": "Entity", "_id": 5, "id": "x"},
    {"_src": {"offset": 1}, "_dst": {"offset": 2}},
    {"_label": 1, "_id": {"offset": 1}},
]


@pytest.mark.parametrize("value", LOOK_ALIKES)
def test_maps_that_look_like_nodes_are_maps(session: PreparedStatementSession, value: dict[str, Any]) -> None:
    with cypher_statement_execution.open_read_statement_result(session, examined("RETURN $v, [$v]", v=value)) as cursor:
        assert cursor.take(1) == [[value, [value]]]


def test_rows_of_a_write(tmp_path: Path) -> None:
    """Raw rows of the engine, before conversion.

    They contain times that Python cannot represent, and nothing is stored.
    """
    engine = Engine(tmp_path / "graph.kuzu")
    create_engine_tables(engine.writer)
    text = "CREATE (a:Entity {id: 'a', type: 't', created_at: timestamp('20000-01-01')})"
    text += "-[r:RELATES_TO {relation_type: 'R'}]->(b:Entity {id: 'b', type: 't'}) RETURN a, r, b.created_at"
    with cypher_statement_execution.open_write_statement_result(engine.writer, examined(text)) as cursor:
        [[node, relation, missing]] = cursor.take(10)
    assert node["created_at"].endswith("20000-01-01T00:00:00.000000Z")
    assert (relation["_from"], relation["_to"], relation["weight"], missing) == ("a", "b", None, None)
    with cypher_statement_execution.open_write_statement_result(
        engine.writer, examined("MATCH (n {id: 'b'}) WITH n, n.id AS id DETACH DELETE n RETURN id")
    ) as cursor:
        assert cursor.take(10) == [["b"]]
    engine.retire()


def test_a_repeated_statement_sees_new_rows(engine: Engine, session: PreparedStatementSession) -> None:
    def answer(value: object) -> list[list[Any]]:
        asked = examined("MATCH (e:Entity) WHERE e.type = 'u' WITH count(*) AS n RETURN n, $value", value=value)
        with cypher_statement_execution.open_read_statement_result(session, asked) as cursor:
            return cursor.take(10)

    assert [answer(1), answer("a"), answer([1.5])] == [[[0, 1]], [[0, "a"]], [[0, [1.5]]]]
    engine.writer.run("CREATE (:Entity {id: 'u', type: 'u'})")
    try:
        assert [answer(1), answer({"a": 1})] == [[[1, 1]], [[1, {"a": 1}]]]
    finally:
        engine.writer.run("MATCH (e:Entity {id: 'u'}) DELETE e")
    assert answer("b") == [[0, "b"]]


@pytest.mark.parametrize("value", ['"a"', '"\\" AS y UNWIND [1] AS z RETURN z"', "[1]"])
def test_parameters_are_never_inserted_into_the_text(session: PreparedStatementSession, value: str) -> None:
    """Ladybug's own package inserts such a parameter into the text, even within quotes, which it ends."""
    text = examined("RETURN 'to_json($x)' AS text, $x AS x", x=value)
    with cypher_statement_execution.open_read_statement_result(session, text) as cursor:
        assert cursor.take(2) == [["to_json($x)", value]]


def test_an_unknown_function_is_a_statement_error(session: PreparedStatementSession) -> None:
    with pytest.raises(InvalidInput, match=r"^query: [^.]*$"):
        rows(session, "RETURN json_extract(1, 2, 3)")


def test_a_null_parameter_has_a_type_at_each_use(session: PreparedStatementSession) -> None:
    text = examined("MATCH (n:Entity {id: 'n1'}) WHERE $x IS NULL OR n.type = $x RETURN n.version = $x, n.id", x=None)
    with cypher_statement_execution.open_read_statement_result(session, text) as cursor:
        assert cursor.take(2) == [[None, "n1"]]
