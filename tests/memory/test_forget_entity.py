"""Forgetting a person: what goes, what stays, and that nothing current or in any file has the name."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import kgserve
from kgserve.admin.composition_root import open_data_folder_services
from kgserve.client.embedded import Library
from kgserve.errors import Conflict, Forbidden, Gone, InvalidInput, NotFound
from kgserve.graph.event_subscriptions import EventSubscription, JournalEventReader
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.memory.entity_name_mentions import NameMentionFinder
from kgserve.memory.forget import soft_delete_or_restore_memories
from kgserve.memory.memory_models import MemoryEntityInput
from kgserve.memory.retain import retain_text_or_conversation
from kgserve.memory.retain_forget_recall_models import ForgetRequest, RetainTextRequest
from kgserve.platform.access.authentication import AuthenticatedCaller
from kgserve.storage.model.change_feed_events import FeedPosition
from kgserve.storage.store_folder_layout import StoreLayout
from kgserve.stores.purge_record import read_purge_record
from tests.cli.running import PythonProcess
from tests.embedding.prepared import model_settings
from tests.memory.disk_search import traces
from tests.stores.writing import PATIENCE, settings

NAMES = ("Quixley", "Quixbert")
FORGOTTEN = {"tea", "tea@", "pair", "sushi", "dog"}
STORE = "shop"
LONG_STORY = " ".join(f"Quixley wrote story {number} about the harbour." for number in range(60))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def open_library(data: Path, **options: Any) -> Library:
    return kgserve.open(data, models_dir=model_settings().models_dir, **options)


@pytest.fixture
def library(data: Path) -> Iterator[Library]:
    with open_library(data) as opened:
        yield opened


def fill_store(library: Library) -> Any:
    """Create memories about a person, alone and with others, and others that name the person or did so."""
    store: Any = library.store(STORE)
    person = {"name": "Quixley", "entity_type": "person", "aliases": ["Quixbert"], "description": "Quixley is tall"}
    store.create_entities(entities=[person, {"name": "Acme", "entity_type": "company"}])
    store.relate("Quixley", "Acme", "works at", context="Quixley said so")
    store.retain("Quixley prefers green tea.", entities=[{"name": "Quixley"}], entity_id="tea")
    store.retain("Quixley prefers black tea.", entity_id="tea")
    store.retain(
        "Alice and Quixley chose Postgres.", entities=[{"name": "Alice"}, {"name": "Quixley"}], entity_id="pair"
    )
    store.retain("Likes sushi.", entities=[{"name": "Quixley"}], entity_id="sushi")
    store.retain("QUIXBERT's dog is called Rex.", entity_id="dog")
    store.retain("They met at a fair.", entities=[{"name": "Quixley"}, {"name": "Alice"}], entity_id="fair")
    store.retain("We use Postgres 17.", entity_id="database")
    store.store_memory(LONG_STORY, memory_id="story")
    store.delete_memory("story")
    store.store_memory("Carol met Quixley", memory_id="carol", entity_names=["Carol"])
    store.update_memory("carol", content="Carol met a man", entity_names=["Carol"])
    store.cypher("MATCH (n:Entity) WHERE n.content CONTAINS 'Quix' RETURN count(*)")
    store.recall("tea")
    store.search("Quixley", as_of=store.stats().sequence - 1)
    store.reflect()
    return store


def short(ids: list[str]) -> set[str]:
    """Return ids without the numbers of former versions."""
    return {each.partition("@")[0] + ("@" if "@" in each else "") for each in ids}


def current_answers(store: Any) -> str:
    """Return everything that reads of the present say, as one text."""
    found: list[Any] = [
        store.memories(limit=100),
        store.memories(limit=100, valid_at="any"),
        store.memories(limit=100, ended="forgotten", valid_at="any"),
        [*store.nodes(valid_at="any")],
        store.entities(limit=100),
        store.relations(limit=100),
        store.recall("Quixley Quixbert tea sushi", min_similarity=-1, touch=False, limit=100),
        store.search("Quixley", limit=100),
        store.cypher("MATCH (n:Entity) RETURN n.id, n.name, n.content, n.attributes").rows,
        store.cypher("MATCH ()-[r]->() RETURN r").rows,
        [*store.export()],
    ]
    # A recall says nothing of its query.
    return "\n".join(map(repr, found))


def test_forget_deletes_memories_about_person_and_says_what_stays(library: Library) -> None:
    store = fill_store(library)
    before = store.stats().sequence
    dry = store.forget(entity="quixley", dry_run=True)
    assert (short(dry.ids), dry.entities_removed, dry.memories_shared) == (FORGOTTEN, ["Quixley"], 1)
    assert {each.id: each.also_about for each in dry.preview}["pair"] == ["Alice"]
    assert [(each.id, each.kind) for each in dry.kept] == [("fair", "memory")]
    assert "also about 'Alice'" in dry.kept[0].reason
    assert store.stats().sequence == before

    done = store.forget(entity="quixley")
    assert (done.ids, done.kept, done.entities_removed) == (dry.ids, dry.kept, dry.entities_removed)
    assert not [name for name in NAMES if name.lower() in current_answers(store).lower()]
    assert {each.id for each in store.memories(limit=100).memories} == {"fair", "database", "carol"}
    for lookup in (
        lambda: store.recall("likes", entity="Quixley"),
        lambda: store.memories(entity="Quixley"),
        lambda: store.entity("Quixley"),
        lambda: store.entity_memories("Quixbert"),
        lambda: store.node("Quixley"),
    ):
        with pytest.raises(NotFound):
            lookup()
    # The history still has the past.
    assert store.node("Quixley", as_of=before).node.name == "Quixley"
    assert store.recall("tea", as_of=before).hits

    again = store.forget(entity="Quixley")
    assert (again.memories_removed, again.kept_count, again.entities_removed) == (0, 0, [])


def test_undo_restores_person_from_history(library: Library) -> None:
    store = fill_store(library)

    def read() -> tuple[Any, ...]:
        memories = [
            (each.id, each.content, each.created_at, each.entities) for each in store.memories(limit=100).memories
        ]
        person = store.entity("Quixbert")
        return (
            memories,
            (person.id, person.name, person.aliases, person.description, person.memories),
            [(each.source, each.target, each.context) for each in person.relations],
        )

    before = read()
    forgotten = store.forget(entity="Quixley")
    dry = store.forget(entity="quixbert", undo=True, dry_run=True)
    done = store.forget(entity="Quixley", undo=True)
    assert done.memories_restored == dry.memories_restored == forgotten.memories_removed
    assert sorted(done.ids) == sorted(forgotten.ids)
    assert read() == before
    assert {each.content for each in store.entity_history("tea")} >= {"Quixley prefers green tea."}
    assert {hit.id for hit in store.recall("likes sushi", entity="Quixley").hits} >= {"sushi"}
    assert store.forget(entity="Quixley", undo=True).memories_restored == 0
    # A deleted entity that was forgotten comes back, too.
    store.delete_node("Quixley")
    store.forget(entity="Quixley")
    store.forget(entity="Quixley", undo=True)
    assert (store.entity("Quixley").aliases, store.memory("sushi").content) == (["Quixbert"], "Likes sushi.")


def contents(store: Any) -> set[str]:
    return {each.content for each in store.memories(limit=100).memories}


def test_undo_restores_person_that_exists_again(library: Library) -> None:
    store = fill_store(library)
    before = contents(store)
    store.forget(entity="Quixley")
    store.retain("Someone met Quixley.", entities=[{"name": "Quixley"}], entity_id="new")
    store.retain("Another dog.", entity_id="dog")
    lost = store.forget(ids=["tea"], undo=True).not_restored
    assert [(each.id, "by its name" in each.reason) for each in lost] == [("tea", True)]
    dry = store.forget(entity="Quixley", undo=True, dry_run=True)
    done = store.forget(entity="Quixbert", undo=True)
    assert (done.memories_restored, sorted(done.ids)) == (dry.memories_restored, sorted(dry.ids))
    assert short(done.ids) == FORGOTTEN - {"dog"}
    assert [(each.id, "another content" in each.reason) for each in done.not_restored] == [("dog", True)]
    person = store.entity("Quixbert")
    assert (person.entity_type, person.aliases, person.description) == ("person", ["Quixbert"], "Quixley is tall")
    assert {each.id for each in store.memories(entity="Quixley").memories} == {"tea", "pair", "sushi", "fair", "new"}
    assert [each.target for each in person.relations] == ["Acme"]
    assert contents(store) == before - {"QUIXBERT's dog is called Rex."} | {"Someone met Quixley.", "Another dog."}
    # What was deleted after the undo stays deleted.
    store.delete_memory("sushi")
    store.delete_node("Quixley")
    again = store.forget(entity="Quixley", undo=True)
    assert (again.memories_restored, {each.id for each in again.not_restored}) == (0, {"sushi", "dog"})
    assert {each.id for each in store.memories(entity="Quixley").memories} == {"tea", "pair", "fair"}
    unknown = store.forget(entity="Nemo", undo=True)
    assert [(each.id, "no forgotten entity" in each.reason) for each in unknown.not_restored] == [("Nemo", True)]


def test_undo_restores_what_the_last_forgetting_deleted(library: Library) -> None:
    store: Any = library.store(STORE)
    store.retain("Quixley likes tea.", entities=[{"name": "Quixley"}], entity_id="tea")
    store.forget(entity="Quixley")
    store.retain("Quixley is back.", entities=[{"name": "Quixley"}], entity_id="back")
    store.delete_node("Quixley")
    assert store.forget(entity="Quixley", undo=True).ids == ["tea"]
    assert [each.id for each in store.memories(entity="Quixley").memories] == ["tea"]


@pytest.mark.parametrize("name", ["Bertie", "Quixley"])
def test_undo_restores_merged_person(library: Library, name: str) -> None:
    store: Any = library.store(STORE)
    store.retain("Quixley likes tea.", entities=[{"name": "Quixley"}], entity_id="tea")
    store.retain("Bertie plays chess.", entities=[{"name": "Bertie"}], entity_id="chess")
    store.retain("Likes chess, too.", entities=[{"name": "Bertie"}], entity_id="too")
    store.store_memory("Has a hobby.", memory_id="hobby")
    store.merge("hobby", "too")
    store.merge_entities("Bertie", "Quixley")
    rows = sorted((each.id, each.content) for each in store.nodes(valid_at="any"))
    forgotten = store.forget(entity="Bertie")
    assert set(forgotten.ids) == {"tea", "chess", "too", "hobby"}
    done = store.forget(entity=name, undo=True)
    assert (sorted(done.ids), done.not_restored) == (sorted(forgotten.ids), [])
    assert sorted((each.id, each.content) for each in store.nodes(valid_at="any")) == rows
    assert store.node("Bertie").redirected_from == "Bertie"
    assert {each.id for each in store.memories(entity="Bertie").memories} == {"tea", "chess", "too"}
    [left] = store.forget(entity=name, undo=True).not_restored
    assert "is there" in left.reason


def test_erased_person_is_in_no_file(data: Path) -> None:
    with open_library(data) as library:
        store = fill_store(library)
        moment = store.stats().sequence
        found = traces(data, NAMES)
        assert {name for names in found.values() for name in names} == set(NAMES)
        with pytest.raises(InvalidInput, match="must repeat the entity"):
            store.forget(entity="Quixley", erase=True)
        dry = store.forget(entity="Quixley", erase=True, dry_run=True)
        assert short(dry.ids) == {*FORGOTTEN, "story"}
        done = store.forget(entity="Quixley", erase=True, confirm="quixley")
        assert (done.ids, done.entities_removed) == (dry.ids, ["Quixley"])
        assert [each.kind for each in done.remains] == ["unknown"]
        assert traces(data, NAMES) == {}
        assert not [name for name in NAMES if name.lower() in current_answers(store).lower()]
        # Memories that stay keep their history, but for the states that had the name.
        assert store.node("fair", as_of=moment).node.content == "They met at a fair."
        assert [each.node.content for each in store.history("carol").states] == ["Carol met a man"]
        again = store.forget(entity="Quixley", erase=True, confirm="Quixley")
        assert (again.memories_removed, again.remains) == (0, [])
    assert traces(data, NAMES) == {}
    with open_library(data) as library:
        store = library.store(STORE)
        assert {hit.id for hit in store.recall("which database?").hits} == {"database"}
        assert store.search("Quixley", as_of=moment, mode="keyword").hits == []
        assert traces(data, NAMES) == {}


def test_former_state_that_names_an_erased_person_is_in_no_file(data: Path) -> None:
    with kgserve.open(data, embedding_provider="hashing") as library:
        store: Any = library.store(STORE)
        store.create_entities(entities=[{"name": "Roof", "entity_type": "case", "description": "Quixley called in"}])
        moment = store.stats().sequence
        store.cypher("MATCH (n:Entity) SET n.content = 'Someone called in'", mode="write")
        for mode in ("keyword", "semantic"):
            assert store.search("Quixley called", mode=mode, as_of=moment).hits
        assert store.forget(entity="Quixley", erase=True, confirm="Quixley").ids == []
        assert traces(data, NAMES) == {}
        vectors = StoreLayout(data, STORE).views / "past-vector" / "texts.sqlite"
        with closing(sqlite3.connect(vectors)) as connection:
            assert connection.execute("SELECT * FROM run").fetchall() == []


def test_forgotten_person_can_be_erased_later(data: Path) -> None:
    with open_library(data) as library:
        store = fill_store(library)
        store.forget(entity="Quixley")
        assert traces(data, NAMES)
        done = store.forget(entity="Quixbert", erase=True, confirm="Quixbert")
        assert (short(done.ids) >= FORGOTTEN, done.entities_removed) == (True, ["Quixley"])
        assert traces(data, NAMES) == {}
    assert traces(data, NAMES) == {}


def test_person_is_erased_without_history(data: Path) -> None:
    with open_library(data) as library:
        library.create(STORE, history="none")
        store = library.store(STORE)
        store.retain("Quixley prefers green tea.", entities=[{"name": "Quixley"}], entity_id="tea")
        store.retain("Quixley has a boat.", entities=[{"name": "Quixley"}], entity_id="boat")
        store.delete_memory("boat")
        store.retain("We use Postgres 17.", entity_id="database")
        assert store.forget(entity="Quixley", erase=True, confirm="Quixley").memories_removed == 2
        assert traces(data, NAMES) == {}
        store.retain("Quixley is back.", entity_id="back")
        store.delete_memory("back")
        assert store.forget(entity="Quixley", erase=True, confirm="Quixley").ids == ["back"]
        assert traces(data, NAMES) == {}


def test_forget_person_whose_entity_was_deleted(library: Library) -> None:
    store = fill_store(library)
    deleted = store.delete_node("Quixley")
    assert (deleted.memories_about, set(deleted.memory_ids)) == (5, {"tea", "pair", "sushi", "dog", "fair"})
    # Its name still finds the memories.
    assert {hit.id for hit in store.recall("food", entity="Quixley", min_similarity=-1).hits} == set(deleted.memory_ids)
    assert {each.id for each in store.memories(entity="Quixbert").memories} == set(deleted.memory_ids)
    done = store.forget(entity="Quixbert")
    assert short(done.ids) == FORGOTTEN
    assert [each.id for each in done.kept] == ["fair"]
    with pytest.raises(NotFound):
        store.recall("food", entity="Quixley")
    assert not [name for name in NAMES if name.lower() in current_answers(store).lower()]


def test_forget_name_without_entity(library: Library) -> None:
    store: Any = library.store(STORE)
    store.store_memory("Quixley prefers green tea.", memory_id="tea")
    store.store_memory("quixleyan manners are fine", memory_id="manners")
    store.create_entities(entities=[{"name": "Acme", "entity_type": "company", "description": "Quixley founded it"}])
    done = store.forget(entity="Quixley")
    assert (done.ids, done.entities_removed) == (["tea"], [])
    assert [(each.id, each.kind, each.reason) for each in done.kept] == [("Acme", "node", "names it")]
    assert store.forget(entity="Nemo").memories_removed == 0


def test_keep_shared_keeps_memories_about_others(library: Library) -> None:
    store = fill_store(library)
    done = store.forget(entity="Quixley", keep_shared=True)
    assert short(done.ids) == FORGOTTEN - {"pair"}
    assert {each.id for each in done.kept} == {"pair", "fair"}
    kept = store.memory("pair")
    assert [each.name for each in kept.entities] == ["Alice"]
    with pytest.raises(NotFound):
        store.recall("who?", entity="Quixley")


def test_names_that_mean_others_or_nothing_are_kept(library: Library) -> None:
    store: Any = library.store(STORE)
    people = [{"name": name, "entity_type": "person", "aliases": ["Winged One"]} for name in ("Will", "Mercury")]
    store.create_entities(entities=people)
    store.create_entities(entities=[{"name": "Mercury", "entity_type": "planet"}])
    store.store_memory("We will ship on Monday.", memory_id="ship")
    store.store_memory("Mercury is close to the sun.", memory_id="sun")
    with pytest.raises(Conflict, match="is the name of 2 entities"):
        store.forget(entity="Winged One")
    done = store.forget(entity="Will")
    assert (done.memories_removed, {each.id for each in done.kept}) == (0, {"ship", "Mercury"})
    done = store.forget(entity="Mercury")  # the id of the person
    assert (done.entities_removed, done.memories_removed) == (["Mercury"], 0)
    assert {each.id for each in done.kept} == {"sun", "Mercury (planet)"}
    # Now there is only one.
    done = store.forget(entity="mercury")
    assert (done.entities_removed, done.ids) == (["Mercury (planet)"], ["sun"])


@pytest.mark.parametrize("name", ["Bertie", "Quixley"])
def test_merged_entities_are_forgotten_together(data: Path, name: str) -> None:
    with open_library(data, indexes=False) as library:
        store: Any = library.store(STORE)
        store.retain("Quixley likes tea.", entities=[{"name": "Quixley"}], entity_id="tea")
        store.retain("Bertie plays chess.", entities=[{"name": "Bertie"}], entity_id="chess")
        store.merge_entities("Bertie", "Quixley")
        done = store.forget(entity="Quixley")
        assert set(done.ids) == {"tea", "chess"}
        assert set(done.entities_removed) == {"Quixley", "Bertie"}
        done = store.forget(entity=name, erase=True, confirm=name)
        assert (set(done.ids), set(done.entities_removed)) == ({"tea", "chess"}, {"Quixley", "Bertie"})
        assert traces(data, ["Quixley", "Bertie"]) == {}


def test_query_takes_relevant_hits_only(library: Library) -> None:
    store: Any = library.store(STORE)
    store.retain("We use Postgres 17.", entity_id="database")
    store.retain("Bob prefers green tea.", entity_id="tea")
    assert [each.id for each in store.forget(query="Bob").matches] == ["tea"]
    assert store.forget(query="quantum chromodynamics").matches == []


def test_relations_whose_times_are_spelled_otherwise_are_read_and_forgotten(library: Library) -> None:
    store: Any = library.store(STORE)
    store.store_memory("Tea is at four", memory_id="tea", entity_names=["Tea"])
    spelled = {"lower": "2025-01-01t00:00:00z", "blank": "2025-01-01 00:00:00Z", "zone": "2025-01-01T01:00:00+01:00"}
    store.inject(
        edges=[
            {"from": "tea", "to": "Tea", "relation_type": name, "attributes": {"created_at": text}}
            for name, text in spelled.items()
        ]
    )
    found = store.cypher(
        "MATCH (:Entity {id: 'tea'})-[r]->() WHERE r.created_at < datetime('2025-01-02') RETURN r.created_at"
    )
    assert found.rows == [["2025-01-01T00:00Z"]] * len(spelled)
    assert store.forget(ids=["tea"]).relations_removed == len(spelled) + 1


def test_forget_rejects_invalid_requests(library: Library) -> None:
    store = fill_store(library)
    wrongs: list[dict[str, Any]] = [
        {"entity": "Quixley", "undo": True, "hard": True},
        {"entity": "Quixley", "undo": True, "erase": True},
        {"entity": "Quixley", "reason": "asked"},
        {"entity": "Quixley", "ids": ["tea"]},
        {"ids": ["tea"], "keep_shared": True},
        {"ids": ["tea"], "confirm": "tea"},
        {"entity": "Quixley", "erase": True, "confirm": "Alice"},
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidInput):
            store.forget(**wrong)
    with pytest.raises(Conflict, match="is a memory"):
        store.forget(entity="tea")
    assert store.memory("tea").content == "Quixley prefers black tea."


@pytest.mark.parametrize(
    ("name", "text", "is_found"),
    [
        ("Bob", "BOB's tea", True),
        ("Bob", "bob@example.com", True),
        ("Bob", "user_bob", True),
        ("Bob", "bobbin", False),
        ("Bob", "Kebob", False),
        ("Bob Smith", "Bob \n smith left", True),
        ("Bob Smith", "Bob left", False),
        ("José", "JOSE\u0301 left", True),
        ("Straße 5", "strasse 5", True),
        ("李明", "昨天李明来了", True),
        ("C++", "C++ and Rust", True),
        ("", "nothing", False),
    ],
)
def test_names_are_found_as_whole_words(name: str, text: str, is_found: bool) -> None:
    assert NameMentionFinder([name]).is_in(text) is is_found


def test_edges_of_other_stores_are_listed_as_kept(library: Library, data: Path) -> None:
    store = fill_store(library)
    library.store("other").inject(
        nodes=[{"id": "site", "type": "page"}],
        edges=[{"from": "site", "to": "Quixley", "relation_type": "cites", "to_graph": STORE}],
    )
    for options in ({"dry_run": True}, {"erase": True, "confirm": "Quixley"}):
        done = store.forget(entity="Quixley", **options)
        assert ("site cites Quixley", "belongs to store 'other'") in {(each.content, each.reason) for each in done.kept}
    assert traces(data / f"{STORE}_memory", NAMES) == {}


ERASE = """
import sys
import kgserve
with kgserve.open(sys.argv[1], embedding_provider="hashing") as library:
    store = library.store("shop")
    store.recall("tea")
    print("ready", flush=True)
    store.forget(entity="Quixley", erase=True, confirm="Quixley")
    print("done", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_erasure_of_person_completes_after_kill(data: Path, seconds: float) -> None:
    with open_library(data, embedding_provider="hashing") as library:
        fill_store(library)
    layout = StoreLayout(data, STORE)
    with PythonProcess(ERASE, str(data)) as process:
        assert process.stdout.readline() == "ready\n"
        while read_purge_record(layout) is None and process.process.poll() is None:
            time.sleep(0.002)
        time.sleep(seconds)
    with open_library(data, embedding_provider="hashing") as library:
        store: Any = library.store(STORE)
        # A second request waits for the first erasure.
        store.forget(entity="Quixley", erase=True, confirm="Quixley")
        assert read_purge_record(layout) is None
        assert traces(data, NAMES) == {}
        assert {each.id for each in store.memories(limit=100).memories} == {"fair", "database", "carol"}
    assert traces(data, NAMES) == {}


def test_listener_receives_deletion_or_reads_store_again(data: Path) -> None:
    with ExitStack() as stack:
        everything = open_data_folder_services(settings(data, embedding_provider="hashing"), stack)
        graphs = CallerStoreHandles(everything.pool, everything.indexer, everything.historian)
        graph = graphs.graph(STORE)
        about = [MemoryEntityInput(name="Quixley")]
        retain_text_or_conversation(graph, RetainTextRequest(content="Quixley prefers tea.", entities=about)).result(
            PATIENCE
        )
        request = ForgetRequest(entity="Quixley", erase=True, confirm="Quixley")
        for role in ("read", "write"):
            with pytest.raises(Forbidden, match="role admin"):
                soft_delete_or_restore_memories(
                    graphs.for_caller(AuthenticatedCaller("agent", role)).graph(STORE), request
                )
        done = soft_delete_or_restore_memories(graph, request).result(PATIENCE)
        late = JournalEventReader(graphs, EventSubscription((STORE,), {STORE: FeedPosition(1)}), lambda: None)
        with pytest.raises(Gone):
            late.open()
        again = JournalEventReader(
            graphs, EventSubscription((STORE,), {STORE: FeedPosition(done.sequence + 1)}), lambda: None
        )
        again.open()
        assert again.read().deliveries == []
        again.close()
