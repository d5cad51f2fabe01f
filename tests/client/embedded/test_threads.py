from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from typing_extensions import override

import kgserve
from kgserve.client import Client, Event, WriteHandler, subscribe
from kgserve.client.embedded import Library, Store
from kgserve.client.json_lines_stream import write_atomically
from kgserve.errors import Conflict, InvalidInput, NotFound
from kgserve.graph.answers import Edge, Node
from kgserve.storage.model.store_settings import StoreSettings
from tests.stores.writing import PATIENCE

THREADS = 16


def wait_until_taken(events: list[Event], count: int, changed: threading.Condition) -> bool:
    with changed:
        return changed.wait_for(lambda: len(events) >= count, PATIENCE)


def test_many_threads_open_one_store_concurrently(folder: Path) -> None:
    with kgserve.open(folder, indexes=False) as library:
        library.store("s").inject([{"id": "a", "type": "t"}])
    with kgserve.open(folder, indexes=False) as library, ThreadPoolExecutor(THREADS) as threads:
        found = [threads.submit(library.store("s").node, "a") for _ in range(2 * THREADS)]
        assert {each.result().node.id for each in found} == {"a"}


def test_threads_write_and_read_concurrently(library: Library) -> None:
    def work(number: int) -> int:
        store = library.store(f"s{number % 3}")
        keys = [f"{number}-{step}" for step in range(10)]
        for key in keys:
            written = store.inject([{"id": key, "type": "t", "content": f"text {key}"}])
            assert store.node(key).node.sequence == written.sequence
            assert key in [node.id for node in store.traverse(key).nodes]
        last = store.node(keys[-1]).node.sequence
        assert store.search(f"text {number}", at_least=last).index_sequence >= last
        return len(keys)

    with ThreadPoolExecutor(THREADS) as threads:
        assert sum(threads.map(work, range(THREADS))) == 10 * THREADS
    assert sum(each.nodes or 0 for each in library.stores().stores) == 10 * THREADS


def test_closing_waits_for_calls_and_rejects_further_ones(folder: Path) -> None:
    library = kgserve.open(folder, indexes=False)
    begun = threading.Barrier(5)

    def work(number: int) -> int:
        store = library.store("s")
        answered = count()

        def write_on() -> None:
            while True:
                store.inject([{"id": f"{number}-{next(answered)}", "type": "t"}])

        store.inject([{"id": f"{number}-{next(answered)}", "type": "t"}])
        begun.wait()
        with pytest.raises(Conflict, match="was closed"):
            write_on()
        return next(answered) - 1

    with ThreadPoolExecutor(4) as threads:
        counts = [threads.submit(work, number) for number in range(4)]
        begun.wait()
        library.close()
        answered = sum(each.result() for each in counts)
    with kgserve.open(folder, indexes=False) as library:
        assert library.store("s").stats().nodes == answered


def test_closing_waits_for_an_import(folder: Path) -> None:
    library = kgserve.open(folder, indexes=False)
    closing = threading.Thread(target=library.close)

    def lines() -> Generator[dict[str, str]]:
        yield {"kind": "node", "id": "a", "type": "t"}
        closing.start()
        closing.join(0.3)
        assert closing.is_alive()
        yield {"kind": "node", "id": "b", "type": "t"}

    assert library.store("s").import_(lines()).nodes_created == 2
    closing.join(PATIENCE)
    assert not closing.is_alive()
    with kgserve.open(folder, indexes=False) as library:
        assert library.store("s").stats().nodes == 2


def test_another_thread_receives_events_until_the_library_closes(library: Library) -> None:
    library.create("s")
    heard: list[Event] = []
    changed = threading.Condition()
    events = library.events(kinds=["node_created", "store_created", "store_dropped"])

    def listen() -> None:
        for event in events:
            with changed:
                heard.append(event)
                changed.notify_all()

    listener = threading.Thread(target=listen)
    listener.start()
    library.store("s").inject([{"id": "a", "type": "t"}])
    library.store("later").inject([{"id": "b", "type": "t"}])
    library.drop("s", confirm="s")
    assert wait_until_taken(heard, 4, changed)
    library.close()
    listener.join(PATIENCE)
    assert not listener.is_alive()
    kinds = {name: [each.kind for each in heard if each.store == name] for name in ("s", "later")}
    assert kinds == {"s": ["node_created", "store_dropped"], "later": ["store_created", "node_created"]}


def test_links_and_settings_are_reported_live_and_on_replay(library: Library) -> None:
    link = {"from": "a", "to": "x", "relation_type": "cites", "to_graph": "elsewhere"}
    with library.events() as live:
        library.store("s").inject([{"id": "a", "type": "t"}], [link])
        heard = [next(live) for _ in range(3)]
        library.store("s").update_settings(conflict_policy="manual")
        heard.append(next(live))
    assert [each.kind for each in heard] == ["store_created", "node_created", "link_created", "store_changed"]
    assert heard[3].data["conflict_policy"] == "manual"
    with library.events(since=0) as again:
        made, _, linked = (next(again) for _ in range(3))
    assert (made.kind, made.data["conflict_policy"]) == ("store_created", "manual")
    assert linked.edge is not None
    assert (linked.kind, linked.edge.to_graph) == ("link_created", "elsewhere")


def test_events_end_when_their_store_is_dropped(library: Library) -> None:
    library.create("s")
    with library.store("s").events(kinds=["store_dropped", "node_created"]) as events:
        library.store("s").inject([{"id": "a", "type": "t"}])
        node = next(events).node
        assert node is not None
        assert node.id == "a"
        library.drop("s", confirm="s")
        assert [each.kind for each in events] == ["store_dropped"]


