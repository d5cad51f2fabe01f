"""Rows of the tables in docs/limits.md; every number comes from the program."""

from __future__ import annotations

from collections.abc import Iterator

from kgserve.cli.options import setting_option_names
from kgserve.cypher.guard import MAX_STATEMENT_TOKENS
from kgserve.cypher.lexer import MAX_BRACKET_DEPTH
from kgserve.graph.compat.versioned_nodes_api import MAX_SUBGRAPH_EDGES, MAX_SUBGRAPH_NODES
from kgserve.graph.cypher.engine_read_statements import MAX_RESULT_BYTES
from kgserve.graph.cypher.interpreted_statements import MAX_QUERY_BYTES
from kgserve.graph.cypher.result_streams import MAX_RESULT_STREAM_BYTES
from kgserve.graph.cypher.row_changes import MAX_CHANGED_ROWS
from kgserve.graph.event_subscriptions import MAX_FOLLOWED_STORES
from kgserve.graph.federated_traversal import MAX_TRAVERSED_STORES
from kgserve.graph.node_merge_models import MAX_MOVED_EDGES
from kgserve.graph.node_reads import MAX_EDGES_PER_DELETION
from kgserve.graph.request_bodies import (
    MAX_ATTRIBUTES_DEPTH,
    MAX_CYPHER_ROWS,
    MAX_DELETED_NODES,
    MAX_NODE_IDS,
    MAX_QUERY_CHARS,
    MAX_TRAVERSED_NODES,
)
from kgserve.graph.search.node_search import MAX_SEARCH_LIMIT
from kgserve.graph.transfer.formats.import_export_files import MAX_EXTRACTED_BYTES
from kgserve.graph.transfer.formats.ndjson_exchange_lines import MAX_LINE_BYTES
from kgserve.graph.transfer.import_export import MAX_UPLOAD_BYTES
from kgserve.graph.url_parameters import MAX_NODES_OFFSET, MAX_PAGE_ROWS, MAX_PAGE_STATES
from kgserve.graph.visualization_models import MAX_DRAWN_IDS, MAX_DRAWN_NODES
from kgserve.platform.access.audit import MAX_AUDIT_FILE_BYTES, MAX_ROTATED_AUDIT_FILES
from kgserve.platform.access.authentication import MAX_API_KEYS, MAX_STORE_PATTERNS
from kgserve.platform.settings import Settings
from kgserve.server.admission import MAX_OPEN_STATEMENTS, MAX_STATEMENT_THREADS
from kgserve.server.http.connection import MAX_HEADER_LINES
from kgserve.server.http.idempotent_answer_files import MAX_ANSWER_FILE_BYTES
from kgserve.server.idempotent_calls import (
    MAX_REMEMBERED_ANSWER_BYTES,
    MAX_REMEMBERED_BYTES,
    MAX_REMEMBERED_BYTES_PER_CALLER,
    MAX_REMEMBERED_CALLS,
    MAX_REMEMBERED_CALLS_PER_CALLER,
)
from kgserve.server.mcp.notifications import MAX_SUBSCRIPTIONS, MAX_SUBSCRIPTIONS_PER_KEY
from kgserve.server.mcp.server import MAX_BODY_MB, MAX_SESSIONS, MAX_SESSIONS_PER_KEY
from kgserve.server.mcp.tool_structured_content import MAX_REPLY_CHARS
from kgserve.storage.model.attribute_filters import MAX_ATTRIBUTE_CONDITIONS
from kgserve.storage.model.breadth_first_traversal import MAX_WALK_DEPTH
from kgserve.storage.model.merge_redirects import MAX_REDIRECTS
from kgserve.storage.model.node_edge_fields import (
    MAX_ATTRIBUTES_BYTES,
    MAX_CONTENT_BYTES,
    MAX_ID_BYTES,
    MAX_SUMMARY_BYTES,
    MAX_TAGS,
)
from kgserve.storage.model.write_batch import MAX_CONFLICTING_HEADS
from kgserve.stores.bulk_delete import MAX_BULK_DELETE_ROWS
from scripts.reference import Row, table

_SETTINGS: tuple[tuple[str, str, str, str], ...] = (
    ("request body, except for imports", "max_body_mb", "MiB", "413"),
    ("time in which a body must bring another 1 kB", "body_timeout", "s", "408"),
    ("request head", "max_header_kb", "kB", "431"),
    ("time until the head of a request is complete", "head_timeout", "s", "408"),
    ("URL", "max_url_kb", "kB", "414"),
    ("open connections", "max_connections", "", "503"),
    ("open connections of one address", "max_connections_per_address", "", "503"),
    ("requests per second of a key or address; twice that at once", "rate_limit", "", "429"),
    ("event streams", "max_event_streams", "", "429"),
    ("event streams of a key or address", "max_event_streams_per_key", "", "429"),
    ("requests of a key or address that use or await a thread", "max_requests_per_key", "", "429"),
    ("threads of a key or address, for reads and again for writes", "max_threads_per_key", "", "the request waits"),
    ("requests of a key or address that await an index", "max_waits_per_key", "", "429"),
    ("imports and exports of a key or address", "max_transfers_per_key", "", "429"),
    ("writes waiting in one store", "write_queue", "", "503"),
    ("time of one read", "query_timeout", "s", "408"),
    ("nodes in one inject", "max_nodes", "", "400"),
    ("edges in one inject", "max_edges", "", "400"),
    ("nodes of a store", "max_store_nodes", "", "507; deletions are still accepted"),
    ("files of a store", "max_store_mb", "MiB", "507; deletions are still accepted"),
    ("stores that a key can access and add to", "max_stores_per_key", "", "403"),
    ("history of a store on disk", "history_mb", "MiB", "the oldest states are deleted"),
)


