"""The operations that are more than a request and its answer: that stream, come in pages, or are sent in several forms.

A function makes the request and knows how its answer is read; the rest of them, in `kgserve.client.operations`, are
made from the table of operations. Parameters, their defaults and descriptions here are those of the clients' methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from kgserve.admin.api import StoreAnswer, StoreSettingsAnswer
from kgserve.client.answers import BatchHits, CypherResult
from kgserve.client.following import RECONNECT_TIMEOUT_SECONDS, Following
from kgserve.client.lines import ExportLine, RowDecoder, Source, Upload, export_decoder, json_body
from kgserve.client.wire import ClientRequest, Route, Streamed
from kgserve.graph.answers import BrowserKey, EntityVersion, ImportAnswer, ListedPage, NodePage
from kgserve.graph.compat.versioned_api import PutNodeAnswer, PutNodeRequest
from kgserve.graph.queries import EntityHistoryRequest, NodesQuery
from kgserve.graph.requests import CypherRequest, SearchVariant
from kgserve.memory.hierarchy_api import AncestorsRequest, BelowRequest, PlacedMemory
from kgserve.platform.media_types import JSON_MEDIA_TYPE, NDJSON_MEDIA_TYPE
from kgserve.storage.model.store_settings import ConflictPolicy, IndexesKept, Keeping

QUERY_TIMEOUT_MARGIN_SECONDS = 30.0
"""Seconds that an answer may take beyond the time limit of its query: it may wait for its turn."""

_STORE_PATH = "/api/memory/{store}"
OPENAPI_ROUTE = Route("openapi", "GET", "/openapi.json", dict[str, Any])
BROWSER_KEY_ROUTE = Route("browser_key", "POST", "/api/browser-key", BrowserKey, in_body=True)
EVENTS_ROUTE = Route("events", "GET", "/api/events", bytes)


CREATE_ROUTE = Route("create", "PUT", _STORE_PATH, StoreAnswer, in_body=True)
UPDATE_SETTINGS_ROUTE = Route("update_settings", "PATCH", _STORE_PATH, StoreSettingsAnswer, in_body=True)
NODES_ROUTE = Route("nodes", "GET", f"{_STORE_PATH}/nodes", NodePage, reads=True)
COMPACT_NODES_ROUTE = Route("nodes", "GET", f"{_STORE_PATH}/nodes", ListedPage, reads=True)
PUT_NODE_ROUTE = Route("put_node", "POST", f"{_STORE_PATH}/nodes", PutNodeAnswer, in_body=True)
SEARCH_BATCH_ROUTE = Route("search_batch", "POST", f"{_STORE_PATH}/search/batch", BatchHits, in_body=True, reads=True)
CYPHER_ROUTE = Route("cypher", "POST", f"{_STORE_PATH}/cypher", CypherResult, in_body=True, reads=True)
IMPORT_ROUTE = Route("import_", "POST", f"{_STORE_PATH}/import", ImportAnswer)
EXPORT_ROUTE = Route("export", "GET", f"{_STORE_PATH}/export", bytes, reads=True)
STORE_EVENTS_ROUTE = Route("store_events", "GET", f"{_STORE_PATH}/events", bytes)
ENTITY_HISTORY_ROUTE = Route("entity_history", "GET", "/api/v1/entities/{id}/history", list[EntityVersion], reads=True)

CHILDREN_ROUTE = Route("children", "GET", "/api/v1/memories/{id}/children", list[PlacedMemory], reads=True)
DESCENDANTS_ROUTE = Route("descendants", "GET", "/api/v1/memories/{id}/descendants", list[PlacedMemory], reads=True)
ANCESTORS_ROUTE = Route("ancestors", "GET", "/api/v1/memories/{id}/ancestors", list[PlacedMemory], reads=True)


class Paged(msgspec.Struct, frozen=True):
    """A list of nodes that comes in pages."""

    store: str
    wanted: NodesQuery

    def page(self, cursor: str | None = None) -> ClientRequest[NodePage]:
        """The first page, or the one that the ``next_cursor`` of another names."""
        offset = 0 if cursor else self.wanted.offset
        # The nodes of both can be read alike, but for what compact ones have not.
        route = cast("Route[NodePage]", COMPACT_NODES_ROUTE) if self.wanted.compact else NODES_ROUTE
        return route.ask(self.store, msgspec.structs.replace(self.wanted, cursor=cursor, offset=offset))


def openapi() -> ClientRequest[dict[str, Any]]:
    """Get the server's description of its interface, OpenAPI 3.1."""
    return OPENAPI_ROUTE.call({})


