"""State of the projections of a store, as statistics show it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class IndexStatus(msgspec.Struct, kw_only=True):
    """How one index of a store stands. Sizes are in bytes."""

    name: Literal["keyword", "vector", "past-keyword", "past-vector"]
    sequence: int
    lag: Annotated[int, Meta(description="Commits that it has not seen yet")]
    entities: int
    pending: Annotated[int, Meta(description="Entities of the present step that are still to come")]
    bytes: int
    model: str
    degraded: bool
    error: str | None


class SetAside(msgspec.Struct, kw_only=True):
    """A memory of which the language model made nothing that can be used, so often that it is not asked again."""

    id: str
    tries: int
    error: str


class ExtractionStatus(msgspec.Struct, kw_only=True):
    """How taking facts out of memories with a language model stands. Counts are since the store was opened."""

    model: str
    sequence: Annotated[int, Meta(description="The commit up to which new memories were noted")]
    waiting: Annotated[int, Meta(description="Memories that the model is yet to be given")]
    set_aside: Annotated[list[SetAside], Meta(description="The first 20")]
    set_aside_count: int
    extracted: Annotated[int, Meta(description="Memories of which the model's answer was taken in")]
    items: Annotated[int, Meta(description="Facts, entities and relations that were taken in")]
    dropped: Annotated[int, Meta(description="What the model proposed that could not be")]
    failures: Annotated[int, Meta(description="Questions without an answer that can be used")]
    tokens_today: Annotated[int, Meta(description="Tokens of this day (UTC), by the larger of count, estimate")]
    daily_tokens: Annotated[int, Meta(description="The most tokens of a day; 0: no limit")]
    error: Annotated[str | None, Meta(description="Why the last question failed, until one succeeds")]


class SyncerStatus(msgspec.Struct, kw_only=True):
    """How telling an index of others what the store contains stands. Counts are since the store was opened."""

    name: str
    sequence: Annotated[int, Meta(description="The commit up to which it was told")]
    lag: Annotated[int, Meta(description="Commits that it was not told of yet")]
    sent: Annotated[int, Meta(description="Contents and deletions that it took")]
    failures: Annotated[int, Meta(description="Times that it did not")]
    error: Annotated[str | None, Meta(description="Why, until it takes them")]


class HistoryGap(msgspec.Struct, kw_only=True):
    """Commits as of which something is missing, since a part of the history's file was damaged."""

    part: Annotated[str, Meta(description="What is missing: node, edge or link")]
    first: Annotated[int, Meta(description="The first sequence as of which it is missing")]
    last: Annotated[int | None, Meta(description="The first one as of which it is not; null until that is known")]


class HistoryStatus(msgspec.Struct, kw_only=True):
    """How the history stands, and how far the look for damage has come that goes on in the background."""

    oldest: Annotated[int, Meta(description="The first sequence as of which it answers; 0 for all")]
    bytes: int
    gaps: list[HistoryGap]
    scrubbed_bytes: Annotated[int, Meta(description="Read and compared with checksums in the present look for damage")]
    scrubbed_at: Annotated[str | None, Meta(description="When the last look for damage ended")]
    damage: Annotated[str | None, Meta(description="What was found damaged since the store was opened")]
