"""Soft deletion of memories and relations: they are never valid from then on, and can be restored.

A memory keeps its former validity in its row. A relation has no fields for that; it keeps its validity in the attribute
`FORGOTTEN_BOUNDS_ATTRIBUTE` while it is withdrawn.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import msgspec

from kgserve.platform.codecs import decode_json
from kgserve.platform.timestamps import parse_stored_time
from kgserve.storage.model.batch import EdgePut, NodePut
from kgserve.storage.model.fields import MAX_ATTRIBUTES_BYTES, NO_EDGE_EXTRAS, NO_EXTRAS, EdgeExtrasPut, NodeExtrasPut
from kgserve.storage.model.redirects import MERGED_INTO_RELATION, is_never_valid
from kgserve.storage.model.rows import EdgeRow, NodeRow, split_edge_attributes

REASON_MERGED = "merged"
REASON_PRUNED = "pruned"
REASON_FORGOTTEN = "forgotten"
REASON_SUPERSEDED = "superseded"
VERSION_OF_RELATION = "version_of"
"""Relation from a former version of a memory to the memory. Written by the store itself."""
FORGOTTEN_BOUNDS_ATTRIBUTE = "kgserve.forgotten"
FORGOTTEN_REASON_ATTRIBUTE = "kgserve.forgotten_because"
"""Attribute with the reason for a withdrawal, while the memory is withdrawn."""
_RELATIONS_UNMOVED_BY_MERGE = frozenset({MERGED_INTO_RELATION, VERSION_OF_RELATION})

_encode = msgspec.json.Encoder(order="deterministic").encode


def is_active(row: NodeRow, now: int) -> bool:
    """Return True for a memory that is not withdrawn and is valid at ``now``."""
    return row.is_memory and not (row.extras or NO_EXTRAS).ended and row.is_valid_at(now)


def is_live(row: NodeRow | None) -> TypeGuard[NodeRow]:
    """Return True for a memory that is neither withdrawn nor a former version of another, regardless of valid time."""
    if row is None or not row.is_memory:
        return False
    extras = row.extras or NO_EXTRAS
    return not (extras.ended or extras.belongs_to or is_never_valid(extras))


def is_version_of(row: NodeRow | None, memory: str) -> bool:
    """Return True if a node with a `VERSION_OF` edge to a memory is its version.

    Callers may use that relation type for other purposes.
    """
    return row is not None and row.is_memory and (row.extras or NO_EXTRAS).belongs_to == memory


def withdrawal_extras(row: NodeRow, ended: str, belongs_to: str = "", author: str = "") -> NodeExtrasPut:
    """Return extras that make a memory never valid and record the reason and its former validity."""
    old = row.extras or NO_EXTRAS
    at = row.created_at if old.valid_from is None else old.valid_from
    return NodeExtrasPut(
        created_by=author,
        valid_from=at,
        valid_to=at,
        ended=ended,
        former_from=old.valid_from,
        former_to=old.valid_to,
        belongs_to=belongs_to,
    )


def soft_delete(row: NodeRow, ended: str, belongs_to: str = "", author: str = "") -> NodePut:
    """Return a put that withdraws a memory."""
    return NodePut(0, row.id, extras=withdrawal_extras(row, ended, belongs_to, author))


def restore(row: NodeRow, author: str = "") -> NodePut:
    """Return a put that reverts the withdrawal of a memory."""
    old = row.extras or NO_EXTRAS
    extras = NodeExtrasPut(
        created_by=author,
        valid_from=old.former_from,
        valid_to=old.former_to,
        ended="",
        former_from=None,
        former_to=None,
        belongs_to="",
    )
    return NodePut(0, row.id, extras=extras)


def forget_memory_put(row: NodeRow, reason: str, author: str = "") -> NodePut:
    """Return a put that withdraws a memory, or a former version of one, at a caller's request."""
    old = row.extras or NO_EXTRAS
    put = soft_delete(row, REASON_FORGOTTEN, old.belongs_to, author or old.created_by)
    if not reason:
        return put
    attributes = _encode({**_decode_attributes(row.attributes), FORGOTTEN_REASON_ATTRIBUTE: reason}).decode()
    fits = len(attributes.encode()) <= MAX_ATTRIBUTES_BYTES
    return msgspec.structs.replace(put, attributes=attributes) if fits else put


def undo_forget_put(row: NodeRow) -> NodePut:
    """Return a put that reverts `forget_memory_put`. A former version of a memory becomes superseded again."""
    old = row.extras or NO_EXTRAS
    put = restore(row, old.created_by)
    ended = REASON_SUPERSEDED if old.belongs_to else ""
    extras = msgspec.structs.replace(put.extras or NodeExtrasPut(), ended=ended, belongs_to=old.belongs_to)
    attributes = _decode_attributes(row.attributes)
    reason = attributes.pop(FORGOTTEN_REASON_ATTRIBUTE, None)
    own = None if reason is None else _encode(attributes).decode()
    return msgspec.structs.replace(put, extras=extras, attributes=own)


def is_cascading_edge(edge: EdgeRow) -> bool:
    """Return True if a relation is withdrawn together with a memory at its end."""
    return (
        edge.relation_type not in _RELATIONS_UNMOVED_BY_MERGE
        and FORGOTTEN_BOUNDS_ATTRIBUTE not in _decode_attributes(_own_attributes(edge))
    )


def soft_delete_edge(edge: EdgeRow) -> EdgePut:
    """Return a put that makes a relation never valid."""
    old, stamps = edge.extras or NO_EDGE_EXTRAS, split_edge_attributes(edge.attributes)
    at = parse_stored_time(stamps.created_at) if old.valid_from is None else old.valid_from
    own = _encode(
        {**_decode_attributes(stamps.own), FORGOTTEN_BOUNDS_ATTRIBUTE: [old.valid_from, old.valid_to]}
    ).decode()
    extras = EdgeExtrasPut(created_by=old.created_by, valid_from=at, valid_to=at)
    return EdgePut(0, edge.key, own=own, updated_at=stamps.updated_at, extras=extras)


def restore_edge(edge: EdgeRow) -> EdgePut | None:
    """Return a put that reverts `soft_delete_edge`; None for a relation that it did not withdraw."""
    stamps = split_edge_attributes(edge.attributes)
    own = _decode_attributes(stamps.own)
    bounds = own.pop(FORGOTTEN_BOUNDS_ATTRIBUTE, None)
    if not isinstance(bounds, list) or len(bounds) != 2:  # noqa: PLR2004 - start and end
        return None
    start, end = bounds
    old = edge.extras or NO_EDGE_EXTRAS
    extras = EdgeExtrasPut(created_by=old.created_by, valid_from=_time(start), valid_to=_time(end))
    return EdgePut(0, edge.key, own=_encode(own).decode(), updated_at=stamps.updated_at, extras=extras)


def _time(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _own_attributes(edge: EdgeRow) -> str:
    return split_edge_attributes(edge.attributes).own


def _decode_attributes(attributes: str) -> dict[str, Any]:
    return decode_json(attributes, dict[str, Any])
