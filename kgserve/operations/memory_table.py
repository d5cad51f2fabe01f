"""The operations on memories and names, as those of `kgserve.operations.table`; their paths name no store."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from kgserve.operations import memory_examples as examples
from kgserve.operations.operation import READ, WRITE, UseCase
from kgserve.ops import memories

_MEMORIES = "/api/memories"
_MEMORY = f"{_MEMORIES}/{{id}}"
_KNOWN = (*WRITE, "not_found")


def _made(answer: Any) -> int:
    return 201 if answer.outcome == "created" else 200


def _memory_at(answer: Any) -> str:
    return f"{_MEMORIES}/{quote(answer.id, safe='')}"


# fmt: off
# One row, one paragraph.
MEMORY_CASES = (
    UseCase(
        *("store_memory", "POST", _MEMORIES, memories.store_memory),
        id="storeMemory", tag="memories", role="write", summary="Store a memory",
        sent=examples.STORE_MEMORY, example=examples.STORED, errors=WRITE, threads="writes", repeatable=False,
        statuses=(201, 200), status=_made, location=_memory_at,
    ),
    UseCase(
        *("store_memories", "POST", f"{_MEMORIES}/batch", memories.store_memories),
        id="storeMemories", tag="memories", role="write", summary="Store memories, all in one commit",
        sent=examples.STORE_MEMORIES, example=examples.STORED_MANY, errors=WRITE, threads="writes", repeatable=False,
    ),
    UseCase(
        *("memory", "GET", _MEMORY, memories.get_memory),
        id="getMemory", tag="memories", role="read", summary="One memory",
        example=examples.MEMORY, errors=(*READ, "conflict"),
    ),
    UseCase(
        *("update_memory", "PUT", _MEMORY, memories.update_memory),
        id="updateMemory", tag="memories", role="write", summary="Change a memory", also=("PATCH",),
        sent=examples.UPDATE_MEMORY, example=examples.MEMORY, errors=_KNOWN, threads="writes", repeatable=False,
    ),
    UseCase(
        *("delete_memory", "DELETE", _MEMORY, memories.delete_memory),
        id="deleteMemory", tag="memories", role="write", summary="Delete one memory",
        example=examples.MEMORY_DELETED, errors=_KNOWN, threads="writes",
    ),
    UseCase(
        *("delete_memories", "POST", f"{_MEMORIES}/delete", memories.delete_memories),
        id="deleteMemories", tag="memories", role="write", summary="Delete the memories that fit a filter",
        sent=examples.DELETE_MEMORIES, example=examples.MEMORIES_DELETED, errors=_KNOWN, threads="writes",
        repeatable=False,
    ),
)
