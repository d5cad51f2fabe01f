"""In-process syncers: passed to `kgserve.open`, or provided by an installed package."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kgserve
from kgserve.errors import Conflict, InvalidInput
from kgserve.projections.connectors.sink_delivery import SinkPosition
from kgserve.syncing import SyncBatch
from tests.projections.connectors.test_webhook import awaited

MODULE = """
import json, pathlib
class Writer:
    def __init__(self):
        self.file = pathlib.Path(__file__).with_name("told.jsonl").open("a", buffering=1)
    def add_content(self, store, node_id, content, attributes):
        self.file.write(json.dumps([store, node_id, content]) + "\\n")
    def delete_content(self, store, node_id):
        self.file.write(json.dumps([store, node_id, None]) + "\\n")
    def close(self):
        self.file.close()
"""


class Plain:
    """Index in a dict, with only the two required methods."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], str] = {}
        self.attributes: dict[str, Any] = {}
        self.fails = 0

    def add_content(self, store: str, node_id: str, content: str, attributes: Mapping[str, Any]) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError("the index is away")
        self.held[store, node_id] = content
        self.attributes[node_id] = dict(attributes)

    def delete_content(self, store: str, node_id: str) -> None:
        self.held.pop((store, node_id), None)


class Forgetful(Plain):
    def forget_store(self, store: str) -> None:
        self.held = {key: text for key, text in self.held.items() if key[0] != store}


class Batches:
    """Syncer for batches that can be slowed down."""

    def __init__(self) -> None:
        self.batches: list[SyncBatch] = []
        self.may = threading.Event()
        self.may.set()

    def sync(self, batch: SyncBatch, unwanted: Callable[[], bool]) -> None:
        self.may.wait()
        self.batches.append(batch)


def nodes(**texts: str) -> list[dict[str, str]]:
    return [{"id": key, "type": "t", "content": text} for key, text in texts.items()]


def test_syncers_add_and_delete_content(tmp_path: Path) -> None:
    plain, batches = Plain(), Batches()
    with kgserve.open(tmp_path, embedding_provider="hashing", syncers={"plain": plain, "all": batches}) as library:
        store = library.store("s")
        store.inject([{"id": "a", "type": "t", "content": "Tea", "attributes": {"n": 1}}, *nodes(b="Milk")])
        awaited(lambda: plain.held == {("s", "a"): "Tea", ("s", "b"): "Milk"})
        assert plain.attributes["a"] == {"n": 1}
        plain.fails = 1
        store.inject(nodes(a="Coffee"))
        store.delete_node("b")
        awaited(lambda: plain.held == {("s", "a"): "Coffee"})
        standing = {each.name: each for each in awaited(lambda: store.stats().syncers or None)}
        assert standing["plain"].failures == 1
        awaited(lambda: batches.batches[-1].sequence == 3)


def test_missed_changes_are_delivered_exactly_once(tmp_path: Path) -> None:
    batches = Batches()
    with kgserve.open(tmp_path, embedding_provider="hashing", syncers={"all": batches}) as library:
        store = library.store("s")
        store.inject(nodes(a="Tea"))
        awaited(lambda: [each for each in store.stats().syncers or () if each.lag == 0])
    with kgserve.open(tmp_path, embedding_provider="hashing") as library:
        library.store("s").inject(nodes(b="Milk"))
    before = len(batches.batches)
    with kgserve.open(tmp_path, embedding_provider="hashing", syncers={"all": batches}):
        awaited(lambda: len(batches.batches) > before)
    [batch] = batches.batches[before:]
    assert [change.id for change in batch.changes] == ["b"]
    assert (batch.after, batch.sequence, batch.anew) == (1, 2, False)


@pytest.mark.parametrize("old", [False, True], ids=["altered", "without checksum"])
def test_a_damaged_position_sends_everything_again(tmp_path: Path, *, old: bool) -> None:
    batches = Batches()
    with kgserve.open(tmp_path, embedding_provider="hashing") as library:
        for name in "abc":
            library.store("s").inject(nodes(**{name: name}))
    position = tmp_path / "s_memory" / "syncing-all.json"
    sound = msgspec.json.encode(SinkPosition(1) if old else SinkPosition.of(3, ""))
    position.write_bytes(sound if old else sound.replace(b":3", b":1"))
    with kgserve.open(tmp_path, embedding_provider="hashing", syncers={"all": batches}):
        awaited(lambda: batches.batches and batches.batches[-1].sequence == 3)
    sent = [change.id for batch in batches.batches for change in batch.changes]
    assert sent == (["b", "c"] if old else ["a", "b", "c"])


def test_dropping_a_store_calls_forget_store(tmp_path: Path) -> None:
    forgetful = Forgetful()
    forgetful.held = {("s", "old"): "left over", ("t", "kept"): "another store's"}
    with kgserve.open(tmp_path, embedding_provider="hashing", syncers={"f": forgetful}) as library:
        library.store("s").inject(nodes(a="Tea"))
        awaited(lambda: forgetful.held == {("s", "a"): "Tea", ("t", "kept"): "another store's"})


def test_a_slow_syncer_delays_neither_writes_nor_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.projections.update_scheduler.FOLLOWER_CLOSE_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr("kgserve.projections.connectors.sink_delivery.FOLLOWER_CLOSE_TIMEOUT_SECONDS", 0.2)
    slow = Batches()
    slow.may.clear()
    try:
        with kgserve.open(tmp_path, embedding_provider="hashing", syncers={"slow": slow}) as library:
            store = library.store("s")
            for at in range(20):
                store.inject(nodes(a=str(at)))
            assert store.node("a").node.content == "19"
            library.drop("s", confirm="s")
            assert store.inject(nodes(b="again")).sequence == 1
    finally:
        slow.may.set()
    with kgserve.open(tmp_path, embedding_provider="hashing", syncers={"slow": slow}):
        told = awaited(lambda: [each for each in slow.batches if each.changes and each.changes[0].id == "b"])
    assert told[0].anew


def test_a_shared_folder_requires_the_same_syncers(tmp_path: Path) -> None:
    mine = {"mine": Plain()}
    with kgserve.open(tmp_path, embedding_provider="hashing", syncers=mine):
        with kgserve.open(tmp_path, embedding_provider="hashing", syncers=mine):
            pass
        with pytest.raises(Conflict):
            kgserve.open(tmp_path, embedding_provider="hashing")


@pytest.mark.parametrize(("name", "syncer"), [("webhook", Plain()), ("../x", Plain()), ("none", object())])
def test_an_invalid_syncer_is_rejected(tmp_path: Path, name: str, syncer: Any) -> None:
    with pytest.raises(InvalidInput, match="syncer"):
        kgserve.open(tmp_path, embedding_provider="hashing", syncers={name: syncer})


def test_an_installed_package_provides_a_syncer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    (about := package / "writer-1.0.dist-info").mkdir(parents=True)
    (package / "writer_of_contents.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: writer\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[kgserve.vector_syncers]\nwriter = writer_of_contents:Writer\n")
    monkeypatch.syspath_prepend(package)
    monkeypatch.setenv("KGSERVE_SYNCERS", "writer")
    with kgserve.open(tmp_path / "data", embedding_provider="hashing") as library:
        library.store("s").inject(nodes(a="Tea"))
        told = package / "told.jsonl"
        awaited(lambda: told.exists() and '["s", "a", "Tea"]' in told.read_text())
        library.store("s").delete_node("a")
        awaited(lambda: '["s", "a", null]' in told.read_text())
