"""Rows of the reference tables in docs/: operations, tools and client methods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from inspect import Parameter, getdoc, signature
from typing import Any

import msgspec

from kgserve.api.operation import ALIAS_OPT_KEY, OPERATION_OPT_KEY, ApiOperation
from kgserve.api.operation_table import USE_CASES
from kgserve.client import Client, Store
from kgserve.server.http.openapi import TAG_DESCRIPTIONS
from kgserve.server.http.routes import ROUTES
from kgserve.server.mcp.entity_memory_tools import ENTITY_MEMORY_TOOLS
from kgserve.server.mcp.memory_tools import MEMORY_TOOLS
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_input_schema import build_tool_input_schema
from kgserve.server.mcp.toolsets import GRAPH_TOOLS, TOOLSET_ALL, TOOLSET_MEMORY_SERVER, TOOLSETS

MEMORY_TAGS = ("memories", "entities", "analytics")
"""Tags whose operations are listed in docs/memory-reference.md; docs/rest.md lists the others."""
MAX_SIGNATURE_PARAMETERS = 4
MIN_SHARED_FIELDS = 8
"""Optional fields of a route to which the rows of later routes refer instead of repeating them."""

Row = tuple[str, ...]
FieldLists = dict[Row, str]
"""Long lists of optional fields, with the route whose row lists them."""


def list_operations() -> str:
    """Return the tables of operations that docs/rest.md holds, one for each tag."""
    return _operation_tables(tag for tag in TAG_DESCRIPTIONS if tag not in MEMORY_TAGS)


def list_memory_operations() -> str:
    """Return the tables of operations that docs/memory-reference.md holds, one for each tag."""
    return _operation_tables(MEMORY_TAGS)


def list_toolsets() -> str:
    """Return the table of MCP toolsets with their tools."""
    rows = ((f"`{name}`", _toolset_text(name, tools)) for name, tools in TOOLSETS.items())
    return table(("set", "tools"), rows)


def list_graph_tools() -> str:
    """Return the table of MCP tools for graphs."""
    rows = ((f"`{tool.name}`", escape_cell(tool.description)) for tool in GRAPH_TOOLS)
    return table(("tool", "when to use it"), rows)


def list_memory_tools() -> str:
    """Return the table of MCP tools for memories, with their arguments."""
    return table(("tool", "when", "arguments"), map(_tool_row, MEMORY_TOOLS))


def list_entity_memory_tools() -> str:
    """Return the table of MCP tools for an entity memory, with their arguments."""
    return table(("tool", "what it does", "arguments"), map(_tool_row, ENTITY_MEMORY_TOOLS))


def list_client_methods() -> str:
    """Return the tables of a client's methods."""
    return _method_tables(Client, "client")


def list_store_methods() -> str:
    """Return the tables of the methods of a client's store."""
    return _method_tables(Store, "store")


