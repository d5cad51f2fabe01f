"""Examples of the operations on memories and entities."""

from __future__ import annotations

from typing import Any

from kgserve.api.examples import EXAMPLE_TIME
from kgserve.memory.entity_models import (
    ConfidenceBucket,
    ConfidenceHistogram,
    CreatedOrUpdatedEntity,
    CreatedRelation,
    CreateEntitiesAnswer,
    CreateRelationsAnswer,
    DeleteEntitiesAnswer,
    DeleteRelationsAnswer,
    EntityNeighborhoodAnswer,
    EntityPage,
    EntityRelation,
    EntityWithMemories,
    EntityWithRelations,
    MemoryGrowth,
    MemoryGrowthPeriod,
    MemoryTagCount,
    MemoryTagCounts,
    MemoryTypeCount,
    MemoryTypeCounts,
    NamedEntity,
    RelationKey,
    RelationPage,
    StoredMemoryStatistics,
    UpdatedEntity,
)
from kgserve.memory.extraction.extraction_queue_models import ExtractionQueueAnswer
from kgserve.memory.hierarchy_models import MemoryAncestorOrDescendant
from kgserve.memory.memory_models import (
    ConsolidationReport,
    ConsolidationRun,
    ConsolidationRuns,
    DeleteMemoriesAnswer,
    DeleteMemoryAnswer,
    EntityWithRelevance,
    Memory,
    MemoryMergeCluster,
    MemoryPage,
    MemoryPruneReport,
    RecallAnswer,
    RecalledMemory,
    SimilarMemory,
    StoreMemoriesAnswer,
    StoreMemoryAnswer,
    StoreMemoryBatchItemResult,
    UndoConsolidationAnswer,
    UnmergedMemoryPair,
    UpdatedMemory,
)
from kgserve.memory.reflect_models import (
    MemoryParentPlacement,
    OrganizeMemoriesAnswer,
    ParentConceptCandidate,
    ReflectionProposal,
)
from kgserve.memory.relationships import MemoryDetails
from kgserve.memory.retain_forget_recall_models import (
    ForgetAnswer,
    RetainAnswer,
    RetainBatchAnswer,
    RetainItemResult,
    RetainMemoryOutcome,
)

_MEMORY_ID_EXAMPLE = "01980de1-4a00-7d3c-9f0e-6b8d2c5a1e47"
_OTHER_MEMORY_ID_EXAMPLE = "01980de1-3c10-7b52-8e4f-0a7c9d1b2e63"
_MEMORY_ENTITY_EXAMPLE = EntityWithRelevance(id="Alice", name="Alice", entity_type="person", relevance=1.0)
_MEMORY_FIELDS_EXAMPLE: dict[str, Any] = {
    "id": _MEMORY_ID_EXAMPLE,
    "content": "Alice prefers PostgreSQL 16 for the web shop.",
    "memory_type": "preference",
    "tags": ["database"],
    "confidence": 1.0,
    "effective_confidence": 1.0,
    "importance": 0.5,
    "source": "stand-up",
    "context": None,
    "metadata": {},
    "entities": [_MEMORY_ENTITY_EXAMPLE],
    "access_count": 0,
    "last_accessed_at": None,
    "created_at": EXAMPLE_TIME,
    "updated_at": EXAMPLE_TIME,
    "version": 1,
}
_SIMILAR_EXAMPLE = [
    SimilarMemory(
        id=_OTHER_MEMORY_ID_EXAMPLE, similarity=0.97, differs="numbers", content="Alice prefers PostgreSQL 15."
    )
]

