from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

import pytest

import kgserve
from kgserve.admin.composition_root import open_data_folder_services
from kgserve.client.embedded import Library
from kgserve.embedding.cache import EmbeddingCache, embedding_cache_key
from kgserve.errors import Conflict, Forbidden, Gone, InvalidInput
from kgserve.graph.event_subscriptions import EventSubscription, JournalEventReader
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.memory.erasure import StoreDataEraser
from kgserve.memory.forget import soft_delete_or_restore_memories
from kgserve.memory.retain import retain_text_or_conversation
from kgserve.memory.retain_forget_recall_models import ForgetRequest, RetainTextRequest
from kgserve.platform.access.authentication import AuthenticatedCaller
from kgserve.storage.model.change_feed_events import FeedPosition
from kgserve.storage.store_folder_layout import StoreLayout
from kgserve.stores.purge_record import PurgeRecord, PurgeTargets, read_purge_record, write_purge_record
from tests.cli.running import PythonProcess
from tests.memory.disk_search import traces
from tests.projections.indexing import FailingEmbedder
from tests.projections.looking_back import watched
from tests.stores.writing import PATIENCE, settings, until

WORDS = ("quetzalcoatl", "xylophonist", "bumbershoot", "gobbledygook", "kerfuffle", "zyzzyva", "taradiddle")
STORE = "shop"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def open_library(data: Path, **options: Any) -> Library:
    return kgserve.open(data, embedding_provider="hashing", **options)


def layout(data: Path) -> StoreLayout:
    return StoreLayout(data, STORE)


def fill_store(library: Library, name: str = STORE) -> Any:
    """Create a memory with former versions and states and an absorbed one, among others; read all of it."""
    store = library.store(name)
    store.store_memories(
        memories=[{"id": f"other-{at}", "content": f"Crate {at} is in hall {at % 7}"} for at in range(50)]
    )
    store.retain("A quetzalcoatl is in the hall.", entity_id="m", valid_from="2020-01-01T00:00:00Z")
    store.retain("A xylophonist is in the hall.", entity_id="m", valid_from="2021-01-01T00:00:00Z")
    store.update_memory("m", content="A bumbershoot is in the hall.", metadata={"note": "gobbledygook"})
    store.update_memory("m", tags=["kerfuffle"], entity_names=["Hall"])
    return store


def absorb_duplicate(store: Any) -> None:
    """Store the same statement in other words, and merge it in a run."""
    store.store_memory("The taradiddle is red", memory_id="red", dedup="off")
    store.store_memory("the Taradiddle is red!", memory_id="red-too", dedup="off", confidence=0.5)
    assert store.consolidate().memories_deleted == 1


def run_statements(store: Any) -> None:
    """Read and write it with Cypher, so that the engine and its copy have their files."""
    store.cypher("MATCH (n:Entity {id: 'm'}) SET n.summary = 'zyzzyva'", mode="write")
    assert store.cypher("MATCH (n:Entity) WHERE n.content CONTAINS 'bumber' RETURN count(*)").rows == [[1]]


def read_projections(store: Any) -> None:
    """Read every other projection, so that each has its files."""
    store.recall("statue in the hall")
    store.nodes(attributes={"note": "gobbledygook"})
    store.search("xylophonist", as_of=store.stats().sequence - 2)


