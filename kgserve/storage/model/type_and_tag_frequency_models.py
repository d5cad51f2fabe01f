"""Counts of node types and tags."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_LISTED_KINDS = 100
MAX_LISTED_PREFIXES = 100
MAX_LISTED_TAGS = 100
MAX_LISTED_TAG_VALUES = 10
MAX_LISTED_EXAMPLES = 3


class NodeTypeFrequency(msgspec.Struct, frozen=True, kw_only=True):
    """Node type and its frequency. ``examples`` are summaries, or beginnings of contents of nodes without one."""

    kind: str
    count: int
    examples: Annotated[list[str], Meta(description="At most 3, of at most 120 characters")]


class TagPrefixFrequency(msgspec.Struct, frozen=True, kw_only=True):
    """Prefix of tags of the form `prefix:value`, up to the first colon, and how many tags have it."""

    prefix: str
    count: Annotated[int, Meta(description="Tags with this prefix, over all nodes")]
    values: Annotated[list[str], Meta(description="Most frequent values, at most 10")]


class TagFrequency(msgspec.Struct, frozen=True, kw_only=True):
    """Tag and the number of nodes that have it."""

    tag: str
    count: int
