"""Toolsets that clients choose from, and resolution of tool names.

Two toolsets follow interfaces of other products and share four tool names. A call means the tool of the set that the
connection selected: the memory server's where it selected neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from mcp import types

from kgserve import errors
from kgserve.server.mcp.cypher_tools import CYPHER_TOOLS
from kgserve.server.mcp.entity_history_tools import HISTORY_TOOLS
from kgserve.server.mcp.entity_memory_tools import ENTITY_MEMORY_TOOLS
from kgserve.server.mcp.entity_read_tools import ENTITY_TOOLS
from kgserve.server.mcp.entity_version_write_tools import VERSION_TOOLS
from kgserve.server.mcp.entity_write_tools import WRITE_TOOLS
from kgserve.server.mcp.listed_tool_arguments import build_listed_tool_schema
from kgserve.server.mcp.memory_tools import MEMORY_TOOLS
from kgserve.server.mcp.official_memory_server_tools import MEMORY_SERVER_TOOLS
from kgserve.server.mcp.search_tools import SEARCH_TOOLS
from kgserve.server.mcp.store_tools import STORE_TOOLS
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_structured_content import truncate_text
from kgserve.server.mcp.type_and_tag_tools import SCHEMA_TOOLS

TOOLSET_MEMORY = "memory"
TOOLSET_GRAPH = "graph"
TOOLSET_DEFAULT = "default"
TOOLSET_ALL = "all"
TOOLSET_ENTITY_MEMORY = "entity-memory"
TOOLSET_MEMORY_SERVER = "memory-server"
TOOLSET_MEMORY_ENGINE = "memory-engine"
_GRAPH_TOOL_NAMES = (
    *("get_context", "search_knowledge", "get_entity", "traverse_knowledge_graph", "inject_knowledge_graph"),
    *("list_entities", "query_cypher", "delete_graph_entity", "delete_graph_relation"),
)
_TIME_TOOL_NAMES = ("put_node", "put_subgraph", "merge_entities", "retire", "entity_history")
_STORE_TOOL_NAMES = ("describe_store", "list_stores", "configure_store", "drop_store")


def _ordered(tools: Sequence[McpTool[Any]]) -> list[McpTool[Any]]:
    """Return graph tools in the order of tool lists: in the order of their toolsets, store tools last."""
    order = {name: place for place, name in enumerate((*_GRAPH_TOOL_NAMES, *_TIME_TOOL_NAMES))}
    last = {name: len(order) + 1 + place for place, name in enumerate(_STORE_TOOL_NAMES)}
    return sorted(tools, key=lambda tool: order.get(tool.name, last.get(tool.name, len(order))))


_ENTITY_MEMORY_TOOLS_BY_NAME: dict[str, McpTool[Any]] = {tool.name: tool for tool in ENTITY_MEMORY_TOOLS}
GRAPH_TOOLS = _ordered(
    (
        *(*SEARCH_TOOLS, *ENTITY_TOOLS, *WRITE_TOOLS, *CYPHER_TOOLS),
        *(*VERSION_TOOLS, *HISTORY_TOOLS, *SCHEMA_TOOLS, *STORE_TOOLS),
    )
)
TOOLS: dict[str, McpTool[Any]] = {
    tool.name: tool for tool in (*MEMORY_TOOLS, *GRAPH_TOOLS, *ENTITY_MEMORY_TOOLS, *MEMORY_SERVER_TOOLS)
}
"""All tools by name, in the order of tool lists. For a shared name, the tool of the memory server."""
SHARED_TOOL_NAMES = frozenset(_ENTITY_MEMORY_TOOLS_BY_NAME) & {tool.name for tool in MEMORY_SERVER_TOOLS}
TOOLSETS: dict[str, tuple[str, ...]] = {
    TOOLSET_MEMORY: tuple(tool.name for tool in MEMORY_TOOLS),
    TOOLSET_GRAPH: (*_GRAPH_TOOL_NAMES, "describe_store", "list_stores"),
    "time": _TIME_TOOL_NAMES,
    "stores": _STORE_TOOL_NAMES,
    TOOLSET_MEMORY_ENGINE: ("inject_knowledge_graph", "delete_graph_entity", "traverse_knowledge_graph"),
    TOOLSET_ENTITY_MEMORY: tuple(_ENTITY_MEMORY_TOOLS_BY_NAME),
    TOOLSET_MEMORY_SERVER: tuple(tool.name for tool in MEMORY_SERVER_TOOLS),
}
TOOLSETS[TOOLSET_DEFAULT] = (
    *("retain", "recall", "forget"),
    *("search_knowledge", "get_entity", "traverse_knowledge_graph", "inject_knowledge_graph", "query_cypher"),
    *("delete_graph_entity", "describe_store"),
)
TOOLSETS[TOOLSET_ALL] = tuple(tool.name for tool in (*MEMORY_TOOLS, *GRAPH_TOOLS, *ENTITY_MEMORY_TOOLS))
"""Names of the listed tools by toolset. Without a selection, `default` is listed. Unlisted tools can be called, too."""
_INTERFACE_TOOLS = (*ENTITY_MEMORY_TOOLS, *MEMORY_SERVER_TOOLS)
_TOOLSETS_WITH_ENTITY_MEMORY = frozenset({TOOLSET_ENTITY_MEMORY, TOOLSET_ALL})


def select_mcp_tools_by_toolset_or_name(asked: str) -> Sequence[McpTool[Any]]:
    """Return the tools of comma-separated toolsets and tool names, in the order of `TOOLS`.

    Raises InvalidInput for unknown names, and for two toolsets that share names.
    """
    wanted, names = _split(asked), set[str]()
    if {TOOLSET_ENTITY_MEMORY, TOOLSET_MEMORY_SERVER} <= {*wanted}:
        both = f"{TOOLSET_ENTITY_MEMORY} and {TOOLSET_MEMORY_SERVER} both have {', '.join(sorted(SHARED_TOOL_NAMES))}"
        raise errors.InvalidInput.at("tools", f"{both}; select one of them, and single tools of the other")
    for name in wanted:
        if name not in TOOLSETS and name not in TOOLS:
            known = f"toolsets: {', '.join(TOOLSETS)}; tools: {', '.join(TOOLS)}"
            unknown = f"{truncate_text(name, 80)!r} is neither a toolset nor a tool; {known}"
            raise errors.InvalidInput.at("tools", unknown)
        names.update(TOOLSETS.get(name, (name,)))
    tools = TOOLS | _ENTITY_MEMORY_TOOLS_BY_NAME if _has_entity_memory(wanted) else TOOLS
    listed = names or {*TOOLSETS[TOOLSET_DEFAULT]}
    return [tool for tool in tools.values() if tool.name in listed]


def resolve_called_tool(name: str, asked: str) -> McpTool[Any] | None:
    """Return the tool that a call means, on a connection that selected ``asked``; None for an unknown name."""
    if name in SHARED_TOOL_NAMES and _has_entity_memory(_split(asked)):
        return _ENTITY_MEMORY_TOOLS_BY_NAME[name]
    return TOOLS.get(name)


def describe_tool_name_shared_by_toolsets(tool: McpTool[Any], asked: str) -> str:
    """Return a line about a tool whose name two toolsets share; empty if the connection selected one of the two."""
    if tool.name not in SHARED_TOOL_NAMES or {TOOLSET_MEMORY_SERVER, *_TOOLSETS_WITH_ENTITY_MEMORY} & {*_split(asked)}:
        return ""
    return f"\nThis is the memory server's {tool.name}; with ?tools={TOOLSET_ENTITY_MEMORY} it is the entity memory's."


def defines_structured_content(tool: McpTool[Any]) -> bool:
    """Return whether a tool's interface defines structured content, which is then sent without being asked for."""
    return tool in _INTERFACE_TOOLS


def _has_entity_memory(wanted: Sequence[str]) -> bool:
    return not _TOOLSETS_WITH_ENTITY_MEMORY.isdisjoint(wanted) and TOOLSET_MEMORY_SERVER not in wanted


def _split(text: str) -> list[str]:
    return [name for name in map(str.strip, text.split(",")) if name]


@lru_cache(64)
def build_list_tools_result(tools: str) -> types.ListToolsResult:
    """Return the answer to tools/list for comma-separated toolsets and tool names. Raises InvalidInput."""
    return types.ListToolsResult(tools=[_describe_tool(tool) for tool in select_mcp_tools_by_toolset_or_name(tools)])


def _describe_tool(tool: McpTool[Any]) -> types.Tool:
    reads = tool.effect == "reads" and not tool.writes_with
    # Both hints are meaningful for tools that write only.
    writing = {
        "destructive_hint": None if reads else tool.effect in ("overwrites", "deletes"),
        "idempotent_hint": None if reads else not tool.retry_hint,
    }
    hints = types.ToolAnnotations.model_validate({"read_only_hint": reads, "open_world_hint": False} | writing)
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=build_listed_tool_schema(tool),
        annotations=hints,
    )
