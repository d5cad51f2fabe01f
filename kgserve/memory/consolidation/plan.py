"""Memories that say the same, made one: pure planning, and what is noted of it in rows.

A *cluster* is a group of memories, each two of which are near and that nothing keeps apart. Its *primary* stays and
takes over what the others have; those are *absorbed*: withdrawn, with the relation of a merge to the primary. A *run*
is a node that says what was done, with a relation to each primary. What taking it back needs is in these relations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from kgserve.memory.api import EPISODE_LAYER, PINNED_IMPORTANCE, Cluster, KeptApart, Suggestion
from kgserve.memory.hierarchy_api import can_share_layer, can_share_type
from kgserve.platform.codecs import json_decoder
from kgserve.platform.text.similarity import fingerprint
from kgserve.projections.memory_index.relation_types import RELATION_CONSOLIDATED
from kgserve.storage.model.batch import EdgePut, edge_again
from kgserve.storage.model.fields import MAX_ATTRIBUTES_BYTES, MAX_TAGS, NO_EXTRAS
from kgserve.storage.model.parents import CHILD_OF
from kgserve.storage.model.redirects import MERGED_INTO, moved_key
from kgserve.storage.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.soft_delete import VERSION_OF

MAX_MERGED_CHARS = 2_000
MAX_MERGED_LINES = 20
MAX_CLUSTER_MEMORIES = 1_000
"""Memories of one cluster at most: it is one commit."""
_MAX_RECORD_BYTES = MAX_ATTRIBUTES_BYTES - (16 << 10)
_CONFIDENCE_STEPS = 1_000

_encode = msgspec.json.Encoder(order="deterministic").encode
_metadata = json_decoder(dict[str, Any]).decode


# Planning


class Member(NamedTuple):
    """A memory, and what it is worth at the moment of planning."""

    row: NodeRow
    effective: float


class ClusterPlan(msgspec.Struct, frozen=True):
    """A cluster as it is to be carried out: what the primary will say, and the versions that it was computed from."""

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
        """All members, the primary first."""
        return self.primary, *self.absorbed

    def says_more(self, row: NodeRow) -> bool:
        """Whether the primary will say anything that it does not yet."""
        old = row.extras or NO_EXTRAS
        return (self.content, self.attributes, self.tags, self.importance, self.layer) != (
            row.content,
            row.attributes,
            old.tags,
            old.importance,
            old.layer,
        )


class Plan(msgspec.Struct, frozen=True):
    """What a run is to do, as of a commit."""

    sequence: int
    clusters: list[ClusterPlan]
    suggestions: list[ClusterPlan]
    kept_apart: list[KeptApart]
    kept_apart_count: int
    left: list[Cluster]
    near_checked: bool


class MemoryKind(NamedTuple):
    """The properties that decide whether memories may be consolidated; see `can_be_one`."""

    type: str
    layer: int | None
    name: str
    valid_from: int | None
    valid_to: int | None


def can_be_one(one: MemoryKind, other: MemoryKind) -> bool:
    """Whether memories of two kinds may be consolidated. Not transitive: no layer goes with facts and with concepts."""
    if one == other:
        return True
    share = can_share_layer(one.layer, other.layer) and can_share_type(one[:2], other[:2])
    return share and one[2:] == other[2:]


def kind_of(row: NodeRow) -> MemoryKind | None:
    """What a memory must have in common with others to become one with them; None where it must not at all."""
    extras = row.extras or NO_EXTRAS
    if extras.layer == EPISODE_LAYER or extras.conflicts or extras.belongs_to:
        return None
    return MemoryKind(row.type, extras.layer, extras.name, extras.valid_from, extras.valid_to)


def is_pinned(row: NodeRow) -> bool:
    """Whether a memory is never absorbed, and never fades away."""
    importance = (row.extras or NO_EXTRAS).importance
    return importance is not None and importance >= PINNED_IMPORTANCE


def planned(members: Sequence[Member], similarity: float) -> ClusterPlan | Cluster | None:
    """What becomes of memories that are to be one; None where at most one is left, for the others are pinned."""
    ordered = sorted(members, key=_rank)
    primary, others = ordered[0].row, [each.row for each in ordered[1:] if not is_pinned(each.row)]
    if not others:
        return None
    rows = [primary, *others]
    content = _text(row.content for row in rows)
    tags = tuple(dict.fromkeys(tag for row in rows for tag in (row.extras or NO_EXTRAS).tags))
    attributes = _joined(sorted(rows, key=lambda row: (row.created_at, row.id)))
    if reason := _reason(content, primary.content, tags, attributes):
        return left_out([row.id for row in rows], similarity, reason)
    absorbed, versions = tuple(row.id for row in others), {row.id: row.version for row in rows}
    importance, layer = _importance(rows), _layer(rows)
    return ClusterPlan(primary.id, absorbed, similarity, content, attributes, tags, importance, layer, versions)


def left_out(ids: Sequence[str], similarity: float, reason: str) -> Cluster:
    """A cluster that is not merged, and why."""
    return Cluster(primary=ids[0], absorbed=[*ids[1:]], similarity=similarity, content="", tags=[], reason=reason)


def _rank(member: Member) -> tuple[bool, int, int, str]:
    """The least is to be the primary: pinned, then worth more, then older. Seconds of fading make no difference."""
    row = member.row
    return not is_pinned(row), -round(member.effective * _CONFIDENCE_STEPS), row.created_at, row.id


def _text(contents: Iterable[str]) -> str:
    """The first content, with the lines of the others that nothing before has said."""
    first, *others = contents
    lines, said = [first], {fingerprint(first), *map(fingerprint, first.splitlines())}
    for content in others:
        if fingerprint(content) in said:
            continue
        for line in content.splitlines():
            if line.strip() and (mark := fingerprint(line)) not in said:
                said.add(mark)
                lines.append(line.strip())
    return "\n".join(lines)


def _joined(rows: Iterable[NodeRow]) -> str:
    """The metadata of all, what is newer over what is older."""
    found: dict[str, Any] = {}
    for row in rows:
        found |= _metadata(row.attributes)
    return _encode(found).decode()


def _importance(rows: Iterable[NodeRow]) -> float | None:
    given = [importance for row in rows if (importance := (row.extras or NO_EXTRAS).importance) is not None]
    return max(given, default=None)


def _layer(rows: Iterable[NodeRow]) -> int | None:
    """Return the layer of those that have one; memories that may be one have no two."""
    return next((layer for row in rows if (layer := (row.extras or NO_EXTRAS).layer) is not None), None)


def _reason(content: str, before: str, tags: Sequence[str], attributes: str) -> str:
    """Why memories cannot be one, if they cannot."""
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


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the node of a run says, in its attributes. It has seen all memories ``through`` a commit.

    ``apart`` are memories that it had absorbed until it was taken back: no automatic run takes them up again.
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
    suggestions: list[Suggestion] = []
    apart: list[str] = []

    @property
    def text(self) -> str:
        """As the attributes of a node."""
        return _encode(self).decode()


run_of = json_decoder(RunRecord).decode
MAX_SUGGESTIONS = 100


# Edges


class AbsorbedRecord(msgspec.Struct, frozen=True):
    """What is noted beside an absorbed memory, to bring it back: the run, its author, its version then, its edges."""

    run: str
    author: str
    left: int
    edges: list[EdgeRow]


class Grown(msgspec.Struct, frozen=True):
    """What is noted between a run and a primary: its author and version then, the node that has its former state.

    ``had`` are edges of its own at the places of moved ones, as they were; ``parented`` whether it had a parent.
    """

    author: str
    left: int
    former: str
    parented: bool
    had: list[EdgeRow]


class TooManyEdges(Exception):
    """What would have to be noted of an absorbed memory's edges is too much."""


