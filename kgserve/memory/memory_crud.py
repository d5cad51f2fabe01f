"""Storing memories with deduplication; reading, updating and deleting them.

Also queues memories for fact extraction by a language model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, TypeVar

import msgspec

from kgserve.errors import Conflict, FieldError, InvalidInput, KgserveError, NotFound
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.graph.former_versions import is_former_version_id
from kgserve.graph.request_bodies import NodeInput
from kgserve.graph.request_validation import (
    FaultCallback,
    ValidationErrorCollector,
    parse_filter_time,
    parse_timestamp_update,
    rename_fields_in_error_paths,
    validate_identifier_length,
    validate_node_input,
)
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.deduplication import MemoryDeduplicator, MemoryStoreResult, ValidatedMemoryInput
from kgserve.memory.extraction.extraction_queue_models import EnqueueExtractionRequest, ExtractionQueueAnswer
from kgserve.memory.extraction.fact_marks import can_extract_facts_from_node
from kgserve.memory.former_memory_versions import check_memory_validity_overlap
from kgserve.memory.memory_models import (
    LAYER_TYPES,
    MAX_SIMILAR_MEMORIES,
    MIN_REPORTED_SIMILARITY,
    RESERVED_IDS,
    DeleteMemoriesAnswer,
    DeleteMemoriesRequest,
    DeleteMemoryAnswer,
    Memory,
    MemoryEntityInput,
    MemoryIdRequest,
    ReadMemoryRequest,
    SimilarMemory,
    StoreMemoriesAnswer,
    StoreMemoriesRequest,
    StoreMemoryAnswer,
    StoreMemoryBatchItemResult,
    StoreMemoryRequest,
    UpdatedMemory,
    UpdateMemoryRequest,
)
from kgserve.memory.nonblocking_reads import require_small_neighbourhood
from kgserve.memory.serialization import (
    build_memories_from_rows,
    now_in_microseconds,
    record_memory_uses,
    require_undeleted_rows,
)
from kgserve.memory.short_memory_ids import expand_short_memory_ids
from kgserve.platform.idempotency import generate_idempotent_node_id
from kgserve.platform.text.text_equality import find_text_difference_kind
from kgserve.platform.timestamps import format_rfc3339_timestamp, is_representable_time
from kgserve.projections.memory_index.entries import MemoryMetadata
from kgserve.projections.memory_index.memory_index_file import DecayOrderPosition, MemoryIndexSqliteFile
from kgserve.projections.memory_index.query_planner import MemoryPageStart
from kgserve.projections.recent_vectors import RecentVectorBuffer
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.storage.model.entity_names import DEFAULT_MEMORY_TYPE, IS_ABOUT_RELATION
from kgserve.storage.model.node_and_memory_filters import MemoryFilter
from kgserve.storage.model.node_edge_fields import NO_EXTRAS, NodeExtrasUpsert, TimestampPut
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.soft_delete import REASON_SUPERSEDED
from kgserve.storage.model.store_settings import MemorySettings
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.storage.rows.memory_hierarchy_and_redirects import resolve_merge_redirect
from kgserve.storage.rows.memory_predecessors import add_memory_predecessors
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pending_state import PendingCommitGroupState

T = TypeVar("T")


DEDUP_NEIGHBOURS = 16
"""Nearest memories that are compared with each memory that is stored."""
MAX_SIMILARITY_BATCH_SIZE = 100
"""Largest batch that is compared by vectors; larger ones are compared by words, unless `dedup` is `similarity`."""
MAX_DELETED_MEMORIES = 10_000
MEMORY_SCAN_BATCH_SIZE = 1_000
MAX_SIMILAR_CONTENT_CHARS = 200
"""Characters of a similar memory's content that are reported."""
_MEMORY_FIELD_RENAMES = {"type": "memory_type", "attributes": "metadata"}
_STORED_REQUEST_FIELDS = (
    "content",
    "tags",
    "valid_from",
    "valid_to",
    "confidence",
    "importance",
    "source",
    "context",
    "layer",
)
_EXPIRES_IN_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_EXPIRES_IN_PARTS = re.compile(r"([1-9][0-9]{0,5})([smhdw])")


