"""Reads of the graph: nodes, edges, traversals, and the types and tags in use.

The end of the module counts, returns or deletes all nodes that match a filter or a list of ids.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from itertools import islice
from operator import itemgetter

import msgspec
import numpy as np

from kgserve.errors import InvalidInput, NotFound
from kgserve.graph import row_to_api_conversion
from kgserve.graph.answers import (
    MAX_EXAMPLE_CHARS,
    MAX_REPORTED_ITEMS,
    CountNodesAnswer,
    DeleteNodesAnswer,
    Edge,
    ListedNode,
    ListedNodePage,
    Node,
    NodePage,
    NodesByIdAnswer,
    NodeWithEdgesAnswer,
    StoreTypesAndTags,
    TagList,
    TraverseAnswer,
)
from kgserve.graph.as_of_resolution import (
    MAX_EDGES_PER_DIRECTION,
    VALID_AT_ANY,
    encode_redirected_from_field,
    format_not_found_moment_suffix,
)
from kgserve.graph.compat.versioned_nodes_api import EdgeAnswer, EdgeList
from kgserve.graph.cross_store_links import find_edge_or_cross_store_link
from kgserve.graph.federated_traversal import traverse_stores
from kgserve.graph.graph_reader import (
    MAX_NONBLOCKING_SCANNED_NODES,
    CurrentGraph,
    EdgePageRequest,
    EncodedNode,
    GraphReader,
    open_graph_reader,
    resolve_valid_at,
)
from kgserve.graph.history_queries import get_node_version
from kgserve.graph.mutations import list_memories_orphaned_by_deletion
from kgserve.graph.request_bodies import CountNodesRequest, DeleteNodesRequest, GetNodesByIdRequest, TraverseRequest
from kgserve.graph.request_validation import (
    ValidationErrorCollector,
    convert_attribute_filter_to_conditions,
    get_value_of_aliased_field,
    parse_attribute_filter_json,
    require_valid_id_or_type_length,
    validate_identifier_length,
)
from kgserve.graph.store_handle import JsonEncodedAnswer, StoreHandle, cast_json_bytes_to_answer
from kgserve.graph.url_parameters import (
    MAX_NODES_OFFSET,
    EdgeIdRequest,
    GetNodeRequest,
    IncomingEdgesRequest,
    NodeEdgesRequest,
    NodeListParameters,
    TagListParameters,
)
from kgserve.platform.codecs import json_decoder
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.platform.timestamps import parse_rfc3339_timestamp
from kgserve.storage.model.breadth_first_traversal import TraversalRequest, clamp_traversal_depth
from kgserve.storage.model.node_and_memory_filters import NodeFilter, PagePosition, ResultPage
from kgserve.storage.model.node_edge_fields import AUTHOR_FIELD
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    NodeRow,
    edge_or_link_id,
    parse_edge_or_link_id,
)
from kgserve.storage.model.type_and_tag_frequency_models import MAX_LISTED_TAGS
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.rows.memory_hierarchy_and_redirects import find_all_nodes_merged_into, resolve_merge_redirect
from kgserve.storage.rows.memory_predecessors import add_memory_predecessors
from kgserve.storage.rows.row_json_encoder import encode_cross_store_link
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StoreNotOpen

_Inbound = tuple[str, CrossStoreLinkRow]
"""A link, and the store that it starts in."""


def get_node(graph: StoreHandle, request: GetNodeRequest) -> JsonEncodedAnswer[NodeWithEdgesAnswer]:
    """Return the node with at most 1,000 edges in each direction: now, as of a moment, or one version without edges.

    Edges are in the order of `list_outgoing_edges`: by `ordinal`, those without one last, then by `created_at`.
    With `follow_symlinks`, incoming edges include those of all stores that you may access. Raises NotFound, Gone for a
    moment that is no longer in the history, and InvalidInput for a moment combined with `follow_symlinks`.
    """
    if request.version is not None:
        if request.as_of is not None or request.valid_at or request.follow_symlinks:
            raise InvalidInput("`version` cannot be combined with `as_of`, `valid_at` or `follow_symlinks`")
        return cast_json_bytes_to_answer(msgspec.json.encode(get_node_version(graph, request.node_id, request.version)))
    node_id = require_valid_id_or_type_length(request.node_id)
    inbound, past, moment = (
        _read_inbound_links(graph, request),
        graph.resolve_as_of(request.as_of),
        _valid_at_or_any(request.valid_at),
    )
    with (
        graph.lease() as store,
        open_graph_reader(store, past, moment, links=True, max_edges=graph.most_edges) as reader,
    ):
        found = _encode_view(reader, request, inbound)
    if found is None:
        when = format_not_found_moment_suffix(request.as_of, request.valid_at)
        raise NotFound(f"there is no node {node_id!r} in store {graph.name!r}{when}")
    return cast_json_bytes_to_answer(found)


def _valid_at_or_any(valid_at: str | None) -> str:
    """Return the requested valid time, by default any."""
    return VALID_AT_ANY if valid_at is None else valid_at


def _follow_redirects(reader: GraphReader, node_id: str, valid_at: str | None) -> str:
    """Return a node's id after following merge redirects; unchanged if merged nodes are requested, too."""
    return node_id if valid_at == VALID_AT_ANY else reader.resolve_redirects((node_id,))[node_id]


