"""The client with a server process: discovery by folder, resuming after a restart, and streaming."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from queue import Queue

import anyio
import msgspec
import pytest
from typing_extensions import override

from kgserve.client import AsyncClient, Client, Event, Unreachable, WriteHandler, subscribe
from kgserve.client.json_lines_stream import ImportLine
from kgserve.errors import Gone, NotFound
from kgserve.graph.answers import Node
from kgserve.graph.request_bodies import EdgeNdjsonLine, NodeNdjsonLine
from kgserve.platform import settings
from tests.cli.fork_server import TOP
from tests.cli.running import SERVER_TIMEOUT_SECONDS, ServerProcessHandle, environment, serving

LINES = 20_000
FLAT = 6 << 20
OPTIONS = ("--indexes", "none")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcessHandle]:
    with serving(tmp_path_factory.mktemp("client") / "data", *OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcessHandle) -> Iterator[Client]:
    with Client(data=server.data) as client:
        yield client


def test_the_server_of_a_folder_is_found_with_its_token(server: ServerProcessHandle, client: Client) -> None:
    assert repr(client) == f"Client({server.url!r})"
    token = msgspec.json.decode((server.data / "server.json").read_bytes())["token"]
    assert client.http.target.address.headers == {"Authorization": f"Bearer {token}"}
    with Client(data=server.data, key="mine") as other:
        assert other.http.target.address.token == "mine"
        assert other.health().status == "ok"


def test_the_configured_address_is_the_default(tmp_path: Path) -> None:
    with Client(data=tmp_path, retries=0) as client:
        assert client.http.target.address.url == f"http://127.0.0.1:{settings.load_settings().port}"


def test_a_long_import_and_export_use_constant_memory(
    server: ServerProcessHandle, client: Client, tmp_path: Path
) -> None:
    big, file = client.store("big"), tmp_path / "big.ndjson"
    command = [sys.executable, "-m", "tests.client.transfer_memory", str(server.data), str(file), str(LINES)]
    measured = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(), cwd=TOP)
    peaks = msgspec.json.decode(measured.stdout, type=dict[str, int])
    assert max(peaks.values()) < FLAT, peaks
    assert big.stats().nodes == LINES
    assert big.export_to(file) == big.stats().sequence
    assert file.read_bytes().count(b"\n") == LINES
    again = big.import_(file)
    assert (again.nodes_unchanged, again.nodes_created, again.ok) == (LINES, 0, True)
    assert sum(1 for _ in big.nodes(type="struct")) == LINES // 2


def test_an_export_can_be_imported(client: Client, tmp_path: Path) -> None:
    one, two, file = client.store("one"), client.store("two"), tmp_path / "one.ndjson"
    one.inject([{"id": "a", "type": "t", "attributes": {"k": [1]}}, {"id": "b", "type": "t"}])
    one.inject(edges=[{"from": "a", "to": "b", "relation_type": "r", "weight": 0.25}])
    exported = list(one.export())
    assert [type(each) for each in exported] == [NodeNdjsonLine, NodeNdjsonLine, EdgeNdjsonLine]
    assert two.import_(exported).ok
    assert list(two.export()) == exported
    assert one.export_to(file) == 2
    assert client.store("three").import_(file).edges_created == 1
    with pytest.raises(NotFound):
        client.store("none").export_to(tmp_path / "none.ndjson")
    assert [path.name for path in tmp_path.iterdir()] == ["one.ndjson"]


def test_wrong_lines_are_listed(client: Client) -> None:
    done = client.store("wrong").import_(
        [b'{"kind":"node","id":"a"', b',"type":"t"}\n{"kind":"x"}\n', {"kind": "node"}]
    )
    assert (done.ok, done.nodes_created, [each.line for each in done.errors]) == (False, 1, [2, 3])


def test_an_abandoned_stream_closes_its_connection(client: Client) -> None:
    store = client.store("left")
    store.inject([{"id": str(number), "type": "t"} for number in range(3)])
    for _ in range(70):  # more than the server allows concurrently
        with store.events(since=0) as events:
            assert next(events).id == "1-0"


def test_events_of_several_stores(client: Client) -> None:
    for name in ("several-a", "several-b"):
        client.store(name).inject([{"id": name, "type": "t"}])
    with client.events(["several-a", "several-b"], since=0, kinds=["node_created"]) as events:
        told = [next(events), next(events)]
    assert {each.store for each in told} == {"several-a", "several-b"}
    assert {each.node.id for each in told if each.node} == {"several-a", "several-b"}
    with client.events(["several-a", "several-b"], last_event_id=told[0].id, kinds=["node_created"]) as events:
        assert next(events).data == told[1].data


def test_events_of_a_dropped_store_end(client: Client) -> None:
    store = client.store("dropped")
    store.inject([{"id": "a", "type": "t"}, {"id": "b", "type": "t"}])
    store.inject(edges=[{"from": "a", "to": "b", "relation_type": "r"}])
    told: list[Event] = []
    for event in store.events(since=0, kinds=["node_created", "edge_created", "store_dropped"]):
        told.append(event)
        if event.kind == "edge_created":
            assert event.edge is not None
            assert (event.edge.target, event.node) == ("b", None)
            client.drop("dropped", confirm="dropped")
    assert [each.kind for each in told] == ["node_created", "node_created", "edge_created", "store_dropped"]
    with pytest.raises(NotFound):
        store.events()


class NodeQueue(WriteHandler):
    def __init__(self) -> None:
        self.ids = Queue[str]()

    @override
    def on_node_written(self, node: Node, event: Event) -> None:
        self.ids.put(node.id)


async def write_while_listening(server: Path) -> str:
    async with AsyncClient(data=server) as client:
        store = client.store("opened")
        with pytest.raises(NotFound):
            await anext(client.store("none-such").events())
        async with store.events(kinds=["node_created"]) as events:
            await store.inject([{"id": "last", "type": "t"}])
            return (await anext(events)).data["id"]


def test_events_begin_when_the_stream_is_opened(server: ServerProcessHandle, client: Client) -> None:
    store, handler = client.store("opened"), NodeQueue()
    store.inject([{"id": "before", "type": "t"}])
    with store.events(kinds=["node_created"]) as events:
        store.inject([{"id": "after", "type": "t"}])
        assert next(events).data["id"] == "after"
    with subscribe(client, handler, ["opened"]):
        store.inject([{"id": "later", "type": "t"}])
        assert handler.ids.get(timeout=SERVER_TIMEOUT_SECONDS) == "later"
    assert anyio.run(write_while_listening, server.data) == "last"


def test_events_before_the_journal_are_gone(client: Client) -> None:
    client.create("short")
    with pytest.raises(Gone):
        client.store("short").events(since=99)


def write(data: Path, names: list[str]) -> None:
    with Client(data=data, retries=50) as client:
        for name in names:
            client.store("s").inject([{"id": name, "type": "t", "confidence": 1}])


def test_a_listener_resumes_after_a_restart(tmp_path: Path) -> None:
    data, told = tmp_path / "data", list[str]()
    with Client(data=data) as client:
        with serving(data, *OPTIONS) as first:
            write(data, ["a", "b"])
            client.http.target.relocate()
            events = client.store("s").events(since=0, kinds=["memory_created"])
            told += [next(events).data["id"], next(events).data["id"]]
            first.process.kill()
        with serving(data, *OPTIONS) as second:  # on another port
            assert second.url != first.url
            writer = threading.Thread(target=write, args=(data, ["c", "d"]))
            writer.start()
            told += [next(events).data["id"], next(events).data["id"]]
            writer.join()
            events.close()
    assert told == ["a", "b", "c", "d"]


async def listen_across_a_restart(data: Path) -> list[str]:
    told: list[str] = []
    async with AsyncClient(data=data) as client:
        with serving(data, *OPTIONS):
            await client.connection.rest(0)
            await client.store("s").inject([{"id": "a", "type": "t"}])
            events = client.store("s").events(since=0, kinds=["node_created"])
            told.append((await anext(events)).data["id"])
        with serving(data, *OPTIONS):
            await client.connection.rest(0)
            async with anyio.create_task_group() as group, events:
                group.start_soon(client.store("s").inject, [{"id": "b", "type": "t"}])
                async for event in events:
                    told.append(event.data["id"])
                    break
    return told


def test_an_asynchronous_listener_resumes_after_a_restart(tmp_path: Path) -> None:
    assert anyio.run(listen_across_a_restart, tmp_path / "data") == ["a", "b"]


def test_calls_wait_for_a_starting_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Client(data=data, retries=1) as client, pytest.raises(Unreachable):
        client.store("s").inject([{"id": "a", "type": "t"}])
    begun = time.monotonic()
    writer = threading.Thread(target=write, args=(data, ["a"]))
    writer.start()
    with serving(data, *OPTIONS), Client(data=data) as client:
        writer.join()
        assert client.store("s").node("a").node.version == 1
    assert time.monotonic() - begun < 30


async def import_and_export(url: str, folder: Path) -> None:
    async def come() -> AsyncIterator[ImportLine]:
        for number in range(1000):
            yield {"kind": "node", "id": str(number), "type": "t"}

    async with AsyncClient(url) as client:
        store = client.store("awaited")
        assert (await store.import_(come())).nodes_created == 1000
        assert await store.export_to(folder / "out.ndjson") == 1
        assert (await store.import_(folder / "out.ndjson")).nodes_unchanged == 1000
        async for _ in store.export():
            break


def test_asynchronous_transfers(server: ServerProcessHandle, tmp_path: Path) -> None:
    anyio.run(import_and_export, server.url, tmp_path)