def store_memory(graph: StoreHandle, request: StoreMemoryRequest) -> Future[StoreMemoryAnswer]:
    """Store a memory, or find one that says the same; create the store if it does not exist.

    `dedup` decides what is merged. `exact`: the same text except for case and whitespace. `guarded` (the default): also
    the same words in another form. `similarity`: any memory nearer than `dedup_threshold`. `off`: nothing. An existing
    memory that matches counts as used. Near memories that were not merged are reported with their differences.

    Raises InvalidInput, TooLarge, StorageFull and Unavailable; NotFound when `parent_id` does not exist; Conflict when
    a name is ambiguous or the parent violates the hierarchy.
    """
    faults = ValidationErrorCollector()
    checked = validate_memory(request, faults, 0)
    faults.raise_any()

    def answer(done: MemoryBatchStoreOutcome) -> StoreMemoryAnswer:
        (stored,), (similar,) = done.stored, done.similar
        (memory,) = _memories(done.store, [stored.id])
        fields = {name: getattr(memory, name) for name in Memory.__struct_fields__}
        return StoreMemoryAnswer(
            **fields,
            outcome=stored.outcome,
            similar=similar,
            near_checked=done.near_checked,
            sequence=done.sequence,
        )

    return store_validated_memories(graph, [checked], answer)


def store_memories(graph: StoreHandle, request: StoreMemoriesRequest) -> Future[StoreMemoriesAnswer]:
    """Store up to 1,000 memories in one commit, each after the ones listed before it.

    Raises the same errors as `store_memory`; `errors` name the position of each fault, and nothing is stored.
    """
    faults = ValidationErrorCollector()
    checked = [
        validate_memory(each, faults.below(place := f"memories[{at}]."), at, place)
        for at, each in enumerate(request.memories)
    ]
    faults.raise_any()

    def answer(done: MemoryBatchStoreOutcome) -> StoreMemoriesAnswer:
        outcomes = [each.outcome for each in done.stored]
        results = zip(done.stored, done.similar, strict=True)
        return StoreMemoriesAnswer(
            results=[
                StoreMemoryBatchItemResult(id=each.id, outcome=each.outcome, similar=similar)
                for each, similar in results
            ],
            created=outcomes.count("created"),
            duplicates=outcomes.count("duplicate"),
            merged=outcomes.count("merged"),
            near_checked=done.near_checked,
            sequence=done.sequence,
        )

    return store_validated_memories(graph, checked, answer)


class ValidatedMemory(msgspec.Struct, frozen=True):
    """A validated memory to store, before any look at the store.

    `place` is its path in a batch request. If `is_chosen`, the caller named the target memory, so similar memories are
    not searched.
    """

    request: StoreMemoryRequest
    put: ValidatedMemoryInput
    place: str = ""
    is_chosen: bool = False


class MemoryBatchStoreOutcome(msgspec.Struct):
    """Result of storing several memories in one commit."""

    store: OpenStore
    stored: list[MemoryStoreResult]
    similar: list[list[SimilarMemory]]
    near_checked: bool
    sequence: int


def validate_memory(request: StoreMemoryRequest, fault: FaultCallback, number: int, place: str = "") -> ValidatedMemory:
    """Return the validated memory to store; `number` is its index within the request."""
    put = _put(
        request,
        fault,
        id=request.memory_id or generate_idempotent_node_id(number),
        type=request.memory_type or (DEFAULT_MEMORY_TYPE if request.layer is None else LAYER_TYPES[request.layer]),
        tags=request.tags or None,
        source=request.source or None,
        context=request.context or None,
    )
    created = _created(request.created_at, fault)
    extras = put.extras or NodeExtrasUpsert()
    if request.expires_in is not None:
        extras = msgspec.structs.replace(extras, valid_to=_expiry(request, fault))
    if not request.content.strip():
        fault("content", "is blank")
    if request.memory_id in RESERVED_IDS:
        fault("id", f"{request.memory_id!r} is a reserved path and cannot be used as a memory id")
    if is_former_version_id(request.memory_id or ""):
        fault("id", f"{request.memory_id!r} ends with @ and a number, which is reserved for former versions")
    if request.parent_id:
        validate_identifier_length(request.parent_id, "parent_id", fault)
    about = (*(MemoryEntityInput(name=name) for name in request.entity_names), *request.entities)
    for index, each in enumerate(about):
        validate_identifier_length(each.name, f"entity_names[{index}]", fault)
    whole = msgspec.structs.replace(put, created_at=created, extras=extras)
    return ValidatedMemory(
        request,
        ValidatedMemoryInput(node=whole, about=about, dedup="off", threshold=1.0, parent=request.parent_id or ""),
        place,
    )


