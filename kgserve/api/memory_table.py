"""The operations on memories and names, as those of `kgserve.api.table`; their paths name no store."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from kgserve.api import memory_examples as examples
from kgserve.api.examples import MERGE, MERGED
from kgserve.api.operation import READ, WRITE, UseCase
from kgserve.memory import (
    analytics,
    entities,
    forget,
    lists,
    recall_stores,
    reflect,
    retain,
    store_memory,
    whole_memory,
)
from kgserve.memory.api import ConsolidationRuns, MemoryPage, RecallAnswer
from kgserve.memory.consolidation import use_cases
from kgserve.memory.entities_api import (
    ConfidenceHistogram,
    EntityPage,
    Growth,
    MemoryStats,
    MemoryTags,
    MemoryTypes,
    RelationPage,
)

_MEMORIES = "/api/memories"
_LAYERED = "/api/v1"
_MEMORY = f"{_MEMORIES}/{{id}}"
_ENTITIES = "/api/entities"
_ENTITY = f"{_ENTITIES}/{{id}}"
_RELATIONS = "/api/relations"
_ANALYTICS = "/api/analytics"
_SEARCH = (*READ, "too_large", "unsupported", "conflict", "gone")
_KNOWN = (*WRITE, "not_found")


def _made(answer: Any) -> int:
    return 201 if answer.outcome == "created" else 200


def _entity_at(answer: Any) -> str:
    return f"{_ENTITIES}/{quote(answer.id, safe='')}"


def _memory_at(answer: Any) -> str:
    return f"{_MEMORIES}/{quote(answer.id, safe='')}"


_NO_MEMORIES = MemoryPage(memories=[], next_cursor=None)
_NO_STATS = MemoryStats(
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
NOTHING_RECALLED = RecallAnswer(hits=[], withheld={}, degraded=False, index_sequence=0, took_ms=0.0)


# fmt: off
# One row, one paragraph.
MEMORY_CASES = (
    UseCase(
        *("store_memory", "POST", _MEMORIES, store_memory.store_memory),
        id="storeMemory", tag="memories", role="write", summary="Store a memory",
        sent=examples.STORE_MEMORY, example=examples.STORED, errors=WRITE, threads="writes", repeatable=False,
        statuses=(201, 200), status=_made, location=_memory_at,
    ),
    UseCase(
        *("store_memories", "POST", f"{_MEMORIES}/batch", store_memory.store_memories),
        id="storeMemories", tag="memories", role="write", summary="Store memories, all in one commit",
        sent=examples.STORE_MEMORIES, example=examples.STORED_MANY, errors=WRITE, threads="writes", repeatable=False,
    ),
    UseCase(
        *("memories", "GET", _MEMORIES, lists.list_memories),
        id="listMemories", tag="memories", role="read", summary="List memories, page by page",
        example=examples.MEMORY_PAGE, errors=(*READ, "conflict"), nothing=_NO_MEMORIES,
    ),
    UseCase(
        *("memory", "GET", _MEMORY, store_memory.get_memory),
        id="getMemory", tag="memories", role="read", summary="One memory",
        example=examples.MEMORY, errors=(*READ, "conflict"),
    ),
    UseCase(
        *("whole_memory", "GET", "/api/v1/memories/{id}", whole_memory.whole_memory),
        id="getWholeMemory", tag="memories", role="read", summary="One memory or version with what belongs to it",
        example=examples.WHOLE_MEMORY, errors=(*READ, "conflict"),
    ),
    UseCase(
        *("update_memory", "PUT", _MEMORY, store_memory.update_memory),
        id="updateMemory", tag="memories", role="write", summary="Change a memory", also=("PATCH",),
        sent=examples.UPDATE_MEMORY, example=examples.MEMORY_UPDATED, errors=_KNOWN, threads="writes", repeatable=False,
    ),
    UseCase(
        *("delete_memory", "DELETE", _MEMORY, store_memory.delete_memory),
        id="deleteMemory", tag="memories", role="write", summary="Delete one memory",
        example=examples.MEMORY_DELETED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("delete_memories", "POST", f"{_MEMORIES}/delete", store_memory.delete_memories),
        id="deleteMemories", tag="memories", role="write", summary="Delete the memories that fit a filter",
        sent=examples.DELETE_MEMORIES, example=examples.MEMORIES_DELETED, errors=_KNOWN, threads="writes",
        repeatable=False,
    ),
    UseCase(
        *("recall", "POST", f"{_MEMORIES}/search", recall_stores.recall),
        id="recall", tag="memories", role="read", summary="Find memories by words, by meaning, by whom they are about",
        sent=examples.RECALL, example=examples.RECALLED, errors=_SEARCH, nothing=NOTHING_RECALLED,
    ),
    UseCase(
        *("retain", "POST", f"{_LAYERED}/retain", retain.retain),
        id="retain", tag="memories", role="write", summary="Remember a text, or the turns of a conversation",
        sent=examples.RETAIN, example=examples.RETAINED, errors=_KNOWN, threads="writes", repeatable=False,
    ),
    UseCase(
        *("retain_batch", "POST", f"{_LAYERED}/retain/batch", retain.retain_batch),
        id="retainBatch", tag="memories", role="write", summary="Remember texts and conversations, all in one commit",
        sent=examples.RETAIN_BATCH, example=examples.RETAINED_BATCH, errors=_KNOWN, threads="writes", repeatable=False,
    ),
    UseCase(
        *("forget", "POST", f"{_LAYERED}/forget", forget.forget),
        id="forget", tag="memories", role="write", summary="Withdraw memories, or bring them back",
        sent=examples.FORGET, example=examples.FORGOTTEN, errors=(*_KNOWN, "gone"), threads="writes",
        nothing=forget.NOTHING_FORGOTTEN, repeatable=False, long=True, administers=lambda asked: asked.erase,
    ),
    UseCase(
        *("consolidate", "POST", f"{_MEMORIES}/consolidate", use_cases.consolidate),
        id="consolidate", tag="memories", role="write", summary="Merge memories that say the same",
        sent=examples.CONSOLIDATE, optional=True, example=examples.CONSOLIDATED, errors=_KNOWN, threads="transfers",
        long=True,
    ),
    UseCase(
        *("consolidations", "GET", f"{_MEMORIES}/consolidations", use_cases.consolidations),
        id="listConsolidations", tag="memories", role="read", summary="What consolidation has merged, run by run",
        example=examples.CONSOLIDATIONS, nothing=ConsolidationRuns(runs=[]),
    ),
    UseCase(
        *("undo_consolidation", "POST", f"{_MEMORIES}/consolidations/{{id}}/undo", use_cases.undo_consolidation),
        id="undoConsolidation", tag="memories", role="write", summary="Bring back what a run has merged",
        sent=examples.UNDO, optional=True, example=examples.UNDONE, errors=_KNOWN, threads="transfers", long=True,
    ),
    UseCase(
        *("prune_memories", "POST", f"{_MEMORIES}/prune", use_cases.prune_memories),
        id="pruneMemories", tag="memories", role="write", summary="Withdraw the memories that have faded",
        sent=examples.PRUNE, optional=True, example=examples.PRUNED, errors=_KNOWN, threads="transfers", long=True,
    ),
    UseCase(
        *("reflect", "POST", "/api/v1/reflect", reflect.reflect),
        id="reflect", tag="memories", role="write", summary="Put memories where they belong, or propose it",
        sent=examples.REFLECT, optional=True, example=examples.REFLECTED, errors=_KNOWN, threads="transfers", long=True,
    ),
    UseCase(
        *("extract_memories", "POST", f"{_LAYERED}/extract", store_memory.extract_memories),
        id="extractMemories", tag="memories", role="write", summary="Have a language model take facts out of memories",
        sent=examples.EXTRACT, optional=True, example=examples.EXTRACTING, errors=_KNOWN, repeatable=True,
    ),
    UseCase(
        *("create_entity", "POST", _ENTITIES, entities.create_entity),
        id="createEntity", tag="entities", role="write", summary="Create an entity, or meet the one of that name",
        sent=examples.ENTITY_INPUT, example=examples.ENTITY_CREATED, errors=WRITE, threads="writes",
        statuses=(201, 200), status=_made, location=_entity_at, positional=("description",),
    ),
    UseCase(
        *("create_entities", "POST", f"{_ENTITIES}/batch", entities.create_entities),
        id="createEntities", tag="entities", role="write", summary="Create entities, all in one commit",
        sent=examples.ENTITIES_INPUT, example=examples.ENTITIES_CREATED, errors=WRITE, threads="writes",
    ),
    UseCase(
        *("entities", "GET", _ENTITIES, lists.list_entities),
        id="listEntities", tag="entities", role="read", summary="List entities by name, page by page",
        example=examples.ENTITY_PAGE, nothing=EntityPage(entities=[], next_cursor=None),
    ),
    UseCase(
        *("entity", "GET", _ENTITY, entities.get_entity),
        id="getEntity", tag="entities", role="read", summary="One entity with its relations",
        example=examples.ENTITY_WHOLE, errors=(*READ, "conflict"),
    ),
    UseCase(
        *("update_entity", "PUT", _ENTITY, entities.update_entity),
        id="updateEntity", tag="entities", role="write", summary="Change an entity", also=("PATCH",),
        sent=examples.UPDATE_ENTITY, example=examples.ENTITY_UPDATED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("delete_entity", "DELETE", _ENTITY, entities.delete_entity),
        id="deleteEntity", tag="entities", role="write", summary="Delete one entity with its relations",
        example=examples.ENTITIES_DELETED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("delete_entities", "POST", f"{_ENTITIES}/delete", entities.delete_entities),
        id="deleteEntities", tag="entities", role="write", summary="Delete entities by name",
        sent=examples.DELETE_ENTITIES, example=examples.ENTITIES_DELETED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("entity_graph", "GET", f"{_ENTITY}/graph", entities.entity_graph),
        id="entityGraph", tag="entities", role="read", summary="What an entity is related to, with memories",
        example=examples.ENTITY_GRAPH, errors=(*READ, "conflict"),
    ),
    UseCase(
        *("merge_entities", "POST", f"{_ENTITY}/merge", entities.merge_entities),
        id="mergeEntities", tag="entities", role="write", summary="Merge an entity into another one that is the same",
        sent=MERGE, example=MERGED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("entity_memories", "GET", f"{_ENTITY}/memories", lists.entity_memories),
        id="entityMemories", tag="entities", role="read", summary="The memories about an entity, page by page",
        example=examples.MEMORY_PAGE, errors=(*READ, "conflict"),
    ),
    UseCase(
        *("relations", "GET", _RELATIONS, lists.list_relations),
        id="listRelations", tag="entities", role="read", summary="List relations between entities, page by page",
        example=examples.RELATION_PAGE, errors=(*READ, "conflict"),
        nothing=RelationPage(relations=[], next_cursor=None),
    ),
    UseCase(
        *("relate", "POST", _RELATIONS, entities.relate),
        id="createRelation", tag="entities", role="write", summary="Relate two entities by name",
        sent=examples.RELATION_INPUT, example=examples.RELATION_CREATED, errors=WRITE, threads="writes",
        statuses=(201, 200), status=_made,
    ),
    UseCase(
        *("create_relations", "POST", f"{_RELATIONS}/batch", entities.create_relations),
        id="createRelations", tag="entities", role="write", summary="Relate entities by name, all in one commit",
        sent=examples.RELATIONS_INPUT, example=examples.RELATIONS_CREATED, errors=WRITE, threads="writes",
    ),
    UseCase(
        *("delete_relation", "DELETE", f"{_RELATIONS}/{{id}}", entities.delete_relation),
        id="deleteRelation", tag="entities", role="write", summary="Delete one relation by its id",
        example=examples.RELATIONS_DELETED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("delete_relations", "POST", f"{_RELATIONS}/delete", entities.delete_relations),
        id="deleteRelations", tag="entities", role="write", summary="Delete relations by the names of their ends",
        sent=examples.DELETE_RELATIONS, example=examples.RELATIONS_DELETED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("memory_stats", "GET", f"{_ANALYTICS}/overview", analytics.overview),
        id="memoryStats", tag="analytics", role="read", summary="How much is remembered, and how sure it is",
        example=examples.STATS, nothing=_NO_STATS,
    ),
    UseCase(
        *("memory_growth", "GET", f"{_ANALYTICS}/growth", analytics.growth),
        id="memoryGrowth", tag="analytics", role="read", summary="Memories by day, week or month",
        example=examples.GROWTH, nothing=Growth(by="day", periods=[]),
    ),
    UseCase(
        *("memory_types", "GET", f"{_ANALYTICS}/types", analytics.types),
        id="memoryTypes", tag="analytics", role="read", summary="Memories by type",
        example=examples.TYPES, nothing=MemoryTypes(types=[], total=0),
    ),
    UseCase(
        *("memory_tags", "GET", f"{_ANALYTICS}/tags", analytics.tags),
        id="memoryTags", tag="analytics", role="read", summary="Memories by tag",
        example=examples.TAGS, nothing=MemoryTags(tags=[]),
    ),
    UseCase(
        *("memory_confidence", "GET", f"{_ANALYTICS}/confidence", analytics.confidence),
        id="memoryConfidence", tag="analytics", role="read", summary="Memories by what is left of their confidence",
        example=examples.CONFIDENCE, nothing=ConfidenceHistogram(buckets=[], average=None, total=0),
    ),
)
