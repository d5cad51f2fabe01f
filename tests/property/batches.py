"""Random batches of every kind of write, including sizes beyond the thresholds of the engine's bulk load."""

from __future__ import annotations

import random
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from kgserve.graph.url_parameters import NodeListParameters
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.breadth_first_traversal import TraversalDirection, TraversalRequest
from kgserve.storage.model.node_edge_fields import EdgeExtrasUpsert, NodeExtrasUpsert, TimestampPut
from kgserve.storage.model.node_edge_rows import EdgeKey
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from tests.property.graph import Graph

Kind = Literal["inject", "update", "import", "delete nodes", "delete edges", "mixed"]
KINDS: tuple[Kind, ...] = ("inject", "update", "import", "delete nodes", "delete edges", "mixed")
SIZES = (1, 3, 12, 25, 45, 120, 250, 450)

_ODD = [
    "it's",
    'say "hi"',
    "back`tick",
    "nul\0end",
    "two\nlines",
    "back\\slash",
    "Ünïcödé",
    "日本",
    "😀",
    " ",
    "a/b",
    "{}",
    "$i",
]
_TYPES = ("person", "place", "thing")
_RELATIONS = ("knows", "is in", "made'of")
_ATTRIBUTES = (None, None, "{}", '{"a":1}', '{"a":1,"b":[null,{"c":"ü"}]}')
_AUTHORS = ("", "", "ada", "it's Bob")
_MOMENTS = ("2020-02-29T12:00:00Z", "2021-01-01T00:00:00.250000+02:00")
# Valid times: the minimum and maximum, one before 1970, and 1970 itself.
DATES = (-62_135_596_800_000_000, -1, 0, 1, 1_000_000_000_000_000, 1_600_000_000_000_000, 253_402_300_799_999_999)
TAGS = ("red", "blue", "topic:ü", "topic:it's", "topic:", ":", "a,b", "[x]", "NULL", "日本")
_DIRECTIONS: tuple[TraversalDirection, ...] = ("outgoing", "incoming", "both")


CLEARED = NodeExtrasUpsert("", (), None, "", None, None)


