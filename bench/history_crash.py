"""Kills during writes with history: `python -m bench.history_crash [--rounds N] [--seed S]`.

The real server is killed (SIGKILL) while it writes and while the history follows or is made anew. After each kill the
store must be as acknowledged, and once the history has seen the last commit it must agree with the journal, which is
folded here from its files: exports as of several moments, line by line, and the states of some nodes. Exit code 1 on
any violation.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import quote

import msgspec

from bench.killing import IMPORTING, Killing, run
from bench.server import Client, ServerFailed
from bench.tally import Tally, export_when_open
from bench.writers import Upload
from kgserve.platform.times import format_time
from kgserve.storage.journal.tail import Tail
from kgserve.storage.layout import Layout
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.rows import EdgeKey, EdgeRow, NodeRow

MOMENTS = 3
NODES = 20
HISTORY_SECONDS = 120.0

_TIMES = ("freshness_at", "valid_from", "valid_to")

Key = TypeVar("Key", str, EdgeKey)
Row = TypeVar("Row", NodeRow, EdgeRow)


class Held(msgspec.Struct, Generic[Row]):
    """A row and the commits from which and until which it held."""

    row: Row
    first: int
    last: int | None = None


class Fold:
    """Every state of every row, from the change sets of a journal."""

    def __init__(self, changes: Iterable[ChangeSet]) -> None:
        self.nodes: defaultdict[str, list[Held[NodeRow]]] = defaultdict(list)
        self.edges: defaultdict[EdgeKey, list[Held[EdgeRow]]] = defaultdict(list)
        for change in changes:
            at = change.sequence
            for key in change.edges_deleted:
                self.edges[key][-1].last = at
            for node_id in change.nodes_deleted:
                self.nodes[node_id][-1].last = at
            for node in (*change.nodes_created, *change.nodes_updated):
                _follow(self.nodes[node.id], Held(node, at))
            for edge in (*change.edges_created, *change.edges_updated):
                _follow(self.edges[edge.key], Held(edge, at))
            for edge in change.edges_touched:
                self.edges[edge.key][-1].row = edge

    def lines(self, at: int) -> dict[tuple[str, ...], dict[str, Any]]:
        """What an export as of a commit must hold."""
        nodes = {(row.id,): _node_line(row) for row in _then(self.nodes.values(), at)}
        return nodes | {row.key: _edge_line(row) for row in _then(self.edges.values(), at)}


class HistoryCrash(Killing):
    """Kills while the history follows, or is made anew."""

    NAME = "history"
    PHASES = ("writing", IMPORTING, "making it anew", "opening")
    KILLED_AGAIN = ("making it anew", "opening")
    SETTINGS: ClassVar = {"indexes": False, "journal_segment_mb": 1, "compact_wal_mb": 1}

    def __init__(self, data: Path, seed: int) -> None:
        super().__init__(data, seed)
        self.states = 0

    def kill(self, name: str, phase: str, tally: Tally) -> bool:
        """Whether something was acknowledged before, and for an import whether it was cut off."""
        before = self.ledger.acknowledged
        hit = super().kill(name, phase, tally) and self.ledger.acknowledged > before
        if phase == "making it anew":
            for path in self._layout.root.glob("history.sqlite*"):
                path.unlink()
        return hit

    def is_moment(self, phase: str, upload: Upload | None) -> bool:  # noqa: ARG002
        """Whether an import is still under way, if one was begun."""
        return upload is None or upload.is_alive()

    def summary(self) -> str:
        """How much was compared."""
        states = f"{self.states:,} states compared"
        return f"{states}; slowest from start to a history at the last commit: {self.slowest:.1f} s"

    @property
    def _layout(self) -> Layout:
        return Layout(self.data, self.ledger.store)

    def compare(self, tally: Tally) -> None:
        """The head as acknowledged, and every state as in the journal."""
        start = time.monotonic()
        self.server.wait_ready()
        store = self.ledger.store
        with self.server.client() as client:
            lines = export_when_open(client, store)
            tally.violations += self.ledger.verify(lines)
            if lines:
                last = int(client.call("GET", f"/api/memory/{store}/stats")["sequence"])
                _await_history(client, store, last)
                self.slowest = max(self.slowest, time.monotonic() - start)
                tally.violations += self._disagreements(client, last, lines)

    def _disagreements(self, client: Client, last: int, head: list[dict[str, Any]]) -> list[str]:
        store = self.ledger.store
        fold = Fold(Tail(self._layout.journal).read(1, last))
        self.states += sum(map(len, (*fold.nodes.values(), *fold.edges.values())))
        moments = [last, *(self.choice.randint(0, last) for _ in range(MOMENTS))]
        wrong = _differ(f"{store}: the head and the journal", head, fold.lines(last))
        for at in moments:
            reply = client.send("GET", f"/api/memory/{store}/export?as_of={at}")
            then = [msgspec.json.decode(line) for line in reply.body.splitlines()]
            wrong += _differ(f"{store}: as of {at} the history and the journal", then, fold.lines(at))
        for node_id in self.choice.sample(sorted(fold.nodes), min(NODES, len(fold.nodes))):
            path = f"/api/memory/{store}/nodes/{quote(node_id, safe='')}/history?limit=200"
            found = [
                (state["node"]["version"], state["from_sequence"], state["to_sequence"])
                for state in client.call("GET", path)["states"]
            ]
            if found != [(held.row.version, held.first, held.last) for held in reversed(fold.nodes[node_id])]:
                wrong.append(f"{store}: the states of {node_id} are {found[:3]}…, the journal has others")
        return wrong


def _follow(states: list[Held[Row]], state: Held[Row]) -> None:
    if states and states[-1].last is None:
        states[-1].last = state.first
    states.append(state)


def _then(all_states: Iterable[list[Held[Row]]], at: int) -> Iterable[Row]:
    for states in all_states:
        yield from (held.row for held in states if held.first <= at and (held.last is None or at < held.last))


def _differ(what: str, lines: list[dict[str, Any]], wanted: dict[tuple[str, ...], dict[str, Any]]) -> list[str]:
    found = {_key(line): line for line in lines}
    if len(found) == len(lines) and found == wanted:
        return []
    keys = [key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)]
    return [f"{what} differ: {len(lines)} lines, {len(wanted)} wanted, {len(keys)} keys differ: {keys[:3]}"]


def _key(line: dict[str, Any]) -> tuple[str, ...]:
    return (line["id"],) if line["kind"] == "node" else (line["from"], line["to"], line["relation_type"])


def _node_line(row: NodeRow) -> dict[str, Any]:
    texts = {"kind": "node", "id": row.id, "type": row.type, "content": row.content}
    stamps = {"created_at": format_time(row.created_at), "updated_at": format_time(row.updated_at)}
    return {**texts, "attributes": msgspec.json.decode(row.attributes), "version": row.version, **stamps, **_said(row)}


def _edge_line(row: EdgeRow) -> dict[str, Any]:
    ends = {"kind": "edge", "from": row.source, "to": row.target, "relation_type": row.relation_type}
    line = {**ends, "weight": row.weight, "attributes": msgspec.json.decode(row.attributes), "version": row.version}
    return {**line, **_said(row)}


def _said(row: NodeRow | EdgeRow) -> dict[str, Any]:
    """What an export has of a row's extras: what is there."""
    found: dict[str, Any] = {} if row.extras is None else msgspec.structs.asdict(row.extras)
    found.pop("conflicts", None)
    found["tags"] = list(found.get("tags", ()))
    times = {name: format_time(found[name]) for name in _TIMES if found.get(name) is not None}
    return {name: value for name, value in {**found, **times}.items() if value not in (None, "", [])}


def _await_history(client: Client, store: str, sequence: int) -> None:
    """Ask for the last commit until the history answers."""
    end = time.monotonic() + HISTORY_SECONDS
    while (reply := client.send("GET", f"/api/memory/{store}/nodes?limit=1&as_of={sequence}")).status != 200:
        if reply.status != 503 or time.monotonic() > end:
            raise ServerFailed(f"the history of {store} is not at {sequence}: {reply.status} {reply.body[:300]!r}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(run(HistoryCrash, (__doc__ or "").split("\n", 1)[0]))
