"""Soft deletion of memories and relations: they are never valid from then on, and can be restored.

A memory keeps its former validity in its row. A relation has no fields for that; it keeps its validity in the attribute
`FORGOTTEN_BOUNDS_ATTRIBUTE` while it is withdrawn.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import msgspec

from kgserve.platform.codecs import decode_json
from kgserve.platform.timestamps import parse_rfc3339_timestamp
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION, is_node_never_valid
from kgserve.storage.model.node_edge_fields import (
    MAX_ATTRIBUTES_BYTES,
    NO_EDGE_EXTRAS,
    NO_EXTRAS,
    EdgeExtrasUpsert,
    NodeExtrasUpsert,
)
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow, split_edge_times_from_attributes
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert

REASON_MERGED = "merged"
REASON_PRUNED = "pruned"
REASON_FORGOTTEN = "forgotten"
RESTORABLE_END_REASONS = frozenset({REASON_FORGOTTEN, REASON_PRUNED})
"""Reasons of withdrawals that `forget` undoes; runs of consolidation undo merges."""
REASON_SUPERSEDED = "superseded"
VERSION_OF_RELATION = "version_of"
"""Relation from a former version of a memory to the memory. Written by the store itself."""
PREDECESSOR_RELATIONS = frozenset({MERGED_INTO_RELATION, VERSION_OF_RELATION})
"""Relations to a memory from the nodes that hold its former texts; a merge does not move those of redirects."""
FORGOTTEN_BOUNDS_ATTRIBUTE = "kgserve.forgotten"
FORGOTTEN_REASON_ATTRIBUTE = "kgserve.forgotten_because"
"""Attribute with the reason for a withdrawal, while the memory is withdrawn."""

_encode = msgspec.json.Encoder(order="deterministic").encode


def is_memory_active_at(row: NodeRow, now: int) -> bool:
    """Return True for a memory that is not withdrawn and is valid at ``now``."""
    return row.is_memory and not (row.extras or NO_EXTRAS).ended and row.is_valid_at(now)


def is_current_unwithdrawn_memory(row: NodeRow | None) -> TypeGuard[NodeRow]:
    """Return True for a memory that is neither withdrawn nor a former version of another, regardless of valid time."""
    if row is None or not row.is_memory:
        return False
    extras = row.extras or NO_EXTRAS
    return not (extras.ended or extras.belongs_to or is_node_never_valid(extras))


def is_memory_predecessor(row: NodeRow | None, relation_type: str, memory: str, owner: str | None) -> bool:
    """Return True if a node with an edge to a memory is a former version of it, or was merged into it.

    owner: the survivor of the memory that the node ``belongs_to``, or None if that does not exist: a merge moves the
    edges of former versions, but not the field. Callers may use these relation types for other purposes.
    """
    if row is None or not row.is_memory:
        return False
    if relation_type == MERGED_INTO_RELATION:
        return is_node_never_valid(row.extras)
    belongs_to = (row.extras or NO_EXTRAS).belongs_to
    is_version = relation_type == VERSION_OF_RELATION and belongs_to != ""
    return is_version and (belongs_to == memory or owner in {memory, None})


def build_memory_withdrawal_extras(
    row: NodeRow, ended: str, belongs_to: str = "", author: str = ""
) -> NodeExtrasUpsert:
    """Return extras that withdraw a memory: never valid, with the reason and its former validity."""
    old = row.extras or NO_EXTRAS
    at = row.created_at if old.valid_from is None else old.valid_from
    return NodeExtrasUpsert(
        created_by=author,
        valid_from=at,
        valid_to=at,
        ended=ended,
        former_from=old.valid_from,
        former_to=old.valid_to,
        belongs_to=belongs_to,
    )


def build_memory_soft_delete_upsert(row: NodeRow, ended: str, belongs_to: str = "", author: str = "") -> NodeUpsert:
    """Return an upsert that withdraws (soft-deletes) a memory."""
    return NodeUpsert(0, row.id, extras=build_memory_withdrawal_extras(row, ended, belongs_to, author))


def build_memory_restore_upsert(row: NodeRow, author: str = "") -> NodeUpsert:
    """Return an upsert that restores a withdrawn memory."""
    old = row.extras or NO_EXTRAS
    extras = NodeExtrasUpsert(
        created_by=author,
        valid_from=old.former_from,
        valid_to=old.former_to,
        ended="",
        former_from=None,
        former_to=None,
        belongs_to="",
    )
    return NodeUpsert(0, row.id, extras=extras)


def build_memory_forget_upsert(row: NodeRow, reason: str, author: str = "") -> NodeUpsert:
    """Return an upsert that forgets a memory or a former version: it is withdrawn at a caller's request."""
    old = row.extras or NO_EXTRAS
    put = build_memory_soft_delete_upsert(row, REASON_FORGOTTEN, old.belongs_to, author or old.created_by)
    if not reason:
        return put
    attributes = _encode({**_decode_attributes(row.attributes), FORGOTTEN_REASON_ATTRIBUTE: reason}).decode()
    fits = len(attributes.encode()) <= MAX_ATTRIBUTES_BYTES
    return msgspec.structs.replace(put, attributes=attributes) if fits else put


