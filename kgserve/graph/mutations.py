"""Writes of nodes and edges: batched upserts, deletion, and ending their validity."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from kgserve.errors import FieldError, InvalidInput, NotFound
from kgserve.graph.answers import (
    MAX_REPORTED_ITEMS,
    DeleteEdgeAnswer,
    DeleteNodeAnswer,
    DuplicateBatchItemNotice,
    EdgeKeyAnswer,
    InjectAnswer,
    SkippedEdge,
)
from kgserve.graph.compat.versioned_nodes_api import (
    RetireEdgeRequest,
    RetireNodeOrEdgeAnswer,
    RetireVersionedNodeRequest,
)
from kgserve.graph.cross_store_links import (
    find_edge_or_cross_store_link,
    split_edges_and_cross_store_links,
    to_edge_or_link_key,
)
from kgserve.graph.former_versions import check_version_validity_overlap, list_other_memory_versions
from kgserve.graph.request_bodies import EdgeKeyRequest, InjectRequest
from kgserve.graph.request_validation import (
    FaultCallback,
    ValidationErrorCollector,
    check_author,
    parse_timestamp_update,
    require_valid_id_or_type_length,
    validate_edge_input,
    validate_identifier_length,
    validate_node_input,
)
from kgserve.graph.store_handle import StoreHandle
from kgserve.graph.url_parameters import EdgeIdRequest, NodeIdRequest, RetireNodeRequest
from kgserve.platform.settings import Settings
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION
from kgserve.storage.model.node_edge_fields import NO_EXTRAS, EdgeExtrasUpsert, NodeExtrasUpsert, TimestampPut
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    EdgeKey,
    EdgeRow,
    NodeRow,
    parse_edge_or_link_id,
)
from kgserve.storage.model.write_batch import CrossStoreLinkUpsert, EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.rows.edge_pages import incoming_edges_of_type
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.write_planner import MAX_REPORTED_ROWS, WriteReport
from kgserve.stores.open_store import OpenStore

_Request = TypeVar("_Request")
_Put = TypeVar("_Put")


def count_requested_writes(request: InjectRequest) -> int:
    """Return the number of nodes and edges that a request writes."""
    return len(request.nodes or ()) + len(request.edges or ())


def upsert_nodes_and_edges(graph: StoreHandle, request: InjectRequest) -> Future[InjectAnswer]:
    """Create or update nodes and edges in one atomic batch. Creates the store if it does not exist.

    Sending the same batch again changes nothing. A field that is left out keeps its stored value; an explicit empty
    value clears it. An edge with a missing endpoint is skipped and listed; the target of an edge with `to_graph`, in
    another store, need not exist. When the answer arrives, the whole batch is on disk. If a JSON object repeats a key,
    or a batch repeats a node or edge, the last one wins.

    Raises InvalidInput, whose `errors` list every faulty path, TooLarge, Unavailable and StorageFull; then nothing is
    written.
    """
    nodes, edges = request.nodes or [], request.edges or []
    _check_sizes(len(nodes), len(edges), graph.graphs.settings)
    faults = ValidationErrorCollector()
    node_puts = _checked_rows(nodes, "nodes", validate_node_input, faults.errors)
    edge_puts = _checked_rows(edges, "edges", validate_edge_input, faults.errors)
    faults.raise_any()
    own, links = (
        split_edges_and_cross_store_links(graph, edges, edge_puts)
        if any(edge.to_graph for edge in edges)
        else (edge_puts, [])
    )
    batch = WriteBatch(
        nodes=node_puts, edges=own, links=links, touch=request.touch, cost=estimate_batch_bytes(node_puts, edge_puts)
    )

    merged = [
        *_find_repeats("nodes", node_puts, attrgetter("id")),
        *_find_repeats("edges", [*own, *links], attrgetter("key")),
    ]

    def answer(report: WriteReport) -> InjectAnswer:
        made = build_inject_answer(report, len(nodes), len(edges))
        return (
            msgspec.structs.replace(made, merged=merged[:MAX_REPORTED_ROWS], merged_count=len(merged))
            if merged
            else made
        )

    return graph.submit(batch, answer, create=True)


def _find_repeats(
    name: str, puts: Collection[NodeUpsert | EdgeUpsert | CrossStoreLinkUpsert], key: Callable[[Any], Hashable]
) -> Iterator[DuplicateBatchItemNotice]:
    """Yield the puts of a list whose key an earlier one has."""
    if len({*map(key, puts)}) == len(puts):
        return
    first: dict[Hashable, int] = {}
    for put in puts:
        earlier = first.setdefault(key(put), put.index)
        if earlier != put.index:
            yield DuplicateBatchItemNotice(path=f"{name}[{put.index}]", earlier_path=f"{name}[{earlier}]")


def estimate_batch_bytes(nodes: list[NodeUpsert], edges: list[EdgeUpsert]) -> int:
    """Return the approximate size of rows in bytes: their texts plus a constant per row."""
    texts = sum([len(n.content or "") + len(n.attributes or "") for n in nodes])
    texts += sum([len(e.own) for e in edges if e.own is not None])
    texts += sum([_extras_cost(n.extras) for n in nodes if n.extras is not None])
    return texts + 300 * (len(nodes) + len(edges))


def _extras_cost(extras: NodeExtrasUpsert) -> int:
    return len(extras.summary or "") + sum(map(len, extras.tags or ())) + 100


_BATCH_ADVICE = "send several requests, or use an import"


def _check_sizes(nodes: int, edges: int, settings: Settings) -> None:
    faults = ValidationErrorCollector()
    if nodes > settings.max_nodes:
        faults("nodes", f"has {nodes} entries; the limit is {settings.max_nodes} per request; {_BATCH_ADVICE}")
    if edges > settings.max_edges:
        faults("edges", f"has {edges} entries; the limit is {settings.max_edges} per request; {_BATCH_ADVICE}")
    faults.raise_any()


def _checked_rows(
    requests: list[_Request], name: str, check: Callable[[int, _Request, FaultCallback], _Put], errors: list[FieldError]
) -> list[_Put]:
    puts: list[_Put] = []
    faults = _RowErrorCollector(name, errors)
    for index, request in enumerate(requests):
        faults.index = index
        puts.append(check(index, request, faults))
    return puts


class _RowErrorCollector:
    """Collector for the faults of a list's rows, one row at a time."""

    def __init__(self, name: str, errors: list[FieldError]) -> None:
        self._name, self._errors = name, errors
        self.index = 0

    def __call__(self, path: str, message: str) -> None:
        """Add a fault of the current row."""
        self._errors.append(FieldError(f"{self._name}[{self.index}].{path}", message))