STORE_MEMORY_REQUEST_EXAMPLE: dict[str, Any] = {
    "content": _MEMORY_FIELDS_EXAMPLE["content"],
    "memory_type": "preference",
    "tags": ["database"],
    "source": "stand-up",
    "entities": [{"name": "Alice", "entity_type": "person"}],
}
MEMORY_EXAMPLE = Memory(**_MEMORY_FIELDS_EXAMPLE)
UPDATE_MEMORY_ANSWER_EXAMPLE = UpdatedMemory(**_MEMORY_FIELDS_EXAMPLE, sequence=3)
STORE_MEMORY_ANSWER_EXAMPLE = StoreMemoryAnswer(
    **_MEMORY_FIELDS_EXAMPLE, outcome="created", similar=_SIMILAR_EXAMPLE, near_checked=True, sequence=2
)
_DOMAIN_FIELDS_EXAMPLE: dict[str, Any] = _MEMORY_FIELDS_EXAMPLE | {
    "id": "web-shop",
    "content": "The web shop",
    "memory_type": "domain",
    "tags": [],
    "source": None,
    "entities": [],
}
DOMAIN_MEMORY_EXAMPLE = Memory(**_DOMAIN_FIELDS_EXAMPLE, layer=0)
WHOLE_MEMORY_EXAMPLE = MemoryDetails(
    **_MEMORY_FIELDS_EXAMPLE,
    parent_id="web-shop",
    parent=DOMAIN_MEMORY_EXAMPLE,
    children=0,
    relationships=[],
    versions=[],
)
PLACED_MEMORIES_EXAMPLE = [MemoryAncestorOrDescendant(**_MEMORY_FIELDS_EXAMPLE, parent_id="web-shop", depth=1)]
STORE_MEMORIES_REQUEST_EXAMPLE: dict[str, Any] = {"memories": [STORE_MEMORY_REQUEST_EXAMPLE]}
STORE_MEMORIES_ANSWER_EXAMPLE = StoreMemoriesAnswer(
    results=[StoreMemoryBatchItemResult(id=_MEMORY_ID_EXAMPLE, outcome="created", similar=_SIMILAR_EXAMPLE)],
    created=1,
    duplicates=0,
    merged=0,
    near_checked=True,
    sequence=2,
)
UPDATE_MEMORY_REQUEST_EXAMPLE: dict[str, Any] = {"tags": ["database", "decided"], "importance": 1.0}
DELETE_MEMORY_ANSWER_EXAMPLE = DeleteMemoryAnswer(deleted_id=_MEMORY_ID_EXAMPLE, existed=True, sequence=3)
DELETE_MEMORIES_REQUEST_EXAMPLE: dict[str, Any] = {
    "memory_types": ["error"],
    "min_confidence_below": 0.2,
    "dry_run": True,
}
DELETE_MEMORIES_ANSWER_EXAMPLE = DeleteMemoriesAnswer(
    dry_run=True, count=1, ids=[_OTHER_MEMORY_ID_EXAMPLE], missing=[], more=False, sequence=3
)

