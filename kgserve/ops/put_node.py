"""Writing one version of a node, with regard to the version that its writer had seen."""

from __future__ import annotations

import uuid
from concurrent.futures import Future
from typing import Any

import msgspec

from kgserve.errors import ConflictManual
from kgserve.model.batch import NodePut, WriteBatch, conflicts
from kgserve.model.fields import NODE, TEXTS
from kgserve.model.plan import Report
from kgserve.model.requests import NodeInput
from kgserve.model.rows import NodeRow
from kgserve.model.versioned import NodeFields, PutNodeAnswer, PutNodeRequest
from kgserve.ops import render
from kgserve.ops.graph import Graph
from kgserve.ops.inject import cost
from kgserve.ops.validate import Fault, Faults, node_put


def put_node(graph: Graph, request: PutNodeRequest) -> Future[PutNodeAnswer]:
    """Without an id a new node; with one the node's next version, which holds what is sent and nothing else.

    `based_on_version` is the version that the writer had seen. When the node has moved on from there, the store's
    `conflict_policy` decides: with `lww` the new version counts; with `manual` both are kept, and the answer is 409
    with the node as written and its `conflicts`. A put based on any of the heads, or on none, settles it.

    Raises ConflictManual, with the node as written, when it is kept beside other heads, and KindNotAllowed. It is never
    repeated.
    """
    faults = Faults()
    put = version_put(_one_name(request, faults), faults)
    faults.raise_any()

    def answer(report: Report) -> PutNodeAnswer:
        row = written(report)
        node = render.node(row)
        if went_beside(put, report):
            raise ConflictManual(
                f"node {row.id!r} is not at version {put.based_on}: what was sent is kept as version {row.version} "
                f"beside {_listed(conflicts(row))}; put a version that is based on any of them to settle it",
                node,
            )
        return PutNodeAnswer(node=node, created=report.nodes_created > 0, sequence=report.sequence)

    return graph.submit(node_batch(put), answer, create=True)


def version_put(fields: NodeFields, fault: Fault) -> NodePut:
    """A whole version of a node, checked; it supersedes every head unless it is based on none of them."""
    if not fields.kind:
        fault("kind", "is required")
    node = NodeInput(
        id=fields.lineage_id or str(uuid.uuid4()),
        type=fields.kind or "-",
        content=fields.content or "",
        attributes=fields.metadata or {},
        **{name: getattr(fields, name) or nothing for name, nothing in _NOTHING.items()},
    )
    put = node_put(0, node, fault)
    # A new node has no version that anybody could have seen.
    based_on = fields.based_on_version if fields.lineage_id else None
    return msgspec.structs.replace(put, based_on=based_on, resolves=True)


_NOTHING: dict[str, Any] = {field.name: [] if field.type is TEXTS else "" for field in NODE.extras if not field.is_own}


def node_batch(put: NodePut) -> WriteBatch:
    """The write of one node, which tells what became of it."""
    return WriteBatch(nodes=[put], told=True, cost=cost([put], []))


def written(report: Report) -> NodeRow:
    """The node of such a write, as it is afterwards."""
    row = report.rows[0]
    if not isinstance(row, NodeRow):
        raise TypeError(f"a write of one node told of {row}")
    return row


def went_beside(put: NodePut, report: Report) -> bool:
    """Whether it was kept beside other heads."""
    return put.based_on is not None and report.nodes_updated > 0 and conflicts(written(report)) != ()


def _one_name(request: PutNodeRequest, fault: Fault) -> NodeFields:
    """The request under the contract's own names."""
    pairs: tuple[tuple[str, Any, str, Any], ...] = (
        ("lineage_id", request.lineage_id, "id", request.id),
        ("kind", request.kind, "type", request.type),
        ("metadata", request.metadata, "attributes", request.attributes),
    )
    values: dict[str, Any] = {}
    for name, one, other_name, other in pairs:
        if one is not None and other is not None and one != other:
            fault(name, f"and {other_name} are two names of the same, and differ")
        values[name] = other if one is None else one
    return msgspec.structs.replace(request, **values)


def _listed(versions: tuple[int, ...]) -> str:
    return ", ".join(f"version {version}" for version in versions)
