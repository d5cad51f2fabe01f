"""Retaining a text or the turns of a conversation: created, merged, or written as the current state of a memory.

The outcome is decided in the writer thread, as for storing a memory, and reported as a list of operations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

import msgspec
from typing_extensions import override

from kgserve.errors import Conflict, InvalidInput, NotFound
from kgserve.graph.former_versions import known_statement_start, validity_end, validity_span
from kgserve.graph.request_validation import FaultCallback, ValidationErrorCollector, parse_timestamp_update
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.deduplication import MemoryDeduplicator, MemoryStoreResult, ValidatedMemoryInput, merge_attributes
from kgserve.memory.entity_operations import put_relation_in_batch_draft, validate_relation
from kgserve.memory.extraction.fact_marks import EXTRACT_KEY
from kgserve.memory.former_memory_versions import (
    FactInsertionResult,
    TimedFact,
    check_memory_validity_overlap,
    find_version_true_now,
    format_known_reason,
    insert_fact_as_memory_version,
    set_known_fact_end,
)
from kgserve.memory.memory_crud import (
    MAX_SIMILAR_CONTENT_CHARS,
    MemoryBatchStoreOutcome,
    ValidatedMemory,
    store_validated_memories,
    validate_memory,
)
from kgserve.memory.memory_models import (
    DEFAULT_IMPORTANCE,
    EPISODE_LAYER,
    FACT_LAYER,
    MetadataObject,
    SimilarMemory,
    StoreMemoryRequest,
)
from kgserve.memory.recall_scoring import find_known_name_ids, is_any_name_in_text, list_text_name_candidates
from kgserve.memory.relation_ends import resolve_relation_ends_to_edge_key
from kgserve.memory.retain_forget_recall_models import (
    CONVERSATION_ROLES,
    MAX_CONVERSATION_MESSAGES,
    ConversationMessage,
    RetainAction,
    RetainAnswer,
    RetainBatchAnswer,
    RetainBatchRequest,
    RetainItemResult,
    RetainMemoryOutcome,
    RetainTextRequest,
)
from kgserve.memory.serialization import get_node_name_or_id
from kgserve.memory.short_memory_ids import expand_short_memory_ids
from kgserve.platform.text.text_equality import hash_normalized_text
from kgserve.projections.memory_index.built_in_relation_types import RELATION_NEXT
from kgserve.projections.recent_vectors import RecentVectorBuffer
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION, UNKNOWN_TYPE, list_entity_names_and_aliases
from kgserve.storage.model.node_edge_fields import NO_EXTRAS, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import EMPTY_ATTRIBUTES_JSON, NodeRow
from kgserve.storage.model.soft_delete import REASON_SUPERSEDED, RESTORABLE_END_REASONS
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pending_state import PendingCommitGroupState


def retain_text_or_conversation(graph: StoreHandle, request: RetainTextRequest) -> Future[RetainAnswer]:
    """Retain a text or the turns of a conversation; create the store if it does not exist.

    A known text is not stored twice. With `entity_id` or `supersedes`, the text becomes the current state of that
    memory. The previous state is kept as a former version, which reads with `valid_at` find. A fact of an earlier time
    becomes a former version itself, and the current state does not change. With `update` = `correct`, the text
    overwrites a mistake and no version is kept. The memory is linked to the entities that the text names.

    Each message of a conversation becomes an episode, linked to the next. If the same `source` is sent again, only new
    messages are added.

    Raises InvalidInput, TooLarge, NotFound when the memory to supersede does not exist, Conflict, StorageFull and
    Unavailable.
    """

    def answer(done: MemoryBatchStoreOutcome, results: list[RetainItemResult]) -> RetainAnswer:
        (one,) = results
        return RetainAnswer(
            operations=one.operations,
            similar=one.similar,
            sequence=done.sequence,
            near_checked=done.near_checked,
            extracting=_extracting(graph, done.store, request),
        )

    return _retain(graph, [expand_short_memory_ids(graph, request)], answer)


def retain_text_batch(graph: StoreHandle, request: RetainBatchRequest) -> Future[RetainBatchAnswer]:
    """Retain up to 1,000 texts or conversations in one commit, each after the ones before it.

    Several items may name the same memory (`entity_id`), in any order of time; each becomes the version of its own
    time. Items that name no memory are compared by vectors if there are at most 100.

    Raises the same errors as `retain`; `errors` or the message name the position of each fault, and nothing is stored.
    """

    def answer(done: MemoryBatchStoreOutcome, results: list[RetainItemResult]) -> RetainBatchAnswer:
        return RetainBatchAnswer(results=results, sequence=done.sequence, near_checked=done.near_checked)

    items = [expand_short_memory_ids(graph, each) for each in request.items]
    return _retain(graph, items, answer, "items[{}].")


def _extracting(graph: StoreHandle, store: OpenStore, request: RetainTextRequest) -> bool | msgspec.UnsetType:
    """Return whether a language model will process the new text; UNSET if none is configured or requested."""
    is_set = graph.graphs.extractor is not None
    if not is_set and request.extract is None:
        return msgspec.UNSET
    return is_set and (store.description.memory.extract if request.extract is None else request.extract)


A = TypeVar("A")


def _retain(
    graph: StoreHandle,
    requests: Sequence[RetainTextRequest],
    answer: Callable[[MemoryBatchStoreOutcome, list[RetainItemResult]], A],
    place: str = "",
) -> Future[A]:
    """Retain in one commit; `place` formats the path of a request within a batch."""
    faults = ValidationErrorCollector()
    plan = _RetainBatchPlan([_RetainItem(each, faults, place.format(at)) for at, each in enumerate(requests)])
    faults.raise_any()
    checked = plan.checked(faults)
    faults.raise_any()
    deduplicators: list[RetainDeduplicator] = []

    def make(ahead: PendingCommitGroupState, recent: RecentVectorBuffer) -> MemoryDeduplicator:
        deduplicators.append(RetainDeduplicator(ahead, recent, plan))
        return deduplicators[0]

    def report(done: MemoryBatchStoreOutcome) -> A:
        similar = iter(done.similar)
        operations = _operations(done.store, deduplicators[0].steps, done.sequence)
        own = ([each for one in islice(similar, len(item.turns) or 1) for each in one] for item in plan.items)
        return answer(
            done,
            [
                RetainItemResult(operations=each, similar=_nearest_similar(near))
                for each, near in zip(operations, own, strict=True)
            ],
        )

    return store_validated_memories(graph, checked, report, make, look=plan.look)


class RetainMemoryStep(msgspec.Struct):
    """Step of a retain: one operation on a memory; `is_new` if this write performed it.

    `row` is the memory at that time; `kept` is the version that preserves that state, if a later item of the same write
    replaced it.
    """

    type: RetainAction
    memory: str
    content: str
    reason: str
    is_new: bool = True
    row: NodeRow | None = None
    kept: str = ""

    @property
    def is_older(self) -> bool:
        """True if its version may have been written by an earlier commit."""
        return not self.kept and (self.type == "link" or not self.is_new)

    def version(self, sequence: int) -> str | None:
        """Return the id of the version that the operation refers to; None for a node that is not a memory."""
        if self.kept or self.row is None or not self.row.is_memory:
            return self.kept or None
        is_former = (self.row.extras or NO_EXTRAS).ended == REASON_SUPERSEDED
        return self.row.id if is_former else f"{self.row.id}@{sequence}"


def _check(request: RetainTextRequest, fault: FaultCallback) -> None:
    """Report fields that cannot be combined."""
    named, is_text = request.entity_id or request.supersedes, isinstance(request.content, str)
    if request.entity_id and request.supersedes and request.entity_id != request.supersedes:
        fault("supersedes", "and entity_id name different memories; send one of them")
    if named and not is_text:
        fault("content", "must be a text with entity_id or supersedes; messages are stored as episodes")
    if request.update == "never" and request.supersedes:
        fault("update", "must not be `never` with supersedes; send one of them")
    if request.update == "correct" and is_text and not named:
        fault("update", "is `correct`, which requires entity_id")


class _RetainBatchPlan:
    """Items to retain in one commit."""

    def __init__(self, items: Sequence[_RetainItem]) -> None:
        self.items = items
        self._links: list[list[str]] = []

    def checked(self, faults: ValidationErrorCollector) -> list[ValidatedMemory]:
        """Return the memories to store, in the order of the requests."""
        found: list[ValidatedMemory] = []
        for item in self.items:
            found += item.checked(faults, len(found))
        if len(found) > MAX_CONVERSATION_MESSAGES:
            faults(
                "items",
                f"contain {len(found):,} texts and messages; at most {MAX_CONVERSATION_MESSAGES:,} are allowed",
            )
        return found

    def look(self, store: OpenStore, puts: Sequence[ValidatedMemoryInput]) -> None:
        """Find the entities of the store that each text names."""
        self._links = find_entities_named_in_texts(store, [put.content for put in puts])

    def each(self) -> Iterator[tuple[_RetainItem, list[str]]]:
        """Return, for each memory to store, its item and the ids of the entities that it names."""
        owners = (item for item in self.items for _ in item.turns or (None,))
        return zip(owners, self._links, strict=True)


class _RetainItem:
    """A validated request to retain one text or conversation."""

    def __init__(self, request: RetainTextRequest, faults: ValidationErrorCollector, place: str) -> None:
        self.request = request
        self.place = place
        fault = faults.below(place)
        _check(request, fault)
        self.start = _time(request.valid_from, "valid_from", fault)
        self.relations = [
            validate_relation(each, f"{place}relations[{index}].", faults)
            for index, each in enumerate(request.relations)
        ]
        self.turns: list[str] = []
        """Ids of the turns of a conversation."""

    @property
    def _extract_metadata(self) -> MetadataObject:
        """Metadata entry that requests or forbids extraction by a language model."""
        return {} if self.request.extract is None else {EXTRACT_KEY: self.request.extract}

    @property
    def is_one_of_many(self) -> bool:
        """True if it is one item of a batch."""
        return bool(self.place)

    @property
    def target(self) -> str | None:
        """Id of the memory whose state the text is, if the request names one."""
        return self.request.supersedes or self.request.entity_id

    def checked(self, faults: ValidationErrorCollector, first: int) -> list[ValidatedMemory]:
        """Return the memories to store; `first` is the number of memories before it."""
        content, place = self.request.content, self.place
        if isinstance(content, str):
            found = validate_memory(
                self._store_request(content, self.request.entity_id), faults.below(place), first, place
            )
            is_chosen = self.is_one_of_many and self.target is not None
            return [msgspec.structs.replace(found, is_chosen=is_chosen)]
        texts = [(at, each) for at, each in enumerate(content) if each.content.strip()]
        found = [
            validate_memory(self._turn(each, at), faults.below(f"{place}content[{at}]."), number, place)
            for number, (at, each) in enumerate(texts, first)
        ]
        if not found:
            faults(f"{place}content", "contains no text")
        self.turns = [each.put.node.id for each in found]
        return found

    def _turn(self, message: ConversationMessage, at: int) -> StoreMemoryRequest:
        """Return a message as an episode; a speaker's name is prefixed to the text, so that search finds it."""
        request, number = self.request, self.request.first + at
        text = message.content if message.role.lower() in CONVERSATION_ROLES else f"{message.role}: {message.content}"
        asked = self._store_request(text, _turn_id(request.source, number) if request.source else None)
        metadata = {**asked.metadata, "role": message.role, "position": number}
        return msgspec.structs.replace(asked, metadata=metadata, created_at=message.at or request.created_at)

    def _store_request(self, content: str, memory_id: str | None) -> StoreMemoryRequest:
        request = self.request
        layer = (
            (FACT_LAYER if isinstance(request.content, str) else EPISODE_LAYER)
            if request.layer is None
            else request.layer
        )
        return StoreMemoryRequest(
            content=content,
            memory_id=memory_id,
            memory_type=request.memory_type,
            layer=layer,
            parent_id=request.parent,
            tags=request.tags or [],
            entities=request.entities,
            confidence=1.0 if request.confidence is None else request.confidence,
            importance=DEFAULT_IMPORTANCE if request.importance is None else request.importance,
            source=request.source,
            context=request.context,
            metadata=(request.metadata or {}) | self._extract_metadata,
            valid_from=request.valid_from,
            valid_to=request.valid_to,
            expires_in=request.expires_in,
            created_at=request.created_at,
            # A request that names a memory must update that one, even if another memory says the same.
            dedup=request.dedup if self.target is None else "off",
        )

    def change(self, put: ValidatedMemoryInput, row: NodeRow) -> NodeUpsert:
        """Return the fields that the request changes in an existing memory."""
        request = self.request
        extras = NodeExtrasUpsert(
            tags=None if request.tags is None else tuple(dict.fromkeys(request.tags)),
            confidence=_or_unset(request.confidence),
            importance=_or_unset(request.importance),
            source=_or_unset(request.source),
            context=_or_unset(request.context),
            layer=_or_unset(request.layer),
        )
        attributes = None if request.metadata is None else put.node.attributes
        if attributes is None and self._extract_metadata:
            attributes = merge_attributes(row.attributes, put.node.attributes or EMPTY_ATTRIBUTES_JSON)
        return NodeUpsert(0, put.node.id, request.memory_type, put.content, attributes, extras=extras)


