"""What types and tags a store uses, so that whoever writes can keep to them; from counts that are kept."""

from __future__ import annotations

from kgserve.errors import FieldError, InvalidInput
from kgserve.model.answers import MAX_EXAMPLE, MAX_TAGS_LISTED, SchemaDescription, TagList
from kgserve.model.rows import NodeRow
from kgserve.store.pool import StorePool

_MOST_BYTES = 1 << 16


def example_of(row: NodeRow | None) -> str:
    """A node in a few words; nothing of one that is very long."""
    if row is None or len(row.content) > _MOST_BYTES:
        return ""
    text = (row.extras.summary if row.extras else "") or row.content
    # Four times, for the blanks that go.
    words = " ".join(text[: 4 * MAX_EXAMPLE].split())
    return words if len(words) <= MAX_EXAMPLE else words[: MAX_EXAMPLE - 1].rstrip() + "…"


def describe_schema(pool: StorePool, store: str) -> SchemaDescription:
    """The 100 most frequent types, prefixes of tags, and tags. Raises NotFound."""
    with pool.lease(store) as leased:
        found = leased.listing(lambda catalog, rows: catalog.vocabulary(lambda node_id: example_of(rows.node(node_id))))
    return SchemaDescription(
        store=store, node_count=found.nodes, kinds=found.kinds, tag_prefixes=found.tag_prefixes, tags=found.tags
    )


def list_tags(pool: StorePool, store: str, prefix: str = "", limit: int = MAX_TAGS_LISTED) -> TagList:
    """Tags that start with ``prefix``, the most frequent first and then by name.

    Raises InvalidInput for a limit outside 1 to 100, and NotFound.
    """
    if not 1 <= limit <= MAX_TAGS_LISTED:
        message = f"is not from 1 to {MAX_TAGS_LISTED}"
        raise InvalidInput(f"limit: {message}", (FieldError("limit", message),))
    with pool.lease(store) as leased:
        return TagList(tags=leased.listing(lambda catalog, _: catalog.tags(prefix, limit)))
