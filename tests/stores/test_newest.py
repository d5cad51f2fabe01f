"""Data that writes are decided on is up to date after every commit, whether the memory index has applied it or not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kgserve.platform.text.text_equality import fingerprint_wording, hash_normalized_text
from kgserve.projections.memory_index import projection
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.entity_names import list_entity_names_and_aliases, normalize_entity_name
from kgserve.storage.model.node_edge_fields import NodeExtrasUpsert
from kgserve.storage.model.soft_delete import is_memory_active_at
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pending_state import PendingCommitGroupState
from tests.stores.writing import opened, write

IDS = [f"n{number}" for number in range(12)]
TEXTS = ("The cat sleeps.", "the cat sleeps", "a cat slept", "Cat sleeps!")
NAMES = ("Alice", "ALICE", "Bob", "")
NOW = 1 << 51


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "FILE_COMMIT_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(projection, "FILE_COMMIT_MAX_CHANGES", 9)
    monkeypatch.setattr(projection, "MAX_PENDING_ROWS", 20)


def some(chance: random.Random) -> WriteBatch:
    """Return a random batch: nodes with shared texts and names, accesses, and a deletion."""
    extras = NodeExtrasUpsert(
        name=chance.choice(NAMES),
        confidence=chance.choice((None, 0.5)),
        ended=chance.choice(("", "", "merged")),
        valid_to=chance.choice((None, None, NOW - 1)),
    )
    puts = [
        NodeUpsert(at, node_id, "fact", chance.choice(TEXTS), extras=extras)
        for at, node_id in enumerate(chance.sample(IDS, chance.choice((0, 1, 1, 9))))
    ]
    used = [
        MemoryAccessRecord(each, chance.randrange(1, 99), NOW, 0.5)
        for each in chance.sample(IDS, chance.choice((0, 2)))
    ]
    others = [each for each in IDS if each not in {put.id for put in puts}]
    return WriteBatch(nodes=puts, accesses=used, delete_nodes=chance.sample(others, chance.choice((0, 0, 1))))


def agrees(store: OpenStore, used: dict[str, MemoryAccessRecord]) -> None:
    """Compare the answers for every text, name and node with a scan of all rows."""
    with store.reading() as rows:
        ahead, found = PendingCommitGroupState(rows, store.memories, NOW), [*rows.all_nodes()]
        for text in TEXTS:
            for print_, other in ((hash_normalized_text, False), (fingerprint_wording, True)):
                due = {row.id for row in found if is_memory_active_at(row, NOW) and print_(row.content) == print_(text)}
                assert {row.id for row in ahead.ids_with_equal_text(text, in_other_words=other)} >= due
        for name in NAMES[:-1]:
            due = {
                row.id
                for row in found
                if normalize_entity_name(name) in map(normalize_entity_name, list_entity_names_and_aliases(row))
            }
            assert {row.id for row in ahead.nodes_named(name)} >= due
    assert store.memories.accesses(IDS) == used


@pytest.mark.parametrize("seed", range(4))
def test_recent_commits_are_visible_at_any_time(tmp_path: Path, seed: int) -> None:
    chance, used = random.Random(seed), dict[str, MemoryAccessRecord]()
    with opened(tmp_path) as store:
        write(store, WriteBatch(nodes=[NodeUpsert(0, "m", "fact", "first", extras=NodeExtrasUpsert(confidence=1.0))]))
        for _ in range(60):
            batch = some(chance)
            with store.reading() as rows:
                there = {each for each in IDS if rows.has(each)} | {put.id for put in batch.nodes}
            write(store, batch)
            used |= {access.id: access for access in batch.accesses if access.id in there}
            for gone in batch.delete_nodes:
                used.pop(gone, None)
            agrees(store, used)
            if chance.random() < 0.3:
                store.memories.tend()
            if chance.random() < 0.2:
                store.memories.ask(lambda memories, _: memories.total())


def test_commits_missing_in_the_index_file_are_applied_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, WriteBatch(nodes=[NodeUpsert(0, "a", "fact", TEXTS[0], extras=NodeExtrasUpsert(confidence=1.0))]))
        agrees(store, {})
        write(store, WriteBatch(nodes=[NodeUpsert(0, "b", "fact", TEXTS[0], extras=NodeExtrasUpsert(confidence=1.0))]))
        assert store.memories.ask(lambda memories, _: memories.total()) == 2
        # Simulates a failed statement.
        store.memories.ask(lambda memories, _: memories._connection.rollback())
        assert store.memories.ask(lambda memories, _: memories.total()) == 2
        agrees(store, {})


def test_few_commits_are_buffered_and_many_are_dropped(tmp_path: Path) -> None:
    def nodes(first: int, count: int) -> WriteBatch:
        return WriteBatch(nodes=[NodeUpsert(at, f"{first + at}", "fact", TEXTS[0]) for at in range(count)])

    with opened(tmp_path) as store:
        write(store, nodes(0, 1))
        assert store.memories.ask(lambda memories, _: memories.total()) == 0
        began = store.memories._recent.since
        for first, count in ((10, 9), (20, 9)):
            write(store, nodes(first, count))
            assert store.memories._recent.since == began
        (too_much,) = write(store, nodes(30, 3))
        assert store.memories._recent.since == too_much.sequence
