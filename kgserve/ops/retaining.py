"""Retaining: a text that is new, known, or the present state of a memory that is there; or the turns of a conversation.

What it comes to is decided as storing a memory is, in the writer's turn, and told step by step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future

import msgspec

from kgserve.errors import Conflict, FieldError, InvalidInput, NotFound
from kgserve.model.batch import EdgePut, NodePut
from kgserve.model.fields import NO_EXTRAS, NodeExtrasPut
from kgserve.model.layers import (
    EPISODE,
    FACT,
    NEXT,
    USUAL_ROLES,
    Action,
    Message,
    RetainAnswer,
    RetainOperation,
    RetainRequest,
)
from kgserve.model.likeness import text_hash
from kgserve.model.memories import USUAL_IMPORTANCE, Similar, StoreMemoryRequest
from kgserve.model.mentions import names_any, possible_names_of
from kgserve.model.names import IS_ABOUT, UNKNOWN, names_of
from kgserve.model.recall import named_in
from kgserve.model.requests import NodeInput
from kgserve.model.rows import NodeRow
from kgserve.model.withdrawing import FORGOTTEN, SUPERSEDED
from kgserve.ops.graph import Graph
from kgserve.ops.memories import TEASER, Checked, Done, checked_memory, store_checked
from kgserve.ops.named import relate, related_put
from kgserve.ops.shown_memories import name_of
from kgserve.ops.storing import MemoryPut, Stored, Storing
from kgserve.ops.superseding import Fact, place
from kgserve.ops.validate import Faults, moment, node_put
from kgserve.store.ahead import Ahead
from kgserve.store.store import Store
from kgserve.views.recent import Recent

_RELATED_BYTES = 1_000


def retain(graph: Graph, request: RetainRequest) -> Future[RetainAnswer]:
    """Remembers a text, or the turns of a conversation; makes the store if it does not exist.

    A text that is known is not kept twice. With `entity_id` or `supersedes` it is the present state of that memory:
    what the memory said before is kept as a former version, true until then, which reads of then find (`valid_at`). A
    fact of an earlier time becomes a former version itself, and what is true now stays. `update`: `correct` overwrites
    what was wrong and keeps no version. It is linked to the entities that it names.

    Of messages each is an episode, joined to the next; sent again with the same `source`, only new ones are added.

    Raises InvalidInput, TooLarge, NotFound for what is to be superseded, Conflict, StorageFull and Unavailable.
    """
    _check(request)
    faults = Faults()
    wanted = _Wanted(request, faults)
    checked = wanted.checked(faults)
    faults.raise_any()
    made: list[Retaining] = []

    def make(ahead: Ahead, recent: Recent) -> Storing:
        made.append(Retaining(ahead, recent, wanted))
        return made[0]

    def answer(done: Done) -> RetainAnswer:
        similar = [each for told in done.similar for each in told]
        return RetainAnswer(
            operations=_operations(done.store, made[0].steps, done.sequence),
            similar=_nearest(similar),
            sequence=done.sequence,
            near_checked=done.near_checked,
        )

    return store_checked(graph, checked, answer, make, look=wanted.look)


class Step(msgspec.Struct):
    """Something that was done to a memory; ``is_new``: by this write."""

    type: Action
    memory: str
    content: str
    reason: str
    is_new: bool = True


def _check(request: RetainRequest) -> None:
    """Raises InvalidInput for what does not go together."""
    named, is_text = request.entity_id or request.supersedes, isinstance(request.content, str)
    if request.entity_id and request.supersedes and request.entity_id != request.supersedes:
        _refuse("supersedes", "and entity_id are two memories; send one of them")
    if named and not is_text:
        _refuse("content", "messages are episodes, which are the state of no memory; send a text with entity_id")
    if request.update == "never" and request.supersedes:
        _refuse("update", "is never, and supersedes wants an update; send one of them")
    if request.update == "correct" and is_text and not named:
        _refuse("update", "is correct: say which memory, as entity_id")


def _refuse(field: str, message: str) -> None:
    raise InvalidInput(f"{field}: {message}", (FieldError(field, message),))


class _Wanted:
    """A request, checked, with what only it knows."""

    def __init__(self, request: RetainRequest, faults: Faults) -> None:
        self.request = request
        self.start = _time(request.valid_from, "valid_from", faults)
        self.end = _time(request.valid_to, "valid_to", faults)
        self.relations = [
            related_put(each, f"relations[{index}].", faults) for index, each in enumerate(request.relations)
        ]
        self.links: dict[str, list[str]] = {}
        """By the id of what is stored: the entities that it names."""
        self.turns: list[str] = []
        """The ids of the turns of a conversation."""

    @property
    def target(self) -> str | None:
        """The memory that the text is about."""
        return self.request.supersedes or self.request.entity_id

    def checked(self, faults: Faults) -> list[Checked]:
        """What is to be stored."""
        content = self.request.content
        if isinstance(content, str):
            return [checked_memory(self._asked(content, self.request.entity_id), faults, 0)]
        found = [
            checked_memory(self._turn(each, at), lambda path, text, at=at: faults(f"content[{at}].{path}", text), at)
            for at, each in enumerate(content)
            if each.content.strip()
        ]
        if not found:
            _refuse("content", "says nothing")
        self.turns = [each.put.node.id for each in found]
        return found

    def _turn(self, message: Message, at: int) -> StoreMemoryRequest:
        """A message as an episode; who has a name is named in the text, which is found by it then."""
        request, number = self.request, self.request.first + at
        text = message.content if message.role.lower() in USUAL_ROLES else f"{message.role}: {message.content}"
        asked = self._asked(text, _turn_id(request.source, number) if request.source else None)
        metadata = {**(request.metadata or {}), "role": message.role, "position": number}
        return msgspec.structs.replace(asked, metadata=metadata, created_at=message.at or request.created_at)

    def _asked(self, content: str, memory_id: str | None) -> StoreMemoryRequest:
        request = self.request
        layer = (FACT if isinstance(request.content, str) else EPISODE) if request.layer is None else request.layer
        return StoreMemoryRequest(
            content=content,
            memory_id=memory_id,
            memory_type=request.memory_type,
            layer=layer,
            parent_id=request.parent,
            tags=request.tags or [],
            entities=request.entities,
            confidence=1.0 if request.confidence is None else request.confidence,
            importance=USUAL_IMPORTANCE if request.importance is None else request.importance,
            source=request.source,
            context=request.context,
            metadata=request.metadata or {},
            valid_from=request.valid_from,
            valid_to=request.valid_to,
            expires_in=request.expires_in,
            created_at=request.created_at,
            dedup=request.dedup,
        )

    def change(self, put: MemoryPut) -> NodePut:
        """What the text changes in a memory that is there: what is given, and nothing else."""
        request = self.request
        node = NodeInput(
            id=put.node.id,
            type=request.memory_type,
            content=put.content,
            attributes=request.metadata,
            tags=request.tags,
            confidence=request.confidence,
            importance=request.importance,
            source=request.source,
            context=request.context,
            layer=request.layer,
        )
        return node_put(0, node, Faults())

    def look(self, store: Store, puts: Sequence[MemoryPut]) -> None:
        """Find the entities of the store that each text names."""
        self.links = {put.node.id: _named_in(store, put.content) for put in puts}


def _time(text: str | None, path: str, faults: Faults) -> int | None:
    at = moment(text, path, faults)
    return at if isinstance(at, int) else None


def _turn_id(source: str, position: int) -> str:
    """The id of a turn of a conversation: always the same."""
    digest = hashlib.blake2b(f"{source}\0{position}".encode(errors="replace"), digest_size=16)
    return f"episode-{digest.hexdigest()}"


def _named_in(store: Store, text: str) -> list[str]:
    """The entities that a text names: of a name the one whose type is known, and of several none."""
    possible = possible_names_of(text)
    known = store.memories.ask(
        lambda memories, _: {
            name: [each for each in memories.named(name) if each.stands] for name in memories.known_names(possible)
        }
    )
    only: dict[str, list[str]] = {}
    for name, found in known.items():
        typed = [each for each in found if each.type != UNKNOWN] or found
        only[name] = [each.id for each in typed] if len(typed) == 1 else []
    return named_in(possible, only)


class Retaining(Storing):
    """What is retained together; ``steps`` are what was done."""

    def __init__(self, ahead: Ahead, recent: Recent, wanted: _Wanted) -> None:
        super().__init__(ahead, recent)
        self.steps: list[Step] = []
        self._wanted = wanted
        self._before = ""
        self._count = 0

    def _store(self, put: MemoryPut) -> Stored:
        stored = self._decided(put)
        self._count += 1
        if self._wanted.turns:
            self._follow(put.node.id)
        if self._count == max(len(self._wanted.turns), 1):
            self._relate()
        return stored

    def associate(self, memory: str, about: Mapping[str, float]) -> None:
        """See `Storing.associate`; new ones are told."""
        new = [entity for entity in about if self.edge((memory, entity, IS_ABOUT)) is None]
        super().associate(memory, about)
        for entity in new:
            row = self.node(entity)
            self.steps.append(Step("link", memory, entity, f"is about {(name_of(row) if row else entity)!r}"))

    def _about(self, put: MemoryPut) -> dict[str, float]:
        named = self.there(self._wanted.links.get(put.node.id, ()))
        return {row.id: 1.0 for row in named} | super()._about(put)

    def _decided(self, put: MemoryPut) -> Stored:
        if self._wanted.turns:
            return self._turn(put)
        target = self._wanted.target
        row = None if target is None else self._target(target)
        if row is not None:
            return self._update(row, put)
        # Who names a memory wants that one, whatever else says the same.
        return self._kept(put if target is None else msgspec.structs.replace(put, dedup="off"))

    def _kept(self, put: MemoryPut) -> Stored:
        at = len(self.steps)
        stored = super()._store(put)
        steps: dict[str, tuple[Action, str]] = {
            "created": ("create", "nothing that is known says it"),
            "duplicate": ("noop", "is known already"),
            "merged": ("merge", "is known in other words"),
        }
        action, reason = steps[stored.outcome]
        row = self.node(stored.id)
        told = put.content if row is None else row.content
        self.steps.insert(at, Step(action, stored.id, told, reason, is_new=action == "create"))
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

    def _update(self, row: NodeRow, put: MemoryPut) -> Stored:
        wanted, about = self._wanted, self._about(put)
        if wanted.request.update == "correct":
            return self._correct(row, put, about)
        is_known = text_hash(row.content) == text_hash(put.content) and wanted.start is None
        if wanted.request.update == "never" or is_known:
            if text_hash(row.content) != text_hash(put.content):
                raise Conflict(f"memory {row.id!r} is there and says something else, and update is never")
            self.steps.append(Step("noop", row.id, row.content, "is known already", is_new=False))
            self.associate(row.id, about)
            return self._merge(put, row, about, absorbs=False)
        start = self.ahead.now if wanted.start is None else wanted.start
        end = put.extras.valid_to
        if end is not None and end <= start:
            _refuse("valid_to", "is not after valid_from; of what is over, say from when on it was true")
        change, before = self._stated(put), self.ahead.about(row.id)
        placed = place(self, row, Fact(change, start, end))
        action: Action = "update" if placed.is_new else "noop"
        self.steps.append(Step(action, placed.id, put.content, placed.reason, is_new=placed.is_new))
        self._about_anew(placed.id, row.content, put.content, before, about)
        if placed.id == row.id:
            self._stand(row.id)
        return Stored(placed.id, "duplicate")

    def _correct(self, row: NodeRow, put: MemoryPut, about: Mapping[str, float]) -> Stored:
        """Overwrite what a memory says; its bounds stay unless others are given."""
        request, change = self._wanted.request, self._wanted.change(put)
        extras = change.extras or NodeExtrasPut()
        if request.confidence is not None:
            extras = msgspec.structs.replace(extras, confidence_at=self.ahead.now)
        if request.valid_from is not None:
            extras = msgspec.structs.replace(extras, valid_from=self._wanted.start)
        if request.valid_to is not None or request.expires_in is not None:
            extras = msgspec.structs.replace(extras, valid_to=put.extras.valid_to)
        before, old_text = self.ahead.about(row.id), row.content
        same = text_hash(old_text) == text_hash(put.content)
        after = self.put_node(msgspec.structs.replace(change, id=row.id, extras=extras))
        is_new = not same or (after.extras or NO_EXTRAS) != (row.extras or NO_EXTRAS)
        reason = "corrects what it said; no former version is kept" if is_new else "is known already"
        self.steps.append(Step("update" if is_new else "noop", row.id, put.content, reason, is_new=is_new))
        self._about_anew(row.id, old_text, put.content, before, about)
        self._stand(row.id)
        return Stored(row.id, "duplicate")

    def _stand(self, memory: str) -> None:
        """Have a memory that has changed stand where it is to, and nowhere else."""
        row, request = self.node(memory), self._wanted.request
        if row is not None and request.parent:
            self.places.put(row, self.places.find(request.parent))
        if row is not None and request.layer is not None:
            self.places.keep_order(row)

    def _stated(self, put: MemoryPut) -> NodePut:
        """The change, as a statement of now: as sure as is said, from now on."""
        change, request = self._wanted.change(put), self._wanted.request
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

    def _turn(self, put: MemoryPut) -> Stored:
        """A turn of a conversation, which may be there already, or have been forgotten."""
        own = self.node(put.node.id)
        if own is None or not own.is_memory:
            return self._kept(put)
        if text_hash(own.content) == text_hash(put.content):
            ended = (own.extras or NO_EXTRAS).ended
            reason = f"was {ended}, and stays so" if ended else "is known already: the same place of the same source"
            self.steps.append(Step("noop", own.id, own.content, reason, is_new=False))
            return Stored(own.id, "duplicate")
        if self._wanted.request.update == "correct":
            return self._correct(own, put, self._about(put))
        position = self._wanted.turns.index(put.node.id)
        raise Conflict(
            f"content[{position}]: this place of the conversation is there and says something else; send `first`, the "
            "place of the first message, or another source, or update=correct"
        )

    def _follow(self, turn: str) -> None:
        """Join a turn to the one before it."""
        key = (self._before, turn, NEXT)
        self._before = turn
        if key[0] and self.edge(key) is None:
            self.put_edge(EdgePut(0, key))

    def _relate(self) -> None:
        """Write the relations that came along."""
        for each, put in zip(self._wanted.request.relations, self._wanted.relations, strict=True):
            key = (self.entity(each.source), self.entity(each.target), each.relation_type)
            _, made = relate(self, msgspec.structs.replace(put, key=key))
            told = f"{each.source} {each.relation_type} {each.target}"
            self.steps.append(Step("link", key[0], told, f"relation {made}", is_new=made != "existing"))


def _operations(store: Store, steps: Sequence[Step], sequence: int) -> list[RetainOperation]:
    """What is told; a version is named by the commit that wrote it."""
    with store.reading() as rows:
        found = rows.nodes({step.memory for step in steps})
    return [
        RetainOperation(
            type=step.type,
            memory_id=step.memory,
            version_id=_version(found.get(step.memory), step, sequence),
            content=step.content[:TEASER],
            reason=step.reason,
        )
        for step in steps
    ]


def _version(row: NodeRow | None, step: Step, sequence: int) -> str | None:
    if row is None or not row.is_memory:
        return None
    if (row.extras or NO_EXTRAS).ended == SUPERSEDED:
        return row.id
    return f"{row.id}@{sequence if step.is_new and step.type != 'link' else row.sequence}"


def _nearest(similar: Sequence[Similar]) -> list[Similar]:
    found: dict[str, Similar] = {}
    for each in sorted(similar, key=lambda each: -each.similarity):
        found.setdefault(each.id, each)
    return [*found.values()][:5]
