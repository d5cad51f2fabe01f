"""The Neo4j driver for Python, unmodified, against the server."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import neo4j
import pytest
import pytz
from neo4j.exceptions import AuthError, ClientError, Neo4jError, ServiceUnavailable
from neo4j.time import Date, DateTime, Duration, Time

from tests.server.bolt.running import RunningServer, running
from tests.server.bolt.scripted_backend import PASSWORD, ScriptedBackend
from tests.server.http.certificates import certificate

AUTH = ("ada", PASSWORD)


@pytest.fixture
def driver(server: RunningServer) -> Iterator[neo4j.Driver]:
    with neo4j.GraphDatabase.driver(server.url, auth=AUTH) as driver:
        yield driver


def test_the_driver_connects(driver: neo4j.Driver) -> None:
    driver.verify_connectivity()
    info = driver.get_server_info()
    assert info.protocol_version == (5, 8)
    assert info.agent.startswith("Neo4j/")
    assert driver.verify_authentication()
    assert not driver.verify_authentication(("ada", "wrong"))
    assert driver.supports_multi_db()
    assert driver.supports_session_auth()


VALUES: list[Any] = [
    None,
    True,
    -(2**63),
    1.5,
    "ä漢😀",
    b"\x00\xff",
    [1, [2.0, None], {"a": [True]}],
    {"nested": {"map": {}}},
    Date(2024, 2, 29),
    Time(12, 30, 1, 5),
    DateTime(2024, 2, 29, 12, 30, 1, 5),
    DateTime(2024, 7, 1, 12, 0, 0, 123_456_789, tzinfo=timezone(timedelta(hours=-3))),
    Duration(months=1, days=-2, seconds=3, nanoseconds=4),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_parameters_come_back(driver: neo4j.Driver, value: Any) -> None:
    records, summary, keys = driver.execute_query("ECHO", {"value": value})
    assert (keys, len(records)) == (["value"], 1)
    assert records[0]["value"] == value
    assert summary.query_type == "r"


def test_zones_of_parameters_come_back(driver: neo4j.Driver) -> None:
    values = {
        "time": Time(12, 30, 1, 5, tzinfo=pytz.FixedOffset(120)),
        "offset": datetime(2024, 7, 1, 12, tzinfo=timezone(timedelta(hours=2))),
        # With zoneinfo, this driver reads memory that is not its own.
        "region": pytz.timezone("Europe/Stockholm").localize(datetime(2024, 7, 1, 12)),  # noqa: DTZ001
    }
    (record,) = driver.execute_query("ECHO", values).records
    assert record["time"].iso_format() == "12:30:01.000000005+02:00"
    assert record["offset"].iso_format() == "2024-07-01T12:00:00.000000000+02:00"
    assert record["region"].iso_format() == "2024-07-01T12:00:00.000000000+02:00"
    assert str(record["region"].tzinfo) == "Europe/Stockholm"


def test_native_dates_are_parameters(driver: neo4j.Driver) -> None:
    values = {"day": date(2024, 1, 2), "time": datetime(2024, 1, 2, tzinfo=UTC), "span": timedelta(days=1, seconds=2)}
    (record,) = driver.execute_query("ECHO", values).records
    assert record["day"].to_native() == values["day"]
    assert record["time"].to_native() == values["time"]
    assert record["span"] == Duration(days=1, seconds=2)


def test_a_hundred_thousand_rows_stream_in_small_parts(driver: neo4j.Driver, backend: ScriptedBackend) -> None:
    with driver.session(fetch_size=500) as session:
        assert [record["n"] for record in session.run("COUNT 100000")] == list(range(100_000))


def test_results_are_read_as_the_client_reads_them(driver: neo4j.Driver, backend: ScriptedBackend) -> None:
    with driver.session(fetch_size=10) as session:
        result = session.run("COUNT 100000")
        assert [record["n"] for record in result.fetch(25)] == list(range(25))
        assert backend.counts["rows"] < 1_000
        summary = result.consume()
        assert summary.database == "home"
        assert session.run("ECHO", a=1).single(strict=True)["a"] == 1


def test_unread_results_are_buffered_for_the_next_statement(driver: neo4j.Driver) -> None:
    with driver.session(fetch_size=10) as session:
        first = session.run("COUNT 100")
        second = session.run("COUNT 5")
        assert len(list(second)) == 5
        assert len(list(first)) == 100


def test_summaries_have_counters_plans_and_notifications(driver: neo4j.Driver) -> None:
    summary = driver.execute_query("NOTE a").summary
    assert (summary.query_type, summary.counters.nodes_created, summary.counters.contains_updates) == ("w", 1, True)
    assert [status.gql_status for status in summary.gql_status_objects] == ["00001"]
    profile = driver.execute_query("PROFILE NOTES").summary.profile
    assert profile is not None
    assert profile["dbHits"] == 0
    notification, _ = driver.execute_query("WARN").summary.gql_status_objects
    assert (notification.gql_status, notification.raw_severity) == ("01N00", "WARNING")
    assert notification.position is not None
    assert notification.position.line == 1


def test_transactions_commit_and_roll_back(driver: neo4j.Driver, backend: ScriptedBackend) -> None:
    with driver.session(database="other") as session:
        with session.begin_transaction() as transaction:
            transaction.run("NOTE one")
            transaction.run("NOTE two")
            assert [record["note"] for record in transaction.run("NOTES")] == ["one", "two"]
            assert backend.notes["other"] == []
            transaction.commit()
        with session.begin_transaction() as transaction:
            transaction.run("NOTE three")
            transaction.rollback()
        with pytest.raises(ZeroDivisionError), session.begin_transaction() as transaction:  # noqa: PT012
            transaction.run("NOTE four")
            raise ZeroDivisionError
    assert backend.notes["other"] == ["one", "two"]


def test_results_of_a_transaction_interleave(driver: neo4j.Driver) -> None:
    with driver.session(fetch_size=2) as session, session.begin_transaction() as transaction:
        first, second = transaction.run("COUNT 5"), transaction.run("COUNT 5")
        pairs = [(a["n"], b["n"]) for a, b in zip(first, second, strict=True)]
        assert pairs == [(number, number) for number in range(5)]
        transaction.commit()


def test_managed_transactions_are_retried_after_conflicts(driver: neo4j.Driver, backend: ScriptedBackend) -> None:
    backend.conflicts = 1
    attempts: list[int] = []

    def work(transaction: neo4j.ManagedTransaction) -> None:
        attempts.append(1)
        transaction.run("NOTE retried").consume()

    with driver.session() as session:
        session.execute_write(work)
    assert (len(attempts), backend.notes["home"]) == (2, ["retried"])


def test_read_transactions_refuse_writes(driver: neo4j.Driver, backend: ScriptedBackend) -> None:
    with driver.session(default_access_mode=neo4j.READ_ACCESS) as session, pytest.raises(ClientError) as caught:
        session.run("NOTE x").consume()
    assert caught.value.code == "Neo.ClientError.Security.Forbidden"
    with driver.session() as session, pytest.raises(ClientError, match="only reads"):
        session.execute_read(lambda transaction: transaction.run("NOTE x").consume())


def test_bookmarks_pass_between_sessions(driver: neo4j.Driver, backend: ScriptedBackend) -> None:
    with driver.session() as session:
        session.run("NOTE a").consume()
        bookmarks = session.last_bookmarks()
    assert bookmarks.raw_values == {"note:home:1"}
    with driver.session(bookmarks=bookmarks) as session:
        assert session.execute_read(lambda transaction: transaction.run("NOTES").values()) == [["a"]]
    assert driver.execute_query("NOTE b").summary.database == "home"
    driver.execute_query("NOTES")
    assert backend.requests[-1].bookmarks == ("note:home:2",)
    with driver.session(bookmarks=neo4j.Bookmarks.from_raw_values(["other:1"])) as session:
        with pytest.raises(ClientError) as caught:
            session.run("NOTES").consume()
        assert caught.value.code == "Neo.ClientError.Transaction.InvalidBookmark"


@pytest.mark.parametrize(
    ("statement", "kind", "code"),
    [
        ("X", "CypherSyntaxError", "Neo.ClientError.Statement.SyntaxError"),
        ("FAIL InvalidInput a string is not a number", "CypherTypeError", "Neo.ClientError.Statement.TypeError"),
        ("FAIL Forbidden no", "Forbidden", "Neo.ClientError.Security.Forbidden"),
        ("FAIL NoStore x", "ClientError", "Neo.ClientError.Database.DatabaseNotFound"),
        ("FAIL TimedOut it took too long", "ClientError", "Neo.ClientError.Transaction.TransactionTimedOut"),
        ("FAIL Unavailable later", "DatabaseUnavailable", "Neo.TransientError.General.DatabaseUnavailable"),
        ("FAIL Conflict changed", "TransientError", "Neo.TransientError.Transaction.Outdated"),
        ("CRASH", "DatabaseError", "Neo.DatabaseError.General.UnknownError"),
    ],
)
def test_errors_have_the_classes_of_the_driver(driver: neo4j.Driver, statement: str, kind: str, code: str) -> None:
    with driver.session() as session:
        with pytest.raises(Neo4jError) as caught:
            session.run(cast("Any", statement)).consume()
        assert (type(caught.value).__name__, caught.value.code) == (kind, code)
        assert session.run("ECHO", a=1).single(strict=True)["a"] == 1


def test_unknown_databases_are_reported(driver: neo4j.Driver) -> None:
    with pytest.raises(ClientError, match="missing") as caught:
        driver.execute_query("ECHO", database_="missing")
    assert caught.value.code == "Neo.ClientError.Database.DatabaseNotFound"


@pytest.mark.parametrize("auth", [("ada", "wrong"), None, neo4j.bearer_auth("wrong")])
def test_wrong_credentials_are_refused(server: RunningServer, auth: Any) -> None:
    with neo4j.GraphDatabase.driver(server.url, auth=auth) as driver, pytest.raises(AuthError):
        driver.verify_connectivity()


def test_keys_are_bearer_tokens(server: RunningServer, backend: ScriptedBackend) -> None:
    with neo4j.GraphDatabase.driver(server.url, auth=neo4j.bearer_auth(PASSWORD)) as driver:
        driver.execute_query("ECHO", a=1)
        assert backend.requests[-1].caller.name == "bearer"
        driver.execute_query("ECHO", a=1, auth_=neo4j.basic_auth("bob", PASSWORD))
        assert backend.requests[-1].caller.name == "bob"


def test_the_routing_scheme_works(server: RunningServer, backend: ScriptedBackend) -> None:
    url = server.url.replace("bolt://", "neo4j://")
    with neo4j.GraphDatabase.driver(url, auth=AUTH) as driver:
        driver.verify_connectivity()
        driver.execute_query("NOTE a", database_="other")
        records = driver.execute_query("NOTES", database_="other", routing_=neo4j.RoutingControl.READ).records
        assert [record["note"] for record in records] == ["a"]
        assert driver.execute_query("ECHO", a=1).summary.database == "home"
        with pytest.raises(ClientError) as caught:
            driver.execute_query("ECHO", database_="missing")
        assert caught.value.code == "Neo.ClientError.Database.DatabaseNotFound"


def test_timeouts_reach_the_backend(driver: neo4j.Driver, backend: ScriptedBackend) -> None:
    with driver.session() as session:
        session.run(neo4j.Query("ECHO", timeout=2.5, metadata={"app": "test"}), a=1).consume()
    assert (backend.requests[-1].timeout, backend.requests[-1].metadata) == (2.5, {"app": "test"})


def test_async_sessions_work(server: RunningServer, backend: ScriptedBackend) -> None:
    async def work() -> tuple[int, Any]:
        async with neo4j.AsyncGraphDatabase.driver(server.url, auth=AUTH) as driver:
            await driver.verify_connectivity()

            async def count(number: int) -> int:
                async with driver.session(fetch_size=100) as session:
                    result = await session.run(cast("Any", f"COUNT {number}"))
                    return len([record async for record in result])

            total = sum(await asyncio.gather(*(count(number) for number in range(0, 2_000, 100))))
            async with driver.session() as session:
                await session.execute_write(lambda transaction: transaction.run("NOTE async"))
            return total, await driver.execute_query("NOTES")

    total, answer = asyncio.run(work())
    assert total == sum(range(0, 2_000, 100))
    assert [record["note"] for record in answer.records] == ["async"]


def test_cancelled_tasks_interrupt_their_statement(server: RunningServer, backend: ScriptedBackend) -> None:
    async def work() -> None:
        async with neo4j.AsyncGraphDatabase.driver(server.url, auth=AUTH) as driver, driver.session() as session:
            task = asyncio.create_task(run_slowly(session))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def run_slowly(session: neo4j.AsyncSession) -> None:
        result = await session.run("SLEEP 60")
        await result.consume()

    started = time.monotonic()
    asyncio.run(work())
    while backend.open_count:
        assert time.monotonic() - started < 20
        time.sleep(0.01)


def test_many_threads_share_a_driver(driver: neo4j.Driver) -> None:
    totals: list[int] = []

    def work() -> None:
        totals.extend(len(driver.execute_query("COUNT 100").records) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [100] * 100


def test_tls_with_a_known_authority(backend: ScriptedBackend, tmp_path: Path) -> None:
    files = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    with running(backend, tls=context) as server:
        trusted = neo4j.TrustCustomCAs(str(files.ca))
        with neo4j.GraphDatabase.driver(server.url, auth=AUTH, encrypted=True, trusted_certificates=trusted) as driver:
            assert driver.execute_query("COUNT 5000").summary.server.protocol_version == (5, 8)
        with neo4j.GraphDatabase.driver(server.url.replace("bolt", "bolt+ssc"), auth=AUTH) as driver:
            driver.verify_connectivity()
        for url in (server.url, server.url.replace("bolt", "bolt+s")):
            with neo4j.GraphDatabase.driver(url, auth=AUTH) as driver, pytest.raises(ServiceUnavailable):
                driver.verify_connectivity()


def test_the_driver_notices_a_server_that_stops(backend: ScriptedBackend) -> None:
    with running(backend) as server, neo4j.GraphDatabase.driver(server.url, auth=AUTH) as driver:
        driver.verify_connectivity()
        server.run(server.server.stop())
        with driver.session() as session, pytest.raises((ServiceUnavailable, neo4j.exceptions.SessionExpired)):
            session.run("ECHO", a=1)


def test_notification_settings_of_the_driver(server: RunningServer) -> None:
    with neo4j.GraphDatabase.driver(
        server.url, auth=AUTH, notifications_min_severity=neo4j.NotificationMinimumSeverity.OFF
    ) as driver:
        statuses = driver.execute_query("WARN").summary.gql_status_objects
        assert [status.gql_status for status in statuses] == ["00001"]
