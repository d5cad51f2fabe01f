"""Events of consolidations, prunings and undone runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kgserve.memory.consolidation.consolidate_undo_prune import consolidate_memories, prune_memories, undo_consolidation
from kgserve.memory.memory_models import ConsolidateRequest, PruneMemoriesRequest, UndoConsolidationRequest
from kgserve.platform.timestamps import DAY_MICROSECONDS
from kgserve.storage.changefeed import ChangeFeedReader
from kgserve.storage.model.change_feed_events import ChangeFeedEventFilter, FeedPosition
from tests.memory.memory_stores import HOOKS, Place, memory, placed, put

ROWS = ("node_", "edge_")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(tmp_path_factory.mktemp("stores")) as opened:
        yield opened


def put_duplicates(place: Place, name: str) -> int:
    """Store five duplicates; return the sequence."""
    with place.pool.lease(name, create=True) as store:
        put(store, [memory(f"m{at}", text, created_at=1_790_000_000_000_000 + at) for at, text in enumerate(HOOKS)])
        return store.state.sequence


def events_after(place: Place, name: str, after: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the memory events after a commit, without row events."""
    with place.pool.lease(name) as store:
        reader = ChangeFeedReader(store.feed, FeedPosition.after(after), lambda: None)
        entries = reader.take(ChangeFeedEventFilter()) or []
        reader.close()
    found = [(entry.event.kind, msgspec.json.decode(entry.data)) for entry in entries]
    return [each for each in found if not each[0].startswith(ROWS)]


def test_consolidation_and_undo_events_include_counts(place: Place, store: str) -> None:
    before = put_duplicates(place, store)
    done = consolidate_memories(place.graph(store), ConsolidateRequest())
    assert done.run is not None
    heard = events_after(place, store, before)
    assert sorted(data["id"] for kind, data in heard if kind == "memory_deleted") == ["m1", "m2", "m3", "m4"]
    assert {data["reason"] for kind, data in heard if kind == "memory_deleted"} == {"merged"}
    [(_, updated)] = [each for each in heard if each[0] == "memory_updated"]
    assert updated["id"] == "m0"
    assert updated["changes"]["content"].splitlines() == [*HOOKS]
    kind, complete = heard[-1]
    assert (kind, complete["id"], complete["merged"], complete["deleted"]) == ("consolidation_complete", done.run, 4, 4)
    assert [kind for kind, _ in heard].count("consolidation_complete") == 1
    with place.pool.lease(store) as leased:
        after = leased.state.sequence
    undo_consolidation(place.graph(store), UndoConsolidationRequest(run_id=done.run))
    heard = events_after(place, store, after)
    assert sorted(data["id"] for kind, data in heard if kind == "memory_created") == ["m1", "m2", "m3", "m4"]
    assert {kind for kind, _ in heard} == {"memory_created", "memory_updated"}


def test_pruned_memory_emits_event(place: Place, store: str) -> None:
    with place.pool.lease(store, create=True) as leased:
        put(leased, [memory("old", "long ago", created_at=1_790_000_000_000_000 - 400 * DAY_MICROSECONDS)])
        after = leased.state.sequence
    prune_memories(place.graph(store), PruneMemoriesRequest())
    [(kind, data)] = events_after(place, store, after)
    assert (kind, data["id"], data["reason"]) == ("memory_deleted", "old", "pruned")
