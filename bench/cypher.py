"""Statements of openCypher with labels, types and attributes, each against another way to the same answer.

`python -m bench.cypher [--only PART …] [--quick]`
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from bench import graphs
from bench.measure import BenchmarkReport, parser, rounded, run_parts, times
from bench.server import HASHING, ServerProcess, scratch_folder, serving
from bench.wire import RawConnection, request

SEED = 45
SETTINGS = HASHING | {"indexes": False, "query_timeout": 120}
LABELS = ("task", "person", "note", "document", "event")
STATUSES = 10
RARE_TASKS = 10
POINT_BY_INTERPRETER = "MATCH (n {id: $id}) RETURN n.content"
POINT_BY_ENGINE = "MATCH (n:Entity {id: $id}) RETURN n.content LIMIT 1"
NODE = "MATCH (n:Entity {id: $id}) RETURN n"
PATHS_BY_ROWS = "MATCH (a {id: $id})-->()-->(c) RETURN count(*)"
PATHS_BY_ENGINE = "MATCH (a {id: $id})-->()-->(c) RETURN count(*) LIMIT 1"
HEALTH = request("GET", "/health")
BY_STATUS = "MATCH (n:task {status: $status}) RETURN n.id"
TWO_STEPS = "MATCH (a {id: $id})-[:KNOWS]->()-[:KNOWS]->(c) RETURN DISTINCT c.id"
MOST_FRIENDS = (
    "MATCH (a:person)-[:KNOWS]->(b) RETURN a.name AS name, count(b) AS friends ORDER BY friends DESC, name LIMIT 10"
)
MOST_FRIENDS_BY_ENGINE = (
    "MATCH (a:Entity)-[r:RELATES_TO {relation_type: 'KNOWS'}]->(b:Entity) "
    "RETURN a.id AS name, count(b) AS friends ORDER BY friends DESC, name LIMIT 10"
)
PAGE = 1_000


def task_records(count: int) -> Iterator[dict[str, Any]]:
    """Yield nodes of five types, a fifth of them tasks, with a status of ten, and ten tasks with a rare one."""
    for number in range(count):
        is_rare = number < RARE_TASKS * len(LABELS) and number % len(LABELS) == 0
        status = "rare" if is_rare else f"status {number // len(LABELS) % STATUSES}"
        attributes = {"status": status, "priority": number % 7}
        yield _node(f"n{number:06d}", LABELS[number % len(LABELS)], attributes)


def friend_records(nodes: int, edges: int) -> Iterator[dict[str, Any]]:
    """Yield people, then relationships KNOWS and LIKES between them, of which few know many."""
    choice = random.Random(SEED)
    ids = [f"p{number:05d}" for number in range(nodes)]
    for id_ in ids:
        yield _node(id_, "person", {"name": id_})
    seen: set[tuple[str, str, str]] = set()
    while len(seen) < edges:
        source = ids[int(nodes * choice.random() ** 2)]
        key = (source, choice.choice(ids), choice.choice(("KNOWS", "KNOWS", "KNOWS", "LIKES")))
        if key not in seen:
            seen.add(key)
            yield {"kind": "edge", "from": source, "to": key[1], "relation_type": key[2]}


def _node(id_: str, type_: str, attributes: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "node", "id": id_, "type": type_, "content": f"Content of {id_}.", "attributes": attributes}


def _statement(store: str, query: str, **parameters: Any) -> bytes:
    body = {"query": query, "params": parameters, "max_rows": 100_000}
    return request("POST", f"/api/memory/{store}/cypher", body)


def _rows(wire: RawConnection, ready: bytes) -> list[list[Any]]:
    return wire.ask(ready).json()["rows"]


def _compare(
    report: BenchmarkReport, what: str, sides: tuple[Callable[[], float], ...], count: int, limit: float
) -> None:
    """Add the medians of two calls that return milliseconds, measured in turn."""
    served, other = list[float](), list[float]()
    for _ in range(count):
        served.append(sides[0]())
        other.append(sides[1]())
    found, base = times(served), times(other)
    report.compare(what, str(found), str(base), found.p50 / base.p50, ("≤", limit))


def lookups(*, quick: bool) -> BenchmarkReport:
    """Compare a lookup of one node by its id with the same lookup in the engine, and with GET of the node."""
    report, nodes = BenchmarkReport("lookups by id, over HTTP"), 1_000 if quick else 20_000
    choice = random.Random(SEED)
    with scratch_folder() as folder, serving(SETTINGS) as (server, client), RawConnection(server.port) as wire:
        client.upload("tasks", graphs.file_blocks(graphs.write(task_records(nodes), folder / "tasks")))
        client.settle("tasks")
        ids = [f"n{choice.randrange(nodes):06d}" for _ in range(50 if quick else 500)]
        pending = iter(ids * 4)
        differing = sum(
            _rows(wire, _statement("tasks", POINT_BY_INTERPRETER, id=each))
            != _rows(wire, _statement("tasks", POINT_BY_ENGINE, id=each))
            for each in ids[:50]
        )
        report.check("answers that differ from the engine's", str(differing), differing == 0)

        def ask(query: str) -> float:
            return wire.ask(_statement("tasks", query, id=next(pending))).milliseconds

        sides = (lambda: ask(POINT_BY_INTERPRETER), lambda: ask(POINT_BY_ENGINE))
        _compare(report, "by the interpreter, or the engine", sides, len(ids), 1.0)
        sides = (
            lambda: ask(POINT_BY_INTERPRETER),
            lambda: wire.ask(request("GET", f"/api/memory/tasks/nodes/{next(pending)}")).milliseconds,
        )
        _compare(report, "by the interpreter, or GET", sides, len(ids), 4.0)
        node = [_statement("tasks", NODE, id=each) for each in ids]
        cost, base = _processor_milliseconds(server, wire, node), _processor_milliseconds(server, wire, [HEALTH] * 500)
        report.compare(
            "server's processor time for a node, or /health", rounded(cost), rounded(base), cost / base, ("≤", 4.0)
        )
    return report


def _processor_milliseconds(server: ServerProcess, wire: RawConnection, asked: Sequence[bytes]) -> float:
    """Return the server's processor time for one of some requests, in milliseconds."""
    for ready in asked[:20]:
        wire.ask(ready)
    start = server.processor_seconds()
    for ready in asked:
        wire.ask(ready)
    return (server.processor_seconds() - start) * 1000 / len(asked)