def moved(
    primary: str, edges: Mapping[str, Sequence[EdgeRow]], had: Mapping[EdgeKey, EdgeRow], *, parented: bool
) -> dict[EdgeKey, EdgePut]:
    """The edges that a primary gets from the memories that it absorbs, by key.

    Edges between members are none any more. Where there is one already, the greater weight counts. A second parent is
    not taken over.
    """
    found: dict[EdgeKey, EdgePut] = {}
    for member in sorted(edges):
        for row in edges[member]:
            key = _moved_key(row.key, {*edges}, primary)
            if key is None or (key[0] == primary and key[2] == CHILD_OF and parented and key not in had):
                continue
            parented = parented or (key[0] == primary and key[2] == CHILD_OF)
            found[key] = _greater(found.get(key), row, key, had.get(key))
    return found


def _moved_key(key: EdgeKey, absorbed: set[str], primary: str) -> EdgeKey | None:
    for each in absorbed & {key[0], key[1]}:
        key = moved_key(key, each, primary)
    return None if key[0] == key[1] else key


def _greater(put: EdgePut | None, row: EdgeRow, key: EdgeKey, had: EdgeRow | None) -> EdgePut:
    if had is not None:
        weight = max(had.weight, row.weight, (put.weight or 0.0) if put else row.weight)
        return EdgePut(0, key, weight)
    if put is None:
        return edge_again(row, key)
    return msgspec.structs.replace(put, weight=max(put.weight or 0.0, row.weight))


def record(note: AbsorbedRecord | Grown) -> str:
    """A note as the attributes of an edge. Raises TooManyEdges."""
    text = _encode(note).decode()
    if len(text) > _MAX_RECORD_BYTES:
        raise TooManyEdges
    return text


taken_of = json_decoder(AbsorbedRecord).decode
grown_of = json_decoder(Grown).decode


def stays(relation_type: str) -> bool:
    """Whether an edge stays with an absorbed memory."""
    return relation_type in {MERGED_INTO, RELATION_CONSOLIDATED, VERSION_OF}


def told(found: ClusterPlan) -> Cluster:
    """A cluster as callers see it."""
    similarity = round(found.similarity, 4)
    return Cluster(
        primary=found.primary,
        absorbed=[*found.absorbed],
        similarity=similarity,
        content=found.content,
        tags=[*found.tags],
    )
