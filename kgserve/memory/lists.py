"""Lists of memories, of entities and of relations, in pages. None of them counts as a use."""

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
    """Where a page of memories begins, in which order, and when its first page was asked for."""

    sort: Sort
    now: _Whole
    value: _Whole
    id: str
    half: _Whole
    skip: Annotated[int, msgspec.Meta(ge=0, le=MAX_PAGE_OFFSET)]


def list_memories(graph: Graph, request: MemoriesQuery) -> MemoryPage:
    """Lists the memories that all filters let pass, newest or most first; those that were withdrawn only by `ended`.

    A page that has looked at 20,000 memories ends there: it may be short, or empty, with a `next_cursor`. Raises
    InvalidInput, NotFound for an entity, or a memory `under`, that there is not, and Conflict for a name that several
    entities have.
    """
    if request.offset and request.cursor:
        raise InvalidInput.at("offset", "goes with the first page only; the cursor knows how far that was")
    start = _start(request.cursor, request.sort, request.offset)
    wanted = _wanted(request, start.now)
    conditions = asked_in_json(request.metadata, "metadata")
    with graph.lease() as store:
        deleted: DeletedEntity | msgspec.UnsetType = msgspec.UNSET
        if request.entity:
            wanted, deleted = _about(graph, store, wanted, request.entity)
        if request.under:
            wanted = msgspec.structs.replace(wanted, under=found_memory(store, request.under, graph.name).id)
        if conditions:
            wanted = msgspec.structs.replace(wanted, among=_among_both(wanted.among, _holders(store, conditions)))
        if wanted.min_confidence or start.sort in ("confidence", "accessed"):
            # What waits to be journaled is not in the view.
            store.accesses.settle()
        page = _page(store, wanted, conditions, start, request.limit)
        page.deleted_entity = deleted
        return page


def _about(
    graph: Graph, store: OpenStore, wanted: MemoryFilter, text: str
) -> tuple[MemoryFilter, DeletedEntity | msgspec.UnsetType]:
    """Keep to the memories about an entity, which is returned if it was deleted. Raises NotFound and Conflict."""
    try:
        return msgspec.structs.replace(wanted, entity=found_entity(store, text, graph.name)), msgspec.UNSET
    except NotFound:
        found = find_deleted(graph.graphs.historian, store, text)
        if found is None:
            raise
        with store.reading() as rows:
            there = frozenset(row.id for row in rows.nodes(found.memories).values() if row.is_memory)
        return msgspec.structs.replace(wanted, among=there), found.entity


def _among_both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """The ids that both let pass; None lets all pass."""
    return one if other is None else other if one is None else one & other


def _wanted(request: MemoriesQuery, now: int) -> MemoryFilter:
    """What is asked for, but for what only the store knows."""
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
    """Lists the memories about an entity, by its id or its name, newest first. Raises what `list_memories` does."""
    query = MemoriesQuery(entity=request.entity_id, limit=request.limit, offset=request.offset, cursor=request.cursor)
    return list_memories(graph, query)


def _page(
    store: OpenStore, wanted: MemoryFilter, conditions: tuple[Condition, ...], start: _Cursor, limit: int
) -> MemoryPage:
    place = MemoryPlace(start.value, start.id, start.half, start.skip)

    def look(memories: Memories, rows: Rows) -> MemoryPage:
        also = _having(rows, conditions) if conditions else None
        page = memories.listed(wanted, start.sort, place, limit, also)
        found = rows.nodes(page.ids)
        if len(found) != len(page.ids) or not all(row.is_memory for row in found.values()):
            raise MemoriesDamaged("it names a memory that is not there")
        cursor = None if page.next is None else _cursor(_Cursor(start.sort, start.now, *page.next))
        return MemoryPage(
            memories=to_memories(store, rows, [*found.values()], now_in_microseconds()), next_cursor=cursor
        )

    return store.memories.ask(look)


