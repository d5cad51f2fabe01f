"""Retries: which calls are repeated, which are not, and after which pauses, with a scripted server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kgserve import errors
from kgserve.client import AsyncClient, Client, Interrupted, Refused, Retries, Unintelligible
from kgserve.client.custom_request_builders import STORE_EVENTS_ROUTE, store_events
from kgserve.client.errors import RetryState, Unreachable
from kgserve.client.event_stream import ResumableSseListenerState
from kgserve.client.json_lines_stream import ImportLine
from tests.cli.running import SERVER_TIMEOUT_SECONDS
from tests.client.scripted import HEALTHY, ScriptedAnswer, ScriptedServer, answering, problem

TIMES = 3
QUICK = Retries(times=TIMES, first=0.01, longest=0.05)
BUSY = ScriptedAnswer(status=503, body=problem(503, "unavailable"), headers={"Retry-After": "1"})
TOO_MANY = ScriptedAnswer(status=429, body=problem(429, "limited"), headers={"Retry-After": "1"})
CUT = ScriptedAnswer(cut=True)
HALF = ScriptedAnswer(body=HEALTHY[:9], promised=len(HEALTHY))
DROPPED = b'{"ok":true,"dropped":"s"}'


@pytest.fixture
def quick(scripted: ScriptedServer) -> Iterator[Client]:
    with Client(scripted.url, retries=QUICK, key="secret") as client:
        yield client


@pytest.mark.parametrize("busy", [BUSY, TOO_MANY], ids=["busy", "limited"])
def test_retry_after_is_respected(scripted: ScriptedServer, quick: Client, busy: ScriptedAnswer) -> None:
    scripted.script.append(busy)
    begun = time.monotonic()
    assert quick.health().version == "0"
    assert 1.0 <= time.monotonic() - begun < SERVER_TIMEOUT_SECONDS
    assert len(scripted.asked) == 2
    assert scripted.asked[0].headers["authorization"] == "Bearer secret"


def test_retry_after_is_respected_by_the_asynchronous_client(scripted: ScriptedServer) -> None:
    async def ask() -> None:
        async with AsyncClient(scripted.url, retries=QUICK) as client:
            assert (await client.health()).version == "0"

    scripted.script += [BUSY, CUT, HALF]
    begun = time.monotonic()
    anyio.run(ask)
    assert time.monotonic() - begun >= 1.0
    assert len(scripted.asked) == 4


def test_an_unavailable_owner_is_forgotten(scripted: ScriptedServer) -> None:
    with answering() as other, Client(scripted.url, retries=0) as client:
        there = f"{other.url}/api/memory/s"
        scripted.script.append(ScriptedAnswer(status=307, headers={"Location": there, "Kgserve-Owner": "other"}))
        other.script.append(BUSY)
        with pytest.raises(errors.Unavailable):
            client.store("s").settings()
        scripted.script.append(ScriptedAnswer(status=404, body=problem(404, "not_found")))
        with pytest.raises(errors.NotFound):
            client.store("s").settings()
        assert (len(scripted.asked), len(other.asked)) == (2, 1)


@pytest.mark.parametrize("times", [None, 2], ids=["default", "two"])
def test_an_owner_that_is_down_is_retried_like_several_nodes(scripted: ScriptedServer, times: int | None) -> None:
    with answering() as stopped:
        there = f"{stopped.url}/api/memory/s"
    redirect = ScriptedAnswer(status=307, headers={"Location": there, "Kgserve-Owner": "stopped"})
    scripted.script += [redirect] * 8 + [ScriptedAnswer(status=404, body=problem(404, "not_found"))]
    retries = Retries(times=times, first=0.01, longest=0.05)
    expected = errors.NotFound if times is None else Unreachable
    with Client(scripted.url, retries=retries) as client, pytest.raises(expected):
        client.store("s").settings()
    assert len(scripted.asked) == (9 if times is None else 1 + times)


def test_a_retry_after_beyond_the_limit_is_not_waited_for(scripted: ScriptedServer, quick: Client) -> None:
    scripted.script.append(
        ScriptedAnswer(status=503, body=problem(503, "unavailable"), headers={"Retry-After": "3600"})
    )
    begun = time.monotonic()
    with pytest.raises(errors.Unavailable) as caught:
        quick.health()
    assert caught.value.retry_after == 3600
    assert time.monotonic() - begun < SERVER_TIMEOUT_SECONDS


def test_attempts_are_bounded(scripted: ScriptedServer, quick: Client) -> None:
    scripted.script += [CUT] * 10
    with pytest.raises(Interrupted):
        quick.health()
    assert len(scripted.asked) == 1 + TIMES


@pytest.mark.parametrize("trouble", [CUT, HALF], ids=["cut", "half"])
def test_broken_connections_are_retried(scripted: ScriptedServer, quick: Client, trouble: ScriptedAnswer) -> None:
    scripted.script += [trouble, trouble]
    assert quick.health().version == "0"
    assert len(scripted.asked) == 3


@pytest.mark.parametrize(
    "trouble", [CUT, ScriptedAnswer(status=503, body=problem(503, "unavailable"))], ids=["cut", "busy"]
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.drop("s", confirm="s"),
        lambda client: client.store("s").cypher("CREATE (:Entity {id: 'x'})", mode="write"),
        lambda client: client.store("s").import_([{"kind": "node", "id": "a", "type": "t"}]),
    ],
    ids=["drop", "cypher", "import"],
)
def test_non_idempotent_calls_are_not_retried(
    scripted: ScriptedServer, quick: Client, ask: Any, trouble: ScriptedAnswer
) -> None:
    scripted.script.append(trouble)
    with pytest.raises((Interrupted, errors.Unavailable)):
        ask(quick)
    assert len(scripted.asked) == 1


def test_rejected_non_idempotent_calls_are_retried(scripted: ScriptedServer, quick: Client) -> None:
    scripted.script += [
        ScriptedAnswer(status=429, body=problem(429, "limited"), headers={"Retry-After": "0"}),
        ScriptedAnswer(body=DROPPED),
    ]
    assert quick.drop("s", confirm="s").dropped == "s"


@pytest.mark.parametrize(
    ("say", "kind"),
    [
        (ScriptedAnswer(status=410, body=problem(410, "gone", oldest=7)), errors.Gone),
        (ScriptedAnswer(status=408, body=problem(408, "timeout")), errors.TimedOut),
        (ScriptedAnswer(status=421, body=problem(421, "misdirected")), Refused),
        (ScriptedAnswer(status=500, body=problem(500, "internal")), errors.Internal),
        (ScriptedAnswer(status=404, body=b"<html>"), Refused),
        (ScriptedAnswer(body=b'{"status":"ok"}'), Unintelligible),
        (ScriptedAnswer(body=b"\xff"), Unintelligible),
    ],
)
def test_permanent_errors_are_not_retried(
    scripted: ScriptedServer, quick: Client, say: ScriptedAnswer, kind: type[errors.KgserveError]
) -> None:
    scripted.script.append(say)
    with pytest.raises(kind) as caught:
        quick.health()
    assert len(scripted.asked) == 1
    assert not isinstance(caught.value, errors.Gone) or caught.value.oldest == 7


def test_unavailability_without_a_problem_document_is_retried(scripted: ScriptedServer, quick: Client) -> None:
    scripted.script += [ScriptedAnswer(status=502, body=b"bad gateway", headers={"Retry-After": "0"})] * 2
    assert quick.health().version == "0"


def test_a_missing_answer_is_a_timeout(scripted: ScriptedServer) -> None:
    scripted.script.append(ScriptedAnswer(promised=10, body=b"", headers={}))
    with Client(scripted.url, timeout=0.001, retries=0) as client, pytest.raises((errors.TimedOut, Interrupted)):
        client.health()


HEAD = b'{"columns":["n","t"],"types":["INT64","STRING"]}\n[1,"a"]\n'
ROWS = HEAD + b'[2,null]\n{"row_count":2,"truncated":false,"took_ms":1.5}\n'
ANSWER = (
    b'{"columns":["n","v"],"types":["INT64","NODE"],"rows":[[1,{"id":"a","attributes":{}}],[null,{"id":3}]],'
    b'"row_count":2,"truncated":true,"took_ms":1.0}'
)


def test_rows_stream(scripted: ScriptedServer, quick: Client) -> None:
    scripted.script.append(ScriptedAnswer(body=ROWS))
    rows = quick.store("s").cypher_rows("MATCH (n) RETURN n", {"a": 1})
    assert next(rows) == [1, "a"]
    assert rows.about["columns"] == ["n", "t"]
    assert list(rows) == [[2, None]]
    assert rows.about["row_count"] == 2
    assert scripted.asked[0].headers["accept"] == "application/x-ndjson"
    assert b'"params":{"a":1}' in scripted.asked[0].body


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (ROWS[:60], Interrupted),
        (HEAD, Interrupted),
        (HEAD + problem(408, "timeout") + b"\n", errors.TimedOut),
        (b"<html>\n", Unintelligible),
    ],
    ids=["half a line", "no end", "refused", "something else"],
)
def test_truncated_rows_are_an_error(
    scripted: ScriptedServer, quick: Client, body: bytes, kind: type[errors.KgserveError]
) -> None:
    scripted.script.append(ScriptedAnswer(body=body))
    with pytest.raises(kind):
        list(quick.store("s").cypher_rows("RETURN 1"))
    assert len(scripted.asked) == 1


def test_rows_as_a_table(scripted: ScriptedServer, quick: Client) -> None:
    scripted.script.append(ScriptedAnswer(body=ANSWER))
    answer = quick.store("s").cypher("MATCH (v) RETURN 1 AS n, v", timeout_ms=5000)
    assert repr(answer).splitlines()[0] == "<CypherResult: 2 rows of n, v, truncated>"
    assert answer.records()[0]["v"] == {"id": "a", "attributes": {}}
    table = answer.to_arrow()
    assert table.column("n").to_pylist() == [1, None]
    assert str(table.schema.field("n").type) == "int64"
    assert table.column("v").to_pylist() == ['{"id":"a","attributes":{}}', '{"id":3}']  # no Arrow type covers both


EVENT = b'id: 3-0\nevent: node_created\ndata: {"store":"s","time":"t","sequence":3,"id":"a"}\n\n'


def test_events_resume_at_their_position(scripted: ScriptedServer, quick: Client) -> None:
    stream = {"Content-Type": "text/event-stream"}
    dropped = b'id: 4-1\nevent: dropped\ndata: {"reason":"slow","resume":"4-1"}\n\n'
    gone = b'id: 5-0\nevent: store_dropped\ndata: {"store":"s","time":"t","sequence":5}\n\n'
    scripted.script += [
        ScriptedAnswer(status=429, body=problem(429, "limited"), headers={"Retry-After": "0"}),
        ScriptedAnswer(
            body=b"retry: 10\nid: 2\n\n" + EVENT + b"id: 3-1\nevent: node_cre", headers=stream, promised=900
        ),
        CUT,
        ScriptedAnswer(body=b"retry: 10\nid: 3-0\n\n" + dropped, headers=stream),
        ScriptedAnswer(body=b"retry: 10\r\nid: 4-1\r\n\r\n: heartbeat\nid: 4-7\n\n", headers=stream),
        ScriptedAnswer(body=b"retry: 10\nid: 4-7\n\n" + gone, headers=stream),
    ]
    told = list(quick.store("s").events(since=2, kinds=["node_created", "store_dropped"], types="t"))
    assert [each.id for each in told] == ["3-0", "5-0"]
    places = [asked.headers.get("last-event-id") for asked in scripted.asked]
    assert places == [None, None, "3-0", "3-0", "4-1", "4-7"]
    assert scripted.asked[0].path == "/api/memory/s/events?kinds=node_created%2Cstore_dropped&types=t&since=2"
    assert "since" not in scripted.asked[-1].path


def test_a_listener_gives_up(scripted: ScriptedServer, quick: Client) -> None:
    scripted.script.append(ScriptedAnswer(body=b"retry: 10\nid: 2\n\n" + EVENT))
    scripted.script += [CUT] * 50
    listener = quick.store("s").events(give_up_after=1.0)
    assert next(listener).id == "3-0"
    begun = time.monotonic()
    with pytest.raises(Interrupted):
        next(listener)
    assert 0.1 < time.monotonic() - begun < SERVER_TIMEOUT_SECONDS
    assert len(scripted.asked) > 2


def test_a_listener_that_never_connected_gives_up_as_calls_do(scripted: ScriptedServer, quick: Client) -> None:
    scripted.script += [CUT] * 50
    with pytest.raises(Interrupted):
        next(quick.store("s").events())
    assert len(scripted.asked) == 1 + TIMES


def test_permanent_errors_end_a_listener(scripted: ScriptedServer, quick: Client) -> None:
    scripted.script.append(ScriptedAnswer(status=410, body=problem(410, "gone", oldest=9)))
    with pytest.raises(errors.Gone):
        next(quick.store("s").events(since=1))
    scripted.script.append(ScriptedAnswer(status=404, body=problem(404, "not_found")))
    with pytest.raises(errors.NotFound):
        next(quick.store("s").events())


def test_pauses_grow_with_jitter() -> None:
    retries = Retries()
    pauses = [retries.pause(number) for number in range(8)]
    assert all(0.5 * min(8, 0.2 * 2**n) <= each <= min(8, 0.2 * 2**n) for n, each in enumerate(pauses))
    assert len({retries.pause(0) for _ in range(50)}) > 10
    listener = store_events("s")
    assert isinstance(listener, ResumableSseListenerState)
    assert listener.call().route is STORE_EVENTS_ROUTE


def test_several_nodes_are_retried_until_the_time_limit() -> None:
    """A store whose machine has died is served again after 10 to 20 s."""
    refused = Unreachable("no server answers")
    attempts = RetryState(Retries())
    pauses = [attempts.pause_after(refused, idempotent=True, nodes=3) for _ in range(15)]
    assert all(0.1 * 2 ** (at // 3) <= each <= 0.2 * 2 ** (at // 3) for at, each in enumerate(pauses))
    for retries in (Retries(times=2), Retries(patience=0.0), Retries(times=0)):
        attempts = RetryState(retries)
        with pytest.raises(Unreachable):
            [attempts.pause_after(refused, idempotent=True, nodes=3) for _ in range(3)]


def test_an_import_is_not_started_twice(scripted: ScriptedServer, quick: Client, tmp_path: Path) -> None:
    file = tmp_path / "lines.ndjson"
    file.write_bytes(b'{"kind":"node","id":"a","type":"t"}\n')
    scripted.script += [ScriptedAnswer(status=429, body=problem(429, "limited"))]
    for source in (file, str(file), file.read_bytes(), iter([file.read_bytes()])):
        scripted.script.clear()
        scripted.script.append(ScriptedAnswer(status=429, body=problem(429, "limited")))
        with pytest.raises(errors.RateLimited):
            quick.store("s").import_(source)
        assert scripted.asked[-1].body == file.read_bytes()
    with pytest.raises(errors.InvalidInput, match="mapping"):
        quick.store("s").import_([3])  # pyright: ignore[reportArgumentType]
    anyio.run(partial(_import_slowly, scripted.url))
    assert scripted.asked[-1].body == b'{"kind":"node","id":"b"}\n{"id":"c"}\n'


async def _import_slowly(url: str) -> None:
    async def lines() -> AsyncIterator[ImportLine | bytes]:
        yield {"kind": "node", "id": "b"}
        await anyio.sleep(0.01)
        yield b'{"id":"c"}\n'

    async with AsyncClient(url) as client:
        with pytest.raises(Unintelligible):
            await client.store("s").import_(lines())
