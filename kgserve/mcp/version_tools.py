"""The tools of a versioned store: versions of entities, subgraphs, and ends of what was true."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec

from kgserve.decoding import convert
from kgserve.errors import ConflictManual
from kgserve.mcp import answers, budget
from kgserve.mcp.arguments import Arguments, Id
from kgserve.mcp.lines import facts, moment
from kgserve.mcp.tool import Tool, counted, quoted, store_of
from kgserve.mcp.work import Pending, Reply, Work
from kgserve.model.answers import Node
from kgserve.model.fields import MAX_ID_BYTES, MAX_TAGS
from kgserve.model.versioned import (
    MAX_SUBGRAPH_EDGES,
    MAX_SUBGRAPH_NODES,
    EdgeResult,
    EdgeSpec,
    NodeResult,
    NodeSpec,
    PutNodeAnswer,
    PutNodeRequest,
    PutSubgraphAnswer,
    PutSubgraphRequest,
    RetireAnswer,
    RetireEdgeRequest,
    RetireRequest,
)
from kgserve.ops import put_subgraph as subgraphs
from kgserve.ops import retire
from kgserve.ops.put_node import put_node

_FAULT = 120

_Name = Annotated[str, msgspec.Meta(max_length=MAX_ID_BYTES)]
_Author = Annotated[_Name, msgspec.Meta(description="Who writes this")] | msgspec.UnsetType
_Moment = Annotated[str, msgspec.Meta(max_length=64, description="RFC 3339")] | msgspec.UnsetType
_End = (
    Annotated[str, msgspec.Meta(max_length=64, description="Until when it was true, RFC 3339; left out: now")]
    | msgspec.UnsetType
)


class PutNode(Arguments, kw_only=True):
    """A version of a node, whole: what is left out is empty."""

    lineage_id: (
        Annotated[_Name, msgspec.Meta(description="Id of the node; left out: a new node with a new id")]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_BYTES, description="Type of the node")]
    content: str = ""
    summary: Annotated[str, msgspec.Meta(description="Short form of the content")] | msgspec.UnsetType = msgspec.UNSET
    tags: Annotated[list[_Name], msgspec.Meta(max_length=MAX_TAGS)] | msgspec.UnsetType = msgspec.UNSET
    metadata: Annotated[dict[str, Any], msgspec.Meta(description="Attributes")] | msgspec.UnsetType = msgspec.UNSET
    freshness_at: (
        Annotated[str, msgspec.Meta(max_length=64, description="RFC 3339; stale from then on")] | msgspec.UnsetType
    ) = msgspec.UNSET
    created_by: _Author = msgspec.UNSET
    valid_from: _Moment = msgspec.UNSET
    valid_to: _Moment = msgspec.UNSET
    based_on_version: (
        Annotated[int, msgspec.Meta(ge=0, lt=1 << 53, description="The version that you read; left out: overwrite any")]
        | msgspec.UnsetType
    ) = msgspec.UNSET


class PutSubgraph(Arguments, kw_only=True):
    """Nodes, then edges, each written by itself."""

    nodes: Annotated[list[NodeSpec], msgspec.Meta(description=f"Whole versions, at most {MAX_SUBGRAPH_NODES}")] = (
        msgspec.field(default_factory=list[NodeSpec])
    )
    edges: Annotated[
        list[EdgeSpec],
        msgspec.Meta(
            description=f"At most {MAX_SUBGRAPH_EDGES}; each end is from_ref/to_ref, a ref of this call, or "
            "from_lineage/to_lineage, an id that exists"
        ),
    ] = msgspec.field(default_factory=list[EdgeSpec])


class RetireEntity(Arguments, kw_only=True):
    """The node, and until when it was true."""

    id: Id
    valid_to: _End = msgspec.UNSET
    created_by: _Author = msgspec.UNSET


class RetireRelation(Arguments, kw_only=True):
    """The edge, and until when it was true."""

    source: Id = msgspec.field(name="from")
    target: Id = msgspec.field(name="to")
    relation_type: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_BYTES)]
    valid_to: _End = msgspec.UNSET
    created_by: _Author = msgspec.UNSET


class Put(msgspec.Struct, kw_only=True):
    """The node as it is now. ``ok`` is false where it was kept beside other versions: see its ``conflicts``."""

    ok: bool
    node: Node
    created: bool
    sequence: int
    more: answers.More = msgspec.UNSET


class SubgraphPut(PutSubgraphAnswer, kw_only=True):
    """One result for each node and each edge, in the order sent."""

    more: answers.More = msgspec.UNSET


def _put_node(work: Work, default: str | None, given: PutNode) -> Pending[PutNodeAnswer]:
    request = convert(_said(given), PutNodeRequest)
    return Pending(put_node(work.pool, store_of(given.index, default), request), _put)


def _put(answer: PutNodeAnswer) -> Reply:
    node = answer.node
    done = f"Created {_named(node)}" if answer.created else f"{_named(node)} is now"
    text = f"{done} at version {node.version}{facts(budget.brief(node))}. Sequence {answer.sequence}."
    return Reply(text, _fitted(Put(ok=True, node=node, created=answer.created, sequence=answer.sequence)))


def kept_beside(error: ConflictManual) -> Reply:
    """What to say of a node that was kept beside other versions, in the form of `put_node`'s answers."""
    node: Node = error.node
    others = ", ".join(map(str, node.conflicts or ()))
    text = (
        f"conflict_manual: {error}.\nTo settle it read each other head (get_entity with id={quoted(node.id)} and "
        f"version={others}), join what they say with yours, and put_node the whole with lineage_id={quoted(node.id)} "
        f"and based_on_version={node.version}. Until then all of these versions are kept."
    )
    return Reply(text, _fitted(Put(ok=False, node=node, created=False, sequence=node.sequence)))


