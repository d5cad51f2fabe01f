"""Reference model of a store as two dicts: the rules of writing and traversal in their simplest form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.breadth_first_traversal import TraversalRequest
from kgserve.storage.model.node_edge_fields import EdgeExtras, EdgeExtrasUpsert, NodeExtras, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.store_rows_digest import row_hash
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch

_Put = TypeVar("_Put", NodeUpsert, EdgeUpsert)
_Value = TypeVar("_Value")
_Fields = dict[str, Any]
_NOT_INHERITED = {"created_by": "", "conflicts": ()}
"""Fields that a state does not inherit from the previous one."""


class BatchRejection(Exception):
    """A batch that must be rejected as a whole."""


class Outcome(msgspec.Struct):
    """Counts that a report must contain."""

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
    """Nodes and edges by key, and the number of the last commit.

    ``kinds``: allowed types of nodes, empty for all. ``keeps_both``: the conflict policy is "manual".
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeRow] = {}
        self.edges: dict[EdgeKey, EdgeRow] = {}
        self.sequence = 0
        self.kinds: frozenset[str] = frozenset()
        self.keeps_both = False
        self.ended: dict[str, int] = {}
        self.said: dict[tuple[str, int, str], int] = {}

    def copy(self) -> Graph:
        """Return an independent copy."""
        other = Graph()
        other.nodes, other.edges, other.sequence = dict(self.nodes), dict(self.edges), self.sequence
        other.kinds, other.keeps_both, other.ended = self.kinds, self.keeps_both, dict(self.ended)
        other.said = dict(self.said)
        return other

    def true_at(self, moment: int | None) -> Graph:
        """Return the part that was valid at a moment; edges need two valid nodes."""
        if moment is None:
            return self
        other = self.copy()
        other.nodes = {node_id: row for node_id, row in self.nodes.items() if was_true(row, moment)}
        other.edges = {
            key: row
            for key, row in self.edges.items()
            if was_true(row, moment) and row.source in other.nodes and row.target in other.nodes
        }
        return other

    @property
    def digest(self) -> int:
        """Return the sum of the hashes of all rows."""
        return (sum(map(row_hash, self.nodes.values())) + sum(map(row_hash, self.edges.values()))) % (1 << 128)

    def write(self, batch: WriteBatch, now: int) -> Outcome:
        """Apply a batch; ``now`` is the time of its commit, if it changes anything."""
        nodes = merged(batch.nodes, lambda put: put.id)
        self._refuse(batch, nodes)
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

    def _refuse(self, batch: WriteBatch, nodes: Iterable[NodeUpsert]) -> None:
        if batch.partial:
            return
        left = self.copy()
        left._delete(batch, Outcome())
        if any(left._is_wrong(put) for put in nodes):
            raise BatchRejection
        if any(_is_backwards(put, left.edges.get(put.key)) for put in merged(batch.edges, lambda put: put.key)):
            raise BatchRejection

    def _is_wrong(self, put: NodeUpsert) -> bool:
        old = self.nodes.get(put.id)
        unknown = put.type is not None and self.kinds != frozenset() and put.type not in self.kinds
        return unknown or (put.type is None and old is None) or _is_backwards(put, old)

    def _delete(self, batch: WriteBatch, outcome: Outcome) -> int:
        edges = {key for key in batch.delete_edges if key in self.edges}
        nodes = {node_id for node_id in batch.delete_nodes if node_id in self.nodes}
        if nodes:
            edges |= {key for key in self.edges if key[0] in nodes or key[1] in nodes}
        for key in edges:
            del self.edges[key]
        for node_id in nodes:
            self.ended[node_id] = self.nodes.pop(node_id).version
        outcome.edges_deleted, outcome.nodes_deleted = len(edges), len(nodes)
        return len(edges) + len(nodes)

    def _put_node(self, put: NodeUpsert, sequence: int, now: int, outcome: Outcome) -> bool:
        old = self.nodes.get(put.id)
        if self._is_wrong(put):
            outcome.rejected_count += 1
            return False
        before = NodeRow(put.id, "", "", "{}", self.ended.get(put.id, 0), 0, now, now) if old is None else old
        row = NodeRow(
            put.id,
            either(put.type, before.type),
            either(put.content, before.content),
            either(put.attributes, before.attributes),
            max(put.version or 1, before.version + 1),
            sequence,
            either(put.created_at, before.created_at),
            either(put.updated_at, now),
            self._node_extras(put, old),
        )
        # Rows kept next to the heads join none of them.
        joins = put.resolves and extras_of(old)["conflicts"] and not extras_of(row)["conflicts"]
        if old is not None and _said(row) == _said(old) and not joins:
            outcome.nodes_unchanged += 1
            return self._note_author(put, old, sequence)
        self.nodes[put.id] = row
        outcome.nodes_created += old is None
        outcome.nodes_updated += old is not None
        return True

    def _note_author(self, put: NodeUpsert, old: NodeRow, sequence: int) -> bool:
        """Record a second author of an identical version, which makes a commit."""
        author = put.extras.created_by if put.extras is not None and put.resolves else ""
        if author in {"", extras_of(old)["created_by"]}:
            return False
        self.said.setdefault((old.id, old.version, author), sequence)
        return True

    def _node_extras(self, put: NodeUpsert, old: NodeRow | None) -> NodeExtras | None:
        fields = _written(put.extras, extras_of(old))
        if old is not None:
            others = extras_of(old)["conflicts"]
            heads = (old.version, *others)
            beside = self.keeps_both and put.based_on is not None and put.based_on not in heads
            fields["conflicts"] = heads if beside else () if put.resolves else others
        extras = NodeExtras(**fields)
        held = old is not None and old.extras is not None
        return extras if held or extras != NodeExtras() else None

    def _put_edge(self, put: EdgeUpsert, sequence: int, now: int, outcome: Outcome, *, touch: bool) -> bool:
        source, target, relation_type = put.key
        if source not in self.nodes or target not in self.nodes:
            outcome.skipped_count += 1
            return False
        text, old = format_rfc3339_timestamp(now), self.edges.get(put.key)
        if _is_backwards(put, old):
            outcome.rejected_count += 1
            return False
        before = old or EdgeRow(source, target, relation_type, 1.0, attributes_text(text, text, {}), 0, 0)
        held = json.loads(before.attributes)
        created, updated = held.pop("created_at"), held.pop("updated_at")
        weight, own = either(put.weight, before.weight), held if put.own is None else json.loads(put.own)
        extras = _written(put.extras, edge_extras_of(old))
        others = {name: value for name, value in edge_extras_of(old).items() if name != "created_by"}
        changed = old is None or (weight, own, put.created_at or created) != (old.weight, held, created)
        changed = changed or others != {name: extras[name] for name in others}
        fresh = EdgeExtras(**extras) if EdgeExtras(**extras) != EdgeExtras() else None
        moved = text if touch else put.updated_at or (text if changed else updated)
        row = EdgeRow(
            source,
            target,
            relation_type,
            weight,
            attributes_text(put.created_at or created, moved, own),
            max(put.version or 1, before.version + 1) if changed else before.version,
            sequence if changed else before.sequence,
            fresh if changed else before.extras,
        )
        outcome.edges_created += old is None
        outcome.edges_updated += changed and old is not None
        outcome.edges_unchanged += not changed
        self.edges[put.key] = row
        return row != old

    def walk(self, request: TraversalRequest) -> tuple[dict[str, int], set[EdgeKey], bool]:
        """Return ids with their depth, nearest first; the keys of edges between them; whether there were more nodes."""
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
    """Merge puts by key: fields that a later one omits come from earlier ones."""
    latest: dict[object, _Put] = {}
    for put in puts:
        earlier = latest.get(key(put))
        latest[key(put)] = put if earlier is None else type(put)(**_joined(earlier, put))
    return list(latest.values())