def browser_key(role: Literal["read", "write"] = "read") -> ClientRequest[BrowserKey]:
    """Create an API key for a page in a browser, for 12 hours. It ends with the key that asks for it, or the server."""
    return BROWSER_KEY_ROUTE.call({}, body={"role": role})


def create(  # noqa: PLR0913 - the fields of the request
    name: str,
    *,
    display_name: str | None = None,
    conflict_policy: ConflictPolicy | None = None,
    kind_whitelist: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    indexed_attributes: Iterable[str] | None = None,
    indexes: IndexesKept | None = None,
    history: Keeping | None = None,
    memory: Mapping[str, Any] | None = None,
) -> ClientRequest[StoreAnswer]:
    """Create an empty store with settings; one that exists stays as it is. The first inject creates a store as well.

    ``display_name`` is the ``name`` among its settings.
    """
    body = _chosen(
        name=display_name,
        conflict_policy=conflict_policy,
        kind_whitelist=kind_whitelist,
        metadata=metadata,
        indexed_attributes=indexed_attributes,
        indexes=indexes,
        history=history,
        memory=memory,
    )
    return CREATE_ROUTE.ask(name, body or None)


def update_settings(  # noqa: PLR0913 - the fields of the request
    store: str,
    *,
    name: str | None = None,
    conflict_policy: ConflictPolicy | None = None,
    kind_whitelist: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    indexed_attributes: Iterable[str] | None = None,
    indexes: IndexesKept | None = None,
    history: Keeping | None = None,
    memory: Mapping[str, Any] | None = None,
) -> ClientRequest[StoreSettingsAnswer]:
    """Change the store's settings: what is None stays, what is empty is cleared.

    ``indexes`` is what search finds by: "none", "words", "words+meaning", or "default", as the server has it;
    ``history`` is what is kept of former states: "all", "none", or those that ended in so many last days;
    ``memory`` is how it remembers, merged by field. Raises InvalidInput, whose ``errors`` name every place, and
    NotFound.
    """
    body = _chosen(
        name=name,
        conflict_policy=conflict_policy,
        kind_whitelist=kind_whitelist,
        metadata=metadata,
        indexed_attributes=indexed_attributes,
        indexes=indexes,
        history=history,
        memory=memory,
    )
    return UPDATE_SETTINGS_ROUTE.ask(store, body)


def _chosen(
    *, kind_whitelist: Iterable[str] | None = None, indexed_attributes: Iterable[str] | None = None, **others: object
) -> dict[str, object]:
    """The settings that are not None, as they are sent."""
    several = {"kind_whitelist": kind_whitelist, "indexed_attributes": indexed_attributes}
    lists = {name: list(values) for name, values in several.items() if values is not None}
    return {name: value for name, value in others.items() if value is not None} | lists


def nodes(  # noqa: PLR0913 - the fields of the query
    store: str,
    *,
    type: str | Iterable[str] | None = None,  # noqa: A002 - the field's name
    page_size: int = 1000,
    as_of: int | str | None = None,
    tags: Iterable[str] = (),
    attributes: Mapping[str, Any] | None = None,
    valid_at: str | None = None,
    offset: int = 0,
    compact: bool = False,
) -> Paged:
    """List nodes by id, or those of some types, fetched ``page_size`` at a time (1 to 1,000).

    With ``tags`` only those that have all of them, with ``attributes`` those that have all of these with these values.
    ``offset`` passes over the first, at most 10,000; ``compact`` leaves out contents, attributes and who wrote what.
    """
    types = [] if type is None else [type] if isinstance(type, str) else [*type]
    having = None if attributes is None else json_body(attributes).decode()
    wanted = NodesQuery(
        type=types,
        tag=list(tags),
        attributes=having,
        limit=page_size,
        as_of=_moment(as_of),
        valid_at=valid_at,
        offset=offset,
        compact=compact,
    )
    return Paged(store, wanted)


