"""Tools that list the types and tags of a store."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from kgserve.graph import answers, node_reads, url_parameters
from kgserve.server.mcp.shared_tool_arguments import (
    FieldNamesToolArguments,
    NameField,
    StoreToolArguments,
    convert_arguments_to_request,
)
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_replies import (
    MAX_SUBJECT_CHARS,
    ToolReply,
    build_tool_reply,
    format_count,
    join_lines_fitting_reply,
    quote_text,
)
from kgserve.server.mcp.tool_structured_content import take_items_within_json_size, take_lines_within_length
from kgserve.storage.model import type_and_tag_frequency_models
from kgserve.storage.model.type_and_tag_frequency_models import MAX_LISTED_TAGS


class DescribeSchemaArguments(FieldNamesToolArguments, kw_only=True):
    """Store whose types and tags to return."""


class ListTagsArguments(StoreToolArguments, kw_only=True):
    """Page of the tags."""

    prefix: Annotated[NameField, Meta(description="Only tags with this prefix")] = ""
    limit: Annotated[int, Meta(description="Maximum, up to 100")] = MAX_LISTED_TAGS


@build_tool_reply.register
def _describe_schema_reply(found: answers.StoreTypesAndTags, _given: DescribeSchemaArguments, _store: str) -> ToolReply:
    lists = {
        name: take_items_within_json_size(getattr(found, name), MAX_SUBJECT_CHARS // 3)
        for name in ("kinds", "tag_prefixes", "tags")
    }
    cut = any(len(kept) < len(getattr(found, name)) for name, kept in lists.items())
    more = "less frequent ones were omitted because of their size; list_tags accepts a prefix" if cut else ""
    values = replace(found, **lists)
    return ToolReply(join_lines_fitting_reply(_schema_lines(values)), msgspec.to_builtins(values), more)


def _schema_lines(values: answers.StoreTypesAndTags) -> list[str]:
    lines = [f'Schema of "{values.store}": {format_count(values.node_count, "node")}', "Types:"]
    for kind in values.kinds:
        lines.append(f"  {kind.kind}: {kind.count:,}")
        lines += [f"    {quote_text(example)}" for example in kind.examples]
    lines += ["Prefixes of tags:"]
    lines += [f"  {each.prefix}: {each.count:,} ({', '.join(each.values)})" for each in values.tag_prefixes]
    return [*lines, "Tags:", *map(_tag_line, values.tags)]


@build_tool_reply.register
def _list_tags_reply(found: answers.TagList, given: ListTagsArguments, _store: str) -> ToolReply:
    tags = take_items_within_json_size(found.tags, MAX_SUBJECT_CHARS)
    lines = take_lines_within_length(map(_tag_line, tags), MAX_SUBJECT_CHARS)
    more = ""
    if len(lines) < len(found.tags):
        more = "less frequent ones were omitted because of their size; use a longer prefix"
    elif len(tags) == given.limit:
        more = "there may be less frequent ones; use a longer prefix"
    which = f" starting with {quote_text(given.prefix)}" if given.prefix else ""
    head = f"{format_count(len(lines), 'tag')}{which}"
    return ToolReply("\n".join([head, *lines]), {"tags": msgspec.to_builtins(tags[: len(lines)])}, more)


def _tag_line(each: type_and_tag_frequency_models.TagFrequency) -> str:
    return f"  {quote_text(each.tag)}: {each.count:,}"


SCHEMA_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "describe_schema",
        "Describe the types and tags of a store",
        "The 100 most frequent types and tags with counts and examples, and tags of the form prefix:value by prefix.",
        DescribeSchemaArguments,
        "describing the schema",
        lambda graph, _: node_reads.describe_types_and_tags(graph),
    ),
    McpTool(
        "list_tags",
        "List tags",
        "The tags that start with `prefix`, or all, with the number of nodes of each, most frequent first.",
        ListTagsArguments,
        "listing tags",
        lambda graph, given: node_reads.list_tags(
            graph, convert_arguments_to_request(url_parameters.TagListParameters, given)
        ),
    ),
)
