"""Tool that runs a Cypher query."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from kgserve.graph import answers, request_bodies
from kgserve.graph.cypher import statement_execution
from kgserve.server.mcp.shared_tool_arguments import (
    UNLISTED_FIELD,
    QueryField,
    ReadToolArguments,
    add_request_fields_to_arguments,
    convert_arguments_to_request,
)
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_replies import MAX_SUBJECT_CHARS, ToolReply, build_tool_reply, format_count
from kgserve.server.mcp.tool_structured_content import (
    encode_json_text,
    take_items_within_json_size,
    take_lines_within_length,
)

_EMPTY_QUERY_RESULT: dict[str, Any] = {"columns": [], "rows": [], "row_count": 0, "truncated": False}


@add_request_fields_to_arguments(request_bodies.CypherRequest, "mode")
class QueryCypherArguments(ReadToolArguments, kw_only=True):
    """Arguments of a read-only Cypher query."""

    query: QueryField
    params: Annotated[dict[str, Any], Meta(description="Values for $names")] = {}  # noqa: RUF012 - msgspec copies it
    timeout_ms: Annotated[Annotated[int, Meta(ge=1)] | UnsetType, UNLISTED_FIELD] = UNSET
    max_rows: Annotated[int, Meta(ge=0, le=request_bodies.MAX_CYPHER_ROWS)] = 100


@build_tool_reply.register
def _query_reply(found: answers.CypherAnswer, given: QueryCypherArguments, _store: str) -> ToolReply:
    rows = take_items_within_json_size(found.rows, MAX_SUBJECT_CHARS)
    lines = take_lines_within_length(map(encode_json_text, rows), MAX_SUBJECT_CHARS)
    rows = rows[: len(lines)]
    head = f"{format_count(len(found.rows), 'row')} of {encode_json_text(found.columns)}"
    truncated = found.truncated or len(rows) < len(found.rows)
    values = {"columns": found.columns, "rows": rows, "row_count": len(rows), "truncated": truncated}
    if given.detail:
        values |= {"types": found.types, "took_ms": found.took_ms}
    return ToolReply("\n".join([head, *lines]), values, _more_rows(found, len(rows)))


def _more_rows(found: answers.CypherAnswer, shown: int) -> str:
    if shown < len(found.rows):
        return f"{len(found.rows) - shown:,} more rows: return fewer or shorter columns (substring), or SKIP and LIMIT"
    return "there are more rows: raise max_rows, or use SKIP and LIMIT" if found.truncated else ""


CYPHER_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "query_cypher",
        "Query with Cypher",
        "When counts or patterns are asked for: a statement that reads; types are labels, attributes properties: "
        "`MATCH (t:task {status: 'open'})-[:BLOCKS]->(b) RETURN b.id`. Needs full ids.",
        QueryCypherArguments,
        "running the query",
        lambda graph, given: statement_execution.run_cypher_request(
            graph, convert_arguments_to_request(request_bodies.CypherRequest, given)
        ),
        runs_statement=True,
        nothing=_EMPTY_QUERY_RESULT,
        is_long=True,
    ),
)
