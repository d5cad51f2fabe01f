"""Engine processes that crash, hang or exceed their memory fail the caller's statement only."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from kgserve.errors import (
    EngineFailed,
    Internal,
    InvalidInput,
    KgserveError,
    StorageFull,
    TimedOut,
    Unavailable,
    error_class_named,
)
from kgserve.graph.cypher.engine_read_statements import StatementCancellation
from kgserve.graph.cypher.result_streams import StartedEngineReadStatement
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.request_bodies import CypherRequest
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.projections.cypher_engine.driver.__main__ import ENGINE_NICENESS
from kgserve.projections.cypher_engine.engine import process as engine_process
from kgserve.projections.cypher_engine.engine.engine_handle import EngineOptions, build_engine_file
from kgserve.projections.cypher_engine.engine.process import (
    ENGINE_IDLE_TIMEOUT_SECONDS,
    EngineForkServer,
    EngineProcess,
    EngineProcessDied,
    EngineRequestChannel,
)
from kgserve.projections.cypher_engine.engine.protocol import (
    FORK_REQUEST,
    ApplyNetChangeRequest,
    EngineFileOptions,
    EngineInternalQueryRequest,
)
from kgserve.storage.model.change_set import StoreState
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.captured_log import capture_log
from tests.engines import ENGINE
from tests.graphs import graph_of
from tests.stores.writing import NAME, PATIENCE, assert_whole, batch, settings, until, write

SLOW = "MATCH (a:Entity), (b:Entity), (c:Entity), (d:Entity) RETURN sum(a.version + b.version + c.version + d.version)"
COUNT = CypherRequest(query="MATCH (e:Entity) RETURN count(*)")
NODES = 100


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path)) as opened:
        with opened.lease(NAME, create=True) as store:
            write(store, batch(*(f"n{number}" for number in range(NODES)), edges=[("n0", "n1", "r")]))
        yield opened


def process(store: OpenStore) -> EngineProcess:
    """Return the process that has the store's file open."""
    engine = store.engine._engine
    assert engine is not None
    return engine._process


def struck(pool: StorePool, query: CypherRequest, blow: signal.Signals) -> BaseException | None:
    """Return the error of a statement whose process receives a signal while it runs."""
    run_cypher_request(graph_of(pool, NAME), COUNT)
    met: list[BaseException] = []

    def ask() -> None:
        try:
            run_cypher_request(graph_of(pool, NAME), query)
        except KgserveError as error:
            met.append(error)

    with pool.lease(NAME) as store:
        hit = process(store)
        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: hit.statements)
        time.sleep(0.05)
        os.kill(hit.number, blow)
        asking.join()
    return met[0] if met else None


def test_statements_have_a_lower_priority_than_the_server(pool: StorePool) -> None:
    run_cypher_request(graph_of(pool, NAME), COUNT)
    with pool.lease(NAME) as store:
        number = process(store).number
    assert os.getpriority(os.PRIO_PROCESS, number) == os.getpriority(os.PRIO_PROCESS, 0) + ENGINE_NICENESS


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_fails_the_statement_and_not_the_next(pool: StorePool, blow: signal.Signals) -> None:
    with capture_log(store=NAME) as lines:
        error = struck(pool, CypherRequest(query=SLOW), blow)
        assert isinstance(error, Unavailable)
        assert "ended unexpectedly" in str(error)
        assert run_cypher_request(graph_of(pool, NAME), COUNT).rows == [[NODES]]
    (lost,) = (line for line in lines if line["event"] == "engine_lost")
    assert [each.split()[:2] for each in lost["statements"]] == [["MATCH", "RETURN"]]
    begun = [line["process"] for line in lines if line["event"] == "engine_begun"]
    assert begun[:1] == [lost["process"]]
    with pool.lease(NAME) as store:
        assert store.engine.rebuilds == 1
        assert_whole(store)


