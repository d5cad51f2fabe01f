"""Random commits of memories and names, and the content of the memory index in a comparable form."""

# ruff: noqa: S608 - nothing of a caller's is put into them
from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kgserve.platform.timestamps import DAY_MICROSECONDS
from kgserve.projections.memory_index.confidence_decay import MemoryHalfLives
from kgserve.projections.memory_index.memory_index_file import MemoryIndexSqliteFile
from kgserve.storage.model.change_set import ChangeSet, MemoryAccessRecord
from kgserve.storage.model.node_edge_fields import EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow, edge_created_at
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from tests.storage.journal.history import History

HALF_LIVES = MemoryHalfLives(30.0, {"preference": None, "error": 2.5})
TYPES = ("fact", "preference", "error", "person")
IDS = [*(f"n{number}" for number in range(12)), "n1\0", "n1\0b"]
NOW = 400 * DAY_MICROSECONDS


class Writer:
    """Generator of random commits with a model of the resulting state."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.history = History()
        self.accesses: dict[str, MemoryAccessRecord] = {}

    def step(self) -> None:
        """Write one commit."""
        some = self.choice.sample(IDS, 4)
        nodes = [self._node(at, node_id) for at, node_id in enumerate(some)]
        edges = [self._edge(at) for at in range(6)]
        known = [key for key, row in self.history.workspace.edges.items() if row is not None]
        gone = self.choice.sample(IDS, self.choice.choice((0, 0, 1, 3)))
        lost = self.choice.sample(known, min(len(known), 2))
        batch = WriteBatch(
            nodes=nodes, edges=edges, delete_nodes=gone, delete_edges=lost, accesses=[self._access() for _ in range(2)]
        )
        change = self.history.add(batch)
        for node_id in change.nodes_deleted:
            self.accesses.pop(node_id, None)
        self.accesses |= {access.id: access for access in change.accessed}

    def _node(self, at: int, node_id: str) -> NodeUpsert:
        pick = self.choice.choice
        extras = NodeExtrasUpsert(
            tags=tuple(self.choice.sample("xyz", pick((0, 1, 2)))),
            name=pick(("", "", "Alice", "ALICE ", "Bob")),
            confidence=pick((None, 0.0, 0.3, 0.7, 1.0)),
            confidence_at=pick((None, 0, 30 * DAY_MICROSECONDS, 395 * DAY_MICROSECONDS, 500 * DAY_MICROSECONDS)),
            source=pick(("", "chat", "file")),
            layer=pick((None, 1, 2)),
            importance=pick((None, 1.0)),
            ended=pick(("", "", "", "merged")),
            valid_from=pick((None, None, NOW - DAY_MICROSECONDS)),
            valid_to=pick((None, None, NOW - DAY_MICROSECONDS, NOW + DAY_MICROSECONDS)),
            belongs_to=pick(("", "", "", "n1")),
        )
        aliases = pick(("{}", '{"aliases":["Al","the boss"]}', '{"aliases":"Al"}'))
        content = pick(("Alice likes tea.", "alice likes tea", "Alice liked the teas", "Something else"))
        return NodeUpsert(at, node_id, pick(TYPES), content, aliases, extras=extras)

    def _edge(self, at: int) -> EdgeUpsert:
        pick = self.choice.choice
        extras = EdgeExtrasUpsert(valid_to=pick((None, NOW - DAY_MICROSECONDS, NOW + DAY_MICROSECONDS)))
        return EdgeUpsert(
            at,
            (pick(IDS), pick(IDS), pick(("is_about", "knows", "child_of", "child_of", "child_of"))),
            pick((0.5, 1.0)),
            extras=extras,
        )

    def _access(self) -> MemoryAccessRecord:
        node_id, before = self.choice.choice(IDS), self.choice.choice((10, 200, 390, 450))
        return MemoryAccessRecord(
            node_id, self.choice.randint(1, 9), before * DAY_MICROSECONDS, self.choice.choice((0.2, 0.9))
        )

    # Current state

    @property
    def changes(self) -> list[ChangeSet]:
        """Return all commits."""
        return self.history.changes

    @property
    def nodes(self) -> dict[str, NodeRow]:
        """All nodes."""
        return self.history.workspace.nodes

    @property
    def edges(self) -> list[EdgeRow]:
        """All edges."""
        return [row for row in self.history.workspace.edges.values() if row is not None]

    def edges_of(self, node_id: str) -> Iterator[EdgeRow]:
        """Yield the edges of a node."""
        return (row for row in self.edges if node_id in row.key[:2])

    def memories(self) -> dict[str, NodeRow]:
        """Nodes that are memories."""
        return {node_id: row for node_id, row in self.nodes.items() if row.is_memory}

    def in_force(self) -> dict[str, NodeRow]:
        """Memories in force."""
        return {node_id: row for node_id, row in self.memories().items() if is_active(row)}

    def above(self) -> tuple[dict[str, list[str]], int, int]:
        """Return the ancestors of each memory in force, nearest first; the numbers of second parents, and of cycles."""
        there = self.in_force()
        steps: dict[str, list[tuple[int, str]]] = {}
        for edge in self.edges:
            ends = edge.extras is not None and edge.extras.valid_to is not None
            if edge.relation_type == "child_of" and not ends and edge.source in there and edge.target in there:
                steps.setdefault(edge.source, []).append((edge_created_at(edge), edge.target))
        newest = {child: max(some) for child, some in steps.items()}
        circles = {frozenset(circle) for child in newest if (circle := _cycle(newest, child))}
        for circle in circles:
            del newest[max(circle, key=lambda child: (newest[child][0], child))]
        ways = {child: _path_up(newest, child) for child in there}
        return ways, sum(map(len, steps.values())) - len(steps), len(circles)

    def worth(self, row: NodeRow, half_lives: MemoryHalfLives, now: int) -> float:
        """Return the confidence of a memory at a moment."""
        return half_lives.decayed_confidence(row, self.accesses.get(row.id), now)

    def rebuilt(self, half_lives: MemoryHalfLives = HALF_LIVES) -> MemoryIndexSqliteFile:
        """Return an index built from the current state."""
        memories = MemoryIndexSqliteFile(None, half_lives)
        wide = {
            node_id: row for node_id, row in self.nodes.items() if row.extras and (row.extras.name or row.is_memory)
        }
        edges = [row for row in self.edges if row.source in wide]
        memories.rebuild(wide.values(), edges, [list(self.accesses.values())], self.history.state.sequence)
        return memories


def _cycle(newest: dict[str, tuple[int, str]], child: str) -> list[str]:
    """Return the cycle that a memory belongs to."""
    way, at = [child], child
    while (step := newest.get(at)) is not None and step[1] not in way:
        way.append(at := step[1])
    return way if step is not None and step[1] == child else []


def _path_up(newest: dict[str, tuple[int, str]], child: str) -> list[str]:
    way: list[str] = []
    while child in newest:
        way.append(child := newest[child][1])
    return way


def is_active(row: NodeRow) -> bool:
    """Return whether a memory has not ended and is not a former version."""
    extras = row.extras
    assert extras is not None
    withdrawn = extras.valid_from is not None and extras.valid_from == extras.valid_to
    return not (extras.ended or extras.belongs_to or withdrawn)


def contents(memories: MemoryIndexSqliteFile) -> dict[str, Any]:
    """Return the whole content of an index, without its row numbers."""
    run = memories._run
    columns = "type, created, updated, stated, stated_at, confidence, since, half, key, accessed, hash, print, layer"
    more = "source, importance, ended, belongs_to, active, start, stop"
    named = "SELECT memory.id, {} FROM {} JOIN memory ON memory = number"
    found: dict[str, Any] = {
        "memory": run(f"SELECT id, {columns}, {more} FROM memory").fetchall(),
        "tagged": run(named.format("tag", "tagged")).fetchall(),
        "about": run(named.format("entity, relevance, about.start, about.stop", "about")).fetchall(),
        **{
            name: run(f"SELECT * FROM {name}").fetchall() for name in ("access", "entity", "named", "relation", "tally")
        },
        "fading": run("SELECT half, epoch, round(sum, 3), count FROM fading WHERE count > 0").fetchall(),
    }
    step = "SELECT c.id, p.id, {} FROM {} AS t JOIN memory AS c ON c.number = t.{} JOIN memory AS p ON p.number = t.{}"
    found |= {
        "upward": run(step.format("t.created", "upward", "child", "parent")).fetchall(),
        "parent": run(step.format("t.id, t.created, others, closing", "parent", "child", "parent")).fetchall(),
        "closure": run(step.format("t.id, depth", "closure", "descendant", "ancestor")).fetchall(),
    }
    found["steps"] = [run(f"SELECT count(*) FROM {name}").fetchone() for name in ("upward", "parent", "closure")]
    return {name: sorted(rows, key=repr) for name, rows in found.items()}