def build_inject_answer(report: WriteReport, nodes_sent: int, edges_sent: int) -> InjectAnswer:
    """Return the answer to a write."""
    skipped = [
        SkippedEdge(index=row.index, source=row.key[0], target=row.key[1], relation_type=row.key[2], reason=row.reason)
        for row in report.skipped
        if row.key is not None
    ]
    return InjectAnswer(
        nodes_sent=nodes_sent,
        edges_sent=edges_sent,
        nodes_created=report.nodes_created,
        nodes_updated=report.nodes_updated,
        nodes_unchanged=report.nodes_unchanged,
        edges_created=report.edges_created,
        edges_updated=report.edges_updated,
        edges_unchanged=report.edges_unchanged,
        edges_skipped=skipped,
        edges_skipped_count=report.skipped_count,
        sequence=report.sequence,
        redirected=report.redirected or msgspec.UNSET,
    )


def delete_node(graph: StoreHandle, request: NodeIdRequest) -> Future[DeleteNodeAnswer]:
    """Delete the node and every edge that touches it. Deleting a node that does not exist is not an error.

    Deleting a memory deletes its former versions. Memories about the node are kept, and the answer names them.
    """
    node_id = require_valid_id_or_type_length(request.node_id)
    about: list[str] = []

    def begin(store: OpenStore) -> Future[WriteReport]:
        with store.reading() as rows:
            about.extend(list_ids_of_memories_about_node(rows, node_id))
        return store.submit(WriteBatch(delete_nodes=[node_id], cost=len(node_id)))

    def answer(report: WriteReport) -> DeleteNodeAnswer:
        return DeleteNodeAnswer(
            deleted_id=node_id,
            existed=report.nodes_deleted > 0,
            edges_deleted=report.edges_deleted,
            sequence=report.sequence,
            memories_about=len(about) or UNSET,
            memory_ids=about[:MAX_REPORTED_ITEMS] or UNSET,
        )

    return graph.write(begin, answer)