def _put(request: StoreMemoryRequest | UpdateMemoryRequest, fault: FaultCallback, **others: Any) -> NodeUpsert:
    """Return the memory's node, validated; `others` override fields of the request."""
    fields = {name: getattr(request, name) for name in _STORED_REQUEST_FIELDS} | others
    return validate_node_input(
        0, NodeInput(attributes=request.metadata, **fields), rename_fields_in_error_paths(fault, _MEMORY_FIELD_RENAMES)
    )


def _created(text: str | None, fault: FaultCallback) -> int | None:
    at = parse_timestamp_update(text, "created_at", fault)
    if isinstance(at, int) and at > now_in_microseconds():
        fault("created_at", "is in the future")
    return at if isinstance(at, int) else None


def _expiry(request: StoreMemoryRequest, fault: FaultCallback) -> TimestampPut:
    if request.valid_to is not None:
        fault("expires_in", "cannot be combined with valid_to")
    found = _EXPIRES_IN_PARTS.fullmatch(request.expires_in or "")
    if found is None:
        fault("expires_in", "must be a number of s, m, h, d or w (up to 999999), such as 30m, 12h, 7d or 2w")
        return None
    end = now_in_microseconds() + int(found[1]) * _EXPIRES_IN_UNIT_SECONDS[found[2]] * 1_000_000
    if not is_representable_time(end):
        fault("expires_in", "ends after the year 9999")
    return end


def store_validated_memories(
    graph: StoreHandle,
    checked: Sequence[ValidatedMemory],
    answer: Callable[[MemoryBatchStoreOutcome], T],
    make: Callable[[PendingCommitGroupState, RecentVectorBuffer], MemoryDeduplicator] = MemoryDeduplicator,
    look: Callable[[OpenStore, Sequence[ValidatedMemoryInput]], None] | None = None,
) -> Future[T]:
    """Store memories in one commit; create the store if it does not exist.

    `make` creates the deduplicator that decides each memory in the writer thread. `look`, if given, is called with the
    store and the memories before that.
    """
    decided: list[MemoryDeduplicator] = []
    stored: list[MemoryStoreResult] = []
    comparisons: list[NewMemoriesWithNeighbours] = []

    def begin(store: OpenStore) -> Future[WriteReport]:
        comparisons.append(find_near_existing_memories(graph.graphs.indexer, store, checked))
        puts = comparisons[0].puts
        if look is not None:
            look(store, puts)

        def decide(ahead: PendingCommitGroupState) -> WriteBatch:
            storing = make(ahead, comparisons[0].recent)
            if len(puts) > 1:
                ahead.prefetch_texts(put.content for put in puts if put.is_mergeable)
            for each, put in zip(checked, puts, strict=True):
                try:
                    stored.append(storing.store(put))
                except KgserveError as error:
                    _prefix_error(error, each.place)
                    raise
            decided.append(storing)
            return storing.batch()

        return store.submit_decided(decide, sum(len(put.content) + 1_000 for put in puts))

    def done(report: WriteReport) -> T:
        found = comparisons[0]
        _count_as_used(found.store, decided[0].used)
        similar = [_similar(found, put, own) for put, own in zip(found.puts, stored, strict=True)]
        return answer(MemoryBatchStoreOutcome(found.store, stored, similar, found.near_checked, report.sequence))

    return graph.write(begin, done, create=True)


def _prefix_error(error: KgserveError, place: str) -> None:
    """Add the path of the memory to an error."""
    if isinstance(error, InvalidInput):
        error.errors = tuple(FieldError(place + each.path, each.message) for each in error.errors)
        error.reword(place + error.message)
    elif place:
        error.reword(f"{place[:-1]}: {error.message}")


