"""Entities with observations, and relations between their names, as in the official MCP memory server.

Each write is one commit computed from the rows it finds, so concurrent writes lose no observations. A relation may name
an entity that does not exist. A placeholder, which reads do not return, represents it until the entity is created.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import accumulate, chain, islice, takewhile
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from kgserve.errors import NoStore, NotFound, TooLarge
from kgserve.graph.answers import NodePage
from kgserve.graph.compat.mcp_memory_server_api import (
    DEFAULT_ENTITY_TYPE,
    PLACEHOLDER_ATTRIBUTES,
    AddedObservations,
    CreatedEntities,
    CreatedRelations,
    DeletionDoneAnswer,
    EntitiesWithRelations,
    EntityNameRelation,
    EntityWithObservations,
    ObservationAddition,
    ObservationDeletion,
    ObservationsAddedAnswer,
    append_observations_to_content,
    decode_entity_observations,
    encode_entity_observations,
    is_placeholder_node,
    remove_observations_from_content,
)
from kgserve.graph.mutations import estimate_batch_bytes
from kgserve.graph.node_reads import list_nodes
from kgserve.graph.request_bodies import SearchRequest
from kgserve.graph.request_validation import ValidationErrorCollector, validate_identifier_length
from kgserve.graph.search.node_search import count_unindexed_commits, search_store_nodes, wait_for_latest_words
from kgserve.graph.search.search_notices import explain_index_lag
from kgserve.graph.store_handle import StoreHandle, completed_future, decode_answer_struct
from kgserve.graph.url_parameters import NodeListParameters
from kgserve.platform.access.authentication import HiddenStore
from kgserve.storage.model.node_edge_fields import MAX_CONTENT_BYTES, EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import EMPTY_ATTRIBUTES_JSON, EdgeKey, EdgeRow, NodeRow, has_validity_ended
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.rows.memory_hierarchy_and_redirects import resolve_merge_redirect
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

T = TypeVar("T")

MAX_READ_GRAPH_CHARS = 24_000
"""Characters of JSON in an answer."""
_MAX_ENTITY_CHARS = 18_000
"""Characters of JSON for an entity that is too long to be returned whole."""
MAX_NODES_PER_SEARCH = 50
MAX_SEMANTIC_HITS = 10
MAX_MATCHING_NAMES = 10
"""Names that a search compares, because entities without observations are not indexed.

