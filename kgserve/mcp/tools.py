"""All tools, by name."""

from __future__ import annotations

from kgserve.mcp import (
    cypher_tools,
    entity_tools,
    graph_tools,
    history_tools,
    schema_tools,
    search_tools,
    store_tools,
    version_tools,
)
from kgserve.mcp.tool import Tool

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        *graph_tools.TOOLS,
        *entity_tools.TOOLS,
        *version_tools.TOOLS,
        *history_tools.TOOLS,
        *search_tools.TOOLS,
        *store_tools.TOOLS,
        *schema_tools.TOOLS,
        *cypher_tools.TOOLS,
    )
}