def _count_as_used(store: OpenStore, used: Mapping[str, float]) -> None:
    if used:
        with store.reading() as rows:
            matched = rows.nodes(used)
        record_memory_uses(store, matched.values(), now_in_microseconds(), used)


# Similarity


class NewMemoriesWithNeighbours(msgspec.Struct):
    """Memories to store, with the existing memories that are near each of them."""

    store: OpenStore
    puts: list[ValidatedMemoryInput]
    recent: RecentVectorBuffer
    near_checked: bool


def find_near_existing_memories(
    indexer: TextIndexWorker | None, store: OpenStore, checked: Sequence[ValidatedMemory]
) -> NewMemoriesWithNeighbours:
    """Find existing memories near the ones to store, if the indexes can answer immediately."""
    settings = store.description.memory
    puts = [_with_policy(each, settings) for each in checked]
    indexes = None if indexer is None else indexer.of(store)
    positions = [at for at, each in enumerate(checked) if not each.is_chosen]
    by_meaning = len(positions) <= MAX_SIMILARITY_BATCH_SIZE or any(puts[at].dedup == "similarity" for at in positions)
    if indexes is None or not indexes.can_embed_queries or not positions or not by_meaning:
        return NewMemoriesWithNeighbours(store, puts, RecentVectorBuffer(), near_checked=False)
    try:
        vectors = indexes.vectors([puts[at].content for at in positions])
        near = [indexes.memories_near(vector, DEDUP_NEIGHBOURS) for vector in vectors]
    except KgserveError:
        # A stale index, one of another model, or an unavailable embedding service: storing waits for none of them.
        return NewMemoriesWithNeighbours(store, puts, indexes.recent, near_checked=False)
    for at, each, vector in zip(positions, near, vectors, strict=True):
        puts[at] = msgspec.structs.replace(puts[at], near=each, vector=vector)
    return NewMemoriesWithNeighbours(store, puts, indexes.recent, near_checked=True)


def _with_policy(checked: ValidatedMemory, settings: MemorySettings) -> ValidatedMemoryInput:
    request = checked.request
    threshold = settings.dedup_threshold if request.dedup_threshold is None else request.dedup_threshold
    return msgspec.structs.replace(checked.put, dedup=request.dedup or settings.dedup, threshold=threshold)


def _similar(
    found_near: NewMemoriesWithNeighbours, put: ValidatedMemoryInput, stored: MemoryStoreResult
) -> list[SimilarMemory]:
    """Return memories that are near one and were kept apart, nearest first; includes those not yet indexed."""
    if put.vector is None:
        return []
    newest = found_near.recent.find_similar(put.vector, MIN_REPORTED_SIMILARITY)
    near = newest | {
        node_id: similarity for node_id, similarity in put.near.items() if similarity >= MIN_REPORTED_SIMILARITY
    }
    ids = sorted(near.keys() - {stored.id, put.node.id}, key=lambda node_id: -near[node_id])
    if not ids:
        return []
    with found_near.store.reading() as rows:
        found = rows.nodes(ids)
    active = (row for node_id in ids if (row := found.get(node_id)) is not None and is_active_memory_node(row))
    return [
        SimilarMemory(
            id=row.id,
            similarity=round(min(near[row.id], 1.0), 4),
            differs=find_text_difference_kind(put.content, row.content),
            content=row.content[:MAX_SIMILAR_CONTENT_CHARS],
        )
        for row in islice(active, MAX_SIMILAR_MEMORIES)
    ]


def is_active_memory_node(row: NodeRow) -> bool:
    """Return whether a node is a memory that was not withdrawn."""
    return row.is_memory and row.extras is not None and not row.extras.ended


# Single memory


