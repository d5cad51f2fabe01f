"""Consolidation plans, as pure functions, and the records that runs leave in rows.

A *cluster* is a group of similar memories that no guard keeps apart. Its *primary* remains and takes over the others'
content; the others are *absorbed*: withdrawn, with a merge relation to the primary. A *run* is a node with a relation
to each primary. These relations record everything that undo needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from kgserve.memory.hierarchy_models import can_merge_memory_layers, can_merge_memory_types
from kgserve.memory.memory_models import (
    EPISODE_LAYER,
    PINNED_IMPORTANCE,
    MemoryMergeCluster,
    MemoryMergeSuggestion,
    UnmergedMemoryPair,
)
from kgserve.platform.codecs import json_decoder
from kgserve.platform.text.text_equality import fingerprint_wording
from kgserve.projections.memory_index.built_in_relation_types import RELATION_CONSOLIDATED
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION, move_edge_key_to_survivor
from kgserve.storage.model.node_edge_fields import MAX_ATTRIBUTES_BYTES, MAX_TAGS, NO_EXTRAS
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.soft_delete import VERSION_OF_RELATION
from kgserve.storage.model.write_batch import EdgeUpsert, copy_edge_row_as_upsert

MAX_MERGED_CHARS = 2_000
MAX_MERGED_LINES = 20
MAX_CLUSTER_MEMORIES = 1_000
"""Maximum number of memories of one cluster, which is one commit."""
_MAX_RECORD_BYTES = MAX_ATTRIBUTES_BYTES - (16 << 10)
_CONFIDENCE_STEPS = 1_000

_encode = msgspec.json.Encoder(order="deterministic").encode
_metadata = json_decoder(dict[str, Any]).decode


# Planning


class MemoryWithEffectiveConfidence(NamedTuple):
    """A memory and its effective confidence at the time of planning."""

    row: NodeRow
    effective: float


class MemoryClusterMergePlan(msgspec.Struct, frozen=True):
    """Plan of a cluster: the primary's new content, and the versions that the plan was computed from."""

    primary: str
    absorbed: tuple[str, ...]
    similarity: float
    content: str
    attributes: str
    tags: tuple[str, ...]
    importance: float | None
    layer: int | None
    versions: dict[str, int]

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all members, the primary first."""
        return self.primary, *self.absorbed

    def changes_primary(self, row: NodeRow) -> bool:
        """Return whether the plan changes the primary."""
        old = row.extras or NO_EXTRAS
        return (self.content, self.attributes, self.tags, self.importance, self.layer) != (
            row.content,
            row.attributes,
            old.tags,
            old.importance,
            old.layer,
        )


class ConsolidationPlan(msgspec.Struct, frozen=True):
    """Plan of a run, as of a commit."""

    sequence: int
    clusters: list[MemoryClusterMergePlan]
    suggestions: list[MemoryClusterMergePlan]
    kept_apart: list[UnmergedMemoryPair]
    kept_apart_count: int
    left: list[MemoryMergeCluster]
    near_checked: bool


class ConsolidationCompatibilityKey(NamedTuple):
    """Properties that decide whether memories can be consolidated, by `can_consolidate_memory_kinds`."""

    type: str
    layer: int | None
    name: str
    valid_from: int | None
    valid_to: int | None


def can_consolidate_memory_kinds(one: ConsolidationCompatibilityKey, other: ConsolidationCompatibilityKey) -> bool:
    """Return whether memories of two kinds can be consolidated. Not transitive: no layer fits facts and concepts."""
    if one == other:
        return True
    share = can_merge_memory_layers(one.layer, other.layer) and can_merge_memory_types(one[:2], other[:2])
    return share and one[2:] == other[2:]


def get_consolidation_compatibility_key(row: NodeRow) -> ConsolidationCompatibilityKey | None:
    """Return the properties by which a memory can be consolidated, or None if it never can be."""
    extras = row.extras or NO_EXTRAS
    if extras.layer == EPISODE_LAYER or extras.conflicts or extras.belongs_to:
        return None
    return ConsolidationCompatibilityKey(row.type, extras.layer, extras.name, extras.valid_from, extras.valid_to)


def is_pinned_memory(row: NodeRow) -> bool:
    """Return whether a memory is never absorbed or pruned."""
    importance = (row.extras or NO_EXTRAS).importance
    return importance is not None and importance >= PINNED_IMPORTANCE


def plan_memory_cluster_merge(
    members: Sequence[MemoryWithEffectiveConfidence], similarity: float
) -> MemoryClusterMergePlan | MemoryMergeCluster | None:
    """Return the plan for some memories, the reason against it, or None if all but one are pinned."""
    ordered = sorted(members, key=_rank)
    primary, others = ordered[0].row, [each.row for each in ordered[1:] if not is_pinned_memory(each.row)]
    if not others:
        return None
    rows = [primary, *others]
    content = _merge_texts(row.content for row in rows)
    tags = tuple(dict.fromkeys(tag for row in rows for tag in (row.extras or NO_EXTRAS).tags))
    attributes = _merge_metadata(sorted(rows, key=lambda row: (row.created_at, row.id)))
    if reason := _rejection_reason(content, primary.content, tags, attributes):
        return build_rejected_memory_cluster([row.id for row in rows], similarity, reason)
    absorbed, versions = tuple(row.id for row in others), {row.id: row.version for row in rows}
    importance, layer = _importance(rows), _layer(rows)
    return MemoryClusterMergePlan(
        primary.id, absorbed, similarity, content, attributes, tags, importance, layer, versions
    )


def build_rejected_memory_cluster(ids: Sequence[str], similarity: float, reason: str) -> MemoryMergeCluster:
    """Return a cluster that is not merged, with the reason."""
    return MemoryMergeCluster(
        primary=ids[0], absorbed=[*ids[1:]], similarity=similarity, content="", tags=[], reason=reason
    )


def _rank(member: MemoryWithEffectiveConfidence) -> tuple[bool, int, int, str]:
    """Return the sort key of the primary: pinned first, then by rounded confidence, then older first."""
    row = member.row
    return not is_pinned_memory(row), -round(member.effective * _CONFIDENCE_STEPS), row.created_at, row.id


def _merge_texts(contents: Iterable[str]) -> str:
    """Return the first content with those lines of the others that are new."""
    first, *others = contents
    lines, known = [first], {fingerprint_wording(first), *map(fingerprint_wording, first.splitlines())}
    for content in others:
        if fingerprint_wording(content) in known:
            continue
        for line in content.splitlines():
            if line.strip() and (mark := fingerprint_wording(line)) not in known:
                known.add(mark)
                lines.append(line.strip())
    return "\n".join(lines)


def _merge_metadata(rows: Iterable[NodeRow]) -> str:
    """Return the union of all metadata; newer values win."""
    found: dict[str, Any] = {}
    for row in rows:
        found |= _metadata(row.attributes)
    return _encode(found).decode()


def _importance(rows: Iterable[NodeRow]) -> float | None:
    given = [importance for row in rows if (importance := (row.extras or NO_EXTRAS).importance) is not None]
    return max(given, default=None)


def _layer(rows: Iterable[NodeRow]) -> int | None:
    """Return the layer of the memories that have one; memories of one cluster have at most one layer."""
    return next((layer for row in rows if (layer := (row.extras or NO_EXTRAS).layer) is not None), None)


def _rejection_reason(content: str, before: str, tags: Sequence[str], attributes: str) -> str:
    """Return why memories cannot be merged, or an empty string."""
    if content != before and len(content) > MAX_MERGED_CHARS:
        return f"together they would be longer than {MAX_MERGED_CHARS:,} characters"
    if content != before and content.count("\n") >= MAX_MERGED_LINES:
        return f"together they would have more than {MAX_MERGED_LINES} lines"
    if len(tags) > MAX_TAGS:
        return f"together they would have more than {MAX_TAGS} tags"
    if len(attributes.encode()) > MAX_ATTRIBUTES_BYTES:
        return f"together their metadata would be larger than {MAX_ATTRIBUTES_BYTES:,} bytes"
    return ""


# Runs


class ConsolidationRunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes of a run's node; the run covered all memories `through` a commit.

    `apart` are memories that it had absorbed before it was undone; automatic runs do not merge them again.
    """

    status: Literal["running", "done", "interrupted", "undone"]
    trigger: Literal["manual", "automatic"]
    similarity_threshold: float
    guard: bool
    through: int
    started_at: str
    ended_at: str | None = None
    clusters: int = 0
    merged: int = 0
    deleted: int = 0
    suggestions: list[MemoryMergeSuggestion] = []
    apart: list[str] = []

    @property
    def text(self) -> str:
        """The record as the attributes of a node."""
        return _encode(self).decode()


