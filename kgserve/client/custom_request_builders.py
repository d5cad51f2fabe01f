"""Request builders that are written by hand: streams, pages, and several request formats.

Each function builds a request and determines how its answer is decoded. The other operations, in
`kgserve.client.operations`, are generated from the table of operations. Names, defaults and docstrings of the functions
are those of the client's methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from kgserve.admin.store_admin_models import CreateStoreAnswer, StoreSettingsAnswer
from kgserve.client.answers import BatchHits, CypherResult
from kgserve.client.event_stream import RECONNECT_TIMEOUT_SECONDS, ResumableSseListenerState
from kgserve.client.json_lines_stream import (
    CypherRowDecoder,
    ExportLine,
    ImportSource,
    ImportUpload,
    encode_json_body,
    make_export_decoder,
)
from kgserve.client.wire import ClientRequest, ClientRoute, StreamedAnswerRequest
from kgserve.graph.answers import BrowserApiKey, EntityVersion, ImportAnswer, ListedNodePage, NodePage
from kgserve.graph.compat.versioned_nodes_api import PutNodeAnswer, PutNodeRequest
from kgserve.graph.request_bodies import CypherRequest, SearchQueryVariant
from kgserve.graph.url_parameters import EntityHistoryRequest, NodeListParameters
from kgserve.memory.hierarchy_models import (
    DescendantMemoriesRequest,
    MemoryAncestorOrDescendant,
    MemoryParentChainRequest,
)
from kgserve.platform.media_types import JSON_MEDIA_TYPE, NDJSON_MEDIA_TYPE
from kgserve.platform.text.languages import LanguageSetting
from kgserve.storage.model.store_settings import ConflictPolicy, HistoryRetention, IndexChoice, LateInteraction

QUERY_TIMEOUT_MARGIN_SECONDS = 30.0
"""Seconds added to a query's time limit, because it may wait in a queue."""

_STORE_PATH = "/api/memory/{store}"
OPENAPI_ROUTE = ClientRoute("openapi", "GET", "/openapi.json", dict[str, Any])
BROWSER_KEY_ROUTE = ClientRoute("browser_key", "POST", "/api/browser-key", BrowserApiKey, in_body=True)
EVENTS_ROUTE = ClientRoute("events", "GET", "/api/events", bytes)


CREATE_ROUTE = ClientRoute("create", "PUT", _STORE_PATH, CreateStoreAnswer, in_body=True)
UPDATE_SETTINGS_ROUTE = ClientRoute("update_settings", "PATCH", _STORE_PATH, StoreSettingsAnswer, in_body=True)
NODES_ROUTE = ClientRoute("nodes", "GET", f"{_STORE_PATH}/nodes", NodePage, reads=True)
COMPACT_NODES_ROUTE = ClientRoute("nodes", "GET", f"{_STORE_PATH}/nodes", ListedNodePage, reads=True)
PUT_NODE_ROUTE = ClientRoute("put_node", "POST", f"{_STORE_PATH}/nodes", PutNodeAnswer, in_body=True)
SEARCH_BATCH_ROUTE = ClientRoute(
    "search_batch", "POST", f"{_STORE_PATH}/search/batch", BatchHits, in_body=True, reads=True
)
CYPHER_ROUTE = ClientRoute("cypher", "POST", f"{_STORE_PATH}/cypher", CypherResult, in_body=True, reads=True)
IMPORT_ROUTE = ClientRoute("import_", "POST", f"{_STORE_PATH}/import", ImportAnswer)
EXPORT_ROUTE = ClientRoute("export", "GET", f"{_STORE_PATH}/export", bytes, reads=True)
STORE_EVENTS_ROUTE = ClientRoute("store_events", "GET", f"{_STORE_PATH}/events", bytes)
ENTITY_HISTORY_ROUTE = ClientRoute(
    "entity_history", "GET", "/api/v1/entities/{id}/history", list[EntityVersion], reads=True
)

CHILDREN_ROUTE = ClientRoute(
    "children", "GET", "/api/v1/memories/{id}/children", list[MemoryAncestorOrDescendant], reads=True
)
DESCENDANTS_ROUTE = ClientRoute(
    "descendants", "GET", "/api/v1/memories/{id}/descendants", list[MemoryAncestorOrDescendant], reads=True
)
ANCESTORS_ROUTE = ClientRoute(
    "ancestors", "GET", "/api/v1/memories/{id}/ancestors", list[MemoryAncestorOrDescendant], reads=True
)


class PagedNodes(msgspec.Struct, frozen=True):
    """Paginated list of nodes; builds the request for each page."""

    store: str
    query: NodeListParameters

    def page(self, cursor: str | None = None) -> ClientRequest[NodePage]:
        """Return the request for the first page, or for the page after ``cursor``."""
        offset = 0 if cursor else self.query.offset
        # compact nodes are decoded alike; they only lack fields
        route = cast("ClientRoute[NodePage]", COMPACT_NODES_ROUTE) if self.query.compact else NODES_ROUTE
        return route.ask(self.store, msgspec.structs.replace(self.query, cursor=cursor, offset=offset))


