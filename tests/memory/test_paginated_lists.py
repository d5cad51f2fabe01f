"""Lists of memories with every filter and order, of entities and relations; and memory statistics."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from kgserve.errors import Conflict, InvalidInput, NotFound
from kgserve.graph.node_merge import merge_nodes
from kgserve.graph.node_merge_models import MergeNodeIntoAnotherRequest
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory import analytics, memory_crud, paginated_lists
from kgserve.memory.entity_models import (
    ConfidenceHistogramQuery,
    EntityListQuery,
    EntityMemoriesRequest,
    MemoryCountsQuery,
    MemoryGrowthQuery,
    RelationListQuery,
)
from kgserve.memory.memory_models import Memory, MemoryListQuery, ReadMemoryRequest
from kgserve.memory.serialization import now_in_microseconds
from kgserve.platform.timestamps import DAY_MICROSECONDS, format_rfc3339_timestamp
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_edge_fields import NodeExtrasUpsert
from kgserve.storage.model.store_settings import MemorySettings
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import NAME, settings, write

NOW = now_in_microseconds()
TYPES = ("fact", "preference", "decision")
COUNT = 300
SLACK = 2e-3
"""Tolerance for decay of confidence during a test."""


class World(NamedTuple):
    graph: StoreHandle
    open: OpenStore
    accesses: dict[str, MemoryAccessRecord]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        StorePool(settings(tmp_path_factory.mktemp("lists"))) as pool,
        pool.lease(NAME, create=True) as opened,
    ):
        opened.change_settings(
            lambda old: msgspec.structs.replace(old, memory=MemorySettings(half_life_by_type={"preference": None}))
        )
        yield World(graph_of(pool, NAME), opened, fill(opened))


def fill(store: OpenStore) -> dict[str, MemoryAccessRecord]:
    """Write memories of all kinds, entities and relations; use some memories."""
    choice = random.Random(3)
    names = {"e0": "Alice", "e1": "alice ", "e2": "Bob", "e3": "Zoë", "e4": "Alicia"}
    entities = [
        NodeUpsert(0, node_id, "person" if at < 3 else "project", extras=NodeExtrasUpsert(name=name))
        for at, (node_id, name) in enumerate(names.items())
    ]
    nodes = [memory(choice, number) for number in range(COUNT)]
    about = [EdgeUpsert(0, (put.id, f"e{choice.randrange(5)}", "is_about")) for put in nodes[::2]]
    knows = [EdgeUpsert(0, (a, b, kind), 0.25 * at) for at, (a, b, kind) in enumerate(RELATIONS)]
    write(store, WriteBatch(nodes=[*entities, *nodes], edges=[*about, *knows]))
    accesses = {
        node_id: MemoryAccessRecord(node_id, number, NOW - number * DAY_MICROSECONDS, 0.9)
        for number, node_id in enumerate((put.id for put in nodes[::7]), 1)
    }
    write(store, WriteBatch(accesses=list(accesses.values())))
    return accesses


RELATIONS = [
    ("e0", "e2", "knows"),
    ("e2", "e0", "knows"),
    ("e0", "e3", "uses"),
    ("e3", "e4", "uses"),
    ("e0", "e4", "knows"),
]


def memory(choice: random.Random, number: int) -> NodeUpsert:
    pick = choice.choice
    extras = NodeExtrasUpsert(
        tags=tuple(choice.sample("xyz", pick((0, 1, 2)))),
        confidence=pick((0.0, 0.2, 0.6, 1.0)),
        source=pick(("", "chat")),
        layer=pick((None, 2, 3)),
        ended=pick(("", "", "", "", "forgotten", "pruned")),
        valid_to=pick((None, None, None, NOW - DAY_MICROSECONDS)),
    )
    created = NOW - choice.randrange(1, 90 * 24) * (DAY_MICROSECONDS // 24)
    own = pick(('{"status":"open"}', '{"status":"done","n":1}', "{}"))
    return NodeUpsert(0, f"m{number:03}", pick(TYPES), f"memory {number}", own, extras=extras, created_at=created)


def list_all_pages(store: World, **query: Any) -> list[Memory]:
    """Return all pages of a list."""
    found: list[Memory] = []
    page = paginated_lists.list_memories(store.graph, MemoryListQuery(**query))
    while True:
        found += page.memories
        assert len(page.memories) <= query.get("limit", 20)
        if page.next_cursor is None:
            return found
        query.pop("offset", None)
        page = paginated_lists.list_memories(store.graph, MemoryListQuery(**query, cursor=page.next_cursor))


def everything(store: World) -> list[Memory]:
    return list_all_pages(store, ended="any", limit=1000)


def in_force(store: World) -> list[Memory]:
    return [each for each in everything(store) if not_ended(each) and not isinstance(each.valid_to, str)]


def not_ended(memory: Memory) -> bool:
    return isinstance(memory.ended, msgspec.UnsetType)


def ids(found: list[Memory]) -> list[str]:
    return [each.id for each in found]


def test_list_shows_all_memory_fields(store: World) -> None:
    with store.open.reading() as rows:
        there = {row.id: row for row in rows.all_nodes() if row.is_memory}
    found = {each.id: each for each in everything(store)}
    assert found.keys() == there.keys()
    for node_id, each in found.items():
        row, access = there[node_id], store.accesses.get(node_id)
        assert row.extras is not None
        assert (each.content, each.memory_type, each.tags) == (row.content, row.type, list(row.extras.tags))
        assert (each.access_count, each.last_accessed_at) == (
            (access.count, format_rfc3339_timestamp(access.last)) if access else (0, None)
        )
        since, worth = row.created_at, row.extras.confidence or 0.0
        if access is not None and access.last > since:
            since, worth = access.last, access.confidence
        faded = worth if row.type == "preference" else worth * 0.5 ** ((NOW - since) / (30 * DAY_MICROSECONDS))
        assert each.effective_confidence == pytest.approx(faded, abs=SLACK)


FILTERS: dict[str, Any] = {
    "types": ["fact", "decision"],
    "tags": ["x", "y"],
    "min_confidence": 0.3,
    "after_date": format_rfc3339_timestamp(NOW - 50 * DAY_MICROSECONDS),
    "before_date": format_rfc3339_timestamp(NOW - 10 * DAY_MICROSECONDS),
    "entity": "Zoë",
    "source": "chat",
    "layer": 3,
    "ended": "pruned",
    "metadata": '{"status": "done", "n": 1.0}',
    "valid_at": "any",
}


def matches_query(each: Memory, query: dict[str, Any]) -> bool:
    """Return whether a memory belongs in a list, following the documentation."""
    ended = "" if isinstance(each.ended, msgspec.UnsetType) else each.ended
    is_true = isinstance(each.valid_to, msgspec.UnsetType) or "valid_at" in query or "ended" in query
    return (
        ended == query.get("ended", "")
        and is_true
        and ("types" not in query or each.memory_type in query["types"])
        and set(query.get("tags", ())) <= set(each.tags)
        and each.effective_confidence >= query.get("min_confidence", 0)
        and query.get("after_date", "") <= each.created_at < query.get("before_date", "Z")
        and ("entity" not in query or "e3" in [entity.id for entity in each.entities])
        and query.get("source", each.source) == each.source
        and ("layer" not in query or each.layer == query["layer"])
        and ("metadata" not in query or each.metadata == {"status": "done", "n": 1})
    )


def test_list_filters_alone_and_combined(store: World) -> None:
    choice, all_there = random.Random(5), everything(store)
    queries = [{name: value} for name, value in FILTERS.items()]
    queries += [{name: FILTERS[name] for name in choice.sample(list(FILTERS), 2)} for _ in range(30)]
    found = Counter[str]()
    for query in queries:
        expected = {each.id for each in all_there if matches_query(each, query)}
        assert {each.id for each in list_all_pages(store, **query, limit=7)} == expected, query
        found.update(dict.fromkeys(query, len(expected)))
    assert all(found[name] for name in FILTERS)


@pytest.mark.parametrize("sort", ["created", "updated", "confidence", "accessed"])
def test_sort_order_pagination_and_offset(store: World, sort: str) -> None:
    def rank(each: Memory) -> Any:
        of = {"created": each.created_at, "updated": each.updated_at, "accessed": each.last_accessed_at or ""}
        return round(each.effective_confidence, 4) if sort == "confidence" else of[sort]

    there = ids(in_force(store))
    found = list_all_pages(store, sort=sort, limit=13)
    ranks = [rank(each) for each in found]
    assert ranks == sorted(ranks, reverse=True)
    assert sorted(ids(found)) == sorted(there)
    assert ids(list_all_pages(store, sort=sort, limit=50, offset=40)) == ids(found)[40:]
    assert ids(list_all_pages(store, sort=sort, limit=3, offset=len(there) - 4)) == ids(found)[-4:]
    types = ids(list_all_pages(store, sort=sort, types=["fact"], limit=4))
    assert types == [each.id for each in found if each.memory_type == "fact"]


def test_invalid_cursor_and_query_are_rejected(store: World) -> None:
    page = paginated_lists.list_memories(store.graph, MemoryListQuery(limit=1))
    faults: list[dict[str, Any]] = [
        {"cursor": "nonsense"},
        {"cursor": "\ud800"},
        {"cursor": page.next_cursor, "sort": "updated"},
        {"cursor": page.next_cursor, "offset": 1},
        {"cursor": (page.next_cursor or "") + "!"},
        {"before_date": "2025-01"},
        {"metadata": "[1]"},
        {"metadata": '{"a": 18446744073709551616}'},
        {"valid_at": "yesterday"},
    ]
    for query in faults:
        with pytest.raises(InvalidInput):
            paginated_lists.list_memories(store.graph, MemoryListQuery(**query))
    with pytest.raises(NotFound):
        list_all_pages(store, entity="nobody")
    with pytest.raises(Conflict):
        list_all_pages(store, entity="ALICE")
    assert list_all_pages(store, metadata='{"status": "lost"}') == []


def test_list_memories_of_entity_by_id_or_name(store: World) -> None:
    request = EntityMemoriesRequest(entity_id="e2", limit=1000)
    found = paginated_lists.list_entity_memories(store.graph, request).memories
    assert {each.id for each in found} == {
        each.id for each in in_force(store) if "e2" in [entity.id for entity in each.entities]
    }
    by_name = paginated_lists.list_entity_memories(store.graph, msgspec.structs.replace(request, entity_id="bob"))
    assert ids(by_name.memories) == ids(found)


def test_list_entities_by_type_and_name_prefix(store: World) -> None:
    def names(**query: Any) -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = paginated_lists.list_named_entities_page(
                store.graph, EntityListQuery(limit=2, cursor=cursor, **query)
            )
            found += [each.id for each in page.entities]
            cursor = page.next_cursor
            if cursor is None:
                return found

    assert names() == ["e0", "e1", "e4", "e2", "e3"]
    assert names(name="ALI") == ["e0", "e1", "e4"]
    assert names(type=["person"]) == ["e0", "e1", "e2"]
    assert names(type=["project", "person"], name="z") == ["e3"]
    assert names(type=["thing"]) == []
    with pytest.raises(InvalidInput):
        paginated_lists.list_named_entities_page(store.graph, EntityListQuery(cursor="x"))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, RELATIONS),
        ({"source": "e0"}, [key for key in RELATIONS if key[0] == "e0"]),
        ({"target": "zoë"}, [("e0", "e3", "uses")]),
        ({"type": ["uses"]}, [key for key in RELATIONS if key[2] == "uses"]),
        ({"type": ["uses", "knows"]}, RELATIONS),
        ({"source": "e0", "target": "e4"}, [("e0", "e4", "knows")]),
        ({"source": "e0", "type": ["knows"]}, [("e0", "e2", "knows"), ("e0", "e4", "knows")]),
        ({"min_strength": 0.5}, RELATIONS[2:]),
        ({"target": "e4", "min_strength": 0.9}, [("e0", "e4", "knows")]),
    ],
)
def test_list_relations_between_entities(
    store: World, query: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    for limit in (1, 2, 100):
        found: list[tuple[str, str, str]] = []
        cursor: str | None = None
        while True:
            page = paginated_lists.list_entity_and_memory_relations(
                store.graph, RelationListQuery(limit=limit, cursor=cursor, **query)
            )
            found += [(each.source, each.target, each.relation_type) for each in page.relations]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert sorted(found) == sorted(expected)


def test_statistics_equal_recount(store: World) -> None:
    there = [each for each in everything(store) if not_ended(each)]
    stats = analytics.compute_stored_memory_statistics(store.graph)
    worths = [each.effective_confidence for each in there]
    assert (stats.total_memories, stats.total_entities, stats.total_relations) == (len(there), 5, len(RELATIONS))
    assert stats.memories_by_type == Counter(each.memory_type for each in there)
    assert stats.average_confidence == pytest.approx(sum(worths) / len(worths), abs=1e-4)
    created = sorted(each.created_at for each in there)
    assert (stats.oldest_memory, stats.newest_memory) == (created[0], created[-1])
    assert stats.low_confidence_count == sum(worth < 0.1 for worth in worths)
    assert stats.ended == Counter(each.ended for each in everything(store) if not not_ended(each))
    assert stats.sequence == store.open.state.sequence
    found = analytics.get_confidence_histogram(store.graph, ConfidenceHistogramQuery(buckets=7))
    assert [bucket.count for bucket in found.buckets] == [
        sum(min(int(worth * 7), 6) == at for worth in worths) for at in range(7)
    ]
    assert (found.buckets[0].least, found.buckets[-1].most, found.total) == (0.0, 1.0, len(there))


def test_type_tag_and_growth_statistics(store: World) -> None:
    there = [each for each in everything(store) if not_ended(each)]
    types = analytics.count_memory_types(store.graph, MemoryCountsQuery())
    assert {each.memory_type: each.count for each in types.types} == Counter(each.memory_type for each in there)
    assert sum(each.share for each in types.types) == pytest.approx(1)
    tags = analytics.count_memory_tags(store.graph, MemoryCountsQuery(limit=2)).tags
    assert [(each.tag, each.count) for each in tags] == Counter(
        tag for each in sorted(there, key=lambda each: each.id) for tag in sorted(each.tags)
    ).most_common(2)
    days = [date.fromisoformat(each.created_at[:10]) for each in there]
    firsts = {
        "day": [day.isoformat() for day in days],
        "week": [(day - timedelta(days=day.weekday())).isoformat() for day in days],
        "month": [day.replace(day=1).isoformat() for day in days],
    }
    for by, periods in firsts.items():
        found = analytics.get_new_memory_counts_by_period(
            store.graph, msgspec.convert({"by": by, "limit": 1000}, MemoryGrowthQuery)
        ).periods
        assert {each.period: each.created for each in found} == Counter(periods)
        assert [each.period for each in found] == sorted(set(periods))
        assert found[-1].total == len(there)
        last = analytics.get_new_memory_counts_by_period(
            store.graph, msgspec.convert({"by": by, "limit": 2}, MemoryGrowthQuery)
        ).periods
        assert last == found[-2:]


def test_use_is_visible_in_lists_and_statistics(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as opened:
        graph = graph_of(pool, NAME)
        assert analytics.compute_stored_memory_statistics(graph).average_confidence is None
        old = NodeUpsert(
            0, "old", "fact", "x", extras=NodeExtrasUpsert(confidence=0.5, confidence_at=NOW - 30 * DAY_MICROSECONDS)
        )
        write(
            opened, WriteBatch(nodes=[old, NodeUpsert(0, "new", "fact", "y", extras=NodeExtrasUpsert(confidence=0.3))])
        )
        world = World(graph, opened, {})
        assert ids(list_all_pages(world, sort="confidence")) == ["new", "old"]
        assert list_all_pages(world, min_confidence=0.34) == []
        memory_crud.get_memory(graph, ReadMemoryRequest(memory_id="old"))
        assert ids(list_all_pages(world, min_confidence=0.34)) == ["old"]
        assert ids(list_all_pages(world, sort="confidence")) == ["old", "new"]
        assert ids(list_all_pages(world, sort="accessed")) == ["old", "new"]
        assert analytics.compute_stored_memory_statistics(graph).average_confidence == pytest.approx(
            (0.6 + 0.3) / 2, abs=SLACK
        )


def test_lists_follow_entity_merge(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as opened:
        graph = graph_of(pool, NAME)
        named = [NodeUpsert(0, each, "person", extras=NodeExtrasUpsert(name=each)) for each in ("Al", "Alice", "Bob")]
        told = NodeUpsert(0, "m", "fact", "likes tea", extras=NodeExtrasUpsert(confidence=1.0))
        edges = [EdgeUpsert(0, ("Al", "Bob", "knows"), weight=-1.0), EdgeUpsert(0, ("m", "Al", "is_about"))]
        write(opened, WriteBatch(nodes=[*named, told], edges=edges))
        stats = analytics.compute_stored_memory_statistics(graph)
        assert (stats.total_entities, stats.total_relations) == (3, 1)
        merge_nodes(graph, MergeNodeIntoAnotherRequest(node_id="Al", into="Alice")).result(30)
        stats = analytics.compute_stored_memory_statistics(graph)
        assert (stats.total_entities, stats.total_relations) == (2, 1)
        [relation] = paginated_lists.list_entity_and_memory_relations(graph, RelationListQuery()).relations
        assert (relation.source, relation.target) == ("Alice", "Bob")
        about = paginated_lists.list_entity_memories(graph, EntityMemoriesRequest(entity_id="Alice"))
        assert ids(about.memories) == ["m"]