decode_run_record = json_decoder(ConsolidationRunRecord).decode
MAX_SUGGESTIONS = 100


# Edges


class AbsorbedMemoryUndoRecord(msgspec.Struct, frozen=True):
    """Record on the edge of an absorbed memory, for undo: the run, the previous author, version and edges."""

    run: str
    author: str
    left: int
    edges: list[EdgeRow]


class PrimaryMemoryUndoRecord(msgspec.Struct, frozen=True):
    """Record on the edge from a run to a primary, for undo: author, version and node of the previous state.

    `had` are the primary's edges that moved ones replaced; `parented` is whether it had a parent.
    """

    author: str
    left: int
    former: str
    parented: bool
    had: list[EdgeRow]


class TooManyAbsorbedMemoryEdges(Exception):
    """An absorbed memory has too many edges to record."""


def move_absorbed_edges_to_primary(
    primary: str, edges: Mapping[str, Sequence[EdgeRow]], had: Mapping[EdgeKey, EdgeRow], *, parented: bool
) -> dict[EdgeKey, EdgeUpsert]:
    """Return the edges that a primary receives from the memories that it absorbs, by key.

    Edges between members are dropped. If the primary has the edge, the greater weight counts. A second parent is
    dropped.
    """
    found: dict[EdgeKey, EdgeUpsert] = {}
    for member in sorted(edges):
        for row in edges[member]:
            key = _moved_key(row.key, {*edges}, primary)
            if key is None or (key[0] == primary and key[2] == CHILD_OF_RELATION and parented and key not in had):
                continue
            parented = parented or (key[0] == primary and key[2] == CHILD_OF_RELATION)
            found[key] = _with_greater_weight(found.get(key), row, key, had.get(key))
    return found