def _joined(earlier: msgspec.Struct, later: msgspec.Struct) -> _Fields:
    fields = msgspec.structs.asdict(earlier)
    for name, value in msgspec.structs.asdict(later).items():
        left_out = value is None and name not in _CLEARED_BY_NONE
        if left_out or value is msgspec.UNSET or (name, value) in (("created_by", ""), ("resolves", False)):
            continue
        held = fields[name]
        fields[name] = type(value)(**_joined(held, value)) if isinstance(value, msgspec.Struct) and held else value
    return fields


def was_true(row: NodeRow | EdgeRow, moment: int) -> bool:
    """Return True if a row was valid: from ≤ moment < to, where a missing bound is unlimited."""
    fields = extras_of(row) if isinstance(row, NodeRow) else edge_extras_of(row)
    begun = fields["valid_from"] is None or fields["valid_from"] <= moment
    return begun and (fields["valid_to"] is None or moment < fields["valid_to"])


_CLEARED_BY_NONE = (
    "ordinal",
    "freshness_at",
    "valid_from",
    "valid_to",
    "confidence",
    "confidence_at",
    "importance",
    "layer",
)


def extras_of(row: NodeRow | None) -> _Fields:
    """Return the extras of a node by name, with defaults for a node without extras."""
    return msgspec.structs.asdict((row and row.extras) or NodeExtras())


def edge_extras_of(row: EdgeRow | None) -> _Fields:
    """Return the extras of an edge by name, with defaults for an edge without extras."""
    return msgspec.structs.asdict((row and row.extras) or EdgeExtras())


def _written(put: NodeExtrasUpsert | EdgeExtrasUpsert | None, held: _Fields) -> _Fields:
    fields = held | {name: value for name, value in _NOT_INHERITED.items() if name in held}
    given = {} if put is None else msgspec.structs.asdict(put)
    return fields | {
        name: value
        for name, value in given.items()
        if value is not msgspec.UNSET and (value is not None or name in _CLEARED_BY_NONE)
    }


def _is_backwards(put: NodeUpsert | EdgeUpsert, old: NodeRow | EdgeRow | None) -> bool:
    if put.extras is None:
        return False
    fields = _written(put.extras, msgspec.structs.asdict((old and old.extras) or NodeExtras()))
    return None not in (fields["valid_from"], fields["valid_to"]) and fields["valid_to"] < fields["valid_from"]


def _said(row: NodeRow) -> tuple[Any, ...]:
    fields = {name: value for name, value in extras_of(row).items() if name not in _NOT_INHERITED}
    return row.type, row.content, row.attributes, fields


def either(given: _Value | None, held: _Value) -> _Value:
    """Return ``given``, else ``held``."""
    return held if given is None else given


def attributes_text(created_at: str, updated_at: str, own: dict[str, Any]) -> str:
    """Return an edge's attributes in their stored form."""
    held = {"created_at": created_at, "updated_at": updated_at, **own}
    return json.dumps(held, separators=(",", ":"), ensure_ascii=False)


def _next(edges: list[EdgeRow], frontier: set[str], request: TraversalRequest) -> Iterator[str]:
    for edge in edges:
        if request.direction != "incoming" and edge.source in frontier:
            yield edge.target
        if request.direction != "outgoing" and edge.target in frontier:
            yield edge.source