class Batches:
    """Generator of batches about a bounded number of ids; a seed gives the same batches against the same graph."""

    def __init__(self, seed: int, ids: int, extended: float = 0.0) -> None:
        """Initialize the generator. ``extended`` is the share of nodes and edges with extras."""
        self.random = random.Random(seed)
        self._ids = ids
        self._extended = extended

    def batch(self, graph: Graph, kind: Kind, size: int) -> WriteBatch:
        """Return a batch of one kind with about ``size`` rows."""
        touch = self.random.random() < 0.6
        match kind:
            case "inject":
                edges = self._new_edges(size)
                return WriteBatch(nodes=self._nodes(max(1, size // 2)), edges=edges, touch=touch)
            case "update":
                return WriteBatch(
                    nodes=self._stored_nodes(graph, size), edges=self._stored_edges(graph, size), touch=touch
                )
            case "import":
                return self._import(graph, size)
            case "delete nodes":
                return WriteBatch(delete_nodes=[self.some_id() for _ in range(min(size, self._ids // 4 + 1))])
            case "delete edges":
                return WriteBatch(delete_edges=self._stored_keys(graph, size))
            case "mixed":
                return self._mixed(graph, size, touch=touch)

    def any_batch(self, graph: Graph) -> WriteBatch:
        """Return a batch of any kind and size; deletions are rarer than additions."""
        kind = self.random.choices(KINDS, (6, 4, 3, 1, 2, 3))[0]
        return self.batch(graph, kind, self.random.choice(SIZES))

    def some_id(self) -> str:
        """Return one of the ids, whether it exists or not."""
        number = self.random.randrange(self._ids)
        return _ODD[number] if number < len(_ODD) else f"n{number}"

    def walk(self) -> TraversalRequest:
        """Return a random traversal."""
        choice = self.random.choice
        types = choice((None, None, frozenset(_RELATIONS[:1]), frozenset(_RELATIONS[1:])))
        weight, nodes = choice((None, None, 0.5)), choice((1, 2, 7, 1000, 5000))
        return TraversalRequest(
            self.some_id(), self.random.randrange(5), choice(_DIRECTIONS), types, weight, nodes, self.moment()
        )

    def moment(self) -> int | None:
        """Return a random valid time: a date, or just before or after one, or None."""
        date = self.random.choice((None, None, *DATES))
        return date and min(max(date + self.random.choice((-1, 0, 0, 1)), DATES[0]), DATES[-1])

    def wanted(self, moment: int | None) -> NodeListParameters:
        """Return a random list request, for all types and tags or some."""
        choice = self.random.choice
        types, tags = choice(((), (), _TYPES[:1], _TYPES[1:])), choice(((), (), TAGS[:1], TAGS[2:4]))
        return NodeListParameters(
            type=list(types), tag=list(tags), valid_at="any" if moment is None else format_rfc3339_timestamp(moment)
        )

    def _mixed(self, graph: Graph, size: int, *, touch: bool) -> WriteBatch:
        nodes, edges = self._nodes(size // 3 + 1), self._new_edges(size)
        doomed = [put.id for put in nodes if self.random.random() < 0.3][:20]
        again = [put.key for put in edges if self.random.random() < 0.3]
        deleted = [*doomed, *(self.some_id() for _ in range(2))]
        keys = [*again, *self._stored_keys(graph, size // 4)]
        return WriteBatch(nodes=nodes, edges=edges, delete_nodes=deleted, delete_edges=keys, touch=touch)

    def _import(self, graph: Graph, size: int) -> WriteBatch:
        choice = self.random.choice
        nodes = [
            NodeUpsert(
                put.index, put.id, choice((put.type, None)), put.content, put.attributes,
                choice((None, 7)), choice((None, 0, 1_600_000_000_000_000)), choice((None, 1_700_000_000_000_001)),
                put.extras,
            )
            for put in self._nodes(size // 2 + 1)
        ]  # fmt: skip
        edges = [self._line(put) for put in (*self._new_edges(size), *self._stored_edges(graph, size // 3))]
        return WriteBatch(nodes=nodes, edges=edges, touch=False, partial=True)

    def _line(self, put: EdgeUpsert) -> EdgeUpsert:
        # Its times are among its attributes, partially or not at all.
        created, updated = (self.random.choice((None, *_MOMENTS)) if put.own else None for _ in range(2))
        version = self.random.choice((None, 5))
        return EdgeUpsert(put.index, put.key, put.weight, put.own, created, updated, version, put.extras)

    def _nodes(self, count: int) -> list[NodeUpsert]:
        return [self._node(index, self.some_id()) for index in range(count)]

    def _stored_nodes(self, graph: Graph, count: int) -> list[NodeUpsert]:
        stored = list(graph.nodes)
        found = [self.random.choice(stored) for _ in range(count)] if stored else []
        return [self._update(i, graph, node_id) for i, node_id in enumerate(found)]

    def _update(self, index: int, graph: Graph, node_id: str) -> NodeUpsert:
        if self.random.random() >= self._extended:
            return NodeUpsert(index, node_id, None, self._text())
        # Based on known heads or not; sometimes nothing else changes.
        based_on = self.random.choice((None, graph.nodes[node_id].version, 1, 2, 3))
        content = self.random.choice((None, None, self._text()))
        extras = self.random.choice((None, NodeExtrasUpsert(created_by="eve"), self._node_extras()))
        return NodeUpsert(index, node_id, None, content, None, None, None, None, extras, based_on, self._rarely(3))

    def _node(self, index: int, node_id: str) -> NodeUpsert:
        choice = self.random.choice
        # Sometimes without a type: valid for an existing node, otherwise a reason to reject the batch.
        node_type = None if self.random.random() < 0.002 else choice(_TYPES)
        content, attributes = choice((None, "", self._text())), choice(_ATTRIBUTES)
        return NodeUpsert(index, node_id, node_type, content, attributes, extras=self._node_extras())

    def _text(self) -> str:
        return choice_text(self.random)

    def _new_edges(self, count: int) -> list[EdgeUpsert]:
        choice = self.random.choice
        keys = [(self.some_id(), self.some_id(), choice(_RELATIONS)) for _ in range(count)]
        return [self._edge(index, key) for index, key in enumerate(keys)]

    def _stored_edges(self, graph: Graph, count: int) -> list[EdgeUpsert]:
        return [self._edge(index, key) for index, key in enumerate(self._stored_keys(graph, count))]

    def _edge(self, index: int, key: EdgeKey) -> EdgeUpsert:
        choice = self.random.choice
        weight = choice((None, 0.0, 0.25, 0.75, self.random.random()))
        return EdgeUpsert(index, key, weight, choice(_ATTRIBUTES), extras=self._edge_extras())

    def _node_extras(self) -> NodeExtrasUpsert | None:
        if self.random.random() >= self._extended:
            return None
        if self._rarely(6):
            return CLEARED
        choice, valid_from, valid_to = self.random.choice, *self._interval()
        summary = choice((None, None, "", self._text()))
        tags = choice((None, None, (), tuple(self.random.sample(TAGS, self.random.randrange(1, 4)))))
        memory = self._memory() if self._rarely(3) else {}
        return NodeExtrasUpsert(summary, tags, self._date(), choice(_AUTHORS), valid_from, valid_to, **memory)

    def _memory(self) -> dict[str, Any]:
        choice, part = self.random.choice, (None, 0.0, 0.5, 1.0, UNSET)
        numbers = {"confidence": choice(part), "importance": choice(part), "layer": choice((None, 0, 3, UNSET))}
        texts = {name: choice(("", self._text(), UNSET)) for name in ("name", "source", "context", "belongs_to")}
        return {**numbers, **texts, "confidence_at": self._date(), "ended": choice(("", "merged", UNSET))}

    def _edge_extras(self) -> EdgeExtrasUpsert | None:
        if self.random.random() >= self._extended:
            return None
        valid_from, valid_to = self._interval()
        ordinal, author = self.random.choice((None, None, 0, -3, 1 << 62)), self.random.choice(_AUTHORS)
        confidence, context = self.random.choice(((UNSET, UNSET), (0.5, "x"), (None, "")))
        return EdgeExtrasUpsert(ordinal, author, valid_from, valid_to, confidence, context)

    def _interval(self) -> tuple[TimestampPut, TimestampPut]:
        begins, ends = self._date(), self._date()
        if self._rarely(500):
            # It may end before it begins, alone or with the stored value: then the whole batch is rejected.
            return begins, ends
        if isinstance(begins, int) and isinstance(ends, int):
            return min(begins, ends), max(begins, ends)
        return (begins, None) if isinstance(begins, int) else (None, ends) if isinstance(ends, int) else (begins, ends)

    def _date(self) -> TimestampPut:
        return self.random.choice((msgspec.UNSET, None, *DATES))

    def _rarely(self, times: int) -> bool:
        return self.random.randrange(times) == 0

    def _stored_keys(self, graph: Graph, count: int) -> list[EdgeKey]:
        stored = list(graph.edges)
        return self.random.sample(stored, min(count, len(stored)))


def choice_text(source: random.Random) -> str:
    """Return a mostly unique text, sometimes a long one."""
    return f"text {source.randrange(10_000)} 'ü' 😀" * source.choice((1, 1, 1, 40))