def _moved_key(key: EdgeKey, absorbed: set[str], primary: str) -> EdgeKey | None:
    for each in absorbed & {key[0], key[1]}:
        key = move_edge_key_to_survivor(key, each, primary)
    return None if key[0] == key[1] else key


def _with_greater_weight(put: EdgeUpsert | None, row: EdgeRow, key: EdgeKey, had: EdgeRow | None) -> EdgeUpsert:
    if had is not None:
        weight = max(had.weight, row.weight, (put.weight or 0.0) if put else row.weight)
        return EdgeUpsert(0, key, weight)
    if put is None:
        return copy_edge_row_as_upsert(row, key)
    return msgspec.structs.replace(put, weight=max(put.weight or 0.0, row.weight))


def encode_consolidation_undo_record(note: AbsorbedMemoryUndoRecord | PrimaryMemoryUndoRecord) -> str:
    """Encode an undo record as the attributes of an edge. Raises TooManyAbsorbedMemoryEdges."""
    text = _encode(note).decode()
    if len(text) > _MAX_RECORD_BYTES:
        raise TooManyAbsorbedMemoryEdges
    return text


decode_absorbed_record = json_decoder(AbsorbedMemoryUndoRecord).decode
decode_primary_record = json_decoder(PrimaryMemoryUndoRecord).decode


def is_edge_type_left_on_absorbed_memory(relation_type: str) -> bool:
    """Return whether edges of a type stay with an absorbed memory."""
    return relation_type in {MERGED_INTO_RELATION, RELATION_CONSOLIDATED, VERSION_OF_RELATION}


def convert_memory_cluster_plan_to_answer(found: MemoryClusterMergePlan) -> MemoryMergeCluster:
    """Return a cluster plan in the form of the answer."""
    similarity = round(found.similarity, 4)
    return MemoryMergeCluster(
        primary=found.primary,
        absorbed=[*found.absorbed],
        similarity=similarity,
        content=found.content,
        tags=[*found.tags],
    )
