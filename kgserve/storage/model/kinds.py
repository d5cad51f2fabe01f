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


class KindFreq(msgspec.Struct, frozen=True, kw_only=True):
    """A type of node. ``examples`` are summaries, or beginnings of contents where there is none."""

    kind: str
    count: int
    examples: Annotated[list[str], Meta(description="At most 3, of at most 120 characters")]


class TagPrefixFreq(msgspec.Struct, frozen=True, kw_only=True):
    """Tags of the form `prefix:value`, by what is in front of the first colon."""

    prefix: str
    count: Annotated[int, Meta(description="Tags so prefixed, over all nodes")]
    values: Annotated[list[str], Meta(description="The most frequent values, at most 10")]


class TagFreq(msgspec.Struct, frozen=True, kw_only=True):
    """A tag, and how many nodes have it."""

    tag: str
    count: int
