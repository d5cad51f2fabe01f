"""Each operation of the REST interface, once: a function makes its request and knows how its answer is read.

The two clients send them. Parameters, their defaults and descriptions here are those of the clients' methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from kgserve.client.answers import CypherResult, Traversal
from kgserve.client.following import PATIENCE, Following
from kgserve.client.lines import ExportLine, RowDecoder, Source, Upload, export_decoder
from kgserve.client.wire import JSON, NDJSON, Call, Route, Streamed
from kgserve.model.answers import (
    BatchSearchAnswer,
    ContextAnswer,
    DeleteEdgeAnswer,
    DeleteNodeAnswer,
    Health,
    ImportAnswer,
    InjectAnswer,
    NodeAnswer,
    NodePage,
    Ready,
    ReindexAnswer,
    SearchAnswer,
)
from kgserve.model.requests import (
    MAX_TRAVERSED_NODES,
    BatchSearchRequest,
    ContextRequest,
    CypherRequest,
    Direction,
    EdgeInput,
    EdgeKeyRequest,
    Fusion,
    NodeInput,
    SearchMode,
    SearchRequest,
    SearchVariant,
    TraverseRequest,
)
from kgserve.model.stores import DropAnswer, StoreList, StoreStats

MARGIN = 30.0
"""Seconds that an answer may take beyond the time limit of its query: it may wait for its turn."""

_STORE = "/api/memory/{store}"
HEALTH = Route("GET", "/health", Health)
READY = Route("GET", "/ready", Ready)
OPENAPI = Route("GET", "/openapi.json", dict[str, Any])
STORES = Route("GET", "/api/memory", StoreList)
EVENTS = Route("GET", "/api/events", bytes)
DROP = Route("DELETE", _STORE, DropAnswer)
INJECT = Route("POST", f"{_STORE}/inject", InjectAnswer)
DELETE_NODE = Route("DELETE", f"{_STORE}/nodes/{{id}}", DeleteNodeAnswer)
DELETE_EDGE = Route("DELETE", f"{_STORE}/edges", DeleteEdgeAnswer)
TRAVERSE = Route("POST", f"{_STORE}/traverse", Traversal)
NODE = Route("GET", f"{_STORE}/nodes/{{id}}", NodeAnswer)
NODES = Route("GET", f"{_STORE}/nodes", NodePage)
SEARCH = Route("POST", f"{_STORE}/search", SearchAnswer)
SEARCH_BATCH = Route("POST", f"{_STORE}/search/batch", BatchSearchAnswer)
CONTEXT = Route("POST", f"{_STORE}/context", ContextAnswer)
CYPHER = Route("POST", f"{_STORE}/cypher", CypherResult)
STATS = Route("GET", f"{_STORE}/stats", StoreStats)
REINDEX = Route("POST", f"{_STORE}/reindex", ReindexAnswer)
IMPORT = Route("POST", f"{_STORE}/import", ImportAnswer)
EXPORT = Route("GET", f"{_STORE}/export", bytes)
STORE_EVENTS = Route("GET", f"{_STORE}/events", bytes)


class Paged(msgspec.Struct, frozen=True):
    """A list of nodes that comes in pages."""

    store: str
    type: str | None
    page_size: int
    as_of: int | str | None = None
    tags: list[str] = []
    valid_at: str | None = None

    def page(self, cursor: str | None = None) -> Call[NodePage]:
        """The first page, or the one that the ``next_cursor`` of another names."""
        which = {"type": self.type, "tag": self.tags, "as_of": self.as_of, "valid_at": self.valid_at}
        return NODES.call({"store": self.store}, {**which, "limit": self.page_size, "cursor": cursor})


def health() -> Call[Health]:
    """Whether the process answers, and its version."""
    return HEALTH.call({})


def ready() -> Call[Ready]:
    """Whether stores can be opened and written. Raises Unavailable or StorageFull with the reason when not."""
    return READY.call({})


def openapi() -> Call[dict[str, Any]]:
    """The server's description of its interface, OpenAPI 3.1."""
    return OPENAPI.call({})


def stores() -> Call[StoreList]:
    """All stores by name, with counts and sizes."""
    return STORES.call({})


def drop(name: str, *, confirm: str) -> Call[DropAnswer]:
    """Remove a store with everything in it, for good. ``confirm`` is its name once more. Raises NotFound."""
    return DROP.call({"store": name}, {"confirm": confirm}, idempotent=False)


def inject(
    store: str,
    nodes: Iterable[Mapping[str, Any] | NodeInput] = (),
    edges: Iterable[Mapping[str, Any] | EdgeInput] = (),
    *,
    touch: bool = True,
) -> Call[InjectAnswer]:
    """Create or update nodes and edges in one atomic batch; the store is made if need be.

    Raises InvalidInput, whose ``errors`` name every place, TooLarge, Unavailable and StorageFull.
    """
    return INJECT.call({"store": store}, body={"nodes": list(nodes), "edges": list(edges), "touch": touch})