def list_ids_of_memories_about_node(rows: RowsSnapshot, node_id: str) -> list[str]:
    """Return the ids of the active memories about a node."""
    found = rows.nodes([edge.source for edge in incoming_edges_of_type(rows, node_id, IS_ABOUT_RELATION)])
    return [row.id for row in found.values() if row.is_memory and not (row.extras or NO_EXTRAS).ended]


def list_memories_orphaned_by_deletion(rows: RowsSnapshot, ids: Collection[str]) -> list[str]:
    """Return the ids of the active memories about nodes to be deleted that are not deleted themselves."""
    about = dict.fromkeys(memory for node_id in ids for memory in list_ids_of_memories_about_node(rows, node_id))
    deleted = set(ids)
    return [memory for memory in about if memory not in deleted]


def delete_edge(graph: StoreHandle, request: EdgeKeyRequest) -> Future[DeleteEdgeAnswer]:
    """Delete the edge of this source, target and relation type; other edges between the two nodes are kept.

    Deleting an edge that does not exist is not an error.
    """
    return _delete_edge(graph, _require_key(graph, request, ValidationErrorCollector()))


def _require_key(
    graph: StoreHandle, request: EdgeKeyRequest | RetireEdgeRequest, faults: ValidationErrorCollector
) -> EdgeKey | CrossStoreLinkKey:
    """Return the key of the requested edge. Raises InvalidInput with all faults found."""
    key = (request.source, request.target, request.relation_type)
    for text, path in zip(key, EdgeKeyAnswer.__struct_encode_fields__, strict=True):
        validate_identifier_length(text, path, faults)
    faults.raise_any()
    return to_edge_or_link_key(graph, key, request.to_graph)


def _delete_edge(graph: StoreHandle, key: EdgeKey | CrossStoreLinkKey) -> Future[DeleteEdgeAnswer]:
    def answer(report: WriteReport) -> DeleteEdgeAnswer:
        return DeleteEdgeAnswer(existed=report.edges_deleted > 0, sequence=report.sequence)

    if isinstance(key, CrossStoreLinkKey):
        batch = WriteBatch(delete_links=[key], cost=sum(map(len, key.edge)))
    else:
        batch = WriteBatch(delete_edges=[key], cost=sum(map(len, key)))
    return graph.submit(batch, answer)


def delete_edge_by_id(graph: StoreHandle, request: EdgeIdRequest) -> Future[DeleteEdgeAnswer]:
    """Delete one edge by its id. Deleting an edge that does not exist is not an error."""
    return _delete_edge(graph, parse_edge_or_link_id(request.edge_id))


