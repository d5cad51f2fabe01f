"""Bolt over real stores: databases, keys, transactions, bookmarks and conflicts, with the unmodified driver."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, LiteralString

import pytest
from neo4j import Bookmarks, GraphDatabase, Query, Session
from neo4j.exceptions import AuthError, ClientError, ConstraintError, DatabaseError, TransientError
from neo4j.time import Date, Duration

from kgserve.cypher.interpreter.graph_view_interface import ExecutionLimits
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.platform.access.audit import AuditLog, read_newest_audit_records
from kgserve.platform.access.authentication import (
    ApiKeyFileCache,
    Authenticator,
    add_api_key,
    create_api_key,
    revoke_api_key,
)
from kgserve.server.admission import ActiveCallers, ActiveRequestCounter
from kgserve.server.bolt.store_backend import BoltStoreBackend
from kgserve.server.http.rate_limits import BURST_SECONDS, RateLimiter
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.pool import StorePool
from tests.server.bolt.running import RunningServer, running
from tests.stores.writing import assert_whole, ids, settings


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path_factory.mktemp("bolt") / "data")) as opened:
        yield opened


@pytest.fixture(scope="module")
def server(pool: StorePool) -> Iterator[RunningServer]:
    audit = AuditLog(pool.data_dir)
    authenticator = Authenticator(pool.settings, ApiKeyFileCache(pool.data_dir))
    backend = BoltStoreBackend(
        CallerStoreHandles(pool), authenticator, audit, RateLimiter(0), ActiveRequestCounter(ActiveCallers())
    )
    with running(backend) as served:
        yield served
    audit.close()


MOMENT = "2026-01-02T03:04:05.000000006Z"
_numbers = count(1)


@pytest.fixture
def database() -> str:
    """Name of a store that does not exist yet."""
    return f"store-{next(_numbers)}"


@pytest.fixture
def session(server: RunningServer, database: str) -> Iterator[Session]:
    with (
        GraphDatabase.driver(server.url, auth=("any", "any")) as driver,
        driver.session(database=database, fetch_size=10) as opened,
    ):
        yield opened


def values(session: Session, statement: str, **parameters: Any) -> list[Any]:
    return [record.value() for record in session.run(statement, parameters)]  # pyright: ignore[reportArgumentType]


def test_statements_change_the_store_and_count_their_effects(session: Session, pool: StorePool) -> None:
    summary = session.run(
        "CREATE (a:person {id: 'a', name: 'Ada', seen: [1, 2]})-[:KNOWS {since: 1840}]->(b:person {id: 'b'})"
    ).consume()
    assert summary.counters.nodes_created == 2
    assert summary.counters.relationships_created == 1
    assert summary.database is not None
    with pool.lease(summary.database) as store, store.reading() as rows:
        row = rows.node("a")
        assert row is not None
        assert (row.type, row.attributes) == ("person", '{"name":"Ada","seen":[1,2]}')
    [path] = values(session, "MATCH p = (:person {name: 'Ada'})-[:KNOWS]->() RETURN p")
    assert [node.element_id for node in path.nodes] == ["a", "b"]
    assert (path.relationships[0].type, path.relationships[0]["since"]) == ("KNOWS", 1840)
    assert values(session, "UNWIND range(1, 1000) AS x RETURN x") == list(range(1, 1001))


def test_a_second_relationship_of_a_type_violates_a_constraint(session: Session) -> None:
    session.run("CREATE (:n {id: 'a'})-[:R]->(:n {id: 'b'})").consume()
    for statement in (
        "MATCH (a {id: 'a'}), (b {id: 'b'}) CREATE (a)-[:R {again: 1}]->(b)",
        "MATCH (a {id: 'a'}) CREATE (a)-[:S]->(c:n {id: 'c'}) CREATE (a)-[:S]->(c)",
    ):
        with pytest.raises(ConstraintError, match="use MERGE"):
            session.run(statement).consume()
    assert values(session, "MATCH ()-[r]->() RETURN type(r)") == ["R"]


def test_times_are_written_with_timestamp_as_over_rest(session: Session) -> None:
    session.run("CREATE (:n {id: 'a', valid_from: timestamp('2020-01-02 03:04:05')})").consume()
    session.run("MATCH (a {id: 'a'}) SET a.valid_to = timestamp('2021-01-02T03:04:05+01:00')").consume()
    [[start, end]] = values(session, "MATCH (a {id: 'a'}) RETURN [a.valid_from, a.valid_to]")
    assert (str(start)[:19], str(end)[:19]) == ("2020-01-02T03:04:05", "2021-01-02T02:04:05")
    assert values(session, "MATCH (a) WHERE a.valid_from < timestamp($at) RETURN a.id", at="2020-01-03") == ["a"]
    [now] = values(session, "RETURN timestamp()")
    assert abs(now / 1000 - time.time()) < 3600
    with pytest.raises(ClientError, match="such as"):
        session.run("RETURN timestamp('soon')").consume()


def test_a_transaction_is_one_commit_or_none(session: Session, pool: StorePool, database: str) -> None:
    with session.begin_transaction() as transaction:
        transaction.run("CREATE (:n {id: 'a', v: 1})")
        transaction.run("MATCH (n:n) SET n.v = n.v + 1")
        assert transaction.run("MATCH (n:n) RETURN n.v").single(strict=True).value() == 2
        transaction.rollback()
    assert values(session, "MATCH (n) RETURN count(n)") == [0]
    with session.begin_transaction() as transaction:
        for number in range(3):
            transaction.run("MERGE (h:hub {id: 'h'}) CREATE (h)-[:HAS]->(:n {v: $v})", v=number)
        transaction.commit()
    assert values(session, "MATCH (:hub)-[:HAS]->(n) RETURN n.v ORDER BY n.v") == [0, 1, 2]
    with pool.lease(database) as store:
        assert store.state.sequence == 1


@pytest.mark.parametrize("clause", ["CREATE", "MERGE"])
def test_a_transaction_creates_a_node_again_that_it_deleted(
    session: Session, pool: StorePool, database: str, clause: LiteralString
) -> None:
    session.run(
        "CREATE (a:T {id: 'a', x: 1, tags: ['t'], content: 'c'})-[:R {y: 1}]->(b:T {id: 'b'})-[:S]->(a)"
    ).consume()
    with session.begin_transaction() as transaction:
        transaction.run("MATCH (a {id: 'a'}) DETACH DELETE a")
        created = transaction.run(f"{clause} (a:P {{id: 'a', z: 2}}) RETURN a, a.version, a.tags, a.content")
        node, *columns = created.single(strict=True).values()
        assert (dict(node), columns) == ({"id": "a", "z": 2}, [None, None, ""])
        transaction.run("MATCH (a {id: 'a'}), (b {id: 'b'}) CREATE (a)-[:R {w: 3}]->(b)")
        assert transaction.run("MATCH (n) RETURN n.id ORDER BY n.id").value() == ["a", "b"]
        assert transaction.run("MATCH (n:T) RETURN n.id").value() == ["b"]
        assert transaction.run("MATCH ({id: 'b'})--(a) RETURN a.z").value() == [2]
        transaction.commit()
    assert values(session, "MATCH (n)-[r]->(m) RETURN [n.z, n.tags, n.content, r.w, r.y, m.id]") == [
        [2, None, "", 3, None, "b"]
    ]
    with session.begin_transaction() as transaction:
        for clauses in ("DETACH DELETE a", "CREATE (:Q {id: 'a'})", "DELETE a"):
            transaction.run(clauses if clauses.startswith("CREATE") else f"MATCH (a {{id: 'a'}}) {clauses}")
        transaction.commit()
    with pool.lease(database) as store:
        assert_whole(store)
        assert ids(store) == ["b"]


def test_conflicting_transactions_fail_and_managed_ones_run_again(
    server: RunningServer, session: Session, database: str
) -> None:
    session.run("CREATE (:counter {id: 'c', v: 0})").consume()
    with GraphDatabase.driver(server.url) as driver, driver.session(database=database) as other:
        first, second = session.begin_transaction(), other.begin_transaction()
        for transaction in (first, second):
            transaction.run("MATCH (c:counter {id: 'c'}) SET c.v = c.v + 1").consume()
        first.commit()
        with pytest.raises(TransientError):
            second.commit()
        attempts = []

        def increment(transaction: Any) -> None:
            attempts.append(1)
            transaction.run("MATCH (c:counter {id: 'c'}) SET c.v = c.v + 1").consume()
            if len(attempts) == 1:
                session.run("MATCH (c:counter {id: 'c'}) SET c.v = c.v + 10").consume()

        other.execute_write(increment)
    assert len(attempts) == 2
    assert values(session, "MATCH (c:counter) RETURN c.v") == [12]


def test_bookmarks_name_the_sequence_of_the_store(server: RunningServer, session: Session, database: str) -> None:
    session.run("CREATE (:n {id: 'a'})").consume()
    assert [*session.last_bookmarks().raw_values] == [f"kgserve:{database}:1"]
    with GraphDatabase.driver(server.url) as driver:
        for wrong in ("nonsense", f"kgserve:{database}:{'9' * 5_000}"):
            with (
                driver.session(database=database, bookmarks=Bookmarks.from_raw_values([wrong])) as other,
                pytest.raises(ClientError, match="is not a bookmark of this server"),
            ):
                other.run("CREATE (:n)").consume()


def test_a_reading_transaction_sees_one_snapshot(server: RunningServer, session: Session, database: str) -> None:
    session.run("CREATE (:n {id: 'a'})").consume()
    with session.begin_transaction() as transaction:
        assert transaction.run("MATCH (n) RETURN count(n)").single(strict=True).value() == 1
        with GraphDatabase.driver(server.url) as driver, driver.session(database=database) as other:
            other.run("CREATE (:n {id: 'b'})").consume()
        assert transaction.run("MATCH (n) RETURN count(n)").single(strict=True).value() == 1
        transaction.commit()
    assert values(session, "MATCH (n) RETURN count(n)") == [2]


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("MATCH (n RETURN n", ClientError, "line 1, column"),
        ("RETURN 1 / 0", ClientError, "zero"),
        ("CREATE (:A:B)", ClientError, "one label"),
        ("LOAD CSV FROM 'file:///etc/passwd' AS x RETURN x", ClientError, "LOAD CSV"),
        ("CALL apoc.help('x')", ClientError, "apoc.help"),
        ("UNWIND range(1, 100000000) AS x RETURN count(x)", ClientError, "range"),
        ("MATCH (n) DELETE n RETURN $missing", ClientError, "missing"),
    ],
)
def test_failing_statements_change_nothing_and_the_session_goes_on(
    session: Session, statement: str, error: type[Exception], message: str
) -> None:
    session.run("CREATE (:n {id: 'a'})").consume()
    with pytest.raises(error, match=message):
        session.run(statement).consume()  # pyright: ignore[reportArgumentType]
    assert values(session, "MATCH (n) RETURN n.id") == ["a"]


def test_a_statement_ends_at_its_time_limit(session: Session) -> None:
    session.run("CREATE (:n)").consume()
    forever = Query("UNWIND range(1, 3000) AS a UNWIND range(1, 3000) AS b RETURN sum(a * b)", timeout=0.2)
    with pytest.raises((ClientError, TransientError, DatabaseError), match=r"longer|time"):
        session.run(forever).consume()


def test_reading_a_database_that_does_not_exist_is_refused(server: RunningServer) -> None:
    with GraphDatabase.driver(server.url) as driver, driver.session(database="nowhere") as session:
        with pytest.raises(ClientError, match="nowhere"):
            session.run("MATCH (n) RETURN n").consume()
        with pytest.raises(ClientError, match="nowhere"):
            driver.execute_query("RETURN 1", database_="nowhere")
        assert "nowhere" not in {record["name"] for record in driver.execute_query("SHOW DATABASES")[0]}


def test_keys_decide_what_a_caller_may_do(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path / "data")) as pool:
        keys = {role: add_key(pool, role, stores) for role, stores in (("read", "open"), ("write", "*"))}
        audit = AuditLog(pool.data_dir)
        authenticator = Authenticator(pool.settings, ApiKeyFileCache(pool.data_dir))
        use = ActiveRequestCounter(ActiveCallers())
        began = use.begun
        backend = BoltStoreBackend(CallerStoreHandles(pool), authenticator, audit, RateLimiter(0), use)
        with running(backend) as served:
            with GraphDatabase.driver(served.url, auth=("neo4j", keys["write"])) as driver:
                for database in ("open", "closed"):
                    driver.execute_query("CREATE (:n {id: 'a'})", database_=database)
            with GraphDatabase.driver(served.url, auth=("neo4j", keys["read"])) as driver:
                assert driver.execute_query("MATCH (n) RETURN count(n) AS c", database_="open")[0][0]["c"] == 1
                with pytest.raises(ClientError, match="role write"):
                    driver.execute_query("CREATE (:n)", database_="open")
                with pytest.raises(ClientError, match="closed"):
                    driver.execute_query("MATCH (n) RETURN n", database_="closed")
                assert driver.execute_query("MATCH (n) RETURN count(n) AS c")[0][0]["c"] == 1
            revoke_api_key(pool.data_dir, "read", time.time_ns() // 1000)
            # The home database of the former key of this name is hidden from the new one.
            with GraphDatabase.driver(served.url, auth=("neo4j", add_key(pool, "read", "closed"))) as driver:
                assert driver.execute_query("MATCH (n) RETURN count(n) AS c")[0][0]["c"] == 1
            for credentials in (("neo4j", "wrong"), None):
                with GraphDatabase.driver(served.url, auth=credentials) as driver, pytest.raises(AuthError):
                    driver.verify_connectivity()
        audit.close()
        assert use.begun > began, "requests over Bolt keep the server from being idle"
        assert any(record.act == "bolt.authenticate" for record in read_newest_audit_records(pool.data_dir, 10))


def add_key(pool: StorePool, role: Any, stores: str) -> str:
    key, text = create_api_key(role, role, [stores], time.time_ns() // 1000)
    add_api_key(pool.data_dir, key)
    return text


@contextmanager
def running_over(pool: StorePool, rates: RateLimiter) -> Generator[RunningServer]:
    """Serve a pool over Bolt with rate limits until the end of the block."""
    audit = AuditLog(pool.data_dir)
    authenticator = Authenticator(pool.settings, ApiKeyFileCache(pool.data_dir))
    use = ActiveRequestCounter(ActiveCallers())
    with running(BoltStoreBackend(CallerStoreHandles(pool), authenticator, audit, rates, use)) as served:
        yield served
    audit.close()


def test_a_revoked_key_neither_commits_nor_lists_databases(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path / "data")) as pool:
        with (
            running_over(pool, RateLimiter(0)) as served,
            GraphDatabase.driver(served.url, auth=("neo4j", add_key(pool, "write", "*"))) as driver,
            driver.session(database="open") as session,
            driver.session(database="system") as other,
        ):
            session.run("CREATE (:n {id: 'a'})").consume()
            transaction = session.begin_transaction()
            transaction.run("CREATE (:n {id: 'late'})").consume()
            other.run("SHOW DATABASES").consume()
            revoke_api_key(pool.data_dir, "write", time.time_ns() // 1000)
            with pytest.raises(AuthError, match="no longer valid"):
                other.run("SHOW DATABASES").consume()
            with pytest.raises(AuthError, match="no longer valid"):
                transaction.commit()
        with pool.lease("open") as store:
            assert ids(store) == ["a"]


@pytest.mark.parametrize("ending", ["CREATE (:n {id: 'b'})", ""])
def test_a_transaction_whose_time_is_over_changes_nothing(session: Session, ending: LiteralString) -> None:
    with pytest.raises(ClientError, match=r"longer than 0\.2 seconds"):  # noqa: PT012, SIM117
        with session.begin_transaction(timeout=0.2) as transaction:
            transaction.run("CREATE (:n {id: 'a'})").consume()
            time.sleep(0.3)
            if ending:
                transaction.run(ending).consume()
            transaction.commit()
    assert values(session, "MATCH (n) RETURN n.id") == []


def test_a_transaction_holds_a_bounded_number_of_rows(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    session.run("CREATE (:n)").consume()
    monkeypatch.setattr(ExecutionLimits.__init__, "__defaults__", (1_000,))
    assert len(values(session, "UNWIND range(1, 2000) AS x RETURN x")) == 2_000
    with pytest.raises(ClientError, match="more than 1000 values"), session.begin_transaction() as transaction:
        transaction.run("UNWIND range(1, 2000) AS x RETURN x").consume()


def test_statements_of_a_transaction_wait_for_the_rate_limit(tmp_path: Path) -> None:
    """They are counted; one is refused only when the time of its transaction is over."""

    def run_statements(rate: float, statements: int, seconds: float) -> None:
        with (
            StorePool(settings(tmp_path / f"data-{rate}")) as pool,
            running_over(pool, RateLimiter(rate)) as served,
            GraphDatabase.driver(served.url, auth=("neo4j", add_key(pool, "write", "*"))) as driver,
            driver.session(database="open") as session,
            session.begin_transaction(timeout=seconds) as transaction,
        ):
            for _ in range(statements):
                transaction.run("CREATE (:n)").consume()

    rate, waiting = 20.0, 30
    began = time.monotonic()
    run_statements(rate, int(rate * BURST_SECONDS) + waiting, 30)
    assert time.monotonic() - began >= waiting / rate
    with pytest.raises(TransientError, match=r"more than 0\.01 requests per second"):
        run_statements(0.01, 1, 0.2)


def test_explain_and_profile_show_plans(session: Session, pool: StorePool, database: str) -> None:
    summary = session.run("EXPLAIN CREATE (n:n {id: $id}) RETURN n").consume()
    assert summary.plan is not None
    assert (summary.plan["operatorType"], summary.plan["children"][0]["operatorType"]) == ("ProduceResults", "Create")
    assert database not in pool.names()
    result = session.run("PROFILE CREATE (n:n {id: 'a'})-[:R]->(m:n {id: 'b'}) RETURN n.id AS id")
    assert result.value() == ["a"]
    profile = result.consume().profile
    assert profile is not None
    assert (profile["operatorType"], profile["rows"], profile["children"][0]["rows"]) == ("ProduceResults", 1, 1)
    plan = session.run("EXPLAIN MATCH (n:n {id: 'a'})-[:R]->(m) RETURN m").consume().plan
    assert plan is not None
    assert plan["children"][0]["args"] == {"Details": "start at (n:n): by id; expand (n:n)-[:R]->(m)"}
    with session.begin_transaction() as transaction:
        profile = transaction.run("PROFILE MATCH (n:n) RETURN n").consume().profile
    assert profile is not None
    assert profile["rows"] == 2
    profile = session.run("PROFILE MATCH (n:n) RETURN n").consume().profile
    assert profile is not None
    assert profile["children"][0]["rows"] == 2


def test_temporal_properties_keep_their_types(session: Session) -> None:
    due, gap = Date(2026, 1, 2), Duration(months=1, days=2)
    session.run(
        "CREATE (:task {id: 'a', due: $due, gap: $gap, at: datetime($text)})", due=due, gap=gap, text=MOMENT
    ).consume()
    [node] = values(session, "MATCH (t:task {due: $due}) RETURN t", due=due)
    assert (node["due"], node["gap"], node["at"].iso_format()) == (due, gap, "2026-01-02T03:04:05.000000006+00:00")
    assert values(session, "MATCH (t:task) WHERE t.due + t.gap > date('2026-02-03') RETURN t.due") == [due]
    with pytest.raises(ClientError, match="years 1 to 9999"):
        values(session, "RETURN [date('-0001-01-01')] AS day")
    assert values(session, "RETURN 1 AS one") == [1]


def test_requests_without_a_database_do_not_list_the_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StorePool(settings(tmp_path / "data")) as own:
        audit = AuditLog(own.data_dir)
        authenticator = Authenticator(own.settings, ApiKeyFileCache(own.data_dir))
        backend = BoltStoreBackend(
            CallerStoreHandles(own), authenticator, audit, RateLimiter(0), ActiveRequestCounter(ActiveCallers())
        )
        listings: list[int] = []
        names = own.placement.names
        monkeypatch.setattr(own.placement, "names", lambda: listings.append(1) or names())
        with running(backend) as served, GraphDatabase.driver(served.url) as driver:
            driver.execute_query("CREATE (:n {id: 'a'})", database_="only")
            for _ in range(5):
                assert driver.execute_query("MATCH (n) RETURN n.id AS id")[0][0]["id"] == "a"
            assert len(listings) <= 1
            driver.execute_query("CREATE (:n {id: 'b'})", database_="neo4j")
            assert driver.execute_query("MATCH (n) RETURN n.id AS id")[0][0]["id"] == "b"
            assert len(listings) <= 1
        audit.close()


def test_words_of_the_graph_come_from_a_sample(session: Session) -> None:
    session.run("UNWIND range(1, 1000) AS i CREATE (:many {x: i})").consume()
    session.run("CREATE (:rare {y: 1})-[:R {z: 1}]->(:rare)").consume()
    values(session, "CALL db.labels()")  # the catalog follows the rows with the first question
    scans: list[int] = []
    scan = RowsSnapshot.node_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowsSnapshot, "node_rows", lambda rows: scans.append(rows.state.nodes) or scan(rows))
        assert values(session, "CALL db.labels()") == ["many", "rare"]
        assert values(session, "CALL db.relationshipTypes()") == ["R"]
        assert values(session, "CALL db.propertyKeys()") == ["x", "y", "z"]
        [[nodes, relationships]] = [record.values() for record in session.run("CALL db.schema.visualization()")]
    assert ([node["name"] for node in nodes], [each.type for each in relationships]) == (["many", "rare"], ["R"])
    assert 1_002 not in scans  # other numbers are stores of other tests in this process
