"""Retaining: a text that is new, known, or the present state of a memory that is there; or the turns of a conversation.

What it comes to is decided as storing a memory is, in the writer's turn, and told step by step.
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
from kgserve.graph.handle import Graph
from kgserve.graph.validate import Fault, Faults, moment
from kgserve.memory.api import DEFAULT_IMPORTANCE, EPISODE_LAYER, FACT_LAYER, Metadata, Similar, StoreMemoryRequest
from kgserve.memory.deduplication import Deduplicator, MemoryPut, StoredDraft, united_attributes
from kgserve.memory.entities import put_relation, related_put
from kgserve.memory.extraction.marks import EXTRACT_KEY
from kgserve.memory.presentation import name_of
from kgserve.memory.recall_scoring import named_in, names_any, possible_names_of
from kgserve.memory.relation_ends import relation_key
from kgserve.memory.retain_api import (
    CONVERSATION_ROLES,
    MAX_CONVERSATION_MESSAGES,
    Action,
    Message,
    RetainAnswer,
    RetainBatchRequest,
    Retained,
    RetainedBatch,
    RetainOperation,
    RetainRequest,
)
from kgserve.memory.store_memory import (
    MAX_SIMILAR_CONTENT_CHARS,
    Checked,
    StoredTogether,
    checked_memory,
    store_checked,
)
from kgserve.memory.supersede import Fact, check_bounds, place
from kgserve.platform.text.similarity import text_hash
from kgserve.projections.memory_index.relation_types import RELATION_NEXT
from kgserve.projections.recent_vectors import RecentVectors
from kgserve.storage.model.batch import EdgePut, NodePut
from kgserve.storage.model.fields import NO_EXTRAS, NodeExtrasPut
from kgserve.storage.model.names import IS_ABOUT, UNKNOWN_TYPE, names_of
from kgserve.storage.model.rows import NO_ATTRIBUTES, NodeRow
from kgserve.storage.model.soft_delete import FORGOTTEN, SUPERSEDED
from kgserve.stores.pending_state import PendingState
from kgserve.stores.store import OpenStore


def retain(graph: Graph, request: RetainRequest) -> Future[RetainAnswer]:
    """Remembers a text, or the turns of a conversation; makes the store if it does not exist.

    A text that is known is not kept twice. With `entity_id` or `supersedes` it is the present state of that memory:
    what the memory said before is kept as a former version, true until then, which reads of then find (`valid_at`). A
    fact of an earlier time becomes a former version itself, and what is true now stays. `update`: `correct` overwrites
    what was wrong and keeps no version. It is linked to the entities that it names.

    Of messages each is an episode, joined to the next; sent again with the same `source`, only new ones are added.

    Raises InvalidInput, TooLarge, NotFound for what is to be superseded, Conflict, StorageFull and Unavailable.
    """

    def answer(done: StoredTogether, told: list[Retained]) -> RetainAnswer:
        (one,) = told
        return RetainAnswer(
            operations=one.operations,
            similar=one.similar,
            sequence=done.sequence,
            near_checked=done.near_checked,
            extracting=_extracting(graph, done.store, request),
        )

    return _retain(graph, [request], answer)


def retain_batch(graph: Graph, request: RetainBatchRequest) -> Future[RetainedBatch]:
    """Remembers up to 1,000 texts or conversations in one commit, each as if it came after those before it.

    Several may be about one memory (`entity_id`), in any order of time: each takes its place among its versions. What
    names no memory is compared by meaning where there are at most 100.

    Raises what retaining one does; `errors` or the message name the place of each fault, and nothing is kept then.
    """

    def answer(done: StoredTogether, told: list[Retained]) -> RetainedBatch:
        return RetainedBatch(results=told, sequence=done.sequence, near_checked=done.near_checked)

    return _retain(graph, request.items, answer, "items[{}].")


def _extracting(graph: Graph, store: OpenStore, request: RetainRequest) -> bool | msgspec.UnsetType:
    """Whether a language model is to be given what is new."""
    is_set = graph.graphs.extractor is not None
    if not is_set and request.extract is None:
        return msgspec.UNSET
    return is_set and (store.description.memory.extract if request.extract is None else request.extract)


A = TypeVar("A")


def _retain(
    graph: Graph,
    requests: Sequence[RetainRequest],
    answer: Callable[[StoredTogether, list[Retained]], A],
    place: str = "",
) -> Future[A]:
    """Retain in one commit; ``place`` names the place of a request among several."""
    faults = Faults()
    asked = _Asked([_RetainItem(each, faults, place.format(at)) for at, each in enumerate(requests)])
    faults.raise_any()
    checked = asked.checked(faults)
    faults.raise_any()
    made: list[RetainDeduplicator] = []

    def make(ahead: PendingState, recent: RecentVectors) -> Deduplicator:
        made.append(RetainDeduplicator(ahead, recent, asked))
        return made[0]

    def told(done: StoredTogether) -> A:
        similar = iter(done.similar)
        operations = _operations(done.store, made[0].steps, done.sequence)
        own = ([each for one in islice(similar, len(wanted.turns) or 1) for each in one] for wanted in asked.wanted)
        return answer(
            done,
            [Retained(operations=each, similar=_nearest(near)) for each, near in zip(operations, own, strict=True)],
        )

    return store_checked(graph, checked, told, make, look=asked.look)


class RetainStep(msgspec.Struct):
    """Something that was done to a memory; ``is_new``: by this write.

    ``row`` is the memory as it was then; ``kept`` is the version that holds it, where something else of this write has
    taken its place since.
    """

    type: Action
    memory: str
    content: str
    reason: str
    is_new: bool = True
    row: NodeRow | None = None
    kept: str = ""

    @property
    def is_older(self) -> bool:
        """Whether the version that it is told of may be of an earlier commit."""
        return not self.kept and (self.type == "link" or not self.is_new)

    def version(self, sequence: int) -> str | None:
        """The version that it is told of, which a commit has written; None for what is no memory."""
        if self.kept or self.row is None or not self.row.is_memory:
            return self.kept or None
        is_former = (self.row.extras or NO_EXTRAS).ended == SUPERSEDED
        return self.row.id if is_former else f"{self.row.id}@{sequence}"


def _check(request: RetainRequest, fault: Fault) -> None:
    """Note what does not go together."""
    named, is_text = request.entity_id or request.supersedes, isinstance(request.content, str)
    if request.entity_id and request.supersedes and request.entity_id != request.supersedes:
        fault("supersedes", "and entity_id are two memories; send one of them")
    if named and not is_text:
        fault("content", "messages are episodes, which are the state of no memory; send a text with entity_id")
    if request.update == "never" and request.supersedes:
        fault("update", "is never, and supersedes wants an update; send one of them")
    if request.update == "correct" and is_text and not named:
        fault("update", "is correct: say which memory, as entity_id")


class _Asked:
    """What is to be retained together."""

    def __init__(self, wanted: Sequence[_RetainItem]) -> None:
        self.wanted = wanted
        self._links: list[list[str]] = []

    def checked(self, faults: Faults) -> list[Checked]:
        """What is to be stored, one request after the other."""
        found: list[Checked] = []
        for wanted in self.wanted:
            found += wanted.checked(faults, len(found))
        if len(found) > MAX_CONVERSATION_MESSAGES:
            faults(
                "items",
                f"hold {len(found):,} texts and messages, and at most {MAX_CONVERSATION_MESSAGES:,} are kept at once",
            )
        return found

    def look(self, store: OpenStore, puts: Sequence[MemoryPut]) -> None:
        """Find the entities of the store that each text names."""
        self._links = entities_named_in(store, [put.content for put in puts])

    def each(self) -> Iterator[tuple[_RetainItem, list[str]]]:
        """For each of what is to be stored the request that it is of, and the entities that it names."""
        of = (wanted for wanted in self.wanted for _ in wanted.turns or (None,))
        return zip(of, self._links, strict=True)


class _RetainItem:
    """A request, checked, with what only it knows."""

    def __init__(self, request: RetainRequest, faults: Faults, place: str) -> None:
        self.request = request
        self.place = place
        fault = faults.below(place)
        _check(request, fault)
        self.start = _time(request.valid_from, "valid_from", fault)
        self.relations = [
            related_put(each, f"{place}relations[{index}].", faults) for index, each in enumerate(request.relations)
        ]
        self.turns: list[str] = []
        """The ids of the turns of a conversation."""

    @property
    def _mark(self) -> Metadata:
        """What metadata say of whether a language model is to be given the text."""
        return {} if self.request.extract is None else {EXTRACT_KEY: self.request.extract}

    @property
    def is_one_of_many(self) -> bool:
        """Whether others are retained with it."""
        return bool(self.place)

    @property
    def target(self) -> str | None:
        """The memory that the text is about."""
        return self.request.supersedes or self.request.entity_id

    def checked(self, faults: Faults, first: int) -> list[Checked]:
        """What is to be stored; ``first`` are before it."""
        content, place = self.request.content, self.place
        if isinstance(content, str):
            found = checked_memory(self._asked(content, self.request.entity_id), faults.below(place), first, place)
            is_chosen = self.is_one_of_many and self.target is not None
            return [msgspec.structs.replace(found, is_chosen=is_chosen)]
        found = [
            checked_memory(self._turn(each, at), faults.below(f"{place}content[{at}]."), first + at, place)
            for at, each in enumerate(content)
            if each.content.strip()
        ]
        if not found:
            faults(f"{place}content", "says nothing")
        self.turns = [each.put.node.id for each in found]
        return found

    def _turn(self, message: Message, at: int) -> StoreMemoryRequest:
        """A message as an episode; who has a name is named in the text, which is found by it then."""
        request, number = self.request, self.request.first + at
        text = message.content if message.role.lower() in CONVERSATION_ROLES else f"{message.role}: {message.content}"
        asked = self._asked(text, _turn_id(request.source, number) if request.source else None)
        metadata = {**asked.metadata, "role": message.role, "position": number}
        return msgspec.structs.replace(asked, metadata=metadata, created_at=message.at or request.created_at)

    def _asked(self, content: str, memory_id: str | None) -> StoreMemoryRequest:
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
            metadata=(request.metadata or {}) | self._mark,
            valid_from=request.valid_from,
            valid_to=request.valid_to,
            expires_in=request.expires_in,
            created_at=request.created_at,
            # Who names a memory wants that one, whatever else says the same.
            dedup=request.dedup if self.target is None else "off",
        )

    def change(self, put: MemoryPut, row: NodeRow) -> NodePut:
        """What the text changes in a memory that is there: what is given, and nothing else."""
        request = self.request
        extras = NodeExtrasPut(
            tags=None if request.tags is None else tuple(dict.fromkeys(request.tags)),
            confidence=_given(request.confidence),
            importance=_given(request.importance),
            source=_given(request.source),
            context=_given(request.context),
            layer=_given(request.layer),
        )
        attributes = None if request.metadata is None else put.node.attributes
        if attributes is None and self._mark:
            attributes = united_attributes(row.attributes, put.node.attributes or NO_ATTRIBUTES)
        return NodePut(0, put.node.id, request.memory_type, put.content, attributes, extras=extras)


def _given(value: A | None) -> A | msgspec.UnsetType:
    return msgspec.UNSET if value is None else value


def _stated_at(put: MemoryPut, now: int) -> MemoryPut:
    """A turn that was said at another time: it fades from when it is kept."""
    if put.node.created_at is None:
        return put
    extras = msgspec.structs.replace(put.node.extras or NodeExtrasPut(), confidence_at=now)
    return msgspec.structs.replace(put, node=msgspec.structs.replace(put.node, extras=extras))


def _time(text: str | None, path: str, fault: Fault) -> int | None:
    at = moment(text, path, fault)
    return at if isinstance(at, int) else None


def _turn_id(source: str, position: int) -> str:
    """The id of a turn of a conversation: always the same."""
    digest = hashlib.blake2b(f"{source}\0{position}".encode(errors="replace"), digest_size=16)
    return f"episode-{digest.hexdigest()}"


def entities_named_in(store: OpenStore, texts: Sequence[str]) -> list[list[str]]:
    """The entities that texts name: of a name the one whose type is known, and of several none."""
    possible = [*map(possible_names_of, texts)]
    known = store.memories.known_names({name for names in possible for name in names})
    with store.reading() as rows:
        only = {name: _only([*rows.nodes(ids).values()]) for name, ids in known.items()}
    return [named_in(names, only) for names in possible]


def _only(rows: Sequence[NodeRow]) -> list[str]:
    """The one of some entities that is meant, if one is."""
    there = [row for row in rows if not row.is_memory and not (row.extras or NO_EXTRAS).ended]
    typed = [row for row in there if row.type != UNKNOWN_TYPE] or there
    return [typed[0].id] if len(typed) == 1 else []


class RetainDeduplicator(Deduplicator):
    """What is retained together; ``steps`` are what was done, for each request."""

    def __init__(self, ahead: PendingState, recent: RecentVectors, asked: _Asked) -> None:
        super().__init__(ahead, recent)
        self.steps: list[list[RetainStep]] = []
        self._coming = asked.each()
        self._wanted: _RetainItem
        self._links: list[str]
        self._left = 0
        self._before = ""
        self._said: dict[str, list[RetainStep]] = {}

    @override
    def _store(self, put: MemoryPut) -> StoredDraft:
        self._wanted, self._links = next(self._coming)
        if not self._left:
            self._left, self._before = len(self._wanted.turns) or 1, ""
            self.steps.append([])
        stored = self._decided(put)
        self._left -= 1
        if self._wanted.turns:
            self._follow(put.node.id)
        if not self._left:
            self._relate()
        return stored

    def _tell(self, step: RetainStep) -> None:
        step.row = self.node(step.memory)
        self.steps[-1].append(step)

    def _say(self, step: RetainStep) -> None:
        """Tell what a memory says now, which something else may take the place of."""
        self._tell(step)
        self._said.setdefault(step.memory, []).append(step)

    @override
    def associate(self, memory: str, about: Mapping[str, float]) -> None:
        new = [entity for entity in about if self.edge((memory, entity, IS_ABOUT)) is None]
        super().associate(memory, about)
        for entity in new:
            row = self.node(entity)
            self._tell(RetainStep("link", memory, entity, f"is about {(name_of(row) if row else entity)!r}"))

    @override
    def _about(self, put: MemoryPut) -> dict[str, float]:
        return {row.id: 1.0 for row in self.there(self._links)} | super()._about(put)

    def _decided(self, put: MemoryPut) -> StoredDraft:
        if self._wanted.turns:
            return self._turn(put)
        target = self._wanted.target
        row = None if target is None else self._target(target)
        return self._kept(put) if row is None else self._update(row, put)

    def _kept(self, put: MemoryPut) -> StoredDraft:
        at = len(self.steps[-1])
        stored = super()._store(put)
        steps: dict[str, tuple[Action, str]] = {
            "created": ("create", "nothing that is known says it"),
            "duplicate": ("noop", "is known already"),
            "merged": ("merge", "is known in other words"),
        }
        action, reason = steps[stored.outcome]
        row = self.node(stored.id)
        told = put.content if row is None else row.content
        step = RetainStep(action, stored.id, told, reason, is_new=action == "create", row=row)
        self.steps[-1].insert(at, step)
        self._said.setdefault(stored.id, []).append(step)
        return stored

    def _target(self, target: str) -> NodeRow | None:
        """The memory that is meant; None where it is to be made. Raises NotFound, Conflict."""
        row, request = self.node(self.ahead.survivor(target)), self._wanted.request
        if row is None or not row.is_memory:
            if request.supersedes or request.update == "correct":
                raise NotFound(f"there is no memory {target!r}" if row is None else f"node {target!r} is no memory")
            return None
        extras = row.extras or NO_EXTRAS
        if extras.ended == SUPERSEDED:
            head = extras.belongs_to
            raise Conflict(f"{target!r} is a former version of {head!r}: name that, with valid_from for another time")
        if extras.ended:
            how = "forget it with undo first, or " if extras.ended == FORGOTTEN else ""
            raise Conflict(f"memory {target!r} was {extras.ended}: {how}retain the text without its id")
        return row

    def _update(self, row: NodeRow, put: MemoryPut) -> StoredDraft:
        wanted, about = self._wanted, self._about(put)
        if wanted.request.update == "correct":
            return self._correct(row, put, about)
        is_known = text_hash(row.content) == text_hash(put.content) and wanted.start is None
        if wanted.request.update == "never" or is_known:
            if text_hash(row.content) != text_hash(put.content):
                raise Conflict(f"memory {row.id!r} is there and says something else, and update is never")
            self._say(RetainStep("noop", row.id, row.content, "is known already", is_new=False))
            self.associate(row.id, about)
            return self._merge(put, row, about, absorbs=False)
        start = self.ahead.now if wanted.start is None else wanted.start
        end = put.extras.valid_to
        if end is not None and end <= start:
            raise InvalidInput.at("valid_to", "is not after valid_from; of what is over, say from when on it was true")
        change, before = self._stated(put, row), self.about(row.id)
        placed = place(self, row, Fact(change, start, end, wanted.is_one_of_many))
        action: Action = "update" if placed.is_new else "noop"
        if placed.kept:
            for step in self._said.pop(row.id, ()):
                step.kept = placed.kept
        self._say(RetainStep(action, placed.id, put.content, placed.reason, is_new=placed.is_new))
        self._about_anew(placed.id, row.content, put.content, before, about)
        if placed.id == row.id:
            self._stand(row.id)
        return StoredDraft(placed.id, "duplicate")

    def _correct(self, row: NodeRow, put: MemoryPut, about: Mapping[str, float]) -> StoredDraft:
        """Overwrite what a memory says; its bounds stay unless others are given."""
        request, change = self._wanted.request, self._wanted.change(put, row)
        extras = change.extras or NodeExtrasPut()
        if request.confidence is not None:
            extras = msgspec.structs.replace(extras, confidence_at=self.ahead.now)
        if request.valid_from is not None:
            extras = msgspec.structs.replace(extras, valid_from=self._wanted.start)
        if request.valid_to is not None or request.expires_in is not None:
            extras = msgspec.structs.replace(extras, valid_to=put.extras.valid_to)
        before, old_text = self.about(row.id), row.content
        same = text_hash(old_text) == text_hash(put.content)
        after = self.put_node(msgspec.structs.replace(change, id=row.id, extras=extras))
        if request.valid_from or request.valid_to or request.expires_in:
            check_bounds(self, after)
        is_new = not same or (after.extras or NO_EXTRAS) != (row.extras or NO_EXTRAS)
        reason = "corrects what it said; no former version is kept" if is_new else "is known already"
        self._say(RetainStep("update" if is_new else "noop", row.id, put.content, reason, is_new=is_new))
        self._about_anew(row.id, old_text, put.content, before, about)
        self._stand(row.id)
        return StoredDraft(row.id, "duplicate")

    def _stand(self, memory: str) -> None:
        """Have a memory that has changed stand where it is to, and nowhere else."""
        row, request = self.node(memory), self._wanted.request
        if row is not None and request.parent:
            self.places.put(row, self.places.find(request.parent))
        if row is not None and request.layer is not None:
            self.places.keep_order(row)

    def _stated(self, put: MemoryPut, row: NodeRow) -> NodePut:
        """The change, as a statement of now: as sure as is said, from now on."""
        change, request = self._wanted.change(put, row), self._wanted.request
        extras = change.extras or NodeExtrasPut()
        confidence = 1.0 if request.confidence is None else request.confidence
        at = self.ahead.now if put.node.created_at is None else put.node.created_at
        return msgspec.structs.replace(
            change, extras=msgspec.structs.replace(extras, confidence=confidence, confidence_at=at)
        )

    def _about_anew(
        self, memory: str, old: str, new: str, before: Mapping[str, float], about: Mapping[str, float]
    ) -> None:
        """Have a memory be about what is said; else about what it was, but for what another one has taken the place of.

        That is what only the old text names, and of whose type the new one names another: Berlin, once it says London.
        """
        gone = set(before) - set(about)
        if not self._wanted.request.entities:
            types = {row.type for entity in set(about) - set(before) if (row := self.node(entity)) is not None}
            gone = {entity for entity in gone if self._was_replaced(entity, types, old, new)}
        for entity in gone:
            self.drop_edge((memory, entity, IS_ABOUT))
        self.associate(memory, about)

    def _was_replaced(self, entity: str, types: Collection[str], old: str, new: str) -> bool:
        row = self.node(entity)
        if row is None or row.type not in types:
            return False
        names = [row.id, *names_of(row)]
        return names_any(old, names) and not names_any(new, names)

    def _turn(self, put: MemoryPut) -> StoredDraft:
        """A turn of a conversation, which may be there already, or have been forgotten."""
        put = _stated_at(put, self.ahead.now)
        own = self.node(put.node.id)
        if own is None or not own.is_memory:
            return self._kept(put)
        if text_hash(own.content) == text_hash(put.content):
            ended = (own.extras or NO_EXTRAS).ended
            reason = f"was {ended}, and stays so" if ended else "is known already: the same place of the same source"
            self._tell(RetainStep("noop", own.id, own.content, reason, is_new=False))
            return StoredDraft(own.id, "duplicate")
        if self._wanted.request.update == "correct":
            return self._correct(own, put, self._about(put))
        position = self._wanted.turns.index(put.node.id)
        raise Conflict(
            f"content[{position}]: this place of the conversation is there and says something else; send `first`, the "
            "place of the first message, or another source, or update=correct"
        )

    def _follow(self, turn: str) -> None:
        """Join a turn to the one before it."""
        key = (self._before, turn, RELATION_NEXT)
        self._before = turn
        if key[0] and self.edge(key) is None:
            self.put_edge(EdgePut(0, key))

    def _relate(self) -> None:
        """Write the relations that came along."""
        for each, put in zip(self._wanted.request.relations, self._wanted.relations, strict=True):
            key = relation_key(self, each)
            _, made = put_relation(self, msgspec.structs.replace(put, key=key))
            told = f"{each.source} {each.relation_type} {each.target}"
            self._tell(RetainStep("link", key[0], told, f"relation {made}", is_new=made != "existing"))


def _operations(store: OpenStore, steps: Sequence[Sequence[RetainStep]], sequence: int) -> list[list[RetainOperation]]:
    """What is told; a version is named by the commit that wrote it."""
    older = {step.memory for some in steps for step in some if step.is_older}
    with store.reading() as rows:
        found = {node_id: row.sequence for node_id, row in rows.nodes(older).items()}
    return [
        [
            RetainOperation(
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


def _nearest(similar: Sequence[Similar]) -> list[Similar]:
    found: dict[str, Similar] = {}
    for each in sorted(similar, key=lambda each: -each.similarity):
        found.setdefault(each.id, each)
    return [*found.values()][:5]
