"""The examples of the operations on memories and names, as those of `kgserve.api.examples`."""

from __future__ import annotations

from typing import Any

from kgserve.memory.api import (
    Cluster,
    ConsolidationReport,
    ConsolidationRun,
    ConsolidationRuns,
    ConsolidationUndone,
    KeptApart,
    MemoriesDeleted,
    Memory,
    MemoryDeleted,
    MemoryEntity,
    MemoryPage,
    PruneReport,
    RecallAnswer,
    RecalledMemory,
    Similar,
    StoredInBatch,
    StoredMemories,
    StoredMemory,
    UpdatedMemory,
)
from kgserve.memory.entities_api import (
    ConfidenceBucket,
    ConfidenceHistogram,
    CreatedEntity,
    CreatedRelation,
    EntitiesCreated,
    EntitiesDeleted,
    EntityAnswer,
    EntityGraph,
    EntityPage,
    GraphEntity,
    Growth,
    GrowthPeriod,
    MemoryStats,
    MemoryTagCount,
    MemoryTags,
    MemoryTypes,
    NamedEntity,
    Relation,
    RelationKey,
    RelationPage,
    RelationsCreated,
    RelationsDeleted,
    TypeCount,
    UpdatedEntity,
)
from kgserve.memory.extraction.marks import ExtractAnswer
from kgserve.memory.hierarchy_api import PlacedMemory
from kgserve.memory.reflect_api import Candidate, Link, Proposal, Reflection
from kgserve.memory.relationships import WholeMemory
from kgserve.memory.retain_api import ForgetAnswer, RetainAnswer, Retained, RetainedBatch, RetainOperation

_TIME = "2025-07-15T12:00:00.000000Z"
_ID = "01980de1-4a00-7d3c-9f0e-6b8d2c5a1e47"
_OTHER = "01980de1-3c10-7b52-8e4f-0a7c9d1b2e63"
_ABOUT = MemoryEntity(id="Alice", name="Alice", entity_type="person", relevance=1.0)
_MEMORY: dict[str, Any] = {
    "id": _ID,
    "content": "Alice prefers PostgreSQL 16 for the web shop.",
    "memory_type": "preference",
    "tags": ["database"],
    "confidence": 1.0,
    "effective_confidence": 1.0,
    "importance": 0.5,
    "source": "stand-up",
    "context": None,
    "metadata": {},
    "entities": [_ABOUT],
    "access_count": 0,
    "last_accessed_at": None,
    "created_at": _TIME,
    "updated_at": _TIME,
    "version": 1,
}
_SIMILAR = [Similar(id=_OTHER, similarity=0.97, differs="numbers", content="Alice prefers PostgreSQL 15.")]

STORE_MEMORY: dict[str, Any] = {
    "content": _MEMORY["content"],
    "memory_type": "preference",
    "tags": ["database"],
    "source": "stand-up",
    "entities": [{"name": "Alice", "entity_type": "person"}],
}
MEMORY = Memory(**_MEMORY)
MEMORY_UPDATED = UpdatedMemory(**_MEMORY, sequence=3)
STORED = StoredMemory(**_MEMORY, outcome="created", similar=_SIMILAR, near_checked=True, sequence=2)
_DOMAIN: dict[str, Any] = _MEMORY | {
    "id": "web-shop",
    "content": "The web shop",
    "memory_type": "domain",
    "tags": [],
    "source": None,
    "entities": [],
}
DOMAIN = Memory(**_DOMAIN, layer=0)
WHOLE_MEMORY = WholeMemory(**_MEMORY, parent_id="web-shop", parent=DOMAIN, children=0, relationships=[], versions=[])
PLACED = [PlacedMemory(**_MEMORY, parent_id="web-shop", depth=1)]
STORE_MEMORIES: dict[str, Any] = {"memories": [STORE_MEMORY]}
STORED_MANY = StoredMemories(
    results=[StoredInBatch(id=_ID, outcome="created", similar=_SIMILAR)],
    created=1,
    duplicates=0,
    merged=0,
    near_checked=True,
    sequence=2,
)
UPDATE_MEMORY: dict[str, Any] = {"tags": ["database", "decided"], "importance": 1.0}
MEMORY_DELETED = MemoryDeleted(deleted_id=_ID, existed=True, sequence=3)
DELETE_MEMORIES: dict[str, Any] = {"memory_types": ["error"], "min_confidence_below": 0.2, "dry_run": True}
MEMORIES_DELETED = MemoriesDeleted(dry_run=True, count=1, ids=[_OTHER], missing=[], more=False, sequence=3)

