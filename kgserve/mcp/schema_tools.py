"""The tools about the words that a store uses: its types and tags."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kgserve.mcp import answers, budget
from kgserve.mcp.arguments import Arguments
from kgserve.mcp.tool import Tool, counted, quoted, store_of
from kgserve.mcp.work import Reply, Work
from kgserve.model import answers as model
from kgserve.model.fields import MAX_ID_BYTES
from kgserve.ops import schema as ops


class DescribeSchema(Arguments, kw_only=True):
    """The store whose types and tags are asked for."""


class ListTags(Arguments, kw_only=True):
    """Which tags to list."""

    prefix: Annotated[str, msgspec.Meta(max_length=MAX_ID_BYTES, description="Only tags that start so")] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=model.MAX_TAGS_LISTED, description="Most tags")] = model.MAX_TAGS_LISTED


class Schema(model.SchemaDescription, kw_only=True):
    """The types and tags in use, the most frequent first."""

    more: answers.More = msgspec.UNSET


class Tags(model.TagList, kw_only=True):
    """Tags, the most frequent first."""

    more: answers.More = msgspec.UNSET


# A third of the room for each of the three lists.
_ROOM = budget.STRUCTURED // 3 - 100


def _describe_schema(work: Work, default: str | None, given: DescribeSchema) -> Reply:
    found = ops.describe_schema(work.pool, store_of(given.index, default))
    answer = Schema(
        store=found.store,
        node_count=found.node_count,
        kinds=budget.first_fitting(found.kinds, _ROOM),
        tag_prefixes=budget.first_fitting(found.tag_prefixes, _ROOM),
        tags=budget.first_fitting(found.tags, _ROOM),
    )
    if (len(answer.kinds), len(answer.tag_prefixes), len(answer.tags)) != (
        len(found.kinds),
        len(found.tag_prefixes),
        len(found.tags),
    ):
        answer.more = "less frequent ones were left out for their size; list_tags takes a prefix"
    return Reply("\n".join(budget.lines_within(_described(answer), budget.TEXT)), answer)


def _described(answer: Schema) -> list[str]:
    lines = [f'Schema of "{answer.store}": {counted(answer.node_count, "node")}', "", "=== Types ==="]
    for kind in answer.kinds:
        lines.append(f"  {kind.kind}: {kind.count:,}")
        lines += [f"    {quoted(example)}" for example in kind.examples]
    lines += ["", "=== Prefixes of tags ==="]
    lines += [f"  {each.prefix}: {each.count:,} ({', '.join(each.values)})" for each in answer.tag_prefixes]
    lines += ["", "=== Tags ===", *_tag_lines(answer.tags)]
    return lines + ([f"More: {answer.more}."] if answer.more else [])


def _list_tags(work: Work, default: str | None, given: ListTags) -> Reply:
    found = ops.list_tags(work.pool, store_of(given.index, default), given.prefix, given.limit)
    answer = Tags(tags=budget.first_fitting(found.tags, budget.STRUCTURED - 200))
    if len(answer.tags) < len(found.tags):
        answer.more = "less frequent ones were left out for their size; ask with a longer prefix"
    elif len(found.tags) == given.limit:
        answer.more = "there may be less frequent ones; ask with a longer prefix"
    which = f" starting with {quoted(given.prefix)}" if given.prefix else ""
    head = f"{counted(len(answer.tags), 'tag')}{which}"
    tail = [f"More: {answer.more}."] if answer.more else []
    return Reply("\n".join([*budget.lines_within([head, *_tag_lines(answer.tags)], budget.TEXT - 200), *tail]), answer)


def _tag_lines(tags: list[model.TagFreq]) -> list[str]:
    return [f"  {quoted(each.tag)}: {each.count:,}" for each in tags]


TOOLS = (
    Tool(
        "describe_schema",
        "Describe the types and tags of a store",
        "Which types and tags a store uses, with counts and examples: the 100 most frequent of each, and tags of the "
        "form prefix:value by prefix. Read it before you write, so that you use the words that are there.",
        DescribeSchema,
        Schema,
        "reads",
        "describing the schema",
        _describe_schema,
    ),
    Tool(
        "list_tags",
        "List tags",
        "The tags that start with `prefix`, or all, with the number of nodes that have each: the most frequent first.",
        ListTags,
        Tags,
        "reads",
        "listing tags",
        _list_tags,
    ),
)