def delete_node(store: str, node_id: str) -> Call[DeleteNodeAnswer]:
    """Delete a node with all its edges; one that does not exist is no error."""
    return DELETE_NODE.call({"store": store, "id": node_id})


def delete_edge(store: str, source: str, target: str, relation_type: str) -> Call[DeleteEdgeAnswer]:
    """Delete one edge; one that does not exist is no error."""
    body = EdgeKeyRequest(source=source, target=target, relation_type=relation_type)
    return DELETE_EDGE.call({"store": store}, body=body)


def traverse(  # noqa: PLR0913 - the fields of TraverseRequest
    store: str,
    start_id: str,
    *,
    depth: int = 1,
    direction: Direction = "outgoing",
    relation_types: list[str] | None = None,
    min_weight: float | None = None,
    max_nodes: int = MAX_TRAVERSED_NODES,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> Call[Traversal]:
    """Walk from a node, breadth first, ``depth`` hops. A start that does not exist gives nothing.

    ``as_of`` is a sequence or an RFC 3339 time: the walk is then what it would have been. ``valid_at`` is an RFC 3339
    time: only what was true in the world then.
    """
    walk = TraverseRequest(
        start_id=start_id,
        depth=depth,
        direction=direction,
        relation_types=relation_types,
        min_weight=min_weight,
        max_nodes=max_nodes,
        as_of=as_of,
        valid_at=valid_at,
    )
    return TRAVERSE.call({"store": store}, body=walk)


def node(
    store: str, node_id: str, *, as_of: int | str | None = None, valid_at: str | None = None, version: int | None = None
) -> Call[NodeAnswer]:
    """One node with its edges, at most 1,000 in each direction, now or as it was; a version comes without edges.

    Raises NotFound, and Gone for a time that is no longer known.
    """
    return NODE.call({"store": store, "id": node_id}, {"as_of": as_of, "valid_at": valid_at, "version": version})


def nodes(
    store: str,
    *,
    type: str | None = None,  # noqa: A002 - the field's name
    page_size: int = 1000,
    as_of: int | str | None = None,
    tags: Iterable[str] = (),
    valid_at: str | None = None,
) -> Paged:
    """All nodes in the order of their ids, or those of one type, fetched ``page_size`` at a time (1 to 1,000).

    With ``tags`` only those that have all of them.
    """
    return Paged(store, type, page_size, as_of, list(tags), valid_at)


def search(  # noqa: PLR0913 - the fields of SearchRequest
    store: str,
    query: str,
    *,
    mode: SearchMode = "hybrid",
    limit: int = 20,
    offset: int = 0,
    types: list[str] | None = None,
    id_prefix: str = "",
    min_similarity: float | None = None,
    alpha: float = 0.4,
    fusion: Fusion = "weighted",
    start_id: str | None = None,
    depth: int = 2,
    at_least: int | None = None,
    explain: bool = False,
    neighbours: bool = True,
    syntax: bool = False,
    tags: list[str] | None = None,
    fresh_only: bool = False,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> Call[SearchAnswer]:
    """Find nodes by words, by meaning and by what they are related to, best first.

    ``at_least`` is the sequence of a write that the search must know. Raises Unavailable when that takes too long.
    """
    wanted = SearchRequest(
        query=query,
        mode=mode,
        limit=limit,
        offset=offset,
        types=types,
        id_prefix=id_prefix,
        min_similarity=min_similarity,
        alpha=alpha,
        fusion=fusion,
        start_id=start_id,
        depth=depth,
        at_least=at_least,
        explain=explain,
        neighbours=neighbours,
        syntax=syntax,
        tags=tags,
        fresh_only=fresh_only,
        as_of=as_of,
        valid_at=valid_at,
    )
    return SEARCH.call({"store": store}, body=wanted)


def search_batch(
    store: str,
    queries: Sequence[str | Mapping[str, Any] | SearchVariant],
    *,
    limit: int = 20,
    at_least: int | None = None,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> Call[BatchSearchAnswer]:
    """Ask the same in 1 to 8 ways and join the answers; a text alone is a variant with the usual options."""
    variants: list[Any] = [{"query": each} if isinstance(each, str) else each for each in queries]
    wanted = BatchSearchRequest(queries=variants, limit=limit, at_least=at_least, as_of=as_of, valid_at=valid_at)
    return SEARCH_BATCH.call({"store": store}, body=wanted)


def context(  # noqa: PLR0913 - the fields of ContextRequest
    store: str,
    query: str,
    *,
    budget: int = 2000,
    format: Literal["markdown", "json"] = "markdown",  # noqa: A002 - the field's name
    limit: int = 50,
    types: list[str] | None = None,
    at_least: int | None = None,
    as_of: int | str | None = None,
    valid_at: str | None = None,
) -> Call[ContextAnswer]:
    """Text about a question for a language model, within a budget of tokens, with ids to cite."""
    wanted = ContextRequest(
        query=query,
        budget=budget,
        format=format,
        limit=limit,
        types=types,
        at_least=at_least,
        as_of=as_of,
        valid_at=valid_at,
    )
    return CONTEXT.call({"store": store}, body=wanted)


def cypher(
    store: str,
    query: str,
    params: Mapping[str, Any] | None = None,
    *,
    mode: Literal["read", "write"] = "read",
    timeout_ms: int | None = None,
    max_rows: int | None = None,
) -> Call[CypherResult]:
    """Run one Cypher statement; ``params`` are the values of its $names. Writes are not repeated by themselves.

    Raises InvalidInput, which says where in the query, Forbidden for what is not allowed, and TimedOut.
    """
    return _cypher(store, CypherRequest(query=query, mode=mode, timeout_ms=timeout_ms, max_rows=max_rows), params, JSON)


def cypher_rows(
    store: str,
    query: str,
    params: Mapping[str, Any] | None = None,
    *,
    mode: Literal["read", "write"] = "read",
    timeout_ms: int | None = None,
    max_rows: int | None = None,
) -> Streamed[list[Any]]:
    """The rows of a Cypher statement, one list after another as they come.

    ``about`` of the stream holds columns and types with the first row, and row_count, truncated and took_ms at the end.
    """
    wanted = CypherRequest(query=query, mode=mode, timeout_ms=timeout_ms, max_rows=max_rows)
    return Streamed(_cypher(store, wanted, params, NDJSON), RowDecoder)


def stats(store: str) -> Call[StoreStats]:
    """Counts by type, sizes on disk, the state of journal, engine and indexes. Raises NotFound."""
    return STATS.call({"store": store})


def reindex(store: str) -> Call[ReindexAnswer]:
    """Begin to make both indexes anew; `stats` shows how far they are."""
    return REINDEX.call({"store": store})


def import_(store: str, source: Source) -> Call[ImportAnswer]:
    """Send a file (by its path), lines (mappings with ``kind``, Structs) or pieces of text (bytes), as they come.

    Memory stays flat however long it is. Wrong lines are left out and listed in the answer. When the connection breaks,
    batches that were committed stay; it is never repeated by itself, and sending the same again completes it.

    A server refuses a body that brings nothing for 20 s (its `--body-timeout`): cut a source that is silent for longer,
    such as a queue, into several imports.
    """
    return IMPORT.call({"store": store}, body=Upload(source), wait=None)


def export(store: str, *, as_of: int | str | None = None, valid_at: str | None = None) -> Streamed[ExportLine]:
    """All nodes and then all edges as they are at one moment, line by line. Raises Interrupted when it breaks off."""
    query = {"as_of": as_of, "valid_at": valid_at}
    return Streamed(EXPORT.call({"store": store}, query, headers={"Accept": NDJSON}, wait=None), export_decoder)


def store_events(
    store: str,
    *,
    since: int | None = None,
    last_event_id: str | None = None,
    kinds: Iterable[str] = (),
    types: Iterable[str] = (),
    give_up_after: float | None = PATIENCE,
) -> Following:
    """What changes in the store, as it changes: from now on, or after a sequence or an event's id.

    A connection that is lost is made again where it was, for ``give_up_after`` seconds (None: for ever); then comes
    Unreachable. Ends when the store is dropped. Raises NotFound, and Gone when the journal no longer reaches back.
    """
    query = {"kinds": _joined(kinds), "types": _joined(types)}
    return Following(STORE_EVENTS, store, query, (since, last_event_id), give_up_after)


def events(
    stores: Iterable[str] = (),
    *,
    since: int | None = None,
    last_event_id: str | None = None,
    kinds: Iterable[str] = (),
    types: Iterable[str] = (),
    give_up_after: float | None = PATIENCE,
) -> Following:
    """As the events of one store, of several, or of all that there are and will be."""
    query = {"store": _joined(stores), "kinds": _joined(kinds), "types": _joined(types)}
    return Following(EVENTS, None, query, (since, last_event_id), give_up_after)


def _cypher(store: str, wanted: CypherRequest, params: Mapping[str, Any] | None, accept: str) -> Call[CypherResult]:
    wait = msgspec.UNSET if wanted.timeout_ms is None else wanted.timeout_ms / 1000 + MARGIN
    wanted.params = dict(params or {})
    reading = wanted.mode == "read"
    return CYPHER.call({"store": store}, body=wanted, headers={"Accept": accept}, wait=wait, idempotent=reading)


def _joined(names: Iterable[str]) -> str | None:
    return (names if isinstance(names, str) else ",".join(names)) or None
