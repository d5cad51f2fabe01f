"""Paginated lists of memories, entities and relations. Listing does not count as a use."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from kgserve.errors import InvalidInput, NotFound
from kgserve.graph.handle import Graph
from kgserve.graph.temporal import valid_moment
from kgserve.graph.validate import Faults, asked_in_json, bound
from kgserve.memory.api import MAX_PAGE_OFFSET, DeletedEntity, MemoriesQuery, MemoryPage
from kgserve.memory.deleted_entities import find_deleted
from kgserve.memory.entities import entity_fields, found_entity, shown_relations
from kgserve.memory.entities_api import (
    EntitiesQuery,
    EntityMemoriesRequest,
    EntityPage,
    NamedEntity,
    RelationPage,
    RelationsQuery,
)
from kgserve.memory.hierarchy import found_memory
from kgserve.memory.presentation import now_in_microseconds, to_memories
from kgserve.platform.codecs import msgpack_decoder
from kgserve.projections.memory_index.lookups import RelationFilter
from kgserve.projections.memory_index.memories import Memories
from kgserve.projections.memory_index.projection import MemoriesDamaged
from kgserve.projections.memory_index.selecting import MAX_SORTED_MEMORIES, MemoryPlace, Sort
from kgserve.storage.model.attributes import Condition, has_all
from kgserve.storage.model.filters import MemoryFilter, NodeFilter
from kgserve.storage.model.rows import EdgeKey
from kgserve.storage.model.soft_delete import is_live
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.ways import resolve_redirect
from kgserve.stores.store import OpenStore

T = TypeVar("T")

_Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Cursor of a page of memories: sort order, time of the first page, and position."""

    sort: Sort
    now: _Whole
    value: _Whole
    id: str
    half: _Whole
    skip: Annotated[int, msgspec.Meta(ge=0, le=MAX_PAGE_OFFSET)]


def list_memories(graph: Graph, request: MemoriesQuery) -> MemoryPage:
    """Return a page of the memories that match all filters, newest or highest first; withdrawn ones only with `ended`.

    A page ends after examining 20,000 memories: it may be short or empty and still have a `next_cursor`. Raises
    InvalidInput, NotFound if the entity or the memory `under` does not exist, and Conflict for an ambiguous name.
    """
    if request.offset and request.cursor:
        raise InvalidInput.at("offset", "cannot be combined with `cursor`, which includes it")
    start = _first_cursor(request.cursor, request.sort, request.offset)
    wanted = _build_filter(request, start.now)
    conditions = asked_in_json(request.metadata, "metadata")
    with graph.lease() as store:
        deleted: DeletedEntity | msgspec.UnsetType = msgspec.UNSET
        if request.entity:
            wanted, deleted = _restrict_to_entity(graph, store, wanted, request.entity)
        if request.under:
            wanted = msgspec.structs.replace(wanted, under=found_memory(store, request.under, graph.name).id)
        if conditions:
            wanted = msgspec.structs.replace(
                wanted, among=_intersect(wanted.among, _nodes_with_attributes(store, conditions))
            )
        if wanted.min_confidence or start.sort in ("confidence", "accessed"):
            # Buffered uses are not in the memory index yet.
            store.accesses.settle()
        page = _build_page(store, wanted, conditions, start, request.limit)
        page.deleted_entity = deleted
        return page


def _restrict_to_entity(
    graph: Graph, store: OpenStore, wanted: MemoryFilter, text: str
) -> tuple[MemoryFilter, DeletedEntity | msgspec.UnsetType]:
    """Restrict a filter to an entity; also return the entity if it was deleted. Raises NotFound and Conflict."""
    try:
        return msgspec.structs.replace(wanted, entity=found_entity(store, text, graph.name)), msgspec.UNSET
    except NotFound:
        found = find_deleted(graph.graphs.historian, store, text)
        if found is None:
            raise
        with store.reading() as rows:
            memories = frozenset(row.id for row in rows.nodes(found.memories).values() if row.is_memory)
        return msgspec.structs.replace(wanted, among=memories), found.entity


