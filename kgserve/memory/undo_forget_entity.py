"""Undo of forgetting an entity: what was deleted with it is written again, from the store's history."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future
from typing import Literal

import msgspec

from kgserve.errors import Conflict
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.graph.as_of_resolution import find_merge_redirect_at_commit, get_caught_up_history
from kgserve.graph.merge_policy import build_merge_survivor_write
from kgserve.graph.node_merge_models import MergeIntoRequest
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.deduplication import MemoryWriteBatchDraft
from kgserve.memory.deleted_entity_lookup import MAX_DELETED_ENTITY_MEMORIES, MAX_DELETED_NODE_STATES
from kgserve.memory.entity_name_mentions import NameMentionFinder
from kgserve.memory.memory_erasure_targets import is_node_deleted_at_commit
from kgserve.memory.retain_forget_recall_models import ForgetAnswer, ForgetRequest, UnrestoredItem
from kgserve.memory.serialization import get_node_name_or_id, now_in_microseconds
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.storage.model.entity_names import (
    IS_ABOUT_RELATION,
    UNKNOWN_TYPE,
    list_entity_names_and_aliases,
    normalize_entity_name,
)
from kgserve.storage.model.merge_redirects import MAX_REDIRECTS, MERGED_INTO_RELATION, is_node_never_valid
from kgserve.storage.model.node_edge_fields import NO_EXTRAS, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow, edge_id
from kgserve.storage.model.soft_delete import PREDECESSOR_RELATIONS
from kgserve.storage.model.write_batch import (
    EdgeUpsert,
    NodeUpsert,
    WriteBatch,
    build_node_restore_upsert,
    copy_edge_row_as_upsert,
)
from kgserve.storage.rows.memory_hierarchy_and_redirects import resolve_merge_redirect
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pending_state import PendingCommitGroupState

MAX_RESTORED_NODES = 100_000
MAX_RESTORED_EDGES_PER_NODE = 100_000
_MAX_NODE_LIFETIMES = 100_000
_MAX_EARLIER_STATES = 3
"""States of an entity that are examined for its name; a deleted entity that is forgotten gets one without a name."""


class EntityForgottenInHistory(msgspec.Struct, frozen=True):
    """Nodes and edges that were deleted with an entity, in their last state.

    ``entities`` are the entity and those merged into it. ``returned`` are other nodes, and edges, that existed again
    since.
    """

    entities: tuple[str, ...] = ()
    nodes: dict[str, NodeRow] = {}
    edges: dict[EdgeKey, EdgeRow] = {}
    returned: frozenset[str | EdgeKey] = frozenset()


class EntityRestorationPlan:
    """The write that restores what is missing of a forgotten entity, decided from some rows."""

    def __init__(self, rows: RowsSnapshot, text: str, forgotten: EntityForgottenInHistory) -> None:
        self._rows = rows
        self._forgotten = forgotten
        self.nodes: dict[str, NodeRow] = {}
        self._fills: list[NodeUpsert] = []
        self._replaced: set[str] = set()
        self.unrestored: list[UnrestoredItem] = []
        for row in forgotten.nodes.values():
            self._decide_node(row, rows.node(row.id))
        self.edges = [row for row in forgotten.edges.values() if self._has_to_restore(row)]
        if not (self.nodes or self.edges or self.unrestored):
            why = (
                "all that was forgotten with it is there"
                if forgotten.entities
                else "the history knows no forgotten entity of this id or name"
            )
            self._leave(text, "node", why)

    @property
    def batch(self) -> WriteBatch:
        """The write that restores it."""
        nodes = [*map(build_node_restore_upsert, self.nodes.values()), *self._fills]
        return WriteBatch(nodes=nodes, edges=[*self._edge_puts()], touch=False, cost=1_000 * len(nodes))

    def _edge_puts(self) -> Iterator[EdgeUpsert]:
        for row in self.edges:
            yield msgspec.structs.replace(copy_edge_row_as_upsert(row, row.key), version=None)

    def _decide_node(self, row: NodeRow, current: NodeRow | None) -> None:
        kind = "memory" if row.is_memory else "node"
        if current is None:
            if row.id in self._forgotten.returned:
                self._leave(row.id, kind, "existed again since, and was deleted again")
            else:
                self.nodes[row.id] = row
        elif row.id in self._forgotten.entities:
            self._decide_existing_entity(row, current)
        elif (row.content, row.is_memory) != (current.content, current.is_memory):
            self._replaced.add(row.id)
            self._leave(row.id, kind, "the id exists again with another content, which stays")

    def _decide_existing_entity(self, row: NodeRow, current: NodeRow) -> None:
        """Fill the fields that an entity lacks which exists again."""
        survivor = resolve_merge_redirect(self._rows, row.id)
        if is_node_never_valid(row.extras):
            if survivor == row.id:
                self._leave(row.id, "node", "exists again, no longer merged")
            return
        if survivor != row.id:
            self._leave(row.id, "node", f"exists again, and was merged into {survivor!r}")
            return
        if current.is_memory:
            self._replaced.add(row.id)
            self._leave(row.id, "node", "a memory has its id")
            return
        write = build_merge_survivor_write(current, row, MergeIntoRequest(into=row.id))
        put = write.put
        if current.type == UNKNOWN_TYPE != row.type:
            put = msgspec.structs.replace(put, type=row.type)
        name = (row.extras or NO_EXTRAS).name
        if name and not (current.extras or NO_EXTRAS).name:
            extras = msgspec.structs.replace(put.extras or NodeExtrasUpsert(), name=name)
            put = msgspec.structs.replace(put, extras=extras)
            self._fills.append(put)
        elif write.taken or put.type is not None:
            self._fills.append(put)
        left = [*write.left, *(["type"] if put.type is None and current.type != row.type else [])]
        if left:
            self._leave(row.id, "node", f"exists again, and keeps its own {', '.join(left)}")

    def _has_to_restore(self, row: EdgeRow) -> bool:
        source, target, kind = row.key
        if self._rows.edge(row.key) is not None or (kind == MERGED_INTO_RELATION and source not in self.nodes):
            return False
        if row.key in self._forgotten.returned and not self.nodes.keys() & {source, target}:
            # It was deleted again, on purpose.
            return False
        if self._replaced & {source, target}:
            return False
        missing = [end for end in row.key[:2] if end not in self.nodes and not self._rows.has(end)]
        if missing and missing[0] not in self._forgotten.nodes:
            self._leave(edge_id(row.key), "edge", f"{missing[0]!r} does not exist any more")
        return not missing

    def _leave(self, node_id: str, kind: Literal["memory", "node", "edge"], reason: str) -> None:
        self.unrestored.append(UnrestoredItem(id=node_id, kind=kind, reason=reason))


def restore_entity(graph: StoreHandle, request: ForgetRequest) -> Future[ForgetAnswer]:
    """Write a forgotten entity again, with the memories and relations that were deleted with it.

    If the entity exists again, it gains the fields that it lacks. Other nodes that exist again do not change. Raises
    Conflict without a history, and for an ambiguous name; Gone for a gap in the history.
    """
    text = request.entity or ""
    with graph.lease() as leased:
        forgotten = _find(graph, leased, text)

    def look(store: OpenStore) -> EntityRestorationPlan:
        with store.reading() as rows:
            return EntityRestorationPlan(rows, text, forgotten)

    def answer(plan: EntityRestorationPlan, sequence: int) -> ForgetAnswer:
        memories = sorted(row.id for row in plan.nodes.values() if row.is_memory)
        return ForgetAnswer(
            memories_removed=0,
            relations_removed=0,
            memories_restored=len(memories),
            relations_restored=len(plan.edges),
            ids=memories[:MAX_REPORTED_ITEMS],
            matches=[],
            dry_run=request.dry_run,
            sequence=sequence,
            not_restored=plan.unrestored[:MAX_REPORTED_ITEMS],
        )

    return graph.submit_prepared_batch(look, lambda _, plan: plan.batch, answer, dry_run=request.dry_run)


def _find(graph: StoreHandle, store: OpenStore, text: str) -> EntityForgottenInHistory:
    """Return what was deleted when an entity was last forgotten; nothing if it is unknown."""
    view = get_caught_up_history(graph.graphs.historian, store)
    with store.reading() as rows:
        draft = MemoryWriteBatchDraft(PendingCommitGroupState(rows, store.memories, now_in_microseconds()))
        named = [row.id for row in draft.find(text)]

    def look(history: HistoryFile) -> EntityForgottenInHistory:
        deletions = _list_deletions(history, text) or _list_deletions_of_named(history, text, named)
        at = next((each for each in deletions if _has_deleted_memory(history, each[1])), next(iter(deletions), None))
        return EntityForgottenInHistory() if at is None else _find_forgotten(history, *at)

    return view.look(look)


def _list_deletions(history: HistoryFile, node_id: str) -> list[tuple[str, int]]:
    """Return the commits that deleted an entity, with its id, newest first."""
    lifetimes = history.node_lifetimes(node_id, _MAX_NODE_LIFETIMES)
    starts = {first for first, _ in lifetimes}
    ends = (last for _, last in lifetimes if last is not None and last not in starts)
    return [(node_id, last) for last in ends if not _is_memory_at(history, node_id, last - 1)]


def _is_memory_at(history: HistoryFile, node_id: str, at: int) -> bool:
    state = history.node_at(node_id, at)
    return state is not None and state.row.is_memory


def _list_deletions_of_named(history: HistoryFile, text: str, current: Iterable[str]) -> list[tuple[str, int]]:
    """Return the same of the entity that has, or had, a name or alias. Raises Conflict for an ambiguous name."""
    for node_id in current:
        if found := _list_deletions(history, node_id):
            return found
    wanted = normalize_entity_name(text)
    deleted = history.deleted_targets(IS_ABOUT_RELATION, MAX_DELETED_NODE_STATES, has_later=True)
    ids = dict.fromkeys(
        state.row.id
        for state in deleted
        if wanted in map(normalize_entity_name, (state.row.id, *list_entity_names_and_aliases(state.row)))
    )
    if len(ids) > 1:
        named = ", ".join(map(repr, ids))
        raise Conflict(f"{text!r} is the name of several deleted entities; use one of these ids: {named}")
    return [each for node_id in ids for each in _list_deletions(history, node_id)]


def _has_deleted_memory(history: HistoryFile, at: int) -> bool:
    ended = (state.row for state in history.nodes_ended(at, MAX_RESTORED_NODES) if state.row.is_memory)
    return any(is_node_deleted_at_commit(history, row.id, at) for row in ended)


def _find_forgotten(history: HistoryFile, deleted: str, at: int) -> EntityForgottenInHistory:
    """Return what a commit deleted with an entity, or with the survivor of one that was merged."""
    entity = deleted
    for _ in range(MAX_REDIRECTS):
        into = find_merge_redirect_at_commit(history, entity, at - 1)
        if into is None or not is_node_deleted_at_commit(history, into, at):
            break
        entity = into
    merged = _list_merged(history, entity, at)
    states = history.node_states(entity, at, _MAX_EARLIER_STATES)
    named = next((each for each in states if list_entity_names_and_aliases(each.row)), states[0])
    ended = {state.row.id: state.row for state in history.nodes_ended(at, MAX_RESTORED_NODES)}
    own = [named.row, *(ended[each] for each in merged if each in ended)]
    names = [name for row in own for name in (*list_entity_names_and_aliases(row), get_node_name_or_id(row))]
    # Kept memories were unlinked in the commit before; an entity that was deleted earlier, with its named state.
    moments = {at, at - 1, named.last or at}
    links = {edge.key: edge for each in (entity, *merged) for last in moments for edge in _about(history, each, last)}
    memories = _select_forgotten(ended, NameMentionFinder(names), {key[0] for key in links})
    nodes = {row.id: row for row in own} | _with_predecessors(history, memories, ended, at)
    edges = links | {edge.key: edge for node_id in nodes for edge in _edges_before(history, node_id, at)}
    entities = (entity, *merged)
    returned: set[str | EdgeKey] = set()
    if history.next_state(entity, at - 1) is not None:
        returned |= {each for each in nodes.keys() - {*entities} if history.next_state(each, at - 1) is not None}
        returned |= {key for key in edges if _has_later_edge(history, key, at)}
    return EntityForgottenInHistory(entities, nodes, edges, frozenset(returned))


def _has_later_edge(history: HistoryFile, key: EdgeKey, at: int) -> bool:
    """Return whether an edge existed again since a commit that deleted it."""
    states = history.edge_state_numbers(key[0], MAX_RESTORED_EDGES_PER_NODE)
    numbers = [number for number, target in states if target == key[1]]
    return any(other == key and first >= at for _, other, first, _ in history.edge_lifetimes(numbers))


def _list_merged(history: HistoryFile, entity: str, at: int) -> list[str]:
    """Return the nodes merged into an entity, at any depth, that were deleted with it."""
    found: dict[str, None] = {}
    waiting = [entity]
    while waiting:
        states = history.edges_ended(waiting.pop(), MERGED_INTO_RELATION, at, MAX_DELETED_ENTITY_MEMORIES)
        new = [state.row.source for state in states if state.row.source not in found]
        found |= dict.fromkeys(new)
        waiting += new
    return [*found]


def _select_forgotten(
    ended: dict[str, NodeRow], names: NameMentionFinder, linked: Collection[str]
) -> dict[str, NodeRow]:
    """Return the memories among the nodes that a commit ended that were about the entity, or named it."""
    found: dict[str, NodeRow] = {}
    for node_id, row in ended.items():
        owner = (row.extras or NO_EXTRAS).belongs_to
        is_named = any(each is not None and names.is_in_node(each) for each in (row, ended.get(owner)))
        if node_id in linked or owner in linked or (row.is_memory and is_named):
            found[node_id] = row
    return found


def _with_predecessors(
    history: HistoryFile, memories: dict[str, NodeRow], ended: dict[str, NodeRow], at: int
) -> dict[str, NodeRow]:
    """Return memories with those that a commit ended with them: their former versions and what was merged into them."""
    found = dict(memories)
    waiting = [row.id for row in memories.values() if row.is_memory]
    while waiting:
        memory = waiting.pop()
        for kind in PREDECESSOR_RELATIONS:
            for state in history.edges_ended(memory, kind, at, MAX_DELETED_ENTITY_MEMORIES):
                row = ended.get(state.row.source)
                if row is not None and row.id not in found:
                    found[row.id] = row
                    waiting.append(row.id)
    return found


def _about(history: HistoryFile, entity: str, last: int) -> Iterator[EdgeRow]:
    states = history.edges_ended(entity, IS_ABOUT_RELATION, last, MAX_DELETED_ENTITY_MEMORIES)
    yield from (state.row for state in states)


def _edges_before(history: HistoryFile, node_id: str, at: int) -> Iterator[EdgeRow]:
    """Yield the edges of a node that ended with a commit."""
    for find in (history.outgoing, history.incoming):
        yield from (state.row for state in find(node_id, at - 1, MAX_RESTORED_EDGES_PER_NODE) if state.last == at)
