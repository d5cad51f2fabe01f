"""Walks from random starts: against SQLite and `/health`, with filters and without, before and after a retire."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from bench import floor
from bench.measure import Report, Times, clock, times
from bench.rows.ground import API, WITHOUT_INDEXES, Ground, walking, warm_up
from bench.server import Server
from bench.sqlite import Database
from bench.wire import Answer, Wire, request
from kgserve.storage.model.walk import MAX_EDGES

# Depth and limit; the third line is what a walk without a limit of its own asked for, and the last one all of it.
WALKS = ((1, 1_000), (2, 1_000), (3, 1_000), (3, 10_000))
WIDEST = 10_000
DEEPEST = 10
MOMENT = "2030-01-01T00:00:00Z"
LEAST_WEIGHT = 0.1
MOST_KINDS = 100
MOST_EDGES = 0.9
"""Share of the edges that the chosen relation types make up, so that answers stay comparable."""
SIMILAR = 1.25
"""Answers that are larger by more than this are compared by the time that a row takes, others by their times."""


def run(ground: Ground) -> Report:
    """Measure; changes the plain data folder: one node is retired, and no longer true."""
    report = Report(f"walks: {ground.name}, {ground.total:,} rows, over HTTP")
    chosen = ground.ids(ground.rounds(10, 60) + 1)
    starts, retired = chosen[:-1], chosen[-1]
    database, _ = ground.database("walks")
    with Server(ground.plain(), WITHOUT_INDEXES) as server, Wire(server.port) as wire:
        warm_up(wire, [walking(start, 2) for start in starts])
        for depth, limit in WALKS:
            _compare(report, wire, database, starts, (depth, limit))
        _filters(report, wire, ground, starts[: ground.rounds(5, 60)])
        _deepest(report, wire, starts[: ground.rounds(3, 30)])
        _retire(report, wire, starts, retired, ground.rounds(2, 5))
    database.close()
    report.notes += [
        f"{len(starts)} random starts by seed; h: /health, s: the same walks in SQLite, in process, as JSON",
        f"with filters: times, or by row where the answers have more than {SIMILAR:g} x the rows",
    ]
    return report


def _compare(report: Report, wire: Wire, database: Database, starts: Sequence[str], walk: tuple[int, int]) -> None:
    depth, limit = walk
    what = f"depth {depth}" if walk != WALKS[-1] else f"depth {depth}, max_nodes {limit:,}"
    near: list[float] = []
    found: list[tuple[Answer, bytes]] = []
    for start in starts:
        # In turn, so that both meet the same machine.
        held: list[bytes] = []
        near.append(clock(lambda start=start, held=held: held.append(database.walk(start, depth, limit))))
        found.append((wire.ask(walking(start, depth, max_nodes=limit)), held[0]))
    h, s = floor.health(wire, 100), times(near)
    took = times([answer.milliseconds for answer, _ in found])
    report.within(f"{what}: p50", took.fine, took.p50, h + s.p50, f"h {h:.3g} + s {s.p50:.3g}")
    report.within(f"{what}: p95", "", took.p95, h + 3 * s.p50, f"h {h:.3g} + 3 s {s.p50:.3g} (s p95 {s.p95:.3g})")
    differing = sum(not _agree(answer.body, other) for answer, other in found)
    report.check(f"{what}: answers that differ from SQLite's", str(differing), differing == 0)


def _filters(report: Report, wire: Wire, ground: Ground, starts: Sequence[str]) -> None:
    kinds = _most_kinds(ground)
    filters: dict[str, dict[str, Any]] = {
        f"{len(kinds)} relation types": {"relation_types": kinds},
        "min_weight": {"min_weight": LEAST_WEIGHT},
        "both directions": {"direction": "both"},
        "valid_at": {"valid_at": MOMENT},
        "all four": {"relation_types": kinds, "min_weight": LEAST_WEIGHT, "direction": "both", "valid_at": MOMENT},
    }
    for what, fields in filters.items():
        plain, other = _in_turn(wire, starts, fields, ground.rounds(1, 3))
        before, after = times([a.milliseconds for a in plain]), times([a.milliseconds for a in other])
        before_rows, after_rows = (sum(sum(_counts(a.body)) for a in answers) for answers in (plain, other))
        by_row = _by_row(other, after_rows) / _by_row(plain, before_rows)
        alike = after_rows / before_rows <= SIMILAR
        ratio = after.p50 / before.p50 if alike else by_row
        each = f"{_by_row(plain, before_rows) * 1000:.3g} to {_by_row(other, after_rows) * 1000:.3g} µs a row"
        figure = f"{after.fine}, {after_rows / before_rows:.2f} x the rows"
        label = "times" if alike else "by row"
        report.compare(f"depth 2, {what}, {label}", figure, f"without {before.fine}; {each}", ratio, ("≤", 1.5))


def _most_kinds(ground: Ground) -> list[str]:
    """The most frequent relation types that make up most of the edges, as many as one walk may name."""
    counts = Counter(edge["relation_type"] for edge in ground.rows.edges)
    chosen, covered = list[str](), 0
    for kind, count in counts.most_common(MOST_KINDS):
        if covered < MOST_EDGES * len(ground.rows.edges):
            chosen.append(kind)
            covered += count
    return chosen


def _by_row(answers: Sequence[Answer], rows: int) -> float:
    return sum(answer.milliseconds for answer in answers) / rows


def _in_turn(
    wire: Wire, starts: Sequence[str], fields: dict[str, Any], rounds: int
) -> tuple[list[Answer], list[Answer]]:
    answers: tuple[list[Answer], list[Answer]] = ([], [])
    for number in range(rounds):
        for place, start in enumerate(starts):
            pair = ((0, {}), (1, fields))
            for which, more in pair if (number + place) % 2 else reversed(pair):
                answers[which].append(wire.ask(walking(start, 2, max_nodes=WIDEST, **more)))
    return answers


def _deepest(report: Report, wire: Wire, starts: Sequence[str]) -> None:
    found = [wire.ask(walking(start, DEEPEST, max_nodes=WIDEST)) for start in starts]
    took = times([answer.milliseconds for answer in found])
    most = max(_counts(answer.body)[0] for answer in found)
    figure = f"p50 {took.p50:.0f}, longest {took.longest:.0f} ms, up to {most:,} nodes"
    report.at_most(f"depth {DEEPEST} whole, max_nodes {WIDEST:,}", figure, took.longest, 1000, "ms")


def _retire(report: Report, wire: Wire, starts: Sequence[str], retired: str, rounds: int) -> None:
    before = _depth_2(wire, starts, rounds)
    wire.ask(request("POST", f"{API}/nodes/{retired}/retire", {"valid_to": "2001-01-01T00:00:00Z"}))
    time.sleep(1.0)
    warm_up(wire, [walking(start, 2) for start in starts])
    after = _depth_2(wire, starts, rounds)
    ratio = after.p50 / before.p50
    report.compare("depth 2, after one retire", after.fine, f"before {before.fine}", ratio, ("≤", 1.1))


def _depth_2(wire: Wire, starts: Sequence[str], rounds: int) -> Times:
    return times([wire.ask(walking(start, 2)).milliseconds for _ in range(rounds) for start in starts])


def _counts(body: bytes) -> tuple[int, int]:
    """Nodes and edges of an answer."""
    answer = msgspec.json.decode(body)
    return len(answer["nodes"]), len(answer["edges"])


def _agree(body: bytes, other: bytes) -> bool:
    """Whether two answers have the same rows: as many nodes where a limit cut them, some of the edges where one did."""
    (nodes, edges), (other_nodes, other_edges) = _rows(body), _rows(other)
    if len(nodes) in {limit for _, limit in WALKS}:
        return len(nodes) == len(other_nodes)
    return nodes == other_nodes and (edges == other_edges or (len(edges) == MAX_EDGES and edges < other_edges))


def _rows(body: bytes) -> tuple[dict[str, tuple[int, str]], set[tuple[str, str, str]]]:
    answer = msgspec.json.decode(body)
    nodes = {node["id"]: (node["depth"], node["content"]) for node in answer["nodes"]}
    return nodes, {(edge["from"], edge["relation_type"], edge["to"]) for edge in answer["edges"]}