def filters(*, quick: bool) -> BenchmarkReport:
    """Compare a filter by label and attribute with the list of nodes with this type and attribute."""
    report, nodes = BenchmarkReport("filters by label and attribute, over HTTP"), 5_000 if quick else 100_000
    with scratch_folder() as folder, serving(SETTINGS) as (server, client), RawConnection(server.port) as wire:
        client.upload("tasks", graphs.file_blocks(graphs.write(task_records(nodes), folder / "tasks")))
        client.settle("tasks")
        for status, limit in (("status 3", 2.0), ("rare", 2.0)):
            expected = sorted(_list_tasks(wire, status)[0])
            found = sorted(row[0] for row in _rows(wire, _statement("tasks", BY_STATUS, status=status)))
            report.check(f"{len(found):,} tasks found", f"{len(expected):,} listed", found == expected)
            sides = (
                lambda status=status: wire.ask(_statement("tasks", BY_STATUS, status=status)).milliseconds,
                lambda status=status: _list_tasks(wire, status)[1],
            )
            _compare(report, f"{len(found):,} of {nodes:,} nodes, or the list", sides, 20 if quick else 60, limit)
    return report


def _list_tasks(wire: RawConnection, status: str) -> tuple[list[str], float]:
    """Return the ids of tasks with a status, and the milliseconds of all pages together."""
    attributes = quote(json.dumps({"status": status}))
    path = f"/api/memory/tasks/nodes?type=task&attributes={attributes}&limit={PAGE}"
    ids, took, cursor = list[str](), 0.0, ""
    while cursor is not None:
        answer = wire.ask(request("GET", path + (f"&cursor={quote(cursor)}" if cursor else "")))
        page = answer.json()
        ids += [node["id"] for node in page["nodes"]]
        took, cursor = took + answer.milliseconds, page.get("next_cursor")
    return ids, took


def expansions(*, quick: bool) -> BenchmarkReport:
    """Compare two steps from one node with a traversal, and a count of all relationships by node with the engine."""
    size = (2_000, 10_000) if quick else (20_000, 100_000)
    report, choice = BenchmarkReport(f"relationships of {size[0]:,} people, over HTTP"), random.Random(SEED)
    with scratch_folder() as folder, serving(SETTINGS) as (server, client), RawConnection(server.port) as wire:
        client.upload("people", graphs.file_blocks(graphs.write(friend_records(*size), folder / "people")))
        client.settle("people")
        ids = [f"p{choice.randrange(size[0]):05d}" for _ in range(50 if quick else 200)]
        pending = iter(ids * 2)

        def walk() -> float:
            body = {"start_id": next(pending), "depth": 2, "relation_types": ["KNOWS"]}
            return wire.ask(request("POST", "/api/memory/people/traverse", body)).milliseconds

        sides = (lambda: wire.ask(_statement("people", TWO_STEPS, id=next(pending))).milliseconds, walk)
        _compare(report, "two steps from a node, or a traversal", sides, len(ids), 4.0)
        counted = [_rows(wire, _statement("people", PATHS_BY_ROWS, id=each)) for each in ids[:50]]
        expected = [_rows(wire, _statement("people", PATHS_BY_ENGINE, id=each)) for each in ids[:50]]
        report.check("paths of two relationships", "as the engine counts them", counted == expected)
        pending = iter(ids * 2)
        sides = (
            lambda: wire.ask(_statement("people", PATHS_BY_ROWS, id=next(pending))).milliseconds,
            lambda: wire.ask(_statement("people", PATHS_BY_ENGINE, id=next(pending))).milliseconds,
        )
        _compare(report, "paths counted from the rows, or by the engine", sides, len(ids), 1.0)
        ready, bare = _statement("people", MOST_FRIENDS), _statement("people", MOST_FRIENDS_BY_ENGINE)
        report.check("people with most friends", "as the engine has them", _rows(wire, ready) == _rows(wire, bare))
        sides = (lambda: wire.ask(ready).milliseconds, lambda: wire.ask(bare).milliseconds)
        _compare(report, "people with most friends, or by the engine", sides, 3 if quick else 8, 15.0)
    return report


PARTS: dict[str, Callable[..., BenchmarkReport]] = {"lookups": lookups, "filters": filters, "expansions": expansions}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part. Return 1 when an exact check failed."""
    return run_parts(PARTS, parser("cypher", (__doc__ or "").split("\n", 1)[0], PARTS).parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