def _encode_view(reader: GraphReader, wanted: GetNodeRequest, inbound: Sequence[_Inbound]) -> bytes | None:
    node_id = _follow_redirects(reader, wanted.node_id, wanted.valid_at)
    node = reader.encode_node(node_id)
    if node is None:
        return None
    wanted_edges = EdgePageRequest(outgoing=True, relation_types=(), offset=0, limit=MAX_EDGES_PER_DIRECTION)
    outgoing, more_outgoing = _read_edges(reader, node_id, wanted_edges, inbound)
    incoming, more_incoming = _read_edges(reader, node_id, wanted_edges._replace(outgoing=False), inbound)
    return b'{"node":%b,"outgoing":[%b],"incoming":[%b],"edges_truncated":%b%b}' % (
        node,
        b",".join(outgoing),
        b",".join(incoming),
        b"true" if more_outgoing or more_incoming else b"false",
        encode_redirected_from_field(wanted.node_id, node_id),
    )


def list_nodes(graph: StoreHandle, request: NodeListParameters) -> JsonEncodedAnswer[NodePage]:
    """Return nodes page by page in the order of their ids.

    Writes made while paging neither repeat a node nor hide one that is kept. A page ends after 20,000 nodes were
    scanned: it may be short, or empty, and still have a `next_cursor`.

    Raises InvalidInput for an invalid cursor, and Gone for a moment that is no longer in the history.
    """
    nodes, end = _page_of_nodes(graph, request)
    next_cursor = None if end is None else _encode_cursor(end)
    texts = [text for _, text in nodes]
    if request.compact:
        compact = ListedNodePage(nodes=[*map(_to_compact_node, texts)], next_cursor=next_cursor)
        return cast_json_bytes_to_answer(msgspec.json.encode(compact))
    return cast_json_bytes_to_answer(
        b'{"nodes":[%b],"next_cursor":%b}' % (b",".join(texts), msgspec.json.encode(next_cursor))
    )


def estimate_node_list_request_cost(request: NodeListParameters) -> int:
    """Return how many nodes a page reads at least; a query of the catalog counts as ten."""
    return request.limit + request.offset + 10 * (len(request.type) + len(request.kind) + len(request.tag))


def _page_of_nodes(graph: StoreHandle, wanted: NodeListParameters) -> ResultPage[EncodedNode]:
    place, past = _start_of_page(wanted), graph.resolve_as_of(wanted.as_of)
    types, tags = tuple(filter(None, (*wanted.type, *wanted.kind))), tuple(filter(None, dict.fromkeys(wanted.tag)))
    attributes = parse_attribute_filter_json(wanted.attributes, "attributes")
    with (
        graph.lease() as leased,
        open_graph_reader(leased, past, wanted.valid_at, max_edges=graph.most_edges) as reader,
    ):
        return reader.list_nodes(NodeFilter(types, tags, reader.valid_at, attributes), place, wanted.limit)


def _start_of_page(wanted: NodeListParameters) -> PagePosition:
    faults = ValidationErrorCollector()
    if wanted.offset and wanted.cursor:
        faults("offset", "can be used for the first page only; it cannot be combined with `cursor`")
    faults.raise_any()
    return _decode_cursor(wanted.cursor) if wanted.cursor else PagePosition("", wanted.offset)


