"""Versioned writes with optimistic concurrency: single nodes, or nodes and edges as a subgraph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import msgspec

from kgserve.errors import ConflictManual, InvalidInput, KgserveError, NotFound
from kgserve.graph import row_to_api_conversion
from kgserve.graph.compat.versioned_nodes_api import (
    MAX_SUBGRAPH_EDGES,
    MAX_SUBGRAPH_NODES,
    NodeVersionFields,
    PutNodeAnswer,
    PutNodeRequest,
    PutSubgraphAnswer,
    PutSubgraphNodeResult,
    PutSubgraphRequest,
    SubgraphEdgeInput,
    SubgraphEdgeResult,
    SubgraphNodeInput,
    UndecodableSubgraphItem,
)
from kgserve.graph.cross_store_links import is_cross_store_edge
from kgserve.graph.mutations import estimate_batch_bytes
from kgserve.graph.request_bodies import EdgeInput, NodeInput
from kgserve.graph.request_validation import (
    FaultCallback,
    ValidationErrorCollector,
    get_value_of_aliased_field,
    rename_fields_in_error_paths,
    validate_edge_input,
    validate_node_input,
)
from kgserve.graph.store_handle import StoreHandle
from kgserve.platform.codecs import convert_plain_value_to_type, locate_validation_error
from kgserve.platform.idempotency import generate_idempotent_node_id, is_repeated_idempotent_call
from kgserve.platform.json_values import is_same_json_value
from kgserve.storage.model.node_edge_fields import (
    EDGE,
    MAX_ID_BYTES,
    NODE,
    STRING_LIST_TYPE,
    EdgeExtrasUpsert,
    get_row_field_names,
)
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    EdgeKey,
    EdgeRow,
    NodeRow,
    edge_or_link_id,
)
from kgserve.storage.model.write_batch import (
    CrossStoreLinkUpsert,
    EdgeUpsert,
    NodeUpsert,
    WriteBatch,
    get_conflicting_node_head_versions,
)
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.open_store import OpenStore

_NODE_NAMES = {"id": "lineage_id", "type": "kind", "attributes": "metadata"}
_EDGE_NAMES = {"relation_type": "kind", "attributes": "metadata"}
"""Names of our fields in the versioned API."""


def put_whole_node_version(graph: StoreHandle, request: PutNodeRequest) -> Future[PutNodeAnswer]:
    """Write a whole version of a node: a new node without an id, else the next version of that node.

    `based_on_version` is the version that the writer had read. If the node has changed since, the store's
    `conflict_policy` decides. With `lww`, the new version wins, and `replaced_version` names the one it replaced. With
    `manual`, both are kept, and the answer is 409 with the node as written and its `conflicts`. A later put based on
    any of these heads, or without `based_on_version`, resolves the conflict.

    Raises ConflictManual, with the node as written, when it is kept as a conflicting head, and KindNotAllowed. It is
    never retried automatically.
    """
    faults = ValidationErrorCollector()
    _check_graph(graph, request.graph_id, faults)
    fields = _with_contract_names(request, faults)
    uses_ours = any(getattr(request, ours) is not None for ours in _NODE_NAMES)
    sent = {ours: name for ours, name in _NODE_NAMES.items() if getattr(request, name) is not None or not uses_ours}
    put = validate_node_version_fields(fields, rename_fields_in_error_paths(faults, sent))
    faults.raise_any()

    def answer(report: WriteReport) -> PutNodeAnswer:
        row = get_written_node_row(report)
        node = row_to_api_conversion.build_api_node_from_row(row)
        if is_conflicting_head(put, report):
            others = ", ".join(f"version {version}" for version in get_conflicting_node_head_versions(row))
            raise ConflictManual(
                f"node {row.id!r} is not at version {put.based_on}: your write is kept as version {row.version}, in "
                f"conflict with {others}; put a version based on any of them to resolve it",
                node,
            )
        # A generated id belongs to this call, so a retried call created the node itself.
        created = report.nodes_created > 0 or not fields.lineage_id
        made = PutNodeAnswer(node=node, created=created, sequence=report.sequence)
        return msgspec.structs.replace(made, **_overwritten(put, report))

    return graph.submit(build_single_node_write_batch(put), answer, create=True)


def validate_node_version_fields(fields: NodeVersionFields, fault: FaultCallback, place: int = 0) -> NodeUpsert:
    """Validate a whole version of a node; it supersedes every head unless it is based on none of them.

    ``place`` is the node's position in its call, used to derive an id if it has none.
    """
    if not fields.kind:
        fault("type", "is required")
    node = NodeInput(
        id=fields.lineage_id or generate_idempotent_node_id(place),
        type=fields.kind or "-",
        content=fields.content or "",
        attributes=fields.metadata or {},
        **{name: getattr(fields, name) or nothing for name, nothing in _EMPTY_EXTRAS.items()},
    )
    put = validate_node_input(0, node, fault)
    # A new node has no version that a writer could have read.
    based_on = fields.based_on_version if fields.lineage_id else None
    return msgspec.structs.replace(put, based_on=based_on, resolves=True)


_EMPTY_EXTRAS: dict[str, Any] = {
    field.name: [] if field.type is STRING_LIST_TYPE else "" for field in NODE.extras if not field.is_own
}


def build_single_node_write_batch(put: NodeUpsert) -> WriteBatch:
    """Return the write of one node, whose report contains the row written."""
    return WriteBatch(nodes=[put], return_rows=True, cost=estimate_batch_bytes([put], []))


def get_written_node_row(report: WriteReport) -> NodeRow:
    """Return the node as written by a single-node write, from its report."""
    row = report.rows[0]
    if not isinstance(row, NodeRow):
        raise TypeError(f"a write of one node reported {row}")
    return row


def is_conflicting_head(put: NodeUpsert, report: WriteReport) -> bool:
    """Return whether a version was kept as a conflicting head."""
    return (
        put.based_on is not None
        and report.nodes_updated > 0
        and get_conflicting_node_head_versions(get_written_node_row(report)) != ()
    )


def _overwritten(put: NodeUpsert, report: WriteReport) -> dict[str, Any]:
    """Return what a put overwrote: the version that its writer had not read, and fields that were left out."""
    if not (report.before and report.nodes_updated):
        return {}
    old, row, found = report.before[0], get_written_node_row(report), dict[str, Any]()
    if not isinstance(old, NodeRow):
        return {}
    if put.based_on is not None and put.based_on not in (old.version, *get_conflicting_node_head_versions(old)):
        found["replaced_version"] = old.version
    had, has = _set_fields(old), _set_fields(row)
    if cleared := [name for name in had if name not in has]:
        found["cleared"] = cleared
    return found


def _set_fields(row: NodeRow) -> list[str]:
    """Return the names of the fields of a node that are set."""
    shown = row_to_api_conversion.build_api_node_from_row(row)
    fields = ("content", "attributes", *(field.name for field in NODE.extras if not field.is_own))
    return [name for name in fields if getattr(shown, name) not in ("", {}, [], None, msgspec.UNSET)]


def _with_contract_names(request: PutNodeRequest, fault: FaultCallback) -> NodeVersionFields:
    """Return the request with its fields under the names of the versioned API."""
    values = {
        name: get_value_of_aliased_field(fault, name, getattr(request, name), ours, getattr(request, ours))
        for ours, name in _NODE_NAMES.items()
    }
    return msgspec.structs.replace(request, **values)


VERSION_QUEUE_TIMEOUT_SECONDS = 10.0

_Queued = tuple[SubgraphNodeInput, NodeUpsert, Future[WriteReport]] | KgserveError
_Spec = TypeVar("_Spec", SubgraphNodeInput, SubgraphEdgeInput)


def put_subgraph(graph: StoreHandle, request: PutSubgraphRequest) -> PutSubgraphAnswer:
    """Write nodes in order, then edges, whose ends are a `ref` of this call or an id.

    Each item has its own result, in order. A faulty item is left out, and so are the edges that refer to it. A call
    holds at most 50 nodes and 100 edges.

    Raises InvalidInput, before anything is written, for too many items or none. It is never retried automatically.
    """
    nodes, edges = request.nodes or [], request.edges or []
    _check_shape(graph, request.graph_id, len(nodes), len(edges))
    with graph.lease(create=True) as leased:
        queued = [_queue(leased, item, place) for place, item in enumerate(nodes)]
        node_results = [_node_result(item, each) for item, each in zip(nodes, queued, strict=True)]
        refs = {
            result.ref: result.lineage_id
            for result in node_results
            if result.ref and result.lineage_id and not result.error
        }
        edge_results = _put_edges(leased, edges, refs, graph)
        return PutSubgraphAnswer(nodes=node_results, edges=edge_results, sequence=leased.state.sequence)


def _check_shape(graph: StoreHandle, named: str | None, nodes: int, edges: int) -> None:
    faults = ValidationErrorCollector()
    _check_graph(graph, named, faults)
    if nodes > MAX_SUBGRAPH_NODES:
        faults("nodes", f"must contain at most {MAX_SUBGRAPH_NODES} entries")
    if edges > MAX_SUBGRAPH_EDGES:
        faults("edges", f"must contain at most {MAX_SUBGRAPH_EDGES} entries")
    if not nodes and not edges:
        faults("nodes", "at least one of nodes or edges is required")
    faults.raise_any()


def _check_graph(graph: StoreHandle, named: str | None, fault: FaultCallback) -> None:
    if named and named != graph.name:
        fault(
            "graph_id",
            f"is {named!r}, but the request is for store {graph.name!r}; leave it out, or send it to that store",
        )


def _queue(store: OpenStore, item: object, place: int) -> _Queued:
    faults = ValidationErrorCollector()
    try:
        spec = _decode_item(item, SubgraphNodeInput)
        put = validate_node_version_fields(spec, rename_fields_in_error_paths(faults, _NODE_NAMES), place)
        faults.raise_any()
        return spec, put, store.submit(build_single_node_write_batch(put), VERSION_QUEUE_TIMEOUT_SECONDS)
    except KgserveError as error:
        return error


def _decode_item(item: object, kind: type[_Spec]) -> _Spec:
    """Decode an item of a subgraph. Raises InvalidInput naming the faulty field, or the error of an earlier attempt."""
    if isinstance(item, kind):
        return item
    if isinstance(item, UndecodableSubgraphItem):
        raise item.error
    try:
        return convert_plain_value_to_type(item, kind)
    except msgspec.ValidationError as error:
        fault = locate_validation_error(error, kind)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None


def _ref_of(item: object) -> str | None:
    """Return the ``ref`` of a node that could not be decoded."""
    ref = cast("Mapping[str, object]", item).get("ref") if isinstance(item, Mapping) else getattr(item, "ref", None)
    return ref if isinstance(ref, str) and 0 < len(ref) <= MAX_ID_BYTES else None


def _node_result(item: object, queued: _Queued) -> PutSubgraphNodeResult:
    if isinstance(queued, KgserveError):
        return PutSubgraphNodeResult(ref=_ref_of(item), created=False, error=format_subgraph_item_error(queued))
    spec, put, future = queued
    ref = spec.ref or None
    try:
        report = future.result()
    except KgserveError as error:
        return PutSubgraphNodeResult(ref=ref, created=False, error=format_subgraph_item_error(error))
    row = get_written_node_row(report)
    error = None
    if is_conflicting_head(put, report):
        error = f"{ConflictManual.code}: concurrent write under manual conflict policy; conflict recorded"
    lost = {} if error else _overwritten(put, report)
    created = report.nodes_created > 0 or not spec.lineage_id
    return PutSubgraphNodeResult(ref=ref, lineage_id=row.id, version=row.version, created=created, error=error, **lost)


def _put_edges(
    store: OpenStore, items: Sequence[object], refs: Mapping[str, str], graph: StoreHandle
) -> list[SubgraphEdgeResult]:
    results: list[SubgraphEdgeResult] = []
    puts: list[EdgeUpsert | CrossStoreLinkUpsert] = []
    for index, item in enumerate(items):
        try:
            spec = _decode_item(item, SubgraphEdgeInput)
            put = _edge_put(index, spec, refs)
            if spec.to_graph and is_cross_store_edge(graph, spec.to_graph):
                put = CrossStoreLinkUpsert(spec.to_graph, put)
        except KgserveError as error:
            results.append(SubgraphEdgeResult(error=format_subgraph_item_error(error)))
        else:
            puts.append(put)
            results.append(SubgraphEdgeResult(edge_id=edge_or_link_id(put.key)))
    if puts:
        for index, result in _written_edges(store, puts).items():
            results[index] = result
    return results


def _written_edges(store: OpenStore, puts: list[EdgeUpsert | CrossStoreLinkUpsert]) -> dict[int, SubgraphEdgeResult]:
    """Write edges; return the results that differ from a newly created edge, by position.

    Several puts of one edge are separate commits, so that the history holds each.
    """
    queued = [(wave, _queue_edges(store, wave)) for wave in _split_repeats(puts)]
    found: dict[int, SubgraphEdgeResult] = {}
    for wave, writing in queued:
        try:
            report = writing if isinstance(writing, KgserveError) else writing.result()
        except KgserveError as error:
            report = error
        found |= _edge_results(wave, report)
    return found


def _split_repeats(puts: list[EdgeUpsert | CrossStoreLinkUpsert]) -> list[list[EdgeUpsert | CrossStoreLinkUpsert]]:
    """Split puts into lists that name each edge once, keeping the order of the puts of each edge."""
    waves: list[list[EdgeUpsert | CrossStoreLinkUpsert]] = []
    counts: Counter[EdgeKey | CrossStoreLinkKey] = Counter()
    for put in puts:
        place = counts[put.key]
        counts[put.key] += 1
        if place == len(waves):
            waves.append([])
        waves[place].append(put)
    return waves


def _queue_edges(store: OpenStore, puts: list[EdgeUpsert | CrossStoreLinkUpsert]) -> Future[WriteReport] | KgserveError:
    edges = [put for put in puts if isinstance(put, EdgeUpsert)]
    links = [put for put in puts if isinstance(put, CrossStoreLinkUpsert)]
    size = estimate_batch_bytes([], [*edges, *(put.edge for put in links)])
    batch = WriteBatch(
        edges=edges, links=links, touch=not is_repeated_idempotent_call(), partial=True, return_rows=True, cost=size
    )
    try:
        return store.submit(batch, VERSION_QUEUE_TIMEOUT_SECONDS)
    except KgserveError as error:
        return error


def _edge_results(
    puts: list[EdgeUpsert | CrossStoreLinkUpsert], report: WriteReport | KgserveError
) -> dict[int, SubgraphEdgeResult]:
    if isinstance(report, KgserveError):
        return {put.index: SubgraphEdgeResult(error=format_subgraph_item_error(report)) for put in puts}
    left_out = {each.index: f"{NotFound.code}: {each.reason}" for each in report.skipped}
    wrong = {each.index: f"invalid_input: {each.reason}" for each in report.rejected}
    moved = _redirected_results(puts, report.redirected)
    found = {put.index: moved.get(put.index, SubgraphEdgeResult(edge_id=edge_or_link_id(put.key))) for put in puts}
    for put in puts:
        if (row := _find_row(put, report.rows)) is not None and (old := _find_row(put, report.before)) is not None:
            found[put.index] = _replacement(found[put.index], row, old)
    return found | {index: SubgraphEdgeResult(error=error) for index, error in (left_out | wrong).items()}


def _find_row(
    put: EdgeUpsert | CrossStoreLinkUpsert, rows: Sequence[NodeRow | EdgeRow | CrossStoreLinkRow]
) -> EdgeRow | CrossStoreLinkRow | None:
    return next((row for row in rows if not isinstance(row, NodeRow) and row.key == put.key), None)


def _replacement(
    result: SubgraphEdgeResult, row: EdgeRow | CrossStoreLinkRow, old: EdgeRow | CrossStoreLinkRow
) -> SubgraphEdgeResult:
    had, has = _edge_values(old), _edge_values(row)
    changed = {name: value for name, value in had.items() if not is_same_json_value(has.get(name), value)}
    before, after = (each.edge if isinstance(each, CrossStoreLinkRow) else each for each in (old, row))
    is_new_version = before.version != after.version
    return msgspec.structs.replace(
        result,
        created=False,
        replaced_version=before.version if is_new_version else msgspec.UNSET,
        replaced=changed or msgspec.UNSET,
    )


def _edge_values(row: EdgeRow | CrossStoreLinkRow) -> dict[str, Any]:
    """Return the fields of an edge that a put sets, under the names used there."""
    shown = (
        row_to_api_conversion.build_api_edge_from_cross_store_link(row)
        if isinstance(row, CrossStoreLinkRow)
        else row_to_api_conversion.build_api_edge_from_row(row)
    )
    values = msgspec.to_builtins(shown)
    fields = {
        name: values[name] for name in ("weight", *get_row_field_names(EDGE.extras)) if values.get(name) is not None
    }
    metadata = {name: value for name, value in values["attributes"].items() if name not in TIMESTAMP_NAMES}
    return fields | ({"metadata": metadata} if metadata else {})


TIMESTAMP_NAMES = frozenset({"created_at", "updated_at"})


def _redirected_results(
    puts: list[EdgeUpsert | CrossStoreLinkUpsert], redirected: Mapping[str, str]
) -> dict[int, SubgraphEdgeResult]:
    """Return the results of edges whose ends were redirected to survivors, by position."""
    found: dict[int, SubgraphEdgeResult] = {}
    for put in puts if redirected else ():
        source, target, kind = put.edge.key if isinstance(put, CrossStoreLinkUpsert) else put.key
        source = redirected.get(source, source)
        if isinstance(put, CrossStoreLinkUpsert):
            key: EdgeKey | CrossStoreLinkKey = CrossStoreLinkKey(put.store, (source, target, kind))
        else:
            key = (source, redirected.get(target, target), kind)
        found[put.index] = SubgraphEdgeResult(edge_id=edge_or_link_id(key))
    return found


def _edge_put(index: int, spec: SubgraphEdgeInput, refs: Mapping[str, str]) -> EdgeUpsert:
    source = _resolve_end("from", spec.from_ref, spec.from_lineage, refs)
    target = _resolve_end("to", spec.to_ref, spec.to_lineage, refs)
    if not spec.kind:
        raise InvalidInput.at("kind", "is required")
    faults = ValidationErrorCollector()
    edge = EdgeInput(
        source=source,
        target=target,
        relation_type=spec.kind,
        weight=spec.weight,
        attributes=spec.metadata,
        **{
            name: value
            for name in get_row_field_names(EDGE.extras)
            if (value := getattr(spec, name)) is not msgspec.UNSET
        },
    )
    put = validate_edge_input(index, edge, rename_fields_in_error_paths(faults, _EDGE_NAMES))
    faults.raise_any()
    if spec.ordinal is not None:
        return put
    extras = msgspec.structs.replace(put.extras or EdgeExtrasUpsert(), ordinal=None)
    return msgspec.structs.replace(put, extras=extras)


def _resolve_end(side: str, ref: str | None, lineage: str | None, refs: Mapping[str, str]) -> str:
    if ref and lineage:
        raise InvalidInput(f"only one of {side}_ref/{side}_lineage allowed")
    if lineage:
        return lineage
    if not ref:
        raise InvalidInput(f"one of {side}_ref/{side}_lineage required")
    if ref not in refs:
        raise NotFound(f"ref not found: {ref}")
    return refs[ref]


def format_subgraph_item_error(error: KgserveError) -> str:
    """Return the error of one item as the text that the versioned API specifies."""
    code = "invalid_input" if error.code == InvalidInput.code else error.code
    return f"{code}: {error}"