def openapi() -> ClientRequest[dict[str, Any]]:
    """Return the server's OpenAPI 3.1 description."""
    return OPENAPI_ROUTE.call({})


def browser_key(role: Literal["read", "write"] = "read") -> ClientRequest[BrowserApiKey]:
    """Create an API key for a browser page, valid for 12 hours, or until its parent key or the server ends."""
    return BROWSER_KEY_ROUTE.call({}, body={"role": role})


def create(  # noqa: PLR0913 - the fields of the request
    name: str,
    *,
    display_name: str | None = None,
    conflict_policy: ConflictPolicy | None = None,
    kind_whitelist: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    indexed_attributes: Iterable[str] | None = None,
    indexes: IndexChoice | None = None,
    language: LanguageSetting | None = None,
    late_interaction: LateInteraction | None = None,
    history: HistoryRetention | None = None,
    memory: Mapping[str, Any] | None = None,
) -> ClientRequest[CreateStoreAnswer]:
    """Create an empty store with settings. An existing store is unchanged. The first inject also creates a store.

    ``display_name`` is the ``name`` among the settings.
    """
    body = _given_settings(
        name=display_name,
        conflict_policy=conflict_policy,
        kind_whitelist=kind_whitelist,
        metadata=metadata,
        indexed_attributes=indexed_attributes,
        indexes=indexes,
        language=language,
        late_interaction=late_interaction,
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
    indexes: IndexChoice | None = None,
    language: LanguageSetting | None = None,
    late_interaction: LateInteraction | None = None,
    history: HistoryRetention | None = None,
    memory: Mapping[str, Any] | None = None,
) -> ClientRequest[StoreSettingsAnswer]:
    """Change the store's settings. None leaves a setting unchanged; an empty value resets it.

    ``indexes``: "none", "words", "words+meaning", or "default" for the server's default. ``language``: "auto", or the
    language whose word forms match, such as "de". ``late_interaction``: nodes whose tokens are embedded: "turns" of
    conversations, "all", or "none". ``history``: previous states to keep: "all", "none", or a number of days.
    ``memory``: memory settings, merged by field. Raises InvalidInput, whose ``errors`` list every invalid field, and
    NotFound.
    """
    body = _given_settings(
        name=name,
        conflict_policy=conflict_policy,
        kind_whitelist=kind_whitelist,
        metadata=metadata,
        indexed_attributes=indexed_attributes,
        indexes=indexes,
        language=language,
        late_interaction=late_interaction,
        history=history,
        memory=memory,
    )
    return UPDATE_SETTINGS_ROUTE.ask(store, body)


def _given_settings(
    *, kind_whitelist: Iterable[str] | None = None, indexed_attributes: Iterable[str] | None = None, **others: object
) -> dict[str, object]:
    """Return the settings that are not None as a request body."""
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
) -> PagedNodes:
    """List nodes ordered by id, optionally only of some types, fetched ``page_size`` (1 to 1,000) at a time.

    ``tags``: only nodes with all of them. ``attributes``: only nodes with all of these values. ``offset``: number of
    nodes to skip, at most 10,000. ``compact``: omit contents, attributes and authors.
    """
    types = [] if type is None else [type] if isinstance(type, str) else [*type]
    having = None if attributes is None else encode_json_body(attributes).decode()
    query = NodeListParameters(
        type=types,
        tag=list(tags),
        attributes=having,
        limit=page_size,
        as_of=_as_of_text(as_of),
        valid_at=valid_at,
        offset=offset,
        compact=compact,
    )
    return PagedNodes(store, query)


def put_node(store: str, node: Mapping[str, Any] | PutNodeRequest) -> ClientRequest[PutNodeAnswer]:
    """Write a complete version of a node: omitted fields become empty. Without an id, a new node is created.

    Raises ConflictManual with the written node when it becomes a conflicting head, and KindNotAllowed.
    """
    return PUT_NODE_ROUTE.ask(store, node, idempotent=False)


def entity_history(
    store: str, entity_id: str, *, limit: int = 1000, after_sequence: int | None = None
) -> ClientRequest[list[EntityVersion]]:
    """List the versions of an entity, oldest first.

    ``after_sequence``: sequence of the previous page's last version.
    """
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
) -> ClientRequest[list[MemoryAncestorOrDescendant]]:
    """List the direct children of a memory, ordered by id. ``cursor``: last id of the previous page."""
    return CHILDREN_ROUTE.ask(store, _below(memory_id, limit, cursor, layer, as_of))


def descendants(
    store: str,
    memory_id: str,
    *,
    limit: int = 100,
    cursor: str | None = None,
    layer: int | None = None,
    as_of: int | str | None = None,
) -> ClientRequest[list[MemoryAncestorOrDescendant]]:
    """List all descendants of a memory, ordered by id. ``cursor``: last id of the previous page.

    With ``layer``, a page may be short or empty although more follow. REST reports that in the header `Link`.
    """
    return DESCENDANTS_ROUTE.ask(store, _below(memory_id, limit, cursor, layer, as_of))