def test_a_file_is_written_and_read(library: Library, tmp_path: Path) -> None:
    store = library.store("s")
    store.inject([{"id": f"n{number}", "type": "t"} for number in range(50)])
    assert store.export_to(tmp_path / "all.ndjson") == 1
    assert library.store("copy").import_(tmp_path / "all.ndjson").nodes_created == 50
    assert library.store("third").import_(library.store("copy").export()).nodes_created == 50
    with pytest.raises(NotFound):
        library.store("nobody").export_to(tmp_path / "none")
    assert [each.name for each in tmp_path.glob("*n*")] == ["all.ndjson"]


def test_exports_to_one_file_at_once_do_not_mix(tmp_path: Path) -> None:
    with write_atomically(tmp_path / "file") as first:
        first.write(b"first")
        with write_atomically(tmp_path / "file") as second:
            second.write(b"second")
        first.write(b" and last")
        first.flush()
        assert (tmp_path / "file").read_bytes() == b"second"
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"first and last")]


def test_a_failed_import_releases_the_store(library: Library) -> None:
    def lines() -> Generator[dict[str, str]]:
        yield {"kind": "node", "id": "a", "type": "t"}
        raise OSError("gone")

    library.create("s")
    with pytest.raises(OSError, match="gone"):
        library.store("s").import_(lines())
    with pytest.raises(InvalidInput, match="not asynchronous"):
        library.store("s").import_(nothing())
    assert library.drop("s", confirm="s")


async def nothing() -> AsyncGenerator[bytes]:
    yield b""


def test_an_abandoned_stream_releases_the_store(library: Library) -> None:
    store: Store = library.store("s")
    store.inject([{"id": f"n{number}", "type": "t"} for number in range(50)])
    with store.export() as lines:
        assert next(lines)
    rows = store.cypher_rows("MATCH (n) RETURN n.id")
    assert next(rows)
    assert rows.about["columns"] == ["n.id"]
    rows.close()
    assert library.drop("s", confirm="s")


class RecordingHandler(WriteHandler):
    """A handler that records its calls, and raises an error at a certain node."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.changed = threading.Condition()

    def _note(self, kind: str, about: str) -> None:
        with self.changed:
            self.told.append((kind, about))
            self.changed.notify_all()

    @override
    def on_node_written(self, node: Node, event: Event) -> None:
        self._note(event.kind, node.id)
        if node.id == "unwanted":
            raise ValueError(node.id)

    @override
    def on_edge_written(self, edge: Edge, event: Event) -> None:
        self._note(event.kind, f"{edge.target} {edge.to_graph}" if edge.to_graph else edge.target)

    @override
    def on_graph_created(self, settings: StoreSettings, event: Event) -> None:
        self._note(event.kind, f"{event.store} {settings.conflict_policy}")

    @override
    def on_event(self, event: Event) -> None:
        self._note(event.kind, event.store)

    def have(self, count: int) -> list[tuple[str, str]]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.told) >= count, 10), self.told
            return self.told


@pytest.mark.parametrize("remote", [False, True])
def test_a_handler_receives_all_events_until_it_is_closed(library: Library, client: Client, remote: bool) -> None:
    asker: Client | Library = client if remote else library
    # The creation of stores is reported only to subscribers without store names.
    stores = ["subscribed"] if remote else []
    store, known = asker.store("subscribed"), 0 if remote else 1
    asker.create("subscribed", conflict_policy="manual")
    handler = RecordingHandler()
    with subscribe(asker, handler, stores, since=0) as subscription:
        edges = [{"from": "a", "to": "a", "relation_type": "r"}]
        edges.append({"from": "a", "to": "x", "relation_type": "r", "to_graph": "elsewhere"})
        store.inject([{"id": "a", "type": "t"}], edges)
        handler.have(known + 3)
        store.update_settings(conflict_policy="lww")
        handler.have(known + 4)
        store.delete_node("a")
        handler.have(known + 6)
        assert subscription.active
    assert not subscription.active
    store.inject([{"id": "later", "type": "t"}])
    behind = RecordingHandler()
    with subscribe(asker, behind, stores, last_event_id=subscription.last_event_id):
        while ("node_created", "later") not in behind.told:
            behind.have(len(behind.told) + 1)
    assert ("subscribed manual" in dict(handler.told[:1]).values()) == (not remote)
    assert handler.told[known : known + 4] == [
        ("node_created", "a"),
        ("edge_created", "a"),
        ("link_created", "x elsewhere"),
        ("store_changed", "subscribed lww"),
    ]
    assert {kind for kind, _ in handler.told[known + 4 :]} <= {"node_deleted", "edge_deleted", "link_deleted"}


def test_a_subscription_ends_with_the_library_and_with_an_error(library: Library) -> None:
    patient, faulty = RecordingHandler(), RecordingHandler()
    first, second = subscribe(library, patient), subscribe(library, faulty)
    library.store("s").inject([{"id": "unwanted", "type": "t"}])
    library.store("s").inject([{"id": "wanted", "type": "t"}])
    assert [about for _, about in patient.have(2)][1] == "unwanted"
    faulty.have(2)
    second.close()
    assert isinstance(second.error, ValueError)
    assert ("node_created", "wanted") not in faulty.told
    library.close()
    first.close()
    assert not first.active
