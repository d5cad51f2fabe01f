"""What types and tags a store uses, as callers get it, and nodes of which a list shows less."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from kgserve.model.fields import NodeExtrasShown

MAX_KINDS = 100
MAX_PREFIXES = 100
MAX_TAGS_LISTED = 100
MAX_VALUES = 10
MAX_EXAMPLES = 3
MAX_EXAMPLE = 120


class KindFreq(msgspec.Struct, frozen=True, kw_only=True):
    """A type of node. ``examples`` are summaries, or beginnings of contents where there is none."""

    kind: str
    count: int
    examples: Annotated[list[str], msgspec.Meta(description="At most 3, of at most 120 characters")]


class TagPrefixFreq(msgspec.Struct, frozen=True, kw_only=True):
    """Tags of the form `prefix:value`, by what is in front of the first colon."""

    prefix: str
    count: Annotated[int, msgspec.Meta(description="Tags so prefixed, over all nodes")]
    values: Annotated[list[str], msgspec.Meta(description="The most frequent values, at most 10")]


class TagFreq(msgspec.Struct, frozen=True, kw_only=True):
    """A tag, and how many nodes have it."""

    tag: str
    count: int


class SchemaDescription(msgspec.Struct, kw_only=True):
    """The types and tags that are in use, the most frequent first."""

    store: str
    node_count: int
    kinds: Annotated[list[KindFreq], msgspec.Meta(description="At most 100")]
    tag_prefixes: Annotated[list[TagPrefixFreq], msgspec.Meta(description="At most 100")]
    tags: Annotated[list[TagFreq], msgspec.Meta(description="At most 100")]


class TagList(msgspec.Struct, kw_only=True):
    """Tags, the most frequent first, and of equally frequent ones in the order of their names."""

    tags: list[TagFreq]


class ListedNode(NodeExtrasShown):
    """A node of a list. ``content`` and ``attributes`` are absent in a compact one, and so is what is not said here."""

    id: str
    type: str
    version: int
    sequence: int
    created_at: str
    updated_at: str
    content: str | msgspec.UnsetType = msgspec.UNSET
    attributes: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class ListedPage(msgspec.Struct, kw_only=True):
    """One page of nodes in the order of their ids; ``next_cursor`` is null on the last one.

    A page that looked at 20,000 nodes ends there, even when it is not full.
    """

    nodes: list[ListedNode]
    next_cursor: str | None
