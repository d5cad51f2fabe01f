"""Consistency check of a store's projections: engine, catalog, history and indexes against the journal's rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from bench.server import BenchClient

INDEX_TIMEOUT_SECONDS = 60.0
"""Seconds that indexes have to catch up."""
_PAGE_NODES = 1_000
_COUNTS = {"nodes": "MATCH (n:Entity) RETURN count(*)", "edges": "MATCH ()-[r:RELATES_TO]->() RETURN count(*)"}


def find_inconsistencies(client: BenchClient, store: str) -> list[str]:
    """Return the inconsistencies as text. The store must not be written meanwhile."""
    api = f"/api/memory/{store}"
    lines = client.export(store)
    rows = {kind: [line for line in lines if line["kind"] == kind[:-1]] for kind in _COUNTS}
    stats = client.call("GET", f"{api}/stats")
    wrong = [f"stats: {stats[kind]} {kind}, not {len(rows[kind])}" for kind in rows if stats[kind] != len(rows[kind])]
    for kind, query in _COUNTS.items():
        [[count]] = client.call("POST", f"{api}/cypher", {"query": query})["rows"]
        if count != len(rows[kind]):
            wrong.append(f"engine: {count} {kind}, not {len(rows[kind])}")
    listed, exported = list(_catalog_ids(client, api)), sorted(node["id"] for node in rows["nodes"])
    if listed != exported:
        missing, alien = sorted({*exported} - {*listed}), sorted({*listed} - {*exported})
        wrong.append(
            f"the catalog lists {len(listed)} of {len(exported)} nodes; missing: {missing[:3]}, unexpected: {alien[:3]}"
        )
    if _sorted_lines(client.export(f"{store}", f"?as_of={stats['sequence']}")) != _sorted_lines(lines):
        wrong.append("the history as of the last commit differs from the current state")
    return wrong + _index_inconsistencies(client, api, sum(bool(node["content"]) for node in rows["nodes"]))


def _catalog_ids(client: BenchClient, api: str) -> Iterator[str]:
    """Yield all ids in the catalog's order."""
    cursor = ""
    while True:
        page = client.call("GET", f"{api}/nodes?limit={_PAGE_NODES}{cursor}")
        yield from (node["id"] for node in page["nodes"])
        if not page.get("next_cursor"):
            return
        cursor = f"&cursor={quote(page['next_cursor'], safe='')}"


def _sorted_lines(lines: list[Any]) -> list[str]:
    return sorted(map(repr, lines))


def _index_inconsistencies(client: BenchClient, api: str, texts: int) -> list[str]:
    """Wait until the indexes of the current state have caught up. Return the inconsistencies."""
    end = time.monotonic() + INDEX_TIMEOUT_SECONDS
    while True:
        indexes = [
            each for each in client.call("GET", f"{api}/stats")["indexes"] if not each["name"].startswith("past")
        ]
        wrong = [
            f"index {each['name']}: {each['entities']} texts, not {texts}; {each['lag']} behind; {each['error']}"
            for each in indexes
            if not each["name"].startswith("past-")
            if each["lag"] or each["pending"] or each["error"] or each["entities"] != texts
        ]
        if not wrong or time.monotonic() > end:
            return wrong
        time.sleep(0.05)
