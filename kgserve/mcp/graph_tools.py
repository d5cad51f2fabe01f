"""The tools that write, delete and walk."""

from __future__ import annotations

from functools import partial

import msgspec

from kgserve.mcp import answers, arguments, budget
from kgserve.mcp.tool import Tool, counted, quoted, store_of
from kgserve.mcp.work import Pending, Reply, Work
from kgserve.model.answers import DeleteEdgeAnswer, DeleteNodeAnswer, Edge, InjectAnswer, ReachedNode, TraverseAnswer
from kgserve.model.requests import EdgeKeyRequest, InjectRequest, TraverseRequest
from kgserve.ops import delete, inject, nodes, traverse

_TEASER = 80
_SKIPPED_SHOWN = 20
_ENTITY_CONTENT = 15_000
_ENTITY_ATTRIBUTES = 10_000
_NEARER = "use a smaller depth, start nearer to what you need, or ask with query_cypher"


def _inject(work: Work, default: str | None, given: arguments.Inject) -> Pending[InjectAnswer]:
    store = store_of(given.index, default)
    request = InjectRequest(nodes=given.nodes, edges=given.edges)
    return Pending(inject.inject(work.pool, store, request), partial(_injected, store))


def _injected(store: str, answer: InjectAnswer) -> Reply:
    made = (
        f"{counted(answer.nodes_sent, 'node')} ({answer.nodes_created:,} new, {answer.nodes_updated:,} changed, "
        f"{answer.nodes_unchanged:,} unchanged) and {counted(answer.edges_sent, 'edge')} ({answer.edges_created:,} "
        f"new, {answer.edges_updated:,} changed, {answer.edges_unchanged:,} unchanged)"
    )
    lines = [f'Stored in "{store}": {made}. Sequence {answer.sequence}.']
    if answer.edges_skipped_count:
        lines.append(
            f"Skipped {counted(answer.edges_skipped_count, 'edge')}; add the missing nodes and send them again:"
        )
        lines += [
            f"  {quoted(edge.source)} -[{edge.relation_type}]-> {quoted(edge.target)}: {edge.reason}"
            for edge in answer.edges_skipped[:_SKIPPED_SHOWN]
        ]
    return Reply("\n".join(budget.lines_within(lines, budget.TEXT)), answer)


def _delete_entity(work: Work, default: str | None, given: arguments.DeleteEntity) -> Pending[DeleteNodeAnswer]:
    return Pending(delete.delete_node(work.pool, store_of(given.index, default), given.id), _entity_deleted)


def _entity_deleted(answer: DeleteNodeAnswer) -> Reply:
    if not answer.existed:
        return Reply(f"There was no entity {quoted(answer.deleted_id)}; nothing changed.", answer)
    return Reply(f"Deleted {quoted(answer.deleted_id)} with {counted(answer.edges_deleted, 'edge')}.", answer)


def _delete_relation(work: Work, default: str | None, given: arguments.DeleteRelation) -> Pending[DeleteEdgeAnswer]:
    key = EdgeKeyRequest(source=given.source, target=given.target, relation_type=given.relation_type)
    edge = f"{quoted(given.source)} -[{given.relation_type}]-> {quoted(given.target)}"

    def reply(answer: DeleteEdgeAnswer) -> Reply:
        done = f"Deleted {edge}." if answer.existed else f"There was no {edge}; nothing changed."
        return Reply(done, answer)

    return Pending(delete.delete_edge(work.pool, store_of(given.index, default), key), reply)


def _traverse(work: Work, default: str | None, given: arguments.Traverse) -> Reply:
    request = TraverseRequest(start_id=given.start_id, depth=given.depth)
    return walked(traverse.traverse(work.pool, store_of(given.index, default), request), given)