def _or_unset(value: A | None) -> A | msgspec.UnsetType:
    return msgspec.UNSET if value is None else value


def _with_decay_start(put: ValidatedMemoryInput, now: int) -> ValidatedMemoryInput:
    """Return a turn with an explicit time so that its confidence decays from the time of storing."""
    if put.node.created_at is None:
        return put
    extras = msgspec.structs.replace(put.node.extras or NodeExtrasUpsert(), confidence_at=now)
    return msgspec.structs.replace(put, node=msgspec.structs.replace(put.node, extras=extras))


def _time(text: str | None, path: str, fault: FaultCallback) -> int | None:
    at = parse_timestamp_update(text, path, fault)
    return at if isinstance(at, int) else None


def _turn_id(source: str, position: int) -> str:
    """Return the id of a turn: a hash of its source and position."""
    digest = hashlib.blake2b(f"{source}\0{position}".encode(errors="replace"), digest_size=16)
    return f"episode-{digest.hexdigest()}"


def find_entities_named_in_texts(store: OpenStore, texts: Sequence[str]) -> list[list[str]]:
    """Return, for each text, the ids of the entities that it names.

    If several entities share a name, the only one with a known type is chosen; otherwise none is.
    """
    possible = [*map(list_text_name_candidates, texts)]
    known = store.memories.known_names({name for names in possible for name in names})
    with store.reading() as rows:
        only = {name: _unambiguous_id([*rows.nodes(ids).values()]) for name, ids in known.items()}
    return [find_known_name_ids(names, only) for names in possible]


