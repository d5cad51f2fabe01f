from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kgserve.server.bolt.connection import BoltLimits
from tests.server.bolt.raw_client import BEGIN, COMMIT, FAILURE, HELLO, PULL, RESET, RUN, SUCCESS, RawClient, encode
from tests.server.bolt.running import RunningServer, running
from tests.server.bolt.scripted_backend import ScriptedBackend


def count_tasks(server: RunningServer) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    return server.run(count())


def count_sockets() -> int:
    folder = Path("/proc/self/fd")
    return sum(str(path.readlink()).startswith("socket:") for path in folder.iterdir() if path.is_symlink())


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.01)


def is_stable(number: Callable[[], int]) -> bool:
    """Return whether a number stays the same for a while."""
    before = number()
    time.sleep(0.5)
    return number() == before


def test_a_thousand_connections_leave_nothing_behind(server: RunningServer, backend: ScriptedBackend) -> None:
    tasks, sockets, threads = count_tasks(server), count_sockets(), threading.active_count()
    for number in range(1_000):
        client = RawClient(server.port, (5, 8) if number % 5 else None)
        if number % 10 == 1:
            client.log_on()
        if number % 20 == 1:
            client.ask(BEGIN, {})
            client.run("COUNT 1000")
        client.socket.close()
    wait_for(lambda: server.server.connection_count == 0)
    wait_for(lambda: count_tasks(server) == tasks)
    # Fewer, if connections of earlier tests have ended meanwhile.
    wait_for(lambda: count_sockets() <= sockets)
    assert threading.active_count() <= threads + BoltLimits().threads
    assert backend.open_count == 0


def test_a_client_that_goes_away_interrupts_its_statement(server: RunningServer, backend: ScriptedBackend) -> None:
    client = RawClient(server.port).log_on()
    client.run("SLEEP 60")
    client.send(PULL, {"n": -1})
    wait_for(lambda: backend.open_count == 1)
    client.socket.close()
    started = time.monotonic()
    wait_for(lambda: server.server.connection_count == 0)
    assert time.monotonic() - started < 3
    assert backend.open_count == 0


def test_a_client_that_goes_away_rolls_its_transaction_back(server: RunningServer, backend: ScriptedBackend) -> None:
    client = RawClient(server.port).log_on()
    client.ask(BEGIN, {})
    client.run("NOTE lost")
    client.pull()
    client.socket.close()
    wait_for(lambda: backend.counts["rollbacks"] == 1)
    assert backend.notes["home"] == []


def test_rows_wait_for_a_client_that_does_not_read(server: RunningServer, backend: ScriptedBackend) -> None:
    with RawClient(server.port).log_on() as client:
        client.run("COUNT 100000000")
        client.send(PULL, {"n": -1})
        wait_for(lambda: backend.counts["rows"] > 0)
        wait_for(lambda: is_stable(lambda: backend.counts["rows"]))
        assert backend.counts["rows"] < 10_000_000
        client.socket.close()
        wait_for(lambda: server.server.connection_count == 0)


def test_connections_beyond_the_limit_are_closed(backend: ScriptedBackend) -> None:
    with running(backend, BoltLimits(connections=2)) as server:
        first, second = RawClient(server.port).log_on(), RawClient(server.port).log_on()
        with first, second, RawClient(server.port, None) as third:
            assert third.receive_bytes(1) == b""
        wait_for(lambda: server.server.connection_count == 0)
        with RawClient(server.port) as client:
            client.log_on()


@pytest.mark.parametrize("start", [None, (5, 8)])
def test_clients_that_do_not_log_on_are_closed(backend: ScriptedBackend, start: tuple[int, int] | None) -> None:
    limits = BoltLimits(handshake_timeout=0.2, authentication_timeout=0.2)
    with running(backend, limits) as server, RawClient(server.port, start) as client:
        started = time.monotonic()
        assert client.receive_bytes(1) == b""
        assert time.monotonic() - started < 5


def test_empty_chunks_do_not_extend_the_time_to_log_on(backend: ScriptedBackend) -> None:
    limits = BoltLimits(authentication_timeout=0.3)
    with running(backend, limits) as server, RawClient(server.port) as client, suppress(OSError):
        for _ in range(300):
            client.send_bytes(b"\0\0")
            time.sleep(0.02)
        pytest.fail("the connection stayed open")


def test_idle_connections_are_closed(backend: ScriptedBackend) -> None:
    with running(backend, BoltLimits(idle_timeout=0.2)) as server, RawClient(server.port).log_on() as client:
        assert client.receive_bytes(1) == b""