def build_undo_forget_upsert(row: NodeRow) -> NodeUpsert:
    """Return an upsert that undoes the forgetting of a memory. A former version becomes superseded again."""
    old = row.extras or NO_EXTRAS
    put = build_memory_restore_upsert(row, old.created_by)
    ended = REASON_SUPERSEDED if old.belongs_to else ""
    extras = msgspec.structs.replace(put.extras or NodeExtrasUpsert(), ended=ended, belongs_to=old.belongs_to)
    attributes = _decode_attributes(row.attributes)
    reason = attributes.pop(FORGOTTEN_REASON_ATTRIBUTE, None)
    own = None if reason is None else _encode(attributes).decode()
    return msgspec.structs.replace(put, extras=extras, attributes=own)


def is_edge_withdrawn_with_memory(edge: EdgeRow) -> bool:
    """Return True if a relation is withdrawn together with a memory at its end."""
    return edge.relation_type not in PREDECESSOR_RELATIONS and FORGOTTEN_BOUNDS_ATTRIBUTE not in _decode_attributes(
        _own_attributes(edge)
    )


def build_edge_soft_delete_upsert(edge: EdgeRow) -> EdgeUpsert:
    """Return an upsert that soft-deletes a relation: it is never valid."""
    old, stamps = edge.extras or NO_EDGE_EXTRAS, split_edge_times_from_attributes(edge.attributes)
    at = parse_rfc3339_timestamp(stamps.created_at) if old.valid_from is None else old.valid_from
    own = _encode(
        {**_decode_attributes(stamps.own), FORGOTTEN_BOUNDS_ATTRIBUTE: [old.valid_from, old.valid_to]}
    ).decode()
    extras = EdgeExtrasUpsert(created_by=old.created_by, valid_from=at, valid_to=at)
    return EdgeUpsert(0, edge.key, own=own, updated_at=stamps.updated_at, extras=extras)


def build_edge_restore_upsert(edge: EdgeRow) -> EdgeUpsert | None:
    """Return an upsert that restores a soft-deleted relation; None for a relation that was not soft-deleted."""
    stamps = split_edge_times_from_attributes(edge.attributes)
    own = _decode_attributes(stamps.own)
    bounds = own.pop(FORGOTTEN_BOUNDS_ATTRIBUTE, None)
    if not isinstance(bounds, list) or len(bounds) != 2:  # noqa: PLR2004 - start and end
        return None
    start, end = bounds
    old = edge.extras or NO_EDGE_EXTRAS
    extras = EdgeExtrasUpsert(created_by=old.created_by, valid_from=_time(start), valid_to=_time(end))
    return EdgeUpsert(0, edge.key, own=_encode(own).decode(), updated_at=stamps.updated_at, extras=extras)


def _time(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _own_attributes(edge: EdgeRow) -> str:
    return split_edge_times_from_attributes(edge.attributes).own


def _decode_attributes(attributes: str) -> dict[str, Any]:
    return decode_json(attributes, dict[str, Any])
