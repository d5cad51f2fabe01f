"""The examples of the operations on memories and names, as those of `kgserve.operations.examples`."""

from __future__ import annotations

from typing import Any

from kgserve.model.memories import (
    MemoriesDeleted,
    Memory,
    MemoryDeleted,
    MemoryEntity,
    Similar,
    StoredInBatch,
    StoredMemories,
    StoredMemory,
)

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
STORED = StoredMemory(**_MEMORY, outcome="created", similar=_SIMILAR, near_checked=True, sequence=2)
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