@pytest.mark.parametrize("seen", [True, False], ids=["seen to be stopped", "silent"])
def test_a_hanging_process_is_killed(pool: StorePool, monkeypatch: pytest.MonkeyPatch, *, seen: bool) -> None:
    if not seen:
        monkeypatch.setattr(EngineProcess, "_is_stopped", lambda _: False)
    started = time.monotonic()
    with capture_log(store=NAME) as lines:
        error = struck(pool, CypherRequest(query=SLOW), signal.SIGSTOP)
    (killed,) = (line for line in lines if line["event"] == "engine_process_killed")
    assert [each.split()[:2] for each in killed["statements"]] == [["MATCH", "RETURN"]]
    assert isinstance(error, Unavailable)
    assert "hung" in str(error)
    assert time.monotonic() - started < PATIENCE
    assert run_cypher_request(graph_of(pool, NAME), COUNT).rows == [[NODES]]


@contextmanager
def silent(monkeypatch: pytest.MonkeyPatch, work: str) -> Generator[tuple[EngineProcess, Connection]]:
    """Yield a process that does some work without responding, and the other end of its control connection."""
    monkeypatch.setattr(engine_process, "PING_TIMEOUT_SECONDS", 0.3)
    own, others = (Connection(each.detach()) for each in socket.socketpair())
    command = [sys.executable, "-S", "-c", f"print(flush=True)\n{work}"]
    with own, others, subprocess.Popen(command, stdout=subprocess.PIPE) as begun:
        try:
            assert begun.stdout is not None
            assert begun.stdout.readline()
            until(lambda: work != IDLE or state_of(begun.pid) == "S")
            yield EngineProcess(begun.pid, own, []), others
        finally:
            begun.kill()


BUSY, IDLE = "while True: pass", "import time; time.sleep(600)"


@pytest.mark.parametrize(("work", "runs"), [(BUSY, True), (IDLE, False)])
def test_a_busy_process_gets_more_time(monkeypatch: pytest.MonkeyPatch, work: str, *, runs: bool) -> None:
    with silent(monkeypatch, work) as (asked, others):
        assert asked.is_responsive() is runs
        assert others.recv_bytes()
        if runs:
            others.send_bytes(b"")
            assert [asked.is_responsive() for _ in range(engine_process.MAX_MISSED_PINGS)] == [
                True
            ] * engine_process.MAX_MISSED_PINGS
            assert not asked.is_responsive()


def test_a_process_that_ends_before_it_answers_a_ping_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "ENGINE_ANSWER_POLL_SECONDS", 0.01)
    own, others = (Connection(each.detach()) for each in socket.socketpair())
    with own, others, silent(monkeypatch, IDLE) as (asked, control):
        control.close()
        with pytest.raises(EngineProcessDied, match="ended unexpectedly"):
            EngineRequestChannel(asked, 0, own).ask(EngineInternalQueryRequest("RETURN 1", {}))


def test_a_silent_process_is_limited_to_the_statement_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "ENGINE_ANSWER_POLL_SECONDS", 0.01)
    own, others = (Connection(each.detach()) for each in socket.socketpair())
    with own, others, silent(monkeypatch, BUSY) as (asked, _), pytest.raises(TimedOut):
        EngineRequestChannel(asked, 0, own).ask(EngineInternalQueryRequest("RETURN 1", {}), seconds=1.0)


def test_reads_concurrent_with_a_crashing_statement_succeed(pool: StorePool) -> None:
    run_cypher_request(graph_of(pool, NAME), COUNT)
    answers: list[object] = []

    def ask() -> None:
        answers.append(
            run_cypher_request(
                graph_of(pool, NAME), CypherRequest(query="UNWIND range(1, 3000) AS i RETURN count(*)")
            ).rows
        )

    with pool.lease(NAME) as store, store.engine.reading() as culprit:
        before = process(store)
        os.kill(before.number, signal.SIGSTOP)
        asking = threading.Thread(target=ask)
        asking.start()
        engine = store.engine._engine
        until(lambda: engine is not None and engine._leases == 2)
        time.sleep(0.1)
        before.end()
        asking.join()
        with pytest.raises(Unavailable):
            culprit.rows("RETURN 1")
    assert answers == [[[3000]]]


def started(pool: StorePool) -> StartedEngineReadStatement:
    return StartedEngineReadStatement(graph_of(pool, NAME), COUNT, StatementCancellation())


def wait_for_reply(statement: StartedEngineReadStatement) -> None:
    reply = select.poll()  # select does not support descriptors above 1,023
    reply.register(statement.descriptor, select.POLLIN)
    assert reply.poll(PATIENCE * 1000)


