"""Paginated lists of memories, entities and relations. Listing does not count as a use."""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from kgserve.errors import InvalidInput, NotFound
from kgserve.graph.as_of_resolution import parse_valid_at
from kgserve.graph.request_validation import ValidationErrorCollector, parse_attribute_filter_json, parse_filter_time
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.deleted_entity_lookup import find_deleted_entity
from kgserve.memory.entity_models import (
    EntityListQuery,
    EntityMemoriesRequest,
    EntityPage,
    NamedEntity,
    RelationListQuery,
    RelationPage,
)
from kgserve.memory.entity_operations import (
    build_named_entity_fields,
    convert_edges_to_entity_relations,
    require_current_entity_id,
)
from kgserve.memory.hierarchy import resolve_active_memory_in_store
from kgserve.memory.memory_models import MAX_PAGE_OFFSET, MemoryListQuery, MemoryPage, StillReferencedDeletedEntity
from kgserve.memory.serialization import build_memories_from_rows, now_in_microseconds
from kgserve.platform.codecs import msgpack_decoder
from kgserve.projections.memory_index.memory_index_file import MemoryIndexSqliteFile
from kgserve.projections.memory_index.memory_index_reader import RelationsBetweenEntitiesFilter
from kgserve.projections.memory_index.projection import MemoryIndexDamaged
from kgserve.projections.memory_index.query_planner import MAX_SORTED_MEMORIES, MemoryPageStart, MemorySortKey
from kgserve.storage.model.attribute_filters import AttributeCondition, matches_attribute_conditions
from kgserve.storage.model.node_and_memory_filters import MemoryFilter, NodeFilter
from kgserve.storage.model.node_edge_rows import EdgeKey
from kgserve.storage.model.soft_delete import is_current_unwithdrawn_memory
from kgserve.storage.rows.memory_hierarchy_and_redirects import resolve_merge_redirect
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

T = TypeVar("T")

_Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Cursor of a page of memories: sort order, time of the first page, and position."""

    sort: MemorySortKey
    now: _Whole
    value: _Whole
    id: str
    half: _Whole
    skip: Annotated[int, msgspec.Meta(ge=0, le=MAX_PAGE_OFFSET)]


def list_memories(graph: StoreHandle, request: MemoryListQuery) -> MemoryPage:
    """Return a page of the memories that match all filters, newest or highest first; withdrawn ones only with `ended`.

    A page ends after examining 20,000 memories: it may be short or empty and still have a `next_cursor`. Raises
    InvalidInput, NotFound if the entity or the memory `under` does not exist, and Conflict for an ambiguous name.
    """
    if request.offset and request.cursor:
        raise InvalidInput.at("offset", "cannot be combined with `cursor`, which includes it")
    start = _first_cursor(request.cursor, request.sort, request.offset)
    wanted = _build_filter(request, start.now)
    conditions = parse_attribute_filter_json(request.metadata, "metadata")
    with graph.lease() as store:
        deleted: StillReferencedDeletedEntity | msgspec.UnsetType = msgspec.UNSET
        if request.entity:
            wanted, deleted = _restrict_to_entity(graph, store, wanted, request.entity)
        if request.under:
            wanted = msgspec.structs.replace(
                wanted, under=resolve_active_memory_in_store(store, request.under, graph.name).id
            )
        if conditions:
            wanted = msgspec.structs.replace(
                wanted, among=_intersect(wanted.among, _nodes_with_attributes(store, conditions))
            )
        if wanted.min_confidence or start.sort in ("confidence", "accessed"):
            # Buffered uses are not in the memory index yet.
            store.accesses.flush_and_wait()
        page = _build_page(store, wanted, conditions, start, request.limit)
        page.deleted_entity = deleted
        return page


def _restrict_to_entity(
    graph: StoreHandle, store: OpenStore, wanted: MemoryFilter, text: str
) -> tuple[MemoryFilter, StillReferencedDeletedEntity | msgspec.UnsetType]:
    """Restrict a filter to an entity; also return the entity if it was deleted. Raises NotFound and Conflict."""
    try:
        return msgspec.structs.replace(wanted, entity=require_current_entity_id(store, text, graph.name)), msgspec.UNSET
    except NotFound:
        found = find_deleted_entity(graph.graphs.historian, store, text)
        if found is None:
            raise
        with store.reading() as rows:
            memories = frozenset(row.id for row in rows.nodes(found.memories).values() if row.is_memory)
        return msgspec.structs.replace(wanted, among=memories), found.entity


def _intersect(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return the intersection of two filters on ids; None matches all."""
    return one if other is None else other if one is None else one & other


def _build_filter(request: MemoryListQuery, now: int) -> MemoryFilter:
    """Return the filter without the parts that require the store."""
    faults = ValidationErrorCollector()
    after, before = (
        parse_filter_time(request.after_date, "after_date", faults),
        parse_filter_time(request.before_date, "before_date", faults),
    )
    faults.raise_any()
    return MemoryFilter(
        now,
        types=tuple(filter(None, request.types or ())),
        tags=tuple(filter(None, dict.fromkeys(request.tags or ()))),
        min_confidence=request.min_confidence or 0.0,
        created_from=after,
        created_to=None if before is None else before - 1,
        source=request.source or "",
        layer=request.layer,
        orphans=request.orphans,
        ended=request.ended or "",
        valid_at=msgspec.UNSET if request.valid_at is None else parse_valid_at(request.valid_at),
    )


def list_entity_memories(graph: StoreHandle, request: EntityMemoriesRequest) -> MemoryPage:
    """Return a page of the memories about an entity, newest first. Raises the same errors as `list_memories`."""
    query = MemoryListQuery(entity=request.entity_id, limit=request.limit, offset=request.offset, cursor=request.cursor)
    return list_memories(graph, query)


