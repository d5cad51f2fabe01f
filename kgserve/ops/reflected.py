"""Runs of reflecting: what is written of them, proposals that are accepted or refused, and taking a run back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import msgspec

from kgserve.errors import Conflict, InvalidInput, NotFound
from kgserve.model.batch import REFLECTION, EdgePut, NodePut, WriteBatch
from kgserve.model.fields import EdgeExtrasPut, NodeExtrasPut
from kgserve.model.hierarchy import CHILD_OF
from kgserve.model.memories import LAYER_TYPES, MAX_TOLD
from kgserve.model.plan import Report
from kgserve.model.reflection import (
    CONCEPT,
    CONTRADICTS,
    REFLECTED,
    Link,
    Mark,
    Proposal,
    Reflection,
    ReflectionRecord,
    ReflectRequest,
    mark_of,
    record_of,
)
from kgserve.model.rows import EdgeKey, NodeRow, edge_stamps
from kgserve.model.withdrawing import is_active, stands
from kgserve.ops.consolidating import Pace
from kgserve.ops.graph import Graph
from kgserve.ops.made_calls import new_id
from kgserve.ops.storing import Storing
from kgserve.rows.snapshot import Rows
from kgserve.store.ahead import Ahead
from kgserve.store.store import Store
from kgserve.views import consolidating
from kgserve.views.recent import Recent

_AT_ONCE = 200
_AUTHOR = "reflect"


def nothing(run: str | None, *, dry_run: bool = False) -> Reflection:
    """An answer that says that nothing was found or done."""
    return Reflection(
        dry_run=dry_run,
        run=run,
        looked_at=0,
        merged=0,
        linked=[],
        linked_count=0,
        proposals=[],
        proposals_count=0,
        stale=[],
        stale_count=0,
        undone=0,
        skipped=[],
        near_checked=True,
        sequence=0,
        took_ms=0.0,
    )


def write(store: Store, run: str, record: ReflectionRecord, links: Sequence[Link]) -> None:
    """Write a run: its node, and what it puts below what. Blocks."""
    _submit(store, lambda storing: _note(storing, run, record))
    for first in range(0, len(links), _AT_ONCE):
        some = links[first : first + _AT_ONCE]
        _submit(store, lambda storing, some=some: _link_all(storing, run, some))


def _submit(store: Store, decide: Callable[[Storing], None], cost: int = 10_000) -> Report:
    """Have something decided in the writer's turn, and wait for it."""

    def decided(ahead: Ahead) -> WriteBatch:
        storing = Storing(ahead, Recent())
        decide(storing)
        return storing.batch()

    done: Future[Report] = store.submit_decided(decided, cost)
    return done.result()


def _note(storing: Storing, run: str, record: ReflectionRecord) -> None:
    storing.put_node(NodePut(0, run, REFLECTION, "", record.text))


def _mark(storing: Storing, run: str, memory: str, mark: Mark) -> None:
    storing.put_edge(EdgePut(0, (run, memory, REFLECTED), own=mark.text))


def _link_all(storing: Storing, run: str, links: Sequence[Link]) -> None:
    for link in links:
        _link(storing, run, link)


def _link(storing: Storing, run: str, link: Link) -> bool:
    """Put a memory below another one, if it still stands below nothing and both are there; whether it was."""
    child, parent = storing.node(link.id), storing.node(link.parent_id)
    if child is None or parent is None or not (stands(child) and stands(parent)):
        return False
    if storing.places.parent(child.id) is not None:
        return False
    try:
        storing.places.put(child, parent)
    except Conflict:
        return False
    storing.put_edge(EdgePut(0, (child.id, parent.id, CHILD_OF), link.score, extras=EdgeExtrasPut(created_by=_AUTHOR)))
    _mark(storing, run, child.id, Mark(parent=parent.id))
    return True


# Runs


def _run_of(store: Store, request: ReflectRequest) -> tuple[NodeRow, ReflectionRecord]:
    """The run that is meant. Raises NotFound."""
    for row, record in consolidating.runs_of(store, REFLECTION, record_of):
        if request.run in (None, row.id):
            return row, record
    raise NotFound(f"there is no run {request.run!r}" if request.run else "there is no run yet: reflect first")


def decided_before(store: Store) -> set[str]:
    """The proposals that were accepted or refused."""
    return {
        each.key
        for _, record in consolidating.runs_of(store, REFLECTION, record_of)
        for each in record.proposals
        if each.state != "open"
    }


# Deciding


def decide(store: Store, request: ReflectRequest) -> Reflection:
    """Accept and refuse proposals of a run. Raises InvalidInput, NotFound and Conflict, and nothing is done then."""
    row, record = _run_of(store, request)
    proposals = {each.number: each for each in record.proposals}
    for number in (*request.accept, *request.refuse):
        if number not in proposals:
            raise InvalidInput(f"run {row.id!r} has no proposal {number}; it has {len(proposals)}")
        if proposals[number].state != "open":
            raise Conflict(f"proposal {number} of run {row.id!r} was {proposals[number].state} already")
    if both := {*request.accept} & {*request.refuse}:
        raise InvalidInput(f"proposal {min(both)} is both accepted and refused")
    found = nothing(row.id)

    def carry_out(storing: Storing) -> None:
        deciding = _Deciding(storing, row.id, request.names or {})
        decided = {number: msgspec.structs.replace(each) for number, each in proposals.items()}
        for number in request.accept:
            deciding.accept(decided[number])
            decided[number].state = "accepted"
        for number in request.refuse:
            decided[number].state = "refused"
        found.proposals = [decided[number] for number in sorted(decided)]
        found.linked, found.linked_count = deciding.links[:MAX_TOLD], len(deciding.links)
        found.skipped = deciding.skipped[:MAX_TOLD]
        _note(storing, row.id, msgspec.structs.replace(record, proposals=found.proposals))

    _submit(store, carry_out, 1_000 * (1 + sum(len(proposals[each].ids) for each in request.accept)))
    found.proposals_count = len(found.proposals)
    return found


