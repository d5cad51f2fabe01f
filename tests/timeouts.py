"""Longer timeouts for tests, which run concurrently and slow each other down."""

from __future__ import annotations

from httpx._config import DEFAULT_TIMEOUT_CONFIG

from kgserve.graph import as_of_graph, as_of_resolution, versioned_writes
from kgserve.graph.search import node_search
from kgserve.memory import multi_store_recall, organize_memories
from kgserve.server import admission
from kgserve.server.bolt import store_backend

SECONDS = 45.0
REQUEST_SECONDS = 60.0


def be_patient() -> None:
    """Let requests wait longer for their turn, for the indexes, and for the history."""
    setattr(organize_memories, "MEMORY_JOB_TIMEOUT_SECONDS", SECONDS)  # noqa: B010 - imported by name there
    multi_store_recall.RECALL_INDEX_TIMEOUT_SECONDS = as_of_graph.HISTORY_CATCH_UP_TIMEOUT_SECONDS = SECONDS
    as_of_resolution.AS_OF_TIMEOUT_SECONDS = node_search.AT_LEAST_TIMEOUT_SECONDS = SECONDS
    versioned_writes.VERSION_QUEUE_TIMEOUT_SECONDS = store_backend.MAX_BOOKMARK_WAIT_SECONDS = SECONDS
    admission.MAX_READ_WAIT_SECONDS = SECONDS


def wait_long_for_answers() -> None:
    """Set the default timeout of httpx to a minute; its 5 s are too short on a busy machine."""
    for part in ("connect", "read", "write", "pool"):
        setattr(DEFAULT_TIMEOUT_CONFIG, part, REQUEST_SECONDS)
