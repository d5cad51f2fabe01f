"""Named entities and the relations between them: created and found by name, and traversed with their memories."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, TypeVar

import msgspec
import numpy as np

from kgserve.errors import Conflict, NotFound
from kgserve.graph import node_merge
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.graph.mutations import list_ids_of_memories_about_node
from kgserve.graph.node_merge_models import MergeNodeIntoAnotherRequest, NodeMergeAnswer
from kgserve.graph.request_bodies import EdgeInput, NodeInput
from kgserve.graph.request_validation import (
    ValidationErrorCollector,
    rename_fields_in_error_paths,
    validate_edge_input,
    validate_node_input,
)
from kgserve.graph.store_handle import StoreHandle, map_future
from kgserve.memory.deduplication import MemoryWriteBatchDraft, build_current_edge_upsert
from kgserve.memory.entity_models import (
    DEFAULT_STRENGTH,
    CreatedOrUpdatedEntity,
    CreatedRelation,
    CreateEntitiesAnswer,
    CreateEntitiesRequest,
    CreateRelationsAnswer,
    CreateRelationsRequest,
    DeleteEntitiesAnswer,
    DeleteEntitiesRequest,
    DeleteEntityRequest,
    DeleteRelationsAnswer,
    DeleteRelationsRequest,
    EntityGraphRequest,
    EntityIdRequest,
    EntityInput,
    EntityNeighborhoodAnswer,
    EntityRelation,
    EntityWithMemories,
    EntityWithRelations,
    RelationIdRequest,
    RelationInput,
    RelationKey,
    UpdatedEntity,
    UpdateEntityRequest,
    WriteOutcome,
)
from kgserve.memory.nonblocking_reads import require_small_neighbourhood
from kgserve.memory.relation_ends import find_relation_end_by_name, resolve_relation_ends_to_edge_key
from kgserve.memory.serialization import (
    build_memories_from_rows,
    get_node_name_or_id,
    now_in_microseconds,
    record_memory_uses,
    require_undeleted_rows,
)
from kgserve.platform.codecs import decode_json
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_rfc3339_timestamp
from kgserve.projections.memory_index import confidence_decay
from kgserve.projections.memory_index.confidence_decay import ConfidenceAtTime, memory_half_lives_from_settings
from kgserve.projections.memory_index.query_planner import MemoryPageStart
from kgserve.storage.model.entity_names import ALIASES_ATTRIBUTE, IS_ABOUT_RELATION, parse_entity_aliases
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION
from kgserve.storage.model.node_and_memory_filters import MemoryFilter
from kgserve.storage.model.node_edge_fields import NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import (
    EMPTY_ATTRIBUTES_JSON,
    EdgeRow,
    NodeRow,
    edge_id,
    parse_edge_id,
    split_edge_times_from_attributes,
)
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.rows.edge_pages import (
    exclude_edges_of_types,
    filter_edges_by_min_weight,
    filter_edges_by_type,
)
from kgserve.storage.rows.memory_predecessors import add_memory_predecessors
from kgserve.storage.rows.row_delta import BaseAndDeltaEdges
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pending_state import PendingCommitGroupState

T = TypeVar("T")

MAX_SHOWN_RELATIONS = 1_000
MAX_COUNTED_MEMORIES = 100_000
"""Maximum number of memories about an entity that are counted."""
MAX_CASCADED_MEMORIES = 100_000
"""Maximum number of memories about an entity that are deleted with it."""
_ENTITY_FIELD_RENAMES = {"type": "entity_type", "attributes": "metadata", "content": "description"}
_RELATION_FIELD_RENAMES = {"from": "source", "to": "target", "weight": "strength", "attributes": "metadata"}
"""Fields of nodes and edges by the names that callers use for them."""
NON_ENTITY_RELATIONS = (IS_ABOUT_RELATION, MERGED_INTO_RELATION)
"""Relation types that connect no two entities."""


def _write_by_names(
    graph: StoreHandle,
    decide: Callable[[MemoryWriteBatchDraft], WriteBatch],
    answer: Callable[[OpenStore, RowsSnapshot, WriteReport], T],
    cost: int,
    *,
    create: bool = False,
) -> Future[T]:
    """Submit a write by names; return the answer that is built from the rows after it."""
    leased: list[OpenStore] = []

    def begin(store: OpenStore) -> Future[WriteReport]:
        leased.append(store)
        return store.submit_decided(lambda ahead: decide(MemoryWriteBatchDraft(ahead)), cost)

    def done(report: WriteReport) -> T:
        with leased[0].reading() as rows:
            return answer(leased[0], rows, report)

    return graph.write(begin, done, create=create)


# Entities


def create_entities(graph: StoreHandle, request: CreateEntitiesRequest) -> Future[CreateEntitiesAnswer]:
    """Create entities in one commit; an existing entity of the same name and type, in any spelling, is updated.

    An untyped entity of the name receives the type. A retired one is true again from now on. Description, metadata and
    aliases of the request replace the stored ones. Creates the store if it does not exist. Raises InvalidInput and
    TooLarge.
    """
    faults = ValidationErrorCollector()
    puts = [_validate_entity(each, f"entities[{index}].", faults) for index, each in enumerate(request.entities)]
    faults.raise_any()
    made: list[tuple[str, WriteOutcome]] = []

    def decide(draft: MemoryWriteBatchDraft) -> WriteBatch:
        made.extend(_create_or_update(draft, each, put) for each, put in zip(request.entities, puts, strict=True))
        return draft.batch()

    def answer(_: OpenStore, rows: RowsSnapshot, report: WriteReport) -> CreateEntitiesAnswer:
        ids = [node_id for node_id, _ in made]
        found = require_undeleted_rows(rows.nodes(ids), ids, "entity")
        entities = [
            CreatedOrUpdatedEntity(**build_named_entity_fields(row), outcome=outcome, sequence=report.sequence)
            for row, (_, outcome) in zip(found, made, strict=True)
        ]
        created = sum(outcome == "created" for _, outcome in made)
        return CreateEntitiesAnswer(entities=entities, created=created, sequence=report.sequence)

    return _write_by_names(graph, decide, answer, 1_000 * len(puts), create=True)


def _validate_entity(entity: EntityInput, place: str, faults: ValidationErrorCollector) -> NodeUpsert:
    """Return the validated put of an entity whose id is not known yet."""
    own = ValidationErrorCollector(place)
    node = NodeInput(
        id="-", type=entity.entity_type, content=entity.description, attributes=entity.metadata, name=entity.name
    )
    put = validate_node_input(0, node, rename_fields_in_error_paths(own, _ENTITY_FIELD_RENAMES))
    faults.errors += own.errors
    return put


def _create_or_update(draft: MemoryWriteBatchDraft, entity: EntityInput, put: NodeUpsert) -> tuple[str, WriteOutcome]:
    before = {row.id: row for row in draft.find(entity.name)}
    node_id = draft.entity(entity.name, entity.entity_type)
    old, row = before.get(node_id), draft.node(node_id)
    if row is None:
        raise NotFound(f"there is no entity {node_id!r}")
    draft.restore_if_ended(row)
    attributes = _with_aliases(row, put.attributes, entity.aliases)
    named = row.extras is not None and row.extras.name
    row = draft.put_node(
        NodeUpsert(
            0,
            node_id,
            content=put.content,
            attributes=attributes,
            extras=None if named else NodeExtrasUpsert(name=entity.name),
        )
    )
    if old is None:
        return node_id, "created"
    if node_id in draft.restored:
        return node_id, "restored"
    same = (old.type, old.content, old.attributes, old.extras) == (row.type, row.content, row.attributes, row.extras)
    return node_id, "existing" if same else "updated"


_encode = msgspec.json.Encoder(order="deterministic").encode


def _with_aliases(row: NodeRow, metadata: str | None, aliases: Sequence[str] | None) -> str | None:
    """Return the attributes with the given metadata and aliases, or None if neither is given."""
    if metadata is None and aliases is None:
        return None
    names = parse_entity_aliases(row.attributes) if aliases is None else list(dict.fromkeys(aliases))
    found: dict[str, Any] = decode_json(row.attributes if metadata is None else metadata, dict[str, Any])
    if names and (aliases is not None or ALIASES_ATTRIBUTE not in found):
        found[ALIASES_ATTRIBUTE] = names
    elif aliases is not None:
        found.pop(ALIASES_ATTRIBUTE, None)
    return _encode(found).decode() if found else EMPTY_ATTRIBUTES_JSON


def get_entity(graph: StoreHandle, request: EntityIdRequest) -> EntityWithRelations:
    """Return an entity, by id or name, with its relations and the number of memories about it.

    Raises NotFound, and Conflict for an ambiguous name.
    """
    block = graph.most_edges is None
    with graph.lease() as store:
        entity = require_current_entity_id(store, request.entity_id, graph.name, block=block)
        with store.reading() as rows:
            if not block:
                require_small_neighbourhood(rows, entity, incoming=True)
            [row] = require_undeleted_rows(rows.nodes((entity,)), (entity,), "entity")
            edges = list(islice(_relations_of(rows, entity), MAX_SHOWN_RELATIONS + 1))
            number = rows.number(entity)
            about = filter_edges_by_type(
                rows, rows.edges_around(np.array([number]), outgoing=False), (IS_ABOUT_RELATION,)
            )
            return EntityWithRelations(
                **build_named_entity_fields(row),
                relations=convert_edges_to_entity_relations(store, rows, edges[:MAX_SHOWN_RELATIONS]),
                relations_truncated=len(edges) > MAX_SHOWN_RELATIONS,
                memories=len(about),
            )


def update_entity(graph: StoreHandle, request: UpdateEntityRequest) -> Future[UpdatedEntity]:
    """Update the given fields of an entity; a rename keeps its id.

    Raises InvalidInput, NotFound, and Conflict if another entity has the name and the type.
    """
    faults = ValidationErrorCollector()
    node = NodeInput(
        id="-",
        type=request.entity_type,
        content=request.description,
        attributes=request.metadata,
        name=request.name,
    )
    put = validate_node_input(0, node, rename_fields_in_error_paths(faults, _ENTITY_FIELD_RENAMES))
    faults.raise_any()
    found_ids: list[str] = []

    def decide(draft: MemoryWriteBatchDraft) -> WriteBatch:
        row = _require_entity(draft, request.entity_id, graph.name)
        found_ids.append(row.id)
        name, entity_type = request.name or get_node_name_or_id(row), request.entity_type or row.type
        others = [each.id for each in draft.find(name) if each.type == entity_type and each.id != row.id]
        if others and request.name is not None:
            raise Conflict(
                f"entity {others[0]!r} already has the name {name!r} and the type {entity_type!r}; merge the two"
            )
        attributes = _with_aliases(row, put.attributes, request.aliases)
        draft.put_node(msgspec.structs.replace(put, id=row.id, attributes=attributes))
        return draft.batch()

    def answer(_: OpenStore, rows: RowsSnapshot, report: WriteReport) -> UpdatedEntity:
        [row] = require_undeleted_rows(rows.nodes(found_ids), found_ids, "entity")
        return UpdatedEntity(**build_named_entity_fields(row), sequence=report.sequence)

    return _write_by_names(graph, decide, answer, len(request.description or "") + 1_000)


def delete_entity(graph: StoreHandle, request: DeleteEntityRequest) -> Future[DeleteEntitiesAnswer]:
    """Delete one entity, by id or name, with its relations. Options and errors are those of `delete_entities`."""
    names = DeleteEntitiesRequest(
        entity_names=[request.entity_id], cascade_memories=request.cascade_memories, dry_run=request.dry_run
    )
    return delete_entities(graph, names)


def delete_entities(graph: StoreHandle, request: DeleteEntitiesRequest) -> Future[DeleteEntitiesAnswer]:
    """Delete entities and their relations in one commit. Memories about them stay, unless `cascade_memories` is set.

    An unknown name is not an error. With `dry_run`, nothing is deleted. Raises Conflict for an ambiguous name.
    """

    def look(store: OpenStore) -> _EntityDeletion:
        with store.reading() as rows:
            ahead = PendingCommitGroupState(rows, store.memories, now_in_microseconds())
            return _EntityDeletion.of(MemoryWriteBatchDraft(ahead), rows, request)

    def batch(_: OpenStore, found: _EntityDeletion) -> WriteBatch:
        ids = [*found.entities, *found.memories]
        return WriteBatch(delete_nodes=ids, cost=sum(map(len, ids)))

    return graph.submit_prepared_batch(
        look, batch, lambda found, at: found.report(request, at), dry_run=request.dry_run
    )


class _EntityDeletion(msgspec.Struct):
    """Extent of a deletion of entities: their ids, unknown names, relations, and memories."""

    entities: list[str]
    missing: list[str]
    relations: int
    memories: list[str]
    shared: int
    kept: list[str]

    @classmethod
    def of(cls, draft: MemoryWriteBatchDraft, rows: RowsSnapshot, request: DeleteEntitiesRequest) -> _EntityDeletion:
        """Return the extent of the deletion that a request describes."""
        found = {name: _id_or_name(draft, name) for name in request.entity_names}
        entities = list(dict.fromkeys(row.id for row in found.values() if row is not None))
        edges = {edge.key for entity in entities for edge in _relations_of(rows, entity)}
        memories: dict[str, None] = {}
        for entity in entities if request.cascade_memories else ():
            memories |= dict.fromkeys(add_memory_predecessors(rows, _memory_ids_about(rows, entity)))
        shared = sum(1 for memory in memories if set(draft.ahead.about(memory)) - set(entities))
        missing = [name for name, row in found.items() if row is None]
        about = dict.fromkeys(memory for entity in entities for memory in list_ids_of_memories_about_node(rows, entity))
        kept = [memory for memory in about if memory not in memories]
        return cls(entities, missing, len(edges), list(memories), shared, kept)

    def report(self, request: DeleteEntitiesRequest, sequence: int) -> DeleteEntitiesAnswer:
        """Return the result of the deletion."""
        return DeleteEntitiesAnswer(
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


def _memory_ids_about(rows: RowsSnapshot, entity: str) -> list[str]:
    """Return the ids of the memories about an entity."""
    found = rows.edges_around(np.array([rows.number(entity)]), outgoing=False)
    return [
        edge.source
        for edge in islice(rows.rows_of(filter_edges_by_type(rows, found, (IS_ABOUT_RELATION,))), MAX_CASCADED_MEMORIES)
    ]


def get_entity_neighbourhood(graph: StoreHandle, request: EntityGraphRequest) -> EntityNeighborhoodAnswer:
    """Return the entities within a distance from one entity, following relations in both directions.

    The answer includes the relations between them and the most confident memories about each. The memories count as
    used, unless `touch` is false or the key is read-only. Raises NotFound, and Conflict for an ambiguous name.
    """
    with graph.lease() as store:
        start = require_current_entity_id(store, request.entity_id, graph.name)
        now = now_in_microseconds()
        with store.reading() as rows:
            require_undeleted_rows(rows.nodes((start,)), (start,), "entity")
            around = _RelationGraph(rows, request.min_strength, now)
            depths, truncated = around.walk(start, request.depth, request.max_nodes)
            found = rows.nodes(depths)
            nodes = [
                EntityWithMemories(
                    **build_named_entity_fields(found[each]),
                    depth=depth,
                    **_memory_fields(store, rows, each, request, now),
                )
                for each, depth in depths.items()
            ]
            sequence, relations = rows.at, convert_edges_to_entity_relations(store, rows, around.between(depths))
        if request.touch and graph.graphs.caller.has_role("write"):
            _record_uses(store, nodes, now)
        return EntityNeighborhoodAnswer(nodes=nodes, edges=relations, truncated=truncated, sequence=sequence)


class _RelationGraph:
    """Relations between entities that are valid at a moment and strong enough."""

    def __init__(self, rows: RowsSnapshot, least: float, moment: int) -> None:
        self._rows = rows
        self._least = least
        self._moment = moment

    def walk(self, start: str, depth: int, most: int) -> tuple[dict[str, int], bool]:
        """Return the entities within `depth` relations with their distances, and whether more are within it.

        Entities are ordered by distance, then by id; at most `most` are returned.
        """
        depths, level = {start: 0}, [start]
        for hops in range(1, depth + 1):
            ends = self._ends(level) - depths.keys()
            reached = self._rows.nodes(ends).values()
            level = sorted(row.id for row in reached if not row.is_memory and row.is_valid_at(self._moment))
            room = most - len(depths)
            depths |= dict.fromkeys(level[:room], hops)
            if len(level) > room:
                return depths, True
        return depths, False

    def between(self, ids: Collection[str]) -> list[EdgeRow]:
        """Return the relations between some entities."""
        return [edge for edge in self._rows.rows_of(self._of(ids, outgoing=True)) if edge.target in ids]

    def _ends(self, level: Collection[str]) -> set[str]:
        rows, ends = self._rows, set[int]()
        for outgoing in (True, False):
            ends.update(rows.edge_endpoints(self._of(level, outgoing=outgoing))[outgoing].tolist())
        return set(rows.delta.ids([*ends]))

    def _of(self, ids: Collection[str], *, outgoing: bool) -> BaseAndDeltaEdges:
        rows = self._rows
        numbers = np.array([rows.number(each) for each in ids], np.int64)
        found = exclude_edges_of_types(rows, rows.edges_around(numbers, outgoing=outgoing), NON_ENTITY_RELATIONS)
        found = rows.filter_valid(found, self._moment) if rows.has_validity_bounds else found
        return filter_edges_by_min_weight(rows, found, self._least) if self._least > 0 else found


def _memory_fields(
    store: OpenStore, rows: RowsSnapshot, entity: str, request: EntityGraphRequest, now: int
) -> dict[str, Any]:
    """Return the most confident memories about an entity, and their number."""
    if not request.include_memories:
        return {}
    about = MemoryFilter(now=now, entity=entity)
    ids, count = store.memories.ask(
        lambda memories, _: (
            memories.list_memory_page(about, "confidence", MemoryPageStart(), request.max_memories).ids,
            memories.count(about, MAX_COUNTED_MEMORIES).count,
        )
    )
    found = rows.nodes(ids)
    return {
        "memories": build_memories_from_rows(store, rows, [found[node_id] for node_id in ids if node_id in found], now),
        "memory_count": count,
    }


def _record_uses(store: OpenStore, nodes: Iterable[EntityWithMemories], now: int) -> None:
    ids = {memory.id for node in nodes if not isinstance(node.memories, msgspec.UnsetType) for memory in node.memories}
    if ids:
        with store.reading() as rows:
            record_memory_uses(store, rows.nodes(ids).values(), now)


# Relations


def create_relations(graph: StoreHandle, request: CreateRelationsRequest) -> Future[CreateRelationsAnswer]:
    """Create relations between entities by name, in one commit; missing ends are created with type `unknown`.

    A name that no entity has and that is the id of a memory means that memory. Repeating a relation updates the given
    strength, confidence and context, and restarts the decay of its confidence. A retired one is true again from now on,
    as are its ends. Creates the store if it does not exist.
    Raises InvalidInput, and Conflict for an ambiguous name.
    """
    faults = ValidationErrorCollector()
    puts = [validate_relation(each, f"relations[{index}].", faults) for index, each in enumerate(request.relations)]
    faults.raise_any()
    made: list[tuple[EdgeUpsert, WriteOutcome]] = []
    ends: list[str] = []

    def decide(draft: MemoryWriteBatchDraft) -> WriteBatch:
        for each, put in zip(request.relations, puts, strict=True):
            key = resolve_relation_ends_to_edge_key(draft, each)
            made.append(put_relation_in_batch_draft(draft, msgspec.structs.replace(put, key=key)))
        ends.extend((*draft.made, *draft.restored))
        return msgspec.structs.replace(draft.batch(), touch=True)

    def answer(store: OpenStore, rows: RowsSnapshot, report: WriteReport) -> CreateRelationsAnswer:
        keys = [put.key for put, _ in made]
        found = require_undeleted_rows(rows.edges(keys), keys, "relation")
        relations = convert_edges_to_entity_relations(store, rows, found)
        created_relations = [
            CreatedRelation(**msgspec.structs.asdict(relation), outcome=outcome, sequence=report.sequence)
            for relation, (_, outcome) in zip(relations, made, strict=True)
        ]
        created = sum(outcome == "created" for _, outcome in made)
        return CreateRelationsAnswer(
            relations=created_relations, created=created, entities_created=ends, sequence=report.sequence
        )

    return _write_by_names(graph, decide, answer, 1_000 * len(puts), create=True)


def validate_relation(relation: RelationInput, place: str, faults: ValidationErrorCollector) -> EdgeUpsert:
    """Return the validated put of a relation whose ends are still names; `place` is its path in the request."""
    own = ValidationErrorCollector(place)
    edge = EdgeInput(
        source=relation.source,
        target=relation.target,
        relation_type=relation.relation_type,
        weight=relation.strength,
        attributes=relation.metadata,
        confidence=relation.confidence,
        context=relation.context,
    )
    put = validate_edge_input(0, edge, rename_fields_in_error_paths(own, _RELATION_FIELD_RENAMES))
    if relation.relation_type in NON_ENTITY_RELATIONS:
        own("relation_type", f"{relation.relation_type!r} is reserved for the store")
    faults.errors += own.errors
    return put


def put_relation_in_batch_draft(draft: MemoryWriteBatchDraft, put: EdgeUpsert) -> tuple[EdgeUpsert, WriteOutcome]:
    """Write a relation; return the put and its outcome."""
    old = draft.edge(put.key)
    if old is None and put.weight is None:
        put = msgspec.structs.replace(put, weight=DEFAULT_STRENGTH)
    is_restored = not (draft.is_edge_current(put.key) and draft.restored.keys().isdisjoint(put.key[:2]))
    put = build_current_edge_upsert(draft, put)
    draft.put_edge(put)
    if old is None:
        return put, "created"
    if is_restored:
        return put, "restored"
    if isinstance(old, EdgeUpsert):
        return put, "updated"
    own, extras = split_edge_times_from_attributes(old.attributes).own, old.extras
    same = put.weight == old.weight and put.own in (None, own) and put.extras is not None
    same = same and extras is not None and put.extras is not None and put.extras.applied_to(extras) == extras
    return put, "existing" if same else "updated"


def delete_relations(graph: StoreHandle, request: DeleteRelationsRequest) -> Future[DeleteRelationsAnswer]:
    """Delete relations by the names of their ends, in one commit. A missing relation is not an error."""
    missing: list[RelationKey] = []

    def decide(draft: MemoryWriteBatchDraft) -> WriteBatch:
        for each in request.relations:
            source, target = (
                find_relation_end_by_name(draft, each.source),
                find_relation_end_by_name(draft, each.target),
            )
            key = (source or "", target or "", each.relation_type)
            if draft.edge(key) is None:
                missing.append(each)
            else:
                draft.drop_edge(key)
        return draft.batch()

    def answer(_: OpenStore, __: RowsSnapshot, report: WriteReport) -> DeleteRelationsAnswer:
        return DeleteRelationsAnswer(
            deleted=report.edges_deleted, missing=missing[:MAX_REPORTED_ITEMS], sequence=report.sequence
        )

    return _write_by_names(graph, decide, answer, 1_000 * len(request.relations))


def delete_relation(graph: StoreHandle, request: RelationIdRequest) -> Future[DeleteRelationsAnswer]:
    """Delete one relation by its id. A missing relation is not an error."""
    key = parse_edge_id(request.relation_id)
    existed: list[bool] = []

    def decide(draft: MemoryWriteBatchDraft) -> WriteBatch:
        existed.append(draft.edge(key) is not None)
        draft.drop_edge(key)
        return draft.batch()

    def answer(_: OpenStore, __: RowsSnapshot, report: WriteReport) -> DeleteRelationsAnswer:
        deleted = RelationKey(source=key[0], target=key[1], relation_type=key[2])
        return DeleteRelationsAnswer(
            deleted=report.edges_deleted, missing=[] if existed[0] else [deleted], sequence=report.sequence
        )

    return _write_by_names(graph, decide, answer, 1_000)


# Lookup and presentation


def _id_or_name(draft: MemoryWriteBatchDraft, text: str) -> NodeRow | None:
    """Return the entity with an id, else with a name, or None. Raises Conflict for an ambiguous name."""
    by_id = draft.find_current_nodes((text,))
    if by_id:
        return by_id[0]
    found = draft.find_entity_named(text)
    return None if found is None else draft.node(found)


def _require_entity(draft: MemoryWriteBatchDraft, text: str, store: str) -> NodeRow:
    row = _id_or_name(draft, text)
    if row is None:
        raise entity_not_found(draft.ahead.similar_names(text), text, store)
    return row


def entity_not_found(near: Sequence[str], text: str, store: str) -> NotFound:
    """Return the error for a name or id that no entity has, with similar names as a hint."""
    hint = f"; similar names: {', '.join(map(repr, near))}" if near else ": no node has this id or name"
    return NotFound(f"there is no entity {text!r} in store {store!r}{hint}")


def require_current_entity_id(store: OpenStore, text: str, name: str, *, block: bool = True) -> str:
    """Return the id of an entity, given its id or name.

    Raises NotFound and Conflict, and without ``block`` WouldBlock if names must be looked up.
    """
    with store.reading() as rows:
        draft = MemoryWriteBatchDraft(PendingCommitGroupState(rows, store.memories, now_in_microseconds()))
        if not block:
            require_small_neighbourhood(rows, text, incoming=False)
            if not draft.find_current_nodes((text,)):
                raise WouldBlock
        return _require_entity(draft, text, name).id


def _relations_of(rows: RowsSnapshot, entity: str) -> Iterator[EdgeRow]:
    """Yield the edges between an entity and others."""
    number = np.array([rows.number(entity)])
    for outgoing in (True, False):
        found = exclude_edges_of_types(rows, rows.edges_around(number, outgoing=outgoing), NON_ENTITY_RELATIONS)
        yield from (edge for edge in rows.rows_of(found) if outgoing or edge.source != entity)


def build_named_entity_fields(row: NodeRow) -> dict[str, Any]:
    """Return the fields of a `NamedEntity`."""
    metadata: dict[str, Any] = decode_json(row.attributes, dict[str, Any])
    aliases = parse_entity_aliases(row.attributes)
    if aliases:
        metadata.pop(ALIASES_ATTRIBUTE)
    return {
        "id": row.id,
        "name": get_node_name_or_id(row),
        "entity_type": row.type,
        "description": row.content,
        "metadata": metadata,
        "aliases": aliases,
        "created_at": format_rfc3339_timestamp(row.created_at),
        "updated_at": format_rfc3339_timestamp(row.updated_at),
        "version": row.version,
    }


def convert_edges_to_entity_relations(
    store: OpenStore, rows: RowsSnapshot, edges: Sequence[EdgeRow]
) -> list[EntityRelation]:
    """Return relations in the form of the answer."""
    half_life, now = memory_half_lives_from_settings(store.description.memory).of(), now_in_microseconds()
    ends = rows.nodes({end for edge in edges for end in edge.key[:2]})

    def relation(edge: EdgeRow) -> EntityRelation:
        stamps = split_edge_times_from_attributes(edge.attributes)
        extras = edge.extras
        confidence = 1.0 if extras is None or extras.confidence is None else extras.confidence
        return EntityRelation(
            id=edge_id(edge.key),
            source=edge.source,
            source_name=get_node_name_or_id(ends[edge.source]),
            target=edge.target,
            target_name=get_node_name_or_id(ends[edge.target]),
            relation_type=edge.relation_type,
            strength=edge.weight,
            confidence=confidence,
            effective_confidence=confidence_decay.decayed_confidence(
                ConfidenceAtTime(confidence, parse_rfc3339_timestamp(stamps.updated_at)), now, half_life
            ),
            context=(extras.context if extras is not None else "") or None,
            metadata=decode_json(stamps.own, dict[str, Any]),
            created_at=stamps.created_at,
            updated_at=stamps.updated_at,
        )

    return [relation(edge) for edge in edges]


def create_entity(graph: StoreHandle, request: EntityInput) -> Future[CreatedOrUpdatedEntity]:
    """Create an entity, or update the one of that name and type; create the store if it does not exist.

    Names are compared ignoring case, whitespace and letter forms. An untyped entity receives the type. Raises
    InvalidInput, TooLarge, StorageFull and Unavailable.
    """
    made = create_entities(graph, CreateEntitiesRequest(entities=[request]))
    return map_future(made, lambda answer: answer.entities[0])


def create_relation(graph: StoreHandle, request: RelationInput) -> Future[CreatedRelation]:
    """Relate two entities by name, or memories by id; missing entities are created as `unknown`.

    Repeating a relation updates it. Raises InvalidInput, Conflict for an ambiguous name, TooLarge, StorageFull and
    Unavailable.
    """
    made = create_relations(graph, CreateRelationsRequest(relations=[request]))
    return map_future(made, lambda answer: answer.relations[0])


def merge_entities(graph: StoreHandle, request: MergeNodeIntoAnotherRequest) -> Future[NodeMergeAnswer]:
    """Merge an entity into another one, each by id or name; memories about either are then about the merged one.

    Both names refer to the remaining entity. The merge can be undone like that of any two nodes. Raises the errors of a
    merge, and Conflict for an ambiguous name.
    """
    with graph.lease() as store:
        absorbed, into = (
            require_current_entity_id(store, each, graph.name) for each in (request.node_id, request.into)
        )
    return node_merge.merge_nodes(graph, msgspec.structs.replace(request, node_id=absorbed, into=into))