def get_memory(graph: StoreHandle, request: ReadMemoryRequest) -> Memory:
    """Return a memory; the read counts as a use, unless `touch` is false or the key is read-only.

    The id of an absorbed memory returns the one that absorbed it. A former version can be read and does not count as
    used. Raises NotFound, also for a withdrawn memory; list with `ended` to find those.
    """
    request = expand_short_memory_ids(graph, request)
    block = graph.most_edges is None
    with graph.lease() as store:
        with store.reading() as rows:
            if not block:
                require_small_neighbourhood(rows, request.memory_id, incoming=False)
            row = find_active_memory(rows, request.memory_id, graph.name, or_former=True)
            if not block and row.id != request.memory_id:
                require_small_neighbourhood(rows, row.id, incoming=False)
        (memory,) = _memories(store, [row.id], block=block)
        if is_active_memory_node(row) and request.touch and graph.graphs.caller.has_role("write"):
            used = record_memory_uses(store, [row], now_in_microseconds(), block=block)[row.id]
            memory = msgspec.structs.replace(
                memory,
                confidence=used.confidence,
                access_count=used.count,
                last_accessed_at=format_rfc3339_timestamp(used.last),
            )
        return memory


def update_memory(graph: StoreHandle, request: UpdateMemoryRequest) -> Future[UpdatedMemory]:
    """Update the given fields of a memory as its next version; the update does not count as a use.

    A new `parent_id` replaces the current one. Raises InvalidInput; NotFound; Conflict when the memory changed since
    `based_on_version`, or when the parent would create a cycle or violate the order of layers.
    """
    request = expand_short_memory_ids(graph, request)
    put = _check_update(request)
    leased: list[OpenStore] = []

    def begin(store: OpenStore) -> Future[WriteReport]:
        leased.append(store)
        cost = len(request.content or "") + 1_000
        return store.submit_decided(lambda ahead: _build_update(ahead, request, put, graph.name), cost)

    def answer(report: WriteReport) -> UpdatedMemory:
        store = leased[0]
        with store.reading() as rows:
            row = find_active_memory(rows, request.memory_id, graph.name)
        [memory] = _memories(store, [row.id])
        return UpdatedMemory(**msgspec.structs.asdict(memory), sequence=report.sequence)

    return graph.write(begin, answer)


def _check_update(request: UpdateMemoryRequest) -> NodeUpsert:
    """Return the validated changes. Raises InvalidInput and TooLarge."""
    faults = ValidationErrorCollector()
    put = _put(request, faults, id=request.memory_id, type=request.memory_type)
    if request.content is not None and not request.content.strip():
        faults("content", "is blank")
    if request.parent_id:
        validate_identifier_length(request.parent_id, "parent_id", faults)
    faults.raise_any()
    return put


def _build_update(
    ahead: PendingCommitGroupState, request: UpdateMemoryRequest, put: NodeUpsert, store: str
) -> WriteBatch:
    """Return the write that applies the changes. Raises NotFound and Conflict."""
    row = ahead.node(ahead.resolve_redirect(request.memory_id))
    if row is None or not is_active_memory_node(row):
        raise NotFound(_missing(request.memory_id, store, row))
    if request.based_on_version is not None and request.based_on_version != row.version:
        raise Conflict(
            f"based_on_version: memory {row.id!r} is at version {row.version}, not {request.based_on_version}; "
            "read it again"
        )
    extras = put.extras
    if request.confidence is not None and extras is not None:
        extras = msgspec.structs.replace(extras, confidence_at=ahead.now)
    if request.valid_from is not None and extras is not None:
        extras = msgspec.structs.replace(extras, former_from=None)
    storing = MemoryDeduplicator(ahead, RecentVectorBuffer())
    row = storing.put_node(msgspec.structs.replace(put, id=row.id, extras=extras))
    if request.valid_from is not None or request.valid_to is not None:
        check_memory_validity_overlap(storing, row)
    if request.parent_id is not None:
        storing.places.put(row, storing.places.find(request.parent_id) if request.parent_id else None)
    if request.layer is not None:
        storing.places.check_order(row)
    if request.entity_names is not None:
        _replace_entities(storing, row.id, request.entity_names)
    return storing.batch()


def _replace_entities(storing: MemoryDeduplicator, memory: str, names: Sequence[str]) -> None:
    current = storing.ahead.about(memory)
    wanted = {storing.entity(name) for name in names}
    for entity in current.keys() - wanted:
        storing.drop_edge((memory, entity, IS_ABOUT_RELATION))
    storing.associate(memory, dict.fromkeys(wanted - current.keys(), 1.0))


