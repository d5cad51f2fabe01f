"""Arguments that the listed schemas show: those that agents use. The others are accepted, and documented in resources.

Every listed argument costs tokens in every conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_input_schema import build_tool_input_schema

LISTED_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "retain": ("content", "supersedes", "memory_type", "entities", "valid_from"),
    "recall": ("query", "limit", "entity", "types", "valid_at"),
    "reflect": ("dry_run", "accept", "refuse", "undo"),
    "forget": ("ids", "entity", "query", "dry_run", "undo"),
    "get_memory": ("id",),
    "get_context": ("index", "query", "budget", "types", "valid_at"),
    "search_knowledge": ("index", "query", "types", "tags", "limit", "valid_at"),
    "get_entity": ("index", "id", "relations_offset", "version", "valid_at"),
    "traverse_knowledge_graph": ("index", "start_id", "depth", "direction", "relation_types", "valid_at"),
    "inject_knowledge_graph": ("index", "nodes", "edges"),
    "list_entities": ("index", "types", "tags", "attributes", "count", "limit", "cursor"),
    "query_cypher": ("index", "query", "params"),
    "delete_graph_entity": ("index", "id", "ids", "types", "dry_run"),
}
"""Names of the listed arguments by tool; a tool that is not here lists all."""
LISTED_ITEM_FIELDS: Mapping[str, tuple[str, ...]] = {
    "nodes": ("id", "type", "content", "attributes", "tags", "valid_to"),
    "edges": ("from", "to", "relation_type", "weight", "attributes", "valid_to"),
}
"""Listed fields of the items of `inject_knowledge_graph`."""
_REQUIRED_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "retain": ("content",),
    "search_knowledge": ("query",),
}
"""Arguments that calls as listed require. Unlisted ones may replace them, such as `messages`."""


def build_listed_tool_schema(tool: McpTool[Any]) -> dict[str, Any]:
    """Return the input schema of a tool as `tools/list` shows it."""
    schema = build_tool_input_schema(tool.arguments)
    listed = LISTED_ARGUMENTS.get(tool.name)
    if listed is None or "properties" not in schema:
        return schema
    fields = {name: schema["properties"][name] for name in listed if name in schema["properties"]}
    if tool.name == "inject_knowledge_graph":
        fields |= {name: _reduce_items(fields[name], LISTED_ITEM_FIELDS[name]) for name in LISTED_ITEM_FIELDS}
    required = [*schema.get("required", ()), *_REQUIRED_ARGUMENTS.get(tool.name, ())]
    return {**schema, "properties": fields} | ({"required": required} if required else {})


def _reduce_items(field: dict[str, Any], listed: tuple[str, ...]) -> dict[str, Any]:
    items = {name: value for name, value in field["items"].items() if name != "description"}
    return {**field, "items": {**items, "properties": {name: items["properties"][name] for name in listed}}}


def does_tool_accept_unlisted_arguments(tool: McpTool[Any]) -> bool:
    """Return whether a tool accepts documented arguments that its listed schema does not show."""
    return build_listed_tool_schema(tool) != build_tool_input_schema(tool.arguments)


def format_tool_documentation_markdown(tool: McpTool[Any]) -> str:
    """Return the documentation of a tool as Markdown: its description and all arguments."""
    schema = build_tool_input_schema(tool.arguments)
    lines = [f"# {tool.name}", "", tool.description, "", "Arguments:", *_iter_argument_lines(schema, "")]
    return "\n".join(lines) + "\n"


def _iter_argument_lines(schema: Mapping[str, Any], indent: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        items = field.get("items", {})
        kind = f"list of {items.get('type', 'any')}" if field.get("type") == "array" else field.get("type", "any")
        facts = [kind, *(["required"] if name in required else [])]
        facts += [f"one of {', '.join(field['enum'])}"] if "enum" in field else []
        facts += [f"default {field['default']}"] if "default" in field else []
        facts += [f"at most {field['maximum']:g}"] if "maximum" in field else []
        description = f": {field['description']}" if field.get("description") else ""
        yield f"{indent}- `{name}` ({'; '.join(map(str, facts))}){description}"
        yield from _iter_argument_lines(items, f"{indent}  ")
