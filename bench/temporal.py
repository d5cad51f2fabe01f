"""What it takes to read a graph of dated facts at a moment of the record, of the world, or of both.

`python -m bench.temporal`. The facts are WordNet by seed: synsets and pointers get the days from and until which they
are true, and are written in several commits, in which some change, some end, and some are retired one by one.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple

import msgspec

from bench import wordnet
from bench.measure import Report, clock, times
from bench.prepared import STORE, Workspace
from bench.server import Client, Server, ServerFailed
from bench.single import run_alone

SEED = 19_850_101
PARTS = 4
UPDATED = 10_000
ENDED = 20_000
RETIRED = 100
STARTS = 100
WIDEST = 10_000
ROUNDS = 3
FIRST_DAY = date(1950, 1, 1)
DAYS = 25_000
MOMENT = "2000-01-01T00:00:00Z"
API = f"/api/memory/{STORE}"

Interval = tuple[str | None, str | None]
"""Days from and until which something is true, as RFC 3339 texts of the same length; None for no bound."""
_Key = tuple[str, str, str]
_Line = dict[str, Any]


class Commit(NamedTuple):
    """Lines to import, and ids of nodes to retire after that, each with its last day."""

    lines: list[_Line]
    retired: list[tuple[str, str]]


class World:
    """When everything that was written is true; the generator's own book."""

    def __init__(self) -> None:
        self.nodes: dict[str, Interval] = {}
        self.edges: dict[_Key, Interval] = {}
        self.facts = 0

    def node(self, node: wordnet.Synset, content: str, interval: Interval) -> _Line:
        """A line that states a node."""
        self.nodes[node.id] = interval
        line = {"kind": "node", "id": node.id, "type": node.type, "content": content, "attributes": node.attributes}
        return self._dated(line, interval)

    def edge(self, edge: wordnet.Pointer, interval: Interval) -> _Line:
        """A line that states an edge."""
        self.edges[edge.source, edge.target, edge.relation_type] = interval
        line = {"kind": "edge", "from": edge.source, "to": edge.target, "relation_type": edge.relation_type}
        return self._dated(line, interval)

    def retire(self, node_id: str, day: str) -> tuple[str, str]:
        """A node that ends."""
        self.nodes[node_id] = (self.nodes[node_id][0], day)
        self.facts += 1
        return node_id, day

    def true_at(self, moment: str) -> tuple[int, int]:
        """How many nodes and edges are true; an edge only between two nodes that are."""
        nodes = {node_id for node_id, interval in self.nodes.items() if _holds(interval, moment)}
        edges = [
            key for key, each in self.edges.items() if _holds(each, moment) and key[0] in nodes and key[1] in nodes
        ]
        return len(nodes), len(edges)

    def _dated(self, line: _Line, interval: Interval) -> _Line:
        bounds = {name: bound for name, bound in zip(("valid_from", "valid_to"), interval, strict=True) if bound}
        self.facts += bool(bounds)
        return line | bounds


def dated_graph(graph: wordnet.Graph, seed: int, world: World) -> Iterator[Commit]:
    """All synsets in random order, part by part, with all edges between those there; ``world`` keeps book."""
    choice = random.Random(seed)
    order = choice.sample(graph.nodes, len(graph.nodes))
    there: dict[str, wordnet.Synset] = {}
    known: list[wordnet.Pointer] = []
    for number in range(PARTS):
        part = order[number::PARTS]
        changed = [there[node_id] for node_id in choice.sample(sorted(there), min(UPDATED, len(there)))]
        ended = choice.sample(known, min(ENDED, len(known)))
        there.update((node.id, node) for node in part)
        fresh = {node.id for node in part}
        added = [e for e in graph.edges if e.source in there and e.target in there and {e.source, e.target} & fresh]
        known += added
        lines = [world.node(node, node.content, _interval(choice, 0.2)) for node in part]
        lines += [world.node(node, f"{node.content} ({number})", world.nodes[node.id]) for node in changed]
        lines += [world.edge(edge, _interval(choice, 0.4)) for edge in added]
        lines += [world.edge(edge, _ended(choice, world.edges[_key(edge)])) for edge in ended]
        retired = [
            world.retire(node_id, _ended(choice, world.nodes[node_id])[1] or "") for node_id in _some(choice, there)
        ]
        yield Commit(lines, retired)


def run(work: Workspace) -> Report:
    """Measure."""
    report = Report("temporal: dated facts from WordNet, over HTTP")
    graph, world = wordnet.read(wordnet.folder()), World()
    with Server(work.folder / "dated", {"indexes": False}) as server, server.client() as client:
        middle, expected = _write(client, dated_graph(graph, SEED, world), world)
        report.check("dated facts", f"{world.facts:,} in {_sequence(client):,} commits", world.facts >= 100_000)
        _caught_up(client)
        then = _true(client, f"?as_of={middle}&valid_at={MOMENT}")
        now = _true(client, f"?valid_at={MOMENT}")
        _check(report, "true then, as of half-way", then, expected)
        _check(report, "true then, as known now", now, world.true_at(MOMENT))
        starts = random.Random(SEED).sample(sorted(then[0] & now[0]), STARTS)
        _traversals(report, client, starts, middle)
        _lists(report, client, middle)
    report.notes.append(
        f"{STARTS} random starts that are true at both moments, {ROUNDS} times each; current and other walks in turn"
    )
    return report