def end_node_valid_time(graph: StoreHandle, request: RetireNodeRequest) -> Future[RetireNodeOrEdgeAnswer]:
    """End the validity of a node: set its `valid_to`, by default to now. Nothing is deleted.

    A node whose validity has already ended keeps its end, unless another one is sent. Its edges are valid only while it
    is.

    Raises NotFound, InvalidInput for an end before the beginning, and Conflict if another version of a memory would be
    valid at the same time.
    """
    node_id, faults = request.node_id, ValidationErrorCollector()
    validate_identifier_length(node_id, "id", faults)
    valid_to, author = _checked_end(request, faults)

    def batch(leased: OpenStore) -> WriteBatch:
        with leased.reading() as rows:
            row = rows.node(node_id)
            others = list_other_memory_versions(rows, row) if row is not None and row.is_memory else []
        if row is None:
            raise NotFound(f"there is no node {node_id!r} in store {graph.name!r}")
        end = _end_of_validity(row, valid_to)
        after = msgspec.structs.replace(row.extras or NO_EXTRAS, valid_to=end)
        check_version_validity_overlap(msgspec.structs.replace(row, extras=after), others)
        put = NodeUpsert(0, node_id, extras=NodeExtrasUpsert(created_by=author, valid_to=end))
        return WriteBatch(nodes=[put], return_rows=True, cost=len(node_id))

    return _submit_retirement(graph, batch)


def end_edge_valid_time(graph: StoreHandle, request: RetireEdgeRequest) -> Future[RetireNodeOrEdgeAnswer]:
    """End the validity of an edge: set its `valid_to`, by default to now.

    An edge whose validity has already ended keeps its end, unless another one is sent.

    Raises NotFound, and InvalidInput for an end before the beginning.
    """
    faults = ValidationErrorCollector()
    valid_to, author = _checked_end(request, faults)
    key = _require_key(graph, request, faults)

    def batch(leased: OpenStore) -> WriteBatch:
        row = find_edge_or_cross_store_link(leased, key)
        if row is None:
            source, target, kind = key.edge if isinstance(key, CrossStoreLinkKey) else key
            end = f"{target!r} of store {key.store!r}" if isinstance(key, CrossStoreLinkKey) else repr(target)
            raise NotFound(f"there is no edge of type {kind!r} from {source!r} to {end} in store {graph.name!r}")
        extras = EdgeExtrasUpsert(created_by=author, valid_to=_end_of_validity(row, valid_to))
        put = EdgeUpsert(0, row.key, extras=extras)
        edges, links = (
            ([], [CrossStoreLinkUpsert(key.store, put)]) if isinstance(key, CrossStoreLinkKey) else ([put], [])
        )
        return WriteBatch(edges=edges, links=links, touch=False, return_rows=True, cost=sum(map(len, row.key)))

    return _submit_retirement(graph, batch)


def _submit_retirement(graph: StoreHandle, batch: Callable[[OpenStore], WriteBatch]) -> Future[RetireNodeOrEdgeAnswer]:
    return graph.write(lambda store: store.submit_prepared(lambda: batch(store)), _retire_answer)


def _checked_end(
    request: RetireVersionedNodeRequest | RetireEdgeRequest, faults: ValidationErrorCollector
) -> tuple[TimestampPut, str]:
    """Return the requested end and the author. Raises InvalidInput with all faults found."""
    valid_to, author = (
        parse_timestamp_update(request.valid_to or None, "valid_to", faults),
        check_author(request.created_by, faults),
    )
    faults.raise_any()
    return valid_to, author


def _end_of_validity(row: NodeRow | EdgeRow, asked: TimestampPut) -> int:
    """Return the requested end; without one, now, or the existing end if that is earlier."""
    if isinstance(asked, int):
        return asked
    now = time.time_ns() // 1000
    begun = row.extras.valid_from if row.extras is not None else None
    if begun is not None and begun > now:
        raise InvalidInput.at("valid_to", f"is required: validity begins only at {format_rfc3339_timestamp(begun)}")
    ended = row.extras.valid_to if row.extras is not None else None
    return now if ended is None else min(ended, now)


def _retire_answer(report: WriteReport) -> RetireNodeOrEdgeAnswer:
    found = report.rows[0]
    row = found.edge if isinstance(found, CrossStoreLinkRow) else found
    end = row.extras.valid_to if row.extras is not None else None
    return RetireNodeOrEdgeAnswer(
        valid_to=format_rfc3339_timestamp(end or 0),
        changed=report.nodes_updated + report.edges_updated > 0,
        version=row.version,
        sequence=report.sequence,
    )