def walked(answer: TraverseAnswer, given: arguments.Traverse) -> Reply:
    """A walk as text, and as values that fit."""
    head = f"Traversal from {quoted(given.start_id)} (depth {given.depth}) — "
    head += f"{len(answer.nodes)} nodes, {len(answer.edges)} edges"
    if not answer.nodes:
        return Reply(f"{head}\n\nThere is no node {quoted(given.start_id)}.", answer)
    shown = budget.lines_within([_node_line(node) for node in answer.nodes], budget.TEXT * 3 // 5)
    links = budget.lines_within([_edge_line(edge) for edge in answer.edges], budget.TEXT * 2 // 5 - 500)
    lines = [head, "", "=== Nodes ===", *shown, "", "=== Edges ===", *links]
    left = (len(answer.nodes) - len(shown), len(answer.edges) - len(links))
    if any(left) or answer.truncated:
        beyond = " There were more within reach." if answer.truncated else ""
        lines += ["", f"Not shown: {left[0]:,} nodes and {left[1]:,} edges.{beyond} To see them, {_NEARER}."]
    return Reply("\n".join(lines), _fitted(answer))


def _node_line(node: ReachedNode) -> str:
    content = f" content={quoted(budget.shortened(node.content, _TEASER, '...'))}" if node.content else ""
    return f"  [{' ' if node.depth else '*'}] id={quoted(node.id)} type={quoted(node.type)}{content}"


def _edge_line(edge: Edge) -> str:
    return f"  {quoted(edge.source)} -[{edge.relation_type}]-> {quoted(edge.target)} (weight={edge.weight:.2f})"


def _fitted(answer: TraverseAnswer) -> TraverseAnswer:
    if budget.fits(answer):
        return answer
    kept = budget.first_fitting(map(budget.brief, answer.nodes), budget.STRUCTURED * 3 // 5)
    ids = {node.id for node in kept}
    between = [budget.brief_edge(edge) for edge in answer.edges if edge.source in ids and edge.target in ids]
    edges = budget.first_fitting(between, budget.STRUCTURED * 2 // 5 - 500)
    complete = len(kept) == len(answer.nodes) and len(edges) == len(answer.edges)
    more = (
        "long contents are shortened; get_entity gives one whole"
        if complete
        else f"{len(answer.nodes):,} nodes and {len(answer.edges):,} edges were reached; {_NEARER}"
    )
    return answers.Walked(
        nodes=kept,
        edges=edges,
        count=len(kept),
        truncated=answer.truncated or not complete,
        sequence=answer.sequence,
        more=more,
    )


def _get_entity(work: Work, default: str | None, given: arguments.GetEntity) -> Reply:
    found = nodes.get_node(work.pool, store_of(given.index, default), given.id)
    whole = found.node.content
    part = whole[given.content_offset : given.content_offset + _ENTITY_CONTENT]
    attributes = budget.brief_attributes(found.node.attributes, _ENTITY_ATTRIBUTES)
    node = msgspec.structs.replace(found.node, content=part, attributes=attributes)
    outgoing, incoming = (
        budget.first_fitting(map(budget.brief_edge, edges), budget.STRUCTURED // 4)
        for edges in (found.outgoing, found.incoming)
    )
    cut = found.edges_truncated or len(outgoing) < len(found.outgoing) or len(incoming) < len(found.incoming)
    end = given.content_offset + len(part)
    notes = _notes(end, len(whole), edges=cut, attributes=attributes is not found.node.attributes)
    answer = answers.Entity(
        node=node,
        outgoing=outgoing,
        incoming=incoming,
        edges_truncated=cut,
        content_length=len(whole),
        more=notes or msgspec.UNSET,
    )
    return Reply(_entity_text(answer, notes), answer)


def _notes(end: int, length: int, *, edges: bool, attributes: bool) -> str:
    found: list[str] = []
    if end < length:
        found.append(f"the content goes on to character {length:,}: ask with content_offset={end}")
    if edges:
        found.append("not all edges are here: ask for them with query_cypher and SKIP and LIMIT")
    if attributes:
        found.append("the attributes are too long: ask for parts with query_cypher and substring()")
    return "; ".join(found)


def _entity_text(answer: answers.Entity, notes: str) -> str:
    node = answer.node
    lines = [f"{quoted(node.id)} ({node.type}), version {node.version}, changed {node.updated_at}", "", node.content]
    lines += ["", f"Attributes: {msgspec.json.encode(node.attributes).decode()}"] if node.attributes else []
    lines += ["", "=== Outgoing ===", *map(_edge_line, answer.outgoing)] if answer.outgoing else []
    lines += ["", "=== Incoming ===", *map(_edge_line, answer.incoming)] if answer.incoming else []
    tail = f"\n\nMore: {notes}." if notes else ""
    room = budget.TEXT + 1_000 - len(tail)
    kept = budget.lines_within(lines, room)
    return "\n".join(kept) + ("\n…" if len(kept) < len(lines) else "") + tail


TOOLS = (
    Tool(
        "inject_knowledge_graph",
        "Record nodes and edges",
        "Create or update entities and the relations between them, all or nothing. Sending the same again changes "
        "nothing; a field that is left out keeps its value. The store is made when it does not exist. Edges whose ends "
        "exist neither in the store nor in `nodes` are skipped and listed.",
        arguments.Inject,
        InjectAnswer,
        "writes",
        "writing the batch",
        _inject,
    ),
    Tool(
        "delete_graph_entity",
        "Delete an entity",
        "Remove one entity and all its relations. One that does not exist is fine.",
        arguments.DeleteEntity,
        DeleteNodeAnswer,
        "deletes",
        "deleting the entity",
        _delete_entity,
    ),
    Tool(
        "delete_graph_relation",
        "Delete a relation",
        "Remove one relation, named by both ends and its type; others between the same entities stay.",
        arguments.DeleteRelation,
        DeleteEdgeAnswer,
        "deletes",
        "deleting the relation",
        _delete_relation,
    ),
    Tool(
        "traverse_knowledge_graph",
        "Walk the graph from an entity",
        "Follow outgoing relations from one entity up to `depth` hops. Answers with the entities reached, nearest "
        "first, and the relations between them.",
        arguments.Traverse,
        answers.Walked,
        "reads",
        "walking the graph",
        _traverse,
    ),
    Tool(
        "get_entity",
        "Read one entity",
        "One entity with its whole content, its attributes and its relations in both directions.",
        arguments.GetEntity,
        answers.Entity,
        "reads",
        "reading the entity",
        _get_entity,
    ),
)
