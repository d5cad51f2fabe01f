"""What a language model has taken out of a memory's text: what it is shown, and what of its answer is written.

Nothing that it proposes deletes or forgets anything. It supersedes what it was shown and nobody has changed since, of
which a former version is kept. Each item is checked as a request would be, alone: what does not fit is dropped, and the
rest stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from typing_extensions import override

from kgserve.errors import Conflict, InvalidInput, KgserveError, TooLarge
from kgserve.graph.validate import Faults, check_label
from kgserve.memory import supersede
from kgserve.memory.api import CONCEPT_LAYER, FACT_LAYER, AssociatedEntity, StoreMemoryRequest
from kgserve.memory.consolidation.plan import is_pinned
from kgserve.memory.deduplication import Deduplicator, MemoryPut
from kgserve.memory.entities import put_relation, related_put
from kgserve.memory.entities_api import RelationInput
from kgserve.memory.extraction.llm.chat import Unanswered
from kgserve.memory.extraction.llm.questions import (
    MAX_KNOWN_MEMORY_CHARS,
    MAX_SOURCE_CHARS,
    Material,
    Proposed,
    ProposedFact,
    proposed,
    question,
)
from kgserve.memory.extraction.marks import EXTRACTION_AUTHOR, ExtractionMark, is_text, mark_of
from kgserve.memory.extraction.worker import Ask, Extracted
from kgserve.memory.presentation import now_in_microseconds
from kgserve.memory.retain import entities_named_in
from kgserve.memory.store_memory import Checked, ComparedMemories, checked_memory, compared
from kgserve.platform.text.similarity import text_hash
from kgserve.platform.times import format_time
from kgserve.projections.indexer import Indexer
from kgserve.projections.memory_index.decay import stated_at
from kgserve.projections.memory_index.relation_types import (
    RELATION_CONSOLIDATED,
    RELATION_EXTRACTED_FROM,
    RELATION_NEXT,
    RELATION_REFLECTED,
)
from kgserve.projections.memory_index.selecting import MemoryPlace
from kgserve.projections.recent_vectors import RecentVectors
from kgserve.storage.model.batch import EdgePut, NodePut, Rules, WriteBatch, node_fault
from kgserve.storage.model.fields import NO_EXTRAS, EdgeExtrasPut, NodeExtrasPut
from kgserve.storage.model.filters import MemoryFilter
from kgserve.storage.model.names import names_of
from kgserve.storage.model.parents import CHILD_OF
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.model.soft_delete import VERSION_OF, is_active
from kgserve.storage.rows.edge_page import incoming_of
from kgserve.storage.rows.snapshot import Rows
from kgserve.stores.pending_state import PendingState
from kgserve.stores.store import OpenStore

MAX_NEAR_MEMORIES = 8
"""So many memories that are near are shown beside a text, and may be superseded."""
MAX_SHOWN_CONCEPTS = 20
MAX_SHOWN_ENTITIES = 20
MAX_EARLIER_TURNS = 4
"""So many earlier turns of a conversation are shown."""
EXTRACTION_INDEX_TIMEOUT_SECONDS = 0.5
"""So long the index is waited for: it may be about to take the text in."""
EXTRACTION_WRITE_TIMEOUT_SECONDS = 30.0
_MAX_NEIGHBOURS = 32
_MAX_ROUNDS = 4
_RESERVED_RELATIONS = frozenset(
    {CHILD_OF, VERSION_OF, RELATION_EXTRACTED_FROM, RELATION_CONSOLIDATED, RELATION_REFLECTED}
)
"""What the store itself writes, besides what nobody may."""


class _Shown(NamedTuple):
    """The text that a model was asked about, and what it was shown by mark."""

    source: NodeRow
    memories: Mapping[str, NodeRow]
    concepts: Mapping[str, NodeRow]


def extract(indexer: Indexer | None, store: OpenStore, memory: str, ask: Ask) -> Extracted | None:
    """Ask about a memory, and write what comes of it, once; None where there is nothing to ask. Blocks.

    Raises what asking does, StorageFull and Unavailable.
    """
    with store.reading() as rows:
        source = rows.node(memory)
        if source is None or not is_text(source) or _is_done(rows, source):
            return None
        before = _said_before(rows, source)
    shown = _shown(indexer, store, source)
    known = {row.id: row for row in _entities(store, source.content)}
    reply = ask(question(_material(shown, before, [*known.values()])))
    return _write(indexer, store, shown, proposed(reply.text))


def _is_done(rows: Rows, source: NodeRow) -> bool:
    """Whether a text was taken apart already, or was itself taken out of another one."""
    said = text_hash(source.content).hex()
    marks = map(mark_of, incoming_of(rows, source.id, RELATION_EXTRACTED_FROM))
    if any(mark is not None and mark.text == said for mark in marks):
        return True
    own = (mark_of(edge) for edge in rows.outgoing(source.id) if edge.relation_type == RELATION_EXTRACTED_FROM)
    return any(mark is not None and mark.fact == said for mark in own)


# What is shown


def _said_before(rows: Rows, source: NodeRow) -> list[str]:
    """The turns of a conversation before one, in their order."""
    found: list[str] = []
    at = source.id
    while len(found) < MAX_EARLIER_TURNS:
        edges = incoming_of(rows, at, RELATION_NEXT)
        row = rows.node(edges[0].source) if edges else None
        if row is None or not row.is_memory or row.id == source.id:
            break
        found.append(row.content[:MAX_KNOWN_MEMORY_CHARS])
        at = row.id
    return found[::-1]


def _shown(indexer: Indexer | None, store: OpenStore, source: NodeRow) -> _Shown:
    near = _near(indexer, store, source)
    wanted = MemoryFilter(now=now_in_microseconds(), layer=CONCEPT_LAYER)
    concepts = store.memories.ask(lambda view, _: view.listed(wanted, "created", MemoryPlace(), MAX_SHOWN_CONCEPTS).ids)
    with store.reading() as rows:
        there = rows.nodes([*near, *concepts])
    memories = [row for each in near if (row := there.get(each)) is not None and _may_end(row, source)]
    return _Shown(
        source,
        {f"m{at}": row for at, row in enumerate(memories[:MAX_NEAR_MEMORIES], 1)},
        {f"c{at}": there[each] for at, each in enumerate(concepts, 1) if each in there},
    )


def _near(indexer: Indexer | None, store: OpenStore, source: NodeRow) -> list[str]:
    """The memories that are near a text, nearest first, where that is known."""
    if indexer is None:
        return []
    try:
        indexes = indexer.of(store)
        if not indexes.understands:
            return []
        indexes.vector.wait(source.sequence, EXTRACTION_INDEX_TIMEOUT_SECONDS)
        vector = indexes.vectors([source.content[:MAX_SOURCE_CHARS]])[0]
        return [*indexes.memories_near(vector, _MAX_NEIGHBOURS)]
    except KgserveError:
        return []


def _may_end(row: NodeRow, source: NodeRow) -> bool:
    """Whether a text may say that a memory is no longer true: it is an earlier fact in force, and not pinned."""
    layer = (row.extras or NO_EXTRAS).layer
    if row.id == source.id or layer not in {None, FACT_LAYER} or is_pinned(row):
        return False
    return is_active(row, now_in_microseconds()) and row.created_at <= source.created_at


def _entities(store: OpenStore, text: str) -> Sequence[NodeRow]:
    [ids] = entities_named_in(store, [text[:MAX_SOURCE_CHARS]])
    with store.reading() as rows:
        return [*rows.nodes(ids[:MAX_SHOWN_ENTITIES]).values()]


def _material(shown: _Shown, before: list[str], entities: Sequence[NodeRow]) -> Material:
    def cut(some: Mapping[str, NodeRow]) -> dict[str, str]:
        return {mark: row.content[:MAX_KNOWN_MEMORY_CHARS] for mark, row in some.items()}

    return Material(
        text=shown.source.content[:MAX_SOURCE_CHARS],
        written_at=format_time(shown.source.created_at),
        said_before=before,
        known_memories=cut(shown.memories),
        known_concepts=cut(shown.concepts),
        known_entities={(names_of(row) or [row.id])[0]: row.type for row in entities},
    )


# What is written


_Item = Callable[["_ExtractionDeduplicator"], None]
"""Writes one item. Raises errors of kgserve where it cannot be."""


def _write(indexer: Indexer | None, store: OpenStore, shown: _Shown, found: Proposed) -> Extracted:
    facts, dropped = _checked(shown, found.facts)
    beside, relations = compared(indexer, store, [checked for _, checked in facts]), _relations(found)
    items: list[_Item] = [
        *(
            partial(_ExtractionDeduplicator.fact, fact=fact, put=put)
            for (fact, _), put in zip(facts, beside.puts, strict=True)
        ),
        *(
            partial(_ExtractionDeduplicator.name, name=each.name, entity_type=each.entity_type)
            for each in found.entities
        ),
        *(partial(_ExtractionDeduplicator.relation, relation=put) for put in relations),
    ]
    lost = found.dropped + dropped + len(found.relations) - len(relations)
    kept: list[_Item] = []

    def decide(ahead: PendingState) -> WriteBatch:
        source = ahead.node(shown.source.id)
        if source is None or not is_text(source) or _was_written(ahead, shown.source):
            return WriteBatch()
        made, held = _decided(ahead, beside, store, shown, items)
        kept.extend(held)
        return made.batch()

    cost = sum(len(put.content) + 1_000 for put in beside.puts) + 1_000 * len(items)
    try:
        store.submit_decided(decide, cost, EXTRACTION_WRITE_TIMEOUT_SECONDS).result()
    except (Conflict, InvalidInput, TooLarge) as error:
        told = "what it proposes cannot be written"
        raise Unanswered(f"{told}: {error.message}", of_service=False, reason=told) from None
    return Extracted(len(kept), lost + len(items) - len(kept))


def _was_written(ahead: PendingState, source: NodeRow) -> bool:
    """Whether the text has changed since it was sent, or what it says was written already."""
    now = ahead.node(source.id)
    said = text_hash(source.content).hex()
    if now is None or text_hash(now.content).hex() != said:
        return True
    marks = map(mark_of, ahead.edges_to(source.id, RELATION_EXTRACTED_FROM))
    return any(mark is not None and mark.text == said for mark in marks)


def _decided(
    ahead: PendingState, beside: ComparedMemories, store: OpenStore, shown: _Shown, items: Sequence[_Item]
) -> tuple[_ExtractionDeduplicator, list[_Item]]:
    """A draft with the items that can be, each tried alone first; those that cannot be beside others are left out."""
    rules = Rules(frozenset(store.description.kind_whitelist))
    left = [
        item for item in items if _fault(_ExtractionDeduplicator(ahead, RecentVectors(), shown, rules), [item]) is None
    ]
    for _ in range(_MAX_ROUNDS):
        draft = _ExtractionDeduplicator(ahead, beside.recent, shown, rules)
        if (fault := _fault(draft, left)) is None:
            return draft, left
        left = [item for item in left if item is not fault]
    return _ExtractionDeduplicator(ahead, RecentVectors(), shown, rules), []


def _fault(draft: _ExtractionDeduplicator, items: Sequence[_Item]) -> _Item | None:
    """The first item that cannot be written after those before it."""
    for item in items:
        try:
            item(draft)
        except KgserveError:
            return item
    return None


def _checked(shown: _Shown, facts: Sequence[ProposedFact]) -> tuple[list[tuple[ProposedFact, Checked]], int]:
    """The facts that could be requests, and how many could not."""
    found: list[tuple[ProposedFact, Checked]] = []
    for place, fact in enumerate(facts):
        faults = Faults()
        if fact.parent and fact.parent not in shown.concepts:
            continue
        if fact.supersedes and fact.supersedes not in shown.memories:
            continue
        checked = checked_memory(_request(shown, fact), faults, place)
        if not faults.errors:
            own, since = checked.put.node.extras or NodeExtrasPut(), stated_at(shown.source)
            extras = msgspec.structs.replace(own, created_by=EXTRACTION_AUTHOR, confidence_at=since)
            node = msgspec.structs.replace(checked.put.node, extras=extras)
            put = msgspec.structs.replace(checked.put, node=node)
            found.append((fact, msgspec.structs.replace(checked, put=put)))
    return found, len(facts) - len(found)


def _request(shown: _Shown, fact: ProposedFact) -> StoreMemoryRequest:
    """A fact as a caller would send it. What says whose the text is, or where it is from, holds for the fact, too."""
    source, own = shown.source, shown.source.extras or NO_EXTRAS
    sure = 1.0 if fact.confidence is None else fact.confidence
    return StoreMemoryRequest(
        content=fact.content,
        memory_type=fact.memory_type or None,
        layer=FACT_LAYER if fact.layer is None else fact.layer,
        parent_id=shown.concepts[fact.parent].id if fact.parent else None,
        tags=list(own.tags),
        entities=[AssociatedEntity(name=name) for name in fact.entities or ()],
        confidence=min(sure, 1.0 if own.confidence is None else own.confidence),
        source=own.source or "",
        valid_from=fact.valid_from or None,
        valid_to=fact.valid_to or None,
        created_at=format_time(source.created_at),
    )


def _relations(found: Proposed) -> list[EdgePut]:
    puts: list[EdgePut] = []
    for each in found.relations:
        faults = Faults()
        relation = RelationInput(source=each.source, target=each.target, relation_type=each.relation_type)
        put = related_put(relation, "", faults)
        if not faults.errors and each.relation_type not in _RESERVED_RELATIONS:
            puts.append(put)
    return puts


class _ExtractionDeduplicator(Deduplicator):
    """What is written of one text."""

    def __init__(self, ahead: PendingState, recent: RecentVectors, shown: _Shown, rules: Rules) -> None:
        super().__init__(ahead, recent)
        self._shown = shown
        self._rules = rules
        self._ended: set[str] = set()

    @override
    def put_node(self, put: NodePut) -> NodeRow:
        if (fault := node_fault(put, self.node(put.id), self._rules)) is not None:
            raise InvalidInput(fault[1])
        return super().put_node(put)

    def fact(self, fact: ProposedFact, put: MemoryPut) -> None:
        """Write a fact. Raises NotFound and Conflict."""
        head = self._superseded(fact)
        memory = self._supersede(head, put) if head is not None else self.store(put).id
        if memory == self._shown.source.id:
            return
        mark = ExtractionMark.of(self._shown.source, put.content)
        key = (memory, self._shown.source.id, RELATION_EXTRACTED_FROM)
        self.put_edge(EdgePut(0, key, own=mark.attributes, extras=EdgeExtrasPut(created_by=EXTRACTION_AUTHOR)))

    def name(self, name: str, entity_type: str) -> None:
        """Name an entity, or give one a type. Raises Conflict and InvalidInput."""
        faults = Faults()
        check_label(name, "name", faults)
        check_label(entity_type, "entity_type", faults)
        faults.raise_any()
        self.entity(name, entity_type)

    def relation(self, relation: EdgePut) -> None:
        """Relate two entities. Raises Conflict."""
        source, target, kind = relation.key
        put = msgspec.structs.replace(relation, key=(self.entity(source), self.entity(target), kind))
        if self.edge(put.key) is None:
            put_relation(self, msgspec.structs.replace(put, extras=EdgeExtrasPut(created_by=EXTRACTION_AUTHOR)))

    def _superseded(self, fact: ProposedFact) -> NodeRow | None:
        """The memory that a fact takes the place of, if it is still as it was shown; one fact alone can."""
        seen = self._shown.memories.get(fact.supersedes or "")
        if seen is None or seen.id in self._ended:
            return None
        row = self.node(seen.id)
        same = row is not None and row.version == seen.version and row.sequence == seen.sequence
        return row if same and row is not None and is_active(row, self.ahead.now) else None

    def _supersede(self, head: NodeRow, put: MemoryPut) -> str:
        """Have a memory say what is true now, and keep what it said before; the id of what says it."""
        source, extras = self._shown.source, put.extras
        self._ended.add(head.id)
        start = extras.valid_from
        if start is None:
            start = (source.extras or NO_EXTRAS).valid_from
        start = source.created_at if start is None else start
        if extras.valid_to is not None and extras.valid_to <= start:
            raise Conflict("it is over before it begins")
        stated = NodeExtrasPut(
            created_by=EXTRACTION_AUTHOR, confidence=extras.confidence, confidence_at=stated_at(source)
        )
        change = NodePut(0, head.id, content=put.content, extras=stated)
        placed = supersede.place(self, head, supersede.Fact(change, start, extras.valid_to))
        self.associate(placed.id, self._about(put))
        return placed.id