@pytest.mark.parametrize("blow", [signal.SIGKILL, None])
def test_a_started_statement_gives_its_session_back(pool: StorePool, blow: signal.Signals | None) -> None:
    run_cypher_request(graph_of(pool, NAME), COUNT)
    with pool.lease(NAME) as store:
        engine = store.engine._engine
        assert engine is not None
        begun = started(pool)
        if blow is not None:
            os.kill(process(store).number, signal.SIGSTOP)
            until(process(store)._is_stopped)
            other = started(pool)
            os.kill(process(store).number, blow)
            with pytest.raises(EngineProcessDied) as lost:
                other.finish()
            assert not lost.value.alone
        wait_for_reply(begun)
        with nullcontext() if blow is None else suppress(EngineProcessDied):
            assert msgspec.json.decode(begun.try_finish() or b"{}")["rows"] == [[NODES]]
        assert engine._leases == 0
        assert run_cypher_request(graph_of(pool, NAME), COUNT).rows == [[NODES]]


def test_a_started_statement_closes_a_retired_engine_in_a_thread(pool: StorePool) -> None:
    run_cypher_request(graph_of(pool, NAME), COUNT)
    with pool.lease(NAME) as store:
        engine = store.engine._engine
        assert engine is not None
        begun = started(pool)
        wait_for_reply(begun)
        store.engine.heal("a test")
        assert not engine.closed
        assert begun.try_finish() is not None
        until(lambda: engine.closed)