def _traversals(report: Report, client: Client, starts: Sequence[str], middle: int) -> None:
    last = {"as_of": str(_sequence(client))}
    both = {"as_of": str(middle), "valid_at": MOMENT}
    for what, more in (
        ("as of now", last),
        ("as of half-way", {"as_of": str(middle)}),
        ("valid at a moment", {"valid_at": MOMENT}),
        ("as of now, valid at a moment", {**last, "valid_at": MOMENT}),
        ("as of half-way, valid at a moment", both),
    ):
        plain, other, reached = _in_turn(client, starts, more)
        now, then = times(plain), times(other)
        figure = f"{then}, {reached[1]} nodes"
        report.compare(
            f"traverse, depth 2, {what}", figure, f"current {now}, {reached[0]} nodes", then.p50 / now.p50, ("≤", 3.0)
        )


def _in_turn(
    client: Client, starts: Sequence[str], more: dict[str, str]
) -> tuple[list[float], list[float], tuple[int, int]]:
    """Milliseconds of the plain walks and of the others, and the median number of nodes that each reached."""
    spent: tuple[list[float], list[float]] = ([], [])
    counts: tuple[list[int], list[int]] = ([], [])
    for number in range(ROUNDS + 1):
        for place, start in enumerate(starts):
            pair = [(0, {}), (1, more)]
            for which, fields in pair if (number + place) % 2 else reversed(pair):
                body = {"start_id": start, "depth": 2, "max_nodes": WIDEST, **fields}
                found: list[Any] = []
                took = clock(lambda body=body, found=found: found.append(client.call("POST", f"{API}/traverse", body)))
                if number:  # the first round warms up
                    spent[which].append(took)
                    counts[which].append(found[0]["count"])
    return spent[0], spent[1], (round(statistics.median(counts[0])), round(statistics.median(counts[1])))


def _lists(report: Report, client: Client, middle: int) -> None:
    queries = {
        "valid at a moment": f"&valid_at={MOMENT}",
        "as of half-way": f"&as_of={middle}",
        "as of half-way, valid at a moment": f"&as_of={middle}&valid_at={MOMENT}",
    }
    for what, query in queries.items():
        plain, other = [], []
        for _ in range(10):
            plain.append(clock(lambda: client.call("GET", f"{API}/nodes?limit=1000")))
            other.append(clock(lambda query=query: client.call("GET", f"{API}/nodes?limit=1000{query}")))
        now, then = times(plain), times(other)
        report.compare(f"1,000 nodes listed, {what}", str(then), f"current {now}", then.p50 / now.p50)


def _check(report: Report, what: str, found: tuple[set[str], int], expected: tuple[int, int]) -> None:
    nodes, edges = len(found[0]), found[1]
    report.check(what, f"{nodes:,} nodes, {edges:,} edges", (nodes, edges) == expected)


def _write(client: Client, commits: Iterator[Commit], world: World) -> tuple[int, tuple[int, int]]:
    """The last commit of the first half, and how much of what was known then is true at the moment."""
    middle, expected = 0, (0, 0)
    for number, commit in enumerate(commits):
        client.upload(STORE, (msgspec.json.encode(line) + b"\n" for line in commit.lines))
        for node_id, day in commit.retired:
            client.call("POST", f"{API}/nodes/{node_id}/retire", {"valid_to": day})
        if number == PARTS // 2 - 1:
            middle, expected = _sequence(client), world.true_at(MOMENT)
    return middle, expected


def _true(client: Client, query: str) -> tuple[set[str], int]:
    """The nodes of an export, and the number of its edges."""
    reply = client.send("GET", f"{API}/export{query}")
    if reply.status != 200:
        raise ServerFailed(f"export{query}: {reply.status} {reply.body[:300]!r}")
    lines = [msgspec.json.decode(line) for line in reply.body.splitlines()]
    nodes = {line["id"] for line in lines if line["kind"] == "node"}
    return nodes, len(lines) - len(nodes)


def _caught_up(client: Client) -> None:
    """Wait until the history has seen the last commit: it is asked for that one."""
    for _ in range(30):
        if client.send("GET", f"{API}/nodes?limit=1&as_of={_sequence(client)}").status == 200:
            return
    raise ServerFailed("the history does not catch up")


def _sequence(client: Client) -> int:
    return int(client.call("GET", f"{API}/stats")["sequence"])


def _interval(choice: random.Random, ends: float) -> Interval:
    """From some day on, or always; this share of them until a later day."""
    begun = choice.randrange(DAYS)
    valid_from = _day(begun) if choice.random() < 0.8 else None
    return valid_from, _day(choice.randrange(begun, DAYS)) if choice.random() < ends else None


def _ended(choice: random.Random, interval: Interval) -> Interval:
    begun = 0 if interval[0] is None else (date.fromisoformat(interval[0][:10]) - FIRST_DAY).days
    return interval[0], _day(choice.randrange(begun, DAYS))


def _holds(interval: Interval, moment: str) -> bool:
    return (interval[0] is None or interval[0] <= moment) and (interval[1] is None or moment < interval[1])


def _day(number: int) -> str:
    return f"{FIRST_DAY + timedelta(days=number)}T00:00:00Z"


def _some(choice: random.Random, there: dict[str, wordnet.Synset]) -> list[str]:
    return choice.sample(sorted(there), RETIRED)


def _key(edge: wordnet.Pointer) -> _Key:
    return edge.source, edge.target, edge.relation_type


if __name__ == "__main__":
    sys.exit(run_alone(run))