def delete_memory(graph: StoreHandle, request: MemoryIdRequest) -> Future[DeleteMemoryAnswer]:
    """Delete a memory with its former versions and those merged into it; its entities stay.

    Deleting a memory that does not exist is not an error.

    Raises Conflict for a node that is not a memory.
    """
    request = expand_short_memory_ids(graph, request)

    def decide(ahead: PendingCommitGroupState) -> WriteBatch:
        row = ahead.node(request.memory_id)
        if row is None:
            return WriteBatch()
        if not row.is_memory:
            raise Conflict(f"node {row.id!r} is not a memory; delete it as a node")
        return WriteBatch(delete_nodes=[row.id], cost=len(row.id))

    def answer(report: WriteReport) -> DeleteMemoryAnswer:
        existed = report.nodes_deleted > 0
        return DeleteMemoryAnswer(deleted_id=request.memory_id, existed=existed, sequence=report.sequence)

    return graph.write(lambda store: store.submit_decided(decide, len(request.memory_id)), answer)


def delete_matching_memories(graph: StoreHandle, request: DeleteMemoriesRequest) -> Future[DeleteMemoriesAnswer]:
    """Delete the memories that match all filters, at most 10,000 in one commit; at least one filter is required.

    Their former versions are deleted too; their entities stay. With `dry_run`, nothing is deleted.

    Raises InvalidInput.
    """
    faults = ValidationErrorCollector()
    before = parse_filter_time(request.before_date, "before_date", faults)
    faults.raise_any()
    given = (request.memory_ids, request.before_date, request.min_confidence_below, request.memory_types)
    if all(each in (None, []) for each in given) or request.memory_ids == []:
        message = "at least one filter must be provided: memory_ids, before_date, min_confidence_below or memory_types"
        raise InvalidInput(message, (FieldError("", message),))
    selector = _DeletionSelector(request, before)

    def batch(store: OpenStore, found: list[str]) -> WriteBatch:
        with store.reading() as rows:
            ids = add_memory_predecessors(rows, found[:MAX_DELETED_MEMORIES])
        return WriteBatch(delete_nodes=ids, cost=sum(map(len, ids)))

    return graph.submit_prepared_batch(selector.find, batch, selector.report, dry_run=request.dry_run)


class _DeletionSelector:
    """Memories that match the filters of a deletion."""

    def __init__(self, request: DeleteMemoriesRequest, before: int | None) -> None:
        self._request = request
        self._before = before

    def find(self, store: OpenStore) -> list[str]:
        """Return their ids: the limit of one commit, plus one if more match."""
        now = now_in_microseconds()
        return store.memories.ask(
            lambda memories, _: [*islice(self._among(memories, store, now), MAX_DELETED_MEMORIES + 1)]
        )

    def _among(self, memories: MemoryIndexSqliteFile, store: OpenStore, now: int) -> Iterator[str]:
        ids = self._request.memory_ids
        slices = self._slices(memories, now) if ids is None else iter([[*memories.live(ids).values()]])
        for some in slices:
            waiting = store.accesses.pending([each.id for each in some])
            fits = (each.id for each in some if self._fits(each.with_access(waiting.get(each.id)), now))
            yield from fits

    def _slices(self, memories: MemoryIndexSqliteFile, now: int) -> Iterator[list[MemoryMetadata]]:
        """Yield batches of candidates from the most selective index."""
        if (below := self._request.min_confidence_below) is not None:
            place = DecayOrderPosition()
            while some := memories.list_faded(below, now, place, MEMORY_SCAN_BATCH_SIZE):
                yield some
                place = DecayOrderPosition.of(some[-1])
            return
        wanted = MemoryFilter(
            now=now, types=tuple(self._request.memory_types or ()), created_to=self._before, ended="any"
        )
        page = memories.list_memory_page(wanted, "created", MemoryPageStart(), MEMORY_SCAN_BATCH_SIZE)
        yield [*memories.live(page.ids).values()]
        while page.next is not None:
            page = memories.list_memory_page(wanted, "created", page.next, MEMORY_SCAN_BATCH_SIZE)
            yield [*memories.live(page.ids).values()]

    def _fits(self, memory: MemoryMetadata, now: int) -> bool:
        """Return whether a memory matches all filters; a withdrawn one matches only by its id."""
        request = self._request
        if memory.ended and request.memory_ids is None:
            return False
        if self._before is not None and memory.created >= self._before:
            return False
        if request.memory_types and memory.type not in request.memory_types:
            return False
        return request.min_confidence_below is None or memory.effective(now) < request.min_confidence_below

    def report(self, found: list[str], sequence: int) -> DeleteMemoriesAnswer:
        """Return the result of the deletion."""
        ids = found[:MAX_DELETED_MEMORIES]
        known = set(ids)
        return DeleteMemoriesAnswer(
            dry_run=self._request.dry_run,
            count=len(ids),
            ids=ids[:MAX_REPORTED_ITEMS],
            missing=[each for each in self._request.memory_ids or () if each not in known][:MAX_REPORTED_ITEMS],
            more=len(found) > len(ids),
            sequence=sequence,
        )