_OMITTED_FIELDS = {"content", "attributes", "freshness_at", AUTHOR_FIELD, "conflicts", "superseded_by"}
_COMPACT_FIELDS = [name for name in ListedNode.__struct_fields__ if name not in _OMITTED_FIELDS]
_decode_node = json_decoder(Node).decode


def _to_compact_node(text: bytes) -> ListedNode:
    node = _decode_node(text)
    return ListedNode(**{name: getattr(node, name) for name in _COMPACT_FIELDS})


def _encode_cursor(place: PagePosition) -> str:
    after = urlsafe_b64encode(place.after.encode()).decode().rstrip("=")
    return f"{after}.{place.skip}" if place.skip else after


def _decode_cursor(cursor: str) -> PagePosition:
    text, _, skip = cursor.partition(".")
    try:
        after = urlsafe_b64decode((text + "=" * (-len(text) % 4)).encode("ascii")).decode()
        place = PagePosition(after, int(skip or "0"))
    except ValueError:
        place = PagePosition()
    # The decoder ignores characters outside its alphabet.
    if not place.after or not 0 <= place.skip <= MAX_NODES_OFFSET or _encode_cursor(place) != cursor:
        raise InvalidInput.at("cursor", "is not a cursor of this list; use the `next_cursor` of the previous page")
    return place


def list_outgoing_edges(graph: StoreHandle, request: NodeEdgesRequest) -> JsonEncodedAnswer[EdgeList]:
    """Return the edges that start at a node, by `ordinal`, those without one last, then by `created_at`.

    Only edges of the given relation types are returned, by default of all.

    Raises NotFound, and Gone for a moment that is no longer in the history.
    """
    return read_node_edge_page_as_json(graph, request, outgoing=True)


def estimate_edge_page_request_cost(request: NodeEdgesRequest | IncomingEdgesRequest) -> int:
    """Return the number of edges of a page; 200 at most, because edges are read from memory."""
    return min(request.limit, 200)


def list_incoming_edges(graph: StoreHandle, request: IncomingEdgesRequest) -> JsonEncodedAnswer[EdgeList]:
    """Return the edges that end at a node, by `ordinal`, those without one last, then by `created_at`.

    Only edges of the given relation types are returned, by default of all. With `follow_symlinks`, edges of all stores
    that you may access are included. Raises NotFound, Gone for a moment that is no longer in the history, and
    InvalidInput for a moment combined with `follow_symlinks`.
    """
    return read_node_edge_page_as_json(graph, request, outgoing=False)


def _read_inbound_links(graph: StoreHandle, wanted: GetNodeRequest | IncomingEdgesRequest) -> Sequence[_Inbound]:
    """Return the current links to a node, if requested. May block."""
    if not wanted.follow_symlinks:
        return ()
    if wanted.as_of is not None:
        message = "cannot be combined with `follow_symlinks`: incoming links are known for the current state only"
        raise InvalidInput.at("as_of", message)
    if graph.most_edges is not None:  # other stores may have to be opened, which blocks
        raise StoreNotOpen
    with graph.lease() as store, store.reading() as rows:
        node_id = wanted.node_id if wanted.valid_at == VALID_AT_ANY else resolve_merge_redirect(rows, wanted.node_id)
        ids = [node_id, *(find_all_nodes_merged_into(rows, node_id) if wanted.valid_at != VALID_AT_ANY else ())]
    # The store is released first, because other stores may have to be leased.
    return graph.pool.inbound.to(graph.name, ids)


def _valid_inbound(inbound: Sequence[_Inbound], moment: int | None) -> Sequence[_Inbound]:
    return inbound if moment is None else [each for each in inbound if each[1].edge.is_valid_at(moment)]