def put_node(store: str, node: Mapping[str, Any] | PutNodeRequest) -> ClientRequest[PutNodeAnswer]:
    """Write a version of a node, whole: what is left out becomes empty. Without an id a new node is created.

    Raises ConflictManual, with the node as written, when it is kept beside other heads, and KindNotAllowed.
    """
    return PUT_NODE_ROUTE.ask(store, node, idempotent=False)


def entity_history(
    store: str, entity_id: str, *, limit: int = 1000, after_sequence: int | None = None
) -> ClientRequest[list[EntityVersion]]:
    """List the versions of an entity, oldest first; ``after_sequence`` is the sequence of the previous page's last."""
    asked = EntityHistoryRequest(entity_id=entity_id, limit=limit, after_sequence=after_sequence or 0)
    return ENTITY_HISTORY_ROUTE.ask(store, asked)


def children(
    store: str,
    memory_id: str,
    *,
    limit: int = 100,
    cursor: str | None = None,
    layer: int | None = None,
    as_of: int | str | None = None,
) -> ClientRequest[list[PlacedMemory]]:
    """List the memories directly below one, in the order of ids; ``cursor`` is the last id of the previous page."""
    return CHILDREN_ROUTE.ask(store, _below(memory_id, limit, cursor, layer, as_of))


def descendants(
    store: str,
    memory_id: str,
    *,
    limit: int = 100,
    cursor: str | None = None,
    layer: int | None = None,
    as_of: int | str | None = None,
) -> ClientRequest[list[PlacedMemory]]:
    """List the memories below one at any depth, in the order of ids; ``cursor`` is the last id of the previous page.

    Of one layer among very many others a page may be short or empty though more come; the header `Link` of REST tells.
    """
    return DESCENDANTS_ROUTE.ask(store, _below(memory_id, limit, cursor, layer, as_of))


def ancestors(
    store: str, memory_id: str, *, layer: int | None = None, as_of: int | str | None = None
) -> ClientRequest[list[PlacedMemory]]:
    """List the memories above one, nearest first."""
    return ANCESTORS_ROUTE.ask(store, AncestorsRequest(memory_id=memory_id, layer=layer, as_of=_moment(as_of)))


def _below(memory_id: str, limit: int, cursor: str | None, layer: int | None, as_of: int | str | None) -> BelowRequest:
    return BelowRequest(memory_id=memory_id, limit=limit, cursor=cursor, layer=layer, as_of=_moment(as_of))


def _moment(as_of: int | str | None) -> str | None:
    return None if as_of is None else str(as_of)


