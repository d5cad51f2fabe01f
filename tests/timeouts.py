"""Longer timeouts for tests, which run concurrently and slow each other down."""

from __future__ import annotations

from httpx._config import DEFAULT_TIMEOUT_CONFIG

from kgserve.graph import as_of_graph
from kgserve.memory import multi_store_recall, organize_memories

SECONDS = 45.0
REQUEST_SECONDS = 60.0


def be_patient() -> None:
    """Let recalls and reflections wait longer for the indexes, and reads as of a moment for the history."""
    setattr(organize_memories, "MEMORY_JOB_TIMEOUT_SECONDS", SECONDS)  # noqa: B010 - imported by name there
    multi_store_recall.RECALL_INDEX_TIMEOUT_SECONDS = as_of_graph.HISTORY_CATCH_UP_TIMEOUT_SECONDS = SECONDS


def wait_long_for_answers() -> None:
    """Set the default timeout of httpx to a minute; its 5 s are too short on a busy machine."""
    for part in ("connect", "read", "write", "pool"):
        setattr(DEFAULT_TIMEOUT_CONFIG, part, REQUEST_SECONDS)
