"""Ends of relations named by callers: an entity, or a memory by its id."""

from __future__ import annotations

from kgserve.errors import Conflict, InvalidInput
from kgserve.graph.former_versions import is_former_version_id
from kgserve.memory.deduplication import MemoryWriteBatchDraft
from kgserve.memory.entity_models import RelationInput
from kgserve.projections.memory_index.built_in_relation_types import STRUCTURAL_RELATIONS
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import EdgeKey, NodeRow
from kgserve.storage.model.soft_delete import is_current_unwithdrawn_memory


def resolve_relation_ends_to_edge_key(draft: MemoryWriteBatchDraft, relation: RelationInput) -> EdgeKey:
    """Return the key of a relation to write; missing entities are created, and retired ones become current again.

    A name that no entity has and that is the id of a memory means that memory. Raises Conflict for a withdrawn memory
    or a former version, and InvalidInput for a relation type reserved between memories.
    """
    ends = _resolve_end(draft, relation.source), _resolve_end(draft, relation.target)
    kind = relation.relation_type
    if kind in STRUCTURAL_RELATIONS and any(_is_memory(draft.node(end)) for end in ends):
        raise InvalidInput.at("relation_type", f"{kind!r} is reserved between memories; use another type")
    return (*ends, kind)


def find_relation_end_by_name(draft: MemoryWriteBatchDraft, name: str) -> str | None:
    """Return the id of the entity with a name, else of the memory with that id, or None.

    A name of several entities means the one with that id. Raises Conflict if none of them has it.
    """
    try:
        met = draft.find_entity_named(name)
    except Conflict:
        if not (exact := draft.find_current_nodes((name,))):
            raise
        met = exact[0].id
    if met is not None:
        return met
    row = draft.node(draft.ahead.resolve_redirect(name))
    return row.id if row is not None and row.is_memory else None


def _resolve_end(draft: MemoryWriteBatchDraft, name: str) -> str:
    met = find_relation_end_by_name(draft, name)
    if met is None and is_former_version_id(name) and _is_memory(draft.node(head := name.rpartition("@")[0])):
        raise Conflict(f"{name!r} names a version of memory {head!r}; use {head!r}")
    row = None if met is None else draft.node(met)
    if met is None or row is None:
        return draft.entity(name)
    if row.is_memory and not is_current_unwithdrawn_memory(row):
        extras = row.extras or NO_EXTRAS
        why = f"is a former version of {extras.belongs_to!r}; use that" if extras.belongs_to else "was withdrawn"
        raise Conflict(f"memory {name!r} {why}; relations connect entities and active memories")
    return met if row.is_memory else draft.restore_if_ended(row)


def _is_memory(row: NodeRow | None) -> bool:
    return row is not None and row.is_memory
