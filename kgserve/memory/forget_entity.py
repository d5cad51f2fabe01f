"""Forgetting an entity, for example a person: the entity, the memories about it, and those that name it.

Everything is deleted from the current state in one commit; only the history still has it. With `erase` it is removed
from every file, and so are former states of other nodes that name it.

A memory goes if it is about this entity only, or if it names it. It stays, and is no longer about the entity, if it is
also about others and does not name it. Other nodes and edges that name the entity stay. The answer lists all that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Literal

import msgspec

from kgserve.errors import Conflict, Gone, InvalidInput
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.graph.store_handle import StoreHandle, completed_future
from kgserve.memory.deduplication import MemoryWriteBatchDraft
from kgserve.memory.deleted_entity_lookup import DeletedEntityWithMemories, find_deleted_entity
from kgserve.memory.entity_name_mentions import NameMentionFinder
from kgserve.memory.erasure import remove_memories_from_run_records
from kgserve.memory.memory_crud import MAX_SIMILAR_CONTENT_CHARS
from kgserve.memory.memory_erasure_targets import (
    find_detached_predecessors,
    find_entities_merged_in_history,
    find_memory_remnants,
    get_followed_history,
)
from kgserve.memory.retain_forget_recall_models import (
    ForgetAnswer,
    ForgetRequest,
    ItemKeptAfterForgetting,
    MemoryForgottenWithEntity,
)
from kgserve.memory.serialization import get_node_name_or_id, now_in_microseconds
from kgserve.platform.text.function_and_content_words import FUNCTION_WORDS
from kgserve.storage.journal.journal_reader import JournalReader
from kgserve.storage.model.entity_names import (
    IS_ABOUT_RELATION,
    UNKNOWN_TYPE,
    list_entity_names_and_aliases,
    normalize_entity_name,
)
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION, is_node_never_valid
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import EMPTY_ATTRIBUTES_JSON, EdgeRow, NodeRow, edge_id
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.storage.rows.edge_pages import incoming_edges_of_type
from kgserve.storage.rows.memory_predecessors import CommittedMemoryPredecessorSource, find_memory_predecessors
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pending_state import PendingCommitGroupState
from kgserve.stores.purge_record import PurgedCommitRange, PurgeTargets

MIN_NAME_CHARS = 3
"""Minimum length of a name in ASCII that means the entity in a memory that is not about it."""
HISTORY_SLICE_STATES = 5_000


class EntityToForget(msgspec.Struct, frozen=True):
    """An entity with the ids of the nodes merged into it, and what refers to it.

    ``own_names`` are the names that mean this entity wherever they are found: no other entity has them, and they are no
    function words. ``memories`` are those that were about it when it was deleted.
    """

    ids: tuple[str, ...]
    names: NameMentionFinder
    own_names: NameMentionFinder
    memories: frozenset[str] = frozenset()


class NodesToEraseFromHistory(msgspec.Struct, frozen=True):
    """Nodes known to history or journal only that are to be erased, and nodes that lose their former states.

    ``first`` is the earliest commit of any of them; 0 if it is unknown.
    """

    deleted: list[str] = []
    current: list[str] = []
    first: int = 0


def find_entity_to_forget(graph: StoreHandle, store: OpenStore, text: str) -> EntityToForget:
    """Return the entity with an id or name, current or deleted; without one, whatever has this name is looked for.

    Raises Conflict for an ambiguous name, and for the id of a memory.
    """
    with store.reading() as rows:
        draft = MemoryWriteBatchDraft(PendingCommitGroupState(rows, store.memories, now_in_microseconds()))
        row = next(iter(draft.find_current_nodes((text,))), None)
        if row is None and (found := draft.find_entity_named(text)) is not None:
            row = draft.node(found)
        if row is None and (memory := rows.node(text)) is not None and memory.is_memory:
            raise Conflict(f"node {text!r} is a memory: send its id as entity_id or ids")
        if row is not None:
            merged = _list_merged_entities(rows, row.id)
            names = [
                name
                for each in (row, *merged)
                for name in (*list_entity_names_and_aliases(each), get_node_name_or_id(each))
            ]
            ids = (row.id, *(each.id for each in merged))
            return EntityToForget(ids, NameMentionFinder(names), NameMentionFinder(_list_own_names(draft, names, ids)))
    deleted: DeletedEntityWithMemories | None = None
    others: dict[str, NodeRow] = {}
    with suppress(Gone):
        deleted = find_deleted_entity(graph.graphs.historian, store, text, has_memories=False)
        others = _find_deleted_merged_entities(graph, store, text if deleted is None else deleted.entity.id)
        for each in others:
            deleted = deleted or find_deleted_entity(graph.graphs.historian, store, each, has_memories=False)
    if deleted is None:
        return EntityToForget((), NameMentionFinder((text,)), NameMentionFinder((text,)))
    names = [*deleted.names, text]
    for row in others.values():
        names += (*list_entity_names_and_aliases(row), get_node_name_or_id(row))
    with store.reading() as rows:
        draft = MemoryWriteBatchDraft(PendingCommitGroupState(rows, store.memories, now_in_microseconds()))
        own = NameMentionFinder(_list_own_names(draft, names, ()))
        memories = frozenset(filter(rows.has, deleted.memories))
    ids = (*dict.fromkeys((deleted.entity.id, *others)),)
    return EntityToForget(ids, NameMentionFinder(names), own, memories)


def _find_deleted_merged_entities(graph: StoreHandle, store: OpenStore, entity: str) -> dict[str, NodeRow]:
    """Return a deleted entity with those it was merged with, unless they exist; none without a history."""
    history = get_followed_history(graph, store)
    if history is None:
        return {}
    found = history.look(lambda file: find_entities_merged_in_history(file, entity))
    with store.reading() as rows:
        return {node_id: row for node_id, row in found.items() if not rows.has(node_id)}


def _list_merged_entities(rows: RowsSnapshot, entity: str) -> list[NodeRow]:
    """Return the nodes that were merged into an entity, at any depth."""
    found: dict[str, NodeRow] = {}
    waiting = [entity]
    while waiting:
        for edge in incoming_edges_of_type(rows, waiting.pop(), MERGED_INTO_RELATION):
            row = rows.node(edge.source)
            if row is not None and not row.is_memory and row.id not in found and is_node_never_valid(row.extras):
                found[row.id] = row
                waiting.append(row.id)
    return [*found.values()]


def _list_own_names(draft: MemoryWriteBatchDraft, names: Iterable[str], ids: tuple[str, ...]) -> Iterator[str]:
    """Yield the names that no other current entity has and that are no function words, as `retain` links by names."""
    for name in names:
        wanted = normalize_entity_name(name)
        if wanted in FUNCTION_WORDS or (wanted.isascii() and len(wanted) < MIN_NAME_CHARS):
            continue
        others = draft.find_current_nodes(row.id for row in draft.ahead.nodes_named(name))
        if not any(
            wanted in map(normalize_entity_name, list_entity_names_and_aliases(row))
            for row in others
            if row.id not in ids
        ):
            yield name


class EntityDeletionPlan:
    """Deletion of an entity with what is about it, decided from some rows.

    Rows are searched for the names once; the later `decide` examines what was found, and what is about the entity.
    """

    def __init__(self, graph: StoreHandle, store: OpenStore, request: ForgetRequest) -> None:
        self._graph = graph
        self.store = store
        """Replaced by each step that leases the store again."""
        self._request = request
        self._entity = find_entity_to_forget(graph, store, request.entity or "")
        with store.reading() as rows:
            self._naming_nodes = [row.id for row in self._entity.names.find_nodes(rows)]
            self._naming_edges = [row.key for row in self._entity.names.find_edges(rows)]
        self._inbound: list[ItemKeptAfterForgetting] = []
        self._former: NodesToEraseFromHistory | None = None
        self._detached: frozenset[str] = frozenset()
        self._removed: dict[str, NodeRow] = {}
        self._also_about: dict[str, list[str]] = {}
        self._kept: list[ItemKeptAfterForgetting] = []
        self._runs: dict[str, NodeUpsert] = {}
        self._relations = 0
        self._unlinked: dict[str, ItemKeptAfterForgetting] = {}
        self.former = NodesToEraseFromHistory()

    def find_inbound_links(self) -> None:
        """Look for edges of other stores to the entity. May open other stores, so the caller must hold no lease."""
        links = self._graph.pool.inbound.to(self._graph.name, self._entity.ids) if self._entity.ids else []
        self._inbound = [
            _keep(edge_id(link.edge.key), "edge", _describe_edge(link.edge), f"belongs to store {origin!r}")
            for origin, link in links
        ]

    @property
    def needs_unlinking(self) -> bool:
        """True if `unlinking_batch` is to be written before the deletion, as of the last decision."""
        return any(each.kind == "memory" for each in self._kept) or bool(self._entity.memories)

    def decide(self, rows: RowsSnapshot) -> list[NodeRow]:
        """Decide what to delete, and return its rows."""
        self._removed, self._also_about, self._kept = {}, {}, []
        unlinked = rows.nodes(self._unlinked).keys()
        entities = rows.nodes(self._entity.ids)
        self._removed |= {row.id: row for row in entities.values() if not row.is_memory}
        kept_nodes: list[NodeRow] = []
        for row in rows.nodes(self._candidate_ids(rows)).values():
            if row.is_memory:
                self._decide_memory(rows, row)
            elif row.id not in self._removed:
                kept_nodes.append(row)
        self._add_predecessors(rows)
        kept = {each.id: each for each in self._kept} | {each: self._unlinked[each] for each in unlinked}
        self._kept = [each for each in kept.values() if each.id not in self._removed]
        self._runs = {put.id: put for put in remove_memories_from_run_records(self.store, self._removed)}
        for row in kept_nodes:
            run = self._runs.get(row.id)
            if run is None or self._entity.names.is_in(run.attributes or ""):
                self._kept.append(_keep(row.id, "node", row.content or get_node_name_or_id(row), "names it"))
        self._kept += (*self._kept_edges(rows), *self._inbound)
        edges = (edge.key for each in self._removed for edge in (*rows.outgoing(each), *rows.incoming(each)))
        self._relations = len({*edges})
        return [*self._removed.values()]

    def batch(self, rows: RowsSnapshot) -> WriteBatch:
        """Return the write that deletes everything."""
        ids = [row.id for row in self.decide(rows)]
        return WriteBatch(nodes=[*self._runs.values()], delete_nodes=ids, touch=False, cost=sum(map(len, ids)))

    def unlinking_batch(self, rows: RowsSnapshot) -> WriteBatch:
        """Return the write that comes before the deletion, after which nothing current leads to the entity's name.

        A deleted entity is found by the relations that ended with it. So those to kept memories end earlier. An entity
        that was deleted already is written once more, to be deleted without relations.
        """
        self.decide(rows)
        self._unlinked = {each.id: each for each in self._kept if each.kind == "memory"}
        about = (edge for each in self._entity.ids for edge in incoming_edges_of_type(rows, each, IS_ABOUT_RELATION))
        keys = [edge.key for edge in about if edge.source in self._unlinked]
        again = [each for each in self._entity.ids if self._entity.memories and rows.node(each) is None]
        nodes = [NodeUpsert(0, each, UNKNOWN_TYPE, "", EMPTY_ATTRIBUTES_JSON) for each in again]
        return WriteBatch(nodes=nodes, delete_edges=keys, touch=False, cost=100 * len(keys))

    def purge_targets(self, rows: RowsSnapshot) -> PurgeTargets:
        """Return what to erase, including what only history or journal know. They are searched once."""
        removed = self.decide(rows)
        if self._former is None:
            self._former = self._find_former_states(rows)
            removed = self.decide(rows)
        former = self.former = NodesToEraseFromHistory(
            [each for each in self._former.deleted if each not in self._removed and rows.node(each) is None],
            [each for each in self._former.current if each not in self._removed],
            self._former.first,
        )
        return PurgeTargets(removed, former.deleted, former.first, former.current, drops_deletion=True)

    def answer(self, sequence: int) -> ForgetAnswer:
        """Return the result, without what an erasure leaves elsewhere."""
        found = (row for row in self._removed.values() if row.is_memory)
        memories = sorted(found, key=lambda row: (row.created_at, row.id))
        entities = dict.fromkeys(row.id for row in self._removed.values() if not row.is_memory)
        deleted = [each for each in self.former.deleted if each not in self._entity.ids]
        entities |= dict.fromkeys(each for each in self.former.deleted if each in self._entity.ids)
        shared = sum(1 for row in memories if row.id in self._also_about)
        preview = [
            MemoryForgottenWithEntity(
                id=row.id,
                content=row.content[:MAX_SIMILAR_CONTENT_CHARS],
                also_about=self._also_about.get(row.id, []),
            )
            for row in memories[:MAX_REPORTED_ITEMS]
        ]
        return ForgetAnswer(
            memories_removed=len(memories) + len(deleted),
            relations_removed=self._relations,
            memories_restored=0,
            relations_restored=0,
            ids=[*(row.id for row in memories), *deleted][:MAX_REPORTED_ITEMS],
            matches=[],
            dry_run=self._request.dry_run,
            sequence=sequence,
            entities_removed=[*entities],
            memories_shared=shared,
            kept=self._kept[:MAX_REPORTED_ITEMS],
            kept_count=len(self._kept),
            preview=preview if self._request.dry_run else msgspec.UNSET,
        )

    def _candidate_ids(self, rows: RowsSnapshot) -> list[str]:
        about = (
            edge.source for each in self._entity.ids for edge in incoming_edges_of_type(rows, each, IS_ABOUT_RELATION)
        )
        return [*dict.fromkeys((*about, *sorted(self._entity.memories), *self._naming_nodes))]

    def _decide_memory(self, rows: RowsSnapshot, row: NodeRow) -> None:
        """Decide whether a memory that is about the entity, or names it, is deleted."""
        subjects = [edge.target for edge in rows.outgoing(row.id) if edge.relation_type == IS_ABOUT_RELATION]
        others = [
            get_node_name_or_id(each) for each in rows.nodes(subjects).values() if each.id not in self._entity.ids
        ]
        is_linked = len(others) < len(subjects) or row.id in self._entity.memories
        is_named = self._entity.names.is_in_node(row)
        if not is_linked and not self._entity.own_names.is_in_node(row):
            if is_named:
                self._keep_memory(row, "may name it: another entity has the name, or it is a common word")
            return
        if others and not is_named:
            self._keep_memory(row, f"also about {', '.join(map(repr, others))}; no longer about it")
        elif others and self._request.keep_shared:
            self._keep_memory(row, f"also about {', '.join(map(repr, others))}; still names it")
        else:
            self._removed[row.id] = row
            if others:
                self._also_about[row.id] = others

    def _keep_memory(self, row: NodeRow, reason: str) -> None:
        # Former versions and absorbed memories are in no answer.
        if not (row.extras or NO_EXTRAS).ended:
            self._kept.append(_keep(row.id, "memory", row.content, reason))

    def _add_predecessors(self, rows: RowsSnapshot) -> None:
        """Delete the former texts of the deleted memories in other nodes, too."""
        memories = [row.id for row in self._removed.values() if row.is_memory]
        detached = {row.id: row for row in rows.nodes(self._detached).values() if row.is_memory}
        predecessors = find_memory_predecessors(CommittedMemoryPredecessorSource(rows), memories)
        self._removed |= predecessors | detached

    def _kept_edges(self, rows: RowsSnapshot) -> Iterator[ItemKeptAfterForgetting]:
        for row in rows.edges(self._naming_edges).values():
            if not self._removed.keys() & {row.source, row.target}:
                yield _keep(edge_id(row.key), "edge", _describe_edge(row), "names it")

    # Former states

    def _find_former_states(self, rows: RowsSnapshot) -> NodesToEraseFromHistory:
        history = get_followed_history(self._graph, self.store)
        if history is None:
            journaled = self._find_in_journal(rows)
            self._add_detached(rows, journaled)
            return NodesToEraseFromHistory(journaled)
        deleted: dict[str, None] = {}
        current: dict[str, None] = {}
        about = set[str]()
        for each in self._entity.ids:
            about |= {*history.look(lambda file, each=each: file.sources_of(each, IS_ABOUT_RELATION))}
        first, after = 0, 0
        while True:
            states, last = history.look(lambda file, after=after: file.scan_nodes(after, HISTORY_SLICE_STATES))
            for state in states:
                row = state.row
                is_linked = row.id in about or (row.extras or NO_EXTRAS).belongs_to in self._removed
                is_known = row.id in self._entity.ids or row.id in self._removed
                if not (is_known or is_linked or self._entity.names.is_in_node(row)):
                    continue
                if rows.has(row.id):
                    if row.id in self._removed:
                        first = min(first or state.first, state.first)
                    elif state.last is not None and self._entity.names.is_in_node(row):
                        first = min(first or state.first, state.first)
                        current[row.id] = None
                else:
                    first = min(first or state.first, state.first)
                    deleted[row.id] = None
            if last is None:
                break
            after = last
        known = history.look(lambda file: find_memory_remnants(file, [*self._removed, *deleted]))
        self._add_detached(rows, known)
        deleted |= dict.fromkeys(each for each in known if not rows.has(each))
        return NodesToEraseFromHistory([*deleted], [*current], min((first, *known.values())) if first else 0)

    def _add_detached(self, rows: RowsSnapshot, deleted: Iterable[str]) -> None:
        """Note the current nodes that hold former texts of memories deleted earlier."""
        self._detached = frozenset(find_detached_predecessors(self.store, rows, {*self._removed, *deleted}))

    def _find_in_journal(self, rows: RowsSnapshot) -> list[str]:
        """Return the deleted nodes of the journal that name the entity."""
        found: dict[str, None] = {}
        journal = self.store.journal
        for change in JournalReader(self.store.layout.journal).read(journal.oldest, journal.last):
            for row in (*change.nodes_created, *change.nodes_updated):
                if row.id in self._entity.ids or self._entity.names.is_in_node(row):
                    found[row.id] = None
        return [each for each in found if rows.node(each) is None]


def _keep(node_id: str, kind: Literal["memory", "node", "edge"], content: str, reason: str) -> ItemKeptAfterForgetting:
    return ItemKeptAfterForgetting(id=node_id, kind=kind, content=content[:MAX_SIMILAR_CONTENT_CHARS], reason=reason)


def _describe_edge(row: EdgeRow) -> str:
    return f"{row.source} {row.relation_type} {row.target}"


def delete_entity_with_its_memories(graph: StoreHandle, request: ForgetRequest) -> Future[ForgetAnswer]:
    """Delete an entity from the current state, with the memories about it. Raises Conflict for an ambiguous name."""
    draft = _make_draft(graph, request)

    def look(store: OpenStore, build: Callable[[RowsSnapshot], WriteBatch]) -> WriteBatch:
        draft.store = store
        with store.reading() as rows:
            return build(rows)

    if not request.dry_run and draft.needs_unlinking:
        graph.submit_prepared_batch(
            lambda store: look(store, draft.unlinking_batch), lambda _, batch: batch, lambda *_: None, dry_run=False
        ).result()
    return graph.submit_prepared_batch(
        lambda store: look(store, draft.batch),
        lambda _, batch: batch,
        lambda _, sequence: draft.answer(sequence),
        dry_run=request.dry_run,
    )


def _make_draft(graph: StoreHandle, request: ForgetRequest) -> EntityDeletionPlan:
    with graph.lease() as store, store.reading() as rows:
        draft = EntityDeletionPlan(graph, store, request)
        draft.decide(rows)
    draft.find_inbound_links()
    return draft


def erase_entity(graph: StoreHandle, request: ForgetRequest) -> Future[tuple[ForgetAnswer, PurgedCommitRange]]:
    """Erase an entity from every file of the store. Raises Forbidden, Conflict, StorageFull and Unavailable."""
    graph.graphs.caller.require("admin")
    if not request.dry_run and normalize_entity_name(request.confirm) != normalize_entity_name(request.entity or ""):
        message = f"must repeat the entity {request.entity!r}; nothing was erased. dry_run shows what would be"
        raise InvalidInput.at("confirm", message)
    draft = _make_draft(graph, request)

    def begin(store: OpenStore) -> Future[PurgedCommitRange]:
        draft.store = store
        if request.dry_run:
            with store.reading() as rows:
                return completed_future(PurgedCommitRange(draft.purge_targets(rows).first, rows.at))
        return store.require_eraser().erase(draft.purge_targets)

    return graph.write(begin, lambda erased: (draft.answer(erased.through), erased))
