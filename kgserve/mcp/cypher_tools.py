"""The tool that asks in Cypher."""

from __future__ import annotations

from typing import Any

import msgspec

from kgserve.mcp import answers, arguments, budget
from kgserve.mcp.tool import Tool, counted, store_of
from kgserve.mcp.work import Reply, Work
from kgserve.model.answers import CypherAnswer
from kgserve.model.requests import CypherRequest
from kgserve.ops import cypher


def _query_cypher(work: Work, default: str | None, given: arguments.QueryCypher) -> Reply:
    request = CypherRequest(
        query=given.query, params=given.params, timeout_ms=given.timeout_ms or None, max_rows=given.max_rows
    )
    found = cypher.run(work.graphs.graph(store_of(given.index, default)), request)
    rows = budget.first_fitting(found.rows, budget.STRUCTURED)
    lines = budget.lines_within([msgspec.json.encode(row).decode() for row in rows], budget.TEXT - 1_000)
    head = f"{counted(len(found.rows), 'row')} of {msgspec.json.encode(found.columns).decode()}, {found.took_ms} ms"
    more = _more(found, len(lines))
    tail = [f"More: {more}."] if more else []
    return Reply("\n".join([head, *lines, *tail]), _rows(found, rows, _more(found, len(rows))))


def _more(found: CypherAnswer, shown: int) -> str:
    """How to get the rows beyond those shown."""
    if shown < len(found.rows):
        return f"{len(found.rows) - shown:,} rows more: fewer or shorter columns (substring), or SKIP and LIMIT"
    return "there are more rows: raise max_rows, or use SKIP and LIMIT" if found.truncated else ""


def _rows(found: CypherAnswer, rows: list[list[Any]], more: str) -> answers.Rows:
    return answers.Rows(
        columns=found.columns,
        types=found.types,
        rows=rows,
        row_count=len(rows),
        truncated=found.truncated or len(rows) < len(found.rows),
        took_ms=found.took_ms,
        more=more or msgspec.UNSET,
    )


TOOLS = (
    Tool(
        "query_cypher",
        "Query with Cypher",
        "Run one Cypher statement that reads. Entities are (:Entity {id, type, content, attributes}), relations "
        "[:RELATES_TO {relation_type, weight, attributes}]; attributes are JSON text. Pass values as params.",
        arguments.QueryCypher,
        answers.Rows,
        "reads",
        "running the query",
        _query_cypher,
        states=True,
    ),
)