def get_edge(graph: StoreHandle, request: EdgeIdRequest) -> EdgeAnswer:
    """Return one edge by its id.

    The id is `source~relation_type~target`, each percent-encoded, and the whole once more for the path. The id of an
    edge into another store ends with `~store`.

    Raises InvalidInput for an invalid id, and NotFound.
    """
    key = parse_edge_or_link_id(request.edge_id)
    if isinstance(key, CrossStoreLinkKey) and graph.most_edges is not None:
        raise WouldBlock
    with graph.lease() as store:
        row = find_edge_or_cross_store_link(store, key)
    if row is None:
        raise NotFound(f"there is no edge {edge_or_link_id(key)} in store {graph.name!r}")
    return EdgeAnswer(
        edge=row_to_api_conversion.build_api_edge_from_cross_store_link(CrossStoreLinkRow(key.store, row))
        if isinstance(key, CrossStoreLinkKey)
        else row_to_api_conversion.build_api_edge_from_row(row)
    )


def read_node_edge_page_as_json(
    graph: StoreHandle, request: NodeEdgesRequest | IncomingEdgesRequest, *, outgoing: bool
) -> JsonEncodedAnswer[EdgeList]:
    """Return a page of a node's edges as encoded JSON. Reads all edges. Raises as `list_incoming_edges` does."""
    require_valid_id_or_type_length(request.node_id)
    kinds = tuple(filter(None, request.kinds))
    inbound = () if outgoing or isinstance(request, NodeEdgesRequest) else _read_inbound_links(graph, request)
    wanted = EdgePageRequest(outgoing, kinds, request.offset, request.limit)
    past, moment = graph.resolve_as_of(request.as_of), _valid_at_or_any(request.valid_at)
    with (
        graph.lease() as store,
        open_graph_reader(store, past, moment, links=True, max_edges=graph.most_edges) as reader,
    ):
        found = _encode_page(reader, request, wanted, inbound)
    if found is None:
        when = format_not_found_moment_suffix(request.as_of, request.valid_at)
        raise NotFound(f"there is no node {request.node_id!r} in store {graph.name!r}{when}")
    return cast_json_bytes_to_answer(found)


def _encode_page(
    reader: GraphReader,
    asked: NodeEdgesRequest | IncomingEdgesRequest,
    wanted: EdgePageRequest,
    inbound: Sequence[_Inbound],
) -> bytes | None:
    node_id = _follow_redirects(reader, asked.node_id, asked.valid_at)
    if not reader.has_valid(node_id):
        return None
    page, more = _read_edges(reader, node_id, wanted, inbound)
    next_offset = b"%d" % (wanted.offset + wanted.limit) if more else b"null"
    return b'{"edges":[%b],"next_offset":%b%b}' % (
        b",".join(page),
        next_offset,
        encode_redirected_from_field(asked.node_id, node_id),
    )


def _read_edges(
    reader: GraphReader, node_id: str, wanted: EdgePageRequest, inbound: Sequence[_Inbound]
) -> tuple[list[bytes], bool]:
    """Return a page of a node's edges and links as JSON, and whether more follow. ``inbound``: links to the node."""
    found = (
        ((None, row) for row in reader.valid_links(node_id))
        if wanted.outgoing
        else _valid_inbound(inbound, reader.valid_at)
    )
    links = [
        encode_cross_store_link(row, origin)
        for origin, row in found
        if not wanted.relation_types or row.edge.relation_type in wanted.relation_types
    ]
    if links:
        return _page_with_links(reader, node_id, wanted, links)
    page, more, _ = reader.encode_edge_page(node_id, wanted)
    return page, more


def _page_with_links(
    reader: GraphReader, node_id: str, wanted: EdgePageRequest, links: list[bytes]
) -> tuple[list[bytes], bool]:
    """Return the same as `encode_edge_page`, with links among the edges."""
    end = wanted.offset + wanted.limit
    first, _, count = reader.encode_edge_page(node_id, wanted._replace(offset=0, limit=end))
    merged = [(_edge_order(_decode_edge(text)), text) for text in (*first, *links)]
    merged.sort(key=itemgetter(0))
    return [text for _, text in merged[wanted.offset : end]], count + len(links) > end


_decode_edge = json_decoder(Edge).decode


def _edge_order(edge: Edge) -> tuple[bool, int, int, str, str, str, str, str]:
    ordinal = None if edge.ordinal is msgspec.UNSET else edge.ordinal
    created_at = parse_rfc3339_timestamp(edge.attributes["created_at"])
    ends = edge.source, edge.target, edge.relation_type
    return ordinal is None, ordinal or 0, created_at, *ends, edge.to_graph or "", edge.store or ""


