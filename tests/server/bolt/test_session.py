from __future__ import annotations

import time
from typing import Any

import pytest

from tests.server.bolt.raw_client import (
    BEGIN,
    COMMIT,
    CREDENTIALS,
    DISCARD,
    FAILURE,
    GOODBYE,
    HELLO,
    IGNORED,
    LOGOFF,
    LOGON,
    PULL,
    RECORD,
    RESET,
    ROLLBACK,
    ROUTE,
    RUN,
    SUCCESS,
    TELEMETRY,
    RawClient,
    encode,
)
from tests.server.bolt.running import RunningServer
from tests.server.bolt.scripted_backend import ScriptedBackend


@pytest.fixture
def client(server: RunningServer) -> Any:
    with RawClient(server.port) as client:
        yield client.log_on()


def test_hello_names_server_and_connection(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        tag, answer = client.ask(HELLO, {"user_agent": "test/1"})
        assert tag == SUCCESS
        assert answer["server"].startswith("Neo4j/5.")
        assert answer["connection_id"].startswith("bolt-")
        assert "patch_bolt" not in answer


@pytest.mark.parametrize("version", [(4, 4), (5, 0)])
def test_old_versions_log_on_with_hello(server: RunningServer, version: tuple[int, int]) -> None:
    with RawClient(server.port, version) as client:
        tag, answer = client.ask(HELLO, {"user_agent": "test/1", **CREDENTIALS, "patch_bolt": ["utc"]})
        assert tag == SUCCESS
        assert answer.get("patch_bolt") == (["utc"] if version < (5, 0) else None)
        assert client.run("ECHO", {"a": 1})[0] == SUCCESS
        assert client.pull()[0] == [[1]]
        assert client.ask(LOGOFF)[0] == FAILURE
        assert client.receive_bytes(1) == b""


@pytest.mark.parametrize(
    "credentials",
    [
        {**CREDENTIALS, "credentials": "wrong"},
        {"scheme": "none"},
        {},
        {"scheme": "kerberos", "credentials": "x"},
        {"scheme": "basic", "principal": "ada", "credentials": 5},
    ],
)
def test_wrong_credentials_end_the_connection(server: RunningServer, credentials: dict[str, Any]) -> None:
    with RawClient(server.port) as client:
        client.ask(HELLO, {"user_agent": "test/1"})
        tag, answer = client.ask(LOGON, credentials)
        assert tag == FAILURE
        assert answer["neo4j_code"] == (
            "Neo.ClientError.Security.Unauthorized"
            if credentials.get("credentials") != 5
            else "Neo.ClientError.Statement.TypeError"
        )
        assert client.receive_bytes(1) == b""


@pytest.mark.parametrize(
    "messages",
    [
        [(RUN, "ECHO", {}, {})],
        [(LOGON, CREDENTIALS)],
        [(RESET,)],
        [(HELLO, {}), (RESET,)],
        [(HELLO, {}), (RUN, "ECHO", {}, {})],
        [(HELLO, {}), (LOGON, CREDENTIALS), (HELLO, {})],
        [(HELLO, {}), (LOGON, CREDENTIALS), (LOGON, CREDENTIALS)],
        [(HELLO, {}), (LOGON, CREDENTIALS), (PULL, {"n": 1})],
        [(HELLO, {}), (LOGON, CREDENTIALS), (COMMIT,)],
        [(HELLO, {}), (LOGON, CREDENTIALS), (BEGIN, {}), (BEGIN, {})],
        [(HELLO, {}), (LOGON, CREDENTIALS), (BEGIN, {}), (ROUTE, {}, [], {})],
        [(HELLO, {}), (LOGON, CREDENTIALS), (BEGIN, {}), (RUN, "ECHO", {}, {}), (COMMIT,)],
        [(HELLO, {}), (LOGON, CREDENTIALS), (RUN, "ECHO", {}, {}), (RUN, "ECHO", {}, {})],
        [(HELLO, {}), (LOGON, CREDENTIALS), (RUN, "ECHO", {}, {}), (LOGOFF,)],
    ],
)
def test_messages_in_the_wrong_state_end_the_connection(server: RunningServer, messages: list[Any]) -> None:
    with RawClient(server.port) as client:
        for message in messages[:-1]:
            assert client.ask(*message)[0] == SUCCESS
        tag, answer = client.ask(*messages[-1])
        assert (tag, answer["neo4j_code"]) == (FAILURE, "Neo.ClientError.Request.Invalid")
        assert client.receive_bytes(1) == b""


def test_a_refused_client_receives_the_failure(server: RunningServer) -> None:
    for _ in range(20):
        with RawClient(server.port) as client:
            wrong = {**CREDENTIALS, "credentials": "wrong"}
            client.send_bytes(encode(HELLO, {}) + encode(LOGON, wrong) + encode(RUN, "ECHO", {"a": "x" * 100_000}, {}))
            assert [client.receive()[0] for _ in range(3)] == [SUCCESS, FAILURE, 0]


def test_results_are_pulled_in_parts(client: RawClient) -> None:
    tag, answer = client.run("COUNT 5")
    assert (tag, answer["fields"], answer["db"]) == (SUCCESS, ["n"], "home")
    assert client.pull(2) == ([[0], [1]], SUCCESS, {"has_more": True})
    assert client.ask(DISCARD, {"n": 1}) == (SUCCESS, {"has_more": True})
    rows, _, answer = client.pull(2)
    assert rows == [[3], [4]]
    assert "has_more" not in answer
    assert (answer["type"], answer["bookmark"], answer["db"]) == ("r", "note:home:0", "home")
    assert [status["gql_status"] for status in answer["statuses"]] == ["00000"]


@pytest.mark.parametrize("fields", [{}, {"n": 0}, {"n": -2}, {"n": "all"}, {"n": 1, "qid": 7}])
def test_wrong_numbers_of_rows_are_refused(client: RawClient, fields: dict[str, Any]) -> None:
    client.run("COUNT 5")
    assert client.ask(PULL, fields)[0] == FAILURE
    assert client.ask(RESET) == (SUCCESS, {})


def test_a_transaction_has_several_open_results(client: RawClient) -> None:
    assert client.ask(BEGIN, {"db": "other"}) == (SUCCESS, {"db": "other"})
    first = client.run("COUNT 3")[1]["qid"]
    second = client.run("COUNT 2")[1]["qid"]
    assert client.pull(1) == ([[0]], SUCCESS, {"has_more": True})
    assert client.pull(2, first)[0] == [[0], [1]]
    assert client.pull(-1, second)[0] == [[1]]
    assert client.pull(-1, second)[1] == FAILURE
    client.ask(RESET)
    client.ask(BEGIN, {})
    assert client.run("NOTE x")[0] == SUCCESS
    assert client.pull()[2]["stats"] == {"nodes-created": 1, "contains-updates": True}
    assert client.ask(COMMIT) == (SUCCESS, {"bookmark": "note:home:1"})


def test_a_transaction_has_a_limit_of_open_results(client: RawClient) -> None:
    client.ask(BEGIN, {})
    tags = [client.run("COUNT 1")[0] for _ in range(101)]
    assert tags == [SUCCESS] * 100 + [FAILURE]


def test_a_failure_is_followed_by_ignored_messages_until_reset(client: RawClient, backend: ScriptedBackend) -> None:
    client.ask(BEGIN, {})
    tag, answer = client.run("FAIL Conflict it changed")
    assert tag == FAILURE
    assert answer == {
        "neo4j_code": "Neo.TransientError.Transaction.Outdated",
        "message": "it changed",
        "gql_status": "40000",
        "description": "error: transaction rollback. it changed",
        "diagnostic_record": {
            "OPERATION": "",
            "OPERATION_CODE": "0",
            "CURRENT_SCHEMA": "/",
            "_classification": "TRANSIENT_ERROR",
        },
    }
    assert backend.counts["rollbacks"] == 1
    messages: list[Any] = [(PULL, {"n": 1}), (RUN, "ECHO", {}, {}), (COMMIT,), (ROLLBACK,), (LOGOFF,), (TELEMETRY, 1)]
    for message in messages:
        assert client.ask(*message) == (IGNORED, None)
    assert client.ask(RESET) == (SUCCESS, {})
    assert client.run("ECHO", {"a": 1})[0] == SUCCESS
    assert client.pull()[0] == [[1]]


def test_failures_before_5_7_have_a_code_and_a_message(server: RunningServer) -> None:
    with RawClient(server.port, (5, 6)) as client:
        client.log_on()
        expected = {
            "code": "Neo.ClientError.Statement.SyntaxError",
            "message": "unknown command 'X' at line 1, column 1",
        }
        assert client.run("X") == (FAILURE, expected)


def test_a_failure_among_rows_comes_after_them(client: RawClient) -> None:
    assert client.run("FAIL LATE InvalidInput a list is not a number")[0] == SUCCESS
    rows, tag, answer = client.pull()
    assert (rows, tag) == ([], FAILURE) or (rows, tag) == ([[1]], FAILURE)
    assert answer["neo4j_code"] == "Neo.ClientError.Statement.TypeError"


@pytest.mark.parametrize("statement", ["CRASH", "UNSENDABLE", "FAIL Internal secret detail"])
def test_defects_do_not_end_the_connection(client: RawClient, statement: str) -> None:
    tag, answer = client.run(statement)
    if tag == SUCCESS:
        _, tag, answer = client.pull()
    assert tag == FAILURE
    assert "secret" not in str(answer)
    assert client.ask(RESET) == (SUCCESS, {})


def test_values_that_are_no_parameters_fail_the_statement(client: RawClient) -> None:
    from kgserve.server.bolt.packstream import PackStreamStructure

    tag, answer = client.run("ECHO", {"point": PackStreamStructure(ord("X"), (7203, 1.0, 2.0))})
    assert (tag, answer["message"]) == (FAILURE, "points are not supported; pass a map or a list of coordinates")
    assert client.ask(RESET) == (SUCCESS, {})


def test_reset_interrupts_a_running_statement(client: RawClient, backend: ScriptedBackend) -> None:
    client.ask(BEGIN, {})
    client.run("SLEEP 20")
    started = time.monotonic()
    client.send(PULL, {"n": -1})
    client.send(COMMIT)
    time.sleep(0.1)
    client.send(RESET)
    assert [client.receive() for _ in range(3)] == [(IGNORED, None), (IGNORED, None), (SUCCESS, {})]
    assert time.monotonic() - started < 5
    assert backend.counts["rollbacks"] == 1
    client.send(RESET)
    client.send(RESET)
    assert [client.receive() for _ in range(2)] == [(SUCCESS, {})] * 2
    assert client.run("ECHO", {"a": 1})[0] == SUCCESS


def test_a_commit_is_not_interrupted(client: RawClient, backend: ScriptedBackend) -> None:
    client.ask(BEGIN, {})
    client.run("NOTE a")
    client.pull()
    client.send(COMMIT)
    client.send(RESET)
    answers = [client.receive() for _ in range(2)]
    assert answers[1] == (SUCCESS, {})
    assert (answers[0][0] == SUCCESS) == (backend.notes["home"] == ["a"])


def test_another_user_logs_on(client: RawClient, backend: ScriptedBackend) -> None:
    client.send(LOGOFF)
    client.send(LOGON, {**CREDENTIALS, "principal": "bob"})
    client.send(RUN, "ECHO", {"a": 1}, {})
    client.send(PULL, {"n": -1})
    tags = [client.receive()[0] for _ in range(5)]
    assert tags == [SUCCESS, SUCCESS, SUCCESS, RECORD, SUCCESS]
    assert backend.requests[-1].caller.name == "bob"


@pytest.mark.parametrize("version", [(4, 4), *((5, minor) for minor in range(9))], ids=str)
def test_all_versions_run_statements(server: RunningServer, version: tuple[int, int]) -> None:
    with RawClient(server.port, version) as client:
        credentials = CREDENTIALS if version < (5, 1) else {}
        assert client.ask(HELLO, {"user_agent": "test/1", **credentials})[0] == SUCCESS
        assert version < (5, 1) or client.ask(LOGON, CREDENTIALS)[0] == SUCCESS
        client.run("COUNT 3")
        rows, tag, answer = client.pull()
        assert (rows, tag, answer["type"]) == ([[0], [1], [2]], SUCCESS, "r")
        assert ("statuses" in answer) == (version >= (5, 5))
        assert client.ask(TELEMETRY, 1)[0] == (SUCCESS if version >= (5, 4) else FAILURE)


def test_answers_do_not_wait_for_acknowledgements(client: RawClient) -> None:
    started = time.monotonic()
    for _ in range(50):
        client.send_bytes(encode(RUN, "ECHO", {"a": 1}, {}) + encode(PULL, {"n": -1}))
        assert [client.receive()[0] for _ in range(3)] == [SUCCESS, RECORD, SUCCESS]
    assert time.monotonic() - started < 50 * 0.035


def test_options_reach_the_backend(client: RawClient, backend: ScriptedBackend) -> None:
    backend.notes["other"] = ["a"]
    client.run(
        "PROFILE NOTES", db="other", mode="r", tx_timeout=1500, bookmarks=["note:other:1"], tx_metadata={"app": "x"}
    )
    request = backend.requests[-1]
    assert (request.statement, request.plan) == ("        NOTES", "PROFILE")
    assert (request.database, request.is_read_only, request.timeout) == ("other", True, 1.5)
    assert (request.bookmarks, request.metadata) == (("note:other:1",), {"app": "x"})
    assert client.pull()[2]["profile"]["children"][0]["rows"] == 0


@pytest.mark.parametrize(
    "extra",
    [
        {"mode": "x"},
        {"tx_timeout": -1},
        {"tx_timeout": "1"},
        {"bookmarks": "note:home:1"},
        {"bookmarks": [1]},
        {"db": 5},
        {"tx_metadata": []},
        {"imp_user": "bob"},
        {"notifications_minimum_severity": "LOUD"},
    ],
)
def test_wrong_options_are_refused(client: RawClient, extra: dict[str, Any]) -> None:
    assert client.run("ECHO", **extra)[0] == FAILURE
    client.ask(RESET)
    assert client.ask(BEGIN, extra)[0] == FAILURE
    assert client.ask(RESET) == (SUCCESS, {})


@pytest.mark.parametrize(
    ("extra", "count"),
    [
        ({}, 1),
        ({"notifications_minimum_severity": "OFF"}, 0),
        ({"notifications_minimum_severity": "WARNING"}, 1),
        ({"notifications_disabled_classifications": ["GENERIC"]}, 0),
        ({"notifications_disabled_classifications": ["HINT"]}, 1),
    ],
)
def test_notifications_are_filtered(client: RawClient, extra: dict[str, Any], count: int) -> None:
    client.run("WARN", **extra)
    statuses = client.pull()[2]["statuses"]
    assert [status["gql_status"] for status in statuses] == ["01N00"] * count + ["00001"]


def test_old_clients_get_notifications(server: RunningServer) -> None:
    with RawClient(server.port, (5, 4)) as client:
        client.log_on()
        client.run("WARN")
        answer = client.pull()[2]
        assert "statuses" not in answer
        assert answer["notifications"][0]["position"] == {"offset": 0, "line": 1, "column": 1}
        client.run("WARN", notifications_disabled_categories=["GENERIC"])
        assert "notifications" not in client.pull()[2]


def test_routes_lead_back_to_the_address_the_client_used(client: RawClient) -> None:
    tag, answer = client.ask(ROUTE, {"address": "graph.example:7687"}, [], {"db": "other"})
    assert tag == SUCCESS
    assert answer["rt"]["db"] == "other"
    assert {server["role"]: server["addresses"] for server in answer["rt"]["servers"]} == {
        role: ["graph.example:7687"] for role in ("ROUTE", "READ", "WRITE")
    }
    assert client.ask(ROUTE, {}, [], {"db": "missing"})[1]["neo4j_code"] == "Neo.ClientError.Database.DatabaseNotFound"


def test_goodbye_ends_the_connection(client: RawClient) -> None:
    client.send(GOODBYE)
    assert client.receive_bytes(1) == b""


def test_messages_in_many_chunks_and_empty_chunks_are_read(client: RawClient) -> None:
    message = encode(RUN, "ECHO", {"text": "x" * 200}, {})[2:-2]
    client.send_bytes(
        b"\0\0" * 5 + b"".join(b"\0\x10" + message[at : at + 16] for at in range(0, len(message) // 16 * 16, 16))
    )
    rest = message[len(message) // 16 * 16 :]
    client.send_bytes(len(rest).to_bytes(2) + rest + b"\0\0")
    assert client.receive()[0] == SUCCESS
    assert client.pull()[0] == [["x" * 200]]


def test_large_values_are_sent_and_received(client: RawClient) -> None:
    parameters = {"text": "x" * 3_000_000, "list": list(range(20_000))}
    assert client.run("ECHO", parameters)[0] == SUCCESS
    assert client.pull()[0] == [list(parameters.values())]
