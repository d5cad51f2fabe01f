"""What a store should hold, as two dicts: the rules of writing and walking, written down as plainly as possible."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from kgserve.model.batch import EdgePut, NodePut, WriteBatch
from kgserve.model.digest import row_hash
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.model.times import format_time
from kgserve.model.walk import Walk

_Put = TypeVar("_Put", NodePut, EdgePut)
_Value = TypeVar("_Value")


class Refused(Exception):
    """A batch that must be refused as a whole."""


class Outcome(msgspec.Struct):
    """The counts that a report must show."""

    nodes_created: int = 0
    nodes_updated: int = 0
    nodes_unchanged: int = 0
    nodes_deleted: int = 0
    edges_created: int = 0
    edges_updated: int = 0
    edges_unchanged: int = 0
    edges_deleted: int = 0
    skipped_count: int = 0
    rejected_count: int = 0
    sequence: int = 0


class Graph:
    """Nodes and edges by key, and the number of the last commit."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeRow] = {}
        self.edges: dict[EdgeKey, EdgeRow] = {}
        self.sequence = 0

    def copy(self) -> Graph:
        """The same, to go on from separately."""
        other = Graph()
        other.nodes, other.edges, other.sequence = dict(self.nodes), dict(self.edges), self.sequence
        return other

    @property
    def digest(self) -> int:
        """The sum of the hashes of all rows."""
        return (sum(map(row_hash, self.nodes.values())) + sum(map(row_hash, self.edges.values()))) % (1 << 128)

    def write(self, batch: WriteBatch, now: int) -> Outcome:
        """Do what a batch says; ``now`` is the time of the commit that it becomes, if it changes anything."""
        nodes = merged(batch.nodes, lambda put: put.id)
        gone = set(batch.delete_nodes)
        if not batch.partial and any(p.type is None and (p.id in gone or p.id not in self.nodes) for p in nodes):
            raise Refused
        outcome = Outcome()
        changes = self._delete(batch, outcome)
        sequence = self.sequence + 1
        changes += sum(self._put_node(put, sequence, now, outcome) for put in nodes)
        changes += sum(
            self._put_edge(put, sequence, now, outcome, touch=batch.touch)
            for put in merged(batch.edges, lambda put: put.key)
        )
        if changes:
            self.sequence = sequence
        outcome.sequence = self.sequence
        return outcome

    def _delete(self, batch: WriteBatch, outcome: Outcome) -> int:
        edges = {key for key in batch.delete_edges if key in self.edges}
        nodes = {node_id for node_id in batch.delete_nodes if node_id in self.nodes}
        if nodes:
            edges |= {key for key in self.edges if key[0] in nodes or key[1] in nodes}
        for key in edges:
            del self.edges[key]
        for node_id in nodes:
            del self.nodes[node_id]
        outcome.edges_deleted, outcome.nodes_deleted = len(edges), len(nodes)
        return len(edges) + len(nodes)

    def _put_node(self, put: NodePut, sequence: int, now: int, outcome: Outcome) -> bool:
        old = self.nodes.get(put.id)
        if old is None and put.type is None:
            outcome.rejected_count += 1
            return False
        before = NodeRow(put.id, "", "", "{}", 0, 0, now, now) if old is None else old
        row = NodeRow(
            put.id,
            either(put.type, before.type),
            either(put.content, before.content),
            either(put.attributes, before.attributes),
            max(put.version or 1, before.version + 1),
            sequence,
            either(put.created_at, before.created_at),
            either(put.updated_at, now),
        )
        if old is not None and (row.type, row.content, row.attributes) == (old.type, old.content, old.attributes):
            outcome.nodes_unchanged += 1
            return False
        self.nodes[put.id] = row
        outcome.nodes_created += old is None
        outcome.nodes_updated += old is not None
        return True

    def _put_edge(self, put: EdgePut, sequence: int, now: int, outcome: Outcome, *, touch: bool) -> bool:
        source, target, relation_type = put.key
        if source not in self.nodes or target not in self.nodes:
            outcome.skipped_count += 1
            return False
        text, old = format_time(now), self.edges.get(put.key)
        before = old or EdgeRow(source, target, relation_type, 1.0, attributes_text(text, text, {}), 0, 0)
        held = json.loads(before.attributes)
        created, updated = held.pop("created_at"), held.pop("updated_at")
        weight, own = either(put.weight, before.weight), held if put.own is None else json.loads(put.own)
        changed = old is None or (weight, own, put.created_at or created) != (old.weight, held, created)
        moved = text if touch else put.updated_at or (text if changed else updated)
        row = EdgeRow(
            source,
            target,
            relation_type,
            weight,
            attributes_text(put.created_at or created, moved, own),
            max(put.version or 1, before.version + 1) if changed else before.version,
            sequence if changed else before.sequence,
        )
        outcome.edges_created += old is None
        outcome.edges_updated += changed and old is not None
        outcome.edges_unchanged += not changed
        self.edges[put.key] = row
        return row != old

    def walk(self, request: Walk) -> tuple[dict[str, int], set[EdgeKey], bool]:
        """Ids with their depth, nearest first; the keys of the edges between them; whether there were more nodes."""
        if request.start not in self.nodes:
            return {}, set(), False
        edges = [edge for edge in self.edges.values() if request.follows(edge)]
        depths, frontier = {request.start: 0}, {request.start}
        for depth in range(1, request.depth + 1):
            frontier = set(_next(edges, frontier, request)) - depths.keys()
            depths.update(dict.fromkeys(frontier, depth))
        kept = sorted(depths, key=lambda node_id: (depths[node_id], node_id))[: request.max_nodes]
        inside = {edge.key for edge in edges if edge.source in kept and edge.target in kept}
        return {node_id: depths[node_id] for node_id in kept}, inside, len(depths) > request.max_nodes


def merged(puts: Iterable[_Put], key: Callable[[_Put], object]) -> list[_Put]:
    """One put for each key: fields that a later one leaves out come from the earlier ones."""
    latest: dict[object, _Put] = {}
    for put in puts:
        earlier = latest.get(key(put))
        if earlier is not None:
            fields = msgspec.structs.asdict(earlier) | {
                name: value for name, value in msgspec.structs.asdict(put).items() if value is not None
            }
            latest[key(put)] = type(put)(**fields)
        else:
            latest[key(put)] = put
    return list(latest.values())


def either(given: _Value | None, held: _Value) -> _Value:
    """What is given, or else what is held."""
    return held if given is None else given


def attributes_text(created_at: str, updated_at: str, own: dict[str, Any]) -> str:
    """An edge's attributes as they are stored."""
    held = {"created_at": created_at, "updated_at": updated_at, **own}
    return json.dumps(held, separators=(",", ":"), ensure_ascii=False)


def _next(edges: list[EdgeRow], frontier: set[str], request: Walk) -> Iterator[str]:
    for edge in edges:
        if request.direction != "incoming" and edge.source in frontier:
            yield edge.target
        if request.direction != "outgoing" and edge.target in frontier:
            yield edge.source