def test_idle_transactions_are_rolled_back(backend: ScriptedBackend) -> None:
    limits = BoltLimits(transaction_idle_timeout=0.2)
    with running(backend, limits) as server, RawClient(server.port).log_on() as client:
        client.ask(BEGIN, {})
        wait_for(lambda: backend.counts["rollbacks"] == 1)
        tag, answer = client.ask(COMMIT)
        assert (tag, answer["neo4j_code"]) == (FAILURE, "Neo.ClientError.Transaction.TransactionTimedOut")
        assert client.ask(RESET) == (SUCCESS, {})
        assert client.run("ECHO", {"a": 1})[0] == SUCCESS


@pytest.mark.parametrize(
    ("is_known", "data"),
    [
        (False, b"\xff\xff" + bytes(70_000)),
        (False, b"\x00\x02\xb1\x01\x00\x00" * 1),
        (True, (b"\xff\xff" + bytes(65_535)) * 20),
        (True, b"\x00\x01\x00" * 2_000),
        (True, b"\x00\x00" * 11_000),
        (True, b"\x00\x06\xb1\x3f\xda\xff\xff\xff\x00\x00"),
        (True, b"\x00\x07\xb1\x3f\xd6\xff\xff\xff\xff\x00\x00"),
    ],
    ids=["large", "cut", "huge", "small chunks", "empty chunks", "giant map", "giant list"],
)
def test_messages_beyond_the_limits_end_the_connection(backend: ScriptedBackend, is_known: bool, data: bytes) -> None:
    with running(backend, BoltLimits(message_bytes=1_000_000)) as server, RawClient(server.port) as client:
        if is_known:
            client.log_on()
        try:
            client.send_bytes(data)
        except OSError:
            return
        tag, answer = client.receive()
        assert tag in (FAILURE, 0)
        if tag:
            assert answer["neo4j_code"] == "Neo.ClientError.Request.Invalid"
            assert client.receive_bytes(1) == b""


def test_a_large_message_right_after_logon_is_accepted(server: RunningServer) -> None:
    from tests.server.bolt.raw_client import CREDENTIALS, LOGON

    with RawClient(server.port) as client:
        statement = encode(RUN, "ECHO", {"text": "x" * 500_000}, {})
        client.send_bytes(encode(HELLO, {"user_agent": "x"}) + encode(LOGON, CREDENTIALS) + statement)
        assert [client.receive()[0] for _ in range(3)] == [SUCCESS] * 3


def test_many_messages_may_wait(server: RunningServer) -> None:
    with RawClient(server.port).log_on() as client:
        client.ask(BEGIN, {})
        pair = encode(RUN, "ECHO", {"a": 1}, {}) + encode(PULL, {"n": -1})
        sender = threading.Thread(target=client.send_bytes, args=(pair * 1_000,))
        sender.start()
        tags = [client.receive()[0] for _ in range(3_000)]
        sender.join()
        assert tags.count(SUCCESS) == 2_000


def test_stopping_waits_for_running_work_and_closes_idle_connections(backend: ScriptedBackend) -> None:
    with running(backend, BoltLimits(stop_timeout=10)) as server:
        idle, busy = RawClient(server.port).log_on(), RawClient(server.port).log_on()
        busy.run("SLEEP 0.3")
        busy.send(PULL, {"n": -1})
        wait_for(lambda: backend.open_count == 1)
        server.run(server.server.stop())
        assert busy.receive()[0] == SUCCESS
        assert busy.receive_bytes(1) == idle.receive_bytes(1) == b""
        for client in (idle, busy):
            client.socket.close()
        with pytest.raises(OSError):  # noqa: PT011
            RawClient(server.port)


def test_stopping_interrupts_work_that_takes_too_long(backend: ScriptedBackend) -> None:
    with running(backend, BoltLimits(stop_timeout=0.2)) as server, RawClient(server.port).log_on() as client:
        client.run("SLEEP 60")
        client.send(PULL, {"n": -1})
        wait_for(lambda: backend.open_count == 1)
        started = time.monotonic()
        server.run(server.server.stop())
        assert time.monotonic() - started < 10
        assert server.server.connection_count == 0
    assert backend.open_count == 0


def test_backend_calls_run_in_the_servers_threads(server: RunningServer, backend: ScriptedBackend) -> None:
    with RawClient(server.port).log_on() as client:
        client.run("ECHO", {"a": 1})
    assert all(name.startswith("bolt") for name in backend.threads)