_MAX_SHALLOW_DEPTH = 3
_DEEP_WALK_COST = 100


def estimate_traversal_request_cost(request: TraverseRequest) -> int:
    """Return the number of rows that a walk is likely to read; of shallow walks 0."""
    return _DEEP_WALK_COST if max(request.depth, request.max_depth or 0) > _MAX_SHALLOW_DEPTH else 0


def traverse_graph(graph: StoreHandle, request: TraverseRequest) -> JsonEncodedAnswer[TraverseAnswer]:
    """Return each reachable node once, at its shortest distance, nearest first, and all edges between them.

    A start that does not exist gives empty arrays. `as_of` is a sequence or an RFC 3339 time: the traversal then sees
    the graph as of that moment. `valid_at` is an RFC 3339 time: only rows valid at that time are followed.

    Raises NotFound for the store, and Gone for a moment that is no longer in the history.
    """
    faults = ValidationErrorCollector()
    validate_identifier_length(request.start_id, "start_id", faults)
    # A depth that was left out cannot be distinguished from 1.
    depth = get_value_of_aliased_field(
        faults, "max_depth", request.max_depth, "depth", None if request.depth == 1 else request.depth
    )
    kinds = get_value_of_aliased_field(
        faults, "edge_kinds", request.edge_kinds or None, "relation_types", request.relation_types or None
    )
    faults.raise_any()
    types = None if kinds is None else frozenset(kinds)
    wanted = TraversalRequest(
        request.start_id,
        clamp_traversal_depth(1 if depth is None else depth),
        request.direction or "outgoing",
        types,
        request.min_weight,
        request.max_nodes,
    )
    if request.follow_symlinks:
        return cast_json_bytes_to_answer(traverse_stores(graph, request, wanted))
    past = graph.resolve_as_of(request.as_of)
    with (
        graph.lease() as store,
        open_graph_reader(store, past, request.valid_at, max_edges=graph.most_edges) as reader,
    ):
        start = _follow_redirects(reader, wanted.start, request.valid_at)
        found = reader.encode_walk(msgspec.structs.replace(wanted, start=start, valid_at=reader.valid_at))
    return cast_json_bytes_to_answer(
        b'{"nodes":[%b],"edges":[%b],"count":%d,"truncated":%b,"sequence":%d%b}'
        % (
            found.nodes,
            found.edges,
            found.node_count,
            b"true" if found.truncated else b"false",
            reader.sequence,
            encode_redirected_from_field(wanted.start, start),
        )
    )


_MAX_EXAMPLE_CONTENT_CHARS = 1 << 16


def get_node_summary_or_short_content(row: NodeRow | None) -> str:
    """Return a node's summary, or else its content, shortened; empty if its content is very long."""
    if row is None or len(row.content) > _MAX_EXAMPLE_CONTENT_CHARS:
        return ""
    return row_to_api_conversion.shorten_text(
        (row.extras.summary if row.extras else "") or row.content, MAX_EXAMPLE_CHARS
    )


def describe_types_and_tags(graph: StoreHandle) -> StoreTypesAndTags:
    """Return types with examples, tag prefixes with values, and tags: 100 of each, most frequent first.

    All counts are maintained with every write, so the cost does not depend on the size of the store.
    """
    with graph.lease() as leased:
        found = leased.query_catalog(
            lambda catalog, rows: catalog.vocabulary(
                lambda node_id: get_node_summary_or_short_content(rows.node(node_id)), time.time_ns() // 1000
            )
        )
    return StoreTypesAndTags(
        store=graph.name, node_count=found.nodes, kinds=found.kinds, tag_prefixes=found.tag_prefixes, tags=found.tags
    )


def list_tags(graph: StoreHandle, request: TagListParameters) -> TagList:
    """Return the tags that start with `prefix`, with their number of nodes: most frequent first, then by name."""
    limit = request.limit if 0 < request.limit < MAX_LISTED_TAGS else MAX_LISTED_TAGS
    with graph.lease() as leased:
        return TagList(
            tags=leased.query_catalog(
                lambda catalog, _: catalog.tags(request.prefix, limit), block=graph.most_edges is None
            )
        )


def estimate_tag_listing_request_cost(request: TagListParameters) -> int | None:
    """Return how many tags a list reads; None with a prefix, which may examine all."""
    return None if request.prefix else MAX_LISTED_TAGS


