"""What a write comes to in words of memories: which there are now, which are gone, what is new about the others.

A memory that is withdrawn counts as gone, and as new when it is taken back. What a node was before a write is not in
its row; so a change set says it of those nodes of which anything is to be told (`Former`), and listeners who come
later hear the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from kgserve.decoding import json_decoder
from kgserve.model.batch import RUN
from kgserve.model.change import ChangeSet, Former, Kind
from kgserve.model.fields import NO_EXTRAS, NODE, TIME, names
from kgserve.model.rows import NodeRow
from kgserve.model.times import format_time

DONE = "done"
MemoryEvent = Literal["memory_created", "memory_updated", "memory_deleted", "entity_created", "consolidation_complete"]


class Told(msgspec.Struct, frozen=True, gc=False):
    """What is told of a memory or an entity: the fields by name, the type of the node where that is known."""

    fields: dict[str, Any]
    type: str | None = None

    @property
    def cost(self) -> int:
        """About the bytes of its texts."""
        return sum(len(value) for value in self.fields.values() if isinstance(value, str))


class _Run(msgspec.Struct, frozen=True):
    """Of the attributes of a run, what is told."""

    status: str = ""
    merged: int = 0
    deleted: int = 0


_read_run = json_decoder(_Run).decode
_KEPT = {"created_by", "conflicts", "ended", "former_from", "former_to", "belongs_to"}
_PLAIN = ("type", "content", "attributes")
_EXTRAS = tuple(name for name in names(NODE.optional) if name not in _KEPT)
_MOMENTS = {field.name for field in NODE.optional if field.type is TIME}


def kind_of(row: NodeRow) -> Kind:
    """What a node is to those who know memories and entities alone; "" for nothing."""
    extras = row.extras
    if extras is not None and extras.confidence is not None:
        return "" if extras.ended else "memory"
    if row.type == RUN:
        return "run" if _run(row).status == DONE else ""
    return "entity" if extras is not None and extras.name else ""


def former_of(old: NodeRow, new: NodeRow) -> Former | None:
    """What a change set says of a node as it was, if anything is to be told of it."""
    kind = kind_of(old)
    if not kind and not kind_of(new):
        return None
    return Former(old.id, kind, tuple(_changed(old, new)))


def told(change: ChangeSet) -> Iterator[tuple[MemoryEvent, Told]]:
    """What a change set comes to: first what is gone, then what is there, then what is new about the others."""
    former = {each.id: each for each in change.former}
    yield from _deleted(change, former)
    new: dict[Kind, list[NodeRow]] = {"": [], "entity": [], "memory": [], "run": []}
    for row in (*change.nodes_created, *(row for row in change.nodes_updated if _is_new(row, former))):
        new[kind_of(row)].append(row)
    for row in new["entity"]:
        yield "entity_created", Told({"id": row.id, "name": (row.extras or NO_EXTRAS).name, "type": row.type}, row.type)
    for row in new["memory"]:
        yield "memory_created", Told({"id": row.id, "content": row.content, "type": row.type}, row.type)
    yield from _updated(change, former)
    for row in new["run"]:
        run = _run(row)
        yield "consolidation_complete", Told({"id": row.id, "merged": run.merged, "deleted": run.deleted}, row.type)


def _deleted(change: ChangeSet, former: dict[str, Former]) -> Iterator[tuple[MemoryEvent, Told]]:
    for node_id in change.nodes_deleted:
        if node_id in former and former[node_id].kind == "memory":
            yield "memory_deleted", Told({"id": node_id, "reason": "deleted"})
    for row in change.nodes_updated:
        if row.id in former and former[row.id].kind == "memory" and kind_of(row) != "memory":
            reason = (row.extras or NO_EXTRAS).ended or "withdrawn"
            yield "memory_deleted", Told({"id": row.id, "reason": reason}, row.type)


def _updated(change: ChangeSet, former: dict[str, Former]) -> Iterator[tuple[MemoryEvent, Told]]:
    for row in change.nodes_updated:
        was = former.get(row.id)
        if was is not None and was.kind == "memory" and was.changed and kind_of(row) == "memory":
            yield "memory_updated", Told({"id": row.id, "changes": _values(row, was.changed)}, row.type)


def _is_new(row: NodeRow, former: dict[str, Former]) -> bool:
    """Whether a node that was there before was nothing of the kind."""
    return row.id in former and former[row.id].kind != kind_of(row)


def _changed(old: NodeRow, new: NodeRow) -> Iterator[str]:
    yield from (name for name in _PLAIN if getattr(old, name) != getattr(new, name))
    was, now = old.extras or NO_EXTRAS, new.extras or NO_EXTRAS
    yield from (name for name in _EXTRAS if getattr(was, name) != getattr(now, name))


def _values(row: NodeRow, changed: tuple[str, ...]) -> dict[str, Any]:
    """Fields as they are now, as callers see them."""
    extras = row.extras or NO_EXTRAS
    return {name: _shown(name, getattr(row if name in _PLAIN else extras, name)) for name in changed}


def _shown(name: str, value: Any) -> Any:
    if name == "attributes":
        return msgspec.Raw(value.encode())
    return format_time(value) if name in _MOMENTS and value is not None else value


def _run(row: NodeRow) -> _Run:
    try:
        return _read_run(row.attributes)
    except msgspec.ValidationError:
        return _Run()
