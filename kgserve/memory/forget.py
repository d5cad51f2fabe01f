"""Forgetting memories, undoing that, and erasing them.

Forgotten memories are valid at no moment, with their former versions and relations. Past states of the store (`as_of`)
and queries over all valid times still contain them. Erasing removes them from every file of the store, and reports
where copies may remain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress

import msgspec
from typing_extensions import override

from kgserve.errors import Conflict, FieldError, Gone, InvalidInput, NotFound
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.graph.store_handle import StoreHandle, completed_future, map_future
from kgserve.memory.deduplication import MemoryWriteBatchDraft
from kgserve.memory.forget_entity import delete_entity_with_its_memories, erase_entity
from kgserve.memory.memory_crud import MAX_SIMILAR_CONTENT_CHARS
from kgserve.memory.memory_erasure_targets import MemoryErasureTargets
from kgserve.memory.memory_models import RecalledMemory, RecallRequest
from kgserve.memory.multi_store_recall import recall_best_memories
from kgserve.memory.retain_forget_recall_models import (
    ForgetAnswer,
    ForgetQueryMatch,
    ForgetRequest,
    UnerasedDataLocation,
    UnrestoredItem,
)
from kgserve.memory.serialization import now_in_microseconds
from kgserve.memory.short_memory_ids import expand_short_memory_ids
from kgserve.memory.undo_forget_entity import restore_entity
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.soft_delete import (
    REASON_FORGOTTEN,
    REASON_SUPERSEDED,
    RESTORABLE_END_REASONS,
    build_edge_restore_upsert,
    build_edge_soft_delete_upsert,
    build_memory_forget_upsert,
    build_undo_forget_upsert,
    is_edge_withdrawn_with_memory,
)
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.rows.memory_hierarchy_and_redirects import resolve_merge_redirect
from kgserve.storage.rows.memory_predecessors import find_memory_predecessors
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.backup.folder_layout import find_backups_with_commits_since
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pending_state import PendingCommitGroupState
from kgserve.stores.purge_record import PurgedCommitRange

MAX_FORGET_MATCHES = 10
NOTHING_FORGOTTEN = ForgetAnswer(
    memories_removed=0,
    relations_removed=0,
    memories_restored=0,
    relations_restored=0,
    ids=[],
    matches=[],
    dry_run=False,
    sequence=0,
)


def soft_delete_or_restore_memories(graph: StoreHandle, request: ForgetRequest) -> Future[ForgetAnswer]:
    """Withdraw memories with their former versions and relations, so that no valid time contains them.

    With `entity`, everything about a person or other entity is deleted from the current state: the entity, its aliases,
    the memories about it and those that name it. Memories that are also about others stay if they do not name it, or
    with `keep_shared`. The answer lists what is `kept`. Only the history still has it, and `undo` restores it from
    there; with `erase`, nothing has.

    `undo` restores them, and memories that pruning withdrew; `hard` deletes them instead. Unknown or already forgotten
    memories are not an error. If no node has the `entity_id`, nothing is forgotten: `matches` are then the memories
    about a deleted entity of that id or name, and those that mention it. A `query` forgets nothing: it lists `matches`
    to confirm by their ids. If a history is kept, past states of the store (`as_of`) still contain them.

    `erase` removes them from every file of the store, including former versions, absorbed memories and past states. It
    requires the role admin, resumes after a crash, and is answered when it is done, with what `remains` elsewhere.

    Raises InvalidInput, Forbidden, and Conflict for a node that is not a memory.
    """
    request = expand_short_memory_ids(graph, request)
    ids = _requested_ids(request)
    if request.entity is not None:
        operation = (
            restore_entity if request.undo else _erase_entity if request.erase else delete_entity_with_its_memories
        )
        return operation(graph, request)
    if request.query is not None:
        return completed_future(_matches(graph, request.query, dry_run=request.dry_run))
    if request.erase:
        return erase_memories(graph, request, ids)
    if request.entity_id is not None and not request.undo and _is_absent(graph, request.entity_id):
        return completed_future(_matches(graph, request.entity_id, dry_run=request.dry_run, is_entity=True))
    if request.dry_run:
        return completed_future(_preview(graph, request, ids))
    forgetting: list[_ForgetDraft] = []

    def decide(ahead: PendingCommitGroupState) -> WriteBatch:
        forgetting.append(_ForgetDraft(ahead, request))
        return forgetting[0].batch(ids)

    def answer(report: WriteReport) -> ForgetAnswer:
        return forgetting[0].report(report.sequence)

    return graph.write(lambda store: store.submit_decided(decide, 1_000 * len(ids)), answer)


def _requested_ids(request: ForgetRequest) -> list[str]:
    """Return the ids in the request. Raises InvalidInput."""
    given = [name for name in ("entity_id", "ids", "query", "entity") if getattr(request, name) is not None]
    if len(given) != 1:
        message = "exactly one of entity_id, ids, query and entity is required"
        raise InvalidInput(message, (FieldError(given[1] if given else "", message),))
    if request.entity is not None and request.reason:
        raise InvalidInput.at("reason", "cannot be combined with entity, whose memories are deleted")
    if request.entity is None and (request.keep_shared or request.confirm):
        raise InvalidInput.at("keep_shared" if request.keep_shared else "confirm", "requires entity")
    wrong = "undo" if request.query is not None and request.undo else "hard" if request.hard and request.undo else ""
    if wrong:
        message = "requires entity, entity_id or ids, and cannot be combined with hard, which cannot be undone"
        raise InvalidInput.at(wrong, message)
    if request.erase and (request.query is not None or request.undo or request.reason):
        message = "requires entity_id or ids, and cannot be combined with query, undo or reason"
        raise InvalidInput.at("erase", message)
    return list(dict.fromkeys(request.ids or ([] if request.entity_id is None else [request.entity_id])))


def _is_absent(graph: StoreHandle, node_id: str) -> bool:
    with graph.lease() as store, store.reading() as rows:
        return rows.node(resolve_merge_redirect(rows, node_id)) is None


def _matches(graph: StoreHandle, query: str, *, dry_run: bool, is_entity: bool = False) -> ForgetAnswer:
    asked = RecallRequest(query=query, limit=MAX_FORGET_MATCHES, touch=False, min_confidence=0.0)
    hits: list[RecalledMemory] = []
    if is_entity:
        with suppress(NotFound, Conflict, Gone):
            hits += recall_best_memories(
                graph, msgspec.structs.replace(asked, entity=query, mode="graph", depth=0)
            ).hits
    found = recall_best_memories(graph, asked)
    hits += (hit for hit in found.hits if hit.id not in {each.id for each in hits})
    matches = [
        ForgetQueryMatch(
            id=hit.id, content=hit.content[:MAX_SIMILAR_CONTENT_CHARS], memory_type=hit.memory_type, score=hit.score
        )
        for hit in hits[:MAX_FORGET_MATCHES]
    ]
    return msgspec.structs.replace(NOTHING_FORGOTTEN, matches=matches, dry_run=dry_run, sequence=found.index_sequence)


def _preview(graph: StoreHandle, request: ForgetRequest, ids: Sequence[str]) -> ForgetAnswer:
    with graph.lease() as store, store.reading() as rows:
        forgetting = _ForgetDraft(PendingCommitGroupState(rows, store.memories, now_in_microseconds()), request)
        forgetting.batch(ids)
        return forgetting.report(rows.at)


class _ForgetDraft(MemoryWriteBatchDraft):
    """Write that forgets or restores memories."""

    def __init__(self, ahead: PendingCommitGroupState, request: ForgetRequest) -> None:
        super().__init__(ahead)
        self._request = request
        self._memories: dict[str, None] = {}
        self._relations: dict[EdgeKey, None] = {}
        self._absent: list[UnrestoredItem] = []

    @override
    def batch(self, ids: Sequence[str] = ()) -> WriteBatch:
        rows = {row.id: row for node_id in ids for row in self._with_predecessors(node_id)}
        if self._request.hard:
            return self._delete(rows.values())
        (self._remember if self._request.undo else self._forget)(list(rows.values()))
        return super().batch()

    def report(self, sequence: int) -> ForgetAnswer:
        """Return the result of the write."""
        memories, relations = len(self._memories), len(self._relations)
        undo = self._request.undo
        return ForgetAnswer(
            memories_removed=0 if undo else memories,
            relations_removed=0 if undo else relations,
            memories_restored=memories if undo else 0,
            relations_restored=relations if undo else 0,
            ids=[*self._memories][:MAX_REPORTED_ITEMS],
            matches=[],
            dry_run=self._request.dry_run,
            sequence=sequence,
            not_restored=self._absent[:MAX_REPORTED_ITEMS] if undo else msgspec.UNSET,
        )

    def _with_predecessors(self, node_id: str) -> list[NodeRow]:
        """Return a memory, after following merges, with its former texts in other nodes. Raises Conflict."""
        row = self.node(node_id if self._request.hard else self.ahead.resolve_redirect(node_id))
        if row is None:
            why = "does not exist; undo a forgotten entity by its name, and `revert` a deleted memory"
            self._absent.append(UnrestoredItem(id=node_id, kind="memory", reason=why))
            return []
        if not row.is_memory:
            raise Conflict(
                _entity_message(row, [edge.source for edge in self.ahead.edges_to(row.id, IS_ABOUT_RELATION)])
            )
        return [row, *find_memory_predecessors(self.ahead, (row.id,)).values()]

    def _delete(self, rows: Iterable[NodeRow]) -> WriteBatch:
        self._memories.update((row.id, None) for row in rows)
        self._relations.update((edge.key, None) for node_id in self._memories for edge in self._edges_of(node_id))
        return WriteBatch(delete_nodes=[*self._memories], cost=sum(map(len, self._memories)))

    def _forget(self, rows: Sequence[NodeRow]) -> None:
        for row in rows:
            if (row.extras or NO_EXTRAS).ended in {"", REASON_SUPERSEDED} and not self._is_merged(row.id):
                self._memories[row.id] = None
                self.put_node(build_memory_forget_upsert(row, self._request.reason))
        for edge in (edge for node_id in self._memories for edge in self._edges_of(node_id)):
            if edge.key not in self._relations and is_edge_withdrawn_with_memory(edge):
                self._relations[edge.key] = None
                self.put_edge(build_edge_soft_delete_upsert(edge))

    def _remember(self, rows: Sequence[NodeRow]) -> None:
        for row in rows:
            if (row.extras or NO_EXTRAS).ended in RESTORABLE_END_REASONS and not self._is_merged(row.id):
                self._memories[row.id] = None
                self.put_node(build_undo_forget_upsert(row))
        for edge in (edge for node_id in self._memories for edge in self._edges_of(node_id)):
            put = build_edge_restore_upsert(edge)
            if put is not None and edge.key not in self._relations and not any(map(self._is_forgotten, edge.key[:2])):
                self._relations[edge.key] = None
                self.put_edge(put)

    def _is_merged(self, node_id: str) -> bool:
        return self.ahead.resolve_redirect(node_id) != node_id

    def _is_forgotten(self, node_id: str) -> bool:
        row = self.node(node_id)
        return row is not None and (row.extras or NO_EXTRAS).ended == REASON_FORGOTTEN

    def _edges_of(self, node_id: str) -> list[EdgeRow]:
        return [*self.ahead.edges_from(node_id), *self.ahead.edges_to(node_id)]


def _entity_message(row: NodeRow, about: Sequence[str]) -> str:
    """Return why an entity cannot be forgotten, and how to forget the memories about it."""
    message = f"node {row.id!r} is not a memory; retire or delete it as a node"
    if not about:
        return message
    named = ", ".join(map(repr, about[:MAX_FORGET_MATCHES])) + (" and more" if len(about) > MAX_FORGET_MATCHES else "")
    return f"{message}. Forget the memories about it by ids: {named}"


REPLICAS_REMAINDER = UnerasedDataLocation(
    kind="node",
    name="copies on other nodes",
    reason="a cluster node that is down removes its copy when it returns",
)
LOG_SERVERS_REMAINDER = UnerasedDataLocation(
    kind="log",
    name="files of the NATS servers",
    reason="the servers keep messages that they sent each other or that were trimmed until they rewrite those files",
)
EXTERNAL_COPIES_REMAINDER = UnerasedDataLocation(
    kind="unknown",
    name="copies outside of this server",
    reason="exports, other backups, and data sent to callers and models are unknown to this server",
)


def erase_memories(graph: StoreHandle, request: ForgetRequest, ids: Sequence[str]) -> Future[ForgetAnswer]:
    """Erase memories from every file of a store. Raises Forbidden, Conflict, StorageFull and Unavailable."""
    graph.graphs.caller.require("admin")
    wanted: list[MemoryErasureTargets] = []

    def begin(store: OpenStore) -> Future[PurgedCommitRange]:
        wanted.append(MemoryErasureTargets(graph, store, ids))
        if request.dry_run:
            return completed_future(wanted[0].preview())
        return store.require_eraser().erase(wanted[0].find)

    return graph.write(begin, lambda erased: _answer(graph, wanted[0], erased, dry_run=request.dry_run))


def _erase_entity(graph: StoreHandle, request: ForgetRequest) -> Future[ForgetAnswer]:
    def answer(done: tuple[ForgetAnswer, PurgedCommitRange]) -> ForgetAnswer:
        found, erased = done
        is_nothing = not (found.memories_removed or found.entities_removed)
        return msgspec.structs.replace(found, remains=[] if is_nothing else _remains(graph, erased))

    return map_future(erase_entity(graph, request), answer)


def _answer(
    graph: StoreHandle, wanted: MemoryErasureTargets, erased: PurgedCommitRange, *, dry_run: bool
) -> ForgetAnswer:
    return ForgetAnswer(
        memories_removed=len(wanted.ids),
        relations_removed=wanted.relations,
        memories_restored=0,
        relations_restored=0,
        ids=wanted.ids[:MAX_REPORTED_ITEMS],
        matches=[],
        dry_run=dry_run,
        sequence=erased.through,
        remains=_remains(graph, erased) if wanted.ids else [],
    )


def _remains(graph: StoreHandle, erased: PurgedCommitRange) -> list[UnerasedDataLocation]:
    """Return the places that may still hold the erased data, as far as known."""
    settings, root = graph.graphs.settings, graph.pool.layout(graph.name).root
    aside = (*root.glob("damaged-*"), *root.glob("history.sqlite.damaged*"), *root.glob("journal/*.damaged"))
    found = [
        UnerasedDataLocation(
            kind="file", name=str(path.relative_to(root)), reason="set aside by `kgserve doctor --salvage`"
        )
        for path in sorted(aside)
    ]
    found += [
        UnerasedDataLocation(kind="file", name=path.name, reason="set aside for the replica that replaced it")
        for path in graph.pool.placement.list_set_aside_copies(graph.name)
    ]
    if settings.backup_dir is not None:
        backups = find_backups_with_commits_since(settings.backup_dir.resolve(), graph.name, erased.first)
        found += [UnerasedDataLocation(kind="backup", name=name, reason=reason) for name, reason in backups]
    if graph.pool.placement.is_shared:
        found += [REPLICAS_REMAINDER, LOG_SERVERS_REMAINDER]
    return [*found, EXTERNAL_COPIES_REMAINDER]
