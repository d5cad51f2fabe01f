"""Outcomes of storing a memory: created, duplicate, merged, kept apart; and entities by name."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import UNSET

from kgserve.errors import Conflict, InvalidInput, NotFound
from kgserve.graph import mutations
from kgserve.graph.compat.versioned_nodes_api import RetireEdgeRequest
from kgserve.graph.node_merge_models import MergeNodeIntoAnotherRequest
from kgserve.graph.store_handle import StoreHandle
from kgserve.graph.url_parameters import NodeIdRequest, RetireNodeRequest
from kgserve.memory import entity_operations as named
from kgserve.memory import memory_crud
from kgserve.memory.entity_models import (
    CreateEntitiesRequest,
    CreateRelationsRequest,
    DeleteEntitiesRequest,
    DeleteRelationsRequest,
    EntityGraphRequest,
    EntityIdRequest,
    EntityInput,
    RelationInput,
    RelationKey,
    UpdateEntityRequest,
)
from kgserve.memory.memory_models import (
    DeleteMemoriesRequest,
    Memory,
    MemoryEntityInput,
    MemoryIdRequest,
    ReadMemoryRequest,
    StoreMemoriesRequest,
    StoreMemoryAnswer,
    StoreMemoryRequest,
    UpdateMemoryRequest,
)
from kgserve.memory.serialization import now_in_microseconds
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import NAME, PATIENCE, held, settings

Bounds = tuple[str | None, str | None]

DARK = "User prefers dark mode"


class World(NamedTuple):
    graph: StoreHandle
    open: OpenStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[World]:
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as opened:
        yield World(graph_of(pool, NAME), opened)


def put(store: World, content: str, **fields: Any) -> StoreMemoryAnswer:
    return memory_crud.store_memory(store.graph, StoreMemoryRequest(content=content, **fields)).result(PATIENCE)


def read_memory(store: World, memory_id: str, *, touch: bool = False) -> Memory:
    return memory_crud.get_memory(store.graph, ReadMemoryRequest(memory_id=memory_id, touch=touch))


def all_rows(store: World) -> dict[str, NodeRow]:
    with store.open.reading() as rows:
        return {row.id: row for row in rows.all_nodes()}


def active(store: World) -> list[str]:
    return sorted(row.content for row in all_rows(store).values() if memory_crud.is_active_memory_node(row))


def test_new_memory_has_requested_fields(store: World) -> None:
    stored = put(
        store,
        DARK,
        memory_type="preference",
        tags=["ui", "ui"],
        importance=0.75,
        source="chat",
        context="at lunch",
        metadata={"b": 1, "a": [2]},
        entity_names=["Alice"],
        valid_from="2026-01-01T00:00:00Z",
    )
    assert stored.outcome == "created"
    memory = read_memory(store, stored.id)
    assert (memory.content, memory.memory_type, memory.tags) == (DARK, "preference", ["ui"])
    assert (memory.confidence, memory.importance, memory.source, memory.context) == (1.0, 0.75, "chat", "at lunch")
    assert memory.metadata == {"a": [2], "b": 1}
    assert [(about.name, about.entity_type, about.relevance) for about in memory.entities] == [("Alice", "unknown", 1)]
    assert memory.valid_from == "2026-01-01T00:00:00.000000Z"
    assert (memory.access_count, memory.last_accessed_at) == (0, None)


def test_equal_text_is_duplicate_and_counts_as_use(store: World) -> None:
    first = put(store, DARK, tags=["a"], confidence=0.5)
    again = put(store, "  user prefers   DARK mode. ")
    assert (again.id, again.outcome, again.content) == (first.id, "duplicate", DARK)
    assert again.access_count == 1
    assert again.confidence == 1.0
    assert all_rows(store).keys() == {first.id}
    assert again.version == first.version
    more = put(store, DARK, tags=["b"], metadata={"x": 1}, entity_names=["Bob"])
    assert (more.outcome, more.tags, more.metadata, more.access_count) == ("duplicate", ["a", "b"], {"x": 1}, 2)
    assert [each.name for each in more.entities] == ["Bob"]


def test_other_word_forms_are_merged_as_absorbed(store: World) -> None:
    first = put(store, "The user likes dark modes")
    second = put(store, "User likes the dark mode!", tags=["x"])
    assert (second.id, second.outcome, second.tags) == (first.id, "merged", ["x"])
    absorbed = next(row for row in all_rows(store).values() if row.id != first.id)
    assert absorbed.extras is not None
    assert (absorbed.content, absorbed.extras.ended) == ("User likes the dark mode!", "merged")
    assert absorbed.extras.belongs_to == first.id
    assert read_memory(store, absorbed.id).id == first.id
    assert active(store) == ["The user likes dark modes"]


@pytest.mark.parametrize(
    ("policy", "outcome"), [("off", "created"), ("exact", "created"), ("guarded", "merged"), ("similarity", "merged")]
)
def test_dedup_policy_decides_merge(store: World, policy: Any, outcome: str) -> None:
    put(store, "The user likes dark modes")
    assert put(store, "The user likes dark mode", dedup=policy).outcome == outcome
    assert put(store, "The user likes dark modes", dedup=policy).outcome == (
        "created" if policy == "off" else "duplicate"
    )


def test_similar_but_different_texts_are_not_merged(store: World) -> None:
    texts = ["The port is 5432", "The port is 5433", "The port is not 5432", "React over Vue", "Vue over React"]
    texts += ["Api_Key", "API_KEY", "userID", "userId", "Always run grep -A here", "Always run grep -a here"]
    assert [put(store, text).outcome for text in texts] == ["created"] * 11


def test_layers_episodes_and_namesakes_are_not_merged(store: World) -> None:
    assert put(store, "Meeting happened", layer=3).outcome == "created"
    assert put(store, "Meeting happened", layer=3).outcome == "created"
    assert put(store, "Meeting happened", layer=2).outcome == "created"
    person, project = (MemoryEntityInput(name="Alice", entity_type=kind) for kind in ("person", "project"))
    assert put(store, "Alice is late", entities=[person]).outcome == "created"
    assert put(store, "Alice is late", entities=[project]).outcome == "created"
    assert put(store, "Alice is late", entities=[person]).outcome == "duplicate"


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("again", ["Alice likes dark themes", "Alice likes the dark themes!"])
def test_unlayered_memory_merges_into_any_layer_except_episodes(store: World, layer: int, again: str) -> None:
    first = put(store, "Alice likes dark themes")
    assert put(store, again, layer=3).outcome == "created"
    second = put(store, again, layer=layer)
    assert (second.id, second.outcome) == (first.id, "duplicate" if again == first.content else "merged")
    assert second.layer == layer
    third = put(store, "Alice likes dark themes")
    assert (third.id, third.layer) == (first.id, layer)
    assert put(store, again, layer=(layer + 1) % 3).outcome == "created"


def test_merge_does_not_set_layer_that_violates_hierarchy(store: World) -> None:
    above = put(store, "Rust projects")
    put(store, "Rust", layer=1, parent_id=above.id)
    again = put(store, "Rust projects", layer=2)
    assert (again.id, again.outcome, again.layer) == (above.id, "duplicate", UNSET)


def test_chosen_type_is_not_merged_into_default_type(store: World) -> None:
    put(store, "Alice likes dark themes")
    assert put(store, "Alice likes the dark themes", memory_type="decision").outcome == "created"


def test_deduplication_within_batch_and_group_commit(store: World) -> None:
    batch = StoreMemoriesRequest(memories=[StoreMemoryRequest(content=text) for text in (DARK, "b", DARK, "B.")])
    done = memory_crud.store_memories(store.graph, batch).result(PATIENCE)
    assert [each.outcome for each in done.results] == ["created", "created", "duplicate", "duplicate"]
    assert done.results[0].id == done.results[2].id
    with held(store.open):
        waiting = [
            memory_crud.store_memory(store.graph, StoreMemoryRequest(content="said at once", entity_names=["Zoe"]))
            for _ in range(5)
        ]
    found = [each.result(PATIENCE) for each in waiting]
    assert len({each.id for each in found}) == 1
    assert sorted(each.outcome for each in found) == ["created"] + ["duplicate"] * 4
    assert read_memory(store, found[0].id).access_count == 4
    assert [row.type for row in all_rows(store).values() if row.id == "Zoe"] == ["unknown"]


def test_merged_tags_and_metadata_respect_row_limits(store: World) -> None:
    put(store, DARK, tags=[f"a{n}" for n in range(80)], metadata={"a": "x" * 200_000})
    merged = put(store, DARK, tags=[f"b{n}" for n in range(80)], metadata={"b": "y" * 200_000})
    assert len(merged.tags) == 100
    assert merged.metadata.keys() == {"a"}


def test_caller_supplied_id(store: World) -> None:
    assert put(store, DARK, memory_id="mine").id == "mine"
    assert put(store, DARK, memory_id="mine").outcome == "duplicate"
    with pytest.raises(Conflict, match="exists with another text"):
        put(store, "another text", memory_id="mine")
    with pytest.raises(InvalidInput, match="path"):
        put(store, "x", memory_id="search")
    named.create_entities(
        store.graph, CreateEntitiesRequest(entities=[EntityInput(name="Plain", entity_type="note")])
    ).result(PATIENCE)
    assert put(store, "it becomes one", memory_id="Plain").outcome == "created"
    assert read_memory(store, "Plain").content == "it becomes one"
    entities(store, EntityInput(name="Ended", entity_type="note"))
    mutations.end_node_valid_time(store.graph, RetireNodeRequest(node_id="Ended")).result(PATIENCE)
    assert put(store, "it becomes true", memory_id="Ended").valid_to is UNSET


PAST, ENDED, FAR, LATER = (f"{year}-01-01T00:00:00.000000Z" for year in (2010, 2015, 2090, 2095))


@pytest.mark.parametrize(
    ("first", "again", "stored"),
    [
        ((None, None), (None, FAR), None),
        ((None, FAR), (None, None), None),
        ((None, None), (FAR, None), None),
        ((None, None), (PAST, ENDED), None),
        ((None, FAR), (None, LATER), (None, LATER)),
        ((None, LATER), (None, FAR), (None, LATER)),
        ((PAST, None), (None, None), (PAST, None)),
        ((None, None), (PAST, None), (PAST, None)),
    ],
)
@pytest.mark.parametrize("is_batch", [False, True])
def test_merge_loses_no_validity(
    store: World, first: Bounds, again: Bounds, stored: Bounds | None, *, is_batch: bool
) -> None:
    requests = [StoreMemoryRequest(content=DARK, valid_from=start, valid_to=end) for start, end in (first, again)]
    groups = [requests] if is_batch else [[each] for each in requests]
    outcomes = [
        each.outcome
        for group in groups
        for each in memory_crud.store_memories(store.graph, StoreMemoriesRequest(memories=group))
        .result(PATIENCE)
        .results
    ]
    assert outcomes == ["created", "created" if stored is None else "duplicate"]
    kept = [read_memory(store, row.id) for row in all_rows(store).values()]
    bounds = {(each.valid_from or None, each.valid_to or None) for each in kept}
    assert bounds == ({first, again} if stored is None else {stored})


def test_known_id_with_other_times_is_rejected(store: World) -> None:
    bounds = {"valid_from": PAST, "valid_to": ENDED}
    put(store, DARK, memory_id="mine", **bounds)
    assert put(store, DARK, memory_id="mine", **bounds).outcome == "duplicate"
    for other in ({}, {"valid_to": FAR}, {"expires_in": "1d"}):
        with pytest.raises(Conflict, match="exists with other times"):
            put(store, DARK, memory_id="mine", **other)
    put(store, DARK, memory_id="note", expires_in="1h")
    assert put(store, DARK, memory_id="note").outcome == "duplicate"
    longer = put(store, DARK, memory_id="note", expires_in="2h")
    assert longer.outcome == "duplicate"
    assert longer.valid_to is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"content": "  "},
        {"created_at": "2999-01-01T00:00:00Z"},
        {"created_at": "yesterday"},
        {"valid_from": "2020-01-01T00:00:00Z", "valid_to": "2019-01-01T00:00:00Z"},
        {"valid_to": "2020-01-01T00:00:00Z", "expires_in": "7d"},
        {"entity_names": ["x" * 600]},
    ],
)
def test_invalid_memory_is_rejected_without_write(store: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        put(store, **{"content": DARK, **wrong})
    assert all_rows(store) == {}


def test_reading_reinforces_the_stored_confidence(store: World) -> None:
    old = put(store, DARK, created_at=before(days=15), confidence=0.8)
    assert old.effective_confidence == pytest.approx(0.8 * 0.5**0.5, abs=0.002)
    assert read_memory(store, old.id, touch=True).confidence == pytest.approx(0.9)
    again = read_memory(store, old.id)
    assert again.effective_confidence == pytest.approx(0.9, abs=0.002)
    assert (again.access_count, again.version) == (1, old.version)


def before(days: float) -> str:
    return format_rfc3339_timestamp(now_in_microseconds() - round(days * 86_400_000_000))


def test_update_changes_only_given_fields(store: World) -> None:
    old = put(store, DARK, tags=["a"], source="chat", entity_names=["Alice", "Bob"], created_at=before(days=60))
    assert old.effective_confidence == pytest.approx(0.25, abs=0.002)
    change = UpdateMemoryRequest(memory_id=old.id, content="prefers light mode", confidence=0.9, entity_names=["bob"])
    new = memory_crud.update_memory(store.graph, change).result(PATIENCE)
    assert (new.content, new.tags, new.source, new.version) == ("prefers light mode", ["a"], "chat", old.version + 1)
    assert new.effective_confidence == pytest.approx(0.9, abs=0.002)
    assert [each.name for each in new.entities] == ["Bob"]
    stale = UpdateMemoryRequest(memory_id=old.id, content="x", based_on_version=old.version)
    with pytest.raises(Conflict, match="based_on_version"):
        memory_crud.update_memory(store.graph, stale).result(PATIENCE)
    with pytest.raises(NotFound):
        memory_crud.update_memory(store.graph, UpdateMemoryRequest(memory_id="none", content="x")).result(PATIENCE)


def test_delete_memory_keeps_entities(store: World) -> None:
    stored = put(store, DARK, entity_names=["Alice"])
    done = memory_crud.delete_memory(store.graph, MemoryIdRequest(memory_id=stored.id)).result(PATIENCE)
    assert done.existed
    assert all_rows(store).keys() == {"Alice"}
    assert not memory_crud.delete_memory(store.graph, MemoryIdRequest(memory_id=stored.id)).result(PATIENCE).existed
    with pytest.raises(Conflict, match="not a memory"):
        memory_crud.delete_memory(store.graph, MemoryIdRequest(memory_id="Alice")).result(PATIENCE)


def test_bulk_delete_requires_filter_and_supports_dry_run(store: World) -> None:
    kept = put(store, "new fact", memory_type="fact")
    gone = put(store, "old fact", memory_type="fact", created_at=before(days=100))
    put(store, "old error", memory_type="error", created_at=before(days=100))
    nothings: list[dict[str, Any]] = [{}, {"memory_ids": []}, {"memory_ids": [], "memory_types": []}]
    for nothing in [*nothings, {"memory_types": []}]:
        with pytest.raises(InvalidInput, match="at least one filter"):
            memory_crud.delete_matching_memories(store.graph, DeleteMemoriesRequest(**nothing))
    wanted: dict[str, Any] = {"memory_types": ["fact"], "min_confidence_below": 0.2}
    dry = memory_crud.delete_matching_memories(store.graph, DeleteMemoriesRequest(**wanted, dry_run=True)).result(
        PATIENCE
    )
    assert (dry.count, dry.ids, dry.dry_run) == (1, [gone.id], True)
    done = memory_crud.delete_matching_memories(store.graph, DeleteMemoriesRequest(**wanted)).result(PATIENCE)
    assert (done.count, done.ids) == (1, [gone.id])
    ids = DeleteMemoriesRequest(memory_ids=[kept.id, "nobody"])
    named_ = memory_crud.delete_matching_memories(store.graph, ids).result(PATIENCE)
    assert (named_.ids, named_.missing) == ([kept.id], ["nobody"])
    assert active(store) == ["old error"]


def entities(store: World, *wanted: EntityInput) -> list[tuple[str, str]]:
    done = named.create_entities(store.graph, CreateEntitiesRequest(entities=list(wanted))).result(PATIENCE)
    return [(each.id, each.outcome) for each in done.entities]


def relate_names(store: World, *wanted: tuple[str, str, str], **fields: Any) -> None:
    relations = [RelationInput(source=s, target=t, relation_type=r, **fields) for s, r, t in wanted]
    named.create_relations(store.graph, CreateRelationsRequest(relations=relations)).result(PATIENCE)


def test_entity_name_is_unique_in_any_spelling(store: World) -> None:
    put(store, "about her", entity_names=["Alice"])
    assert entities(store, EntityInput(name="ALICE ", entity_type="person", aliases=["Al"])) == [("Alice", "updated")]
    assert entities(store, EntityInput(name="alice", entity_type="person")) == [("Alice", "existing")]
    assert entities(store, EntityInput(name="Alice", entity_type="project")) == [("Alice (project)", "created")]
    assert entities(store, EntityInput(name="al", entity_type="person")) == [("Alice", "existing")]
    with pytest.raises(Conflict, match="name of 2 entities"):
        put(store, "which one?", entity_names=["Alice"])
    found = named.get_entity(store.graph, EntityIdRequest(entity_id="Alice"))
    assert (found.entity_type, found.memories, found.aliases) == ("person", 1, ["Al"])


def test_a_renamed_entity_keeps_its_id(store: World) -> None:
    entities(store, EntityInput(name="Bob", entity_type="person"), EntityInput(name="Eve", entity_type="person"))
    change = UpdateEntityRequest(entity_id="Bob", name="Robert", description="a colleague")
    new = named.update_entity(store.graph, change).result(PATIENCE)
    assert (new.id, new.name, new.description) == ("Bob", "Robert", "a colleague")
    assert named.get_entity(store.graph, EntityIdRequest(entity_id="robert")).id == "Bob"
    with pytest.raises(Conflict, match="merge"):
        named.update_entity(store.graph, UpdateEntityRequest(entity_id="Bob", name="eve")).result(PATIENCE)


def test_merged_entity_is_found_by_both_names(store: World) -> None:
    entities(store, EntityInput(name="Bob", entity_type="person"), EntityInput(name="Robert", entity_type="person"))
    put(store, "about Bob", entity_names=["Bob"])
    named.merge_entities(store.graph, MergeNodeIntoAnotherRequest(node_id="bob", into="robert")).result(PATIENCE)
    assert [each.name for each in put(store, "about him, too", entity_names=["BOB"]).entities] == ["Robert"]
    found = named.get_entity(store.graph, EntityIdRequest(entity_id="Bob"))
    assert (found.name, found.memories) == ("Robert", 2)


def test_relations_by_name_and_entity_graph(store: World) -> None:
    relate_names(store, ("A", "uses", "B"), ("A", "uses", "C"), ("B", "uses", "D"), strength=0.8)
    put(store, "about B", entity_names=["b"])
    near = named.get_entity_neighbourhood(store.graph, EntityGraphRequest(entity_id="a", touch=False))
    assert [(node.id, node.depth) for node in near.nodes] == [("A", 0), ("B", 1), ("C", 1)]
    assert {(edge.source, edge.target) for edge in near.edges} == {("A", "B"), ("A", "C")}
    assert {node.id: node.memory_count for node in near.nodes} == {"A": 0, "B": 1, "C": 0}
    far = named.get_entity_neighbourhood(store.graph, EntityGraphRequest(entity_id="A", depth=2))
    assert [node.id for node in far.nodes] == ["A", "B", "C", "D"]
    strong = named.get_entity_neighbourhood(store.graph, EntityGraphRequest(entity_id="A", min_strength=0.9))
    assert [node.id for node in strong.nodes] == ["A"]
    with pytest.raises(NotFound):
        named.get_entity_neighbourhood(store.graph, EntityGraphRequest(entity_id="nobody"))


def test_repeated_relation_is_updated(store: World) -> None:
    relate_names(store, ("A", "uses", "B"))
    wanted = CreateRelationsRequest(
        relations=[RelationInput(source="a", target="B", relation_type="uses", strength=0.9, context="x")]
    )
    again = named.create_relations(store.graph, wanted).result(PATIENCE).relations[0]
    assert (again.outcome, again.strength, again.context) == ("updated", 0.9, "x")
    assert named.create_relations(store.graph, wanted).result(PATIENCE).relations[0].outcome == "existing"
    keys = [
        RelationKey(source="A", target="b", relation_type="uses"),
        RelationKey(source="A", target="X", relation_type="r"),
    ]
    gone = named.delete_relations(store.graph, DeleteRelationsRequest(relations=keys)).result(PATIENCE)
    assert (gone.deleted, len(gone.missing)) == (1, 1)


@pytest.mark.parametrize("retired", [("A",), ("r",), ("A", "B", "r")])
def test_retired_entity_and_relation_become_current_again(store: World, retired: tuple[str, ...]) -> None:
    relate_names(store, ("A", "uses", "B"), strength=0.8)
    nodes = [RetireNodeRequest(node_id=each, valid_to=ENDED) for each in retired if each != "r"]
    for each in nodes:
        mutations.end_node_valid_time(store.graph, each).result(PATIENCE)
    if "r" in retired:
        edge = RetireEdgeRequest(source="A", target="B", relation_type="uses", valid_to="1970-01-01T00:00:00Z")
        mutations.end_edge_valid_time(store.graph, edge).result(PATIENCE)
    # A memory about an entity says nothing about its times.
    put(store, "A was here", entity_names=["A"])
    assert [row.is_valid_at(now_in_microseconds()) for row in all_rows(store).values()].count(False) == len(nodes)
    wanted = CreateRelationsRequest(relations=[RelationInput(source="a", target="B", relation_type="uses")])
    done = named.create_relations(store.graph, wanted).result(PATIENCE)
    assert [(each.outcome, each.strength) for each in done.relations] == [("restored", 0.8)]
    assert done.entities_created == [each.node_id for each in nodes]
    near = named.get_entity_neighbourhood(store.graph, EntityGraphRequest(entity_id="A", include_memories=False))
    assert [node.id for node in near.nodes] == ["A", "B"]
    if nodes:
        mutations.end_node_valid_time(store.graph, RetireNodeRequest(node_id="A")).result(PATIENCE)
        answer = named.create_entities(
            store.graph, CreateEntitiesRequest(entities=[EntityInput(name="a", entity_type="x")])
        )
        assert [each.outcome for each in answer.result(PATIENCE).entities] == ["restored"]
        assert len(named.get_entity_neighbourhood(store.graph, EntityGraphRequest(entity_id="B")).nodes) == 2


def test_delete_entities_keeps_memories_unless_cascade(store: World) -> None:
    put(store, "about both", entity_names=["A", "B"])
    put(store, "about A", entity_names=["A"])
    relate_names(store, ("A", "knows", "B"))
    dry = DeleteEntitiesRequest(entity_names=["a", "nobody"], cascade_memories=True, dry_run=True)
    told = named.delete_entities(store.graph, dry).result(PATIENCE)
    assert (told.count, told.memories_deleted, told.memories_shared, told.relations_deleted) == (1, 2, 1, 1)
    assert told.missing == ["nobody"]
    named.delete_entities(store.graph, DeleteEntitiesRequest(entity_names=["A"])).result(PATIENCE)
    assert active(store) == ["about A", "about both"]
    named.delete_entities(store.graph, DeleteEntitiesRequest(entity_names=["B"], cascade_memories=True)).result(
        PATIENCE
    )
    assert active(store) == ["about A"]


def test_concurrent_parent_cycle_is_rejected(store: World) -> None:
    for key in ("a", "b", "c"):
        put(store, f"{key} is a concept", memory_id=key, layer=1)
    with held(store.open):
        moves = [
            memory_crud.update_memory(store.graph, UpdateMemoryRequest(memory_id=child, parent_id=parent))
            for child, parent in (("a", "b"), ("b", "c"), ("c", "a"))
        ]
        fact = StoreMemoryRequest(content="a fact", memory_id="f", layer=2, parent_id="c")
        layered = [memory_crud.store_memory(store.graph, fact)]
        layered += [memory_crud.update_memory(store.graph, UpdateMemoryRequest(memory_id="f", layer=0))]
        layered += [memory_crud.update_memory(store.graph, UpdateMemoryRequest(memory_id="c", layer=3))]
    assert [type(move.exception(PATIENCE)) for move in moves] == [type(None), type(None), Conflict]
    assert [type(each.exception(PATIENCE)) for each in layered] == [type(None), Conflict, Conflict]
    above = store.open.memories.ask(lambda view, _: [each.id for each in view.ancestors_of("a", now_in_microseconds())])
    assert above == ["b", "c"]


@pytest.mark.parametrize("kind", ["memory", "entity", "relation"])
def test_row_deleted_by_same_commit_group_is_not_found(store: World, kind: str) -> None:
    def write() -> Future[Any]:
        if kind == "memory":
            return memory_crud.store_memory(store.graph, StoreMemoryRequest(content=DARK, memory_id="a"))
        if kind == "entity":
            return named.create_entities(
                store.graph, CreateEntitiesRequest(entities=[EntityInput(name="a", entity_type="x")])
            )
        made = RelationInput(source="a", target="b", relation_type="r")
        return named.create_relations(store.graph, CreateRelationsRequest(relations=[made]))

    with held(store.open):
        written = write()
        deleted = mutations.delete_node(store.graph, NodeIdRequest(node_id="a"))
    assert deleted.result(PATIENCE).existed
    with pytest.raises(NotFound, match=f"{kind} .* was deleted"):
        written.result(PATIENCE)