def search_batch(
    store: str,
    queries: Sequence[str | Mapping[str, Any] | SearchVariant],
    *,
    limit: int = 20,
    at_least: int | None = None,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> ClientRequest[BatchHits]:
    """Run 1 to 8 searches and merge the results; a text alone is a variant with default options."""
    variants = [{"query": each} if isinstance(each, str) else each for each in queries]
    asked = {"queries": variants, "limit": limit, "at_least": at_least, "as_of": as_of, "valid_at": valid_at}
    return SEARCH_BATCH_ROUTE.ask(store, asked)


def cypher(
    store: str,
    query: str,
    params: Mapping[str, Any] | None = None,
    *,
    mode: Literal["read", "write"] = "read",
    timeout_ms: int | None = None,
    max_rows: int | None = None,
) -> ClientRequest[CypherResult]:
    """Run one Cypher statement; ``params`` are the values of its $names. Writes are not retried.

    Raises InvalidInput, which says where in the query, Forbidden for what is not allowed, and TimedOut.
    """
    return _cypher(
        store, CypherRequest(query=query, mode=mode, timeout_ms=timeout_ms, max_rows=max_rows), params, JSON_MEDIA_TYPE
    )


def cypher_rows(
    store: str,
    query: str,
    params: Mapping[str, Any] | None = None,
    *,
    mode: Literal["read", "write"] = "read",
    timeout_ms: int | None = None,
    max_rows: int | None = None,
) -> Streamed[list[Any]]:
    """Stream the rows of a Cypher statement, one list after another.

    ``about`` of the stream holds columns and types with the first row, and row_count, truncated and took_ms at the end.
    """
    wanted = CypherRequest(query=query, mode=mode, timeout_ms=timeout_ms, max_rows=max_rows)
    return Streamed(_cypher(store, wanted, params, NDJSON_MEDIA_TYPE), RowDecoder)


def import_(store: str, source: Source) -> ClientRequest[ImportAnswer]:
    """Import a file (by its path), lines (mappings with ``kind``, Structs) or pieces of text (bytes).

    Memory stays flat however long it is. Wrong lines are left out and listed in the answer. When the connection breaks,
    batches that were committed stay; it is never repeated by itself, and sending the same again completes it.

    A server refuses a body that brings nothing for 20 s (its `--body-timeout`): cut a source that is silent for longer,
    such as a queue, into several imports.
    """
    return IMPORT_ROUTE.call({"store": store}, body=Upload(source), store=store, wait=None)


def export(store: str, *, as_of: int | str | None = None, valid_at: str | None = None) -> Streamed[ExportLine]:
    """Stream all nodes and then all edges of one snapshot, line by line. Raises Interrupted when it breaks off."""
    asked = {"as_of": as_of, "valid_at": valid_at}
    return Streamed(EXPORT_ROUTE.ask(store, asked, headers={"Accept": NDJSON_MEDIA_TYPE}, wait=None), export_decoder)


def store_events(
    store: str,
    *,
    since: int | None = None,
    last_event_id: str | None = None,
    kinds: Iterable[str] = (),
    types: Iterable[str] = (),
    give_up_after: float | None = RECONNECT_TIMEOUT_SECONDS,
) -> Following:
    """Stream the changes of the store: from now on, or after a sequence or an event's id.

    A connection that is lost is made again where it was, for ``give_up_after`` seconds (None: for ever); then comes
    Unreachable. Ends when the store is dropped. Raises NotFound, and Gone when the journal no longer reaches back.
    """
    query = {"kinds": _joined(kinds), "types": _joined(types)}
    return Following(STORE_EVENTS_ROUTE, store, query, (since, last_event_id), give_up_after)


def events(
    stores: Iterable[str] = (),
    *,
    since: int | None = None,
    last_event_id: str | None = None,
    kinds: Iterable[str] = (),
    types: Iterable[str] = (),
    give_up_after: float | None = RECONNECT_TIMEOUT_SECONDS,
) -> Following:
    """Stream the changes of several stores, or of all present and future ones."""
    query = {"store": _joined(stores), "kinds": _joined(kinds), "types": _joined(types)}
    return Following(EVENTS_ROUTE, None, query, (since, last_event_id), give_up_after)


def _cypher(
    store: str, wanted: CypherRequest, params: Mapping[str, Any] | None, accept: str
) -> ClientRequest[CypherResult]:
    wait = msgspec.UNSET if wanted.timeout_ms is None else wanted.timeout_ms / 1000 + QUERY_TIMEOUT_MARGIN_SECONDS
    wanted.params = dict(params or {})
    reading = wanted.mode == "read"
    return CYPHER_ROUTE.ask(store, wanted, headers={"Accept": accept}, wait=wait, idempotent=reading)


def _joined(names: Iterable[str]) -> str | None:
    return (names if isinstance(names, str) else ",".join(names)) or None