def ancestors(
    store: str, memory_id: str, *, layer: int | None = None, as_of: int | str | None = None
) -> ClientRequest[list[MemoryAncestorOrDescendant]]:
    """List the ancestors of a memory, nearest first."""
    return ANCESTORS_ROUTE.ask(
        store, MemoryParentChainRequest(memory_id=memory_id, layer=layer, as_of=_as_of_text(as_of))
    )


def _below(
    memory_id: str, limit: int, cursor: str | None, layer: int | None, as_of: int | str | None
) -> DescendantMemoriesRequest:
    return DescendantMemoriesRequest(
        memory_id=memory_id, limit=limit, cursor=cursor, layer=layer, as_of=_as_of_text(as_of)
    )


def _as_of_text(as_of: int | str | None) -> str | None:
    return None if as_of is None else str(as_of)


def search_batch(
    store: str,
    queries: Sequence[str | Mapping[str, Any] | SearchQueryVariant],
    *,
    limit: int = 20,
    at_least: int | None = None,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> ClientRequest[BatchHits]:
    """Run 1 to 8 searches and merge the results. A plain string is a search with default options."""
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
    """Run one Cypher statement. ``params``: values of its $names. Writes are not retried.

    Raises InvalidInput with the position in the query, Forbidden for disallowed statements, and TimedOut.
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
) -> StreamedAnswerRequest[list[Any]]:
    """Stream the rows of a Cypher statement as lists.

    The stream's ``about`` holds columns and types from the first row on, and row_count, truncated and took_ms at the
    end.
    """
    request = CypherRequest(query=query, mode=mode, timeout_ms=timeout_ms, max_rows=max_rows)
    return StreamedAnswerRequest(_cypher(store, request, params, NDJSON_MEDIA_TYPE), CypherRowDecoder)


def import_(store: str, source: ImportSource) -> ClientRequest[ImportAnswer]:
    """Import a file (by path), lines (mappings with ``kind``, or Structs), or pieces of text (bytes).

    Uses constant memory. Invalid lines are skipped and listed in the answer. If the connection breaks, committed
    batches remain. The import is not retried automatically; sending the same source again completes it.

    The server rejects a body without data for 20 s (its `--body-timeout`). Split a source that pauses for longer, such
    as a queue, into several imports.
    """
    return IMPORT_ROUTE.call({"store": store}, body=ImportUpload(source), store=store, wait=None)


def export(
    store: str, *, as_of: int | str | None = None, valid_at: str | None = None
) -> StreamedAnswerRequest[ExportLine]:
    """Stream all nodes and then all edges of one snapshot, line by line. Raises Interrupted when the stream breaks."""
    asked = {"as_of": as_of, "valid_at": valid_at}
    return StreamedAnswerRequest(
        EXPORT_ROUTE.ask(store, asked, headers={"Accept": NDJSON_MEDIA_TYPE}, wait=None), make_export_decoder
    )


def store_events(
    store: str,
    *,
    since: int | None = None,
    last_event_id: str | None = None,
    kinds: Iterable[str] = (),
    types: Iterable[str] = (),
    give_up_after: float | None = RECONNECT_TIMEOUT_SECONDS,
) -> ResumableSseListenerState:
    """Stream the changes of the store from now on, after a sequence, or after an event's id.

    A lost connection is resumed at the same position for ``give_up_after`` seconds (None: no limit), then Unreachable
    is raised. The stream ends when the store is dropped. Raises NotFound, and Gone when the journal no longer reaches
    back.
    """
    query = {"kinds": _joined(kinds), "types": _joined(types)}
    return ResumableSseListenerState(STORE_EVENTS_ROUTE, store, query, (since, last_event_id), give_up_after)


def events(
    stores: Iterable[str] = (),
    *,
    since: int | None = None,
    last_event_id: str | None = None,
    kinds: Iterable[str] = (),
    types: Iterable[str] = (),
    give_up_after: float | None = RECONNECT_TIMEOUT_SECONDS,
) -> ResumableSseListenerState:
    """Stream the changes of several stores, or of all current and future ones."""
    query = {"store": _joined(stores), "kinds": _joined(kinds), "types": _joined(types)}
    return ResumableSseListenerState(EVENTS_ROUTE, None, query, (since, last_event_id), give_up_after)


def _cypher(
    store: str, request: CypherRequest, params: Mapping[str, Any] | None, accept: str
) -> ClientRequest[CypherResult]:
    wait = msgspec.UNSET if request.timeout_ms is None else request.timeout_ms / 1000 + QUERY_TIMEOUT_MARGIN_SECONDS
    request.params = dict(params or {})
    reading = request.mode == "read"
    return CYPHER_ROUTE.ask(store, request, headers={"Accept": accept}, wait=wait, idempotent=reading)


def _joined(names: Iterable[str]) -> str | None:
    return (names if isinstance(names, str) else ",".join(names)) or None