MAX_EDGES_PER_DELETION = 100_000
"""Edges deleted with the nodes of one deletion, unless a single node has more."""


def count_matching_nodes(graph: StoreHandle, request: CountNodesRequest) -> CountNodesAnswer:
    """Count the nodes of any of `types`, with all of `tags` and `attributes`; without a filter, all nodes.

    Without `valid_at`, only nodes valid now are counted, as in lists. If more than 500,000 nodes would have to be
    scanned, `exact` is false, and `count` is a lower bound.
    """
    max_scanned = None if graph.most_edges is None else MAX_NONBLOCKING_SCANNED_NODES
    with graph.lease() as store:
        wanted = _node_filter(store, request)
        found, sequence = store.query_catalog(
            lambda catalog, rows: (catalog.count(wanted, max_scanned), rows.at),
            by_attributes=bool(wanted.attributes),
            block=graph.most_edges is None,
        )
    if not found.exact and graph.most_edges is not None:
        raise WouldBlock
    return CountNodesAnswer(count=found.count, exact=found.exact, sequence=sequence)


def estimate_node_count_request_cost(request: CountNodesRequest) -> int:
    """Return the cost of a count in nodes read; a query of the catalog counts as ten."""
    return 10 * (len(request.types or ()) + len(request.tags or ()))


def get_nodes(graph: StoreHandle, request: GetNodesByIdRequest) -> JsonEncodedAnswer[NodesByIdAnswer]:
    """Return the nodes of up to 1,000 ids, without edges: now, or as of a moment. `missing` lists ids without a node.

    Of a merged node the survivor is returned, once, and listed in `redirected`.

    Raises Gone for a moment that is no longer in the history.
    """
    ids = _unique_ids(request.ids)
    past = graph.resolve_as_of(request.as_of)
    with (
        graph.lease() as store,
        open_graph_reader(store, past, _valid_at_or_any(request.valid_at), max_edges=graph.most_edges) as reader,
    ):
        targets = {} if request.valid_at == VALID_AT_ANY else reader.resolve_redirects(ids)
        nodes = reader.encode_nodes([*dict.fromkeys(targets.values())] if targets else ids)
    redirected = {asked: found for asked, found in targets.items() if asked != found and found in nodes}
    missing = msgspec.json.encode(_missing_ids((each for each in ids if each not in redirected), nodes))
    more = b',"redirected":' + msgspec.json.encode(redirected) if redirected else b""
    return cast_json_bytes_to_answer(b'{"nodes":[%b],"missing":%b%b}' % (b",".join(nodes.values()), missing, more))


def count_requested_ids(request: GetNodesByIdRequest) -> int:
    """Return the number of requested ids."""
    return len(request.ids)


def delete_matching_nodes(graph: StoreHandle, request: DeleteNodesRequest) -> Future[DeleteNodesAnswer]:
    """Delete the nodes that match all filters, with their edges: the first of them by id, at most `limit`.

    One of `ids`, `types`, `tags` and `attributes` is required and must not be empty. A request is one commit and
    deletes at most 100,000 edges, unless a single node has more; `more` reports whether any nodes are left. Deleting a
    memory deletes its former versions, which are not counted. With `dry_run`, nothing is deleted, and the answer
    reports what would be. Without `valid_at`, nodes valid now are deleted.

    Raises InvalidInput without a filter, NotFound for the store.
    """
    if not (request.ids or request.types or request.tags or request.attributes):
        raise InvalidInput(
            "a filter is required: ids, types, tags or attributes; to delete everything, delete the store"
        )
    with graph.lease() as store:
        wanted = _node_filter(store, request)
        deletion = _Deletion(request, wanted, _candidates(store, wanted, request))

    def look(leased: OpenStore) -> _DeletionPlan:
        with leased.reading() as rows:
            return deletion.chosen(rows)

    def batch(_: OpenStore, chosen: _DeletionPlan) -> WriteBatch:
        return WriteBatch(delete_nodes=chosen.ids, cost=sum(map(len, chosen.ids)) + 100 * chosen.edges)

    return graph.submit_prepared_batch(look, batch, deletion.answer, dry_run=request.dry_run)


