"""Types, tags and lists of nodes from kept counts and indexes: `python -m bench.schema`.

WordNet has five types and no tags. A second store has as many nodes and 50,000 distinct tags, half of them with a
prefix.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from bench.measure import Report, clock, times
from bench.prepared import STORE, Workspace
from bench.server import Client, Server, ServerFailed
from bench.single import run_alone

TAGGED = "tagged"
NODES = 120_000
TAGS = 50_000
PREFIXES = 500
TYPES = 300
CALLS = 100
LIMIT_MS = 5.0
PATIENCE = 300
LISTS = (
    ("one of two types", "kind=type001&kind=type002"),
    ("a tag that all have", "tag=common"),
    ("two tags, one rare", "tag=common&tag=t00012"),
    ("true at a moment, half are not", "valid_at=2025-01-01T00:00:00Z"),
    ("a tag, a type and a moment", "tag=common&type=type001&valid_at=2025-01-01T00:00:00Z"),
    ("a tag, 10,000 passed over", "tag=common&offset=10000"),
    ("a tag, compact", "tag=common&compact=true"),
)
PAST_LISTS = (
    ("a tag and two types, as of a commit", "tag=common&type=type001&type=type002"),
    ("one tag of many, as of a commit, so that 20,000 are looked at", "tag=t00012"),
)


def run(work: Workspace) -> Report:
    """Measure; leaves the workspace's data as it is."""
    report = Report("schema: types and tags, over HTTP")
    with Server(work.loaded_data(), {"indexes": False}) as server, server.client() as client:
        _caught_up(client, STORE)
        _described(report, client, STORE, "WordNet")
    with Server(work.folder / TAGGED, {"indexes": False}) as server, server.client() as client:
        client.upload(TAGGED, lines())
        sequence = _caught_up(client, TAGGED)
        found = _described(report, client, TAGGED, f"{NODES:,} nodes, {TAGS:,} tags")
        _check(report, client, found)
        for prefix in ("t", "t0", "t0123", "p", "p012:", "p012:v1", "common"):
            _timed(report, client, f"tags that start with {prefix}", f"/api/memory/{TAGGED}/tags?prefix={prefix}")
        past = [(what, f"{query}&as_of={sequence}") for what, query in PAST_LISTS]
        for what, query in (*LISTS, *past):
            path = f"/api/memory/{TAGGED}/nodes?limit=100&{query}"
            report.fact(f"100 nodes: {what}", str(_times(client, path)))
    report.notes.append(
        f"{CALLS} calls each, one client; {TYPES} types and {PREFIXES} prefixes, of which 100 are shown"
    )
    return report


def _caught_up(client: Client, store: str) -> int:
    """The last commit, once the history has taken it in: it does so after an import, and in the way of readers."""
    end = time.monotonic() + PATIENCE
    sequence = int(client.call("GET", f"/api/memory/{store}/stats")["sequence"])
    while client.send("GET", f"/api/memory/{store}/nodes?limit=1&as_of={sequence}").status != HTTPStatus.OK:
        if time.monotonic() > end:
            raise ServerFailed("the history does not catch up")
    return sequence


def lines() -> Iterator[bytes]:
    """Nodes with two tags each: one that all have, and one of many."""
    for number in range(NODES):
        node = {
            "kind": "node",
            "id": f"n{number:06}",
            "type": f"type{number % TYPES:03}",
            "content": f"What is to be said about number {number}, in some words.",
            "tags": ["common", tag_of(number)],
        }
        if number % 2:
            node["valid_to"] = "2024-01-01T00:00:00Z"
        yield msgspec.json.encode(node) + b"\n"


def tag_of(number: int) -> str:
    """One of the many tags; every other one has a prefix."""
    place = number % TAGS
    return f"p{place % PREFIXES:03}:v{place:05}" if place % 2 else f"t{place:05}"


def _described(report: Report, client: Client, store: str, what: str) -> dict[str, Any]:
    _timed(report, client, f"schema: {what}", f"/api/memory/{store}/schema")
    _timed(report, client, f"tags: {what}", f"/api/memory/{store}/tags")
    return client.call("GET", f"/api/memory/{store}/schema")


def _timed(report: Report, client: Client, what: str, path: str) -> None:
    taken = _times(client, path)
    report.at_most(what, str(taken), taken.p50, LIMIT_MS, "ms")


def _times(client: Client, path: str) -> Any:
    client.call("GET", path)
    return times([clock(lambda: client.call("GET", path)) for _ in range(CALLS)])


def _check(report: Report, client: Client, found: dict[str, Any]) -> None:
    report.check("nodes counted", f"{found['node_count']:,}", found["node_count"] == NODES)
    most = found["tags"][0]
    report.check("nodes with the most frequent tag", f"{most['count']:,}", most == {"tag": "common", "count": NODES})
    wanted = sum(tag_of(number).startswith("p001:") for number in range(NODES))
    counted = {each["prefix"]: each["count"] for each in found["tag_prefixes"]}
    report.check("tags with a prefix", f"{counted.get('p001', 0):,}", counted.get("p001") == wanted)
    tags = client.call("GET", f"/api/memory/{TAGGED}/tags?prefix=p001:v0")["tags"]
    numbers = [tag_of(number) for number in range(NODES)]
    exact = {each["tag"]: each["count"] for each in tags}
    report.check("tags by beginning", f"{len(exact)}", all(numbers.count(tag) == count for tag, count in exact.items()))


if __name__ == "__main__":
    sys.exit(run_alone(run))
