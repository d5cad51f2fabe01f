"""Named entities and the relations between them: made by name, found under any spelling, walked with their memories."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from kgserve.errors import Conflict, NotFound
from kgserve.graph import merge
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.graph.handle import Graph, made_of
from kgserve.graph.merge_api import MergeAnswer, MergeNode
from kgserve.graph.mutations import memories_about
from kgserve.graph.requests import EdgeInput, NodeInput
from kgserve.graph.validate import Faults, called, edge_put, node_put
from kgserve.memory.deduplication import MemoryDraft
from kgserve.memory.entities_api import (
    DEFAULT_STRENGTH,
    CreatedEntity,
    CreatedRelation,
    CreateEntitiesRequest,
    CreateRelationsRequest,
    DeleteEntitiesRequest,
    DeleteEntityRequest,
    DeleteRelationsRequest,
    EntitiesCreated,
    EntitiesDeleted,
    EntityAnswer,
    EntityGraph,
    EntityGraphRequest,
    EntityId,
    EntityInput,
    GraphEntity,
    Relation,
    RelationId,
    RelationInput,
    RelationKey,
    RelationsCreated,
    RelationsDeleted,
    UpdatedEntity,
    UpdateEntityRequest,
)
from kgserve.memory.presentation import name_of, now_in_microseconds, record_use, to_memories
from kgserve.memory.relation_ends import met_end, relation_key
from kgserve.platform.codecs import decode_json
from kgserve.platform.times import format_time, parse_time
from kgserve.projections.memory_index import decay
from kgserve.projections.memory_index.decay import Confidence, half_lives_of
from kgserve.projections.memory_index.selecting import MemoryPlace
from kgserve.storage.model.batch import EdgePut, NodePut, WriteBatch
from kgserve.storage.model.fields import NodeExtrasPut
from kgserve.storage.model.filters import MemoryFilter
from kgserve.storage.model.names import ALIASES, IS_ABOUT, aliases_in
from kgserve.storage.model.redirects import MERGED_INTO
from kgserve.storage.model.rows import NO_ATTRIBUTES, EdgeRow, NodeRow, edge_id, edge_key, edge_stamps
from kgserve.storage.plan import Report
from kgserve.storage.rows.delta import Gathered
from kgserve.storage.rows.edge_page import not_of_kinds, of_kinds, strong, with_versions
from kgserve.storage.rows.snapshot import Rows
from kgserve.stores.pending_state import PendingState
from kgserve.stores.store import OpenStore

T = TypeVar("T")

MAX_SHOWN_RELATIONS = 1_000
MAX_COUNTED_MEMORIES = 100_000
"""So many memories about an entity are counted."""
MAX_CASCADED_MEMORIES = 100_000
"""So many memories go at most with the entities that they are about, in one commit."""
_ENTITY_FIELD_RENAMES = {"type": "entity_type", "attributes": "metadata", "content": "description"}
_RELATION_FIELD_RENAMES = {"from": "source", "to": "target", "weight": "strength", "attributes": "metadata"}
"""What callers call the fields of nodes and edges."""
NON_ENTITY_RELATIONS = (IS_ABOUT, MERGED_INTO)
"""Relations that join no two entities."""

Made = Literal["created", "updated", "existing"]


def _decided(
    graph: Graph,
    decide: Callable[[MemoryDraft], WriteBatch],
    answer: Callable[[OpenStore, Rows, Report], T],
    cost: int,
    *,
    create: bool = False,
) -> Future[T]:
    """A write by names, and an answer from the rows after it."""
    leased: list[OpenStore] = []

    def begin(store: OpenStore) -> Future[Report]:
        leased.append(store)
        return store.submit_decided(lambda ahead: decide(MemoryDraft(ahead)), cost)

    def done(report: Report) -> T:
        with leased[0].reading() as rows:
            return answer(leased[0], rows, report)

    return graph.write(begin, done, create=create)


# Entities


def create_entities(graph: Graph, request: CreateEntitiesRequest) -> Future[EntitiesCreated]:
    """Creates entities in one commit; those of a name and type that are there are met, in any spelling.

    An entity of the name whose type nobody knows yet is given the type. Description, metadata and aliases that are
    sent replace those that are there. Makes the store if it does not exist. Raises InvalidInput and TooLarge.
    """
    faults = Faults()
    puts = [_described(each, f"entities[{index}].", faults) for index, each in enumerate(request.entities)]
    faults.raise_any()
    made: list[tuple[str, Made]] = []

    def decide(draft: MemoryDraft) -> WriteBatch:
        made.extend(_create(draft, each, put) for each, put in zip(request.entities, puts, strict=True))
        return draft.batch()

    def answer(_: OpenStore, rows: Rows, report: Report) -> EntitiesCreated:
        found = rows.nodes({node_id for node_id, _ in made})
        entities = [
            CreatedEntity(**entity_fields(found[node_id]), outcome=outcome, sequence=report.sequence)
            for node_id, outcome in made
        ]
        created = sum(outcome == "created" for _, outcome in made)
        return EntitiesCreated(entities=entities, created=created, sequence=report.sequence)

    return _decided(graph, decide, answer, 1_000 * len(puts), create=True)


def _described(entity: EntityInput, place: str, faults: Faults) -> NodePut:
    """What is said of an entity, checked, as a put of a node that has no id yet."""
    own = Faults(place)
    node = NodeInput(
        id="-", type=entity.entity_type, content=entity.description, attributes=entity.metadata, name=entity.name
    )
    put = node_put(0, node, called(own, _ENTITY_FIELD_RENAMES))
    faults.errors += own.errors
    return put


def _create(draft: MemoryDraft, entity: EntityInput, put: NodePut) -> tuple[str, Made]:
    before = {row.id: row for row in draft.find(entity.name)}
    node_id = draft.entity(entity.name, entity.entity_type)
    old, row = before.get(node_id), draft.node(node_id)
    if row is None:
        raise NotFound(f"there is no entity {node_id!r}")
    attributes = _attributes(row, put.attributes, entity.aliases)
    named = row.extras is not None and row.extras.name
    row = draft.put_node(
        NodePut(
            0,
            node_id,
            content=put.content,
            attributes=attributes,
            extras=None if named else NodeExtrasPut(name=entity.name),
        )
    )
    if old is None:
        return node_id, "created"
    same = (old.type, old.content, old.attributes, old.extras) == (row.type, row.content, row.attributes, row.extras)
    return node_id, "existing" if same else "updated"


_encode = msgspec.json.Encoder(order="deterministic").encode


def _attributes(row: NodeRow, metadata: str | None, aliases: Sequence[str] | None) -> str | None:
    """The attributes with the given ones and other names; None where nothing is given."""
    if metadata is None and aliases is None:
        return None
    names = aliases_in(row.attributes) if aliases is None else list(dict.fromkeys(aliases))
    found: dict[str, Any] = decode_json(row.attributes if metadata is None else metadata, dict[str, Any])
    if names and (aliases is not None or ALIASES not in found):
        found[ALIASES] = names
    elif aliases is not None:
        found.pop(ALIASES, None)
    return _encode(found).decode() if found else NO_ATTRIBUTES


def get_entity(graph: Graph, request: EntityId) -> EntityAnswer:
    """Answers with an entity, by its id or its name, with its relations and how many memories are about it.

    Raises NotFound, and Conflict for a name that several entities have.
    """
    with graph.lease() as store:
        entity = found_entity(store, request.entity_id, graph.name)
        with store.reading() as rows:
            edges = list(islice(_relations_of(rows, entity), MAX_SHOWN_RELATIONS + 1))
            number = rows.number(entity)
            about = of_kinds(rows, rows.around(np.array([number]), outgoing=False), (IS_ABOUT,))
            row = rows.node(entity)
            if row is None:
                raise NotFound(f"there is no entity {request.entity_id!r} in store {graph.name!r}")
            return EntityAnswer(
                **entity_fields(row),
                relations=shown_relations(store, rows, edges[:MAX_SHOWN_RELATIONS]),
                relations_truncated=len(edges) > MAX_SHOWN_RELATIONS,
                memories=len(about),
            )


def update_entity(graph: Graph, request: UpdateEntityRequest) -> Future[UpdatedEntity]:
    """Changes what is given of an entity, and keeps the rest; its id stays when it is renamed.

    Raises InvalidInput, NotFound, and Conflict where another entity has the name and the type.
    """
    faults = Faults()
    node = NodeInput(
        id="-",
        type=request.entity_type,
        content=request.description,
        attributes=request.metadata,
        name=request.name,
    )
    put = node_put(0, node, called(faults, _ENTITY_FIELD_RENAMES))
    faults.raise_any()
    met: list[str] = []

    def decide(draft: MemoryDraft) -> WriteBatch:
        row = _one(draft, request.entity_id, graph.name)
        met.append(row.id)
        name, entity_type = request.name or name_of(row), request.entity_type or row.type
        others = [each.id for each in draft.find(name) if each.type == entity_type and each.id != row.id]
        if others and request.name is not None:
            raise Conflict(f"entity {others[0]!r} has the name {name!r} and the type {entity_type!r}; merge the two")
        attributes = _attributes(row, put.attributes, request.aliases)
        draft.put_node(msgspec.structs.replace(put, id=row.id, attributes=attributes))
        return draft.batch()

    def answer(_: OpenStore, rows: Rows, report: Report) -> UpdatedEntity:
        row = rows.node(met[0])
        if row is None:
            raise NotFound(f"there is no entity {request.entity_id!r} in store {graph.name!r}")
        return UpdatedEntity(**entity_fields(row), sequence=report.sequence)

    return _decided(graph, decide, answer, len(request.description or "") + 1_000)


def delete_entity(graph: Graph, request: DeleteEntityRequest) -> Future[EntitiesDeleted]:
    """Deletes one entity, by its id or its name, and its relations; see `delete_entities`."""
    names = DeleteEntitiesRequest(
        entity_names=[request.entity_id], cascade_memories=request.cascade_memories, dry_run=request.dry_run
    )
    return delete_entities(graph, names)


def delete_entities(graph: Graph, request: DeleteEntitiesRequest) -> Future[EntitiesDeleted]:
    """Deletes entities and their relations in one commit. Memories about them stay, unless `cascade_memories` is set.

    A name that nothing has is not an error. With `dry_run` nothing is deleted. Raises Conflict for a name that several
    entities have.
    """

    def look(store: OpenStore) -> _EntitiesToDelete:
        with store.reading() as rows:
            ahead = PendingState(rows, store.memories, now_in_microseconds())
            return _EntitiesToDelete.of(MemoryDraft(ahead), rows, request)

    def batch(_: OpenStore, found: _EntitiesToDelete) -> WriteBatch:
        gone = [*found.entities, *found.memories]
        return WriteBatch(delete_nodes=gone, cost=sum(map(len, gone)))

    return graph.prepared(look, batch, lambda found, at: found.told(request, at), dry_run=request.dry_run)


class _EntitiesToDelete(msgspec.Struct):
    """What a deletion of entities means: their ids, names of which there is none, relations, and memories."""

    entities: list[str]
    missing: list[str]
    relations: int
    memories: list[str]
    shared: int
    kept: list[str]

    @classmethod
    def of(cls, draft: MemoryDraft, rows: Rows, request: DeleteEntitiesRequest) -> _EntitiesToDelete:
        """What is there of what is named."""
        met = {name: _id_or_name(draft, name) for name in request.entity_names}
        entities = list(dict.fromkeys(row.id for row in met.values() if row is not None))
        edges = {edge.key for entity in entities for edge in _relations_of(rows, entity)}
        memories: dict[str, None] = {}
        for entity in entities if request.cascade_memories else ():
            memories |= dict.fromkeys(with_versions(rows, _about(rows, entity)))
        shared = sum(1 for memory in memories if set(draft.ahead.about(memory)) - set(entities))
        missing = [name for name, row in met.items() if row is None]
        about = dict.fromkeys(memory for entity in entities for memory in memories_about(rows, entity))
        kept = [memory for memory in about if memory not in memories]
        return cls(entities, missing, len(edges), list(memories), shared, kept)

    def told(self, request: DeleteEntitiesRequest, sequence: int) -> EntitiesDeleted:
        """What is said of it."""
        return EntitiesDeleted(
            dry_run=request.dry_run,
            count=len(self.entities),
            ids=self.entities[:MAX_REPORTED_ITEMS],
            missing=self.missing[:MAX_REPORTED_ITEMS],
            relations_deleted=self.relations,
            memories_deleted=len(self.memories),
            memories_shared=self.shared,
            sequence=sequence,
            memories_kept=len(self.kept),
            memory_ids=self.kept[:MAX_REPORTED_ITEMS],
        )


def _about(rows: Rows, entity: str) -> list[str]:
    """The memories about an entity."""
    found = rows.around(np.array([rows.number(entity)]), outgoing=False)
    return [edge.source for edge in islice(rows.rows_of(of_kinds(rows, found, (IS_ABOUT,))), MAX_CASCADED_MEMORIES)]


def entity_graph(graph: Graph, request: EntityGraphRequest) -> EntityGraph:
    """Walks from one entity over relations, in both directions, to those that it reaches.

    Answers with them, with the relations between them, and with the surest memories about each; these count as used,
    unless `touch` is false or the key only reads. Raises NotFound, and Conflict for a name that several entities have.
    """
    with graph.lease() as store:
        start = found_entity(store, request.entity_id, graph.name)
        now = now_in_microseconds()
        with store.reading() as rows:
            around = _Around(rows, request.min_strength, now)
            depths, truncated = around.walk(start, request.depth, request.max_nodes)
            found = rows.nodes(depths)
            nodes = [
                GraphEntity(**entity_fields(found[each]), depth=depth, **_remembered(store, rows, each, request, now))
                for each, depth in depths.items()
            ]
            sequence, relations = rows.at, shown_relations(store, rows, around.between(depths))
        if request.touch and graph.graphs.caller.may("write"):
            _use_shown(store, nodes, now)
        return EntityGraph(nodes=nodes, edges=relations, truncated=truncated, sequence=sequence)


class _Around:
    """The relations of entities that are strong enough, and true at a moment."""

    def __init__(self, rows: Rows, least: float, moment: int) -> None:
        self._rows = rows
        self._least = least
        self._moment = moment

    def walk(self, start: str, depth: int, most: int) -> tuple[dict[str, int], bool]:
        """The entities within so many relations, nearest first and then by id, and whether more were in reach."""
        depths, level = {start: 0}, [start]
        for hops in range(1, depth + 1):
            ends = self._ends(level) - depths.keys()
            there = self._rows.nodes(ends).values()
            level = sorted(row.id for row in there if not row.is_memory and row.holds_at(self._moment))
            room = most - len(depths)
            depths |= dict.fromkeys(level[:room], hops)
            if len(level) > room:
                return depths, True
        return depths, False

    def between(self, ids: Collection[str]) -> list[EdgeRow]:
        """The relations between some entities."""
        return [edge for edge in self._rows.rows_of(self._of(ids, outgoing=True)) if edge.target in ids]

    def _ends(self, level: Collection[str]) -> set[str]:
        rows, ends = self._rows, set[int]()
        for outgoing in (True, False):
            ends.update(rows.ends(self._of(level, outgoing=outgoing))[outgoing].tolist())
        return set(rows.delta.ids([*ends]))

    def _of(self, ids: Collection[str], *, outgoing: bool) -> Gathered:
        rows = self._rows
        numbers = np.array([rows.number(each) for each in ids], np.int64)
        found = not_of_kinds(rows, rows.around(numbers, outgoing=outgoing), NON_ENTITY_RELATIONS)
        found = rows.holding(found, self._moment) if rows.dated else found
        return strong(rows, found, self._least) if self._least > 0 else found


def _remembered(store: OpenStore, rows: Rows, entity: str, request: EntityGraphRequest, now: int) -> dict[str, Any]:
    """The surest memories about an entity, and how many there are."""
    if not request.include_memories:
        return {}
    about = MemoryFilter(now=now, entity=entity)
    ids, count = store.memories.ask(
        lambda memories, _: (
            memories.listed(about, "confidence", MemoryPlace(), request.max_memories).ids,
            memories.count(about, MAX_COUNTED_MEMORIES).count,
        )
    )
    found = rows.nodes(ids)
    return {
        "memories": to_memories(store, rows, [found[node_id] for node_id in ids if node_id in found], now),
        "memory_count": count,
    }


def _use_shown(store: OpenStore, nodes: Iterable[GraphEntity], now: int) -> None:
    ids = {memory.id for node in nodes if not isinstance(node.memories, msgspec.UnsetType) for memory in node.memories}
    if ids:
        with store.reading() as rows:
            record_use(store, rows.nodes(ids).values(), now)


# Relations


def create_relations(graph: Graph, request: CreateRelationsRequest) -> Future[RelationsCreated]:
    """Creates relations between entities by name, in one commit; an end that is not there is made, of type `unknown`.

    A name that no entity has and that is the id of a memory means that memory.
    Stating a relation again sets what is sent of strength, confidence and context, and makes its confidence fresh.
    Makes the store if it does not exist. Raises InvalidInput, and Conflict for a name that several entities have.
    """
    faults = Faults()
    puts = [related_put(each, f"relations[{index}].", faults) for index, each in enumerate(request.relations)]
    faults.raise_any()
    made: list[tuple[EdgePut, Made]] = []
    ends: list[str] = []

    def decide(draft: MemoryDraft) -> WriteBatch:
        for each, put in zip(request.relations, puts, strict=True):
            key = relation_key(draft, each)
            made.append(put_relation(draft, msgspec.structs.replace(put, key=key)))
        ends.extend(draft.made)
        return msgspec.structs.replace(draft.batch(), touch=True)

    def answer(store: OpenStore, rows: Rows, report: Report) -> RelationsCreated:
        found = rows.edges([put.key for put, _ in made])
        relations = shown_relations(store, rows, [found[put.key] for put, _ in made])
        told = [
            CreatedRelation(**msgspec.structs.asdict(relation), outcome=outcome, sequence=report.sequence)
            for relation, (_, outcome) in zip(relations, made, strict=True)
        ]
        created = sum(outcome == "created" for _, outcome in made)
        return RelationsCreated(relations=told, created=created, entities_created=ends, sequence=report.sequence)

    return _decided(graph, decide, answer, 1_000 * len(puts), create=True)


def related_put(relation: RelationInput, place: str, faults: Faults) -> EdgePut:
    """A relation to write, checked; ``place`` is where it is in the request. Its ends are names yet."""
    own = Faults(place)
    edge = EdgeInput(
        source=relation.source,
        target=relation.target,
        relation_type=relation.relation_type,
        weight=relation.strength,
        attributes=relation.metadata,
        confidence=relation.confidence,
        context=relation.context,
    )
    put = edge_put(0, edge, called(own, _RELATION_FIELD_RENAMES))
    if relation.relation_type in NON_ENTITY_RELATIONS:
        own("relation_type", f"{relation.relation_type!r} is kept by the store itself")
    faults.errors += own.errors
    return put


def put_relation(draft: MemoryDraft, put: EdgePut) -> tuple[EdgePut, Made]:
    """Write a relation, and say what it comes to."""
    old = draft.edge(put.key)
    if old is None and put.weight is None:
        put = msgspec.structs.replace(put, weight=DEFAULT_STRENGTH)
    draft.put_edge(put)
    if old is None:
        return put, "created"
    if isinstance(old, EdgePut):
        return put, "updated"
    own, extras = edge_stamps(old.attributes).own, old.extras
    same = put.weight == old.weight and put.own in (None, own) and put.extras is not None
    same = same and extras is not None and put.extras is not None and put.extras.onto(extras) == extras
    return put, "existing" if same else "updated"


def delete_relations(graph: Graph, request: DeleteRelationsRequest) -> Future[RelationsDeleted]:
    """Deletes relations by the names of their ends, in one commit. One that is not there is not an error."""
    missing: list[RelationKey] = []

    def decide(draft: MemoryDraft) -> WriteBatch:
        for each in request.relations:
            source, target = met_end(draft, each.source), met_end(draft, each.target)
            key = (source or "", target or "", each.relation_type)
            if draft.edge(key) is None:
                missing.append(each)
            else:
                draft.drop_edge(key)
        return draft.batch()

    def answer(_: OpenStore, __: Rows, report: Report) -> RelationsDeleted:
        return RelationsDeleted(
            deleted=report.edges_deleted, missing=missing[:MAX_REPORTED_ITEMS], sequence=report.sequence
        )

    return _decided(graph, decide, answer, 1_000 * len(request.relations))


def delete_relation(graph: Graph, request: RelationId) -> Future[RelationsDeleted]:
    """Deletes one relation by its id. Deleting one that is not there is not an error."""
    key = edge_key(request.relation_id)
    there: list[bool] = []

    def decide(draft: MemoryDraft) -> WriteBatch:
        there.append(draft.edge(key) is not None)
        draft.drop_edge(key)
        return draft.batch()

    def answer(_: OpenStore, __: Rows, report: Report) -> RelationsDeleted:
        gone = RelationKey(source=key[0], target=key[1], relation_type=key[2])
        return RelationsDeleted(
            deleted=report.edges_deleted, missing=[] if there[0] else [gone], sequence=report.sequence
        )

    return _decided(graph, decide, answer, 1_000)


# Finding and showing


def _id_or_name(draft: MemoryDraft, text: str) -> NodeRow | None:
    """The entity with an id, else the one that is called so. Raises Conflict where several are."""
    by_id = draft.there((text,))
    if by_id:
        return by_id[0]
    met = draft.met(text)
    return None if met is None else draft.node(met)


def _one(draft: MemoryDraft, text: str, store: str) -> NodeRow:
    row = _id_or_name(draft, text)
    if row is None:
        raise no_entity(draft.ahead.names_like(text), text, store)
    return row


def no_entity(near: Sequence[str], text: str, store: str) -> NotFound:
    """What to say of a name or an id that no entity has, beside names like it."""
    hint = f"; there is {', '.join(map(repr, near))}" if near else ": no node has the id, or is called so"
    return NotFound(f"there is no entity {text!r} in store {store!r}{hint}")


def found_entity(store: OpenStore, text: str, name: str) -> str:
    """The id of the entity that has an id, or is called so, in the store of a name. Raises NotFound and Conflict."""
    with store.reading() as rows:
        return _one(MemoryDraft(PendingState(rows, store.memories, now_in_microseconds())), text, name).id


def _relations_of(rows: Rows, entity: str) -> Iterator[EdgeRow]:
    """The edges between an entity and others."""
    number = np.array([rows.number(entity)])
    for outgoing in (True, False):
        found = not_of_kinds(rows, rows.around(number, outgoing=outgoing), NON_ENTITY_RELATIONS)
        yield from (edge for edge in rows.rows_of(found) if outgoing or edge.source != entity)


def entity_fields(row: NodeRow) -> dict[str, Any]:
    """The fields of a `NamedEntity`."""
    metadata: dict[str, Any] = decode_json(row.attributes, dict[str, Any])
    aliases = aliases_in(row.attributes)
    if aliases:
        metadata.pop(ALIASES)
    return {
        "id": row.id,
        "name": name_of(row),
        "entity_type": row.type,
        "description": row.content,
        "metadata": metadata,
        "aliases": aliases,
        "created_at": format_time(row.created_at),
        "updated_at": format_time(row.updated_at),
        "version": row.version,
    }


def shown_relations(store: OpenStore, rows: Rows, edges: Sequence[EdgeRow]) -> list[Relation]:
    """Relations as callers get them."""
    fading, now = half_lives_of(store.description.memory).of(), now_in_microseconds()
    ends = rows.nodes({end for edge in edges for end in edge.key[:2]})

    def relation(edge: EdgeRow) -> Relation:
        stamps = edge_stamps(edge.attributes)
        extras = edge.extras
        sure = 1.0 if extras is None or extras.confidence is None else extras.confidence
        return Relation(
            id=edge_id(edge.key),
            source=edge.source,
            source_name=name_of(ends[edge.source]),
            target=edge.target,
            target_name=name_of(ends[edge.target]),
            relation_type=edge.relation_type,
            strength=edge.weight,
            confidence=sure,
            effective_confidence=decay.effective(Confidence(sure, parse_time(stamps.updated_at)), now, fading),
            context=(extras.context if extras is not None else "") or None,
            metadata=decode_json(stamps.own, dict[str, Any]),
            created_at=stamps.created_at,
            updated_at=stamps.updated_at,
        )

    return [relation(edge) for edge in edges]


def create_entity(graph: Graph, request: EntityInput) -> Future[CreatedEntity]:
    """Makes an entity, or meets the one of that name and type; makes the store if it does not exist.

    Names are the same whatever their case, blanks and forms of letters. One whose type nobody had said gets the type.
    Raises InvalidInput, TooLarge, StorageFull and Unavailable.
    """
    made = create_entities(graph, CreateEntitiesRequest(entities=[request]))
    return made_of(made, lambda answer: answer.entities[0])


def relate(graph: Graph, request: RelationInput) -> Future[CreatedRelation]:
    """Relates two entities by name, or memories by id; entities that are not there are made, as `unknown`.

    Stating a relation again updates it. Raises InvalidInput, Conflict for a name that several entities have, TooLarge,
    StorageFull and Unavailable.
    """
    made = create_relations(graph, CreateRelationsRequest(relations=[request]))
    return made_of(made, lambda answer: answer.relations[0])


def merge_entities(graph: Graph, request: MergeNode) -> Future[MergeAnswer]:
    """Merges an entity into another one that is the same, each by its id or its name: what is about either is about it.

    Both names mean the one that stays. Undone as the merge of any two nodes. Raises what a merge does, and Conflict for
    a name that several entities have.
    """
    with graph.lease() as store:
        absorbed, into = (found_entity(store, each, graph.name) for each in (request.node_id, request.into))
    return merge.merge(graph, msgspec.structs.replace(request, node_id=absorbed, into=into))
