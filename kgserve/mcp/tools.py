"""All tools, by name."""

from __future__ import annotations

from kgserve.mcp import cypher_tools, graph_tools, search_tools, store_tools
from kgserve.mcp.tool import Tool

TOOLS: dict[str, Tool] = {
    tool.name: tool for tool in (*graph_tools.TOOLS, *search_tools.TOOLS, *store_tools.TOOLS, *cypher_tools.TOOLS)
}