def _holders(store: OpenStore, conditions: tuple[Condition, ...]) -> frozenset[str] | None:
    """The nodes that have some attributes, if those are few."""
    wanted = NodeFilter(attributes=conditions)
    ids = store.listing(lambda catalog, _: catalog.having(wanted, MAX_SORTED_MEMORIES + 1), by_attributes=True)
    return frozenset(ids) if len(ids) <= MAX_SORTED_MEMORIES else None


def _having(rows: Rows, conditions: tuple[Condition, ...]) -> Callable[[str], bool]:
    def has(node_id: str) -> bool:
        row = rows.node(node_id)
        return row is not None and has_all(row.attributes, conditions)

    return has


def list_entities(graph: Graph, request: EntitiesQuery) -> EntityPage:
    """Lists the entities that have a name, by name in any case and then by id. Raises InvalidInput for a cursor."""
    after = _decoded(request.cursor, tuple[str, str], ("", ""))
    types = tuple(filter(None, request.type))
    with graph.lease() as store:

        def look(memories: Memories, rows: Rows) -> EntityPage:
            page = memories.entities(types, request.name, after, request.limit)
            found = rows.nodes(page.ids)
            if len(found) != len(page.ids):
                raise MemoriesDamaged("it names an entity that is not there")
            entities = [NamedEntity(**entity_fields(row)) for row in found.values()]
            return EntityPage(entities=entities, next_cursor=None if page.next is None else _cursor(page.next))

        return store.memories.ask(look)


def list_relations(graph: Graph, request: RelationsQuery) -> RelationPage:
    """Lists the relations between named entities and memories that are true now, by their ends and their types.

    A page that has looked at 20,000 relations ends there: it may be short, or empty, with a `next_cursor`. Raises
    InvalidInput for a cursor, NotFound for an entity that there is not, and Conflict for a name that several have.
    """
    after = _decoded(request.cursor, EdgeKey, None)
    with graph.lease() as store:
        wanted = RelationFilter(
            now_in_microseconds(),
            _found_end(store, request.source, graph.name) if request.source else "",
            _found_end(store, request.target, graph.name) if request.target else "",
            tuple(filter(None, request.type)),
            request.min_strength,
        )

        def look(memories: Memories, rows: Rows) -> RelationPage:
            page = memories.relations(wanted, after, request.limit)
            found = rows.edges(page.keys)
            if len(found) != len(page.keys):
                raise MemoriesDamaged("it names a relation that is not there")
            relations = shown_relations(store, rows, [*found.values()])
            return RelationPage(relations=relations, next_cursor=None if page.next is None else _cursor(page.next))

        return store.memories.ask(look)


def _found_end(store: OpenStore, text: str, name: str) -> str:
    """Return the id of an entity, by its id or its name, or of a memory. Raises NotFound and Conflict."""
    try:
        return found_entity(store, text, name)
    except NotFound:
        with store.reading() as rows:
            row = rows.node(resolve_redirect(rows, text))
        if is_live(row):
            return row.id
        raise


# Cursors


def _start(cursor: str | None, sort: Sort, offset: int) -> _Cursor:
    first = _Cursor(sort, now_in_microseconds(), *MemoryPlace(skip=offset))
    found = _decoded(cursor, _Cursor, first)
    if found.sort != sort:
        raise _no_cursor()
    return found


def _cursor(place: object) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(place)).decode().rstrip("=")


def _decoded(cursor: str | None, kind: Any, start: T) -> T:
    if not cursor:
        return start
    try:
        found = msgpack_decoder(kind).decode(urlsafe_b64decode((cursor + "=" * (-len(cursor) % 4)).encode("ascii")))
    except (ValueError, msgspec.DecodeError):
        raise _no_cursor() from None
    # The decoder passes over signs that are none of its alphabet.
    if _cursor(found) != cursor:
        raise _no_cursor()
    return found


def _no_cursor() -> InvalidInput:
    message = "is not a cursor that a page of this list gave"
    return InvalidInput.at("cursor", message)
