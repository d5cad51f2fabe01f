"""Sample stores for the explorer. Each has a few commits, so that it has a past."""

from __future__ import annotations

from typing import Any

import httpx

from tests.server.http.serving import accepted

Json = dict[str, Any]


def node(node_id: str, kind: str, content: str = "", **fields: Any) -> Json:
    return {"id": node_id, "type": kind, "content": content, **fields}


def edge(source: str, kind: str, target: str, **fields: Any) -> Json:
    return {"from": source, "to": target, "relation_type": kind, **fields}


def inject(http: httpx.Client, api: str, *rows: Json) -> int:
    """Write nodes and edges; the commit that holds them."""
    nodes = [row for row in rows if "id" in row]
    edges = [row for row in rows if "from" in row]
    return accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))["sequence"]


def library(http: httpx.Client, api: str, policy: str = "manual") -> None:
    """Seven nodes and seven edges after five commits; one book has changed, another is gone, two authors have lived."""
    accepted(http.put(api, json={"conflict_policy": policy}), 201)
    austen = {"valid_from": "1775-12-16T00:00:00Z", "valid_to": "1817-07-18T00:00:00Z"}
    eliot = {"valid_from": "1819-11-22T00:00:00Z", "valid_to": "1880-12-22T00:00:00Z"}
    inject(
        http,
        api,
        node("austen", "author", "An English novelist", attributes={"name": "Jane Austen", "born": 1775}, **austen),
        node("eliot", "author", "A novelist, poet and journalist", attributes={"name": "George Eliot"}, **eliot),
    )
    inject(
        http,
        api,
        node("emma", "book", "A novel of youthful pride", tags=["genre:novel"]),
        node("persuasion", "book", "A second chance by the sea"),
        node("middlemarch", "book", "A study of provincial life"),
        node("sanditon", "book", "An unfinished novel"),
        edge("austen", "WROTE", "emma"),
        edge("austen", "WROTE", "persuasion"),
        edge("austen", "WROTE", "sanditon"),
        edge("eliot", "WROTE", "middlemarch"),
    )
    inject(
        http,
        api,
        node("highbury", "place", "A village near London"),
        node("england", "place", "A country"),
        edge("emma", "SET_IN", "highbury"),
        edge("highbury", "LIES_IN", "england"),
        edge("middlemarch", "SET_IN", "england"),
        edge("persuasion", "SET_IN", "england", weight=0.5),
    )
    inject(http, api, node("emma", "book", "A comedy of manners"))
    accepted(http.delete(f"{api}/nodes/sanditon"))
    # From here on a search finds all of it.
    accepted(http.post(f"{api}/search", json={"query": "novel", "at_least": 5}))


def chain(http: httpx.Client, api: str, length: int) -> None:
    """Nodes one after the other, in one commit."""
    nodes = [node(f"n{i:05}", f"kind-{i % 5}") for i in range(length)]
    edges = [edge(f"n{i:05}", "NEXT", f"n{i + 1:05}") for i in range(length - 1)]
    inject(http, api, *nodes, *edges)