def _memories(store: OpenStore, ids: Sequence[str], *, block: bool = True) -> list[Memory]:
    """Return memories that were just read or written. Raises NotFound for one deleted by another request since."""
    with store.reading() as rows:
        found = require_undeleted_rows(rows.nodes(ids), ids, "memory")
        return build_memories_from_rows(store, rows, found, now_in_microseconds(), block=block)


def find_active_memory(rows: RowsSnapshot, memory_id: str, store: str, *, or_former: bool = False) -> NodeRow:
    """Return an active memory after following merge redirects; with `or_former`, also a former version.

    Raises NotFound.
    """
    return require_active_memory_row(
        rows.node(resolve_merge_redirect(rows, memory_id)), memory_id, store, or_former=or_former
    )


def require_active_memory_row(row: NodeRow | None, memory_id: str, store: str, *, or_former: bool = False) -> NodeRow:
    """Return the row if it is an active memory; with `or_former`, also a former version. Raises NotFound."""
    is_former = or_former and row is not None and row.is_memory and (row.extras or NO_EXTRAS).ended == REASON_SUPERSEDED
    if row is None or not (is_former or is_active_memory_node(row)):
        raise NotFound(_missing(memory_id, store, row))
    return row


def _missing(memory_id: str, store: str, row: NodeRow | None) -> str:
    if row is None:
        return f"there is no memory {memory_id!r} in store {store!r}"
    if row.is_memory and row.extras is not None:
        return f"memory {memory_id!r} was {row.extras.ended}; list memories with ended={row.extras.ended} to see it"
    return f"node {memory_id!r} is not a memory"


NO_LLM_MESSAGE = "this server has no language model: set KGSERVE_LLM_URL and KGSERVE_LLM_MODEL, and restart it"


def queue_memories_for_llm_extraction(graph: StoreHandle, request: EnqueueExtractionRequest) -> ExtractionQueueAnswer:
    """Queue memories for extraction by the language model: the failed ones, or those in `ids`.

    The model processes the queue one text at a time; `stats` reports its progress. A text that was already processed is
    not processed again. Raises InvalidInput when no language model is configured, NotFound and Unavailable.
    """
    extractor = graph.graphs.extractor
    if extractor is None:
        raise InvalidInput(NO_LLM_MESSAGE)
    with graph.lease() as store:
        extraction, missing, ids = extractor.of(store), list[str](), None
        if request.ids is not None:
            with store.reading() as rows:
                found = rows.nodes(request.ids)
            ids = [
                each
                for each in dict.fromkeys(request.ids)
                if each in found and can_extract_facts_from_node(found[each])
            ]
            missing = [each for each in dict.fromkeys(request.ids) if each not in ids]
        queued = extraction.requeue(ids)
        return ExtractionQueueAnswer(
            queued=queued,
            missing=missing[:MAX_REPORTED_ITEMS],
            waiting=extraction.waiting[0],
            sequence=store.state.sequence,
        )
