"""Memories that say the same of different people or things of one name: they are not one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kgserve.model.consolidation import Member
from kgserve.model.fields import NO_EXTRAS
from kgserve.model.names import IS_ABOUT, folded
from kgserve.rows.snapshot import Rows


def parted(rows: Rows, members: Iterable[Member]) -> list[list[Member]]:
    """Memories in groups, none of which is about two nodes of one name; what fits several is with the oldest of them.

    The first of a group are the oldest of it.
    """
    groups: list[tuple[dict[str, str], list[Member]]] = []
    for member in sorted(members, key=lambda each: (each.row.created_at, each.row.id)):
        about = _about(rows, member.row.id)
        for names, group in groups:
            if _agree(names, about):
                names.update(about)
                group.append(member)
                break
        else:
            groups.append((about, [member]))
    return [group for _, group in groups]


def _about(rows: Rows, memory: str) -> dict[str, str]:
    """Whom and what a memory is about, by name."""
    ids = [edge.target for edge in rows.outgoing(memory) if edge.relation_type == IS_ABOUT]
    return {folded((row.extras or NO_EXTRAS).name or row.id): row.id for row in rows.nodes(ids).values()}


def _agree(names: Mapping[str, str], about: Mapping[str, str]) -> bool:
    return all(names.get(name, node_id) == node_id for name, node_id in about.items())
