"""A randomly written store with a plain model of it, and the expected answers of graph drawing."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import httpx
import msgspec

from tests.server.http.serving import accepted

Key = tuple[str, str, str]
NAMES = [f"n{number:02}" for number in range(24)]
KINDS = ("a", "b", "c")
BOUNDS = (None, "2000-01-01T00:00:00.000000Z", "2100-01-01T00:00:00.000000Z")


class DrawnNode(msgspec.Struct, frozen=True):
    type: str
    content: str = ""
    valid_from: str | None = None
    valid_to: str | None = None

    def holds(self, at: str | None) -> bool:
        return at is None or ((self.valid_from or "") <= at and (self.valid_to is None or at < self.valid_to))


class DrawnEdge(msgspec.Struct, frozen=True):
    weight: float
    valid_from: str | None = None
    valid_to: str | None = None

    def holds(self, at: str | None) -> bool:
        return at is None or ((self.valid_from or "") <= at and (self.valid_to is None or at < self.valid_to))


class State(msgspec.Struct):
    """Rows as of one commit."""

    nodes: dict[str, DrawnNode] = {}
    edges: dict[Key, DrawnEdge] = {}

    def degree(self, node: str) -> int:
        return sum((source == node) + (target == node) for source, target, _ in self.edges)


class Picture(msgspec.Struct):
    """Content of an answer, independent of positions."""

    nodes: list[str]
    edges: set[Key]
    left_out: dict[str, int]
    truncated: bool


class Model:
    """Model of a store with every state."""

    def __init__(self, http: httpx.Client, api: str, seed: int) -> None:
        self.http, self.api, self.random = http, api, random.Random(seed)
        self.states = [State()]

    @property
    def present(self) -> State:
        return self.states[-1]

    def write(self) -> None:
        """Write or delete some rows."""
        state = State(dict(self.present.nodes), dict(self.present.edges))
        if state.nodes and self.random.random() < 0.2:
            gone = self.random.choice([*state.nodes])
            accepted(self.http.delete(f"{self.api}/nodes/{gone}"))
            del state.nodes[gone]
            state.edges = {key: edge for key, edge in state.edges.items() if gone not in key[:2]}
        else:
            # An omitted bound is kept.
            nodes = {each: self._node(state.nodes.get(each)) for each in self.random.sample(NAMES, 4)}
            state.nodes |= nodes
            there = [*state.nodes]
            keys = [(self.random.choice(there), self.random.choice(there), self.random.choice("rst")) for _ in range(6)]
            edges = {key: self._edge(state.edges.get(key)) for key in keys}
            state.edges |= edges
            batch = {
                "nodes": [{"id": each, **msgspec.to_builtins(row)} for each, row in nodes.items()],
                "edges": [
                    {"from": key[0], "to": key[1], "relation_type": key[2], **msgspec.to_builtins(row)}
                    for key, row in edges.items()
                ],
                "touch": False,
            }
            answer = accepted(self.http.post(f"{self.api}/inject", json=batch))
            if answer["sequence"] < len(self.states):  # No change.
                return
        self.states.append(state)

    def _node(self, before: DrawnNode | None) -> DrawnNode:
        ends = self.random.choice(BOUNDS) if self.random.random() < 0.3 else None
        kept = before.valid_to if before else None
        return DrawnNode(self.random.choice(KINDS), self.random.choice(("", "some words")), None, ends or kept)

    def _edge(self, before: DrawnEdge | None) -> DrawnEdge:
        begins = self.random.choice(BOUNDS) if self.random.random() < 0.3 else None
        return DrawnEdge(self.random.choice((0.25, 0.5, 1.0)), begins or (before.valid_from if before else None))

    def lives(self, key: Any) -> list[list[int | None]]:
        """Return the commits between which the states of a node or edge were valid, newest first."""
        found: list[list[int | None]] = []
        before = None
        for sequence, state in enumerate(self.states):
            row = state.nodes.get(key) if isinstance(key, str) else state.edges.get(key)
            if row != before:
                if before is not None:
                    found[-1][1] = sequence
                if row is not None:
                    found.append([sequence, None])
            before = row
        return found[::-1]


def neighbours(state: State, node: str, wanted: dict[str, Any], at: str | None) -> list[str]:
    """Return the nodes that may be added, the strongest first."""
    weights: dict[str, float] = {}
    for (source, target, kind), edge in state.edges.items():
        if not edge.holds(at) or (wanted.get("relation_types") is not None and kind not in wanted["relation_types"]):
            continue
        direction = wanted.get("direction", "both")
        for near, end in ((source, target),) * (direction != "incoming") + ((target, source),) * (
            direction != "outgoing"
        ):
            types = wanted.get("types")
            if near == node != end and state.nodes[end].holds(at) and (types is None or state.nodes[end].type in types):
                weights[end] = max(weights.get(end, 0.0), edge.weight)
    return sorted(weights, key=lambda end: (-weights[end], end))


def around(state: State, starts: Iterable[str], wanted: dict[str, Any], at: str | None) -> Picture:
    """Return the nodes around some existing nodes."""
    most, per_node = wanted.get("max_nodes", 300), wanted.get("per_node", 50)
    found = list(dict.fromkeys(starts))
    truncated, found = len(found) > most, found[:most]
    level, looked_at = found, dict[str, list[str]]()
    for _ in range(wanted.get("depth", 1)):
        near = {node: neighbours(state, node, wanted, at) for node in level}
        looked_at |= near
        new = [end for ends in near.values() for end in ends[:per_node] if end not in found]
        level = list(dict.fromkeys(new))
        truncated = truncated or len(level) > most - len(found)
        level = level[: most - len(found)]
        found = found + level
    left_out = {node: sum(end not in found for end in ends) for node, ends in looked_at.items()}
    return Picture(
        found, edges_among(state, found, wanted, at), {n: count for n, count in left_out.items() if count}, truncated
    )


def edges_among(state: State, nodes: Iterable[str], wanted: dict[str, Any], at: str | None) -> set[Key]:
    some, kinds = frozenset(nodes), wanted.get("relation_types")
    return {
        key
        for key, edge in state.edges.items()
        if key[0] in some and key[1] in some and edge.holds(at) and (kinds is None or key[2] in kinds)
    }


def picture(answer: dict[str, Any]) -> Picture:
    """Return the answer from its columns."""
    ids = answer["nodes"]["id"]
    return Picture(
        ids,
        {*keys(answer)},
        {ids[place]: count for place, count in answer["left_out"]},
        answer["truncated"],
    )


def keys(answer: dict[str, Any]) -> list[Key]:
    """Return the edges of an answer in order."""
    ids, edges = answer["nodes"]["id"], answer["edges"]
    kinds = (answer["relation_types"][place] for place in edges["type"])
    return [(ids[s], ids[t], kind) for s, t, kind in zip(edges["from"], edges["to"], kinds, strict=True)]