RECALL: dict[str, Any] = {"query": "which database does the shop use?", "types": ["preference", "decision"]}
RECALLED = RecallAnswer(
    hits=[RecalledMemory(**_MEMORY, score=0.81)],
    withheld={"below_confidence": 1},
    degraded=False,
    index_sequence=2,
    took_ms=9.5,
)
RETAIN: dict[str, Any] = {
    "content": "Alice lives in London.",
    "entity_id": "alice-location",
    "valid_from": "2025-07-01T00:00:00Z",
    "entities": [{"name": "Alice", "entity_type": "person"}],
}
RETAINED = RetainAnswer(
    operations=[
        RetainOperation(
            type="update",
            memory_id="alice-location",
            version_id="alice-location@3",
            content="Alice lives in London.",
            reason="supersedes 'alice-location@1', which was true until 2025-07-01T00:00:00.000000Z",
        )
    ],
    similar=[],
    sequence=3,
    near_checked=True,
)
RETAIN_BATCH: dict[str, Any] = {"items": [RETAIN]}
RETAINED_BATCH = RetainedBatch(
    results=[Retained(operations=RETAINED.operations, similar=[])], sequence=3, near_checked=False
)
FORGET: dict[str, Any] = {"ids": [_ID], "reason": "Alice asked for it"}
FORGOTTEN = ForgetAnswer(
    memories_removed=1,
    relations_removed=1,
    memories_restored=0,
    relations_restored=0,
    ids=[_ID],
    matches=[],
    dry_run=False,
    sequence=4,
)
CONSOLIDATE: dict[str, Any] = {"similarity_threshold": 0.85, "dry_run": True}
_CLUSTER = Cluster(primary=_ID, absorbed=[_OTHER], similarity=0.91, content=_MEMORY["content"], tags=["database"])
CONSOLIDATED = ConsolidationReport(
    dry_run=True,
    run=None,
    plan=2,
    threshold=0.85,
    clusters_found=1,
    memories_merged=1,
    memories_deleted=1,
    clusters=[_CLUSTER],
    kept_apart=[KeptApart(ids=[_ID, _OTHER], similarity=0.97, differs="numbers")],
    kept_apart_count=1,
    left=[],
    near_checked=True,
    sequence=2,
    took_ms=12.5,
)
_RUN = "01980de2-0b11-7c64-a1d2-3e5f7a9b0c1d"
CONSOLIDATIONS = ConsolidationRuns(
    runs=[
        ConsolidationRun(
            id=_RUN,
            started_at=_TIME,
            trigger="manual",
            state="done",
            threshold=0.85,
            guard=True,
            clusters=1,
            merged=1,
            deleted=1,
            suggestions=[],
        )
    ]
)
UNDO: dict[str, Any] = {"force": False}
UNDONE = ConsolidationUndone(run=_RUN, restored=[_OTHER], restored_count=1, skipped=[], sequence=4)
PRUNE: dict[str, Any] = {"dry_run": True}
PRUNED = PruneReport(
    dry_run=True, mode="archive", threshold=0.05, count=1, ids=[_OTHER], kept={"pinned": 1}, sequence=3
)

REFLECT: dict[str, Any] = {"dry_run": True}
REFLECTED = Reflection(
    dry_run=True,
    run=None,
    looked_at=5,
    merged=0,
    linked=[Link(id=_ID, parent_id="colours", score=0.71)],
    linked_count=1,
    proposals=[Proposal(number=1, kind="link", ids=[_OTHER], candidates=[Candidate(id="colours", score=0.48)])],
    proposals_count=1,
    stale=[],
    stale_count=0,
    undone=0,
    skipped=[],
    near_checked=True,
    sequence=3,
    took_ms=21.4,
)