def table(head: Row, rows: Iterable[Row]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape_cell(text: str) -> str:
    """Return text as a table's cell may hold it."""
    return text.replace("|", "\\|")


def _operation_tables(tags: Iterable[str]) -> str:
    rows: dict[str, list[Row]] = {tag: [] for tag in tags}
    lists: FieldLists = {}
    for method, path, operation in documented_operations():
        if operation.tag in rows:
            text = _operation_text(operation, f"{method} {path}", lists)
            rows[operation.tag].append((method, f"`{path}`", escape_cell(text)))
    head = ("method", "path", "what it does")
    return "\n\n".join(f"**{tag.capitalize()}**\n\n{table(head, rows[tag])}" for tag in rows)


def documented_operations() -> Iterator[tuple[str, str, ApiOperation]]:
    """Yield method, path and operation of every route, without aliases."""
    for handler in ROUTES.handlers:
        operation = handler.opt.get(OPERATION_OPT_KEY)
        if operation is not None and not handler.opt.get(ALIAS_OPT_KEY):
            [method], [path] = handler.http_methods, handler.paths
            yield method, path.replace(":str}", "}"), operation


def _operation_text(operation: ApiOperation, route: str, lists: FieldLists) -> str:
    body = None if operation.request is None else operation.request.struct
    fields = (_fields("Query", operation.query, route, lists), _fields("Body", body, route, lists))
    return " ".join(part for part in (f"{operation.summary}.", operation.note, *fields) if part)


def _fields(place: str, struct: type[msgspec.Struct] | None, route: str, lists: FieldLists) -> str:
    fields = () if struct is None else msgspec.structs.fields(struct)
    required = _names(field.encode_name for field in fields if field.required)
    optional = _optional_names(tuple(field.encode_name for field in fields if not field.required), route, lists)
    named = "; ".join(part for part in (required, optional and f"optional {optional}") if part)
    return named and f"{place}: {named}."


def _optional_names(names: Row, route: str, lists: FieldLists) -> str:
    """Return optional fields; a long list that an earlier route has in common is named by that route."""
    for listed, listing_route in lists.items():
        if set(listed) <= set(names):
            others = (f"`{name}`" for name in names if name not in listed)
            return ", ".join([f"those of `{listing_route}`", *others])
    if len(names) >= MIN_SHARED_FIELDS:
        lists[names] = route
    return _names(names)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _toolset_text(name: str, tools: Iterable[str]) -> str:
    return f"all but those of `{TOOLSET_MEMORY_SERVER}`" if name == TOOLSET_ALL else _names(tools)


def _tool_row(tool: McpTool[Any]) -> Row:
    schema = build_tool_input_schema(tool.arguments)
    required = schema.get("required", ())
    arguments = (
        _argument(name, described, is_required=name in required)
        for name, described in schema["properties"].items()
        if name not in {"index", "detail"}
    )
    return f"`{tool.name}`", escape_cell(tool.description), escape_cell(", ".join(arguments))


def _argument(name: str, described: dict[str, Any], *, is_required: bool) -> str:
    """Return an argument with what its value may be: its choices, its default, or the fields of its items."""
    details = ["required"] if is_required else []
    inside = described.get("items", {}).get("properties")
    if inside:
        details.append(f"each with {_names(inside)}")
    details += [", ".join(map(str, described["enum"]))] if "enum" in described else []
    if isinstance(default := described.get("default"), bool | int | float) or default:
        details.append(f"default {str(default).lower() if isinstance(default, bool) else default}")
    return f"`{name}`" + (f" ({'; '.join(details)})" if details else "")


def _method_tables(kind: type, owner: str) -> str:
    """Return the methods that send one request each, by tag of their operation, then the others with what they do."""
    summaries = {(case.name, f"{case.operation.summary}."): case.operation.tag for case in USE_CASES}
    by_tag: dict[str, list[str]] = {}
    others: list[Row] = []
    methods = {name: each for base in reversed(kind.__mro__) for name, each in vars(base).items()}
    for name, method in methods.items():
        if callable(method) and not name.startswith("_"):
            call = escape_cell(f"`{name}({_parameters(method)})`")
            meaning = (getdoc(method) or "").partition("\n")[0]
            if tag := summaries.get((name, meaning)):
                by_tag.setdefault(tag, []).append(call)
            else:
                others.append((call, escape_cell(meaning.replace("``", "`"))))
    rows = ((tag, ", ".join(by_tag[tag])) for tag in TAG_DESCRIPTIONS if tag in by_tag)
    grouped = table(("operations", f"methods of a {owner}"), rows)
    return "\n\n".join([grouped, table((f"further method of a {owner}", "what it does"), others)])


def _default(parameter: Parameter) -> str:
    return f'"{parameter.default}"' if isinstance(parameter.default, str) else repr(parameter.default)


def _parameters(method: Any) -> str:
    """Return positional parameters of a method, then keywords with a default; an ellipsis stands for the rest."""
    given = list(signature(method).parameters.values())[1:]
    shown = [
        each.name if each.default is Parameter.empty else f"{each.name}={_default(each)}"
        for each in given
        if each.kind is not Parameter.KEYWORD_ONLY or each.default
    ]
    required = sum(each.default is Parameter.empty for each in given)
    shown = shown[: max(required, MAX_SIGNATURE_PARAMETERS)]
    return ", ".join([*shown, *(["…"] if len(given) > len(shown) else [])])
