"""Forgetting: memories that are true at no moment any more, with their former versions and relations; and back again.

A past state of the store still has them (`as_of`), and so has who asks for whatever was ever true. Erasing leaves
nothing: which nodes that means, with what they have said and what they took in, and who still has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress

import msgspec
from typing_extensions import override

from kgserve.errors import Conflict, FieldError, Gone, InvalidInput, NotFound, Unavailable
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.graph.handle import Graph, answered
from kgserve.memory.api import RecalledMemory, RecallRequest
from kgserve.memory.deduplication import MemoryDraft
from kgserve.memory.presentation import now_in_microseconds
from kgserve.memory.recall_stores import recall
from kgserve.memory.retain_api import ForgetAnswer, ForgetMatch, ForgetRequest, Remainder
from kgserve.memory.store_memory import MAX_SIMILAR_CONTENT_CHARS
from kgserve.projections.history.history import FOREVER, History
from kgserve.storage.journal.snapshot import list_snapshots, sequence_of
from kgserve.storage.journal.tail import Tail
from kgserve.storage.model.batch import WriteBatch
from kgserve.storage.model.fields import NO_EXTRAS
from kgserve.storage.model.names import IS_ABOUT
from kgserve.storage.model.redirects import MERGED_INTO, is_withdrawn
from kgserve.storage.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.soft_delete import (
    FORGOTTEN,
    SUPERSEDED,
    VERSION_OF,
    cascades,
    edge_brought_back,
    edge_withdrawn,
    forgotten,
    remembered,
)
from kgserve.storage.plan import Report
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.ways import resolve_redirect
from kgserve.stores.backup.folder import holding
from kgserve.stores.pending_state import PendingState
from kgserve.stores.purge_record import PurgeResult, PurgeTargets
from kgserve.stores.store import OpenStore

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


def forget(graph: Graph, request: ForgetRequest) -> Future[ForgetAnswer]:
    """Withdraws memories with their former versions and relations: no read of any time of the world finds them.

    `undo` brings them back as they were; `hard` deletes them instead. What is not there, or was forgotten before, is
    not an error: then nothing is removed. For an `entity_id` that nothing has, `matches` are the memories that were
    about an entity of that id or name until it was deleted, and those that name it. A `query` never forgets anything:
    it lists `matches`, whose ids say what is meant. What was known before stays in past states of the store (`as_of`),
    if a history is kept.

    `erase` leaves nothing of them in any file of the store: with their former versions and what they have absorbed they
    are gone from the past as well. It is for the role admin, goes on after a crash, and is answered when it is done,
    with what `remains` elsewhere.

    Raises InvalidInput, Forbidden, and Conflict for a node that is no memory.
    """
    ids = _meant(request)
    if request.query is not None:
        return answered(_matches(graph, request.query, dry_run=request.dry_run))
    if request.erase:
        return erase(graph, request, ids)
    if request.entity_id is not None and _is_absent(graph, request.entity_id):
        return answered(_matches(graph, request.entity_id, dry_run=request.dry_run, is_entity=True))
    if request.dry_run:
        return answered(_tried(graph, request, ids))
    forgetting: list[_ForgetDraft] = []

    def decide(ahead: PendingState) -> WriteBatch:
        forgetting.append(_ForgetDraft(ahead, request))
        return forgetting[0].batch(ids)

    def answer(report: Report) -> ForgetAnswer:
        return forgetting[0].told(report.sequence)

    return graph.write(lambda store: store.submit_decided(decide, 1_000 * len(ids)), answer)


def _meant(request: ForgetRequest) -> list[str]:
    """The memories that are named. Raises InvalidInput."""
    given = [name for name in ("entity_id", "ids", "query") if getattr(request, name) is not None]
    if len(given) != 1:
        message = "say what to forget by one of entity_id, ids and query"
        raise InvalidInput(message, (FieldError(given[1] if given else "", message),))
    wrong = "undo" if request.query is not None and request.undo else "hard" if request.hard and request.undo else ""
    if wrong:
        message = "goes with entity_id or ids, and not with hard, which cannot be undone"
        raise InvalidInput.at(wrong, message)
    if request.erase and (request.query is not None or request.undo or request.reason):
        message = "goes with entity_id or ids alone: it cannot be undone, and nothing is kept, not even a reason"
        raise InvalidInput.at("erase", message)
    return list(dict.fromkeys(request.ids or ([] if request.entity_id is None else [request.entity_id])))


def _is_absent(graph: Graph, node_id: str) -> bool:
    with graph.lease() as store, store.reading() as rows:
        return rows.node(resolve_redirect(rows, node_id)) is None


def _matches(graph: Graph, query: str, *, dry_run: bool, is_entity: bool = False) -> ForgetAnswer:
    asked = RecallRequest(query=query, limit=MAX_FORGET_MATCHES, touch=False, min_confidence=0.0)
    hits: list[RecalledMemory] = []
    if is_entity:
        with suppress(NotFound, Conflict, Gone):
            hits += recall(graph, msgspec.structs.replace(asked, entity=query, mode="graph", depth=0)).hits
    found = recall(graph, asked)
    hits += (hit for hit in found.hits if hit.id not in {each.id for each in hits})
    matches = [
        ForgetMatch(
            id=hit.id, content=hit.content[:MAX_SIMILAR_CONTENT_CHARS], memory_type=hit.memory_type, score=hit.score
        )
        for hit in hits[:MAX_FORGET_MATCHES]
    ]
    return msgspec.structs.replace(NOTHING_FORGOTTEN, matches=matches, dry_run=dry_run, sequence=found.index_sequence)


def _tried(graph: Graph, request: ForgetRequest, ids: Sequence[str]) -> ForgetAnswer:
    with graph.lease() as store, store.reading() as rows:
        forgetting = _ForgetDraft(PendingState(rows, store.memories, now_in_microseconds()), request)
        forgetting.batch(ids)
        return forgetting.told(rows.at)


class _ForgetDraft(MemoryDraft):
    """What forgetting, or remembering, comes to."""

    def __init__(self, ahead: PendingState, request: ForgetRequest) -> None:
        super().__init__(ahead)
        self._request = request
        self._memories: dict[str, None] = {}
        self._relations: dict[EdgeKey, None] = {}

    @override
    def batch(self, ids: Sequence[str] = ()) -> WriteBatch:
        """The write for some memories. Raises Conflict."""
        rows = {row.id: row for node_id in ids for row in self._whole(node_id)}
        if self._request.hard:
            return self._deleting(rows.values())
        (self._remember if self._request.undo else self._forget)(list(rows.values()))
        return super().batch()

    def told(self, sequence: int) -> ForgetAnswer:
        """What is said of it."""
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
        )

    def _whole(self, node_id: str) -> list[NodeRow]:
        """A memory with its former versions; of one that was absorbed the one that has taken it in."""
        row = self.node(node_id if self._request.hard else self.ahead.survivor(node_id))
        if row is None:
            return []
        if not row.is_memory:
            raise Conflict(_told_of_entity(row, [edge.source for edge in self.ahead.edges_to(row.id, IS_ABOUT)]))
        return [row, *versions_of(self.ahead, row.id)]

    def _deleting(self, rows: Iterable[NodeRow]) -> WriteBatch:
        self._memories.update((row.id, None) for row in rows)
        self._relations.update((edge.key, None) for node_id in self._memories for edge in self._edges_of(node_id))
        return WriteBatch(delete_nodes=[*self._memories], cost=sum(map(len, self._memories)))

    def _forget(self, rows: Sequence[NodeRow]) -> None:
        for row in rows:
            if (row.extras or NO_EXTRAS).ended in {"", SUPERSEDED}:
                self._memories[row.id] = None
                self.put_node(forgotten(row, self._request.reason))
        for edge in (edge for node_id in self._memories for edge in self._edges_of(node_id)):
            if edge.key not in self._relations and cascades(edge):
                self._relations[edge.key] = None
                self.put_edge(edge_withdrawn(edge))

    def _remember(self, rows: Sequence[NodeRow]) -> None:
        for row in rows:
            if (row.extras or NO_EXTRAS).ended == FORGOTTEN:
                self._memories[row.id] = None
                self.put_node(remembered(row))
        for edge in (edge for node_id in self._memories for edge in self._edges_of(node_id)):
            put = edge_brought_back(edge)
            if put is not None and edge.key not in self._relations and not any(map(self._is_forgotten, edge.key[:2])):
                self._relations[edge.key] = None
                self.put_edge(put)

    def _is_forgotten(self, node_id: str) -> bool:
        row = self.node(node_id)
        return row is not None and (row.extras or NO_EXTRAS).ended == FORGOTTEN

    def _edges_of(self, node_id: str) -> list[EdgeRow]:
        return [*self.ahead.edges_from(node_id), *self.ahead.edges_to(node_id)]


def _told_of_entity(row: NodeRow, about: Sequence[str]) -> str:
    """Say why an entity cannot be forgotten, and how to forget the memories about it."""
    told = f"node {row.id!r} is no memory; it is retired or deleted as a node"
    if not about:
        return told
    named = ", ".join(map(repr, about[:MAX_FORGET_MATCHES])) + (" and more" if len(about) > MAX_FORGET_MATCHES else "")
    return f"{told}. Forget the memories about it by ids: {named}"


def versions_of(ahead: PendingState, memory: str) -> list[NodeRow]:
    """The former versions of a memory, also those that were withdrawn with it."""
    found = (ahead.node(edge.source) for edge in ahead.edges_to(memory, VERSION_OF))
    return [row for row in found if row is not None and (row.extras or NO_EXTRAS).belongs_to == memory]


_PREDECESSOR_RELATIONS = frozenset({VERSION_OF, MERGED_INTO})
"""The relations from what a memory was, and from what it took in, to the memory."""
FORGET_INDEX_TIMEOUT_SECONDS = 10.0
REPLICAS_REMAINDER = Remainder(
    kind="node",
    name="copies on other nodes",
    reason="a node of the cluster that is down removes its copy when it is back",
)
RAFT_LOGS_REMAINDER = Remainder(
    kind="log",
    name="Raft logs of the NATS servers",
    reason="what the servers have told each other they keep for some minutes, until they next take it together",
)
EXTERNAL_COPIES_REMAINDER = Remainder(
    kind="unknown",
    name="copies outside of this server",
    reason="exports, backups elsewhere, and what callers and models were told are not known here",
)


def erase(graph: Graph, request: ForgetRequest, ids: Sequence[str]) -> Future[ForgetAnswer]:
    """Erase memories: see `forget`. Raises Forbidden, Conflict, StorageFull and Unavailable."""
    graph.graphs.caller.require("admin")
    wanted: list[_ForgetTargets] = []

    def begin(store: OpenStore) -> Future[PurgeResult]:
        wanted.append(_ForgetTargets(graph, store, ids))
        if request.dry_run:
            return answered(wanted[0].tried())
        if store.eraser is None:
            raise Unavailable("this store is just being opened, or closed; try again")
        return store.eraser.erase(wanted[0].find)

    return graph.write(begin, lambda erased: _answer(graph, wanted[0], erased, dry_run=request.dry_run))


def _answer(graph: Graph, wanted: _ForgetTargets, erased: PurgeResult, *, dry_run: bool) -> ForgetAnswer:
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


def _remains(graph: Graph, erased: PurgeResult) -> list[Remainder]:
    """Who else may have what was erased, as far as that is known."""
    settings, root = graph.graphs.settings, graph.pool.layout(graph.name).root
    aside = (*root.glob("damaged-*"), *root.glob("history.sqlite.damaged*"), *root.glob("journal/*.damaged"))
    found = [
        Remainder(kind="file", name=str(path.relative_to(root)), reason="set aside by `kgserve doctor --salvage`")
        for path in sorted(aside)
    ]
    if settings.backup_dir is not None:
        backups = holding(settings.backup_dir.resolve(), graph.name, erased.first, erased.through)
        found += [Remainder(kind="backup", name=name, reason=reason) for name, reason in backups]
    if graph.pool.placement.is_shared:
        found += [REPLICAS_REMAINDER, RAFT_LOGS_REMAINDER]
    return [*found, EXTERNAL_COPIES_REMAINDER]


class _ForgetTargets:
    """What is meant by the ids of some memories."""

    def __init__(self, graph: Graph, store: OpenStore, ids: Sequence[str]) -> None:
        self._graph = graph
        self._store = store
        self._named = ids
        self._journaled: set[str] | None = None
        self.ids: list[str] = []
        self.relations = 0

    def tried(self) -> PurgeResult:
        """What erasing them would come to."""
        with self._store.reading() as rows:
            doomed = self.find(rows)
            return PurgeResult(doomed.first, rows.at)

    def find(self, rows: Rows) -> PurgeTargets:
        """All that is to go of some rows, and what is only in history or journal. Raises Conflict."""
        named = dict.fromkeys(resolve_redirect(rows, each) for each in self._named)
        there = _whole(rows, named)
        gone, first = self._gone([*named, *there], there)
        self.ids = [*there, *gone]
        self.relations = len(
            {edge.key for node_id in there for edge in (*rows.outgoing(node_id), *rows.incoming(node_id))}
        )
        return PurgeTargets([*there.values()], gone, first)

    def _gone(self, ids: Iterable[str], there: dict[str, NodeRow]) -> tuple[list[str], int]:
        """Those of which history or journal still know, with their versions, and the first commit that knew any."""
        gone: dict[str, None] = {}
        first = FOREVER
        for node_id in ids:
            known = self._in_history(node_id)
            row = there.get(node_id)
            made = row.sequence if row is not None and row.version == 1 else 0
            first = min(first, made if row is not None and known[1] == FOREVER else known[1])
            gone |= dict.fromkeys(each for each in known[0] if each not in there)
            if not known[0] and node_id not in there and node_id in self._in_journal:
                gone[node_id], first = None, 0
        return [*gone], 0 if first == FOREVER else first

    def _in_history(self, node_id: str) -> tuple[list[str], int]:
        """A node with its former versions, as far as the history knows of them, and since when."""
        historian = self._graph.graphs.historian
        follower = None if historian is None else historian.found(self._store)
        if follower is None or follower.turned_off:
            return [], FOREVER
        if not follower.wait(self._store.state.sequence, FORGET_INDEX_TIMEOUT_SECONDS) and not follower.turned_off:
            # A version that it has yet to see is known nowhere else once its memory is deleted.
            raise Unavailable("the history has not seen all commits yet; try again in a moment", retry_after=2)
        return follower.look(lambda history: _known(history, node_id))

    @property
    def _in_journal(self) -> set[str]:
        """Those of the named ids that journal and snapshots have, which are looked through only for want of others."""
        if self._journaled is None:
            self._journaled = _journaled(self._store, {*self._named})
        return self._journaled


def _whole(rows: Rows, ids: Iterable[str]) -> dict[str, NodeRow]:
    """Memories with their former versions, what they have taken in, and what that was. Raises Conflict."""
    found: dict[str, NodeRow] = {}
    waiting = [*ids]
    while waiting:
        row = rows.node(waiting.pop())
        if row is None or row.id in found:
            continue
        if not row.is_memory:
            raise Conflict(f"node {row.id!r} is no memory; it is deleted as a node, and prune-history forgets its past")
        found[row.id] = row
        waiting += [
            edge.source for edge in rows.incoming(row.id) if _belongs(rows, edge.source, edge.relation_type, row)
        ]
    return found


def _belongs(rows: Rows, source: str, relation_type: str, to: NodeRow) -> bool:
    row = rows.node(source) if relation_type in _PREDECESSOR_RELATIONS else None
    if row is None or not row.is_memory:
        return False
    is_merged = relation_type == MERGED_INTO and is_withdrawn(row.extras)
    return is_merged or (row.extras or NO_EXTRAS).belongs_to == to.id


def _journaled(store: OpenStore, ids: set[str]) -> set[str]:
    """Those of some memories of which the journal, or a snapshot from before they were deleted, has the rows."""
    found, others = set[str](), set[str]()
    oldest = min(map(sequence_of, list_snapshots(store.layout.journal)), default=FOREVER)
    for change in Tail(store.layout.journal).read(store.journal.oldest, store.journal.last):
        rows = [row for row in (*change.nodes_created, *change.nodes_updated) if row.id in ids]
        others.update(row.id for row in rows if not row.is_memory)
        found.update(row.id for row in rows)
        if oldest < change.sequence:
            found |= ids.intersection(change.nodes_deleted)
    return found - others


def _known(history: History, node_id: str) -> tuple[list[str], int]:
    versions = history.sources_of(node_id, VERSION_OF)
    states = {each: history.node_states_after(each, -1, 1) for each in (node_id, *versions)}
    found = {each: state[0] for each, state in states.items() if state and state[0].row.is_memory}
    return [*found], min((state.first for state in found.values()), default=FOREVER)
