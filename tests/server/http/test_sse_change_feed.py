from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from litestar import Litestar

from bench.listener import EventListener, ReceivedEvent
from kgserve.server.http.sse import OpenEventStream
from kgserve.server.http.sse_change_feed import SLOW_CLIENT_WRITE_SECONDS
from kgserve.stores.pool import StorePool
from tests.server.http.serving import PATIENCE, RunningServer, accepted, refusal, serving
from tests.stores.writing import until

HEARTBEAT = 0.2
STREAMS = 4


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server with few streams, short queues and a short heartbeat interval."""
    options = {"event_heartbeat": HEARTBEAT, "max_event_streams": STREAMS, "event_queue": 50, "max_open_stores": 2}
    with serving(tmp_path_factory.mktemp("events") / "data", **options) as running:
        yield running


@pytest.fixture(scope="module")
def client(quick: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=quick.url, timeout=30) as client:
        yield client


def inject(client: httpx.Client, store: str, *ids: str, content: str = "", **batch: Any) -> int:
    nodes = [{"id": each, "type": "t", "content": content} for each in ids]
    return accepted(client.post(f"/api/memory/{store}/inject", json={"nodes": nodes, **batch}))["sequence"]


def stream(served: RunningServer, store: str, question: str = "", last_id: str = "") -> EventListener:
    return EventListener(served.port, f"/api/memory/{store}/events{question}", last_id)


def take(listener: EventListener, count: int) -> list[ReceivedEvent]:
    return list(islice(listener.events(), count))


def open_streams(served: RunningServer) -> list[OpenEventStream]:
    return [*cast("Litestar", served.server.config.app).state["service"].streams._open]


def free_places(served: RunningServer) -> None:
    """Wait until no stream is open."""
    until(lambda: not open_streams(served))


def accepted_stream(served: RunningServer) -> bool:
    with EventListener(served.port, "/api/events") as listener:
        return listener.status == 200


def test_events_follow_each_write(quick: RunningServer, client: httpx.Client, store: str) -> None:
    inject(client, store, "before")
    with stream(quick, store).greet() as listener:
        assert listener.status == 200
        assert listener.headers["content-type"].startswith("text/event-stream")
        assert listener.headers["cache-control"] == "no-store"
        assert (listener.last_id, listener.retry) == ("1", 1000)
        edge = {"from": "a", "to": "b", "relation_type": "r"}
        inject(client, store, "a", "b", edges=[edge])
        inject(client, store, "a", content="new")
        accepted(client.request("DELETE", f"/api/memory/{store}/edges", json=edge))
        accepted(client.delete(f"/api/memory/{store}/nodes/b"))
        told = take(listener, 6)
    assert [(each.id, each.kind) for each in told] == [
        ("2-0", "node_created"),
        ("2-1", "node_created"),
        ("2-2", "edge_created"),
        ("3-0", "node_updated"),
        ("4-0", "edge_deleted"),
        ("5-0", "node_deleted"),
    ]
    assert {each.data["store"] for each in told} == {store}
    assert told[3].data["content"] == "new"
    assert told[3].data["version"] == 2
    assert (told[4].data["from"], told[4].data["to"], told[4].data["relation_type"]) == ("a", "b", "r")
    assert told[5].data["id"] == "b"


def test_event_row_equals_the_api_row(quick: RunningServer, client: httpx.Client, store: str) -> None:
    inject(client, store, "a", "b", edges=[{"from": "a", "to": "b", "relation_type": "r", "attributes": {"k": [1]}}])
    shown = accepted(client.get(f"/api/memory/{store}/nodes/a"))
    with stream(quick, store, "?since=0") as listener:
        node, _, edge = take(listener, 3)
    further = {"store": store, "time": node.data["time"]}
    assert node.data == {**shown["node"], **further}
    assert edge.data == {**shown["outgoing"][0], **further}


def test_memory_events_follow_row_events(quick: RunningServer, client: httpx.Client, store: str) -> None:
    said = {"nodes": [{"id": "m", "type": "fact", "content": "tea", "confidence": 1}, {"id": "Ada", "type": "person"}]}
    said["nodes"][1]["name"] = "Ada"
    accepted(client.post(f"/api/memory/{store}/inject", json=said))
    accepted(client.post(f"/api/memory/{store}/inject", json={"nodes": [{"id": "m", "content": "coffee"}]}))
    accepted(client.delete(f"/api/memory/{store}/nodes/m"))
    expected = [
        ("1-0", "node_created"), ("1-1", "node_created"), ("1-2", "entity_created"), ("1-3", "memory_created"),
        ("2-0", "node_updated"), ("2-1", "memory_updated"), ("3-0", "node_deleted"), ("3-1", "memory_deleted"),
    ]  # fmt: skip
    for place in range(len(expected)):
        with stream(quick, store, "?since=0" if not place else "", expected[place - 1][0] if place else "") as listener:
            told = take(listener, len(expected) - place)
        assert [(each.id, each.kind) for each in told] == expected[place:]
    with stream(quick, store, "?since=0&kinds=memory_created,memory_updated,memory_deleted,entity_created") as listener:
        found = [{key: each.data[key] for key in each.data.keys() - {"store", "time"}} for each in take(listener, 4)]
    assert found == [
        {"sequence": 1, "id": "Ada", "name": "Ada", "type": "person"},
        {"sequence": 1, "id": "m", "content": "tea", "type": "fact"},
        {"sequence": 2, "id": "m", "changes": {"content": "coffee"}},
        {"sequence": 3, "id": "m", "reason": "deleted"},
    ]
    with EventListener(quick.port, f"/api/events?store={store}", f"{store}:1-2") as listener:
        assert [each.kind for each in take(listener, 2)] == ["memory_created", "node_updated"]


@pytest.mark.parametrize("how", ["header", "query"])
def test_event_stream_resumption_within_a_commit(
    quick: RunningServer, client: httpx.Client, store: str, how: str
) -> None:
    inject(client, store, "a", "b", "c")
    inject(client, store, "d")
    question, header = ("", "1-0") if how == "header" else ("?last_event_id=1-0", "")
    with stream(quick, store, question, header) as listener:
        assert [each.id for each in take(listener, 3)] == ["1-1", "1-2", "2-0"]
        inject(client, store, "e")
        assert [each.id for each in take(listener, 1)] == ["3-0"]


def test_last_event_id_header_overrides_the_query(quick: RunningServer, client: httpx.Client, store: str) -> None:
    inject(client, store, "a", "b", "c")
    with stream(quick, store, "?since=0&last_event_id=1-0", "1-1") as listener:
        assert [each.id for each in take(listener, 1)] == ["1-2"]


def test_unchanged_edges_cause_no_event(quick: RunningServer, client: httpx.Client, store: str) -> None:
    edge = {"from": "a", "to": "a", "relation_type": "r"}
    inject(client, store, "a", edges=[edge])
    with stream(quick, store).greet() as listener:
        assert inject(client, store, edges=[edge]) == 2
        inject(client, store, "b")
        assert [each.id for each in take(listener, 1)] == ["3-0"]


def test_a_large_write_is_one_event(quick: RunningServer, client: httpx.Client, store: str) -> None:
    with stream(quick, "", "") as missing:
        assert missing.status == 404
    inject(client, store, "first")
    with stream(quick, store).greet() as listener:
        inject(client, store, *(f"n{number}" for number in range(1_001)))
        inject(client, store, *(f"m{number}" for number in range(1_000)))
        told = take(listener, 1_001)
    assert (told[0].id, told[0].kind) == ("2-0", "bulk_changed")
    assert told[0].data["nodes_created"] == 1_001
    assert [each.id for each in told[1:]] == [f"3-{index}" for index in range(1_000)]


def test_filters(quick: RunningServer, client: httpx.Client, store: str) -> None:
    nodes = [{"id": "a", "type": "person"}, {"id": "b", "type": "place"}]
    inject(client, store, nodes=nodes, edges=[{"from": "a", "to": "b", "relation_type": "visits"}])
    accepted(client.delete(f"/api/memory/{store}/nodes/b"))
    for question, ids in (
        ("kinds=node_created", ["1-0", "1-1"]),
        ("kinds=node_deleted,edge_deleted", ["2-0", "2-1"]),
        ("kinds=node_deleted&kinds=edge_created", ["1-2", "2-1"]),
        ("types=person,visits", ["1-0", "1-2", "2-0", "2-1"]),
        ("types=place&kinds=node_created", ["1-1"]),
    ):
        with stream(quick, store, f"?since=0&{question}") as listener:
            assert [each.id for each in take(listener, len(ids))] == ids


def test_heartbeats_carry_the_position(quick: RunningServer, client: httpx.Client, store: str) -> None:
    inject(client, store, "a")
    with stream(quick, store, "?kinds=edge_created").greet() as listener:
        inject(client, store, "b")
        assert inject(client, store, "c") == 3
        while listener.last_id != "3":
            listener._block()
        listener._block()
        listener._block()
        assert listener.comments >= 2


def test_several_stores(quick: RunningServer, client: httpx.Client, store: str) -> None:
    one, two = f"{store}-one", f"{store}-two"
    inject(client, one, "a", "b")
    inject(client, two, "x")
    for question in (f"store={one}&store={two}", f"store={one},{two}"):
        with EventListener(quick.port, f"/api/events?{question}", f"{one}:1-0,{two}:0") as listener:
            told = take(listener, 2)
            assert {each.id.partition(",")[0] for each in told} == {f"{one}:1-1", f"{two}:1-0"}
            assert {each.data["store"] for each in told} == {one, two}
        with EventListener(quick.port, f"/api/events?{question}", told[0].id) as listener:
            assert [each.data for each in take(listener, 1)] == [told[1].data]
    with EventListener(quick.port, f"/api/events?store={one}&store={two}").greet() as listener:
        assert listener.last_id == f"{one}:1,{two}:1"
        inject(client, two, "y")
        assert [each.id for each in take(listener, 1)] == [f"{two}:2-0,{one}:1"]


def test_events_of_created_and_dropped_stores(quick: RunningServer, client: httpx.Client, store: str) -> None:
    with EventListener(quick.port, "/api/events").greet() as listener:
        inject(client, store, "a")
        accepted(client.delete(f"/api/memory/{store}?confirm={store}"))
        # A store that is dropped before its events are read takes them along.
        told = [next(listener.events())]
        while told[-1].kind != "store_dropped":
            told.append(next(listener.events()))
    assert {each.data["store"] for each in told} == {store}
    assert told[0].kind == "store_created"
    assert told[0].data["conflict_policy"] == "lww"
    assert told[0].id.startswith(f"{store}:0-0,")
    assert told[0].id.endswith("*:0")


def test_store_events_include_settings(quick: RunningServer, client: httpx.Client, store: str) -> None:
    with EventListener(quick.port, "/api/events?kinds=store_created,store_changed").greet() as listener:
        settings = {"conflict_policy": "manual", "kind_whitelist": ["note"]}
        accepted(client.put(f"/api/memory/{store}"), 201)
        [made] = take(listener, 1)
        accepted(client.patch(f"/api/memory/{store}", json=settings))
        [changed] = take(listener, 1)
    assert [(each.kind, each.data["store"]) for each in (made, changed)] == [
        ("store_created", store),
        ("store_changed", store),
    ]
    assert (made.data["conflict_policy"], made.data["kind_whitelist"]) == ("lww", [])
    assert {name: changed.data[name] for name in settings} == settings
    with EventListener(quick.port, "/api/events?kinds=store_created&since=0") as listener:
        again = next(each for each in listener.events() if each.data["store"] == store)
    assert {name: again.data[name] for name in settings} == settings


def test_the_stream_of_a_dropped_store_ends(quick: RunningServer, client: httpx.Client, store: str) -> None:
    inject(client, store, "a")
    with stream(quick, store).greet() as listener:
        accepted(client.delete(f"/api/memory/{store}?confirm={store}"))
        assert [each.kind for each in listener.events()] == ["store_dropped"]
    refusal(client.get(f"/api/memory/{store}/events"), 404)


def test_positions_of_a_dropped_store_are_refused(quick: RunningServer, client: httpx.Client, store: str) -> None:
    for number in range(4):
        inject(client, store, f"old{number}")
    accepted(client.delete(f"/api/memory/{store}?confirm={store}"))
    inject(client, store, "new")
    api = f"/api/memory/{store}"
    for path in (f"{api}/changes?since=4", f"{api}/events?since=4", f"{api}/events?last_event_id=4-0"):
        assert refusal(client.get(path), 410)["oldest"] == 1
    inject(client, store, "a", "b")
    assert "?since=2" in refusal(client.get(f"{api}/events?last_event_id=1-0"), 410)["detail"]
    with stream(quick, store, "?since=1") as listener:
        first, second = take(listener, 2)
    assert first.id.startswith("2-0~")
    with stream(quick, store, last_id=first.id) as listener:
        assert take(listener, 1) == [second]


def test_a_stream_holds_no_store_open(quick: RunningServer, client: httpx.Client, store: str) -> None:
    inject(client, store, "a")
    with stream(quick, store, "?kinds=node_created").greet() as listener:
        for number in range(3):
            inject(client, f"{store}-{number}", "x")
        listed = {each["name"]: each for each in accepted(client.get("/api/memory"))["stores"]}
        assert listed[store]["state"] == "closed"
        assert listed[store]["last_write"] < listed[f"{store}-2"]["last_write"]
        inject(client, store, "b")
        assert [each.id for each in take(listener, 1)] == ["2-0"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/memory/{store}/events?since=-1", 400),
        ("/api/memory/{store}/events?since=x", 400),
        ("/api/memory/{store}/events?last_event_id=a:1-1", 400),
        ("/api/memory/{store}/events?last_event_id=1-", 400),
        ("/api/memory/{store}/events?kinds=node_made", 400),
        ("/api/memory/{store}/events?other=1", 400),
        ("/api/memory/{store}/events?since=1&since=2", 400),
        ("/api/memory/{store}/events?since=2", 410),
        ("/api/memory/{store}/events?last_event_id=99-0", 410),
        ("/api/memory/none-such/events", 404),
        ("/api/memory/..%2fx/events", 400),
        ("/api/events?store={store}&store=none-such", 404),
        ("/api/events?store=..%2fx", 400),
        ("/api/events?last_event_id=1-1", 400),
        ("/api/events?store={store}&last_event_id={store}:7", 410),
    ],
)
def test_invalid_event_requests_are_refused(client: httpx.Client, path: str, status: int) -> None:
    inject(client, "refused", "a")
    refusal(client.get(path.format(store="refused")), status)


def test_position_before_the_oldest_segment_is_gone(tmp_path: Path) -> None:
    with serving(tmp_path / "data", journal_segment_mb=1) as served, httpx.Client(base_url=served.url) as client:
        for number in range(5):
            inject(client, "s", "a", content=str(number) * 700_000)
        pool: StorePool = cast("Any", served.server.config.app).state["service"].graphs.pool
        with pool.lease("s") as store:
            store.journal.remove_segments_before(4, 0)
        answer = client.get("/api/memory/s/events?since=0")
        document = refusal(answer, 410)
        assert document["type"].endswith(":gone")
        oldest = document["oldest"]
        assert oldest > 1
        assert str(oldest) in document["detail"]
        with EventListener(served.port, f"/api/memory/s/events?since={oldest - 1}") as listener:
            assert [each.id for each in take(listener, 6 - oldest)] == [f"{n}-0" for n in range(oldest, 6)]


def test_event_stream_limit_and_released_slot(quick: RunningServer, client: httpx.Client, store: str) -> None:
    inject(client, store, "a")
    free_places(quick)
    kept = [stream(quick, store).greet() for _ in range(STREAMS)]
    refused = client.get(f"/api/memory/{store}/events")
    refusal(refused, 429)
    assert int(refused.headers["retry-after"]) > 0
    kept[0].close()
    until(lambda: accepted_stream(quick))
    for each in kept[1:]:
        each.close()
    free_places(quick)


@pytest.mark.abuse(17)
def test_slow_listener_gets_a_dropped_event(quick: RunningServer, client: httpx.Client, store: str) -> None:
    inject(client, store, "first")
    with stream(quick, store).greet() as listener:
        for number in range(24):  # More than the socket buffers hold.
            inject(client, store, *(f"n{number}-{n}" for n in range(20)), content="x" * 50_000)
        until(lambda: any(each.sending for each in open_streams(quick)))  # It cannot continue writing.
        time.sleep(2 * SLOW_CLIENT_WRITE_SECONDS)
        told = list(listener.events())
    last = told.pop()
    assert last.kind == "dropped"
    assert last.data["resume"] == last.id == listener.last_id
    assert len(told) < 24 * 20
    with stream(quick, store, "", last.id) as listener:
        told += take(listener, 24 * 20 - len(told))
    assert [each.id for each in told] == [f"{sequence}-{n}" for sequence in range(2, 26) for n in range(20)]


def test_event_streams_end_gracefully_at_shutdown(tmp_path: Path) -> None:
    with serving(tmp_path / "data", shutdown_grace=600.0) as served, httpx.Client(base_url=served.url) as client:
        inject(client, "s", "a")
        listeners = [stream(served, "s").greet(), EventListener(served.port, "/api/events").greet()]
        inject(client, "s", "b")
        assert [take(each, 1)[0].kind for each in listeners] == ["node_created"] * 2
        begun = time.monotonic()
        served.server.stop()
        for each in listeners:
            assert list(each.events()) == []
            assert each._response.isclosed()  # The last chunk arrived: the stream was not cut off.
            each.close()
        assert time.monotonic() - begun < PATIENCE


def test_reconnecting_listener_gets_every_event_once(quick: RunningServer, client: httpx.Client, store: str) -> None:
    writes, choice = 200, random.Random(5)
    inject(client, store, "first")
    free_places(quick)
    last_id, seen = "1", []

    def write() -> None:
        with httpx.Client(base_url=quick.url, timeout=30) as writer:
            for number in range(writes):
                inject(writer, store, *(f"n{number}-{n}" for n in range(number % 3 + 1)))

    writer = threading.Thread(target=write)
    writer.start()
    expected = [f"{sequence + 2}-{n}" for sequence in range(writes) for n in range(sequence % 3 + 1)]
    while len(seen) < len(expected):
        with stream(quick, store, "", last_id) as listener:
            if listener.status == 429:
                continue  # The slot of the previous stream is not free yet.
            seen += [each.id for each in take(listener, min(choice.randint(1, 60), len(expected) - len(seen)))]
            last_id = seen[-1]
    writer.join()
    assert seen == expected
