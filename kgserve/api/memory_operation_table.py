"""Operations on memories and entities, an extension of `kgserve.api.operation_table`; their paths name no store."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from kgserve.api import memory_examples as examples
from kgserve.api.examples import MERGE_ANSWER_EXAMPLE, MERGE_REQUEST_EXAMPLE
from kgserve.api.operation import READ_ERRORS, UPDATE_ERRORS, WRITE_ERRORS, ApiUseCase
from kgserve.memory import (
    analytics,
    entity_operations,
    forget,
    memory_crud,
    memory_details,
    multi_store_recall,
    organize_memories,
    paginated_lists,
    retain,
)
from kgserve.memory.consolidation import consolidate_undo_prune
from kgserve.memory.entity_models import (
    ConfidenceHistogram,
    EntityPage,
    MemoryGrowth,
    MemoryTagCounts,
    MemoryTypeCounts,
    RelationPage,
    StoredMemoryStatistics,
)
from kgserve.memory.memory_models import ConsolidationRuns, MemoryPage, RecallAnswer

_MEMORIES_PATH = "/api/memories"
_V1_PATH = "/api/v1"
_MEMORY_PATH = f"{_MEMORIES_PATH}/{{id}}"
_ENTITIES_PATH = "/api/entities"
_ENTITY_PATH = f"{_ENTITIES_PATH}/{{id}}"
_RELATIONS_PATH = "/api/relations"
_ANALYTICS_PATH = "/api/analytics"
_RECALL_ERRORS = (*READ_ERRORS, "too_large", "unsupported", "conflict", "gone")


def _status_of_creation(answer: Any) -> int:
    return 201 if answer.outcome == "created" else 200


def _entity_path(answer: Any) -> str:
    return f"{_ENTITIES_PATH}/{quote(answer.id, safe='')}"


def _memory_path(answer: Any) -> str:
    return f"{_MEMORIES_PATH}/{quote(answer.id, safe='')}"


_EMPTY_MEMORY_PAGE = MemoryPage(memories=[], next_cursor=None)
_EMPTY_MEMORY_STATS = StoredMemoryStatistics(
    total_memories=0,
    total_entities=0,
    total_relations=0,
    memories_by_type={},
    average_confidence=None,
    oldest_memory=None,
    newest_memory=None,
    low_confidence_count=0,
    ended={},
    second_parents=0,
    cycles=0,
    sequence=0,
)
EMPTY_RECALL = RecallAnswer(hits=[], withheld={}, degraded=False, index_sequence=0, took_ms=0.0)


# fmt: off
# Each row is one paragraph.
MEMORY_CASES = (
    ApiUseCase(
        *("store_memory", "POST", _MEMORIES_PATH, memory_crud.store_memory),
        id="storeMemory", tag="memories", role="write", summary="Store a memory",
        note="201 with `Location` for a new memory, 200 if it matched an existing one.",
        sent=examples.STORE_MEMORY_REQUEST_EXAMPLE, example=examples.STORE_MEMORY_ANSWER_EXAMPLE, errors=WRITE_ERRORS,
        threads="writes", repeatable=False,
        statuses=(201, 200), status=_status_of_creation, location=_memory_path,
    ),
    ApiUseCase(
        *("store_memories", "POST", f"{_MEMORIES_PATH}/batch", memory_crud.store_memories),
        id="storeMemories", tag="memories", role="write", summary="Store memories in one commit",
        note="Up to 1,000, with a result for each.",
        sent=examples.STORE_MEMORIES_REQUEST_EXAMPLE, example=examples.STORE_MEMORIES_ANSWER_EXAMPLE,
        errors=WRITE_ERRORS, threads="writes", repeatable=False,
    ),
    ApiUseCase(
        *("memories", "GET", _MEMORIES_PATH, paginated_lists.list_memories),
        id="listMemories", tag="memories", role="read", summary="List memories page by page",
        example=examples.MEMORY_PAGE_EXAMPLE, errors=(*READ_ERRORS, "conflict"), nothing=_EMPTY_MEMORY_PAGE,
    ),
    ApiUseCase(
        *("memory", "GET", _MEMORY_PATH, memory_crud.get_memory),
        id="getMemory", tag="memories", role="read", summary="Get one memory",
        note="Counts as an access unless `touch` is false.",
        example=examples.MEMORY_EXAMPLE, errors=(*READ_ERRORS, "conflict"), short=0,
    ),
    ApiUseCase(
        *("whole_memory", "GET", "/api/v1/memories/{id}", memory_details.get_memory_details),
        id="getWholeMemory", tag="memories", role="read",
        summary="Get a memory or version with everything that belongs to it",
        note=(
            "With its parent, number of children, relationships and history. Counts as an access, except for a "
            "version by its own id (`ID@SEQUENCE`)."
        ),
        example=examples.WHOLE_MEMORY_EXAMPLE, errors=(*READ_ERRORS, "conflict"),
    ),
    ApiUseCase(
        *("update_memory", "PUT", _MEMORY_PATH, memory_crud.update_memory),
        id="updateMemory", tag="memories", role="write", summary="Change a memory", also=("PATCH",),
        note="Only the given fields. `based_on_version` makes it conditional.",
        sent=examples.UPDATE_MEMORY_REQUEST_EXAMPLE, example=examples.UPDATE_MEMORY_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="writes", repeatable=False,
    ),
    ApiUseCase(
        *("delete_memory", "DELETE", _MEMORY_PATH, memory_crud.delete_memory),
        id="deleteMemory", tag="memories", role="write", summary="Delete one memory",
        note="With its previous versions; its entities remain.",
        example=examples.DELETE_MEMORY_ANSWER_EXAMPLE, errors=UPDATE_ERRORS, threads="writes",
    ),
    ApiUseCase(
        *("delete_memories", "POST", f"{_MEMORIES_PATH}/delete", memory_crud.delete_matching_memories),
        id="deleteMemories", tag="memories", role="write", summary="Delete the memories that match a filter",
        note="`dry_run` deletes nothing.",
        sent=examples.DELETE_MEMORIES_REQUEST_EXAMPLE, example=examples.DELETE_MEMORIES_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="writes",
        repeatable=False,
    ),
    ApiUseCase(
        *("recall", "POST", f"{_MEMORIES_PATH}/search", multi_store_recall.recall_best_memories),
        id="recall", tag="memories", role="read", summary="Find memories by words, meaning and entities",
        sent=examples.RECALL_REQUEST_EXAMPLE, example=examples.RECALL_ANSWER_EXAMPLE, errors=_RECALL_ERRORS,
        nothing=EMPTY_RECALL,
    ),
    ApiUseCase(
        *("retain", "POST", f"{_V1_PATH}/retain", retain.retain_text_or_conversation),
        id="retain", tag="memories", role="write", summary="Remember a text, or the turns of a conversation",
        sent=examples.RETAIN_REQUEST_EXAMPLE, example=examples.RETAIN_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes", repeatable=False,
    ),
    ApiUseCase(
        *("retain_batch", "POST", f"{_V1_PATH}/retain/batch", retain.retain_text_batch),
        id="retainBatch", tag="memories", role="write", summary="Remember texts and conversations in one commit",
        sent=examples.RETAIN_BATCH_REQUEST_EXAMPLE, example=examples.RETAIN_BATCH_ANSWER_EXAMPLE, errors=UPDATE_ERRORS,
        threads="writes", repeatable=False,
    ),
    ApiUseCase(
        *("forget", "POST", f"{_V1_PATH}/forget", forget.soft_delete_or_restore_memories),
        id="forget", tag="memories", role="write", summary="Soft-delete memories, or restore them",
        note="`entity` forgets an entity with what is about it. `hard` deletes, `erase` purges all files.",
        sent=examples.FORGET_REQUEST_EXAMPLE, example=examples.FORGET_ANSWER_EXAMPLE, errors=(*UPDATE_ERRORS, "gone"),
        threads="writes",
        nothing=forget.NOTHING_FORGOTTEN, repeatable=False, long=True, administers=lambda request: request.erase,
    ),
    ApiUseCase(
        *("consolidate", "POST", f"{_MEMORIES_PATH}/consolidate", consolidate_undo_prune.consolidate_memories),
        id="consolidate", tag="memories", role="write", summary="Merge memories that state the same fact",
        sent=examples.CONSOLIDATE_REQUEST_EXAMPLE, optional=True, example=examples.CONSOLIDATE_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="transfers",
        long=True,
    ),
    ApiUseCase(
        *("consolidations", "GET", f"{_MEMORIES_PATH}/consolidations", consolidate_undo_prune.list_consolidations),
        id="listConsolidations", tag="memories", role="read", summary="List the runs of consolidation",
        example=examples.CONSOLIDATION_RUNS_EXAMPLE, nothing=ConsolidationRuns(runs=[]),
    ),
    ApiUseCase(
        *("undo_consolidation", "POST", f"{_MEMORIES_PATH}/consolidations/{{id}}/undo"),
        consolidate_undo_prune.undo_consolidation,
        id="undoConsolidation", tag="memories", role="write", summary="Undo a run of consolidation",
        sent=examples.UNDO_CONSOLIDATION_REQUEST_EXAMPLE, optional=True,
        example=examples.UNDO_CONSOLIDATION_ANSWER_EXAMPLE, errors=UPDATE_ERRORS, threads="transfers", long=True,
    ),
    ApiUseCase(
        *("prune_memories", "POST", f"{_MEMORIES_PATH}/prune", consolidate_undo_prune.prune_memories),
        id="pruneMemories", tag="memories", role="write", summary="Soft-delete memories whose confidence has decayed",
        sent=examples.PRUNE_MEMORIES_REQUEST_EXAMPLE, optional=True, example=examples.PRUNE_MEMORIES_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="transfers", long=True,
    ),
    ApiUseCase(
        *("reflect", "POST", "/api/v1/reflect", organize_memories.place_memories_under_concepts),
        id="reflect", tag="memories", role="write",
        summary="Assign memories to concepts, or propose it",
        note="See [Reflecting](organize.md#reflect).",
        sent=examples.REFLECT_REQUEST_EXAMPLE, optional=True, example=examples.REFLECT_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="transfers", long=True,
    ),
    ApiUseCase(
        *("extract_memories", "POST", f"{_V1_PATH}/extract", memory_crud.queue_memories_for_llm_extraction),
        id="extractMemories", tag="memories", role="write", summary="Extract facts from memories with a language model",
        note="Those in `ids`, or those that were postponed.",
        sent=examples.EXTRACT_REQUEST_EXAMPLE, optional=True, example=examples.EXTRACT_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, repeatable=True,
    ),
    ApiUseCase(
        *("create_entity", "POST", _ENTITIES_PATH, entity_operations.create_entity),
        id="createEntity", tag="entities", role="write", summary="Create an entity, or return the existing one",
        note="Entities are identified by name and type.",
        sent=examples.CREATE_ENTITY_REQUEST_EXAMPLE, example=examples.CREATE_ENTITY_ANSWER_EXAMPLE,
        errors=WRITE_ERRORS, threads="writes",
        statuses=(201, 200), status=_status_of_creation, location=_entity_path, positional=("description",),
    ),
    ApiUseCase(
        *("create_entities", "POST", f"{_ENTITIES_PATH}/batch", entity_operations.create_entities),
        id="createEntities", tag="entities", role="write", summary="Create entities in one commit",
        sent=examples.CREATE_ENTITIES_REQUEST_EXAMPLE, example=examples.CREATE_ENTITIES_ANSWER_EXAMPLE,
        errors=WRITE_ERRORS, threads="writes",
    ),
    ApiUseCase(
        *("entities", "GET", _ENTITIES_PATH, paginated_lists.list_named_entities_page),
        id="listEntities", tag="entities", role="read", summary="List entities by name, page by page",
        example=examples.ENTITY_PAGE_EXAMPLE, nothing=EntityPage(entities=[], next_cursor=None),
    ),
    ApiUseCase(
        *("entity", "GET", _ENTITY_PATH, entity_operations.get_entity),
        id="getEntity", tag="entities", role="read", summary="Get one entity with its relations",
        note="By its id or name.",
        example=examples.ENTITY_ANSWER_EXAMPLE, errors=(*READ_ERRORS, "conflict"), short=0,
    ),
    ApiUseCase(
        *("update_entity", "PUT", _ENTITY_PATH, entity_operations.update_entity),
        id="updateEntity", tag="entities", role="write", summary="Change an entity", also=("PATCH",),
        note="Its id does not change.",
        sent=examples.UPDATE_ENTITY_REQUEST_EXAMPLE, example=examples.UPDATE_ENTITY_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="writes",
    ),
    ApiUseCase(
        *("delete_entity", "DELETE", _ENTITY_PATH, entity_operations.delete_entity),
        id="deleteEntity", tag="entities", role="write", summary="Delete one entity with its relations",
        example=examples.DELETE_ENTITIES_ANSWER_EXAMPLE, errors=UPDATE_ERRORS, threads="writes",
    ),
    ApiUseCase(
        *("delete_entities", "POST", f"{_ENTITIES_PATH}/delete", entity_operations.delete_entities),
        id="deleteEntities", tag="entities", role="write", summary="Delete entities by name",
        sent=examples.DELETE_ENTITIES_REQUEST_EXAMPLE, example=examples.DELETE_ENTITIES_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="writes",
    ),
    ApiUseCase(
        *("entity_graph", "GET", f"{_ENTITY_PATH}/graph", entity_operations.get_entity_neighbourhood),
        id="entityGraph", tag="entities", role="read", summary="List what an entity is related to, with memories",
        example=examples.ENTITY_GRAPH_EXAMPLE, errors=(*READ_ERRORS, "conflict"),
    ),
    ApiUseCase(
        *("merge_entities", "POST", f"{_ENTITY_PATH}/merge", entity_operations.merge_entities),
        id="mergeEntities", tag="entities", role="write",
        summary="Merge a duplicate entity into another entity",
        note="Both names then refer to `into`. Undo it like [any merge](merging.md).",
        sent=MERGE_REQUEST_EXAMPLE, example=MERGE_ANSWER_EXAMPLE, errors=UPDATE_ERRORS, threads="writes",
    ),
    ApiUseCase(
        *("entity_memories", "GET", f"{_ENTITY_PATH}/memories", paginated_lists.list_entity_memories),
        id="entityMemories", tag="entities", role="read", summary="List the memories about an entity, page by page",
        note="Newest first.",
        example=examples.MEMORY_PAGE_EXAMPLE, errors=(*READ_ERRORS, "conflict"),
    ),
    ApiUseCase(
        *("relations", "GET", _RELATIONS_PATH, paginated_lists.list_entity_and_memory_relations),
        id="listRelations", tag="entities", role="read", summary="List relations between entities, page by page",
        example=examples.RELATION_PAGE_EXAMPLE, errors=(*READ_ERRORS, "conflict"),
        nothing=RelationPage(relations=[], next_cursor=None),
    ),
    ApiUseCase(
        *("relate", "POST", _RELATIONS_PATH, entity_operations.create_relation),
        id="createRelation", tag="entities", role="write", summary="Relate two entities by name",
        sent=examples.CREATE_RELATION_REQUEST_EXAMPLE, example=examples.CREATE_RELATION_ANSWER_EXAMPLE,
        errors=WRITE_ERRORS, threads="writes",
        statuses=(201, 200), status=_status_of_creation,
    ),
    ApiUseCase(
        *("create_relations", "POST", f"{_RELATIONS_PATH}/batch", entity_operations.create_relations),
        id="createRelations", tag="entities", role="write", summary="Relate entities by name in one commit",
        sent=examples.CREATE_RELATIONS_REQUEST_EXAMPLE, example=examples.CREATE_RELATIONS_ANSWER_EXAMPLE,
        errors=WRITE_ERRORS, threads="writes",
    ),
    ApiUseCase(
        *("delete_relation", "DELETE", f"{_RELATIONS_PATH}/{{id}}", entity_operations.delete_relation),
        id="deleteRelation", tag="entities", role="write", summary="Delete one relation by id",
        example=examples.DELETE_RELATIONS_ANSWER_EXAMPLE, errors=UPDATE_ERRORS, threads="writes",
    ),
    ApiUseCase(
        *("delete_relations", "POST", f"{_RELATIONS_PATH}/delete", entity_operations.delete_relations),
        id="deleteRelations", tag="entities", role="write", summary="Delete relations by the names of their ends",
        sent=examples.DELETE_RELATIONS_REQUEST_EXAMPLE, example=examples.DELETE_RELATIONS_ANSWER_EXAMPLE,
        errors=UPDATE_ERRORS, threads="writes",
    ),
    ApiUseCase(
        *("memory_stats", "GET", f"{_ANALYTICS_PATH}/overview", analytics.compute_stored_memory_statistics),
        id="memoryStats", tag="analytics", role="read", summary="Summarize the memories of a store",
        note="Counts and averages.",
        example=examples.MEMORY_STATS_EXAMPLE, nothing=_EMPTY_MEMORY_STATS,
    ),
    ApiUseCase(
        *("memory_growth", "GET", f"{_ANALYTICS_PATH}/growth", analytics.get_new_memory_counts_by_period),
        id="memoryGrowth", tag="analytics", role="read", summary="Count new memories by day, week or month",
        example=examples.MEMORY_GROWTH_EXAMPLE, nothing=MemoryGrowth(by="day", periods=[]),
    ),
    ApiUseCase(
        *("memory_types", "GET", f"{_ANALYTICS_PATH}/types", analytics.count_memory_types),
        id="memoryTypes", tag="analytics", role="read", summary="Count memories by type",
        example=examples.MEMORY_TYPES_EXAMPLE, nothing=MemoryTypeCounts(types=[], total=0),
    ),
    ApiUseCase(
        *("memory_tags", "GET", f"{_ANALYTICS_PATH}/tags", analytics.count_memory_tags),
        id="memoryTags", tag="analytics", role="read", summary="Count memories by tag",
        example=examples.MEMORY_TAGS_EXAMPLE, nothing=MemoryTagCounts(tags=[]),
    ),
    ApiUseCase(
        *("memory_confidence", "GET", f"{_ANALYTICS_PATH}/confidence", analytics.get_confidence_histogram),
        id="memoryConfidence", tag="analytics", role="read", summary="Count memories by remaining confidence",
        note="A histogram of `buckets` (10) ranges.",
        example=examples.MEMORY_CONFIDENCE_EXAMPLE, nothing=ConfidenceHistogram(buckets=[], average=None, total=0),
    ),
)