def list_setting_limits() -> str:
    """Return the table of limits that a setting changes."""
    defaults = Settings()
    rows = (
        (what, _setting_text(getattr(defaults, name), unit), f"`{setting_option_names(name)[0]}`", answer)
        for what, name, unit, answer in _SETTINGS
    )
    return table(("limit on", "default", "setting", "beyond it"), rows)


def list_fixed_limits() -> str:
    """Return the table of limits that no setting changes."""
    return table(("limit on", "value"), (*_data_limits(), *_request_limits(), *_server_limits()))


def _data_limits() -> Iterator[Row]:
    yield "store name", "64 of `A-Za-z0-9_-`, and single dots inside; names may not differ in case alone"
    yield "id, type, relation type", f"1 to {MAX_ID_BYTES} bytes of UTF-8"
    yield "content; summary", f"{_size(MAX_CONTENT_BYTES)}; {_size(MAX_SUMMARY_BYTES)}"
    yield "tags of a node", f"{MAX_TAGS}, each of {MAX_ID_BYTES} bytes"
    yield "attributes", f"{_size(MAX_ATTRIBUTES_BYTES)} as compact JSON, {MAX_ATTRIBUTES_DEPTH} levels, 64-bit integers"
    yield "conflicting heads of a node", f"{MAX_CONFLICTING_HEADS}"
    yield "edges of a node that is merged; chained merges", f"{MAX_MOVED_EDGES:,}; {MAX_REDIRECTS}"
    yield "API keys, revoked ones included; patterns of one key", f"{MAX_API_KEYS:,}; {MAX_STORE_PATTERNS}"
    yield "`audit.log`", f"{_size(MAX_AUDIT_FILE_BYTES)} and {MAX_ROTATED_AUDIT_FILES} older files"


def _request_limits() -> Iterator[Row]:
    yield "nodes and edges of a subgraph", f"{MAX_SUBGRAPH_NODES} and {MAX_SUBGRAPH_EDGES}"
    yield "rows on a page; `offset` of nodes", f"{MAX_PAGE_ROWS:,}; {MAX_NODES_OFFSET:,}"
    yield "states or writes on a page of a history", f"{MAX_PAGE_STATES}"
    yield "ids in one request; attributes in a filter", f"{MAX_NODE_IDS:,}; {MAX_ATTRIBUTE_CONDITIONS}"
    yield "nodes and edges that one deletion by filter takes", f"{MAX_DELETED_NODES:,}; {MAX_EDGES_PER_DELETION:,}"
    yield "depth and nodes of a traversal", f"{MAX_WALK_DEPTH}; {MAX_TRAVERSED_NODES:,}"
    yield "stores that a traversal with `follow_symlinks` visits", f"{MAX_TRAVERSED_STORES}"
    yield "ids and nodes of `graph`", f"{MAX_DRAWN_IDS:,}; {MAX_DRAWN_NODES:,}"
    yield "hits of a search; characters of its query", f"{MAX_SEARCH_LIMIT}; {MAX_QUERY_CHARS:,}"
    yield (
        "Cypher statement",
        f"{_size(MAX_QUERY_BYTES)}, {MAX_STATEMENT_TOKENS:,} words, {MAX_BRACKET_DEPTH} brackets deep",
    )
    yield "rows of a Cypher answer", f"{MAX_CYPHER_ROWS:,} and {_size(MAX_RESULT_BYTES)}"
    yield "Cypher answer as a stream", _size(MAX_RESULT_STREAM_BYTES)
    yield "rows that a statement changes; only deletes", f"{MAX_CHANGED_ROWS:,}; {MAX_BULK_DELETE_ROWS:,}"
    yield "line of an import; file in another format; unpacked", _import_sizes()


def _server_limits() -> Iterator[Row]:
    yield "lines of a request head", f"{MAX_HEADER_LINES}"
    yield (
        "Cypher statements of a key or address, running or waiting",
        f"{MAX_OPEN_STATEMENTS}, in {MAX_STATEMENT_THREADS} threads",
    )
    yield "stores that an event stream names; that a page lists", f"{MAX_FOLLOWED_STORES:,}"
    yield "kept answers of repeated requests", _kept(MAX_REMEMBERED_CALLS, MAX_REMEMBERED_BYTES)
    yield "the same of one caller", _kept(MAX_REMEMBERED_CALLS_PER_CALLER, MAX_REMEMBERED_BYTES_PER_CALLER)
    yield (
        "answer that is kept; all those in the file of a store",
        (f"{_size(MAX_REMEMBERED_ANSWER_BYTES)}; {_size(MAX_ANSWER_FILE_BYTES)}"),
    )
    yield "MCP request; answer of a tool", f"{MAX_BODY_MB} MiB; about {MAX_REPLY_CHARS:,} characters"
    yield "MCP sessions; of one key", f"{MAX_SESSIONS}; {MAX_SESSIONS_PER_KEY}; a session ends after 30 idle minutes"
    yield "MCP subscriptions of a session; of a key", f"{MAX_SUBSCRIPTIONS}; {MAX_SUBSCRIPTIONS_PER_KEY:,}"


def _import_sizes() -> str:
    return "; ".join(map(_size, (MAX_LINE_BYTES, MAX_UPLOAD_BYTES, MAX_EXTRACTED_BYTES)))


def _kept(count: int, size: int) -> str:
    return f"{count:,} and {_size(size)}, for a day"


def _setting_text(value: float, unit: str) -> str:
    return f"{value:,g} {unit}".strip() if value else "unlimited"


def _size(size: int) -> str:
    """Return a number of bytes in the largest unit that divides it."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size:,} bytes"