def test_erase_removes_memory_from_every_file(data: Path) -> None:
    with open_library(data) as library:
        store, twin = fill_store(library), fill_store(library, "twin")
        absorb_duplicate(store)
        run_statements(store)
        read_projections(store)
        moment = store.stats().sequence
        before = traces(layout(data).root, WORDS)
        assert set(WORDS) == {word for words in before.values() for word in words}
        assert {"history.sqlite-wal", "graph.kuzu.wal", "keyword (terms)"} <= {
            path.rpartition("/")[2] for path in before
        }
        assert any(path.startswith("journal/") for path in before)

        dry = store.forget(ids=["m", "red-too"], erase=True, dry_run=True)
        assert (dry.dry_run, set(dry.ids) >= {"m", "red", "red-too"}) == (True, True)
        assert store.memory("m").content == "A bumbershoot is in the hall."

        done = store.forget(ids=["m", "red-too"], erase=True)
        assert (done.ids, done.memories_removed) == (dry.ids, dry.memories_removed)
        assert [each.kind for each in done.remains] == ["unknown"]
        assert traces(layout(data).root, WORDS) == {}
        assert not (layout(data).root / "erasing.json").exists()

        # Everything else is unchanged, currently and as of the past.
        assert len(store.memories(limit=100).memories) == 50
        assert store.node("other-7", as_of=moment).node.content == "Crate 7 is in hall 0"
        assert store.search("crate", as_of=moment).hits
        assert store.cypher("MATCH (n:Entity) WHERE n.id STARTS WITH 'other' RETURN count(*)").rows == [[50]]
        assert {hit.id for hit in store.recall("crate 7").hits}
        for word in WORDS[:3]:
            assert store.search(word, mode="keyword", as_of=moment).hits == []
        assert twin.memory("m").content == "A bumbershoot is in the hall."
        kept = traces(StoreLayout(data, "twin").root, WORDS)
        assert {*WORDS[:5]} <= {word for words in kept.values() for word in words}

        again = store.forget(ids=["m", "red-too"], erase=True)
        assert (again.memories_removed, again.remains) == (0, [])
        assert store.forget(ids=["never was"], erase=True).memories_removed == 0
    assert traces(layout(data).root, WORDS) == {}
    with open_library(data) as library:
        assert library.store(STORE).memory("other-3").content == "Crate 3 is in hall 3"
        assert library.store(STORE).search("crate", as_of=moment).hits
        assert traces(layout(data).root, WORDS) == {}


def test_erased_memory_is_absent_from_change_feed(data: Path) -> None:
    with ExitStack() as stack:
        everything = open_data_folder_services(settings(data, embedding_provider="hashing"), stack)
        graphs = CallerStoreHandles(everything.pool, everything.indexer, everything.historian)
        graph = graphs.graph(STORE)
        retain_text_or_conversation(graph, RetainTextRequest(content="Something else altogether.")).result(PATIENCE)
        listener = JournalEventReader(graphs, EventSubscription((STORE,), {STORE: FeedPosition(1)}), lambda: None)
        listener.open()
        retain_text_or_conversation(
            graph, RetainTextRequest(content="A quetzalcoatl is in the hall.", entity_id="m")
        ).result(PATIENCE)
        assert "quetzalcoatl" in read_events(listener)
        for role in ("read", "write"):
            with pytest.raises(Forbidden, match="role admin"):
                soft_delete_or_restore_memories(
                    graphs.for_caller(AuthenticatedCaller("agent", role)).graph(STORE),
                    ForgetRequest(ids=["m"], erase=True),
                )
        done = soft_delete_or_restore_memories(graph, ForgetRequest(ids=["m"], erase=True)).result(PATIENCE)
        # Subscribers receive the deletion, but not the former content.
        assert read_events(listener).count("memory_deleted") == 1
        listener.close()
        late = JournalEventReader(graphs, EventSubscription((STORE,), {STORE: FeedPosition(0)}), lambda: None)
        with pytest.raises(Gone):
            late.open()
        again = JournalEventReader(
            graphs, EventSubscription((STORE,), {STORE: FeedPosition(done.sequence + 1)}), lambda: None
        )
        again.open()
        assert read_events(again) == ""
        again.close()


def read_events(listener: JournalEventReader) -> str:
    """Return all events of a subscriber as text."""
    texts: list[str] = []
    while True:
        page = listener.read()
        texts += [delivery.data.decode() + delivery.kind for delivery in page.deliveries]
        if page.idle:
            return "\n".join(texts)