RECALL_REQUEST_EXAMPLE: dict[str, Any] = {
    "query": "which database does the shop use?",
    "types": ["preference", "decision"],
}
RECALL_ANSWER_EXAMPLE = RecallAnswer(
    hits=[RecalledMemory(**_MEMORY_FIELDS_EXAMPLE, score=0.81)],
    withheld={"below_confidence": 1},
    degraded=False,
    index_sequence=2,
    took_ms=9.5,
)
RETAIN_REQUEST_EXAMPLE: dict[str, Any] = {
    "content": "Alice lives in London.",
    "entity_id": "alice-location",
    "valid_from": "2025-07-01T00:00:00Z",
    "entities": [{"name": "Alice", "entity_type": "person"}],
}
RETAIN_ANSWER_EXAMPLE = RetainAnswer(
    operations=[
        RetainMemoryOutcome(
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
RETAIN_BATCH_REQUEST_EXAMPLE: dict[str, Any] = {"items": [RETAIN_REQUEST_EXAMPLE]}
RETAIN_BATCH_ANSWER_EXAMPLE = RetainBatchAnswer(
    results=[RetainItemResult(operations=RETAIN_ANSWER_EXAMPLE.operations, similar=[])], sequence=3, near_checked=False
)
FORGET_REQUEST_EXAMPLE: dict[str, Any] = {"ids": [_MEMORY_ID_EXAMPLE], "reason": "Alice asked for it"}
FORGET_ANSWER_EXAMPLE = ForgetAnswer(
    memories_removed=1,
    relations_removed=1,
    memories_restored=0,
    relations_restored=0,
    ids=[_MEMORY_ID_EXAMPLE],
    matches=[],
    dry_run=False,
    sequence=4,
)
CONSOLIDATE_REQUEST_EXAMPLE: dict[str, Any] = {"similarity_threshold": 0.85, "dry_run": True}
_CLUSTER_EXAMPLE = MemoryMergeCluster(
    primary=_MEMORY_ID_EXAMPLE,
    absorbed=[_OTHER_MEMORY_ID_EXAMPLE],
    similarity=0.91,
    content=_MEMORY_FIELDS_EXAMPLE["content"],
    tags=["database"],
)
CONSOLIDATE_ANSWER_EXAMPLE = ConsolidationReport(
    dry_run=True,
    run=None,
    plan=2,
    threshold=0.85,
    clusters_found=1,
    memories_merged=1,
    memories_deleted=1,
    clusters=[_CLUSTER_EXAMPLE],
    kept_apart=[
        UnmergedMemoryPair(ids=[_MEMORY_ID_EXAMPLE, _OTHER_MEMORY_ID_EXAMPLE], similarity=0.97, differs="numbers")
    ],
    kept_apart_count=1,
    left=[],
    near_checked=True,
    sequence=2,
    took_ms=12.5,
)
_RUN_ID_EXAMPLE = "01980de2-0b11-7c64-a1d2-3e5f7a9b0c1d"
CONSOLIDATION_RUNS_EXAMPLE = ConsolidationRuns(
    runs=[
        ConsolidationRun(
            id=_RUN_ID_EXAMPLE,
            started_at=EXAMPLE_TIME,
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
UNDO_CONSOLIDATION_REQUEST_EXAMPLE: dict[str, Any] = {"force": False}
UNDO_CONSOLIDATION_ANSWER_EXAMPLE = UndoConsolidationAnswer(
    run=_RUN_ID_EXAMPLE, restored=[_OTHER_MEMORY_ID_EXAMPLE], restored_count=1, skipped=[], sequence=4
)
PRUNE_MEMORIES_REQUEST_EXAMPLE: dict[str, Any] = {"dry_run": True}
PRUNE_MEMORIES_ANSWER_EXAMPLE = MemoryPruneReport(
    dry_run=True,
    mode="archive",
    threshold=0.05,
    count=1,
    ids=[_OTHER_MEMORY_ID_EXAMPLE],
    kept={"pinned": 1},
    sequence=3,
)

REFLECT_REQUEST_EXAMPLE: dict[str, Any] = {"dry_run": True}
REFLECT_ANSWER_EXAMPLE = OrganizeMemoriesAnswer(
    dry_run=True,
    run=None,
    looked_at=5,
    merged=0,
    linked=[MemoryParentPlacement(id=_MEMORY_ID_EXAMPLE, parent_id="colours", score=0.71)],
    linked_count=1,
    proposals=[
        ReflectionProposal(
            number=1,
            kind="link",
            ids=[_OTHER_MEMORY_ID_EXAMPLE],
            candidates=[ParentConceptCandidate(id="colours", score=0.48)],
        )
    ],
    proposals_count=1,
    stale=[],
    stale_count=0,
    undone=0,
    skipped=[],
    near_checked=True,
    sequence=3,
    took_ms=21.4,
)

EXTRACT_REQUEST_EXAMPLE: dict[str, Any] = {"ids": [_MEMORY_ID_EXAMPLE, "not-there"]}
EXTRACT_ANSWER_EXAMPLE = ExtractionQueueAnswer(queued=1, missing=["not-there"], waiting=1, sequence=3)

_ENTITY_FIELDS_EXAMPLE: dict[str, Any] = {
    "id": "Alice",
    "name": "Alice",
    "entity_type": "person",
    "description": "Software engineer",
    "metadata": {},
    "aliases": ["Al"],
    "created_at": EXAMPLE_TIME,
    "updated_at": EXAMPLE_TIME,
    "version": 1,
}
_RELATION_FIELDS_EXAMPLE: dict[str, Any] = {
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
    "created_at": EXAMPLE_TIME,
    "updated_at": EXAMPLE_TIME,
}
_RELATION_KEY_EXAMPLE: dict[str, Any] = {"source": "Alice", "target": "Web shop", "relation_type": "works_on"}
CREATE_ENTITY_REQUEST_EXAMPLE: dict[str, Any] = {
    "name": "Alice",
    "entity_type": "person",
    "description": "Software engineer",
}
CREATE_ENTITIES_REQUEST_EXAMPLE: dict[str, Any] = {"entities": [CREATE_ENTITY_REQUEST_EXAMPLE]}
NAMED_ENTITY_EXAMPLE = NamedEntity(**_ENTITY_FIELDS_EXAMPLE)
UPDATE_ENTITY_ANSWER_EXAMPLE = UpdatedEntity(**_ENTITY_FIELDS_EXAMPLE, sequence=3)
CREATE_ENTITY_ANSWER_EXAMPLE = CreatedOrUpdatedEntity(**_ENTITY_FIELDS_EXAMPLE, outcome="created", sequence=2)
CREATE_ENTITIES_ANSWER_EXAMPLE = CreateEntitiesAnswer(entities=[CREATE_ENTITY_ANSWER_EXAMPLE], created=1, sequence=2)
ENTITY_ANSWER_EXAMPLE = EntityWithRelations(
    **_ENTITY_FIELDS_EXAMPLE,
    relations=[EntityRelation(**_RELATION_FIELDS_EXAMPLE)],
    relations_truncated=False,
    memories=1,
)
UPDATE_ENTITY_REQUEST_EXAMPLE: dict[str, Any] = {"aliases": ["Al", "Alice B."]}
DELETE_ENTITIES_REQUEST_EXAMPLE: dict[str, Any] = {"entity_names": ["Alice"], "cascade_memories": True, "dry_run": True}
DELETE_ENTITIES_ANSWER_EXAMPLE = DeleteEntitiesAnswer(
    dry_run=True,
    count=1,
    ids=["Alice"],
    missing=[],
    relations_deleted=1,
    memories_deleted=1,
    memories_shared=0,
    sequence=2,
)
ENTITY_GRAPH_EXAMPLE = EntityNeighborhoodAnswer(
    nodes=[EntityWithMemories(**_ENTITY_FIELDS_EXAMPLE, depth=0, memory_count=1, memories=[MEMORY_EXAMPLE])],
    edges=[],
    truncated=False,
    sequence=2,
)
CREATE_RELATION_REQUEST_EXAMPLE: dict[str, Any] = {**_RELATION_KEY_EXAMPLE, "strength": 0.8}
CREATE_RELATIONS_REQUEST_EXAMPLE: dict[str, Any] = {"relations": [CREATE_RELATION_REQUEST_EXAMPLE]}
CREATE_RELATION_ANSWER_EXAMPLE = CreatedRelation(**_RELATION_FIELDS_EXAMPLE, outcome="created", sequence=2)
CREATE_RELATIONS_ANSWER_EXAMPLE = CreateRelationsAnswer(
    relations=[CREATE_RELATION_ANSWER_EXAMPLE], created=1, entities_created=["Web shop"], sequence=2
)
DELETE_RELATIONS_REQUEST_EXAMPLE: dict[str, Any] = {"relations": [_RELATION_KEY_EXAMPLE]}
DELETE_RELATIONS_ANSWER_EXAMPLE = DeleteRelationsAnswer(
    deleted=1, missing=[RelationKey(**_RELATION_KEY_EXAMPLE)], sequence=3
)

MEMORY_PAGE_EXAMPLE = MemoryPage(memories=[MEMORY_EXAMPLE], next_cursor=None)
ENTITY_PAGE_EXAMPLE = EntityPage(entities=[NAMED_ENTITY_EXAMPLE], next_cursor=None)
RELATION_PAGE_EXAMPLE = RelationPage(relations=[EntityRelation(**_RELATION_FIELDS_EXAMPLE)], next_cursor=None)
MEMORY_STATS_EXAMPLE = StoredMemoryStatistics(
    total_memories=1,
    total_entities=2,
    total_relations=1,
    memories_by_type={"preference": 1},
    average_confidence=0.97,
    oldest_memory=EXAMPLE_TIME,
    newest_memory=EXAMPLE_TIME,
    low_confidence_count=0,
    ended={"merged": 1},
    second_parents=0,
    cycles=0,
    sequence=2,
)
MEMORY_GROWTH_EXAMPLE = MemoryGrowth(by="day", periods=[MemoryGrowthPeriod(period="2025-07-15", created=1, total=1)])
MEMORY_TYPES_EXAMPLE = MemoryTypeCounts(types=[MemoryTypeCount(memory_type="preference", count=1, share=1.0)], total=1)
MEMORY_TAGS_EXAMPLE = MemoryTagCounts(tags=[MemoryTagCount(tag="database", count=1)])
MEMORY_CONFIDENCE_EXAMPLE = ConfidenceHistogram(
    buckets=[ConfidenceBucket(least=0.9, most=1.0, count=1)], average=0.97, total=1
)