EXTRACT: dict[str, Any] = {"ids": [_ID, "not-there"]}
EXTRACTING = ExtractAnswer(queued=1, missing=["not-there"], waiting=1, sequence=3)

_ALICE: dict[str, Any] = {
    "id": "Alice",
    "name": "Alice",
    "entity_type": "person",
    "description": "Software engineer",
    "metadata": {},
    "aliases": ["Al"],
    "created_at": _TIME,
    "updated_at": _TIME,
    "version": 1,
}
_WORKS: dict[str, Any] = {
    "id": "Alice~works_on~Web shop",
    "source": "Alice",
    "source_name": "Alice",
    "target": "Web shop",
    "target_name": "Web shop",
    "relation_type": "works_on",
    "strength": 0.8,
    "confidence": 1.0,
    "effective_confidence": 1.0,
    "context": None,
    "metadata": {},
    "created_at": _TIME,
    "updated_at": _TIME,
}
_KEY: dict[str, Any] = {"source": "Alice", "target": "Web shop", "relation_type": "works_on"}
ENTITY_INPUT: dict[str, Any] = {"name": "Alice", "entity_type": "person", "description": "Software engineer"}
ENTITIES_INPUT: dict[str, Any] = {"entities": [ENTITY_INPUT]}
ENTITY = NamedEntity(**_ALICE)
ENTITY_UPDATED = UpdatedEntity(**_ALICE, sequence=3)
ENTITY_CREATED = CreatedEntity(**_ALICE, outcome="created", sequence=2)
ENTITIES_CREATED = EntitiesCreated(entities=[ENTITY_CREATED], created=1, sequence=2)
ENTITY_WHOLE = EntityAnswer(**_ALICE, relations=[Relation(**_WORKS)], relations_truncated=False, memories=1)
UPDATE_ENTITY: dict[str, Any] = {"aliases": ["Al", "Alice B."]}
DELETE_ENTITIES: dict[str, Any] = {"entity_names": ["Alice"], "cascade_memories": True, "dry_run": True}
ENTITIES_DELETED = EntitiesDeleted(
    dry_run=True,
    count=1,
    ids=["Alice"],
    missing=[],
    relations_deleted=1,
    memories_deleted=1,
    memories_shared=0,
    sequence=2,
)
ENTITY_GRAPH = EntityGraph(
    nodes=[GraphEntity(**_ALICE, depth=0, memory_count=1, memories=[MEMORY])],
    edges=[],
    truncated=False,
    sequence=2,
)
RELATION_INPUT: dict[str, Any] = {**_KEY, "strength": 0.8}
RELATIONS_INPUT: dict[str, Any] = {"relations": [RELATION_INPUT]}
RELATION_CREATED = CreatedRelation(**_WORKS, outcome="created", sequence=2)
RELATIONS_CREATED = RelationsCreated(relations=[RELATION_CREATED], created=1, entities_created=["Web shop"], sequence=2)
DELETE_RELATIONS: dict[str, Any] = {"relations": [_KEY]}
RELATIONS_DELETED = RelationsDeleted(deleted=1, missing=[RelationKey(**_KEY)], sequence=3)

MEMORY_PAGE = MemoryPage(memories=[MEMORY], next_cursor=None)
ENTITY_PAGE = EntityPage(entities=[ENTITY], next_cursor=None)
RELATION_PAGE = RelationPage(relations=[Relation(**_WORKS)], next_cursor=None)
STATS = MemoryStats(
    total_memories=1,
    total_entities=2,
    total_relations=1,
    memories_by_type={"preference": 1},
    average_confidence=0.97,
    oldest_memory=_TIME,
    newest_memory=_TIME,
    low_confidence_count=0,
    ended={"merged": 1},
    second_parents=0,
    cycles=0,
    sequence=2,
)
GROWTH = Growth(by="day", periods=[GrowthPeriod(period="2025-07-15", created=1, total=1)])
TYPES = MemoryTypes(types=[TypeCount(memory_type="preference", count=1, share=1.0)], total=1)
TAGS = MemoryTags(tags=[MemoryTagCount(tag="database", count=1)])
CONFIDENCE = ConfidenceHistogram(buckets=[ConfidenceBucket(least=0.9, most=1.0, count=1)], average=0.97, total=1)
