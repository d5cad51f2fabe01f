"""Memories that are withdrawn: true at no moment from then on, and brought back as they were."""

from __future__ import annotations

from typing import TypeGuard

from kgserve.model.batch import NodePut
from kgserve.model.fields import NO_EXTRAS, NodeExtrasPut
from kgserve.model.merging import is_withdrawn
from kgserve.model.rows import NodeRow

MERGED = "merged"
PRUNED = "pruned"


def is_active(row: NodeRow, now: int) -> bool:
    """Whether a node is a memory that nothing has ended, and that is true at a moment."""
    return row.is_memory and not (row.extras or NO_EXTRAS).ended and row.holds_at(now)


def stands(row: NodeRow | None) -> TypeGuard[NodeRow]:
    """Whether a node is a memory in force, now or once: not withdrawn, nor a version of another one."""
    if row is None or not row.is_memory:
        return False
    extras = row.extras or NO_EXTRAS
    return not (extras.ended or extras.belongs_to or is_withdrawn(extras))


def withdrawal(row: NodeRow, ended: str, belongs_to: str = "", author: str = "") -> NodeExtrasPut:
    """What makes a memory true at no moment, and notes why, and from when to when it was true before."""
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


def withdrawn(row: NodeRow, ended: str, belongs_to: str = "", author: str = "") -> NodePut:
    """A put that withdraws a memory."""
    return NodePut(0, row.id, extras=withdrawal(row, ended, belongs_to, author))


def brought_back(row: NodeRow, author: str = "") -> NodePut:
    """A put that takes the withdrawal of a memory back."""
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
