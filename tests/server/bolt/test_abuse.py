"""Bad input over Bolt, on real stores: the rows of the abuse list that apply."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from neo4j import Driver, GraphDatabase, Query
from neo4j.exceptions import ClientError, CypherSyntaxError, Neo4jError, TransientError

from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.platform.access.audit import AuditLog
from kgserve.platform.access.authentication import ApiKeyFileCache, Authenticator
from kgserve.server.admission import ActiveCallers, ActiveRequestCounter
from kgserve.server.bolt import store_backend
from kgserve.server.bolt.store_backend import BoltStoreBackend
from kgserve.server.http.rate_limits import RateLimiter
from kgserve.stores.pool import StorePool
from tests.server.bolt.running import running
from tests.stores.writing import settings

STORE = "guarded"
ENDLESS = "UNWIND range(1, 3000) AS a UNWIND range(1, 3000) AS b UNWIND range(1, 3000) AS c RETURN sum(a)"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path_factory.mktemp("abuse") / "data")) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(pool: StorePool) -> Iterator[Driver]:
    audit = AuditLog(pool.data_dir)
    authenticator = Authenticator(pool.settings, ApiKeyFileCache(pool.data_dir))
    backend = BoltStoreBackend(
        CallerStoreHandles(pool), authenticator, audit, RateLimiter(0), ActiveRequestCounter(ActiveCallers())
    )
    with running(backend) as server, GraphDatabase.driver(server.url, max_transaction_retry_time=0) as driver:
        driver.execute_query("CREATE (:t {id: 'a'})-[:R]->(:t {id: 'b'})", database_=STORE)
        yield driver
    audit.close()


@pytest.fixture
def driver(served: Driver, pool: StorePool) -> Iterator[Driver]:
    """Driver to a server whose stores must be as they were, and which must go on answering."""
    yield served
    assert run(served, "MATCH (n) RETURN count(n)") == [[2]]
    with pool.lease(STORE) as store:
        assert store.state.sequence == 1
    assert pool.names() == [STORE]


def run(driver: Driver, statement: str, database: str = STORE, **parameters: Any) -> list[list[Any]]:
    records = driver.execute_query(Query(statement), parameters, database_=database).records  # pyright: ignore[reportArgumentType]
    return [list(record.values()) for record in records]


@pytest.mark.abuse(29, 30, 31, 32, 33)
@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "..",
        "%2e%2e",
        "a/b",
        "guarded\n",
        "gu\0arded",
        "\u202eguarded",
        "gu\u0430rded",
        "x" * 65,
        "CON",
        ".hidden",
        " ",
    ],
)
@pytest.mark.parametrize("statement", ["RETURN 1", "CREATE (n)", "EXPLAIN CREATE (n)"])
def test_names_of_databases(driver: Driver, name: str, statement: str) -> None:
    with pytest.raises(ClientError, match="name"):
        run(driver, statement, name)


@pytest.mark.abuse(33)
def test_a_name_that_differs_in_case_only_is_refused_for_good(driver: Driver) -> None:
    with pytest.raises(ClientError, match="more than case") as caught:
        run(driver, "CREATE (n)", STORE.upper())
    assert not caught.value.is_retryable()


@pytest.mark.abuse(47, 49, 50, 52, 61, 63)
@pytest.mark.parametrize("disguise", ["{}", "/* x */ {}", "EXPLAIN {}", "profile {}", "RETURN 1 AS x UNION {}"])
@pytest.mark.parametrize(
    "statement",
    [
        "LOAD FROM '/etc/passwd' RETURN *",
        "LOAD CSV FROM 'file:///etc/passwd' AS x RETURN x",
        "COPY (MATCH (n) RETURN n) TO '/tmp/kgserve-abuse.csv'",
        "EXPORT DATABASE '/tmp/kgserve-abuse'",
        "ATTACH '/tmp/x.db' AS other (dbtype kuzu)",
        "INSTALL httpfs",
        "CALL threads=8",
        "CALL dbms.killQuery('x')",
        "BEGIN TRANSACTION",
        "COMMIT",
        "CHECKPOINT",
        "DROP TABLE Entity",
        "DROP DATABASE guarded",
        "CREATE DATABASE other",
        "ALTER TABLE Entity ADD x STRING",
        "RETURN 1; RETURN 2",
        "RETURN 'open",
        "RETURN 1 /* open",
    ],
)
def test_forbidden_statements(driver: Driver, statement: str, disguise: str) -> None:
    with pytest.raises(ClientError):
        run(driver, disguise.format(statement))


@pytest.mark.abuse(48)
def test_the_words_in_strings_and_names_are_harmless(driver: Driver) -> None:
    assert run(driver, "RETURN 'LOAD FROM x; COPY' AS `DROP TABLE`") == [["LOAD FROM x; COPY"]]


@pytest.mark.abuse(51)
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE (n)",
        "MATCH (n) SET n.x = 1",
        "PROFILE MATCH (n) DETACH DELETE n",
        "CALL apoc.merge.node(['t'], {id: 'x'}) YIELD node RETURN node",
        "MATCH (n) CALL db.create.setNodeVectorProperty(n, 'v', [1.0])",
        "MATCH (n) CALL apoc.create.addLabels(n, ['__X__']) YIELD node RETURN node",
    ],
)
def test_writes_in_read_mode(driver: Driver, statement: str) -> None:
    with (
        driver.session(database=STORE, default_access_mode="READ") as session,
        pytest.raises(Neo4jError, match="only reads"),
    ):
        session.run(statement).consume()  # pyright: ignore[reportArgumentType]


@pytest.mark.abuse(35, 53, 54, 55, 59, 60)
@pytest.mark.parametrize(
    ("statement", "parameters", "message"),
    [
        ("RETURN " + "(" * 3000 + "1" + ")" * 3000, {}, "nested"),
        ("RETURN " + "[" * 5000 + "]" * 5000, {}, "nested"),
        ("RETURN " + "+".join("1" * 10_000), {}, "at most 200"),
        ("RETURN 1" + " " * 70_000, {}, "larger than"),
        ("RETURN size(range(1, $n))", {"n": 10**8}, "elements"),
        ("UNWIND range(1, 100000000) AS x RETURN x", {}, "elements"),
        ("RETURN $missing", {}, "missing"),
        ("RETURN $text", {"text": "x" * (2 << 20)}, "larger than"),
        ("MATCH (n) SET n.x = $x", {"x": float("nan")}, "NaN"),
        ("CREATE (n {id: $id})", {"id": "x" * 513}, "512"),
        ("CREATE (n {id: 7})", {}, "string"),
        ("CREATE (n:`a\\u0000b\0`)", {}, "NUL"),
    ],
)
def test_too_much_and_wrong_values(driver: Driver, statement: str, parameters: dict[str, Any], message: str) -> None:
    begun = time.perf_counter()
    with pytest.raises(ClientError, match=message):
        run(driver, statement, **parameters)
    assert time.perf_counter() - begun < 5


@pytest.mark.abuse(56, 62)
@pytest.mark.parametrize(
    "statement",
    [
        ENDLESS,
        "PROFILE " + ENDLESS,
        "UNWIND range(1, 1000000) AS a CALL apoc.meta.data() YIELD label RETURN count(*)",
        "UNWIND range(1, 1000000) AS a CALL apoc.create.node(['l' + a], {}) YIELD node RETURN count(*)",
        "UNWIND range(1, 1000) AS a UNWIND range(1, 1000) AS b CREATE (n) RETURN count(*)",
    ],
)
def test_a_statement_that_does_not_end_is_stopped(driver: Driver, statement: str) -> None:
    with driver.session(database=STORE) as session:
        for _ in range(2):
            begun = time.perf_counter()
            with pytest.raises(Neo4jError, match="longer"):
                session.run(Query(statement, timeout=0.2)).consume()  # pyright: ignore[reportArgumentType]
            assert time.perf_counter() - begun < 5
        assert session.run("RETURN 1").single(strict=True).value() == 1


@pytest.mark.abuse(43)
@pytest.mark.parametrize("text", ["q'`\"\n\\", "\u202e\U0001f600", "}) DETACH DELETE n //", "`:x {a: 1}"])
def test_odd_names_come_back_exactly(served: Driver, text: str) -> None:
    quoted = text.replace("`", "``")
    statement = f"CREATE (n:`{quoted}` {{id: $id, `{quoted}`: 1}})-[r:`{quoted}`]->(n) RETURN n, r"
    with served.session(database=STORE) as session, session.begin_transaction() as transaction:
        [node, relationship] = transaction.run(statement, id=text).single(strict=True).values()  # pyright: ignore[reportArgumentType]
        assert (node.element_id, set(node.labels), dict(node), relationship.type) == (
            text,
            {text},
            {"id": text, text: 1},
            text,
        )
        merged = transaction.run("CALL apoc.merge.node([$x], {id: $x}, {}, {y: $x}) YIELD node RETURN node.y", x=text)
        assert merged.single(strict=True).value() == text
        transaction.rollback()


@pytest.mark.abuse(18)
def test_too_many_requests_are_refused_for_now(pool: StorePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_backend, "is_local", lambda _: False)
    audit = AuditLog(pool.data_dir)
    authenticator = Authenticator(pool.settings, ApiKeyFileCache(pool.data_dir))
    backend = BoltStoreBackend(
        CallerStoreHandles(pool), authenticator, audit, RateLimiter(1), ActiveRequestCounter(ActiveCallers())
    )
    with running(backend) as server, GraphDatabase.driver(server.url, max_transaction_retry_time=0) as driver:
        refused = 0
        for _ in range(20):
            try:
                run(driver, "RETURN 1", STORE)
            except TransientError:
                refused += 1
        assert 10 <= refused < 20
    audit.close()


@pytest.mark.abuse(52)
def test_syntax_errors_name_their_place(driver: Driver) -> None:
    with pytest.raises(CypherSyntaxError, match="line 2, column 1"):
        run(driver, "MATCH (n)\nRETRUN n")
