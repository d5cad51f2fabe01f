"""The sets of tools that clients choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kgserve.errors import FieldError, InvalidInput
from kgserve.mcp.memory_server import MEMORY_SERVER_TOOLS
from kgserve.mcp.tools import GRAPH_TOOLS, Tool
from kgserve.mcp.values import shortened

TOOLS: dict[str, Tool[Any]] = {tool.name: tool for tool in (*GRAPH_TOOLS, *MEMORY_SERVER_TOOLS)}

TOOLSETS: dict[str, tuple[str, ...]] = {
    "graph": (
        "get_context",
        "search_knowledge",
        "get_entity",
        "traverse_knowledge_graph",
        "inject_knowledge_graph",
        "list_entities",
        "describe_store",
        "query_cypher",
        "delete_graph_entity",
        "delete_graph_relation",
    ),
    "time": ("put_node", "put_subgraph", "merge_entities", "retire", "entity_history"),
    "memory-server": tuple(tool.name for tool in MEMORY_SERVER_TOOLS),
    "all": tuple(tool.name for tool in GRAPH_TOOLS),
}
"""What is listed when it is asked for. Whatever is not listed can be called all the same."""

DEFAULT_TOOLSET = "graph"


def chosen(asked: str) -> Sequence[Tool[Any]]:
    """The tools of sets and names with commas between, in the order of the table.

    Raises InvalidInput for what is neither.
    """
    names: set[str] = set()
    for name in filter(None, map(str.strip, asked.split(","))):
        if name not in TOOLSETS and name not in TOOLS:
            known = f"there are the sets {', '.join(TOOLSETS)}, and the tools {', '.join(TOOLS)}"
            message = f"{shortened(name, 80)!r} is neither a set of tools nor a tool; {known}"
            raise InvalidInput(f"tools: {message}", (FieldError("tools", message),))
        names.update(TOOLSETS.get(name, (name,)))
    return [tool for tool in TOOLS.values() if tool.name in (names or TOOLSETS[DEFAULT_TOOLSET])]
