"""Forgetting: memories that are true at no moment any more, with their former versions and relations; and back again.

A past state of the store still has them (`as_of`), and so has who asks for whatever was ever true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future

import msgspec

from kgserve.errors import Conflict, FieldError, InvalidInput
from kgserve.model.batch import WriteBatch
from kgserve.model.fields import NO_EXTRAS
from kgserve.model.layers import ForgetAnswer, ForgetMatch, ForgetRequest
from kgserve.model.memories import MAX_TOLD, RecallRequest
from kgserve.model.plan import Report
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.model.withdrawing import (
    FORGOTTEN,
    SUPERSEDED,
    VERSION_OF,
    edge_brought_back,
    edge_withdrawn,
    forgotten,
    goes_along,
    remembered,
)
from kgserve.ops.drafting import Draft
from kgserve.ops.erasing import erase
from kgserve.ops.graph import Graph
from kgserve.ops.memories import TEASER
from kgserve.ops.recall import recall
from kgserve.ops.worth import now_in_microseconds
from kgserve.store.ahead import Ahead

MOST_MATCHES = 10
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
    not an error: then nothing is removed. A `query` never forgets anything: it lists `matches`, whose ids say what is
    meant. What was known before stays in past states of the store (`as_of`), if a history is kept.

    `erase` leaves nothing of them in any file of the store: with their former versions and what they have absorbed they
    are gone from the past as well. It is for the role admin, goes on after a crash, and is answered when it is done,
    with what `remains` elsewhere.

    Raises InvalidInput, Forbidden, and Conflict for a node that is no memory.
    """
    ids = _meant(request)
    if request.query is not None:
        return _done(_matches(graph, request.query, dry_run=request.dry_run))
    if request.erase:
        return erase(graph, request, ids)
    if request.dry_run:
        return _done(_tried(graph, request, ids))
    forgetting: list[_Forgetting] = []

    def decide(ahead: Ahead) -> WriteBatch:
        forgetting.append(_Forgetting(ahead, request))
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
        raise InvalidInput(f"{wrong}: {message}", (FieldError(wrong, message),))
    if request.erase and (request.query is not None or request.undo or request.reason):
        message = "goes with entity_id or ids alone: it cannot be undone, and nothing is kept, not even a reason"
        raise InvalidInput(f"erase: {message}", (FieldError("erase", message),))
    return list(dict.fromkeys(request.ids or ([] if request.entity_id is None else [request.entity_id])))


def _matches(graph: Graph, query: str, *, dry_run: bool) -> ForgetAnswer:
    found = recall(graph, RecallRequest(query=query, limit=MOST_MATCHES, touch=False, min_confidence=0.0))
    matches = [
        ForgetMatch(id=hit.id, content=hit.content[:TEASER], memory_type=hit.memory_type, score=hit.score)
        for hit in found.hits
    ]
    return msgspec.structs.replace(NOTHING_FORGOTTEN, matches=matches, dry_run=dry_run, sequence=found.index_sequence)


def _tried(graph: Graph, request: ForgetRequest, ids: Sequence[str]) -> ForgetAnswer:
    with graph.lease() as store, store.reading() as rows:
        forgetting = _Forgetting(Ahead(rows, store.memories, now_in_microseconds()), request)
        forgetting.batch(ids)
        return forgetting.told(rows.at)


class _Forgetting(Draft):
    """What forgetting, or remembering, comes to."""

    def __init__(self, ahead: Ahead, request: ForgetRequest) -> None:
        super().__init__(ahead)
        self._request = request
        self._memories: dict[str, None] = {}
        self._relations: dict[EdgeKey, None] = {}

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
            ids=[*self._memories][:MAX_TOLD],
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
            raise Conflict(f"node {row.id!r} is no memory; it is retired or deleted as a node")
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
            if edge.key not in self._relations and goes_along(edge):
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


def versions_of(ahead: Ahead, memory: str) -> list[NodeRow]:
    """The former versions of a memory, also those that were withdrawn with it."""
    found = (ahead.node(edge.source) for edge in ahead.edges_to(memory, VERSION_OF))
    return [row for row in found if row is not None and (row.extras or NO_EXTRAS).belongs_to == memory]


def _done(answer: ForgetAnswer) -> Future[ForgetAnswer]:
    done: Future[ForgetAnswer] = Future()
    done.set_result(answer)
    return done
