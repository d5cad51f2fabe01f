"""The tools that write, delete and walk."""

from __future__ import annotations

from functools import partial

from kgserve.mcp import answers, arguments, budget
from kgserve.mcp.lines import edge_line, moment_asked, node_line
from kgserve.mcp.tool import Tool, counted, quoted, store_of
from kgserve.mcp.work import Pending, Reply, Work
from kgserve.model.answers import DeleteEdgeAnswer, DeleteNodeAnswer, InjectAnswer, TraverseAnswer
from kgserve.model.queries import NodeId
from kgserve.model.requests import EdgeKeyRequest, InjectRequest, TraverseRequest
from kgserve.ops import delete, inject, traverse
from kgserve.ops.graph import as_struct

_SKIPPED_SHOWN = 20
_NEARER = "use a smaller depth, start nearer to what you need, or ask with query_cypher"


def _inject(work: Work, default: str | None, given: arguments.Inject) -> Pending[InjectAnswer]:
    store = store_of(given.index, default)
    request = InjectRequest(nodes=given.nodes, edges=given.edges)
    return Pending(inject.inject(work.graphs.graph(store), request), partial(_injected, store))


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
    return Pending(
        delete.delete_node(work.graphs.graph(store_of(given.index, default)), NodeId(node_id=given.id)), _entity_deleted
    )


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

    return Pending(delete.delete_edge(work.graphs.graph(store_of(given.index, default)), key), reply)


def _traverse(work: Work, default: str | None, given: arguments.Traverse) -> Reply:
    request = TraverseRequest(
        start_id=given.start_id,
        depth=given.depth,
        direction=given.direction,
        relation_types=given.relation_types or None,
        max_nodes=given.max_nodes,
        as_of=given.as_of or None,
        valid_at=given.valid_at or None,
    )
    return walked(
        as_struct(traverse.traverse(work.graphs.graph(store_of(given.index, default)), request), TraverseAnswer), given
    )


def walked(answer: TraverseAnswer, given: arguments.Traverse) -> Reply:
    """A walk as text, and as values that fit."""
    when = moment_asked(given.as_of, given.valid_at)
    head = f"Traversal from {quoted(given.start_id)} (depth {given.depth}){when} — "
    head += f"{len(answer.nodes)} nodes, {len(answer.edges)} edges"
    if not answer.nodes:
        return Reply(f"{head}\n\nThere is no node {quoted(given.start_id)}{when}.", answer)
    marked = [node_line(node, "[ ]" if node.depth else "[*]") for node in answer.nodes]
    shown = budget.lines_within(marked, budget.TEXT * 3 // 5)
    links = budget.lines_within([edge_line(edge) for edge in answer.edges], budget.TEXT * 2 // 5 - 500)
    lines = [head, "", "=== Nodes ===", *shown, "", "=== Edges ===", *links]
    left = (len(answer.nodes) - len(shown), len(answer.edges) - len(links))
    if any(left) or answer.truncated:
        beyond = " There were more within reach." if answer.truncated else ""
        lines += ["", f"Not shown: {left[0]:,} nodes and {left[1]:,} edges.{beyond} To see them, {_NEARER}."]
    return Reply("\n".join(lines), _fitted(answer))


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


TOOLS = (
    Tool(
        "inject_knowledge_graph",
        "Record nodes and edges",
        "Create or update entities and the relations between them, all or nothing. Sending the same again changes "
        "nothing; a field that is left out keeps its value, and former values stay in entity_history. The store is "
        "made when it does not exist. Edges whose ends exist neither in the store nor in `nodes` are skipped and "
        "listed.",
        arguments.Inject,
        InjectAnswer,
        "writes",
        "writing the batch",
        _inject,
    ),
    Tool(
        "delete_graph_entity",
        "Delete an entity",
        "Remove one entity and all its relations. One that does not exist is fine. For what was true and is no longer "
        "there is retire_entity.",
        arguments.DeleteEntity,
        DeleteNodeAnswer,
        "deletes",
        "deleting the entity",
        _delete_entity,
    ),
    Tool(
        "delete_graph_relation",
        "Delete a relation",
        "Remove one relation, named by both ends and its type; others between the same entities stay. For what was "
        "true and is no longer there is retire_relation.",
        arguments.DeleteRelation,
        DeleteEdgeAnswer,
        "deletes",
        "deleting the relation",
        _delete_relation,
    ),
    Tool(
        "traverse_knowledge_graph",
        "Walk the graph from an entity",
        "Follow relations from one entity up to `depth` hops, outgoing ones unless `direction` says otherwise. Answers "
        "with the entities reached, nearest first, and the relations between them, as of any moment.",
        arguments.Traverse,
        answers.Walked,
        "reads",
        "walking the graph",
        _traverse,
    ),
)