def test_an_engine_that_is_retired_again_while_it_closes_is_closed_once(
    pool: StorePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cypher_request(graph_of(pool, NAME), COUNT)
    closed: list[str] = []
    has_begun = threading.Event()
    with pool.lease(NAME) as store:
        retired = process(store)
        close = retired.close

        def close_slowly() -> None:
            closed.append(threading.current_thread().name)
            has_begun.set()
            time.sleep(0.2)
            close()

        monkeypatch.setattr(retired, "close", close_slowly)
        engine = store.engine._engine
        assert engine is not None
        begun = started(pool)
        wait_for_reply(begun)
        store.engine.heal("a test")
        assert begun.try_finish() is not None
        assert has_begun.wait(PATIENCE)
        engine.retire()
        assert engine.closed
    assert closed == [f"close engine of {NAME}"]


def test_no_statement_is_started_that_must_wait(pool: StorePool) -> None:
    with pytest.raises(WouldBlock):
        started(pool)  # the engine is not open
    run_cypher_request(graph_of(pool, NAME), COUNT)
    with pool.lease(NAME) as store:
        with ExitStack() as held:
            for _ in range(store.engine.options.readers):
                held.enter_context(store.engine.reading())
            with pytest.raises(WouldBlock):
                started(pool)
        write(store, batch("another"))
        if store.engine.state.sequence < store.journal.last:
            with pytest.raises(WouldBlock):
                started(pool)
        assert run_cypher_request(graph_of(pool, NAME), COUNT).rows == [[NODES + 1]]


def test_a_crash_while_idle_affects_no_caller(pool: StorePool) -> None:
    run_cypher_request(graph_of(pool, NAME), COUNT)
    with pool.lease(NAME) as store:
        before = process(store)
        os.kill(before.number, signal.SIGKILL)
        until(lambda: before.has_died)
        assert run_cypher_request(graph_of(pool, NAME), COUNT).rows == [[NODES]]
        assert store.engine.losses == 1


def test_writes_continue_without_the_process(pool: StorePool) -> None:
    run_cypher_request(graph_of(pool, NAME), COUNT)
    with pool.lease(NAME) as store:
        os.kill(process(store).number, signal.SIGKILL)
        write(store, batch("later"))
        assert run_cypher_request(graph_of(pool, NAME), COUNT).rows == [[NODES + 1]]
        assert_whole(store)


def test_a_crash_during_a_write_statement_changes_nothing(pool: StorePool) -> None:
    run_cypher_request(
        graph_of(pool, NAME),
        CypherRequest(query="MATCH (e {id: 'n1'}) SET e.content = 'x' RETURN count(*)", mode="write"),
    )
    again = CypherRequest(query="MATCH (e:Entity {id: 'n2'}) SET e.content = 'y' RETURN count(*)", mode="write")
    with pool.lease(NAME) as store:
        copy = store.copy._copy
        assert copy is not None
        copy.engine._process.end()
        state = store.state
        answer = run_cypher_request(graph_of(pool, NAME), again)
        assert answer.changes is not None
        assert answer.changes.nodes_updated == 1
        assert store.state.sequence == state.sequence + 1
        assert_whole(store)


@pytest.mark.parametrize(
    "query",
    [
        "MATCH (a:Entity), (b:Entity) RETURN collect(a.content + b.content)",
        "MATCH (a:Entity) RETURN map(regexp_extract_all(a.content, '.'), regexp_extract_all(a.content, '.'))",
    ],
)
def test_memory_is_bounded_and_the_process_survives(tmp_path: Path, query: str) -> None:
    options = {"buffer_pool_mb": 128, "engine_memory_mb": 512, "query_timeout": 60.0}
    with StorePool(settings(tmp_path, **options)) as pool:
        with pool.lease(NAME, create=True) as store:
            write(store, batch(*(f"n{number}" for number in range(1500)), content="abcdefghij" * 800))
        run_cypher_request(graph_of(pool, NAME), COUNT)
        with pool.lease(NAME) as store:
            before = process(store)
            with pytest.raises(StorageFull, match="memory"):
                run_cypher_request(graph_of(pool, NAME), CypherRequest(query=query))
            assert process(store) is before
            assert run_cypher_request(graph_of(pool, NAME), COUNT).rows == [[1500]]


def test_a_statement_that_ignores_its_timeout_kills_the_process(tmp_path: Path) -> None:
    options = EngineOptions(EngineFileOptions(cache_bytes=64 << 20), engine=ENGINE, readers=1)
    path = tmp_path / "graph.kuzu"
    engine = build_engine_file(path, ApplyNetChangeRequest(None, [], [], [], [], [], [], []), StoreState(), options)
    with engine.reader() as session, pytest.raises(TimedOut):
        session.channel.ask(
            EngineInternalQueryRequest("UNWIND range(1, 100000) AS i UNWIND range(1, 100000) AS j RETURN sum(i * j)"),
            None,
            0.3,
        )
    assert engine.has_died
    engine.retire()


def test_an_engine_started_during_close_is_discarded(tmp_path: Path) -> None:
    closing = threading.Event()
    options = EngineOptions(EngineFileOptions(cache_bytes=64 << 20), engine=ENGINE, readers=1, closing=closing)
    path = tmp_path / "graph.kuzu"
    engine = build_engine_file(path, ApplyNetChangeRequest(None, [], [], [], [], [], [], []), StoreState(), options)
    threading.Timer(0.2, closing.set).start()
    with pytest.raises(Unavailable, match="closing"):
        engine.writer.channel.ask(EngineInternalQueryRequest(ENDLESS), None, broken_off=closing)
    engine.retire()


ENDLESS = "UNWIND range(1, 3000) AS i UNWIND range(1, 3000) AS j UNWIND range(1, 3000) AS k RETURN count(i + j + k)"


def test_a_cancelled_call_leaves_no_response_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = EngineOptions(EngineFileOptions(cache_bytes=64 << 20), engine=ENGINE, readers=1)
    engine = build_engine_file(
        tmp_path / "graph.kuzu", ApplyNetChangeRequest(None, [], [], [], [], [], [], []), StoreState(), options
    )

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with engine.reader() as session:
        for query in ("RETURN 1", ENDLESS):
            with monkeypatch.context() as patched:
                patched.setattr(EngineRequestChannel, "_wait", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    session.rows(query)
            assert session.rows("RETURN 2") == [[2]]
    assert not engine.has_died
    engine.retire()


def test_an_interrupt_stops_its_own_statement_only(tmp_path: Path) -> None:
    options = EngineOptions(EngineFileOptions(cache_bytes=64 << 20), engine=ENGINE, readers=1)
    engine = build_engine_file(
        tmp_path / "graph.kuzu", ApplyNetChangeRequest(None, [], [], [], [], [], [], []), StoreState(), options
    )
    met: list[KgserveError] = []

    def ask() -> None:
        with pytest.raises(TimedOut) as error:
            session.rows(ENDLESS)
        met.append(error.value)

    with engine.reader() as session:
        assert session.rows("RETURN 1") == [[1]]
        channel, before = session.channel, session.channel._requests
        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: channel._requests > before)
        for _ in range(20):
            channel.process.interrupt(channel._place, before)
            asking.join(0.02)
        assert asking.is_alive()
        while asking.is_alive():
            channel.interrupt()
            asking.join(0.05)
        assert len(met) == 1
        assert session.rows("RETURN 2") == [[2]]
    engine.retire()


def test_an_unknown_error_is_an_internal_error() -> None:
    assert [error_class_named(name) for name in ("InvalidInput", "EngineFailed", "str", "")] == [
        InvalidInput,
        EngineFailed,
        Internal,
        Internal,
    ]


def state_of(number: int) -> str:
    """Return the state of a process, as reported by Linux."""
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]


