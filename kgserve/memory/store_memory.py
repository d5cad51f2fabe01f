"""Memories: storing them with a look at what is there already, reading, changing and deleting them.

At the end giving memories to a language model by hand: those that were set aside, or any.
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
from kgserve.graph.former_versions import is_version_id
from kgserve.graph.handle import Graph
from kgserve.graph.requests import NodeInput
from kgserve.graph.validate import Fault, Faults, bound, called, check_label, moment, node_put
from kgserve.memory.api import (
    LAYER_TYPES,
    MAX_SIMILAR_MEMORIES,
    MIN_REPORTED_SIMILARITY,
    RESERVED_IDS,
    AssociatedEntity,
    DeleteMemoriesRequest,
    MemoriesDeleted,
    Memory,
    MemoryDeleted,
    MemoryId,
    MemoryRequest,
    Similar,
    StoredInBatch,
    StoredMemories,
    StoredMemory,
    StoreMemoriesRequest,
    StoreMemoryRequest,
    UpdatedMemory,
    UpdateMemoryRequest,
)
from kgserve.memory.deduplication import Deduplicator, MemoryPut, StoredDraft
from kgserve.memory.extraction.marks import ExtractAnswer, ExtractRequest, is_text
from kgserve.memory.presentation import now_in_microseconds, record_use, to_memories
from kgserve.memory.supersede import check_bounds
from kgserve.platform.idempotency import ordered_id
from kgserve.platform.text.similarity import differs
from kgserve.platform.times import format_time
from kgserve.projections.indexer import Indexer
from kgserve.projections.memory_index.entries import LiveMemory
from kgserve.projections.memory_index.memories import Fading, Memories
from kgserve.projections.memory_index.selecting import MemoryPlace
from kgserve.projections.recent_vectors import RecentVectors
from kgserve.storage.model.batch import NodePut, WriteBatch
from kgserve.storage.model.fields import NO_EXTRAS, Moment, NodeExtrasPut
from kgserve.storage.model.filters import MemoryFilter
from kgserve.storage.model.names import DEFAULT_MEMORY_TYPE, IS_ABOUT
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.model.soft_delete import SUPERSEDED, VERSION_OF
from kgserve.storage.model.store_settings import MemorySettings
from kgserve.storage.plan import Report
from kgserve.storage.rows.edge_page import with_versions
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.ways import resolve_redirect
from kgserve.stores.pending_state import PendingState
from kgserve.stores.store import OpenStore

T = TypeVar("T")

DEDUP_NEIGHBOURS = 16
"""So many near memories are looked at when one is stored."""
MAX_SIMILARITY_BATCH_SIZE = 100
"""A batch of more is compared by its words alone, unless its policy asks for meaning."""
MAX_DELETED_MEMORIES = 10_000
MEMORY_SCAN_BATCH_SIZE = 1_000
MAX_SIMILAR_CONTENT_CHARS = 200
"""Characters of a similar memory that are told."""
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
_EXPIRES_IN_PARTS = re.compile(r"([0-9]+)([smhdw])")


def store_memory(graph: Graph, request: StoreMemoryRequest) -> Future[StoredMemory]:
    """Stores a memory, or meets one that says the same; makes the store if it does not exist.

    What is merged is a matter of `dedup`: `exact` the same text but for case and blanks; `guarded`, as is usual, also
    the same words in another form; `similarity` whatever is nearer than `dedup_threshold`; `off` nothing. A memory that
    is met counts as used. What is near and was not merged is told, with what it differs in.

    Raises InvalidInput, TooLarge, StorageFull and Unavailable, NotFound for a `parent_id` that is not there, and
    Conflict for a name that several entities have, and for a place in the hierarchy that cannot be.
    """
    faults = Faults()
    checked = checked_memory(request, faults, 0)
    faults.raise_any()

    def answer(done: StoredTogether) -> StoredMemory:
        (stored,), (told,) = done.stored, done.similar
        (memory,) = _memories(done.store, [stored.id])
        fields = {name: getattr(memory, name) for name in Memory.__struct_fields__}
        return StoredMemory(
            **fields,
            outcome=stored.outcome,
            similar=told,
            near_checked=done.near_checked,
            sequence=done.sequence,
        )

    return store_checked(graph, [checked], answer)


def store_memories(graph: Graph, request: StoreMemoriesRequest) -> Future[StoredMemories]:
    """Stores up to 1,000 memories in one commit, each as if it came after those before it.

    Raises what storing one does; `errors` name the place of each fault, and nothing is stored then.
    """
    faults = Faults()
    checked = [
        checked_memory(each, faults.below(place := f"memories[{at}]."), at, place)
        for at, each in enumerate(request.memories)
    ]
    faults.raise_any()

    def answer(done: StoredTogether) -> StoredMemories:
        outcomes = [each.outcome for each in done.stored]
        told = zip(done.stored, done.similar, strict=True)
        return StoredMemories(
            results=[StoredInBatch(id=each.id, outcome=each.outcome, similar=similar) for each, similar in told],
            created=outcomes.count("created"),
            duplicates=outcomes.count("duplicate"),
            merged=outcomes.count("merged"),
            near_checked=done.near_checked,
            sequence=done.sequence,
        )

    return store_checked(graph, checked, answer)


class Checked(msgspec.Struct, frozen=True):
    """A memory that was sent, without what only its store knows; ``place`` is where it was among several.

    Of one that ``is_chosen`` its caller says which memory it is: what else is near it does not matter.
    """

    request: StoreMemoryRequest
    put: MemoryPut
    place: str = ""
    is_chosen: bool = False


class StoredTogether(msgspec.Struct):
    """What became of memories that were stored together."""

    store: OpenStore
    stored: list[StoredDraft]
    similar: list[list[Similar]]
    near_checked: bool
    sequence: int


def checked_memory(request: StoreMemoryRequest, fault: Fault, number: int, place: str = "") -> Checked:
    """A memory to store as far as it can be known without its store; ``number`` is its own among those sent."""
    put = _put(
        request,
        fault,
        id=request.memory_id or ordered_id(number),
        type=request.memory_type or (DEFAULT_MEMORY_TYPE if request.layer is None else LAYER_TYPES[request.layer]),
        tags=request.tags or None,
        source=request.source or None,
        context=request.context or None,
    )
    created = _created(request.created_at, fault)
    extras = put.extras or NodeExtrasPut()
    if request.expires_in is not None:
        extras = msgspec.structs.replace(extras, valid_to=_expiry(request, fault))
    if not request.content.strip():
        fault("content", "is blank")
    if request.memory_id in RESERVED_IDS:
        fault("id", f"{request.memory_id!r} is a path, and no id of a memory")
    if is_version_id(request.memory_id or ""):
        fault("id", f"{request.memory_id!r} ends as the ids of former versions do: an @ and a number")
    if request.parent_id:
        check_label(request.parent_id, "parent_id", fault)
    about = (*(AssociatedEntity(name=name) for name in request.entity_names), *request.entities)
    for index, each in enumerate(about):
        check_label(each.name, f"entity_names[{index}]", fault)
    whole = msgspec.structs.replace(put, created_at=created, extras=extras)
    return Checked(
        request,
        MemoryPut(node=whole, about=about, dedup="off", threshold=1.0, parent=request.parent_id or ""),
        place,
    )


def _put(request: StoreMemoryRequest | UpdateMemoryRequest, fault: Fault, **others: Any) -> NodePut:
    """The node of a memory that was sent, checked; ``others`` are fields that are not as they were sent."""
    fields = {name: getattr(request, name) for name in _STORED_REQUEST_FIELDS} | others
    return node_put(0, NodeInput(attributes=request.metadata, **fields), called(fault, _MEMORY_FIELD_RENAMES))


def _created(text: str | None, fault: Fault) -> int | None:
    at = moment(text, "created_at", fault)
    if isinstance(at, int) and at > now_in_microseconds():
        fault("created_at", "is in the future")
    return at if isinstance(at, int) else None


def _expiry(request: StoreMemoryRequest, fault: Fault) -> Moment:
    if request.valid_to is not None:
        fault("expires_in", "and valid_to are two ways to say the same; send one")
    found = _EXPIRES_IN_PARTS.fullmatch(request.expires_in or "")
    return (
        None
        if found is None
        else now_in_microseconds() + int(found[1]) * _EXPIRES_IN_UNIT_SECONDS[found[2]] * 1_000_000
    )


def store_checked(
    graph: Graph,
    checked: Sequence[Checked],
    answer: Callable[[StoredTogether], T],
    make: Callable[[PendingState, RecentVectors], Deduplicator] = Deduplicator,
    look: Callable[[OpenStore, Sequence[MemoryPut]], None] | None = None,
) -> Future[T]:
    """Store memories in one commit, each decided in the writer's turn by what ``make`` makes; makes the store.

    ``look`` may look at the store before that.
    """
    decided: list[Deduplicator] = []
    stored: list[StoredDraft] = []
    beside: list[ComparedMemories] = []

    def begin(store: OpenStore) -> Future[Report]:
        beside.append(compared(graph.graphs.indexer, store, checked))
        puts = beside[0].puts
        if look is not None:
            look(store, puts)

        def decide(ahead: PendingState) -> WriteBatch:
            storing = make(ahead, beside[0].recent)
            if len(puts) > 1:
                ahead.expect(put.content for put in puts if put.asks_who_says_it)
            for each, put in zip(checked, puts, strict=True):
                try:
                    stored.append(storing.store(put))
                except KgserveError as error:
                    _say_where(error, each.place)
                    raise
            decided.append(storing)
            return storing.batch()

        return store.submit_decided(decide, sum(len(put.content) + 1_000 for put in puts))

    def done(report: Report) -> T:
        found = beside[0]
        _count(found.store, decided[0].used)
        similar = [_similar(found, put, own) for put, own in zip(found.puts, stored, strict=True)]
        return answer(StoredTogether(found.store, stored, similar, found.near_checked, report.sequence))

    return graph.write(begin, done, create=True)


def _say_where(error: KgserveError, place: str) -> None:
    """Have an error name the place of what it is about."""
    if isinstance(error, InvalidInput):
        error.errors = tuple(FieldError(place + each.path, each.message) for each in error.errors)
        error.reword(place + error.message)
    elif place:
        error.reword(f"{place[:-1]}: {error.message}")


def _count(store: OpenStore, used: Mapping[str, float]) -> None:
    """Count those that were met again as used."""
    if used:
        with store.reading() as rows:
            met = rows.nodes(used)
        record_use(store, met.values(), now_in_microseconds(), used)


# What is near


class ComparedMemories(msgspec.Struct):
    """Memories to store, beside those that are near them."""

    store: OpenStore
    puts: list[MemoryPut]
    recent: RecentVectors
    near_checked: bool


def compared(indexer: Indexer | None, store: OpenStore, checked: Sequence[Checked]) -> ComparedMemories:
    """Look at what is near memories that are to be stored, where that can be had at once."""
    settings = store.description.memory
    puts = [_with_policy(each, settings) for each in checked]
    indexes = None if indexer is None else indexer.of(store)
    places = [at for at, each in enumerate(checked) if not each.is_chosen]
    by_meaning = len(places) <= MAX_SIMILARITY_BATCH_SIZE or any(puts[at].dedup == "similarity" for at in places)
    if indexes is None or not indexes.understands or not places or not by_meaning:
        return ComparedMemories(store, puts, RecentVectors(), near_checked=False)
    try:
        vectors = indexes.vectors([puts[at].content for at in places])
        near = [indexes.memories_near(vector, DEDUP_NEIGHBOURS) for vector in vectors]
    except KgserveError:
        # An index that is behind or of another model, a service that is down: storing waits for none of them.
        return ComparedMemories(store, puts, indexes.recent, near_checked=False)
    for at, each, vector in zip(places, near, vectors, strict=True):
        puts[at] = msgspec.structs.replace(puts[at], near=each, vector=vector)
    return ComparedMemories(store, puts, indexes.recent, near_checked=True)


def _with_policy(checked: Checked, settings: MemorySettings) -> MemoryPut:
    request = checked.request
    threshold = settings.dedup_threshold if request.dedup_threshold is None else request.dedup_threshold
    return msgspec.structs.replace(checked.put, dedup=request.dedup or settings.dedup, threshold=threshold)


def _similar(found_near: ComparedMemories, put: MemoryPut, stored: StoredDraft) -> list[Similar]:
    """What is near a memory and was kept apart from it, nearest first; the index may not know the newest yet."""
    if put.vector is None:
        return []
    newest = found_near.recent.near(put.vector, MIN_REPORTED_SIMILARITY)
    near = newest | {
        node_id: similarity for node_id, similarity in put.near.items() if similarity >= MIN_REPORTED_SIMILARITY
    }
    ids = sorted(near.keys() - {stored.id, put.node.id}, key=lambda node_id: -near[node_id])
    if not ids:
        return []
    with found_near.store.reading() as rows:
        found = rows.nodes(ids)
    there = (row for node_id in ids if (row := found.get(node_id)) is not None and is_active(row))
    return [
        Similar(
            id=row.id,
            similarity=round(min(near[row.id], 1.0), 4),
            differs=differs(put.content, row.content),
            content=row.content[:MAX_SIMILAR_CONTENT_CHARS],
        )
        for row in islice(there, MAX_SIMILAR_MEMORIES)
    ]


def is_active(row: NodeRow) -> bool:
    """Whether a node is a memory that was not withdrawn."""
    return row.is_memory and row.extras is not None and not row.extras.ended


# One memory


def get_memory(graph: Graph, request: MemoryRequest) -> Memory:
    """Answers with a memory as it was found; then it counts as used, unless `touch` is false or the key only reads.

    One that was absorbed is answered with the one that has taken it in. A former version can be read, and
    does not count as used. Raises NotFound, also for one that was withdrawn: a list with `ended` shows those.
    """
    with graph.lease() as store:
        with store.reading() as rows:
            row = memory_in(rows, request.memory_id, graph.name, or_former=True)
        (memory,) = _memories(store, [row.id])
        if is_active(row) and request.touch and graph.graphs.caller.may("write"):
            used = record_use(store, [row], now_in_microseconds())[row.id]
            memory = msgspec.structs.replace(
                memory,
                confidence=used.confidence,
                access_count=used.count,
                last_accessed_at=format_time(used.last),
            )
        return memory


def update_memory(graph: Graph, request: UpdateMemoryRequest) -> Future[UpdatedMemory]:
    """Changes what is given of a memory and keeps the rest, as its next version; it does not count as used.

    Another `parent_id` takes the place of the one before. Raises InvalidInput, NotFound, and Conflict when it was
    changed since `based_on_version`, or where it would stand below itself, or not in the order of layers.
    """
    put = _change(request)
    leased: list[OpenStore] = []

    def begin(store: OpenStore) -> Future[Report]:
        leased.append(store)
        cost = len(request.content or "") + 1_000
        return store.submit_decided(lambda ahead: _changed(ahead, request, put, graph.name), cost)

    def answer(report: Report) -> UpdatedMemory:
        store = leased[0]
        with store.reading() as rows:
            row = memory_in(rows, request.memory_id, graph.name)
        [memory] = _memories(store, [row.id])
        return UpdatedMemory(**msgspec.structs.asdict(memory), sequence=report.sequence)

    return graph.write(begin, answer)


def _change(request: UpdateMemoryRequest) -> NodePut:
    """What is given, checked. Raises InvalidInput and TooLarge."""
    faults = Faults()
    put = _put(request, faults, id=request.memory_id, type=request.memory_type)
    if request.content is not None and not request.content.strip():
        faults("content", "is blank")
    if request.parent_id:
        check_label(request.parent_id, "parent_id", faults)
    faults.raise_any()
    return put


def _changed(ahead: PendingState, request: UpdateMemoryRequest, put: NodePut, store: str) -> WriteBatch:
    """The write of a change. Raises NotFound and Conflict."""
    row = ahead.node(ahead.survivor(request.memory_id))
    if row is None or not is_active(row):
        raise NotFound(_missing(request.memory_id, store, row))
    if request.based_on_version is not None and request.based_on_version != row.version:
        raise Conflict(
            f"based_on_version: memory {row.id!r} is at version {row.version}, not {request.based_on_version}; "
            "look at it again"
        )
    extras = put.extras
    if request.confidence is not None and extras is not None:
        extras = msgspec.structs.replace(extras, confidence_at=ahead.now)
    storing = Deduplicator(ahead, RecentVectors())
    row = storing.put_node(msgspec.structs.replace(put, id=row.id, extras=extras))
    if request.valid_from is not None or request.valid_to is not None:
        check_bounds(storing, row)
    if request.parent_id is not None:
        storing.places.put(row, storing.places.find(request.parent_id) if request.parent_id else None)
    if request.layer is not None:
        storing.places.keep_order(row)
    if request.entity_names is not None:
        _associate_anew(storing, row.id, request.entity_names)
    return storing.batch()


def _associate_anew(storing: Deduplicator, memory: str, names: Sequence[str]) -> None:
    there = storing.ahead.about(memory)
    wanted = {storing.entity(name) for name in names}
    for entity in there.keys() - wanted:
        storing.drop_edge((memory, entity, IS_ABOUT))
    storing.associate(memory, dict.fromkeys(wanted - there.keys(), 1.0))


def delete_memory(graph: Graph, request: MemoryId) -> Future[MemoryDeleted]:
    """Deletes a memory with its former versions; whom and what it was about stays.

    Deleting one that does not exist is not an error.

    Raises Conflict for a node that is no memory.
    """

    def decide(ahead: PendingState) -> WriteBatch:
        row = ahead.node(request.memory_id)
        if row is None:
            return WriteBatch()
        if not row.is_memory:
            raise Conflict(f"node {row.id!r} is no memory; it is deleted as a node")
        ids = [row.id, *(edge.source for edge in ahead.edges_to(row.id, VERSION_OF))]
        return WriteBatch(delete_nodes=ids, cost=sum(map(len, ids)))

    def answer(report: Report) -> MemoryDeleted:
        existed = report.nodes_deleted > 0
        return MemoryDeleted(deleted_id=request.memory_id, existed=existed, sequence=report.sequence)

    return graph.write(lambda store: store.submit_decided(decide, len(request.memory_id)), answer)


def delete_memories(graph: Graph, request: DeleteMemoriesRequest) -> Future[MemoriesDeleted]:
    """Deletes the memories that all filters let pass, at most 10,000 in one commit; at least one filter is needed.

    Their former versions go with them; whom and what they were about stays. With `dry_run` nothing is deleted.

    Raises InvalidInput.
    """
    faults = Faults()
    before = bound(request.before_date, "before_date", faults)
    faults.raise_any()
    given = (request.memory_ids, request.before_date, request.min_confidence_below, request.memory_types)
    if all(each in (None, []) for each in given) or request.memory_ids == []:
        message = "at least one filter must be provided: memory_ids, before_date, min_confidence_below or memory_types"
        raise InvalidInput(message, (FieldError("", message),))
    wanted = _MemoriesToDelete(request, before)

    def batch(store: OpenStore, found: list[str]) -> WriteBatch:
        with store.reading() as rows:
            doomed = with_versions(rows, found[:MAX_DELETED_MEMORIES])
        return WriteBatch(delete_nodes=doomed, cost=sum(map(len, doomed)))

    return graph.prepared(wanted.find, batch, wanted.told, dry_run=request.dry_run)


class _MemoriesToDelete:
    """Which memories a deletion means."""

    def __init__(self, request: DeleteMemoriesRequest, before: int | None) -> None:
        self._request = request
        self._before = before

    def find(self, store: OpenStore) -> list[str]:
        """Their ids, one more than go at once."""
        now = now_in_microseconds()
        return store.memories.ask(
            lambda memories, _: [*islice(self._among(memories, store, now), MAX_DELETED_MEMORIES + 1)]
        )

    def _among(self, memories: Memories, store: OpenStore, now: int) -> Iterator[str]:
        ids = self._request.memory_ids
        slices = self._slices(memories, now) if ids is None else iter([[*memories.live(ids).values()]])
        for some in slices:
            waiting = store.accesses.pending([each.id for each in some])
            fits = (each.id for each in some if self._fits(each.after(waiting.get(each.id)), now))
            yield from fits

    def _slices(self, memories: Memories, now: int) -> Iterator[list[LiveMemory]]:
        """Those that may be meant, along the index that knows most of them not to be."""
        if (below := self._request.min_confidence_below) is not None:
            place = Fading()
            while some := memories.faded(below, now, place, MEMORY_SCAN_BATCH_SIZE):
                yield some
                place = Fading.of(some[-1])
            return
        wanted = MemoryFilter(
            now=now, types=tuple(self._request.memory_types or ()), created_to=self._before, ended="any"
        )
        page = memories.listed(wanted, "created", MemoryPlace(), MEMORY_SCAN_BATCH_SIZE)
        yield [*memories.live(page.ids).values()]
        while page.next is not None:
            page = memories.listed(wanted, "created", page.next, MEMORY_SCAN_BATCH_SIZE)
            yield [*memories.live(page.ids).values()]

    def _fits(self, memory: LiveMemory, now: int) -> bool:
        """Whether all filters let it pass. What was withdrawn goes by its id alone."""
        request = self._request
        if memory.ended and request.memory_ids is None:
            return False
        if self._before is not None and memory.created >= self._before:
            return False
        if request.memory_types and memory.type not in request.memory_types:
            return False
        return request.min_confidence_below is None or memory.effective(now) < request.min_confidence_below

    def told(self, found: list[str], sequence: int) -> MemoriesDeleted:
        """What is said of them."""
        doomed = found[:MAX_DELETED_MEMORIES]
        there = set(doomed)
        return MemoriesDeleted(
            dry_run=self._request.dry_run,
            count=len(doomed),
            ids=doomed[:MAX_REPORTED_ITEMS],
            missing=[each for each in self._request.memory_ids or () if each not in there][:MAX_REPORTED_ITEMS],
            more=len(found) > len(doomed),
            sequence=sequence,
        )


def _memories(store: OpenStore, ids: Sequence[str]) -> list[Memory]:
    with store.reading() as rows:
        found = rows.nodes(ids)
        return to_memories(store, rows, [found[node_id] for node_id in ids], now_in_microseconds())


def memory_in(rows: Rows, memory_id: str, store: str, *, or_former: bool = False) -> NodeRow:
    """A memory that was not withdrawn, or the one that has absorbed it; also a former version. Raises NotFound."""
    return require_memory(rows.node(resolve_redirect(rows, memory_id)), memory_id, store, or_former=or_former)


def require_memory(row: NodeRow | None, memory_id: str, store: str, *, or_former: bool = False) -> NodeRow:
    """Return the row of a memory that was asked for. Raises NotFound unless it is one, and not withdrawn."""
    is_former = or_former and row is not None and row.is_memory and (row.extras or NO_EXTRAS).ended == SUPERSEDED
    if row is None or not (is_former or is_active(row)):
        raise NotFound(_missing(memory_id, store, row))
    return row


def _missing(memory_id: str, store: str, row: NodeRow | None) -> str:
    if row is None:
        return f"there is no memory {memory_id!r} in store {store!r}"
    if row.is_memory and row.extras is not None:
        return f"memory {memory_id!r} was {row.extras.ended}; a list with ended={row.extras.ended} shows it"
    return f"node {memory_id!r} is no memory"


NO_LLM_MESSAGE = "this server has no language model: set KGSERVE_LLM_URL and KGSERVE_LLM_MODEL, and restart it"


def extract_memories(graph: Graph, request: ExtractRequest) -> ExtractAnswer:
    """Has memories wait for the language model: those that were set aside, or with `ids` these.

    The model is asked afterwards, one text after the other; `stats` shows how far it is. A text that was taken apart
    already is not taken apart again. Raises InvalidInput where no language model is set, NotFound and Unavailable.
    """
    extractor = graph.graphs.extractor
    if extractor is None:
        raise InvalidInput(NO_LLM_MESSAGE)
    with graph.lease() as store:
        extraction, missing, ids = extractor.of(store), list[str](), None
        if request.ids is not None:
            with store.reading() as rows:
                found = rows.nodes(request.ids)
            ids = [each for each in dict.fromkeys(request.ids) if each in found and is_text(found[each])]
            missing = [each for each in dict.fromkeys(request.ids) if each not in ids]
        queued = extraction.again(ids)
        return ExtractAnswer(
            queued=queued,
            missing=missing[:MAX_REPORTED_ITEMS],
            waiting=extraction.waiting[0],
            sequence=store.state.sequence,
        )
