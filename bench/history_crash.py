"""Kills during writes with history: `python -m bench.history_crash [--rounds N] [--seed S]`.

The real server is killed (SIGKILL) while it writes and while the history follows or is made anew. After each kill the
store must be as acknowledged, and once the history has seen the last commit it must agree with the journal, which is
folded here from its files: exports as of several moments, line by line, and the states of some nodes. Exit code 1 on
any violation.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from bench.ledger import Ledger, Stream
from bench.server import Client, Server, ServerFailed
from bench.tally import Tally, export_when_open, show
from bench.writers import Upload, Writers
from kgserve.journal.tail import Tail
from kgserve.model.change import ChangeSet
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.model.times import format_time
from kgserve.store.layout import Layout

PHASES = ("writing", "importing", "making it anew", "opening")
SETTINGS = {"indexes": False, "journal_segment_mb": 1, "compact_wal_mb": 1}
ROUNDS_PER_STORE = 5
STEPS = 3_000
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


class HistoryCrash:
    """One data folder, the server that is killed on it, and what its current store must hold."""

    def __init__(self, data: Path, seed: int) -> None:
        self._data = data
        self._choice = random.Random(seed)
        self._ledger = Ledger("history-0")
        self._server = Server(data, SETTINGS)
        self.slowest = 0.0
        self.states = 0

    def round(self, number: int, phase: str, tally: Tally) -> None:
        """Write, kill, start again, compare."""
        if number % ROUNDS_PER_STORE == 0 and number:
            self._ledger = Ledger(f"history-{number // ROUNDS_PER_STORE}")
        before = self._ledger.acknowledged
        tally.rounds += 1
        tally.reached += self._kill(f"r{number}", phase, tally)
        tally.acknowledged += self._ledger.acknowledged - before
        if phase == "making it anew":
            for path in self._layout.root.glob("history.sqlite*"):
                path.unlink()
        self._server = Server(self._data, SETTINGS)
        if phase in {"making it anew", "opening"}:
            # Killed once more, while the history catches up.
            with self._server.client() as client:
                export_when_open(client, self._ledger.store)
            time.sleep(self._choice.uniform(0, 0.3))
            self._server.kill()
            self._server = Server(self._data, SETTINGS)
        self._compare(tally)

    def finish(self) -> None:
        """Stop the server."""
        self._server.stop()

    @property
    def _layout(self) -> Layout:
        return Layout(self._data, self._ledger.store)

    def _kill(self, name: str, phase: str, tally: Tally) -> bool:
        """Whether something was acknowledged before, and for an import whether it was cut off."""
        before = self._ledger.acknowledged
        upload: Upload | None = None
        with Writers(self._server.port, self._ledger, name, threads=2) as writers:
            if phase == "importing":
                upload = Upload(self._server.port, self._ledger, Stream(f"i{name}", STEPS))
                upload.start()
            time.sleep(self._choice.uniform(0.2, 1.5))
            cut_off = upload is None or upload.is_alive()
            self._server.kill()
        if upload is not None:
            upload.join()
            tally.violations += upload.unexpected
        tally.violations += writers.unexpected
        return cut_off and self._ledger.acknowledged > before

    def _compare(self, tally: Tally) -> None:
        start = time.monotonic()
        self._server.wait_ready()
        store = self._ledger.store
        with self._server.client() as client:
            lines = export_when_open(client, store)
            tally.violations += self._ledger.verify(lines)
            if lines:
                last = int(client.call("GET", f"/api/memory/{store}/stats")["sequence"])
                _await_history(client, store, last)
                self.slowest = max(self.slowest, time.monotonic() - start)
                tally.violations += self._disagreements(client, last, lines)

    def _disagreements(self, client: Client, last: int, head: list[dict[str, Any]]) -> list[str]:
        store = self._ledger.store
        fold = Fold(Tail(self._layout.journal).read(1, last))
        self.states += sum(map(len, (*fold.nodes.values(), *fold.edges.values())))
        moments = [last, *(self._choice.randint(0, last) for _ in range(MOMENTS))]
        wrong = _differ(f"{store}: the head and the journal", head, fold.lines(last))
        for at in moments:
            reply = client.send("GET", f"/api/memory/{store}/export?as_of={at}")
            then = [msgspec.json.decode(line) for line in reply.body.splitlines()]
            wrong += _differ(f"{store}: as of {at} the history and the journal", then, fold.lines(at))
        for node_id in self._choice.sample(sorted(fold.nodes), min(NODES, len(fold.nodes))):
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


def rounds(count: int, seed: int) -> list[Tally]:
    """Rounds in turn over the phases, on a data folder that goes away afterwards."""
    tallies = {phase: Tally(f"killed while {phase}") for phase in PHASES}
    with tempfile.TemporaryDirectory(prefix="kgserve-history-crash-", ignore_cleanup_errors=True) as folder:
        crash = HistoryCrash(Path(folder), seed)
        for number in range(count):
            phase = PHASES[number % len(PHASES)]
            crash.round(number, phase, tallies[phase])
            bad = sum(len(tally.violations) for tally in tallies.values())
            print(f"\rround {number + 1} of {count}, {bad} violations", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        crash.finish()
    print(
        f"{crash.states:,} states compared; slowest from start to a history at the last commit: {crash.slowest:.1f} s"
    )
    return list(tallies.values())


def main() -> int:
    """Run the rounds and print one table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.history_crash", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--rounds", type=int, default=40, help="kills (default 40)")
    parser.add_argument("--seed", type=int, default=1, help="of the delays and of the data (default 1)")
    given = parser.parse_args()
    start = time.monotonic()
    tallies = rounds(given.rounds, given.seed)
    show(tallies)
    print(f"{time.monotonic() - start:.0f} s in all, seed {given.seed}")
    return int(any(tally.violations for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
