from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kgserve.memory.consolidation.plan import (
    MAX_MERGED_CHARS,
    MAX_MERGED_LINES,
    AbsorbedMemoryUndoRecord,
    MemoryClusterMergePlan,
    MemoryWithEffectiveConfidence,
    PrimaryMemoryUndoRecord,
    TooManyAbsorbedMemoryEdges,
    decode_absorbed_record,
    decode_primary_record,
    encode_consolidation_undo_record,
    get_consolidation_compatibility_key,
    move_absorbed_edges_to_primary,
    plan_memory_cluster_merge,
)
from kgserve.memory.memory_models import MemoryMergeCluster
from kgserve.storage.model.node_edge_fields import NodeExtras
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow, encode_edge_attributes
from kgserve.storage.model.soft_delete import (
    REASON_MERGED,
    build_memory_restore_upsert,
    build_memory_soft_delete_upsert,
    is_memory_active_at,
)

THEN = "2025-01-01T00:00:00.000000Z"


def row(node_id: str, content: str = "", created: int = 0, own: dict[str, Any] | None = None, **extras: Any) -> NodeRow:
    attributes = json.dumps(own or {}, sort_keys=True, separators=(",", ":"))
    return NodeRow(node_id, "fact", content, attributes, 1, 1, created, created, NodeExtras(confidence=1.0, **extras))


def edge(source: str, target: str, relation_type: str = "is_about", weight: float = 1.0) -> EdgeRow:
    return EdgeRow(source, target, relation_type, weight, encode_edge_attributes(THEN, THEN, "{}"), 1, 1)


def members(*rows: NodeRow, effective: float = 1.0) -> list[MemoryWithEffectiveConfidence]:
    return [MemoryWithEffectiveConfidence(each, effective) for each in rows]


def test_merged_text_omits_known_lines() -> None:
    rows = [
        row("a", "Tea is hot\nMilk is cold", 1),
        row("b", "the tea is hot.\nSugar is sweet", 2),
        row("c", "Salt is white!", 3),
    ]
    found = plan_memory_cluster_merge(members(*rows), 0.9)
    assert isinstance(found, MemoryClusterMergePlan)
    assert (found.primary, found.absorbed) == ("a", ("b", "c"))
    assert found.content == "Tea is hot\nMilk is cold\nSugar is sweet\nSalt is white!"


def test_merge_takes_newer_metadata_and_greatest_importance() -> None:
    rows = [
        row("new", "x", 9, {"a": 3, "b": 3}),
        row("old", "x", 1, {"a": 1, "c": 1}, importance=0.8),
        row("mid", "x", 5, {"b": 2}),
    ]
    found = plan_memory_cluster_merge(
        [
            MemoryWithEffectiveConfidence(rows[0], 0.9),
            MemoryWithEffectiveConfidence(rows[1], 0.5),
            MemoryWithEffectiveConfidence(rows[2], 0.5),
        ],
        0.9,
    )
    assert isinstance(found, MemoryClusterMergePlan)
    assert (found.primary, found.absorbed) == ("new", ("old", "mid"))
    assert found.attributes == '{"a":3,"b":3,"c":1}'
    assert found.importance == 0.8
    assert found.changes_primary(rows[0])
    assert not found.changes_primary(row("new", "x", 9, {"a": 3, "b": 3, "c": 1}, importance=0.8))


def test_small_confidence_difference_does_not_decide_primary() -> None:
    found = plan_memory_cluster_merge(
        [
            MemoryWithEffectiveConfidence(row("young", "x", 9), 1.0),
            MemoryWithEffectiveConfidence(row("old", "x", 1), 0.9999),
        ],
        0.9,
    )
    assert isinstance(found, MemoryClusterMergePlan)
    assert found.primary == "old"


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (row("a", "x" * MAX_MERGED_CHARS), row("b", "y"), "2,000 characters"),
        (row("a", "\n".join(map(str, range(MAX_MERGED_LINES)))), row("b", "y"), "20 lines"),
        (
            row("a", "x", tags=tuple(map(str, range(60)))),
            row("b", "x", tags=tuple(map(str, range(40, 101)))),
            "100 tags",
        ),
        (row("a", "x", own={"a": "x" * 200_000}), row("b", "x", own={"b": "x" * 200_000}), "metadata"),
    ],
)
def test_oversized_cluster_is_not_merged(one: NodeRow, other: NodeRow, reason: str) -> None:
    found = plan_memory_cluster_merge(members(one, other), 0.9)
    assert isinstance(found, MemoryMergeCluster)
    assert reason in found.reason


