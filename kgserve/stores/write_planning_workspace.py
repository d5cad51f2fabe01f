"""Stored rows that batches need to be planned, and the plan of a batch that changes nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable

from kgserve.errors import KgserveError
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import EdgeKey
from kgserve.storage.model.write_batch import WriteBatch, WriteRules, is_noop_node_upsert
from kgserve.storage.rows.memory_hierarchy_and_redirects import find_merge_redirect_chains
from kgserve.storage.rows.memory_predecessors import add_memory_predecessors
from kgserve.storage.rows.rows_snapshot import MIN_BATCH_LOOKUPS, RowsSnapshot
from kgserve.storage.write_planner import WritePlanningWorkspace, WriteReport, check_write_batch, plan_write_batch

MAX_UNQUEUED_BATCH_ROWS = 100
"""Rows of the largest batch that is compared with the stored rows before it is queued."""


def gather_planning_workspace(
    rows: RowsSnapshot, batches: Iterable[WriteBatch], *, settle: bool
) -> WritePlanningWorkspace:
    """Return a workspace with all rows needed to plan these batches. Raises RowsDamaged.

    Without ``settle``, further batches may follow, and no edge is treated as unchanged.
    """
    workspace = WritePlanningWorkspace()
    batches = list(batches)
    deleted_ids = [node_id for batch in batches for node_id in batch.delete_nodes]
    deleted = {*add_memory_predecessors(rows, deleted_ids)} if deleted_ids else set[str]()
    named = deleted.union(*({put.id for put in batch.nodes} for batch in batches))
    # Insertion order keeps keys that are used together close in memory.
    keys = dict.fromkeys([put.key for batch in batches for put in batch.edges])
    keys |= dict.fromkeys(key for batch in batches for key in batch.delete_edges)
    ends = {*[key[0] for key in keys], *[key[1] for key in keys]} - named
    ends.update(put.edge.key[0] for batch in batches for put in batch.links if put.edge.key[0] not in named)
    ends.update(access.id for batch in batches for access in batch.accesses if access.id not in named)
    # Former versions may belong to a memory that was merged into a deleted one.
    ends.update({(row.extras or NO_EXTRAS).belongs_to for row in rows.nodes(deleted).values()} - named - {""})
    rows.base.cache_numbers(named | ends)
    if rows.has_merges and (merged := find_merge_redirect_chains(rows, named | ends)):
        workspace.merged = merged
        keys |= dict.fromkeys(map(workspace.redirect_edge_key, [*keys]))
        ends.update(merged.values())
    workspace.nodes = rows.nodes(named)
    present = workspace.present = workspace.nodes.keys() | {node_id for node_id in ends if rows.has(node_id)}
    # An edge of a missing node does not exist either.
    numbers = rows.edge_numbers([key for key in keys if key[0] in present and key[1] in present])
    if settle and len(numbers) >= MIN_BATCH_LOOKUPS and not workspace.merged and all(map(_only_puts, batches)):
        settled = workspace.settled = _unchanged_edges(batches, rows.unchanged_weights(numbers))
        numbers = {key: number for key, number in numbers.items() if key not in settled}
    workspace.edges = {**rows.numbered_edges(numbers)}
    # An earlier batch of the same group may add edges to a node that is deleted here.
    for node_id in deleted:
        incident = {row.key: row for row in (*rows.outgoing(node_id), *rows.incoming(node_id))}
        workspace.edges.update(incident)
        workspace.incident[node_id] = set(incident)
    return workspace


def _only_puts(batch: WriteBatch) -> bool:
    """Return whether a batch neither deletes rows nor needs more than the keys of unchanged ones."""
    return not (batch.delete_nodes or batch.delete_edges or batch.touch or batch.return_rows)


def _unchanged_edges(batches: list[WriteBatch], weights: dict[EdgeKey, float]) -> Container[EdgeKey]:
    """Return the edges that all puts leave unchanged, so that their rows need not be read."""
    puts = [put for batch in batches for put in batch.edges]
    other = {put.key for put in puts if not put.is_noop_for(weights.get(put.key))}
    return weights if other.isdisjoint(weights) else weights.keys() - other


def report_batch_if_noop(batch: WriteBatch, rows: RowsSnapshot, rules: WriteRules) -> WriteReport | None:
    """Return the report of a small batch that changes nothing as of a snapshot.

    Return None if the batch may change something, would be refused, or does more than put nodes and edges. A batch that
    changes something mostly costs one look-up here. Only what may be refused, or redirected by merges, is planned.
    Raises RowsDamaged.
    """
    if (batch.touch and batch.edges) or batch.size > MAX_UNQUEUED_BATCH_ROWS:
        return None
    if batch.delete_nodes or batch.delete_edges or batch.links or batch.delete_links or batch.accesses:
        return None
    is_plain = not (batch.return_rows or rows.has_merges)
    for put in batch.nodes:
        old = rows.node(put.id)
        if old is None or not is_noop_node_upsert(put, old, rules):
            return None
        is_plain = is_plain and put.extras is None and put.based_on is None and not put.heads and rules.allows(put.type)
    if is_plain and all((row := rows.edge(put.key)) and put.is_noop_for(row.weight) for put in batch.edges):
        nodes, edges = len({put.id for put in batch.nodes}), len({put.key for put in batch.edges})
        return WriteReport(nodes_unchanged=nodes, edges_unchanged=edges, sequence=rows.state.sequence)
    workspace = gather_planning_workspace(rows, [batch], settle=True)
    try:
        check_write_batch(batch, workspace, rules)
    except KgserveError:
        return None  # refused by the writer, with the same error
    change, report = plan_write_batch(batch, workspace, rows.state, rows.state.time, rules)
    return None if change is not None else report