class _Deciding:
    """Proposals that are carried out together."""

    def __init__(self, storing: Storing, run: str, names: Mapping[str, str]) -> None:
        self._storing = storing
        self._run = run
        self._names = names
        self.links: list[Link] = []
        self.skipped: list[str] = []

    def accept(self, proposal: Proposal) -> None:
        """Carry one out. Raises Conflict where it no longer holds."""
        given = self._names.get(str(proposal.number), "")
        match proposal.kind:
            case "link":
                self._put_below(proposal, given or proposal.candidates[0].id)
            case "concept":
                self._put_below(proposal, self._made(given or proposal.name))
            case "contradiction":
                self._put_against(proposal)

    def _put_below(self, proposal: Proposal, parent: str) -> None:
        parent = self._storing.places.find(parent).id
        scores = {each.id: each.score for each in proposal.candidates}
        links = [Link(id=each, parent_id=parent, score=scores.get(parent, 1.0)) for each in proposal.ids]
        done = [link for link in links if _link(self._storing, self._run, link)]
        if not done:
            raise Conflict(f"proposal {proposal.number}: none of its memories is without a parent any more")
        self.links += done
        self.skipped += [link.id for link in links if link not in done]

    def _made(self, name: str) -> str:
        self._storing.made.append(node_id := new_id(len(self._storing.made)))
        extras = NodeExtrasPut(created_by=_AUTHOR, confidence=1.0, layer=CONCEPT)
        self._storing.put_node(NodePut(0, node_id, LAYER_TYPES[CONCEPT], name, extras=extras))
        _mark(self._storing, self._run, node_id, Mark(made=True))
        return node_id

    def _put_against(self, proposal: Proposal) -> None:
        younger, older = proposal.ids
        rows = [self._storing.node(each) for each in proposal.ids]
        if any(row is None or not is_active(row, self._storing.ahead.now) for row in rows):
            raise Conflict(f"proposal {proposal.number}: one of its memories is no more")
        self._storing.put_edge(EdgePut(0, (younger, older, CONTRADICTS), extras=EdgeExtrasPut(created_by=_AUTHOR)))
        _mark(self._storing, self._run, younger, Mark(against=older))


# Taking it back


def undo(graph: Graph, store: Store, request: ReflectRequest) -> Reflection:
    """Take a run back, and what it was called for: nothing of it is left."""
    row, record = _run_of(store, request)
    found = nothing(row.id)
    if record.merging:
        author = graph.graphs.caller.name
        undone = consolidating.undo(store, record.merging, author, Pace(store), force=True)
        found.undone, found.skipped = len(undone.restored), [*undone.skipped]
    with store.reading() as rows:
        marks = [edge.key for edge in rows.outgoing(row.id) if edge.relation_type == REFLECTED]
    for first in range(0, len(marks), _AT_ONCE):
        done = _Undoing(store)
        some = marks[first : first + _AT_ONCE]
        store.submit_prepared(lambda done=done, some=some: done.batch(some)).result()
        found.undone += len(done.undone)
        found.skipped += done.skipped
    store.submit(WriteBatch(delete_nodes=[row.id])).result()
    found.skipped = found.skipped[:MAX_TOLD]
    return found


class _Undoing:
    """Some marks of a run, taken back in the writer's turn."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.undone: list[str] = []
        self.skipped: list[str] = []

    def batch(self, marks: Sequence[EdgeKey]) -> WriteBatch:
        """The write."""
        edges, nodes = [*marks], list[str]()
        with self._store.reading() as rows:
            for edge in rows.edges(marks).values():
                mark, memory = mark_of(edge_stamps(edge.attributes).own), edge.target
                if mark.made:
                    self._unmake(rows, memory, nodes)
                    continue
                key = (memory, mark.parent, CHILD_OF) if mark.parent else (memory, mark.against, CONTRADICTS)
                there = rows.edge(key)
                if there is not None and there.extras is not None and there.extras.created_by == _AUTHOR:
                    edges.append(key)
                    self.undone.append(memory)
                else:
                    self.skipped.append(memory)
        return WriteBatch(delete_edges=edges, delete_nodes=nodes, touch=False, cost=1_000 * len(marks))

    def _unmake(self, rows: Rows, concept: str, nodes: list[str]) -> None:
        """A concept goes if nobody has put anything else below it, or changed it."""
        row = rows.node(concept)
        others = (edge for edge in rows.incoming(concept) if edge.relation_type == CHILD_OF)
        if row is None or row.version > 1 or any((e.extras is None or e.extras.created_by != _AUTHOR) for e in others):
            self.skipped.append(concept)
        else:
            nodes.append(concept)
            self.undone.append(concept)
