from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kgserve.errors import InvalidInput
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.change_feed_events import (
    MAX_SINGLE_EVENT_ROWS,
    ChangeFeedEventFilter,
    FeedPosition,
    StoreEvent,
    expand_change_set_into_events,
    format_change_feed_positions,
    parse_change_feed_positions,
    parse_event_kinds,
)
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_fields import EdgeExtras, NodeExtras
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow

TIME = 1_752_580_800_000_000
TEXT = "2025-07-15T12:00:00.000000Z"


def node(name: str, type_: str = "t") -> NodeRow:
    return NodeRow(name, type_, "line one\nline two", '{"a":[1,"\\n"]}', 1, 7, TIME, TIME)


def edge(source: str, target: str, type_: str = "r") -> EdgeRow:
    return EdgeRow(source, target, type_, 0.5, f'{{"created_at":"{TEXT}","updated_at":"{TEXT}"}}', 1, 7)


def change(**rows: Any) -> ChangeSet:
    return ChangeSet(sequence=7, time=TIME, digest=b"", nodes=0, edges=0, **rows)


def data(event: StoreEvent) -> dict[str, Any]:
    return msgspec.json.decode(event.json())


def test_event_order_respects_dependencies() -> None:
    events = expand_change_set_into_events(
        "s",
        change(
            nodes_created=[node("a")],
            nodes_updated=[node("b")],
            nodes_deleted=["c"],
            edges_created=[edge("a", "b")],
            edges_updated=[edge("b", "a")],
            edges_deleted=[("b", "c", "r")],
        ),
    )
    assert [event.kind for event in events] == [
        "edge_deleted", "node_deleted", "node_created", "node_updated", "edge_created", "edge_updated",
    ]  # fmt: skip
    assert [event.index for event in events] == list(range(6))
    assert {(event.store, event.sequence, event.time) for event in events} == {("s", 7, TIME)}


def test_event_data_is_the_row_as_one_line_of_json() -> None:
    created, linked = expand_change_set_into_events(
        "s", change(nodes_created=[node("a")], edges_created=[edge("a", "b")])
    )
    assert b"\n" not in created.json()
    assert data(created) == {
        "store": "s",
        "time": TEXT,
        "sequence": 7,
        "id": "a",
        "type": "t",
        "content": "line one\nline two",
        "attributes": {"a": [1, "\n"]},
        "version": 1,
        "created_at": TEXT,
        "updated_at": TEXT,
    }
    assert data(linked) == {
        "store": "s",
        "time": TEXT,
        "sequence": 7,
        "id": "a~r~b",
        "from": "a",
        "to": "b",
        "relation_type": "r",
        "weight": 0.5,
        "attributes": {"created_at": TEXT, "updated_at": TEXT},
        "version": 1,
    }


def test_deletion_events_name_deleted_rows() -> None:
    unlinked, removed = expand_change_set_into_events("s", change(nodes_deleted=["a"], edges_deleted=[("a", "b", "r")]))
    assert data(removed) == {"store": "s", "time": TEXT, "sequence": 7, "id": "a"}
    assert data(unlinked)["from"] == "a"
    assert data(unlinked)["relation_type"] == "r"
    assert data(unlinked)["id"] == "a~r~b"


def test_event_data_includes_only_extras_that_are_set() -> None:
    extras = NodeExtras("short", ("x", "y"), TIME, "me", None, TIME + 1, (3,))
    linking = EdgeExtras(ordinal=0, valid_from=TIME)
    row = msgspec.structs.replace(node("a"), extras=extras)
    other = msgspec.structs.replace(node("b"), extras=NodeExtras())
    link = msgspec.structs.replace(edge("a", "b"), extras=linking)
    first, second, linked = map(
        data, expand_change_set_into_events("s", change(nodes_created=[row, other], edges_created=[link]))
    )
    assert {name: first[name] for name in first.keys() - second.keys()} == {
        "summary": "short",
        "tags": ["x", "y"],
        "freshness_at": TEXT,
        "stale": True,
        "created_by": "me",
        "valid_to": format_rfc3339_timestamp(TIME + 1),
        "conflicts": [3],
    }
    assert (linked["ordinal"], linked["valid_from"]) == (0, TEXT)
    assert "valid_to" not in linked


def test_touched_edges_cause_no_event() -> None:
    touched = change(edges_touched=[edge("a", "b")] * (MAX_SINGLE_EVENT_ROWS + 1))
    assert expand_change_set_into_events("s", touched) == []


@pytest.mark.parametrize(
    ("rows", "events"), [(MAX_SINGLE_EVENT_ROWS, MAX_SINGLE_EVENT_ROWS), (MAX_SINGLE_EVENT_ROWS + 1, 1)]
)
def test_large_writes_become_one_bulk_event(rows: int, events: int) -> None:
    large = change(nodes_created=[node(str(n)) for n in range(rows - 1)], nodes_deleted=["gone"])
    found = expand_change_set_into_events("s", large)
    assert len(found) == events
    if events == 1:
        (bulk,) = found
        assert (bulk.kind, bulk.index) == ("bulk_changed", 0)
        assert data(bulk)["nodes_created"] == rows - 1
        assert data(bulk)["nodes_deleted"] == 1
        assert data(bulk)["edges_created"] == 0


@pytest.mark.parametrize("text", ["0", "12", "12-0", "12-3", "12~k3", "12-3~k3"])
def test_position_roundtrip(text: str) -> None:
    assert str(FeedPosition.parse(text)) == text


def test_position_after_store_creation_is_first_write() -> None:
    assert FeedPosition.parse("0-0") == FeedPosition.after(0) == FeedPosition(1)


@pytest.mark.parametrize(
    "text", ["", "-", "-1", "1-", "a", "1-2-3", "1.0", "١", "9" * 19, "1-" + "9" * 10, "1\n", "1~", "~a"]
)
def test_invalid_position_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="expected a sequence"):
        FeedPosition.parse(text)


def test_parse_positions_of_several_stores() -> None:
    positions = parse_change_feed_positions("a:12-3, b:4,*:0", "x")
    assert positions == {"a": FeedPosition(12, 4), "b": FeedPosition(5), "*": FeedPosition(1)}
    assert format_change_feed_positions(positions) == "a:12-3,b:4,*:0"


@pytest.mark.parametrize("text", ["12-3", "a:", ":1", "a:x", "../x:1", "a:1,b"])
def test_invalid_positions_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_change_feed_positions(text, "x")


def test_selection_by_kind_and_type() -> None:
    events = expand_change_set_into_events(
        "s",
        change(
            nodes_created=[node("a", "person"), node("b", "place")],
            nodes_deleted=["c"],
            edges_created=[edge("a", "b", "visits")],
            edges_deleted=[("a", "b", "knows")],
        ),
    )

    def taken(kinds: set[str] | None, types: set[str] | None) -> list[int]:
        selection = ChangeFeedEventFilter(frozenset(kinds) if kinds else None, frozenset(types) if types else None)
        return [event.index for event in events if selection.takes(event)]

    assert taken(None, None) == [0, 1, 2, 3, 4]
    assert taken({"node_created"}, None) == [2, 3]
    assert taken({"node_created"}, {"place"}) == [3]
    # The type of a deleted node is not known, so any type may match.
    assert taken(None, {"visits"}) == [1, 4]
    assert taken(None, {"knows"}) == [0, 1]


def test_unknown_event_kind_is_rejected_by_name() -> None:
    assert parse_event_kinds(["node_created"]) == {"node_created"}
    with pytest.raises(InvalidInput, match="no such event: node_made"):
        parse_event_kinds(["node_made", "node_created"])
