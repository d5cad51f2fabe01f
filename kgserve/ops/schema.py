"""What types and tags a store uses, so that whoever writes can keep to them; from counts that are kept."""

from __future__ import annotations

from kgserve.model.answers import MAX_EXAMPLE, SchemaDescription, TagList
from kgserve.model.queries import TagsQuery
from kgserve.model.rows import NodeRow
from kgserve.ops.graph import Graph

_MOST_BYTES = 1 << 16


def example_of(row: NodeRow | None) -> str:
    """A node in a few words; nothing of one that is very long."""
    if row is None or len(row.content) > _MOST_BYTES:
        return ""
    text = (row.extras.summary if row.extras else "") or row.content
    # Four times, for the blanks that go.
    words = " ".join(text[: 4 * MAX_EXAMPLE].split())
    return words if len(words) <= MAX_EXAMPLE else words[: MAX_EXAMPLE - 1].rstrip() + "…"


def describe_schema(graph: Graph) -> SchemaDescription:
    """Types with examples, prefixes of tags with values, and tags: 100 of each, the most frequent first.

    All counts are kept with every write, so that this takes the same however large the store is.
    """
    with graph.lease() as leased:
        found = leased.listing(lambda catalog, rows: catalog.vocabulary(lambda node_id: example_of(rows.node(node_id))))
    return SchemaDescription(
        store=graph.name, node_count=found.nodes, kinds=found.kinds, tag_prefixes=found.tag_prefixes, tags=found.tags
    )


def list_tags(graph: Graph, request: TagsQuery) -> TagList:
    """Tags that start with `prefix`, with the number of nodes that have each: the most frequent first, then by name."""
    with graph.lease() as leased:
        return TagList(tags=leased.listing(lambda catalog, _: catalog.tags(request.prefix, request.limit)))
