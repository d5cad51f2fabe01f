"""Cypher queries over HTTP."""

from __future__ import annotations

from typing import Any

import httpx

from tests.server.http.serving import accepted

NDJSON = {"accept": "application/x-ndjson"}


CSV = {"accept": "text/csv"}


ENDLESS = "UNWIND range(1, 3000) AS i UNWIND range(1, 3000) AS j UNWIND range(1, 3000) AS k RETURN count(i + j + k)"


UNLIMITED = httpx.Limits(max_connections=None)


MANY = 100_000


MANY_ROWS = "UNWIND range(1, 1000) AS i UNWIND range(1, 100) AS j RETURN i, j, 'x' AS t"


def post(
    http: httpx.Client, api: str, query: str, headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    return http.post(f"{api}/cypher", json={"query": query, **more}, headers=headers)


def ask(http: httpx.Client, api: str, query: str, **more: Any) -> dict[str, Any]:
    return accepted(post(http, api, query, **more))


def values(http: httpx.Client, api: str, query: str, **more: Any) -> list[Any]:
    """Return the only row."""
    [row] = ask(http, api, query, **more)["rows"]
    return row
