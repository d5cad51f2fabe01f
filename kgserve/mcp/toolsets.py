"""The sets of tools that clients choose from, and the tool that a call means.

Two sets follow interfaces that others have made, and have four names in common. Of those, a call means the one of the
set that its connection asks for; on a connection that asks for neither, the one whose arguments it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kgserve.decoding import convert
from kgserve.errors import InvalidInput
from kgserve.mcp.entity_memory import ENTITY_MEMORY_TOOLS
from kgserve.mcp.memory_server import MEMORY_SERVER_TOOLS
from kgserve.mcp.memory_tools import MEMORY_TOOLS
from kgserve.mcp.store_tools import STORE_TOOLS
from kgserve.mcp.tools import GRAPH_TOOLS, Tool
from kgserve.mcp.values import shortened

MEMORY = "memory"
GRAPH = "graph"
DEFAULT = "default"
ALL = "all"
ENTITY_MEMORY = "entity-memory"
MEMORY_SERVER = "memory-server"

_ENTITY_MEMORY: dict[str, Tool[Any]] = {tool.name: tool for tool in ENTITY_MEMORY_TOOLS}
TOOLS: dict[str, Tool[Any]] = {
    tool.name: tool for tool in (*MEMORY_TOOLS, *GRAPH_TOOLS, *STORE_TOOLS, *ENTITY_MEMORY_TOOLS, *MEMORY_SERVER_TOOLS)
}
"""By name, in the order of lists; of a name that two sets have, the memory server's."""
SHARED_NAMES = frozenset(_ENTITY_MEMORY) & {tool.name for tool in MEMORY_SERVER_TOOLS}

TOOLSETS: dict[str, tuple[str, ...]] = {
    MEMORY: tuple(tool.name for tool in MEMORY_TOOLS),
    GRAPH: (
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
        "list_stores",
    ),
    "time": ("put_node", "put_subgraph", "merge_entities", "retire", "entity_history"),
    "stores": ("describe_store", "list_stores", "configure_store", "drop_store"),
    ENTITY_MEMORY: tuple(_ENTITY_MEMORY),
    MEMORY_SERVER: tuple(tool.name for tool in MEMORY_SERVER_TOOLS),
}
TOOLSETS[DEFAULT] = (*TOOLSETS[MEMORY], *TOOLSETS[GRAPH])
TOOLSETS[ALL] = tuple(tool.name for tool in (*MEMORY_TOOLS, *GRAPH_TOOLS, *STORE_TOOLS, *ENTITY_MEMORY_TOOLS))
"""What is listed when it is asked for; `default` also where nothing is said. What is not listed can be called, too."""

_WITH_ENTITY_MEMORY = frozenset({ENTITY_MEMORY, ALL})


def chosen(asked: str) -> Sequence[Tool[Any]]:
    """The tools of sets and names with commas between, in the order of the table.

    Raises InvalidInput for what is neither, and for two sets with the same names.
    """
    wanted, names = _asked(asked), set[str]()
    if {ENTITY_MEMORY, MEMORY_SERVER} <= {*wanted}:
        both = f"{ENTITY_MEMORY} and {MEMORY_SERVER} both have {', '.join(sorted(SHARED_NAMES))}"
        raise InvalidInput.at("tools", f"{both}; ask for one of them, and for single tools of the other")
    for name in wanted:
        if name not in TOOLSETS and name not in TOOLS:
            known = f"there are the sets {', '.join(TOOLSETS)}, and the tools {', '.join(TOOLS)}"
            raise InvalidInput.at("tools", f"{shortened(name, 80)!r} is neither a set of tools nor a tool; {known}")
        names.update(TOOLSETS.get(name, (name,)))
    tools = TOOLS | _ENTITY_MEMORY if _has_entity_memory(wanted) else TOOLS
    listed = names or {*TOOLSETS[DEFAULT]}
    return [tool for tool in tools.values() if tool.name in listed]


def called(name: str, asked: str, arguments: Mapping[str, Any] | None) -> Tool[Any] | None:
    """The tool that a call means, on a connection that asked for these; None for none that there is."""
    if name not in SHARED_NAMES:
        return TOOLS.get(name)
    wanted = _asked(asked)
    if _has_entity_memory(wanted):
        return _ENTITY_MEMORY[name]
    if MEMORY_SERVER in wanted or _fits(TOOLS[name], arguments) or not _fits(_ENTITY_MEMORY[name], arguments):
        return TOOLS[name]
    return _ENTITY_MEMORY[name]


def _has_entity_memory(wanted: Sequence[str]) -> bool:
    return not _WITH_ENTITY_MEMORY.isdisjoint(wanted) and MEMORY_SERVER not in wanted


def _asked(text: str) -> list[str]:
    return [name for name in map(str.strip, text.split(",")) if name]


def _fits(tool: Tool[Any], arguments: Mapping[str, Any] | None) -> bool:
    try:
        convert(dict(arguments or {}), tool.arguments)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True