def gone(number: int) -> bool:
    try:
        # A zombie that no process waits for, or one that is just being removed.
        return state_of(number) in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_file_of_a_released_process_can_be_opened_by_another() -> None:
    nursery = EngineForkServer(ENGINE)
    for process in [nursery.process(0) for _ in range(20)]:
        process.close()
        assert gone(process._number)
    nursery.close()


def test_a_released_process_is_not_killed_again() -> None:
    nursery = EngineForkServer(ENGINE)
    first = nursery.process(0)
    first.close()
    second = nursery.process(0)
    first.end()
    assert second.is_responsive()
    assert first.private_memory_bytes == 0 < second.private_memory_bytes
    second.close()
    nursery.close()


def test_a_crashed_fork_server_is_restarted() -> None:
    nursery = EngineForkServer(ENGINE)
    first = nursery.process(1)
    parent = nursery._parent
    assert parent is not None
    parent.kill()
    parent.wait()
    second = nursery.process(1)
    assert first.is_responsive()
    assert second.is_responsive()
    first.close()
    nursery.close()
    until(lambda: gone(first.number))
    assert second.is_responsive()
    second.close()
    until(lambda: gone(second.number))


ORPHAN = """
import os, time
from kgserve.projections.cypher_engine.engine.process import get_engine_fork_server
process = get_engine_fork_server("kuzu").process(1)
print(process.number, get_engine_fork_server("kuzu")._parent.pid, flush=True)
time.sleep(60)
"""


def test_processes_end_with_the_server() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        numbers = [int(each) for each in server.stdout.readline().split()]
        assert not any(map(gone, numbers))
        server.kill()
    assert len(numbers) == 2
    until(lambda: all(map(gone, numbers)))


@pytest.mark.parametrize(
    "module",
    [
        "kgserve.server.app",
        "kgserve.client.embedded",
        "kgserve.graph.cypher.engine_write_statements",
        "kgserve.stores.pool",
    ],
)
def test_the_server_does_not_import_the_engine(module: str) -> None:
    script = f"import sys, {module}; print([name for name in sys.modules if name.split('.')[0] in ('kuzu', 'ladybug')])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_fork_server_with_an_unread_response_ends_silently() -> None:
    own, other = socket.socketpair()
    with other:
        command = [
            sys.executable,
            "-m",
            "kgserve.projections.cypher_engine.driver",
            ENGINE,
            str(other.fileno()),
            "0",
            "console",
            "info",
        ]
        nursery = subprocess.Popen(command, pass_fds=[other.fileno()], stderr=subprocess.PIPE)
    control, theirs = socket.socketpair()
    with own, control, theirs:
        own.settimeout(PATIENCE)
        socket.send_fds(own, [FORK_REQUEST], [theirs.fileno()])
        assert own.recv(1, socket.MSG_PEEK)
    _, said = nursery.communicate(timeout=PATIENCE)
    assert (nursery.returncode, said) == (0, b"")


def test_an_idle_fork_server_ends() -> None:
    nursery = EngineForkServer(ENGINE)
    nursery.process(0).close()
    parent = nursery._parent
    assert parent is not None
    assert str(ENGINE_IDLE_TIMEOUT_SECONDS) in Path(f"/proc/{parent.pid}/cmdline").read_text().split("\0")
    nursery.close()
    assert parent.returncode is not None