def _unambiguous_id(rows: Sequence[NodeRow]) -> list[str]:
    """Return the id of the only candidate that can be meant, or no id."""
    active = [row for row in rows if not row.is_memory and not (row.extras or NO_EXTRAS).ended]
    typed = [row for row in active if row.type != UNKNOWN_TYPE] or active
    return [typed[0].id] if len(typed) == 1 else []


class RetainDeduplicator(MemoryDeduplicator):
    """Memory deduplicator for items that are retained together; `steps` are the operations of each item."""

    def __init__(self, ahead: PendingCommitGroupState, recent: RecentVectorBuffer, plan: _RetainBatchPlan) -> None:
        super().__init__(ahead, recent)
        self.steps: list[list[RetainMemoryStep]] = []
        self._item_iterator = plan.each()
        self._item: _RetainItem
        self._links: list[str]
        self._left = 0
        self._before = ""
        self._statements: dict[str, list[RetainMemoryStep]] = {}

    @override
    def _store(self, put: ValidatedMemoryInput) -> MemoryStoreResult:
        self._item, self._links = next(self._item_iterator)
        if not self._left:
            self._left, self._before = len(self._item.turns) or 1, ""
            self.steps.append([])
        stored = self._store_item(put)
        self._left -= 1
        if self._item.turns:
            self._link_turn(stored.id)
        if not self._left:
            self._relate()
        return stored

    def _record_step(self, step: RetainMemoryStep) -> None:
        step.row = self.node(step.memory)
        self.steps[-1].append(step)

    def _record_statement(self, step: RetainMemoryStep) -> None:
        """Record the current statement of a memory, which a later item may replace."""
        self._record_step(step)
        self._statements.setdefault(step.memory, []).append(step)

    @override
    def associate(self, memory: str, about: Mapping[str, float]) -> None:
        new = [entity for entity in about if not self.is_edge_current((memory, entity, IS_ABOUT_RELATION))]
        super().associate(memory, about)
        for entity in new:
            row = self.node(entity)
            self._record_step(
                RetainMemoryStep("link", memory, entity, f"is about {(get_node_name_or_id(row) if row else entity)!r}")
            )

    @override
    def _about(self, put: ValidatedMemoryInput) -> dict[str, float]:
        return {row.id: 1.0 for row in self.find_current_nodes(self._links)} | super()._about(put)

    def _store_item(self, put: ValidatedMemoryInput) -> MemoryStoreResult:
        if self._item.turns:
            return self._turn(put)
        target = self._item.target
        row = None if target is None else self._target(target)
        return self._store_new(put) if row is None else self._update(row, put)

    def _store_new(self, put: ValidatedMemoryInput) -> MemoryStoreResult:
        position = len(self.steps[-1])
        self.with_new_times.clear()
        stored = super()._store(put)
        steps: dict[str, tuple[RetainAction, str]] = {
            "created": ("create", "no known memory says it"),
            "duplicate": ("noop", "is known already"),
            "merged": ("merge", "is known in other words"),
        }
        action, reason = steps[stored.outcome]
        if stored.id in self.with_new_times:
            action, reason = "update", f"{reason}; its times are now recorded"
        row = self.node(stored.id)
        content = put.content if row is None else row.content
        step = RetainMemoryStep(action, stored.id, content, reason, is_new=action == "create", row=row)
        self.steps[-1].insert(position, step)
        self._statements.setdefault(stored.id, []).append(step)
        return stored

    def _target(self, target: str) -> NodeRow | None:
        """Return the memory to update; None if it has to be created. Raises NotFound and Conflict."""
        row, request = self.node(self.ahead.resolve_redirect(target)), self._item.request
        if row is None or not row.is_memory:
            if request.supersedes or request.update == "correct":
                raise NotFound(f"there is no memory {target!r}" if row is None else f"node {target!r} is not a memory")
            return None
        extras = row.extras or NO_EXTRAS
        if extras.ended == REASON_SUPERSEDED:
            head = extras.belongs_to
            raise Conflict(f"{target!r} is a former version of {head!r}; use that id, with valid_from for another time")
        if extras.ended:
            restorable = extras.ended in RESTORABLE_END_REASONS
            how = "restore it with forget and undo first, or " if restorable else ""
            raise Conflict(f"memory {target!r} was {extras.ended}: {how}retain the text without its id")
        return row

    def _update(self, row: NodeRow, put: ValidatedMemoryInput) -> MemoryStoreResult:
        item, about = self._item, self._about(put)
        if item.request.update == "correct":
            return self._correct(row, put, about)
        said = row if item.start is not None else find_version_true_now(self, row)
        is_same_text = hash_normalized_text(said.content) == hash_normalized_text(put.content)
        is_known = is_same_text and self._has_known_times(said, put)
        if item.request.update == "never" and not is_known:
            what = "other times" if is_same_text else "another text"
            raise Conflict(f"memory {row.id!r} exists with {what}, and update is `never`")
        if is_known and (item.start is None or item.request.update == "never"):
            reason = format_known_reason(said)
            self._record_statement(RetainMemoryStep("noop", said.id, said.content, reason, is_new=False))
            if said.id != row.id:
                return MemoryStoreResult(said.id, "duplicate")
            self.associate(row.id, about)
            return self._merge(put, row, about, absorbs=False)
        before = self.about(row.id)
        placed = self._place_fact(row, put, is_same_text=is_same_text and said.id == row.id)
        action: RetainAction = "update" if placed.is_new else "noop"
        if placed.kept:
            for step in self._statements.pop(row.id, ()):
                step.kept = placed.kept
        self._record_statement(RetainMemoryStep(action, placed.id, put.content, placed.reason, is_new=placed.is_new))
        for version in (placed.id, *placed.others):
            self._replace_about(version, row.content, put.content, before, about)
        if placed.id == row.id:
            self._move_to_place(row.id)
        return MemoryStoreResult(placed.id, "duplicate")

    def _has_known_times(self, row: NodeRow, put: ValidatedMemoryInput) -> bool:
        """Return whether a memory with the same text has the times of the request, which may be none."""
        start, end = self._item.start, put.extras.valid_to
        is_begun = row.is_valid_at(self.ahead.now) if start is None and end is None else True
        return is_begun and start in {None, known_statement_start(row)} and end in {None, validity_end(row)}

    def _place_fact(self, row: NodeRow, put: ValidatedMemoryInput, *, is_same_text: bool) -> FactInsertionResult:
        """Write a statement to a memory or among its versions; a known one without a start gets the given end."""
        now, start, end = self.ahead.now, self._item.start, put.extras.valid_to
        change = self._as_statement(put, row)
        if is_same_text and start is None and end is not None and (end <= now or row.is_valid_at(now)):
            if end <= validity_span(row).start:
                raise InvalidInput.at("valid_to", f"must be after {row.id!r} begins; for a past fact, send valid_from")
            return set_known_fact_end(self, row, change, end)
        start = now if start is None else start
        if end is not None and end <= start:
            raise InvalidInput.at("valid_to", "must be after valid_from; for a past fact, send valid_from")
        fact = TimedFact(change, start, end, self._item.is_one_of_many)
        return insert_fact_as_memory_version(self, row, fact)

    def _correct(self, row: NodeRow, put: ValidatedMemoryInput, about: Mapping[str, float]) -> MemoryStoreResult:
        """Overwrite the text of a memory; its bounds stay unless the request sets others."""
        request, change = self._item.request, self._item.change(put, row)
        extras = change.extras or NodeExtrasUpsert()
        if request.confidence is not None:
            extras = msgspec.structs.replace(extras, confidence_at=self.ahead.now)
        if request.valid_from is not None:
            extras = msgspec.structs.replace(extras, valid_from=self._item.start, former_from=None)
        if request.valid_to is not None or request.expires_in is not None:
            extras = msgspec.structs.replace(extras, valid_to=put.extras.valid_to)
        before, old_text = self.about(row.id), row.content
        same = hash_normalized_text(old_text) == hash_normalized_text(put.content)
        after = self.put_node(msgspec.structs.replace(change, id=row.id, extras=extras))
        if request.valid_from or request.valid_to or request.expires_in:
            check_memory_validity_overlap(self, after)
        is_new = not same or (after.extras or NO_EXTRAS) != (row.extras or NO_EXTRAS)
        reason = "corrects its text; no former version is kept" if is_new else "is known already"
        self._record_statement(
            RetainMemoryStep("update" if is_new else "noop", row.id, put.content, reason, is_new=is_new)
        )
        self._replace_about(row.id, old_text, put.content, before, about)
        self._move_to_place(row.id)
        return MemoryStoreResult(row.id, "duplicate")

    def _move_to_place(self, memory: str) -> None:
        """Move a changed memory to the parent and layer of the request."""
        row, request = self.node(memory), self._item.request
        if row is not None and request.parent:
            self.places.put(row, self.places.find(request.parent))
        if row is not None and request.layer is not None:
            self.places.check_order(row)

    def _as_statement(self, put: ValidatedMemoryInput, row: NodeRow) -> NodeUpsert:
        """Return the change as a statement made now, with the confidence of the request."""
        change, request = self._item.change(put, row), self._item.request
        extras = change.extras or NodeExtrasUpsert()
        confidence = 1.0 if request.confidence is None else request.confidence
        at = self.ahead.now if put.node.created_at is None else put.node.created_at
        return msgspec.structs.replace(
            change, extras=msgspec.structs.replace(extras, confidence=confidence, confidence_at=at)
        )

    def _replace_about(
        self, memory: str, old: str, new: str, before: Mapping[str, float], about: Mapping[str, float]
    ) -> None:
        """Associate a memory with the new entities and drop the previous ones that the new text replaces.

        An entity is replaced if only the old text names it, and the new text names another entity of its type (Berlin,
        then London). If the request lists entities, all other previous entities are dropped.
        """
        dropped = set(before) - set(about)
        if not self._item.request.entities:
            types = {row.type for entity in set(about) - set(before) if (row := self.node(entity)) is not None}
            dropped = {entity for entity in dropped if self._was_replaced(entity, types, old, new)}
        for entity in dropped:
            self.drop_edge((memory, entity, IS_ABOUT_RELATION))
        self.associate(memory, about)

    def _was_replaced(self, entity: str, types: Collection[str], old: str, new: str) -> bool:
        row = self.node(entity)
        if row is None or row.type not in types:
            return False
        names = [row.id, *list_entity_names_and_aliases(row)]
        return is_any_name_in_text(old, names) and not is_any_name_in_text(new, names)

    def _turn(self, put: ValidatedMemoryInput) -> MemoryStoreResult:
        """Store a turn of a conversation unless it exists or was forgotten. Raises Conflict."""
        put = _with_decay_start(put, self.ahead.now)
        own = self.node(put.node.id)
        if own is None or not own.is_memory:
            return self._store_new(put)
        if hash_normalized_text(own.content) == hash_normalized_text(put.content):
            ended = (own.extras or NO_EXTRAS).ended
            reason = f"was {ended}, and stays so" if ended else "is known already: same position of the same source"
            self._record_step(RetainMemoryStep("noop", own.id, own.content, reason, is_new=False))
            return MemoryStoreResult(own.id, "duplicate")
        if self._item.request.update == "correct":
            return self._correct(own, put, self._about(put))
        position = self._item.turns.index(put.node.id)
        raise Conflict(
            f"content[{position}]: this position of the conversation holds another text; send `first` (the "
            "position of the first message), another source, or update=correct"
        )

    def _link_turn(self, turn: str) -> None:
        """Link a turn, or the memory that says the same, to the previous one."""
        key = (self._before, turn, RELATION_NEXT)
        self._before = turn
        if key[0] not in ("", turn) and self.edge(key) is None:
            self.put_edge(EdgeUpsert(0, key))

    def _relate(self) -> None:
        """Write the relations of the request."""
        for each, put in zip(self._item.request.relations, self._item.relations, strict=True):
            key = resolve_relation_ends_to_edge_key(self, each)
            _, made = put_relation_in_batch_draft(self, msgspec.structs.replace(put, key=key))
            content = f"{each.source} {each.relation_type} {each.target}"
            self._record_step(RetainMemoryStep("link", key[0], content, f"relation {made}", is_new=made != "existing"))


def _operations(
    store: OpenStore, steps: Sequence[Sequence[RetainMemoryStep]], sequence: int
) -> list[list[RetainMemoryOutcome]]:
    """Return the operations of each item; versions carry the number of the commit that wrote them."""
    older = {step.memory for some in steps for step in some if step.is_older}
    with store.reading() as rows:
        found = {node_id: row.sequence for node_id, row in rows.nodes(older).items()}
    return [
        [
            RetainMemoryOutcome(
                type=step.type,
                memory_id=step.memory,
                version_id=step.version(found.get(step.memory, sequence) if step.is_older else sequence),
                content=step.content[:MAX_SIMILAR_CONTENT_CHARS],
                reason=step.reason,
            )
            for step in some
        ]
        for some in steps
    ]


def _nearest_similar(similar: Sequence[SimilarMemory]) -> list[SimilarMemory]:
    found: dict[str, SimilarMemory] = {}
    for each in sorted(similar, key=lambda each: -each.similarity):
        found.setdefault(each.id, each)
    return [*found.values()][:5]