def _build_page(
    store: OpenStore, wanted: MemoryFilter, conditions: tuple[AttributeCondition, ...], start: _Cursor, limit: int
) -> MemoryPage:
    place = MemoryPageStart(start.value, start.id, start.half, start.skip)

    def look(memories: MemoryIndexSqliteFile, rows: RowsSnapshot) -> MemoryPage:
        also = _has_attributes(rows, conditions) if conditions else None
        page = memories.list_memory_page(wanted, start.sort, place, limit, also)
        found = rows.nodes(page.ids)
        if len(found) != len(page.ids) or not all(row.is_memory for row in found.values()):
            raise MemoryIndexDamaged("it refers to a missing memory")
        cursor = None if page.next is None else _encode_cursor(_Cursor(start.sort, start.now, *page.next))
        return MemoryPage(
            memories=build_memories_from_rows(store, rows, [*found.values()], now_in_microseconds()), next_cursor=cursor
        )

    return store.memories.ask(look)


def _nodes_with_attributes(store: OpenStore, conditions: tuple[AttributeCondition, ...]) -> frozenset[str] | None:
    """Return the nodes with some attributes, or None if they are too many."""
    wanted = NodeFilter(attributes=conditions)
    ids = store.query_catalog(
        lambda catalog, _: catalog.find_matching_ids(wanted, MAX_SORTED_MEMORIES + 1), by_attributes=True
    )
    return frozenset(ids) if len(ids) <= MAX_SORTED_MEMORIES else None


def _has_attributes(rows: RowsSnapshot, conditions: tuple[AttributeCondition, ...]) -> Callable[[str], bool]:
    def has(node_id: str) -> bool:
        row = rows.node(node_id)
        return row is not None and matches_attribute_conditions(row.attributes, conditions)

    return has


def list_named_entities_page(graph: StoreHandle, request: EntityListQuery) -> EntityPage:
    """Return a page of the named entities, by name ignoring case, then by id. Raises InvalidInput for a bad cursor."""
    after = _decode_cursor(request.cursor, tuple[str, str], ("", ""))
    types = tuple(filter(None, request.type))
    with graph.lease() as store:

        def look(memories: MemoryIndexSqliteFile, rows: RowsSnapshot) -> EntityPage:
            page = memories.entities(types, request.name, after, request.limit)
            found = rows.nodes(page.ids)
            if len(found) != len(page.ids):
                raise MemoryIndexDamaged("it refers to a missing entity")
            entities = [NamedEntity(**build_named_entity_fields(row)) for row in found.values()]
            return EntityPage(entities=entities, next_cursor=None if page.next is None else _encode_cursor(page.next))

        return store.memories.ask(look)


def list_entity_and_memory_relations(graph: StoreHandle, request: RelationListQuery) -> RelationPage:
    """Return a page of the current relations between named entities and memories, by ends and types.

    A page ends after examining 20,000 relations: it may be short or empty and still have a `next_cursor`. Raises
    InvalidInput for a bad cursor, NotFound if an entity does not exist, and Conflict for an ambiguous name.
    """
    after = _decode_cursor(request.cursor, EdgeKey, None)
    with graph.lease() as store:
        wanted = RelationsBetweenEntitiesFilter(
            now_in_microseconds(),
            _resolve_end(store, request.source, graph.name) if request.source else "",
            _resolve_end(store, request.target, graph.name) if request.target else "",
            tuple(filter(None, request.type)),
            request.min_strength or -math.inf,  # edges of a graph may have negative weights
        )

        def look(memories: MemoryIndexSqliteFile, rows: RowsSnapshot) -> RelationPage:
            page = memories.relations(wanted, after, request.limit)
            found = rows.edges(page.keys)
            if len(found) != len(page.keys):
                raise MemoryIndexDamaged("it refers to a missing relation")
            relations = convert_edges_to_entity_relations(store, rows, [*found.values()])
            return RelationPage(
                relations=relations, next_cursor=None if page.next is None else _encode_cursor(page.next)
            )

        return store.memories.ask(look)


def _resolve_end(store: OpenStore, text: str, name: str) -> str:
    """Return the id of an entity, by id or name, or of a memory. Raises NotFound and Conflict."""
    try:
        return require_current_entity_id(store, text, name)
    except NotFound:
        with store.reading() as rows:
            row = rows.node(resolve_merge_redirect(rows, text))
        if is_current_unwithdrawn_memory(row):
            return row.id
        raise


# Cursors


def _first_cursor(cursor: str | None, sort: MemorySortKey, offset: int) -> _Cursor:
    first = _Cursor(sort, now_in_microseconds(), *MemoryPageStart(skip=offset))
    found = _decode_cursor(cursor, _Cursor, first)
    if found.sort != sort:
        raise _invalid_cursor()
    return found


def _encode_cursor(place: object) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(place)).decode().rstrip("=")


def _decode_cursor(cursor: str | None, kind: Any, start: T) -> T:
    if not cursor:
        return start
    try:
        found = msgpack_decoder(kind).decode(urlsafe_b64decode((cursor + "=" * (-len(cursor) % 4)).encode("ascii")))
    except (ValueError, msgspec.DecodeError):
        raise _invalid_cursor() from None
    # The decoder ignores characters outside its alphabet.
    if _encode_cursor(found) != cursor:
        raise _invalid_cursor()
    return found


def _invalid_cursor() -> InvalidInput:
    message = "is not a cursor of this list"
    return InvalidInput.at("cursor", message)