def test_long_memory_absorbs_equal_wording() -> None:
    found = plan_memory_cluster_merge(
        members(row("a", "x " * MAX_MERGED_CHARS), row("b", "X " * MAX_MERGED_CHARS)), 1.0
    )
    assert isinstance(found, MemoryClusterMergePlan)
    assert found.content == "x " * MAX_MERGED_CHARS


def test_pinned_memory_is_not_absorbed() -> None:
    assert plan_memory_cluster_merge(members(row("a", "x", importance=1.0), row("b", "x", importance=1.0)), 1.0) is None
    found = plan_memory_cluster_merge(members(row("a", "x"), row("b", "x", 9, importance=1.0)), 1.0)
    assert isinstance(found, MemoryClusterMergePlan)
    assert (found.primary, found.absorbed) == ("b", ("a",))


def test_kinds_that_can_be_consolidated() -> None:
    usual = get_consolidation_compatibility_key(row("a"))
    assert usual == get_consolidation_compatibility_key(row("b", "other", 5, importance=0.5, source="s", tags=("t",)))
    others = [row("c", layer=1), row("d", name="n"), row("e", valid_from=1), row("f", valid_to=1)]
    assert usual not in [get_consolidation_compatibility_key(each) for each in others]
    assert [
        get_consolidation_compatibility_key(each)
        for each in (row("g", layer=3), row("h", belongs_to="x"), row("i", conflicts=(1,)))
    ] == [None] * 3


def test_moved_relations_keep_greater_weight() -> None:
    edges = {
        "b": [edge("b", "x", weight=0.9), edge("b", "y", weight=0.3), edge("b", "a"), edge("p", "b"), edge("b", "c")],
        "c": [edge("c", "y", weight=0.5), edge("c", "z", "child_of"), edge("b", "c")],
        "d": [edge("d", "w", "child_of"), edge("k", "d", "child_of")],
    }
    had = {("a", "x", "is_about"): edge("a", "x", weight=0.4)}
    found = {
        key[:2]: put.weight for key, put in move_absorbed_edges_to_primary("a", edges, had, parented=False).items()
    }
    assert found == {("a", "x"): 0.9, ("a", "y"): 0.5, ("p", "a"): 1.0, ("a", "z"): 1.0, ("k", "a"): 1.0}
    assert ("a", "z", "child_of") not in move_absorbed_edges_to_primary("a", edges, had, parented=True)
    turned = dict(reversed(edges.items()))
    assert move_absorbed_edges_to_primary("a", turned, had, parented=False) == move_absorbed_edges_to_primary(
        "a", edges, had, parented=False
    )


def test_records_round_trip() -> None:
    taken = AbsorbedMemoryUndoRecord("run", "alice", 3, [edge("a", "b", weight=0.25)])
    assert decode_absorbed_record(encode_consolidation_undo_record(taken)) == taken
    grown = PrimaryMemoryUndoRecord("", 2, "former", parented=True, had=[edge("a", "c")])
    assert decode_primary_record(encode_consolidation_undo_record(grown)) == grown
    with pytest.raises(TooManyAbsorbedMemoryEdges):
        encode_consolidation_undo_record(
            AbsorbedMemoryUndoRecord("run", "", 1, [edge("a", f"b{at}") for at in range(3_000)])
        )


@pytest.mark.parametrize("bounds", [(None, None), (5, None), (None, 9), (5, 9)])
def test_withdrawn_row_is_never_valid_and_restorable(bounds: tuple[int | None, int | None]) -> None:
    old = row("a", "x", 7, valid_from=bounds[0], valid_to=bounds[1])
    put = build_memory_soft_delete_upsert(old, REASON_MERGED, "b")
    assert put.extras is not None
    assert old.extras is not None
    extras = put.extras.applied_to(old.extras)
    assert (extras.ended, extras.belongs_to, extras.former_from, extras.former_to) == ("merged", "b", *bounds)
    gone = msgspec.structs.replace(old, extras=extras)
    assert not any(is_memory_active_at(gone, at) or gone.is_valid_at(at) for at in range(12))
    back = build_memory_restore_upsert(gone).extras
    assert back is not None
    assert back.applied_to(extras) == old.extras
