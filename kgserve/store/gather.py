"""The rows that a group of batches meets."""

from __future__ import annotations

from collections.abc import Container, Iterable

from kgserve.model.batch import WriteBatch
from kgserve.model.plan import Workspace
from kgserve.model.rows import EdgeKey
from kgserve.rows.snapshot import MANY, Rows


def gather(rows: Rows, batches: Iterable[WriteBatch]) -> Workspace:
    """A workspace with everything that planning these batches asks for. Raises RowsDamaged."""
    workspace = Workspace()
    batches = list(batches)
    deleted = {node_id for batch in batches for node_id in batch.delete_nodes}
    named = deleted.union(*({put.id for put in batch.nodes} for batch in batches))
    # In the order in which they came: they are met again and again, and lie beside each other in memory.
    keys = dict.fromkeys([put.key for batch in batches for put in batch.edges])
    keys |= dict.fromkeys(key for batch in batches for key in batch.delete_edges)
    ends = {*[key[0] for key in keys], *[key[1] for key in keys]} - named
    rows.base.look_up(named | ends)
    workspace.nodes = rows.nodes(named)
    workspace.present = workspace.nodes.keys() | {node_id for node_id in ends if rows.has(node_id)}
    numbers = rows.edge_numbers([*keys])
    if len(numbers) >= MANY and all(map(_only_puts, batches)):
        settled = workspace.settled = _settled(batches, rows.unchanged_weights(numbers))
        numbers = {key: number for key, number in numbers.items() if key not in settled}
    workspace.edges = {**rows.numbered_edges(numbers)}
    # A node that is deleted may be given edges by an earlier batch of the same group.
    for node_id in deleted:
        incident = {row.key: row for row in (*rows.outgoing(node_id), *rows.incoming(node_id))}
        workspace.edges.update(incident)
        workspace.incident[node_id] = set(incident)
    return workspace


def _only_puts(batch: WriteBatch) -> bool:
    """Whether a batch neither takes rows away nor wants more of those that stay than that they do."""
    return not (batch.delete_nodes or batch.delete_edges or batch.touch or batch.told)


def _settled(batches: list[WriteBatch], weights: dict[EdgeKey, float]) -> Container[EdgeKey]:
    """The edges with these weights that all puts leave as they are; nobody needs to read their rows."""
    puts = [put for batch in batches for put in batch.edges]
    other = {put.key for put in puts if not put.says_nothing_new(weights.get(put.key))}
    return weights if other.isdisjoint(weights) else weights.keys() - other