def _fitted(answer: Put) -> Put:
    if not budget.fits(answer):
        answer.node = budget.brief(answer.node)
        answer.more = "the node is shortened; get_entity has it whole"
    return answer


def _named(node: Node) -> str:
    return f"{quoted(node.id)} ({node.type})"


def _put_subgraph(work: Work, default: str | None, given: PutSubgraph) -> Reply:
    store = store_of(given.index, default)
    request = PutSubgraphRequest(nodes=given.nodes, edges=given.edges)
    return _subgraph_put(store, subgraphs.put_subgraph(work.pool, store, request))


def _subgraph_put(store: str, found: PutSubgraphAnswer) -> Reply:
    answer = SubgraphPut(nodes=found.nodes, edges=found.edges, sequence=found.sequence)
    wrong = [f"  nodes[{place}]: {node.error}" for place, node in enumerate(found.nodes) if node.error]
    wrong += [f"  edges[{place}]: {edge.error}" for place, edge in enumerate(found.edges) if edge.error]
    created = sum(node.created for node in found.nodes)
    nodes = counted(sum(not node.error for node in found.nodes), "node")
    edges = counted(sum(not edge.error for edge in found.edges), "edge")
    lines = [f'Stored in "{store}": {nodes} ({created} new) and {edges}. Sequence {found.sequence}.']
    lines += [f"Not stored as asked, {len(wrong)}:", *wrong] if wrong else []
    made = [
        f"  nodes[{place}]: {quoted(node.lineage_id)}, version {node.version}"
        for place, node in enumerate(found.nodes)
        if node.lineage_id
    ]
    lines += ["Versions written:", *made] if made else []
    if not budget.fits(answer):
        answer.nodes = [_brief_node(node) for node in found.nodes]
        answer.edges = [EdgeResult(error=_brief_fault(edge.error)) for edge in found.edges]
        answer.more = "refs, ids of edges and long errors were left out for their size; the order is as sent"
    return Reply("\n".join(budget.lines_within(lines, budget.TEXT)), answer)


def _brief_node(node: NodeResult) -> NodeResult:
    return msgspec.structs.replace(node, ref=None, error=_brief_fault(node.error))


def _brief_fault(error: str | None) -> str | None:
    return error and budget.shortened(error, _FAULT)


def _retire_entity(work: Work, default: str | None, given: RetireEntity) -> Pending[RetireAnswer]:
    request = RetireRequest(valid_to=given.valid_to or None, created_by=given.created_by or None)
    store = store_of(given.index, default)
    return Pending(retire.retire_node(work.pool, store, given.id, request), partial(_retired, quoted(given.id)))


def _retire_relation(work: Work, default: str | None, given: RetireRelation) -> Pending[RetireAnswer]:
    request = RetireEdgeRequest(
        source=given.source,
        target=given.target,
        relation_type=given.relation_type,
        valid_to=given.valid_to or None,
        created_by=given.created_by or None,
    )
    edge = f"{quoted(given.source)} -[{given.relation_type}]-> {quoted(given.target)}"
    return Pending(retire.retire_edge(work.pool, store_of(given.index, default), request), partial(_retired, edge))


def _retired(what: str, answer: RetireAnswer) -> Reply:
    end = moment(answer.valid_to)
    done = f"{what} is true until {end}" if answer.changed else f"{what} had ended at {end} already; nothing changed"
    return Reply(f"{done}. Version {answer.version}, sequence {answer.sequence}.", answer)


def _said(given: PutNode) -> dict[str, Any]:
    """What a call has said, without the store."""
    said: dict[str, Any] = msgspec.structs.asdict(given)
    return {name: value for name, value in said.items() if value is not msgspec.UNSET and name != "index"}


TOOLS = (
    Tool(
        "put_node",
        "Write a version of an entity",
        "Write one entity whole, as its next version: what is left out becomes empty (inject_knowledge_graph keeps "
        "it). With based_on_version, the version that you read, nobody's later change is overwritten unseen in a "
        "store whose conflict policy is manual: both versions are then kept, and the error says how to settle it.",
        PutNode,
        Put,
        "writes",
        "writing the entity",
        _put_node,
    ),
    Tool(
        "put_subgraph",
        "Write entities and relations, each by itself",
        "Write versions of up to 50 entities, then up to 100 relations, which may name new entities by `ref`. Best "
        "effort: one result for each, in order, and what is wrong with one is said of that one. All or nothing is "
        "inject_knowledge_graph.",
        PutSubgraph,
        SubgraphPut,
        "writes",
        "writing the subgraph",
        _put_subgraph,
    ),
    Tool(
        "retire_entity",
        "Say until when an entity was true",
        "For what was true and is no longer: sets valid_to instead of deleting. It stays, and so do its relations; "
        "reads with valid_at go by it.",
        RetireEntity,
        RetireAnswer,
        "writes",
        "retiring the entity",
        _retire_entity,
    ),
    Tool(
        "retire_relation",
        "Say until when a relation was true",
        "For what was true and is no longer: sets valid_to instead of deleting. Reads with valid_at go by it.",
        RetireRelation,
        RetireAnswer,
        "writes",
        "retiring the relation",
        _retire_relation,
    ),
)