class _DeletionPlan(msgspec.Struct, frozen=True):
    """Nodes to delete and the number of their edges. ``more``: others match. ``unfit``: candidates that do not match.

    ``about``: the active memories about them, which are kept.
    """

    ids: list[str]
    edges: int
    more: bool
    unfit: list[str]
    about: list[str]


class _Deletion(msgspec.Struct, frozen=True):
    """A deletion of those ``candidates`` that still match when it runs."""

    request: DeleteNodesRequest
    wanted: NodeFilter
    candidates: list[str]

    def chosen(self, rows: RowsSnapshot) -> _DeletionPlan:
        """Return what to delete of the current rows."""
        found = rows.nodes(self.candidates)
        fitting = {node_id: None for node_id, row in found.items() if self.wanted.matches(row)}
        ids, edges = _limit_edges(rows, islice(fitting, self.request.limit))
        return _DeletionPlan(
            ids,
            edges,
            len(ids) < len(fitting),
            _missing_ids(self.candidates, fitting),
            list_memories_orphaned_by_deletion(rows, ids),
        )

    def answer(self, chosen: _DeletionPlan, sequence: int) -> DeleteNodesAnswer:
        """Return the answer to the caller."""
        return DeleteNodesAnswer(
            dry_run=self.request.dry_run,
            count=len(chosen.ids),
            ids=chosen.ids,
            edges_deleted=chosen.edges,
            missing=chosen.unfit if self.request.ids else [],
            more=chosen.more,
            sequence=sequence,
            memories_about=len(chosen.about) or msgspec.UNSET,
            memory_ids=chosen.about[:MAX_REPORTED_ITEMS] or msgspec.UNSET,
        )


def _limit_edges(rows: RowsSnapshot, nodes: Iterable[str]) -> tuple[list[str], int]:
    """Return the first nodes that fit into one deletion, and the number of their edges."""
    ids: list[str] = []
    edges: set[int] = set()
    for node_id in nodes:
        more = _deleted_edge_numbers(rows, node_id) - edges
        if ids and len(edges) + len(more) > MAX_EDGES_PER_DELETION:
            break
        edges |= more
        ids.append(node_id)
    return ids, len(edges)


def _deleted_edge_numbers(rows: RowsSnapshot, node_id: str) -> set[int]:
    """Return the numbers of the edges deleted with a node, including those of its former versions."""
    node = np.array([rows.number(each) for each in add_memory_predecessors(rows, (node_id,))])
    found = [rows.edges_around(node, outgoing=outgoing) for outgoing in (True, False)]
    return {number for each in found for number in (*each.base.tolist(), *(changed for changed, _ in each.changed))}


def _candidates(store: OpenStore, wanted: NodeFilter, request: DeleteNodesRequest) -> list[str]:
    """Return ids that may match, one more than the limit: the requested ids, or the first matching ones."""
    if request.ids:
        return _unique_ids(request.ids)
    found: list[str] = []
    place: PagePosition | None = PagePosition()
    while place is not None and len(found) <= request.limit:
        with store.reading() as rows:
            page = CurrentGraph(store, rows, None).list_nodes(wanted, place, request.limit + 1 - len(found))
        found += [node_id for node_id, _ in page.items]
        place = page.next
    return found


def _node_filter(store: OpenStore, request: CountNodesRequest | DeleteNodesRequest) -> NodeFilter:
    types, tags = tuple(_without_repeats(request.types or ())), tuple(_without_repeats(request.tags or ()))
    moment = resolve_valid_at(request.valid_at, time.time_ns() // 1000 if store.rows.has_validity_bounds else None)
    return NodeFilter(types, tags, moment, convert_attribute_filter_to_conditions(request.attributes))


def _unique_ids(ids: Iterable[str]) -> list[str]:
    """Return valid ids, without duplicates. Raises InvalidInput."""
    faults = ValidationErrorCollector()
    unique = _without_repeats(ids)
    for place, node_id in enumerate(unique):
        validate_identifier_length(node_id, f"ids[{place}]", faults)
    faults.raise_any()
    return unique


def _without_repeats(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _missing_ids(ids: Iterable[str], found: Collection[str]) -> list[str]:
    existing = frozenset(found)
    return [node_id for node_id in ids if node_id not in existing]
