"""Expected content of a store after a crash: all acknowledged batches, other batches completely or not at all."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

NODES = 12
"""Nodes of a unit."""
EXTRAS_FROM = 3
"""Generation from which rows have extras, which need new columns in the engine file."""

Rows = dict[tuple[str, ...], Any]


class UnitState(NamedTuple):
    """State of a unit: its number of writes, 0 for never, and whether its first node exists."""

    generation: int
    first: bool = True


ABSENT = UnitState(0)


class WriteUnit:
    """Nodes and edges that are repeatedly written together, and lose their first node once.

    `allowed` are the possible states: one, or two while a request is unanswered.
    """

    def __init__(self, name: str, size: int, previous: str | None) -> None:
        self.name = name
        self.size = size
        self.previous = previous
        self.allowed = [ABSENT]

    def batch(self, generation: int) -> dict[str, Any]:
        """Return the inject request that brings the unit to a generation, including its first node."""
        nodes: list[dict[str, Any]] = [
            {"id": self.id(n), "type": "step", "content": self.content(n, generation), "attributes": {"g": generation}}
            for n in range(NODES)
        ]
        edges: list[dict[str, Any]] = [
            {"from": source, "to": target, "relation_type": kind, "weight": float(generation)}
            for source, target, kind in self._edges()
        ]
        if generation >= EXTRAS_FROM:
            for row in (*nodes[::2], *edges[::2]):
                row.update(created_by=self.name, valid_from=f"19{generation % 90 + 10}-01-01T00:00:00Z")
            nodes[0].update(tags=[f"g:{generation}"], summary=f"{generation}", valid_to="2999-01-01T00:00:00Z")
            edges[0]["ordinal"] = generation
        return {"nodes": nodes, "edges": edges}

    def rows(self, state: UnitState) -> Rows:
        """Return the rows that the store holds of the unit in a state."""
        if state.generation == 0:
            return {}
        gone = None if state.first else self.id(0)
        nodes: Rows = {(self.id(n),): self.content(n, state.generation) for n in range(NODES) if self.id(n) != gone}
        edges: Rows = {key: float(state.generation) for key in self._edges() if gone not in key}
        return nodes | edges

    def id(self, number: int) -> str:
        """Return the id of a node."""
        return f"{self.name}/{number}"

    def path(self, number: int) -> str:
        """Return the API path of a node below its store; the id contains a slash, which must be escaped."""
        return f"nodes/{quote(self.id(number), safe='')}"

    def content(self, number: int, generation: int) -> str:
        """Return the content of a node in a generation."""
        return (f"generation {generation} of {self.id(number)}; " * (self.size // 20 + 1))[: self.size]

    def _edges(self) -> Iterator[tuple[str, str, str]]:
        for number in range(NODES):
            yield self.id(number), self.id((number + 1) % NODES), "next"
        if self.previous:  # its second node, which is never deleted
            yield self.id(0), f"{self.previous}/1", "after"


class ImportStream:
    """A long import of a chain: node 0, node 1, edge 1 to 0 and so on. It commits in order, so a prefix may exist."""

    def __init__(self, name: str, steps: int) -> None:
        self.name = name
        self.steps = steps
        self.at_least = 0
        self.at_most = 2 * steps - 1

    def lines(self) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
        """Yield key and exchange record of each line."""
        for number in range(self.steps):
            id_ = f"{self.name}/{number}"
            yield (id_,), {"kind": "node", "id": id_, "type": "link", "content": f"link {number} of {self.name}"}
            if number:
                before = f"{self.name}/{number - 1}"
                edge = {"kind": "edge", "from": id_, "to": before, "relation_type": "back", "weight": 1.0}
                yield (id_, before, "back"), edge

    def prefix(self, found: Rows) -> int | None:
        """Return the number of existing lines if they are a correct prefix; else None."""
        for (key, record), _ in zip(self.lines(), range(len(found)), strict=False):
            if found.get(key) != record.get("content", record.get("weight")):
                return None
        return len(found)


class Ledger:
    """Units and streams of one store. Thread-safe."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.acknowledged = 0
        self._units: dict[str, WriteUnit] = {}
        self._streams: dict[str, ImportStream] = {}
        self._reported: set[str] = set()
        self._lock = threading.Lock()

    def attempt(self, unit: WriteUnit, state: UnitState) -> None:
        """Record that a request is about to be sent."""
        with self._lock:
            self._units[unit.name] = unit
            unit.allowed = [*unit.allowed, state]

    def acknowledge(self, unit: WriteUnit, state: UnitState) -> None:
        """Record that a request was acknowledged."""
        with self._lock:
            unit.allowed = [state]
            self.acknowledged += 1

    def attempt_stream(self, stream: ImportStream) -> None:
        """Record that an import is about to be sent."""
        with self._lock:
            self._streams[stream.name] = stream

    def acknowledge_stream(self, stream: ImportStream) -> None:
        """Record that an import was acknowledged."""
        with self._lock:
            stream.at_least = stream.at_most
            self.acknowledged += 1

    def settled_units(self) -> list[WriteUnit]:
        """Return the units whose state is known and not absent."""
        with self._lock:
            return [
                unit
                for unit in self._units.values()
                if len(unit.allowed) == 1 and unit.allowed[0] != ABSENT and unit.name not in self._reported
            ]

    def verify(self, exported: Iterable[dict[str, Any]]) -> list[str]:
        """Compare with an export. Return the differences, and continue from the exported state."""
        found: defaultdict[str, Rows] = defaultdict(dict)
        for line in exported:
            if line["kind"] == "node":
                found[line["id"].rpartition("/")[0]][(line["id"],)] = line["content"]
            else:
                key = (line["from"], line["to"], line["relation_type"])
                found[line["from"].rpartition("/")[0]][key] = line["weight"]
        with self._lock:
            wrong = [self._check_unit(unit, found.pop(name, {})) for name, unit in self._units.items()]
            wrong += [self._check_stream(stream, found.pop(name, {})) for name, stream in self._streams.items()]
        return [text for text in wrong if text] + [f"{self.store}: never sent: {name}" for name in found]

    def _check_unit(self, unit: WriteUnit, rows: Rows) -> str | None:
        if unit.name in self._reported:
            return None
        for state in unit.allowed:
            if rows == unit.rows(state):
                unit.allowed = [state]
                return None
        allowed = " or ".join(f"generation {s.generation}{'' if s.first else ' without node 0'}" for s in unit.allowed)
        wanted = unit.rows(unit.allowed[-1])
        differing = [key for key in rows.keys() | wanted.keys() if rows.get(key) != wanted.get(key)]
        self._reported.add(unit.name)
        return f"{self.store}: {unit.name}: {len(rows)} rows, not {allowed}; {len(differing)} differ: {differing[:3]}"

    def _check_stream(self, stream: ImportStream, rows: Rows) -> str | None:
        count = stream.prefix(rows)
        if count is None or not stream.at_least <= count <= stream.at_most:
            wanted = f"the first {stream.at_least} to {stream.at_most}"
            return f"{self.store}: import {stream.name}: {len(rows)} lines exist, not {wanted} lines"
        stream.at_least = stream.at_most = count
        return None