def test_interrupted_erasure_resumes_when_store_opens(data: Path) -> None:
    with open_library(data) as library:
        store = fill_store(library)
        read_projections(store)
        through = store.stats().sequence
    # A crash between the intention and the deletion, and one right after the deletion.
    for crashed in ("noted", "deleted"):
        if crashed == "deleted":
            with open_library(data) as library:
                fill_store(library)
                store = library.store(STORE)
                through = store.forget(ids=["m"], hard=True).sequence
                store.retain("A pelican is in the hall.", entity_id="m")
        versions = [f"m@{at}" for at in range(through)]
        write_purge_record(layout(data), PurgeRecord(["m", *versions], [], through, through, []))
        with open_library(data) as library:
            store = library.store(STORE)
            store.stats()
            deadline = time.monotonic() + PATIENCE
            while read_purge_record(layout(data)) is not None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert traces(layout(data).root, WORDS) == {}
            there = {each.id for each in store.memories(limit=100).memories}
            assert ("m" in there) is (crashed == "deleted")
            assert len(there - {"m"}) == 50


ERASE = """
import sys
import kgserve
with kgserve.open(sys.argv[1], embedding_provider="hashing") as library:
    store = library.store("shop")
    store.recall("hall")
    print("ready", flush=True)
    store.forget(ids=["m"], erase=True)
    print("done", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3])
def test_erasure_completes_after_kill(data: Path, seconds: float) -> None:
    with open_library(data) as library:
        read_projections(fill_store(library))
    with PythonProcess(ERASE, str(data)) as process:
        assert process.stdout.readline() == "ready\n"
        while read_purge_record(layout(data)) is None and process.process.poll() is None:
            time.sleep(0.002)
        time.sleep(seconds)
    with open_library(data) as library:
        store = library.store(STORE)
        # A second request waits for the first erasure.
        assert store.forget(ids=["m"], erase=True).memories_removed == 0
        assert read_purge_record(layout(data)) is None
        assert {each.id for each in store.memories(limit=100).memories} == {f"other-{at}" for at in range(50)}
        assert traces(layout(data).root, WORDS) == {}


@pytest.mark.parametrize("history", ["all", "none"])
def test_erase_removes_deleted_memory_from_history(data: Path, history: Literal["all", "none"]) -> None:
    with open_library(data) as library:
        library.create(STORE, history=history)
        store = fill_store(library)
        store.forget(ids=["m"], hard=True)
        store.recall("hall")
        assert traces(layout(data).root, WORDS)
        assert store.forget(ids=["m"], erase=True).memories_removed >= 1
        assert traces(layout(data).root, WORDS) == {}
        assert store.forget(ids=["m"], erase=True).memories_removed == 0


def consolidate_about_hugo(store: Any) -> None:
    """Merge two memories about Hugo that do not name him, of which the survivor gains a tag and so has a copy."""
    for node_id, tags in (("w0", []), ("w1", ["kerfuffle"])):
        store.store_memory(
            "Owns the taradiddle" + "." * len(tags), memory_id=node_id, dedup="off", entity_names=["Hugo"], tags=tags
        )
    assert store.consolidate().memories_deleted == 1


def delete_all_but_merged(store: Any) -> None:
    """Leave the merged memory without its relation, as deletions of earlier versions did."""
    store.cypher("MATCH (:Entity {id: 'w1'})-[r]->() DELETE r", mode="write")
    store.delete_memory("w0")


DELETIONS: dict[str, Callable[[Any], Any]] = {
    "deleted": lambda store: store.delete_memory("w0"),
    "hard": lambda store: store.forget(ids=["w0"], hard=True),
    "node": lambda store: store.delete_node("w0"),
    "entity": lambda store: store.forget(entity="Hugo"),
    "detached": delete_all_but_merged,
}


@pytest.mark.parametrize("deletion", DELETIONS)
def test_erase_includes_merged_memories_of_deleted_memory(data: Path, deletion: str) -> None:
    targets: dict[str, dict[str, Any]] = {
        "all": {"ids": ["w0"]},
        "person": {"entity": "Hugo", "confirm": "Hugo"},
        "none": {"ids": ["w0"]},
    }
    with open_library(data, indexes=False) as library:
        for name, target in targets.items():
            library.create(name, history="none" if name == "none" else "all")
            store: Any = library.store(name)
            consolidate_about_hugo(store)
            DELETIONS[deletion](store)
            assert traces(StoreLayout(data, name).root, ["taradiddle"])
            assert store.forget(erase=True, **target).memories_removed == 3 or name == "none"
            assert traces(StoreLayout(data, name).root, ["taradiddle"]) == {}


def test_memories_whose_merge_was_undone_are_not_erased(data: Path) -> None:
    with open_library(data, indexes=False) as library:
        store: Any = library.store(STORE)
        store.store_memory("Owns the taradiddle", memory_id="w0")
        store.store_memory("Plays the kerfuffle", memory_id="w1")
        store.merge("w1", "w0")
        store.unmerge("w1")
        assert store.forget(ids=["w0"], erase=True).ids == ["w0"]
        assert store.memory("w1").content == "Plays the kerfuffle"
        assert store.history("w1").states


def merge_memory_with_versions(store: Any) -> None:
    """Merge a memory with a former version as a node, so that the version hangs on the survivor."""
    store.retain("Kim has xylophonist hair", entity_id="h", valid_from="2010-01-01T00:00:00Z")
    store.retain("Kim has quetzalcoatl hair", entity_id="h", valid_from="2015-01-01T00:00:00Z")
    store.store_memory("Kim dyes the kerfuffle", memory_id="h2", dedup="off")
    store.merge("h", "h2")


def consolidate_memory_with_versions(store: Any) -> None:
    """Merge a memory with a former version in a run, which leaves the version at the merged memory."""
    store.retain("Kim has xylophonist hair", entity_id="h", valid_from="2010-01-01T00:00:00Z")
    store.retain("Kim has quetzalcoatl hair", entity_id="h", valid_from="2015-01-01T00:00:00Z")
    words, since = "kim has quetzalcoatl hair!", "2015-01-01T00:00:00Z"
    store.store_memory(words, memory_id="h2", dedup="off", valid_from=since, tags=["kerfuffle"], importance=1.0)
    assert store.consolidate().memories_deleted == 1


def true_in_2012(store: Any) -> list[str]:
    found = store.memories(valid_at="2012-01-01T00:00:00Z").memories
    return sorted(each.content for each in found)


def test_forget_includes_versions_of_merged_memories(data: Path) -> None:
    with open_library(data, indexes=False) as library:
        store: Any = library.store(STORE)
        merge_memory_with_versions(store)
        both = ["Kim dyes the kerfuffle", "Kim has xylophonist hair"]
        assert true_in_2012(store) == both
        assert store.forget(ids=["h2"]).memories_removed == 2
        assert (true_in_2012(store), store.memories().memories) == ([], [])
        assert store.forget(ids=["h2"], undo=True).memories_restored == 2
        assert true_in_2012(store) == both
        assert store.unmerge("h").changed
        assert {each.content for each in store.memories().memories} == {
            "Kim dyes the kerfuffle",
            "Kim has quetzalcoatl hair",
        }
        store.merge("h", "h2")
        dry = store.forget(ids=["h2"], erase=True, dry_run=True)
        assert store.forget(ids=["h2"], hard=True).memories_removed == 3
        assert [*store.nodes(valid_at="any")] == []
        assert sorted(store.forget(ids=["h2"], erase=True).ids) == sorted(dry.ids)
        assert traces(layout(data).root, WORDS) == {}
        merge_memory_with_versions(store)
        store.delete_node("h2")
        assert [*store.nodes(valid_at="any")] == []


def test_forget_includes_versions_of_consolidated_memories(data: Path) -> None:
    with open_library(data, indexes=False) as library:
        store: Any = library.store(STORE)
        consolidate_memory_with_versions(store)
        [version] = true_in_2012(store)
        assert version == "Kim has xylophonist hair"
        assert store.forget(ids=["h2"]).memories_removed == 2
        assert true_in_2012(store) == []
        assert store.forget(ids=["h2"], undo=True).memories_restored == 2
        assert true_in_2012(store) == [version]
        assert [each.id for each in store.memories().memories] == ["h2"]
        [run] = store.consolidations().runs
        assert store.undo_consolidation(run.id, force=True).restored == ["h"]
        assert {each.id for each in store.memories().memories} == {"h", "h2"}
        store.delete_memory("h")
        assert true_in_2012(store) == []


def test_reads_and_writes_continue_during_erasure(data: Path) -> None:
    with open_library(data) as library:
        store = fill_store(library)
        read_projections(store)
        ended, written, failed = threading.Event(), list[str](), list[str]()

        def write() -> None:
            while not ended.wait(0.01):  # else the store grows faster than a busy machine indexes it
                content = f"Barrel {len(written)} is new"
                written.append(store.store_memory(content, dedup="off").id)
                if not store.search("crate", mode="keyword").hits or not store.memory("other-1"):
                    failed.append("search")

        thread = threading.Thread(target=write)
        thread.start()
        try:
            assert store.forget(entity_id="m", erase=True).memories_removed > 1
        finally:
            ended.set()
            thread.join(PATIENCE)
        assert not failed
        assert traces(layout(data).root, WORDS) == {}
        assert len(written) > 3
        assert all(store.memory(each, touch=False).id == each for each in written)
    with open_library(data) as library:
        assert all(library.store(STORE).memory(each, touch=False).id == each for each in written)


def test_erase_without_indexes_and_history_removes_their_files(data: Path) -> None:
    with open_library(data) as library:
        read_projections(fill_store(library))
    with open_library(data, indexes=False, history=False) as library:
        assert library.store(STORE).forget(ids=["m"], erase=True).memories_removed > 1
        assert traces(layout(data).root, WORDS) == {}
    with open_library(data) as library:
        assert library.store(STORE).search("crate", at_least=1).hits
        assert traces(layout(data).root, WORDS) == {}


def test_erase_reports_backups_that_contain_memory(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGSERVE_BACKUP_DIR", str(tmp_path / "backups"))
    with open_library(data) as library:
        store = fill_store(library)
        store.backup(str(tmp_path / "backups" / "daily"))
        library.store("twin").store_memory("Something else")
        library.store("twin").backup(str(tmp_path / "backups" / "twin"))
        done = store.forget(ids=["m"], erase=True)
        assert [(each.kind, each.name) for each in done.remains] == [
            ("backup", "daily"),
            ("unknown", "copies outside of this server"),
        ]
        assert traces(tmp_path / "backups", WORDS[:1])
        store.retain("A pelican is in the hall.", entity_id="n")
        store.backup(str(tmp_path / "backups" / "daily"), keep=1)
        assert traces(tmp_path / "backups", WORDS) == {}
        assert [each.kind for each in store.forget(ids=["n"], erase=True, dry_run=True).remains] == [
            "backup",
            "unknown",
        ]
        store.forget(ids=["n"], erase=True)
        store.retain("A stork is in the hall.", entity_id="o")
        assert [each.kind for each in store.forget(ids=["o"], erase=True).remains] == ["unknown"]


def test_erase_rejects_invalid_requests(data: Path) -> None:
    with open_library(data) as library:
        store = fill_store(library)
        wrongs: list[dict[str, Any]] = [{"query": "hall"}, {"ids": ["m"], "undo": True}, {"ids": ["m"], "reason": "so"}]
        for wrong in wrongs:
            with pytest.raises(InvalidInput, match="erase"):
                store.forget(erase=True, **wrong)
        with pytest.raises(Conflict, match="is not a memory"):
            store.forget(ids=["m", "Hall"], erase=True)
        assert store.memory("m").content == "A bumbershoot is in the hall."


def test_vectors_return_after_an_erasure_while_the_embedding_service_failed(data: Path) -> None:
    embedder = FailingEmbedder()
    embedder.broken = False
    with watched(data, embedder) as of:
        of.say(a="fox", b="hen")
        of.settle()
        with closing(EmbeddingCache(of.store.layout.embeddings)) as cache:
            cache.forget([embedding_cache_key(embedder.model_id, text) for text in ("fox", "hen")])
        embedder.broken = True
        of.indexer.reindex(of.store)
        until(lambda: of.indexes.vector.error is not None)
        assert of.historian is not None
        eraser = StoreDataEraser(of.store, of.indexes, of.historian.of(of.store))
        eraser.erase(lambda rows: PurgeTargets([*rows.nodes(["a"]).values()], [], 1)).result(PATIENCE)
        embedder.broken = False
        of.settle()
        assert of.found("hen", mode="semantic") == ["b"]