An answer also lists at most this number of names that were left out.
"""
MAX_DELETED_EDGES_CHECKED = 10_000

_encode = msgspec.json.Encoder().encode


def create_entities(graph: StoreHandle, entities: Sequence[EntityWithObservations]) -> Future[CreatedEntities]:
    """Create the entities that do not exist, and return them; existing ones do not change, except retired ones.

    A retired entity is written again, and true from now on.

    Raises TooLarge for observations of more than 1 MiB.
    """
    faults = ValidationErrorCollector()
    for index, entity in enumerate(entities):
        validate_identifier_length(entity.name, f"entities[{index}].name", faults)
        validate_identifier_length(entity.entity_type or DEFAULT_ENTITY_TYPE, f"entities[{index}].entityType", faults)
    faults.raise_any()
    made: dict[str, EntityWithObservations] = {}

    def batch(rows: RowsSnapshot) -> WriteBatch:
        now, existing = time.time_ns() // 1000, _entities(rows, {entity.name for entity in entities})
        retired = {name for name, row in existing.items() if has_validity_ended(row.extras, now)}
        for entity in entities:
            if entity.name not in existing or entity.name in retired:
                made[entity.name] = _merge_entities(made.get(entity.name), entity)
        puts = [_entity_put(index, entity) for index, entity in enumerate(made.values())]
        again = NodeExtrasUpsert(valid_from=now, valid_to=None)
        puts = [replace(put, extras=again) if put.id in retired else put for put in puts]
        return add_missing_endpoint_placeholders(rows, WriteBatch(nodes=puts, cost=estimate_batch_bytes(puts, [])))

    return _submit(graph, batch, lambda: CreatedEntities(entities=list(made.values())), create=True)


def create_relations(graph: StoreHandle, relations: Sequence[EntityNameRelation]) -> Future[CreatedRelations]:
    """Create the relations that do not exist, and return them. Their ends need not exist.

    Retired relations, and retired ends, are true again from now on.
    """
    faults = ValidationErrorCollector()
    for index, relation in enumerate(relations):
        for text, field in zip(_relation_key(relation), EntityNameRelation.__struct_encode_fields__, strict=True):
            validate_identifier_length(text, f"relations[{index}].{field}", faults)
    faults.raise_any()
    wanted = {_relation_key(relation): relation for relation in relations}
    made: list[EntityNameRelation] = []

    def batch(rows: RowsSnapshot) -> WriteBatch:
        now, existing = time.time_ns() // 1000, rows.edges(list(wanted))
        ends = rows.nodes({end for key in wanted for end in key[:2]})
        retired_ends = {name for name, row in ends.items() if has_validity_ended(row.extras, now)}
        retired = {key for key, row in existing.items() if not row.is_valid_at(now)}
        new = [key for key in wanted if key not in existing or key in retired or not retired_ends.isdisjoint(key[:2])]
        made.extend(wanted[key] for key in new)
        again = EdgeExtrasUpsert(valid_from=now, valid_to=None)
        edges = [EdgeUpsert(index, key, extras=again if key in retired else None) for index, key in enumerate(new)]
        nodes = [NodeUpsert(0, name, extras=NodeExtrasUpsert(valid_from=now, valid_to=None)) for name in retired_ends]
        batch = WriteBatch(nodes=nodes, edges=edges, cost=estimate_batch_bytes(nodes, edges))
        return add_missing_endpoint_placeholders(rows, batch)

    return _submit(graph, batch, lambda: CreatedRelations(relations=made), create=True)


def add_observations(graph: StoreHandle, additions: Sequence[ObservationAddition]) -> Future[ObservationsAddedAnswer]:
    """Add observations that the entities do not have yet, and return them.

    Raises NotFound if an entity does not exist, and TooLarge for more than 1 MiB; then nothing is added.
    """
    added: list[AddedObservations] = []

    def batch(rows: RowsSnapshot) -> WriteBatch:
        contents = _contents(rows, [each.name for each in additions])
        for each in additions:
            if (name := resolve_merge_redirect(rows, each.name)) not in contents:
                raise _no_entity(each.name)
            known = set(decode_entity_observations(contents[name]))
            new = [text for text in each.contents if text not in known]
            contents[name] = append_observations_to_content(contents[name], new)
            added.append(AddedObservations(name=each.name, added=new))
        return _content_batch(contents)

    try:
        return _submit(graph, batch, lambda: ObservationsAddedAnswer(results=added))
    except HiddenStore:
        raise
    except NoStore:
        if not additions:
            return completed_future(ObservationsAddedAnswer(results=[]))
        raise _no_entity(additions[0].name) from None


def delete_entities(graph: StoreHandle, names: Sequence[str]) -> Future[DeletionDoneAnswer]:
    """Delete entities with their relations; missing ones are ignored."""

    def batch(rows: RowsSnapshot) -> WriteBatch:
        existing = {name for name in names if rows.has(name)}
        cut = {edge.key for name in existing for edge in _edges(rows, name)}
        return WriteBatch(delete_nodes=[*existing, *_orphaned_placeholders(rows, cut, existing)])

    return _submit_deletion(graph, batch, "Entities")


def delete_observations(graph: StoreHandle, deletions: Sequence[ObservationDeletion]) -> Future[DeletionDoneAnswer]:
    """Delete observations of entities; missing ones are ignored."""

    def batch(rows: RowsSnapshot) -> WriteBatch:
        contents = _contents(rows, [each.name for each in deletions])
        for each in deletions:
            if (name := resolve_merge_redirect(rows, each.name)) in contents:
                contents[name] = remove_observations_from_content(contents[name], {*each.observations})
        return _content_batch(contents)

    return _submit_deletion(graph, batch, "Observations")


def delete_relations(graph: StoreHandle, relations: Sequence[EntityNameRelation]) -> Future[DeletionDoneAnswer]:
    """Delete relations; missing ones are ignored."""

    def batch(rows: RowsSnapshot) -> WriteBatch:
        existing = rows.edges([_relation_key(relation) for relation in relations]).keys()
        return WriteBatch(delete_edges=list(existing), delete_nodes=_orphaned_placeholders(rows, existing, ()))

    return _submit_deletion(graph, batch, "Relations")


def add_missing_endpoint_placeholders(rows: RowsSnapshot, batch: WriteBatch) -> WriteBatch:
    """Return a batch with placeholders for the ends of its edges that do not exist.

    A placeholder that the batch writes to becomes an entity.
    """
    puts = {put.id for put in batch.nodes}
    missing = {end: put.index for put in batch.edges for end in put.key[:2] if end not in puts and not rows.has(end)}
    placeholders = [
        NodeUpsert(index, end, DEFAULT_ENTITY_TYPE, "", PLACEHOLDER_ATTRIBUTES) for end, index in missing.items()
    ]
    before = {name for name, row in rows.nodes(puts).items() if _is_placeholder(row)}
    nodes = [
        replace(put, attributes=put.attributes or EMPTY_ATTRIBUTES_JSON) if put.id in before else put
        for put in batch.nodes
    ]
    return replace(batch, nodes=nodes + placeholders)


def _submit(
    graph: StoreHandle, batch: Callable[[RowsSnapshot], WriteBatch], answer: Callable[[], T], *, create: bool = False
) -> Future[T]:
    """Commit the batch that ``batch`` builds from the rows after all earlier writes. Raises NoStore."""

    def prepared(store: OpenStore) -> WriteBatch:
        with store.reading() as rows:
            return batch(rows)

    return graph.write(lambda store: store.submit_prepared(lambda: prepared(store)), lambda _: answer(), create=create)


def _submit_deletion(
    graph: StoreHandle, batch: Callable[[RowsSnapshot], WriteBatch], what: str
) -> Future[DeletionDoneAnswer]:
    """Commit a deletion; a missing store has nothing to delete."""
    answer = DeletionDoneAnswer(message=f"{what} deleted successfully")
    try:
        return _submit(graph, batch, lambda: answer)
    except HiddenStore:
        raise
    except NoStore:
        return completed_future(answer)


def _entities(rows: RowsSnapshot, names: Collection[str]) -> dict[str, NodeRow]:
    return {name: row for name, row in rows.nodes(names).items() if not _is_placeholder(row)}


def _contents(rows: RowsSnapshot, names: Collection[str]) -> dict[str, str]:
    """Return contents of current entities by name, after following merge redirects."""
    ids, now = {resolve_merge_redirect(rows, name) for name in names}, time.time_ns() // 1000
    return {name: row.content for name, row in _entities(rows, ids).items() if row.is_valid_at(now)}


def _is_placeholder(row: NodeRow) -> bool:
    return is_placeholder_node(row.type, row.content, row.attributes)


def _relation_key(relation: EntityNameRelation) -> EdgeKey:
    return relation.source, relation.target, relation.relation_type


def _merge_entities(earlier: EntityWithObservations | None, entity: EntityWithObservations) -> EntityWithObservations:
    """Return the union of an entity that is sent twice."""
    if earlier is None:
        return entity
    known = set(earlier.observations)
    return replace(earlier, observations=[*earlier.observations, *(x for x in entity.observations if x not in known)])


def _entity_put(index: int, entity: EntityWithObservations) -> NodeUpsert:
    content = _check_content_size(entity.name, encode_entity_observations(entity.observations))
    return NodeUpsert(index, entity.name, entity.entity_type or DEFAULT_ENTITY_TYPE, content)


def _content_batch(contents: Mapping[str, str]) -> WriteBatch:
    puts = [
        NodeUpsert(index, name, content=_check_content_size(name, text))
        for index, (name, text) in enumerate(contents.items())
    ]
    return WriteBatch(nodes=puts, cost=estimate_batch_bytes(puts, []))


def _check_content_size(name: str, content: str) -> str:
    """Return the content. Raises TooLarge."""
    if len(content) * 4 > MAX_CONTENT_BYTES and len(content.encode()) > MAX_CONTENT_BYTES:
        raise TooLarge(f"the observations of {name[:80]!r} exceed {MAX_CONTENT_BYTES} bytes; use another entity")
    return content


def _no_entity(name: str) -> NotFound:
    return NotFound(f"Entity with name {name} not found; create it with create_entities")


def _edges(rows: RowsSnapshot, name: str) -> Iterator[EdgeRow]:
    return chain(rows.outgoing(name), rows.incoming(name))


def _orphaned_placeholders(rows: RowsSnapshot, cut: Collection[EdgeKey], but: Collection[str]) -> list[str]:
    """Return the placeholders without relations once some edges are deleted."""
    ends = dict.fromkeys(end for key in islice(cut, MAX_DELETED_EDGES_CHECKED) for end in key[:2] if end not in but)
    placeholders = (name for name, row in rows.nodes(ends).items() if _is_placeholder(row))
    return [name for name in placeholders if all(edge.key in cut for edge in _edges(rows, name))]


def list_entities_with_relations(graph: StoreHandle, after: str = "") -> EntitiesWithRelations:
    """Return entities in the order of their names, those after ``after``, each with the relations that start there."""

    def page(rows: RowsSnapshot) -> EntitiesWithRelations:
        gathered = _GraphPage(rows, whole=True)
        for name in rows.ids_after(after):
            if not gathered.take(name, rows.outgoing(name)):
                return gathered.graph(f"the graph continues: use read_graph with after {_quoted(gathered.last)}")
        return gathered.graph()

    return _or_empty(lambda: _read_rows(graph, page))


def get_entities_by_name(graph: StoreHandle, names: Iterable[str]) -> EntitiesWithRelations:
    """Return the entities of these names, with the relations that start or end there."""
    return _or_empty(lambda: _read_rows(graph, lambda rows: _read_entities(rows, names)))


def search_nodes(graph: StoreHandle, query: str) -> EntitiesWithRelations:
    """Return entities found by name, type or words, best first, with the relations that start or end there.

    The last word of the query may be the beginning of a word. Without such matches, return the nearest in meaning, and
    say so in ``more``. An empty query returns everything. Raises as a search does.
    """
    if not query.strip():
        return list_entities_with_relations(graph)
    return _or_empty(lambda: _search_entities(graph, query))


def _search_entities(graph: StoreHandle, query: str) -> EntitiesWithRelations:
    spelled = list(dict.fromkeys((query, query.lower(), query.capitalize(), query.title(), query.upper())))
    page = list_nodes(graph, NodeListParameters(type=spelled, limit=MAX_NODES_PER_SEARCH))
    typed = [node.id for node in decode_answer_struct(page, NodePage).nodes]
    has_words = wait_for_latest_words(graph)
    hits = search_store_nodes(
        graph, SearchRequest(query=query, limit=MAX_NODES_PER_SEARCH, neighbours=False, prefix=True)
    )
    with_words = [hit.node.id for hit in hits.hits if hit.keyword_score is not None]
    near = [hit.node.id for hit in hits.hits[:MAX_SEMANTIC_HITS]]
    lag = "" if has_words else explain_index_lag(max(count_unindexed_commits(graph, hits.index_sequence), 1))

    def found(rows: RowsSnapshot) -> EntitiesWithRelations:
        named = [*_matching_names(rows, spelled), *typed, *with_words]
        return _read_entities(rows, named or near, lag or ("" if named else hits.notice or ""))

    return _read_rows(graph, found)


def _matching_names(rows: RowsSnapshot, spelled: Sequence[str]) -> Iterator[str]:
    """Yield names that are the query, or begin with it, in several capitalizations."""
    behind = (
        name for text in spelled for name in islice(rows.ids_after(text), MAX_MATCHING_NAMES) if name.startswith(text)
    )
    return chain((text for text in spelled if rows.has(text)), islice(behind, MAX_MATCHING_NAMES))


def _read_entities(rows: RowsSnapshot, names: Iterable[str], notice: str = "") -> EntitiesWithRelations:
    gathered = _GraphPage(rows)
    survivors = dict.fromkeys(resolve_merge_redirect(rows, name) for name in names)
    left = [name for name in survivors if not gathered.take(name, _edges(rows, name))]
    more = f" and {len(left) - MAX_MATCHING_NAMES} more" if len(left) > MAX_MATCHING_NAMES else ""
    listed = ", ".join(map(_quoted, left[:MAX_MATCHING_NAMES]))
    hint = f"left out for their size: {listed}{more}; use open_nodes for fewer at a time" if left else ""
    return gathered.graph("; ".join(filter(None, (notice, hint))))


def _or_empty(look: Callable[[], EntitiesWithRelations]) -> EntitiesWithRelations:
    """Return the result; an empty graph if the store does not exist."""
    try:
        return look()
    except HiddenStore:
        raise
    except NoStore:
        return EntitiesWithRelations()


def _read_rows(graph: StoreHandle, look: Callable[[RowsSnapshot], EntitiesWithRelations]) -> EntitiesWithRelations:
    """Return the result of a read of the rows."""
    with graph.lease() as store, store.reading() as rows:
        return look(rows)


class _GraphPage:
    """Entities and relations up to the size limit, without placeholders and rows that are not valid now.

    whole: include relations that start at placeholders.
    """

    def __init__(self, rows: RowsSnapshot, *, whole: bool = False) -> None:
        self._rows = rows
        self._whole = whole
        self._now = time.time_ns() // 1000
        self._room = MAX_READ_GRAPH_CHARS
        self._entities: list[EntityWithObservations] = []
        self._relations: dict[EdgeKey, EntityNameRelation] = {}
        self._cut: list[str] = []
        self.last = ""

    def take(self, name: str, edges: Iterable[EdgeRow]) -> bool:
        """Add a node with edges; return whether it fits. The first node is always added, at least in part."""
        row = self._rows.node(name)
        if row is None or not row.is_valid_at(self._now) or (_is_placeholder(row) and not self._whole):
            return True
        first = not self._entities and not self._relations
        entities = [] if _is_placeholder(row) else [self._to_entity(row, shortened=first)]
        room = self._room - sum(map(_size, entities))
        relations: dict[EdgeKey, EntityNameRelation] = {}
        for edge in filter(self._is_new, edges):
            relation = EntityNameRelation(source=edge.source, target=edge.target, relation_type=edge.relation_type)
            room -= _size(relation)
            if room < 0:
                break
            relations[edge.key] = relation
        if room < 0 and not first:
            return False
        if room < 0:
            self._cut.append(f"{_quoted(name)} has more relations; list them with list_relations")
        self._room, self.last = max(room, 0), name
        self._entities += entities
        self._relations |= relations
        return True

    def graph(self, more: str = "") -> EntitiesWithRelations:
        """Return the graph; ``more`` says what was left out, and how to get it."""
        notes = "; ".join([*self._cut, *([more] if more else [])])
        return EntitiesWithRelations(
            entities=self._entities, relations=list(self._relations.values()), more=notes or msgspec.UNSET
        )

    def _to_entity(self, row: NodeRow, *, shortened: bool) -> EntityWithObservations:
        entity = EntityWithObservations(
            name=row.id, entity_type=row.type, observations=decode_entity_observations(row.content)
        )
        return self._shortened(entity) if shortened and _size(entity) > _MAX_ENTITY_CHARS else entity

    def _shortened(self, entity: EntityWithObservations) -> EntityWithObservations:
        """Return an entity with as many of its observations as fit, and at least a part of one."""
        ends = accumulate(_size(text) for text in entity.observations)
        count = sum(1 for _ in takewhile(lambda end: end <= _MAX_ENTITY_CHARS, ends))
        kept = entity.observations[:count] or [entity.observations[0][: _MAX_ENTITY_CHARS // 2] + "…"]
        offset = len(encode_entity_observations(entity.observations[:count])) if count else _MAX_ENTITY_CHARS // 2
        self._cut.append(
            f"only {count:,} of {len(entity.observations):,} observations of {_quoted(entity.name)} are included; "
            f"continue with get_entity and content_offset {offset}"
        )
        return replace(entity, observations=kept)

    def _is_new(self, edge: EdgeRow) -> bool:
        return edge.key not in self._relations and (not self._rows.has_validity_bounds or self._is_valid(edge))

    def _is_valid(self, edge: EdgeRow) -> bool:
        ends = self._rows.nodes(edge.key[:2]).values()
        return edge.is_valid_at(self._now) and all(end.is_valid_at(self._now) for end in ends)


def _size(part: Any) -> int:
    """Return the size of a value as JSON in characters, with a comma."""
    return len(_encode(part).decode()) + 1


def _quoted(text: str) -> str:
    return _encode(text).decode()