def _intersect(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return the intersection of two filters on ids; None matches all."""
    return one if other is None else other if one is None else one & other


def _build_filter(request: MemoriesQuery, now: int) -> MemoryFilter:
    """Return the filter without the parts that require the store."""
    faults = Faults()
    after, before = bound(request.after_date, "after_date", faults), bound(request.before_date, "before_date", faults)
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
        valid_at=msgspec.UNSET if request.valid_at is None else valid_moment(request.valid_at),
    )


def entity_memories(graph: Graph, request: EntityMemoriesRequest) -> MemoryPage:
    """Return a page of the memories about an entity, newest first. Raises the same errors as `list_memories`."""
    query = MemoriesQuery(entity=request.entity_id, limit=request.limit, offset=request.offset, cursor=request.cursor)
    return list_memories(graph, query)


def _build_page(
    store: OpenStore, wanted: MemoryFilter, conditions: tuple[Condition, ...], start: _Cursor, limit: int
) -> MemoryPage:
    place = MemoryPlace(start.value, start.id, start.half, start.skip)

    def look(memories: Memories, rows: Rows) -> MemoryPage:
        also = _has_attributes(rows, conditions) if conditions else None
        page = memories.listed(wanted, start.sort, place, limit, also)
        found = rows.nodes(page.ids)
        if len(found) != len(page.ids) or not all(row.is_memory for row in found.values()):
            raise MemoriesDamaged("it refers to a missing memory")
        cursor = None if page.next is None else _encode_cursor(_Cursor(start.sort, start.now, *page.next))
        return MemoryPage(
            memories=to_memories(store, rows, [*found.values()], now_in_microseconds()), next_cursor=cursor
        )

    return store.memories.ask(look)


def _nodes_with_attributes(store: OpenStore, conditions: tuple[Condition, ...]) -> frozenset[str] | None:
    """Return the nodes with some attributes, or None if they are too many."""
    wanted = NodeFilter(attributes=conditions)
    ids = store.listing(lambda catalog, _: catalog.having(wanted, MAX_SORTED_MEMORIES + 1), by_attributes=True)
    return frozenset(ids) if len(ids) <= MAX_SORTED_MEMORIES else None


def _has_attributes(rows: Rows, conditions: tuple[Condition, ...]) -> Callable[[str], bool]:
    def has(node_id: str) -> bool:
        row = rows.node(node_id)
        return row is not None and has_all(row.attributes, conditions)

    return has


def list_entities(graph: Graph, request: EntitiesQuery) -> EntityPage:
    """Return a page of the named entities, by name ignoring case, then by id. Raises InvalidInput for a bad cursor."""
    after = _decode_cursor(request.cursor, tuple[str, str], ("", ""))
    types = tuple(filter(None, request.type))
    with graph.lease() as store:

        def look(memories: Memories, rows: Rows) -> EntityPage:
            page = memories.entities(types, request.name, after, request.limit)
            found = rows.nodes(page.ids)
            if len(found) != len(page.ids):
                raise MemoriesDamaged("it refers to a missing entity")
            entities = [NamedEntity(**entity_fields(row)) for row in found.values()]
            return EntityPage(entities=entities, next_cursor=None if page.next is None else _encode_cursor(page.next))

        return store.memories.ask(look)


def list_relations(graph: Graph, request: RelationsQuery) -> RelationPage:
    """Return a page of the current relations between named entities and memories, by ends and types.

    A page ends after examining 20,000 relations: it may be short or empty and still have a `next_cursor`. Raises
    InvalidInput for a bad cursor, NotFound if an entity does not exist, and Conflict for an ambiguous name.
    """
    after = _decode_cursor(request.cursor, EdgeKey, None)
    with graph.lease() as store:
        wanted = RelationFilter(
            now_in_microseconds(),
            _resolve_end(store, request.source, graph.name) if request.source else "",
            _resolve_end(store, request.target, graph.name) if request.target else "",
            tuple(filter(None, request.type)),
            request.min_strength,
        )

        def look(memories: Memories, rows: Rows) -> RelationPage:
            page = memories.relations(wanted, after, request.limit)
            found = rows.edges(page.keys)
            if len(found) != len(page.keys):
                raise MemoriesDamaged("it refers to a missing relation")
            relations = shown_relations(store, rows, [*found.values()])
            return RelationPage(
                relations=relations, next_cursor=None if page.next is None else _encode_cursor(page.next)
            )

        return store.memories.ask(look)


def _resolve_end(store: OpenStore, text: str, name: str) -> str:
    """Return the id of an entity, by id or name, or of a memory. Raises NotFound and Conflict."""
    try:
        return found_entity(store, text, name)
    except NotFound:
        with store.reading() as rows:
            row = rows.node(resolve_redirect(rows, text))
        if is_live(row):
            return row.id
        raise


# Cursors


def _first_cursor(cursor: str | None, sort: Sort, offset: int) -> _Cursor:
    first = _Cursor(sort, now_in_microseconds(), *MemoryPlace(skip=offset))
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
