"""Retaining texts and conversations, and forgetting them, with the real model and a history."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import kgserve
from kgserve.client import Store
from kgserve.client.embedded import Library
from kgserve.errors import Conflict, InvalidInput, NotFound
from kgserve.memory.retain_forget_recall_models import RetainAnswer
from kgserve.platform.idempotency import IdempotencyKey, current_idempotency_key
from tests.embedding.prepared import model_settings

ANN = [{"name": "Ann", "entity_type": "person"}]
MOVING = {"version", "sequence", "updated_at"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    folder = tmp_path_factory.mktemp("stores")
    with kgserve.open(folder, models_dir=model_settings().models_dir) as library:
        yield library


@pytest.fixture
def kept(library: Library, store: str) -> Store:
    return library.store(store)


def operations_of(answer: RetainAnswer) -> list[tuple[str, str]]:
    return [(each.type, each.content) for each in answer.operations]


def types(answer: RetainAnswer) -> list[str]:
    return [each.type for each in answer.operations]


def stable_rows(kept: Store) -> list[dict[str, Any]]:
    """Return all rows without the fields that every write changes."""
    rows = [msgspec.to_builtins(row) for row in kept.export()]
    return sorted(({key: value for key, value in row.items() if key not in MOVING} for row in rows), key=str)


def test_retain_operations_of_text(kept: Store) -> None:
    kept.create_entities([{"name": name, "entity_type": "location"} for name in ("New York", "York")])
    knows = {"source": "Alice", "target": "Bob", "relation_type": "knows", "strength": 0.9}
    alice = [{"name": "Alice", "entity_type": "person"}]
    first = kept.retain("The office in New York opens at nine.", entities=alice, relations=[knows], tags=["work"])
    assert sorted(operations_of(first)) == [
        ("create", "The office in New York opens at nine."),
        ("link", "Alice"),
        ("link", "Alice knows Bob"),
        ("link", "New York"),
    ]
    (made,) = (each for each in first.operations if each.type == "create")
    assert made.version_id == f"{made.memory_id}@{first.sequence}"
    memory = kept.memory(made.memory_id, touch=False)
    assert (memory.memory_type, memory.layer, memory.tags, memory.importance) == ("fact", 2, ["work"], 0.5)
    assert kept.memory_stats().total_relations == 1
    kept.retire_edge("Alice", "Bob", "knows", valid_to="2020-01-01T00:00:00Z")
    again = kept.retain("The office in New York opens at nine.", relations=[knows])
    assert [each.reason for each in again.operations if each.type == "link"] == ["relation restored"]
    [row] = (row for row in stable_rows(kept) if row.get("relation_type") == "knows")
    assert row.get("valid_to") is None
    # The same text, other words, and a near text, which is reported.
    again = kept.retain("the office in New York opens at nine")
    assert operations_of(again) == [("noop", "The office in New York opens at nine.")]
    near = kept.retain("The office in New York opens at ten.")
    assert near.near_checked
    assert [each.id for each in near.similar] == [made.memory_id]
    assert [each.type for each in near.operations if each.type != "link"] == ["create"]
    # A correction, and its required fields.
    right = kept.retain("The office in New York opens at 8.", supersedes=made.memory_id, update="correct")
    assert [each.type for each in right.operations] == ["update"]
    assert right.operations[0].version_id == f"{made.memory_id}@{right.sequence}"
    assert kept.memory_stats().ended == {}
    superseded = kept.retain("The office in New York opens at 7.", supersedes=made.memory_id, confidence=0.5)
    assert superseded.operations[0].reason.startswith(f"supersedes '{made.memory_id}@{right.sequence}'")
    assert kept.memory_stats().ended == {"superseded": 1}
    assert kept.memory_stats().total_memories == 2
    now = kept.memory(made.memory_id, touch=False)
    assert (now.confidence, now.tags, {each.id for each in now.entities}) == (0.5, ["work"], {"Alice", "New York"})
    never: dict[str, Any] = {"update": "never", "supersedes": "x"}
    later: dict[str, Any] = {"valid_from": "soon"}
    for wanted in (never, later):
        with pytest.raises(InvalidInput):
            kept.retain("x", **wanted)
    with pytest.raises(InvalidInput):
        kept.retain("x", update="correct")
    with pytest.raises(NotFound):
        kept.retain("x", entity_id="nobody", update="correct")
    with pytest.raises(Conflict):
        kept.retain("x", entity_id=made.memory_id, update="never")
    assert operations_of(kept.retain("x", entity_id="somebody", layer=1, memory_type="topic")) == [("create", "x")]


def test_revert_makes_no_two_versions_true_at_once(kept: Store) -> None:
    for city, year in (("Berlin", 2010), ("London", 2015), ("Paris", 2020)):
        kept.retain(city, entity_id="home", valid_from=f"{year}-01-01T00:00:00Z")
    with pytest.raises(Conflict, match=r"version 'home@2' is valid from 2015-01-01"):
        kept.revert("home", 1)

    def cities(year: int) -> list[str]:
        return [each.content for each in kept.memories(valid_at=f"{year}-01-01T00:00:00Z").memories]

    # One step back, the version that kept the state becomes the memory again.
    assert [kept.revert("home", 2).nodes_updated, cities(2016), cities(2021)] == [1, ["London"], ["London"]]
    assert [kept.revert("home", 1).nodes_updated, cities(2012), cities(2021)] == [1, ["Berlin"], ["Berlin"]]
    kept.retain("Rome", entity_id="home", valid_from="2022-01-01T00:00:00Z")
    with pytest.raises(Conflict, match="memory 'home' is valid from 2022"):
        kept.retire("home@5", valid_to="2023-01-01T00:00:00Z")
    assert cities(2021) == ["Berlin"]
    # The procedure of undo.md for a deleted memory.
    before, found = kept.memory_stats().sequence, stable_rows(kept)
    kept.delete_memory("home")
    kept.revert("home", kept.history("home").states[0].node.version)
    of_home = re.compile(r'"(id|from|to)":"home[@"]')
    kept.import_([row for row in kept.export(as_of=str(before)) if of_home.search(msgspec.json.encode(row).decode())])
    assert stable_rows(kept) == found
    assert [cities(2021), cities(2023)] == [["Berlin"], ["Rome"]]


def test_resent_conversation_adds_only_new_turns(kept: Store) -> None:
    turns = [
        {"role": "user", "content": "Hello", "at": "2026-01-01T10:00:00Z"},
        {"role": "assistant", "content": " "},
        {"role": "Caroline", "content": "Hello"},
    ]
    first = kept.retain(turns, source="chat")
    assert operations_of(first) == [("create", "Hello"), ("create", "Caroline: Hello")]
    before = stable_rows(kept)
    assert [each.type for each in kept.retain(turns, source="chat").operations] == ["noop", "noop"]
    assert stable_rows(kept) == before
    more = kept.retain([*turns, {"content": "Bye"}], source="chat")
    assert [each.type for each in more.operations] == ["noop", "noop", "create"]
    ids = [each.memory_id for each in more.operations]
    ways = [(row["from"], row["to"]) for row in stable_rows(kept) if row.get("relation_type") == "next"]
    assert sorted(ways, key=lambda way: ids.index(way[0])) == [(ids[0], ids[1]), (ids[1], ids[2])]
    memory = kept.memory(ids[1], touch=False)
    assert (memory.memory_type, memory.layer, memory.source) == ("episode", 3, "chat")
    assert memory.metadata == {"role": "Caroline", "position": 2}
    assert kept.memory(ids[0], touch=False).created_at.startswith("2026-01-01T10")
    assert kept.memory_stats().total_entities == 0
    # A window of the conversation, another text at a position, a forgotten turn.
    window = kept.retain([{"content": "Bye"}, {"content": "Back again"}], source="chat", first=3)
    assert [each.type for each in window.operations] == ["noop", "create"]
    with pytest.raises(Conflict):
        kept.retain([{"content": "Good day"}], source="chat")
    assert operations_of(kept.retain([{"content": "Good day"}], source="chat", update="correct")) == [
        ("update", "Good day")
    ]
    kept.forget(entity_id=ids[2])
    stays = kept.retain([{"content": "Bye"}], source="chat", first=3)
    assert [(each.type, each.reason) for each in stays.operations] == [("noop", "was forgotten, and stays so")]
    with pytest.raises(InvalidInput):
        kept.retain([{"content": ""}])
    with pytest.raises(InvalidInput):
        kept.retain(turns, entity_id="x")


def test_old_turn_decays_from_time_of_storing(library: Library, store: str) -> None:
    library.create(store, memory={"prune": "off"})
    kept = library.store(store)
    old = "2020-02-03T04:05:06Z"
    said = kept.retain([{"role": "Ann", "content": "The pelican is painted blue.", "at": old}], source="chat")
    told = kept.retain("The stork is painted green.", created_at=old)
    turn, text = (each.operations[0].memory_id for each in (said, told))
    found = kept.recall("Which bird is painted?", at_least=told.sequence, touch=False)
    assert ([hit.id for hit in found.hits], found.withheld) == ([turn], {"below_confidence": 1})
    memory = kept.memory(turn, touch=False)
    assert memory.created_at.startswith("2020-02-03")
    assert memory.effective_confidence == pytest.approx(1, abs=0.01)
    assert {each.id for each in kept.memories(before_date="2020-03-01T00:00:00Z").memories} == {turn, text}
    assert kept.prune_memories(dry_run=True).ids == [text]
    # An uncertain statement also decays from now, and is protected for a day.
    unsure = kept.retain([{"content": "Or red.", "at": old}], source="chat", first=1, confidence=0.01)
    assert kept.prune_memories(dry_run=True).ids == [text]
    assert kept.prune_memories(dry_run=True).kept == {"recent": 1}
    assert kept.memory(unsure.operations[0].memory_id, touch=False).effective_confidence == pytest.approx(0.01)


def versions_of_a_secret(kept: Store) -> int:
    for at in range(5):
        text = f"Ann keeps the spare key under stone {at}."
        kept.retain(text, entity_id="key", valid_from=f"202{at}-01-01T00:00:00Z", entities=ANN)
    return kept.retain("Ann likes tea.", entities=ANN).sequence


def find_by_each_read(kept: Store, at_least: int, valid_at: str | None, as_of: int | None = None) -> dict[str, str]:
    """Return the text of the key by each kind of read that finds it."""
    query = "Ann spare key stone"
    moments: dict[str, Any] = {"valid_at": valid_at, "as_of": as_of}
    found: dict[str, Any] = {
        "recall": kept.recall(query, at_least=at_least, touch=False, **moments).hits,
        "search": kept.search(query, at_least=at_least, **moments).hits,
        "batch": kept.search_batch([query], **moments),
        "context": kept.context(query, **moments),
        "traverse": kept.traverse("Ann", direction="both", **moments).nodes,
    }
    if as_of is None:
        found["list"] = kept.memories(valid_at=valid_at).memories
    return {way: text for way, each in found.items() if "under stone" in (text := str(each))}


def test_forgotten_memory_is_hidden_and_undo_restores_it(kept: Store) -> None:
    before = versions_of_a_secret(kept)
    here = stable_rows(kept)
    for moment, stone in ((None, 4), ("2022-06-01T00:00:00Z", 2)):
        ways = find_by_each_read(kept, before, moment)
        assert len(ways) == 6, ways.keys()
        assert all(f"stone {stone}" in text and f"stone {3 - stone}" not in text for text in ways.values())
    assert kept.forget(entity_id="key", dry_run=True).memories_removed == 5
    assert kept.forget(query="where is the spare key?").matches[0].id == "key"
    assert stable_rows(kept) == here
    gone = kept.forget(ids=["key", "nobody"], reason="a secret")
    assert (gone.memories_removed, gone.relations_removed, gone.ids[0]) == (5, 5, "key")
    for moment in (None, "2020-06-01T00:00:00Z", "2022-06-01T00:00:00Z", "2024-06-01T00:00:00Z"):
        assert find_by_each_read(kept, gone.sequence, moment) == {}
    with pytest.raises(NotFound, match="undo"):
        list(kept.entity_history("key"))
    with pytest.raises(NotFound):
        kept.memory("key")
    assert "recall" in find_by_each_read(kept, gone.sequence, "any")
    assert {"recall", "search", "traverse"} <= find_by_each_read(kept, gone.sequence, None, as_of=before).keys()
    with pytest.raises(Conflict, match="forgotten"):
        kept.retain("Ann keeps the spare key under stone 9.", entity_id="key")
    twice: list[dict[str, Any]] = [{"entity_id": "key"}, {"ids": ["nobody"]}, {"entity_id": "nobody", "undo": True}]
    for again in twice:
        nothing = kept.forget(**again)
        assert (nothing.memories_removed, nothing.memories_restored, nothing.ids) == (0, 0, [])
    back = kept.forget(entity_id="key", undo=True)
    assert (back.memories_restored, back.relations_restored) == (5, 5)
    assert stable_rows(kept) == here
    assert len(find_by_each_read(kept, back.sequence, None)) == 6
    # Permanently.
    assert kept.forget(entity_id="key", hard=True).memories_removed == 5
    assert kept.memory_stats().total_memories == 1
    assert kept.memory_stats().ended == {}
    both: dict[str, Any] = {"entity_id": "a", "hard": True, "undo": True}
    two: dict[str, Any] = {"ids": ["a"], "entity_id": "a"}
    for wrong in (two, both):
        with pytest.raises(InvalidInput):
            kept.forget(**wrong)
    with pytest.raises(Conflict):
        kept.forget(entity_id="Ann")


def test_edge_between_forgotten_memories_returns_with_second(kept: Store) -> None:
    for name in ("one", "two"):
        kept.retain(f"Number {name}.", entity_id=name)
    kept.retain([{"content": "a"}, {"content": "b"}], source="c")
    ids = [each.id for each in kept.memories(layer=3).memories]
    here = stable_rows(kept)
    assert [kept.forget(entity_id=each).relations_removed for each in ids] == [1, 0]
    assert [kept.forget(entity_id=each, undo=True).relations_restored for each in ids] == [0, 1]
    assert stable_rows(kept) == here


def test_short_ids_name_memories(kept: Store) -> None:
    [made] = kept.retain("Lunch is at noon.").operations
    short = made.memory_id[:8]
    assert kept.memory(short).id == made.memory_id
    assert [each.memory_id for each in kept.retain("Lunch is at one.", supersedes=short).operations] == [made.memory_id]
    assert kept.update_memory(short, tags=["food"]).tags == ["food"]
    assert kept.forget(ids=[short]).memories_removed == 2
    assert kept.forget(ids=[short], undo=True).memories_restored == 2
    with pytest.raises(NotFound, match="'ffffffff'"):
        kept.memory("ffffffff")
    assert kept.delete_memory(short).existed


def test_blank_messages_leave_ids_of_later_items_unique(kept: Store) -> None:
    items = [{"content": [{"content": text} for text in ("one", " ", "two")]}, {"content": "Three."}]
    key = current_idempotency_key.set(IdempotencyKey("made once"))
    try:
        answers = [kept.retain_batch(items).results for _ in range(2)]
    finally:
        current_idempotency_key.reset(key)
    made = [[[(step.type, step.content) for step in item.operations] for item in answer] for answer in answers]
    assert made == [[[(action, "one"), (action, "two")], [(action, "Three.")]] for action in ("create", "noop")]


def test_turn_that_repeats_known_fact_keeps_conversation_linked(kept: Store) -> None:
    kept.retain("The office opens at nine.", entity_id="known")
    texts = ["When do we open?", "The office opens at nine.", "the office opens at nine", "Thanks a lot."]
    kept.retain([{"content": text} for text in texts], layer=2)
    found = kept.cypher("MATCH (a)-[:next]->(b) RETURN a.content, b.content ORDER BY b.content").rows
    assert found == [["The office opens at nine.", "Thanks a lot."], ["When do we open?", "The office opens at nine."]]
