"""Helpers for node versions over HTTP: put, read, and a node with two heads."""

from __future__ import annotations

from typing import Any

import httpx

from tests.server.http.serving import accepted, refusal

Json = dict[str, Any]


def put(http: httpx.Client, api: str, **fields: Any) -> Json:
    return accepted(http.post(f"{api}/nodes", json={"kind": "note", **fields}))


def beside(http: httpx.Client, api: str, **fields: Any) -> Json:
    """Return the node of a put that became a conflicting head."""
    document = refusal(http.post(f"{api}/nodes", json={"kind": "note", **fields}), 409)
    assert document["type"] == "urn:kgserve:error:conflict_manual"
    return document["node"]


def node(http: httpx.Client, api: str, node_id: str = "a", **query: Any) -> Json:
    return accepted(http.get(f"{api}/nodes/{node_id}", params=query))["node"]


def subgraph(http: httpx.Client, api: str, **rows: list[Json]) -> Json:
    return accepted(http.post(f"{api}/subgraph", json=rows))


def tear(http: httpx.Client, api: str) -> None:
    """Create a store that keeps both, with a node of three versions: the last two are heads."""
    accepted(http.put(api, json={"conflict_policy": "manual"}), 201)
    put(http, api, id="a", content="one")
    put(http, api, id="a", content="two", based_on_version=1)
    assert beside(http, api, id="a", content="three", based_on_version=1)["conflicts"] == [2]


def prune(http: httpx.Client, api: str) -> int:
    """Prune all history; return the number of removed states."""
    before = str(accepted(http.get(f"{api}/stats"))["sequence"])
    return accepted(http.post(f"{api}/history/prune", json={"before": before}))["pruned"]
