"""Extraction of facts from one text: the material that a model receives, and the validated write of its answer.

No answer can delete or forget anything. It can supersede only memories that it was shown and that did not change since;
their former versions are kept. Each item is validated alone, like a request; invalid items are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from typing_extensions import override

from kgserve.errors import Conflict, InvalidInput, KgserveError, TooLarge
from kgserve.graph.request_validation import ValidationErrorCollector, validate_identifier_length
from kgserve.memory import former_memory_versions
from kgserve.memory.consolidation.plan import is_pinned_memory
from kgserve.memory.deduplication import MemoryDeduplicator, ValidatedMemoryInput
from kgserve.memory.entity_models import RelationInput
from kgserve.memory.entity_operations import put_relation_in_batch_draft, validate_relation
from kgserve.memory.extraction.background_llm_extractor import AskFunction, ExtractionResult
from kgserve.memory.extraction.fact_marks import (
    EXTRACTION_AUTHOR,
    ExtractedFactMark,
    can_extract_facts_from_node,
    read_extracted_fact_mark,
)
from kgserve.memory.extraction.llm.chat_completions_client import NoUsableLlmAnswer
from kgserve.memory.extraction.llm.prompts import (
    MAX_KNOWN_MEMORY_CHARS,
    MAX_SOURCE_CHARS,
    ExtractionMaterial,
    LlmExtractionAnswer,
    ProposedFact,
    build_extraction_question,
    parse_llm_extraction_answer,
)
from kgserve.memory.memory_crud import (
    NewMemoriesWithNeighbours,
    ValidatedMemory,
    find_near_existing_memories,
    validate_memory,
)
from kgserve.memory.memory_models import CONCEPT_LAYER, FACT_LAYER, MemoryEntityInput, StoreMemoryRequest
from kgserve.memory.retain import find_entities_named_in_texts
from kgserve.memory.serialization import now_in_microseconds
from kgserve.platform.text.text_equality import hash_normalized_text
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.memory_index.built_in_relation_types import (
    RELATION_CONSOLIDATED,
    RELATION_EXTRACTED_FROM,
    RELATION_NEXT,
    RELATION_REFLECTED,
)
from kgserve.projections.memory_index.confidence_decay import confidence_stated_at
from kgserve.projections.memory_index.query_planner import MemoryPageStart
from kgserve.projections.recent_vectors import RecentVectorBuffer
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.storage.model.entity_names import list_entity_names_and_aliases
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION
from kgserve.storage.model.node_and_memory_filters import MemoryFilter
from kgserve.storage.model.node_edge_fields import NO_EXTRAS, EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.soft_delete import VERSION_OF_RELATION, is_memory_active_at
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch, WriteRules, find_node_upsert_fault
from kgserve.storage.rows.edge_pages import incoming_edges_of_type
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pending_state import PendingCommitGroupState

MAX_NEAR_MEMORIES = 8
"""Maximum number of near memories that are shown with a text and may be superseded."""
MAX_SHOWN_CONCEPTS = 20
MAX_SHOWN_ENTITIES = 20
MAX_EARLIER_TURNS = 4
"""Maximum number of earlier turns of a conversation that are shown."""
EXTRACTION_INDEX_TIMEOUT_SECONDS = 0.5
"""Time to wait for the index, which may be about to apply the text."""
EXTRACTION_WRITE_TIMEOUT_SECONDS = 30.0
_MAX_NEIGHBOURS = 32
_MAX_ROUNDS = 4
_RESERVED_RELATIONS = frozenset(
    {CHILD_OF_RELATION, VERSION_OF_RELATION, RELATION_EXTRACTED_FROM, RELATION_CONSOLIDATED, RELATION_REFLECTED}
)
"""Relation types that are reserved for the store, in addition to those that no caller may write."""


class _ExtractionContext(NamedTuple):
    """The text that a model was asked about, and the memories and concepts that it was shown, by label."""

    source: NodeRow
    memories: Mapping[str, NodeRow]
    concepts: Mapping[str, NodeRow]


def extract_facts(
    indexer: TextIndexWorker | None, store: OpenStore, memory: str, ask: AskFunction
) -> ExtractionResult | None:
    """Ask the model about a memory and write the result; None if there is nothing to ask. Blocks.

    Raises the errors of `ask`, StorageFull and Unavailable.
    """
    with store.reading() as rows:
        source = rows.node(memory)
        if source is None or not can_extract_facts_from_node(source) or _is_processed(rows, source):
            return None
        before = _previous_turns(rows, source)
    shown = _build_context(indexer, store, source)
    known = {row.id: row for row in _named_entities(store, source.content)}
    reply = ask(build_extraction_question(_build_material(shown, before, [*known.values()])))
    return _write(indexer, store, shown, parse_llm_extraction_answer(reply.text))


def _is_processed(rows: RowsSnapshot, source: NodeRow) -> bool:
    """Return whether a text was already processed, or was itself extracted from another one."""
    digest = hash_normalized_text(source.content).hex()
    marks = map(read_extracted_fact_mark, incoming_edges_of_type(rows, source.id, RELATION_EXTRACTED_FROM))
    if any(mark is not None and mark.text == digest for mark in marks):
        return True
    own = (
        read_extracted_fact_mark(edge)
        for edge in rows.outgoing(source.id)
        if edge.relation_type == RELATION_EXTRACTED_FROM
    )
    return any(mark is not None and mark.fact == digest for mark in own)


# Material


def _previous_turns(rows: RowsSnapshot, source: NodeRow) -> list[str]:
    """Return the previous turns of a conversation, oldest first."""
    found: list[str] = []
    at = source.id
    while len(found) < MAX_EARLIER_TURNS:
        edges = incoming_edges_of_type(rows, at, RELATION_NEXT)
        row = rows.node(edges[0].source) if edges else None
        if row is None or not row.is_memory or row.id == source.id:
            break
        found.append(row.content[:MAX_KNOWN_MEMORY_CHARS])
        at = row.id
    return found[::-1]


def _build_context(indexer: TextIndexWorker | None, store: OpenStore, source: NodeRow) -> _ExtractionContext:
    near = _find_near(indexer, store, source)
    wanted = MemoryFilter(now=now_in_microseconds(), layer=CONCEPT_LAYER)
    concepts = store.memories.ask(
        lambda view, _: view.list_memory_page(wanted, "created", MemoryPageStart(), MAX_SHOWN_CONCEPTS).ids
    )
    with store.reading() as rows:
        found = rows.nodes([*near, *concepts])
    memories = [row for each in near if (row := found.get(each)) is not None and _can_supersede(row, source)]
    return _ExtractionContext(
        source,
        {f"m{at}": row for at, row in enumerate(memories[:MAX_NEAR_MEMORIES], 1)},
        {f"c{at}": found[each] for at, each in enumerate(concepts, 1) if each in found},
    )


def _find_near(indexer: TextIndexWorker | None, store: OpenStore, source: NodeRow) -> list[str]:
    """Return memories near a text, nearest first; none if the index cannot answer."""
    if indexer is None:
        return []
    try:
        indexes = indexer.of(store)
        if not indexes.can_embed_queries:
            return []
        indexes.vector.wait(source.sequence, EXTRACTION_INDEX_TIMEOUT_SECONDS)
        vector = indexes.vectors([source.content[:MAX_SOURCE_CHARS]])[0]
        return [*indexes.memories_near(vector, _MAX_NEIGHBOURS)]
    except KgserveError:
        return []


def _can_supersede(row: NodeRow, source: NodeRow) -> bool:
    """Return whether a text may supersede a memory: an earlier, active, unpinned fact."""
    layer = (row.extras or NO_EXTRAS).layer
    if row.id == source.id or layer not in {None, FACT_LAYER} or is_pinned_memory(row):
        return False
    return is_memory_active_at(row, now_in_microseconds()) and row.created_at <= source.created_at


def _named_entities(store: OpenStore, text: str) -> Sequence[NodeRow]:
    [ids] = find_entities_named_in_texts(store, [text[:MAX_SOURCE_CHARS]])
    with store.reading() as rows:
        return [*rows.nodes(ids[:MAX_SHOWN_ENTITIES]).values()]


def _build_material(shown: _ExtractionContext, before: list[str], entities: Sequence[NodeRow]) -> ExtractionMaterial:
    def cut(some: Mapping[str, NodeRow]) -> dict[str, str]:
        return {mark: row.content[:MAX_KNOWN_MEMORY_CHARS] for mark, row in some.items()}

    return ExtractionMaterial(
        text=shown.source.content[:MAX_SOURCE_CHARS],
        written_at=format_rfc3339_timestamp(shown.source.created_at),
        said_before=before,
        known_memories=cut(shown.memories),
        known_concepts=cut(shown.concepts),
        known_entities={(list_entity_names_and_aliases(row) or [row.id])[0]: row.type for row in entities},
    )


# Writing


_Item = Callable[["_ExtractionDeduplicator"], None]
"""Function that writes one item to a draft; raises KgserveError if it cannot."""


def _write(
    indexer: TextIndexWorker | None, store: OpenStore, shown: _ExtractionContext, found: LlmExtractionAnswer
) -> ExtractionResult:
    facts, dropped = _validate_facts(shown, found.facts)
    compared_facts, relations = (
        find_near_existing_memories(indexer, store, [checked for _, checked in facts]),
        _validate_relations(found),
    )
    items: list[_Item] = [
        *(
            partial(_ExtractionDeduplicator.fact, fact=fact, put=put)
            for (fact, _), put in zip(facts, compared_facts.puts, strict=True)
        ),
        *(
            partial(_ExtractionDeduplicator.name, name=each.name, entity_type=each.entity_type)
            for each in found.entities
        ),
        *(partial(_ExtractionDeduplicator.relation, relation=put) for put in relations),
    ]
    invalid = found.dropped + dropped + len(found.relations) - len(relations)
    kept: list[_Item] = []

    def decide(ahead: PendingCommitGroupState) -> WriteBatch:
        source = ahead.node(shown.source.id)
        if source is None or not can_extract_facts_from_node(source) or _was_written(ahead, shown.source):
            return WriteBatch()
        draft, held = _build_draft(ahead, compared_facts, store, shown, items)
        kept.extend(held)
        return draft.batch()

    cost = sum(len(put.content) + 1_000 for put in compared_facts.puts) + 1_000 * len(items)
    try:
        store.submit_decided(decide, cost, EXTRACTION_WRITE_TIMEOUT_SECONDS).result()
    except (Conflict, InvalidInput, TooLarge) as error:
        reason = "the proposed items cannot be written"
        raise NoUsableLlmAnswer(f"{reason}: {error.message}", of_service=False, reason=reason) from None
    return ExtractionResult(len(kept), invalid + len(items) - len(kept))


def _was_written(ahead: PendingCommitGroupState, source: NodeRow) -> bool:
    """Return whether the text changed since it was sent, or its facts were written already."""
    now = ahead.node(source.id)
    digest = hash_normalized_text(source.content).hex()
    if now is None or hash_normalized_text(now.content).hex() != digest:
        return True
    marks = map(read_extracted_fact_mark, ahead.edges_to(source.id, RELATION_EXTRACTED_FROM))
    return any(mark is not None and mark.text == digest for mark in marks)


def _build_draft(
    ahead: PendingCommitGroupState,
    compared_facts: NewMemoriesWithNeighbours,
    store: OpenStore,
    shown: _ExtractionContext,
    items: Sequence[_Item],
) -> tuple[_ExtractionDeduplicator, list[_Item]]:
    """Return a draft with the items that can be written, and those items; conflicting ones are dropped."""
    rules = WriteRules(frozenset(store.description.kind_whitelist))
    left = [
        item
        for item in items
        if _first_failing(_ExtractionDeduplicator(ahead, RecentVectorBuffer(), shown, rules), [item]) is None
    ]
    for _ in range(_MAX_ROUNDS):
        draft = _ExtractionDeduplicator(ahead, compared_facts.recent, shown, rules)
        if (fault := _first_failing(draft, left)) is None:
            return draft, left
        left = [item for item in left if item is not fault]
    return _ExtractionDeduplicator(ahead, RecentVectorBuffer(), shown, rules), []


def _first_failing(draft: _ExtractionDeduplicator, items: Sequence[_Item]) -> _Item | None:
    """Return the first item that cannot be written after the previous ones."""
    for item in items:
        try:
            item(draft)
        except KgserveError:
            return item
    return None


def _validate_facts(
    shown: _ExtractionContext, facts: Sequence[ProposedFact]
) -> tuple[list[tuple[ProposedFact, ValidatedMemory]], int]:
    """Return the facts that are valid requests, and the number of the others."""
    found: list[tuple[ProposedFact, ValidatedMemory]] = []
    for place, fact in enumerate(facts):
        faults = ValidationErrorCollector()
        if fact.parent and fact.parent not in shown.concepts:
            continue
        if fact.supersedes and fact.supersedes not in shown.memories:
            continue
        checked = validate_memory(_to_request(shown, fact), faults, place)
        if not faults.errors:
            own, since = checked.put.node.extras or NodeExtrasUpsert(), confidence_stated_at(shown.source)
            extras = msgspec.structs.replace(own, created_by=EXTRACTION_AUTHOR, confidence_at=since)
            node = msgspec.structs.replace(checked.put.node, extras=extras)
            put = msgspec.structs.replace(checked.put, node=node)
            found.append((fact, msgspec.structs.replace(checked, put=put)))
    return found, len(facts) - len(found)


def _to_request(shown: _ExtractionContext, fact: ProposedFact) -> StoreMemoryRequest:
    """Return a fact as a store request; tags, source and date are inherited from the text."""
    source, own = shown.source, shown.source.extras or NO_EXTRAS
    confidence = 1.0 if fact.confidence is None else fact.confidence
    return StoreMemoryRequest(
        content=fact.content,
        memory_type=fact.memory_type or None,
        layer=FACT_LAYER if fact.layer is None else fact.layer,
        parent_id=shown.concepts[fact.parent].id if fact.parent else None,
        tags=list(own.tags),
        entities=[MemoryEntityInput(name=name) for name in fact.entities or ()],
        confidence=min(confidence, 1.0 if own.confidence is None else own.confidence),
        source=own.source or "",
        valid_from=fact.valid_from or None,
        valid_to=fact.valid_to or None,
        created_at=format_rfc3339_timestamp(source.created_at),
    )


def _validate_relations(found: LlmExtractionAnswer) -> list[EdgeUpsert]:
    puts: list[EdgeUpsert] = []
    for each in found.relations:
        faults = ValidationErrorCollector()
        relation = RelationInput(source=each.source, target=each.target, relation_type=each.relation_type)
        put = validate_relation(relation, "", faults)
        if not faults.errors and each.relation_type not in _RESERVED_RELATIONS:
            puts.append(put)
    return puts


class _ExtractionDeduplicator(MemoryDeduplicator):
    """Draft of the facts, entities and relations of one text."""

    def __init__(
        self, ahead: PendingCommitGroupState, recent: RecentVectorBuffer, shown: _ExtractionContext, rules: WriteRules
    ) -> None:
        super().__init__(ahead, recent)
        self._context = shown
        self._rules = rules
        self._superseded_ids: set[str] = set()

    @override
    def put_node(self, put: NodeUpsert) -> NodeRow:
        if (fault := find_node_upsert_fault(put, self.node(put.id), self._rules)) is not None:
            raise InvalidInput(fault[1])
        return super().put_node(put)

    def fact(self, fact: ProposedFact, put: ValidatedMemoryInput) -> None:
        """Write a fact and its mark. Raises NotFound and Conflict."""
        head = self._superseded_head(fact)
        memory = self._supersede(head, put) if head is not None else self.store(put).id
        if memory == self._context.source.id:
            return
        mark = ExtractedFactMark.of(self._context.source, put.content)
        key = (memory, self._context.source.id, RELATION_EXTRACTED_FROM)
        self.put_edge(EdgeUpsert(0, key, own=mark.attributes, extras=EdgeExtrasUpsert(created_by=EXTRACTION_AUTHOR)))

    def name(self, name: str, entity_type: str) -> None:
        """Create an entity or set its type. Raises Conflict and InvalidInput."""
        faults = ValidationErrorCollector()
        validate_identifier_length(name, "name", faults)
        validate_identifier_length(entity_type, "entity_type", faults)
        faults.raise_any()
        self.entity(name, entity_type)

    def relation(self, relation: EdgeUpsert) -> None:
        """Relate two entities. Raises Conflict."""
        source, target, kind = relation.key
        put = msgspec.structs.replace(relation, key=(self.entity(source), self.entity(target), kind))
        if self.edge(put.key) is None:
            put_relation_in_batch_draft(
                self, msgspec.structs.replace(put, extras=EdgeExtrasUpsert(created_by=EXTRACTION_AUTHOR))
            )

    def _superseded_head(self, fact: ProposedFact) -> NodeRow | None:
        """Return the memory that a fact supersedes, if it is unchanged and no other fact of this text superseded it."""
        seen = self._context.memories.get(fact.supersedes or "")
        if seen is None or seen.id in self._superseded_ids:
            return None
        row = self.node(seen.id)
        same = row is not None and row.version == seen.version and row.sequence == seen.sequence
        return row if same and row is not None and is_memory_active_at(row, self.ahead.now) else None

    def _supersede(self, head: NodeRow, put: ValidatedMemoryInput) -> str:
        """Write a fact as the new state of a memory; return the id of the memory or version that states it."""
        source, extras = self._context.source, put.extras
        self._superseded_ids.add(head.id)
        start = extras.valid_from
        if start is None:
            start = (source.extras or NO_EXTRAS).valid_from
        start = source.created_at if start is None else start
        if extras.valid_to is not None and extras.valid_to <= start:
            raise Conflict("valid_to is not after valid_from")
        stated = NodeExtrasUpsert(
            created_by=EXTRACTION_AUTHOR, confidence=extras.confidence, confidence_at=confidence_stated_at(source)
        )
        change = NodeUpsert(0, head.id, content=put.content, extras=stated)
        placed = former_memory_versions.insert_fact_as_memory_version(
            self, head, former_memory_versions.TimedFact(change, start, extras.valid_to)
        )
        for version in (placed.id, *placed.others):
            self.associate(version, self._about(put))
        return placed.id
