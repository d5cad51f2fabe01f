"""Memory events derived from the planner's change sets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kgserve.storage.model.change_feed_events import (
    MAX_SINGLE_EVENT_ROWS,
    ChangeFeedEventFilter,
    StoreEvent,
    expand_change_set_into_events,
)
from kgserve.storage.model.change_set import ChangeSet, StoreState
from kgserve.storage.model.node_edge_fields import NodeExtrasUpsert
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.storage.write_planner import WritePlanningWorkspace, plan_write_batch

OURS = ("sequence", "store", "time")


class Listener:
    """Plans batches in order, and returns the events of each after a journal round trip."""

    def __init__(self, *batches: WriteBatch) -> None:
        self.workspace = WritePlanningWorkspace()
        self.state = StoreState()
        self.told: list[StoreEvent] = []
        for batch in batches:
            self.hears(batch)

    def hears(self, batch: WriteBatch) -> list[tuple[str, dict[str, Any]]]:
        """Plan a batch; return its memory events, without row events."""
        self.workspace.incident = {node_id: set() for node_id in batch.delete_nodes}
        planned, _ = plan_write_batch(batch, self.workspace, self.state, 1)
        if planned is None:
            return []
        self.state = planned.state
        change = msgspec.msgpack.decode(msgspec.msgpack.encode(planned), type=ChangeSet)
        self.told = expand_change_set_into_events("s", change)
        assert [event.index for event in self.told] == list(range(len(self.told)))
        rows = sum(event.kind.startswith(("node_", "edge_")) for event in self.told)
        assert not any(event.kind.startswith(("node_", "edge_")) for event in self.told[rows:])
        return [(event.kind, data(event)) for event in self.told[rows:]]


def data(event: StoreEvent) -> dict[str, Any]:
    return {key: value for key, value in msgspec.json.decode(event.json()).items() if key not in OURS}


def put(node_id: str, type_: str | None = None, content: str | None = None, **extras: Any) -> WriteBatch:
    some = NodeExtrasUpsert(**extras) if extras else None
    return WriteBatch(nodes=[NodeUpsert(0, node_id, type_, content, extras=some)])


MEMORY = put("m", "fact", "tea", confidence=0.5, tags=("x",))
ENTITY = put("Ada", "person", name="Ada")
RUN = '{"merged":3,"deleted":2,"status":"%s"}'


def test_created_memory_event() -> None:
    listener = Listener()
    assert listener.hears(MEMORY) == [("memory_created", {"id": "m", "content": "tea", "type": "fact"})]
    assert listener.hears(ENTITY) == [("entity_created", {"id": "Ada", "name": "Ada", "type": "person"})]
    assert listener.hears(put("plain", "t", "text")) == []
    assert listener.hears(put("plain", name="Plain")) == [
        ("entity_created", {"id": "plain", "name": "Plain", "type": "t"})
    ]
    assert listener.hears(put("Ada", "lady")) == []
    assert listener.hears(put("Ada", confidence=1.0)) == [
        ("memory_created", {"id": "Ada", "content": "", "type": "lady"})
    ]


def test_updated_memory_event_lists_changed_fields() -> None:
    listener = Listener(MEMORY)
    assert listener.hears(put("m", "decision", "coffee", tags=(), valid_to=0)) == [
        (
            "memory_updated",
            {
                "id": "m",
                "changes": {
                    "type": "decision",
                    "content": "coffee",
                    "tags": [],
                    "valid_to": "1970-01-01T00:00:00.000000Z",
                },
            },
        )
    ]
    assert listener.hears(put("m", valid_to=None)) == [("memory_updated", {"id": "m", "changes": {"valid_to": None}})]
    attributes = WriteBatch(nodes=[NodeUpsert(0, "m", attributes='{"a":1}')])
    assert listener.hears(attributes) == [("memory_updated", {"id": "m", "changes": {"attributes": {"a": 1}}})]
    assert listener.hears(put("m", created_by="somebody")) == []
    assert listener.hears(WriteBatch(nodes=[NodeUpsert(0, "m", version=9, updated_at=5)])) == []


@pytest.mark.parametrize("ended", ["superseded", "merged", "forgotten", "pruned"])
def test_withdrawn_and_restored_memory_events(ended: str) -> None:
    listener = Listener(MEMORY)
    gone = put("m", ended=ended, valid_from=5, valid_to=5, former_to=9)
    assert listener.hears(gone) == [("memory_deleted", {"id": "m", "reason": ended})]
    assert listener.told[-1].type == "fact"
    assert listener.hears(put("m", content="no subscriber")) == []
    assert listener.hears(put("m", content="tea", ended="", valid_from=None, valid_to=None)) == [
        ("memory_created", {"id": "m", "content": "tea", "type": "fact"})
    ]
    listener.hears(gone)
    assert listener.hears(WriteBatch(delete_nodes=["m"])) == []
    assert listener.hears(put("archived", "fact", "x", confidence=1.0, ended=ended)) == []


def test_deleted_memory_event() -> None:
    listener = Listener(MEMORY, ENTITY)
    assert listener.hears(WriteBatch(delete_nodes=["m", "Ada"])) == [
        ("memory_deleted", {"id": "m", "reason": "deleted"})
    ]
    listener = Listener(MEMORY)
    anew = WriteBatch(delete_nodes=["m"], nodes=MEMORY.nodes)
    assert [kind for kind, _ in listener.hears(anew)] == ["memory_deleted", "memory_created"]
    assert listener.hears(put("m", confidence=None)) == [("memory_deleted", {"id": "m", "reason": "withdrawn"})]


def test_consolidation_event_is_emitted_once() -> None:
    def run(status: str, content: str = "") -> WriteBatch:
        return WriteBatch(nodes=[NodeUpsert(0, "run", "consolidation", content, RUN % status)])

    listener = Listener(run("running"))
    complete = ("consolidation_complete", {"id": "run", "merged": 3, "deleted": 2})
    assert listener.hears(run("done")) == [complete]
    assert listener.hears(run("done", "said again")) == []
    assert listener.hears(run("undone")) == []
    assert Listener().hears(run("done")) == [complete]
    odd = WriteBatch(nodes=[NodeUpsert(0, "odd", "consolidation", "", '{"status":1,"merged":"many"}')])
    assert Listener().hears(odd) == []


def test_event_order_and_filters() -> None:
    listener = Listener(MEMORY, put("n", "fact", "milk", confidence=1.0))
    listener.hears(
        WriteBatch(
            delete_nodes=["n"],
            nodes=[
                *MEMORY.nodes,
                NodeUpsert(0, "m", content="new"),
                *ENTITY.nodes,
                *put("o", "note", confidence=1.0).nodes,
            ],
        )
    )
    assert [event.kind for event in listener.told] == [
        "node_deleted", "node_created", "node_created", "node_updated",
        "memory_deleted", "entity_created", "memory_created", "memory_updated",
    ]  # fmt: skip
    facts = ChangeFeedEventFilter(types=frozenset({"fact"}))
    assert [event.kind for event in listener.told if facts.takes(event)] == [
        "node_deleted", "node_updated", "memory_deleted", "memory_updated",
    ]  # fmt: skip
    kinds = ChangeFeedEventFilter(kinds=frozenset({"memory_created", "entity_created"}))
    assert [event.index for event in listener.told if kinds.takes(event)] == [5, 6]
    assert all(event.cost >= 100 for event in listener.told)


def test_large_write_emits_counts() -> None:
    nodes = [
        NodeUpsert(n, f"m{n}", "fact", extras=NodeExtrasUpsert(confidence=1.0))
        for n in range(MAX_SINGLE_EVENT_ROWS + 1)
    ]
    run = NodeUpsert(0, "run", "consolidation", "", RUN % "done")
    listener = Listener()
    listener.hears(WriteBatch(nodes=[*nodes, *ENTITY.nodes, run]))
    assert [event.kind for event in listener.told] == ["bulk_changed", "consolidation_complete"]
    bulk = data(listener.told[0])
    assert (bulk["nodes_created"], bulk["memories_created"], bulk["entities_created"]) == (1003, 1001, 1)
    assert "memories_deleted" not in bulk
    listener.hears(WriteBatch(delete_nodes=[put.id for put in nodes]))
    assert data(listener.told[0])["memories_deleted"] == MAX_SINGLE_EVENT_ROWS + 1
    plain = [NodeUpsert(n, f"p{n}", "t") for n in range(MAX_SINGLE_EVENT_ROWS + 1)]
    listener.hears(WriteBatch(nodes=plain))
    assert data(listener.told[0]).keys() == {
        f"{rows}_{done}" for rows in ("nodes", "edges") for done in ("created", "updated", "deleted")
    }


def test_change_set_without_previous_rows() -> None:
    """A repaired or older change set without previous rows emits no invented values."""
    listener = Listener(MEMORY)
    planned, _ = plan_write_batch(put("m", content="new"), listener.workspace, listener.state, 1)
    assert planned is not None
    assert [
        event.kind for event in expand_change_set_into_events("s", msgspec.structs.replace(planned, former=[]))
    ] == ["node_updated"]
